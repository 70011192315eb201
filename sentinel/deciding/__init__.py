"""Decide recipes and laws: call the framework's function in a worker, check its answer, and compare the values."""
