"""Bind what a revision registers: a loss or an estimator that a pull request adds has its family's meaning that day."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from sentinel.laws.law import Law
from sentinel.targets import Binding, Registry, Target
from sentinel.targets.checkout import Checkout
from sentinel.worker.codes import read_source

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
    taken: Counter[Registry] = Counter()
    for registry, path in _entries(target, checkout):
        taken[registry] += 1
        if taken[registry] <= _MOST and path not in named and not target.reason_against(path):
            like = target.binding(registry.like)
            member = target.binding(path, like.contract) if like is not None else None
            assert member is not None, "the catalog has looked whether it is bound"
            found[path] = member
    return list(found.values())


def of_every_member(laws: Iterable[Law]) -> list[Law]:
    """The laws that every member of a family keeps, whatever it computes."""
    return [law for law in laws if not (law.needs_oracle or law.twin or law.by_algorithm)]


def _entries(target: Target, checkout: Checkout) -> Iterator[tuple[Registry, str]]:
    """Dotted paths of the functions that are registered in their own module; each file is read once."""
    put = {registry: _put(registry) for registry in target.registries}
    for root in checkout.roots:
        folder = checkout.path / root
        for file in sorted(folder.rglob("*.py")):
            content = b"" if file.is_symlink() else read_source(str(file), _LARGEST)
            there = [each for each in put if any(name.encode() in content for name in _names(each))]
            # What cannot be imported is left out: it would go into the names of items, and so to terminals.
            parts = file.relative_to(folder).with_suffix("").parts
            if there and all(part.isidentifier() for part in parts):
                module = target.module_of(file.relative_to(checkout.path).as_posix())
                text = content.decode(errors="replace")
                defined = set(re.findall(r"^def (\w+)\(", text, re.M))
                for registry in there:
                    names = (match[1] or match[2] for match in put[registry].finditer(text))
                    yield from ((registry, f"{module}.{name}") for name in names if name in defined)


def _names(registry: Registry) -> list[str]:
    return list(filter(None, (registry.decorator, registry.table)))


def _put(registry: Registry) -> re.Pattern[str]:
    """A decorator's call, up to twenty lines of what else stands over the function, and the function's name; or a
    function that is put into the table by its name."""
    decorated = rf"^@(?:\w+\.)*{re.escape(registry.decorator)}\(.*\n(?:(?!def |class |async ).*\n){{0,20}}?def (\w+)\("
    into = r"(?:\.register\([^,()]+,\s*(?:\w+=)?|\[[^\]\n]+\]\s*=\s*)"
    table = rf"^(?:\w+\.)*{re.escape(registry.table)}{into}(\w+)\s*[,)\n#]"
    return re.compile(f"{decorated}|{table}" if registry.table else f"{decorated}|(?!)()", re.M)
