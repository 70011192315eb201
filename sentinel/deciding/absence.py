"""Find the first name that an adapter uses but a checkout does not define, and whether it was removed or moved.

The checkout's source is read, and none of it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentinel.deciding.proof import Sources, content_of, module_in, stands
from sentinel.errors import Unavailable
from sentinel.sources.checkouts import files
from sentinel.sources.commits import existed
from sentinel.sources.gitbinary import GitError
from sentinel.sources.mirrors import MirrorStore
from sentinel.targets import Binding
from sentinel.targets.checkout import Checkout

#: A definition counts as moved if both versions share at least this fraction of the lines of the longer version.
_NEAR_IDENTICAL = 0.9

#: Maximum number of definitions of a name that are read. A hostile checkout may have any number of them.
_MOST = 20


@dataclass(frozen=True)
class Absence:
    """A dotted path that an adapter uses and that a checkout's source does not define.

    :ivar needed: the whole path, as the adapter writes it.
    :ivar name: the shortest prefix of this path that is missing.
    :ivar place: the dotted path of the only other definition of the name; empty if there are none or several.
    :ivar others: the number of other definitions of the name, if there are several; otherwise 0.
    :ivar same: whether the definition at ``place`` has nearly the same lines as at a revision where the adapter works;
        None if no such revision is available.
    :ivar depth: the number of names in the path after the module.
    :ivar existed: whether an earlier commit of the mirror defined the name; None if unknown.
    """

    needed: str
    name: str
    place: str = ""
    same: bool | None = None
    depth: int = 0
    existed: bool | None = None
    others: int = 0

    def describe(self, hint: str = "") -> str:
        """Return a sentence about the missing path, and about whether it was removed or moved.

        :param hint: the worker's message. Its text after ``;`` names a similar definition, and is appended if no
            shorter prefix of the path is missing.
        """
        near = f";{hint.partition(';')[2]}" if ";" in hint and self.name == self.needed else ""
        if self.others:
            last = self.needed.rpartition(".")[2]
            return f"this version has no {self.needed}; {self.others} other places define {last}"
        if not self.place:
            when = {True: "removed upstream", False: "not there yet", None: "removed upstream, or not there yet"}
            return f"this version has no {self.name} ({when[self.existed]}){near}"
        other = "" if self.same else ", with different code; update the adapter for this revision"
        other = "; its code could not be compared with the old one" if self.same is None else other
        return f"{self.needed} has moved to {self.place}{other}"

    @property
    def moved(self) -> dict[str, str]:
        """Return old dotted path -> new dotted path for a definition that has moved, and for its module. The result is
        empty unless both definitions have nearly the same code."""
        modules = (path.rsplit(".", self.depth)[0] for path in (self.needed, self.place))
        return {self.needed: self.place, next(modules): next(modules)} if self.same else {}


def absence(
    binding: Binding, checkout: Checkout, sources: Sources, older: Iterable[Checkout], option: str = ""
) -> Absence | None:
    """Return the first dotted path that an adapter uses but the checkout does not define; None if all are defined.

    :param option: an input for which the worker found no parameter.
    :param older: checkouts at which the binding works. A moved function is compared with its former code there.
    """
    imports = (binding.names(name) for name in binding.imports)
    for group in (binding.paths, *imports, *((name,) for name in binding.requires)):
        if not any(stands(name, checkout, sources) for name in group):
            return _look_for(group, checkout, sources, older)
    parameters = binding.arguments.get(option, (option,)) if option else ()
    options = [f"{path}({parameter})" for path in binding.paths for parameter in parameters]
    if options and not any(stands(name, checkout, sources) for name in options):
        return _look_for(options, checkout, sources, ())
    return None


def _look_for(names: Sequence[str], checkout: Checkout, sources: Sources, older: Iterable[Checkout]) -> Absence:
    needed = names[0].partition("(")[0]
    parts = needed.split(".")
    prefixes = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    there = max((place for place, name in enumerate(prefixes) if stands(name, checkout, sources)), default=-1)
    name = needed if there < 0 else names[0] if there + 1 == len(prefixes) else prefixes[there + 1]
    for known in older:
        for path in names:
            module, file = module_in(path, known) or ("", "")
            attributes = path[len(module) + 1 :].split(".") if module not in ("", path) else []
            lines = _definition(_text(file, known), attributes) if attributes else []
            if lines:
                places = list(_find_definitions(attributes, checkout))
                if len(places) > 1:
                    return Absence(path, name, others=len(places))
                if not places:
                    return Absence(path, name, existed=_existed_before(name, checkout))
                return Absence(path, name, places[0][0], _alike(lines, places[0][1]), len(attributes))
    attributes = parts[-2:] if len(parts) > 2 and parts[-2][0].isupper() else parts[-1:]
    # a missing parameter is not searched for in other files
    places = list(_find_definitions(attributes, checkout)) if names[0] == needed else []
    if len(places) > 1:
        return Absence(needed, name, others=len(places))
    place = places[0][0] if places else ""
    return Absence(needed, name, place, existed=None if place else _existed_before(name, checkout))


def _existed_before(name: str, checkout: Checkout) -> bool | None:
    """Return whether an earlier commit of the mirror defined this module, or this name in a module that still exists.

    Return None if the mirror cannot show it, or if the name is a parameter.
    """
    if checkout.commit is None or "(" in name:
        return None
    _, file = module_in(name, checkout) or ("", "")
    bases = [root.relative_to(checkout.path) / name.replace(".", "/") for root in checkout.import_roots]
    modules = [path for base in bases for path in (base.as_posix(), f"{base.as_posix()}.py")]
    try:
        mirror = MirrorStore().path(checkout.target)
        if existed(mirror, checkout.commit, modules):
            return True
        return existed(mirror, checkout.commit, [file], name.rpartition(".")[2]) if file else False
    except (Unavailable, GitError):
        return None


def _find_definitions(attributes: Sequence[str], checkout: Checkout) -> Iterator[tuple[str, list[str]]]:
    """Yield the dotted path and the lines of each definition of this name in a checkout.

    :param attributes: the name, preceded by the names of the classes that contain it.
    """
    count = 0
    for file in sorted(files(checkout)):
        root = next((root for root in checkout.roots if file.startswith(f"{root}/")), None)
        if root is None or not file.endswith(".py") or count >= _MOST:
            continue
        text = _text(file, checkout)
        lines = _definition(text, attributes) if attributes[-1] in text else []
        if lines:
            count += 1
            module = file.removesuffix(".py").removesuffix("/__init__")[len(root.rpartition("/")[0]) :].strip("/")
            yield ".".join((module.replace("/", "."), *attributes)), lines


def _text(file: str, checkout: Checkout) -> str:
    return content_of(file, checkout).decode(errors="replace")


def _definition(text: str, names: Sequence[str]) -> list[str]:
    """Return the lines of a function or class; empty if there is none with this name.

    :param names: its name, preceded by the names of the classes that contain it.
    """
    lines, indent = text.splitlines(), -1
    for name in names:
        head = re.compile(rf"(\s*)(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b")
        heads = ((place, match) for place, match in enumerate(map(head.match, lines)) if match is not None)
        place, match = next(((place, match) for place, match in heads if len(match[1]) > indent), (-1, None))
        if match is None:
            return []
        indent = len(match[1])
        after = range(place + 1, len(lines))
        end = next((row for row in after if _ends_block(lines[row], indent)), len(lines))
        lines = lines[place:end]
    return lines


def _ends_block(line: str, indent: int) -> bool:
    """Return True if a line ends the indented block before it. The last line of a signature, such as ``) -> int:``,
    does not."""
    text = line.lstrip()
    return bool(text) and len(line) - len(text) <= indent and not text.startswith((")", "]", "#"))


def _alike(one: Sequence[str], other: Sequence[str]) -> bool:
    stripped = ((line.partition("#")[0].strip() for line in lines) for lines in (one, other))
    first, second = (Counter(filter(None, lines)) for lines in stripped)
    return (first & second).total() >= _NEAR_IDENTICAL * max(first.total(), second.total(), 1)
