"""Help adapter authors: helpers that build calls, ready-made bindings, and errors for outdated adapters."""
