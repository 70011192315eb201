"""Run Sentinel's items in pytest: collect them, decide them, and report what passes."""
