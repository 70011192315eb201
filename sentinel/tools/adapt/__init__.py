"""Write a first adapter for a framework: what fits a contract, what is missing, and what the laws say."""
