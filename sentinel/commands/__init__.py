"""The commands of ``sentinel``, one module a group: ``declare`` adds its parsers, and what it runs is imported then."""
