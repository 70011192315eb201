"""Implement ``sentinel compare``, which checks whether functions of several frameworks return the same numbers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
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
from sentinel.commands.options import catalog_and_settings, settings_options
from sentinel.deciding.runner import runner_of
from sentinel.errors import SentinelError
from sentinel.recipes import find_recipes
from sentinel.reports.escaping import message
from sentinel.reports.explain import scenario_lines
from sentinel.settings import NAMED
from sentinel.tools.compare.frameworks import Compared, Frameworks, find_meaning
from sentinel.values.literals import Tensor, typed

GROUP = "search"
SUMMARY = "compare functions of several frameworks"

_EXAMPLE = """\
  sentinel compare loss_aggregation
  sentinel compare grpo --targets trl,verl                 a contract, or a name such as grpo, rloo, ppo, kl
  sentinel compare kl --targets verl,openrlhf --ref verl=pypi:latest --ref openrlhf=git:main

Works like `sentinel diff`, but compares functions instead of revisions: the first target's function and each other
function that is bound to the contract are called with the same scenarios. The smallest scenario on which two functions
differ is measured again in fresh processes. The output has this scenario, the settings and results of both calls, the
results by the contract's definition, and the known bugs of the function.
exit status: 0 all functions agree, 1 some differ, 2 nothing could be compared, 130 interrupted
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "compare", _compare, SUMMARY, _EXAMPLE)
    parser.add_argument("contract", metavar="CONTRACT", help="a contract, or a name such as grpo")
    parser.add_argument("--targets", metavar="NAMES", action="append", help="only these targets (default: all)")
    parser.add_argument(
        "--ref", metavar="[TARGET=]REF", action="append", help="compare at this ref (default: the branch)"
    )
    parser.add_argument("--examples", metavar="N", type=int, default=60, help="scenarios for each pair (default: 60)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="seed of the scenarios (default: 0)")
    settings_options(parser)
    json_option(parser)


def _compare(arguments: argparse.Namespace) -> int:
    if arguments.examples < 1:
        raise SentinelError(f"--examples {arguments.examples}: must be at least 1")
    catalog, settings = catalog_and_settings(arguments)
    names = list(catalog.adapters)
    targets = NAMED["target"].read(arguments.targets or ["all"], names)
    refs = dict(NAMED["ref"].read(arguments.ref, names)) if arguments.ref else {}
    unasked = next((name for name in refs if name not in (None, *targets)), None)
    if unasked is not None:
        raise SentinelError(
            f"--ref {unasked}={refs[unasked]}: {unasked} is not among the --targets; add it, or drop this --ref"
        )
    find_meaning(arguments.contract, catalog.contracts)
    results: list[Compared] = []
    interrupted = False
    with progress() as notify, closing(runner_of(catalog, settings, notify)) as runner:
        for name, ref in refs.items():
            if name is not None:  # a ref that the user gives for a single target must exist
                runner.checkout(name, ref)
        recipes = find_recipes(catalog, targets)
        frameworks = Frameworks(catalog, runner, targets, refs, recipes, arguments.examples, arguments.seed, notify)
        try:
            for compared in frameworks.compare(arguments.contract):
                results.append(compared)
                if not arguments.json:
                    echo("\n".join(_describe(compared, frameworks.reference)))
        except KeyboardInterrupt:
            interrupted = True
    if arguments.json:
        echo_json(_document(frameworks.reference, results, interrupted))
    else:
        echo(_headline(frameworks.reference, results, interrupted))
    if interrupted:
        return 130
    if not any(each.scenarios for each in results):
        return nothing_examined("no two functions could be compared; name other --targets or another --ref")
    return 1 if any(each.differences for each in results) else 0


def _headline(reference: str, results: Sequence[Compared], interrupted: bool) -> str:
    differ = sum(bool(each.differences) for each in results)
    agree = sum(bool(each.scenarios) and not each.differences for each in results)
    rest = len(results) - differ - agree
    what = f"compared with {reference}: {agree} agree, {differ} differ, {rest} not compared"
    return f"{what}{'; interrupted' * interrupted}"


def _describe(compared: Compared, reference: str) -> Iterator[str]:
    if compared.reason:
        yield f"not compared: {compared.name}: {message(compared.reason)}"
        return
    name = f"{compared.name}{f' ({compared.place})' if compared.place else ''}"
    same = "different" if compared.differences else "the same"
    yield f"{name}: {same} numbers, {counted(compared.scenarios, 'scenario')}"
    for each in compared.differences:
        plain = {
            key: value.nested() if isinstance(value, Tensor) else value
            for key, value in each.inputs.items()
            if value is not None and key not in each.settings
        }
        yield from (f"    {line}" for line in scenario_lines({"scenario": plain}))
        for key, (one, other) in each.settings.items():
            yield f"    {key}: {_format_numbers(one)} for {reference}, {_format_numbers(other)} for {compared.name}"
        for name, answer, defined in zip((reference, compared.name), each.answers, each.defined):
            by_definition = "" if defined is None else f"; the definition: {_format_numbers(defined)}"
            yield f"  {each.key} of {name}: {_format_numbers(answer)}{by_definition}"
    if compared.bugs:
        yield f"  known bugs of {compared.name}: {', '.join(compared.bugs)}"


def _format_numbers(value: Any) -> str:
    if isinstance(value, Tensor):
        return _format_numbers(value.nested())
    if isinstance(value, list):
        return f"[{', '.join(map(_format_numbers, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _document(reference: str, results: Sequence[Compared], interrupted: bool) -> dict[str, Any]:
    return {
        "reference": reference,
        "interrupted": interrupted,
        "functions": [
            {
                "function": each.name,
                "place": each.place,
                "scenarios": each.scenarios,
                "reason": message(each.reason),
                "bugs": list(each.bugs),
                "differences": [
                    {
                        "scenario": typed(item.inputs),
                        "key": item.key,
                        "detail": item.detail,
                        "settings": {name: typed(list(pair)) for name, pair in item.settings.items()},
                        "answers": typed(list(item.answers)),
                        "definitions": typed(list(item.defined)),
                    }
                    for item in each.differences
                ],
            }
            for each in results
        ],
    }
