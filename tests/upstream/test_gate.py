"""The gate on a clone of verl's main: an injected bug fails and names the changed function, the same tree passes."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from demo_kit import git
from shipped import MIRRORS

from sentinel.comparing.comparison import Comparison
from sentinel.errors import Unavailable
from sentinel.sources.gitrefs import read_refs

LOSSES = "verl/workers/utils/losses.py"
ADVANTAGES = "verl/trainer/ppo/core_algos.py"
STD = "id2std[idx] = torch.std(scores_tensor)"
SHIFT = "torch.roll(loss_mask_flatten, shifts=-1, dims=0)"


def make_work_tree(mirror: Path, folder: Path) -> Path:
    """Check out the package of the mirror's main on a branch ``package`` of a new repository.

    A shallow mirror without other files cannot be cloned, so the repository reads the mirror's objects.
    """
    git(folder.parent, "init", "-q", str(folder))
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{mirror / 'objects'}\n")
    if (mirror / "shallow").exists():
        shutil.copy(mirror / "shallow", folder / ".git" / "shallow")
    git(folder, "update-ref", "refs/heads/main", read_refs(mirror)["refs/heads/main"])
    git(folder, "symbolic-ref", "HEAD", "refs/heads/main")
    git(folder, "checkout", "-q", "main", "--", "verl")
    git(folder, "checkout", "-q", "-b", "package")
    git(folder, "commit", "-q", "-m", "The package alone")
    return folder


@pytest.fixture
def clone(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(MIRRORS.home.path))
    try:
        mirror = MIRRORS.path("verl")
    except Unavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr("sentinel.comparing.comparison.Comparison", partial(Comparison, examples=10))
    return make_work_tree(mirror, tmp_path / "verl")


def compare(pytester, clone: Path) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--sentinel-target=verl", f"--sentinel-repo={clone}", "--sentinel-against=git:package"
    )


def replace(file: Path, old: str, new: str) -> None:
    code = file.read_text()
    if old not in code:
        pytest.skip("main has other code now")
    file.write_text(code.replace(old, new, 1))


@pytest.mark.slow
def test_labels_shifted_by_one_more_fail(pytester, clone):
    compare(pytester, clone).assert_outcomes(passed=1)
    replace(clone / LOSSES, SHIFT, SHIFT.replace("-1", "-2"))
    worse = compare(pytester, clone)
    worse.assert_outcomes(failed=1, passed=1)
    worse.stdout.fnmatch_lines([f"worse: verl.workers.utils.losses.sft_loss (changed: {LOSSES}:* sft_loss): *"])
    worse.stdout.fnmatch_lines(["2 signal lines changed (1 added, 1 deleted); 2 ran*"])


@pytest.mark.slow
def test_a_reversed_log_ratio_is_named(pytester, clone):
    replace(clone / ADVANTAGES, "kl = ref_logprob - logprob", "kl = logprob - ref_logprob")
    exchanged = "log_probs and ref_log_probs exchanged (gradients not compared)"
    definition = f"the results are now those of the definition with {exchanged}"
    worse = compare(pytester, clone)
    worse.stdout.fnmatch_lines([f"worse: *.kl_penalty_forward *; {definition}"])
    worse.stdout.no_fnmatch_line("*kl_coef=*")  # without this metric in the definition, nothing contradicts it
    worse.stdout.no_fnmatch_line("not examined: *ToolAgentLoop*")


@pytest.mark.slow
def test_the_estimator_that_explains_the_new_numbers_is_named(pytester, clone):
    replace(clone / ADVANTAGES, "kld = (ratio - kl - 1).contiguous()", "kld = (0.5 * kl.square()).contiguous()")
    definition = "the results are now those of the definition with kl_estimator='k2' (before: 'k3')"
    compare(pytester, clone).stdout.fnmatch_lines([f"worse: *.kl_penalty_forward *; {definition}; *"])


@pytest.mark.slow
def test_the_definition_that_explains_the_new_numbers_is_named(pytester, clone):
    """A known bug of both revisions does not hide the definition."""
    replace(clone / ADVANTAGES, STD, STD.replace(")", ", unbiased=False)"))
    worse = compare(pytester, clone)
    definition = "the results are now those of the definition with std='biased' (before: 'unbiased')"
    worse.stdout.fnmatch_lines([f"worse: *.compute_grpo_outcome_advantage *: advantages is *; {definition}"])
    worse.stdout.no_fnmatch_line("* scenario of *")
