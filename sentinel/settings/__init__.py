# ruff: noqa: RUF009 (each dataclass field is created by a function call that declares its option)
"""Declare the settings, and read them from the command line and from ``sentinel.toml`` or ``[tool.sentinel]``."""

from __future__ import annotations

import os
import reprlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError, nearest
from sentinel.targets.refs import Ref
from sentinel.values.files import WRITTEN

#: Converts the texts of an option to the setting's value; also receives the names of known targets.
Reader = Callable[[list[Any], Sequence[str]], Any]


@dataclass(frozen=True)
class Option:
    """One option: ``--sentinel-NAME`` of pytest, ``--NAME`` of a command, ``NAME`` in a settings file.

    :ivar read: converts the given texts to the setting's value, or raises SentinelError.
    :ivar file: True if the value is a path. In a settings file, paths are relative to the folder of that file.
    """

    name: str
    metavar: str
    help: str
    read: Reader
    many: bool = False
    file: bool = False
    number: bool = False

    @property
    def type(self) -> str:
        """Return the types that a settings file may use for this option, such as ``a string or a list of strings``."""
        return "a string or a list of strings" if self.many else "a number" if self.number else "a string"


def _option(name: str, metavar: str, help: str, read: Reader, default: Any = (), **more: Any) -> Any:
    option = Option(name, metavar, help, read, **more)
    make = {"default_factory": dict} if default is dict else {"default": default}
    return field(**make, metadata={"option": option})


def _one(read: Callable[[Any], Any]) -> Reader:
    return lambda texts, _: read(texts[-1])


def _each(read: Callable[[Any], Any]) -> Reader:
    return lambda texts, _: tuple(map(read, texts))


def _by_target(read: Callable[[str], Any]) -> Reader:
    """Return a reader of ``[TARGET=]VALUE`` texts. Without ``TARGET``, the value is for all targets, which is
    represented by None."""
    return lambda texts, targets: tuple(
        (name, read(value)) for name, value in (_assign(text, targets) for text in texts)
    )


def _comma(read: Reader) -> Reader:
    return lambda texts, targets: read(
        [part.strip() for text in texts for part in text.split(",") if part.strip()], targets
    )


def _mapping(read: Callable[[str], Any]) -> Reader:
    return lambda texts, targets: dict(_by_target(read)(texts, targets))


def _choice(what: str, *choices: str) -> Reader:
    def read(text: str) -> str:
        if text not in choices:
            raise SentinelError(f"unknown {what} {text!r}{nearest(text, choices)}; use one of {', '.join(choices)}")
        return text

    return _one(read)


def _targets(names: list[str], targets: Sequence[str]) -> tuple[str, ...]:
    if "all" in names:
        return tuple(name for name in targets if name != "demo")
    for name in names:
        if name not in targets:
            raise SentinelError(
                f"unknown target {name!r}{nearest(name, targets, alike=0.5)}; known: {', '.join(targets)}, all"
            )
    return tuple(dict.fromkeys(names))


def _assign(text: str, targets: Sequence[str]) -> tuple[str | None, str]:
    """Split ``TARGET=VALUE`` at the equals sign. The target is None if the text is only a value."""
    name, equals, value = text.partition("=")
    if equals and name in targets:
        return name, value
    if equals and name.isidentifier():
        raise SentinelError(
            f"unknown target {name!r} in {text!r}{nearest(name, targets, alike=0.5)}; known: {', '.join(targets)}"
        )
    return None, text


def _path(text: str) -> Path:
    """Expand ``~``. An unknown ``~user`` is kept, so that a later check reports the path as missing."""
    return Path(os.path.expanduser(text))


def _folder(text: str) -> Path:
    path = _path(text)
    if not os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise SentinelError(f"no such folder: {path}")
    return path


def _tree(text: str) -> Ref:
    return Ref("path", os.path.abspath(_folder(text)))


def _interpreter(path: str) -> str:
    python = shutil.which(os.path.expanduser(path))
    if python is None:
        raise SentinelError(f"no such interpreter: {path}; name the path of a python executable")
    return os.path.abspath(python)


def _url(text: str) -> str:
    from sentinel.sources.urls import check_url

    return check_url(text)


def _device(text: str) -> str:
    if text == "cpu" or text == "cuda" or (text.startswith("cuda:") and text[5:].isdigit()):
        return text
    raise SentinelError(f"unknown device {text!r}; write cpu, cuda or cuda:N")


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except OverflowError:
        seconds = float("inf")
    except (TypeError, ValueError):
        raise SentinelError(f"the timeout must be a number of seconds, not {value!r}") from None
    if not 0 < seconds < 86400:
        raise SentinelError(f"the timeout must be more than 0 and less than 86400 seconds (a day), not {seconds:g}")
    return seconds


_FILES = {"many": True, "file": True}
_REPORTS = Path("sentinel-reports")


@dataclass(frozen=True)
class Settings:
    """All settings of a run. Each setting is declared only here.

    :ivar targets: the names of selected targets; empty if only paths were given.
    :ivar named_refs: (target name or None for all, ref); if empty, the recipes' own pins are checked.
    :ivar pythons: target name (None for all) -> the interpreter in whose environment the target is installed.
    :ivar sandbox: the level; if empty, the strictest one that the machine supports.
    :ivar laws: the level; if empty, ``off`` for pins, and ``quick`` for a ref or a working tree.
    """

    targets: tuple[str, ...] = _option(
        "target", "NAME", "check these targets, or 'all' (comma-separated, repeatable)", _comma(_targets), many=True
    )
    bugs: tuple[str, ...] = _option(
        "bug", "GLOB", "only bugs whose id matches GLOB (comma-separated, repeatable)", _comma(_each(str)), many=True
    )
    named_refs: tuple[tuple[str | None, Ref], ...] = _option(
        "ref",
        "[TARGET=]REF",
        "check these refs instead of the recipes' pins: git:<sha|tag|branch|pull/N/head>, pypi:<version|latest>, "
        "path:<dir>, installed",
        _comma(_by_target(Ref.parse)),
        many=True,
    )
    trees: tuple[tuple[str | None, Ref], ...] = _option(
        "repo", "[TARGET=]DIR", "check a working tree, including uncommitted changes", _by_target(_tree), **_FILES
    )
    recipes: tuple[Path, ...] = _option(
        "recipes", "DIR", "also load the recipes of this folder", _each(_folder), **_FILES
    )
    pythons: Mapping[str | None, str] = _option(
        "python",
        "[TARGET=]PYTHON",
        "run the target with this Python interpreter and the packages of its environment",
        _mapping(_interpreter),
        dict,
        many=True,
    )
    repo_urls: Mapping[str | None, str] = _option(
        "repo-url", "[TARGET=]URL", "fetch from the fork at URL instead of upstream", _mapping(_url), dict, many=True
    )
    report_dir: Path = _option(
        "report-dir", "DIR", "write evidence to DIR (default: sentinel-reports)", _one(_path), _REPORTS, file=True
    )
    baseline: Path | None = _option(
        "baseline", "DIR", "fail only if the evidence differs from the evidence in DIR", _one(_path), None, file=True
    )
    device: str = _option("device", "DEVICE", "device for tensors: cpu (default), cuda or cuda:N", _one(_device), "cpu")
    timeout: float = _option(
        "timeout", "SECONDS", "time limit of one call, in seconds (default: 60)", _one(_seconds), 60.0, number=True
    )
    sandbox: str = _option(
        "sandbox",
        "LEVEL",
        "isolation of framework code: strict, basic or off (default: the strictest that this machine supports)",
        _choice("sandbox", "strict", "basic", "off"),
        "",
    )
    laws: str = _option(
        "laws",
        "LEVEL",
        "search for broken laws: off, quick or deep (default: off for pins, quick for --sentinel-ref)",
        _choice("level of laws", "off", "quick", "deep"),
        "",
    )
    named_against: tuple[tuple[str | None, Ref | None], ...] = _option(
        "against",
        "[TARGET=]REF",
        "fail if results are worse than at this ref; 'none' turns the comparison off (default for a working tree or a "
        "pull request: the commit at which it branched off upstream's main branch)",
        _comma(_by_target(lambda text: None if text == "none" else Ref.parse(text))),
        many=True,
    )
    allowed_changes: tuple[str, ...] = _option(
        "allow-changes",
        "GLOB",
        "accept changed results of boundaries that match GLOB (comma-separated, repeatable)",
        _comma(_each(str)),
        many=True,
    )
    sarif: Path | None = _option(
        "sarif", "FILE", "also write the results as SARIF 2.1.0, for code scanning", _one(_path), None, file=True
    )

    @property
    def refs(self) -> tuple[tuple[str | None, Ref], ...]:
        """Return the refs to check instead of the recipes' pins."""
        return self.named_refs + self.trees

    @property
    def law_level(self) -> str:
        return self.laws or ("quick" if self.refs and self.targets and not self.bugs and not self.is_gate else "off")

    @property
    def is_gate(self) -> bool:
        """Return True if the run only compares revisions, and checks no recipes and no laws."""
        pairs = [self.against(target, ref) for target in self.targets for ref in self.refs_of(target)]
        return bool(pairs) and all(pairs) and not (self.bugs or self.laws or self.baseline)

    @property
    def selects_items(self) -> bool:
        """Return True if the options alone select items, without a path in pytest's arguments."""
        return bool(self.targets or self.recipes or self.bugs)

    def refs_of(self, target: str) -> tuple[Ref, ...]:
        return tuple(dict.fromkeys(ref for name, ref in self.refs if name in (None, target)))

    def against(self, target: str, ref: Ref) -> tuple[Ref | None, ...]:
        """Return the base refs with which a ref is compared. None stands for the ref's merge base with upstream."""
        given = dict.fromkeys(base for name, base in self.named_against if name in (None, target))
        if given:
            return tuple(base for base in given if base is not None)
        return (None,) if ref.is_branch and not (self.bugs or self.laws or self.baseline) else ()

    def python_of(self, target: str) -> str | None:
        """Return the interpreter for a target; None for the current one."""
        return self.pythons.get(target, self.pythons.get(None))

    def url_of(self, target: str) -> str | None:
        """Return the URL of a target's fork; None if there is none."""
        return self.repo_urls.get(target, self.repo_urls.get(None))

    def selects(self, target: str, bug_id: str) -> bool:
        return (not self.targets or target in self.targets) and (
            not self.bugs or any(fnmatchcase(bug_id, pattern) for pattern in self.bugs)
        )

    def words(self) -> list[str]:
        """Return the settings that differ from their defaults, as command-line arguments."""
        default = Settings()
        words = []
        for place, option in OPTIONS.items():
            value = getattr(self, place)
            if value != getattr(default, place):
                several = value.items() if isinstance(value, Mapping) else value if option.many else [value]
                words += [f"--sentinel-{option.name}={_write(option, item)}" for item in several]
        return words


def _write(option: Option, value: Any) -> str:
    if isinstance(value, tuple):
        name, value = value
        return f"{name}={_write(option, value)}" if name else _write(option, value)
    if option.number:
        return f"{value:g}"
    return value.name if option.name == "repo" else "none" if value is None else str(value)


#: Field of :class:`Settings` -> its option.
OPTIONS: Mapping[str, Option] = {item.name: item.metadata["option"] for item in fields(Settings)}
#: Name of an option in settings files and on command lines -> the option.
NAMED: Mapping[str, Option] = {option.name: option for option in OPTIONS.values()}


def read_file(folder: Path) -> tuple[dict[str, Any], Path | None]:
    """Return the settings in a folder's ``sentinel.toml``, or else in its ``pyproject.toml``, and the path of the file.
    Return ``({}, None)`` if neither file has settings."""
    own, project = folder / "sentinel.toml", folder / "pyproject.toml"
    for file, table in ((own, ()), (project, ("tool", "sentinel"))):
        if not file.is_file():
            continue
        from sentinel.values.documents import read_data  # imported here because it imports PyYAML

        try:
            values: Any = read_data(file, WRITTEN)
        except SentinelError:
            if file is project:
                return {}, None  # pytest itself reports a broken pyproject.toml
            raise
        for name in table:
            values = values.get(name, {}) if isinstance(values, dict) else {}
        if not isinstance(values, dict):
            raise SentinelError(f"{file.name}: [{'.'.join(table)}] must be a table of options")
        for key, value in values.items():
            _check(file.name, key, value)
        if values:
            return values, file
    return {}, None


def _check(file: str, key: str, value: Any) -> None:
    option = NAMED.get(key)
    if option is None and key in ("sentinel", "tool") and isinstance(value, dict):
        table = "tool.sentinel" if key == "tool" else key
        raise SentinelError(
            f"{file}: write the options without the line [{table}]; only pyproject.toml has such a table"
        )
    if option is None:
        raise SentinelError(f"{file}: unknown option {key!r}{nearest(key, NAMED)}")
    texts = value if option.many and isinstance(value, list) else [value]
    kinds = (str, int, float) if option.number else (str,)
    if not all(isinstance(text, kinds) and not isinstance(text, bool) for text in texts):
        raise SentinelError(f"{file}: {key} must be {option.type}, not {reprlib.repr(value)}")  # may be nested deeply


def settle(options: Mapping[str, Any], file: Mapping[str, Any], targets: Sequence[str], base: Path) -> Settings:
    """Return the settings. Options of the command line override the settings file, which overrides the defaults.

    :param options: option -> value; None for an option that is not given.
    :param file: option -> value in the settings file, whose paths are relative to ``base``.
    :raises SentinelError: for invalid values.
    """
    file = in_effect(options, file)
    environment = {"report-dir": os.environ.get("OUTPUT_DIR")}  # published runners set this variable
    values = {}
    for place, option in OPTIONS.items():
        texts = _texts(options.get(option.name)) or [
            _place(text, option, base) for text in _texts(file.get(option.name))
        ]
        texts = texts or _texts(environment.get(option.name))
        if texts:
            values[place] = option.read(texts, targets)
    settings = Settings(**values)
    for name, _ in settings.named_refs:
        for other, _ in settings.trees:
            if name is None or other is None or name == other:
                raise SentinelError(
                    f"--sentinel-ref and --sentinel-repo both select the code of {name or other or 'every target'}; "
                    "leave one out, or write both as refs: --sentinel-ref=git:main,path:DIR"
                )
    return settings


def in_effect(options: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a settings file that no option of the command line overrides."""
    given = {name for name, value in options.items() if _texts(value)}
    # `ref` and `repo` both select the code, so each overrides both.
    given |= {"ref", "repo"} if given & {"ref", "repo"} else set()
    return {name: value for name, value in file.items() if _texts(value) and name not in given}


def in_words(values: Mapping[str, Any]) -> str:
    """Format settings as one line, such as ``bug = A, B; laws = off``."""
    return "; ".join(f"{name} = {', '.join(map(str, _texts(value)))}" for name, value in values.items())


def _place(text: Any, option: Option, base: Path) -> Any:
    """Resolve a path of a settings file against the file's folder. Values that are not paths are returned unchanged."""
    if not option.file:
        return text
    name, equals, path = text.partition("=")
    if option.name == "repo" and equals and name.isidentifier():
        return f"{name}={base / os.path.expanduser(path)}"
    return str(base / os.path.expanduser(text))


def _texts(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if item not in (None, "")]
