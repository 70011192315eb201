"""What comes back from the worker, and what was decided from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sentinel.recipes import Recipe
from sentinel.targets import StandIn
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.answers import WorkerKind

VerdictName = Literal["reproduced", "fixed", "changed", "inconclusive", "unavailable"]
#: The verdicts that decide nothing: they are no basis for "nothing is wrong".
UNDECIDED = ("inconclusive", "unavailable")

#: Why there is no measurement, or nothing could be decided from one. The schema of evidence lists the same.
Kind = Literal[WorkerKind, "ambiguous", "law", "ref", "unsteady"]

#: variant name -> observation key -> value. A scenario without variants has the one variant ``""``.
Observation = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Provenance:
    """Proof of which code was measured.

    :ivar boundary: the dotted path that was found in this checkout.
    :ivar file: the file that holds the boundary, relative to the checkout.
    :ivar blob: the file's git blob id, computed by the controller from the checkout.
    :ivar code: ``same`` where the code of every layer that was called is what its file compiles to; empty where that
        could not be compared, as with layers that are not written in Python.
    :ivar end_line: the last line of its code; 0 where that is not known.
    """

    boundary: str
    module: str
    file: str
    line: int
    blob: str
    signature: str
    code: str = ""
    end_line: int = 0


@dataclass(frozen=True)
class Measurement:
    """What the boundary did on each variant of the scenario.

    :ivar oracle: the contract's float64 reference on the same inputs, where a law asked for it.
    :ivar ghosts: the missing third-party modules that the boundary's imports named.
    :ivar questions: what was asked of the checkout, where that was traced; None: unknown.
    :ivar repeated: what came of asking again (see :mod:`sentinel.deciding.repetition`): ``same values``, or
        ``same verdict`` from other values; empty where it was not asked again, or nothing could be concluded.
    :ivar reordered: whether then the rows in another order had the same results, in that order.
    """

    observation: Observation
    provenance: Provenance
    ghosts: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    oracle: Observation | None = None
    questions: tuple[str, ...] | None = None
    repeated: str = ""
    reordered: bool = False


@dataclass(frozen=True)
class Failure:
    """Why there is no measurement.

    :ivar traceback: upstream's own, with paths relative to the checkout.
    :ivar packages: what is not installed here and was needed.
    :ivar absent: whether it is drift because the checkout lacks a name that the adapter uses, as its text shows.
    """

    kind: Kind
    reason: str
    traceback: str = ""
    provenance: Provenance | None = None
    questions: tuple[str, ...] | None = None
    packages: tuple[str, ...] = ()
    absent: bool = False


@dataclass(frozen=True)
class Environment:
    """What the numbers may depend on.

    :ivar flags: environment variables and switches that change results, such as ``TORCHDYNAMO_DISABLE``.
    """

    python: str
    torch: str
    numpy: str
    platform: str
    device: str = "cpu"
    sandbox: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One expected key beside what was observed.

    :ivar key: as the recipe addresses it: ``loss``, ``baseline.advantages``, ``difference(outlier,
        baseline).advantages``.
    :ivar unpatched, fixed: the expected values (None where the recipe gives none for this key).
    :ivar matches_unpatched, matches_fixed: None where there is nothing to compare with.
    :ivar detail: for a reader: which element differs, by how much, at which tolerance.
    """

    key: str
    observed: Any
    unpatched: Any = None
    fixed: Any = None
    matches_unpatched: bool | None = None
    matches_fixed: bool | None = None
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """A verdict, the reason in one sentence for a person, and for ``inconclusive`` and ``unavailable`` its kind."""

    name: VerdictName
    reason: str = ""
    kind: Kind | Literal[""] = ""


@dataclass(frozen=True)
class Decision:
    """One verdict with everything that led to it; reports are made from this and nothing else.

    :ivar expect: what the recipe's pin expects of this ref, or None where there is no expectation.
    :ivar law: the law that decided, where the recipe gives no expected values.
    :ivar adapter: ``sha256:<hex>`` of the adapter file, empty where the recipe uses none.
    :ivar subject: what the evidence of a law is filed under: its boundary, told apart where one has two contracts.
    :ivar seconds: how long deciding took, without the checkout and without loading torch. Evidence does not have it.
    """

    recipe: Recipe
    ref: Ref
    verdict: Verdict
    expect: str | None = None
    checkout: Checkout | None = None
    measurement: Measurement | None = None
    failure: Failure | None = None
    comparisons: tuple[Comparison, ...] = ()
    environment: Environment | None = None
    law: str | None = None
    adapter: str = ""
    subject: str = ""
    seconds: float = 0.0

    @property
    def law_alone(self) -> bool:
        """Whether this is about a law that was searched with, and no recipe's bug."""
        return bool(self.law) and not self.recipe.bug_id
