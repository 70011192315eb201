"""Write a first adapter for a framework, with the missing packages and the results of laws."""
