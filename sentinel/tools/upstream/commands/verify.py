"""Implement ``sentinel verify``, which runs the recipe of recorded evidence again and compares the results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sentinel.commands.console import Commands, command, echo, echo_json, json_option, nothing_examined, progress
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job, Runner, runner_of
from sentinel.deciding.setup import opener
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes import Recipe, adopt_pins, find_recipes, load_copy
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.digests import document_digest, recipe_digest
from sentinel.recipes.fixes import find_fixes, fix_of
from sentinel.reports.baseline import Verification, verify_report
from sentinel.reports.evidence import evidence
from sentinel.reports.lines import Recipes
from sentinel.reports.store import RUN, below, line_files, load, recorded
from sentinel.reports.summary import causes
from sentinel.sources import MirrorStore
from sentinel.targets.refs import Ref
from sentinel.tools.upstream.consistency import contradictions
from sentinel.tools.upstream.contribution import load_contribution
from sentinel.tools.upstream.trying import opening

GROUP = "publish"
SUMMARY = "decide evidence again from upstream, compare numbers"

_EXAMPLE = """\
  sentinel verify sentinel-reports/roll/ROLL-AGGLOSS-TOKENMEAN-MASK/git-c09bc8bc9f43.json
  sentinel verify reports/                      every evidence below a folder
  sentinel verify evidence.json --repo ~/src/verl   for evidence of a working tree
  sentinel verify contribution/BUG/evidence.json    each verdict on which a pull request page is based

Sentinel calls upstream's code again, in the sandbox and on the device of your own options. It runs no code that lies
next to the file. The recipe is the catalog's if its digest is the recorded one, otherwise the copy in the file. A copy
that does not have the recorded digest is rejected.
exit status: 0 every number is the same, 1 a value differs, 2 the evidence could not be verified
"""

#: Kinds of failure that depend on this machine, not on the measured code.
_OF_THIS_MACHINE = ("ref", "python", "ghost", "timeout", "memory", "harness")


@dataclass(frozen=True)
class Outcome:
    """The result of verifying one evidence document.

    :ivar outcome: ``same``, ``different``, ``could not`` (be verified), or ``undecided``: the recorded and the new run
        failed alike, for a reason of the machine such as a timeout.
    :ivar subject: the bug or law, and its recorded verdict and ref.
    :ivar conclusion: the result in words. ``recipe``: where the recipe was found.
    """

    evidence: Path
    outcome: str
    subject: str
    conclusion: str
    recipe: str = ""
    verification: Verification | None = None

    @classmethod
    def could_not(cls, file: Path, subject: str, reason: str, recipe: str = "") -> Outcome:
        return cls(file, "could not", subject, f"could not be verified: {reason}", recipe)


def declare(commands: Commands) -> None:
    parser = command(commands, "verify", _verify, SUMMARY, _EXAMPLE)
    parser.add_argument("files", metavar="EVIDENCE", nargs="+", type=Path, help="a file of evidence, or a folder")
    parser.add_argument("--repo", metavar="DIR", help="the working tree, for evidence whose ref is a path:")
    settings_options(parser)
    json_option(parser)


def _verify(arguments: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    documents = list(_documents(arguments.files, Recipes(catalog_and_settings(arguments)[0])))
    targets = {document["target"] for _, document in documents if isinstance(document, dict)}
    with progress() as notify, _Verifier(arguments, sorted(targets), notify) as verifier:
        for file, document in documents:
            notify(f"verifying {file}")
            outcomes.append(verifier.verify(file, document))
    if arguments.json:
        echo_json([_plain(outcome) for outcome in outcomes])
    else:
        for one in outcomes:
            echo(f"{one.evidence}: {one.subject or 'evidence'}" + (f"\n  recipe: {one.recipe}" if one.recipe else ""))
            echo(str(one.verification or one.conclusion))
    # A document that could not be checked must not hide a difference in another document.
    results = {outcome.outcome for outcome in outcomes}
    if results <= {"could not", "undecided"}:
        why = "; ".join(causes(outcome.conclusion for outcome in outcomes))
        return nothing_examined(f"{why}; name evidence that a run wrote, and run `sentinel doctor`")
    return 1 if "different" in results else 2 if "could not" in results else 0


def _documents(paths: Sequence[Path], recipes: Recipes) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """Yield (file, document) for each evidence document. If it is invalid, yield (file, error message).

    :param paths: files and folders. All evidence in a folder is read.
    :raises NothingExamined: if no evidence is found.
    """
    several = [(path, _in_folder(path, recipes) if path.is_dir() else [(path, None)]) for path in paths]
    if not any(found for _, found in several):
        raise NothingExamined(
            f"{', '.join(map(str, paths))}: no evidence found; name a file or folder that a run wrote"
        )
    for _, found in several:
        for file, document in found:
            if document is not None:
                yield file, document
            else:
                yield from ((file, each) for each in _load(file))


def _in_folder(folder: Path, recipes: Recipes) -> list[tuple[Path, dict[str, Any] | None]]:
    """Return (file, document) for each evidence document in a folder.

    For any other folder, return its JSON files except ``run.json``; they are not read yet, so the document is None.
    """
    if line_files(folder):
        return [(folder / place, document) for place, document in recorded(folder, recipes).items()]
    return [(file, None) for file in below(folder) if file.name != RUN and not file.name.startswith(".")]


def _load(file: Path) -> Iterator[dict[str, Any] | str]:
    """Yield the evidence documents in a file; a contribution has several. If it is invalid, yield the error."""
    try:
        made = load_contribution(file)
        if made is None:
            yield load(file)
        else:
            yield from (side for sides in made["bugs"].values() for side in sides.values())
    except SentinelError as error:
        yield str(error)


def _plain(outcome: Outcome) -> dict[str, Any]:
    details = asdict(outcome.verification or Verification((), (), ()))
    shown = {name: getattr(outcome, name) for name in ("outcome", "subject", "recipe", "conclusion")}
    return {"evidence": str(outcome.evidence), **shown, **details}


class _Verifier:
    """Verifies evidence documents one after another, with one worker."""

    def __init__(self, arguments: argparse.Namespace, targets: Sequence[str], notify: Callable[[str], None]) -> None:
        self._repo, self._notify = arguments.repo, notify
        self._catalog, self._settings = catalog_and_settings(arguments)
        self._targets = [name for name in targets if name in self._catalog.adapters]
        self._store = MirrorStore()
        fixes = [fix for target in self._targets for fix in find_fixes(self._catalog, target)]
        self._opened = opening(fixes, opener(self._settings, notify, self._store), self._store)

    def __enter__(self) -> _Verifier:
        return self

    def __exit__(self, *error: object) -> None:
        if "_runner" in vars(self):
            self._runner.close()

    def verify(self, file: Path, recorded: dict[str, Any] | str) -> Outcome:
        """Verify one evidence document. The outcome is ``could not`` if the document is invalid or this machine cannot
        run it."""
        if isinstance(recorded, str):
            return Outcome.could_not(file, "", recorded)
        name, origin = recorded["bug_id"] or recorded["law"] or "a law", ""
        subject = f"{name} was {recorded['verdict']}"
        try:
            ref = self._patched(recorded) or ref_of(recorded, self._repo)
            subject += f" at {ref.short}"
            copy = recorded["recipe"]["document"]
            if copy and document_digest(copy) != recorded["recipe"]["digest"]:
                return Outcome(file, "different", subject, "the recipe in the file does not match its digest")
            recipe, origin, other = recipe_of(recorded, self._catalog)
            if other:
                subject = f"by a recipe other than the catalog's {name}: {recorded['verdict']} at {ref.short}"
            verification = self._again(recorded, recipe, ref)
        except SentinelError as error:
            return Outcome.could_not(file, subject, str(error), origin)
        outcome = "same" if verification.same else "different"
        if outcome == "same" and recorded["kind"] in _OF_THIS_MACHINE:
            outcome = "undecided"  # both runs failed for a reason of the machine, so they confirm nothing
        return Outcome(file, outcome, subject, verification.conclusion, origin, verification)

    def _again(self, recorded: dict[str, Any], recipe: Recipe, ref: Ref) -> Verification:
        decision: Decision = self._runner.decide(Job(recipe, ref, recorded["expect"]))
        verdict = decision.verdict
        before = (recorded["verdict"], recorded["kind"])
        if verdict.kind in _OF_THIS_MACHINE and (verdict.name, verdict.kind) != before:
            raise SentinelError(f"{verdict.name} here: {verdict.reason}")
        if ref.kind in ("path", "installed") and decision.checkout and recorded["checkout"]:
            tree = recorded["checkout"]["tree"]
            if decision.checkout.tree != tree:
                raise SentinelError(
                    f"the evidence is about code with tree hash {tree[:12]}, but the {ref.kind} code here has "
                    f"{decision.checkout.tree[:12]}: the files differ"
                )
        return compared(recorded, decision)

    def _patched(self, recorded: dict[str, Any]) -> Ref | None:
        """Return the ref of the fixed code if the evidence is of code with Sentinel's fix; otherwise None.

        :raises SentinelError: if no fix in the catalog has the recorded digest.
        """
        digest = (recorded["checkout"] or {}).get("patched")
        if digest is None:
            return None
        fix = fix_of(self._catalog, recorded["target"], recorded["bug_id"])
        if fix is None or fix.digest != digest:
            raise SentinelError(
                f"the evidence is about code with a fix, but no fix of this catalog has its digest, {digest[:19]}"
            )
        return fix.patched

    @cached_property
    def _runner(self) -> Runner:
        """Return the runner, which has the user's settings. Settings in the evidence are only compared with them."""
        runner = runner_of(self._catalog, self._settings, self._notify, self._store, self._opened)
        # All targets are given at the start, so that the worker preloads the same packages as in the recorded run.
        runner.start(self._targets)
        return runner


def ref_of(recorded: dict[str, Any], repo: str | None) -> Ref:
    """Return a ref for exactly the code that the evidence describes.

    For evidence of a branch or a clean working tree, this is the recorded commit; for ``pypi:latest``, the recorded
    version.

    :param repo: the folder of the working tree if the evidence is about one.
    :raises SentinelError: if the evidence is about a working tree with uncommitted changes and ``repo`` is None.
    """
    text, checkout = recorded["ref"], recorded["checkout"] or {}
    if text == "path":
        if repo is not None:
            return Ref("path", str(Path(repo).absolute()))
        if checkout.get("commit") and not checkout.get("dirty"):
            return Ref.parse(f"git:{checkout['commit']}")
        raise SentinelError(
            "the evidence is about a working tree with uncommitted changes; give that tree with --repo DIR"
        )
    ref = Ref.parse(text)
    if ref.kind == "path":
        raise SentinelError("the evidence names a folder, which a run never writes; give the folder with --repo DIR")
    if ref.kind == "git" and not ref.immutable and checkout.get("commit"):
        return Ref.parse(f"git:{checkout['commit']}")
    if ref.kind == "pypi" and not ref.immutable and checkout.get("version"):
        return Ref.parse(f"pypi:{checkout['version']}")
    return ref


def recipe_of(recorded: dict[str, Any], catalog: Catalog) -> tuple[Recipe, str, bool]:
    """Return the recipe of the evidence, from the catalog or else from the evidence itself.

    :returns: the recipe; a description of where it was found; and whether the catalog has a recipe of this bug that
        differs from it in a part that affects the verdict.
    """
    if recorded["target"] not in catalog.targets:
        raise SentinelError(f"no adapter for target {recorded['target']!r}; `sentinel list` shows the targets")
    digest = recorded["recipe"]["digest"]
    if not recorded["bug_id"]:
        return _scenario_of_a_law(recorded, catalog), "the scenario inside the evidence", False
    same = [item for item in find_recipes(catalog, [recorded["target"]]) if item.bug_id == recorded["bug_id"]]
    for recipe in same:
        if recipe.digest == digest:
            return recipe, f"{recipe.path.name}, {digest[:19]}, of this catalog", False
    recipe = _embedded(recorded, catalog)
    if recipe.published:  # a published recipe does not name the pull request that may be needed to find its commits
        recipe = adopt_pins(recipe, {item.bug_id: item for item in same})
    other = any(recipe_digest(item) != recipe_digest(recipe) for item in same)
    return recipe, f"the copy inside the evidence{'; the recipe of this catalog differs' if same else ''}", other


def _scenario_of_a_law(recorded: dict[str, Any], catalog: Catalog) -> Recipe:
    """Return a recipe with the scenario that a search drew. Its law decides the verdict."""
    law = catalog.laws.get(str(recorded["law"]))
    if law is None:
        raise SentinelError(f"the evidence is of the law {recorded['law']!r}, which does not exist here")
    if "declared dialect" in recorded["reason"]:
        raise SentinelError(
            "the evidence is of a law that holds except for a declared dialect, which one scenario cannot show; search "
            "again with `pytest --sentinel-laws`"
        )
    if not recorded["recipe"]["document"] or recorded["verdict"] not in ("reproduced", "fixed"):
        raise SentinelError(
            "the evidence of a search has no scenario to run here; search again with `pytest --sentinel-laws`"
        )
    recipe = _embedded(recorded, catalog)
    return replace(
        recipe,
        bug_id="",
        title=law.statement,
        path=Path(f"{law.name}.yaml"),
        digest=recorded["recipe"]["digest"],
        expected_unpatched={},
        expected_fixed={},
        upstream={},
    )


def _embedded(recorded: dict[str, Any], catalog: Catalog) -> Recipe:
    try:
        recipe = load_copy(recorded["recipe"]["document"], catalog)
    except SentinelError as error:
        raise SentinelError(f"the recipe inside the evidence does not load here:\n{error}") from None
    if (recipe.bug_id if recorded["bug_id"] else "", recipe.target) != (recorded["bug_id"], recorded["target"]):
        raise SentinelError(
            f"the recipe inside the evidence is about {recipe.target} {recipe.bug_id}, but the evidence is about "
            f"{recorded['target']} {recorded['bug_id']}"
        )
    return recipe


def compared(recorded: dict[str, Any], decision: Decision) -> Verification:
    """Compare recorded evidence with the decision of a new run.

    In addition to :func:`~sentinel.reports.baseline.verify_report`, check that the other recorded fields follow from
    the recipe and the observation.
    """
    now = evidence(decision)
    verification = verify_report(recorded, now)
    if verification.differences:
        return verification
    wrong = contradictions(recorded, now)
    subjects = {name for name in ("commit", "tree", "file", "blob") if any(name in line for line in wrong)}
    rest = tuple(line for line in verification.circumstances if line.partition(":")[0] not in subjects)
    return replace(verification, differences=tuple(wrong), circumstances=rest)
