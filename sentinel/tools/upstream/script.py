"""Write the runner ``run_validation.py``, a script that repeats a recipe's calls without Sentinel."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentinel.deciding.outcomes import Observation
from sentinel.recipes import Recipe
from sentinel.recipes.addresses import Address, parse_address
from sentinel.reports.escaping import message
from sentinel.values.closeness import mismatch
from sentinel.values.literals import FLOATS, Tensor, plain
from sentinel.values.tolerance import Tolerance

WIDTH = 116

#: The maximum number of lines of a runner: a maintainer should be able to review it.
MOST_LINES = 120

#: A recorded argument or result: see :mod:`sentinel.worker.recording`.
Node = list[Any]

#: Identifies a recorded call: its variant, and its number among the calls of that variant.
Place = tuple[str, int]

_SCRIPT = '''\
#!/usr/bin/env python3
"""{title}

    TARGET_REPO=/path/to/{target} python run_validation.py

Needs {packages}; no GPU.

{calls}
{derivation}
Exit status: 0 fixed, 1 reproduced, 3 neither, or the function could not be called.
"""
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from unittest.mock import MagicMock

{imports}

REPO = Path(os.environ["TARGET_REPO"]).resolve()
NOT_NEEDED = {stubs}  # imported by the package, not used by the function


class Stub(MagicMock):
    """Anything from a package of NOT_NEEDED; as a decorator it returns what it decorates."""

    def __call__(self, *positional, **named):
        decorates = len(positional) == 1 and isinstance(positional[0], (type, FunctionType)) and not named
        return positional[0] if decorates else super().__call__(*positional, **named)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty module for each package of NOT_NEEDED that is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NOT_NEEDED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = lambda attribute: Stub(name=f"{{spec.name}}.{{attribute}}")
        return module

    def exec_module(self, module):
        pass


def answer(status, **more):
    git = subprocess.run(["git", "-C", str(REPO), "rev-parse", "HEAD"], capture_output=True, text=True)
    commit = git.stdout.strip() or None
    found = {{"bug_id": "{bug}", "status": status, "commit": commit, **more}}
    print(json.dumps(found, indent=1))
    sys.exit({{"fixed": 0, "reproduced": 1}}.get(status, 3))


def close(found, expected):
    if expected is None or isinstance(expected, (str, dict)):
        return found == expected
    found, expected = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (found, expected))
    return found.shape == expected.shape and torch.allclose(found, expected, {tolerance}, equal_nan=True)


sys.meta_path.append(Stubs())  # last: installed packages come first
sys.path[:0] = [str(REPO / root) for root in {roots}]
try:
{from_upstream}

    file = Path(sys.modules["{module}"].__file__).resolve()
    assert file.is_relative_to(REPO), f"{{file}} is not in {{REPO}}"
except Exception as error:
    answer("unavailable", reason=f"{{type(error).__name__}}: {{error}}")
{instance}
{body}

status = "changed"  # neither the right values nor those of the bug
for place, side in enumerate(("fixed", "reproduced")):
    if all(close(observed[name], values[place]) for name, values in EXPECTED.items()):
        status = side
shown = {{name: value.tolist() if hasattr(value, "tolist") else value for name, value in observed.items()}}
right = {{name: values[0] for name, values in EXPECTED.items()}}
answer(status, file=str(file.relative_to(REPO)), observed=shown, expected=right)
'''

_INSTANCE = '''

def instance(kind, **attributes):
    """An instance with these attributes; its constructor does not run."""
    made = object.__new__(kind)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    vars(made).update(attributes)
    return made

'''


class NoRunner(Exception):
    """Raised if no runner can be written for a bug. The message is the reason."""


@dataclass(frozen=True)
class Case:
    """The calls that a runner repeats, and the values that it expects.

    :ivar calls: for each variant, the calls of the function that were recorded at the base.
    :ivar observation: for each variant, the contract's observation at the base.
    :ivar boundary: the boundary's dotted path at the base.
    :ivar module: the part of ``boundary`` that is imported.
    :ivar roots: the import roots, relative to the checkout.
    :ivar outputs: the keys of the observation whose values may be parts of the function's result.
    :ivar derivation: a sentence that names the source of the expected values.
    :ivar stubs: packages that the module imports but the function does not use; the runner replaces them by stubs.
    :ivar needs: the distributions that the function uses, except for torch and numpy.
    """

    recipe: Recipe
    calls: Mapping[str, Sequence[Any]]
    observation: Observation
    boundary: str
    module: str
    roots: tuple[str, ...]
    outputs: frozenset[str]
    derivation: str
    stubs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def script_of(case: Case) -> str:
    """Return the text of a runner, as a Python script.

    :raises NoRunner: if the call needs more than tensors, plain values and upstream's own plain classes.
    """
    writer = _Writer(case)
    body = writer.body()
    title = textwrap.fill(f"{case.recipe.target}: {_docstring(case.recipe.title)}.", 110)
    text = _SCRIPT.format(
        title=title,
        target=case.recipe.target,
        packages=", ".join(["torch", "numpy", *case.needs]),
        calls=textwrap.fill(f"Calls {case.boundary} of the checkout, once for each case below.", 110),
        derivation=textwrap.fill(_docstring(case.derivation), 110),
        imports="\n".join(sorted(writer.imports, key=lambda line: ("torch" in line, line))),
        stubs=_written(["set", [["value", name] for name in case.stubs]], 0, 60) if case.stubs else "set()",
        bug=case.recipe.bug_id,
        tolerance=_tolerance(case.recipe.tolerance),
        roots=repr(list(case.roots)).replace("'", '"'),
        module=case.module,
        from_upstream=textwrap.indent("\n".join(writer.from_upstream()), "    "),
        instance=_INSTANCE if writer.has("instance(") else "",
        body=body,
    )
    if (lines := text.count("\n")) > MOST_LINES:
        raise NoRunner(f"the script would have {lines} lines, which are too many to review")
    return text


def _docstring(text: str) -> str:
    return message(" ".join(text.split())).replace("\\", "\\\\").replace('"""', "'''").rstrip(".")


def _tolerance(tolerance: Tolerance) -> str:
    relative = 1e-5 if tolerance.relative is None else tolerance.relative
    absolute = 1e-6 if tolerance.absolute is None else tolerance.absolute
    return f"rtol={relative:g}, atol={absolute:g}"


class _Writer:
    """Writes the calls of a case and the comparison of their results."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._classes: dict[str, set[str]] = {}
        self.imports = {"import torch"}
        self._body = ""

    def has(self, text: str) -> bool:
        return text in self._body

    def from_upstream(self) -> Iterator[str]:
        """Yield the statements that import the function and the classes of its arguments."""
        module, names = self._case.module, self._case.boundary.removeprefix(f"{self._case.module}.")
        top = names.partition(".")[0]
        for place, classes in sorted({**self._classes, module: self._classes.get(module, set()) | {top}}.items()):
            yield f"from {place} import {', '.join(sorted(classes))}"

    def body(self) -> str:
        recipe = self._case.recipe
        function = self._case.boundary.removeprefix(f"{self._case.module}.")
        addresses = list(dict.fromkeys([*recipe.expected_unpatched, *recipe.expected_fixed]))
        if not (recipe.expected_unpatched and recipe.expected_fixed):
            raise NoRunner("the recipe has no expected values")
        parsed = {address: parse_address(address, tuple(recipe.variants)) for address in addresses}
        found = self._found(dict.fromkeys(parsed.values()))
        chosen = {place: self._case.calls[place[0]][place[1]] for place, _ in found.values()}
        names = self._names(list(chosen))
        observed, expected, decides = [], [], False
        for address, item in parsed.items():
            if any((variant, item.key) not in found for variant in item.variants):
                continue  # the contract computes this key from the result, so the script cannot select it
            if address not in recipe.expected_fixed or address not in recipe.expected_unpatched:
                continue
            sides = [_plain_node(side[address].value) for side in (recipe.expected_fixed, recipe.expected_unpatched)]
            decides = decides or not _equal(*sides)
            terms = " - ".join(self._term(found[variant, item.key], names) for variant in item.variants)
            observed.append(f"    {_quoted(address)}: {terms},")
            expected.append(f"    {_quoted(address)}: {_written(['tuple', sides], 4, len(address) + 4)},")
        if not decides:
            raise NoRunner(f"the function's result does not contain {', '.join(addresses)}")
        lines = ["", *self._calls({names[place]: call for place, call in chosen.items()}), ""]
        if len(chosen) == 1:
            lines.append(f"result = {function}(**CALL)")
        else:
            lines.append(f"results = {{name: {function}(**call) for name, call in CALLS.items()}}")
        lines += ["observed = {", *observed, "}", "EXPECTED = {  # name: (right, with the bug)", *expected, "}"]
        self._body = "\n".join(lines).strip("\n")
        if "math." in self._body:
            self.imports.add("import math")
        if "np." in self._body:
            self.imports.add("import numpy as np")
        return self._body

    def _found(self, addresses: Iterable[Address]) -> dict[tuple[str, str], tuple[Place, str]]:
        """Return (variant, key) -> the call whose result contains the key's value, and an expression for the value."""
        found: dict[tuple[str, str], tuple[Place, str]] = {}
        used: set[tuple[Place, str]] = set()
        for variant, key in dict.fromkeys((variant, item.key) for item in addresses for variant in item.variants):
            calls = self._case.calls.get(variant) or ()
            if not calls:
                raise NoRunner("other upstream code, which needs a trainer or an engine, calls the function")
            for index, call in enumerate(calls):
                place = variant, index
                texts = (text for text in self._expressions(call, variant, key) if (place, text) not in used)
                if text := next(texts, ""):
                    found[variant, key] = place, text
                    used.add((place, text))
                    break
        return found

    def _names(self, places: Sequence[Place]) -> dict[Place, str]:
        """Name each call after its variant. Add a number if the variant has several calls."""
        counts = Counter(variant for variant, _ in places)
        return {(v, index): v if counts[v] == 1 else f"{v} {index + 1}".strip() for v, index in places}

    def _term(self, found: tuple[Place, str], names: Mapping[Place, str]) -> str:
        place, text = found
        alone = len(names) == 1
        result = "result" if alone else f"results[{_quoted(names[place])}]"
        call = "CALL" if alone else f"CALLS[{_quoted(names[place])}]"
        return text.replace("<result>", result).replace("<call>", call)

    def _expressions(self, call: Any, variant: str, key: str) -> Iterator[str]:
        """Yield Python expressions whose value is the observed value of a key.

        In an expression, ``<result>`` stands for the call's result and ``<call>`` for its arguments.
        """
        value = _reach(self._case.observation[variant], key)
        if key.startswith("gradients."):
            yield from filter(None, [self._gradient(call, variant, key.partition(".")[2])])
        if key not in self._case.outputs:
            return
        for path, node in _walk(call[1]):
            if _is(node, value):
                yield f"<result>{path}"
        masks = sorted(_named(call), key=lambda item: "mask" not in item[0])
        for path, node in _walk(call[1]):  # contracts set masked values to 0, so compare them after the same masking
            for name, mask in masks:
                if _is_where(node, mask, value):
                    yield f"torch.where(<call>[{_quoted(name)}].bool(), <result>{path}, 0.0)"

    def _gradient(self, call: Any, variant: str, name: str) -> str | None:
        given = self._case.recipe.variants[variant].get(name)
        leaves = [key for key, node in _named(call) if node[0] == "leaf"]
        same = [key for key, node in _named(call) if node[0] == "leaf" and _is(node, given)]
        of = (same or (leaves if len(leaves) == 1 else []))[:1]
        loss = next((path for path, node in _walk(call[1]) if node[0] == "leaf" and node[1].shape == ()), None)
        if not of or loss is None:
            return None
        return f"torch.autograd.grad(<result>{loss}, <call>[{_quoted(of[0])}], retain_graph=True)[0]"

    def _calls(self, chosen: Mapping[str, Any]) -> Iterator[str]:
        named = {variant: dict(_named(call)) for variant, call in chosen.items()}
        if len(named) == 1:
            yield "CALL = " + self._dictionary(next(iter(named.values())), 0)
            return
        first, *others = named.values()
        same = {name: node for name, node in first.items() if all(_equal(o.get(name), node) for o in others)}
        if same:
            yield "COMMON = " + self._dictionary(same, 0)
        yield "CALLS = {"
        for variant, arguments in named.items():
            own = {name: node for name, node in arguments.items() if name not in same}
            yield f"    {_quoted(variant)}: " + self._dictionary(own, 4, "**COMMON" if same else "") + ","
        yield "}"

    def _dictionary(self, arguments: Mapping[str, Node], indent: int, first: str = "") -> str:
        inner = " " * (indent + 4)
        lines = [f"{inner}{first},"] if first else []
        for name, node in arguments.items():
            self._add_imports_of(node)
            key = f"{_quoted(name)}: "
            lines.append(f"{inner}{key}{_written(node, indent + 4, len(key) + 1)},")
        return "{\n" + "\n".join(lines) + "\n" + " " * indent + "}"

    def _add_imports_of(self, node: Node) -> None:
        if node[0] in ("bare", "new", "made"):
            module, _, name = node[1].rpartition(".")
            if module == "argparse":
                self.imports.add("import argparse")
            else:
                self._classes.setdefault(module, set()).add(name)
        for child in _children(node):
            self._add_imports_of(child)


def _named(call: Any) -> list[tuple[str, Node]]:
    """Return the arguments of a recorded call as (name, value) pairs.

    :raises NoRunner: if the function does not accept the call's arguments.
    """
    arguments, _ = call
    if arguments[0] != "dict":
        raise NoRunner(f"the call has an {arguments[1]}")
    return [(key[1], node) for key, node in arguments[1]]


def _children(node: Node) -> list[Node]:
    if node[0] in ("list", "tuple", "set"):
        return list(node[1])
    if node[0] == "array":
        return list(node[2])
    if node[0] == "dict":
        return [child for pair in node[1] for child in pair]
    if node[0] in ("new", "made"):
        return [child for _, child in node[2]]
    return []


def _walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield a value and all its parts, each with an expression that selects it, such as ``[0].loss``."""
    yield path, node
    if node[0] in ("list", "tuple"):
        for place, child in enumerate(node[1]):
            yield from _walk(child, f"{path}[{place}]")
    elif node[0] == "dict":
        for key, child in node[1]:
            if key[0] == "value":
                yield from _walk(child, f"{path}[{_quoted(key[1])}]")
    elif node[0] in ("new", "made"):
        for name, child in node[2]:
            yield from _walk(child, f"{path}.{name}")


def _reach(value: Any, key: str) -> Any:
    for part in [key] if isinstance(value, Mapping) and key in value else key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is(node: Node, value: Any) -> bool:
    if node[0] in ("tensor", "leaf"):
        return value is not None and not mismatch(node[1], value, Tolerance())
    if node[0] == "value":
        return value is not None and not isinstance(value, Tensor) and plain(value) == node[1]
    if node[0] in ("list", "tuple"):
        return isinstance(value, (list, tuple)) and len(value) == len(node[1]) and all(map(_is, node[1], value))
    return False


def _is_where(node: Node, mask: Node, value: Any) -> bool:
    """Like :func:`_is`, for a tensor whose masked values the contract sets to 0."""
    if not (node[0] in ("tensor", "leaf") and mask[0] == "tensor" and isinstance(value, Tensor)):
        return False
    if not node[1].shape == mask[1].shape == value.shape:
        return False
    counted = np.where(mask[1].array() != 0, node[1].array(), 0)
    return bool(np.array_equal(counted, value.array(), equal_nan=value.dtype in FLOATS))


def _equal(one: Node | None, other: Node) -> bool:
    return one is not None and repr(one) == repr(other)


def _plain_node(value: Any) -> Node:
    if isinstance(value, Tensor):
        return _plain_node(_numbers(value))
    if isinstance(value, (list, tuple)):
        return ["list", [_plain_node(item) for item in value]]
    if isinstance(value, Mapping):
        return ["dict", [[["value", str(key)], _plain_node(item)] for key, item in value.items()]]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    raise NoRunner(f"it expects a {type(value).__name__}")


def _quoted(value: Any) -> str:
    text = ascii(value)
    return f'"{text[1:-1]}"' if isinstance(value, str) and '"' not in text and "\\" not in text else text


def _written(node: Node, indent: int, used: int) -> str:
    """Return a value as Python source, on several lines if it is long.

    :param used: the number of columns that other text takes on the first line.
    """
    text = _inline(node)
    parts = _parts(node)
    if indent + used + len(text) <= WIDTH or parts is None or not parts[1]:
        return text
    opened, items, closed = parts
    inner = " " * (indent + 4)
    if not any(_parts(child) for _, child in items):
        rows = _filled([key + _inline(child) for key, child in items], WIDTH - indent - 5)
    else:
        rows = [key + _written(child, indent + 4, len(key) + 1) for key, child in items]
    return opened + "\n" + "".join(f"{inner}{row},\n" for row in rows) + " " * indent + closed


def _filled(items: Iterable[str], width: int) -> list[str]:
    rows = [""]
    for item in items:
        if rows[-1] and len(rows[-1]) + len(item) + 2 > width:
            rows.append("")
        rows[-1] += f", {item}" if rows[-1] else item
    return rows


def _inline(node: Node) -> str:
    parts = _parts(node)
    if parts is not None:
        opened, items, closed = parts
        single = "," if opened == "(" and len(items) == 1 else ""
        return f"{opened}{', '.join(key + _inline(child) for key, child in items)}{single}{closed}"
    if node[0] == "atom":
        return str(node[1])
    if node[0] == "bare":
        return f"object.__new__({node[1].rpartition('.')[2]})"
    if node[0] == "value":
        value = node[1]
        if isinstance(value, float) and not math.isfinite(value):
            return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"
        return _quoted(value) if isinstance(value, str) else repr(value)
    raise NoRunner(f"the call needs a {node[1]}")


def _parts(node: Node) -> tuple[str, list[tuple[str, Node]], str] | None:
    """Split the source of a value into opening text, (prefix, part) pairs, and closing text. Return None for a value
    without parts."""
    kind = node[0]
    if kind in ("list", "tuple", "set"):
        brackets = {"list": "[]", "tuple": "()", "set": "{}"}[kind]
        return brackets[0], [("", child) for child in node[1]], brackets[1]
    if kind == "dict":
        return "{", [(f"{_inline(key)}: ", child) for key, child in node[1]], "}"
    if kind in ("tensor", "leaf"):
        items = [("", _plain_node(_numbers(node[1])))]
        if node[1].dtype not in ("float32", "int64", "bool") or 0 in node[1].shape:
            items.append(("dtype=", ["atom", f"torch.{node[1].dtype}"]))
        if kind == "leaf":
            items.append(("requires_grad=", ["value", True]))
        return "torch.tensor(", items, ")"
    if kind == "array":
        return "np.array(", [("", ["list", node[2]]), ("dtype=", ["value", node[1]])], ")"
    if kind in ("new", "made"):
        name = node[1].rpartition(".")[2]
        name = "argparse.Namespace" if node[1] == "argparse.Namespace" else name
        items = [(f"{key}=", child) for key, child in node[2]]
        return (f"{name}(", items, ")") if kind == "new" else (f"instance({name}, ", items, ")")
    return None


def _numbers(value: Tensor) -> Any:
    """Return the elements of a tensor as nested lists. Floats have as few digits as single precision allows."""
    if value.dtype not in FLOATS[1:]:
        return value.nested()

    def short(item: Any) -> Any:
        return [short(i) for i in item] if isinstance(item, list) else float(str(np.float32(item)))

    return short(value.nested())
