"""What a run was asked to do: the command line, over ``sentinel.toml`` or ``[tool.sentinel]``, over the defaults."""

from __future__ import annotations

import difflib
import os
import reprlib
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.refs import Ref

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SANDBOXES = ("strict", "basic", "off")
LAWS = ("off", "quick", "deep")


@dataclass(frozen=True)
class Settings:
    """:ivar targets: the selected targets' names; empty where Sentinel was asked for through paths alone.
    :ivar bugs: globs over bug ids; empty for all.
    :ivar refs: (target name or None for all, ref); empty for the recipes' own pins.
    :ivar recipes: the user's recipe folders.
    :ivar pythons: target name (None for all) -> interpreter whose environment has it installed.
    :ivar laws: ``off``, ``quick`` or ``deep``; empty where nothing was said: then off for pins, and quick where a ref
        or a working tree is checked.
    :ivar repo_urls: target name (None for all) -> the git URL of a fork.
    :ivar sandbox: ``strict``, ``basic`` or ``off``; empty for the strictest that the machine offers.
    :ivar sarif: a file that is to hold the run as SARIF too.
    """

    targets: tuple[str, ...] = ()
    bugs: tuple[str, ...] = ()
    refs: tuple[tuple[str | None, Ref], ...] = ()
    recipes: tuple[Path, ...] = ()
    report_dir: Path = Path("sentinel-reports")
    baseline: Path | None = None
    device: str = "cpu"
    timeout: float = 60.0
    sandbox: str = ""
    pythons: Mapping[str | None, str] = field(default_factory=dict)
    repo_urls: Mapping[str | None, str] = field(default_factory=dict)
    laws: str = ""
    sarif: Path | None = None

    @property
    def law_level(self) -> str:
        return self.laws or ("quick" if self.refs and self.targets and not self.bugs else "off")

    @property
    def asked(self) -> bool:
        """Whether the options alone ask for Sentinel's items."""
        return bool(self.targets or self.recipes or self.bugs)

    def refs_of(self, target: str) -> tuple[Ref, ...]:
        return tuple(dict.fromkeys(ref for name, ref in self.refs if name in (None, target)))

    def selects(self, target: str, bug_id: str) -> bool:
        return (not self.targets or target in self.targets) and (
            not self.bugs or any(fnmatchcase(bug_id, pattern) for pattern in self.bugs)
        )


#: option (as written in a file; on the command line with ``--sentinel-`` before it) -> whether it is a list
KEYS = {
    "target": True,
    "bug": True,
    "ref": True,
    "repo": True,
    "recipes": True,
    "python": True,
    "repo-url": True,
    "report-dir": False,
    "baseline": False,
    "device": False,
    "timeout": False,
    "sandbox": False,
    "laws": False,
    "sarif": False,
}


def read_file(folder: Path) -> tuple[dict[str, Any], Path | None]:
    """The settings of a folder: ``sentinel.toml``, or ``[tool.sentinel]`` of its ``pyproject.toml``.

    :raises SentinelError: where the file does not parse, or has a key that is no option.
    """
    own, project = folder / "sentinel.toml", folder / "pyproject.toml"
    for file, table in ((own, ()), (project, ("tool", "sentinel"))):
        if not file.is_file():
            continue
        try:
            values: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:  # not TOML, or no number that Python would read
            if file is project:
                return {}, None  # pytest itself reports a broken pyproject.toml
            raise SentinelError(f"{file.name}: {error}") from None
        for name in table:
            values = values.get(name, {}) if isinstance(values, dict) else {}
        if not isinstance(values, dict):
            raise SentinelError(f"{file.name}: [{'.'.join(table)}] is a table of options")
        for key, value in values.items():
            _check(file.name, key, value)
        if values:
            return values, file
    return {}, None


def _check(file: str, key: str, value: Any) -> None:
    if key not in KEYS:
        raise SentinelError(f"{file}: unknown option {key!r}{nearest(key, KEYS)}")
    texts = value if KEYS[key] and isinstance(value, list) else [value]
    kinds = (str, int, float) if key == "timeout" else (str,)
    if not all(isinstance(text, kinds) and not isinstance(text, bool) for text in texts):
        wanted = "a string or a list of strings" if KEYS[key] else "a number" if key == "timeout" else "a string"
        raise SentinelError(f"{file}: {key} is {wanted}, not {reprlib.repr(value)}")  # a table may be deep


def settle(given: Mapping[str, Any], file: Mapping[str, Any], known_targets: Sequence[str], base: Path) -> Settings:
    """Merge what was given on the command line over what a file says, and check it.

    :param given: option -> value or list, None where not given.
    :param base: the folder that paths of the file are relative to.
    :raises SentinelError: for an unknown target, a bad ref, a path that is not there.
    """
    raw = {key: given.get(key) if given.get(key) not in (None, []) else _from_file(key, file, base) for key in KEYS}

    def assigned(text: str) -> tuple[str | None, str]:
        return _assignment(text, known_targets)

    targets = _targets(_split(raw["target"]), known_targets)
    refs = [_ref(text, known_targets) for text in _split(raw["ref"])]
    for text in _each(raw["repo"]):
        name, path = assigned(text)
        refs.append((name, Ref("path", os.path.abspath(_folder(_path(path))))))
    return Settings(
        targets=targets,
        bugs=tuple(_split(raw["bug"])),
        refs=tuple(refs),
        recipes=tuple(_folder(_path(path)) for path in _each(raw["recipes"])),
        report_dir=_path(raw["report-dir"] or os.environ.get("OUTPUT_DIR") or "sentinel-reports"),
        baseline=_folder(_path(raw["baseline"])) if raw["baseline"] else None,
        device=_device(str(raw["device"] or "cpu")),
        timeout=_timeout(raw["timeout"]),
        sandbox=_choice("sandbox", str(raw["sandbox"]), SANDBOXES) if raw["sandbox"] else "",
        pythons={name: _interpreter(path) for name, path in map(assigned, _each(raw["python"]))},
        repo_urls={name: _repo_url(url) for name, url in map(assigned, _each(raw["repo-url"]))},
        laws=_choice("level of laws", str(raw["laws"]), LAWS) if raw["laws"] else "",
        sarif=_path(raw["sarif"]) if raw["sarif"] else None,
    )


def nearest(name: str, names: Iterable[str]) -> str:
    """`` — did you mean 'x'?`` where something is close."""
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f" — did you mean {close[0]!r}?" if close else ""


def _from_file(key: str, file: Mapping[str, Any], base: Path) -> Any:
    """What a file says; its paths are relative to its folder."""
    value = file.get(key)
    if value is None or key not in ("recipes", "report-dir", "baseline", "repo", "sarif"):
        return value

    def placed(text: str) -> str:
        name, equals, path = text.partition("=")
        if key == "repo" and equals and name.isidentifier():
            return f"{name}={base / os.path.expanduser(path)}"
        return str(base / os.path.expanduser(text))

    return [placed(item) for item in value] if isinstance(value, list) else placed(value)


def _each(value: Any) -> list[str]:
    """What was given once or several times; a path or a URL may hold a comma."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [str(item) for item in values if str(item)]


def _split(value: Any) -> list[str]:
    """As :func:`_each`, comma lists taken apart."""
    return [part.strip() for item in _each(value) for part in item.split(",") if part.strip()]


def _targets(names: list[str], known: Sequence[str]) -> tuple[str, ...]:
    if "all" in names:
        return tuple(name for name in known if name != "demo")
    for name in names:
        if name not in known:
            raise SentinelError(f"unknown target {name!r}{nearest(name, known)}; known: {', '.join(known)}, all")
    return tuple(dict.fromkeys(names))


def _ref(text: str, known: Sequence[str]) -> tuple[str | None, Ref]:
    name, rest = _assignment(text, known)
    return name, Ref.parse(rest)


def _assignment(text: str, known: Sequence[str]) -> tuple[str | None, str]:
    """``TARGET=VALUE``, or ``VALUE`` for every target."""
    name, equals, value = text.partition("=")
    if equals and name in known:
        return name, value
    if equals and name.isidentifier():
        raise SentinelError(f"unknown target {name!r} in {text!r}{nearest(name, known)}; known: {', '.join(known)}")
    return None, text


def _repo_url(text: str) -> str:
    from sentinel.sources.urls import checked_url

    return checked_url(text)


def _path(text: str) -> Path:
    """``~`` of a user who is not there stays: that no such file is there is said in a moment."""
    return Path(os.path.expanduser(text))


def _folder(path: Path) -> Path:
    if not os.path.isdir(path):  # pathlib raises for a name that is too long
        raise SentinelError(f"no such folder: {path}")
    return path


def _interpreter(path: str) -> str:
    found = shutil.which(os.path.expanduser(path))
    if found is None:
        raise SentinelError(f"no such interpreter: {path}; --sentinel-python takes the path of a python executable")
    return os.path.abspath(found)


def _device(text: str) -> str:
    if text == "cpu" or text == "cuda" or (text.startswith("cuda:") and text[5:].isdigit()):
        return text
    raise SentinelError(f"unknown device {text!r}; write cpu, cuda or cuda:N")


def _timeout(value: Any) -> float:
    try:
        seconds = float(60 if value is None else value)
    except (TypeError, ValueError, OverflowError):
        raise SentinelError(f"the timeout is a number of seconds, not {value!r}") from None
    if not 0 < seconds < 86400:
        raise SentinelError(f"the timeout must lie between 0 and a day, not {value!r}")
    return seconds


def _choice(what: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise SentinelError(f"unknown {what} {value!r}{nearest(value, choices)}; one of {', '.join(choices)}")
    return value
