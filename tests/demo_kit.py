"""Test Sentinel on the demo framework: revisions as trees and commits, recipes, and probes without recipes."""

import os
import select
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sentinel.deciding.outcomes import Decision
from sentinel.recipes.catalog import bundled, bundled_catalog
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.answers import Failed, Measured
from sentinel.worker.client import Options, Places, Preloader, TargetProcess

FRAMEWORK = Path(__file__).parent / "demo_framework"

#: Secrets in the user's environment.
SECRETS = ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "HF_TOKEN")

#: The fixture ``decide(recipe document or file, ref or folder, **options)``.
Decide = Callable[..., Decision]
#: The fixture ``consult(contract, variants)`` returns the contract's reference for each variant.
Consult = Callable[[str, Mapping[str, Mapping[str, Any]]], dict[str, dict[str, Any]]]


def few(cases: Mapping[str, Any], every: int = 4) -> list[Any]:
    """Return parametrised cases. Normal runs take one of every few, nightly runs take all."""
    params = []
    for number, (name, case) in enumerate(cases.items()):
        values = case if isinstance(case, tuple) else (case,)
        params.append(pytest.param(*values, id=name, marks=pytest.mark.nightly if number % every else ()))
    return params


def copy_demo(folder: Path, *revisions: str) -> Path:
    """Make a working tree of the demo framework: ``broken``, or later revisions."""
    for revision in ("broken", *revisions):
        shutil.copytree(FRAMEWORK / revision, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def git(folder: Path, *arguments: str, date: str = "2026-08-21T00:00:00Z") -> str:
    """Run git without user configuration, with a fixed author and date. Return its output."""
    who = {"NAME": "Demo", "EMAIL": "demo@example.invalid", "DATE": date}
    environment = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    command = ["git", "-C", str(folder), *arguments]
    finished = subprocess.run(command, env={**alone, **environment}, check=True, capture_output=True, text=True)
    return finished.stdout.strip()


@dataclass(frozen=True)
class Repository:
    """A git repository.

    :ivar commits: revision -> full hash, which is the same on every machine because author and dates are fixed.
    """

    path: Path
    commits: dict[str, str] = field(default_factory=dict)

    def git(self, *arguments: str) -> str:
        return git(self.path, *arguments)

    def commit(self, name: str, files: Mapping[str, str | None] | Path) -> str:
        """Commit a tree over the last one, or changed files (None removes a file), and name the revision."""
        if isinstance(files, Path):
            shutil.copytree(files, self.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            for path, text in files.items():
                if text is None:
                    (self.path / path).unlink()
                else:
                    (self.path / path).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", name)
        self.commits[name] = self.git("rev-parse", "HEAD")
        return self.commits[name]


MASKED_TOKENS: dict[str, Any] = {
    "recipe_version": 1,
    "bug_id": "DEMO-MASKED-TOKENS",
    "title": "masked tokens move the loss",
    "target": "demo",
    "contract": "loss_aggregation",
    "boundary": "demo_rl.losses.agg_loss",
    "invariant": "masked_values_have_no_influence",
    "scenario": {
        "loss_agg_mode": "token-mean",
        "loss_mat": [[1.0, 100.0], [1.0, -50.0]],
        "response_mask": [[1, 0], [1, 0]],
    },
    "expected_unpatched": {"loss": 26.0, "masked_token_gradient_abs_sum": 1.0},
    "expected_fixed": {"loss": 1.0, "masked_token_gradient_abs_sum": 0.0},
}

REJECTED_ROW: dict[str, Any] = {
    "recipe_version": 1,
    "bug_id": "DEMO-REJECTED-ROW",
    "title": "a rejected response moves its siblings' advantages",
    "target": "demo",
    "contract": "group_advantage",
    "boundary": "demo_rl.advantages.group_advantage",
    "invariant": "a_rejected_row_is_an_absent_row",
    "scenario": {
        "token_level_rewards": [[0, 0], [0, 1], [0, 2]],
        "response_mask": [[0, 0], [1, 1], [1, 1]],
        "group": ["p", "p", "p"],
    },
    "variants": {"reward_0": {}, "reward_9": {"token_level_rewards": [[0, 9], [0, 1], [0, 2]]}},
}


def write_recipe(folder: Path, document: Mapping[str, Any], **changes: Any) -> Path:
    """Write a recipe with some keys changed (None removes a key) to ``<folder>/<target>/<BUG-ID>.yaml``."""
    whole = {key: value for key, value in {**document, **changes}.items() if value is not None}
    file = folder / whole["target"] / f"{whole['bug_id']}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    return file


_lending = threading.Lock()


class Borrowed:
    """The session's preloader, with the options of a run that cannot stop it."""

    def __init__(
        self, preloader: Preloader, options: Options, preload: Sequence[str] = (), places: Places = Places()
    ) -> None:
        self._preloader = preloader
        self.options = options
        self.places = places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._preloader, name)

    def target(
        self,
        checkout: Checkout,
        packages: Sequence[str],
        versions: Mapping[str, str] | None = None,
        real: Sequence[str] = (),
    ) -> TargetProcess:
        with self._lent():
            return self._with_options(self._preloader.target(checkout, packages, versions, real))

    def oracle(self) -> TargetProcess:
        with self._lent():
            return self._with_options(self._preloader.oracle())

    @property
    def sandbox(self) -> str:
        with self._lent():
            return self._preloader.sandbox

    @contextmanager
    def _lent(self) -> Iterator[None]:
        preloader = self._preloader
        with _lending:
            usual, places = preloader.options, preloader.places
            preloader.options = replace(usual, trace=self.options.trace, sandbox=self.options.sandbox)
            preloader.places = self.places
            try:
                yield
            finally:
                preloader.options, preloader.places = usual, places

    def _with_options(self, process: TargetProcess) -> TargetProcess:
        process._options = self.options
        return process

    def stop(self) -> None:
        pass


def borrowing(preloader: Preloader) -> Callable[..., Preloader | Borrowed]:
    """Return a replacement for the preloader's class that returns borrowed preloaders, except for another Python."""

    def made(options: Options, *rest: Any) -> Preloader | Borrowed:
        return Preloader(options, *rest) if options.python else Borrowed(preloader, options, *rest)

    return made


@dataclass
class Lab:
    """Probes of Python files without recipes: ``lab.tree({...})``, then ``lab.probe("pkg.mod.function")``."""

    preloader: Preloader
    folder: Path
    processes: list[TargetProcess] = field(default_factory=list)
    sandbox: str = ""

    def write(self, files: Mapping[str, str]) -> Path:
        """Write files of a package ``pkg``, given by path."""
        tree = self.folder / "tree"
        for name, text in {"__init__.py": "", **files}.items():
            file = tree / "pkg" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tree

    def open(
        self,
        tree: Path,
        package: str = "pkg",
        versions: Mapping[str, str] | None = None,
        real: Sequence[str] = (),
        **options: Any,
    ) -> TargetProcess:
        checkout = Checkout("demo", Ref("path", str(tree)), tree, (package,), (tree,), "0" * 64)
        usual = self.preloader.options
        self.preloader.options = replace(usual, **{"sandbox": self.sandbox, **options})
        try:
            process = self.preloader.target(checkout, (package,), versions, real)
        finally:
            self.preloader.options = usual
        self.processes.append(process)
        return process

    def load(self, process: TargetProcess, boundary: str) -> list[str]:
        compiled = process.load([boundary], *self._files(), "call")
        return compiled if isinstance(compiled, list) else []

    def probe(self, process: TargetProcess, boundary: str, load: bool = True, /, **arguments: Any) -> Measured | Failed:
        """Probe with the generic contract. If ``load`` is false, only the probe imports the module."""
        adapter, contract = self._files()
        if load:
            self.load(process, boundary)
        inputs = {"arguments": arguments, "positional": [], "self": None, "catch": False}
        return process.probe(
            {
                "boundary": boundary,
                "contract": "call",
                "contract_file": contract,
                "adapter": adapter,
                "requires": [],
                "given": ["arguments"],
                "variants": {"": inputs},
            }
        )

    def _files(self) -> tuple[str, str]:
        """Return the files of the adapter and the contract."""
        return str(bundled("adapters") / "demo.py"), bundled_catalog().contracts["call"].file

    def call(self, files: Mapping[str, str], boundary: str, /, **arguments: Any) -> Measured | Failed:
        return self.probe(self.open(self.write(files)), boundary, **arguments)

    def returned(self, files: Mapping[str, str], boundary: str, /, **arguments: Any) -> Any:
        return returned(self.call(files, boundary, **arguments))


def returned(answer: Measured | Failed) -> Any:
    """Return the value that a probe's boundary returned. If the probe failed, fail with its message."""
    assert isinstance(answer, Measured), f"{answer.reason}\n{answer.traceback}"
    return answer.observation[""]["returned"]


def failure(answer: Measured | Failed) -> Failed:
    assert isinstance(answer, Failed), answer
    return answer


def gone(pid: int) -> bool:
    """Wait until a process has ended, at most for a test's time limit, and return True; False if it still runs."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 20)[0])
    finally:
        os.close(handle)
