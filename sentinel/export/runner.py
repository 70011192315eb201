"""``run_validation.py``: a script that calls the real boundary and needs nothing of Sentinel."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sentinel.export.literals import row, scalar
from sentinel.export.observing import Observing, Subject, observing
from sentinel.export.program import ProgramError
from sentinel.export.wrapping import WIDTH, packed, wrapped
from sentinel.recipes import Expected, Recipe
from sentinel.recipes.addresses import parse_address
from sentinel.values import FLOATS, Tensor

#: A stranger reads fewer lines than this.
LONGEST = 150
#: What is longer than that is not written.
MOST = 300

#: So many values of variants are read from the answers by one line.
_MANY = 3
_EVERY = 'observed = {f"{name}.{key}": value for name, answer in answers.items() for key, value in answer.items()}'

_STUBS = '''\
class Stub(types.ModuleType):
    """A package that the checkout imports and that this script does not use."""

    __path__, __version__ = [], "0.0.0"
    __getattr__ = lambda self, name: object.__getattribute__(self, name) if name[:2] == "__" else Stub(name)
    # A decorator gives back what it decorates.
    __call__ = lambda self, *args, **kwargs: args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self
    __mro_entries__, __iter__ = lambda self, bases: (), lambda self: iter(())
    __or__ = __ror__ = __getitem__ = lambda self, other: self
    __instancecheck__ = __subclasscheck__ = __bool__ = lambda self, *_: False
    find_spec = lambda self, name, *_: Spec(name, self, is_package=True) if name.split(".")[0] in MISSING else None
    create_module = lambda self, spec: Stub(spec.name)
    exec_module = lambda self, module: {update}


sys.meta_path.append(Stub("finder"))'''

_PLAIN = '''\
def plain(value):
    """What JSON has no word for: tensors as nested lists."""
{mappings}    return value.tolist() if hasattr(value, "tolist") else str(value).removeprefix("torch.")'''

_READ = "json.loads(json.dumps("

_CLOSE = '''\
def close(left, right):
    """Equal up to rounding; NaN equals NaN."""
{lists}{mappings}    if isinstance(left, (int, float)) and isinstance(right, (int, float)) and left == left:
        return math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-6)
    return left == right or (left != left and right != right)'''

#: Where the recipe expects a mapping, the framework may have one of its own.
_OTHER_MAPPINGS = """\
    if hasattr(value, "keys"):
        return dict(value)
"""

_LISTS = """\
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(close, left, right))
"""

_MAPPINGS = """\
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
"""

_MINUS = """\
def minus(left, right):
    return [minus(a, b) for a, b in zip(left, right)] if isinstance(left, list) else left - right"""

_VERDICT = """\
right, wrong = (v and all({same} for key in v) for v in (RIGHT, WITH_THE_BUG))
status = "fixed" if right else "reproduced" if wrong else "changed"
git = subprocess.run(["git", "-C", str(TARGET_REPO), "rev-parse", "HEAD"], capture_output=True, text=True)
file = Path(sys.modules[{module}].__file__).resolve().relative_to(TARGET_REPO){told}
result = {{"bug_id": {bug}, "commit": git.stdout.strip() or None, "file": str(file)}}
print(json.dumps({{**result, "observed": observed, "status": status}}, indent=2))
sys.exit({{"fixed": 0, "reproduced": 1, "changed": 2}}[status])"""


_REQUIRED = """\
there = pkgutil.resolve_name({owner})
if {name} not in {{*dir(there), *getattr(there, "__annotations__", ())}}:  # another version
    sys.exit(print(json.dumps({{"bug_id": {bug}, "status": "unavailable"}}, indent=2)) or 3)
"""


def script(subject: Subject) -> tuple[str, Observing]:
    """The text of the runner, and what it observes: all that the recipe expects where that is short enough to be read.

    Where it is not shorter than :data:`LONGEST` even so, it is the shortest that there is.

    :raises ProgramError: where it cannot be written, or nobody would read it.
    """
    for brevity in (0, 1, 2, 3):
        observed = observing(subject, brevity)
        for shared, exact in ((False, False), (True, False), (True, _is_counted(subject.recipe))):
            text = _script(subject, observed, shared, exact)
            if text.count("\n") < LONGEST:
                return text, observed
    text = re.sub(r"\n\n(?=\n|    (async def|def|@))", "\n", text)
    if text.count("\n") <= MOST:
        return text, observed
    raise ProgramError(too_long(text))


def too_long(text: str) -> str:
    """What is to be said against a runner's length; empty where nothing is."""
    lines = text.count("\n")
    return f"the runner takes {lines} lines; a stranger reads less than {LONGEST}" if lines >= LONGEST else ""


def preamble(subject: Subject, observed: Observing) -> str:
    """What the runner does before it imports the target: the imports, the paths, the stubs."""
    parts = [_standard(subject, observed), _place(subject)]
    if observed.stubs:
        parts.append(_stubs(subject, observed))
    return "\n\n".join(parts) + "\n"


def _expectations(recipe: Recipe) -> tuple[Mapping[str, Expected], Mapping[str, Expected]]:
    return recipe.expected_unpatched, recipe.expected_fixed


def _is_counted(recipe: Recipe) -> bool:
    """Whether all that is expected is whole numbers and words, which nothing rounds."""
    return all(_is_exact(item.value) for table in _expectations(recipe) for item in table.values())


def _is_exact(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_exact, value))
    return type(value) in (bool, int, str, type(None))


def _script(subject: Subject, observed: Observing, shared: bool, exact: bool) -> str:
    """:param shared: whether values that stand there several times are written once, and as many on a line as fit.
    :param exact: whether values are the same only where nothing distinguishes them.
    """
    third = "\n".join(f"import {name}" for name in sorted({"torch", *observed.third}))
    imported = "\n".join([*observed.imports.lines(), "", "torch.manual_seed(20260821)", "torch.set_num_threads(1)"])
    expected = [item for table in _expectations(subject.recipe) for item in table.values()]
    nested = any(_has_mapping(item.value) for item in expected)
    told = [table.get(address) for table in _expectations(subject.recipe) for address in observed.addresses]
    listed = nested or any(item and isinstance(item.value, (list, tuple, Tensor)) for item in told)
    close = _CLOSE.format(lists=_LISTS if listed else "", mappings=_MAPPINGS if nested else "")
    plain = _PLAIN.replace("{mappings}", _OTHER_MAPPINGS if nested else "")
    functions = [*observed.classes, "\n".join(observed.function), plain, *([] if exact else [close])]
    if any(parse_address(address, tuple(subject.recipe.variants)).kind != "value" for address in observed.addresses):
        functions.append(_MINUS)
    setting = f"{_docstring(subject, observed)}\n\n{preamble(subject, observed)}"
    setting = setting.replace("import math\n", "") if exact else setting
    if subject.requires:
        setting += "\n" + _required(subject)
    return (
        "\n\n\n".join([f"{setting}\n{third}\n\n{imported}", *functions, _ending(subject, observed, shared, exact)])
        + "\n"
    )


def _required(subject: Subject) -> str:
    """Where a checkout has nothing of what the recipe is about, the runner says so, as Sentinel does."""
    pairs = [path.rstrip(")").replace("(", ".").rpartition(".") for path in subject.requires]
    bug = scalar(subject.recipe.bug_id)
    return "".join(_REQUIRED.format(owner=scalar(owner), name=scalar(name), bug=bug) for owner, _, name in pairs)


def _has_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and any(map(_has_mapping, value)))


def _docstring(subject: Subject, observed: Observing) -> str:
    recipe = subject.recipe
    packages = ", ".join(dict.fromkeys(["torch", *(name.partition(".")[0] for name in observed.third)]))
    untold = "".join(f"\nNot repeated here: {address} ({reason})." for address, reason in observed.untold.items())
    absent = ", 3 the checkout has not what it is about" if subject.requires else ""
    return f'''#!/usr/bin/env python3
"""{_safe(recipe.bug_id)}: {_safe(recipe.title)}

Calls {subject.boundary} of a checkout of
{subject.repository} and prints what it answers. Needs Python 3.10 or newer, {packages}; no GPU.

    TARGET_REPO=/path/to/{subject.name} python run_validation.py

Exit status: 0 the right values, 1 those of the bug, 2 neither{absent}.{_safe(untold, lines=True)}
"""'''


def _safe(text: str, lines: bool = False) -> str:
    """Text that may stand in a docstring."""
    from sentinel.reports.escaping import message, passage

    shown = passage(text) if lines else message(text)
    return ("\n" if lines and shown else "") + shown.replace("\\", "\\\\").replace('"""', "'''")


def _standard(subject: Subject, observed: Observing) -> str:
    names = ["json", "math", "os", "subprocess", "sys", *(["importlib.util", "types"] if observed.stubs else [])]
    names += ["pkgutil"] if subject.requires else []
    lines = {*(f"import {name}" for name in names), "from pathlib import Path", *observed.standard}
    if observed.stubs:
        lines.add("from importlib.machinery import ModuleSpec as Spec")
    return "\n".join(sorted(lines, key=lambda line: (line.startswith("from"), line)))


def _place(subject: Subject) -> str:
    roots = _tuple(scalar(root) for root in reversed(subject.import_roots))
    return f"""\
TARGET_REPO = Path(os.environ.get("TARGET_REPO", ".")).resolve()
sys.path[:0] = [str(TARGET_REPO / folder) for folder in {roots}]
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # no compiler is needed"""


def _tuple(items: Any) -> str:
    parts = list(items)
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _stubs(subject: Subject, observed: Observing) -> str:
    names = f"({', '.join(map(scalar, observed.stubs))}{',' * (len(observed.stubs) == 1)})"
    versions = {name: version for name, version in subject.versions.items() if name in observed.stubs}
    missing = f"MISSING = [name for name in {names} if importlib.util.find_spec(name) is None]"
    if len(missing) > WIDTH:
        missing = wrapped(f"NAMES = [{names[1:-1]}]", 0) + "\n" + missing.replace(names, "NAMES")
    constants = [missing, *([f"VERSIONS = {python(versions)}"] if versions else [])]
    update = 'vars(module).update(__version__=VERSIONS.get(module.__name__, "0.0.0"))' if versions else "None"
    return "\n".join(constants) + "\n\n\n" + _STUBS.replace("{update}", update)


def _ending(subject: Subject, observed: Observing, shared: bool, exact: bool) -> str:
    recipe = subject.recipe
    module = next(iter(observed.imports.names), None) or next(iter(sorted(observed.imports.modules)))
    calls, rows = _observed(recipe, observed)
    tables = [_table(recipe.expected_unpatched, observed), _table(recipe.expected_fixed, observed)]
    entries = [calls, *tables]
    constants, (calls, wrong, right) = _hoisted(entries) if shared else ([], entries)
    return "\n".join(
        [
            *constants,
            *(_braced("answers", calls, f"{_READ}{{", "}, default=plain))", shared) if calls else []),
            *rows,
            *_braced("WITH_THE_BUG", wrong, filled=shared),
            *_braced("RIGHT", right, filled=shared),
            *([] if exact else [f"TOLERANCE = {tolerance(recipe)!r}"]),
            _verdict(scalar(module), scalar(recipe.bug_id), exact),
        ]
    )


def _verdict(module: str, bug: str, exact: bool) -> str:
    told = "  # else it is another copy's"
    same = "observed[key] == v[key]" if exact else "close(observed[key], v[key])"
    text = _VERDICT.format(module=module, bug=bug, told=told, same=same)
    return text if max(map(len, text.split("\n"))) <= WIDTH else text.replace(told, "")


def _hoisted(groups: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Nested lists that stand in several entries as constants, and the entries that name them."""
    found = Counter(match for group in groups for entry in group for match in set(_NESTED.findall(entry)))
    names = {text: f"VALUES_{n}" for n, text in enumerate((t for t, c in found.items() if c > 1 and len(t) > 40), 1)}
    constants = [wrapped(f"{name} = {text}", 0) for text, name in names.items()]
    replaced = [[_NESTED.sub(lambda m: names.get(m.group(), m.group()), entry) for entry in group] for group in groups]
    return constants, replaced


_NESTED = re.compile(r"\[\[[^\[\]]*\](?:, \[[^\[\]]*\])*\]")


def _observed(recipe: Recipe, observed: Observing) -> tuple[list[str], list[str]]:
    """The entries of ``answers``, and the lines that make ``observed`` of them; without variants it needs none."""
    if list(recipe.variants) == [""]:
        return [], [f"observed = {_READ}observe(), default=plain))"]
    rows: dict[str, list[str]] = {"value": [], "difference": []}
    for address in observed.addresses:
        found = parse_address(address, tuple(recipe.variants))
        values = [f"answers[{scalar(variant)}][{scalar(found.key)}]" for variant in found.variants]
        told = values[0] if found.kind == "value" else f"minus({', '.join(values)})"
        rows[found.kind].append(f"{scalar(address)}: {told}")
    calls = [f"{scalar(name)}: {call}" for name, call in observed.variants.items()]
    if len(rows["value"]) < _MANY:
        return calls, _braced("observed", [*rows["value"], *rows["difference"]])
    added = _braced("observed", rows["difference"], "{**observed, ") if rows["difference"] else []
    return calls, [_EVERY, *added]


def _braced(name: str, entries: list[str], opened: str = "{", closed: str = "}", filled: bool = False) -> list[str]:
    line = f"{name} = {opened}{', '.join(entries)}{closed}"
    if len(line) <= WIDTH and "\n" not in line:
        return [line]
    lines = [_indented(item) for item in packed(entries, WIDTH - 5, 4)] if filled else list(map(_entry, entries))
    return [f"{name} = {opened}", *lines, closed]


def _entry(text: str) -> str:
    return _indented(wrapped(f"{text},", 4))


def _indented(text: str) -> str:
    return "    " + text.replace("\n", "\n    ")


def _table(expected: Mapping[str, Expected], observed: Observing) -> list[str]:
    told = [address for address in observed.addresses if address in expected]
    return [f"{scalar(address)}: {python(expected[address].value)}" for address in told]


def tolerance(recipe: Recipe) -> float:
    """Relative; half precision knows three digits."""
    values = [value for inputs in recipe.variants.values() for value in inputs.values()]
    half = any(isinstance(value, Tensor) and value.dtype in FLOATS[2:] for value in values)
    return recipe.tolerance.relative or (1e-2 if half else 1e-5)


def python(value: Any) -> str:
    """An expected value as Python, with no more digits than the tolerance can tell apart."""
    if isinstance(value, Tensor):
        return python(value.nested())
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(str(key))}: {python(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return row([python(item) for item in value])
    return f"{value:.9g}" if isinstance(value, float) and math.isfinite(value) and value % 1 else scalar(value)
