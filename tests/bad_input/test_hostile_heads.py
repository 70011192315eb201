"""A hostile pull request head is not decided, and does not affect other refs of the run.

``tests/worker/test_hazards.py`` and ``tests/hostile/`` test each attack; this module tests the whole run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from demo_kit import copy_demo

from sentinel.reports.store import files, load

LOSSES = "demo_rl/losses.py"

#: Code at the top of the boundary's module -> the verdict under ``basic`` containment, and words of its reason.
#: ``CONTAINED`` has the results that differ under ``strict``.
HEADS = {
    "crashes": ("import ctypes\nctypes.string_at(0)", "inconclusive", "crash: the process was killed by SIGSEGV"),
    "kills its group": ("import os\nos.killpg(0, 9)", "inconclusive", "killed by SIGKILL"),
    "raises": ("raise BaseException('no')", "inconclusive", "the module does not import: BaseException: no"),
    # The bug is still measured.
    "forks": ("import os\nos.fork()", "reproduced", ""),
    "prints": ('print(\'1 fixed\\n{"verdict": "fixed"}\', flush=True)', "reproduced", ""),
}
CONTAINED = {  # a process cannot kill the first process of its namespace
    "kills its parent": ("import os\nos.kill(os.getppid(), 9)", "reproduced", ""),
    "kills its group": ("import os\nos.killpg(0, 9)", "reproduced", ""),
}


@pytest.fixture
def head(tmp_path: Path) -> Callable[[str], Path]:
    """Return a working tree of the demo framework with the bug, and these lines at the top of the boundary's module."""

    def make(lines: str) -> Path:
        tree = copy_demo(tmp_path / "head")
        (tree / LOSSES).write_text(f"{lines}\n{(tree / LOSSES).read_text()}")
        return tree

    return make


@pytest.mark.parametrize(
    ("name", "level"), [*((name, "basic") for name in HEADS), *((name, "strict") for name in CONTAINED)]
)
def test_a_misbehaving_head_is_not_decided(name, level, head, demo, fixed_tree, here, offered):
    offered(level)
    lines, verdict, reason = {**HEADS, **(CONTAINED if level == "strict" else {})}[name]
    tree = head(lines)
    before = _contents(tree)
    repos = [f"--sentinel-repo={tree}", f"--sentinel-repo={fixed_tree}"]
    answer = demo(*repos, f"--sentinel-sandbox={level}", "--sentinel-timeout=30").says(verdict, reason)
    assert answer.status == pytest.ExitCode.TESTS_FAILED
    documents = [load(file) for file in files(here / "sentinel-reports")]
    assert sorted(document["verdict"] for document in documents) == sorted([verdict, "fixed"])
    assert _contents(tree) == before


@pytest.mark.slow
def test_a_head_that_deletes_its_files_affects_no_other_ref(head, demo, here):
    """It can only delete its own checkout and scratch folder. The next run makes the checkout again."""
    lines = "import os, shutil\nshutil.rmtree(os.path.dirname(__file__), True)\nshutil.rmtree(os.getcwd(), True)"
    tree = head(lines)
    before = _contents(tree)
    for _ in range(2):
        answer = demo(f"--sentinel-repo={tree}")
        assert answer.says("inconclusive").status == pytest.ExitCode.TESTS_FAILED
    assert _contents(tree) == before
    (tree / LOSSES).write_text((tree / LOSSES).read_text().replace("shutil.rmtree", "print"))
    assert demo(f"--sentinel-repo={tree}").says("reproduced").status == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("level", "reason"), [("basic", "was changed after the checkout was made"), ("strict", "OSError")]
)
def test_a_head_that_rewrites_its_boundary_is_not_decided(level, reason, head, demo, here, offered):
    """The code that ran is not the commit's code, so nothing is proven. Strict containment prevents the change."""
    lines = "import os\nos.chmod(__file__, 0o644)\nopen(__file__, 'a').write('# other code')"
    demo(f"--sentinel-repo={head(lines)}", f"--sentinel-sandbox={offered(level)}").says("inconclusive", reason)


def _contents(tree: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(tree.rglob("*.py"))}
