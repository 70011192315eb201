"""What a worker answered, as a measurement that was proven here: the code that ran is the checkout's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from sentinel.checkout import Checkout
from sentinel.outcomes import Failure, Measurement, Provenance
from sentinel.targets import StandIn
from sentinel.worker import codes


def read_answer(answer: Mapping[str, Any], checkout: Checkout) -> Measurement | Failure:
    """A worker's answer as a measurement whose provenance was proven here, or as a failure."""
    try:
        if "failure" in answer:
            failure = answer["failure"]
            proven = failure.get("provenance")
            return Failure(
                str(failure["kind"]),
                str(failure["reason"]),
                str(failure["traceback"]),
                prove(proven, checkout) if proven else None,
                _asked(answer),
            )
        return Measurement(
            {str(variant): dict(values) for variant, values in answer["observation"].items()},
            prove(answer["provenance"], checkout),
            tuple(map(str, answer["ghosts"])),
            tuple(StandIn(str(name), str(reason)) for name, reason in answer["stand_ins"]),
            asked=_asked(answer),
        )
    except NotProvenError as error:
        return Failure("drift", str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Failure("crash", f"the probe's answer has not the form of one: {error!r}")


def _asked(answer: Mapping[str, Any]) -> tuple[str, ...] | None:
    return tuple(map(str, answer["asked"])) if "asked" in answer else None


class NotProvenError(Exception):
    """What was measured is not the checkout's code."""


def prove(claim: Mapping[str, Any], checkout: Checkout) -> Provenance:
    """Check that the measured code lies in the checkout, as it was put there, and take its blob id from the file."""
    from sentinel.sources.checkouts import files as made_with
    from sentinel.sources.trees import blob_id

    base = checkout.path.resolve()
    files = [Path(str(claim[name])).resolve() for name in ("module_file", "file")]
    for file in files:
        if not file.is_relative_to(base) or not file.is_file():
            raise NotProvenError(f"{claim['boundary']} was not loaded from the checkout but from {file.name}")
    made = made_with(checkout)
    content = files[1].read_bytes()
    blob = blob_id(content)
    name = files[1].relative_to(base).as_posix()
    if blob != made.get(name):
        raise NotProvenError(f"{name} is not what the checkout was made with; code that ran in it changed the file")
    if claim["magic"] == codes.MAGIC:
        for layer in claim["layers"]:
            _same_code(layer, base, made)
    return Provenance(
        boundary=str(claim["boundary"]),
        module=str(claim["module"]),
        file=name,
        line=int(claim["line"]),
        blob=blob,
        signature=str(claim["signature"]),
        code="same" if claim["magic"] == codes.MAGIC else "",
        end_line=_end_of(content, int(claim["line"])) if _is_source(files[1]) else 0,
    )


def _same_code(layer: Mapping[str, Any], base: Path, made: Mapping[str, str]) -> None:
    """That a layer of a boundary is what its file compiles to here, a third party's decorator too.

    :raises NotProvenError: where it is not.
    """
    from sentinel.sources.trees import blob_id

    file, line = Path(str(layer["file"])).resolve(), int(layer["line"])
    inside = file.is_relative_to(base)
    name = file.relative_to(base).as_posix() if inside else file.name
    content = file.read_bytes() if _is_source(file) else b""
    changed = inside and blob_id(content) != made.get(name)
    if changed or (line, str(layer["name"]), str(layer["digest"])) not in _compiled(content):
        raise NotProvenError(f"what was called is not the code of {name} at line {line}; something has replaced it")


def _is_source(file: Path) -> bool:
    """Whether a file can be read that the other side has named."""
    return file.suffix == ".py" and file.is_file() and file.stat().st_size <= _LARGEST_SOURCE


#: Bytes; the largest module of Python's own library has a quarter of a million.
_LARGEST_SOURCE = 4 << 20


@lru_cache(maxsize=256)
def _compiled(content: bytes) -> Mapping[tuple[int, str, str], CodeType]:
    """(line, name, digest) of everything that a file defines -> its code."""
    try:
        code = compile(content, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return {}
    return {(each.co_firstlineno, each.co_name, codes.digest(each)): each for each in codes.within(code)}


def _end_of(content: bytes, line: int) -> int:
    """The last line of what a file defines from this line on; 0 where there is no such."""
    found = [code for (first, *_), code in _compiled(content).items() if first == line]
    return max((codes.last_line(code) for code in found), default=0)
