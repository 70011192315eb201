"""Watch real training steps of frameworks' workers, first with unchanged code, and then with an injected bug.

    python benchmarks/workers.py                      every framework whose adapter binds a worker's step, at main
    python benchmarks/workers.py verl skyrl --ref git:main --steps 20

A step is the framework's own update of a policy: microbatches, loss, backward pass and metrics. The adapter's stand-ins
replace the parts that need a cluster, and a table of logits replaces the model. The framework also computes the
advantages, if its GRPO is a separate function. The injected bug doubles the return value of the loss inside the step;
if the loss is not watched, it doubles the return value of another function.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from injected import forked

from sentinel.contracts.choices import Choices
from sentinel.deciding.law_session import Subject
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects
from sentinel.search.scenarios import draw
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.tools.watch.checker import Checker
from sentinel.tools.watch.wrapping import Budget, Watcher
from sentinel.worker import calling, probe, stubs, tensors

_WORDS, _DRAWN = 5, 600
#: Contracts to try in this order: a worker's step, and if none can be called, a loss.
_LOSSES = ("policy_update", "policy_loss")
#: Values that replace inputs of a scenario, because adapters simulate ranks by threads and this training has one rank.
_ONE = {"dp_size": 1, "max_tokens_per_microbatch": None}


_SCRATCH = tempfile.TemporaryDirectory()


def imported(target: Any, ref: str) -> tuple[str, ...]:
    """Prepare this process for imports of a framework, as a worker does; return the framework's import roots."""
    checkout = open_checkout(target, Ref.parse(ref))
    roots = tuple(str(root) for root in checkout.import_roots)
    sys.path[:0] = roots
    places = tuple(str(checkout.path / root) + os.sep for root in checkout.roots)
    for name in target.preload:
        with contextlib.suppress(ImportError):
            __import__(name)
    os.chdir(_SCRATCH.name)  # a framework writes logs into the current folder when it is imported
    stubs.ImportRecorder(places, target.packages, target.stub_versions, target.preload).install()
    return roots


#: (function that calls a boundary and returns the contract's outputs, scenario for the call).
Called = tuple[Callable[[dict[str, Any]], Mapping[str, Any]], dict[str, Any]]


def called(subject: Subject, target: Any, roots: tuple[str, ...]) -> Called | None:
    """Return a function that calls a boundary, and a scenario with which the call succeeds.

    Return None if this revision does not have the boundary, or if no drawn scenario is suitable.
    """
    try:
        calling.answer_at_import(target.at_import, roots)
        boundary = probe.find_boundary(subject.binding, roots, frozenset(subject.scenario_inputs), "cpu")
    except Exception:
        return None
    for number in range(_DRAWN):
        with contextlib.suppress(Exception):  # the code rejects it, or the scenario does not apply
            inputs = draw(subject.contract, subject.binding, Choices(hashlib.shake_256(b"%d" % number).digest(4096)))
            mask = inputs["response_mask"].array()
            grpo = inputs.get("estimator", "grpo") == "grpo"
            whole = not any(inputs.get(name) is not None for name in ("entropies", "ref_log_probs", "reward_baselines"))
            inputs |= {name: value for name, value in _ONE.items() if name in inputs}
            if grpo and whole and mask.shape[0] >= 3 and mask.shape[1] >= 2 and mask.any(1).all():
                measure = partial(subject.contract.measure, boundary)
                measure(built(inputs))
                return measure, inputs
    return None


def built(inputs: dict[str, Any], **changed: Any) -> dict[str, Any]:
    def no_object(path: str) -> Any:
        raise ValueError(path)

    return {**{name: tensors.build(value, no_object) for name, value in inputs.items()}, **changed}


class Training:
    """Trains a policy, which is a table of logits, to emit one word."""

    def __init__(self, update: Called, advantage: Called | None):
        self._update, self._advantage = update, advantage
        self._mask = tensors.build(update[1]["response_mask"], str)
        torch.manual_seed(0)
        self.logits = torch.zeros(*self._mask.shape, _WORDS, requires_grad=True)
        self._optimiser = torch.optim.SGD([self.logits], lr=20.0)

    def step(self) -> float:
        """Run one rollout and an update on it; return the mean reward."""
        measure, inputs = self._update
        table = self.logits.log_softmax(-1)
        tokens = torch.multinomial(table.detach().exp().flatten(0, 1), 1).reshape(self._mask.shape)
        log_probs = table.gather(-1, tokens[..., None])[..., 0]
        valid = (self._mask != 0).float()
        rewards = ((tokens == 2) * valid).sum(-1) / valid.sum(-1)
        leaf = log_probs.detach().clone().requires_grad_()
        given = {
            "old_log_probs": log_probs.detach() - 0.1 * torch.rand_like(leaf),
            "advantages": self._of(rewards, valid),
        }
        outputs = measure(built(inputs, log_probs=leaf, **given))
        self._optimiser.zero_grad()
        gradient = outputs["gradient" if "gradient" in outputs else "per_token_gradient"]
        torch.autograd.backward(log_probs, gradient.to(log_probs))
        self._optimiser.step()
        return float(rewards.mean())

    def _of(self, rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        if self._advantage is not None:
            measure, inputs = self._advantage
            last = valid * (valid.cumsum(-1) == valid.sum(-1, keepdim=True))
            with contextlib.suppress(Exception):  # the framework's function may need inputs that are missing here
                given = {"token_level_rewards": rewards[:, None] * last, "response_mask": self._mask}
                made: torch.Tensor = measure(built(inputs, group=["p"] * len(rewards), **given))["advantages"]
                return made.float() * valid
        return (rewards - rewards.mean())[:, None] * valid


def doubled(watcher: Watcher, plans: list[Any]) -> None:
    """Make the functions in these plans return twice their values, until the watcher restores them."""

    def twice(original: Any) -> Any:
        def called(args: Any, kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not isinstance(result, tuple):
                return result * 2
            whole = "loss" not in original.__qualname__.lower()  # a loss comes first, followed by its metrics
            return tuple(one * 2 if place == 0 or whole else one for place, one in enumerate(result))

        return called

    for plan in plans:
        watcher.replace(plan.function[0], plan.function[1], twice)


def watched(checker: Checker, target: Any, training: Training, steps: int, bug: list[Any]) -> dict[str, Any]:
    """Train under watch; return the findings, the watcher's counts and the mean reward of each step.

    :param bug: plans of the functions into which the bug is injected; empty for none.
    """

    bugs = Watcher(Budget())
    kind = forked(checker, lambda: doubled(bugs, bug))
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        watching = kind(target.name, target.packages, events, Budget(every=1, share=1.0))
        watching.ready(60.0)
        watching.watcher.copies.maxsize = 0  # no limit, because steps of a millisecond would fill the queue
        rewards = [training.step() for _ in range(steps)]
        watching.stop()
        bugs.restore()
        lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    named = [
        {key: one.get(key) for key in ("law", "boundary", "step", "known")} for one in lines if one["event"] != "end"
    ]
    return {"named": named, "counts": watching.counts, "rewards": rewards}


def measured(target_name: str, ref: str, steps: int) -> Iterator[str]:
    catalog = bundled_catalog()
    target = catalog.targets[target_name]
    roots = imported(target, ref)
    every = subjects(catalog, target_name)[0]
    advantage = next(
        (found for one in every if one.contract.name == "group_advantage" if (found := called(one, target, roots))),
        None,
    )
    updates: list[tuple[Subject, Called]] = []
    for contract in _LOSSES:
        mine = [one for one in every if one.contract.name == contract] if not updates else []
        updates += [(one, found) for one in mine if (found := called(one, target, roots))]
    if not updates:
        yield f"| {target_name} | neither a worker's step nor a loss runs here at {ref} | | | |"
    for subject, update in updates:
        checker = Checker(catalog, target_name, Path("unused"))
        with contextlib.redirect_stdout(io.StringIO()):
            checker.prepare([name for name in sys.modules if name.partition(".")[0] in target.packages])
        clean = watched(checker, target, Training(update, advantage), steps, [])
        plans = {reading.boundary.path: reading.plan for reading in checker.readings}
        called_ = [plan for path, plan in plans.items() if path in clean["counts"]["called"]]
        losses = [plan for plan in called_ if "loss" in plan.function[1].lower()] or called_
        broken = watched(checker, target, Training(update, advantage), steps, losses[:1])
        before = [(one["law"], one["boundary"]) for one in clean["named"]]
        fresh = [one for one in broken["named"] if (one["law"], one["boundary"]) not in before]
        first = next((f"`{one['law']}`, step {one['step']}" for one in fresh), "not named")
        alarms = "; ".join(f"`{one['law']}`, {', '.join(one['known'][:1]) or 'no known bug'}" for one in clean["named"])
        counts, rewards = clean["counts"], clean["rewards"]
        yield (
            f"| {target_name} | `{subject.name}` | {counts['read']} of {counts['copied']} calls of "
            f"{', '.join(f'`{path}`' for path in counts['called'])} | {rewards[0]:.2f} -> {rewards[-1]:.2f} | "
            f"{alarms or 'none'} | {first} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--ref", default="git:main")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # threads do not survive a fork
    if len(arguments.targets) == 1:
        for line in measured(arguments.targets[0], arguments.ref, arguments.steps):
            print(line, flush=True)
        return
    catalog = bundled_catalog()
    bound = [name for name, one in catalog.targets.items() if any(b.contract in _LOSSES for b in one.bindings)]
    print("| target | worker's step | read | reward | alarms | loss doubled |\n| --- | --- | --- | --- | --- | --- |")
    for name in arguments.targets or bound:  # one process each, so that imports of frameworks do not mix
        subprocess.run(
            [sys.executable, __file__, name, "--ref", arguments.ref, "--steps", str(arguments.steps)], check=False
        )


if __name__ == "__main__":
    main()
