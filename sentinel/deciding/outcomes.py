"""Define the results of running a recipe (measurement or failure) and the decisions made from them."""

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
#: Verdicts that are not conclusive: the bug may be present or absent.
UNDECIDED = ("inconclusive", "unavailable")

#: Kinds of failure: why there is no measurement, or why a measurement leads to no verdict. The schema of evidence files
#: has the same list.
Kind = Literal[WorkerKind, "ambiguous", "law", "ref", "unsteady"]

#: Variant -> observed key -> value. A scenario without variants has a single variant, whose name is ``""``.
Observation = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Provenance:
    """Where the measured function is defined. ``docs/SECURITY.md`` explains what this proves.

    :ivar boundary: the dotted path of the function in this checkout.
    :ivar file: the file that defines it, relative to the checkout.
    :ivar blob: the git blob id of that file, computed by the controller from the checkout.
    :ivar end_line: the last line of the function; 0 if unknown.
    """

    boundary: str
    module: str
    file: str
    line: int
    blob: str
    signature: str
    end_line: int = 0


@dataclass(frozen=True)
class Measurement:
    """The values that a boundary returned for each variant of a scenario.

    :ivar oracle: the contract's float64 reference on the same inputs, if a law needs it.
    :ivar ghosts: the missing third-party modules that the boundary's module imports.
    :ivar questions: the files and names that the code looked up in the checkout; None if this was not traced.
    :ivar repeated: the result of the repetition (see :mod:`sentinel.deciding.repetition`): ``same values``, or ``same
        verdict`` if other values led to the same verdict. Empty if there was no repetition, or if it was not
        conclusive.
    :ivar reordered: True if permuting the rows in the repetition permuted its results in the same way.
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
    """The reason why a boundary returned no values.

    :ivar traceback: the traceback of the framework's code, with paths relative to the checkout.
    :ivar packages: packages that the boundary needs and that are not installed.
    :ivar absent: True if the checkout's source lacks a name that the adapter uses.
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
    """The versions of Python and packages, and the settings, that may affect numeric results.

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
    """The comparison of an observed value with the expected values.

    :ivar key: the key in the recipe: ``loss``, ``baseline.advantages``, ``difference(outlier, baseline).advantages``.
    :ivar unpatched, fixed: the expected values (None if the recipe has none for this key).
    :ivar matches_unpatched, matches_fixed: None if the recipe has no expected value.
    :ivar detail: a text about the element that differs, with the difference and the tolerance.
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
    """A verdict, and its reason in one sentence. ``inconclusive`` and ``unavailable`` also have a ``kind``."""

    name: VerdictName
    reason: str = ""
    kind: Kind | Literal[""] = ""


@dataclass(frozen=True)
class Decision:
    """A verdict with all data behind it. Reports are written from decisions only.

    :ivar expect: the verdict that the recipe's pin expects at this ref; None if there is no such pin.
    :ivar law: the law on which the verdict depends, if the recipe has no expected values.
    :ivar adapter: ``sha256:<hex>`` of the adapter file; empty if the recipe uses none.
    :ivar subject: the name of the folder with a law's evidence (:attr:`~sentinel.deciding.law_session.Subject.name`).
    :ivar seconds: the time for determining the verdict, without the checkout and the import of torch. Evidence files do
        not contain it.
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
    def provenance(self) -> Provenance | None:
        """Return where the measured function is defined; None if it was not found."""
        source = self.measurement or self.failure
        return source.provenance if source else None

    @property
    def law_alone(self) -> bool:
        """Return True if the decision is about a law that a search checked, False if it is about a recipe."""
        return bool(self.law) and not self.recipe.bug_id
