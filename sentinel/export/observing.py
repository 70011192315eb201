"""What a runner and a regression test share: a function that calls the boundary and gives what was observed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from sentinel.export.literals import scalar
from sentinel.export.program import Merged, Program, ProgramError, joined, merged, only, parsed, reaching
from sentinel.export.rendering import Body, Imports, mentioned
from sentinel.export.slicing import Followed, Slicer
from sentinel.export.specialising import specialised
from sentinel.export.wrapping import wrapped
from sentinel.recipes import Recipe
from sentinel.recipes.addresses import parse_address
from sentinel.targets import Binding
from sentinel.values import plain


@dataclass(frozen=True)
class Pieces:
    """What a runner is cut out of, where it is no traced program.

    :ivar given: the inputs that the boundary must be able to take.
    :ivar special: whether what is cut out is then written for the recipe's scenarios alone.
    """

    followed: Followed
    binding: Binding
    measure: FunctionType
    given: tuple[str, ...]
    packages: tuple[str, ...]
    special: bool = False


@dataclass(frozen=True)
class Subject:
    """What a runner is about.

    :ivar name: the target's.
    :ivar boundary: the dotted path that was found.
    :ivar import_roots: what goes on ``sys.path``, relative to the checkout.
    :ivar versions: package that may be missing -> the version that the target insists on.
    :ivar more_stubs: packages that turned out to be imported too, by code that loads its modules lazily.
    :ivar programs: variant -> program as the worker sent it, of each revision (base, then head where there is one).
    :ivar pieces: what to cut the runner out of, in the place of programs.
    :ivar requires: dotted paths without which a checkout is not about the bug, where one of the revisions lacks them.
    """

    recipe: Recipe
    name: str
    repository: str
    boundary: str
    import_roots: tuple[str, ...]
    versions: Mapping[str, str]
    programs: Sequence[Mapping[str, Mapping[str, Any]]]
    more_stubs: tuple[str, ...] = ()
    pieces: Pieces | None = None
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observing:
    """The part that a runner and a regression test share.

    :ivar function: the lines of ``observe``, or of one such function a variant.
    :ivar addresses: the expected addresses that it can tell.
    :ivar untold: the other ones, with the reason.
    :ivar variants: variant -> the call that observes it.
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
        that tell the bug from its fix; what is cut out of an adapter has one step more.
    :raises ProgramError: where nothing that tells the bug from its fix can be written down.
    """
    recipe = subject.recipe
    if subject.pieces is not None:
        return _cut(subject, subject.pieces, brevity)
    keys, untold = _tellable(recipe, subject.programs, brevity)
    addresses = tuple(address for address in _addresses(recipe, brevity) if address not in untold)
    told = {variant for address in addresses for variant in parse_address(address, tuple(recipe.variants)).variants}
    wanted = [name for name in recipe.variants if name in told]
    imports = Imports()
    functions: list[_Function] = []
    try:
        functions.append(_function(subject, "observe", wanted, keys, imports))
    except ProgramError:  # one function cannot do for all of them: each has its own
        if len(wanted) == 1:
            raise
        imports = Imports()
        functions = [_function(subject, f"observe_{_word(name)}", [name], keys, imports) for name in wanted]
    lines = "\n\n\n".join("\n".join(item.lines) for item in functions)
    return Observing(
        tuple(lines.split("\n")),
        addresses,
        untold,
        {name: call for item in functions for name, call in item.calls.items()},
        imports,
        _import_order(line for item in functions for line in item.body.standard),
        tuple(sorted({name for item in functions for name in item.body.third})),
        tuple(dict.fromkeys(text for item in functions for text in item.body.classes.values())),
        tuple(sorted({*(stub for item in functions for stub in item.stubs), *subject.more_stubs})),
    )


@dataclass(frozen=True)
class _Function:
    """:ivar calls: variant -> the call that observes it."""

    lines: tuple[str, ...]
    calls: Mapping[str, str]
    body: Body
    stubs: tuple[str, ...]


def _function(subject: Subject, name: str, variants: Sequence[str], keys: Sequence[str], imports: Imports) -> _Function:
    """One function that observes these variants at every revision.

    :raises ProgramError: where they differ in more than values.
    """
    revisions = [_merged(subject.recipe, programs, variants, keys) for programs in subject.programs]
    merged_program = joined(revisions[0], revisions[1]) if len(revisions) > 1 else revisions[0]
    body = Body(merged_program, imports)
    observed = body.write()
    returned = "{" + ", ".join(f"{scalar(key)}: {text}" for key, text in observed.items()) + "}"
    lines = [*body.lines, wrapped(f"return {returned}")]
    parameters = merged_program.parameters
    calls = {
        variant: f"{name}({', '.join(f'{p.name}={body.text(p.values[index])}' for p in parameters)})"
        for index, variant in enumerate(variants)
    }
    header = f"def {name}({', '.join(p.name for p in parameters)}):"
    text = (header, *(f"    {line}" for item in lines for line in item.split("\n")))
    return _Function(text, calls, body, merged_program.program.stubs)


def _cut(subject: Subject, pieces: Pieces, brevity: int) -> Observing:
    """The same from the adapter's own code, which tells everything; its docstrings go first where it is long."""
    recipe = subject.recipe
    addresses = tuple(_required(_addresses(recipe, max(brevity - 1, 0))))
    told = {variant for address in addresses for variant in parse_address(address, tuple(recipe.variants)).variants}
    wanted = {name: recipe.variants[name] for name in recipe.variants if name in told}
    scenarios = list(wanted.values())
    seen, special = pieces.followed, pieces.special
    told_all = brevity == 0 and not special
    slicer = Slicer(seen, pieces.binding, pieces.given, scenarios, pieces.packages, told_all, special)
    body = Body(Merged(Program((), {})), slicer.slice.imports)
    first = scenarios[0]
    varied = [name for name in first if any(inputs[name] != first[name] for inputs in wanted.values())]
    shared = {name: body.literal(value) for name, value in first.items() if name not in varied}
    function = slicer.observe(pieces.measure, shared, varied, named=pieces.special)
    definitions = slicer.slice.definitions
    calls = {
        variant: f"observe({', '.join(f'{name}={body.literal(inputs[name])}' for name in varied)})"
        for variant, inputs in wanted.items()
    }
    imports, standard, third = slicer.slice.imports, {*body.standard, *slicer.slice.standard}, slicer.slice.third
    if pieces.special:
        keys = {parse_address(address, tuple(recipe.variants)).key for address in addresses}
        held = {f"inspect.signature({slicer.function}).parameters": seen.parameters}
        some = [name for name in varied if all(inputs[name] is not None for inputs in scenarios)]
        definitions, function, short = specialised(definitions, function, keys, imports.modules, held, some)
        imports = replace(imports, short=short)
        text = "\n".join([*definitions.values(), *function, *calls.values()])
        imports, standard = imports.read_by(text), {line for line in standard if mentioned(line.split()[-1], text)}
        third = {name for name in third if mentioned(name, text)}
    return Observing(
        tuple(function),
        addresses,
        {},
        calls,
        imports,
        _import_order(standard),
        tuple(sorted({*body.third, *third} - {"torch"})),
        tuple(definitions.values()),
        tuple(sorted({*pieces.followed.stubs, *subject.more_stubs})),
    )


def _import_order(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(lines), key=lambda line: (line.startswith("from"), line)))


def _word(text: str) -> str:
    return re.sub(r"\W", "_", text)


def _addresses(recipe: Recipe, brevity: int = 0) -> list[str]:
    """What the recipe expects; less of it where there is much."""
    every = list(dict.fromkeys([*recipe.expected_unpatched, *recipe.expected_fixed]))
    values = [a for a in every if parse_address(a, tuple(recipe.variants)).kind == "value"]
    if brevity == 0 or not values:
        return every
    return values if brevity == 1 else [address for address in values if _tells(recipe, address)] or every


def _required(addresses: list[str]) -> list[str]:
    """:raises ProgramError: where there are none."""
    if not addresses:
        raise ProgramError("the recipe gives no values; a law decides, which only Sentinel can")
    return addresses


def _tells(recipe: Recipe, address: str) -> bool:
    """Whether a value is another with the bug than without."""
    return bool(
        plain(_value(recipe.expected_unpatched.get(address))) != plain(_value(recipe.expected_fixed.get(address)))
    )


def _tellable(recipe: Recipe, revisions: Sequence[Mapping[str, Any]], brevity: int) -> tuple[list[str], dict[str, str]]:
    """The observation keys that can be told at every revision, and the addresses that cannot, with the reason.

    :raises ProgramError: where no address that tells the bug from its fix is left.
    """
    addresses = _required(_addresses(recipe, brevity))
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


def _merged(recipe: Recipe, programs: Mapping[str, Any], variants: Sequence[str], keys: Sequence[str]) -> Merged:
    """What these variants of the scenario do at one revision."""
    found = [parsed(programs[name]) for name in variants]
    found = [only(program, {key: reaching(program, key) for key in keys}) for program in found]
    return merged(found, [recipe.variants[name] for name in variants])
