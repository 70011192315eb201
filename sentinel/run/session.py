"""One pytest run of Sentinel: what it selected, what it decided and whether that passes, what it wrote."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.deciding.outcomes import UNDECIDED, Decision, Verdict
from sentinel.deciding.runner import Job, Runner, options_of, runner_of
from sentinel.errors import RecipeError, SentinelError, Unavailable
from sentinel.recipes import SUFFIXES, Recipe, adopt_pins, duplicate, find_recipes, load_recipe
from sentinel.recipes.catalog import Catalog, bundled, bundled_catalog
from sentinel.reports.baseline import difference, not_here
from sentinel.reports.escaping import message
from sentinel.reports.evidence import evidence
from sentinel.reports.store import RunItem, find, load, write, write_run
from sentinel.reports.summary import causes, outline, summary, undecided
from sentinel.run.selection import LawId, require_folders, require_subject, select
from sentinel.search.survey import LawJob, Place, Survey, checkout_with_registries
from sentinel.settings import Settings, read_file, settle
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

if TYPE_CHECKING:
    from sentinel.comparing.comparison import Comparison
    from sentinel.search.boundary_search import Finding
    from sentinel.search.known import Excuse


def catalog_of(config: pytest.Config) -> Catalog:
    """Give what Sentinel ships and what this pytest run's plugins add."""
    hook = config.hook

    def flat(answers: Any) -> list[Any]:
        return [item for answer in answers for item in (answer or ())]

    return bundled_catalog().with_(
        adapters=flat(hook.pytest_sentinel_adapters()),
        contracts=flat(hook.pytest_sentinel_contracts()),
        laws=flat(hook.pytest_sentinel_laws()),
        recipe_folders=flat(hook.pytest_sentinel_recipe_folders()),
    )


#: A folder without a test in it.
_NOTHING = Path(__file__).resolve().parent.parent / "schemas"


class Run:
    """The state of one run; the plugin's hooks call it and hold none of their own.

    :ivar is_asked_for: whether an option of Sentinel's is on the command line.
    :ivar is_restricted: whether arguments name recipes or laws; then the run has no others.
    """

    def __init__(self, config: pytest.Config, settings: Settings, catalog: Catalog, recipes: Sequence[Recipe]) -> None:
        self.config = config
        self.settings = settings
        self.catalog = catalog
        self.recipes = {recipe.path.resolve(): recipe for recipe in recipes}
        self.results: list[tuple[Path, str, float, str]] = []
        self._documents: dict[Path, dict[str, Any]] = {}
        self.law_ids: list[LawId] = []
        self.is_asked_for = False
        self.is_restricted = False
        self._law_seconds: dict[Place, float] = {}
        self._laws_at: Counter[Place] = Counter()
        self._known_recipes: dict[str, list[Recipe]] = {}
        self._verdicts: dict[tuple[str, Ref], str] = {}
        self._questions: dict[tuple[str, Ref], Job] = {}
        self._failures: set[tuple[str, Ref]] = set()
        self._excuses: dict[LawJob, Excuse] = {}
        self.failed_causes: set[tuple[str, Ref, str]] = set()
        self.invited: list[Path] = []
        self.places: dict[Path, Path] = {}
        self._last_line = ""
        self._unwritten: list[str] = []
        self._examined: dict[str, bool] = {}
        self._start = time.monotonic()
        self._when = datetime.now(timezone.utc)
        self._announce = threading.Lock()
        worker_input = getattr(config, "workerinput", None)
        self.is_worker = worker_input is not None
        self.is_controller = not self.is_worker and getattr(config.option, "dist", "no") != "no"

    # -- configuring --------------------------------------------------------------------------------------------------

    @classmethod
    def configure(cls, config: pytest.Config, options: Mapping[str, Any]) -> Run:
        """Read the settings, select recipes, and put their files among what pytest collects."""
        catalog = catalog_of(config)
        values, file = read_file(config.rootpath)
        settings = settle(options, values, list(catalog.adapters), file.parent if file else Path.cwd())
        catalog = replace(catalog, recipe_folders=(*catalog.recipe_folders, *settings.recipes))
        recipes = select(catalog, settings)
        require_subject(config.args, options, settings, recipes)
        run = cls(config, settings, catalog, recipes)
        if not config.option.collectonly and not run.is_worker:
            require_folders(settings)
            for target in {*settings.targets, *(recipe.target for recipe in recipes)} or catalog.adapters:
                options_of(settings, target)
        for name in (*catalog.adapters, *catalog.laws):
            config.addinivalue_line("markers", f"{name}: Sentinel's items of this target or law")
        run.is_asked_for = any(options.values())
        run._point_pytest_at(recipes, alone=any(options.get(name) for name in ("target", "bug", "recipes")))
        return run

    def _point_pytest_at(self, recipes: Sequence[Recipe], alone: bool) -> None:
        """Put Sentinel's items among pytest's arguments. ``alone``: the command line asks for them; a settings file
        that does so must not keep a project's own tests from running."""
        config = self.config
        self.law_ids = [LawId(arg) for arg in config.args if arg.startswith("laws/") and not self._exists(arg)]
        config.args[:] = [
            self._bundled_id(arg) for arg in config.args if not arg.startswith("laws/") or self._exists(arg)
        ]
        ours = self.settings.selects_items and alone and not config.option.file_or_dir
        if ours or (not config.args and (self.law_ids or self.has_laws)):
            config.args[:] = [str(_NOTHING)]  # without an argument pytest would collect the user's tests
        self._require_refs(config.args)
        files = [Path(arg) for arg in config.args if Path(arg.partition("::")[0]).suffix in SUFFIXES]
        self.is_restricted = bool(self.law_ids or files) and bool(config.option.file_or_dir)
        files = [file for file in files if file.suffix in SUFFIXES]
        self.invited = list(dict.fromkeys([*files, *(() if self.is_restricted else (r.path for r in recipes))]))

    def _require_refs(self, arguments: Sequence[str]) -> None:
        """:raises SentinelError: where an item id names a ref at which its recipe is not judged; names those there."""
        for argument in arguments:
            path, separator, ref = argument.partition("::")
            file = Path(path)
            if separator and file.suffix in SUFFIXES and file.is_file():
                try:
                    recipe = self.recipes.get(file.resolve()) or self.load(file)
                    refs = [job.ref.short for job in self.jobs(recipe)]
                except SentinelError:
                    continue  # said when it is collected
                if ref not in refs:
                    raise SentinelError(
                        f"not found: {argument}; the refs of this recipe are {', '.join(refs)}, and others are given "
                        "with --sentinel-ref"
                    )

    def _exists(self, arg: str) -> bool:
        return (self.config.invocation_params.dir / arg.partition("::")[0]).exists()

    def _bundled_id(self, arg: str) -> str:
        """Give an item id of a bundled recipe its file's real place, from whatever folder."""
        path, separator, rest = arg.partition("::")
        if path.startswith("recipes/") and not (self.config.invocation_params.dir / path).exists():
            place = bundled("recipes") / path.removeprefix("recipes/")
            if not place.resolve().is_relative_to(bundled("recipes").resolve()):
                return arg
            if place.is_file():
                return f"{place}{separator}{rest}"
        return arg

    # -- collecting ---------------------------------------------------------------------------------------------------

    @property
    def has_laws(self) -> bool:
        return self.settings.law_level != "off" and bool(self.settings.targets) and not self.is_restricted

    def registering(self, target: str, ref: Ref) -> Checkout | None:
        """Give the code in which a target may register something; None where it does not, or there is no such ref."""
        return checkout_with_registries(self._runner, self.catalog, target, ref)

    def law_refs(self, target: str) -> list[Ref]:
        """Give the refs at which laws are checked: those asked for, else the pins of the target's recipes."""
        refs = list(self.settings.refs_of(target))
        texts = [i.ref for i in self.law_ids if i.target == target and i.ref]
        if refs:
            return refs
        pins = [pin.ref for recipe in self._recipes_of(target) for pin in recipe.pins]
        pins = list(dict.fromkeys(pins))
        others = [text for text in dict.fromkeys(texts) if text not in {t for p in pins for t in (p.short, str(p))}]
        return [*pins, *map(Ref.parse, others)]

    def load(self, path: Path) -> Recipe:
        """Load a file by its path; its bug id must be its own: the evidence of two would be one file."""
        recipe = load_recipe(path, self.catalog)
        for place, other in self.recipes.items():
            if place != path.resolve() and other.bug_id.casefold() == recipe.bug_id.casefold():
                raise RecipeError(str(duplicate(other.path, recipe)))
        self.recipes[path.resolve()] = recipe
        return recipe

    def jobs(self, recipe: Recipe) -> list[Job]:
        """Give the questions that this run asks about a recipe."""
        refs = list(self.settings.refs_of(recipe.target))
        if refs:
            return [Job(recipe, ref) for ref in refs]
        if recipe.published:
            repository = os.environ.get("TARGET_REPO")
            if repository:
                return [Job(recipe, Ref("path", os.path.abspath(repository)))]
            recipe = adopt_pins(recipe, {r.bug_id: r for r in find_recipes(bundled_catalog(), (recipe.target,), ())})
        jobs = [Job(recipe, pin.ref, pin.expect) for pin in recipe.pins]
        if self.settings.baseline is not None:
            jobs += [Job(recipe, ref) for ref in recipe.watch]
        if not jobs:
            raise SentinelError(
                f"{recipe.path.name}: {recipe.bug_id} has no pins; give a ref (--sentinel-ref=git:main, "
                "--sentinel-repo=DIR, or TARGET_REPO in the environment)"
            )
        return jobs

    # -- running ------------------------------------------------------------------------------------------------------

    def comparisons(self) -> list[Comparison]:
        """Give what is judged, with what it is compared with."""
        from sentinel.comparing.comparison import Comparison

        comparisons = []
        for target in self.settings.targets:
            for one, other in product(self.settings.against(target), self.settings.refs_of(target)):
                pair = (one, other)
                catalog, runner = self.catalog, self._runner
                recipes = self._recipes_of(target)
                comparisons.append(
                    Comparison(catalog, runner, catalog.targets[target], pair, recipes, tell=self.progress)
                )
        if self.settings.named_against and not comparisons:
            raise SentinelError(
                "--sentinel-against needs to know what is compared: add --sentinel-target=NAME, and --sentinel-ref=REF "
                "or --sentinel-repo=DIR"
            )
        return comparisons

    def require_given(self) -> None:
        """Check the refs and interpreters that the user named, before anything runs. A recipe's own pins may be
        unavailable; these may not.

        :raises SentinelError: if a ref cannot be had for any target that it is given for, or an interpreter does not
            start or lacks torch.
        """
        settings = self.settings
        if self.is_worker or self.config.option.collectonly:
            return
        recipes = list(self.recipes.values())
        for file in (Path(arg.partition("::")[0]) for arg in self.config.args):
            with suppress(SentinelError):  # collecting the file reports it
                if file.suffix in SUFFIXES and file.is_file() and file.resolve() not in self.recipes:
                    recipes.append(self.load(file))
        named = [recipe.target for recipe in recipes] + [item.target for item in self.law_ids]
        targets = [name for name in dict.fromkeys([*settings.targets, *named]) if name in self.catalog.adapters]
        for target, ref in (*settings.refs, *settings.named_against):
            self._require_ref(ref, [target] if target else targets, recipes)
        for target in targets:
            if settings.python_of(target) is not None:
                try:
                    self._runner.require_python(target)
                except SentinelError as error:
                    raise SentinelError(f"--sentinel-python={settings.python_of(target)}: {error}") from None

    def _require_ref(self, ref: Ref, targets: Sequence[str], recipes: Sequence[Recipe]) -> None:
        reasons = []
        for target in targets:
            pulls = {recipe.upstream.get("pull") for recipe in recipes if recipe.target == target}
            try:
                self._runner.checkout(target, ref, pulls.pop() if len(pulls) == 1 else None)
            except Unavailable as error:
                reasons.append(error.reason)
            else:
                return
        if reasons:
            raise SentinelError(f"{ref} is not available: {'; '.join(causes(reasons))}")

    def warm_up(self) -> None:
        """Start loading torch while pytest collects."""
        if not self.config.option.collectonly and not self.is_controller and self.settings.targets:
            self._runner.start(self.settings.targets)

    def plan(self, questions: Sequence[Job | LawJob]) -> None:
        """Let the machine's cores work ahead; under xdist the workers are the parallelism."""
        laws = [job for job in questions if isinstance(job, LawJob)]
        jobs = [job for job in questions if isinstance(job, Job)]
        self._laws_at = Counter(job.place for job in laws)
        self._questions = {(job.recipe.digest, job.ref): job for job in jobs}
        if self.config.option.collectonly or self.is_controller:
            return
        if questions and not self.is_worker:
            self._begin()
        if laws:
            self._survey.plan(laws)
        if jobs and not self.is_worker:
            self._runner.plan(jobs)

    def decide(self, job: Job | LawJob) -> Decision:
        if isinstance(job, LawJob):
            return self._decide_law(job)
        decision = self._runner.decide(job)
        self._verdicts[job.recipe.digest, job.ref] = decision.verdict.name
        if job == self._questions.get((job.recipe.digest, job.ref)) and complaint(decision, self.settings.baseline):
            self._failures.add((job.recipe.digest, job.ref))
        return decision

    def _decide_law(self, job: LawJob) -> Decision:
        start = time.monotonic()
        decision = self._survey.decide(job)
        if decision.verdict.name == "reproduced":
            excuse = self.excuse(job)
            if excuse.unknown is not None:
                decision = self._survey.decide_by(job, excuse.unknown)
            elif excuse.hidden:
                reason = f"broken by {', '.join(excuse.bugs)}; {excuse.hidden}"
                decision = replace(decision, verdict=Verdict("inconclusive", reason, "law"))
        if job.place not in self._law_seconds:  # one search has decided all of them
            self._law_seconds[job.place] = (time.monotonic() - start) / max(self._laws_at[job.place], 1)
        return decision

    def seconds(self, job: Job | LawJob) -> float:
        """Say how long it took to decide, without the wait for what was decided before it."""
        return self._law_seconds[job.place] if isinstance(job, LawJob) else self._runner.seconds(job)

    def excuse(self, job: LawJob) -> Excuse:
        """Say whether known bugs that are reproduced at the same ref explain a broken law."""
        if job not in self._excuses:
            self._excuses |= self._excuses_beside(job)
        return self._excuses[job]

    def _excuses_beside(self, job: LawJob) -> dict[LawJob, Excuse]:
        """Explain every broken law of a job's boundary: one search serves them all."""
        from sentinel.search.discovery import is_about
        from sentinel.search.known import explain

        target = self.catalog.adapters[job.target].target

        def about(finding: Finding) -> list[Recipe]:
            recipes = [recipe for recipe in self._recipes_of(job.target) if is_about(recipe, finding, target)]
            return [recipe for recipe in recipes if self._verdict(recipe, job.ref) == "reproduced"]

        explained = explain(
            {each: self._survey.findings(each) for each in self._survey.beside(job)},
            about,
            lambda bugs: self._survey.search_others(job.place, {each.law: bugs[each] for each in bugs}),
        )
        return {each: excuse for each, (excuse, _) in explained.items()}

    def failed(self, bugs: Collection[str], ref: Ref) -> bool:
        """Say whether the items of these bugs fail in this run."""
        failures = {recipe.bug_id for recipe in self.recipes.values() if (recipe.digest, ref) in self._failures}
        return bool(bugs) and failures.issuperset(bugs)

    def _verdict(self, recipe: Recipe, ref: Ref) -> str:
        """Give the name of a verdict. One recipe explains many laws; it is decided once."""
        key = recipe.digest, ref
        if key not in self._verdicts:
            self.decide(self._questions.get(key) or Job(recipe, ref))
        return self._verdicts[key]

    def _recipes_of(self, target: str) -> list[Recipe]:
        if target not in self._known_recipes:
            self._known_recipes[target] = find_recipes(self.catalog, (target,), ())
        return self._known_recipes[target]

    @cached_property
    def _survey(self) -> Survey:
        baseline, level = self.settings.baseline, self.settings.law_level
        level = "quick" if level == "off" else level
        searchers = 1 if self.is_worker else os.cpu_count() or 1  # under xdist the workers are the parallelism
        return Survey(self.catalog, self._runner, level, 0, self._recipes_of, searchers, baseline)

    @cached_property
    def _runner(self) -> Runner:
        return runner_of(self.catalog, self.settings, self.progress)

    def progress(self, message: str) -> None:
        """Tell the user about a step that takes a while."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self.config.get_verbosity() >= 0:
            with self._announce:
                file = reporter.currentfspath
                reporter.ensure_newline()
                reporter.write_line(f"sentinel: {message}")
                if isinstance(file, Path):  # else pytest would print the file's name again before its next item
                    reporter.currentfspath = file

    def close(self) -> None:
        for name in ("_runner", "_survey"):
            if name in vars(self):
                vars(self).pop(name).close()

    # -- judging and recording ----------------------------------------------------------------------------------------

    def record(self, decision: Decision) -> Path:
        """Write the evidence of a decision and tell other plugins."""
        document = evidence(decision)
        place = write(self.settings.report_dir, decision, document)
        self._documents[place] = document
        self.config.hook.pytest_sentinel_decided(decision=decision)
        return place

    def command(self, nodeid: str) -> str:
        """Give the command that repeats one item alone."""
        alone = replace(
            self.settings,
            targets=(),
            bugs=(),
            named_refs=self.settings.refs,
            trees=(),
            report_dir=Settings().report_dir,
            sarif=None,
            laws="deep" if self.settings.laws == "deep" else "",
        )
        return shlex.join(["pytest", nodeid, *alone.words()])

    # -- reporting ----------------------------------------------------------------------------------------------------

    def header(self) -> list[str]:
        targets = ", ".join(self.settings.targets) or "as the given paths say"
        lines = [f"sentinel: targets {targets}; evidence in {self.settings.report_dir}"]
        owner = other_owner_of_the_name()
        return [*lines, f"sentinel: {owner}"] if owner else lines

    def collect(self, report: pytest.TestReport, evidence: Path) -> None:
        if not self.results and self.is_controller:
            self._begin()
        self.results.append((evidence, report.outcome, report.duration, report.nodeid))

    def count(self, nodeid: str, examined: bool) -> None:
        """Record that an item of Sentinel finished, and whether it reached a verdict."""
        self._examined[nodeid] = examined or self._examined.get(nodeid, False)

    def documents(self) -> list[tuple[dict[str, Any], str]]:
        for place, _, _, _ in self.results:
            if place not in self._documents:
                self._documents[place] = load(place)
        return [(self._documents[place], outcome) for place, outcome, _, _ in self.results]

    def _below_reports(self, evidence: Path) -> str:
        return evidence.resolve().relative_to(self.settings.report_dir.resolve()).as_posix()

    def could_not_write(self, session: pytest.Session, error: SentinelError) -> None:
        """Say so at the end, and in the exit status; an error raised here would hide what the run has decided."""
        self._unwritten.append(str(error))
        session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        for sentence in self._unwritten:
            reporter.write_line(f"sentinel: {sentence}", red=True)
        if not self.results or self.config.get_verbosity() < -1:
            reporter.write(self._last_line)
            return

        reporter.section("sentinel")
        writer = reporter._tw
        text = summary(
            self.documents(),
            str(self.settings.report_dir),
            terminal=writer.hasmarkup,
            width=writer.fullwidth,
            every=self.config.get_verbosity() > 0,
        )
        writer.write(text.rstrip("\n") + "\n" + self._weaker() + self._last_line, flush=True)

    def _weaker(self) -> str:
        """Tell a user who chose nothing that this machine contains less than another would."""
        levels = {document["environment"]["sandbox"] for document, _ in self.documents()}
        if self.settings.sandbox or self.settings.device != "cpu" or "basic" not in levels:
            return ""
        return "sandbox: basic, no boundary against malice; strict is not available here, `sentinel doctor` says why\n"

    def finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write ``run.json``; turn a run in which nothing was decided into a failure."""
        self.close()
        if self.is_worker:
            return
        self._require_an_examination(session, exitstatus)
        documents = self.documents()
        if not self.config.pluginmanager.hasplugin("terminalreporter") and (self._examined or self._last_line):
            lines = ["sentinel:", *(outline(documents) if documents else []), self._last_line.rstrip("\n")]
            print("\n".join(filter(None, lines)), file=sys.stderr)
        if not self.results:
            return
        items = [
            RunItem(nodeid, outcome, document["verdict"], duration, self._below_reports(evidence))
            for (document, _), (evidence, outcome, duration, nodeid) in zip(documents, self.results)
        ]
        try:
            self._write_run(items, undecided(documents))
        except SentinelError as error:
            self.could_not_write(session, error)

    def _begin(self) -> None:
        """Write a ``run.json`` without items: if this run is killed, the folder must not describe an earlier one."""
        with suppress(SentinelError):  # `finish` reports it
            self._write_run(())

    def _write_run(self, items: Sequence[RunItem], undecided: Mapping[str, int] | None = None) -> None:
        write_run(
            self.settings.report_dir,
            items,
            started=self._when,
            duration=time.monotonic() - self._start,
            command=["pytest", *map(str, self.config.invocation_params.args)],
            undecided=undecided,
        )

    def _require_an_examination(self, session: pytest.Session, exitstatus: int) -> None:
        """Set pytest's status 5 if no item decided anything; ``--collect-only`` lists items and claims nothing."""
        if exitstatus != pytest.ExitCode.OK or not self._examined or any(self._examined.values()):
            return
        why = f"none of the {len(self._examined)} items could be decided"
        why += f" ({'; '.join(causes(self._reasons()))})" if self._reasons() else ""
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        self._last_line = f"nothing was decided: {why}; this run is not a success\n"

    def _reasons(self) -> list[str]:
        return [message(document["reason"]) for document, _ in self.documents() if document["verdict"] in UNDECIDED]


def other_owner_of_the_name() -> str | None:
    """Give a sentence where PyPI's distribution ``sentinel``, another project altogether, is installed too."""
    try:
        other = distribution("sentinel")
    except PackageNotFoundError:
        return None
    return (
        f"another distribution, sentinel {other.version}, has the import name `sentinel` too, and either may have "
        "overwritten the other's files; uninstall it, then reinstall rl-sentinel"
    )


def expected_unavailable(decision: Decision) -> bool:
    """Say whether ``unavailable`` is what the pin expects, and was established by looking at the code."""
    return decision.expect == "unavailable" and decision.verdict.kind == "not-in-this-version"


def complaint(decision: Decision, baseline: Path | None = None) -> str | None:
    """Say why the item fails, by the recorded evidence where there is a baseline; None where it passes or is
    skipped."""
    verdict = decision.verdict
    name = decision.recipe.bug_id or f"{decision.recipe.boundary}: {decision.law}"
    head = f"{name} at {decision.ref.short}"
    if baseline is not None:
        return _against(baseline, decision, head)
    if decision.expect is not None:
        absent = verdict.name == "unavailable" and verdict.kind not in ("not-in-this-version", "drift")
        return (
            None
            if absent or verdict.name == decision.expect
            else f"{head}: expected {decision.expect}, got {verdict.name}"
        )
    return None if verdict.name in ("fixed", "unavailable") else f"{head}: {verdict.name}"


def _against(baseline: Path, decision: Decision, head: str) -> str | None:
    recorded = find(baseline, decision)
    if recorded is None:
        if decision.verdict.name == "unavailable" or (decision.law_alone and decision.verdict.name == "fixed"):
            return None  # a baseline records what a search found, and not each of the thousand laws that hold
        return f"{head}: nothing is recorded in {baseline}; accept it with `sentinel report accept`"
    now = evidence(decision)
    changes = [] if not_here(recorded, now) else difference(recorded, now)
    return f"{head}: " + "; ".join(changes) if changes else None
