"""Check a user's function against the laws of a contract, with one search for all laws."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sentinel.contracts.contract import REQUIRED, TOKENS, Contract, DoesNotApply
from sentinel.errors import nearest
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.scenarios import MASK_STYLES, padding_of
from sentinel.testing.binding import Bound, bind, input_named
from sentinel.testing.errors import LawBroken
from sentinel.testing.forms import (
    concerns,
    definitions,
    matchable,
    per_response,
    with_edge_laws,
    with_needed,
    with_own_masks,
    with_terms,
)
from sentinel.testing.ways import Mismatch, Way, ways, without_mask

if TYPE_CHECKING:
    from sentinel.deciding.law_session import LawSession, Plan, Subject
    from sentinel.laws.law import Law
    from sentinel.search.boundary_search import BoundarySearch, Finding
    from sentinel.testing.report import Report

#: ``left_out(law, variants)`` returns the reason why the law must skip this scenario, or an empty string.
LeftOut = Callable[["Law", Mapping[str, Any]], str]

#: Number of scenarios in which a function must agree with other settings before a report suggests these settings.
_AGREEING = 50

#: The folder of this package.
_PACKAGE = os.path.dirname(os.path.dirname(__file__))

#: Maximum number of calls to shrink the scenario of one violation.
_SHRINKING = 250

#: Number of scenarios of a first, short search. It rules out most settings, which then need no full search.
_FEW = 8

#: Maximum number of settings that are tried in combination with each slip.
_SETTINGS = 40

#: If a function differs from the reference however it is bound, other settings are tried with the first ``_DIFFERING``
#: ways of binding it. For each way, ``_PROBING`` scenarios are drawn to find one in which the two differ.
_PROBING, _DIFFERING = 8, 3

#: If no single setting explains all scenarios, at most this many settings are combined.
_DEEP = 2

#: Number of scenarios that test whether an input changes the oracle's result, although the function never reads it.
_UNREAD = 8

#: Sort keys of laws; all other laws have the key 1. Laws about wrong numbers come first, and laws about edge cases such
#: as NaN come last.
_PLACES = {"the_oracle_agrees": 0, "masked_values_have_no_influence": 2, "finite_in_finite_out": 3}


class Check:
    """Checks functions against the laws of a contract. The parameters are the options of the check.

    :ivar laws: the names of the laws; comparisons with the reference come first, edge cases last.
    :param names: the contract's input -> the function's parameter, for parameters that do not have one of the usual
        names. Use None for an input that the function does not take. Several inputs may have the same parameter.
    :param call: a function that converts the contract's inputs to the arguments that the checked function needs.
        ``call(f, x)`` must call ``f`` and return the result; ``x.name`` is the input with that name.
    :param shapes: input -> ``batch`` if the function takes the input as one number per response, [batch]: the advantage
        of the response, or the sum of its rewards or log-probs. The function may then also return one number per
        response. Pass ``{"dones": "tokens"}`` if all tensors are [tokens], one episode after another.
    :param outputs: the contract's names for the elements of the returned tuple, in order; or a mapping from output to
        key, attribute or index.
    :param expected_failed_laws: law -> the reason why the function is meant to break it. The check fails if the
        function satisfies the law.
    :param dialects: input -> the function's value, for inputs on which papers and code legitimately differ.
    :param device: the device of the tensors, such as ``cpu``, ``cuda`` or ``cuda:1``.
    :param dtypes: the dtypes of float tensors; if empty, float16 is used in addition to the default ones.
    :param examples: the number of scenarios.
    :param seed: the seed of the scenarios. The default is pytest's ``--hypothesis-seed``, or 0.
    :param choices: input -> its value, or a tuple of values to draw from.
    """

    def __init__(
        self,
        contract: str | Contract,
        *,
        names: Mapping[str, str | None] | None = None,
        call: Callable[[Any, Any], Any] | None = None,
        shapes: Mapping[str, str] | None = None,
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
        named = catalog.contracts[contract] if isinstance(contract, str) else contract
        self.contract = with_edge_laws(with_terms(named))
        for name, shape in (shapes or {}).items():
            if shape not in ("batch", "tokens"):
                raise TypeError(f"shapes={{{name!r}: {shape!r}}}: the shape must be 'batch' or 'tokens'")
        of_batch = [name for name, shape in (shapes or {}).items() if shape == "batch"]
        responses = tuple(input_named(self.contract, name).name for name in of_batch)
        self.contract = per_response(self.contract, responses)
        groups = self.contract.group and self.contract.input(self.contract.group) is not None
        self._laws = [
            with_own_masks(law, self.contract)
            for law in map(catalog.laws.__getitem__, self.contract.laws)
            if not law.twin and (groups or law.name != "groups_are_isolated")
        ]
        self._laws.sort(key=lambda law: _PLACES.get(law.name, 1))
        self.laws = [law.name for law in self._laws]
        self.expected = dict(expected_failed_laws or {})
        for name in self.expected:
            if name not in self.laws:
                which = nearest(name, self.laws)
                raise TypeError(f"expected_failed_laws: {self.contract.name} does not have the law {name!r}{which}")
        chosen = {**choices, **(dialects or {})}
        # Which inputs exist depends on the choices: `beta` is one input for PPO and another for DRO.
        options = matchable(self.contract, chosen)
        self.choices = {input_named(options, name).name: value for name, value in chosen.items()}
        self.contract = with_needed(self.contract, self.choices)
        for name, value in self.choices.items():
            _require_known(self.contract, name, _padding(self.contract, name, value))
        if not isinstance(examples, int) or examples < 1:
            raise TypeError(f"examples={examples!r}: the number of scenarios must be a positive integer, such as 100")
        self.examples, self._seed, self.device = examples, seed, device
        self._binding: dict[str, Any] = {"names": names, "call": call, "outputs": outputs, "dtypes": dtypes}
        self._binding |= {"responses": responses, "stream": "tokens" in (shapes or {}).values()}
        self._last: tuple[Any, Report | None] = (None, None)

    @property
    def seed(self) -> int:
        """Return the seed: the argument if given, otherwise pytest's ``--hypothesis-seed``, otherwise 0."""
        if self._seed is not None:
            return self._seed
        forced = getattr(sys.modules.get("hypothesis.core"), "global_force_seed", None)
        return forced if isinstance(forced, int) else 0

    def bind(self, f: Any, choices: Mapping[str, Any] | None = None, accessed: frozenset[str] | None = None) -> Bound:
        """Match the parameters of a function to the contract's inputs.

        :param choices: input -> value, in addition to the check's own choices.
        :param accessed: the inputs that ``call`` reads; None if they are not known yet.
        :raises TypeError: if they do not match. The message suggests options with which they may match.
        """
        try:
            chosen = {**self.choices, **(choices or {})}
            chosen = {name: _padding(self.contract, name, value) for name, value in chosen.items()}
            return bind(f, self.contract, chosen, accessed=accessed, **self._binding)
        except Mismatch as mismatch:
            tried = self._try_ways(f, mismatch)
            raise TypeError("\n".join([*mismatch.table, *(tried or mismatch.advice)])) from None

    def _try_ways(self, f: Any, mismatch: Mismatch) -> list[str]:
        """Call the function with each likely match of parameters and inputs, and return advice for the user.

        The advice is the options with which the function agrees with the reference. If there are none, other settings
        of the definition are tried too. The list is empty if no match leads to a call that returns.
        """
        from sentinel.testing.report import in_words
        from sentinel.testing.session import open_session, settled

        oracle = [law for law in self._laws if law.name == "the_oracle_agrees"]
        differing: list[tuple[Way, Check]] = []
        with settled():
            for way in ways(self.contract, mismatch) if oracle else ():
                twin = self._bound_as(way)
                with contextlib.suppress(Exception):  # the function does not fit in this way
                    bound, subject = twin._subject(f)
                    session = open_session(bound, self.device)
                    if twin._agrees(session, subject, oracle[0]):
                        return [f"Pass {way}: with this, {_agreement(bound)}."]
                    if any(each.answered for each in session.try_(subject, _plans(oracle[0], subject, self.seed))):
                        differing.append((way, twin))
            for way, twin in differing[:_DIFFERING]:
                with contextlib.suppress(Exception):
                    bound, session, search = twin._search_alone(f, oracle, _PROBING)
                    findings = search.outcomes[oracle[0]].findings
                    if findings and (other := twin._agreeing_choices(f, bound, session, findings[0])):
                        passed = f"{way}, dialects={other!r}"
                        return [f"If {in_words(other)} is intended, pass {passed}: with this, {_agreement(bound)}."]
        if not differing:
            return []
        return [
            *mismatch.advice,
            "The function was checked with each of these options, and differs from the reference with all of them:",
            *(f"    {way}" for way, _ in differing),
            "If one of these lines is right, the function has a bug: pass its options to see the smallest scenario.",
        ]

    def _bound_as(self, way: Way) -> Check:
        responses = tuple(dict.fromkeys([*self._binding["responses"], *way.responses]))
        names = {**(self._binding["names"] or {}), **way.names}
        binding = {**self._binding, "names": names, "responses": responses}
        return self._with(contract=per_response(self.contract, way.responses), _binding=binding)

    def _with(self, **changes: Any) -> Check:
        twin = copy(self)
        vars(twin).update(changes)
        return twin

    def marks(self, f: Any) -> list[Any]:
        """Return a list with the pytest mark that runs a test once for each law."""
        import pytest

        parameters = []
        for law in self.laws:
            reason = self.expected.get(law)
            expected = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True, raises=LawBroken)]
            parameters.append(pytest.param(_OneLaw(self, law, f, in_summary=True), id=law, marks=expected))
        return [pytest.mark.parametrize("check", parameters)]

    def run_expecting(self, law: str, test: Callable[[_OneLaw], Any], f: Any) -> None:
        """Run a test function outside pytest, and pass it the check of one law.

        :raises LawBroken: if the law is broken but must hold, or holds but is expected to be broken.
        """
        reason = self.expected.get(law)
        try:
            test(_OneLaw(self, law, f))
        except LawBroken:
            if reason is None:
                raise
        else:
            if reason is not None:
                raise LawBroken(f"the law {law} holds, but expected_failed_laws lists it ({reason}); remove the entry")

    def report(self, f: Any, law: str = "", in_summary: bool = False) -> Report:
        """Return the report about a function. Check all laws in one search, and store the report for later calls with
        the same function object.

        :param law: the only law that the caller needs; empty for all. If the function object is not that of the last
            call, only this law is checked, because a fixture may create a new object for each test. Otherwise all laws
            are checked.
        :param in_summary: do not warn about parameters that every call leaves at the default, because pytest's summary
            lists them.
        """
        from sentinel.testing.report import in_words

        known, report = self._last
        if known is not f or (report is None and not law) or (report is not None and law not in ("", *report.laws)):
            only = law if known is not f else ""
            report = self._search(f, [each for each in self._laws if only in ("", each.name)])
            self._last = f, report
            if report.left and not in_summary:  # warn, because the report may never be printed
                what = f"left at the default: {in_words(report.left)}; other values are not checked"
                _warn_at(f, f"{report.function} as {report.contract}: {what}")
        assert report is not None
        return report

    def _search(self, f: Any, laws: Sequence[Law]) -> Report:
        from sentinel.deciding.law_session import Undecidable
        from sentinel.testing.report import Asked, Explanations, make_report
        from sentinel.testing.session import open_session, settled

        with settled(), _warnings_once(f):
            bound, subject = self._subject(f)
            session = open_session(bound, self.device)
            search = self._open_search(session, subject, self._with_finite(laws))
            kept = _Database(bound, self)
            try:
                search.replay([plan for law in laws for plan in kept.plans(law)])
                search.run(self.examples)
            except Undecidable as error:
                raise LawBroken(f"{bound.function.name} cannot be checked: {error.failure.reason}") from None
            if self._binding.get("call") is not None and not bound.function.used:
                raise LawBroken(f"the function passed as call= never calls {bound.function.name}: nothing was checked")
            self._drop_explained(search, session)
            asked = Asked(self.contract, self.choices, self.expected, self.device, self._unread(bound, session))
            explain = Explanations(
                agreeing=partial(self._agreeing_choices, f, bound, session),
                slip=partial(self._slip, f, bound, session),
                still_broken=lambda settings: self._broken_with(f, self._laws, settings, self.examples),
                padding=partial(self._padding_that_mends, f, bound),
            )
            with warnings.catch_warnings():  # torch warns if a slip gives a metric a gradient
                warnings.simplefilter("ignore")
                report = make_report(asked, bound, search, explain)
            for law in laws:
                findings = search.outcomes[law].findings
                kept.keep(law, findings[0].trial.variants if findings else None)
        if any(each.judged for each in report.laws.values()):
            for what, count in report.raised.items():
                where = f"{report.function} as {report.contract}"
                _warn_at(f, f"{where}: {count} of {search.tried} scenarios raised {what}")
        return report

    def _with_finite(self, laws: Sequence[Law]) -> list[Law]:
        """Return the laws with ``finite_in_finite_out`` added, because :meth:`_drop_explained` needs its findings."""
        return [*laws, *(law for law in self._laws if law.name == "finite_in_finite_out" and law not in laws)]

    def _open_search(
        self, session: LawSession, subject: Subject, laws: Sequence[Law], left_out: LeftOut = lambda law, variants: ""
    ) -> BoundarySearch:
        from sentinel.search.boundary_search import BoundarySearch

        return BoundarySearch(
            session, subject, self.seed, laws, _SHRINKING, shrink_further=False, glimpse=True, left_out=left_out
        )

    def _left_out(self, session: LawSession, subject: Subject) -> LeftOut:
        """Return a :data:`LeftOut` function, which excludes scenarios in which the chosen dialects themselves break a
        law.

        There the oracle with these dialects breaks the law, so the function may break it too. For example, a row
        without tokens changes a mean that counts such rows.
        """
        from sentinel.laws.law import Case
        from sentinel.testing.report import in_words

        items = {item.name: item for item in self.contract.inputs if item.dialect}
        chosen = {name: each for name, each in self.choices.items() if name in items and each != items[name].default}

        def left_out(law: Law, variants: Mapping[str, Any]) -> str:
            if not chosen or law.needs_oracle or law.vary is None or len(variants) < 2:
                return ""
            answers = session.references(subject, variants).answers
            observed = {name: answer.observation for name, answer in answers.items()}
            if None in observed.values():
                return ""
            case = Case(
                variants, {name: dict(each or {}) for name, each in observed.items()}, contract=subject.contract
            )
            with contextlib.suppress(DoesNotApply):
                if law.violations(case):
                    return f"with {in_words(chosen)}, the definition itself breaks this law in this scenario"
            return ""

        return left_out

    def _drop_explained(self, search: BoundarySearch, session: LawSession) -> None:
        """Drop findings that have another explanation, and sort the rest so that wrong finite numbers come first.

        Two kinds are dropped: violations that the oracle with the chosen dialects has too, and NaN or infinity in a
        scenario that also breaks ``finite_in_finite_out``. If a law that compares variants then has no finding, it is
        searched again without such scenarios. Otherwise 0 / 0 in a batch without tokens could hide an infinity that
        reaches the loss from a masked token.
        """
        finite = next((each for each in search.outcomes if each.name == "finite_in_finite_out"), None)
        by_definition = self._left_out(session, search.subject)
        of_others = finite is not None and bool(search.outcomes[finite].findings)

        known: dict[int, tuple[Any, bool]] = {}  # by id; storing the inputs keeps their id from being reused

        def breaks_finite(inputs: Any) -> bool:
            if id(inputs) not in known:
                plans: list[Plan] = [] if finite is None else [(finite, {"": inputs})]
                known[id(inputs)] = inputs, any(trial.violations for trial in session.try_(search.subject, plans))
            return known[id(inputs)][1]

        def left_out(law: Law, variants: Mapping[str, Any]) -> str:
            if of_others and breaks_finite(next(iter(variants.values()))):
                return "finite_in_finite_out is broken there"
            return by_definition(law, variants)

        dropped = []
        for law, outcome in search.outcomes.items():
            outcome.findings.sort(key=lambda finding: finding.symptom == "non-finite")
            for finding in [*outcome.findings]:
                variants = finding.trial.variants
                elsewhere = of_others and law is not finite and finding.symptom == "non-finite"
                if (elsewhere and any(map(breaks_finite, variants.values()))) or by_definition(law, variants):
                    outcome.findings.remove(finding)
                    dropped += [law] if law.vary is not None and not outcome.findings else []
        if not dropped:
            return
        again = self._open_search(session, search.subject, dropped, left_out)
        again.run(self.examples)
        for law in dropped:
            search.outcomes[law].findings = again.outcomes[law].findings

    def _search_alone(
        self, f: Any, laws: Sequence[Law], examples: int, shrink: bool = True
    ) -> tuple[Bound, LawSession, BoundarySearch]:
        """Search for violations of the given laws. Return the bound function, the session and the search."""
        from sentinel.testing.session import open_session

        bound, subject = self._subject(f)
        session = open_session(bound, self.device)
        search = self._open_search(session, subject, laws)
        if not shrink:
            search.shrinking = 0
        search.run(examples)
        return bound, session, search

    def _broken_with(self, f: Any, laws: Sequence[Law], settings: Mapping[str, Any], examples: int) -> list[str]:
        twin = self._with(choices={**self.choices, **settings}, examples=examples)
        _, session, search = twin._search_alone(f, self._with_finite(laws), examples, shrink=False)
        twin._drop_explained(search, session)
        return [law.name for law in laws if search.outcomes[law].findings]

    def _is_satisfied_with(self, f: Any, law: Law, settings: Mapping[str, Any]) -> bool:
        return not any(self._broken_with(f, [law], settings, examples) for examples in (_FEW, self.examples))

    def _subject(self, f: Any, choices: Mapping[str, Any] | None = None) -> tuple[Bound, Subject]:
        """Bind a function to the contract, and return it with the subject of a search. If the user passed ``call``,
        call it first to record which inputs it reads."""
        bound = self.bind(f, choices)
        subject = self._narrowed(bound)
        if self._binding.get("call") is not None:
            from sentinel.search.boundary_search import cheap_scenarios
            from sentinel.testing.session import call_once

            for scenario in cheap_scenarios(subject, self.seed, 0, 4):
                call_once(bound, scenario.inputs, self.device)
            if bound.of_call and not bound.function.used:
                what, error = next(iter(bound.of_call.items()))
                raise TypeError(f"call= ({bound.call}) raised {what} before it called {bound.function.name}") from error
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
            raise TypeError(f"{self.contract.name}: {error}; pass a value for this input") from None
        # Inputs that are passed to the same parameter: a law cannot change one of them without the others.
        together = {name for pair in shared(bound.names) for name in pair}
        inputs = tuple(
            replace(
                item,
                knob=item.knob and item.name not in together,
                default=REQUIRED
                if item.domain and item.default is None and item.name in (bound.names if bound.call else bound.needed)
                else item.default,
            )
            for item in contract.inputs
        )
        return Subject(bound.binding, replace(contract, inputs=inputs), tuple(self._laws), "", bound.function.name)

    def _agreeing_choices(
        self, f: Any, bound: Bound, session: LawSession, finding: Finding, deep: int = _DEEP
    ) -> dict[str, Any]:
        """Return settings with which the oracle agrees with the function in every scenario; empty if there are none.

        :param finding: a scenario in which the function disagrees with the oracle.
        :param deep: how many settings may be added to a setting that explains this scenario, but not all scenarios.
        """
        from sentinel.testing.alternatives import candidates, explaining

        several = candidates(self.contract, bound, self.choices)
        explained = [*explaining(session, finding, several, pairs=True), *self._sides(bound, finding)]
        for alternative in explained:
            if self._holds(f, finding.law, alternative) and self._is_satisfied_with(f, finding.law, alternative):
                return alternative
        explained.sort(key=len)
        for alternative in explained[:deep]:
            twin = self._with(choices={**self.choices, **alternative})
            with_it, again, search = twin._search_alone(f, [finding.law], self.examples)
            for other in search.outcomes[finding.law].findings[:1]:
                if found := twin._agreeing_choices(f, with_it, again, other, deep - 1):
                    return {**alternative, **found}
        return {}

    def _sides(self, bound: Bound, finding: Finding) -> list[dict[str, Any]]:
        """Return settings that restrict the function's masks to one side of padding (``{"response_mask": "right"}``):
        one for each side that excludes the finding's masks."""
        masks = [
            item.name
            for item in self.contract.inputs
            if item.domain == "mask" and item.name in bound.names and item.name not in self.choices
        ]
        found = [padding_of(inputs[name]) for inputs in finding.trial.variants.values() for name in masks]
        return [dict.fromkeys(masks, side) for side in ("right", "left") if any(side not in each for each in found)]

    def _padding_that_mends(self, f: Any, bound: Bound, finding: Finding) -> Mapping[str, Any]:
        sides = self._sides(bound, finding)
        return next((side for side in sides if self._is_satisfied_with(f, finding.law, side)), {})

    def _slip(self, f: Any, bound: Bound, session: LawSession, finding: Finding) -> str:
        """Return a description of the common mistake (slip) with which the oracle agrees with the function; empty if
        there is none.

        Each slip is tried alone, with one other setting, and with one number per response for advantages or rewards.
        """
        from sentinel.testing.alternatives import candidates, explaining
        from sentinel.testing.session import open_session
        from sentinel.testing.slips import slips

        values = [finding.violations[0].observed, finding.violations[0].demanded]
        plain = all(isinstance(value, (int, float)) for value in values) and values[1]
        factor = float(f"{values[0] / values[1]:.6g}") if plain else 0.0
        several: list[dict[str, Any]] = [{}, *candidates(self.contract, bound, self.choices)[:_SETTINGS]]
        of_responses = [(each, self._bound_as(Way({}, each))) for each in self._of_responses(bound)]
        for responses, whole in of_responses:
            if whole._holds(f, finding.law):
                return f"the function takes one number per response; pass shapes={dict.fromkeys(responses, 'batch')!r}"
        for text, contract in slips(self.contract, bound.names, self.choices, factor):
            twin = self._with(contract=contract)
            slipped = open_session(replace(bound, contract=contract), self.device)
            for setting in explaining(slipped, finding, several):
                if twin._holds(f, finding.law, setting):
                    return ", ".join([text, *(f"{name}={value!r}" for name, value in setting.items())])
        for responses, whole in of_responses:
            for text, contract in slips(whole.contract, bound.names, self.choices, factor):
                whole.contract = contract
                if whole._holds(f, finding.law):
                    number = f"one number per response, so pass shapes={dict.fromkeys(responses, 'batch')!r}"
                    return f"{text}, and {number}"
        return ""

    def _of_responses(self, bound: Bound) -> Iterator[tuple[str, ...]]:
        """Yield groups of inputs that the function may take as one number per response; none if the user passed
        ``shapes`` or ``call``."""
        if self._binding["responses"] or bound.call:
            return
        yield from (
            (item.name,)
            for item in self.contract.inputs
            if item.domain in ("advantage", "reward") and item.shape == TOKENS
        )
        if responses := without_mask(self.contract, bound.names):
            yield responses

    def _unread(self, bound: Bound, session: LawSession) -> dict[str, Any]:
        """Return the inputs that change the oracle's result but never reach the function: input -> the oracle's value,
        or REQUIRED for data."""
        from sentinel.search.boundary_search import cheap_scenarios

        subject = self._narrowed(bound)
        scenarios = [drawn.inputs for drawn in cheap_scenarios(subject, self.seed, 0, _UNREAD)]
        unread: dict[str, Any] = {}
        calls: dict[str, Mapping[str, Any]] = {}
        for item in self.contract.inputs:
            known = item.name in {*bound.names, *self.choices, *bound.derived.values(), *(self._binding["names"] or ())}
            if known or item.dialect or not concerns(self.contract, item, self.choices):
                continue
            if item.default is REQUIRED and item.domain:
                unread[item.name] = REQUIRED
            for place, inputs in enumerate(scenarios if item.choices else ()):
                if inputs[item.name] is not None:  # None means that an option is off
                    for choice, value in enumerate((inputs[item.name], *item.choices)):
                        calls[f"{item.name} {place} {choice}"] = {**inputs, item.name: value}
        answers = session.references(subject, calls).answers if calls else {}
        for call, answer in answers.items():
            name, number, _ = call.split()
            right = answers[f"{name} {number} 0"].observation
            if name not in unread and None not in (right, answer.observation) and answer.observation != right:
                unread[name] = calls[f"{name} {number} 0"][name]
        return unread

    def _holds(self, f: Any, law: Law, settings: Mapping[str, Any] | None = None) -> bool:
        from sentinel.testing.session import open_session

        bound, subject = self._subject(f, settings)
        return self._agrees(open_session(bound, self.device), subject, law)

    def _agrees(self, session: LawSession, subject: Subject, law: Law) -> bool:
        """Return True if no scenario breaks the law with a finite number, and more scenarios are judged than raise an
        exception."""
        from sentinel.search.boundary_search import cheap_scenarios

        search, judged, refused = self._open_search(session, subject, [law]), 0, 0
        for first, last in ((0, 1), (1, 4), (4, _AGREEING)):  # few first, because they rule out most alternatives
            part = cheap_scenarios(subject, self.seed, 0, last)[first:]
            for trial in session.try_(subject, [(law, {"": drawn.inputs}) for drawn in part]):
                judged += trial.case is not None
                refused += bool(trial.refused)
                if any(each.symptom != "non-finite" for each in search.genuine_violations(law, trial)):
                    return False
        return judged > refused


def _warn_at(f: Any, message: Warning | str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line where the user's function is defined, because no line of this package causes it."""
    from sentinel.worker.calling import source_of

    file, line, _ = source_of(getattr(f, "func", f))
    warnings.warn_explicit(message, category, file or "<unknown>", line)


@contextlib.contextmanager
def _warnings_once(f: Any) -> Iterator[None]:
    """Collect the warnings of the ``with`` block and issue each message once. Warnings from Sentinel's code are issued
    at the line where the user's function is defined."""
    recorded = list[warnings.WarningMessage]()
    try:
        with warnings.catch_warnings(record=True) as recorded:
            yield
    finally:
        for each in {(each.category, str(each.message)): each for each in recorded}.values():
            if os.path.dirname(each.filename).startswith(_PACKAGE):
                _warn_at(f, each.message, each.category)
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _padding(contract: Contract, name: str, value: Any) -> Any:
    """Return the user's value for an input; for a mask, the styles of masks that the value allows.

    The value for a mask is a side of padding: ``right`` allows ``("full", "right")``.

    :raises TypeError: if the value for a mask is not one of :data:`MASK_STYLES`.
    """
    item = contract.input(name)
    if item is None or item.domain != "mask":
        return value
    styles = ("full", value) if isinstance(value, str) else value
    if not isinstance(styles, tuple) or not {*styles} <= {*MASK_STYLES}:
        known = ", ".join(map(repr, MASK_STYLES))
        raise TypeError(f"{name}={value!r}: the value of a mask is the side of its padding; pass one of {known}")
    return tuple(dict.fromkeys(styles))


def _require_known(contract: Contract, name: str, value: Any) -> None:
    """Raise a TypeError if the contract defines other values of an option, but not the chosen one.

    The defined values are listed in the input's meaning: ``estimator: grpo, rloo``.
    """
    item = contract.input(name)
    assert item is not None
    known = definitions(item)
    words = [choice for choice in item.choices if isinstance(choice, str)]
    for one in value if isinstance(value, tuple) else (value,):
        if known and one not in (*known, None):
            raise TypeError(f"{contract.name} does not define {name}={one!r}; it defines {', '.join(known)}")
        # An unknown mode is allowed, because frameworks have modes of their own. A misspelled mode must raise: without
        # a definition, the laws that compare with it would be skipped.
        if isinstance(one, str) and one not in words and (near := nearest(one, words, alike=0.8)):
            raise TypeError(f"{contract.name} does not define {name}={one!r}{near}")


def _agreement(bound: Bound) -> str:
    return f"{bound.function.name} agrees with the reference in {_AGREEING} scenarios"


def _plans(law: Law, subject: Subject, seed: int) -> list[Plan]:
    from sentinel.search.boundary_search import cheap_scenarios

    return [(law, {"": drawn.inputs}) for drawn in cheap_scenarios(subject, seed, 0, 4)]


class _OneLaw:
    """The object that ``parametrize_with_laws`` passes to a test as ``check``. It checks one law.

    :ivar tried: what the last check tried and did not try, as one line of pytest's summary.
    """

    def __init__(self, check: Check, law: str, f: Any, in_summary: bool = False) -> None:
        self._check, self._law, self._f, self._in_summary = check, law, f, in_summary
        self._called = False
        self.tried = ""

    def require_call(self, result: Any) -> Any:
        """Return a test's result; raise if the test never called its ``check``.

        :raises LawBroken: if the test did not call ``check``, because then it has checked nothing.
        """
        if inspect.iscoroutine(result):
            return self._awaited(result)
        called, self._called = self._called, False
        if not called:
            raise LawBroken(f"the test did not check {self._law}: it must call its argument, check()")
        return result

    async def _awaited(self, result: Any) -> Any:
        return self.require_call(await result)

    def __call__(self, f: Any = None) -> None:
        """Check the law.

        :raises LawBroken: if the function breaks the law.
        :raises unittest.SkipTest: if the law applies to no scenario.
        """
        __tracebackhide__ = True
        self._called = True
        function = self._f if f is None else f
        if function is None:
            raise TypeError("parametrize_with_laws(None, …): the test must pass the function: check(f)")
        # Check only this law if the test passes the function, because each test may pass another object.
        report = self._check.report(function, "" if f is None else self._law, self._in_summary)
        self.tried = report.tried
        report.laws[self._law].require()

    def __repr__(self) -> str:
        return f"<check of {self._law}>"


class _Database:
    """Stores the scenarios that break laws in Hypothesis's database. The next run tries them first."""

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
        """Store the variants that break a law, in place of those stored earlier. None deletes the stored variants."""
        from sentinel.worker import protocol

        if self._database is None:
            return
        new = None if variants is None else protocol.encode(variants)
        for old in list(self._database.fetch(self._key(law))):
            if old != new:
                self._database.delete(self._key(law), old)
        if new is not None:
            self._database.save(self._key(law), new)
