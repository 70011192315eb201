"""Compare functions of several frameworks that are bound to the same contract."""
