"""The refs and dotted paths that a recipe names: pins, watched refs, and what a version must have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes.core_schema import Place
from sentinel.recipes.findings import Findings
from sentinel.recipes.literals import inside
from sentinel.recipes.recipe import Pin
from sentinel.targets import Target
from sentinel.targets.refs import Ref

_PARAMETER = re.compile(r"(.*)\(([A-Za-z_][A-Za-z0-9_]*)\)")


def read_pins(findings: Findings, written: Iterable[Mapping[str, Any]], target: Target | None) -> tuple[Pin, ...]:
    """Pins with their verdicts. A moving ref is an error: it would mean something else tomorrow."""
    pins: list[Pin] = []
    for index, item in enumerate(written):
        place = ("pins", index, "ref")
        ref = _ref(findings, item["ref"], place)
        if ref is None:
            continue
        if not ref.immutable:
            moving = ref.kind in ("git", "pypi")
            way = "moving refs belong in watch:" if moving else "what lies on one machine is no pin;"
            message = f"{ref} is not immutable; {way} a pin is git:<all 40 hex digits> or pypi:<version>"
            findings.error(place, message)
        if ref.kind == "pypi" and target is not None and target.pypi is None:
            findings.error(place, f"{ref}: target {target.name} has no releases on PyPI")
        if any(pin.ref == ref for pin in pins):
            findings.error(place, f"{ref} is pinned twice")
        pins.append(Pin(ref, item["expect"], item.get("note", "").strip()))
    return tuple(pins)


def read_watch(findings: Findings, written: Iterable[str]) -> tuple[Ref, ...]:
    """Refs that are decided only when asked for; moving ones are what this is for."""
    refs: list[Ref] = []
    for index, text in enumerate(written):
        ref = _ref(findings, text, ("watch", index))
        if ref is not None and ref.kind not in ("git", "pypi"):
            message = f"{ref.kind}: means something else on each machine; watch git: or pypi: refs"
            findings.error(("watch", index), message)
        elif ref is not None:
            refs.append(ref)
    return tuple(refs)


def read_requires(findings: Findings, written: str | list[str], target: Target) -> tuple[str, ...]:
    """Dotted paths inside the target's packages, with ``(parameter)`` at the end for a parameter of a function."""
    listed = [written] if isinstance(written, str) else written
    for index, path in enumerate(listed):
        match = _PARAMETER.fullmatch(path)
        problem = inside(match.group(1) if match else path, target.packages)
        if problem:
            findings.error(("requires",) if isinstance(written, str) else ("requires", index), f"requires: {problem}")
    return tuple(listed)


def _ref(findings: Findings, text: str, place: Place) -> Ref | None:
    try:
        return Ref.parse(text)
    except SentinelError as error:
        findings.error(place, str(error))
        return None
