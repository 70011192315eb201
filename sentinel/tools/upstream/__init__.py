"""Prepare pull requests to a framework: search for duplicates, try the fix, write the page and its runner."""
