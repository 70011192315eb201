"""Prepare pull requests to a framework: search for duplicates, test the fix, and write page and runner."""
