"""Repeat the violations of a watched run outside the run, and write recipes for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Runner
from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.json_schema import JsonSchema
from sentinel.reports.escaping import message, visible
from sentinel.search.boundary_search import BoundarySearch, Finding
from sentinel.search.checks import subjects
from sentinel.search.saving import decisive_document
from sentinel.targets.refs import Ref
from sentinel.values.documents import json_data
from sentinel.values.files import GENERATED, read_text
from sentinel.values.literals import Tensor, untyped

#: Maximum number of calls that are made to shrink one violation.
_SHRINKING = 300


@dataclass(frozen=True)
class Replay:
    """The result of repeating a run's violation outside the run.

    :ivar event: the line of the events file. Its ``of`` is the number of checked calls, and its ``count`` the number of
        these calls that violate the law.
    :ivar open_target: the revision at which the violation was measured; None if it could not be measured.
    :ivar finding: the shrunk scenario that shows the violation outside the run; None if it does not occur there.
    :ivar reason: why there is no finding; empty if there is one.
    """

    event: Mapping[str, Any]
    open_target: OpenTarget | None = None
    finding: Finding | None = None
    reason: str = ""


def violations(file: Path) -> list[dict[str, Any]]:
    """Return the violations in an events file, each with its counts and, as ``line``, its place in the file.

    :raises SentinelError: if the file cannot be read, or has a line that ``sentinel watch`` did not write.
    """
    by_kind: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, line in enumerate(read_text(file, GENERATED).splitlines(), 1):
        place = f"{visible(str(file))}:{number}:1"
        event = _parse_event(line, place)
        if event["event"] == "violation":
            key = event["run"], event["boundary"], event["law"], event["symptom"]
            by_kind.setdefault(key, {"key": "", "version": "", "place": "", **event, "line": place})
        for one in event["violations"] if event["event"] == "end" else ():
            same = by_kind.get((event["run"], one["boundary"], one["law"], one["symptom"]))
            if same is not None:
                same.update(count=one["count"], of=one["of"])
    return list(by_kind.values())


def _parse_event(line: str, place: str) -> dict[str, Any]:
    try:
        event = json_data(line)
        kind = event.get("event") if isinstance(event, dict) else None
        schema = _schemas().get(kind) if isinstance(kind, str) else None
        if schema is None:
            raise SentinelError("the line is neither a violation nor the final line")
        for wrong in schema.errors(event):
            key = ".".join(map(str, wrong.instance_path))
            raise SentinelError(f"at {key}: {wrong.message}" if key else wrong.message)
    except (ValueError, RecursionError, SentinelError) as error:
        raise SentinelError(f"{place}: not a line that sentinel watch wrote: {message(str(error))[:200]}") from None
    return dict(event)


@cache
def _schemas() -> dict[str, JsonSchema]:
    whole = JsonSchema("events").schema
    return {
        kind["properties"]["event"]["const"]: JsonSchema({**kind, "required": [*whole["required"], *kind["required"]]})
        for kind in whole["oneOf"]
    }


def replayed(
    runner: Runner, catalog: Catalog, events: Sequence[Mapping[str, Any]], ref: Ref | None
) -> Iterator[Replay]:
    """Repeat violations outside the run, one for each boundary, law and symptom, and yield the results.

    :param ref: the revision to call; None for the installed version.
    """
    keys = set()
    for event in events:
        key = event["target"], event["boundary"], event["law"], event["symptom"]
        if key not in keys:
            keys.add(key)
            yield _replayed(runner, catalog, event, ref or Ref("installed"))


def _replayed(runner: Runner, catalog: Catalog, event: Mapping[str, Any], ref: Ref) -> Replay:
    if event["target"] not in catalog.targets:
        raise SentinelError(
            f"the events are about {event['target']!r}, which is not a target here; install the plugin with its adapter"
        )
    if not event["boundary"]:
        saved = "this violation is of an invariant, for which no call was saved"
        return Replay(event, reason=f"{saved}; only violations of laws can be replayed")
    everywhere = subjects(catalog, event["target"])[0]
    subject = next((item for item in everywhere if item.name == event.get("subject")), None)
    law = next((item for item in subject.laws if item.name == event["law"]), None) if subject else None
    if subject is None or law is None:
        return Replay(event, reason=f"the installed adapter does not bind {event['boundary']} with this law")
    if event["variants"] is None:
        return Replay(event, reason="the call was too large to be written; watch again with --capture full")
    variants = _scenario(event, subject)
    runner.start([event["target"]])
    open_target = runner.open_target(event["target"], ref, [subject.binding])
    search = BoundarySearch(open_target.law_session, subject, 0, [law], _SHRINKING)
    try:
        search.shrink(law, next(iter(variants.values())), event["symptom"])
        if not search.outcomes[law].findings:
            search.replay([(law, variants)])
    except Undecidable as error:
        return Replay(event, reason=str(error))
    finding = next(iter(search.outcomes[law].findings), None)
    reason = "the law holds at that revision: the violation occurs only in the run" if finding is None else ""
    return Replay(event, open_target, finding, reason)


def _scenario(event: Mapping[str, Any], subject: Subject) -> dict[str, dict[str, Any]]:
    """Return a violation's scenario, and raise an error with the place of the line if it is invalid."""
    names = {item.name: item.kind for item in subject.contract.inputs}
    try:
        variants = dict(untyped(event["variants"]))
        for inputs in variants.values():
            if set(inputs) != names.keys():
                raise ValueError(f"the scenario's inputs are not those of the contract: {', '.join(names)}")
            for name, value in inputs.items():
                if isinstance(value, Tensor) != (names[name] == "tensor") and value is not None:
                    raise ValueError(f"the input {name} must be of kind {names[name]}")
        if not variants:
            raise ValueError("the scenario has no variants")
    except (TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        where = f"{event['line']}: not a scenario of {message(subject.name)}"
        raise SentinelError(f"{where}: {message(str(error))[:200]}") from None
    return variants


def document_of(one: Replay, runner: Runner, catalog: Catalog) -> dict[str, Any]:
    """Return a recipe for a violation. Its ``reach`` names the place and the step of the run.

    :raises CannotDistinguish: if no recipe can distinguish the broken code from fixed code.
    """
    assert one.finding is not None
    assert one.open_target is not None
    document = decisive_document(one.finding, one.open_target, runner, catalog)
    event, checkout = one.event, one.open_target.checkout
    how = f"seen in a run of {event['target']} {event['version'] or '(no release)'}, first at step {event['step']}"
    if event.get("of"):
        how += f", in {event['count']} of {event['of']} checked calls"
    scenario = next(iter(one.finding.trial.variants.values()))
    knobs = {item.name: scenario[item.name] for item in one.finding.subject.contract.inputs if item.knob}
    set_ = ", ".join(f"{name} {value}" for name, value in knobs.items() if value is not None)
    at = checkout.commit or checkout.version or event["version"]
    if event["place"] and at:
        document["reach"] = {"producer": f"{event['place']}@{at}", "how": f"{how}{', with ' + set_ if set_ else ''}"}
    return document
