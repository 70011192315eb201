"""Measure what a check of one's own loss costs: `python benchmarks/own_function.py`.

Prints the CPU time of all laws of a policy loss with 100 scenarios, in seconds and as a multiple of 100 plain calls of
the loss with a backward pass, in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from sentinel.testing import check_function

_SCENARIOS = 100


def grpo_loss(log_probs: Any, old_log_probs: Any, advantages: Any, response_mask: Any, eps: float = 0.2) -> Any:
    """Return PPO's clipped loss (arXiv:1707.06347, equation 7), averaged over the tokens of responses."""
    ratio = torch.where(response_mask != 0, log_probs - old_log_probs, 0.0).clamp(-20, 20).exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - eps, 1 + eps) * advantages)
    return torch.where(response_mask != 0, loss, 0.0).sum() / (response_mask != 0).sum().clamp(min=1)


def check() -> None:
    """Check all laws of the loss."""
    report = check_function(grpo_loss, "policy_loss", algorithm="ppo", mode="token-mean", examples=_SCENARIOS)
    assert report.ok, str(report)


def call() -> None:
    """Call the loss and its backward pass, once for each scenario."""
    for _ in range(_SCENARIOS):
        log_probs = torch.randn(3, 4, requires_grad=True)
        grpo_loss(log_probs, log_probs.detach() - 0.1, torch.randn(3, 4), torch.ones(3, 4)).backward()


def seconds(run: Callable[[], None]) -> float:
    """Return the CPU time of a run in seconds. A first run, which imports modules, does not count."""
    run()
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    checked, called = seconds(check), seconds(call)
    print(f"all laws, {_SCENARIOS} scenarios: {checked:.2f} s of CPU time, {checked / called:.0f} times the bare calls")
