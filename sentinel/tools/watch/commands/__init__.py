"""Define the tool's commands; :mod:`sentinel.commands` finds them."""
