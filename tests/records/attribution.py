"""Format the commits that a sweep found, as a recipe's ``introduced_by`` and ``fixed_by`` name them."""

from sentinel.records.history import History
from sentinel.records.timelines import came_with_its_code

#: The text for an unknown commit in a list with known commits.
NOT_KNOWN = "not known"


def introduced_by(record: History) -> str:
    """Return ``6e6ae96c6 (#4360, 2025-12-01)`` for each time the bug appeared; empty if none is known.

    A commit is unknown if undecided commits precede it, or if it only moved the code, because the bug may then be
    older.
    """
    begun = [spell["introduced"] for spell in record["spells"]]
    said = [_named(change["commit"]) if _is_known(change, record) else NOT_KNOWN for change in begun]
    return "; ".join(said) if set(said) - {NOT_KNOWN} else ""


def fixed_by(record: History) -> str:
    """Return the commits that fixed the bug, formatted as in :func:`introduced_by`. Removing the code is not a fix."""
    ends = [spell["ended"] for spell in record["spells"] if spell["ended"]]
    return "; ".join(_named(end["commit"]) for end in ends if end["what"] == "fixed" and not end["undecided"])


def _is_known(change: History, record: History) -> bool:
    if change["undecided"]:
        return came_with_its_code(change)
    return not change["begins"] or came_with_its_code(change) or _is_first_commit(change, record)


def _is_first_commit(change: History, record: History) -> bool:
    """Return True if upstream's history begins with this commit."""
    first = record["runs"][0]["first"]["sha"]
    source = record["source"]
    return bool(change["commit"]["sha"] == first and not (source["since"] or source["begins"]))


def _named(commit: History) -> str:
    pull = f"#{commit['pull']}, " if commit["pull"] else ""  # first, because in YAML a # after a space begins a comment
    return f"{commit['sha'][:9]} ({pull}{commit['date'][:10]})"
