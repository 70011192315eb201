"""Which commits brought a bug and which mended it, as far as a sweep knows: what ``introduced_by`` and ``fixed_by`` of
a recipe say."""

from sentinel.records.history import History
from sentinel.records.timelines import came_with_its_code

#: Stands for a time of which nobody knows how it began, where other times are known.
NOT_KNOWN = "not known"


def introduced_by(record: History) -> str:
    """``6e6ae96c6 (#4360, 2025-12-01)``, for each time the bug came; empty where none of them is known.

    Not known is one that lies behind commits that could not be decided, and one of code that was moved there from
    elsewhere: the bug may be older than its boundary's name.
    """
    begun = [spell["introduced"] for spell in record["spells"]]
    said = [_named(change["commit"]) if _is_known(change, record) else NOT_KNOWN for change in begun]
    return "; ".join(said) if set(said) - {NOT_KNOWN} else ""


def fixed_by(record: History) -> str:
    """As :func:`introduced_by`, for each time that a known commit mended it; code that merely went away mends
    nothing."""
    ends = [spell["ended"] for spell in record["spells"] if spell["ended"]]
    return "; ".join(_named(end["commit"]) for end in ends if end["what"] == "fixed" and not end["undecided"])


def _is_known(change: History, record: History) -> bool:
    if change["undecided"]:
        return came_with_its_code(change)
    return not change["begins"] or came_with_its_code(change) or _is_first_commit(change, record)


def _is_first_commit(change: History, record: History) -> bool:
    """Whether there is nothing before: upstream published it so."""
    first = record["runs"][0]["first"]["sha"]
    source = record["source"]
    return bool(change["commit"]["sha"] == first and not (source["since"] or source["begins"]))


def _named(commit: History) -> str:
    pull = f"#{commit['pull']}, " if commit["pull"] else ""  # first: in YAML a # behind a space begins a comment
    return f"{commit['sha'][:9]} ({pull}{commit['date'][:10]})"
