"""What a comparison of frameworks came to: as data, and the words that are made of these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sentinel.comparing.across import DEFINITION, UNEXPLAINED, Number, Row, Separation
from sentinel.comparing.frameworks import Frameworks, Meaning
from sentinel.contracts.contract import Inputs
from sentinel.reports.escaping import message
from sentinel.reports.explain import scenario_lines
from sentinel.reports.markdown import escaped
from sentinel.values.literals import Tensor

Document = Mapping[str, Any]

#: bfloat16 has 8 bits; a handful of operations, each rounded, loses some of them.
_ROUNDING = 2.0**-5

_NAME = re.compile(r"[\w+.-]+")


def document(compared: Frameworks, rows: Sequence[tuple[Meaning, Row]], interrupted: bool = False) -> dict[str, Any]:
    """Make the data of all that is shown."""
    targets = sorted(compared.opened.items())
    return {
        "targets": {
            name: {"ref": str(each.ref), "commit": each.checkout.commit, "version": each.checkout.version}
            for name, each in targets
        },
        "unavailable": {name: message(why) for name, why in sorted(compared.unavailable.items())},
        "interrupted": interrupted,
        "rows": [_row(meaning, row) for meaning, row in rows],
    }


def _row(meaning: Meaning, row: Row) -> dict[str, Any]:
    which = ", ".join(f"{name} = {value}" for name, value in row.where.items() if name not in meaning.where)
    batch = {name: value for name, value in (row.batch or {}).items() if isinstance(value, (Tensor, list))}
    return {
        "title": f"{meaning.title}{': ' if which else ''}{which}",
        "contract": row.contract,
        "where": dict(row.where),
        "headline": _headline(row),
        "classes": row.classes,
        "scenarios": row.scenarios,
        "places": row.places,
        "batch": _scenario_text(batch, frozenset(row.where)),
        "alike": {name: f"{_brief(each.value)}{_settings(each)}" for name, each in row.alike.items()},
        "usual": {name: f"{_brief(each.value)}{_settings(each)}" for name, each in row.usual.items()},
        "coarse": {
            name: f"{_brief(each.value)}{_far(each.value, row.alike.get(name))}" for name, each in row.coarse.items()
        },
        "not_compared": {name: message(why) for name, why in row.not_compared.items()},
        "unexplained": len({item.why for item in row.apart if item.unexplained}),
        "apart": [_separation(item) for item in row.apart],
    }


def _headline(row: Row) -> str:
    """Say who agrees, in numbers."""
    members = list(row.scenarios)
    count = len({name.split()[0] for name in members})
    as_defined = sum(len(group) - 1 for group in row.classes if group[0] == DEFINITION)
    kinds = len(row.classes) - (row.classes[:1] == [[DEFINITION]])
    of = f"{len(members)} function{'' if len(members) == 1 else 's'} of {count} framework{'' if count == 1 else 's'}"
    return f"{of} mean {kinds} thing{'' if kinds == 1 else 's'}; {as_defined} as it is defined"


def _separation(item: Separation) -> dict[str, Any]:
    one, other = (item.terms[name] for name in item.members)
    names = [*item.bugs] or ([] if item.why.startswith(UNEXPLAINED) else item.why.split(", "))
    if item.bugs:
        why = f"known: {', '.join(item.bugs)}"
    elif item.why.startswith(UNEXPLAINED):
        why = f"unexplained: {item.why.removeprefix(UNEXPLAINED)} is not as it is defined, in its own terms"
    else:
        why = "; ".join(f"{name} is {_brief(one[name])} and {_brief(other.get(name))}" for name in one)
        why = why or message(item.why)
    return {
        "members": list(item.members),
        "why": why,
        "names": names,
        "scenario": _scenario_text(item.inputs, item.unsaid),
        "key": item.keys[0],
        "answers": [_brief(item.answers[name].get(item.keys[0])) for name in item.members],
    }


def _scenario_text(inputs: Inputs, unsaid: frozenset[str]) -> str:
    stated = {name: value for name, value in inputs.items() if value is not None and name not in unsaid}
    plain = {name: value.nested() if isinstance(value, Tensor) else value for name, value in stated.items()}
    return "; ".join(scenario_lines({"scenario": plain}))


def _brief(value: Any) -> str:
    """Give numbers to four digits."""
    if isinstance(value, Tensor):
        return _brief(value.nested())
    if isinstance(value, list):
        return f"[{', '.join(map(_brief, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _far(value: Any, exact: Number | None) -> str:
    """Say where a member's answer in bfloat16 is not what rounding makes of its answer in float32."""
    if exact is None:
        return ""
    one, other = (np.asarray(_nested(each), float) for each in (value, exact.value))
    near = one.shape == other.shape and np.allclose(one, other, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
    return "" if near else f", and {_brief(exact.value)} in float32"


def _nested(value: Any) -> Any:
    return value.nested() if isinstance(value, Tensor) else value


def _settings(number: Number) -> str:
    """Give the settings of an answer that are not those of the batch, or by which option they are a run's default."""
    texts = [
        f"{name} = {value[0]} ({value[1]})" if isinstance(value, tuple) else f"{name} = {value}"
        for name, value in number.settings.items()
        if not isinstance(value, Tensor)
    ]
    return f", with {', '.join(texts)}" if texts else ""


def status(table: Document) -> int:
    """Give 0 where all that differs is explained, 1 where something is not, 2 where nothing could be compared."""
    if any(row["unexplained"] for row in table["rows"]):
        return 1
    return 0 if any(row["scenarios"] for row in table["rows"]) else 2


def lines(table: Document) -> Iterator[str]:
    """Write lines for a terminal."""
    for row in table["rows"]:
        yield f"{row['title']}: {row['headline']}"
        for group, label in _labelled(row):
            yield f"  {label}:"
            for name in group:
                place = f" ({row['places'][name]})" if name in row["places"] else ""
                yield f"    {name}{place}: {row['scenarios'][name]} scenarios"
        for item in row["apart"]:
            yield f"  {' and '.join(item['members'])}: {item['why']}"
            yield f"    {item['scenario']}"
            yield f"    {item['key']} is {item['answers'][0]} and {item['answers'][1]}"
        if row["batch"]:
            yield f"  one batch: {row['batch']}"
        yield from (f"    {name}: {value}" for name, value in row["alike"].items())
        yield from (f"    {name}, by default: {value}" for name, value in row["usual"].items())
        yield from (f"    {name}, in bfloat16: {value}" for name, value in row["coarse"].items())
        yield from (f"  not compared: {name}: {why}" for name, why in row["not_compared"].items())
        yield ""
    count = sum(row["unexplained"] for row in table["rows"])
    asked = sum(len(row["scenarios"]) for row in table["rows"])
    left_out = sum(len(row["not_compared"]) for row in table["rows"])
    if not asked:
        yield f"no answer of a function could be compared, {left_out} not compared"
        return
    yield (
        f"{count} unexplained; {asked} answers of functions compared, {left_out} not compared"
        f"{'; interrupted' * table['interrupted']}"
    )


def _labelled(row: Document) -> Iterator[tuple[list[str], str]]:
    """Give the classes without the definition, each with what it is called."""
    letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for group in row["classes"]:
        if group[0] != DEFINITION:
            yield group, next(letters)
        elif group[1:]:
            yield group[1:], "as defined"


def markdown(table: Document) -> Iterator[str]:
    """Write the page."""
    yield (
        "# What frameworks mean by one name\n\n"
        "`sentinel compare --all` writes this page. The same scenarios go to every function that is bound to a\n"
        "contract, and to its definition in float64, with the same settings where these can be had. What tells two\n"
        "apart is the smallest scenario that was found, measured again in fresh processes. A dialect that the adapter\n"
        "declares explains it, a setting that one of them does not have, or a known bug; or nothing does. What is not\n"
        "finite is not looked at here: that is a law of its own.\n"
    )
    refs = [
        f"{name} {each['version'] or str(each['commit'])[:9]} ({each['ref']})"
        for name, each in table["targets"].items()
    ]
    yield f"Compared: {', '.join(refs)}.\n"
    yield from (f"Not compared: {name}: {escaped(reason)}\n" for name, reason in table["unavailable"].items())
    yield "| | mean the same? | what explains the rest | unexplained |\n| --- | --- | --- | --- |"
    for row in table["rows"]:
        names = sorted({name for item in row["apart"] for name in item["names"]})
        explanations = ", ".join(f"`{name}`" if _NAME.fullmatch(name) else escaped(name) for name in names)
        yield f"| {escaped(row['title'])} | {row['headline']} | {explanations} | {row['unexplained'] or ''} |"
    for row in table["rows"]:
        yield f"\n## {escaped(row['title'])}\n"
        yield f"One batch: `{row['batch']}`\n\n" if row["batch"] else ""
        yield "| | means | with the same settings | with its default settings | in bfloat16 |"
        yield "|" + " --- |" * 5
        for group, label in [([DEFINITION], "")] * (DEFINITION in row["alike"]) + list(_labelled(row)):
            for name in group:
                cells = (f"{name} {row['places'].get(name, '')}", label, *(row[of].get(name, "") for of in _NUMBERS))
                yield f"| {' | '.join(map(escaped, cells))} |"
        yield ""
        for item in row["apart"]:
            if item["members"][0] == DEFINITION:
                yield f"* {escaped(item['members'][1])}: {escaped(item['why'])}. `{item['scenario']}`: {item['key']} is"
                yield f"  {escaped(item['answers'][0])} as it is defined, {escaped(item['answers'][1])} here."
        yield from (f"* Not compared: {escaped(name)}: {escaped(why)}" for name, why in row["not_compared"].items())


_NUMBERS = ("alike", "usual", "coarse")
