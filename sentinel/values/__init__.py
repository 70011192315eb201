"""Tensors and other literals as data, and when two values agree."""
