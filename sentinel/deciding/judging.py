"""Determine the verdict of a worker's result from expected values or a law, and check it against the second process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.deciding import verdicts
from sentinel.deciding.asking import Answers, Question
from sentinel.deciding.law_session import LawSession, References, Subject, Undecidable
from sentinel.deciding.outcomes import Comparison, Failure, Measurement, Observation, Verdict
from sentinel.deciding.pool import Loaded
from sentinel.laws.law import Case, Law
from sentinel.worker.answers import Failed, Reply


@dataclass(frozen=True)
class Judgement:
    """A verdict, with the comparisons behind it, and with the measurement or the failure (``outcome``)."""

    verdict: Verdict
    outcome: Measurement | Failure
    comparisons: tuple[Comparison, ...] = ()


def judge(question: Question, outcome: Measurement | Failure, loaded: Loaded, references: References) -> Judgement:
    """Determine a verdict from a worker's result, by the recipe's expected values or else by its law."""
    if isinstance(outcome, Failure):
        return Judgement(verdicts.of_failure(outcome), outcome)
    law, contract = question.law, question.contract
    effects: Mapping[str, Mapping[str, Any]] = {}
    if law is not None and law.needs_oracle and contract.oracle is not None:
        oracle = _consult(question, references)
        if isinstance(oracle, Failure):
            return Judgement(verdicts.of_failure(oracle), oracle)
        outcome = replace(outcome, oracle=oracle)
    if law is not None and (law.watches or law.twin):
        case = _case_of(question, law, loaded, references)
        if isinstance(case, Failure):
            return Judgement(verdicts.of_failure(case), case)
        effects = case.effects
        # Sessions do not trace which names the code looks up, so ``questions`` is None.
        outcome = replace(outcome, observation=case.observation, questions=None)
    verdict, comparisons = _compare(question, outcome, effects)
    return Judgement(verdict, outcome, comparisons)


def confirm(question: Question, judgement: Judgement, answers: Answers) -> Judgement:
    """Compare a judgement with the second process's result. If the result leads to another verdict, return the verdict
    ``inconclusive (unsteady)``; otherwise return the judgement."""
    measured = judgement.outcome
    if isinstance(measured, Failure):
        return judgement
    if answers.second is None:
        if not answers.refusal:  # the recipe was run only once
            return judgement
        return replace(judgement, verdict=_unsteady(f"the call failed: {answers.refusal}"))
    measured = replace(measured, reordered=answers.reordered)
    if answers.agree:
        return replace(judgement, outcome=replace(measured, repeated="same values"))
    other, _ = _compare(question, replace(measured, observation=answers.second))
    if other.name != judgement.verdict.name:
        verdict = _unsteady(f"the values were different, and the verdict would be {other.name}: {other.reason}")
        return replace(judgement, verdict=verdict, outcome=measured)
    return replace(judgement, outcome=replace(measured, repeated="same verdict"))


def _compare(
    question: Question, measured: Measurement, effects: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Verdict, tuple[Comparison, ...]]:
    if question.law is None:
        return verdicts.by_expectation(question.recipe, measured.observation)
    return verdicts.by_law(question.law, question.recipe, measured, question.contract, effects or {})


def _unsteady(what: str) -> Verdict:
    reason = f"in a second process, with another seed and the variants in another order, {what}"
    return Verdict("inconclusive", reason, "unsteady")


def _consult(question: Question, references: References) -> Observation | Failure:
    calls = {name: {"inputs": dict(inputs)} for name, inputs in question.recipe.variants.items()}
    reply = references.consult({**question.request, "calls": calls})
    replies = {"": Reply(refused=reply)} if isinstance(reply, Failed) else reply.answers
    for each in replies.values():
        if each.observation is None:
            failure = each.refused or Failed("harness", each.silent)
            return Failure("harness", f"the oracle failed: {failure.reason}", failure.traceback)
    return {name: replies[name].observation or {} for name in calls}


def _case_of(question: Question, law: Law, loaded: Loaded, references: References) -> Case | Failure:
    """Call the boundary, and return the data that a law checks, or a failure."""
    recipe, binding = question.recipe, question.binding
    if binding is None or (law.twin and not binding.twins):
        return Failure("law", f"the adapter names no second implementation (`twins`) of {recipe.boundary}")
    subject = Subject(binding, question.contract, (law,), str(question.adapter.file))
    session = LawSession(loaded.alive, references, hangs=loaded.hangs)
    try:
        [trial] = session.try_(subject, [(law, recipe.variants)], scenario_inputs=question.request["given"])
    except Undecidable as error:
        return Failure(error.failure.kind, str(error), error.failure.traceback)
    finally:
        session.close()
    if trial.case is None:
        return Failure("raised" if trial.refused else "law", trial.refused or trial.inapplicable)
    return trial.case
