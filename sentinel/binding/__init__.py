"""Provide adapter authors with helpers that build calls, ready-made bindings, and errors for outdated adapters."""
