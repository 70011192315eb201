"""A bug's evidence at two revisions, with all that a stranger needs to have it without Sentinel."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job, OpenCheckout, Runner
from sentinel.export.checking import Environment, Tried, distribution_of
from sentinel.export.script import Question, Script, runner
from sentinel.export.verbatim import NotSelfContained
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.reports.escaping import message
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: So many packages a runner may need beside torch and numpy.
_MOST_NEEDED = 12

_TEST = '''\
"""Regression test: {title}.

run_validation.py, beside it, calls {boundary}
and compares; TARGET_REPO says where the checkout is (else the current folder).
"""

import run_validation


def test_{name}():
    answer = run_validation.validated(*run_validation.QUESTION)
    assert answer["status"] == "fixed", answer
'''


@dataclass(frozen=True)
class Side:
    """``base`` or ``head``: its decision, and what the runner and the test did there, where they were tried."""

    name: str
    decision: Decision
    tried: Tried | None = None
    tested: Tried | None = None


@dataclass(frozen=True)
class Bundle:
    """What is exported of a bug.

    :ivar runner: None where there is none: then :attr:`reason` says why.
    """

    recipe: Recipe
    sides: tuple[Side, ...]
    runner: Script | None = None
    test: str = ""
    reason: str = ""

    @property
    def test_name(self) -> str:
        return f"test_{_snake(self.recipe.bug_id)}.py"

    @property
    def complete(self) -> bool:
        """Whether the runner says at each revision what the evidence says, and the test fails and passes as it must."""
        return bool(self.runner and self.test) and not any(_problem(side) for side in self.sides)


def _snake(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_").lower()


def _problem(side: Side) -> str:
    """Say where an exported file disagrees with the evidence."""
    verdict = side.decision.verdict.name
    if side.tried is not None and side.tried.status != verdict:
        return f"the runner says {side.tried.status or side.tried.problem} at {side.name}, the evidence {verdict}"
    wanted = {"reproduced": "failed", "fixed": "passed"}.get(verdict, "failed")
    if side.tested is not None and side.tested.status != wanted:
        return f"the test {side.tested.status or side.tested.problem} at {side.name}, where the evidence says {verdict}"
    return ""


class Exporter:
    """Makes bundles; keeps its workers for the next one. Close it at the end."""

    def __init__(
        self, catalog: Catalog, open_checkout: OpenCheckout, options: Options, tell: Callable[[str], None]
    ) -> None:
        self._catalog = catalog
        self._tell = tell
        self._deciding = Runner(catalog, open_checkout, options)
        self._environment = Environment(options.python)
        #: (target, boundary) -> what turned out to be needed, at the price of a trial each.
        self._needs: dict[tuple[str, str], dict[str, str]] = {}

    def close(self) -> None:
        self._deciding.close()
        self._environment.close()

    def export(self, recipe: Recipe, base: Ref, head: Ref | None, check: bool = True) -> Bundle:
        """Decide at both revisions, and write down how."""
        sides = []
        for name, ref in (("base", base), *([("head", head)] if head is not None else [])):
            self._tell(f"{recipe.bug_id} at {ref.short}")
            sides.append(Side(name, self._deciding.decide(Job(recipe, ref))))
        bundle = Bundle(recipe, tuple(sides))
        try:
            question = self._question(bundle)
            bundle = replace(bundle, runner=runner(question), test=_test_of(recipe))
        except NotSelfContained as error:
            return replace(bundle, reason=str(error))
        if check:
            bundle = self._tried(bundle, question)
        problem = next(filter(None, map(_problem, bundle.sides)), "")
        return replace(bundle, reason=problem or ("" if bundle.test else "the recipe does not say what is right"))

    def _question(self, bundle: Bundle) -> Question:
        """:raises NotSelfContained: where a revision could not be decided."""
        recipe, roots = bundle.recipe, dict[str, None]()
        measured = any(side.decision.measurement for side in bundle.sides)
        for side in bundle.sides:
            decision = side.decision
            if decision.verdict.kind == "not-in-this-version" and measured:
                continue
            if decision.measurement is None or decision.checkout is None:
                raise NotSelfContained(f"it could not be decided at {side.name}: {decision.verdict.reason}")
            folders = [os.path.relpath(root, decision.checkout.path) for root in decision.checkout.import_roots]
            roots.update(dict.fromkeys(folders))
        target, contract = self._catalog.targets[recipe.target], self._catalog.contracts[recipe.contract]
        law = None if recipe.has_values else self._catalog.laws[str(recipe.invariant)]
        return Question(
            recipe,
            target,
            contract,
            target.binding(recipe.boundary, recipe.contract),
            tuple(roots),
            law,
            self._needs.get((recipe.target, recipe.boundary), {}),
            {side.name: f"{side.decision.verdict.name} at {_revision(side.decision)}" for side in bundle.sides},
        )

    def _tried(self, bundle: Bundle, question: Question) -> Bundle:
        """With what the runner and the test do; where the runner names packages that it needs, with these."""
        sides = [side for side in bundle.sides if side.decision.checkout is not None]
        checkouts = [side.decision.checkout.path for side in sides if side.decision.checkout is not None]
        measured = [side.decision.environment for side in sides if side.decision.measurement]
        contained = all(there is not None and there.sandbox == "strict" for there in measured)
        for _ in range(_MOST_NEEDED):
            assert bundle.runner is not None
            self._tell(f"trying the runner and the test of {bundle.recipe.bug_id}")
            files = {"run_validation.py": bundle.runner.text, bundle.test_name: bundle.test}
            test = bundle.test and bundle.test_name
            answers = self._environment.run(files, test, checkouts, question.needs.values(), contained)
            made = [replace(side, tried=one, tested=two) for side, (one, two) in zip(sides, answers)]
            bundle = replace(bundle, sides=tuple(made))
            missing = [name for tried, _ in answers for name in tried.needs]
            distributions = {name: place for name in missing if (place := distribution_of(name)) is not None}
            if not distributions.keys() - question.needs.keys():
                break
            question = replace(question, needs={**question.needs, **distributions})
            bundle = replace(bundle, runner=runner(question))
        self._needs[(question.recipe.target, question.recipe.boundary)] = dict(question.needs)
        return bundle


def _test_of(recipe: Recipe) -> str:
    if recipe.has_values and not recipe.expected_fixed:
        return ""
    title = message(recipe.title).replace("\\", "\\\\").replace('"""', "'''")
    return _TEST.format(title=title, boundary=recipe.boundary, name=_snake(recipe.bug_id))


def _revision(decision: Decision) -> str:
    """Name the revision as everybody can; of a working tree, nothing of this machine."""
    if decision.checkout is not None and decision.checkout.patched:
        return f"git:{decision.checkout.commit} with its fix"
    commit = decision.checkout.commit if decision.checkout is not None and not decision.checkout.dirty else None
    return f"git:{commit}" if commit else str(decision.ref) if decision.ref.kind == "pypi" else decision.ref.kind
