"""What a runner and a regression test share: a function that calls the boundary and gives what was observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.export.program import Merged, ProgramError, joined, merged, only, parsed, reaching
from sentinel.export.rendering import Body, Imports, scalar, wrapped
from sentinel.recipes import Recipe
from sentinel.recipes.addresses import parse_address
from sentinel.values import plain


@dataclass(frozen=True)
class Subject:
    """What a runner is about.

    :ivar name: the target's.
    :ivar boundary: the dotted path that was found.
    :ivar import_roots: what goes on ``sys.path``, relative to the checkout.
    :ivar versions: package that may be missing -> the version that the target insists on.
    :ivar more_stubs: packages that turned out to be imported too, by code that loads its modules lazily.
    :ivar programs: variant -> program as the worker sent it, of each revision (base, then head where there is one).
    """

    recipe: Recipe
    name: str
    repository: str
    boundary: str
    import_roots: tuple[str, ...]
    versions: Mapping[str, str]
    programs: Sequence[Mapping[str, Mapping[str, Any]]]
    more_stubs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observing:
    """The part that a runner and a regression test share.

    :ivar function: the lines of ``observe``.
    :ivar addresses: the expected addresses that it can tell.
    :ivar untold: the other ones, with the reason.
    :ivar variants: variant -> the arguments of ``observe``, as text.
    """

    function: tuple[str, ...]
    addresses: tuple[str, ...]
    untold: Mapping[str, str]
    variants: Mapping[str, str]
    imports: Imports
    standard: tuple[str, ...]
    third: tuple[str, ...]
    classes: tuple[str, ...]
    stubs: tuple[str, ...]


def observing(subject: Subject, brevity: int = 0) -> Observing:
    """:param brevity: 0 for every address that the recipe expects, 1 without differences of others, 2 with those alone
        that tell the bug from its fix.
    :raises ProgramError: where nothing that tells the bug from its fix can be written down.
    """
    recipe = subject.recipe
    keys, untold = _tellable(recipe, subject.programs, brevity)
    subjects = [_merged(recipe, programs, keys) for programs in subject.programs]
    if len(subjects) > 1:
        subjects = [joined(subjects[0], subjects[1])]
    imports = Imports()
    body = Body(subjects[0], imports)
    observed = body.write()
    returned = "{" + ", ".join(f"{scalar(key)}: {text}" for key, text in observed.items()) + "}"
    lines = [*body.lines, wrapped(f"return {returned}")]
    parameters = subjects[0].parameters
    addresses = tuple(address for address in _addresses(recipe, brevity) if address not in untold)
    told = {variant for address in addresses for variant in parse_address(address, tuple(recipe.variants)).variants}
    variants = {
        name: ", ".join(f"{p.name}={body.text(p.values[index])}" for p in parameters)
        for index, name in enumerate(recipe.variants)
        if name in told
    }
    header = f"def observe({', '.join(p.name for p in parameters)}):"
    return Observing(
        (header, *(f"    {line}" for item in lines for line in item.split("\n"))),
        addresses,
        untold,
        variants,
        imports,
        tuple(sorted(body.standard)),
        tuple(sorted(body.third)),
        tuple(body.classes.values()),
        tuple(sorted({*subjects[0].program.stubs, *subject.more_stubs})),
    )


def _addresses(recipe: Recipe, brevity: int = 0) -> list[str]:
    """What the recipe expects; less of it where there is much."""
    every = list(dict.fromkeys([*recipe.expected_unpatched, *recipe.expected_fixed]))
    values = [a for a in every if parse_address(a, tuple(recipe.variants)).kind == "value"]
    if brevity == 0 or not values:
        return every
    return values if brevity == 1 else [address for address in values if _tells(recipe, address)] or every


def _tells(recipe: Recipe, address: str) -> bool:
    """Whether a value is another with the bug than without."""
    return bool(
        plain(_value(recipe.expected_unpatched.get(address))) != plain(_value(recipe.expected_fixed.get(address)))
    )


def _tellable(recipe: Recipe, revisions: Sequence[Mapping[str, Any]], brevity: int) -> tuple[list[str], dict[str, str]]:
    """The observation keys that can be told at every revision, and the addresses that cannot, with the reason.

    :raises ProgramError: where no address that tells the bug from its fix is left.
    """
    addresses = _addresses(recipe, brevity)
    if not addresses:
        raise ProgramError("the recipe gives no values; a law decides, which only Sentinel can")
    keys: dict[str, None] = {}
    untold: dict[str, str] = {}
    for address in addresses:
        key = parse_address(address, tuple(recipe.variants)).key
        try:
            for programs in revisions:
                for traced in programs.values():
                    reaching(parsed(traced), key)
        except ProgramError as error:
            untold[address] = str(error)
        else:
            keys[key] = None
    if not any(_tells(recipe, address) for address in addresses if address not in untold):
        raise ProgramError(next(iter(untold.values())))
    return list(keys), untold


def _value(expected: Any) -> Any:
    return None if expected is None else expected.value


def _merged(recipe: Recipe, programs: Mapping[str, Any], keys: Sequence[str]) -> Merged:
    """What all variants of the scenario do at one revision."""
    variants = [parsed(programs[name]) for name in recipe.variants]
    variants = [only(program, {key: reaching(program, key) for key in keys}) for program in variants]
    return merged(variants, list(recipe.variants.values()))
