"""``sentinel export``: what an upstream pull request needs, as files that do without Sentinel."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.commands.console import command, counted, progress, say
from sentinel.commands.known import known, settings_options
from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sentinel.commands.console import Commands
    from sentinel.export.exporting import Bundle
    from sentinel.recipes import Recipe
    from sentinel.recipes.catalog import Catalog
    from sentinel.settings import Settings
    from sentinel.targets.refs import Ref

_EXAMPLE = """\
  sentinel export ROLL-AGGLOSS-TOKENMEAN-MASK                    pages, runner and test in export/<BUG>/
  sentinel export MY-BUG --recipes . --base git:<sha> --repo ~/src/verl    before, and with the fix in a working tree
  sentinel export VERL-REJECTED-ROW-GRPO --comment               a short comment for a thread, too
  sentinel export --all --out export                             every shipped recipe

Base and head are the recipe's first pins with the bug and without it. The runner and the test are tried at both, in a
process that holds torch, numpy and what the runner says it needs. Most of a runner is the same for every bug; its
docstring says which lines are not, and are to be read.
exit status: 0; 1 where a bug has no runner and test of its own, or they say something else; 2 it could not be run
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "export", _export, "write a bug for a pull request: page, runner, test", _EXAMPLE)
    parser.add_argument("bug", metavar="BUG", nargs="*", help="a bug id, or a pattern with *")
    parser.add_argument("--all", action="store_true", help="every recipe")
    parser.add_argument("--base", metavar="REF", help="where the bug is (default: the first pin that has it)")
    parser.add_argument("--head", metavar="REF", help="where it is not (default: the first pin without it)")
    parser.add_argument("--repo", metavar="DIR", help="a working tree that has the fix, in the place of --head")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("export"), help="default: export")
    parser.add_argument("--comment", action="store_true", help="also COMMENT.md, short enough for a thread")
    parser.add_argument(
        "--in-toto", action="store_true", help="also an in-toto statement of each evidence, to be signed"
    )
    parser.add_argument("--duplicates", action="store_true", help="look for the same bug, and say on the page where")
    settings_options(parser)
    parser.add_argument("--no-check", action="store_true", help="do not try the runner and the test")


def _export(arguments: argparse.Namespace) -> int:
    from sentinel.recipes import find_recipes
    from sentinel.targets.refs import Ref

    if bool(arguments.bug) == arguments.all:
        raise SentinelError("say which bug, or --all")
    if arguments.repo and arguments.head:
        raise SentinelError("--repo is the working tree that has the fix; it cannot be given with --head")
    catalog, settings = known(arguments)
    recipes = find_recipes(catalog, (), arguments.bug)
    base = Ref.parse(arguments.base) if arguments.base else None
    head = Ref.parse(arguments.head) if arguments.head else None
    if arguments.repo:
        head = Ref("path", str(Path(arguments.repo).expanduser().absolute()))
    with progress() as tell:
        return _all(arguments, catalog, settings, recipes, base, head, tell)


def _all(
    arguments: argparse.Namespace,
    catalog: Catalog,
    settings: Settings,
    recipes: Sequence[Recipe],
    base: Ref | None,
    head: Ref | None,
    tell: Callable[[str], None],
) -> int:
    from sentinel.deciding.runner import opener, options_of
    from sentinel.export.exporting import Exporter
    from sentinel.export.writing import write
    from sentinel.findings.duplicates import duplicates
    from sentinel.recipes import find_recipes
    from sentinel.sources import MirrorStore

    store = MirrorStore()
    opened = opener(settings, tell, store)
    exporters: dict[str, Exporter] = {}
    incomplete = 0
    try:
        for recipe in recipes:
            options = options_of(settings, recipe.target)
            exporter = exporters.setdefault(recipe.target, Exporter(catalog, opened, options, tell))
            bundle = exporter.export(recipe, *recipe.revisions(base, head), check=not arguments.no_check)
            sources = []
            if arguments.duplicates:
                tell(f"looking for {recipe.bug_id} elsewhere")
                sources = duplicates(recipe, find_recipes(catalog), catalog.targets[recipe.target], store)
            folder = write(arguments.out, bundle, catalog, arguments.comment, arguments.in_toto, sources)
            incomplete += not bundle.complete
            _tell(bundle, folder, arguments, catalog, len(recipes) > 1)
    finally:
        for exporter in exporters.values():
            exporter.close()
    if len(recipes) > 1:
        say(f"{counted(len(recipes) - incomplete, 'bug')} complete, {incomplete} not")
    return 1 if incomplete else 0


def _tell(bundle: Bundle, folder: Path, arguments: argparse.Namespace, catalog: Catalog, brief: bool) -> None:
    recipe = bundle.recipe
    if brief:
        say(f"{recipe.bug_id}: {_state(bundle)}")
        return
    verdicts = ", ".join(f"{side.name} {side.decision.verdict.name}" for side in bundle.sides)
    say(f"{folder}: {verdicts}")
    if not bundle.complete:
        say(_state(bundle))
    elif arguments.no_check:
        say("the runner and the test were not tried")
    for line in _next(recipe, folder, catalog, arguments.comment):
        say(line)


def _state(bundle: Bundle) -> str:
    return "complete" if bundle.complete else f"no runner or test: {bundle.reason}"


def _next(recipe: Recipe, folder: Path, catalog: Catalog, comment: bool) -> Sequence[str]:
    """The commands that bring the page upstream."""
    import shlex

    repository = catalog.targets[recipe.target].repository.removesuffix(".git").removeprefix("https://github.com/")
    page = shlex.quote(str(folder / "PULL_REQUEST.md"))
    title = shlex.quote(f"fix: {recipe.title}")
    pull = recipe.upstream.get("pull") or "NUMBER"
    text = shlex.quote(str(folder / ("COMMENT.md" if comment else "PULL_REQUEST.md")))
    return (
        f"gh pr create --repo {repository} --title {title} --body-file {page}",
        f"gh pr comment {pull} --repo {repository} --body-file {text}",
    )
