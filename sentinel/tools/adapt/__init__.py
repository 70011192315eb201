"""Write a first adapter for a framework, and report missing packages and the results of laws."""
