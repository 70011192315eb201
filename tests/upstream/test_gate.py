"""The gate on a clone of verl's main: an injected bug fails and names the changed function, the same tree passes."""

from functools import partial
from subprocess import CalledProcessError

import pytest
from demo_kit import git
from shipped import MIRRORS

from sentinel.comparing.comparison import Comparison
from sentinel.errors import Unavailable
from sentinel.sources.gitrefs import read_refs

LOSSES = "verl/workers/utils/losses.py"
SHIFT = "torch.roll(loss_mask_flatten, shifts=-1, dims=0)"


def test_labels_that_are_shifted_by_one_more_fail(pytester, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(MIRRORS.home.path))
    try:
        mirror = MIRRORS.path("verl")
    except Unavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr("sentinel.comparing.comparison.Comparison", partial(Comparison, examples=10))
    if "refs/heads/main" not in read_refs(mirror):
        pytest.skip("the mirror has no main, only the commits that recipes name")
    clone = tmp_path / "verl"
    try:
        git(tmp_path, "clone", "-q", "-b", "main", str(mirror), str(clone))
    except CalledProcessError:  # a pack with the commits that recipes name lacks other files of main
        pytest.skip("main cannot be checked out from this mirror")
    arguments = ("-p", "no:cacheprovider", "--sentinel-target=verl", f"--sentinel-repo={clone}")
    same = pytester.runpytest_inprocess(*arguments)
    same.assert_outcomes(passed=1)
    losses = clone / LOSSES
    code = losses.read_text()
    if SHIFT not in code:
        pytest.skip("main has other code now")
    losses.write_text(code.replace(SHIFT, SHIFT.replace("-1", "-2")))
    worse = pytester.runpytest_inprocess(*arguments)
    worse.assert_outcomes(failed=1, passed=1)
    worse.stdout.fnmatch_lines([f"worse: verl.workers.utils.losses.sft_loss (changed: {LOSSES}:* sft_loss): *"])
    worse.stdout.fnmatch_lines(["2 signal lines changed; 2 ran *"])
