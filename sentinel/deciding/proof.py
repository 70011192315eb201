"""What a worker answered, as a measurement that was proven here: the code that ran is the checkout's own.

Nothing that a worker says is used as a path, and no foreign source is compiled in this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from sentinel.deciding.outcomes import Failure, Measurement, Provenance
from sentinel.sources.checkouts import files
from sentinel.sources.trees import SOURCE_LIMIT, blob_id
from sentinel.targets.checkout import Checkout
from sentinel.worker import codes, versions
from sentinel.worker.answers import Claim, Failed, Layer, Measured
from sentinel.worker.client import TargetProcess

#: Seconds for compiling one file: twenty times what the largest module of a framework takes.
_PATIENCE = 20.0

#: Sources that are kept, of those asked about last.
_MOST_KNOWN = 256


@dataclass(frozen=True)
class Definitions:
    """What a source defines.

    :ivar codes: (line, name, digest) of a code object -> its last line.
    :ivar names: what can be asked for by name: see :func:`sentinel.worker.codes.described`.
    :ivar compiles: whether it is Python, for the Python that was asked.
    """

    codes: dict[tuple[int, str, str], int]
    names: frozenset[str] = frozenset()
    compiles: bool = True


class Sources:
    """Compiles foreign source, by a process that is contained and ends, and keeps what that says."""

    def __init__(self, oracle: Callable[[], TargetProcess]) -> None:
        self._oracle = oracle
        self._outcomes: dict[bytes | str, Definitions | Failed] = {}

    def defined(self, source: bytes | str) -> Definitions:
        """Say what a source defines: of these bytes; or of a file as that process sees it, which is no checkout's."""
        key = sha256(source).digest() if isinstance(source, bytes) else source
        outcome = self._outcomes.get(key) or self._compile(source)
        if isinstance(outcome, Definitions) or outcome.kind in ("timeout", "memory"):  # it would take as long again
            self._outcomes[key] = outcome
            if len(self._outcomes) > _MOST_KNOWN:
                self._outcomes.pop(next(iter(self._outcomes)), None)
        if isinstance(outcome, Failed):
            raise NotProvenError(f"the source to compare with cannot be compiled: {outcome.reason}")
        return outcome

    def _compile(self, source: bytes | str) -> Definitions | Failed:
        answer = self._oracle().compiled(source, _PATIENCE)
        if isinstance(answer, Failed) and answer.kind in ("crash", "memory"):  # taken away, perhaps for another's sake
            answer = self._oracle().compiled(source, _PATIENCE)
        if isinstance(answer, Failed):
            return answer
        ends = {(line, name, digest): end for line, name, digest, end in answer.codes}
        return Definitions(ends, frozenset(answer.names), not answer.error)


class NotProvenError(Exception):
    """What was measured is not the checkout's code."""


def read_answer(
    answer: Measured | Failed, checkout: Checkout, sources: Sources, requires: Iterable[str] = ()
) -> Measurement | Failure:
    """Make a worker's answer a measurement whose provenance was proven here, or a failure."""
    try:
        if isinstance(answer, Failed):
            return failure_of(answer, checkout, sources, requires)
        proven = prove(answer.provenance, checkout, sources)
        return Measurement(answer.observation, proven, answer.ghosts, answer.stand_ins, questions=answer.questions)
    except NotProvenError as error:
        return Failure("drift", str(error))


def prove(claim: Claim, checkout: Checkout, sources: Sources) -> Provenance:
    """Prove that the measured code lies in the checkout, as it was put there, and take its blob id from the file."""
    blobs = files(checkout)
    names = [_name(file, checkout) for file in (claim.module_file, claim.file)]
    for name, file in zip(names, (claim.module_file, claim.file)):
        if name not in blobs:
            raise NotProvenError(f"{claim.boundary} was not loaded from the checkout but from {os.path.basename(file)}")
    name, content = names[1], content_of(names[1], checkout)
    blob = blob_id(content)
    if blob != blobs[name]:
        raise NotProvenError(f"{name} is not what the checkout was made with; code that ran in it changed the file")
    for layer in claim.layers:
        if layer.digest:
            _same_code(layer, checkout, blobs, sources)
    compared = bool(claim.layers) and all(layer.digest for layer in claim.layers)
    ends = [end for (line, *_), end in _definitions(name, content, sources).codes.items() if line == claim.line]
    return Provenance(
        boundary=claim.boundary,
        module=claim.module,
        file=name,
        line=claim.line,
        blob=blob,
        signature=claim.signature,
        code="same" if compared else "",
        end_line=max(ends, default=0),
    )


def _same_code(layer: Layer, checkout: Checkout, blobs: Mapping[str, str], sources: Sources) -> None:
    """Prove that a layer of a boundary, a third party's decorator too, is what its file compiles to."""
    name = _name(layer.file, checkout)
    if name:
        content = content_of(name, checkout)
        there = blob_id(content) == blobs.get(name) and _definitions(name, content, sources).codes
    else:
        there = layer.file.endswith(".py") and sources.defined(layer.file).codes
    if not there or (layer.line, layer.name, layer.digest) not in there:
        place = name or os.path.basename(layer.file)
        raise NotProvenError(
            f"what was called is not the code of {place} at line {layer.line}; something has replaced it"
        )


def failure_of(
    failure: Failed, checkout: Checkout, sources: Sources, requires: Iterable[str], paths: Sequence[str] = ()
) -> Failure:
    """Make a worker's failure ours: another one, where it says of the checkout what the checkout does not show.

    :param requires: what was asked for, all of which has to be there; of the ``paths``, one.
    """
    kind, reason = failure.kind, failure.reason
    # With a boundary that is proven it is the adapter's word, which no text can confirm: of an option, an estimator.
    if kind == "not-in-this-version" and failure.provenance is None:
        there = all(stands(path, checkout, sources) for path in requires)
        if there and (not paths or any(stands(path, checkout, sources) for path in paths)):
            kind, reason = "drift", f"the checkout has what it is said to lack ({reason})"
    if kind == "python" and not _needs_another(failure, checkout, sources):
        kind, reason = "import", f"the checkout does not show that it needs another Python ({reason})"
    proven = prove(failure.provenance, checkout, sources) if failure.provenance is not None else None
    return Failure(kind, reason, failure.traceback, proven, failure.questions, failure.packages)


def _needs_another(failure: Failed, checkout: Checkout, sources: Sources) -> bool:
    """Whether a file of the checkout is not Python here, names what a newer Python has, or imports the name that it
    lacks from the package that it is said to need."""
    name = _name(failure.place, checkout)
    content = content_of(name, checkout) if name else b""
    if not content or versions.names_newer(content):
        return bool(content)
    defined = _definitions(name, content, sources)
    package, _, lacking = failure.lacks.partition(".")
    return not defined.compiles or (bool(package) and package in versions.origins(lacking, defined.names))


def stands(path: str, checkout: Checkout, sources: Sources, trail: frozenset[str] = frozenset()) -> bool:
    """Whether the text of a checkout has what a dotted path names: a module, what one defines or imports, a field of a
    class; with ``(parameter)`` behind it, that of a function. What a class inherits is not seen.

    :param trail: what it was imported as, and is not looked for again.
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
    """Find the longest prefix of a dotted path that is a module of the checkout, and its file."""
    blobs, parts = files(checkout), path.split(".")
    for end in range(len(parts), 0, -1):
        for root in checkout.import_roots:
            for tail in (".py", "/__init__.py"):
                name = (root.relative_to(checkout.path) / ("/".join(parts[:end]) + tail)).as_posix()
                if name in blobs:
                    return ".".join(parts[:end]), name
    return None


def _name(file: str, checkout: Checkout) -> str:
    """Give the name of a checkout's file; empty where the path is none's. Links are looked through, nothing is
    opened."""
    base = os.path.realpath(checkout.path)
    if os.pardir in file.split(os.sep) or not file.startswith((f"{checkout.path}{os.sep}", f"{base}{os.sep}")):
        return ""
    real = os.path.realpath(file)
    return real[len(base) + 1 :] if real.startswith(f"{base}{os.sep}") else ""


def content_of(name: str, checkout: Checkout) -> bytes:
    """Return what a file of a checkout holds now."""
    return codes.read_source(os.path.join(os.path.realpath(checkout.path), name), SOURCE_LIMIT)


def _definitions(name: str, content: bytes, sources: Sources) -> Definitions:
    small = name.endswith(".py") and len(content) <= codes.LARGEST_SOURCE
    return sources.defined(content) if small else Definitions({}, compiles=False)
