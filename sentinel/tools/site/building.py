"""Build all files of the website. The same data lead to the same bytes.

Files are written only to an empty folder, or to a folder with an earlier build of the site.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from sentinel.errors import INSTALL, SentinelError
from sentinel.recipes.grades import REALISMS, SEVERITIES
from sentinel.reports.escaping import visible
from sentinel.reports.store import own, write_atomically
from sentinel.tools.site.bug_files import bug_page
from sentinel.tools.site.law_table import law_tables
from sentinel.tools.site.leaderboard import PARTS, leaderboard
from sentinel.tools.site.lifetimes import lives
from sentinel.tools.site.material import Material
from sentinel.tools.site.matrix import counted_rows, ranked, tables

#: The maximum size in bytes of the start page and of a bug's page, because larger pages load slowly. A test checks the
#: shipped site.
START_LIMIT, BUG_LIMIT = 500_000, 150_000

Files = Iterator[tuple[str, str]]


def require() -> None:
    """Raise SentinelError if Jinja2 (the ``site`` extra) is not installed."""
    if importlib.util.find_spec("jinja2") is None:
        raise SentinelError(f"a site needs jinja2; {INSTALL.format('site')}")


def build(material: Material, notify: Callable[[str], None] = lambda text: None) -> Files:
    """Yield (path, text) of every file of the site."""
    require()
    from sentinel.tools.site.rendering import Pages

    pages = Pages()
    for name in ("site.css", "site.js"):
        yield name, (resources.files("sentinel.tools.site") / "static" / name).read_text(encoding="utf-8")
    yield "index.html", _index(pages, material)
    held = material.coverage.get("coverage", {})
    yield "coverage.html", pages.render("coverage.html", "Coverage", coverages=list(law_tables(material)), held=held)
    places = list(leaderboard(material))
    yield "leaderboard.html", pages.render("leaderboard.html", "Frameworks", places=places, parts=PARTS)
    yield "dialects.html", _dialects(pages, material)
    yield "changes.html", pages.render("changes.html", "Changes", changes=material.changes)
    yield "lifetimes.html", pages.render("lifetimes.html", "Lifetimes", lives=list(lives(material)))
    heading = ""
    for bug in (*material.bugs, *material.laws):
        about = f"{'bugs' if bug.bug_id else 'laws'} of {bug.target}"
        if about != heading:
            heading = about
            notify(f"pages: {heading}")
        yield bug.page, bug_page(pages, material, bug)
        for evidence in bug.evidence:
            yield f"evidence/{evidence.place}", evidence.text


def _index(pages: Any, material: Material) -> str:
    from sentinel.tools.site.rendering import SIGNS

    by_target = tables(material)
    rows = ranked(by_target)
    return str(
        pages.render(
            "index.html",
            "Is my training run affected?",
            tables=by_target,
            rows=rows,
            shared=Counter((row.bug.target, row.root) for row in rows),
            bugs=counted_rows(rows),
            current=[verdict for verdict in SIGNS if any(table.now[verdict] for table in by_target)],
            unknown=any(table.now["unknown"] for table in by_target),
            laws=sorted({law for row in rows for law in row.bug.laws}),
            severities=[name for name in SEVERITIES if any(row.severity == name for row in rows)],
            realisms=[name for name in REALISMS if any(row.realism == name for row in rows)],
            signals=sorted({row.signal for row in rows} - {""}),
        )
    )


def _dialects(pages: Any, material: Material) -> str:
    targets, laws = material.catalog.targets, material.catalog.laws
    bindings = ((name, targets[name].bindings if name in targets else ()) for name in material.targets)
    declared = [(name, [(binding, dialect) for binding in of for dialect in binding.dialects]) for name, of in bindings]
    return str(pages.render("dialects.html", "Intended differences", declared=declared, laws=laws))


#: The file that marks a folder as a site and lists its files.
MARKER = ".sentinel-site"

_OTHERWISE = "name another folder with --out"


def check(folder: Path) -> None:
    """Raise SentinelError unless a folder is empty, does not exist or contains an earlier build of the site."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise SentinelError(f"{folder} is not a folder; {_OTHERWISE}")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise SentinelError(
            f"{folder} is not empty and was not made by sentinel report site, so it was not changed: {_OTHERWISE}"
        )


def write(folder: Path, files: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Write the site's files, and remove files that only an earlier build had.

    :returns: the size of each file in bytes.
    :raises SentinelError: if the folder is not empty and not a site, or cannot be written.
    """
    check(folder)
    before = _listed(folder)
    made = dict(files)  # render everything first, so that an error or Ctrl-C leaves the old site complete
    if outside := [name for name in made if not _inside(name)]:
        raise SentinelError(f"{visible(outside[0])} would be outside the site; nothing was written")
    write_atomically(folder / MARKER, _marker({*before, *made}), _OTHERWISE)
    for name, text in made.items():
        file = own(folder, PurePosixPath(name))
        if not file.is_file() or file.read_bytes() != text.encode():
            write_atomically(file, text, _OTHERWISE)
    for name in before - made.keys():
        _remove(folder, name)
    write_atomically(folder / MARKER, _marker(made), _OTHERWISE)
    return {name: len(text.encode()) for name, text in made.items()}


def _marker(names: Iterable[str]) -> str:
    return json.dumps({"made_by": "sentinel site", "files": sorted(names)}, indent=0) + "\n"


def _listed(folder: Path) -> set[str]:
    try:
        names = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
        return {str(name) for name in names if _inside(str(name))}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # without a readable marker, no file is removed


def _inside(name: str) -> bool:
    place = PurePosixPath(name)
    return not place.is_absolute() and ".." not in place.parts and bool(place.parts)


def _remove(folder: Path, name: str) -> None:
    file = folder / name
    if any(parent.is_symlink() for parent in file.parents if parent != folder and folder in parent.parents):
        return
    file.unlink(missing_ok=True)
    for parent in file.parents:
        if parent == folder:
            break
        with suppress(FileNotFoundError):  # a killed build may list files that it has not written
            if any(parent.iterdir()):
                break
            parent.rmdir()
