"""For adapter authors: the kit that builds calls, families of bindings, and the errors of drift."""
