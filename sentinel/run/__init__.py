"""Run Sentinel's items in pytest: collect recipes and laws, get their verdicts, and pass or fail the items."""
