"""Represent tensors and other literals as data, and compare values."""
