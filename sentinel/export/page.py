"""``PULL_REQUEST.md``: one bug as a maintainer reads it, and a short comment for a thread.

Prose of a recipe and everything out of other people's code is escaped; whatever a person alone can write is marked.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Iterable, Sequence

from sentinel.deciding.outcomes import Decision
from sentinel.export.exporting import Bundle, Side, source_lines
from sentinel.findings.duplicates import Source
from sentinel.recipes import Recipe
from sentinel.recipes.affects import settings_in_words
from sentinel.recipes.catalog import Catalog
from sentinel.reports.behaviour import compared_values
from sentinel.reports.escaping import message, visible
from sentinel.reports.evidence import dumps, evidence
from sentinel.reports.explain import scenario_lines, show, told_apart
from sentinel.reports.markdown import LIMIT, unlinked
from sentinel.reports.rows import MEANING
from sentinel.targets.refs import Ref

#: What only a person can write.
TO_WRITE = "> **To be written by a person:** "

#: GitHub's own limit, with room for a signature below.
ROOM = LIMIT - 500


def page(bundle: Bundle, catalog: Catalog, related: Sequence[Recipe] = (), sources: Sequence[Source] = ()) -> str:
    """The page; where it would be too long for GitHub, the files that lie beside it are named instead of shown."""
    for shown in (True, False):
        text = "\n".join(_sections(bundle, catalog, related, sources, shown))
        if len(text) <= ROOM:
            return text
    return text[: ROOM - 100] + "\n\n(cut: the page is too long for GitHub)\n"


def _sections(
    bundle: Bundle, catalog: Catalog, related: Sequence[Recipe], sources: Sequence[Source], shown: bool
) -> Iterable[str]:
    recipe = bundle.recipe
    yield from _summary(bundle, catalog)
    yield from _example(bundle)
    yield from _values(bundle)
    yield from _reproduction(recipe)
    yield from _runner(bundle, shown)
    yield from _output(bundle)
    yield from _effect(bundle)
    yield from _cause(bundle, catalog)
    yield from _checks(bundle, shown)
    yield from _duplicates(sources)
    yield from _related(recipe, related, catalog)
    yield from _evidence(bundle)


# -- sections ----------------------------------------------------------------------------------------------------------


def _summary(bundle: Bundle, catalog: Catalog) -> Iterable[str]:
    recipe = bundle.recipe
    yield f"## Summary\n\n{sentence(recipe.title)}\n"
    for paragraph in recipe.story.split("\n\n"):
        if paragraph.strip():
            yield prose(" ".join(paragraph.split())) + "\n"
    laws = [catalog.laws[name] for name in recipe.laws if name in catalog.laws]
    if laws:
        there = bundle.base.decision.verdict.name == "reproduced"
        yield f"What {'is violated' if there else 'must hold'}: *{prose(laws[0].statement)}*.\n"
    yield "| | revision | verdict | |\n| --- | --- | --- | --- |"
    for side in bundle.sides:
        verdict = side.decision.verdict
        told = prose(verdict.reason) if verdict.name == "unavailable" else MEANING[verdict.name]
        yield f"| {side.name} | {_revision(side.decision)} | **{verdict.name}** | {told} |"
    yield ""


def _revision(decision: Decision) -> str:
    checkout = decision.checkout
    if checkout is not None and checkout.commit:
        return f"{checkout.commit}" + (" with uncommitted changes" if checkout.dirty else "")  # GitHub links a full sha
    return code(decision.ref.short if decision.ref.kind in ("git", "pypi") else decision.ref.kind)


def _example(bundle: Bundle) -> Iterable[str]:
    yield "## Concrete triggering example\n"
    yield fenced("\n".join(scenario_lines(bundle.recipe.document)), "text")


def _values(bundle: Bundle) -> Iterable[str]:
    yield "## Wrong value, right value\n"
    names = [side.name for side in bundle.sides]
    columns = ["value", "observed at base", "right", *(f"observed at {name}" for name in names[1:])]
    yield f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"
    observed = [compared_values(side.decision) for side in bundle.sides]
    kept = {item.key for side in bundle.sides[:1] for item in side.decision.comparisons if item.matches_fixed}
    for key in dict.fromkeys(key for values in observed for key in values):
        right = bundle.recipe.expected_fixed.get(key)
        if key in kept:
            continue  # right at the base, too
        there = {place: values[key] for place, values in enumerate(observed) if key in values}
        told = dict(zip([*there, "right"], told_apart(*there.values(), *([right.value] if right else []))))
        before, *after = [told.get(place, "") for place in range(len(observed))]
        yield f"| {' | '.join(map(code, [key, before, told.get('right', ''), *after]))} |"
    yield ""


def _reproduction(recipe: Recipe) -> Iterable[str]:
    yield "## Reproduction recipe\n"
    yield (
        "Save this as `recipe.json`; `pip install rl-sentinel[targets]` brings what reads it. "
        "`${TARGET_REPO}` is a checkout, `${OUTPUT_DIR}` where the evidence goes.\n"
    )
    yield fenced(recipe_json(recipe), "json")
    yield fenced(
        'sentinel recipe check recipe.json\npytest recipe.json --sentinel-repo="${TARGET_REPO}" '
        '--sentinel-report-dir="${OUTPUT_DIR}"',
        "sh",
    )


def recipe_json(recipe: Recipe) -> str:
    """The recipe as JSON; values that JSON has not as the recipe language writes them."""
    from sentinel.deciding.outcomes import Verdict
    from sentinel.reports.evidence import evidence

    document = evidence(Decision(recipe, Ref("installed"), Verdict("unavailable")))["recipe"]["document"]
    return dumps(document).rstrip("\n")


def _runner(bundle: Bundle, shown: bool) -> Iterable[str]:
    yield "## Validation runner\n"
    runner = bundle.runner
    if runner is None:
        yield f"There is no runner that does without Sentinel: {sentence(bundle.reason)} The recipe above runs.\n"
        return
    packages = ", ".join(runner.packages)
    yield f"`run_validation.py` needs Python, {packages} and the checkout; Sentinel is not imported.\n"
    if bundle.reason:
        yield f"{sentence(bundle.reason)}\n"
    yield (
        f"What is to be read are its lines {runner.first} to {runner.last}: the functions through which the boundary "
        "is called and looked at, as they stand in Sentinel, and the case as data. What stands before is the same in "
        "every runner, whatever the bug.\n"
    )
    if shown:
        lines = f"run_validation.py, lines {runner.first} to {runner.last}"
        yield details(lines, fenced(runner.own.strip("\n"), "python"))
    yield fenced("TARGET_REPO=/path/to/checkout python run_validation.py", "sh")


def _output(bundle: Bundle) -> Iterable[str]:
    yield "## Observed output\n"
    for side in bundle.sides:
        tried = side.tried
        if tried is not None and tried.status:
            yield f"At {side.name}, {_revision(side.decision)}, the runner prints:\n"
            yield fenced(tried.output, "json")
        else:
            yield f"At {side.name}, {_revision(side.decision)}:\n"
            document = evidence(side.decision)
            keys = ("status", "observed_bad_behavior", "observed_fixed_behavior", "reason")
            yield fenced(dumps({key: document[key] for key in keys if document.get(key)}).rstrip("\n"), "json")
    if bundle.head is None:
        yield "No revision with a fix is known.\n"


def _effect(bundle: Bundle) -> Iterable[str]:
    recipe = bundle.recipe
    yield "## Effect on training\n"
    told = recipe.document.get("effect")
    if told:
        yield sentence(str(told)) + "\n"
    effect = evidence(bundle.base.decision).get("attack_effect") or {}
    if effect:
        silent = "Nothing crashes: the values are silently other ones." if effect.get("silent") else "It raises."
        yield f"{silent}\n"
        rows = {key.removesuffix("_difference"): value for key, value in effect.items() if key.endswith("_difference")}
        if rows:
            yield "| value | observed minus right |\n| --- | --- |"
            for key, value in rows.items():
                yield f"| {code(key)} | {code(show(value))} |"
            yield ""
    if recipe.affects:
        yield "It concerns runs with:\n"
        yield "\n".join(f"* {prose(str(line))}" for line in recipe.affects) + "\n"
    if recipe.until:
        yield f"Until it is mended, {code(settings_in_words(recipe.until))} avoids it.\n"
    if not told:
        yield f"{TO_WRITE}what it does to a training run.\n"


def _cause(bundle: Bundle, catalog: Catalog) -> Iterable[str]:
    recipe = bundle.recipe
    yield "## Root cause\n"
    told = recipe.document.get("root_cause")
    yield (sentence(str(told)) if told else f"{TO_WRITE}which line does it, and why.") + "\n"
    decision = _shown(bundle)
    found = decision.measurement.provenance if decision.measurement else None
    if found is not None and decision.checkout is not None and found.line:
        first, last, text = source_lines(decision.checkout, found.file, found.line)
        yield f"The boundary is {code(found.boundary)}, {_permalink(catalog, decision, found.file, first, last)}:\n"
        yield details(f"{found.file}, lines {first} to {last}", fenced(visible(text, lines=True), "python"))
    yield "## Fix\n"
    told = recipe.document.get("fix")
    yield (sentence(str(told)) if told else f"{TO_WRITE}what is changed.") + "\n"


def _shown(bundle: Bundle) -> Decision:
    """Where the boundary is looked at: at base, or at head where base lacks it."""
    return next(iter(bundle.measured), bundle.base).decision


def _permalink(catalog: Catalog, decision: Decision, file: str, first: int, last: int) -> str:
    checkout = decision.checkout
    repository = catalog.targets[decision.recipe.target].repository
    place = f"{message(file)}, lines {first} to {last}"
    if checkout is None or not checkout.commit or not repository.startswith("https://github.com/"):
        return code(place)
    blob = f"{repository.removesuffix('.git')}/blob/{checkout.commit}/{urllib.parse.quote(file)}"
    return f"[{code(place)}]({blob}#L{first}-L{last})"


def _checks(bundle: Bundle, shown: bool) -> Iterable[str]:
    yield "## Tests and checks\n"
    if bundle.test:
        yield f"`{bundle.test_name}`, with `run_validation.py` beside it, is a regression test.\n"
        if shown:
            yield details(bundle.test_name, fenced(bundle.test.rstrip("\n"), "python"))
        yield fenced(f"python -m pytest -q {bundle.test_name}", "sh")
        rows = [side for side in bundle.sides if side.tested is not None]
        if rows:
            yield "| | runner | regression test |\n| --- | --- | --- |"
            for side in rows:
                yield f"| {side.name} | {_told(side, 'tried')} | {_told(side, 'tested')} |"
            yield ""
    else:
        yield f"There is no regression test that does without Sentinel: {sentence(bundle.reason)}\n"
    yield f"{TO_WRITE}the project's own checks that were run, with their commands.\n"


def _told(side: Side, name: str) -> str:
    tried = getattr(side, name)
    return f"{tried.status}" if tried and tried.status else f"broke down: {code(tried.problem)}" if tried else ""


def _duplicates(sources: Sequence[Source]) -> Iterable[str]:
    yield "## Duplicate checks\n"
    if not sources:
        yield f"{TO_WRITE}where the same bug was looked for (`sentinel report duplicates`).\n"
        return
    yield "| source | searched | found |\n| --- | --- | --- |"
    for source in sources:
        rows = [f"{prose(item.what)}: {prose(item.why)}" for item in source.found[:10]]
        left = len(source.found) - len(rows) + source.more
        found = "<br>".join([*rows, *([f"and {left} more"] if left else [])]) or ("nothing" if source.searched else "")
        yield f"| {prose(source.name)} | {'yes' if source.searched else 'no'}: {prose(source.note)} | {found} |"
    yield ""


def _related(recipe: Recipe, related: Sequence[Recipe], catalog: Catalog) -> Iterable[str]:
    yield "## Related work\n"
    repository = catalog.targets[recipe.target].repository.removesuffix(".git")
    lines = [
        f"* {repository}/{place}/{recipe.upstream[name]}"
        for name, place in (("pull", "pull"), ("issue", "issues"))
        if recipe.upstream.get(name)
    ]
    lines += [f"* {code(item.bug_id)} ({item.target}): {prose(item.title)}" for item in related]
    yield "\n".join(lines) + "\n" if lines else "None is known.\n"


def _evidence(bundle: Bundle) -> Iterable[str]:
    yield "## Evidence\n"
    yield "| file | sha256 |\n| --- | --- |"
    for side in bundle.sides:
        yield f"| `evidence-{side.name}.json` | `{digest(evidence_text(side.decision))}` |"
    decision = _shown(bundle)
    there = decision.environment
    if there is not None:
        packages = "".join(f", {name} {version}" for name, version in sorted(there.packages.items()))
        yield f"\nMeasured with Python {there.python}, torch {there.torch}, numpy {there.numpy}{packages}.\n"
    measured = decision.measurement
    if measured is not None and measured.ghosts:
        yield f"Not installed, imported and not used: {', '.join(map(code, measured.ghosts))}.\n"
    for item in measured.stand_ins if measured else ():
        yield f"* stand-in for {code(item.name)}: {prose(item.reason)}"
    yield "\n`sentinel verify evidence-base.json` runs it again and compares every number.\n"


# -- a comment ---------------------------------------------------------------------------------------------------------


def comment(bundle: Bundle) -> str:
    """A short comment: the verdicts, the evidence in a block that opens, its digest, the command that repeats it."""
    recipe = bundle.recipe
    parts = [f"### {code(recipe.bug_id)}: {prose(recipe.title)}\n", "| | revision | verdict |\n| --- | --- | --- |"]
    parts += [f"| {s.name} | {_revision(s.decision)} | **{s.decision.verdict.name}** |" for s in bundle.sides]
    parts.append("")
    for side in bundle.sides:
        text = evidence_text(side.decision)
        ref = side.decision.ref
        where = f"--sentinel-ref={ref}" if ref.kind in ("git", "pypi") else "--sentinel-repo=DIR"
        parts.append(f"{side.name}: sha256 `{digest(text)}`")
        parts.append(fenced(f"pytest --sentinel-target={recipe.target} --sentinel-bug={recipe.bug_id} {where}", "sh"))
        room = (ROOM - sum(map(len, parts))) // (1 if side is bundle.sides[-1] else 2)
        block = details(f"evidence at {side.name}", fenced(text.rstrip("\n"), "json"))
        parts.append(block if len(block) < room else "(the evidence is too long for a comment)\n")
    return "\n".join(parts)


def evidence_text(decision: Decision) -> str:
    """The text of a decision's evidence, as it is written to a file."""
    return dumps(evidence(decision))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -- Markdown ----------------------------------------------------------------------------------------------------------

_ACTIVE = re.compile(r"[<>&@#*\[\]|!~\\]")


def prose(text: str) -> str:
    """Foreign prose: its `code` stays code, and no other character is obeyed by Markdown, HTML or GitHub."""
    parts = re.split(r"`([^`]*)`", message(text))
    return "".join(
        code(part) if index % 2 else unlinked(_ACTIVE.sub(lambda m: f"&#{ord(m.group())};", part).replace("`", "&#96;"))
        for index, part in enumerate(parts)
    )


def sentence(text: str) -> str:
    shown = prose(" ".join(text.split()))
    return shown if shown.endswith((".", "!", "?")) else f"{shown}."


def code(text: str) -> str:
    """Foreign text as code, in a table too; GitHub links nothing inside it."""
    shown = "".join(c if c.isalnum() or c in " -.:,;_/()+=" else f"&#{ord(c)};" for c in message(text))
    return f"<code>{unlinked(shown)}</code>" if shown else ""


def fenced(text: str, language: str) -> str:
    """Text in a fence that it cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text, lines=True)}\n{fence}\n"


def details(summary: str, block: str) -> str:
    return f"<details><summary>{code(summary)}</summary>\n\n{block}\n</details>\n"
