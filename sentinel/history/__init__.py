"""Time: the verdict of each recipe at every commit or release, decided once for each distinct closure of its code."""
