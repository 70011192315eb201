"""Compare two revisions: call both on the same scenarios and report what differs."""
