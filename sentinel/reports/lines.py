"""Convert evidence documents to lines of a baseline file and back. A line omits the data that the recipe contains.

The *facts* are the content of a line: the verdict, the observation, the called function, and the digests of everything
on which the verdict depends. :func:`facts_of` converts a document to facts. :func:`document_of` converts facts and a
recipe to the document. Lines of one bug at one commit that differ only in the ref are joined. Environments and
checkouts that several lines share are stored once, at the top of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from sentinel.deciding.outcomes import UNDECIDED, Decision, Verdict
from sentinel.deciding.verdicts import by_expectation
from sentinel.errors import SentinelError
from sentinel.laws.law import Law
from sentinel.recipes import Recipe, find_recipes, load_copy
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.digests import binding_digest, contract_digest, document_digest, recipe_digest
from sentinel.recipes.found import found_recipe, pin_of
from sentinel.reports import jsonlines
from sentinel.reports.evidence import Document, evidence, flat, json_comparison, with_behaviour
from sentinel.targets.refs import Ref
from sentinel.values.literals import untyped

Facts = dict[str, Any]

_CHECKOUT: Facts = {
    **dict.fromkeys(("commit", "version", "digest", "tree")),
    "dirty": False,
    "roots": [],
    "left_out": [],
}
_CHECKS = dict.fromkeys(("repeated", "reordered"))
_COMPARISON = dict.fromkeys(("observed", "unpatched", "fixed", "matches_unpatched", "matches_fixed"))
#: Keys whose values are the same in a line and in the document.
_COPIED = ("verdict", "kind", "reason", "adapter", "sentinel_version", "observation", "oracle")
#: Keys whose values are stored once, at the top of the file.
_SHARED = ("checkout", "environment")
#: Keys with the date and the versions of a measurement. Entries that differ only in these keys are equal.
CIRCUMSTANCES = ("date", "sentinel", "sentinel_version", "adapter")
_FIRST = ("bug_id", "law", "boundary_name", "contract_name", "subject", "refs", "verdict", "kind", "reason")


class Recipes:
    """Finds recipes by target and bug id. The recipes of a target are read on first use."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._of: dict[str, dict[str, Recipe]] = {}
        self._digests: dict[tuple[str, ...], Facts] = {}

    def get(self, target: str, bug: str) -> Recipe | None:
        return self._all(target).get(bug)

    def pins(self, target: str) -> dict[tuple[str, str], str]:
        """Return the pins of a target's recipes: (bug id, ref) -> expected verdict."""
        return {(bug, str(pin.ref)): pin.expect for bug, each in self._all(target).items() for pin in each.pins}

    def _all(self, target: str) -> dict[str, Recipe]:
        if target not in self._of:
            known = target in self.catalog.adapters
            self._of[target] = {r.bug_id: r for r in find_recipes(self.catalog, (target,))} if known else {}
        return self._of[target]

    def digests(self, recipe: Recipe, law: str | None) -> Facts:
        """Return the current digests of the binding and contract of a recipe, or of a law's boundary."""
        key = (recipe.target, recipe.boundary, recipe.contract, law or "")
        if key not in self._digests:
            adapter = self.catalog.adapters[recipe.target]
            self._digests[key] = {
                "binding": binding_digest(adapter.target, adapter.file, recipe.boundary, recipe.contract),
                "contract": contract_digest(self.catalog.contracts[recipe.contract], self.catalog.laws.get(law or "")),
            }
        return self._digests[key]


# -- from a document to facts -----------------------------------------------------------------------------------------


def facts_of(document: Mapping[str, Any], recipes: Recipes, subject: str = "") -> Facts:
    """Convert an evidence document to the facts of one baseline line, with the digests of recipe, binding and contract.

    :param subject: for the evidence of a law, the boundary's name in the path of the evidence.
    :raises SentinelError: if the catalog lacks the target.
    """
    catalog, target = recipes.catalog, str(document["target"])
    if target not in catalog.adapters:
        raise SentinelError(f"{target} is not a known target; install the plugin that contains its adapter")
    recipe: Recipe | None = None
    facts: Facts = {
        "refs": {document["ref"]: document["expect"] or ""},
        "boundary": _without_defaults(document["boundary"]),
    }
    written = facts["boundary"].pop("written")
    facts |= {name: document[name] for name in _COPIED if document[name]}
    facts |= {
        "checks": _without_defaults(document.get("checks") or {}),
        "environment": _without_defaults(document["environment"]),
    }
    if document["checkout"] is not None:
        facts["checkout"] = _without_defaults(document["checkout"], _CHECKOUT)
    if document["failure"] is not None:
        same = {"kind": facts.get("kind"), "reason": facts.get("reason"), "traceback": ""}
        facts["failure"] = _without_defaults(document["failure"], same)
    if document["bug_id"]:
        facts["bug_id"] = document["bug_id"]
        facts |= {"law": document["law"]} if document["law"] else {}
        with suppress(SentinelError):  # the current contract rejects the copy, so the entry is stale
            recipe = _recipe_of(document, recipes)
            facts["recipe"] = recipe_digest(recipe)
    else:
        facts |= {"law": document["law"], "boundary_name": written, "contract_name": document["contract"]}
        copy = document["recipe"]["document"]
        facts |= {name: copy[name] for name in ("scenario", "variants") if name in copy}
        facts |= {"subject": subject} if subject not in ("", written) else {}
        recipe = recipe_for(facts, target, recipes)[0]
    if recipe is not None and document["adapter"] in (None, catalog.adapters[target].digest):
        facts |= recipes.digests(recipe, document["law"])
    if not _same(document_of(facts, target, recipe)["comparison"], document["comparison"]):
        seen = flat(document["observation"])
        facts["comparison"] = [
            _without_defaults(item, {**_COMPARISON, "observed": seen.get(item["key"])})
            for item in document["comparison"]
        ]
    empty = ("failure", "comparison", "scenario")  # these keys matter even if their values are empty
    return {name: value for name, value in facts.items() if value not in ({}, [], "") or name in empty}


def _recipe_of(document: Mapping[str, Any], recipes: Recipes) -> Recipe:
    """Return the recipe of a document. If the recipe file has changed since, read the recipe from the document."""
    recipe = recipes.get(str(document["target"]), str(document["bug_id"]))
    if recipe is not None and recipe.digest == document["recipe"]["digest"]:
        return recipe
    return load_copy(document["recipe"]["document"], recipes.catalog)


def _without_defaults(value: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> Facts:
    """Remove the entries that equal their default, which is ``usual[key]`` or null."""
    usual = usual or {}
    return {key: item for key, item in value.items() if not _same(item, usual.get(key))}


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON, in which 0.0, 0 and false differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


# -- from facts to a document -----------------------------------------------------------------------------------------


def recipe_for(facts: Facts, target: str, recipes: Recipes) -> tuple[Recipe | None, str]:
    """Return the recipe of a baseline line and an empty string, or None and why the line cannot be expanded."""
    if "bug_id" not in facts:
        if facts["law"] not in recipes.catalog.laws:
            return None, f"the law {facts['law']} does not exist"
        try:
            return _recipe_of_finding(facts, target, recipes.catalog, facts.get("comparison", ())), ""
        except SentinelError as error:
            return None, f"its scenario no longer fits the contract: {error}"
    recipe = recipes.get(target, facts["bug_id"])
    if recipe is None:
        return None, f"the recipe {facts['bug_id']} is not known; add its folder with --recipes"
    if recipe_digest(recipe) != facts.get("recipe"):
        return None, "its recipe changed"
    return recipe, ""


def contradiction(document: Document, recipe: Recipe | None) -> str:
    """Return why a recorded verdict does not follow from its own observation. Return an empty string if it does, or if
    this cannot be checked.

    :param recipe: the result of :func:`recipe_for`.
    """
    verdict, seen = document["verdict"], document["observation"]
    if verdict in UNDECIDED:
        return ""
    if seen is None:
        return f"its verdict is {verdict}, but it has no observation"
    if document["law"]:
        follows = "reproduced" if document["comparison"] else "fixed"
    elif recipe is not None and recipe.has_values:
        follows = by_expectation(recipe, untyped(seen))[0].name
    else:
        return ""
    return "" if follows == verdict else f"its verdict is {verdict}, but its observation leads to {follows}"


def why_stale(facts: Facts, target: str, recipes: Recipes) -> str:
    """Return why a recorded verdict must be decided again, or an empty string if it is up to date. No framework code is
    run."""
    recipe, why = recipe_for(facts, target, recipes)
    if recipe is None:
        return why
    now = recipes.digests(recipe, facts.get("law"))
    changed = [name for name in ("binding", "contract") if facts.get(name) != now[name]]
    expected = {str(pin.ref): pin.expect for pin in recipe.pins}
    changed += ["pin"] if any(expected.get(ref, expect) != expect for ref, expect in facts["refs"].items()) else []
    return f"its {' and '.join(changed)} changed" if changed else ""


def _recipe_of_finding(facts: Facts, target: str, catalog: Catalog, comparison: Iterable[Mapping[str, Any]]) -> Recipe:
    law: Law = catalog.laws[facts["law"]]
    boundary, contract, checkout = facts["boundary_name"], facts["contract_name"], facts.get("checkout", {})
    document: dict[str, Any] = {}
    variants: Mapping[str, Mapping[str, Any]] = {"": {}}
    if "scenario" in facts:
        pin = "" if checkout.get("dirty") else pin_of(checkout.get("commit"), checkout.get("version"))
        details = [(item["key"], item["detail"]) for item in comparison]
        inputs = facts["scenario"], facts.get("variants", {})
        document = found_recipe(law, target, contract, boundary, *inputs, details, pin)
        variants = load_copy(document, catalog).variants
    return Recipe(
        bug_id="",
        title=law.statement,
        target=target,
        contract=contract,
        boundary=boundary,
        variants=variants,
        path=Path(f"{law.name}.yaml"),
        digest=document_digest(document),
        invariant=law.name,
        document=document,
    )


def document_of(facts: Facts, target: str, recipe: Recipe | None = None) -> Document:
    """Return the full evidence document of a baseline line, for the line's first ref.

    :param recipe: the result of :func:`recipe_for`. If it is None, the document lacks title, scenario and expectations.
    """
    if recipe is None:
        names = {"boundary": facts.get("boundary_name", ""), "contract": facts.get("contract_name", "")}
        path = Path(f"{facts.get('bug_id') or facts['law']}.yaml")
        empty = Recipe(facts.get("bug_id", ""), "", target, **names, variants={"": {}}, path=path, digest="")
        recipe = replace(empty, digest=facts.get("recipe", "sha256:" + 64 * "0"))
    (ref, expect), *_ = facts["refs"].items()
    document = evidence(Decision(recipe, Ref("installed"), Verdict("unavailable"), law=facts.get("law")))
    document |= {"ref": ref, "expect": expect or None, "kind": "", "reason": ""}
    document |= {name: facts[name] for name in _COPIED if name in facts}
    for name in ("boundary", "environment"):
        document[name] = {**document[name], **facts.get(name, {})}
    if "checkout" in facts:
        document["checkout"] = {**_CHECKOUT, **facts["checkout"]}
    if facts.get("checks") or document["observation"] is not None:
        document["checks"] = {**_CHECKS, **facts.get("checks", {})}
    if "failure" in facts:
        usual = {"kind": document["kind"], "reason": document["reason"], "traceback": ""}
        document["failure"] = {**usual, **facts["failure"]}
    seen = flat(document["observation"])
    if "comparison" in facts:
        document["comparison"] = [
            {**_COMPARISON, "observed": seen.get(item["key"]), **item} for item in facts["comparison"]
        ]
    elif recipe.has_values and seen:
        judged = by_expectation(recipe, untyped(document["observation"]))[1]
        document["comparison"] = [json_comparison(item) for item in judged]
    return with_behaviour(document)


# -- as text ----------------------------------------------------------------------------------------------------------


def to_text(entries: Iterable[Facts]) -> str:
    """Convert entries, in the given order, to the text of a baseline file."""
    return jsonlines.to_text(_join(entries), _FIRST, _SHARED)


def _join(entries: Iterable[Facts]) -> Iterator[Facts]:
    """Join entries of the same bug and commit that differ only in refs, dates and versions. The latest date and
    versions are kept."""
    groups: dict[str, Facts] = {}
    for facts in entries:
        same = jsonlines.sort_keys({key: value for key, value in facts.items() if key not in ("refs", *CIRCUMSTANCES)})
        commit = facts.get("checkout", {}).get("commit")
        key = jsonlines.encode([same, commit or list(facts["refs"])])
        before = groups.get(key)
        if before is not None:
            latest = max((before, facts), key=lambda each: str(each.get("date", "")))
            facts = {**latest, "refs": {**before["refs"], **facts["refs"]}}
        groups[key] = facts
    return iter(groups.values())


def read(file: Path) -> list[Facts]:
    """Read the entries of a baseline file. A line with several refs becomes one entry for each ref.

    :raises OSError: if the file is unreadable.
    :raises SentinelError: if a line is damaged.
    """

    def by_ref(line: Facts) -> list[Facts]:
        if "bug_id" not in line:
            line["law"], line["boundary_name"], line["contract_name"]
        for ref in line["refs"]:
            kind, _, name = ref.partition(":")
            found = line.get("checkout", {}).get("commit" if kind == "git" else "version")
            if Ref(kind, name).immutable and found not in (None, name):
                raise SentinelError(f"the checkout is {found}, but the ref is {ref}; both must name the same code")
        return [{**line, "refs": {ref: expect}} for ref, expect in line["refs"].items()]

    return list(chain.from_iterable(jsonlines.read(file, _SHARED, by_ref)))


def key_of(facts: Facts) -> str:
    """Return the evidence file's name, without suffix, for an entry with one ref."""
    (ref,) = facts["refs"]
    kind, _, name = ref.partition(":")
    return Ref(kind, name).key(facts.get("checkout", {}).get("tree") or "absent")
