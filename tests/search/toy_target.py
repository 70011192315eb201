"""Toy functions, some with known faults, and a fixture that opens them as a target."""

from collections.abc import Callable

from sentinel.deciding.law_session import Subject
from sentinel.deciding.open_target import OpenTarget

TOYS = """
import os
import signal

import torch

def right(values, response_mask, scale):
    return scale * torch.where(response_mask != 0, values, 0.0).sum(-1)

def unmasked(values, response_mask, scale):
    return scale * values.sum(-1)

def leaking(values, response_mask, scale):
    return unmasked(values, response_mask, scale)

def calls_unmasked(values, response_mask, scale):
    return unmasked(values, response_mask, scale)

def rough(values, response_mask, scale):
    # right, but for a rounding that float64 does not have
    huge = 1e9 if values.dtype != torch.float64 else 0.0
    return ((scale * (values * response_mask)).sum(-1) + huge) - huge

def refuses(values, response_mask, scale):
    raise NotImplementedError("not on this machine")

def lacks(values, response_mask, scale):
    # what it does here, it did elsewhere in other versions
    return None

STATE = []

def remembers(values, response_mask, scale):
    # wrong after the first calls: a fresh process does not show it
    STATE.append(1)
    return right(values, response_mask, scale) + (1.0 if len(STATE) > 30 else 0.0)

def shifted(values, response_mask, scale):
    return right(values, response_mask, scale) + 1

def meant(values, response_mask, scale):
    return right(values, response_mask, scale) + 1

def stale(values, response_mask, scale):
    return right(values, response_mask, scale)

def fragile(values, response_mask, scale):
    # wrong, and takes its process along where rows are long
    if values.shape[1] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return unmasked(values, response_mask, scale)

def hangs(values, response_mask, scale):
    # wrong, and never comes back where rows are long
    while values.shape[1] == 3:
        signal.pause()
    return unmasked(values, response_mask, scale)

def whitens(rank, values, response_mask, scale):
    # a rank without a token asks no other rank
    if rank == 0 or values.shape[1] != 3:
        torch.distributed.all_reduce(torch.ones(1))
    return right(values, response_mask, scale)

def torn(values, response_mask, scale):
    # wrong, and no number at all where a value that does not count is large
    large = ((response_mask == 0) & (values.abs() > 50)).any()
    return unmasked(values, response_mask, scale) + (float("nan") if large else 0.0)

def plain(values, response_mask, scale):
    # of a revision that had no offset
    return right(values, response_mask, scale)

def plain_wrong(values, response_mask, scale):
    return unmasked(values, response_mask, scale)

def adding(values, response_mask, scale, offset=None):
    return right(values, response_mask, scale) + (offset or 0.0)

def unheard(values, response_mask, scale, offset=None):
    # wrong for one of the offsets
    return right(values, response_mask, scale) + (offset or 0.0) * (offset != 7.0)
"""

#: A function that is wrong between two constants, which no domain contains.
BETWEEN = """
import torch

def right(values, response_mask, scale):
    values = torch.where((values > 16.5) & (values < 19.0), values + 1, values)
    return scale * torch.where(response_mask != 0, values, 0.0).sum(-1)
"""

#: A function that drops the tokens after the twentieth.
CUT = """
import torch

def right(values, response_mask, scale):
    return scale * torch.where(response_mask != 0, values, 0.0)[:, :20].sum(-1)
"""

#: ``open_target(functions)`` returns an open target and the subjects of these functions.
OpenToys = Callable[..., tuple[OpenTarget, dict[str, Subject]]]
