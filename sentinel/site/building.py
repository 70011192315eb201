"""All files of a site, from what is recorded. The same records give the same bytes."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import quote

from sentinel.errors import SentinelError
from sentinel.reports.store import file_name
from sentinel.site.coverage import coverages, dialects
from sentinel.site.grids import as_number, bare, fitting, rows_of
from sentinel.site.lifetimes import life_of, lives
from sentinel.site.material import Bug, Document, Material
from sentinel.site.matrix import tables
from sentinel.site.story import Outcome, Story, mask_of, story, variant_of

#: A page that is larger costs a reader on a slow line seconds; a test holds the shipped site to it.
START_LIMIT, BUG_LIMIT = 300_000, 150_000

Files = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Picture:
    """:ivar file: relative to the page that shows it; width and height in CSS pixels."""

    file: str
    width: int
    height: int


def require() -> None:
    """:raises SentinelError: where the libraries of the ``site`` extra are not there."""
    missing = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise SentinelError(f"a site needs {' and '.join(missing)}; pip install 'rl-sentinel[site]'")


def build(material: Material, tell: Callable[[str], None] = lambda text: None) -> Files:
    """Every file of the site, as its path and text.

    :raises SentinelError: as :func:`require`.
    """
    require()
    from sentinel.site.rendering import Pages

    pages = Pages()
    for name in ("site.css", "site.js"):
        yield name, (resources.files("sentinel.site") / "static" / name).read_text(encoding="utf-8")
    yield "index.html", _index(pages, material)
    yield "coverage.html", pages.render("coverage.html", "coverage.html", "Coverage", coverages=coverages(material))
    yield "dialects.html", _dialects(pages, material)
    yield from _lifetimes(pages, material)
    told = ""
    for bug in (*material.bugs, *material.laws):
        about = f"{'bugs' if bug.bug_id else 'laws'} of {bug.target}"
        if about != told:
            told = about
            tell(f"pages: {told}")
        yield from _bug(pages, material, bug)
        for seen in bug.seen:
            yield f"evidence/{seen.place}", seen.text


def _index(pages: Any, material: Material) -> str:
    from sentinel.site.rendering import SIGNS

    rows = tables(material)
    all_rows = [row for table in rows for row in table.rows]
    return str(
        pages.render(
            "index.html",
            "index.html",
            "Known bugs",
            tables=rows,
            bugs=len(all_rows),
            recorded=[v for v in SIGNS if any(seen.verdict == v for row in all_rows for seen in row.bug.seen)],
            current=[verdict for verdict in SIGNS if any(table.now[verdict] for table in rows)],
            unknown=any(table.now["unknown"] for table in rows),
            laws=sorted({law for row in all_rows for law in row.bug.laws}),
            severities=[s for s in ("high", "medium", "low") if any(row.severity == s for row in all_rows)],
            unexpected=any(seen.unexpected for row in all_rows for seen in row.bug.seen),
            signals=sorted({row.signal for row in all_rows} - {""}),
        )
    )


def _dialects(pages: Any, material: Material) -> str:
    found = dialects(material)
    by_target = [(target, [item for item in found if item.target == target]) for target in material.targets]
    return str(pages.render("dialects.html", "dialects.html", "Dialects", dialects=by_target))


def _lifetimes(pages: Any, material: Material) -> Files:
    from sentinel.site.timelines import drawable, timeline

    told = lives(material)
    pictures: dict[str, Picture | None] = {}
    for group in told:
        drawn = [life for life in group.known if drawable(life)]
        file = f"lifetimes-{group.target}.svg"
        pictures[group.target] = None
        if drawn:
            text = timeline(drawn)
            pictures[group.target] = _picture(file, text)
            yield file, text
    yield "lifetimes.html", pages.render("lifetimes.html", "lifetimes.html", "Lifetimes", lives=told, pictures=pictures)


def _bug(pages: Any, material: Material, bug: Bug) -> Files:
    from sentinel.site.timelines import drawable, timeline

    told = story(bug, material.catalog)
    stem = bug.page.removesuffix(".html")
    after_name = "without it" if told and told.after else "what is right"
    gradients = None
    if told is not None and told.before is not None:
        drawn = _gradients(told, material, bug, after_name)
        if drawn:
            keys, text = drawn
            yield f"{stem}-gradients.svg", text
            gradients = {**vars(_picture(f"{stem.rpartition('/')[2]}-gradients.svg", text)), "names": keys}
    life = life_of(bug) if bug.bug_id else None
    life_picture = None
    if life is not None and drawable(life):
        text = timeline([life], names=False)
        yield f"{stem}-life.svg", text
        life_picture = _picture(f"{stem.rpartition('/')[2]}-life.svg", text)
    catalog = material.catalog
    target = catalog.targets.get(bug.target)
    repository = target.repository.removesuffix(".git") if target else ""
    laws = [(name, catalog.invariants[name].statement if name in catalog.invariants else "") for name in bug.laws]
    wrong = told.wrong if told else ()
    yield (
        bug.page,
        pages.render(
            "bug.html",
            bug.page,
            bug.bug_id or f"{bug.name}: {bug.boundary}",
            bug=bug,
            paragraphs=_paragraphs(bug),
            laws=laws,
            facts=_facts(bug, repository),
            affects=[str(line) for line in bug.document.get("affects") or ()],
            source=_source_of(bug, told, repository),
            source_url=partial(_source, repository),
            commit_url=partial(_commit, repository),
            story=told,
            scalars=[outcome for outcome in wrong if _scalar(outcome)],
            tensors=[outcome for outcome in wrong if not _scalar(outcome)],
            told_before=f"Observed at {told.before.short}" if told and told.before else "",
            told_after=f"observed at {told.after.short}"
            if told and told.after
            else "what is right: no recorded revision has it",
            after_name=after_name,
            gradients=gradients,
            life=life,
            life_picture=life_picture,
            command=_command(bug, told),
            recipe_name=bug.recipe.path.name if bug.recipe else "recipe.json",
            recipe=_recipe(bug),
            runner=material.exports.get(bug.bug_id),
        ),
    )


def _scalar(outcome: Outcome) -> bool:
    return not any(side is not None and side.lines for side in (outcome.before, outcome.after))


def _paragraphs(bug: Bug) -> list[str]:
    text = bug.recipe.story if bug.recipe else str(bug.document.get("story") or "")
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _facts(bug: Bug, repository: str) -> list[tuple[str, str, str]]:
    """Name, text and (where there is one) link of what the recipe says beside its story."""
    written, upstream = bug.document, bug.upstream
    places = {"pull": "pull", "issue": "issues"}
    facts = [
        (name, f"#{upstream[name]}", f"{repository}/{place}/{upstream[name]}")
        for name, place in places.items()
        if upstream.get(name)
    ]
    facts += [
        ("upstream", str(upstream[name]), str(upstream[name]) if name == "url" else "")
        for name in ("status", "url")
        if upstream.get(name)
    ]
    for name in ("severity", "signal", "effect", "root_cause", "fix", "introduced_by", "fixed_by"):
        if written.get(name):
            facts.append((name.replace("_", " "), " ".join(str(written[name]).split()), ""))
    return facts


def _source(repository: str, document: Document) -> str:
    """Where the boundary's code can be read."""
    found, checkout = document["boundary"], document["checkout"]
    if not (repository.startswith("https://github.com/") and checkout and checkout["commit"] and found["file"]):
        return ""
    return f"{repository}/blob/{checkout['commit']}/{quote(found['file'])}#L{found['line']}"


def _commit(repository: str, document: Document) -> str:
    return (
        f"{repository}/commit/{document['checkout']['commit']}" if repository.startswith("https://github.com/") else ""
    )


def _source_of(bug: Bug, told: Story | None, repository: str) -> str:
    seen = (told.before or told.after) if told else None
    return _source(repository, seen.document) if seen is not None else ""


def _command(bug: Bug, told: Story | None) -> str:
    seen = ((told.before or told.after) if told else None) or next(iter(bug.seen), None)
    ref = seen.short if seen is not None else ""
    if not bug.bug_id:
        plain = bug.where == file_name(bug.boundary)  # else one of two bindings of this boundary
        subject = bug.boundary if plain else f"{bug.boundary}({bug.contract})"
        law = f"laws/{bug.target}/{subject}::{bug.law}[{ref}]"
        return f"pytest {shlex.quote(law)} --sentinel-ref={shlex.quote(ref)}"
    pinned = bug.recipe is not None and any(pin.ref.short == ref for pin in bug.recipe.pins)
    if pinned and bug.recipe is not None:
        return f"pytest {shlex.quote(f'recipes/{bug.target}/{bug.recipe.path.name}::{ref}')}"
    asked = f" --sentinel-ref={shlex.quote(ref)}" if ref else ""
    return f"pytest --sentinel-target={shlex.quote(bug.target)} --sentinel-bug={shlex.quote(bug.bug_id)}{asked}"


def _recipe(bug: Bug) -> str:
    if bug.recipe is not None:
        return bug.recipe.path.read_text(encoding="utf-8", errors="replace")
    return json.dumps(bug.document, indent=1, ensure_ascii=False)


# -- pictures ----------------------------------------------------------------------------------------------------------


def _picture(file: str, text: str) -> Picture:
    """:param text: as matplotlib writes it, in points."""
    size = re.search(r'<svg[^>]*? width="([\d.]+)pt"', text), re.search(r'<svg[^>]*? height="([\d.]+)pt"', text)
    width, height = (round(float(found[1]) * 4 / 3) if found else 0 for found in size)
    return Picture(file, width, height)


def _gradients(told: Story, material: Material, bug: Bug, after_name: str) -> tuple[list[str], str] | None:
    """The keys of the gradients that are drawn, and the picture; None where there is none worth one."""
    from sentinel.site.heatmaps import Map, Pair, heat_maps

    assert told.before is not None
    document = told.before.document
    contract = material.catalog.contracts.get(bug.contract)
    inputs: Mapping[str, Any] = document["scenario"]["variants"]
    there = {item["key"]: item["observed"] for item in told.after.document["comparison"]} if told.after else {}
    wanted = {outcome.key for outcome in told.outcomes if outcome.gradient}
    pairs = []
    for item in document["comparison"]:
        before = _numbers(item["observed"])
        after = _numbers(there.get(item["key"], item["fixed"]))
        if item["key"] not in wanted or before is None or after is None or sum(map(len, before)) < 2:
            continue
        mask = mask_of(contract, inputs.get(variant_of(item["key"], inputs), {}))
        masked = [[[not keep for keep in row] for row in fitting(mask, side) or ()] for side in (before, after)]
        pairs.append((item["matches_fixed"] is True, Pair(item["key"], Map(before, masked[0]), Map(after, masked[1]))))
    if not pairs:
        return None
    ordered = [pair for _, pair in sorted(pairs, key=lambda pair: pair[0])]  # what is wrong comes first
    shown = ordered[:4]
    return [pair.key for pair in shown], heat_maps(shown, after_name)


def _numbers(value: Any) -> list[list[float]] | None:
    rows = rows_of(bare(value))
    if rows is None or not any(rows) or len(rows) > 16 or max(map(len, rows)) > 24:
        return None
    found = [[as_number(item) for item in row] for row in rows]
    if any(item is None for row in found for item in row):
        return None
    return [[item for item in row if item is not None] for row in found]
