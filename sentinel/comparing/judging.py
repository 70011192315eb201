"""Judge whether a difference is better or worse, from laws, exceptions and known bugs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import combinations

from sentinel.comparing.asking import Asking
from sentinel.comparing.observations import AFTER, BEFORE, BESIDE, OTHER, SIDES, Increased, part, violations_ahead
from sentinel.comparing.results import ANSWERED, BoundaryDiff, Broken, Difference, break_answered
from sentinel.comparing.sessions import Ahead, Log, OneSided, Pair
from sentinel.contracts.contract import DoesNotApply, Inputs
from sentinel.deciding.law_session import SETTINGS, LawSession, Subject, Trial, Undecidable
from sentinel.laws.agreement import NATS
from sentinel.laws.law import Law
from sentinel.laws.metrics import metrics_tell_the_truth
from sentinel.recipes import Recipe
from sentinel.search.boundary_search import BoundarySearch, Example, Finding, cheap_scenarios, turn
from sentinel.search.known import Excuse, Others, covers, explain, search_others
from sentinel.search.scenarios import declared, distinct
from sentinel.search.survey import LEVELS
from sentinel.worker.answers import NUMBERS, TEXTS

#: Maximum number of drawn scenarios on which laws are checked if something differs.
_LOOKED = 30

#: Number of scenarios in which a changed definition must agree with the results to explain them; fewer if there are
#: fewer scenarios.
_AGREEING = 8

#: Kinds of failure that the machine or the adapter causes, not the code under test.
_ELSEWHERE = ("drift", "ghost", "harness", "not-in-this-version", "python")


def compare_laws(
    asking: Asking,
    pair: Pair,
    sessions: Mapping[str, LawSession],
    subject: Subject,
    scenarios: Sequence[Inputs],
    log: Log,
    with_own_inputs: Subject,
    inherited: Callable[[Finding], Sequence[Recipe]],
) -> dict[str, tuple[Broken, ...]]:
    """Return, for each revision, the laws that it breaks on a scenario on which the other revision satisfies them.

    Laws are checked on ``scenarios`` and on drawn scenarios. If no scenario differs, only laws about side effects are
    checked. Scenarios that need an option or choice that only the head has are judged without the base.

    If both revisions break a law on a scenario, the law counts as broken by the revision that has an element further
    from the right value. A fix may expose a bug that was already there. Therefore, all violations of the head are
    dropped if two conditions hold: bugs that both revisions have explain them, and on scenarios that do not trigger
    these bugs, the head is better and not worse.

    If a scenario sets options that the contract does not declare (:data:`SETTINGS`), only laws about relations between
    calls are checked, and only those that one revision keeps. The contract's definition may not allow for such options.

    :param scenarios: scenarios on which the revisions differ.
    :param with_own_inputs: the subject with all inputs of the head, including those that the base rejected.
    :param inherited: returns the known bugs that may explain a finding and that both revisions have.
    """
    if not subject.laws:
        return {}
    turned = [each for each in scenarios if SETTINGS in each and each[SETTINGS].keys().isdisjoint((TEXTS, NUMBERS))]
    scenarios = [each for each in scenarios if SETTINGS not in each]
    usual = [each.inputs for each in cheap_scenarios(subject, asking.budget.seed, 0, _AGREEING)] if turned else []
    turned += [inputs for each in turned for inputs in turn(subject, asking.budget.seed, each[SETTINGS], usual)]
    whole = bool(scenarios) or log.came
    laws = subject.laws if whole else [law for law in subject.laws if law.watches]
    examples = min(asking.budget.examples, _LOOKED) if whole else LEVELS["quick"][0]

    def search(side: str) -> list[Finding]:
        with closing(Ahead(sessions[side].fresh(), sessions[OTHER[side]].fresh())) as session:
            single = [_search_on(asking, session, subject, subject.laws, [inputs]) for inputs in scenarios]
            return list_findings(*single, asking.search_laws(session, subject, laws, examples))

    def search_turned(side: str) -> list[Finding]:
        one, other = (sessions[each].fresh() for each in (side, OTHER[side]))
        with closing(Ahead(one, other, (pair.description(side), pair.description(OTHER[side])))) as session:
            relations = [law for law in subject.laws if not law.needs_oracle]
            findings = list_findings(_search_on(asking, session, subject, relations, turned))
        return [each for each in findings if not any(isinstance(item, Increased) for item in each.violations)]

    def search_new_options(side: str) -> list[Finding]:
        subjects = [subject, with_own_inputs] if side == AFTER and with_own_inputs != subject else [subject]
        return list_findings(*(asking.search_laws(sessions[side], each, laws, examples) for each in subjects))

    broken_by: dict[str, dict[tuple[str, str], Broken]] = {side: {} for side in SIDES}
    with ThreadPoolExecutor(2, "sentinel-laws") as pool:
        findings_by = dict(zip(SIDES, pool.map(search, SIDES)))
        if findings_by[AFTER] and findings_by[BEFORE] and not log.came:
            findings_by = _without_inherited(asking, sessions, subject, findings_by, inherited)
        ever = dict(zip(SIDES, pool.map(search_new_options, SIDES))) if log.came else {}
        for side, findings in zip(SIDES, pool.map(search_turned, SIDES) if turned else ()):
            findings_by[side] = [*findings_by[side], *findings]
    for side, findings in findings_by.items():
        for finding in findings:
            broken = describe_finding(finding, log.nonzero[OTHER[side]] - log.nonzero[side])
            key = broken.law, broken.symptom
            if side == AFTER and broken.defined and key not in broken_by[side]:
                broken = replace(broken, choice=_find_choice(asking, sessions, finding))
            broken_by[side].setdefault(key, broken)
    before = {(each.law.name, each.symptom) for each in ever.get(BEFORE, ())}
    for finding in ever.get(AFTER, ()):
        key = finding.law.name, finding.symptom
        fresh = _keep_new(sessions, finding) if key not in before and key not in broken_by[AFTER] else None
        if fresh is not None:
            silenced = log.nonzero[BEFORE] - log.nonzero[AFTER]
            broken_by[AFTER][key] = replace(describe_finding(fresh, silenced), came=True)
    return {side: tuple(sorted(each.values(), key=_by_weight)) for side, each in broken_by.items()}


def _by_weight(broken: Broken) -> tuple[bool, bool]:
    """Return a sort key: laws that only this revision breaks come before laws that both break. Within both groups,
    violations of the contract's definition come first."""
    return broken.already, not broken.defined


def _without_inherited(
    asking: Asking,
    sessions: Mapping[str, LawSession],
    subject: Subject,
    findings_by: dict[str, list[Finding]],
    inherited: Callable[[Finding], Sequence[Recipe]],
) -> dict[str, list[Finding]]:
    """Return the findings of both sides, without those of the head if known bugs of both revisions explain them.

    They are dropped only if these bugs explain all findings of the head, but not all findings of the base.

    :param findings_by: side -> findings.
    """
    if not all(covers(inherited(finding), finding) for finding in findings_by[AFTER]):
        return findings_by

    def search(side: str, bugs: Mapping[Law, Sequence[Recipe]]) -> Mapping[Law, Others]:
        with closing(Ahead(sessions[side].fresh(), sessions[OTHER[side]].fresh())) as session:
            return search_others(session, subject, asking.budget.seed, bugs, LEVELS["quick"][1])

    def explain_side(side: str) -> list[tuple[Excuse, list[Finding]]]:
        by_law: dict[Law, list[Finding]] = {}
        for finding in findings_by[side]:
            by_law.setdefault(finding.law, []).append(finding)
        return [*explain(by_law, inherited, partial(search, side)).values()]

    if any(not excuse.bugs or excuse.unknown or excuse.doubt or rest for excuse, rest in explain_side(AFTER)):
        return findings_by
    better = [finding for excuse, rest in explain_side(BEFORE) for finding in (excuse.unknown, *rest) if finding]
    return {BEFORE: list({id(each): each for each in better}.values()), AFTER: []} if better else findings_by


def _search_on(
    asking: Asking, session: LawSession, subject: Subject, laws: Collection[Law], scenarios: Sequence[Inputs]
) -> BoundarySearch:
    search = BoundarySearch(session, subject, asking.budget.seed, laws)
    search.begin([Example({"": inputs}, tuple(law.name for law in laws)) for inputs in scenarios])
    return search


def _find_choice(asking: Asking, sessions: Mapping[str, LawSession], finding: Finding) -> str:
    """Return, as text, a change of the contract's definition that explains the head's results; empty if there is none.

    Two kinds of change are tried. The first sets a choice to another value; if the choice is an argument of the
    boundary, only strings are tried. The second exchanges two log-probs, which reverses the sign of their difference.
    Only the oracle is called with the change. Scenarios in which the base breaks the law too are left out, because a
    known bug may explain them.
    """
    subject, law = finding.subject, finding.law
    if not law.needs_oracle or law.vary is not None:
        return ""
    contract = subject.contract
    choices = [
        (item.name, value)
        for item in contract.inputs
        for value in distinct([*item.choices, *declared(asking.targets, contract, item.name)])
        if item.dialect or item.name in subject.binding.fixed or isinstance(value, str)
    ]
    drawn = [each.inputs for each in cheap_scenarios(subject, asking.budget.seed, 0, _LOOKED)]
    with suppress(Undecidable):
        plans = [(law, {"": inputs}) for inputs in (next(iter(finding.trial.variants.values())), *drawn)]
        kept = [plan for plan, trial in zip(plans, sessions[BEFORE].try_(subject, plans)) if _keeps(trial)]
        trials = [trial for trial in sessions[AFTER].try_(subject, kept) if trial.case is not None]
        trials = sorted(trials, key=_keeps)
        if not trials or _keeps(trials[0]):
            return ""
        first = _inputs_of(trials)[0]
        for name, value in choices:
            now = first.get(name)
            alike = [each for each, inputs in zip(trials, _inputs_of(trials)) if inputs.get(name) == now][:_AGREEING]
            calls = [{**inputs, name: value} for inputs in _inputs_of(alike)]
            if value != now and _follows(sessions[AFTER], subject, law, alike, calls):
                return f"{name}={value!r} (before: {now!r})"
        gradients = {item.key for item in contract.observes if item.role == "gradient"}  # their sign changes
        wrong = [each for each in trials if {part(item.key) for item in each.violations} - gradients][:_AGREEING]
        nats = [item.name for item in contract.inputs if item.domain in NATS and first.get(item.name) is not None]
        for one, other in combinations(nats, 2):
            calls = [{**each, one: each.get(other), other: each.get(one)} for each in _inputs_of(wrong)]
            if _follows(sessions[AFTER], subject, law, wrong, calls, gradients):
                return f"{one} and {other} exchanged (gradients not compared)"
    return ""


def _keeps(trial: Trial) -> bool:
    return trial.case is not None and not trial.violations


def _inputs_of(trials: Sequence[Trial]) -> list[Inputs]:
    return [next(iter(each.variants.values())) for each in trials]


def _follows(
    session: LawSession,
    subject: Subject,
    law: Law,
    trials: Sequence[Trial],
    calls: Sequence[Inputs],
    ignored: Collection[str] = (),
) -> bool:
    """Return True if each trial's results agree with the oracle's results for the corresponding inputs in ``calls``.

    :param ignored: observed keys that may differ.
    """
    replies = session.references(subject, {str(place): inputs for place, inputs in enumerate(calls)}).answers
    judged = 0
    for place, trial in enumerate(trials):
        right = replies[str(place)].observation
        with suppress(DoesNotApply):
            wrong = {part(item.key) for item in trial.violations} - {*ignored}
            if right is None or trial.case is None or any(right.get(key) is None for key in wrong):
                return False
            violations = law.violations(replace(trial.case, oracle={"": right}))
            if any(part(item.key) not in ignored for item in violations):
                return False
            judged += 1
    return judged > 0


def list_findings(*searches: BoundarySearch) -> list[Finding]:
    return [finding for search in searches for outcome in search.outcomes.values() for finding in outcome.findings]


def _keep_new(sessions: Mapping[str, LawSession], finding: Finding) -> Finding | None:
    """Return the finding if its scenario sets an option that only the head has, or None otherwise.

    If it needs an option, keep only the violations that disappear at the head when the option is not set.
    """
    with suppress(Undecidable):
        [before] = sessions[BEFORE].try_(finding.subject, [(finding.law, finding.trial.variants)])
        if before.unknown_input:
            without = {name: {**each, before.unknown_input: None} for name, each in finding.trial.variants.items()}
            [bare] = sessions[AFTER].try_(finding.subject, [(finding.law, without)])
            fresh = violations_ahead(replace(finding.trial, violations=finding.violations), bare)
            return replace(finding, violations=fresh) if fresh else None
        return finding if before.refusal == "not-in-this-version" else None
    return None


def describe_finding(finding: Finding, silenced: Collection[str] = ()) -> Broken:
    """Return the broken law of a finding, with its scenario and details.

    :param silenced: keys that are always 0 at this revision but not at the other. A violation of such a key is not
        regarded as an intended change of the definition.
    """
    first = finding.violations[0]
    detail = f"{first.key}: {first.detail}" if first.key else first.detail
    keys = {part(item.key) for item in finding.violations}
    empty = finding.law is metrics_tell_the_truth and any(item.observed in (0, None) for item in finding.violations)
    defined = finding.law.rank == 1 and finding.symptom == "value" and not empty and not keys & set(silenced)
    already = isinstance(first, Increased)
    law, variants = finding.law, finding.trial.variants
    return Broken(law.name, law.statement, finding.symptom, detail, variants, defined, already=already)


def add_programming_errors(
    broken: Mapping[str, tuple[Broken, ...]], differences: Sequence[Difference]
) -> dict[str, tuple[Broken, ...]]:
    """Return the broken laws, plus :data:`ANSWERED` for each programming error that only one revision raises."""
    with_errors = dict(broken)
    for each in (item for item in differences if item.programming_error):
        side = next(side for side, answer in each.answers.items() if isinstance(answer, str))
        with_errors[side] = (*with_errors.get(side, ()), break_answered(str(each.answers[side]), each.inputs))
    return with_errors


def judge_one_sided(result: BoundaryDiff, error: OneSided) -> BoundaryDiff:
    """Judge a boundary that crashes, hangs or fails to import at only one revision."""
    failure = error.failure
    if failure.kind in _ELSEWHERE or failure.lacks:
        return replace(result, state="not compared", reason=failure.reason, failed=error.side)
    broken = break_answered(failure.reason, error.inputs)
    return replace(result, state="differs", failed=error.side, broken={error.side: (broken,)})


def judge_refused(result: BoundaryDiff, log: Log, differences: tuple[Difference, ...]) -> BoundaryDiff:
    """Judge a boundary for which every call raises at one revision and not at the other.

    If its parameters have changed, the state is ``not compared``, because the adapter may call it incorrectly. A
    NameError is judged in any case, because it affects every caller.
    """
    side, why = next(iter(log.refused.items()))
    reason = f"{side}: every call raised: {why}"
    if side == BEFORE and not any(each.programming_error for each in differences):
        return replace(result, state="not compared", reason=reason, failed=side)
    if result.parameters and "NameError" not in {each.programming_error for each in differences}:
        reason += " (its parameters have changed, so the adapter may call it incorrectly)"
        return replace(result, state="not compared", reason=reason, failed=side)
    inputs = differences[0].inputs if differences else {}
    broken = add_programming_errors({}, differences) or {side: (break_answered(why, inputs),)}
    count = len(differences)
    return replace(result, state="differs", scenarios=count, differences=differences, broken=broken, failed=side)


def may_be_excused(result: BoundaryDiff) -> bool:
    """Return True if the head is worse only because the function raises on arguments that it accepted before."""
    refuses = any(each.symptom == "raises" for each in result.differences)
    others = [each for each in result.broken.get(AFTER, ()) if not each.defined and each.law != ANSWERED]
    return refuses and not others and not result.bugs.get(AFTER)


def keeps_numbers(caller: BoundaryDiff, helpers: Collection[str]) -> bool:
    """Return True if a caller's scenarios ran the changed helper functions and its results are unchanged."""
    ran = not any(each.name in helpers and not each.called for each in caller.unreached)
    ran = ran and not (caller.state == "not examined" and caller.share)  # the lines ran only at other boundaries
    symptoms = {each.symptom for each in caller.differences}
    same = caller.state in ("same numbers", "not examined") or symptoms <= {"dtype", BESIDE}
    return ran and same and not caller.broken.get(AFTER) and not caller.bugs.get(AFTER)


def bugs_of_one_side(verdicts: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return, for each revision, the known bugs that it has and that are fixed at the other revision."""
    return {
        side: tuple(
            bug for bug, by_side in verdicts.items() if (by_side[side], by_side[other]) == ("reproduced", "fixed")
        )
        for side, other in OTHER.items()
    }
