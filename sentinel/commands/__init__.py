"""The commands of ``sentinel``, one module for each. A module is imported only when its command is used."""
