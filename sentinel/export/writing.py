"""The files of an export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from sentinel.errors import SentinelError
from sentinel.export.attestation import statement
from sentinel.export.exporting import Bundle
from sentinel.export.page import comment as comment_page
from sentinel.export.page import evidence_text, page, recipe_json
from sentinel.findings.duplicates import Source
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.reports.store import own, write_below

#: Files of an earlier export that this one may not have.
_OWN = (
    *("PULL_REQUEST.md", "COMMENT.md", "recipe.json", "run_validation.py"),
    *(f"{what}-{side}.json" for what in ("evidence", "statement") for side in ("base", "head")),
)


def write(
    out: Path,
    bundle: Bundle,
    catalog: Catalog,
    comment: bool = False,
    in_toto: bool = False,
    sources: Sequence[Source] = (),
) -> Path:
    """Write a bundle's files into the bug's folder; those of an earlier export that are not among them go.

    :param comment: also a short comment; ``in_toto``: also a statement of each evidence.
    :param sources: where the same bug was looked for.
    :returns: the bug's folder.
    :raises SentinelError: where it cannot be written.
    """
    recipe, otherwise = bundle.recipe, "choose another with --out"
    folder = own(out, PurePosixPath(recipe.bug_id))
    files = {
        "PULL_REQUEST.md": page(bundle, catalog, related_to(recipe, catalog), sources),
        "recipe.json": recipe_json(recipe) + "\n",
        **{f"evidence-{side.name}.json": evidence_text(side.decision) for side in bundle.sides},
    }
    if bundle.runner is not None:
        files["run_validation.py"] = bundle.runner.text
    if bundle.runner is not None and bundle.test:
        files[bundle.test_name] = bundle.test
    if comment:
        files["COMMENT.md"] = comment_page(bundle)
    if in_toto:
        repository = catalog.targets[recipe.target].repository
        names = [(f"statement-{side.name}.json", f"evidence-{side.name}.json") for side in bundle.sides]
        files |= {name: statement(evidence, files[evidence], repository) for name, evidence in names}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in {*_OWN, bundle.test_name} - files.keys():
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise SentinelError(f"cannot write {folder}: {error.strerror}; {otherwise}") from error
    for name, text in files.items():
        write_below(folder, name, text, otherwise)
    return folder


def related_to(recipe: Recipe, catalog: Catalog) -> list[Recipe]:
    """Other recipes of the same pull request, and of the same law at the same boundary."""
    pull = recipe.upstream.get("pull")

    def close(other: Recipe) -> bool:
        if other.target != recipe.target or other.bug_id == recipe.bug_id:
            return False
        same_pull = bool(pull) and other.upstream.get("pull") == pull
        return same_pull or (other.boundary == recipe.boundary and other.invariant == recipe.invariant)

    return [other for other in find_recipes(catalog, [recipe.target]) if close(other)]
