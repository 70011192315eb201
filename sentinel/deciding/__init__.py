"""Turn a question into a decision: query the worker, check its answer and compare it with the expectation."""
