"""Write ``PULL_REQUEST.md``, the page that the maintainer of a framework reads, and the files next to it.

Text from upstream is escaped. All numbers are read from ``evidence.json``, so the page can be checked against it.
"""

from __future__ import annotations

import math
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from shlex import quote as shell_quote
from typing import Any

from sentinel.errors import REPOSITORY, SentinelError
from sentinel.reports.escaping import message, visible
from sentinel.reports.evidence import dumps
from sentinel.reports.explain import scenario_lines
from sentinel.reports.markdown import escaped, unlinked
from sentinel.reports.numbers import distinguish, flat, format_number, plain, wrong
from sentinel.reports.store import own, write_below
from sentinel.tools.upstream.contribution import ABSENT, MOST_HEADS, Contribution
from sentinel.tools.upstream.exporting import Bundle
from sentinel.tools.upstream.trying import elsewhere
from sentinel.tools.upstream.upstream_tests import proves

#: The maximum number of words of a page, without code and folded parts. A test checks the shipped pages.
MOST_WORDS = 400

#: The maximum number of values that a page shows with and without the bug.
_MOST_NUMBERS = 3


def page(made: Contribution) -> str:
    """Return the text of ``PULL_REQUEST.md``.

    The diff is folded and comes last, because GitHub shows it in the pull request anyway.
    """
    parts = (_wrong, _cause, _fix, _reach, _earlier, _limits, _reproduction, _checked, _change)
    return "\n".join([f"# {_heading(made)}\n", *(line for part in parts for line in part(made))])


def count_words(text: str) -> int:
    """Count the words of a page. Code blocks and folded parts do not count."""
    text = re.sub(r"(?ms)^<details>.*?^</details>", "", re.sub(r"(?ms)^(`{3,})[^\n]*\n.*?^\1$", "", text))
    return len(re.sub(r"\]\([^)]*\)", "]", text).split())


def title(made: Contribution) -> str:
    return made.fix.subject if made.fix else f"fix: {made.recipe.title}"


def _heading(made: Contribution) -> str:
    return re.sub(r"&#(91|93);", lambda match: "\\" + chr(int(match[1])), prose(title(made)))


# -- sections ----------------------------------------------------------------------------------------------------------


def _wrong(made: Contribution) -> Iterable[str]:
    yield sentence(made.fix.wrong if made.fix else made.recipe.story or made.recipe.title) + "\n"
    numbers = list(_numbers(made))[:_MOST_NUMBERS]
    if numbers:
        sides = ("before", "after" if made.fix else "right")
        rows = zip(sides, zip(*([f"{name} = {value}" for value in values] for name, *values in numbers)))
        yield fenced("\n".join(f"{side + ':':<8}{', '.join(each)}" for side, each in rows), "text")


def _numbers(made: Contribution) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value with the bug, right value) for each wrong number. If the fix has a field ``numbers``, only
    these are included.

    :raises SentinelError: if a number that the fix lists was not measured as wrong.
    """
    names = dict(made.fix.numbers) if made.fix else {}
    measured: dict[str, tuple[str, str, str]] = {}
    for sides in made.document["bugs"].values():
        after: dict[str, Any] = {}
        for item in sides.get("head", {"comparison": ()})["comparison"]:
            after |= {item["key"]: plain(item["observed"]), **dict(flat(item["observed"], item["key"]))}
        for key, *values in wrong(sides["base"])[0]:
            one, right = distinguish(*values)
            other = right if after.get(key, values[1]) == values[1] else format_number(after[key])
            measured.setdefault(str(key), (names.get(str(key), str(key)), one, other))
    unknown = [key for key in names if key not in measured]
    if made.fix and unknown:
        keys = ", ".join(measured) or "none, because no number is wrong"
        raise SentinelError(
            f"{made.fix.path}: 'numbers' names {unknown[0]!r}, which was not measured; measured values: {message(keys)}"
        )
    yield from (measured[key] for key in names or measured)


def _cause(made: Contribution) -> Iterable[str]:
    yield "## Cause\n"
    if made.fix:
        file, first, last = made.fix.guilty[0]
        yield f"{sentence(made.fix.cause)} {_permalink(made, file, first, last)}\n"
        return
    cause = made.recipe.document.get("root_cause")
    yield f"{sentence(str(cause))}\n" if cause else ""
    place = _first_observed_evidence(made)["boundary"]
    if place["file"] and place["line"]:
        yield f"{code(place['found'])}: {_permalink(made, place['file'], place['line'], place['end_line'])}\n"


def _fix(made: Contribution) -> Iterable[str]:
    yield "## Fix\n"
    text = made.fix.fix if made.fix else made.recipe.document.get("fix")
    yield f"{sentence(str(text))}\n" if text else ""
    if made.fix and made.fix.head:
        commit = f"{made.target.repository.removesuffix('.git')}/commit/{made.fix.head}"
        yield f"The commit is [{code(made.fix.head[:12])}]({commit}).\n"


def _change(made: Contribution) -> Iterable[str]:
    if made.fix:
        text = "\n".join(fenced(part.rstrip("\n"), "diff") for part in (made.diff, made.tests) if part)
        yield details("the change and its test", text)


def _reach(made: Contribution) -> Iterable[str]:
    yield "## Who is affected\n"
    if made.fix:
        yield linked(made.fix.reach) + "\n"
        return
    lines = [f"* {prose(str(line))}" for line in made.recipe.affects]
    yield ("It affects runs with:\n\n" + "\n".join(lines) if lines else "It does not depend on a setting.") + "\n"


def _earlier(made: Contribution) -> Iterable[str]:
    if made.fix and made.fix.related:
        yield "## Earlier issues and pull requests\n"
        yield from (f"* {linked(text)}" for text in made.fix.related)
        yield ""


def _reproduction(made: Contribution) -> Iterable[str]:
    runner = made.document["runner"]
    if made.fix and made.fix.regression:
        yield f"## Reproduce\n\nThe new test fails at {code(made.fix.commit[:12])} and passes with this change:\n"
        yield fenced(f"python -m pytest -q {' '.join(made.fix.regression)}", "sh")
    elif runner:
        yield "## Reproduce\n\nExit status 1 with the bug, 0 without:\n"
        yield fenced("TARGET_REPO=/path/to/checkout python run_validation.py", "sh")
    else:
        yield f"## Reproduce\n\nNo script is attached: {sentence(made.document['reason'])}\n"


def _checked(made: Contribution) -> Iterable[str]:
    yield "## What was checked\n"
    yield from (f"* {line}" for line in _summary(made))
    yield ""
    if made.fix is None:
        yield details("the inputs", fenced("\n".join(scenario_lines(made.recipe.document)), "text"))


def _summary(made: Contribution) -> Iterator[str]:
    """Yield the lines of the summary: what was measured and tested, and whether the fix changes anything else."""
    there, runner = _first_observed_evidence(made)["environment"], made.document["runner"]
    sides = made.document["bugs"][made.recipe.bug_id].values()
    at = "" if made.fix else f" at {', '.join(map(_revision, sides))}"
    yield f"The numbers above were measured on a CPU{at}, with Python {there['python']} and torch {there['torch']}."
    if runner and runner["sides"] and not (made.fix and made.fix.regression):  # otherwise the page names only the test
        status = "1 before the fix, 0 with it" if made.fix else _and(runner["sides"].values())
        yield f"`run_validation.py` shows the same with {_and(runner['packages'])} alone: exit status {status}."
    tried = made.document["tried"]
    if tried:
        ran = [test for test in tried["regression"].values() if test["without"] != "did not run"]
        others = sum(
            result["outcomes"].get("passed", (0, 0))[0] for result in tried["tests"].values() if "outcomes" in result
        )
        also = f"; {others} other tests in files that import the changed code pass before and after" if others else ""
        if ran and all((test["without"], test["with"]) == ("failed", "passed") for test in ran):
            yield f"The new test{'s' * (len(ran) > 1)} failed before and passed after{also}."
        elif tried["regression"]:
            yield f"The new test was not run here{also}."
        elif made.logged:  # the sandbox has no network; a person runs the tests that need a network
            yield f"The new test failed before and passed after{also}."
        yield from (f"Problem: {prose(problem)}." for problem in tried["problems"])
        scenarios = sum(result["scenarios"] for result in tried["boundaries"].values())
        most = max((float(each["largest_difference"]) for each in tried["boundaries"].values()), default=0.0)
        if scenarios and not math.isinf(most):
            yield f"On {scenarios} random inputs of the changed code, {_same(most)} unless the bug affects it."
    elif made.logged:
        yield "The new test failed before and passed after."
    if fixed := [f"#{item['pull']}" for item in made.document["related"] if item["verdict"] == "fixed"]:
        yield f"The bug is also fixed at the head of {_and(fixed)}."


def checks(made: Contribution) -> Iterator[str]:
    """Yield one line of Markdown for each check, with its result and the revisions, inputs or tests."""
    by_verdict: dict[str, list[str]] = {}
    for bug, sides in made.document["bugs"].items():
        by_verdict.setdefault(", ".join(f"{side['verdict']} {_where(side)}" for side in sides.values()), []).append(bug)
    for verdicts, bugs in by_verdict.items():
        yield f"{_and(map(code, bugs))}: {verdicts}."
    runner = made.document["runner"]
    if runner and runner["sides"]:
        names = {"base": "without the fix", "head": "with it"} if made.fix else {}
        sides = runner["sides"].items()
        statuses = ", ".join(f"{code(status)} {names.get(name, f'at {name}')}" for name, status in sides)
        yield f"`run_validation.py` with only {_and(runner['packages'])} installed: exit status {statuses}."
    if made.document["tried"]:
        yield from trial_lines(made.target.name, made.document["tried"])
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


def trial_lines(target: str, tried: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results of testing a fix as lines of Markdown."""
    tried = {
        name: dict(sorted(result.items())) if isinstance(result, Mapping) else result for name, result in tried.items()
    }
    others = tried["others"]  # sorted above, so that the page is the same if it is made from evidence.json
    parts = []
    for before, after, words in (
        ("reproduced", "fixed", "also fixed"),
        ("unavailable", "fixed", "absent from the new code"),
    ):
        if bugs := [bug for bug, names in others.items() if tuple(names) == (before, after)]:
            parts.append(f"{words}: {', '.join(map(code, bugs))}")
    parts.append("the other verdicts are unchanged" if parts else "their verdicts are unchanged")
    yield f"{len(others)} other known bugs of {target}: {'; '.join(parts)}."
    for boundary, result in tried["boundaries"].items():
        name = _short_boundary(boundary)
        mended = result["mended"]
        parts = [f"{mended or 'none'} trigger{'s' if mended == 1 else ''} the bug without the fix"]
        if result["unjudged"]:
            parts.append(f"on {result['unjudged']} more, the fix changes only outputs that the bug affects")
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
    if meant := tried.get("meant"):
        runs, its = ("runs", "its") if len(meant) == 1 else ("run", "their")
        edited = "the code that the fix edits"
        yield f"{_and(map(_short_boundary, meant))} also {runs} {edited}, so {its} results change, as intended."
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
    if made.fix:
        yield "## Limits\n"
        yield from (f"* {linked(text)}" for text in made.fix.limits)
        yield ""


def _environment(made: Contribution) -> Iterator[str]:
    there = _first_observed_evidence(made)["environment"]
    where = f"[Sentinel]({REPOSITORY})" if REPOSITORY else "Sentinel"
    packages = f"Python {there['python']}, torch {there['torch']}, numpy {there['numpy']}"
    yield f"Measured with {where} on a CPU with {packages}."
    for item in there["stand_ins"]:
        yield f"{code(item['name'])} is a stand-in: {sentence(item['reason'])}"


def _and(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _short_boundary(boundary: str) -> str:
    return code(re.sub(r"^.*?((?:[A-Z]\w*\.)?\w+)(?=$|\()", r"\1", boundary))


def _first_observed_evidence(made: Contribution) -> Mapping[str, Any]:
    sides = made.document["bugs"][made.recipe.bug_id]
    return next((side for side in sides.values() if side["observation"]), sides["base"])


def _where(side: Mapping[str, Any]) -> str:
    return "with the fix applied" if (side["checkout"] or {}).get("patched") else f"at {_revision(side)}"


def _revision(side: Mapping[str, Any]) -> str:
    checkout = side["checkout"] or {}
    commit = checkout.get("commit")
    if not commit:
        return code(side["ref"])
    return f"{commit}{' with uncommitted changes' if checkout['dirty'] else ''}"  # GitHub links a full sha


def _permalink(made: Contribution, file: str, first: int, last: int | None) -> str:
    repository = made.target.repository.removesuffix(".git")
    commit = made.fix.commit if made.fix else (_first_observed_evidence(made)["checkout"] or {}).get("commit")
    several = bool(last and last > first)
    place = f"{message(file)}, lines {first} to {last}" if several else f"{message(file)}, line {first}"
    if not commit or not repository.startswith("https://github.com/"):
        return code(place)
    anchor = f"L{first}-L{last}" if several else f"L{first}"
    return f"[{code(place)}]({repository}/blob/{commit}/{urllib.parse.quote(file)}#{anchor})"


# -- Markdown ----------------------------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Escape text for Markdown, HTML and GitHub. A part in backticks becomes code."""
    parts = re.split(r"`([^`]*)`", message(text))
    return "".join(code(part) if index % 2 else escaped(part) for index, part in enumerate(parts))


def linked(text: str) -> str:
    """Escape a sentence, except for ``#123``, so that GitHub links the pull request."""
    return re.sub(r"&#35;(?=\d+\b)", "#", sentence(text))


def sentence(text: str) -> str:
    shown = prose(" ".join(text.split()))
    return shown if shown.endswith((".", "!", "?")) else f"{shown}."


def code(text: str) -> str:
    """Format untrusted text as code, which is safe in a table cell and in which GitHub creates no links."""
    if text.strip() == text and not re.search(r"[`|<&]", text) and message(text) == text:
        return f"`{text}`" if text else ""
    shown = "".join(c if c.isalnum() or c in " -.:,;_/()+=" else f"&#{ord(c)};" for c in message(text))
    return f"<code>{unlinked(shown)}</code>" if shown else ""


def fenced(text: str, language: str) -> str:
    """Put text into a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text, lines=True)}\n{fence}\n"


def details(summary: str, block: str) -> str:
    return f"<details><summary>{prose(summary)}</summary>\n\n{block}\n</details>\n"


# -- files -------------------------------------------------------------------------------------------------------------


#: Names of all files that a contribution may write.
_OWN = (
    *("PULL_REQUEST.md", "COMMENT.md", "SENDER.md", "recipe.json", "run_validation.py", "evidence.json"),
    *("fix.patch", "tests.log"),
)


def write(out: Path, made: Contribution, bundles: Sequence[Bundle], log: str = "") -> Path:
    """Write a contribution into the bug's folder, and return the folder. Other files of an earlier contribution are
    removed.

    :param log: the output of the regression tests. It is written if they failed without the fix and passed with it.
    """
    bundle, otherwise = bundles[0], "choose another with --out"
    if not (made.fix and proves(log, made.fix.regression)):
        log = ""
    folder = own(out, PurePosixPath(bundle.recipe.bug_id))
    files = {**pages(replace(made, logged=bool(log))), "evidence.json": dumps(made.document)}
    if bundle.runner:
        files["run_validation.py"] = bundle.runner
    if log:
        files["tests.log"] = log
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_other(folder, files)
    except OSError as error:
        raise SentinelError(f"cannot write {folder}: {error.strerror}; {otherwise}") from error
    for name, text in files.items():
        write_below(folder, name, text, otherwise)
    return folder


def remove_other(folder: Path, files: Iterable[str]) -> None:
    """Remove those files of an earlier contribution that are not in ``files``."""
    for name in {*_OWN} - {*files}:
        (folder / name).unlink(missing_ok=True)


def pages(made: Contribution) -> dict[str, str]:
    """Return file name -> text, for the pages that are generated from the evidence and the fix."""
    if made.fix and made.fix.comment:
        return {"SENDER.md": sender(made)}
    files = {"PULL_REQUEST.md": page(made)}
    if made.fix:
        files |= {"fix.patch": made.patch, "SENDER.md": sender(made)}
    return files


def sender(made: Contribution) -> str:
    """Return the text of ``SENDER.md``: what the sender of the page must look up online, and how to send it."""
    repository = made.target.repository.removesuffix(".git").removeprefix("https://github.com/")
    lines = ["# Before this is sent\n"]
    if made.fix and made.fix.comment:
        comment = linked(made.fix.comment)
        pull = made.recipe.upstream.get("pull")
        there = f"There is a pull request for this bug already{f', #{pull}' if pull else ''}."
        lines += [f"{there} Open no other; comment there:\n\n> {comment}\n"]
    if made.unknown:
        lines += ["Look up these citations, which no mirror can resolve (issues, and numbers newer than the mirror):\n"]
        lines += [*(f"* {prose(each)}" for each in made.unknown), ""]
    lines += ["Search issues and pull requests, open and closed; add related ones to `related` in the `.fix.yaml`:\n"]
    lines += [f"* <https://github.com/{repository}/issues?q={urllib.parse.quote(each)}>" for each in made.searches]
    lines += ["\nKnow what was run; `sentinel verify evidence.json` measures again:\n"]
    lines += [f"* {line}" for line in (*checks(made), *_environment(made))]
    if made.fix and made.fix.comment:
        return "\n".join(lines) + "\n"
    lines += ["\nThen, in a clone at its newest main (`--keep-non-patch` keeps a tag like `[algo]`):\n"]
    name = shell_quote(title(made))
    lines += [
        fenced(
            "git am --keep-non-patch fix.patch && git commit --amend --reset-author --no-edit\n"
            f"gh pr create --repo {repository} --title {name} --body-file PULL_REQUEST.md",
            "sh",
        )
    ]
    return "\n".join(lines)
