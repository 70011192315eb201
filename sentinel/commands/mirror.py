"""Implement ``sentinel mirror``, which manages local copies of the targets' git histories."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from sentinel.commands.console import (
    Commands,
    command,
    counted,
    echo,
    echo_json,
    echo_table,
    group,
    json_option,
    print_error,
    progress,
    size,
)
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.errors import SentinelError
from sentinel.sources import MirrorStore
from sentinel.sources.gitrefs import read_shallow
from sentinel.sources.mirrors import Mirror
from sentinel.sources.urls import base_name, fork

GROUP = "begin"
SUMMARY = "keep the git history of targets on this machine"

_ADD = """\
  sentinel mirror add verl                               clone it from its repository, without files over 1 MB
  sentinel mirror add verl --from ~/src/verl             copy from your clone, without the network
  sentinel mirror add verl --from verl.git.tar           a git directory in a tar
  sentinel mirror add verl --repo-url https://github.com/me/verl   a fork, next to upstream's mirror
"""
_UPDATE = """\
  sentinel mirror update             fetch new commits for every mirror
  sentinel mirror update verl roll   only these two
"""
_REMOVE = """\
  sentinel mirror remove verl        remove its history; `sentinel cache prune` removes checkouts
"""
_LIST = """\
  sentinel mirror list               all mirrors with their size and source
  sentinel mirror list --json | jq '.[].target'
"""


def declare(commands: Commands) -> None:
    own = group(commands, "mirror", SUMMARY, _ADD)
    add = command(own, "add", _add, "create a target's mirror, or add to it", _ADD)
    add.add_argument("target", metavar="TARGET", help="see `sentinel list targets`")
    add.add_argument(
        "--from", dest="origin", metavar="DIR|TAR|URL", help="the source (default: the target's repository)"
    )
    settings_options(add, "repo-url")
    update = command(own, "update", _update, "fetch new branches, tags and pull requests", _UPDATE)
    update.add_argument("targets", metavar="TARGET", nargs="*", help="default: all mirrors")
    remove = command(own, "remove", _remove, "remove a mirror from this machine", _REMOVE)
    remove.add_argument("target", metavar="TARGET", help="see `sentinel mirror list`")
    settings_options(remove, "repo-url")
    json_option(command(own, "list", _list, "show the mirrors", _LIST))


def _add(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    target = fork(target, settings.url_of(target.name))
    with progress() as notify:
        made = MirrorStore().add(target, arguments.origin, progress=notify)
    if read_shallow(made.path):
        clone = arguments.origin or "CLONE"
        print_error(
            f"{made.target}: the history is shallow, so older commits cannot be compared or swept; run `git -C {clone} "
            "fetch --unshallow`, then add it again"
        )
    echo(_sentence(made))
    return 0


def _update(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings()
    store = MirrorStore()
    named = [target_named(catalog, name) for name in dict.fromkeys(arguments.targets)]
    wanted = {target.name for target in named} or set(catalog.targets)
    there = [mirror.target for mirror in store.list() if mirror.whole and base_name(mirror.target) in wanted]
    absent = [target for target in named if target.name not in map(base_name, there)]  # `store.update` raises for these
    targets = absent + [replace(catalog.targets[base_name(name)], name=name) for name in there]
    if not targets:
        raise SentinelError("no mirrors yet; run `sentinel mirror add TARGET`")
    failed = 0
    for target in targets:
        try:
            with progress() as notify:
                made = store.update(target, progress=notify)
        except SentinelError as error:  # one unreachable remote must not keep the others from being fetched
            print_error(str(error))
            failed += 1
        else:
            echo(_sentence(made))
    return 2 if failed else 0


def _remove(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    gone = MirrorStore().remove(fork(target, settings.url_of(target.name)).name)
    echo(f"{gone.target}: removed, {size(gone.size)} freed")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    store = MirrorStore()
    mirrors = store.list()
    if arguments.json:
        echo_json([{**asdict(mirror), "path": str(mirror.path), "state": state(mirror)} for mirror in mirrors])
        return 0
    if not mirrors:
        echo(f"no mirrors in {store.home.mirrors}; `sentinel mirror add TARGET` creates one")
        return 0
    headings = ("target", "size", "refs", "updated", "left out", "from", "state")
    echo_table(headings, [_row(mirror) for mirror in mirrors])
    return 0


def _row(mirror: Mirror) -> tuple[str, ...]:
    if not mirror.whole:
        return (mirror.target, size(mirror.size), "", "", "", "", state(mirror))
    origins = ", ".join(mirror.origins)
    updated = mirror.updated.replace("T", " ")[:16]
    left_out = str(mirror.absent or "")
    return (mirror.target, size(mirror.size), str(mirror.refs), updated, left_out, origins, state(mirror))


def state(mirror: Mirror) -> str:
    """Return a warning if the mirror is incomplete; otherwise return an empty string."""
    return "" if mirror.whole else f"incomplete; `sentinel mirror add {mirror.target}` creates it again"


def _sentence(mirror: Mirror) -> str:
    left_out = f", {counted(mirror.absent, 'object')} left out" if mirror.absent else ""
    return f"{mirror.target}: {counted(mirror.refs, 'ref')}, {size(mirror.size)}{left_out} in {mirror.path}"
