"""One question of two revisions: the same scenarios through both, and what differs."""
