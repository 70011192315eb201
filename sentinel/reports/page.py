"""A run as one HTML file: no scripts, nothing loaded from anywhere, light and dark."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping
from typing import Any

from sentinel.reports.escaping import message, visible
from sentinel.reports.evidence import dumps
from sentinel.reports.rows import MEANING, Row, counts, headings, held, row

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --red: #b3261e; --green: #1b7f3b; --other: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --red: #ff8a80; --green: #7fd99a; --other: #f0c060; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .7rem; text-align: left; vertical-align: top; }
td:last-child, summary { overflow-wrap: anywhere; }
td:not(:last-child) { white-space: nowrap; }
.reproduced, .failed { color: var(--red); }
.fixed, .passed { color: var(--green); }
.changed, .inconclusive { color: var(--other); }
pre { overflow-x: auto; border: 1px solid var(--line); padding: .7rem; font-size: 13px; }
dt { font-weight: 600; float: left; clear: left; margin-right: .5rem; }
"""

# The page shows text out of other people's code; the policy lets nothing run or load even if an escape were missed.
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)

Document = Mapping[str, Any]


def page(results: Iterable[tuple[Document, str]], title: str = "Sentinel") -> str:
    """The run as a self-contained page. Laws that hold are counted only.

    :param results: each evidence document with pytest's outcome of its item.
    """
    pairs = sorted(((row(document, outcome), document) for document, outcome in results), key=lambda p: p[0].ordering)
    rows = [item for item, _ in pairs]
    pairs = [pair for pair in pairs if not pair[0].quiet]
    counted = "".join(f"\n<p>{escape(line)}</p>" for line in (counts(rows), *held(rows)))
    links = "\n".join(_line(index, item) for index, (item, _) in enumerate(pairs))
    blocks = "\n".join(_block(index, item, document) for index, (item, document) in enumerate(pairs))
    names = "".join(f'<th scope="col">{name}</th>' for name in headings([item for item, _ in pairs]))
    meanings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(meaning)}</dd>" for name, meaning in MEANING.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{counted.lstrip()}
<div class="wide"><table>
<thead><tr>{names}</tr></thead>
<tbody>
{links}
</tbody>
</table></div>
<h2>Verdicts</h2>
<dl>{meanings}</dl>
<h2>Evidence</h2>
{blocks}
</body>
</html>
"""


def escape(text: str) -> str:
    """Text that shows on a page, and neither acts on it nor hides in it."""
    return html.escape(visible(text, lines=True))


def _line(index: int, item: Row) -> str:
    return (
        f'<tr><td>{escape(item.target)}</td><td><a href="#e{index}">{escape(item.what)}</a></td>'
        f"<td><code>{escape(item.ref)}</code></td>"
        f'<td class="{escape(item.verdict)}">{escape(item.verdict)}</td>'
        f'<td class="{escape(item.outcome)}">{escape(item.outcome)}</td><td>{escape(item.reason)}</td></tr>'
    )


def _block(index: int, item: Row, document: Document) -> str:
    name = f"{item.target} {item.what} {item.ref}: {item.verdict}"
    return (
        f'<details id="e{index}"><summary>{escape(name)}</summary>\n'
        f"<p>{escape(message(document['title']))}</p>\n<pre>{escape(dumps(document))}</pre></details>"
    )
