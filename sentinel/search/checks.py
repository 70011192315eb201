"""List the boundaries of a target that can be checked, each with its contract and laws."""

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
from sentinel.search.bindings import CheckoutTrees, Definitions
from sentinel.search.scenarios import NotSearchable, narrow
from sentinel.targets import Binding, Dialect, Registry, Target
from sentinel.targets.checkout import Checkout
from sentinel.worker.codes import read_source


@dataclass(frozen=True)
class Omission:
    """A boundary or law that is not searched, and why."""

    boundary: str
    law: str
    reason: str


def subjects(
    catalog: Catalog, target: str, boundaries: Sequence[str] = (), checkout: Checkout | None = None
) -> tuple[list[Subject], list[Omission]]:
    """Return the boundaries of a target with the laws to check, and what is left out and why.

    :param boundaries: globs for dotted paths or for their last part; empty for all boundaries.
    :param checkout: if given, add the functions that this checkout registers, and drop dialects that do not apply to
        it.
    """
    adapter = catalog.adapters[target]
    boundary_subjects: list[Subject] = []
    omitted: list[Omission] = []
    bindings = adapter.target.bindings
    if checkout is not None:
        bindings = _with_own_dialects(adapter.target, checkout)
    members = registered(adapter.target, checkout) if checkout is not None else []
    first = {binding.boundary: binding.contract for binding in reversed([*bindings, *members])}
    for binding in (*bindings, *members):
        if not matches(binding, boundaries):
            continue
        contract = catalog.contracts[binding.contract]
        try:
            own_contract = narrow(contract, binding)
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
            own_contract = _with_required(own_contract, contract, binding)
            of_contract = _family_laws(of_contract)
        laws = []
        for law in of_contract:
            if law.needs_oracle and contract.oracle is None and not law.oracle_optional:
                omitted.append(Omission(binding.boundary, law.name, f"the contract {contract.name} has no oracle"))
            else:
                laws.append(law)
        if laws:
            plain = first[binding.boundary] == binding.contract
            name = binding.boundary if plain else f"{binding.boundary}({binding.contract})"
            boundary_subjects.append(Subject(binding, own_contract, tuple(laws), str(adapter.file), name))
        elif not contract.laws:
            omitted.append(Omission(binding.boundary, "", f"the contract {contract.name} has no laws"))
    return boundary_subjects, omitted


def _with_own_dialects(target: Target, checkout: Checkout) -> tuple[Binding, ...]:
    if not any(dialect.since or dialect.until for binding in target.bindings for dialect in binding.dialects):
        return target.bindings
    code = Definitions(CheckoutTrees(checkout), target.roots)

    def applies(dialect: Dialect) -> bool:
        return (not dialect.since or code.has("", dialect.since)) and not (
            dialect.until and code.has("", dialect.until)
        )

    return tuple(replace(item, dialects=tuple(filter(applies, item.dialects))) for item in target.bindings)


def matches(binding: Binding, globs: Sequence[str]) -> bool:
    return not globs or any(
        matches_any(path, globs) or matches_any(path.rpartition(".")[2], globs) for path in binding.paths
    )


def matches_any(name: str, globs: Sequence[str]) -> bool:
    """Return True if the name matches a glob, or if there are no globs."""
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


# -- registered functions: a loss or estimator that a pull request registers is bound like the others of its registry --

#: Maximum number of functions that are bound for one registry. Searching more would take days.
_MOST = 100

#: Maximum number of characters of a signature that are read.
_LONGEST = 10_000

#: Maximum size in bytes of a file that is read. All modules of the frameworks are smaller.
_LARGEST = 1 << 20


def registered(target: Target, checkout: Checkout) -> list[Binding]:
    """Return bindings for functions that a checkout registers, for example by a decorator, and that the adapter does
    not bind.

    The files are only read, not imported. If such a name turns out not to be a function, calling it reports ``drift``.
    """
    bound = {path for binding in target.bindings for path in binding.paths}
    members: dict[str, Binding] = {}
    counts: Counter[Registry] = Counter()
    for registry, path, takes in _registrations(target, checkout):
        counts[registry] += 1
        if counts[registry] <= _MOST and path not in bound and path not in registry.excludes:
            like = target.binding(registry.like)
            member = target.binding(path, like.contract) if like is not None else None
            assert member is not None, "the catalog checks that `like` is bound"
            members[path] = replace(member, takes=takes)
    return list(members.values())


def _family_laws(laws: Iterable[Law]) -> list[Law]:
    """Return the laws that hold for every registered function, whatever it computes."""
    return [law for law in laws if not (law.needs_oracle or law.twin or law.by_algorithm)]


def _with_required(contract: Contract, whole: Contract, member: Binding) -> Contract:
    """Give the contract values to draw for the inputs that a registered function requires.

    Required parameters that are not inputs of the contract are left out, so that calls of the function raise.

    :param contract: the contract, narrowed to the registry's binding.
    :param whole: the contract before it was narrowed.
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


def _registrations(target: Target, checkout: Checkout) -> Iterator[tuple[Registry, str, tuple[str, ...]]]:
    """Yield (registry, dotted path, required parameters) for each registered function."""
    patterns = {registry: _registration_pattern(registry) for registry in target.registries}
    for root in checkout.roots:
        folder = checkout.path / root
        for file in sorted(folder.rglob("*.py")):
            content = b"" if file.is_symlink() else read_source(str(file), _LARGEST)
            there = [each for each in patterns if any(name.encode() in content for name in _names(each))]
            # Skip paths that cannot be imported, because pytest would print their characters in item names.
            parts = file.relative_to(folder).with_suffix("").parts
            if there and all(part.isidentifier() for part in parts):
                module = target.module_of(file.relative_to(checkout.path).as_posix())
                text = content.decode(errors="replace")
                defined = {match[1]: match.end() for match in re.finditer(r"^def (\w+)\(", text, re.M)}
                for registry in there:
                    names = (match[1] or match[2] for match in patterns[registry].finditer(text))
                    for name in names:
                        if name in defined:
                            yield registry, f"{module}.{name}", _required_parameters(text[defined[name] :][:_LONGEST])


def _required_parameters(text: str) -> tuple[str, ...]:
    """Return the parameters of a signature without default, and as ``name?`` those whose default is None.

    :param text: the source after the opening parenthesis.
    """
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


def _registration_pattern(registry: Registry) -> re.Pattern[str]:
    """Return a regular expression that finds registered functions in source text.

    It has two alternatives. The first is a call of the registry's decorator, then at most twenty other lines, then the
    function's ``def``. The second is a line that adds a function to the registry's table under a key.
    """
    decorated = rf"^@(?:\w+\.)*{re.escape(registry.decorator)}\(.*\n(?:(?!def |class |async ).*\n){{0,20}}?def (\w+)\("
    into = r"(?:\.register\([^,()]+,\s*(?:\w+=)?|\[[^\]\n]+\]\s*=\s*)"
    table = rf"^(?:\w+\.)*{re.escape(registry.table)}{into}(\w+)\s*[,)\n#]"
    return re.compile(f"{decorated}|{table}" if registry.table else f"{decorated}|(?!)()", re.M)
