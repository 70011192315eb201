"""Validate the URLs of git repositories, and name the mirrors of forks."""

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
#: Characters that a shell, or a transport that runs commands, could interpret. No valid repository URL contains them.
_FORBIDDEN = re.compile(r"[\s;|&$`<>\"'\\(){}!*\[\]^\x00-\x1f\x7f]")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def is_url(text: str) -> bool:
    """Return True if a text is a URL, not a local path."""
    return bool(_URL.match(text) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*::", text) or _SCP.fullmatch(text))


def check_url(text: str) -> str:
    """Return a URL after checking that git cannot read an option or a command from it.

    :raises SentinelError: if the URL is not valid.
    """
    label = redact(text)
    if text.startswith("-"):
        raise SentinelError(f"not a repository URL: {label!r} begins with '-' like an option")
    if "::" in text.split("/", 1)[0]:
        raise SentinelError(f"not a repository URL: {label!r} names a transport that runs a command; use https or ssh")
    if _FORBIDDEN.search(text):
        raise SentinelError(
            f"not a repository URL: {label!r} contains a blank or a character that a shell interprets; "
            "write such characters as %XX"
        )
    match = _URL.fullmatch(text)
    if match is None:
        if _SCP.fullmatch(text):
            return text
        raise SentinelError(
            f"not a repository URL: {label!r}; write https://HOST/OWNER/NAME or git@HOST:OWNER/NAME. To copy a clone "
            "on this machine, run `sentinel mirror add TARGET --from DIR`"
        )
    scheme, rest = match.groups()
    if scheme.lower() not in _SCHEMES:
        raise SentinelError(f"not a repository URL: {label!r}: {scheme!r} is not one of {', '.join(_SCHEMES)}")
    # ssh treats a host that begins with '-' as an option.
    if rest.startswith("-") or "@-" in rest or not rest.strip("/"):
        raise SentinelError(f"not a repository URL: {label!r}: it has no host")
    return text


def protocol(url: str) -> str:
    """Return the transport protocol of a URL, the only one that git may use for the fetch."""
    match = _URL.fullmatch(url)
    return match.group(1).lower() if match else "ssh"


def redact(text: str) -> str:
    """Remove user names and passwords from the URLs in a text."""
    return _PASSWORD.sub("", text)


def local_path(text: str) -> Path:
    return Path(os.path.expanduser(text)).absolute()


_MARK = ".fork-"


def base_name(name: str) -> str:
    """Return the name of the target to which a mirror belongs, even if it is a fork's mirror."""
    return name.partition(_MARK)[0]


def fork(target: Target, url: str | None) -> Target:
    """Return a copy of the target with the URL of a fork; the target itself if the URL is None or upstream's own.

    A fork has its own mirror, such as ``verl.fork-1a2b3c4d``, because its branches are not upstream's.
    """
    if url is None or check_url(url) == target.repository:
        return target
    return replace(target, name=f"{target.name}{_MARK}{hashlib.sha256(url.encode()).hexdigest()[:8]}", repository=url)
