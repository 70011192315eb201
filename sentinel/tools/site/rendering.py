"""Render the templates of the website, and escape all values in them.

Every expression of every template is escaped: HTML by autoescape, and control characters and bidirectional overrides as
visible escapes.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any
from urllib.parse import urlsplit

import sentinel
from sentinel.errors import INSTALL
from sentinel.records.timelines import span
from sentinel.reports.escaping import visible
from sentinel.tools.site.material import Evidence, brief, moves

#: Content security policy: a page may load only files of the site. Inline scripts and styles, forms, frames and other
#: hosts are blocked.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; "

#: The sign of each verdict, which is shown in addition to its colour. Pages list verdicts in this order.
SIGNS = {"reproduced": "✗", "fixed": "✓", "changed": "≠", "inconclusive": "?", "unavailable": "\N{EN DASH}"}

_MEANING = {
    "reproduced": "the bug is present",
    "fixed": "the bug is absent",
    "changed": "the result is neither the buggy nor the correct one",
    "inconclusive": "the check gave no clear result",
    "unavailable": "the code could not be run; for example, this commit does not have the function",
}

#: Realism of a bug (:data:`sentinel.recipes.grades.REALISMS`) -> what triggers the bug.
TRIGGERS = {
    "default": "default settings or a shipped example",
    "configuration": "settings that a user must choose",
    "fault": "another failure that happens first",
    "unreachable": "nothing in the framework (hardening)",
}

#: Short forms of :data:`TRIGGERS` for the list of bugs.
_SHORT_TRIGGERS = {
    "default": "default settings",
    "configuration": "non-default settings",
    "fault": "after another failure",
    "unreachable": "hardening",
}

_MARKS = {
    "leak": {"sign": "◆", "word": "must have no effect:"},
    "varies": {"sign": "Δ", "word": "different"},
    "wrong": {"sign": "✗", "word": "wrong"},
    "mended": {"sign": "✓", "word": "correct"},
}

_COVERAGE_SIGNS = {
    "bug": {"sign": "✗", "word": "violated"},
    "mended": {"sign": "✓", "word": "fixed"},
    "dialect": {"sign": "d", "word": "intended difference"},
}

#: State of a function in the recorded coverage -> the word on the page.
_COVERAGE_WORDS = {"bound": "checked", "not bound": "not checked", "no signal": "excluded"}

_NAVIGATION = (
    ("Bugs", "index.html"),
    ("Coverage", "coverage.html"),
    ("Lifetimes", "lifetimes.html"),
    ("Frameworks", "leaderboard.html"),
    ("Intended differences", "dialects.html"),
    ("Changes", "changes.html"),
)


class Pages:
    """Renders pages of the site with one Jinja2 environment."""

    def __init__(self) -> None:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self._environment = Environment(
            loader=PackageLoader("sentinel.tools.site"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            finalize=shown,
        )
        filters = (prose, element_text, https, words, dotted, brief, brief_link, span, day, revision)
        self._environment.filters.update({function.__name__: function for function in filters})
        self._environment.globals.update(
            policy=POLICY.strip(),
            version=sentinel.__version__,
            install=INSTALL.format("targets"),
            navigation=_NAVIGATION,
            signs=SIGNS,
            verdicts=list(SIGNS),
            meaning=_MEANING,
            triggers=TRIGGERS,
            short_triggers=_SHORT_TRIGGERS,
            marks=_MARKS,
            coverage_signs=_COVERAGE_SIGNS,
            coverage_words=_COVERAGE_WORDS,
        )

    def render(self, template: str, title: str, place: str = "", **values: Any) -> str:
        """Render one page."""
        page, place = self._environment.get_template(template), place or template
        return str(page.render(root="../" * place.count("/"), here=place, title=title, **values)) + "\n"


def shown(value: Any) -> Any:
    """Replace control characters in a string by visible escapes. Other values are returned unchanged."""
    return visible(value, lines=True) if type(value) is str else value


def prose(text: str) -> Any:
    """Escape a text for HTML. A part between backticks becomes ``<code>``."""
    from markupsafe import Markup, escape

    parts = [escape(shown(part)) for part in re.split(r"`([^`]*)`", text)]
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def element_text(text: str) -> Any:
    """Escape text inside an element, except for quotes, which makes JSON much shorter. Do not use it in attributes."""
    from markupsafe import Markup, escape

    return Markup(str(escape(shown(text))).replace("&#34;", '"').replace("&#39;", "'"))


def https(url: Any) -> str:
    """Return the URL if it is a valid https URL, and otherwise "", for example for ``javascript:``."""
    text = str(url or "")
    if re.search(r"[\x00-\x20\x7f-\x9f]", text):
        return ""
    try:
        parts = urlsplit(text)
        return text if parts.scheme == "https" and parts.hostname and "@" not in parts.netloc else ""
    except ValueError:
        return ""


def day(date_text: str) -> int:
    """Convert an ISO date to a number of days, which is its position on the time axis."""
    return date.fromisoformat(date_text[:10]).toordinal()


def revision(evidence: Evidence) -> str:
    """Return a short text for the revision of evidence. For a branch, it is the commit that was measured."""
    commit = str((evidence.document["checkout"] or {}).get("commit") or "")
    return commit[:7] if moves(evidence.ref) and commit else brief(evidence.ref)


def words(name: Any) -> str:
    """Replace underscores in an identifier by spaces."""
    return str(name).replace("_", " ")


def dotted(path: Any) -> Any:
    """Return a dotted path as HTML in which lines break only after dots and underscores."""
    from markupsafe import Markup

    parts = re.split(r"(?<=[._])(?=[^._])", shown(str(path)))
    return Markup("<wbr>").join(parts)


def brief_link(url: Any) -> str:
    """Return the text of a link to a URL: the last part of its path, and its fragment."""
    text = str(url or "")
    parts = urlsplit(text) if https(text) else None
    if parts is None:
        return text
    last = parts.path.rstrip("/").rpartition("/")[2] or str(parts.hostname)
    return f"{last}#{parts.fragment}" if parts.fragment else last
