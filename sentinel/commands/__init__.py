"""Define the commands of ``sentinel``, one module each. A module is imported only if its command is used."""
