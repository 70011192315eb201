"""Checkouts: the files of package roots on disk, named by what is in them, read-only, made whole or not at all.

checkouts/<target>/<tree hash>/tree/          the package roots at their repository paths
checkouts/<target>/<tree hash>/checkout.json  roots and what was left out, beside the tree
checkouts/<target>/<tree hash>/files.json     every file with its mode, git blob id and size
checkouts/<target>/refs/<key>.json            which tree an immutable ref has: a warm checkout reads only these
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.errors import Unavailable
from sentinel.sources import locks
from sentinel.sources.home import Home, read_json, remove_tree, safe_name, write_atomically, writing
from sentinel.sources.trees import FILE, LINK, MOST_BYTES, MOST_FILES, Entry, blob_id, present, tree_hash
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout, LeftOut
from sentinel.targets.refs import Ref

#: Gives the content of each of some entries (of a link: where it points).
Contents = Callable[[Sequence[Entry]], Iterable[tuple[Entry, bytes]]]

#: What is known of a ref beside its tree: ``commit``, ``version``, ``digest``, ``dirty``.
Facts = dict[str, Any]


def index_key(target: Target, ref: str) -> str:
    """Name the note of an immutable ref's tree; the name changes with the target's package roots."""
    roots = json.dumps([root.path for root in target.roots])
    return f"{ref}-{hashlib.sha256(roots.encode()).hexdigest()[:8]}"


def cached(home: Home, target: Target, ref: Ref, key: str) -> Checkout | None:
    """Give the checkout of a ref that was made before, or None. Looks at its files and runs nothing."""
    record = read_json(home.checkouts / safe_name(target.name) / "refs" / f"{key}.json")
    if record is None or not re.fullmatch("[0-9a-f]{64}", str(record.get("tree"))):
        return None
    return _existing(home, target, ref, record["tree"], record)


def remember(home: Home, target: Target, key: str, tree: str, facts: Facts) -> None:
    """Note which tree an immutable ref has."""
    path = home.checkouts / safe_name(target.name) / "refs" / f"{key}.json"
    with writing(home.path):
        write_atomically(path, json.dumps({**facts, "tree": tree}, sort_keys=True))


def materialise(
    home: Home,
    target: Target,
    ref: Ref,
    entries: Sequence[Entry],
    contents: Contents,
    left_out: Sequence[LeftOut] = (),
    **facts: Any,
) -> Checkout:
    """Give the checkout of some files, written only where the same files are not there yet.

    :param entries: every file of the package roots, those left out too: they count for the tree's hash.
    :param contents: gives what is to be written; asked only for what is not left out.
    :param facts: ``commit``, ``version``, ``digest``, ``dirty``.
    """
    roots = present(target.roots, entries)
    _check_amount(target.name, ref, entries, {gone.path for gone in left_out})
    if not roots:
        names = ", ".join(root.path for root in target.roots)
        raise Unavailable(f"{target.name}: {ref} has none of its package roots; looked for {names}")
    tree = tree_hash(entries)
    existing = _existing(home, target, ref, tree, facts)
    if existing is not None:
        return existing
    with writing(home.path):
        folder = home.checkouts / safe_name(target.name)
        folder.mkdir(parents=True, exist_ok=True)
        with locks.taking(home.checkouts):
            part = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
            locks.take(home.checkouts, part)
        try:
            _fill(part, target.name, tree, entries, contents, left_out, roots)
            os.chmod(part, 0o755)
            # A run that looks at a damaged checkout must not remove the whole one that another has just put there.
            with locks.alone(home.checkouts):
                record = read_json(folder / tree / "checkout.json")
                if record is None or _whole(folder / tree, record) is None:  # else another process was first
                    remove_tree(folder / tree)
                    part.rename(folder / tree)
                locks.take(home.checkouts, folder / tree)
        finally:
            if part.exists():
                remove_tree(part)
    checkout = _existing(home, target, ref, tree, facts)
    if checkout is None:
        raise Unavailable(f"{target.name}: the checkout of {ref} vanished while it was made; run again")
    return checkout


def files(checkout: Checkout) -> dict[str, str]:
    """Give the git blob id of every file of a checkout, by repository path."""
    entries = _entries(checkout.path.parent, checkout.tree)
    if entries is None:
        raise Unavailable(
            f"the checkout {checkout.path.parent.name} was removed or changed while it was used; run again"
        )
    return {entry.path: entry.blob for entry in entries}


def edited(home: Home, target: Target, ref: Ref, base: Checkout, changes: Mapping[str, bytes]) -> Checkout:
    """Give the checkout of a revision some of whose files are changed: repository path -> content, in its package
    roots."""
    files = _entries(base.path.parent, base.tree)
    if files is None:
        raise Unavailable(f"the checkout of {base.ref} was removed or changed while it was used; run again")
    inside = {name: text for name, text in changes.items() if any(name.startswith(f"{root}/") for root in base.roots)}
    entries = [entry for entry in files if entry.path not in inside]
    entries += [Entry(name, FILE, blob_id(content), len(content)) for name, content in inside.items()]

    def contents(selection: Sequence[Entry]) -> Iterable[tuple[Entry, bytes]]:
        for entry in selection:
            there = base.path / entry.path
            link = os.fsencode(os.readlink(there)) if entry.mode == LINK else None
            yield entry, inside[entry.path] if entry.path in inside else link or there.read_bytes()

    return materialise(home, target, ref, entries, contents, base.left_out, commit=base.commit, dirty=True)


def _check_amount(target: str, ref: Ref, entries: Sequence[Entry], left_out: set[str]) -> None:
    if len(entries) > MOST_FILES:
        raise Unavailable(f"{target}: {ref} has more than {MOST_FILES} files; it is not used")
    if sum(entry.size or 0 for entry in entries if entry.path not in left_out) > MOST_BYTES:
        raise Unavailable(f"{target}: the files of {ref} have more than {MOST_BYTES} bytes; it is not used")


def _existing(home: Home, target: Target, ref: Ref, tree: str, facts: Facts) -> Checkout | None:
    folder = home.checkouts / safe_name(target.name) / safe_name(tree)
    record = folder / "checkout.json"
    with locks.taking(home.checkouts):
        content = read_json(record)
        entries = _whole(folder, content) if content is not None and content.get("tree") == tree else None
        left_out = None if content is None or entries is None else _left_out(content)
        if entries is None or left_out is None:
            return None
        locks.take(home.checkouts, folder)
    with suppress(OSError):  # A cache that is shared read-only is as good to read.
        os.utime(record)  # When it was last used: `sentinel cache prune` goes by this.
    path = folder / "tree"
    here = present(target.roots, entries)
    return Checkout(
        target=target.name,
        ref=ref,
        path=path,
        roots=tuple(root.path for root in here),
        import_roots=tuple(dict.fromkeys(path / root.import_root if root.import_root else path for root in here)),
        tree=tree,
        commit=facts.get("commit"),
        version=facts.get("version"),
        digest=facts.get("digest"),
        dirty=bool(facts.get("dirty", False)),
        left_out=left_out,
    )


def _left_out(record: Mapping[str, Any]) -> tuple[LeftOut, ...] | None:
    """Return what a checkout leaves out, as it was noted; None if the note is damaged."""
    with suppress(KeyError, TypeError):
        return tuple(LeftOut(*several) for several in record["left_out"])
    return None


def _whole(folder: Path, record: Mapping[str, Any]) -> list[Entry] | None:
    """List the files of a revision, where its tree holds each of them as it was and nothing else; else None.

    Code that was measured may have deleted, written or added something. Contents are read again only where the kernel
    says that something was touched since they were written or last read: that is ten times faster."""
    entries, top = _entries(folder, str(record.get("tree"))), folder / "tree"
    if entries is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        now = stamp(top)
        if now == record.get("stamp"):
            return entries
        if _holds(top, entries, {path for path, _, _ in record["left_out"]}):
            with suppress(OSError):  # a cache that is shared read-only is read again each time
                write_atomically(folder / "checkout.json", json.dumps({**record, "stamp": now}, indent=1))
            return entries
    return None


def _entries(folder: Path, tree: str) -> list[Entry] | None:
    """Read the files of a revision, noted beside its tree; None where they have another hash."""
    content = read_json(folder / "files.json")
    with suppress(AttributeError, KeyError, TypeError):
        entries = [Entry(*each) for each in content["files"]] if content else []
        return entries if content and tree_hash(entries) == tree else None
    return None


def stamp(top: Path) -> str:
    """Digest all names below a folder, and what changes with whatever is behind them: inode, mode, size, time of
    change. Unlike a time of modification, nobody can set that last one."""
    lines, folders = [], [str(top)]
    while folders:
        with os.scandir(folders.pop()) as items:
            for item in items:
                at = item.stat(follow_symlinks=False)
                lines.append((item.path[len(str(top)) :], at.st_ino, at.st_mode, at.st_size, at.st_ctime_ns))
                if item.is_dir(follow_symlinks=False):
                    folders.append(item.path)
    return hashlib.sha256(repr(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _holds(top: Path, entries: Iterable[Entry], absent: set[str]) -> bool:
    """Whether a folder holds these files with these contents, and nothing but them and the folders that they lie in."""
    expectation = {entry.path: entry for entry in entries if entry.path not in absent}
    # A link that was refused may have left its folder.
    above = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents}
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            place = os.path.join(folder, name)
            path, mode = os.path.relpath(place, top), os.lstat(place).st_mode
            if stat.S_ISDIR(mode) and path in above:
                continue
            entry = expectation.pop(path, None)
            if entry is None or stat.S_ISLNK(mode) != (entry.mode == LINK):
                return False
            if stat.S_ISLNK(mode):
                content = os.fsencode(os.readlink(place))
            elif stat.S_ISREG(mode) and os.path.getsize(place) == entry.size:
                content = Path(place).read_bytes()
            else:
                return False
            if blob_id(content) != entry.blob:
                return False
    return not expectation


def _fill(
    part: Path,
    target: str,
    tree: str,
    entries: Sequence[Entry],
    contents: Contents,
    left_out: Sequence[LeftOut],
    roots: Sequence[PackageRoot],
) -> None:
    absent = {gone.path for gone in left_out}
    top = part / "tree"
    folders = {top}
    links: dict[str, str] = {}
    for entry, content in contents([entry for entry in entries if entry.path not in absent]):
        if blob_id(content) != entry.blob:
            raise Unavailable(f"{target}: {entry.path} changed or was damaged while it was read; run again")
        if entry.mode == LINK:
            links[entry.path] = os.fsdecode(content)
            continue
        path = top / entry.path
        try:
            if path.parent not in folders:
                path.parent.mkdir(parents=True, exist_ok=True)
                folders.add(path.parent)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        except (FileExistsError, NotADirectoryError, IsADirectoryError, UnicodeEncodeError) as error:
            # Twice the same name, or names that are one to this file system; no tool that writes trees writes such.
            raise Unavailable(f"{target}: {entry.path!r} is in the way of another file of the revision") from error
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.chmod(path, 0o444)  # whatever the user's umask is: contained processes are another user's
    top.mkdir(exist_ok=True)
    refused = make_links(top, links)
    out = [*left_out, *(LeftOut(path, None, "a symbolic link that leads out of the checkout") for path in refused)]
    rows = sorted(([gone.path, gone.size, gone.reason] for gone in out), key=lambda gone: str(gone[0]))
    every = [[entry.path, entry.mode, entry.blob, entry.size] for entry in sorted(entries, key=lambda e: e.path)]
    for folder, _, _ in os.walk(top, topdown=False):
        os.chmod(folder, 0o555)
    (part / "files.json").write_text(json.dumps({"version": 1, "files": every}))
    record = {"version": 1, "target": target, "tree": tree, "roots": [root.path for root in roots], "left_out": rows}
    (part / "checkout.json").write_text(json.dumps({**record, "stamp": stamp(top)}, indent=1))


def make_links(top: Path, links: Mapping[str, str]) -> list[str]:
    """Make the links that end inside the checkout, and give the others; after all files: none is written through a
    link."""
    inner: dict[str, Path] = {}
    outer: list[str] = []
    inside = os.path.realpath(top)
    for name, points in sorted(links.items()):
        path = top / name
        aim = os.path.normpath(os.path.join(os.path.dirname(path), points))
        try:
            if os.path.isabs(points) or "\0" in points or os.path.commonpath([aim, top]) != str(top):
                raise OSError("it leads out")
            path.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(points, path)
            inner[name] = path
        except OSError:
            outer.append(name)
    torn = True
    while torn:  # A link may lead through another one, so that refusing one can refuse the next.
        torn = False
        for name, path in list(inner.items()):
            real = os.path.realpath(path)
            if not os.path.exists(real) or os.path.commonpath([real, inside]) != inside:
                path.unlink()
                del inner[name]
                outer.append(name)
                torn = True
    return outer
