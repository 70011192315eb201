"""Write a first adapter for a framework, list the packages that it needs, and try the laws on its bindings."""
