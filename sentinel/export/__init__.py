"""Evidence for somebody else's pull request: a page, a runner without Sentinel, a regression test, a statement."""
