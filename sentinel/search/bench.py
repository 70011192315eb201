"""The bench: sessions of one target at one ref, on which scenarios are tried and laws decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.invariants.invariant import Case, DoesNotApply, Inputs, Invariant, Violation
from sentinel.targets import Binding
from sentinel.values import FLOATS, Tensor, tensor
from sentinel.worker.client import Session, TargetProcess


class Refused(Exception):
    """The boundary (or its translation) raised: loud, so no silent bug; the scenario says nothing."""


class Undecidable(Exception):
    """Nothing can be decided about this boundary here, whatever the scenario.

    :ivar failure: as the worker reports it: ``kind``, ``reason``, ``traceback``, ``provenance``.
    """

    def __init__(self, failure: Mapping[str, Any]) -> None:
        super().__init__(str(failure["reason"]))
        self.failure = failure


#: Failures of finding a boundary, as opposed to calling it.
_LASTING = ("drift", "import", "python", "not-in-this-version", "ghost", "harness")


@dataclass(frozen=True)
class Check:
    """One question of a search: does this boundary keep this law?

    :ivar contract: narrowed to what the boundary accepts.
    """

    binding: Binding
    contract: Contract
    invariant: Invariant
    contract_file: str
    adapter: str

    @property
    def name(self) -> str:
        return f"{self.binding.boundary}::{self.invariant.name}"

    @property
    def given(self) -> list[str]:
        """The inputs that a boundary must be able to take: drawn ones, not statements about it."""
        return sorted(
            item.name for item in self.contract.inputs if (item.domain or item.choices or item.kind == "labels")
        )


@dataclass(frozen=True)
class Trial:
    """What one scenario gave.

    :ivar answer: the worker's answer, for what it says beside observations.
    """

    case: Case
    violations: list[Violation]
    answer: Mapping[str, Any]


class Bench:
    """Sessions for searches; made anew where a call brought one down.

    :param target: makes (or gives) the target process.
    :param oracle: makes (or gives) the oracle process.
    """

    def __init__(self, target: Callable[[], TargetProcess], oracle: Callable[[], TargetProcess]) -> None:
        self._target, self._oracle = target, oracle
        self._session: Session | None = None
        self._consulted: Session | None = None
        self.crashes = 0

    def close(self) -> None:
        for session in (self._session, self._consulted):
            if session is not None:
                session.close()
        self._session = self._consulted = None

    def fresh(self) -> Bench:
        """Another bench on the same processes, with sessions of its own."""
        return Bench(self._target, self._oracle)

    def try_(self, check: Check, variants: Mapping[str, Inputs], describe: bool = False) -> Trial:
        """Call the boundary on each variant, and let the law look.

        :raises Refused: where a call raised.
        :raises DoesNotApply: where the law (or the oracle) has nothing to say about the scenario.
        :raises Undecidable: where the boundary cannot be called here at all.
        """
        law = check.invariant
        request = {
            "boundary": check.binding.boundary,
            "contract": check.contract.name,
            "contract_file": check.contract_file,
            "adapter": check.adapter,
            "given": check.given,
            "watch": law.watches,
            "describe": describe,
        }
        twin = check.binding.twins[0] if law.twin else None
        calls = {
            name: {"inputs": dict(inputs), "boundary": twin if name == law.twin else None}
            for name, inputs in variants.items()
        }
        ask_oracle = law.needs_oracle and check.contract.oracle is not None
        if self._session is None or self._session.dead:
            self._session = self._target().session()
        if ask_oracle and (self._consulted is None or self._consulted.dead):
            self._consulted = self._oracle().session()
        self._session.send({**request, "calls": calls})
        if ask_oracle:
            assert self._consulted is not None
            self._consulted.send({**request, "calls": calls})
        answer = self._session.receive()
        reference = self._consulted.receive() if ask_oracle and self._consulted is not None else None
        observation, effects = self._read(answer)
        oracle = self._read_oracle(reference) if reference is not None else None
        case = Case(variants, observation, oracle, check.contract, effects)
        return Trial(case, law.check(case), answer)

    def _read(self, answer: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if "failure" in answer:
            if self._session is not None and self._session.dead:
                self.crashes += 1
                raise Refused(f"it brought the session down: {answer['failure']['reason']}")
            raise Undecidable(answer["failure"])
        observation, effects = {}, {}
        for name, part in answer["answers"].items():
            if "refused" in part:
                raise Refused(str(part["refused"]["reason"]))
            observation[name] = part["observation"]
            if "effects" in part:
                effects[name] = part["effects"]
        return observation, effects

    @staticmethod
    def _read_oracle(answer: Mapping[str, Any]) -> dict[str, Any]:
        if "failure" in answer:
            raise Undecidable({**answer["failure"], "kind": "harness"})
        observation = {}
        for name, part in answer["answers"].items():
            if "silent" in part:
                raise DoesNotApply(part["silent"])
            if "refused" in part:
                failure = part["refused"]
                raise Undecidable({**failure, "kind": "harness", "reason": f"the oracle failed: {failure['reason']}"})
            observation[name] = part["observation"]
        return observation


def widened(variants: Mapping[str, Inputs]) -> dict[str, Inputs] | None:
    """The same values in float64; None where every float is float64 already."""
    changed = False

    def wide(value: Any) -> Any:
        nonlocal changed
        if isinstance(value, Tensor) and value.dtype in FLOATS and value.dtype != "float64":
            changed = True
            return replace(tensor(value.nested(), "float64"), requires_grad=value.requires_grad)
        if isinstance(value, list):
            return [wide(item) for item in value]
        return value

    made = {name: {key: wide(item) for key, item in inputs.items()} for name, inputs in variants.items()}
    return made if changed else None
