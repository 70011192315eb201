"""Implement ``sentinel discover``, which searches for scenarios in which a target's boundaries break a law."""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sentinel.commands.console import (
    Commands,
    command,
    counted,
    echo,
    echo_json,
    json_option,
    nothing_examined,
    progress,
)
from sentinel.commands.options import boundary_option, catalog_and_settings, settings_options, target_named
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import runner_of
from sentinel.errors import NothingExamined, SentinelError, nearest
from sentinel.recipes import find_recipes
from sentinel.reports.escaping import message
from sentinel.reports.explain import scenario_lines
from sentinel.reports.summary import causes
from sentinel.search.boundary_search import Finding
from sentinel.search.checks import Omission, matches, matches_any, subjects
from sentinel.search.discovery import Discovery, Memory, grouped, match_known_bugs
from sentinel.search.saving import CannotDistinguish, decisive_document, recipe_document, save
from sentinel.search.survey import checkout_to_read
from sentinel.sources import Home
from sentinel.targets.refs import Ref
from sentinel.values.literals import typed

GROUP = "search"
SUMMARY = "search a target for broken laws"

_EXAMPLE = """\
  sentinel discover verl                                    one minute at git:main
  sentinel discover verl --ref git:f7d10f3dcb1127e60fc2d55da572a4b8783a5fc8 --boundary 'compute_rloo*'
  sentinel discover roll --law masked_values_have_no_influence --budget 10m --save recipes/roll
  sentinel discover slime --examples 2000 --seed 7          reproducible on every machine
  sentinel discover skyrl --ref path:~/src/SkyRL            a working tree

Findings are shrunk and confirmed in a fresh process. Numerical differences are repeated in float64; a difference that
vanishes there is rounding, and is not reported. Ctrl-C ends the search and prints its findings.
exit status: 0 no findings, 1 findings, 2 nothing could be searched
"""

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
#: Maximum number of printed reasons why boundaries were not searched, and of boundaries named for each reason.
_MOST, _NAMED = 8, 3


def declare(commands: Commands) -> None:
    parser = command(commands, "discover", _discover, SUMMARY, _EXAMPLE)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--ref", metavar="REF", default="git:main", help="the revision to search (default: git:main)")
    boundary_option(parser)
    parser.add_argument("--law", metavar="GLOB", action="append", default=[], help="only these laws")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--budget", metavar="TIME", type=_seconds, help="time to search: 60s (default), 10m, 1h")
    length.add_argument("--examples", metavar="N", type=_count, help="try exactly this many scenarios")
    parser.add_argument(
        "--seed", metavar="S", type=int, help="seed of the scenarios, to repeat a search exactly (default: random)"
    )
    parser.add_argument(
        "--save", metavar="DIR", nargs="?", const=".", type=Path, help="write each new finding as a recipe (default: .)"
    )
    settings_options(parser)
    json_option(parser)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write 60s, 10m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of scenarios; write 1 or more")
    return int(text)


def _discover(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    target = target_named(catalog, arguments.target)
    ref = Ref.parse(arguments.ref)
    for glob in arguments.law:
        if not any(matches_any(name, [glob]) for name in catalog.laws):
            raise NothingExamined(f"no law matches {glob!r}{nearest(glob, catalog.laws, 'there are')}")
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(2**31)
    recipes, everywhere = find_recipes(catalog, (target.name,), ()), subjects(catalog, target.name)[0]
    saved: dict[int, Path | str] = {}
    failed: SentinelError | None = None
    with progress() as notify, closing(runner_of(catalog, settings, notify)) as runner:
        runner.start([target.name])
        notify(f"preparing {target.name} at {ref.short}")
        checkout = checkout_to_read(runner, catalog, target.name, ref)
        chosen, omitted = subjects(catalog, target.name, arguments.boundary, checkout)
        for glob in arguments.boundary:
            if not any(matches(item.binding, [glob]) for item in chosen):
                why = next((item.reason for item in omitted if item.boundary == glob and not item.law), "")
                raise NothingExamined(
                    f"{glob} cannot be searched: {why}"
                    if why
                    else f"{target.explain_unbound(glob)}; `sentinel list boundaries {target.name}` lists all of them"
                )
        open_target = runner.open_target(target.name, ref, [item.binding for item in chosen])
        search = Discovery(
            open_target,
            chosen,
            lambda law: matches_any(law.name, arguments.law),
            seed,
            Memory(Home.default().path / "found") if arguments.seed is None else None,
            on_finding=lambda finding: notify(
                f"found{' by an earlier run' if finding.replayed else ''}: {finding.subject.boundary} breaks "
                f"{finding.law.name}"
            ),
            report_progress=notify,
            interval=0.2 if sys.stderr.isatty() else 15.0,
        )
        if not search.searches:
            raise NothingExamined(
                f"{target.name}: no law that --law selects applies to a boundary that --boundary selects; "
                f"`sentinel list boundaries {target.name}` shows both"
            )
        seconds = (arguments.budget or 60.0) if arguments.examples is None else None
        search.run(arguments.examples, seconds)
        left_out = [item for item in omitted if not item.law or matches_any(item.law, arguments.law)]
        search.not_searched = left_out + search.not_searched
        findings = list(search.findings)
        try:
            notify(f"comparing {counted(len(findings), 'finding')} with known recipes; Ctrl-C skips the comparison")
            findings = grouped(findings, open_target.law_session)
            for place, item in enumerate(match_known_bugs(runner, target, open_target, findings, recipes, everywhere)):
                findings[place : place + 1] = [item]
                if arguments.save is not None and item.known_as == ():
                    try:
                        saved[place] = save(arguments.save, decisive_document(item, open_target, runner, catalog))
                    except (CannotDistinguish, SentinelError) as error:
                        saved[place] = str(error)
                        failed = error if isinstance(error, SentinelError) else failed
        except KeyboardInterrupt:
            search.stopped = True
        except SentinelError as error:  # findings are still printed
            failed = error
    if arguments.json:
        echo_json(_json(findings, search, open_target, seed, saved))
    else:
        _show(findings, search, open_target, seed, saved)
        echo(f"\nagain: {_command(arguments, seed, search.tried)}")
    if failed is not None:
        raise failed
    if not search.searches:
        why = "; ".join(causes(map(_reason, search.not_searched))) or "no boundary could be searched"
        return nothing_examined(f"{why}; name another --ref or --boundary, or a longer --budget")
    return 1 if findings or search.stale or any(each.deadlocks for each in search.searches) else 0


def _command(arguments: argparse.Namespace, seed: int, tried: int) -> str:
    parts = ["sentinel", "discover", arguments.target, "--ref", arguments.ref]
    for name in ("boundary", "law"):
        parts += [word for glob in getattr(arguments, name) for word in (f"--{name}", glob)]
    return shlex.join([*parts, "--examples", str(max(tried, 1)), "--seed", str(seed)])


def _show(
    findings: Sequence[Finding], done: Discovery, open_target: OpenTarget, seed: int, saved: dict[int, Path | str]
) -> None:
    for number, item in enumerate(findings, 1):
        echo(_described(number, item, saved.get(number - 1), open_target))
    for subject, dialect in done.stale:
        echo(f"\nobsolete dialect: {subject.boundary} no longer differs in {dialect.name}: {dialect.reason}")
    commit = open_target.checkout.commit or open_target.checkout.version or open_target.checkout.tree[:12]
    new = sum(1 for item in findings if item.known_as == ())
    left = sum(1 for item in findings if item.known_as is None)
    uncompared = f", {left} not compared with known recipes" if left else ""
    hidden = sum(1 for item in findings if item.hidden)
    uncompared += f", {hidden} not decided: a known bug may hide another bug" if hidden else ""
    state = "interrupted after" if done.stopped else "searched"
    places = counted(len(done.searches), "boundary")
    if not done.searches:
        echo(f"\n{open_target.target} at {open_target.ref.short} ({commit[:12]}): no boundary could be searched")
        _show_not_searched(done)
        return
    echo(
        f"\n{open_target.target} at {open_target.ref.short} ({commit[:12]}): {state} "
        f"{counted(done.tried, 'scenario')} at {places}, seed {seed}: "
        f"{counted(len(findings), 'finding')}, {new} of them new{uncompared}"
    )
    rounding = sum(outcome.rounding for search in done.searches for outcome in search.outcomes.values())
    if rounding:
        echo(f"not reported: {counted(rounding, 'difference')} that vanished in float64 (rounding)")
    _show_dialects(done)
    _show_not_searched(done)


def _show_dialects(done: Discovery) -> None:
    for search in done.searches:
        for outcome in search.outcomes.values():
            for place in outcome.dialects:
                dialect = search.subject.binding.dialects[place]
                echo(f"dialect: {search.subject.boundary}: {dialect.name}: {dialect.reason} ({dialect.link})")


def _reason(item: Omission) -> str:
    """Return why a boundary was not searched, without its name, because boundaries are grouped by this reason."""
    return item.reason.replace(item.boundary, "the function")


def _show_not_searched(done: Discovery) -> None:
    groups: dict[str, list[Omission]] = {}
    for item in done.not_searched:
        if not item.law:
            groups.setdefault(_reason(item), []).append(item)
    for reason, items in list(groups.items())[:_MOST]:
        names = ", ".join(item.boundary for item in items[:_NAMED]) + (", …" if len(items) > _NAMED else "")
        if len(items) == 1:
            echo(f"not searched: {names}: {items[0].reason}")
        else:
            echo(f"not searched: {len(items)} boundaries: {reason} ({names})")
    if len(groups) > _MOST:
        rest = sum(map(len, list(groups.values())[_MOST:]))
        echo(f"not searched: {rest} more boundaries, for {len(groups) - _MOST} more reasons; --json lists them")
    for search in done.searches:
        if search.deadlocks:
            echo(f"deadlock: {search.subject.boundary}: {search.deadlocks}")
        mute = {law: outcome for law, outcome in search.outcomes.items() if outcome.refused and not outcome.judged}
        reasons: dict[str, list[str]] = {}
        for law, outcome in mute.items():
            reasons.setdefault(outcome.refused.most_common(1)[0][0], []).append(law.name)
        for reason, laws in reasons.items():
            which = "every law" if len(laws) == len(search.outcomes) else ", ".join(laws)
            echo(f"refused: {search.subject.boundary}: {which}: {reason}")


def _described(number: int, finding: Finding, saved: Path | str | None, open_target: OpenTarget) -> str:
    lines = [
        f"\n{number}. {finding.subject.boundary} breaks {finding.law.name} (rank {finding.law.rank})"
        + (" (found by an earlier run)" if finding.replayed else ""),
        f"   {finding.law.statement}",
    ]
    if finding.known_as is None:
        lines.append("   not compared with known recipes: interrupted")
    elif finding.known_as:
        lines.append(f"   known as {', '.join(finding.known_as)}" + (f": {finding.hidden}" if finding.hidden else ""))
    lines += [f"   {violation.key}: {violation.detail}" for violation in finding.violations]
    lines.append("   scenario:")
    lines += [
        f"     {line}" for line in scenario_lines(recipe_document(finding, open_target.target, open_target.checkout))
    ]
    if finding.laws:
        lines.append(f"   the same cause breaks {', '.join(finding.laws)}")
    if finding.also:
        lines.append(f"   also found through its callers {', '.join(finding.also)}")
    if saved is not None:
        lines.append(f"   {'saved as' if isinstance(saved, Path) else 'not saved:'} {saved}")
    return "\n".join(lines)


def _json(
    findings: Sequence[Finding], done: Discovery, open_target: OpenTarget, seed: int, saved: dict[int, Path | str]
) -> dict[str, Any]:

    def finding_json(finding: Finding, place: int) -> dict[str, Any]:
        return {
            "boundary": finding.subject.boundary,
            "law": finding.law.name,
            "rank": finding.law.rank,
            "symptom": finding.symptom,
            "scenario": typed(finding.trial.variants),
            "observed": {violation.key: typed(violation.observed) for violation in finding.violations},
            "demanded": {violation.key: typed(violation.demanded) for violation in finding.violations},
            "detail": [message(violation.detail) for violation in finding.violations],
            "confirmed": True,
            "replayed": finding.replayed,
            "known_as": None if finding.known_as is None else list(finding.known_as),
            "hidden": finding.hidden,
            "also": list(finding.also),
            "laws": list(finding.laws),
            "recipe": str(saved[place]) if isinstance(saved.get(place), Path) else None,
        }

    return {
        "target": open_target.target,
        "ref": str(open_target.ref),
        "commit": open_target.checkout.commit,
        "version": open_target.checkout.version,
        "seed": seed,
        "examples": done.tried,
        "interrupted": done.stopped,
        "findings": [finding_json(item, place) for place, item in enumerate(findings)],
        "stale_dialects": [
            {"boundary": subject.boundary, "dialect": dialect.name, "reason": dialect.reason, "link": dialect.link}
            for subject, dialect in done.stale
        ],
        "searched": [
            {
                "boundary": search.subject.boundary,
                "contract": search.subject.contract.name,
                "examples": search.tried,
                "deadlock": message(search.deadlocks) or None,
                "laws": {
                    law.name: {
                        "spoken": outcome.judged,
                        "refused": {message(reason): count for reason, count in outcome.refused.items()},
                        "rounding": outcome.rounding,
                        "dialects": [search.subject.binding.dialects[place].reason for place in outcome.dialects],
                    }
                    for law, outcome in search.outcomes.items()
                },
            }
            for search in done.searches
        ],
        "not_searched": [
            {"boundary": item.boundary, "law": item.law, "reason": message(item.reason)} for item in done.not_searched
        ],
    }
