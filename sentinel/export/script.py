"""``run_validation.py``: the fixed head, the adapter's and the contract's own functions, and the case as data."""

from __future__ import annotations

import ast
import hashlib
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np

from sentinel.contracts.contract import Contract
from sentinel.export.verbatim import NotSelfContained, Verbatim
from sentinel.laws.law import Law
from sentinel.recipes import Expected, Recipe
from sentinel.reports.escaping import message
from sentinel.targets import Alias, Binding, Target
from sentinel.values.literals import FLOATS, Literal, Tensor
from sentinel.values.tolerance import Tolerance

WIDTH = 120


@dataclass(frozen=True)
class Question:
    """What a runner asks: a recipe, and how its boundary is called.

    :ivar binding: None where the generic contract calls the boundary as the recipe says.
    :ivar verdicts: ``base`` and ``head`` -> what the evidence says, and of which revision.
    :ivar needs: package that is used -> the distribution that has it.
    """

    recipe: Recipe
    target: Target
    contract: Contract
    binding: Binding | None
    import_roots: tuple[str, ...]
    law: Law | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Script:
    """A runner, and the distributions that it needs."""

    text: str
    packages: tuple[str, ...]


def runner(question: Question) -> Script:
    """Write the runner of a question."""
    pieces, measure, call, judge = functions(question)
    case = literal(case_of(question, pieces))
    arguments = ", ".join(["CASE", measure, call, *([judge] if judge else [])])
    own = _banner("the functions through which the boundary is called and looked at, and the case: to be read")
    own += "".join([f"{line}\n" for line in _merged(pieces.imports)]) + ("\n" if pieces.imports else "")
    own += "".join(f"\n# -- {place}\n\n\n{text}\n\n" for place, text in pieces.sections())
    own += f"\n# -- the case\n\nCASE = {case}\n\n#: What :func:`main` is asked.\nQUESTION = ({arguments})\n\n"
    own += 'if __name__ == "__main__":\n    main(*QUESTION)\n'
    fixed = head_text()
    before = _docstring(question, 0, 0).count("\n") + fixed.count("\n")
    first, last = before + 1, before + own.count("\n")
    packages = ("torch", "numpy", *sorted(question.needs.values()))
    return Script(_docstring(question, first, last) + fixed + own, packages)


def functions(question: Question) -> tuple[Verbatim, str, str, str]:
    """Gather what stands behind the head, and the expressions that name measure, call and judge there."""
    pieces = Verbatim()
    measure = pieces.add(question.contract.measure)
    call = "None"
    if question.binding is None:
        call = pieces.name("sentinel.worker.probe", "_plain_call")
    elif question.binding.call is not None:
        call = pieces.add(question.binding.call)
    judge = ""
    if question.law is not None:
        law, contract = question.law, question.contract
        if law.watches or law.twin:
            raise NotSelfContained(f"the law {law.name} looks at more than what one boundary answers")
        parts = [
            pieces.name("sentinel.export.by_law", "judged_by_law"),
            *(_constant(pieces, item) for item in (law, contract)),
        ]
        judge = f"functools.partial({', '.join(parts)})"
        pieces.imports.add("import functools")
    taken = _head()
    names = {name for names in pieces.modules.values() for name in names} | pieces.renamed.keys()
    if clash := names & {node.name for node in _head_body() if hasattr(node, "name")}:
        raise NotSelfContained(f"{', '.join(sorted(clash))} is also in the head of a runner; rename it")
    return pieces.without(taken), measure, call, judge


def _constant(pieces: Verbatim, value: Law | Contract) -> str:
    """Gather a law or a contract; its name."""
    function = value.check if isinstance(value, Law) else value.of_its_module
    module = function.__module__
    return pieces.name(module, next(name for name, item in vars(sys.modules[module]).items() if item is value))


# -- the head ----------------------------------------------------------------------------------------------------------


#: Stands before the head's imports, which fail without these two.
_NEEDED = """\
import importlib.util
import json
import sys

if __name__ == "__main__" and (lacking := [n for n in ("torch", "numpy") if importlib.util.find_spec(n) is None]):
    print(json.dumps({"status": "could not run", "reason": f"install {', '.join(lacking)}", "needs": lacking}))
    sys.exit(3)

"""


@cache
def _head_source() -> str:
    return Path(__file__).with_name("head.py").read_text(encoding="utf-8")


@cache
def _head_body() -> list[Any]:
    return ast.parse(_head_source()).body


@cache
def _head() -> Verbatim:
    """Gather what the head imports from Sentinel's own modules."""
    pieces = Verbatim()
    for node in _head_body():
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sentinel."):
            for item in node.names:
                pieces.name(str(node.module), item.name)
    return pieces


@cache
def head_text() -> str:
    """Give the lines that are the same in every runner, whatever the bug, the target and the machine."""
    taken, imports = _head(), [node for node in _head_body() if isinstance(node, (ast.Import, ast.ImportFrom))]
    foreign = [node for node in imports if not str(getattr(node, "module", "")).startswith(("sentinel", "__future__"))]
    text = _NEEDED + "\n".join(_merged({ast.unparse(node) for node in foreign} | taken.imports)) + "\n"
    text += "".join(f"\n\n# -- {place}\n\n\n{piece}\n" for place, piece in taken.sections())
    body = _head_source().split("\n")[imports[-1].end_lineno or 0 :]
    text += "\n\n# -- sentinel/export/head.py\n" + "\n".join(body).rstrip("\n") + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    title = f"The head, the same in every runner; sha256 of its lines: {digest}"
    return f"from __future__ import annotations\n{_banner(title)}{text}{_banner('End of the head')}"


def _banner(text: str) -> str:
    return f"\n\n# {'=' * 100}\n# {text}\n# {'=' * 100}\n\n"


def _merged(lines: Iterable[str]) -> list[str]:
    """Merge import statements of one module."""
    plain, names = [], dict[str, set[str]]()
    for line in lines:
        if line.startswith("from "):
            module, _, items = line.removeprefix("from ").partition(" import ")
            names.setdefault(module, set()).update(items.split(", "))
        else:
            plain.append(line)
    return sorted(plain) + [
        f"from {module} import {', '.join(sorted(items))}" for module, items in sorted(names.items())
    ]


def _docstring(question: Question, first: int, last: int) -> str:
    recipe, target = question.recipe, question.target
    title = message(recipe.title).replace("\\", "\\\\").replace('"""', "'''")
    packages = ", ".join(["torch", "numpy", *sorted(question.needs.values())])
    return f'''#!/usr/bin/env python3
"""{recipe.bug_id}: {title}

Calls {question.recipe.boundary} of a checkout of
{target.repository}, and prints what it answers.

    TARGET_REPO=/path/to/{target.name} python run_validation.py

Needs Python 3.10 or newer, {packages}; no GPU. What else the checkout imports and
is not installed is stubbed, and refused if it is used.
Exit status: 0 the right values, 1 those of the bug, 2 neither, 3 nothing could be decided.

What is to be read are lines {first:4} to {last:4}. What stands before is the same in every runner, whatever the bug.
"""
'''


# -- the case ----------------------------------------------------------------------------------------------------------


def case_of(question: Question, pieces: Verbatim) -> dict[str, Any]:
    """Give the case as data."""
    recipe, target = question.recipe, question.target
    binding = question.binding or Binding(recipe.boundary, recipe.contract)
    case: dict[str, Any] = {
        "bug_id": recipe.bug_id,
        "evidence": dict(question.verdicts),
        "boundary": list(binding.paths),
        "imports": list(binding.imports),
        "binding": {
            "arguments": {
                item.name: list(binding.arguments[item.name])
                for item in question.contract.inputs
                if item.name in binding.arguments
            },
            "constants": dict(binding.constants),
            "outputs": list(binding.outputs),
            "like": binding.like,
        },
        "given": sorted(recipe.scenario_inputs(question.contract, binding.fixed)),
        "requires": list(recipe.requires),
        "packages": list(target.packages),
        "import_roots": list(question.import_roots),
        "preload": list(target.preload),
        "at_import": dict(target.at_import),
        "stub_versions": dict(target.ghost_versions),
        "stands_for": sorted(pieces.stands_for),
        "needs": dict(sorted(question.needs.items())),
        **_scenario(recipe.variants),
    }
    if question.law is None:
        case["tolerance"] = _tolerance(recipe.tolerance)
        for side in ("expected_unpatched", "expected_fixed"):
            case[side] = {address: _expected(item) for address, item in getattr(recipe, side).items()}
    return case


def _scenario(variants: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Write what all variants share once."""
    first, *others = variants.values()
    shared = {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}
    own = {name: {k: v for k, v in inputs.items() if k not in shared} for name, inputs in variants.items()}
    return {"scenario": shared, "variants": own}


def _expected(item: Expected) -> dict[str, Any]:
    tolerance = _tolerance(item.tolerance)
    return {"value": item.value, **({"tolerance": tolerance} if tolerance else {})}


def _tolerance(tolerance: Tolerance) -> dict[str, Any]:
    return {name: value for name, value in vars(tolerance).items() if value is not None and value is not False}


def literal(value: Any, indent: int = 0, used: int = 0) -> str:
    """Write plain data and literals of recipes as Python, broken where it is long.

    :param used: columns of the line that are taken by what stands before and behind it.
    """
    text, parts = _inline(value), _parts(value)
    if indent + used + len(text) <= WIDTH or parts is None or not parts[1]:
        return text
    opened, items, closed = parts
    inner = " " * (indent + 4)
    if opened in "[(" and not any(_parts(item) for _, item in items):
        rows = _filled([_inline(item) for _, item in items], WIDTH - indent - 5)
    else:
        rows = [key + literal(item, indent + 4, len(key) + 1) for key, item in items]
    return opened + "\n" + "".join(f"{inner}{row},\n" for row in rows) + " " * indent + closed


def _filled(items: list[str], width: int) -> list[str]:
    rows = [""]
    for item in items:
        if rows[-1] and len(rows[-1]) + len(item) + 2 > width:
            rows.append("")
        rows[-1] += f", {item}" if rows[-1] else item
    return rows


def _inline(value: Any) -> str:
    if (parts := _parts(value)) is not None:
        opened, items, closed = parts
        single = "," if opened == "(" and len(items) == 1 else ""
        return f"{opened}{', '.join(key + _inline(item) for key, item in items)}{single}{closed}"
    if isinstance(value, str):
        return ascii(value)  # nothing hides in it
    if isinstance(value, float) and not math.isfinite(value):
        return f"math.{'nan' if math.isnan(value) else 'inf'}" if not value < 0 else "-math.inf"
    if value is None or isinstance(value, (bool, int, float, bytes)):
        return repr(value)
    raise NotSelfContained(f"{value!r} is no plain value")


def _parts(value: Any) -> tuple[str, list[tuple[str, Any]], str] | None:
    """How a value of parts begins, what stands before each part, the part, and how it ends; None where it has none."""
    if isinstance(value, dict):
        return "{", [(f"{_inline(key)}: ", item) for key, item in value.items()], "}"
    if isinstance(value, list):
        return "[", [("", item) for item in value], "]"
    if isinstance(value, tuple):
        return "(", [("", item) for item in value], ")"
    if isinstance(value, Tensor) and 0 not in value.shape:
        flags = [("", value.requires_grad), ("", value.contiguous)]
        flags = flags if not value.contiguous else flags[: value.requires_grad]
        return "tensor(", [("", _numbers(value)), ("", value.dtype), *flags], ")"
    if type(value) in (*get_args(Literal), Alias):  # the head has these classes
        items = [("", getattr(value, item.name)) for item in fields(value)]
        return f"{type(value).__name__}(", items, ")"
    return None


def _numbers(value: Tensor) -> Any:
    """Nest lists, with no more digits than tell a single-precision number from its neighbours."""
    if value.dtype not in FLOATS[1:]:
        return value.nested()

    def short(item: Any) -> Any:
        return [short(i) for i in item] if isinstance(item, list) else float(str(np.float32(item)))

    return short(value.nested())
