"""Define the state of one pytest run: settings, selected items, the runner that computes verdicts, and results."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.deciding.outcomes import Decision, Verdict
from sentinel.deciding.runner import Job, Runner, runner_of
from sentinel.deciding.setup import options_of
from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.reports.summary import causes
from sentinel.run.questions import Questions
from sentinel.run.results import Results
from sentinel.run.selection import require_folders, require_subject, select
from sentinel.search.survey import LawJob, Place, Survey, checkout_to_read
from sentinel.settings import Settings, in_effect, in_words, read_file, settle
from sentinel.sources import MirrorStore
from sentinel.sources.bases import find_base, in_clone
from sentinel.sources.urls import fork
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

if TYPE_CHECKING:
    from sentinel.comparing.comparison import Comparison
    from sentinel.search.boundary_search import Finding
    from sentinel.search.known import Excuse


def catalog_of(config: pytest.Config) -> Catalog:
    """Return the catalog of targets, contracts, laws and recipes, including those of pytest plugins."""
    hook = config.hook

    def flat(answers: Any) -> list[Any]:
        return [item for answer in answers for item in (answer or ())]

    return bundled_catalog().with_(
        adapters=flat(hook.pytest_sentinel_adapters()),
        contracts=flat(hook.pytest_sentinel_contracts()),
        laws=flat(hook.pytest_sentinel_laws()),
        recipe_folders=flat(hook.pytest_sentinel_recipe_folders()),
    )


class Run:
    """The state of one pytest run. The plugin's hooks call its methods and store nothing themselves.

    :ivar questions: the recipes and laws to check.
    :ivar results: the decisions so far.
    :ivar is_asked_for: True if the command line has an option of Sentinel.
    """

    def __init__(self, config: pytest.Config, settings: Settings, catalog: Catalog, recipes: Sequence[Recipe]) -> None:
        self.config = config
        self.settings = settings
        self.catalog = catalog
        self.questions = Questions(config, settings, catalog, recipes)
        self.results = Results(config, settings)
        self.is_asked_for = False
        self._law_seconds: dict[Place, float] = {}
        self._laws_at: Counter[Place] = Counter()
        self._verdicts: dict[tuple[str, Ref], str] = {}
        self._planned: dict[tuple[str, Ref], Job] = {}
        self._reported: set[tuple[str, Ref]] = set()
        self._excuses: dict[LawJob, Excuse] = {}
        self.failed_causes: set[tuple[str, Ref, str]] = set()
        self.places: dict[Path, Path] = {}
        self._announce = threading.Lock()
        self.is_worker = getattr(config, "workerinput", None) is not None
        self.is_controller = not self.is_worker and getattr(config.option, "dist", "no") != "no"

    @classmethod
    def configure(cls, config: pytest.Config, options: Mapping[str, Any]) -> Run:
        """Create a run: read the settings, select recipes, and add their files to pytest's arguments."""
        catalog = catalog_of(config)
        values, file = read_file(config.rootpath)
        settings = settle(options, values, list(catalog.adapters), file.parent if file else Path.cwd())
        catalog = replace(catalog, recipe_folders=(*catalog.recipe_folders, *settings.recipes))
        recipes = [] if settings.is_gate else select(catalog, settings)
        require_subject(config.args, options, settings, recipes)
        run = cls(config, settings, catalog, recipes)
        if not config.option.collectonly and not run.is_worker:
            require_folders(settings)
            for target in {*settings.targets, *(recipe.target for recipe in recipes)} or catalog.adapters:
                options_of(settings, target)
        for name in (*catalog.adapters, *catalog.laws):
            config.addinivalue_line("markers", f"{name}: Sentinel's items of this target or law")
        from sentinel.reports.escaping import visible

        if file and (named := in_words(in_effect(options, values))):
            run.results.from_file = f"sentinel: {file.name} sets {visible(named)}"
        run.is_asked_for = any(options.values())
        run.questions.read_arguments(options)
        return run

    def require_given(self) -> None:
        """Check that the interpreters and refs that the user named are available.

        The pins of recipes are not checked, and may be unavailable. Torch is imported in the background meanwhile.

        :raises SentinelError: if a ref is available for none of its targets, or if an interpreter does not start or
            lacks torch.
        """
        settings = self.settings
        if self.is_worker or self.config.option.collectonly:
            self._import_torch_early()
            return
        recipes = self.questions.load_arguments()
        named = [recipe.target for recipe in recipes] + [item.target for item in self.questions.law_ids]
        targets = [name for name in dict.fromkeys([*settings.targets, *named]) if name in self.catalog.adapters]
        for target in targets:
            if settings.python_of(target) is not None:
                try:
                    self._runner.require_python(target)
                except SentinelError as error:
                    raise SentinelError(f"--sentinel-python={settings.python_of(target)}: {error}") from None
        self._import_torch_early()
        for name, ref in settings.refs:
            self._require_ref(ref, [name] if name else targets, recipes)
        _ = self.pairs

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

    def _import_torch_early(self) -> None:
        if not self.config.option.collectonly and not self.is_controller and self.settings.targets:
            self._runner.start(self.settings.targets)

    def registry_checkout(self, target: str, ref: Ref) -> Checkout | None:
        """Return the checkout from which the bindings of a target are read; None if none is needed or available."""
        return checkout_to_read(self._runner, self.catalog, target, ref)

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons that ``--sentinel-against`` requests."""
        from sentinel.comparing.comparison import Comparison

        catalog, recipes = self.catalog, self.questions.recipes_of
        return [
            Comparison(catalog, self._runner, catalog.targets[name], pair, partial(recipes, name), notify=self.progress)
            for name, pair in self.pairs
        ]

    @cached_property
    def pairs(self) -> list[tuple[str, tuple[Ref, Ref]]]:
        """Return ``(target, (base, head))`` for each comparison.

        :raises SentinelError: if a base cannot be found, or if the user names a base but no target with a head.
        """
        settings = self.settings
        pairs = []
        heads = [(name, head) for name in settings.targets for head in settings.refs_of(name)]
        for name, head in heads:
            with suppress(Unavailable):  # if the head is a working tree, it is the code of only one of the targets
                self._runner.checkout(name, head)
                pairs += [(name, (self._base(name, head, base), head)) for base in settings.against(name, head)]
        if not pairs and any(base is not None for _, base in settings.named_against):
            raise SentinelError(
                "--sentinel-against needs a target and a head: add --sentinel-target=NAME, and --sentinel-ref=REF "
                "or --sentinel-repo=DIR"
            )
        return pairs

    def _base(self, name: str, head: Ref, base: Ref | None) -> Ref:
        """Return the base ref of a comparison, as a ref of the head's own clone if the mirror lacks it."""
        target = fork(self.catalog.targets[name], self.settings.url_of(name))
        if base is None:
            return find_base(target, head, MirrorStore())
        try:
            self._runner.checkout(name, base)
        except Unavailable as error:
            base = in_clone(base, head)
            if base is None:
                raise SentinelError(f"{error.reason}") from None
        return base

    # -- deciding -----------------------------------------------------------------------------------------------------

    def plan(self, questions: Sequence[Job | LawJob]) -> None:
        """Start to check recipes and laws in the background, before their items run.

        Under xdist, each worker checks only the recipes and laws of its own items.
        """
        laws = [job for job in questions if isinstance(job, LawJob)]
        jobs = [job for job in questions if isinstance(job, Job)]
        self._laws_at = Counter(job.place for job in laws)
        self._planned = {(job.recipe.digest, job.ref): job for job in jobs}
        if self.config.option.collectonly or self.is_controller:
            return
        if questions and not self.is_worker:
            self.results.begin()
        if laws:
            self._survey.plan(laws)
        if jobs and not self.is_worker:
            self._runner.plan([*jobs, *(Job(job.recipe, ref) for job in jobs for ref in self._bases(job))])

    def decide(self, job: Job) -> Decision:
        """Return the decision of a recipe at a ref, and remember its verdict for :meth:`reported`."""
        decision = self._runner.decide(job)
        key = job.recipe.digest, job.ref
        self._verdicts[key] = decision.verdict.name
        if job == self._planned.get(key) and decision.verdict.name == "reproduced":
            self._reported.add(key)
        return decision

    def decide_bases(self, job: Job) -> list[Decision]:
        """Return a recipe's decisions at each base revision of ``job.ref``."""
        return [self._runner.decide(Job(job.recipe, ref)) for ref in self._bases(job)]

    def _bases(self, job: Job) -> Sequence[Ref]:
        """Return the base refs of a job's ref. Return none if a pin or a baseline determines the expected verdict."""
        alone = job.expect is not None or self.settings.baseline is not None
        pairs = [] if alone else self.pairs
        return [base for name, (base, head) in pairs if (name, head) == (job.recipe.target, job.ref)]

    def decide_law(self, job: LawJob) -> Decision:
        """Return the decision of a law at a ref. If several scenarios break the law, prefer one that no known bug
        explains."""
        start = time.monotonic()
        decision = self._survey.decide(job)
        if decision.verdict.name == "reproduced":
            excuse = self.excuse(job)
            if excuse.unknown is not None:
                decision = self._survey.decide_by(job, excuse.unknown)
            elif excuse.hidden:
                reason = f"broken by {', '.join(excuse.bugs)}; {excuse.hidden}"
                decision = replace(decision, verdict=Verdict("inconclusive", reason, "law"))
        # One search checks all laws of the boundary, so its time is divided equally among them.
        share = (time.monotonic() - start) / max(self._laws_at[job.place], 1)
        return replace(decision, seconds=self._law_seconds.setdefault(job.place, share))

    def excuse(self, job: LawJob) -> Excuse:
        """Return whether known bugs that are present at the same ref explain a broken law, and which bugs."""
        if job not in self._excuses:
            self._excuses |= self._explain_boundary(job)
        return self._excuses[job]

    def _explain_boundary(self, job: LawJob) -> dict[LawJob, Excuse]:
        """Explain all broken laws of a boundary at once, because they share one search."""
        from sentinel.search.discovery import is_about
        from sentinel.search.known import explain

        target = self.catalog.targets[job.target]

        def about(finding: Finding) -> list[Recipe]:
            recipes = [each for each in self.questions.recipes_of(job.target) if is_about(each, finding, target)]
            return [recipe for recipe in recipes if self._verdict(recipe, job.ref) == "reproduced"]

        explained = explain(
            {each: self._survey.findings(each) for each in self._survey.jobs_of_boundary(job)},
            about,
            lambda bugs: self._survey.search_others(job.place, {each.law: bugs[each] for each in bugs}),
        )
        return {each: excuse for each, (excuse, _) in explained.items()}

    def reported(self, bugs: Collection[str], ref: Ref) -> bool:
        """Return True if earlier items of this run have reported all of these bugs as present. Return False if the list
        is empty."""
        recipes = self.questions.recipes.values()
        reported = {recipe.bug_id for recipe in recipes if (recipe.digest, ref) in self._reported}
        return bool(bugs) and reported.issuperset(bugs)

    def _verdict(self, recipe: Recipe, ref: Ref) -> str:
        key = recipe.digest, ref
        if key not in self._verdicts:
            self.decide(self._planned.get(key) or Job(recipe, ref))
        return self._verdicts[key]

    @cached_property
    def _runner(self) -> Runner:
        return runner_of(self.catalog, self.settings, self.progress)

    @cached_property
    def _survey(self) -> Survey:
        level = "quick" if self.settings.law_level == "off" else self.settings.law_level
        searchers = 1 if self.is_worker else os.cpu_count() or 1  # 1 under xdist, because its workers run in parallel
        recipes_of, baseline = self.questions.recipes_of, self.settings.baseline
        return Survey(self.catalog, self._runner, level, 0, recipes_of, searchers, baseline)

    def close(self) -> None:
        for name in ("_runner", "_survey"):
            if name in vars(self):
                vars(self).pop(name).close()

    # -- reporting ----------------------------------------------------------------------------------------------------

    def progress(self, message: str) -> None:
        """Print a progress message, unless pytest runs with ``-q``."""
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self.config.get_verbosity() >= 0:
            with self._announce:
                file = reporter.currentfspath
                reporter.ensure_newline()
                reporter.write_line(f"sentinel: {message}")
                if isinstance(file, Path):  # so that pytest does not repeat the file's name before its next item
                    reporter.currentfspath = file

    def compared(self, nodeid: str, row: dict[str, Any]) -> None:
        """Store the result of comparing a boundary, and print it if something differs."""
        from sentinel.run.gate import announce

        self.results.compared(nodeid, row)
        line = announce(row)
        if line and not self.is_worker:
            self.progress(line)

    def collect(self, report: pytest.TestReport, evidence: Path) -> None:
        """Store pytest's report of an item, in the process that writes ``run.json``."""
        if self.is_controller and not self.results.items:
            self.results.begin()
        self.results.collect(report, evidence)

    def finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Stop all worker processes, and write the run's results."""
        self.close()
        if not self.is_worker:
            self.results.finish(session, exitstatus)
