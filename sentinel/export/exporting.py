"""A bug's evidence at two revisions, with all that a stranger needs to have it without Sentinel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from sentinel.catalog import Catalog
from sentinel.checkout import Checkout
from sentinel.errors import SentinelError
from sentinel.export import checking, lines, tracing
from sentinel.export.checking import Tried
from sentinel.export.observing import Observing, Pieces, Subject
from sentinel.export.program import ProgramError
from sentinel.export.regression import file_name, regression_test
from sentinel.export.runner import preamble, script, too_long
from sentinel.export.slicing import followed
from sentinel.outcomes import Decision, Measurement
from sentinel.recipes import Expected, Recipe
from sentinel.refs import Ref
from sentinel.reports.behaviour import observed_values
from sentinel.runner import Job, OpenCheckout, Runner
from sentinel.worker.client import Options

#: A checkout may import that many packages lazily before a runner has named all that are missing here.
_LAZY = 12


@dataclass(frozen=True)
class Side:
    """One revision.

    :ivar name: ``base`` or ``head``.
    :ivar tried: what the runner did there, where it was tried.
    :ivar tested: what the regression test did there.
    """

    name: str
    decision: Decision
    tried: Tried | None = None
    tested: Tried | None = None

    @property
    def is_measured(self) -> bool:
        return self.decision.measurement is not None


@dataclass(frozen=True)
class Bundle:
    """What is exported of a bug.

    :ivar script: the runner, or empty: then :attr:`reason` says why there is none.
    :ivar test: the regression test, or empty.
    :ivar reason: what is missing or wrong; of files that are there and say what the evidence says, that the runner is
        too long.
    """

    recipe: Recipe
    sides: tuple[Side, ...]
    script: str = ""
    test: str = ""
    reason: str = ""
    observed: Observing | None = None

    @property
    def base(self) -> Side:
        return self.sides[0]

    @property
    def head(self) -> Side | None:
        return self.sides[1] if len(self.sides) > 1 else None

    @property
    def measured(self) -> tuple[Side, ...]:
        """The revisions that are about the bug: not those that lack what the recipe requires."""
        return tuple(side for side in self.sides if side.is_measured)

    @property
    def test_name(self) -> str:
        return file_name(self.recipe.bug_id)

    @property
    def complete(self) -> bool:
        """Whether the runner says at each revision what the evidence says, and the test fails and passes as it must."""
        return self.agrees and not too_long(self.script)

    @property
    def agrees(self) -> bool:
        """The same without regard to the runner's length."""
        return bool(self.script and self.test) and not any(_problem(side) for side in self.sides)


def _problem(side: Side) -> str:
    """What an exported file says other than the evidence."""
    verdict = side.decision.verdict.name
    if side.tried is not None and side.tried.status != verdict:
        return f"the runner says {side.tried.status or side.tried.problem} at {side.name}, the evidence {verdict}"
    wanted = {"reproduced": "failed", "fixed": "passed"}.get(verdict)
    if side.tested is not None and side.tested.status != wanted:
        return f"the test {side.tested.status or side.tested.problem} at {side.name}, where the evidence says {verdict}"
    return ""


def revisions(recipe: Recipe, base: Ref | None = None, head: Ref | None = None) -> tuple[Ref, Ref | None]:
    """The refs to compare: those asked for, else the recipe's first pin without the bug, and the last before it with
    the bug (or the first with it, where none is before): the nearer they are, the more alike they are called. Where no
    pin has the bug, the last before it.

    :raises SentinelError: where nothing says at which ref the bug is.
    """
    expects = [pin.expect for pin in recipe.pins]
    mended = expects.index("fixed") if "fixed" in expects else 0
    buggy = [pin.ref for pin in recipe.pins if pin.expect == "reproduced"]
    before = [pin.ref for pin in recipe.pins[:mended] if pin.expect == "reproduced"]
    others = [pin.ref for pin in recipe.pins[:mended][-1:] + recipe.pins]
    base = base or next(iter([*before[-1:], *buggy, *others]), None)
    if base is None:
        raise SentinelError(f"{recipe.bug_id} has no pins; say where the bug is with --base git:<sha>")
    return base, head or next((pin.ref for pin in recipe.pins if pin.expect == "fixed" and pin.ref != base), None)


class Exporter:
    """Makes bundles; keeps its workers for the next one. Close it at the end."""

    def __init__(
        self, catalog: Catalog, open_checkout: OpenCheckout, options: Options, tell: Callable[[str], None]
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._tell = tell
        #: (target, boundary) -> packages that turned out to be imported lazily, found at the price of a trial each.
        self._lazy: dict[tuple[str, str], tuple[str, ...]] = {}
        self._deciding = Runner(catalog, open_checkout, options)
        watching = {"traced": tracing.CONTRACTS, "followed": lines.CONTRACTS}
        self._watching = {
            name: Runner(replace(catalog, contracts={**catalog.contracts, **contracts}), open_checkout, options)
            for name, contracts in watching.items()
        }

    def close(self) -> None:
        for runner in (self._deciding, *self._watching.values()):
            runner.close()

    def export(self, recipe: Recipe, base: Ref, head: Ref | None, check: bool = True) -> Bundle:
        """Decide at both revisions, and write down how.

        :param check: try the runner and the test at both.
        """
        sides = []
        for name, ref in (("base", base), *([("head", head)] if head is not None else [])):
            self._tell(f"{recipe.bug_id} at {ref.short}")
            sides.append(Side(name, self._deciding.decide(Job(recipe, ref))))
        bundle = Bundle(recipe, tuple(sides))
        try:
            place = self._subject(bundle)
        except ProgramError as error:
            return replace(bundle, reason=str(error))
        found = [self._tried(bundle, lambda: self._traced(bundle, place), check)]
        if not found[0].complete:
            found += self._cuts(bundle, place, check)
        agreeing = [made for made in found if made.agrees]
        return min(agreeing, key=lambda made: len(made.script.splitlines())) if agreeing else found[-1]

    def _tried(self, bundle: Bundle, subject_of: Callable[[], Subject], check: bool) -> Bundle:
        """With a runner of this subject; where none can be written, with the reason."""
        try:
            return self._with_files(bundle, subject_of(), check)
        except ProgramError as error:
            return replace(bundle, reason=str(error))

    def _cuts(self, bundle: Bundle, place: Subject, check: bool) -> list[Bundle]:
        """With runners that are cut out of the adapter's own code, until one of them will do: as it is where that is
        short, written for the recipe's scenarios alone, and as it is."""
        try:
            cut = self._followed(bundle, place)
        except ProgramError as error:
            return [replace(bundle, reason=str(error))]
        found = [self._tried(bundle, lambda: _short(cut), check)]
        if not found[-1].complete:
            found.append(self._tried(bundle, lambda: _specialised(cut), check))
        if not found[-1].agrees:
            found.append(self._tried(bundle, lambda: cut, check))
        return found

    def _traced(self, bundle: Bundle, place: Subject) -> Subject:
        """What a straight-line program can be made of."""
        return replace(place, programs=self._programs(bundle, "traced"))

    def _followed(self, bundle: Bundle, place: Subject) -> Subject:
        """What the adapter's own code can be cut out of."""
        recipe, target = bundle.recipe, self._catalog.targets[bundle.recipe.target]
        contract = self._catalog.contracts[recipe.contract]
        seen = [program for programs in self._programs(bundle, "followed") for program in programs.values()]
        binding = target.binding(recipe.boundary, recipe.contract)
        if binding is None or not isinstance(contract.measure, FunctionType):
            raise ProgramError("no adapter binds the boundary")
        given = tuple(recipe.given(contract, binding.fixed))
        pieces = Pieces(followed(seen), binding, contract.measure, given, target.packages)
        return replace(place, pieces=pieces)

    def _subject(self, bundle: Bundle) -> Subject:
        """:raises ProgramError: where a revision could not be decided."""
        roots, boundary = dict[str, None](), bundle.recipe.boundary
        for side in bundle.sides:
            decision = side.decision
            if decision.verdict.kind == "not-in-this-version" and bundle.measured:
                continue
            if decision.measurement is None or decision.checkout is None:
                raise ProgramError(f"it could not be decided at {side.name}: {decision.verdict.reason}")
            boundary = decision.measurement.provenance.boundary
            roots.update(
                dict.fromkeys(os.path.relpath(p, decision.checkout.path) for p in decision.checkout.import_roots)
            )
        target = self._catalog.targets[bundle.recipe.target]
        absent = bundle.recipe.requires if len(bundle.measured) < len(bundle.sides) else ()
        place = (target.name, target.repository, boundary, tuple(roots), target.ghost_versions)
        return Subject(_with_values(bundle), *place, programs=(), requires=absent)

    def _programs(self, bundle: Bundle, how: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._watch(bundle.recipe, side.decision.ref, self._watching[how]) for side in bundle.measured)

    def _with_files(self, bundle: Bundle, subject: Subject, check: bool) -> Bundle:
        place = (subject.name, subject.boundary)
        subject = replace(subject, more_stubs=self._lazy.get(place, ()))
        for _ in range(_LAZY):
            text, observed = script(subject)
            bundle = replace(bundle, script=text, observed=observed)
            if not check:
                break
            # Where nothing is observed, a runner has something to say if it looks for what the recipe requires.
            tried = (self._run(s, text) if s.is_measured or subject.requires else s for s in bundle.sides)
            bundle = replace(bundle, sides=tuple(tried))
            missing = {side.tried.missing for side in bundle.sides if side.tried and side.tried.missing}
            if not missing - set(subject.more_stubs):
                break
            subject = replace(subject, more_stubs=(*subject.more_stubs, *sorted(missing)))
            self._lazy[place] = subject.more_stubs
        measured = bundle.measured[0].decision.measurement
        assert isinstance(measured, Measurement)
        try:
            bundle = replace(bundle, test=regression_test(subject, observed, measured.observation))
        except ProgramError as error:
            return replace(bundle, reason=str(error))
        if check:
            setting = preamble(subject, observed)
            tested = (self._test(s, bundle, setting) if s.is_measured else s for s in bundle.sides)
            bundle = replace(bundle, sides=tuple(tested))
        problem = next(filter(None, map(_problem, bundle.sides)), "")
        return replace(bundle, reason=problem or too_long(bundle.script))

    def _watch(self, recipe: Recipe, ref: Ref, runner: Runner) -> Mapping[str, Any]:
        """Variant -> what was seen.

        :raises ProgramError: where the watched probe gave no answer.
        """
        first = next(iter(recipe.variants))
        address = f"{first}.program" if first else "program"
        # Whatever the verdict on this key is, the measurement is what is wanted.
        asking = replace(recipe, expected_unpatched={address: Expected(None)}, expected_fixed={}, invariant=None)
        decision = runner.decide(Job(asking, ref))
        if decision.measurement is None:
            raise ProgramError(f"watched, it did not run: {decision.verdict.reason}")
        return {variant: values["program"] for variant, values in decision.measurement.observation.items()}

    def _run(self, side: Side, text: str) -> Side:
        checkout = side.decision.checkout
        assert checkout is not None
        self._tell(f"trying the runner at {side.decision.ref.short}")
        return replace(side, tried=checking.run(text, checkout, self._options.python, _contained(side)))

    def _test(self, side: Side, bundle: Bundle, setting: str) -> Side:
        checkout = side.decision.checkout
        assert checkout is not None
        self._tell(f"trying the test at {side.decision.ref.short}")
        tested = checking.run_test(
            bundle.test_name, bundle.test, setting, checkout, self._options.python, _contained(side)
        )
        return replace(side, tested=tested)


def _with_values(bundle: Bundle) -> Recipe:
    """The recipe with values: where a law decides without any, those of the revision where it holds, and of the other.

    A law may hold of other values too: of these the runner says that they are neither.
    """
    recipe = bundle.recipe
    told = {side.decision.verdict.name: observed_values(side.decision) for side in bundle.measured}
    if recipe.expected_unpatched or recipe.expected_fixed or "fixed" not in told:
        return recipe
    expected = [{key: Expected(value) for key, value in told.get(n, {}).items()} for n in ("reproduced", "fixed")]
    return replace(recipe, expected_unpatched=expected[0], expected_fixed=expected[1])


def _contained(side: Side) -> bool:
    """Whether to contain what is tried, as what was measured was."""
    environment = side.decision.environment
    return environment is not None and environment.sandbox == "strict"


def source_lines(checkout: Checkout, file: str, line: int, longest: int = 60) -> tuple[int, int, str]:
    """The definition that begins at a line of a checkout: (first line, last line, text); a long one is cut."""
    import ast

    text = (Path(checkout.path) / file).read_text(encoding="utf-8", errors="replace")
    rows = text.splitlines()
    last = line
    try:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if first <= line <= node.lineno:
                    last = node.end_lineno or line
    except (SyntaxError, ValueError):
        last = line + 10
    shown = rows[line - 1 : min(last, line - 1 + longest)]
    return line, last, "\n".join(shown)


def _short(cut: Subject) -> Subject:
    """What is cut out, where the runner is short as it is.

    :raises ProgramError: where it is not.
    """
    if problem := too_long(script(cut)[0]):
        raise ProgramError(problem)
    return cut


def _specialised(cut: Subject) -> Subject:
    """What is cut out, for the recipe's scenarios alone."""
    assert cut.pieces is not None
    return replace(cut, pieces=replace(cut.pieces, special=True))
