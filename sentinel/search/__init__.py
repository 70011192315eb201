"""Search for scenarios that break a law. Hypothesis runs in pytest's process; the framework runs in a forked one."""
