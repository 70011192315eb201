"""Lines of the usual width: where a program's text is broken."""

from __future__ import annotations

from collections.abc import Iterable

WIDTH = 120

#: So many arguments are written as data is: as many on a line as fit.
_MANY = 4


def wrapped(text: str, indent: int = 4) -> str:
    """A line, on several lines where it is long: broken behind the commas of its outermost brackets."""
    if len(text) + indent <= WIDTH or "\n" in text:
        return text
    opened = _outermost(text)
    if opened is None:
        return text
    start, end = opened
    if indent + 4 + end - start - 1 > WIDTH:
        start, end = _display(text, start, end)
    inside = text[start + 1 : end]
    if len(clauses := _clauses(inside)) > 1:
        body = "\n".join("    " + line for clause in clauses for line in wrapped(clause, indent + 4).split("\n"))
        return f"{text[: start + 1]}\n{body}\n{text[end:]}"
    parts = [part.strip() for part in _split(inside)]
    comma = "," if len(parts) > 1 or inside.rstrip().endswith(",") else ""  # behind a single part it makes a tuple
    many = len(parts) > _MANY
    filled = many or (text[start] != "(" and max(map(len, parts)) < WIDTH // 2)
    if indent + 4 + len(", ".join(parts)) <= WIDTH - (len(parts) == 1 and bool(comma)):
        items = [", ".join(parts) + (comma if len(parts) == 1 else "")]
    elif filled:
        items = packed(parts, WIDTH - indent - 5, indent + 4)
    else:
        items = [wrapped(part + comma, indent + 4) for part in parts]
    body = "\n".join("    " + line for item in items for line in item.split("\n"))
    return f"{text[: start + 1]}\n{body}\n{text[end:]}"


def _display(text: str, start: int, end: int) -> tuple[int, int]:
    """The brackets of a display that is all that a call is given: people break it at these, ``f({``."""
    first = start + 1 + len(text[start + 1 : end]) - len(text[start + 1 : end].lstrip("*"))
    if text[start] != "(" or text[first] not in "{[":
        return start, end
    depth = 0
    for index, character in _outside_strings(text[first:end]):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return (first, end - 1) if first + index == end - 1 else (start, end)
    return start, end


def _clauses(text: str) -> list[str]:
    """The clauses of a comprehension: what it gives, and each ``for`` and ``if``; other text is one."""
    depth, cuts = 0, [0]
    for index, character in _outside_strings(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and (text.startswith(" for ", index) or (len(cuts) > 1 and text.startswith(" if ", index))):
            cuts.append(index)
    return [text[start:end].strip() for start, end in zip(cuts, [*cuts[1:], len(text)])]


def packed(parts: list[str], width: int, indent: int) -> list[str]:
    """Data, as many items on a line as fit; one that is long stands alone."""
    lines: list[str] = []
    alone = True
    for part in parts:
        before, alone = alone, len(part) >= width
        if alone:
            lines.append(wrapped(f"{part},", indent))
        elif lines and not before and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f" {part},"
        else:
            lines.append(f"{part},")
    return lines


def _outermost(text: str) -> tuple[int, int] | None:
    """The longest bracket of the outermost level: where it opens and closes."""
    found: list[tuple[int, int]] = []
    depth, start = 0, 0
    for index, character in _outside_strings(text):
        if character in "([{":
            start = index if depth == 0 else start
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0 and index > start + 1:
                found.append((start, index))
    commas = [
        (a, b) for a, b in found if ("," in text[a:b] or " for " in text[a:b]) and not text.startswith("lambda", a + 1)
    ]
    calls = [(a, b) for a, b in found if text[a] == "(" and not text.startswith("lambda", a + 1)]
    return max(commas or calls, key=lambda pair: pair[1] - pair[0], default=None)


def _split(text: str) -> list[str]:
    parts, depth, last = [], 0, 0
    for index, character in _outside_strings(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[last:index])
            last = index + 1
    return [part for part in (*parts, text[last:]) if part.strip()]


def _outside_strings(text: str) -> Iterable[tuple[int, str]]:
    inside = False
    skip = False
    for index, character in enumerate(text):
        if skip:
            skip = False
        elif inside and character == "\\":
            skip = True
        elif character == '"':
            inside = not inside
        elif not inside:
            yield index, character


def bare(text: str) -> str:
    """Without the brackets of an operation, where it stands alone."""
    if not text.startswith("(") or text.startswith("(lambda"):
        return text
    depth = 0
    for index, character in _outside_strings(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return text[1:-1] if index == len(text) - 1 and len(_split(text[1:-1])) == 1 and ",)" not in text else text
    return text
