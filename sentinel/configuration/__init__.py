"""Training configurations: what a user's file sets, and the defaults that a copy of a framework has for the rest."""
