"""Measure what a bug does: to gradients on the recipe's own scenario, and to a toy policy that is trained.

    toy, batches        the task, the policy, its optimiser; what a step of training has
    parts, setup        what a boundary does in such a step; how a recipe's scenario sets it up
    places              where the boundary is called: a revision, or the contract's reference
    scenario, training  what is measured; report, picture: how it is shown

The toy is numpy, here in the controller; the boundary is called where it always is, in a session of the worker. Of a
step, only what the recipe's contract means is upstream's; all else is plain numpy and the same on both sides, so a
difference between the two curves is the boundary's.
"""
