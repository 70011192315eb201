"""Which options a copy of a framework has: read off the copy, where ``recipes/<target>/options.toml`` says to look.

    [[options]]
    name = "PPO"
    kind = "classes"
    file = "package/config.py"
    class = "TrainConfig"

One entry for each place where a trainer's options have been; of those with one name, the first counts whose file and
class the copy has. Kinds: ``classes`` (a dataclass and its sections), ``parser`` (argparse), ``tree`` (YAML).
``elsewhere`` holds options that another package or file declares, with their defaults. ``more`` names what declares
options that are not read; a setting of a run that is not known may then be one of them.

    [defaults.policy_loss]
    eps_clip_high = ["epsilon_high", "epsilon"]
    loss_agg_mode = {option = "DPO:loss_type", is = {sum = "token-sum"}}

Which option (of which trainer) an input of a contract is set by: the first that is not null, with its values as the
contract has them where they are not the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel.configuration.files import MISSING, flattened, read_mapping, settings_of, spelled, value_of
from sentinel.configuration.option_classes import options_of_class
from sentinel.configuration.options import Option, Options, choices_of, parsed, text_of
from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout

#: Beside the recipes of a target.
FILE = "options.toml"

#: A file of a copy that is larger was not written by hand; it is not read.
_LARGEST = 4_000_000

_FLAGS = {"store_true": "false", "store_false": "true"}


def options_of(catalog: Catalog, target: Target, checkout: Checkout) -> tuple[Options, ...]:
    """Give the options of each trainer of a copy, in the order of the declarations; none where nothing is declared."""
    trainers: dict[str, Options] = {}
    for file, entry in _declarations(catalog, target.name):
        if entry["name"] in trainers:
            continue
        place = _place(target, checkout, entry["file"])
        if place is None:
            continue
        try:
            more = {"": entry["more"]} if "more" in entry else {}
            if entry["kind"] == "classes":
                options, unread = options_of_class(place, entry["class"], lambda module: _module(checkout, module))
                more = {**unread, **more}
            else:
                options = options_of_parser(place) if entry["kind"] == "parser" else options_of_tree(place)
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError):
            continue  # a copy that is broken there says nothing; what is then not known is said to be not known
        except KeyError as error:
            raise SentinelError(f"{file}: {entry['name']}: missing key {error}") from None
        if not options:
            continue  # the class had another name then
        elsewhere = {name: Option(text) for name, text in flattened(entry.get("elsewhere", {})).items()}
        trainers[entry["name"]] = Options(
            entry["name"], entry["file"], {**elsewhere, **options}, entry.get("class", ""), more
        )
    return tuple(trainers.values())


def classes_of(catalog: Catalog, target: Target) -> tuple[str, ...]:
    """Return the names of the classes by which Python scripts configure the trainers of a target."""
    named = (entry["class"] for _, entry in _declarations(catalog, target.name) if "class" in entry)
    return tuple(dict.fromkeys(named))


def defaults_of(catalog: Catalog, target: Target, checkout: Checkout, contract: str) -> dict[str, tuple[Any, str]]:
    """Map inputs of a contract to the default that a run has, with its option; without what is not known."""
    defaults: dict[str, tuple[Any, str]] = {}
    trainers = options_of(catalog, target, checkout)
    for file in _files(catalog, target.name):
        for name, entry in read_mapping(file).get("defaults", {}).get(contract, {}).items():
            declaration = entry if isinstance(entry, dict) else {"option": entry}
            options = declaration["option"] if isinstance(declaration["option"], list) else [declaration["option"]]
            for option in options:
                trainer, _, key = option.rpartition(":")
                having = [item for item in trainers if key in item.options and trainer in ("", item.name)]
                text = having[0].options[key].default if having else None
                text = declaration["is"].get(text) if "is" in declaration else text
                if text is not None:
                    defaults[name] = value_of(text), key
                    if defaults[name][0] is not None:
                        break
    return defaults


def tree_folders(catalog: Catalog, target: Target, checkout: Checkout) -> tuple[Path, ...]:
    """Give the folders of a copy's trees: where a configuration finds those of the copy's that it is composed of."""
    trees = [entry["file"] for _, entry in _declarations(catalog, target.name) if entry["kind"] == "tree"]
    folders = [_place(target, checkout, file) for file in trees]
    return tuple(dict.fromkeys(place.parent for place in folders if place is not None))


def options_of_parser(file: Path) -> dict[str, Option]:
    """Give every call in the file that names an option ``--name``: ``add_argument``, or a function around it."""
    options: dict[str, Option] = {}
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.Call):
            continue
        words = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        names = [word for word in words if word.startswith("--")]
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if names:
            name = text_of(keywords["dest"]) if "dest" in keywords else names[0]
            options.setdefault(spelled(name), Option(_default(keywords), choices_of(keywords.get("choices"))))
    return options


def _default(keywords: dict[str, ast.expr]) -> str | None:
    if "default" in keywords:
        return text_of(keywords["default"])
    action = text_of(keywords["action"]) if "action" in keywords else ""
    if keywords.get("required") is not None:
        return None
    return _FLAGS.get(action or "", "null")


def options_of_tree(file: Path) -> dict[str, Option]:
    """What the file itself says. What its Hydra ``defaults`` list brings in is not looked up: it is no option here."""
    data = settings_of(read_mapping(file))
    return {name: Option(None if text == MISSING else text) for name, text in flattened(data).items()}


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
    """Say where a file or folder of the repository would be in a copy; an installed one has its packages alone."""
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
