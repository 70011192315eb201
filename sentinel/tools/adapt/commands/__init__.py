"""Commands of the tool; :mod:`sentinel.commands` finds them."""
