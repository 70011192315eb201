"""Export a bug's evidence at two revisions, and a runner: a script that reproduces the bug without Sentinel."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job, Runner
from sentinel.deciding.setup import OpenCheckout
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.targets.refs import Ref
from sentinel.tools.upstream.checking import Environment, Tried, distribution_of
from sentinel.tools.upstream.script import Case, NoRunner, script_of
from sentinel.worker.client import Options

#: The maximum number of attempts to determine the packages that a runner needs.
_MOST_PACKAGES = 30

_MISSING = re.compile(r"No module named '(\w+)")


@dataclass(frozen=True)
class Side:
    """The result of a bug's recipe at one of the two revisions.

    :ivar name: ``base`` or ``head``.
    :ivar decision: the recipe's verdict at the revision, with all measurements.
    :ivar tried: the runner's outcome at the revision; None if the runner was not tested.
    """

    name: str
    decision: Decision
    tried: Tried | None = None


@dataclass(frozen=True)
class Bundle:
    """The evidence of one bug at two revisions, and its runner.

    :ivar sides: the base and, if there is one, the head.
    :ivar runner: the text of ``run_validation.py``; empty if there is no runner.
    :ivar packages: the distributions that the runner needs.
    :ivar reason: the reason why there is no runner.
    """

    recipe: Recipe
    sides: tuple[Side, ...]
    runner: str = ""
    packages: tuple[str, ...] = ()
    reason: str = ""

    @property
    def decided(self) -> bool:
        """Return True if the bug is present at the base and, if there is a head, absent there."""
        return [side.decision.verdict.name for side in self.sides] == ["reproduced", "fixed"][: len(self.sides)]


class Exporter:
    """Creates bundles, and shares worker processes among them. Call :meth:`close` at the end."""

    def __init__(
        self, catalog: Catalog, open_checkout: OpenCheckout, options: Options, notify: Callable[[str], None]
    ) -> None:
        self._catalog = catalog
        self._notify = notify
        self._deciding = Runner(catalog, open_checkout, options)
        self._environment = Environment(options.python)

    def close(self) -> None:
        self._deciding.close()
        self._environment.close()

    def export(self, recipe: Recipe, base: Ref, head: Ref | None, check: bool = True) -> Bundle:
        """Run a recipe at both revisions, and write the runner.

        :param head: the revision without the bug; None if there is none.
        :param check: whether to test the runner at both revisions, and leave it out if it disagrees with the evidence.
        """
        sides = []
        for name, ref in (("base", base), *([("head", head)] if head is not None else [])):
            self._notify(f"{recipe.bug_id} at {ref.short}")
            sides.append(Side(name, self._deciding.decide(Job(recipe, ref))))
        bundle = Bundle(recipe, tuple(sides))
        try:
            case = self._case(bundle)
            if check:
                return self._tried(bundle, case)
            return replace(bundle, runner=script_of(case), packages=("torch", "numpy"))
        except NoRunner as error:
            return replace(bundle, reason=f"{error}.")

    def _case(self, bundle: Bundle) -> Case:
        """Record the calls that a recipe makes at the base, so that a runner can repeat them.

        :raises NoRunner: if the recipe could not be run at the base.
        """
        recipe, decision = bundle.recipe, bundle.sides[0].decision
        measured, checkout = decision.measurement, decision.checkout
        if measured is None or checkout is None:
            raise NoRunner(f"the bug could not be decided at {decision.ref.short}: {decision.verdict.reason}")
        contract = self._catalog.contracts[recipe.contract]
        roots = tuple(os.path.relpath(root, checkout.path) for root in checkout.import_roots)
        return Case(
            recipe,
            self._deciding.calls(Job(recipe, decision.ref)),
            measured.observation,
            measured.provenance.boundary,
            measured.provenance.module,
            roots,
            frozenset(item.key for item in contract.observes if item.role not in ("gradient", "other")),
            f"Expected values follow from: {contract.source}",
            tuple(sorted({name.partition(".")[0] for name in measured.ghosts})),
        )

    def _tried(self, bundle: Bundle, case: Case) -> Bundle:
        """Test a runner at both revisions, and determine which packages it needs.

        The first attempt stubs the packages that the worker stubbed. While the result disagrees with the evidence, the
        next attempt stubs one more missing package, or uses one installed package instead of its stub.

        :raises NoRunner: if the result still disagrees with the evidence at the end.
        """
        sides = [side for side in bundle.sides if side.decision.checkout is not None]
        checkouts = [side.decision.checkout.path for side in sides if side.decision.checkout is not None]
        environments = [side.decision.environment for side in sides]
        contained = all(there is not None and there.sandbox == "strict" for there in environments)
        self._notify(f"testing the runner of {bundle.recipe.bug_id}")
        for _ in range(_MOST_PACKAGES):
            text = script_of(case)
            answers = self._environment.run(text, checkouts, case.needs, contained)
            wrong = [one for side, one in zip(sides, answers) if one.status != side.decision.verdict.name]
            if not wrong:
                made = tuple(replace(side, tried=one) for side, one in zip(sides, answers))
                return replace(bundle, sides=made, runner=text, packages=("torch", "numpy", *case.needs))
            missing = next((match[1] for one in wrong if (match := _MISSING.search(one.problem))), "")
            if missing and missing not in case.stubs:
                case = replace(case, stubs=tuple(sorted({*case.stubs, missing})))
                continue
            stubbed = next((name for name in case.stubs if distribution_of(name) is not None), "")
            if not stubbed:
                break
            rest = tuple(name for name in case.stubs if name != stubbed)
            case = replace(case, stubs=rest, needs=tuple(sorted({*case.needs, str(distribution_of(stubbed))})))
        statuses = ", ".join(one.status or one.problem for one in answers)
        raise NoRunner(f"outside Sentinel the call returns another result ({statuses})")
