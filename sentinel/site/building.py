"""All files of a site, from what is recorded. The same records give the same bytes."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

from sentinel.errors import INSTALL, SentinelError
from sentinel.recipes.reach import REALISMS, SEVERITIES
from sentinel.site.bug_files import bug_page
from sentinel.site.coverage import coverages
from sentinel.site.lifetimes import lives
from sentinel.site.material import Material
from sentinel.site.matrix import counted_rows, ranked, tables

#: A page that is larger costs a reader on a slow line seconds; a test holds the shipped site to it.
START_LIMIT, BUG_LIMIT = 400_000, 150_000

Files = Iterator[tuple[str, str]]


def require() -> None:
    """:raises SentinelError: where Jinja2, the ``site`` extra, is not there."""
    if importlib.util.find_spec("jinja2") is None:
        raise SentinelError(f"a site needs jinja2; {INSTALL.format('site')}")


def build(material: Material, tell: Callable[[str], None] = lambda text: None) -> Files:
    """Every file of the site, as its path and text.

    :raises SentinelError: as :func:`require`.
    """
    require()
    from sentinel.site.rendering import Pages

    pages = Pages()
    for name in ("site.css", "site.js"):
        yield name, (resources.files("sentinel.site") / "static" / name).read_text(encoding="utf-8")
    yield "index.html", _index(pages, material)
    yield "coverage.html", pages.render("coverage.html", "coverage.html", "Laws", coverages=coverages(material))
    yield "dialects.html", _dialects(pages, material)
    yield "changes.html", pages.render("changes.html", "changes.html", "Changes", changes=material.changes)
    yield "lifetimes.html", _lifetimes(pages, material)
    told = ""
    for bug in (*material.bugs, *material.laws):
        about = f"{'bugs' if bug.bug_id else 'laws'} of {bug.target}"
        if about != told:
            told = about
            tell(f"pages: {told}")
        yield bug.page, bug_page(pages, material, bug)
        for seen in bug.seen:
            yield f"evidence/{seen.place}", seen.text


def _index(pages: Any, material: Material) -> str:
    from sentinel.site.rendering import SIGNS

    known = tables(material)
    rows = ranked(known)
    return str(
        pages.render(
            "index.html",
            "index.html",
            "Is my training run affected?",
            tables=known,
            rows=rows,
            shared=Counter((row.bug.target, row.root) for row in rows),
            bugs=counted_rows(rows),
            current=[verdict for verdict in SIGNS if any(table.now[verdict] for table in known)],
            unknown=any(table.now["unknown"] for table in known),
            laws=sorted({law for row in rows for law in row.bug.laws}),
            severities=[name for name in SEVERITIES if any(row.severity == name for row in rows)],
            realisms=[name for name in REALISMS if any(row.realism == name for row in rows)],
            signals=sorted({row.signal for row in rows} - {""}),
        )
    )


def _dialects(pages: Any, material: Material) -> str:
    known, laws = material.catalog.targets, material.catalog.laws
    bindings = ((name, known[name].bindings if name in known else ()) for name in material.targets)
    declared = [(name, [(binding, dialect) for binding in of for dialect in binding.dialects]) for name, of in bindings]
    rows = material.compared.get("rows", ())
    return str(pages.render("dialects.html", "dialects.html", "Dialects", declared=declared, laws=laws, rows=rows))


def _lifetimes(pages: Any, material: Material) -> str:
    groups = [
        {"target": target, "known": known, "unknown": unknown, "drawn": [life for life in known if life.drawable]}
        for target, known, unknown in lives(material)
    ]
    return str(pages.render("lifetimes.html", "lifetimes.html", "Lifetimes", lives=groups))
