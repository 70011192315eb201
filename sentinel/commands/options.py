"""Define the options that several commands share, and read settings and catalog for a command."""

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


#: Names of the options that determine how a target's code is found and run.
PROBING = ("recipes", "python", "repo-url", "device", "timeout", "sandbox")
#: Names of the options for folders of evidence: that of the last run, and the accepted baseline.
EVIDENCE = ("report-dir", "baseline")


def boundary_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--boundary``, which may be repeated."""
    help = "only these boundaries (dotted path or its last part)"
    parser.add_argument("--boundary", metavar="GLOB", action="append", default=[], help=help)


def settings_options(parser: argparse.ArgumentParser, *names: str, without: str = "") -> None:
    """Add the named settings to a command as options. By default, add :data:`PROBING` except ``without``."""
    for option in (NAMED[name] for name in names or PROBING if name != without):
        action = "append" if option.many else "store"
        parser.add_argument(f"--{option.name}", metavar=option.metavar, action=action, help=option.help)


def catalog_and_settings(arguments: argparse.Namespace | None = None) -> tuple[Catalog, Settings]:
    """Return the catalog and the settings, read from the command line and the current folder's settings file."""
    from sentinel.recipes.catalog import bundled_catalog

    catalog = _with_plugins(bundled_catalog())
    settings = _settled(arguments, (*PROBING, *EVIDENCE), list(catalog.adapters))
    return replace(catalog, recipe_folders=(*catalog.recipe_folders, *settings.recipes)), settings


#: Arguments of :func:`evidence_option` for the folder of a run.
RUN = ("report-dir", "a run's evidence", "sentinel-reports")


def evidence_option(parser: argparse.ArgumentParser, flag: str, option: str, text: str, default: str) -> None:
    """Add the option ``flag`` to a command. Its value is a folder of evidence, by default the setting ``option``."""
    text = f"{text} (default: the setting {option}, or else {default})"
    parser.add_argument(flag, dest=option.replace("-", "_"), metavar="DIR", help=text)


def evidence_folders(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Return the folder of the last run's evidence, and the folder of the baseline. Either folder may not exist."""
    settings = _settled(arguments, EVIDENCE, ())
    return settings.report_dir, settings.baseline or Path("reports")


def _settled(arguments: argparse.Namespace | None, names: Sequence[str], targets: Sequence[str]) -> Settings:
    """Read only the named options into settings. All other options have their defaults."""
    values, file = read_file(Path.cwd())
    line = {name: getattr(arguments, name.replace("-", "_"), None) for name in names}
    values = {name: value for name, value in values.items() if name in names}
    return settle(line, values, targets, file.parent if file else Path.cwd())


def target_named(catalog: Catalog, name: str) -> Target:
    """Return the target with this name.

    :raises SentinelError: if there is none; the message suggests the nearest name and lists all targets.
    """
    targets = catalog.targets
    if name not in targets:
        raise SentinelError(
            f"unknown target {name!r}{nearest(name, targets, alike=0.5)}; known: {', '.join(sorted(targets))}"
        )
    return targets[name]


def recipe_named(catalog: Catalog, bug: str) -> Recipe:
    """Return the recipe with this bug id.

    :raises SentinelError: if several recipes have this bug id, or if none has it; the message then suggests the nearest
        bug id.
    """
    recipes = find_recipes(catalog, (), [bug])
    if len(recipes) > 1:
        raise SentinelError(f"{bug!r} matches {len(recipes)} bugs; name one of them")
    return recipes[0]


def _with_plugins(catalog: Catalog) -> Catalog:
    """Return the catalog with the contracts, laws and adapters of installed plugins added.

    Pytest imports all of its plugins; a command imports only those whose distribution requires Sentinel.
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
                raise SentinelError(
                    f"plugin {entry.name} cannot be imported: {type(error).__name__}: {error}"
                ) from error


def _required(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match.group() if match else ""
