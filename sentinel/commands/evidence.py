"""Read the evidence of a recipe for a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.commands.console import complain
from sentinel.errors import SentinelError
from sentinel.recipes import Recipe
from sentinel.reports.store import below, file_name, load


def evidence_of(recipe: Recipe, folder: Path) -> Iterator[Mapping[str, Any]]:
    """Load a recipe's evidence from a folder. Files that cannot be read are reported on standard error."""
    for file in below(folder, PurePosixPath(file_name(recipe.target), file_name(recipe.bug_id))):
        try:
            yield load(file)
        except SentinelError as error:
            complain(str(error))
