"""What there is to check: every boundary of a target, with its contract and the laws of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sentinel.deciding.law_session import Subject
from sentinel.errors import SentinelError, nearest
from sentinel.recipes.catalog import Catalog
from sentinel.search.registries import of_every_member, registered, with_more
from sentinel.search.scenarios import NotSearchable, narrowed
from sentinel.targets import Binding
from sentinel.targets.checkout import Checkout


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
    :param checkout: of which revision: with what that one registers.
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
            narrow = with_more(narrow, contract, binding, adapter.target.spellings)
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
