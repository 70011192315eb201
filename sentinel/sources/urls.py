"""The URLs of git repositories: what is taken for one, before git ever sees it; and forks."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.targets import Target

_SCHEMES = ("https", "http", "ssh", "git", "file")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SCP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:(?!:)[^-].*", re.DOTALL)
#: What a shell, or a transport that runs commands, could act on. None of it stands in an honest repository URL.
_FORBIDDEN = re.compile(r"[\s;|&$`<>\"'\\(){}!*\[\]^\x00-\x1f\x7f]")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def is_url(text: str) -> bool:
    """Say whether the text is meant as a URL and not as a path of this machine."""
    return bool(_URL.match(text) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*::", text) or _SCP.fullmatch(text))


def checked_url(text: str) -> str:
    """Prove that a URL holds neither an option nor a command, and that its transport only reads."""
    label = redacted(text)
    if text.startswith("-"):
        raise SentinelError(f"not a repository URL: {label!r} begins with '-', as an option does")
    if "::" in text.split("/", 1)[0]:
        raise SentinelError(f"not a repository URL: {label!r} names a transport that runs a command; use https or ssh")
    if _FORBIDDEN.search(text):
        raise SentinelError(
            f"not a repository URL: {label!r} holds a blank or a character that a shell acts on; "
            "write such characters as %XX"
        )
    match = _URL.fullmatch(text)
    if match is None:
        if _SCP.fullmatch(text):
            return text
        raise SentinelError(f"not a repository URL: {label!r}; write https://HOST/OWNER/NAME or git@HOST:OWNER/NAME")
    scheme, rest = match.groups()
    if scheme.lower() not in _SCHEMES:
        raise SentinelError(f"not a repository URL: {label!r}: {scheme!r} is not one of {', '.join(_SCHEMES)}")
    # ssh takes a host that begins with '-' for an option.
    if rest.startswith("-") or "@-" in rest or not rest.strip("/"):
        raise SentinelError(f"not a repository URL: {label!r}: there is no host in it")
    return text


def protocol(url: str) -> str:
    """Give the git protocol that the URL needs, the only one that is then allowed."""
    match = _URL.fullmatch(url)
    return match.group(1).lower() if match else "ssh"


def redacted(text: str) -> str:
    """Remove the name and password that a URL in a text may carry."""
    return _PASSWORD.sub("", text)


def local_path(text: str) -> Path:
    return Path(os.path.expanduser(text)).absolute()


_MARK = ".fork-"


def base_name(name: str) -> str:
    """Give the target's name, of its own mirror's name or of a fork's."""
    return name.partition(_MARK)[0]


def fork(target: Target, url: str | None) -> Target:
    """Give the target as a fork has it; the target itself where there is no URL or it is upstream's own.

    A fork's branches are not upstream's, so it never shares a mirror with it: ``verl.fork-1a2b3c4d``."""
    if url is None or checked_url(url) == target.repository:
        return target
    return replace(target, name=f"{target.name}{_MARK}{hashlib.sha256(url.encode()).hexdigest()[:8]}", repository=url)
