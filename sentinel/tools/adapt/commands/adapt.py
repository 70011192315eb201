"""Implement ``sentinel adapt``, which writes a first adapter for a framework."""

from __future__ import annotations

import argparse
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.commands.console import (
    Commands,
    command,
    counted,
    echo,
    echo_json,
    echo_table,
    json_option,
    nothing_examined,
    print_error,
    progress,
)
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.deciding.law_session import Subject
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.reports.explain import scenario_lines
from sentinel.search.bindings import CheckoutTrees, Definitions, syntax_of
from sentinel.search.inventory import read
from sentinel.settings import Settings
from sentinel.sources import Progress, open_checkout
from sentinel.tools.adapt.imports import Imports, Packages
from sentinel.tools.adapt.past import with_past
from sentinel.tools.adapt.project import Project, open_project
from sentinel.tools.adapt.proposals import NearMiss, Proposal, alternatives, mended, propose
from sentinel.tools.adapt.signatures import classes_of, signatures
from sentinel.tools.adapt.trying import Result, catalog_with, other_dialects, runner_for, try_bindings
from sentinel.tools.adapt.writing import adapter_text

GROUP = "my own loss"
SUMMARY = "write a first adapter for a framework"

_EXAMPLE = """\
  sentinel adapt ~/src/mylab                          a folder
  sentinel adapt https://github.com/owner/name        a repository, which is mirrored
  sentinel adapt ms-swift                             the latest release on PyPI
  sentinel adapt ~/src/mylab --check mylab_adapter.py    try the laws on an edited adapter

A function becomes a binding if it carries training signal and its parameters fit a contract. The project's code is
imported in the contained worker, and the laws are tried on each binding. The result is a proposal: a person has to
answer the questions in the file, and a broken law may be an error of the binding.
exit status: 0; 2 if no function fits a contract or no binding can be called
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "adapt", _adapt, SUMMARY, _EXAMPLE)
    parser.add_argument("source", metavar="DIR|URL|NAME", help="a folder, a git repository, or a release on PyPI")
    parser.add_argument("--package", metavar="NAME", action="append", default=[], help="only this package of it")
    parser.add_argument("--output", metavar="FILE", type=Path, help="the adapter to write (default: NAME_adapter.py)")
    parser.add_argument("--check", metavar="FILE", type=Path, help="write nothing; try the bindings of this adapter")
    settings_options(parser, "python", "device", "timeout", "sandbox")
    json_option(parser)


def _adapt(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    with progress() as notify:
        if arguments.check is not None:
            return _check(arguments, catalog, settings, notify)
        project = open_project(arguments.source, arguments.package, notify)
        file = arguments.output or Path(f"{project.target.name}_adapter.py")
        if file.exists():
            raise SentinelError(
                f"{file} exists; move it, or give another --output (--check {file} tries the laws on it)"
            )
        several, missed, packages = _proposals(project, catalog, settings, notify)
        stated = {name: _first_version(project.requires.get(name, "")) for name in packages.versions}
        project = replace(project, target=replace(project.target, preload=packages.preload, stub_versions=stated))
        if not arguments.json:
            _echo_packages(project, packages)
        with tempfile.TemporaryDirectory(prefix="sentinel-adapt-") as folder:
            found, project = _best(several, Path(folder), project, catalog, settings, notify)
    called = [path for path, (_, result) in found.items() if not result.failed or result.packages]
    for path in [path for path in found if called and path not in called]:
        proposal, result = found.pop(path)
        missed.append(
            NearMiss(proposal.signature, proposal.contract, f"the function cannot be called: {result.failed}")
        )
    results = {path: result for path, (_, result) in found.items()}
    proposals = [_with_result(proposal, result) for proposal, result in found.values()]
    file.write_text(adapter_text(project.target, proposals, missed, catalog.contracts, file.name), encoding="utf-8")
    questions = {each.path: len(each.questions) for each in proposals}
    rows = [_row(each.path, each.contract, results[each.path], questions[each.path]) for each in proposals]
    return _finish(arguments, rows, results, missed, packages, file)


#: The maximum number of rounds in :func:`_best`. Each round imports the project.
_ROUNDS = 8


def _best(
    several: Sequence[Sequence[Proposal]],
    folder: Path,
    project: Project,
    catalog: Catalog,
    settings: Settings,
    notify: Progress,
) -> tuple[dict[str, tuple[Proposal, Result]], Project]:
    """Try the proposals for each function until the oracle agrees with one of them.

    Return path -> (best proposal, its result), and the project with further packages to preload.
    """
    waiting = {each[0].path: list(each) for each in several}
    found: dict[str, tuple[Proposal, Result]] = {}
    for attempt in range(_ROUNDS):
        now = {path: left.pop(0) for path, left in waiting.items() if left}
        if not now:
            break
        file = Path(folder, f"attempt_{attempt}.py")
        file.write_text(adapter_text(project.target, list(now.values()), [], catalog.contracts, file.name), "utf-8")
        results = _try(file, project, catalog, settings, list(now.values()), notify)
        preload = dict.fromkeys(project.target.preload)
        for path, proposal in now.items():
            result = results[path]
            if path not in found or _sort_key(result) > _sort_key(found[path][1]):
                found[path] = proposal, result
            # if a package is missing, the function's other proposals would fail in the same way
            if _sort_key(result)[:2] == (True, True) or result.packages:
                waiting[path] = []
                continue
            if new_packages := [name for name in needs_preload(result.failed) if name not in preload]:
                preload.update(dict.fromkeys(new_packages))
                waiting[path].insert(0, proposal)
            elif (new := mended(proposal, catalog.contracts[proposal.contract], result.failed)) is not None:
                waiting[path].insert(0, new)
        project = replace(project, target=replace(project.target, preload=tuple(preload)))
    return found, project


def needs_preload(reason: str) -> list[str]:
    """Return the packages that a failed probe requires in the target's ``preload``, as its reason names them."""
    named = re.search(r"which is a stub module here: name ([\w, ]+) in the target's `preload`", reason)
    return named[1].split(", ") if named else []


def _sort_key(result: Result) -> tuple[bool, bool, int]:
    agrees = "the_oracle_agrees" in result.held or bool(result.dialects)
    return not result.failed, agrees, len(result.held) - len(result.broken)


def _check(arguments: argparse.Namespace, catalog: Catalog, settings: Settings, notify: Progress) -> int:
    if not arguments.check.is_file():
        raise SentinelError(f"no such file: {arguments.check}")
    target = next(iter(catalog_with(catalog, arguments.check).adapters.values())).target
    if not target.bindings:
        raise NothingExamined(f"the adapter {arguments.check} has no bindings")
    project = open_project(arguments.source, [root.path for root in target.roots], notify)
    project = replace(project, target=target, checkout=open_checkout(target, project.ref, progress=notify))
    definitions, sources = _sources(project)
    paths = [each.boundary for each in target.bindings]
    bound = [
        each
        for file, (module, content) in sources.items()
        if any(path.startswith(f"{module}.") for path in paths)
        for each in signatures(
            content.decode("utf-8", "replace"), module, file, [path[len(module) + 1 :] for path in paths]
        )
    ]
    packages = Imports(definitions, sources).packages(bound, settings.python_of(target.name))
    if not arguments.json:
        _echo_packages(project, packages)
    results = _try(arguments.check, project, catalog, settings, (), notify)
    rows = [_row(name, result.contract, result, 0) for name, result in results.items()]
    return _finish(arguments, rows, results, (), packages, None)


def _sources(project: Project) -> tuple[Definitions, dict[str, tuple[str, bytes]]]:
    """Return the project's definitions, and file -> (module, content)."""
    trees = CheckoutTrees(project.checkout)
    definitions = Definitions(trees, project.target.roots)
    files = dict(sorted(definitions.sources("")))
    return definitions, {file: (project.target.module_of(file), trees.blob(blob)) for file, blob in files.items()}


def _proposals(
    project: Project, catalog: Catalog, settings: Settings, notify: Progress
) -> tuple[list[list[Proposal]], list[NearMiss], Packages]:
    notify(f"reading {project.target.name}")
    definitions, sources = _sources(project)
    found: list[list[Proposal] | NearMiss | None] = []
    signal = 0
    classes: dict[str, Any] = {}
    for _, content in sources.values():
        with suppress(SyntaxError, ValueError, RecursionError):
            classes |= classes_of(syntax_of(content).body)
    for file, source in read(sources).items():
        if source.unread:
            print_error(f"not read: {file}: {source.unread}")
        module, content = sources[file]
        names = [function.name for function in source.functions]
        signal += len(names)
        if names:
            text = content.decode("utf-8", "replace")
            found += [propose(each, catalog.contracts, classes) for each in signatures(text, module, file, names)]
    proposals = [each for each in found if isinstance(each, list)]
    missed = [each for each in found if isinstance(each, NearMiss)]
    if not proposals:
        near = f"; nearest: {missed[0].signature.path} ({missed[0].contract}): {missed[0].reason}" if missed else ""
        raise NothingExamined(
            f"{project.target.name} has {counted(signal, 'function')} that seem to carry training signal, but the "
            f"parameters of none fit a contract{near}; to bind one by hand, see `sentinel list contracts`"
        )
    if project.mirror is not None and project.head:
        notify("reading the history of these functions")
        past = iter(with_past([each for several in proposals for each in several], project, catalog.contracts))
        proposals = [[next(past) for _ in several] for several in proposals]
    packages = Imports(definitions, sources).packages(
        (each[0].signature for each in proposals), settings.python_of(project.target.name)
    )
    return proposals, missed, packages


def _try(
    file: Path,
    project: Project,
    catalog: Catalog,
    settings: Settings,
    proposals: Sequence[Proposal],
    notify: Progress,
) -> dict[str, Result]:
    by_path = {each.path: each for each in proposals}

    def others(subject: Subject) -> Sequence[Mapping[str, Any]]:
        proposal, contract = by_path.get(subject.boundary), catalog.contracts[subject.contract.name]
        targets = catalog.targets.values()
        return other_dialects(subject, targets) if proposal is None else alternatives(proposal, contract, targets)

    own = catalog_with(catalog, file)
    with closing(runner_for(own, settings, project)) as runner:
        return try_bindings(runner, own, project, others, lambda line: notify(f"trying {line}"), by_path)


def _with_result(proposal: Proposal, result: Result) -> Proposal:
    questions = list(proposal.questions)
    for name, value in result.settings.items():
        questions = [each for each in questions if f"no parameter for {name};" not in each]
        questions.append(f"the oracle agrees if {name} is {value!r}, but no parameter sets {name}. Is that right?")
    if result.dialects:
        several = ", ".join(f"{name}={value!r}" for name, value in result.dialects.items())
        dialects = ", ".join(f'Dialect("{name}", {value!r}, reason, link)' for name, value in result.dialects.items())
        questions.append(f"the oracle agrees only with {several}. If this is intended, add dialects=({dialects},).")
    elif "the_oracle_agrees" in result.broken:
        difference = result.broken["the_oracle_agrees"]
        questions.append(f"the oracle disagrees ({difference}). Is that a bug, or another definition?")
    questions += (
        []
        if result.failed
        else [f"the function raises in some scenarios: {why}. Is that a bug?" for why in result.raised]
    )
    if result.failed:
        questions.append(f"the function cannot be called: {result.failed}")
    return replace(proposal, fixed={**proposal.fixed, **result.settings}, questions=tuple(questions))


def _first_version(requirement: str) -> str:
    match = re.search(r"[0-9]+(\.[0-9]+)*", requirement.partition("=")[2] or requirement)
    return match.group() if match else "0.0.0"


def _echo_packages(project: Project, packages: Packages) -> None:
    for name, users in packages.install.items():
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        unknown = "" if name in project.requires else "; the project does not require it under this name"
        echo(f"to install: {name} (used by {users[0]}{more}){unknown}")
    known = [project.requires[name] for name in packages.install if name in project.requires]
    for line in (
        f"  pip install {shlex.join(known)}" if known else "",
        f"only imported, so stub modules are enough: {', '.join(packages.stub)}" if packages.stub else "",
        f"installed here and imported: {', '.join(packages.preload)} (preload)" if packages.preload else "",
    ):
        if line:
            echo(line)


def _row(name: str, contract: str, result: Result, questions: int) -> dict[str, Any]:
    return {
        "function": name,
        "contract": contract,
        "held": list(result.held),
        "scenarios_judged": result.held,
        "broken": result.broken,
        "scenarios": result.scenarios,
        "not_judged": result.silent,
        "raised": {} if result.failed else result.raised,
        "failed": result.failed,
        "questions": questions,
        "oracle_agrees_with": {**result.settings, **result.dialects},
    }


def _finish(
    arguments: argparse.Namespace,
    rows: Sequence[Mapping[str, Any]],
    results: Mapping[str, Result],
    missed: Sequence[NearMiss],
    packages: Packages | None,
    file: Path | None,
) -> int:
    if arguments.json:
        near = [{"function": each.signature.path, "contract": each.contract, "reason": each.reason} for each in missed]
        lists = {name: list(getattr(packages, name, ())) for name in ("install", "stub", "preload")}
        echo_json({"adapter": str(file) if file else None, "proposals": list(rows), "near": near, "packages": lists})
    else:
        echo_table(("function", "contract", "laws", "questions"), [_cells(row) for row in rows])
        for row in rows if file is None else ():  # a new adapter contains these reasons as questions
            for law, reason in {**row["broken"], **({} if row["failed"] else row["not_judged"])}.items():
                word = "breaks" if law in row["broken"] else "is not judged by"
                echo(f"{row['function']} {word} {law}: {reason}")
                for line in scenario_lines({"scenario": row["scenarios"].get(law)}):
                    echo(f"  {line}")
            for reason, count in row["raised"].items():
                echo(f"{row['function']} raises in {counted(count, 'scenario')}: {reason}")
        if file is not None:
            questions = sum(row["questions"] for row in rows)
            echo(f"\nwrote {file}: {counted(len(rows), 'binding')}, {counted(questions, 'question')}")
            if missed:
                echo(f"{counted(len(missed), 'function')} nearly fit a contract; see the end of the file")
            again = shlex.join(["sentinel", "adapt", arguments.source, "--check", str(file)])
            echo(f"answer the questions, then run `{again}`")
    if all(result.failed for result in results.values()):
        return nothing_examined("no binding can be called; the table lists the reasons")
    return 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["failed"]:
        laws = f"cannot be called: {row['failed']}"
    else:
        laws = f"{len(row['held'])} hold"
        laws += f" (in at least {min(row['scenarios_judged'].values())} scenarios each)" if row["held"] else ""
        laws += f", {len(row['broken'])} broken: {', '.join(row['broken'])}" if row["broken"] else ""
        laws += f", {len(row['not_judged'])} not judged" if row["not_judged"] else ""
        laws += f", raises in {counted(max(row['raised'].values()), 'scenario')}" if row["raised"] else ""
    if choices := ", ".join(f"{name}={value!r}" for name, value in row["oracle_agrees_with"].items()):
        laws += f"; the oracle agrees with {choices}"
    return row["function"], row["contract"], laws, str(row["questions"] or "")
