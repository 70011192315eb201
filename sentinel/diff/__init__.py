"""What changes between two revisions, and what frameworks mean by one name: the same scenarios through both."""
