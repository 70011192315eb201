"""Record the verdict of each recipe at each commit. Commits with the same relevant code are tested only once."""
