"""Run Sentinel's items in pytest: collect recipes and laws, decide each verdict, and pass or fail the items."""
