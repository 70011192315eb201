"""Store checkouts: read-only copies of a target's packages at one revision. Their names are hashes of their content.

The files::

    checkouts/<target>/<tree hash>/tree/          the package roots at their repository paths
    checkouts/<target>/<tree hash>/checkout.json  the roots and the files that were left out
    checkouts/<target>/<tree hash>/files.json     every file with its mode, git blob id and size
    checkouts/<target>/refs/<key>.json            the tree hash of an immutable ref
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
from sentinel.sources.trees import FILE, LINK, MOST_BYTES, MOST_FILES, Entry, blob_id, present_roots, tree_hash
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout, LeftOut
from sentinel.targets.refs import Ref

#: A function that yields each given entry with its content (for a symbolic link, the target path).
Contents = Callable[[Sequence[Entry]], Iterable[tuple[Entry, bytes]]]

#: Facts about a ref in addition to its tree: ``commit``, ``version``, ``digest``, ``dirty``.
Facts = dict[str, Any]


def index_key(target: Target, ref: str, folder: str = "") -> str:
    """Return the file name under which the tree hash of an immutable ref is stored.

    :param folder: the folder of the repository that contains the package roots; empty for its top folder.
    """
    roots = json.dumps([f"{folder}/{root.path}" if folder else root.path for root in target.roots])
    return f"{ref}-{hashlib.sha256(roots.encode()).hexdigest()[:8]}"


def find(home: Home, target: Target, ref: Ref, key: str) -> Checkout | None:
    """Return the stored checkout of a ref, or None if the store has none. No process is started."""
    record = read_json(home.checkouts / safe_name(target.name) / "refs" / f"{key}.json")
    if record is None or not re.fullmatch("[0-9a-f]{64}", str(record.get("tree"))):
        return None
    return _existing(home, target, ref, record["tree"], record)


def remember(home: Home, target: Target, key: str, tree: str, facts: Facts) -> None:
    """Store the tree hash of an immutable ref."""
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
    """Return the stored checkout with these files, and write it first if the store does not have it.

    :param entries: every file of the package roots. The tree hash covers all of them.
    :param contents: yields the content of the files to write.
    :param left_out: files that are not written to the checkout; ``contents`` is called without them.
    :param facts: ``commit``, ``version``, ``digest``, ``dirty``.
    :raises Unavailable: if the revision has no package root, is too large, or changed while it was read.
    """
    roots = present_roots(target.roots, entries)
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
        with locks.no_pruning(home.checkouts):
            part = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
            locks.mark_used(home.checkouts, part)
        try:
            _fill(part, target.name, tree, entries, contents, left_out, roots)
            os.chmod(part, 0o755)
            # Locked, so that a run that found a damaged checkout does not remove the new checkout of another run.
            with locks.exclusive(home.checkouts):
                record = read_json(folder / tree / "checkout.json")
                if record is None or _whole(folder / tree, record) is None:  # unless another process was faster
                    remove_tree(folder / tree)
                    part.rename(folder / tree)
                locks.mark_used(home.checkouts, folder / tree)
        finally:
            if part.exists():
                remove_tree(part)
    checkout = _existing(home, target, ref, tree, facts)
    if checkout is None:
        raise Unavailable(f"{target.name}: the new checkout of {ref} was removed by another process; run again")
    return checkout


def files(checkout: Checkout) -> dict[str, str]:
    """Return the git blob id of every file of a checkout, by repository path.

    :raises Unavailable: if the checkout was removed or changed meanwhile.
    """
    entries = _entries(checkout.path.parent, checkout.tree)
    if entries is None:
        raise Unavailable(f"the checkout {checkout.path.parent.name} was removed or changed during the run; run again")
    return {entry.path: entry.blob for entry in entries}


def edit(home: Home, target: Target, ref: Ref, base: Checkout, changes: Mapping[str, bytes]) -> Checkout:
    """Return a checkout that has the files of ``base`` with some of them replaced.

    :param changes: repository path -> new content; paths outside the package roots are ignored.
    """
    files = _entries(base.path.parent, base.tree)
    if files is None:
        raise Unavailable(f"the checkout of {base.ref} was removed or changed during the run; run again")
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
        raise Unavailable(f"{target}: {ref} has more than {MOST_FILES} files; it is rejected")
    if sum(entry.size or 0 for entry in entries if entry.path not in left_out) > MOST_BYTES:
        raise Unavailable(f"{target}: the files of {ref} have more than {MOST_BYTES} bytes; it is rejected")


def _existing(home: Home, target: Target, ref: Ref, tree: str, facts: Facts) -> Checkout | None:
    folder = home.checkouts / safe_name(target.name) / safe_name(tree)
    record = folder / "checkout.json"
    with locks.no_pruning(home.checkouts):
        content = read_json(record)
        entries = _whole(folder, content) if content is not None and content.get("tree") == tree else None
        if content is None or entries is None:
            return None
        try:
            left_out = tuple(LeftOut(*row) for row in content["left_out"])
        except (KeyError, TypeError):
            return None
        locks.mark_used(home.checkouts, folder)
    with suppress(OSError):  # the store may be read-only
        os.utime(record)  # `sentinel cache prune` uses this time
    path = folder / "tree"
    here = present_roots(target.roots, entries)
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


def _whole(folder: Path, record: Mapping[str, Any]) -> list[Entry] | None:
    """Return the files of a stored tree, or None if a file was deleted, changed or added, for example by measured code.

    Contents are hashed again only if :func:`stamp` differs, because a stamp is ten times faster.
    """
    entries, top = _entries(folder, str(record.get("tree"))), folder / "tree"
    if entries is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        now = stamp(top)
        if now == record.get("stamp"):
            return entries
        if _has_exactly(top, entries, {path for path, _, _ in record["left_out"]}):
            with suppress(OSError):  # a read-only store keeps the old stamp, so each run hashes the files again
                write_atomically(folder / "checkout.json", json.dumps({**record, "stamp": now}, indent=1))
            return entries
    return None


def _entries(folder: Path, tree: str) -> list[Entry] | None:
    """Return the recorded files of a stored tree; None if the record is missing or has another tree hash."""
    content = read_json(folder / "files.json")
    with suppress(AttributeError, KeyError, TypeError):
        entries = [Entry(*each) for each in content["files"]] if content else []
        return entries if content and tree_hash(entries) == tree else None
    return None


def stamp(top: Path) -> str:
    """Return a digest of all names below a folder, with inode, mode, size and ctime.

    The ctime is used because, unlike the mtime, no process can set it.
    """
    lines, folders = [], [str(top)]
    while folders:
        with os.scandir(folders.pop()) as items:
            for item in items:
                at = item.stat(follow_symlinks=False)
                lines.append((item.path[len(str(top)) :], at.st_ino, at.st_mode, at.st_size, at.st_ctime_ns))
                if item.is_dir(follow_symlinks=False):
                    folders.append(item.path)
    return hashlib.sha256(repr(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _has_exactly(top: Path, entries: Iterable[Entry], absent: set[str]) -> bool:
    expectation = {entry.path: entry for entry in entries if entry.path not in absent}
    # The parent folders of all entries are allowed, because a rejected link may have left its parent folder.
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
            # A duplicate name, or two names that this file system does not distinguish. Git never writes such trees.
            raise Unavailable(f"{target}: {entry.path!r} conflicts with another file of the revision") from error
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.chmod(path, 0o444)  # independent of the umask, because contained processes run as another user
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
    """Create the symbolic links that lead to places inside the checkout. Return the paths of all other links.

    Call this function after all files are written, so that no file is written through a link.
    """
    inner: dict[str, Path] = {}
    outer: list[str] = []
    inside = os.path.realpath(top)
    for name, points in sorted(links.items()):
        path = top / name
        aim = os.path.normpath(os.path.join(os.path.dirname(path), points))
        try:
            if os.path.isabs(points) or "\0" in points or os.path.commonpath([aim, top]) != str(top):
                raise OSError("the link leads out of the checkout")
            path.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(points, path)
            inner[name] = path
        except OSError:
            outer.append(name)
    broken = True
    while broken:  # repeated, because removing a link breaks the links that lead through it
        broken = False
        for name, path in list(inner.items()):
            real = os.path.realpath(path)
            if not os.path.exists(real) or os.path.commonpath([real, inside]) != inside:
                path.unlink()
                del inner[name]
                outer.append(name)
                broken = True
    return outer
