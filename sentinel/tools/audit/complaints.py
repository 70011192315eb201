"""Write messages about settings that the framework's version does not have or does not accept."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.commands.console import some
from sentinel.tools.audit.declared import newest_with
from sentinel.tools.audit.effective import Training
from sentinel.tools.audit.files import position_of
from sentinel.tools.audit.options import Options
from sentinel.tools.audit.reading import Copy, Given, Run
from sentinel.tools.audit.validation import Rejection

#: Maximum number of printed lines of one kind.
_MOST_LINES = 10


@dataclass(frozen=True)
class Complaints:
    """Messages about a run's settings.

    :ivar rejected: about settings for which the program raises an error, and values that an option does not accept.
    :ivar doubtful: about other settings that the version does not have, or that could not be checked.
    """

    rejected: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)


def complaints(run: Run, given: Given, copy: Copy) -> Complaints:
    """Return messages about a run's unknown, rejected and unchecked settings. The messages suggest similar options."""
    found = Complaints()
    training = run.training
    if training is None:
        return found
    options = training.options
    if options is not None:
        reader = _Reader(run, training, options, given, copy)
        _add_unknown(reader, found)
        found.rejected.extend(
            f"{reader.place(name)}{name}={training.configuration[name]}: this option accepts only {expected}"
            for name, expected in training.invalid.items()
        )
        _add_unchecked(reader, found)
        found.rejected.extend(map(reader.raised, run.refused))
    return found


@dataclass(frozen=True)
class _Reader:
    run: Run
    training: Training
    options: Options
    given: Given
    copy: Copy

    def place(self, name: str) -> str:
        """Return ``file:line: `` for a setting or section, or "" if its position is not known."""
        places, config = self.given.launch.places, self.run.config
        place = next((places[each] for each in places if f"{each}.".startswith(f"{name}.")), "")
        place = place or (position_of(config, name) if config else "")
        return f"{place}: " if place else ""

    def near(self, name: str) -> str:
        """Return the hint of a message about an unknown option: a release that has it, or a similar name."""
        newest, since = newest_with(self.copy.target, self.options, name)
        # A name that another release has is not misspelled, so no similar option is suggested.
        if since:
            return f"; {since} removed it ({newest} still has it)"
        if newest:
            return f"; the newest release, {newest}, has it"
        meant = self.training.meant().get(name)
        if meant and self.given.launch.made_by:
            return f"; did you mean {meant}?"
        other = self.training.elsewhere(name)
        return f" (it is one of {other})" if other else f"; did you mean {meant}?" if meant else ""

    def is_refused(self, name: str) -> bool:
        """Return True if the script's parser certainly raises an error for this option."""
        strict, launch = self.given.launch.parser.strict, self.given.launch
        typed = [each for each, _ in launch.settings if f"{each}.".startswith(f"{name}.")]
        if typed:  # argparse accepts abbreviated names of flags
            return "command" in strict and not any(option.startswith(name) for option in self.options.options)
        return "file" in strict and not any(f"{each}.".startswith(f"{name}.") for each in self.given.set_names)

    def raised(self, each: Rejection) -> str:
        """Return a message about an exception that the configuration class raises, and the settings that cause it."""
        place = next(filter(None, map(self.place, each.names)), "")
        given = ", ".join(f"{name}={self.training.configuration[name]}" for name in each.names)
        processes = f" with {' or '.join(map(str, each.processes))} processes" if each.processes else ""
        what = f"{self.options.made_by} of {self.copy.name} raises a {each.raised.kind} for {given}{processes}"
        return f"{place}{what}: {each.raised.message}"


def _add_unknown(reader: _Reader, found: Complaints) -> None:
    run, options, launch = reader.training, reader.options, reader.given.launch
    nested = {name.removesuffix(f".{option}"): None for name, option in run.nested.items()}
    refused = [section for section in nested if reader.is_refused(section)]
    if nested and not refused:
        found.doubtful.append(
            f"not read: {some(list(run.nested))}; {options.name} ({options.file}) has no section "
            f"{' or '.join(nested)}, so these are not known: {some(list(run.nested.values()))}"
        )
    unknown = [name for name in run.unknown() if name in refused or (name not in run.nested and name not in nested)]
    for name in unknown[:_MOST_LINES]:
        place, near = reader.place(name), reader.near(name)
        if launch.made_by == options.made_by != "" and name in launch.places and not launch.parser.name:
            has_not = f"{place}{options.made_by} of {reader.copy.name} has no option {name}"
            if name in launch.silent:
                effect = "assigning it raises no error and has no effect on the options"
                found.doubtful.append(f"{has_not}; {effect}{near}")
            else:
                found.rejected.append(f"{has_not} and raises a TypeError{near}")
        elif reader.is_refused(name):
            classes = some([options.made_by, *(launch.program[1] if launch.program else ())])
            found.rejected.append(
                f"{place}{launch.parser.name} raises an error for {name}, which none of its classes ({classes}) has"
                f"{near}"
            )
        else:
            script = "; a class of your script may have it: name the script with --script" if options.companions else ""
            found.doubtful.append(
                f"{place}{name} is not an option of {options.name} ({options.file}) in this version{near or script}"
            )
    if left := unknown[_MOST_LINES:]:
        found.doubtful.append(f"also not options of {options.name} in this version: {', '.join(left)}")
    if new := sorted(name for name in reader.given.added if name not in options):
        found.doubtful.append(f"added with +, and not an option of {options.name} in this version: {some(new)}")


def _add_unchecked(reader: _Reader, found: Complaints) -> None:
    run, meant = reader.training, reader.training.meant()
    by_source: dict[str, list[str]] = {}
    for name in (name for name in run.unread() if name not in run.nested):
        near = f" (did you mean {meant[name]}?)" if name in meant else ""
        by_source.setdefault(reader.options.may_declare(name), []).append(f"{name}{near}")
    for source, names in by_source.items():
        package = source.partition(" of ")[2]
        advice = f"; install {package}, or name an environment that has it with --python" if package else ""
        found.doubtful.append(f"not checked, because the options of {source} were not read: {some(names)}{advice}")
