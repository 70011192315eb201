"""Read the recorded evidence of one recipe, for several commands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.commands.console import print_error
from sentinel.errors import SentinelError
from sentinel.recipes import Recipe
from sentinel.reports.store import file_name, recorded


def evidence_of(recipe: Recipe, folder: Path) -> Collection[Mapping[str, Any]]:
    """Return all evidence of a recipe in a folder. Print an error for each unreadable file, and skip it."""
    place = PurePosixPath(file_name(recipe.target), file_name(recipe.bug_id))
    try:
        return recorded(folder, under=place, on_error=print_error).values()
    except SentinelError as error:  # a file of lines that cannot be parsed
        print_error(str(error))
        return ()
