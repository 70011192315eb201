"""Fetch from git remotes, and report the URL through ``progress``. Callers fetch only what the user requested.

A transfer runs in a temporary git directory that shares the mirror's objects. Only the temporary directory names the
remote as a promisor, so the mirror itself never has a remote. An interrupted transfer leaves the mirror's refs
unchanged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sentinel.sources.gitbinary import GitError, run, run_with_progress
from sentinel.sources.gitrefs import is_sha, read_refs, read_shallow, write_refs, write_shallow
from sentinel.sources.home import Progress, remove_tree
from sentinel.sources.urls import check_url, protocol, redact

FILTER = "blob:limit=1m"
BRANCHES_AND_TAGS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_HAVE = "refs/have/"


@contextmanager
def _transfer_directory(mirror: Path, url: str) -> Iterator[tuple[Path, dict[str, str]]]:
    check_url(url)
    folder = Path(tempfile.mkdtemp(prefix=f".fetch-{mirror.name}-", dir=mirror.parent))
    try:
        (folder / "refs").mkdir()
        (folder / "objects").mkdir()
        (folder / "HEAD").write_text("ref: refs/heads/nothing\n")
        (folder / "config").write_text(
            "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tpartialClone = origin\n"
            f'[remote "origin"]\n\turl = "{url}"\n\tpromisor = true\n\tpartialclonefilter = {FILTER}\n'
        )
        # The mirror's refs get other names, so that they do not collide with the fetched refs.
        shas = sorted(set(read_refs(mirror).values()))
        write_refs(folder, {f"{_HAVE}{number:07d}": sha for number, sha in enumerate(shas)})
        write_shallow(folder, read_shallow(mirror))
        yield (
            folder,
            {
                "GIT_OBJECT_DIRECTORY": str(mirror / "objects"),
                "GIT_NO_LAZY_FETCH": "0",
                "GIT_ALLOW_PROTOCOL": protocol(url),
            },
        )
    finally:
        remove_tree(folder)


def _require_a_git_server(folder: Path, url: str, environment: dict[str, str]) -> None:
    """Raise :class:`GitError` if a web server serves a repository as plain files, without git's protocol.

    With such a server (the "dumb" protocol), git checks whether each object exists, and fetches missing objects from
    the promisor. The promisor is the same server, so git would start further git processes until the process table is
    full.
    """
    if protocol(url) not in ("http", "https"):
        return
    packets = folder / "packets"  # not empty if the server uses git's own protocol
    run(folder, "ls-remote", "origin", "HEAD", environment={**environment, "GIT_TRACE_PACKET": str(packets)})
    if not packets.exists() or not packets.stat().st_size:
        raise GitError('the server does not support git\'s protocol (it serves plain files, the "dumb" protocol)')


def fetch(
    mirror: Path,
    url: str,
    specs: Sequence[str],
    progress: Progress | None,
    message: str = "fetching",
    limit: str = FILTER,
    settings: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Fetch refs (by refspecs) or objects into a mirror, and return the fetched refs by their local names.

    The caller holds the mirror's lock.

    :param limit: git's filter for blobs.
    :raises GitError: if the transfer fails.
    """
    with _transfer_directory(mirror, url) as (folder, environment):
        if progress:
            progress(f"{message} from {redact(url)}")
        _require_a_git_server(folder, url, environment)
        run_with_progress(
            folder, "fetch", "--progress", f"--filter={limit}", "--no-tags", "--no-write-fetch-head",
            "--no-recurse-submodules", "--stdin", "origin",
            data="".join(f"{each}\n" for each in specs).encode(),
            settings=settings, environment=environment, progress=progress,
        )  # fmt: skip
        write_shallow(mirror, read_shallow(folder))
        return {name: sha for name, sha in read_refs(folder).items() if not name.startswith(_HAVE)}


def fetch_objects(mirror: Path, url: str, oids: Sequence[str], progress: Progress | None) -> None:
    """Fetch objects by name, without the objects to which they refer."""
    message = f"fetching {len(oids)} file{'s' * (len(oids) != 1)}"
    fetch(mirror, url, oids, progress, message, "blob:none", {"fetch.negotiationAlgorithm": "noop"})


def remote_refs(mirror: Path, url: str) -> tuple[dict[str, str], str | None]:
    """Return the remote's refs, and the branch that its ``HEAD`` points to."""
    with _transfer_directory(mirror, url) as (folder, environment):
        process = run(folder, "ls-remote", "--symref", "origin", environment=environment)
    if process.status:
        raise GitError(process.reason)
    refs: dict[str, str] = {}
    head = None
    for line in process.out.decode("utf-8", "replace").split("\n"):
        value, _, name = line.partition("\t")
        if name == "HEAD" and value.startswith("ref: "):
            head = value[5:]
        elif is_sha(value) and name.startswith("refs/") and not name.endswith("^{}"):
            refs[name] = value
    return refs, head
