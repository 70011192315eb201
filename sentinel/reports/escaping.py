"""Make untrusted text (tracebacks, reasons, names) safe to print, and remove local paths from it."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import sentinel

#: Characters that control a terminal or are invisible: C0 and C1 controls, soft hyphens, bidirectional overrides,
#: zero-width and tag characters, lone surrogates. :func:`visible` handles line feed and tab.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U00013430-\U0001345f\U0001bca0-\U0001bcaf\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_HIDDEN_IN_A_LINE = re.compile(f"[\t\n]|{_HIDDEN.pattern}")
#: Commands that a CI runner executes: ``::command::`` at the start of a line of output, ``##[command]`` anywhere.
_COMMAND = re.compile(r"^([ \t]*):(?=:)|#(?=#\[)", re.MULTILINE)
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}

#: Maximum number of characters of a text. The middle of longer text, such as the traceback of a recursion, is removed.
LONGEST = 20_000

_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]+@")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
_COMPONENT = r"[^\s/\"'`:;,()<>|]+"
_FOLDERS = rf"(?:/{_COMPONENT}){{1,40}}"  # limited, because an unlimited pattern takes quadratic time on hostile text
_BEGINS = r"(?:(?<=file://)|(?<![\w/.>~-]))"
_SITE_PACKAGES = re.compile(rf"{_BEGINS}{_FOLDERS}/(?:site|dist)-packages(?=/)")
_STANDARD_LIBRARY = re.compile(rf"{_BEGINS}(?:{_FOLDERS})?/lib(?:64)?/python3\.\d+(?=/)")
_HOME = re.compile(rf"{_BEGINS}/(?:home|Users)/{_COMPONENT}")
_ABSOLUTE = re.compile(rf"{_BEGINS}{_FOLDERS}/({_COMPONENT})")
_WINDOWS = re.compile(r"(?<!\w)[A-Za-z]:\\(?:[^\s\"'<>|\\]+\\)*([^\s\"'<>|\\]+)")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Replace control and invisible characters by escapes such as ``\x1b``. Also escape commands to CI runners.

    :param lines: keep line feeds and tabs.
    """
    shown = _HIDDEN.sub(_escape, text.replace("\r\n", "\n")) if lines else _HIDDEN_IN_A_LINE.sub(_escape, text)
    return _COMMAND.sub(lambda match: f"{match[1]}\\x3a" if match[0].endswith(":") else "\\x23", shown)


def visible_data(value: Any, *, lines: bool = False) -> Any:
    """Apply :func:`visible` to every string in nested data, including keys of mappings."""
    if isinstance(value, Mapping):
        return {visible(key): visible_data(item, lines=lines) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_data(item, lines=lines) for item in value]
    return visible(value, lines=lines) if isinstance(value, str) else value


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each as one line."""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def shorten(text: str) -> str:
    """Remove the middle of a text that is longer than :data:`LONGEST`.

    The text is cut between words, because :func:`portable` does not recognise half of a path.
    """
    if len(text) <= LONGEST:
        return text
    head = re.sub(r"\S{1,400}$", "", text[: LONGEST // 4])
    tail = re.sub(r"^\S{1,400}", "", text[LONGEST // 4 - LONGEST :])
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters left out ...]\n{tail}"


def portable(text: str, places: Iterable[tuple[str, str]] = ()) -> str:
    """Remove absolute paths, user names, memory addresses and credentials in URLs from a text.

    :param places: folders and their replacements, such as ``("/cache/ab12", "<checkout>")``. These folders and the
        machine's own (temporary, home, interpreter) are replaced. Any other path is reduced to its last part.
    """
    text = _CREDENTIALS.sub("", text)
    text = _ADDRESS.sub("0x...", text)
    text = _replace(text, tuple(places))
    if "/" not in text and "\\" not in text:
        return text
    text = _replace(text, _OWN)  # replaced first, because an installed Sentinel is in site-packages
    text = _SITE_PACKAGES.sub("<site-packages>", text)
    text = _STANDARD_LIBRARY.sub("<python>", text)
    text = _replace(text, _machine())
    text = _HOME.sub("<home>", text)
    text = _ABSOLUTE.sub(r"<path>/\1", text)
    return _WINDOWS.sub(r"<path>/\1", text)


def message(text: str, places: Iterable[tuple[str, str]] = ()) -> str:
    """Return a text as one line that is safe to print and has no local paths."""
    return visible(portable(shorten(text), places).strip())


def passage(text: str, places: Iterable[tuple[str, str]] = ()) -> str:
    """Make a text of several lines safe to print, such as a traceback, and remove local paths."""
    return visible(portable(shorten(text), places).strip("\n"), lines=True)


_OWN = ((str(Path(sentinel.__file__).resolve().parent), "<sentinel>"),)


@lru_cache(maxsize=1)
def _machine() -> tuple[tuple[str, str], ...]:
    places = [(sys.prefix, "<python>"), (sys.base_prefix, "<python>"), (tempfile.gettempdir(), "<tmp>")]
    with suppress(RuntimeError):  # some containers have no home directory
        places.append((str(Path.home()), "<home>"))
    return tuple(places)


def _replace(text: str, places: tuple[tuple[str, str], ...]) -> str:
    for pattern, name in _patterns(places):
        text = pattern.sub(lambda _, name=name: name, text)  # type: ignore[misc]
    return text


@lru_cache(maxsize=256)
def _patterns(places: tuple[tuple[str, str], ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    usable = {(place.rstrip("/\\"), name) for place, name in places if Path(place).is_absolute()}
    ordered = sorted((item for item in usable if len(item[0]) > 1), key=lambda item: (-len(item[0]), item))
    return tuple((re.compile(rf"(?<![\w/.-]){re.escape(place)}(?![\w.-])"), name) for place, name in ordered)
