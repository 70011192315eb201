"""Compare two revisions of a framework: call both on the same scenarios, and report what differs."""
