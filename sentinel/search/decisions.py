"""Derive the decision about each law from the results of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from sentinel.contracts.contract import Inputs
from sentinel.deciding.absence import Absence
from sentinel.deciding.law_session import Subject, Trial, Undecidable
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.outcomes import Comparison, Decision, Failure, Kind, Measurement, Verdict, VerdictName
from sentinel.deciding.proof import NotProvenError, failure_of, prove
from sentinel.deciding.verdicts import UNAVAILABLE, of_failure
from sentinel.laws.law import Law, Violation
from sentinel.recipes import Recipe
from sentinel.recipes.digests import document_digest
from sentinel.recipes.found import found_id
from sentinel.search.boundary_search import Finding, LawOutcome
from sentinel.search.saving import recipe_document
from sentinel.targets import Dialect
from sentinel.targets.refs import Ref


def of_outcome(
    open_target: OpenTarget,
    subject: Subject,
    law: Law,
    outcome: LawOutcome,
    tried: int,
    seed: int,
    answered: bool = True,
) -> Decision:
    """Return the decision about one law of one boundary after a search.

    :param tried: the number of scenarios of the search.
    :param answered: whether any call of the boundary returned, for this law or another.
    """
    searched = f"{tried} scenarios of seed {seed}, {outcome.judged} of them judged by this law"
    trial, violations = outcome.sample, tuple[Violation, ...]()
    if outcome.findings:
        first, *others = outcome.findings
        trial, violations = first.trial, first.violations
        more = "".join(f"; also {other.symptom}: {other.violations[0].detail}" for other in others)
        verdict = Verdict("reproduced", f"the law is broken ({law.statement}): {violations[0].detail}{more}")
    elif failed := [why for why, kind in outcome.kinds.items() if kind == "adapter"]:
        trial, verdict = None, Verdict("inconclusive", failed[0], "adapter")  # even if the law held in other scenarios
    elif stale := stale_dialects(subject, law, outcome):
        reason = f"a declared dialect no longer occurs in {searched}: {stale[0].reason} ({stale[0].link})"
        verdict = Verdict("changed", reason)
    elif deadlocks := {why: count for why, count in outcome.refused.items() if outcome.kinds[why] == "deadlock"}:
        trial, count = None, sum(deadlocks.values())
        verdict = Verdict("inconclusive", f"in {count} of {searched}: {next(iter(deadlocks))}", "deadlock")
    elif outcome.judged or outcome.dialects:
        trial = outcome.sample or outcome.unbroken
        dialects = [subject.binding.dialects[place] for place in outcome.dialects]
        reasons = "; ".join(f"{dialect.reason} ({dialect.link})" for dialect in dialects)
        but = f" except for a declared dialect, in {searched}: {reasons}"
        verdict = Verdict("fixed", f"the law holds{but if dialects else f' in {searched}: {law.statement}'}")
    else:
        trial, verdict = None, _verdict_without_judgement(outcome, searched, answered)
    return _decision(open_target, subject, law, verdict, trial, violations)


def _verdict_without_judgement(outcome: LawOutcome, searched: str, answered: bool) -> Verdict:
    kinds: Counter[Kind | Literal[""]] = Counter()
    for why, count in outcome.refused.items():
        kinds[outcome.kinds[why]] += count
    if outcome.not_judged:
        kinds["drift"] -= outcome.unknown
    kinds = +kinds
    if not kinds:
        why = outcome.not_judged.most_common(1)[0][0] if outcome.not_judged else "no scenario could be drawn"
        return Verdict("unavailable", f"the law judged none of {searched}: {why}", "law")
    kind = kinds.most_common(1)[0][0]
    why = next(why for why, _ in outcome.refused.most_common() if outcome.kinds[why] == kind)
    if kind == "raised" and not answered:
        reason = f"the adapter supports this revision, but every call of the boundary raised: {why}"
        return Verdict("inconclusive", reason, "adapter")
    # If the boundary itself raised, the verdict is not inconclusive: users see the exception too, and there is no
    # result to judge.
    name: VerdictName = "unavailable" if kind in ("raised", *UNAVAILABLE) else "inconclusive"
    return Verdict(name, f"every call raised: {why}", kind)


def of_undecidable(
    open_target: OpenTarget, subject: Subject, law: Law, error: Undecidable, lack: Absence | None
) -> Decision:
    """Return the decision about a law of a boundary that cannot be called at this ref.

    :param lack: the name that the adapter uses and that the checkout's source does not define; None if there is none.
    """
    binding = subject.binding
    try:
        failure = failure_of(error.failure, open_target.checkout, open_target.sources, binding.requires, binding.paths)
    except NotProvenError as unproven:
        failure = Failure("drift", str(unproven))
    if lack is not None:
        failure = Failure("not-in-this-version", lack.describe(error.failure.reason))
    return replace(_decision(open_target, subject, law, of_failure(failure), None), failure=failure)


def of_absence(target: str, ref: Ref, subject: Subject, law: Law, failure: Failure, adapter: str = "") -> Decision:
    """Return the decision about a law at a ref that is not available on this machine."""
    recipe = _recipe(target, subject, law, {"": {}}, {})
    return Decision(
        recipe, ref, of_failure(failure), failure=failure, law=law.name, adapter=adapter, subject=subject.name
    )


#: Number of scenarios in the scope of a declared dialect after which the dialect is reported as stale if its violation
#: never occurred. The number is large because some violations need rare values.
CHANCES = 200


def stale_dialects(subject: Subject, law: Law, outcome: LawOutcome, chances: int = CHANCES) -> list[Dialect]:
    """Return the dialects whose violation never occurred in at least ``chances`` scenarios to which they apply."""
    return [
        dialect
        for place, dialect in enumerate(subject.binding.dialects)
        if not subject.binding.like  # with `like`, the dialects are those of another binding, and need not occur
        and dialect.name == law.name
        and outcome.dialects_open[place] >= chances
        and not outcome.dialects[place]
    ]


def _decision(
    open_target: OpenTarget,
    subject: Subject,
    law: Law,
    verdict: Verdict,
    trial: Trial | None,
    violations: tuple[Violation, ...] = (),
) -> Decision:
    comparisons = tuple(
        Comparison(item.key, item.observed, None, item.demanded, None, False, item.detail) for item in violations
    )
    variants: Mapping[str, Inputs] = trial.variants if trial is not None else {"": {}}
    document: dict[str, Any] = {}
    if trial is not None:
        name = found_id(open_target.target, subject.boundary, law.name)
        finding = Finding(subject, law, trial, violations)
        document = recipe_document(finding, open_target.target, open_target.checkout, name)
    measurement, failure = None, None
    answer = trial.answer if trial is not None else None
    if trial is not None and trial.case is not None and answer is not None and answer.provenance is not None:
        try:
            measurement = Measurement(
                {name: dict(values) for name, values in trial.case.observation.items()},
                prove(answer.provenance, open_target.checkout, open_target.sources),
                answer.ghosts,
                answer.stand_ins,
                trial.case.oracle,
            )
        except NotProvenError as error:
            failure = Failure("drift", str(error))
            verdict, comparisons = of_failure(failure), ()
    return Decision(
        _recipe(open_target.target, subject, law, variants, document),
        open_target.ref,
        verdict,
        checkout=open_target.checkout,
        measurement=measurement,
        failure=failure,
        comparisons=comparisons,
        environment=open_target.environment,
        law=law.name,
        adapter=open_target.adapter,
        subject=subject.name,
    )


def _recipe(
    target: str, subject: Subject, law: Law, variants: Mapping[str, Inputs], document: Mapping[str, Any]
) -> Recipe:
    return Recipe(
        bug_id="",
        title=law.statement,
        target=target,
        contract=subject.contract.name,
        boundary=subject.boundary,
        variants=variants,
        path=Path(f"{law.name}.yaml"),
        digest=document_digest(document),
        invariant=law.name,
        document=document,
    )
