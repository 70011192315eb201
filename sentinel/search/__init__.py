"""Search for scenarios that break a law. Hypothesis runs in pytest's process, the framework in a forked process."""
