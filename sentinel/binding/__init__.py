"""Provide what adapter authors use: helpers that build calls, ready-made bindings, and errors for outdated adapters."""
