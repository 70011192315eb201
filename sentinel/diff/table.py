"""What a comparison of frameworks came to, in words and as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sentinel.contracts.contract import Inputs
from sentinel.diff.across import DEFINITION, UNEXPLAINED, Number, Row, Separation
from sentinel.diff.frameworks import Frameworks, Meaning
from sentinel.reports.escaping import message
from sentinel.reports.explain import scenario_lines, told_apart
from sentinel.reports.markdown import escaped
from sentinel.values.literals import Tensor

Found = Sequence[tuple[Meaning, Row]]

_NAME = re.compile(r"[\w+.-]+")


def status(rows: Sequence[Row]) -> int:
    """0 where all that differs is explained, 1 where something is not, 2 where nothing could be compared."""
    if any(item.unexplained for row in rows for item in row.apart):
        return 1
    return 0 if any(row.scenarios for row in rows) else 2


def lines(found: Found, interrupted: bool = False) -> Iterator[str]:
    """For a terminal."""
    for meaning, row in found:
        yield f"{meaning.title}{_where(row)}: {headline(row)}"
        for number, group in enumerate(row.classes):
            if group == [DEFINITION]:
                continue
            first = group[0] == DEFINITION
            yield "  as it is defined:" if first else "  agree with each other:" if len(group) > 1 else "  by itself:"
            for name in group[first:]:
                yield f"    {name}{_place(row, name)}: {row.scenarios[name]} scenarios"
            for item in row.apart if number else ():
                if item.members[1] in group and item.members[0] == DEFINITION:
                    yield from (f"    {line}" for line in told(item))
        yield from (f"  {line}" for line in numbers(row))
        for name, why in row.not_compared.items():
            yield f"  not compared: {name}: {message(why)}"
        yield ""
    counted = [item for _, row in found for item in unexplained(row)]
    told_of = "nothing is unexplained" if not counted else f"{len(counted)} unexplained"
    yield f"{told_of}{'; interrupted' if interrupted else ''}"


def unexplained(row: Row) -> list[Separation]:
    """What nothing explains, once for each boundary: on the smallest scenario, with the definition where that shows."""
    found: dict[str, Separation] = {}
    for item in row.apart:
        if item.unexplained:
            found.setdefault(item.why, item)
    return list(found.values())


def headline(row: Row) -> str:
    """Who agrees, in numbers."""
    members = [name for group in row.classes for name in group if name != DEFINITION]
    frameworks = len({name.split()[0] for name in members})
    as_defined = sum(len(group) - 1 for group in row.classes if group[0] == DEFINITION)
    kinds = len(row.classes) - (row.classes[:1] == [[DEFINITION]])
    of = f"{len(members)} of {frameworks} {'framework' if frameworks == 1 else 'frameworks'}"
    return f"{of} mean {kinds} {'thing' if kinds == 1 else 'things'}; {as_defined} as it is defined"


def told(item: Separation) -> Iterator[str]:
    """Why two are apart, on which scenario, and what each answers."""
    yield f"{' and '.join(item.members)}: {why(item)}"
    yield from (f"  {line}" for line in scenario(item))
    for key in item.keys[:1]:
        for name, value in zip(item.members, told_apart(*(item.answers[name][key] for name in item.members))):
            yield f"  {key} of {name}: {value}"


def why(item: Separation) -> str:
    """The explanation, in words."""
    if item.bugs:
        return f"known: {', '.join(item.bugs)}"
    if item.why.startswith(UNEXPLAINED):
        return f"unexplained: {item.why.removeprefix(UNEXPLAINED)} is not as it is defined, in its own terms"
    one, other = (item.terms[name] for name in item.members)
    if not one:
        return message(item.why)
    return "; ".join(f"{name} is {one[name]!r} and {other.get(name)!r}" for name in one)


def scenario(item: Separation) -> list[str]:
    return _given(item.inputs, item.unsaid)


def numbers(row: Row) -> Iterator[str]:
    """One batch, and what everybody makes of it."""
    if row.batch is None:
        return
    yield f"one batch: {batch(row)}"
    for name, number in row.alike.items():
        yield f"  {name}: {brief(number.value)}{settings(number)}"
    for name, number in row.usual.items():
        yield f"  {name}, by default: {brief(number.value)}{settings(number)}"


def batch(row: Row) -> str:
    """The batch, without what only the definition reads or the row says."""
    given = {name: value for name, value in (row.batch or {}).items() if isinstance(value, (Tensor, list))}
    return "; ".join(_given(given, frozenset(row.where)))


def brief(value: Any) -> str:
    """Numbers to four digits."""
    if isinstance(value, Tensor):
        return brief(value.nested())
    if isinstance(value, list):
        return f"[{', '.join(map(brief, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings(number: Number) -> str:
    """The settings of an answer that are not those of the batch, or by which option they are a run's default."""
    said = [
        f"{name} = {value[0]} ({value[1]})" if isinstance(value, tuple) else f"{name} = {value}"
        for name, value in number.settings.items()
        if not isinstance(value, Tensor)
    ]
    return f", with {', '.join(said)}" if said else ""


def _given(inputs: Inputs, unsaid: frozenset[str]) -> list[str]:
    given = {name: value for name, value in inputs.items() if value is not None and name not in unsaid}
    plain = {name: value.nested() if isinstance(value, Tensor) else value for name, value in given.items()}
    return scenario_lines({"scenario": plain})


def _where(row: Row) -> str:
    return f" ({', '.join(f'{name} = {value}' for name, value in row.where.items())})" if row.where else ""


def _place(row: Row, name: str) -> str:
    return f" ({row.places[name]})" if name in row.places else ""


def document(compared: Frameworks, found: Found, interrupted: bool = False) -> dict[str, Any]:
    """As data, of which the pages are made."""
    return {
        "targets": {
            name: {"ref": str(each.ref), "commit": each.checkout.commit, "version": each.checkout.version}
            for name, each in sorted(compared.opened.items())
        },
        "unavailable": {name: message(why) for name, why in sorted(compared.unavailable.items())},
        "interrupted": interrupted,
        "rows": [{"title": meaning.title, **_row(meaning, row)} for meaning, row in found],
    }


def _row(meaning: Meaning, row: Row) -> dict[str, Any]:
    more = [f"{name} = {value}" for name, value in row.where.items() if name not in meaning.where]
    return {
        "contract": row.contract,
        "which": ", ".join(more),
        "where": dict(row.where),
        "headline": headline(row),
        "classes": row.classes,
        "scenarios": row.scenarios,
        "places": row.places,
        "batch": batch(row),
        "alike": {name: [brief(each.value), settings(each)] for name, each in row.alike.items()},
        "usual": {name: [brief(each.value), settings(each)] for name, each in row.usual.items()},
        "not_compared": {name: message(why) for name, why in row.not_compared.items()},
        "unexplained": len(unexplained(row)),
        "apart": [
            {
                "members": list(item.members),
                "why": message(why(item)),
                "names": sorted(item.bugs) or [] if item.why.startswith(UNEXPLAINED) else item.why.split(", "),
                "scenario": "; ".join(scenario(item)),
                "key": item.keys[0] if item.keys else "",
                "answers": [brief(item.answers[name].get(item.keys[0])) for name in item.members],
            }
            for item in row.apart
        ],
    }


def markdown(told: Mapping[str, Any]) -> Iterator[str]:
    """The page of a document."""
    yield (
        "# What frameworks mean by one name\n\n"
        "`sentinel compare --all` writes this page. The same scenarios go to every function that is bound to a\n"
        "contract, and to its definition in float64, with the same settings where these can be had. What tells two\n"
        "apart is the smallest scenario that was found, measured again in fresh processes. A dialect that the adapter\n"
        "declares explains it, a setting that one of them does not have, or a known bug; or nothing does. What is not\n"
        "finite is not looked at here: that is a law of its own.\n"
    )
    refs = (
        f"{name} {each['version'] or str(each['commit'])[:9]} ({each['ref']})" for name, each in told["targets"].items()
    )
    yield f"Compared: {', '.join(refs)}.\n"
    yield from (f"Not compared: {name}: {reason}\n" for name, reason in told["unavailable"].items())
    yield "| | mean the same? | what explains the rest | unexplained |\n| --- | --- | --- | --- |"
    for row in told["rows"]:
        names = sorted({name for item in row["apart"] for name in item["names"]})
        said = ", ".join(f"`{name}`" if _NAME.fullmatch(name) else escaped(name) for name in names)
        yield f"| {escaped(_title(row))} | {row['headline']} | {said} | {row['unexplained'] or ''} |"
    for row in told["rows"]:
        yield from _section(row)


def _title(row: Mapping[str, Any]) -> str:
    return f"{row['title']}{': ' if row['which'] else ''}{row['which']}"


def _section(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## {_title(row)}\n"
    if row["batch"]:
        yield f"One batch: `{row['batch']}`\n"
    yield "| | means | with the same settings | with its default settings |\n| --- | --- | --- | --- |"
    for place, group in enumerate(row["classes"]):
        label = "as defined" if group[0] == DEFINITION else chr(ord("A") + place - (row["classes"][0][0] == DEFINITION))
        for name in group:
            alike, usual = ("".join(row[which].get(name, ())) for which in ("alike", "usual"))
            place_ = f" {row['places'][name]}" if name in row["places"] else ""
            yield f"| {escaped(name)}{escaped(place_)} | {label} | {escaped(alike)} | {escaped(usual)} |"
    yield ""
    for item in row["apart"]:
        if item["members"][0] == DEFINITION:
            one, other = item["answers"]
            yield f"* {escaped(item['members'][1])}: {escaped(item['why'])}. `{item['scenario']}`: {item['key']} is"
            yield f"  {escaped(one)} as it is defined, {escaped(other)} here."
    yield from (f"* Not compared: {escaped(name)}: {escaped(reason)}" for name, reason in row["not_compared"].items())
