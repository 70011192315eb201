"""Write a first adapter for a framework. Report the packages that are missing, and the results of laws."""
