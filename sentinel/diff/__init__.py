"""What changes between two revisions: the same scenarios through the same boundaries of both."""
