"""Run recipes at every commit, tag or release of a framework."""
