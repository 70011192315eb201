"""Find registry keys that refer to another function at the head than at the base. No code runs.

A branch can replace a function without editing it, by registering a new function under the same key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.comparing.observations import AFTER, BEFORE, SIDES
from sentinel.comparing.reached import Code, Place
from sentinel.comparing.units import Registration

#: The registry and the key. The registry is a place, or an expression as text if another package defines it.
_Key = tuple[Any, str]

#: A file that differs: its path, and for each revision a pair of the :class:`Code` that reads the file and its blob.
Changed = tuple[str, tuple[Code, str | None], tuple[Code, str | None]]


@dataclass(frozen=True)
class Lookup:
    """A registry key that refers to different definitions at the base and at the head.

    :ivar key: the key as reports write it, such as ``register_policy_loss['gspo']``.
    :ivar before: the definition to which the key refers at the base; None if the target's code does not define it.
    :ivar after: the definition to which the key refers at the head; None if the key is gone, or if the target's code
        does not define it.
    :ivar entry: the definition that registers the key: at the head, or at the base if the key is gone.
    """

    key: str
    before: Place | None
    after: Place | None
    entry: Place
    line: int

    @property
    def where(self) -> str:
        return f"{self.entry[0]}:{self.line}"


def changed_lookups(files: Iterable[Changed], codes: Mapping[str, Code], trees: Mapping[str, str]) -> list[Lookup]:
    """Return the registry keys that refer to different definitions at the base and at the head.

    If several files register the same key, the entry of a changed file counts as the head's, because the source does
    not show which file is imported last.

    :param files: the files that differ.
    :param codes: side -> the code of that revision.
    :param trees: side -> the tree of that revision.
    """
    changed = [(file, {side: each[1] for side, each in zip(SIDES, both)}) for file, *both in files]
    entries = {
        side: _collect(((file, blobs[side]) for file, blobs in changed), codes[side], trees[side]) for side in SIDES
    }
    elsewhere = _find_elsewhere(entries, {file for file, _ in changed}, codes[BEFORE], trees[BEFORE])
    lookups = []
    for key, (file, now) in entries[AFTER].items():
        old = entries[BEFORE].get(key)
        if isinstance(key[0], str):  # a registry of another package, such as os.environ
            if not now.code if old is None else old[1].member != now.member and not _decorates_alike(old[1], now):
                lookups.append(Lookup(str(now), None, None, (file, now.unit), now.line))
            continue
        old = old or elsewhere.get(key)
        if old is None:
            continue
        was, is_ = (_place(codes[side], trees[side], *each) for side, each in zip(SIDES, (old, (file, now))))
        if (was, is_) == (None, None) and old[1].member == now.member:
            continue
        renamed = _decorates_alike(old[1], now)
        if was is not None and renamed:
            renamed = old[0] == file or codes[AFTER].unit(trees[AFTER], was) is None
        if was != is_ and not renamed:
            lookups.append(Lookup(str(now), was, is_, (file, now.unit), now.line))
    # Keys and members are compared without their registry, because the registry itself may have moved.
    still = {(key[1], entry.member) for key, (_, entry) in entries[AFTER].items()}
    for key, (file, entry) in entries[BEFORE].items():
        if key in entries[AFTER] or (key[1], entry.member) in still or isinstance(key[0], str):
            continue
        was = _place(codes[BEFORE], trees[BEFORE], file, entry)
        stands = was is not None and codes[AFTER].unit(trees[AFTER], was) is not None
        table = codes[BEFORE].unit(trees[BEFORE], key[0])
        if stands and table is not None and table.kind != "function":  # a function without a table is not a registry
            lookups.append(Lookup(str(entry), was, None, (file, entry.unit), entry.line))
    return lookups


def _decorates_alike(old: Registration, now: Registration) -> bool:
    return bool(now.code) and old.code == now.code


def _collect(files: Iterable[tuple[str, str | None]], code: Code, tree: str) -> dict[_Key, tuple[str, Registration]]:
    """Return the last entry for each registry key in these files: key -> (the entry's file, the entry)."""
    return {
        (_registry(code, tree, file, each.registry), each.key): (file, each)
        for file, blob in files
        for each in code.at_import(blob).registrations
    }


def _find_elsewhere(
    entries: Mapping[str, Mapping[_Key, Any]], changed: Collection[str], code: Code, tree: str
) -> dict[_Key, tuple[str, Registration]]:
    """Return the entries of unchanged files for keys that changed files register at the head but not at the base.

    :param changed: the paths of the changed files.
    :param code: reads the base.
    """
    words = {key for registry, key in entries[AFTER].keys() - entries[BEFORE].keys() if not isinstance(registry, str)}
    words |= {word.upper() for word in words}
    files = ((file, blob) for file, blob in sorted(code.files(tree).items()) if file not in changed)
    return _collect([each for each in files if code.names(each[1], words)] if words else (), code, tree)


def _place(code: Code, tree: str, file: str, entry: Registration) -> Place | None:
    if entry.code:
        return file, entry.member
    return code.find_unit(tree, f"{code.module_of(file)}.{entry.member}")


def _registry(code: Code, tree: str, file: str, path: str) -> Any:
    """Return the place that defines the registry in an expression such as ``losses.register``; the expression itself if
    the target does not define it.

    If the expression names a decorator, and the decorator's function uses exactly one initially empty table of its
    module, return the place of this table.
    """
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        place = code.find_unit(tree, f"{code.module_of(file)}.{'.'.join(parts[:end])}")
        if place is not None:
            units = code.module(code.files(tree)[place[0]]).units
            tables = [name for name in units[place[1]].names if name in units and units[name].kind == "registry"]
            own = units[place[1]].kind == "function" and len(tables) == 1
            return (place[0], tables[0]) if own else place
    return path


def paths_at_head(lookup: Lookup, place: Place, module: str) -> Iterator[str]:
    """Yield the dotted path of the definition that replaces ``place`` at the head, if the key referred to ``place`` or
    its class at the base.

    :param module: the dotted path of the module that contains the new definition.
    """
    if lookup.before is None or lookup.after is None:
        return
    (file, name), (_, new) = lookup.before, lookup.after
    if place[0] == file and f"{place[1]}.".startswith(f"{name}."):
        yield f"{module}.{new}{place[1].removeprefix(name)}"


def changed_imports(
    files: Iterable[Changed], codes: Mapping[str, Code], trees: Mapping[str, str]
) -> Iterator[tuple[Place, str]]:
    """Yield the functions that use an imported name that refers to other code at the head than at the base.

    Each function is yielded with a sentence about the name. Its own lines may be unchanged. Functions without training
    signal are left out.
    """
    for file, (_, old), (code, new) in files:
        if old is None or new is None:
            continue
        modules = codes[BEFORE].module(old), code.module(new)
        leads = {
            name: found
            for name, each in modules[1].names.items()
            if each.kind == "import"
            and modules[0].names.get(name, each).leads != each.leads
            and (found := _changed_lead(file, name, codes, trees))
        }
        named = {*code.signals(file, new), *code.doubtful(file, new)} if leads else set()
        for name in sorted(named & modules[1].units.keys()):
            for used in sorted(modules[1].units[name].names & leads.keys()):
                yield (file, name), f"{used} now refers to {leads[used]}"


def _changed_lead(file: str, name: str, codes: Mapping[str, Code], trees: Mapping[str, str]) -> str:
    """Return the dotted path to which a name in a file refers at the head, or ``another package``.

    Return an empty string if both revisions refer to the same code or to another package, or to a definition that
    itself has changed.
    """
    places = [codes[side].find_unit(trees[side], f"{codes[side].module_of(file)}.{name}") for side in SIDES]
    units = [None if place is None else codes[side].unit(trees[side], place) for side, place in zip(SIDES, places)]
    if units == [None, None] or (units[0] is not None and units[0].like(units[1])):
        return ""
    if places[0] == places[1]:
        return ""  # the definition itself has changed, so it is compared like any other
    last = places[1]
    return "another package" if last is None else f"{codes[AFTER].module_of(last[0])}.{last[1]}"
