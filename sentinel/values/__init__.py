"""Tensors and other literals as data, and comparison of values."""
