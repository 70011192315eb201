"""Write a first adapter for a framework, list the packages that it misses, and try the laws on its bindings."""
