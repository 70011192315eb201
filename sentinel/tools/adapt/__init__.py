"""Write a first adapter for a framework, list missing packages, and try the laws on the adapter's bindings."""
