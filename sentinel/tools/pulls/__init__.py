"""Compare each open pull request of a framework with its base."""
