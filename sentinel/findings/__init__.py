"""What becomes of a bug once it is found: whether somebody has it already, and how far it has come."""
