"""Check the laws of a contract on a user's function, with one search for all laws."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from sentinel.contracts.contract import REQUIRED, Contract, DoesNotApply
from sentinel.errors import nearest
from sentinel.recipes.catalog import bundled_catalog
from sentinel.testing.binding import Bound, bind, input_named
from sentinel.testing.errors import LawBroken

if TYPE_CHECKING:
    from sentinel.deciding.law_session import LawSession, Plan, Subject
    from sentinel.laws.law import Law
    from sentinel.search.boundary_search import BoundarySearch, Finding
    from sentinel.testing.report import Report

#: The scenarios in which a function must agree with an alternative.
_AGREEING = 50

#: The alternatives whose right values are asked for at once.
_AT_ONCE = 64

#: The most calls for shrinking one violation.
_SHRINKING = 250


class Check:
    """The options of a check.

    :ivar laws: the names of the laws, in the contract's order.
    :param names: the contract's input -> the function's parameter, if the name is not the field's; None if the function
        does not have the input. One parameter may serve several inputs.
    :param call: ``call(f, x)`` calls the function, if it takes something else than the contract's tensors; ``x.name``
        is the input of that name.
    :param outputs: the contract's names of the returned tuple's elements, or output -> key, attribute or index.
    :param expected_failed_laws: law -> why the function is not meant to keep it. A law that it keeps is an error.
    :param dialects: the function's value for a choice on which papers and code legitimately differ.
    :param device: where the tensors are: ``cpu``, ``cuda``, ``cuda:1``.
    :param dtypes: the dtypes of float tensors; empty: float16 too.
    :param examples: the number of scenarios.
    :param seed: determines the scenarios. The default is pytest's ``--hypothesis-seed``, or 0.
    :param choices: an input's value. A tuple contains the values to draw from.
    """

    def __init__(
        self,
        contract: str | Contract,
        *,
        names: Mapping[str, str | None] | None = None,
        call: Callable[[Any, Any], Any] | None = None,
        outputs: Sequence[str] | Mapping[str, Any] = (),
        expected_failed_laws: Mapping[str, str] | None = None,
        dialects: Mapping[str, Any] | None = None,
        device: str = "cpu",
        dtypes: Sequence[str] = ("float32", "float64", "bfloat16"),
        examples: int = 100,
        seed: int | None = None,
        **choices: Any,
    ) -> None:
        catalog = bundled_catalog()
        if isinstance(contract, str) and contract not in catalog.contracts:
            which = nearest(contract, catalog.contracts, "`sentinel list contracts` lists them:")
            raise TypeError(f"unknown contract {contract!r}{which}")
        self.contract = catalog.contracts[contract] if isinstance(contract, str) else contract
        groups = self.contract.group and self.contract.input(self.contract.group) is not None
        self._laws = [
            law
            for law in map(catalog.laws.__getitem__, self.contract.laws)
            if not law.twin and (groups or law.name != "groups_are_isolated")
        ]
        self.laws = [law.name for law in self._laws]
        self.expected = dict(expected_failed_laws or {})
        for name in self.expected:
            if name not in self.laws:
                which = nearest(name, self.laws)
                raise TypeError(f"expected_failed_laws: {self.contract.name} does not have the law {name!r}{which}")
        chosen = {**choices, **(dialects or {})}
        self.choices = {input_named(self.contract, name).name: value for name, value in chosen.items()}
        self.examples, self._seed, self.device = examples, seed, device
        self._binding: dict[str, Any] = {"names": names, "call": call, "outputs": outputs, "dtypes": dtypes}
        self._last: tuple[Any, Report | None] = (None, None)

    @property
    def seed(self) -> int:
        """Return the seed: the argument, otherwise pytest's ``--hypothesis-seed``, otherwise 0."""
        if self._seed is not None:
            return self._seed
        forced = getattr(sys.modules.get("hypothesis.core"), "global_force_seed", None)
        return forced if isinstance(forced, int) else 0

    def bind(self, f: Any, choices: Mapping[str, Any] | None = None, accessed: frozenset[str] | None = None) -> Bound:
        """Bind a function to the contract.

        :raises TypeError: if it does not fit.
        """
        return bind(f, self.contract, {**self.choices, **(choices or {})}, accessed=accessed, **self._binding)

    def marks(self, f: Any) -> list[Any]:
        """Return the pytest mark that runs a test once for each law."""
        import pytest

        parameters = []
        for law in self.laws:
            reason = self.expected.get(law)
            expected = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True, raises=LawBroken)]
            parameters.append(pytest.param(_OneLaw(self, law, f), id=law, marks=expected))
        return [pytest.mark.parametrize("check", parameters)]

    def run_expecting(self, law: str, test: Callable[[_OneLaw], Any], f: Any) -> None:
        """Run a test with the check of one law, without pytest.

        :raises LawBroken: if the law is broken, or is expected to be and is not.
        """
        reason = self.expected.get(law)
        try:
            test(_OneLaw(self, law, f))
        except LawBroken:
            if reason is None:
                raise
        else:
            if reason is not None:
                raise LawBroken(f"{law} holds, although expected_failed_laws has it ({reason}); remove the entry")

    def report(self, f: Any, law: str = "") -> Report:
        """Return the report about a function, from one search that is stored for later calls.

        :param law: search only this law, unless the function is the one that was passed last: a fixture may make
            another object for each test.
        """
        known, report = self._last
        if known is not f or (report is None and not law) or (report is not None and law not in ("", *report.laws)):
            only = law if known is not f else ""
            report = self._search(f, [each for each in self._laws if only in ("", each.name)])
            self._last = f, report
        assert report is not None
        return report

    def _search(self, f: Any, laws: Sequence[Law]) -> Report:
        from sentinel.deciding.law_session import Undecidable
        from sentinel.testing.report import Asked, make_report
        from sentinel.testing.session import open_session, settled

        with settled():
            bound, subject = self._subject(f)
            session = open_session(bound, self.device)
            finite = [law for law in self._laws if law.name == "finite_in_finite_out" and law not in laws]
            search = self._open_search(session, subject, [*laws, *finite])
            kept = _Database(bound, self)
            try:
                search.replay([plan for law in laws for plan in kept.plans(law)])
                search.run(self.examples)
            except Undecidable as error:
                raise LawBroken(f"{bound.function.name} cannot be checked: {error.failure.reason}") from None
            if self._binding.get("call") is not None and not bound.function.used:
                raise LawBroken(f"call= never calls {bound.function.name}, so nothing of it was examined")
            _attribute_non_finite(search, session)
            asked = Asked(self.contract, self.choices, self.expected, self.device)
            agreeing = partial(self._agreeing_choices, f, bound, session)
            report = make_report(asked, bound, search, agreeing)
            for law in laws:
                findings = search.outcomes[law].findings
                kept.keep(law, findings[0].trial.variants if findings else None)
        if any(each.judged for each in report.laws.values()):
            for what, count in report.raised.items():
                warnings.warn(
                    f"{report.function} as {report.contract}: {count} of {search.tried} scenarios: {what}", stacklevel=2
                )
        return report

    def _open_search(self, session: LawSession, subject: Subject, laws: Sequence[Law]) -> BoundarySearch:
        from sentinel.search.boundary_search import BoundarySearch

        return BoundarySearch(session, subject, self.seed, laws, _SHRINKING, shrink_further=False, glimpse=True)

    def _subject(self, f: Any, choices: Mapping[str, Any] | None = None) -> tuple[Bound, Subject]:
        """Bind a function to the contract. If ``call`` is given, find out first which inputs it reads."""
        bound = self.bind(f, choices)
        subject = self._narrowed(bound)
        if self._binding.get("call") is not None:
            from sentinel.search.boundary_search import cheap_scenarios
            from sentinel.testing.session import call_once

            for scenario in cheap_scenarios(subject, self.seed, 0, 4):
                call_once(bound, scenario.inputs, self.device)
            bound = self.bind(f, choices, frozenset(bound.read))
            subject = self._narrowed(bound)
        return bound, subject

    def _narrowed(self, bound: Bound) -> Subject:
        from sentinel.deciding.law_session import Subject
        from sentinel.search.scenarios import NotSearchable, narrow
        from sentinel.testing.binding import shared

        try:
            contract = narrow(self.contract, bound.binding)
        except NotSearchable as error:
            raise TypeError(
                f"{self.contract.name}: {error}; pass it as {self.contract.name}'s input of that name"
            ) from None
        # One parameter serves these inputs, so a law cannot turn one of them alone.
        together = {name for pair in shared(bound.names) for name in pair}
        inputs = tuple(
            replace(
                item,
                knob=item.knob and item.name not in together,
                default=REQUIRED
                if item.domain and item.default is None and item.name in bound.needed
                else item.default,
            )
            for item in contract.inputs
        )
        return Subject(bound.binding, replace(contract, inputs=inputs), tuple(self._laws), "", bound.function.name)

    def _agreeing_choices(self, f: Any, bound: Bound, session: LawSession, finding: Finding) -> dict[str, Any]:
        """Return other settings with which the function agrees with the oracle in every scenario; empty if there are
        none.

        :param finding: a scenario in which it disagrees.
        """
        from sentinel.testing.alternatives import candidates
        from sentinel.testing.session import open_session

        case, inputs = finding.trial.case, next(iter(finding.trial.variants.values()))
        assert case is not None
        several = candidates(self.contract, bound, self.choices)
        while chunk := list(islice(several, _AT_ONCE)):
            changed = {str(place): {**inputs, **alternative} for place, alternative in enumerate(chunk)}
            replies = session.references(finding.subject, changed).answers
            for place, alternative in enumerate(chunk):
                right = replies[str(place)].observation
                try:
                    if right is None or finding.law.violations(replace(case, inputs={"": inputs}, oracle={"": right})):
                        continue
                except DoesNotApply:  # the alternative's oracle overflows
                    continue
                again, subject = self._subject(f, alternative)
                if self._agrees(open_session(again, self.device), subject, finding.law):
                    return alternative
        return {}

    def _agrees(self, session: LawSession, subject: Subject, law: Law) -> bool:
        """Return True if a law applies to at least one of some scenarios and holds in all of them."""
        from sentinel.search.boundary_search import cheap_scenarios

        search, judged = self._open_search(session, subject, [law]), 0
        scenarios = cheap_scenarios(subject, self.seed, 0, _AGREEING)
        for part in (scenarios[:4], scenarios[4:]):  # most alternatives fail in the first few
            for trial in session.try_(subject, [(law, {"": drawn.inputs}) for drawn in part]):
                judged += trial.case is not None
                if search.genuine_violations(law, trial):
                    return False
        return judged > 0


def _attribute_non_finite(search: BoundarySearch, session: LawSession) -> None:
    """Drop NaN findings of other laws if ``finite_in_finite_out`` has found the same NaN. Sort wrong numbers first."""
    for law, outcome in search.outcomes.items():
        outcome.findings.sort(key=lambda finding: finding.symptom == "non-finite")
        for finding in [each for each in outcome.findings if each.symptom == "non-finite"]:
            finite = next((each for each in search.outcomes if each.name == "finite_in_finite_out"), law)
            if finite is law or not search.outcomes[finite].findings:
                break
            plans = [(finite, {"": inputs}) for inputs in finding.trial.variants.values()]
            if any(trial.violations for trial in session.try_(finding.subject, plans)):
                outcome.findings.remove(finding)


class _OneLaw:
    """The ``check`` argument of a test, for one law."""

    def __init__(self, check: Check, law: str, f: Any) -> None:
        self._check, self._law, self._f = check, law, f
        self._called = False

    def require_call(self, result: Any) -> Any:
        """Return a test's result. Raise if the test did not call its check.

        :raises LawBroken: if the test did not call the check, because a test without a check would pass.
        """
        if inspect.iscoroutine(result):
            return self._awaited(result)
        called, self._called = self._called, False
        if not called:
            raise LawBroken(f"the test did not call the check of {self._law}: write check()")
        return result

    async def _awaited(self, result: Any) -> Any:
        return self.require_call(await result)

    def __call__(self, f: Any = None) -> None:
        """Check the law. Raise :class:`LawBroken`, or ``unittest.SkipTest`` if the law applies to no scenario."""
        __tracebackhide__ = True
        self._called = True
        function = self._f if f is None else f
        if function is None:
            raise TypeError("parametrize_with_laws(None, …) needs the function in the test: check(f)")
        # Without a function in the decorator, each test may pass another object.
        self._check.report(function, "" if f is None else self._law).laws[self._law].require()

    def __repr__(self) -> str:
        return f"<check of {self._law}>"


class _Database:
    """Stores the scenarios that broke laws in Hypothesis's database, to try them first in the next run."""

    def __init__(self, bound: Bound, check: Check) -> None:
        import hypothesis

        self._database = hypothesis.settings.default.database if hypothesis.settings.default else None
        self._name = f"{bound.module.__name__}.{bound.function.name} {check.contract.name} {sorted(check.choices)}"

    def _key(self, law: Any) -> bytes:
        return f"sentinel.testing {self._name} {law.name}".encode()

    def plans(self, law: Any) -> list[Plan]:
        from sentinel.worker import protocol

        if self._database is None:
            return []
        plans = []
        for value in self._database.fetch(self._key(law)):
            try:
                plans.append((law, protocol.decode(value)))
            except protocol.ProtocolError:
                self._database.delete(self._key(law), value)
        return plans

    def keep(self, law: Any, variants: Mapping[str, Any] | None) -> None:
        """Store these variants for a law, replacing earlier ones; delete them if None."""
        from sentinel.worker import protocol

        if self._database is None:
            return
        new = None if variants is None else protocol.encode(variants)
        for old in list(self._database.fetch(self._key(law))):
            if old != new:
                self._database.delete(self._key(law), old)
        if new is not None:
            self._database.save(self._key(law), new)
