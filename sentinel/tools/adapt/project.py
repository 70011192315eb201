"""Open a project that has no adapter yet: packages, declared requirements, code and history."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sentinel.errors import NothingExamined, SentinelError
from sentinel.sources import MirrorStore, Progress, git_objects, open_checkout, pypi
from sentinel.sources.bases import clone_of
from sentinel.sources.gitbinary import run
from sentinel.sources.home import small_text
from sentinel.sources.trees import is_ignored
from sentinel.sources.urls import is_url, local_path, redact
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

#: Folders whose packages are not part of the framework.
_ASIDE = re.compile(r"\..*|_.*|tests?|docs?|examples?|benchmarks?|scripts?|third_party|vendor|build|dist|.*\.egg-info")
#: Folders that contain packages and are not packages themselves.
_HOLDS = ("src", "python", "lib")
_RELEASE = re.compile(r"(?:pypi:)?([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([0-9][A-Za-z0-9.!+_-]*))?")
#: Files with requirements, in addition to ``pyproject.toml`` and ``setup.py``.
_REQUIREMENTS = re.compile(r"(requirements/)?[\w.-]*\.txt|setup\.cfg")


@dataclass(frozen=True)
class Project:
    """A project and its code.

    :ivar target: the project as a target without bindings.
    :ivar ref: the ref of ``checkout``.
    :ivar mirror: the git directory with its history; None for a release or a folder without git.
    :ivar head: the commit of the code; empty if there is no history.
    :ivar requires: import name of a package -> the declared requirement, such as ``trl>=0.9``.
    """

    target: Target
    ref: Ref
    checkout: Checkout
    mirror: Path | None = None
    head: str = ""
    requires: dict[str, str] = field(default_factory=dict)


def open_project(source: str, packages: Iterable[str] = (), progress: Progress | None = None) -> Project:
    """Open the project in a folder, a git directory, a repository or a release on PyPI.

    :param source: ``DIR``, ``URL``, ``NAME`` or ``NAME==VERSION``.
    :param packages: the names or folders of the packages to read. The default is the package with the project's name,
        or all packages if none has this name.
    :raises SentinelError: if there is no such folder, release or repository, or if it lacks one of ``packages``.
    :raises NothingExamined: if the source has no Python package.
    """
    folder = local_path(source)
    if folder.is_dir():
        return _of_folder(folder, tuple(packages), progress)
    if folder.exists():
        raise SentinelError(f"{source} is a file; give the folder of the project, a repository's URL, or a PyPI name")
    if is_url(source):
        return _of_repository(source, tuple(packages), progress)
    release = _RELEASE.fullmatch(source)
    if release is None or source.startswith((".", "~")):
        raise SentinelError(f"no such folder: {source}; give a folder, a repository's URL, or a PyPI name")
    return _of_release(release[1], release[2] or "latest", tuple(packages), progress)


def _of_folder(folder: Path, packages: tuple[str, ...], progress: Progress | None) -> Project:
    ref = Ref("path", str(folder))
    clone = clone_of(ref) if (folder / ".git").exists() else folder if (folder / "objects").is_dir() else None
    head = git_objects.commit_named(clone, "HEAD") if clone is not None else ""
    if clone is not None and clone == folder:
        if not head:
            raise SentinelError(f"{folder} is a git directory, but its HEAD has no commit; give another folder")
        return _of_commit(Target("", "", ()), Ref("git", head, str(folder)), folder, folder.stem, packages, progress)
    files = _files_below(folder)

    def read(path: str) -> str:
        return small_text(folder / path) or ""

    target = _target(files, read, folder.name, packages, str(folder))
    if clone is not None:
        found = run(clone, "config", "--get", "remote.origin.url").out.decode("utf-8", "replace").strip()
        target = replace(target, repository=redact(found) if is_url(found) else "")
    return Project(
        target, ref, open_checkout(target, ref, progress=progress), clone, head, _read_requirements(files, read)
    )


def _of_repository(url: str, packages: tuple[str, ...], progress: Progress | None) -> Project:
    """Open a repository through its mirror, which is created if it does not exist."""
    store, name = MirrorStore(), re.sub(r"\.git$", "", url.rstrip("/")).replace(":", "/").rsplit("/", 1)[-1].lower()
    blank = Target(re.sub(r"[^a-z0-9_]", "", name) or "framework", url, ())
    mirror = store.get(blank.name) or store.add(blank, progress=progress)
    head = git_objects.commit_named(mirror.path, "HEAD")
    return _of_commit(replace(blank, repository=url), Ref("git", head), mirror.path, name, packages, progress)


def _of_commit(
    blank: Target, ref: Ref, mirror: Path, name: str, packages: tuple[str, ...], progress: Progress | None
) -> Project:
    blobs = {entry.path: entry.blob for entry in git_objects.listing(mirror, ref.name, ())[0]}

    def read(path: str) -> str:
        return next(content for _, content in git_objects.contents(mirror, [blobs[path]])).decode("utf-8", "replace")

    target = _target(blobs, read, name, packages, blank.repository or str(mirror))
    if blank.name:  # keep the name under which the mirror is stored
        target = replace(target, name=blank.name, repository=blank.repository)
    checkout = open_checkout(target, ref, progress=progress)
    return Project(target, ref, checkout, mirror, ref.name, _read_requirements(blobs, read))


def _of_release(name: str, version: str, packages: tuple[str, ...], progress: Progress | None) -> Project:
    files, metadata, version = pypi.contents(name, version, MirrorStore().home, progress)
    roots = _find_package_roots(files, name, packages, f"the wheel of {name} {version}")
    target = Target(_name_of(roots, name), "", roots, pypi=name)
    ref = Ref("pypi", version)
    lines = re.findall(r"^Requires-Dist: *(.+?)\r?$", metadata, re.M)
    return Project(target, ref, open_checkout(target, ref, progress=progress), requires=_by_import_name(lines))


def _files_below(folder: Path) -> list[str]:
    paths = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not is_ignored(name))
        paths += [Path(place, name).relative_to(folder).as_posix() for name in sorted(files)]
    return paths


def _target(
    files: Iterable[str], read: Callable[[str], str], name: str, packages: tuple[str, ...], where: str
) -> Target:
    paths = list(files)
    declared = re.search(r"(?m)^name\s*=\s*[\"']([\w.-]+)", _text(read, "pyproject.toml", paths)) or re.search(
        r"\bname\s*=\s*[\"']?([\w.-]+)", _text(read, "setup.py", paths) + _text(read, "setup.cfg", paths)
    )
    name = declared[1] if declared else name
    roots = _find_package_roots(paths, name, packages, where)
    return Target(_name_of(roots, name), "", roots)


def _text(read: Callable[[str], str], path: str, paths: Iterable[str]) -> str:
    return read(path) if path in paths else ""


def _name_of(roots: tuple[PackageRoot, ...], name: str) -> str:
    return roots[0].package if len(roots) == 1 else re.sub(r"[^a-z0-9_]", "_", name.lower()).strip("_")


def _find_package_roots(
    files: Iterable[str], name: str, packages: tuple[str, ...], where: str
) -> tuple[PackageRoot, ...]:
    paths = [path for path in files if path.endswith(".py")]
    folders = {PurePosixPath(path).parent for path in paths if path.endswith("/__init__.py")}
    if not folders:
        folders = {
            PurePosixPath(*parts[: 1 + (parts[0] in _HOLDS)]) for path in paths if len(parts := path.split("/")[:-1])
        }
    found: list[PurePosixPath] = []
    for folder in sorted(folders, key=lambda each: (len(each.parts), each)):
        usable = folder.name.isidentifier() and folder.name not in _HOLDS
        aside = any(_ASIDE.fullmatch(part) for part in folder.parts)
        if usable and not aside and not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    if packages:
        found = [folder for folder in found if folder.name in packages or str(folder) in packages]
        if missing := [each for each in packages if all(each not in (folder.name, str(folder)) for folder in found)]:
            raise SentinelError(f"{where} has no package {missing[0]}; give another --package")
    plain = canonicalize_name(name).replace("-", "_")
    found = [folder for folder in found if folder.name.lower() == plain] or found
    if not found:
        what = "no Python package (a folder with an __init__.py)" if paths else "no Python file"
        raise NothingExamined(f"{where} has {what}; give the folder that contains the framework's package")
    return tuple(
        PackageRoot(str(folder), "" if folder.parent == PurePosixPath() else str(folder.parent)) for folder in found
    )


def _read_requirements(files: Iterable[str], read: Callable[[str], str]) -> dict[str, str]:
    lines: list[str] = []
    for path in files:
        if path == "pyproject.toml":
            lines += re.findall(r"^\s*[\"']([^\"']+)[\"'],?\s*(?:#.*)?$", read(path), re.M)
        elif path == "setup.py":
            lines += _constants(read(path))
        elif _REQUIREMENTS.fullmatch(path):
            lines += read(path).splitlines()
    return _by_import_name(lines)


def _constants(source: str) -> Iterator[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _by_import_name(lines: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        try:
            requirement = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:
            continue
        text = f"{requirement.name}{f'[{chr(44).join(sorted(requirement.extras))}]' if requirement.extras else ''}"
        found.setdefault(canonicalize_name(requirement.name).replace("-", "_"), f"{text}{requirement.specifier}")
    return found
