"""Record the verdict of each recipe at each commit, decided once for each distinct closure of its code."""
