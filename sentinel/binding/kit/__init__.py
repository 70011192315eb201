"""Provide the helpers of adapters: they make arguments and stand-ins, and call kinds of functions that recur.

Adapters use every name as ``kit.NAME``, whichever module of this package defines it.
"""

from sentinel.binding.kit.calls import *
from sentinel.binding.kit.configurations import *
from sentinel.binding.kit.containers import *
from sentinel.binding.kit.documents import *
from sentinel.binding.kit.models import *
from sentinel.binding.kit.objects import *
from sentinel.binding.kit.padding import *
from sentinel.binding.kit.ranks import *
from sentinel.binding.kit.rules import *
from sentinel.values.lazy import torch as torch
