"""Record the verdict of each recipe at each commit. Commits with the same relevant code share one verdict."""
