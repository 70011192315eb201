"""Try the laws on the bindings of an adapter that does not belong to the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sentinel.deciding.law_session import LawSession, Subject, Undecidable
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Runner
from sentinel.deciding.setup import options_of
from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog, OnDemand
from sentinel.search.boundary_search import BoundarySearch, Finding
from sentinel.search.checks import subjects
from sentinel.search.saving import as_written
from sentinel.search.scenarios import NotSearchable, narrow
from sentinel.settings import Settings
from sentinel.targets import Dialect, Target
from sentinel.testing.alternatives import explaining, other_settings
from sentinel.tools.adapt.project import Project
from sentinel.worker.client import Options

#: Limits: ``_SCENARIOS`` scenarios per boundary; ``_ATTEMPTS`` attempts with other settings, with ``_FEW`` scenarios
#: each; ``_SHRINKING`` calls to shrink a finding.
_SCENARIOS, _FEW, _ATTEMPTS, _SHRINKING = 60, 30, 12, 60
_ORACLE = "the_oracle_agrees"


@dataclass
class Result:
    """What the laws found about one binding.

    :ivar contract: the binding's contract; empty if no scenario can be drawn for it.
    :ivar held: law that holds -> number of scenarios that it judged.
    :ivar broken: broken law -> description of its first violation.
    :ivar scenarios: broken law -> the inputs of the smallest scenario that breaks it, in the notation of recipes.
    :ivar silent: law that judged no scenario -> reason.
    :ivar raised: exception of the boundary -> number of scenarios that raise it.
    :ivar failed: the reason why the boundary cannot be called; empty if it can.
    :ivar packages: the missing packages, if these are the reason for ``failed``.
    :ivar settings: settings with which the oracle agrees, in place of the binding's guesses.
    :ivar dialects: undeclared dialects without which the oracle does not agree.
    """

    contract: str
    held: dict[str, int] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    scenarios: dict[str, dict[str, Any]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    raised: dict[str, int] = field(default_factory=dict)
    failed: str = ""
    packages: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    dialects: dict[str, Any] = field(default_factory=dict)


def catalog_with(catalog: Catalog, adapter: Path) -> Catalog:
    """Return a catalog with only the given adapter. Its target may have the name of a bundled target.

    :raises SentinelError: if the adapter does not load.
    """
    return Catalog(OnDemand({}), catalog.contracts, catalog.laws, ()).with_(adapters=[adapter])


def runner_for(catalog: Catalog, settings: Settings, project: Project) -> Runner:
    """Return a runner that uses the project's checkout for every target and every ref."""
    options = {name: options_of(settings, name) for name in catalog.adapters}
    return Runner(catalog, lambda target, ref, pull: project.checkout, Options(), options)


def try_bindings(
    runner: Runner,
    catalog: Catalog,
    project: Project,
    alternatives: Callable[[Subject], Sequence[Mapping[str, Any]]] = lambda subject: (),
    progress: Callable[[str], None] = lambda line: None,
    only: Collection[str] = (),
) -> dict[str, Result]:
    """Try the laws on all bindings and registered functions: name -> result.

    The name is the boundary's path, followed by the contract if the boundary has several contracts.

    :param alternatives: returns other settings for a boundary, which are tried if the oracle disagrees with it.
    :param only: the boundaries to try; empty for all.
    """
    name = next(iter(catalog.adapters))
    here, omitted = subjects(catalog, name, list(only), project.checkout)
    results = {each.boundary: Result("", failed=each.reason) for each in omitted if not each.law}
    target = runner.open_target(name, project.ref, [subject.binding for subject in here])
    for place, subject in enumerate(here):
        progress(f"{place + 1} of {len(here)}: {subject.boundary}")
        results[subject.name] = _try(target, subject, catalog, alternatives(subject))
    return results


def _try(target: OpenTarget, subject: Subject, catalog: Catalog, others: Sequence[Mapping[str, Any]]) -> Result:
    result = Result(subject.contract.name)
    session = target.law_session.fresh()
    try:
        session.find(subject)
        changes = _agreeing(session, subject, catalog, others)
        result.dialects = {name: value for name, value in changes.items() if _is_dialect(subject, name)}
        result.settings = {name: value for name, value in changes.items() if name not in result.dialects}
        _search(session, _changed(subject, catalog, result.settings) or subject, result)
    except Undecidable as error:
        result.failed, result.packages = error.failure.reason, error.failure.packages
    except SentinelError as error:
        result.failed = str(error)
    finally:
        session.close()
    return result


def _search(session: LawSession, subject: Subject, result: Result) -> None:
    search = BoundarySearch(session, subject, 0, None, _SHRINKING, shrink_further=False)
    with suppress(Undecidable):
        search.run(_SCENARIOS)
    outcomes = [each for each in search.outcomes.values() if "adapter" in each.kinds.values()]
    errors = sum((each.refused for each in outcomes), Counter[str]())
    if errors:  # the adapter calls the function wrongly, so the results in other scenarios are not reliable
        (reason, count), tried = errors.most_common(1)[0], search.tried
        result.failed = f"{reason} (in {count} calls, {tried} scenarios)"
        return
    for law, outcome in search.outcomes.items():
        for why, count in outcome.refused.items():
            if outcome.kinds[why] == "raised":
                result.raised[why] = max(count, result.raised.get(why, 0))
        if outcome.findings:
            finding = outcome.findings[0]
            result.broken[law.name] = finding.violations[0].detail
            inputs = next(iter(finding.trial.variants.values())).items()
            stated = ((name, value) for name, value in inputs if value is not None and not _is_dialect(subject, name))
            result.scenarios[law.name] = {name: as_written(value) for name, value in stated}
        elif outcome.judged:
            result.held[law.name] = outcome.judged
        else:
            reasons = [*outcome.refused.most_common(1), *outcome.not_judged.most_common(1)]
            result.silent[law.name] = reasons[0][0] if reasons else "no scenario could be drawn"
    if not result.held and not result.broken and result.silent:
        result.failed = next(iter(result.silent.values()))


def _agreeing(
    session: LawSession, subject: Subject, catalog: Catalog, others: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return settings that make the function's results equal to the oracle's.

    The result is empty if the oracle agrees without changes, or if no such settings are found. Settings with which the
    oracle agrees in one scenario are tried in others. If it disagrees in one of these, further settings are added.
    """
    queue, left = [(dict[str, Any](), _disagreement(session, subject))], _ATTEMPTS
    while queue and left:
        changes, finding = queue.pop(0)
        free = [other for other in others if not other.keys() & changes.keys()]
        for more in (
            islice(explaining(session, finding, free, pairs=True), left) if isinstance(finding, Finding) else ()
        ):
            left, several = left - 1, {**changes, **more}
            changed = _changed(subject, catalog, several)
            found = False if changed is None else _disagreement(session, changed)
            if found is None:
                return several
            queue.append((several, found))
    return {}


def _disagreement(session: LawSession, subject: Subject) -> Finding | Literal[False] | None:
    """Return a scenario in which finite results of the function differ from the oracle's, or None.

    Return False if there is no oracle, or if too few calls returned a result.
    """
    law = next((law for law in subject.laws if law.name == _ORACLE), None)
    if law is None:
        return False
    search = BoundarySearch(session, subject, 0, [law], 1, shrink_further=False, glimpse=True)
    search.run(_FEW)
    outcome = search.outcomes[law]
    wrong = [each for each in outcome.findings if each.symptom != "non-finite"]
    if wrong:
        return wrong[0]
    few = "adapter" in outcome.kinds.values() or 2 * outcome.judged < search.tried
    return False if few else None


def other_dialects(subject: Subject, targets: Iterable[Target]) -> list[dict[str, Any]]:
    """Return settings to try: each changes the value of one dialect.

    :param targets: other frameworks, whose declared dialects are tried.
    """
    now = {dialect.name: dialect.value for dialect in subject.binding.dialects}
    options = [item.name for item in subject.contract.inputs if not item.dialect]
    return other_settings(subject.contract, targets, now, options)


def _is_dialect(subject: Subject, name: str) -> bool:
    item = subject.contract.input(name)
    return item is not None and item.dialect


def _changed(subject: Subject, catalog: Catalog, changes: Mapping[str, Any]) -> Subject | None:
    """Return the subject with other dialects and fixed values, or None if no scenario can be drawn for it."""
    dialects = tuple(each for each in subject.binding.dialects if each.name not in changes)
    dialects += tuple(Dialect(name, value) for name, value in changes.items() if _is_dialect(subject, name))
    fixed = {name: value for name, value in changes.items() if not _is_dialect(subject, name)}
    binding = replace(subject.binding, fixed={**subject.binding.fixed, **fixed}, dialects=dialects)
    try:
        contract = narrow(catalog.contracts[binding.contract], binding)
    except NotSearchable:
        return None
    return replace(subject, binding=binding, contract=contract)
