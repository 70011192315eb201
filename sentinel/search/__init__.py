"""Search scenarios that break a law. Hypothesis runs in this process; boundaries run in a forked session."""
