"""Check that the function that a worker measured was loaded from an unchanged file of the checkout.

A path from a worker is never opened, and a checkout's source is parsed only in a contained process. The evidence file
has the function's dotted path, its file and the file's blob id. ``docs/SECURITY.md`` explains what they prove.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from sentinel.deciding.outcomes import Failure, Measurement, Provenance
from sentinel.sources.checkouts import files
from sentinel.sources.trees import SOURCE_LIMIT, blob_id
from sentinel.targets.checkout import Checkout
from sentinel.worker import codes, versions
from sentinel.worker.answers import Claim, Failed, Measured
from sentinel.worker.client import TargetProcess

#: Time limit in seconds for parsing one file: twenty times what the largest module of a framework takes.
_PATIENCE = 20.0

#: Maximum number of parsed sources in the cache.
_MOST_KNOWN = 256


@dataclass(frozen=True)
class Definitions:
    """The names and functions that a source file defines; see :func:`sentinel.worker.codes.describe`.

    :ivar spans: first line -> last line of each function.
    :ivar names: the defined names, with imports as ``name=origin``.
    :ivar parses: whether the target's Python can parse it.
    """

    spans: dict[int, int]
    names: frozenset[str] = frozenset()
    parses: bool = True


class Sources:
    """Parses source files of a checkout in a contained process, and caches the results."""

    def __init__(self, process: Callable[[], TargetProcess]) -> None:
        self._process = process
        self._outcomes: dict[bytes, Definitions | Failed] = {}

    def describe(self, source: bytes) -> Definitions:
        """Return the names and functions that a source file defines.

        :raises NotProvenError: if the process returns no result.
        """
        key = sha256(source).digest()
        outcome = self._outcomes.get(key) or self._ask(source)
        if isinstance(outcome, Definitions) or outcome.kind in ("timeout", "memory"):  # a second attempt would fail too
            self._outcomes[key] = outcome
            if len(self._outcomes) > _MOST_KNOWN:
                self._outcomes.pop(next(iter(self._outcomes)), None)
        if isinstance(outcome, Failed):
            raise NotProvenError(f"a source file of the checkout cannot be parsed: {outcome.reason}")
        return outcome

    def _ask(self, source: bytes) -> Definitions | Failed:
        answer = self._process().describe(source, _PATIENCE)
        # Tried again, because another process may be the cause.
        if isinstance(answer, Failed) and answer.kind in ("crash", "memory"):
            answer = self._process().describe(source, _PATIENCE)
        if isinstance(answer, Failed):
            return answer
        return Definitions(dict(answer.spans), frozenset(answer.names), not answer.error)


class NotProvenError(Exception):
    """Raised if the measured function is not from the checkout, or if this cannot be checked."""


def read_answer(
    answer: Measured | Failed, checkout: Checkout, sources: Sources, requires: Iterable[str] = ()
) -> Measurement | Failure:
    """Convert a worker's result to a measurement or a failure, after checking that it comes from the checkout's
    code."""
    try:
        if isinstance(answer, Failed):
            return failure_of(answer, checkout, sources, requires)
        proven = prove(answer.provenance, checkout, sources)
        return Measurement(answer.observation, proven, answer.ghosts, answer.stand_ins, questions=answer.questions)
    except NotProvenError as error:
        return Failure("drift", str(error))


def prove(claim: Claim, checkout: Checkout, sources: Sources) -> Provenance:
    """Check the worker's claim about the measured function, and return where the function is defined.

    :raises NotProvenError: if the code was loaded from elsewhere, or its file was changed after the checkout was made.
    """
    blobs = files(checkout)
    names = [_path_in_checkout(file, checkout) for file in (claim.module_file, claim.file)]
    for name, file in zip(names, (claim.module_file, claim.file)):
        if name not in blobs:
            raise NotProvenError(f"{claim.boundary} was not loaded from the checkout but from {os.path.basename(file)}")
    name, content = names[1], content_of(names[1], checkout)
    blob = blob_id(content)
    if blob != blobs[name]:
        raise NotProvenError(f"{name} was changed after the checkout was made, by code that ran in it")
    return Provenance(
        boundary=claim.boundary,
        module=claim.module,
        file=name,
        line=claim.line,
        blob=blob,
        signature=claim.signature,
        end_line=_definitions(name, content, sources).spans.get(claim.line, 0),
    )


def failure_of(
    failure: Failed, checkout: Checkout, sources: Sources, requires: Iterable[str], paths: Sequence[str] = ()
) -> Failure:
    """Convert a worker's failure, and correct its kind if the checkout's source contradicts it.

    The source contradicts *not in this version* if it defines every name in ``requires`` and at least one of ``paths``.

    :param requires: the names that the recipe or binding needs.
    :param paths: the dotted paths of the boundary; empty to check only ``requires``.
    """
    kind, reason = failure.kind, failure.reason
    # If the boundary was found, the adapter reported a missing option or estimator, which the source cannot confirm.
    if kind == "not-in-this-version" and failure.provenance is None:
        there = all(stands(path, checkout, sources) for path in requires)
        if there and (not paths or any(stands(path, checkout, sources) for path in paths)):
            kind, reason = "drift", f"the checkout defines the name that the worker could not find ({reason})"
    if kind == "python" and not _needs_another(failure, checkout, sources):
        kind, reason = "import", f"the checkout does not show that it needs another Python ({reason})"
    proven = prove(failure.provenance, checkout, sources) if failure.provenance is not None else None
    return Failure(kind, reason, failure.traceback, proven, failure.questions, failure.packages)


def _needs_another(failure: Failed, checkout: Checkout, sources: Sources) -> bool:
    """Return True if the file that caused a failure needs a Python version or a package that is not installed.

    There are three cases: this Python cannot parse the file; the file uses a newer standard-library name; or the file
    imports the missing name from the package that the failure names.
    """
    name = _path_in_checkout(failure.place, checkout)
    content = content_of(name, checkout) if name else b""
    if not content or versions.names_newer(content):
        return bool(content)
    defined = _definitions(name, content, sources)
    package, _, lacking = failure.lacks.partition(".")
    return not defined.parses or (bool(package) and package in versions.origins(lacking, defined.names))


def stands(path: str, checkout: Checkout, sources: Sources, trail: frozenset[str] = frozenset()) -> bool:
    """Return True if a checkout's source defines the object at a dotted path.

    The path is that of a module, of a name in a module, or of a class field. With ``(parameter)`` at the end, it is
    that of a parameter. Imports are followed; inherited names are not found.

    :param trail: the paths whose imports led to this path. They are not followed again.
    """
    place = module_in(path.partition("(")[0], checkout)
    if place is None or path in trail:
        return False
    module, file = place
    rest = path[len(module) + 1 :]
    names = _definitions(file, content_of(file, checkout), sources).names if rest else frozenset({""})
    if rest in names:
        return True
    first = rest.partition(".")[0].partition("(")[0]
    for name, _, origin in (name.partition("=") for name in names if name.startswith((f"{first}=", "*="))):
        base = origin.partition(":")[0]
        up = len(base) - len(base.lstrip("."))
        package = module.split(".") if file.endswith("/__init__.py") else module.split(".")[:-1]
        whole = [*package[: len(package) - up + 1], base.lstrip(".")] if up else [base]
        below = rest if name == "*" else origin.partition(":")[2] + rest[len(first) :]
        if stands(".".join(filter(None, (*whole, below))), checkout, sources, trail | {path}):
            return True
    return False


def module_in(path: str, checkout: Checkout) -> tuple[str, str] | None:
    """Return the longest prefix of a dotted path that is a module of the checkout, and its file; None if there is
    none."""
    blobs, parts = files(checkout), path.split(".")
    for end in range(len(parts), 0, -1):
        for root in checkout.import_roots:
            for tail in (".py", "/__init__.py"):
                name = (root.relative_to(checkout.path) / ("/".join(parts[:end]) + tail)).as_posix()
                if name in blobs:
                    return ".".join(parts[:end]), name
    return None


def _path_in_checkout(file: str, checkout: Checkout) -> str:
    """Return a path relative to the checkout; empty if it lies outside. Links are resolved, but no file is opened."""
    base = os.path.realpath(checkout.path)
    if os.pardir in file.split(os.sep) or not file.startswith((f"{checkout.path}{os.sep}", f"{base}{os.sep}")):
        return ""
    real = os.path.realpath(file)
    return real[len(base) + 1 :] if real.startswith(f"{base}{os.sep}") else ""


def content_of(name: str, checkout: Checkout) -> bytes:
    """Return the current content of one of the checkout's files."""
    return codes.read_source(os.path.join(os.path.realpath(checkout.path), name), SOURCE_LIMIT)


def _definitions(name: str, content: bytes, sources: Sources) -> Definitions:
    small = name.endswith(".py") and len(content) <= codes.LARGEST_SOURCE
    return sources.describe(content) if small else Definitions({}, parses=False)
