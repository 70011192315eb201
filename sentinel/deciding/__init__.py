"""Find the verdicts of recipes and laws: call the framework's function in a worker, check where its code came from, and
compare the returned values."""
