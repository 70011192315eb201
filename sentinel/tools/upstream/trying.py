"""Test a fix: run recipes, drawn scenarios and upstream's own tests without and with it, and compare the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from sentinel.deciding.law_session import LawSession, Plan, Subject, Trial, Undecidable
from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job, Runner
from sentinel.deciding.setup import OpenCheckout, opener, options_of
from sentinel.errors import SentinelError
from sentinel.laws.agreement import gap_between
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.fixes import Fix, apply_edits, diff
from sentinel.reports.numbers import flat
from sentinel.search.boundary_search import Drawn, drawn_scenarios
from sentinel.search.checks import subjects
from sentinel.settings import Settings
from sentinel.sources import MirrorStore, checkouts, git_objects
from sentinel.sources.gitbinary import run_checked
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.upstream.upstream_tests import UpstreamTests
from sentinel.values.literals import Tensor, plain

#: The number of drawn scenarios: for each boundary of the fix's bugs, and for every other boundary.
OWN, OTHERS = 100, 6

Files = Mapping[str, tuple[bytes, bytes]]

#: The verdicts of a recipe without and with a fix.
Pair = tuple[Decision, Decision]


def files_of(fix: Fix, store: MirrorStore) -> Files:
    """Return file -> (content before, content after), for each file that a fix edits.

    The result is empty if the fix is upstream's own commit, for which the recipe folder has no edits.
    """
    if not fix.edits:
        return {}
    mirror = store.path(fix.target)
    listed, _ = git_objects.listing(mirror, fix.commit, fix.files)
    there = {entry.path: entry.blob for entry in listed}

    def content(blob: str) -> bytes:
        return next(git_objects.contents(mirror, [blob]))[1]

    return apply_edits(fix, lambda file: there.get(file, ""), content)


def diff_of(fix: Fix, store: MirrorStore, context: int = 3, files: Iterable[str] = ()) -> str:
    """Return a fix as a unified diff.

    :param context: the number of lines of context.
    :param files: the files to include; empty for all. A mirror may lack files that are not included.
    """
    chosen = set(files)
    if fix.edits:
        edits = tuple(edit for edit in fix.edits if not chosen or edit.file in chosen)
        return diff(files_of(replace(fix, edits=edits), store), context)
    wanted = "diff", f"-U{context}", "--no-ext-diff", fix.commit, fix.head, "--", *sorted(chosen)
    return run_checked(store.path(fix.target), *wanted).decode()


def opening(fixes: Iterable[Fix], opened: OpenCheckout, store: MirrorStore) -> OpenCheckout:
    """Return a function that opens checkouts as ``opened`` does, and that applies the fix for the ref
    :attr:`Fix.patched`."""
    by_ref = {fix.patched: fix for fix in fixes if fix.edits}

    def patched(target: Target, ref: Ref, pull: int | None) -> Checkout:
        fix = by_ref.get(ref)
        if fix is None:
            return opened(target, ref, pull)
        base = opened(target, fix.base, pull)
        # Edits outside the package roots, such as tests, do not affect recipes, and the checkout lacks those files.
        inside = replace(fix, edits=tuple(e for e in fix.edits if any(e.file.startswith(f"{r}/") for r in base.roots)))
        blobs = checkouts.files(base)

        def content(blob: str) -> bytes:
            return next((base.path / path).read_bytes() for path, there in blobs.items() if there == blob)

        made = apply_edits(inside, lambda file: blobs.get(file, ""), content)
        changed = {file: after for file, (_, after) in made.items()}
        return replace(checkouts.edit(store.home, target, ref, base, changed), patched=fix.digest)

    return patched


#: The result of testing a fix, as stored in ``evidence.json``.
#: * ``bugs``, ``others``: verdicts without and with the fix, for the fix's own bugs and for the target's other bugs
#: * ``boundaries``, ``elsewhere``: results on drawn scenarios, for the boundaries of the fix's bugs and for others
#: * ``meant``: other boundaries whose results change, as the fix's field ``changes`` declares
#: * ``tests``: the outcomes of each test file of upstream, or why it cannot run here
#: * ``regression``: the outcomes of the fix's own tests
#: * ``problems``: what is wrong with the fix, in sentences
FixTrial = dict[str, Any]


def elsewhere(tried: Mapping[str, Any]) -> tuple[int, int, float]:
    """Return totals for the boundaries without a bug of the fix: scenarios, boundaries, and the largest difference."""
    results = tried["elsewhere"].values()
    largest = max((float(one["largest_difference"]) for one in results), default=0.0)
    return sum(one["scenarios"] for one in results), len(results), largest


def try_fix(
    catalog: Catalog,
    settings: Settings,
    fix: Fix,
    store: MirrorStore,
    notify: Callable[[str], None],
    tests: bool = True,
    tests_python: str | None = None,
) -> FixTrial:
    """Test a fix with recipes, with laws on drawn scenarios, and with upstream's own tests. Return all results.

    :param tests: whether to run upstream's own tests and those of the fix.
    :param tests_python: the interpreter that runs them; None for the running one.
    :raises SentinelError: if a bug of the fix has no recipe.
    """
    tried: FixTrial = {name: {} for name in ("bugs", "others", "boundaries", "elsewhere", "tests", "regression")}
    tried["problems"] = []
    recipes = find_recipes(catalog, [fix.target])
    if absent := set(fix.bugs) - {recipe.bug_id for recipe in recipes}:
        raise SentinelError(f"{fix.path}: no recipe has the bug id {', '.join(sorted(absent))}")
    opened = opening([fix], opener(settings, notify, store), store)
    with closing(Runner(catalog, opened, options_of(settings, fix.target))) as runner:
        notify(f"{fix.bugs[0]}: {len(recipes)} recipes without the fix and with it")
        decided = _decide(fix, recipes, runner, tried)
        chosen, _ = subjects(catalog, fix.target)
        notify(f"{fix.bugs[0]}: drawn scenarios at {len(chosen)} boundaries")
        _draw(fix, chosen, decided, recipes, runner, tried)
    if tests:
        with UpstreamTests(store.path(fix.target), fix, files_of(fix, store), tests_python) as upstream:
            notify(f"{fix.bugs[0]}: upstream's {', '.join(upstream.files) or 'tests: none'}")
            _run_tests(fix, upstream, tried)
    return tried


def _without_infinity(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "inf" if value == np.inf else value for name, value in result.items()}


def _decide(fix: Fix, recipes: Sequence[Recipe], runner: Runner, tried: FixTrial) -> list[Pair]:
    """Run the recipes of the target without and with the fix, and record verdicts and problems.

    :returns: the verdicts of the fix's own bugs.
    """
    own: list[Pair] = []
    jobs = [[Job(recipe, ref) for recipe in recipes] for ref in (fix.base, fix.patched)]
    runner.plan([*jobs[0], *jobs[1]])
    for pair in zip(*jobs):
        before, after = map(runner.decide, pair)
        bug, names = before.recipe.bug_id, (before.verdict.name, after.verdict.name)
        if bug in fix.bugs:
            own.append((before, after))
            tried["bugs"][bug] = list(names)
            for side, wanted, decision in zip(("without", "with"), ("reproduced", "fixed"), (before, after)):
                if decision.verdict.name != wanted:
                    reason = f": {decision.verdict.reason}" if decision.verdict.reason else ""
                    tried["problems"].append(f"{bug} is {decision.verdict.name} {side} the fix{reason}")
            continue
        tried["others"][bug] = list(names)
        if names == ("unavailable", "reproduced"):
            tried["problems"].append(f"the new code of the fix has the bug {bug}: {before.recipe.title}")
        elif names[0] != names[1] and names not in (("reproduced", "fixed"), ("unavailable", "fixed")):
            tried["problems"].append(
                f"{bug} is {names[0]} without the fix and {names[1]} with it: {after.verdict.reason}"
            )
    return own


def _draw(
    fix: Fix,
    chosen: Sequence[Subject],
    decided: Sequence[Pair],
    recipes: Sequence[Recipe],
    runner: Runner,
    tried: FixTrial,
) -> None:
    """Compare each boundary without and with the fix on drawn scenarios, and record results and problems.

    :param decided: the verdicts of the fix's own bugs.
    """
    bindings = [subject.binding for subject in chosen]
    opened = [runner.open_target(fix.target, ref, bindings) for ref in (fix.base, fix.patched)]
    meant: set[str] = set()
    for subject in chosen:
        about = [pair for pair in decided if pair[0].recipe.boundary in subject.binding.paths]
        sessions = [place.law_session.fresh() for place in opened]
        try:
            comparison = _compared(subject, sessions, about, OWN if about else OTHERS, _own(subject, recipes, tried))
        except Undecidable:
            continue  # this version does not have the boundary
        finally:
            for session in sessions:
                session.close()
        listed = set() if about else {*fix.changes} & {*subject.binding.paths}
        if comparison["changed"] and listed:
            meant |= listed
            tried.setdefault("meant", []).append(subject.name)
        elif about:
            tried["boundaries"][subject.name] = _without_infinity(
                {name: value for name, value in comparison.items() if name != "keys"}
            )
        else:
            tried["elsewhere"][subject.name] = _without_infinity(
                {key: comparison[key] for key in ("scenarios", "largest_difference")}
            )
        if comparison["worse"]:
            tried["problems"].append(f"{subject.name}: with the fix {'; '.join(comparison['worse'])}")
        if comparison["changed"] and not listed:
            by = comparison["otherwise"] or f"by up to {comparison['largest_difference']:g}"
            tried["problems"].append(
                f"{subject.name}: {', '.join(comparison['keys'])} differ on {comparison['changed']} drawn "
                f"{'scenario' if comparison['changed'] == 1 else 'scenarios'} that do not trigger the bug, {by}"
            )
    tried["problems"] += [
        f"{path}: no drawn scenario shows that the fix changes it; correct this path in `changes`, or remove it"
        for path in fix.changes
        if path not in meant
    ]


def _own(subject: Subject, recipes: Sequence[Recipe], tried: FixTrial) -> dict[str, str]:
    """Return symptom -> bug, for the other known bugs of a boundary. A symptom is a broken law or an exception's text.

    Included are bugs in the boundary or its second implementation that are still present with the fix. If the fix
    exposes such a bug, that is not a problem of the fix.
    """
    boundaries = {*subject.binding.paths, *subject.binding.twins}
    return {
        symptom: recipe.bug_id
        for recipe in recipes
        if recipe.boundary in boundaries and tried["others"].get(recipe.bug_id, [])[1:] == ["reproduced"]
        for symptom in (*recipe.laws, *_raised(recipe.document))
    }


def _raised(document: Mapping[str, Any]) -> Iterator[str]:
    for key, value in (document.get("expected_unpatched") or {}).items():
        if key.rpartition(".")[2] == "raised" and isinstance(value, Mapping):
            yield str(dict(value.get("value", value))["message"])


def _run_tests(fix: Fix, upstream: UpstreamTests, tried: FixTrial) -> None:
    tried["tests"] = upstream.compared()
    for result in tried["tests"].values():
        tried["problems"] += [f"{name} passed without the fix and fails with it" for name in result.get("worse", ())]
    if fix.regression:
        tried["regression"] = upstream.regression()
        tried["log"] = upstream.log
        for test, result in tried["regression"].items():
            sides = result["without"], result["with"]
            if sides not in (("failed", "passed"), ("did not run", "did not run")):
                tried["problems"].append(f"the test {test} {sides[0]} without the fix and {sides[1]} with it")


def _compared(
    subject: Subject,
    sessions: Sequence[LawSession],
    about: Sequence[Pair],
    count: int,
    own: Mapping[str, str],
) -> dict[str, Any]:
    """Compare a boundary without and with a fix on drawn scenarios.

    A scenario triggers the bug if the fix changes which laws are broken, or by which numbers. On all other scenarios,
    the results must be equal. There are two exceptions, which count as unjudged and not as changed: only keys differ
    that the bug changes in other scenarios, or a law is broken in the same way without and with the fix.

    :param sessions: the sessions without and with the fix.
    :param about: the verdicts of the bugs at this boundary, without and with the fix.
    :param count: the number of scenarios to draw.
    :param own: other known bugs of this boundary, as :func:`_own` returns them. ``uncovered`` in the result has those
        that the fix exposes.
    """
    measured = [(one.measurement, two.measurement) for one, two in about]
    spoiled = set(_largest_differences((one.observation, two.observation) for one, two in measured if one and two))
    counts = dict.fromkeys(("scenarios", "outside", "mended", "unjudged", "changed", "refused"), 0)
    worse: dict[str, str] = {}
    uncovered: dict[str, str] = {}
    largest = 0.0
    quiet: list[tuple[bool, dict[str, float]]] = []
    changed: set[str] = set()
    otherwise = ""
    for drawn in _drawn(subject, count):
        plans = _plans(drawn)
        if not plans:
            continue
        before, after = (session.try_(subject, plans) for session in sessions)
        counts["scenarios"] += 1
        if all(trial.refused for trial in (*before, *after)):
            counts["refused"] += 1
            continue
        broken, still = _broken(plans, before), _broken(plans, after)
        new = {each[:2] for each in still} - {each[:2] for each in broken}
        for name, symptom, detail in sorted(each for each in still if each[:2] in new):
            if known := next((bug for raised, bug in own.items() if symptom == "refused" and raised in detail), ""):
                uncovered[name] = known
            elif symptom == "refused":  # every law reports the exception, so it is listed only once
                worse.setdefault(detail.partition(":")[0], f"it {detail.removeprefix('the boundary ').rstrip('.')}")
            elif name in own:
                uncovered[name] = own[name]
            else:
                worse[f"{name}, {symptom}"] = f"{name} is broken ({symptom})"
        pairs = [
            (one.case.observation, two.case.observation) for one, two in zip(before, after) if one.case and two.case
        ]
        apart = _largest_differences(pairs)
        otherwise = otherwise or next(filter(None, (_describe_changed_text(*pair) for pair in pairs)), "")
        if broken != still:
            counts["mended"] += 1
            spoiled |= apart.keys()
        else:
            quiet.append((bool(broken), apart))
    for already_broken, apart in quiet:
        if apart and (already_broken or apart.keys() <= spoiled):
            counts["unjudged"] += 1
            continue
        counts["outside"] += 1
        counts["changed"] += bool(apart)
        changed |= apart.keys()
        largest = max(largest, *apart.values(), 0.0)
    return {
        **counts,
        "largest_difference": largest,
        "uncovered": uncovered,
        "worse": list(worse.values()),
        "keys": sorted(changed),
        "otherwise": otherwise if largest == np.inf else "",
    }


def _largest_differences(pairs: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for one, two in pairs:
        for variant in one:
            for key in {*one[variant], *two.get(variant, {})}:
                difference = _difference(one[variant].get(key), two.get(variant, {}).get(key))
                if difference > largest.get(key, 0.0):
                    largest[key] = difference
    return largest


def _describe_changed_text(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    before, after = (dict(flat(observation, "")) for observation in (one, other))
    for place, value in before.items():
        now = after.get(place)
        if isinstance(value, str) and isinstance(now, str) and now != value:
            return f"{place.lstrip('.')} was {value!r} and is {now!r}"
    return ""


def _drawn(subject: Subject, count: int) -> Iterator[Drawn]:
    rounds = 0
    while count > 0 and rounds < 10:
        batch = drawn_scenarios(subject, 0, rounds, min(count, 100))
        yield from batch
        count, rounds = count - len(batch), rounds + 1
        if not batch:
            return


def _plans(drawn: Drawn) -> list[Plan]:
    plans: list[Plan] = []
    for law in drawn.subject.laws:
        variants = drawn.variants(law)
        if not isinstance(variants, str):
            plans.append((law, variants))
    return plans


def _broken(plans: Sequence[Plan], trials: Sequence[Trial]) -> set[tuple[str, str, str]]:
    """Return (law, symptom, detail) for each violation and for each call that raised an exception."""
    violations = set()
    for (law, _), trial in zip(plans, trials):
        if trial.refused and not law.twin:  # an exception of the second implementation is reported at its own boundary
            violations.add((law.name, "refused", trial.refused))
        violations |= {(law.name, item.symptom, f"{item.key}: {item.detail}") for item in trial.violations}
    return violations


def _difference(one: Any, two: Any) -> float:
    """Return the largest difference of two values, or infinity if anything but numbers differs."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            return np.inf
        return float(gap_between(np.asarray(one.array(), float), np.asarray(two.array(), float)).max(initial=0.0))
    if isinstance(one, Mapping) and isinstance(two, Mapping) and one.keys() == two.keys():
        return max((_difference(one[key], two[key]) for key in one), default=0.0)
    if isinstance(one, float) and isinstance(two, float):
        return float(gap_between(np.asarray(one), np.asarray(two)).max(initial=0.0))
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)) and len(one) == len(two):
        return max((_difference(left, right) for left, right in zip(one, two)), default=0.0)
    return 0.0 if plain(one) == plain(two) else np.inf
