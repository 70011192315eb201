"""Compare bindings of real code with the oracle: hand-made scenarios, with every choice of their options."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from shipped import MIRRORS, runner
from twins import Edit, copied

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import Choose, DoesNotApply
from sentinel.deciding.law_session import LawSession, Subject, Trial, widen
from sentinel.deciding.runner import Runner
from sentinel.errors import Unavailable
from sentinel.laws.law import Law
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects
from sentinel.search.scenarios import with_dialects
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.targets.refs import Ref
from sentinel.values.literals import Tensor, tensor
from sentinel.worker.client import Options

#: "main in August 2026" of each target.
MAIN = {
    "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
    "roll": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "areal": "cbff54d645d2cd8ee1f1c358a82f3f473588433d",
    "slime": "624b824a898ab0ec1fcb4d373004c7f3852bf515",
    "skyrl": "a9564572eb8e91076be43c1bd5e4615e3de17265",
}

#: Four responses of three tokens to two prompts. Numbers are exact in float32, not at a clip bound, and differ.
NUMBERS: Mapping[str, Any] = {
    "log_probs": [[-1.0, -0.5, -2.0], [-0.75, -1.25, -0.25], [-1.5, -0.125, -3.0], [-0.625, -1.0, -0.5]],
    "old_log_probs": [[0.25, -0.5, 1.0], [-0.125, 0.0, 0.5], [-1.0, 1.5, -0.25], [0.75, 0.125, -1.5]],
    "ref_log_probs": [[0.25, -0.5, 1.0], [-0.125, 0.0, 0.5], [-1.0, 1.5, -0.25], [3.5, 0.125, -1.5]],
    "rollout_log_probs": [[0.25, -0.5, 1.0], [-0.125, 0.0, 0.5], [-1.0, 1.5, -0.25], [0.75, 0.125, -1.5]],
    "entropies": [[0.5, 1.0, 0.25], [1.25, 0.75, 2.0], [0.5, 1.5, 1.0], [0.25, 0.125, 0.75]],
    "advantages": [[1.0] * 3, [-0.5] * 3, [-2.0] * 3, [0.25] * 3],
    "loss_mat": [[1.0, 2.0, 0.5], [-1.0, 3.0, 0.25], [4.0, -0.5, 5.0], [0.75, 1.5, 2.5]],
    "values": [[0.5, 0.25, 0.75], [-0.25, 0.125, 1.5], [2.0, -1.0, 0.5], [1.25, 0.0, -0.75]],
    "vpreds": [[0.55, 0.75, -0.25], [-0.25, 1.125, 1.0], [1.0, -1.125, 2.5], [1.5, 0.25, -0.5]],
    "returns": [[1.0, 0.0, 0.5], [-0.5, 0.25, 2.0], [1.5, -2.0, 0.75], [0.25, 1.0, -1.0]],
    "token_level_rewards": [[0.0, 0.0, 1.0], [0.0, 0.0, -0.5], [0.0, 0.0, 2.0], [0.0, 0.0, 0.25]],
    "kl": [[0.25, -0.5, 1.0], [-0.125, 0.0, 0.5], [-1.0, 1.5, -0.25], [0.75, 0.125, -1.5]],
    "rewards": [1.0, -0.5, 2.0, 0.25],
    "weights": [1.0, 0.5, 2.0, 0.25],
    "logits": [[[0.5 * ((3 * r + 2 * t + v) % 5) - 1.0 for v in range(4)] for t in range(3)] for r in range(4)],
    "teacher_logits": [
        [[0.25 * ((2 * r + t + 3 * v) % 7) - 0.75 for v in range(4)] for t in range(3)] for r in range(4)
    ],
    "outputs": [[0.55, 0.75, -0.25], [-0.25, 1.125, 1.0], [1.0, -1.125, 2.5], [1.5, 0.25, -0.5]],
    "output_after": [3.0, -3.5, 4.0, -4.5],
    "log_ratio": [[0.25, -0.5, 1.0], [-0.125, 0.0, 0.5], [-1.0, 1.5, -0.25], [0.75, 0.125, -1.5]],
    "proximal_log_probs": [[0.25, -0.5, 1.0], [-0.125, 0.0, 0.5], [-1.0, 1.5, -0.25], [0.75, 0.125, -1.5]],
    "behaviour_log_probs": [[0.5, -0.25, 0.0], [-0.5, 1.0, 0.25], [0.125, -1.0, 0.75], [-0.125, 1.5, 0.5]],
    "chosen_log_probs": [[-1.0, -0.5, -2.0], [-0.75, -1.25, -0.25], [-1.5, -0.125, -3.0], [-0.625, -1.0, -0.5]],
    "chosen_ref_log_probs": [[-1.25, -0.25, -1.0], [-0.5, -1.0, -0.75], [-1.0, -0.5, -2.0], [-0.5, -1.5, -0.25]],
    "rejected_log_probs": [[-0.5, -1.0, -1.5], [-2.0, -0.25, -0.75], [-0.125, -1.0, -0.5], [-1.25, -0.5, -3.0]],
    "rejected_ref_log_probs": [[-0.75, -0.5, -2.0], [-1.0, -0.5, -0.25], [-0.5, -1.25, -1.0], [-1.0, -0.75, -2.0]],
    "teacher_log_probs": [[0.5, 0.25, -1.0], [-0.125, 1.0, 0.5], [1.0, -1.5, 0.75], [0.25, -0.5, 1.5]],
    "second_teacher_log_probs": [[-0.25, 0.5, 0.75], [1.5, -1.0, 0.25], [0.125, 0.5, -0.5], [-1.5, 1.0, 0.25]],
    "importance_weights": [[1.0, 0.5, 2.0], [0.25, 1.5, 0.75], [1.0, 2.0, 0.5], [0.75, 0.25, 1.0]],
}
GROUPS = ["p", "p", "q", "q"]


class Last(Choices):
    """Always choose the last option."""

    def integer(self, low: int, high: int) -> int:
        return high


class Bound:
    """The boundaries of one target at one ref."""

    def __init__(self, warm: Runner, target: str, ref: Ref) -> None:
        self._catalog = bundled_catalog()
        self.subjects, _ = subjects(self._catalog, target)
        bindings = [subject.binding for subject in self.subjects]
        self._law_session: LawSession = warm.open_target(target, ref, bindings).law_session

    def subject(self, boundary: str, contract: str) -> Subject:
        (found,) = (s for s in self.subjects if (s.boundary, s.contract.name) == (boundary, contract))
        return found

    def scenarios(
        self,
        subject: Subject,
        mask: Sequence[Sequence[int]] | None = None,
        choose: Choose | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Return the hand-made scenario, and a copy of it for each other choice of each option.

        :param choose: makes the contract's own choices for a scenario; None for the simplest.
        :param options: values of inputs in all of these scenarios.
        """
        plain = {**self._plain(subject, mask), **(options or {})}
        made = {"plain": plain}
        for item in subject.contract.inputs:
            if item.choices and item.domain != "mask" and not item.dialect:
                made |= {f"{item.name}={choice}": {**plain, item.name: choice} for choice in item.choices[1:]}
        return {name: self._arranged(subject, inputs, choose or Choices(b"")) for name, inputs in made.items()}

    def _plain(self, subject: Subject, mask: Sequence[Sequence[int]] | None) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for item in subject.contract.inputs:
            if item.domain == "mask":
                inputs[item.name] = tensor([[1] * 3] * 4 if mask is None else [list(row) for row in mask], item.dtype)
            elif item.domain:
                inputs[item.name] = tensor(NUMBERS[item.name], item.dtype)
            elif item.kind == "labels":
                inputs[item.name] = GROUPS
            elif item.choices:
                inputs[item.name] = item.choices[0]
            else:
                inputs[item.name] = item.default(inputs) if callable(item.default) else item.default
        if mask is not None and isinstance(rewards := inputs.get("token_level_rewards"), Tensor):
            earned = [sum(row) for row in rewards.nested()]
            last = [sum(row) - 1 for row in mask]
            inputs["token_level_rewards"] = tensor(
                [[r if t == end else 0.0 for t in range(3)] for r, end in zip(earned, last)], rewards.dtype
            )
        return inputs

    def _arranged(self, subject: Subject, inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
        if subject.contract.arrange is not None:
            inputs = subject.contract.arrange({**inputs}, choose)
        if "group" in inputs and inputs["group"] is not None:
            inputs["group"] = GROUPS
        return with_dialects(subject.contract, subject.binding, inputs)

    def ask(self, subject: Subject, law: str, variants: Mapping[str, Mapping[str, Any]], coarsest: str = "") -> Trial:
        """Return the violations of a law by these variants, including those that a dialect declares.

        :param coarsest: the coarsest dtype before conversion to float64.
        """
        rule: Law = self._catalog.laws[law]
        [trial] = self._law_session.try_(replace(subject, laws=(rule,)), [(rule, variants)], coarsest=coarsest)
        if trial.inapplicable:
            raise DoesNotApply(trial.inapplicable)
        return trial

    def ask_all(self, subject: Subject, law: str, scenarios: Sequence[Mapping[str, Any]]) -> list[Trial]:
        """Return the violations of a law in each scenario. If a call raises, they are called one after the other."""
        rule: Law = self._catalog.laws[law]
        trials = self._law_session.try_(replace(subject, laws=(rule,)), [(rule, {"": inputs}) for inputs in scenarios])
        if any(trial.refused or trial.inapplicable for trial in trials):
            return [self.ask(subject, law, {"": inputs}) for inputs in scenarios]
        return trials

    def refusal(self, subject: Subject) -> tuple[str, str]:
        """Return why the boundary raises in every scenario, as kind and reason; empty if it returns in one of them.

        Inputs that the boundary does not accept are left out, as in a search.
        :raises Undecidable: if the boundary cannot be called here.
        """
        rule: Law = self._catalog.laws[subject.contract.laws[0]]
        reasons = []
        made = (self.scenarios(subject, choose=choose).values() for choose in (Choices(b""), Last(b"")))
        for scenario in chain.from_iterable(made):
            contract, inputs, unknown = subject.contract, scenario, ""
            while True:
                asked = replace(subject, laws=(rule,), contract=contract)
                [trial] = self._law_session.try_(asked, [(rule, {"": inputs})])
                if not trial.unknown_input or trial.unknown_input == unknown:
                    break
                unknown = trial.unknown_input
                left = [
                    replace(item, domain="", choices=(), knob=False) if item.name == unknown else item
                    for item in contract.inputs
                ]
                contract = replace(contract, inputs=tuple(left))
                inputs = {**inputs, unknown: None}
            if not trial.refused:
                return "", ""
            reasons.append((trial.refusal, trial.refused))
        return reasons[0]

    def disagreements(self, subject: Subject, mask: Sequence[Sequence[int]] | None = None) -> dict[str, str]:
        """Return scenario -> the difference from the oracle, or the exception.

        A difference that vanishes in float64 is rounding.
        """
        wrong = {}
        law = next(name for name in ("the_oracle_agrees", "metrics_tell_the_truth") if name in subject.contract.laws)
        scenarios = self.scenarios(subject, mask)
        for (name, inputs), trial in zip(scenarios.items(), self.ask_all(subject, law, list(scenarios.values()))):
            if trial.violations and (wide := widen(subject.contract, {"": inputs})) is not None:
                again = self.ask(subject, law, *wide)
                trial = trial if again.refused else again
            if trial.refused:
                wrong[name] = f"refused: {trial.refused}"
            elif trial.violations:
                wrong[name] = f"{trial.violations[0].key}: {trial.violations[0].detail}"
        return wrong


#: ``open(target)`` or ``open(target, sha)`` returns the boundaries there.
Open = Callable[..., Bound]


def skip_without_python(target: str) -> None:
    """Skip a test if a framework's code needs a newer Python than this one."""
    if target == "skyrl" and sys.version_info < (3, 11):
        pytest.skip("SkyRL's code needs Python 3.11")


def target_of(boundary: str) -> str:
    return boundary.partition(".")[0].partition("_")[0]


def once_each(opening: Callable[..., Iterator[Bound]]) -> Iterator[Open]:
    """Open each value on first use, and close all at the end. pytest would reopen a parametrised fixture."""
    with ExitStack() as stack:
        yield cache(lambda *where: stack.enter_context(contextmanager(opening)(*where)))


def opened(target: str, sha: str) -> Iterator[Bound]:
    """Open the boundaries at a commit; skip the test if the user's mirrors lack it."""
    warm = runner()
    try:
        yield Bound(warm, target, Ref("git", sha))
    except Unavailable as error:
        pytest.skip(error.reason)
    finally:
        warm.close()


def opened_twin(target: str, sha: str, edits: Sequence[Edit], folder: Path) -> Iterator[Bound]:
    """Open the boundaries of a copy of a commit with a few changed lines; skip the test without the commit.

    :param folder: an empty folder for the copy.
    """
    catalog = bundled_catalog()
    try:
        checkout = open_checkout(catalog.targets[target], Ref("git", sha), store=MIRRORS).path
    except Unavailable as error:
        pytest.skip(error.reason)
    copied(checkout, folder / "twin", edits)
    store = MirrorStore(Home(folder / "home"))
    warm = Runner(catalog, lambda target, ref, pull: open_checkout(target, ref, store=store, pull=pull), Options())
    yield Bound(warm, target, Ref("path", str(folder / "twin")))
    warm.close()


def each_twin(
    main: Mapping[str, str], edits_of: Callable[[str], Sequence[Edit]], folders: pytest.TempPathFactory
) -> Iterator[Open]:
    """Open a copy of each target's commit with the edits of ``edits_of(target)``, on first use."""

    def twin(target: str) -> Iterator[Bound]:
        return opened_twin(target, main[target], edits_of(target), folders.mktemp(target))

    yield from once_each(twin)
