"""Represent tensors and other literals as data, compare values, and read the files that a user names."""
