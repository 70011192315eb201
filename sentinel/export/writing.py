"""The files of a contribution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from sentinel.errors import SentinelError
from sentinel.export.contribution import Contribution
from sentinel.export.exporting import Bundle
from sentinel.export.page import comment, page
from sentinel.reports.evidence import dumps
from sentinel.reports.store import own, write_below

#: Files of an earlier one that this one may not have.
_OWN = ("PULL_REQUEST.md", "COMMENT.md", "recipe.json", "run_validation.py", "evidence.json")


def write(out: Path, made: Contribution, bundles: Sequence[Bundle]) -> Path:
    """Write the files into the bug's folder; those of an earlier contribution that are not among them go.

    :returns: the bug's folder.
    :raises SentinelError: where it cannot be written.
    """
    bundle, otherwise = bundles[0], "choose another with --out"
    folder = own(out, PurePosixPath(bundle.recipe.bug_id))
    files = {"PULL_REQUEST.md": page(made), "COMMENT.md": comment(made), "evidence.json": dumps(made.document)}
    if bundle.runner is not None:
        files["run_validation.py"] = bundle.runner.text
        if bundle.test and not (made.fix and made.fix.regression):
            files[bundle.test_name] = bundle.test
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in {*_OWN, bundle.test_name} - files.keys():
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise SentinelError(f"cannot write {folder}: {error.strerror}; {otherwise}") from error
    for name, text in files.items():
        write_below(folder, name, text, otherwise)
    return folder
