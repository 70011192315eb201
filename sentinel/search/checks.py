"""What there is to check: every boundary of a target, with its contract and the laws of that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from sentinel.contracts.contract import REQUIRED, Contract, Input
from sentinel.deciding.law_session import Subject
from sentinel.errors import SentinelError, nearest
from sentinel.laws.law import Law
from sentinel.recipes.catalog import Catalog
from sentinel.search.scenarios import NotSearchable, narrowed
from sentinel.targets import Binding, Registry, Target
from sentinel.targets.checkout import Checkout
from sentinel.worker.codes import read_source


@dataclass(frozen=True)
class Omission:
    """A boundary, or a law of it, that is not searched, with the reason."""

    boundary: str
    law: str
    reason: str


def subjects(
    catalog: Catalog, target: str, boundaries: Sequence[str] = (), checkout: Checkout | None = None
) -> tuple[list[Subject], list[Omission]]:
    """Give the boundaries of a target, each with the laws it must keep, in the adapter's order; and what is left out.

    :param boundaries: globs over dotted paths (or their last part); empty for all.
    """
    adapter = catalog.adapters[target]
    boundary_subjects: list[Subject] = []
    omitted: list[Omission] = []
    bindings = adapter.target.bindings
    members = registered(adapter.target, checkout) if checkout is not None else []
    first = {binding.boundary: binding.contract for binding in reversed([*bindings, *members])}
    for binding in (*bindings, *members):
        if not matches(binding, boundaries):
            continue
        contract = catalog.contracts[binding.contract]
        try:
            narrow = narrowed(contract, binding)
        except NotSearchable as error:
            omitted.append(Omission(binding.boundary, "", str(error)))
            continue
        for name in contract.laws:
            if name not in catalog.laws:
                raise SentinelError(
                    f"the contract {contract.name} has an unknown law {name!r}{nearest(name, catalog.laws)}"
                )
        of_contract = [catalog.laws[name] for name in contract.laws]
        if binding.like:
            narrow = with_more(narrow, contract, binding)
            of_contract = of_every_member(of_contract)
        laws = []
        for law in of_contract:
            if law.needs_oracle and contract.oracle is None and not law.oracle_optional:
                omitted.append(Omission(binding.boundary, law.name, f"the contract {contract.name} has no oracle"))
            else:
                laws.append(law)
        if laws:
            plain = first[binding.boundary] == binding.contract
            name = binding.boundary if plain else f"{binding.boundary}({binding.contract})"
            boundary_subjects.append(Subject(binding, narrow, tuple(laws), str(adapter.file), name))
        elif not contract.laws:
            omitted.append(Omission(binding.boundary, "", f"the contract {contract.name} has no laws"))
    return boundary_subjects, omitted


def matches(binding: Binding, globs: Sequence[str]) -> bool:
    return not globs or any(any_of(path, globs) or any_of(path.rpartition(".")[2], globs) for path in binding.paths)


def any_of(name: str, globs: Sequence[str]) -> bool:
    """Say whether a name matches one of the globs; everything does where there are none."""
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


# -- what a revision registers: a loss or an estimator that a pull request adds has its family's meaning that day --

#: Members of a family: a head that registers more wants to be searched for days.
_MOST = 100

#: Letters of a signature that are looked at.
_LONGEST = 10_000

#: Bytes of a file that is looked at: no module of a framework is larger, and each is read once per family.
_LARGEST = 1 << 20


def registered(target: Target, checkout: Checkout) -> list[Binding]:
    """Give bindings of the functions that a checkout registers and that the adapter does not name.

    Only text is looked at, line by line: nothing is imported, and a name that is no function there is a drift later.
    """
    bound = {path for binding in target.bindings for path in binding.paths}
    members: dict[str, Binding] = {}
    counts: Counter[Registry] = Counter()
    for registry, path, takes in _entries(target, checkout):
        counts[registry] += 1
        if counts[registry] <= _MOST and path not in bound and path not in registry.excludes:
            like = target.binding(registry.like)
            member = target.binding(path, like.contract) if like is not None else None
            assert member is not None, "the catalog has looked whether it is bound"
            members[path] = replace(member, takes=takes)
    return list(members.values())


def of_every_member(laws: Iterable[Law]) -> list[Law]:
    """Give the laws that every member of a family keeps, whatever it computes."""
    return [law for law in laws if not (law.needs_oracle or law.twin or law.by_algorithm)]


def with_more(contract: Contract, whole: Contract, member: Binding) -> Contract:
    """Draw the inputs that a member must be given although its family fixes them.

    A member that takes something the contract does not have is refused when it is called.

    :param contract: the contract as the family narrows it.
    """
    own = {name: item for item in contract.inputs for name in (item.name, *member.arguments.get(item.name, ()))}
    inputs: dict[str, Input] = {item.name: item for item in contract.inputs}
    for parameter in member.takes:
        item = own.get(parameter)
        if item is None or item.domain or item.choices or parameter in member.constants:
            continue
        original = whole.input(item.name)
        if original is not None and original.domain:
            inputs[original.name] = replace(original, default=REQUIRED)
    return replace(contract, inputs=tuple(inputs.values()))


def _entries(target: Target, checkout: Checkout) -> Iterator[tuple[Registry, str, tuple[str, ...]]]:
    """Give dotted paths of the functions that are registered in their own module, each with the parameters that it
    must be given; each file is read once."""
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
                defined = {match[1]: match.end() for match in re.finditer(r"^def (\w+)\(", text, re.M)}
                for registry in there:
                    names = (match[1] or match[2] for match in put[registry].finditer(text))
                    for name in names:
                        if name in defined:
                            yield registry, f"{module}.{name}", _taken(text[defined[name] :][:_LONGEST])


def _taken(text: str) -> tuple[str, ...]:
    """Give the parameters without a default, or with None (``name?``), of a signature that begins behind its
    bracket."""
    parts, depth = [""], 0
    for letter in re.sub(r"#.*", "", text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            break
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    names = (re.fullmatch(r"\s*(\w+)\s*(?::[^=]*)?(=\s*None\s*)?", part) for part in parts)
    return tuple(match[1] + ("?" if match[2] else "") for match in names if match is not None)


def _names(registry: Registry) -> list[str]:
    return list(filter(None, (registry.decorator, registry.table)))


def _put(registry: Registry) -> re.Pattern[str]:
    """Match a decorator's call, up to twenty lines of what else stands over the function, and the function's name; or
    a function that is put into the table by its name."""
    decorated = rf"^@(?:\w+\.)*{re.escape(registry.decorator)}\(.*\n(?:(?!def |class |async ).*\n){{0,20}}?def (\w+)\("
    into = r"(?:\.register\([^,()]+,\s*(?:\w+=)?|\[[^\]\n]+\]\s*=\s*)"
    table = rf"^(?:\w+\.)*{re.escape(registry.table)}{into}(\w+)\s*[,)\n#]"
    return re.compile(f"{decorated}|{table}" if registry.table else f"{decorated}|(?!)()", re.M)
