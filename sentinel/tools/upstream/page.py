"""Write ``PULL_REQUEST.md`` and ``COMMENT.md`` for the maintainer of a framework, from ``evidence.json``.

Text from upstream is escaped. Every number comes from the document, so the page can be checked against it.
"""

from __future__ import annotations

import math
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from textwrap import dedent
from typing import Any

from sentinel.errors import REPOSITORY, SentinelError
from sentinel.reports.escaping import message, visible
from sentinel.reports.evidence import dumps
from sentinel.reports.explain import scenario_lines
from sentinel.reports.markdown import escaped, unlinked
from sentinel.reports.numbers import Row, distinguish, flat, format_number, plain, wrong
from sentinel.reports.store import own, write_below
from sentinel.tools.upstream.contribution import ABSENT, MOST_HEADS, Contribution
from sentinel.tools.upstream.exporting import Bundle
from sentinel.tools.upstream.trying import elsewhere

#: Lines of the page, and of the comment.
LONGEST, LONGEST_COMMENT = 150, 40

#: Rows of a table of numbers.
ROWS = 12


def page(made: Contribution) -> str:
    """Return the page. If it is too long, leave out the patch's tests, then write the inputs on one line, then leave
    them out."""
    for tests, inputs in ((True, "\n"), (False, "\n"), (False, "; "), (False, "")):
        text = "\n".join(_sections(made, tests, inputs))
        if text.count("\n") <= LONGEST:
            break
    return text


def title(made: Contribution) -> str:
    return made.fix.subject if made.fix else f"fix: {made.recipe.title}"


def _heading(made: Contribution) -> str:
    return re.sub(r"&#(91|93);", lambda match: "\\" + chr(int(match[1])), prose(title(made)))


def _sections(made: Contribution, tests: bool, inputs: str) -> Iterator[str]:
    yield f"# {_heading(made)}\n"
    yield from _wrong(made)
    yield from _cause(made)
    yield from _fix(made, tests)
    yield from _reach(made)
    yield from _numbers(made, ROWS if inputs else 1)
    lines = inputs.join(scenario_lines(made.recipe.document))
    if lines and inputs:
        shown = fenced(lines, "text") if inputs == "\n" else code(lines)
        yield details(f"the inputs of {made.recipe.bug_id}", shown)
    elif made.document["runner"]:
        yield "The inputs are at the end of the attached `run_validation.py`.\n"
    yield from _reproduction(made)
    yield from _checked(made)
    yield from _limits(made)


# -- sections ----------------------------------------------------------------------------------------------------------


def _wrong(made: Contribution) -> Iterable[str]:
    yield "## What is wrong\n"
    yield sentence(made.fix.wrong if made.fix else made.recipe.story or made.recipe.title) + "\n"


def _cause(made: Contribution) -> Iterable[str]:
    yield "## Root cause\n"
    if made.fix is None:
        cause = made.recipe.document.get("root_cause")
        yield f"{sentence(str(cause))}\n" if cause else ""
        place = _first(made)["boundary"]
        if place["file"] and place["line"]:
            yield f"{code(place['found'])}: {_permalink(made, place['file'], place['line'], place['end_line'])}\n"
        return
    yield sentence(made.fix.cause) + "\n"
    for file, first, last, text in made.guilty:
        yield f"{_permalink(made, file, first, last)}:\n"
        yield fenced(dedent(text), "python")


#: Lines of a patch that a page shows whole.
_LONGEST_DIFF = 60


def _fix(made: Contribution, tests: bool) -> Iterable[str]:
    yield "## Fix\n"
    text = made.fix.fix if made.fix else made.recipe.document.get("fix")
    yield f"{sentence(str(text))}\n" if text else ""
    if made.fix and made.fix.head:
        yield fenced(_of_guilty(made).rstrip("\n"), "diff")
        commit = f"{made.target.repository.removesuffix('.git')}/commit/{made.fix.head}"
        yield f"These hunks contain the lines above; the whole change is [{code(made.fix.head[:12])}]({commit}).\n"
    elif made.fix:
        short = made.diff.count("\n") <= _LONGEST_DIFF
        yield fenced((made.diff if short else _of_guilty(made)).rstrip("\n"), "diff")
        if not short:
            yield "These hunks contain the lines above; the others are in the branch.\n"
        for edit in made.fix.tests:
            if "def test" in edit.new and tests:
                yield f"Tested in {code(edit.file)}:\n\n" + fenced(dedent(edit.new.strip("\n")), "python")
            elif "def test" in edit.new:
                yield f"The regression test is in the branch, in {code(edit.file)}.\n"


def _of_guilty(made: Contribution) -> str:
    """Return the hunks that touch lines with the bug; a commit of upstream may contain unrelated changes."""
    hunks, file = [], ""
    for part in re.split(r"(?m)^(?=diff --git |@@ )", made.diff):
        header = re.search(r"(?m)^--- a/(.*)$", part)
        if header:
            file, preamble = header[1], part[header.start() :]
        elif hunk := re.match(r"@@ -(\d+)(?:,(\d+))?", part):
            first, last = int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1) - 1
            if any(name == file and start <= last and first <= end for name, start, end, _ in made.guilty):
                hunks += [preamble, part]
                preamble = ""
    return "".join(hunks)


def _reach(made: Contribution) -> Iterable[str]:
    yield "## How a real run gets there\n"
    if made.fix:
        yield linked(made.fix.reach) + "\n"
        return
    lines = [f"* {prose(str(line))}" for line in made.recipe.affects]
    yield ("It affects runs with:\n\n" + "\n".join(lines) if lines else "It does not depend on a setting.") + "\n"


def _numbers(made: Contribution, most: int) -> Iterable[str]:
    """Yield one table with the first few wrong numbers of each bug, grouped by function."""
    yield "## Numbers\n"
    bugs = {bug: (sides, *numbers) for bug, sides in made.document["bugs"].items() if (numbers := _rows(sides))[0]}
    after = "with the fix" if made.fix and made.fix.edits else "at the fix"
    functions = [_short(sides["base"]["boundary"]["written"]) for sides, *_ in bugs.values()]
    for place, (bug, (sides, rows, count)) in enumerate(bugs.items()):
        other = [name for name in sides if name != "base"]
        if not place:
            columns = ["function", "number", "with the bug", "right", *([after] if other else [])]
            yield f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"
        which = f" ({code(bug)})" if functions.count(functions[place]) > 1 else ""
        label = f"{functions[place]}{which}: {len(rows)} of {count} differ"
        for key, *values in rows[: max(1, most // len(bugs))]:
            texts = distinguish(*values[:2]) + ([format_number(values[2])] if other else [])
            if other and values[2] == values[1]:
                texts[2] = texts[1]
            yield f"| {' | '.join([label, *map(code, (key, *texts))])} |"
            label = ""
    yield ""


def _rows(sides: Mapping[str, Any]) -> tuple[list[Row], int]:
    """Return a row per wrong number (key, with the bug, right, with the fix), and how many numbers were compared."""
    rows, count = wrong(sides["base"])
    after: dict[str, Any] = {}
    for name, side in sides.items():
        for item in side["comparison"] if name != "base" else ():
            after |= {item["key"]: plain(item["observed"]), **dict(flat(item["observed"], item["key"]))}
    return [(*row, after.get(row[0])) for row in rows], count


def _reproduction(made: Contribution) -> Iterable[str]:
    yield "## Reproduce\n"
    if made.fix and made.fix.regression:
        yield fenced(f"python -m pytest -q {' '.join(made.fix.regression)}", "sh")
    runner = made.document["runner"]
    if runner is None:
        yield f"No standalone script is attached: {sentence(made.document['reason'])}\n"
        return
    yield (
        f"The attached `run_validation.py` needs {_and(runner['packages'])}. It calls the function in a checkout and "
        "exits with 1 if the bug is present, with 0 if not:\n"
    )
    yield fenced("TARGET_REPO=/path/to/checkout python run_validation.py", "sh")


def _checked(made: Contribution) -> Iterable[str]:
    yield "## What was checked\n"
    where = f"[Sentinel]({REPOSITORY})" if REPOSITORY else "Sentinel"
    yield f"Measured with {where}, which calls the functions of a commit on small inputs and records their results.\n"
    yield from (f"* {line}" for line in checks(made))
    yield ""


def checks(made: Contribution) -> Iterator[str]:
    """Return each check as a line of Markdown."""
    by_verdict: dict[str, list[str]] = {}
    for bug, sides in made.document["bugs"].items():
        by_verdict.setdefault(
            ", ".join(f"{side['verdict']} at {_revision(side)}" for side in sides.values()), []
        ).append(bug)
    for verdicts, bugs in by_verdict.items():
        yield f"{_and(map(code, bugs))}: {verdicts}."
    runner = made.document["runner"]
    if runner and runner["sides"]:
        names = {"base": "without the fix", "head": "with it"} if made.fix else {}
        sides = runner["sides"].items()
        statuses = ", ".join(f"{code(status)} {names.get(name, f'at {name}')}" for name, status in sides)
        yield f"`run_validation.py` with only {_and(runner['packages'])} installed: exit status {statuses}."
    if made.document["tried"]:
        yield from _tried(made, made.document["tried"])
    related = made.document["related"]
    if related:
        pulls: dict[str, list[str]] = {}
        for item in related:
            is_verdict = item["verdict"] in ("fixed", "reproduced", ABSENT)
            pulls.setdefault(item["verdict"] if is_verdict else "undecided", []).append(f"#{item['pull']}")
        newest = "newest " if len(related) == MOST_HEADS else ""
        several = f"The {len(related)} {newest}pull requests that change lines of this function were run at their heads"
        one = "The only pull request that changes lines of this function was run at its head"
        at = [
            f"{words} {_and(pulls[name])}"
            for name, words in (
                ("fixed", "the bug is fixed at"),
                ("reproduced", "the bug is present at"),
                (ABSENT, "the bug was absent from the base of"),
                ("undecided", "undecided at"),
            )
            if name in pulls
        ]
        none = "" if "fixed" in pulls else "fixed at none; "
        yield f"{several if len(related) > 1 else one}: {none}{'; '.join(at)}."
    elif made.fix:
        yield "No pull request in the mirror changes lines of this function."
    for text in made.fix.related if made.fix else ():
        yield linked(text)


def _tried(made: Contribution, tried: Mapping[str, Any]) -> Iterator[str]:
    tried = {
        name: dict(sorted(result.items())) if isinstance(result, Mapping) else result for name, result in tried.items()
    }
    others = tried["others"]  # sorted as evidence.json is: a page made from that has to be the same
    parts = []
    for before, after, words in (
        ("reproduced", "fixed", "also fixed"),
        ("unavailable", "fixed", "absent from the new code"),
    ):
        if bugs := [bug for bug, names in others.items() if tuple(names) == (before, after)]:
            parts.append(f"{words}: {', '.join(map(code, bugs))}")
    parts.append("the other verdicts are unchanged" if parts else "their verdicts are unchanged")
    yield f"{len(others)} other known bugs of {made.target.name}: {'; '.join(parts)}."
    for boundary, result in tried["boundaries"].items():
        name = _short(boundary)
        parts = [f"{result['mended'] or 'none'} trigger the bug without the fix"]
        if result["unjudged"]:
            parts.append(f"on {result['unjudged']} more, only outputs that the bug makes wrong differ")
        if result["refused"]:
            parts.append(f"{result['refused']} are rejected with and without the fix")
        rest = "all of them" if result["outside"] == result["scenarios"] else f"the other {result['outside']}"
        parts.append(f"on {rest}, {_same(float(result['largest_difference']))}")
        yield f"{result['scenarios']} generated inputs of {name}: {'; '.join(parts)}."
        for bug in sorted(set(result.get("uncovered", {}).values())):
            yield f"{name}: on some inputs the fix exposes {code(bug)}, another bug, which exists without the fix too."
    yield from (f"Problem: {prose(problem)}." for problem in tried["problems"])
    drawn, functions, most = elsewhere(tried)
    compared = _same(most) if drawn else "nothing was compared"
    yield f"{drawn} generated inputs of {functions} other functions: {compared}."
    for test, result in tried["regression"].items():
        name = code(test.rpartition("::")[2])
        if result["without"] == "did not run":
            yield f"The regression test {name} was not run here: {code(result['reason'])}."
        else:
            how = f", run with {code(result['option'])}" if "option" in result else ""
            yield f"The regression test {name} {result['without']} without the fix and {result['with']} with it{how}."
    for file, result in tried["tests"].items():
        if "outcomes" in result:
            counts = [
                f"{b} {name}" if a == b else f"{b} {name}, {a} with the fix{' and its tests' if a > b else ''}"
                for name, (b, a) in sorted(result["outcomes"].items())
            ]
            same = all(b == a for b, a in result["outcomes"].values())
            how = f", run with {code(result['option'])}" if "option" in result else ""
            yield f"{code(file)}: {', '.join(counts)}{', the same with the fix' if same else ''}{how}."
    idle: dict[str, list[str]] = {}
    for file, result in tried["tests"].items():
        if "not_runnable" in result:
            idle.setdefault(result["not_runnable"], []).append(code(file))
    for why, files in idle.items():
        yield f"{_and(files)} could not run in this environment: {code(why)}."


def _same(largest: float) -> str:
    if math.isinf(largest):
        return "every output is the same, except for the problems above"
    return f"no output differs by more than {largest:g}" if largest else "every output is the same"


def _limits(made: Contribution) -> Iterable[str]:
    yield "## Limits\n"
    for text in made.fix.limits if made.fix else ():
        yield f"* {linked(text)}"
    first = _first(made)
    there = first["environment"]
    yield f"* Measured on a CPU with Python {there['python']}, torch {there['torch']}, numpy {there['numpy']}."
    for item in there["stand_ins"]:
        yield f"* {code(item['name'])} is a stand-in: {sentence(item['reason'])}"
    yield "* `sentinel verify evidence.json` runs upstream's code again and recomputes each verdict.\n"


def _and(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _short(boundary: str) -> str:
    """Return the function's own name, with its class if it is a method."""
    return code(re.sub(r"^.*?((?:[A-Z]\w*\.)?\w+)(?=$|\()", r"\1", boundary))


def _first(made: Contribution) -> Mapping[str, Any]:
    """Return the first measured side of the first bug."""
    sides = made.document["bugs"][made.recipe.bug_id]
    return next((side for side in sides.values() if side["observation"]), sides["base"])


def _revision(side: Mapping[str, Any]) -> str:
    checkout = side["checkout"] or {}
    commit = checkout.get("commit")
    if not commit:
        return code(side["ref"])
    if checkout.get("patched"):
        return f"{commit[:12]} with the fix"
    return f"{commit}{' with uncommitted changes' if checkout['dirty'] else ''}"  # GitHub links a full sha


def _permalink(made: Contribution, file: str, first: int, last: int | None) -> str:
    repository = made.target.repository.removesuffix(".git")
    commit = made.fix.commit if made.fix else (_first(made)["checkout"] or {}).get("commit")
    several = bool(last and last > first)
    place = f"{message(file)}, lines {first} to {last}" if several else f"{message(file)}, line {first}"
    if not commit or not repository.startswith("https://github.com/"):
        return code(place)
    anchor = f"L{first}-L{last}" if several else f"L{first}"
    return f"[{code(place)}]({repository}/blob/{commit}/{urllib.parse.quote(file)}#{anchor})"


# -- a comment ---------------------------------------------------------------------------------------------------------


def comment(made: Contribution) -> str:
    """Return a short comment: the error, its place, the numbers, the fix in a sentence, and how to reproduce it."""
    for rows in (6, 3, 1):
        text = "\n".join(_comment(made, rows))
        if text.count("\n") <= LONGEST_COMMENT:
            break
    return text


def _comment(made: Contribution, rows: int) -> Iterator[str]:
    yield f"**{_heading(made)}**\n"
    yield from list(_wrong(made))[1:]
    for file, first, last, _ in made.guilty[:2]:
        yield f"{_permalink(made, file, first, last)}\n"
    bug = made.recipe.bug_id
    one = Contribution(
        made.recipes[:1], made.target, made.fix, {**made.document, "bugs": {bug: made.document["bugs"][bug]}}
    )
    yield from list(_numbers(one, rows))[1:]
    fix = made.fix.fix if made.fix else made.recipe.document.get("fix")
    if fix:
        yield f"Fix: {sentence(str(fix))}\n"
    if made.document["runner"]:
        yield "The attached script calls the function in a checkout (exit status 1 with the bug, 0 without):\n"
        yield fenced("TARGET_REPO=/path/to/checkout python run_validation.py", "sh")


# -- Markdown ----------------------------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Escape prose for Markdown, HTML and GitHub, but keep `code` as code."""
    parts = re.split(r"`([^`]*)`", message(text))
    return "".join(code(part) if index % 2 else escaped(part) for index, part in enumerate(parts))


def linked(text: str) -> str:
    """Escape a sentence of a fix, but keep numbers of pull requests as links."""
    return re.sub(r"&#35;(?=\d+\b)", "#", sentence(text))


def sentence(text: str) -> str:
    shown = prose(" ".join(text.split()))
    return shown if shown.endswith((".", "!", "?")) else f"{shown}."


def code(text: str) -> str:
    """Format upstream's text as code that is safe in a table and in which GitHub makes no links."""
    if text.strip() == text and not re.search(r"[`|<&]", text) and message(text) == text:
        return f"`{text}`" if text else ""
    shown = "".join(c if c.isalnum() or c in " -.:,;_/()+=" else f"&#{ord(c)};" for c in message(text))
    return f"<code>{unlinked(shown)}</code>" if shown else ""


def fenced(text: str, language: str) -> str:
    """Return text in a code fence that is longer than any fence in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text, lines=True)}\n{fence}\n"


def details(summary: str, block: str) -> str:
    return f"<details><summary>{prose(summary)}</summary>\n\n{block}\n</details>\n"


# -- files -------------------------------------------------------------------------------------------------------------


#: Files that an earlier contribution may have left.
_OWN = ("PULL_REQUEST.md", "COMMENT.md", "recipe.json", "run_validation.py", "evidence.json")


def write(out: Path, made: Contribution, bundles: Sequence[Bundle]) -> Path:
    """Write the files into the bug's folder and remove files of an earlier contribution that are no longer needed."""
    bundle, otherwise = bundles[0], "choose another with --out"
    folder = own(out, PurePosixPath(bundle.recipe.bug_id))
    files = {"PULL_REQUEST.md": page(made), "COMMENT.md": comment(made), "evidence.json": dumps(made.document)}
    if bundle.runner:
        files["run_validation.py"] = bundle.runner
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in {*_OWN} - files.keys():
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise SentinelError(f"cannot write {folder}: {error.strerror}; {otherwise}") from error
    for name, text in files.items():
        write_below(folder, name, text, otherwise)
    return folder
