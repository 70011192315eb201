"""Determine the verdicts of recipes and laws: call the framework's function in a worker, check where its code was
loaded from, and compare the returned values."""
