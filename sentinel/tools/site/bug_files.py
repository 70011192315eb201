"""Render the page of one bug."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from sentinel.recipes.affects import in_text, read_affected, settings_in_words
from sentinel.recipes.grades import realism, root
from sentinel.reports.brief import command
from sentinel.reports.escaping import paragraphs
from sentinel.reports.store import file_name
from sentinel.tools.site.lifetimes import life_of
from sentinel.tools.site.material import Bug, Document, Evidence, Material
from sentinel.tools.site.rendering import TRIGGERS
from sentinel.tools.site.story import Outcome, Story, chips, story


def bug_page(pages: Any, material: Material, bug: Bug) -> str:
    """Render the web page of one bug.

    :param pages: :class:`sentinel.tools.site.rendering.Pages`.
    """
    tale = story(bug, material.catalog)
    life = life_of(bug) if bug.bug_id else None
    title = bug.bug_id or f"{bug.name}: {bug.boundary}"
    values = {**_about(bug, material, tale), **_outcome(bug, tale)}
    return str(pages.render("bug.html", title, bug.page, bug=bug, life=life, **values))


def _about(bug: Bug, material: Material, tale: Story | None) -> dict[str, Any]:
    """Return the template's values that do not come from observations: facts, links, commands and the recipe."""
    catalog = material.catalog
    target = catalog.targets.get(bug.target)
    repository = target.repository.removesuffix(".git") if target else ""
    first = (tale.before or tale.after) if tale else None
    return {
        "chips": chips(bug, material.branch(bug.target)),
        "paragraphs": paragraphs(bug.recipe.story if bug.recipe else str(bug.document.get("story") or "")),
        "laws": [(name, catalog.laws.get(name)) for name in bug.laws],
        "facts": _list_facts(bug, repository, material.bugs),
        "affects": [str(read_affected(entry)) for entry in bug.document.get("affects") or ()],
        "source": _link_to_source(repository, first.document) if first is not None else "",
        "source_url": partial(_link_to_source, repository),
        "commit_url": partial(_commit, repository),
        "command": _command(bug, first or next(iter(bug.evidence), None)),
        "recipe_name": bug.recipe.path.name if bug.recipe else "recipe.json",
        "recipe": _recipe(bug),
        "runner": material.exports.get(bug.bug_id),
    }


def _outcome(bug: Bug, tale: Story | None) -> dict[str, Any]:
    """Return the template's observed values, with a caption that names the two revisions."""
    before, after = (tale.before, tale.after) if tale else (None, None)
    wrong = tale.wrong if tale else ()
    return {
        "story": tale,
        "scalars": [outcome for outcome in wrong if _scalar(outcome)],
        "tensors": [outcome for outcome in wrong if not _scalar(outcome)],
        "caption": _caption(bug, before, after),
        "after_name": "without the bug" if after else "correct",
    }


def _caption(bug: Bug, before: Evidence | None, after: Evidence | None) -> str:
    if before is None:
        return ""
    if after is None:
        source = "come from the recipe" if bug.bug_id else "follow from the law"
        return (
            f"The results with the bug were observed at {before.short}. The correct values {source}, because every "
            "recorded revision has the bug."
        )
    return f"The results with the bug were observed at {before.short}, and the results without it at {after.short}."


def _scalar(outcome: Outcome) -> bool:
    return not any(side is not None and side.lines for side in (outcome.before, outcome.after))


def _list_facts(bug: Bug, repository: str, bugs: Iterable[Bug]) -> list[tuple[str, str, str]]:
    written, upstream = bug.document, bug.upstream
    cause = (bug.target, root(written))
    shared = [other.bug_id for other in bugs if other is not bug and (other.target, root(other.document)) == cause]
    places = {"pull": ("pull request", "pull"), "issue": ("issue", "issues")}
    facts = [
        (label, f"#{upstream[name]}", f"{repository}/{place}/{upstream[name]}")
        for name, (label, place) in places.items()
        if upstream.get(name)
    ]
    facts += [
        (label, str(upstream[name]), str(upstream[name]) if name == "url" else "")
        for name, label in (("status", "upstream status"), ("url", "link"))
        if upstream.get(name)
    ]
    pairs = (
        ("triggered by", TRIGGERS.get(realism(written), "")),
        *_reach(written),
        ("bugs with the same cause", ", ".join(shared) if bug.bug_id else ""),
    )
    facts += [(name, text, "") for name, text in pairs if text]
    for name in ("severity", "signal", "effect", "root_cause", "fix", "introduced_by", "fixed_by"):
        if written.get(name):
            label = {"signal": "affected signal", "effect": "effect on training"}.get(name, name.replace("_", " "))
            facts.append((label, " ".join(str(written[name]).split()), ""))
    until = written.get("until")
    if isinstance(until, Mapping):
        settings = settings_in_words({key: in_text(value) for key, value in until.items()})
        facts.append(("workaround", f"set {settings}", ""))
    return facts


def _reach(document: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Return (name, text) pairs: how a run triggers the bug, and which code produces the triggering value."""
    reach = document.get("reach")
    if not isinstance(reach, Mapping):
        return ()
    producer = str(reach.get("producer") or "")
    return (
        ("how it is triggered", " ".join(str(reach.get("how") or "").split())),
        ("source of the triggering value", producer),
        ("shipped example that triggers it", str(reach.get("shipped") or "")),
    )


def _link_to_source(repository: str, document: Document) -> str:
    boundary, checkout = document["boundary"], document["checkout"]
    if not (repository.startswith("https://github.com/") and checkout and checkout["commit"] and boundary["file"]):
        return ""
    return f"{repository}/blob/{checkout['commit']}/{quote(boundary['file'])}#L{boundary['line']}"


def _commit(repository: str, document: Document) -> str:
    return (
        f"{repository}/commit/{document['checkout']['commit']}" if repository.startswith("https://github.com/") else ""
    )


def _command(bug: Bug, evidence: Evidence | None) -> str:
    ref = evidence.short if evidence is not None else ""
    if not bug.bug_id:
        plain = bug.where == file_name(bug.boundary)  # otherwise the boundary has several bindings
        subject = bug.boundary if plain else f"{bug.boundary}({bug.contract})"
        law = f"laws/{bug.target}/{subject}::{bug.law}[{ref}]"
        return f"pytest {shlex.quote(law)} --sentinel-ref={shlex.quote(ref)}"
    if evidence is not None:
        return command(evidence.document)
    return f"pytest --sentinel-target={shlex.quote(bug.target)} --sentinel-bug={shlex.quote(bug.bug_id)}"


def _recipe(bug: Bug) -> str:
    if bug.recipe is not None:
        return bug.recipe.path.read_text(encoding="utf-8", errors="replace")
    return json.dumps(bug.document, indent=1, ensure_ascii=False)
