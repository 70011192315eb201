"""What a bug costs: a toy policy is trained through the real boundary where the bug is and where it is not.

The toy is numpy, here in the controller; the boundary is called where it always is, in a session of the worker. Of a
step, only what the recipe's contract means is upstream's; all else is plain numpy and the same on both sides, so a
difference between the two curves is the boundary's.
"""
