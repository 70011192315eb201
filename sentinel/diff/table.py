"""What a comparison of frameworks came to, in words and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sentinel.contracts.contract import Inputs
from sentinel.diff.across import DEFINITION, UNEXPLAINED, Number, Row, Separation
from sentinel.diff.frameworks import Frameworks, Meaning
from sentinel.reports.escaping import message
from sentinel.reports.explain import scenario_lines, show, told_apart
from sentinel.values.literals import Tensor, typed

Found = Sequence[tuple[Meaning, Row]]


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
    yield f"one batch: {'; '.join(_given(row.batch, frozenset()))}"
    for name, number in row.alike.items():
        yield f"  {name}: {show(number.value)}{settings(number)}"
    for name, number in row.usual.items():
        yield f"  {name}, by default: {show(number.value)}{settings(number)}"


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
    """As data."""
    return {
        "targets": {
            name: {"ref": str(each.ref), "commit": each.checkout.commit, "version": each.checkout.version}
            for name, each in sorted(compared.opened.items())
        },
        "unavailable": dict(compared.unavailable),
        "interrupted": interrupted,
        "rows": [{"title": meaning.title, **_row(row)} for meaning, row in found],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "contract": row.contract,
        "where": dict(row.where),
        "classes": row.classes,
        "scenarios": row.scenarios,
        "places": row.places,
        "not_compared": {name: message(why) for name, why in row.not_compared.items()},
        "apart": [
            {
                "members": list(item.members),
                "why": message(why(item)),
                "unexplained": item.unexplained,
                "bugs": list(item.bugs),
                "terms": typed(_plain(item.terms)),
                "scenario": scenario(item),
                "answers": {name: typed({key: item.answers[name][key] for key in item.keys}) for name in item.members},
            }
            for item in row.apart
        ],
    }


def _plain(terms: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(values) for name, values in terms.items()}
