"""Bind what a revision registers: a loss or an estimator that a pull request adds has its family's meaning that day."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from sentinel.laws.law import Law
from sentinel.targets import Binding, Registry, Target
from sentinel.targets.checkout import Checkout

#: Members of a family: a head that registers more wants to be searched for days.
_MOST = 100

#: Bytes of a file that is looked at: no module of a framework is larger, and each is read once per family.
_LARGEST = 1 << 20


def registered(target: Target, checkout: Checkout) -> list[Binding]:
    """Bindings of the functions that a checkout registers and that the adapter does not name.

    Only text is looked at, line by line: nothing is imported, and a name that is no function there is a drift later.
    """
    named = {path for binding in target.bindings for path in binding.paths}
    found: dict[str, Binding] = {}
    for registry in target.registries:
        like = target.binding(registry.like)
        assert like is not None, f"{target.name} has no binding of {registry.like}"
        for path in islice(_entries(registry, checkout), _MOST):
            if path not in named and not target.reason_against(path):
                member = target.binding(path, like.contract)
                assert member is not None
                found[path] = member
    return list(found.values())


def of_every_member(laws: Iterable[Law]) -> list[Law]:
    """The laws that every member of a family keeps, whatever it computes."""
    return [law for law in laws if not (law.needs_oracle or law.twin or law.by_algorithm)]


def _entries(registry: Registry, checkout: Checkout) -> Iterator[str]:
    """Dotted paths of the functions below the registry's decorator."""
    decorated = re.compile(
        rf"^@(?:\w+\.)*{re.escape(registry.decorator)}\(.*\n(?:(?!def |class |async ).*\n){{0,20}}?def (\w+)\(", re.M
    )
    for root in checkout.roots:
        folder = checkout.path / root
        above = next(place for place in checkout.import_roots if folder.is_relative_to(place))
        for file in sorted(folder.rglob("*.py")):
            if file.is_symlink() or file.stat().st_size > _LARGEST:
                continue
            content, parts = file.read_bytes(), file.relative_to(above).with_suffix("").parts
            # What cannot be imported is left out: it would go into the names of items, and so to terminals.
            if registry.decorator.encode() in content and all(part.isidentifier() for part in parts):
                module = ".".join(parts).removesuffix(".__init__")
                for match in decorated.finditer(content.decode(errors="replace")):
                    yield f"{module}.{match[1]}"
