"""What the commands know: the targets and recipes of Sentinel, of installed plugins, and of the user's settings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from sentinel.errors import SentinelError, nearest
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.settings import NAMED, Settings, read_file, settle
from sentinel.targets import Target

DISTRIBUTION = "rl-sentinel"


#: Seconds that a call which nobody has bound may take: on a few small tensors none does, unless it waits for another.
PATIENCE = 10.0

#: The options that say how a target's code is had and run, whatever is asked of it.
PROBING = ("recipes", "python", "repo-url", "device", "timeout", "sandbox")
#: Those that say where evidence lies: the last run's, and what was accepted.
EVIDENCE = ("report-dir", "baseline")


def settings_options(parser: argparse.ArgumentParser, *names: str, without: str = "") -> None:
    """Let a command take options of a run: those of these names, or all of :data:`PROBING` but one."""
    for option in (NAMED[name] for name in names or PROBING if name != without):
        action = "append" if option.many else "store"
        parser.add_argument(f"--{option.name}", metavar=option.metavar, action=action, help=option.help)


def catalog_and_settings(arguments: argparse.Namespace | None = None) -> tuple[Catalog, Settings]:
    """Give the catalog, and the settings of a command line over those of the current folder."""
    from sentinel.recipes.catalog import bundled_catalog

    catalog = _with_plugins(bundled_catalog())
    settings = _settled(arguments, (*PROBING, *EVIDENCE), list(catalog.adapters))
    return replace(catalog, recipe_folders=(*catalog.recipe_folders, *settings.recipes)), settings


#: What :func:`evidence_option` takes for the folder of a run.
RUN = ("report-dir", "a run's evidence", "sentinel-reports")


def evidence_option(parser: argparse.ArgumentParser, flag: str, option: str, text: str, default: str) -> None:
    """Let a command take one of :data:`EVIDENCE` in its own words; :func:`evidence_folders` gives what comes of it."""
    text = f"{text} (default: {option} of the settings, else {default})"
    parser.add_argument(flag, dest=option.replace("-", "_"), metavar="DIR", help=text)


def evidence_folders(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Give the folder of the last run's evidence and that of the accepted one, whether they are there or not."""
    settings = _settled(arguments, EVIDENCE, ())
    return settings.report_dir, settings.baseline or Path("reports")


def _settled(arguments: argparse.Namespace | None, names: Sequence[str], targets: Sequence[str]) -> Settings:
    """Settle these options alone, the command line over the current folder: a run's working tree or pattern of bugs
    there is not for commands."""
    values, file = read_file(Path.cwd())
    line = {name: getattr(arguments, name.replace("-", "_"), None) for name in names}
    values = {name: value for name, value in values.items() if name in names}
    return settle(line, values, targets, file.parent if file else Path.cwd())


def target_named(catalog: Catalog, name: str) -> Target:
    """:raises SentinelError: for an unknown name, with the nearest and the list."""
    targets = catalog.targets
    if name not in targets:
        raise SentinelError(
            f"unknown target {name!r}{nearest(name, targets, alike=0.5)}; known: {', '.join(sorted(targets))}"
        )
    return targets[name]


def recipe_named(catalog: Catalog, bug: str) -> Recipe:
    """Return the one recipe with this bug id.

    :raises SentinelError: if no recipe matches (the message names the nearest) or several do.
    """
    recipes = find_recipes(catalog, (), [bug])
    if len(recipes) > 1:
        raise SentinelError(f"{bug!r} matches {len(recipes)} bugs; name one of them")
    return recipes[0]


def _with_plugins(catalog: Catalog) -> Catalog:
    """Give the catalog with what installed plugins add.

    Pytest imports every plugin there is; a command imports those only whose distribution requires Sentinel.
    """

    def additions(plugin: Any, hook: str) -> list[Any]:
        function = getattr(plugin, f"pytest_sentinel_{hook}", None)
        return list(function() or ()) if function else []

    for name, plugin in _plugins():
        try:
            catalog = catalog.with_(
                adapters=additions(plugin, "adapters"),
                contracts=additions(plugin, "contracts"),
                laws=additions(plugin, "laws"),
                recipe_folders=additions(plugin, "recipe_folders"),
            )
        except SentinelError as error:
            raise SentinelError(f"plugin {name}: {error}") from None
    return catalog


def _plugins() -> Iterator[tuple[str, Any]]:
    for entry in metadata.entry_points(group="pytest11"):
        distribution = entry.dist
        if distribution is None or canonicalize_name(distribution.name) == DISTRIBUTION:
            continue
        if any(canonicalize_name(_required(line)) == DISTRIBUTION for line in distribution.requires or ()):
            try:
                yield entry.name, entry.load()
            except Exception as error:
                raise SentinelError(f"plugin {entry.name} does not import: {type(error).__name__}: {error}") from error


def _required(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match.group() if match else ""
