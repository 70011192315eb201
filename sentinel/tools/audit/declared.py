"""Read a framework's options from the source files that ``recipes/<target>/options.toml`` lists.

    [[options]]
    name = "PPO"
    kind = "classes"
    file = "package/config.py"
    class = "TrainConfig"

There is an entry for each place where some version declares a trainer's options. If several entries have the same name,
the first one whose file and class the copy has is used. The keys are:

* ``kind``: ``classes`` (a dataclass and its sections), ``parser`` (argparse) or ``tree`` (YAML).
* ``elsewhere``: options that another package or file declares, with their defaults.
* ``formerly``: option -> its name in earlier versions. Recipes use the new name for all versions.
* ``more``: unread code that declares further options. An unknown setting of a run may be one of these options.

    [[also]]
    file = "package/utils.py"
    class = "ScriptArguments"

is another class that the framework's own scripts fill from the same configuration. Its fields count as options if the
user names no script.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes.catalog import Catalog
from sentinel.sources import MirrorStore
from sentinel.sources.commits import releases
from sentinel.sources.gitbinary import GitError, run
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.tools.audit.composing import composed
from sentinel.tools.audit.files import MISSING, flattened, read_mapping, settings_of, spelled
from sentinel.tools.audit.option_classes import Find, options_of_class
from sentinel.tools.audit.options import Option, Options, choices_of, parsed, text_of
from sentinel.worker import interpreters

#: The name of the file in the folder of a target's recipes.
FILE = "options.toml"

#: Maximum size of a file with options, in bytes. Larger files are skipped: nobody writes so many options by hand.
_LARGEST = 4_000_000

#: Action of an argparse flag -> the value that the flag sets, and (``_FLAGS``) the flag's default.
_SET_BY = {"store_true": "true", "store_false": "false"}
_FLAGS = {"store_true": "false", "store_false": "true"}


def options_of(catalog: Catalog, target: Target, checkout: Checkout, python: str | None = None) -> tuple[Options, ...]:
    """Return the options of each trainer in a copy of a framework.

    :param python: the interpreter of the environment with the packages of inherited classes; None for the running one.
    """
    trainers: dict[str, Options] = {}
    companions: dict[str, Option] = {}
    find, modules = finder(target, checkout, python), dict[Path, Any]()
    for file, entry in _declarations(catalog, target.name):
        if entry["name"] in trainers:
            continue
        place = _place(target, checkout, entry["file"])
        if place is None:
            continue
        try:
            flags: Mapping[str, tuple[str, str | None]] = {}
            if entry["kind"] == "classes":
                options, unread = options_of_class(place, entry["class"], find, modules)
                flags = {f"no_{name}": (name, "false") for name, option in options.items() if option.default == "true"}
            elif entry["kind"] == "parser":
                options, unread, flags = options_of_parser(place)
            else:
                options, unread = options_of_tree(place)
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError):
            continue  # the copy's file is broken: its settings are reported as unknown
        except KeyError as error:
            raise SentinelError(f"{file}: {entry['name']}: missing key {error}") from None
        if not options:
            continue  # this version names the class differently
        former = {old: new for new, old in entry.get("formerly", {}).items() if old in options and new not in options}
        options = {**options, **{new: options[old] for old, new in former.items()}}
        elsewhere = {name: Option(text) for name, text in flattened(entry.get("elsewhere", {})).items()}
        more = {"": entry["more"]} if "more" in entry else unread
        trainers[entry["name"]] = Options(
            entry["name"], entry["file"], {**elsewhere, **options}, entry.get("class", ""), more, flags, former=former
        )
    for _, also in _entries(catalog, target.name, "also", {"file", "class"}):
        with suppress(SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError):
            if (place := _place(target, checkout, also["file"])) is not None:
                companions |= options_of_class(place, also["class"], find, modules)[0]
    packages = tuple(dict.fromkeys(filter(None, (_distribution(file, checkout) for file in modules))))
    return tuple(
        replace(one, packages=packages, companions=companions) if one.made_by else one for one in trainers.values()
    )


def finder(target: Target, checkout: Checkout, python: str | None = None) -> Find:
    """Return a function that finds the file of a module, which is not imported. The copy of the framework is searched
    first, then the packages of an environment.

    :param python: the environment's interpreter; None for the running one.
    """
    installed = _package_folders(python)

    def find(module: str) -> Path | None:
        own = module.partition(".")[0] in target.packages
        folders = checkout.import_roots if own else (*checkout.import_roots, *installed)
        name = module.replace(".", "/")
        places = (folder / tail for folder in folders for tail in (f"{name}.py", f"{name}/__init__.py"))
        return next((place for place in places if _readable(place)), None)

    return find


def packages_digest(python: str | None = None) -> str:
    """Return a digest of the names and versions of the packages that an environment has.

    :param python: the environment's interpreter; None for the running one.
    """
    names = sorted(
        entry.name for folder in _package_folders(python) if folder.is_dir() for entry in folder.glob("*-info")
    )
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def _package_folders(python: str | None) -> list[Path]:
    listed = sys.path if python is None else _path_of(python)
    return [folder for folder in map(Path, listed) if folder.name.endswith("-packages")]


@cache
def _path_of(python: str) -> tuple[str, ...]:
    return tuple(interpreters.ask(python, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"))


def _distribution(file: Path, checkout: Checkout) -> str:
    """Return name and version of the installed package to which a file belongs, or "" for a file of the checkout."""
    folder = next((folder for folder in file.parents if folder.name.endswith("-packages")), None)
    if folder is None or file.is_relative_to(checkout.path):
        return ""
    package = file.relative_to(folder).parts[0]
    found = next(folder.glob(f"{package}-*.dist-info"), None)
    return found.name.removesuffix(".dist-info").replace("-", " ", 1) if found else package


def classes_of(catalog: Catalog, target: Target) -> tuple[str, ...]:
    """Return the configuration classes of a target's trainers, by name."""
    named = (entry["class"] for _, entry in _declarations(catalog, target.name) if "class" in entry)
    return tuple(dict.fromkeys(named))


def newest_with(target: Target, options: Options, name: str) -> tuple[str, str]:
    """Return the newest release whose file declares an option, and the release after it.

    Only ``options.file`` is read, without the classes that it imports, and only at releases in the mirror. Both are ""
    if the later release may declare the option in another file.
    """
    store, last = MirrorStore(), re.escape(name.rpartition(".")[2])
    if not store.has(target.name):
        return "", ""
    flag = f"--{last.replace('_', '[-_]')}[\"']"
    pattern = flag if options.file.endswith(".py") and not options.made_by else f"^[[:space:]]*{last}[[:space:]]*:"
    try:
        tags = [tag.name for tag in releases(store.path(target.name))][::-1][:_MOST_RELEASES]
        words = ("grep", "-l", "-E", "-e", pattern, *(f"refs/tags/{tag}" for tag in tags), "--", options.file)
        found = run(store.path(target.name), *words).out.decode(errors="replace") if tags else ""
        # In these releases, the file contains the last part of the name, perhaps in another section.
        having = {line.partition(":")[0].removeprefix("refs/tags/") for line in found.splitlines()}
        pairs = [pair for pair in zip(tags, ("", *tags)) if pair[0] in having][:_MOST_READ]
        newest, after = next((pair for pair in pairs if name in _at_release(target, options, pair[0])), ("", ""))
        moved = after != "" and _at_release(target, options, after).may_declare(name)
        return ("", "") if moved else (newest, after)
    except (Unavailable, GitError):
        return "", ""


def _at_release(target: Target, options: Options, tag: str) -> Options:
    """Return the options that ``options.file`` declares at a release. Imported classes are left out."""
    source = run(MirrorStore().path(target.name), "show", f"refs/tags/{tag}:{options.file}").out
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, os.path.basename(options.file))
        file.write_bytes(source)
        with suppress(SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError):
            if options.made_by:
                return replace(options, options=options_of_class(file, options.made_by, lambda _: None)[0])
            if file.suffix == ".py":
                return replace(options, options=options_of_parser(file)[0])
            declared, unread = options_of_tree(file)
            return replace(options, options=declared, open=unread)
    return replace(options, options={})


#: Maximum number of releases at which the file is parsed.
_MOST_READ = 8

#: Maximum number of releases in which an option is looked up.
_MOST_RELEASES = 100


def tree_folders(catalog: Catalog, target: Target, checkout: Checkout) -> tuple[Path, ...]:
    """Return the folders in a copy of the framework that have Hydra configurations."""
    trees = [entry["file"] for _, entry in _declarations(catalog, target.name) if entry["kind"] == "tree"]
    folders = [_place(target, checkout, file) for file in trees]
    return tuple(dict.fromkeys(place.parent for place in folders if place is not None))


def options_of_parser(
    file: Path,
) -> tuple[dict[str, Option], dict[str, str], dict[str, tuple[str, str | None]]]:
    """Return the options that a file declares by calls such as ``add_argument("--name")``.

    :return: the options; :attr:`Options.open`, if a call computes the name of its option; and :attr:`Options.flags`.
        ``f"--{prefix}.lr"`` in a loop over literal strings is not computed.
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
                more[""] = f"a call in {file.name} that computes the name of its option"
                continue
            setting = spelled(text_of(keywords.get("dest")) or name)
            options.setdefault(setting, Option(_default(keywords), choices_of(keywords.get("choices"))))
            value = text_of(keywords.get("const")) if action == "store_const" else _SET_BY.get(action)
            if spelled(name) != setting or action == "store_false":
                flags[spelled(name)] = setting, value
            if isinstance(keywords.get("action"), (ast.Name, ast.Attribute)):  # BooleanOptionalAction
                flags[f"no_{spelled(name)}"] = setting, "false"
    return options, more, flags


#: The name of an option whose real name the code computes.
_COMPUTED = "--?"


def _names(node: ast.expr, variable: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the possible values of an argument: a literal, or an f-string with each value of a loop variable. Return
    none for other expressions."""
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
    """Read a YAML file and its Hydra ``defaults`` list, and return all settings as options.

    :return: the options; and :attr:`Options.open`, if an entry of the list could not be read.
    """
    data, unread = composed(file, read_mapping(file), ())
    options = {name: Option(None if text == MISSING else text) for name, text in flattened(settings_of(data)).items()}
    return options, {"": unread[0]} if unread else {}


def _default(keywords: dict[str, ast.expr]) -> str | None:
    if "default" in keywords:
        return text_of(keywords["default"])
    action = text_of(keywords["action"]) if "action" in keywords else ""
    if keywords.get("required") is not None:
        return None
    return _FLAGS.get(action or "", "null")


def _declarations(catalog: Catalog, target: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for file, entry in _entries(catalog, target, "options", {"name", "kind", "file"}):
        if entry["kind"] not in ("classes", "parser", "tree"):
            raise SentinelError(f"{file}: an entry of options: kind must be classes, parser or tree")
        yield file, entry


def _entries(catalog: Catalog, target: str, kind: str, keys: set[str]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the entries of one kind in a target's ``options.toml``, each with its file.

    :param keys: the keys that each entry must have.
    """
    for file in (folder / target / FILE for folder in catalog.recipe_folders):
        for entry in read_mapping(file).get(kind, []) if file.is_file() else ():
            if missing := keys - entry.keys():
                raise SentinelError(f"{file}: an entry of {kind}: missing {', '.join(sorted(missing))}")
            yield file, entry


def places(target: Target, checkout: Checkout, name: str) -> Iterator[Path]:
    """Yield the paths at which a copy of the framework may have a file or folder of the repository."""
    names = [name, *(name.removeprefix(f"{root.import_root}/") for root in target.roots if root.import_root)]
    return (checkout.path / name for name in names)


def _place(target: Target, checkout: Checkout, file: str) -> Path | None:
    return next((place for place in places(target, checkout, file) if _readable(place)), None)


def _readable(place: Path) -> bool:
    return place.is_file() and place.stat().st_size < _LARGEST


def search_path(
    data: Mapping[Any, Any], catalog: Catalog, target: Target, checkout: Checkout
) -> tuple[list[Path], list[str]]:
    """Return the folders in which configuration files are looked up, and a message for each ignored entry.

    The configuration's own entries (``hydra.searchpath``) come first, then the folders of the audited copy. Hydra
    imports the package of a ``pkg://`` entry; this function looks up the package's folder in the audited copy.
    """
    node = data.get("hydra")
    written = node.get("searchpath") if isinstance(node, dict) else None
    folders, left_out = [], []
    for entry in written if isinstance(written, list) else ():
        scheme, _, name = str(entry).rpartition("://")
        folder = next(filter(os.path.isdir, _meant(scheme, name, target, checkout)), None)
        if folder is not None:
            folders.append(folder.absolute())
        else:
            left_out.append(
                f"hydra.searchpath: {entry} is left out: it is neither a folder here nor a package or folder of "
                f"{target.name}; give the folder as file:///…"
            )
    return list(dict.fromkeys([*folders, *tree_folders(catalog, target, checkout)])), left_out


def _meant(scheme: str, name: str, target: Target, checkout: Checkout) -> Iterator[Path]:
    """Yield the folders that an entry of a search path may mean, the most likely one first."""
    if scheme == "pkg" and all(part.isidentifier() for part in name.split(".")):
        yield from (root.joinpath(*name.split(".")) for root in checkout.import_roots)
    elif scheme in ("", "file") and name:
        yield Path(name)
        if not Path(name).is_absolute():
            yield from places(target, checkout, name)
