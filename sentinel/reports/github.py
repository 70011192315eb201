"""Write annotations and a job summary for GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sentinel.reports.escaping import message, visible
from sentinel.reports.markdown import markdown
from sentinel.reports.rows import MEANING, row

#: GitHub's limits: ten annotations of each kind per step, and a summary of one mebibyte.
MOST = 10
SUMMARY = 1_048_576

Results = Iterable[tuple[Mapping[str, Any], str]]


def workflow_commands(results: Results, trees: Mapping[str, Path], environ: Mapping[str, str]) -> list[str]:
    """Return a GitHub annotation for each failed item, at most ten. Outside of GitHub Actions, return none.

    :param trees: target -> the checked working tree. If it is in the workspace, the annotation has a file and line.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return []
    pairs = [(row(document, outcome), document) for document, outcome in results if outcome == "failed"]
    pairs.sort(key=lambda pair: pair[0])
    return [_command(item, document, trees, environ) for item, document in pairs[:MOST]]


def _command(item: Any, document: Mapping[str, Any], trees: Mapping[str, Path], environ: Mapping[str, str]) -> str:
    boundary = document["boundary"]
    line = boundary["line"] or 1
    place = boundary["file"] or "", line, boundary.get("end_line") or line
    tree = trees.get(item.target) if document["ref"] == "path" else None
    title = message(document["title"]) or MEANING[document["verdict"]]
    text = f"{item.target} at {item.ref}: {title}" + (f" ({item.reason})" if item.reason else "")
    return command("error", f"{item.what}: {item.verdict}", text, tree, place, environ)


def command(
    level: str, title: str, text: str, tree: Path | None, place: tuple[str, int, int], environ: Mapping[str, str]
) -> str:
    """Format a GitHub annotation, a line ``::error …`` of output.

    :param place: file below the tree, first and last line. They are omitted if the tree is not in the workspace.
    """
    properties, workspace = {"title": title}, environ.get("GITHUB_WORKSPACE")
    if tree is not None and workspace and place[0]:
        file = os.path.relpath(tree / place[0], workspace)
        if not file.startswith(".."):
            properties = {"file": file, "line": str(place[1]), "endLine": str(place[2]), **properties}
    parameters = ",".join(f"{name}={_escaped(value, True)}" for name, value in properties.items())
    return f"::{level} {parameters}::{_escaped(text)}"


def _escaped(text: str, in_property: bool = False) -> str:
    text = visible(text).replace("%", "%25")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


def add_to_summary(results: Results, environ: Mapping[str, str]) -> None:
    """Append the run's results to the summary of the GitHub Actions job."""
    file = environ.get("GITHUB_STEP_SUMMARY")
    if environ.get("GITHUB_ACTIONS") == "true" and file:
        append_to_summary(markdown(results), file)


def append_to_summary(text: str, file: str) -> None:
    """Append text to a job's summary. Do nothing if the summary is full or cannot be written."""
    try:
        with open(file, "a", encoding="utf-8") as stream:
            if stream.tell() + len(text.encode()) < SUMMARY:
                stream.write(text)
    except OSError:
        return  # the summary is optional; the verdicts are also in the report folder
