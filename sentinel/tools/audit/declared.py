"""Read the options of a copy of a framework from the files that ``recipes/<target>/options.toml`` lists.

    [[options]]
    name = "PPO"
    kind = "classes"
    file = "package/config.py"
    class = "TrainConfig"

There is an entry for each place where some version declares a trainer's options. If several entries have the same name,
the first whose file and class the copy has is used. Kinds: ``classes`` (a dataclass and its sections), ``parser``
(argparse), ``tree`` (YAML). ``elsewhere`` has options that another package or file declares, with their defaults.
``more`` names code that declares further options and is not read; an unknown setting of a run may be one of those.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.tools.audit.files import MISSING, flattened, read_mapping, settings_of, spelled
from sentinel.tools.audit.option_classes import options_of_class
from sentinel.tools.audit.options import Option, Options, choices_of, parsed, text_of

#: The file's name, in the folder of the target's recipes.
FILE = "options.toml"

#: Maximum bytes of a file that is read; larger files are generated.
_LARGEST = 4_000_000

#: Action of a flag -> the value that it sets, and the default.
_SET_BY = {"store_true": "true", "store_false": "false"}
_FLAGS = {"store_true": "false", "store_false": "true"}


def options_of(catalog: Catalog, target: Target, checkout: Checkout) -> tuple[Options, ...]:
    """Return the options of each trainer in a copy of the framework."""
    trainers: dict[str, Options] = {}
    for file, entry in _declarations(catalog, target.name):
        if entry["name"] in trainers:
            continue
        place = _place(target, checkout, entry["file"])
        if place is None:
            continue
        try:
            flags: Mapping[str, tuple[str, str | None]] = {}
            if entry["kind"] == "classes":
                options, unread = options_of_class(place, entry["class"], lambda module: _module(checkout, module))
                flags = {f"no_{name}": (name, "false") for name, option in options.items() if option.default == "true"}
            elif entry["kind"] == "parser":
                options, unread, flags = options_of_parser(place)
            else:
                options, unread = options_of_tree(place)
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError):
            continue  # the file is broken in this copy; its settings are then reported as unknown
        except KeyError as error:
            raise SentinelError(f"{file}: {entry['name']}: missing key {error}") from None
        if not options:
            continue  # in this version the class has another name
        elsewhere = {name: Option(text) for name, text in flattened(entry.get("elsewhere", {})).items()}
        more = {"": entry["more"]} if "more" in entry else unread
        trainers[entry["name"]] = Options(
            entry["name"], entry["file"], {**elsewhere, **options}, entry.get("class", ""), more, flags
        )
    return tuple(trainers.values())


def classes_of(catalog: Catalog, target: Target) -> tuple[str, ...]:
    """Return the configuration classes that Python scripts use for a target's trainers."""
    named = (entry["class"] for _, entry in _declarations(catalog, target.name) if "class" in entry)
    return tuple(dict.fromkeys(named))


def tree_folders(catalog: Catalog, target: Target, checkout: Checkout) -> tuple[Path, ...]:
    """Return the folders of a copy that contain Hydra configurations."""
    trees = [entry["file"] for _, entry in _declarations(catalog, target.name) if entry["kind"] == "tree"]
    folders = [_place(target, checkout, file) for file in trees]
    return tuple(dict.fromkeys(place.parent for place in folders if place is not None))


def options_of_parser(
    file: Path,
) -> tuple[dict[str, Option], dict[str, str], dict[str, tuple[str, str | None]]]:
    """Return the options that a file declares with ``add_argument("--name")`` or a function that wraps it.

    :return: the options; :attr:`Options.open`, for calls whose name is computed (``f"--{prefix}.lr"`` in a loop over
        literal strings can be read); and :attr:`Options.flags`.
    """
    options: dict[str, Option] = {}
    more: dict[str, str] = {}
    flags: dict[str, tuple[str, str | None]] = {}
    tree = parsed(file)
    loops = {
        id(call): (loop.target.id, choices_of(loop.iter))
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name)
        for call in ast.walk(loop)
        if isinstance(call, ast.Call)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        names = [_names(item, *loops.get(id(node), ("", ()))) for item in node.args]
        options_named = next((several for several in names if several and several[0].startswith("--")), ())
        action = text_of(keywords.get("action")) or ""
        for name in options_named:
            if name == _COMPUTED:
                more[""] = f"a call in {file.name} whose option has a computed name"
                continue
            setting = spelled(text_of(keywords.get("dest")) or name)
            options.setdefault(setting, Option(_default(keywords), choices_of(keywords.get("choices"))))
            value = text_of(keywords.get("const")) if action == "store_const" else _SET_BY.get(action)
            if spelled(name) != setting or action == "store_false":
                flags[spelled(name)] = setting, value
            if isinstance(keywords.get("action"), (ast.Name, ast.Attribute)):  # BooleanOptionalAction
                flags[f"no_{spelled(name)}"] = setting, "false"
    return options, more, flags


#: Stands for an option name that the code computes.
_COMPUTED = "--?"


def _names(node: ast.expr, variable: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of an argument: a literal, or an f-string for each value of the loop variable."""
    if isinstance(node, ast.Constant):
        return (node.value,) if isinstance(node.value, str) else ()
    if not isinstance(node, ast.JoinedStr):
        return ()
    texts = [""] * (len(values) or 1)
    for part in node.values:
        if isinstance(part, ast.Constant):
            texts = [text + str(part.value) for text in texts]
        elif isinstance(part, ast.FormattedValue) and getattr(part.value, "id", "") == variable and values:
            texts = [text + value for text, value in zip(texts, values)]
        else:
            return (_COMPUTED,) if texts[0].startswith("--") else ()
    return tuple(texts)


def options_of_tree(file: Path) -> tuple[dict[str, Option], dict[str, str]]:
    """Return the settings of a YAML file as options.

    The files in its Hydra ``defaults`` list are not read here.
    """
    data = settings_of(read_mapping(file))
    return {name: Option(None if text == MISSING else text) for name, text in flattened(data).items()}, {}


def _default(keywords: dict[str, ast.expr]) -> str | None:
    if "default" in keywords:
        return text_of(keywords["default"])
    action = text_of(keywords["action"]) if "action" in keywords else ""
    if keywords.get("required") is not None:
        return None
    return _FLAGS.get(action or "", "null")


def _files(catalog: Catalog, target: str) -> list[Path]:
    return [file for folder in catalog.recipe_folders if (file := folder / target / FILE).is_file()]


def _declarations(catalog: Catalog, target: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for file in _files(catalog, target):
        for entry in read_mapping(file).get("options", []):
            missing = {"name", "kind", "file"} - entry.keys()
            if missing or entry["kind"] not in ("classes", "parser", "tree"):
                wrong = f"missing {', '.join(sorted(missing))}" if missing else "kind is classes, parser or tree"
                raise SentinelError(f"{file}: an entry of options: {wrong}")
            yield file, entry


def places(target: Target, checkout: Checkout, name: str) -> Iterator[Path]:
    """Yield the paths at which a copy may have a file or folder of the repository."""
    names = [name, *(name.removeprefix(f"{root.import_root}/") for root in target.roots if root.import_root)]
    return (checkout.path / name for name in names)


def _place(target: Target, checkout: Checkout, file: str) -> Path | None:
    return next((place for place in places(target, checkout, file) if _readable(place)), None)


def _module(checkout: Checkout, module: str) -> Path | None:
    name = module.replace(".", "/")
    places = (root / tail for root in checkout.import_roots for tail in (f"{name}.py", f"{name}/__init__.py"))
    return next((place for place in places if _readable(place)), None)


def _readable(place: Path) -> bool:
    return place.is_file() and place.stat().st_size < _LARGEST
