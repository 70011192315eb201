"""Compare functions of several frameworks that are bound to one contract."""
