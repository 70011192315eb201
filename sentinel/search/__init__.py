"""The search for scenarios that break a law. Hypothesis stays in the controller; boundaries run in a forked session."""
