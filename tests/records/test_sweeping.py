"""A sweep returns the same verdicts as brute force, and probes each distinct closure once."""

import random
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from demo_kit import few
from history_kit import BROKEN, BUGGY, CHANGED, DRIFTED, FIXED, VERDICTS, History

from sentinel.recipes import find_recipes
from sentinel.records.basis import surroundings
from sentinel.records.history import Selection
from sentinel.sources.commits import Lineage, releases

#: A ``losses.py`` that calls another module, so that the bug appears and disappears outside the boundary's file.
INDIRECT = "from tiny.inner import agg_loss\n"


def verdicts(record: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(run["verdict"], run["kind"], run["commits"]) for run in record["runs"]]


def by_commit(record: dict[str, Any], commits: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the record's verdicts in the order of the commits."""
    every = [(run["verdict"], run["kind"]) for run in record["runs"] for _ in range(run["commits"])]
    return dict(zip(commits, every, strict=True))


def test_development_builds_are_not_releases(history):
    history.commit({"tiny/__init__.py": ""})
    for name in ("v0.4.0", "v0.4.1.dev12", "0.4.1dev3", "v0.5.0rc1", "v0.5.0.post1", "nvfp4-e2e.dev2"):
        history.git("tag", name)
    assert [tag.name for tag in releases(history.path / ".git")] == ["v0.4.0", "v0.5.0.post1", "v0.5.0rc1"]


@pytest.mark.slow
def test_a_bug_that_appears_twice_has_two_lifetimes(history, swept):
    texts = (FIXED, BUGGY, BUGGY + "\n", FIXED, BUGGY, CHANGED)
    for number, text in enumerate(texts):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": text}, f"change {number} (#{number + 10})")
    record = swept()
    assert verdicts(record) == [
        ("fixed", "", 1),
        ("reproduced", "", 2),
        ("fixed", "", 1),
        ("reproduced", "", 1),
        ("changed", "", 1),
    ]
    assert [(change["what"], change["commit"]["pull"]) for change in record["changes"]] == [
        ("introduced", 11),
        ("fixed", 13),
        ("introduced", 14),
        ("changed", 15),
    ]
    assert [(spell["days"], spell["ended"]["what"]) for spell in record["spells"]] == [(2, "fixed"), (1, "changed")]
    assert record["changes"][0]["commit"]["sha"] == history.commits[1]


@pytest.mark.slow
def test_each_distinct_closure_is_probed_once(history, swept):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": INDIRECT, "tiny/inner.py": BUGGY})
    for number in range(4):
        history.commit({"tiny/unrelated.py": f"x = {number}", "README": str(number)})
    history.commit({"tiny/inner.py": FIXED})
    history.commit({"tiny/inner.py": BUGGY}, "a revert")
    record = swept()
    assert verdicts(record) == [("reproduced", "", 5), ("fixed", "", 1), ("reproduced", "", 1)]
    assert record["closures"] == 2
    assert record["probed"] <= 3  # two lanes may probe one closure at the same time
    assert swept()["probed"] == 0
    history.commit({"tiny/unrelated.py": "y = 1"})
    again = swept()
    assert (again["probed"], again["commits"]) == (0, 8)


def test_undecided_ranges_are_shown_and_not_bridged(history, swept):
    for text in (FIXED, DRIFTED, BROKEN, BUGGY, DRIFTED, BUGGY):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": text})
    record = swept()
    assert [run["kind"] for run in record["runs"]] == ["", "drift", "import", "", "drift", ""]
    introduced = record["changes"][0]
    assert (introduced["what"], introduced["undecided"], introduced["why"]) == ("introduced", 2, "drift, import")
    assert introduced["after"]["sha"] == history.commits[0]
    assert len(record["changes"]) == 1  # the verdict after the second gap equals the one before it
    assert "has no tiny.losses.agg_loss" in record["runs"][1]["reason"]


@pytest.mark.slow
def test_moved_package_roots_and_modules_are_followed(history, swept, brute_force):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": BUGGY})
    history.commit({"tiny/losses.py": None, "tiny/losses/__init__.py": INDIRECT, "tiny/inner.py": FIXED})
    history.commit({"lib/tiny/__init__.py": "", "lib/tiny/losses.py": BUGGY, "tiny/__init__.py": None})
    history.git("rm", "-rq", "tiny")
    history.commit({}, "the old place goes")
    history.commit({"lib/tiny/losses.py": FIXED})
    assert by_commit(swept(), history.commits) == brute_force(history.commits)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"tiny/losses.py": f"{BUGGY}\ntry:\n    from tiny.fast import agg_loss\nexcept ImportError:\n    pass\n"},
         {"tiny/fast.py": FIXED}),
        ({"tiny/losses.py": BUGGY.replace("/ loss_mask.sum()", "/ float(open(__file__[:-9] + 'divisor').read())"),
          "tiny/divisor": "2"},
         {"tiny/divisor": "4"}),
        ({"tiny/losses.py": "import glob, os\nN = len(glob.glob(os.path.dirname(__file__) + '/plugins/*'))\n"
          + BUGGY.replace("loss_mask.sum()", "(1 + N)"), "tiny/plugins/one.py": ""},
         {"tiny/plugins/two.py": "", "tiny/plugins/three.py": ""}),
        ({"tiny/losses.py": "import importlib\nagg_loss = importlib.import_module('tiny.' + 'inner').agg_loss\n",
          "tiny/inner.py": BUGGY},
         {"tiny/inner.py": FIXED}),
        ({"tiny/losses.py": INDIRECT, "tiny/inner.py": BUGGY}, {"tiny/inner/__init__.py": FIXED}),
        ({"tiny/losses.py": "import subprocess, sys\n"
          "show = 'import sys; print(open(sys.argv[1]).read())'\n"  # a strictly contained root has no `cat`
          "ask = [sys.executable, '-S', '-c', show, __file__[:-9] + 'divisor']\n"
          "text = subprocess.run(ask, capture_output=True).stdout\n"
          + BUGGY.replace("/ loss_mask.sum()", "/ float(text)"), "tiny/divisor": "2"},
         {"tiny/divisor": "4"}),
    ],
    ids=["a module that was absent", "a data file", "a listing", "a dynamic import", "a package shadows", "a process"],
)  # fmt: skip
def test_files_that_are_not_imported_count_too(history, swept, brute_force, before, after):
    history.commit({"tiny/__init__.py": "", **before})
    history.commit(after)
    record = swept()
    assert by_commit(record, history.commits) == brute_force(history.commits)
    assert len(record["runs"]) == 2  # without it, the verdict differs


def test_a_sweep_works_with_a_tiny_cache(history, swept, monkeypatch):
    monkeypatch.setattr("sentinel.records.closures._CACHED", 1)
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": INDIRECT, "tiny/inner.py": BUGGY})
    history.commit({"tiny/unrelated.py": "x = 1"})
    history.commit({"tiny/inner.py": FIXED})
    record = swept()
    assert (verdicts(record), record["closures"]) == ([("reproduced", "", 2), ("fixed", "", 1)], 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", few({f"seed {seed}": seed for seed in range(6)}))
def test_a_sweep_of_a_random_history_equals_brute_force(history, swept, brute_force, seed):
    _write_history(history, random.Random(seed))
    order = history.git("rev-list", "--topo-order", "--reverse", "main").split()
    truth = brute_force(order)
    line = history.git("rev-list", "--first-parent", "--reverse", "main").split()
    assert by_commit(swept(), line) == {sha: truth[sha] for sha in line}


def _write_history(history: History, random: random.Random) -> None:
    """Write commits, branches, merges, reverts and renames. The tree is complete at every commit."""
    texts = list(VERDICTS)
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": BUGGY, "tiny/spare.py": "x = 0"})
    for step in range(10):
        action = random.choice(["edit", "edit", "spare", "indirect", "revert", "branch"])
        if action == "edit":
            history.commit(_direct(history, random.choice(texts)))
        elif action == "spare":
            history.commit({"tiny/spare.py": f"x = {step}"})
        elif action == "indirect":
            history.commit({"tiny/losses.py": INDIRECT, "tiny/inner.py": random.choice(texts[:3])})
        elif action == "revert":
            history.git("revert", "--no-edit", "HEAD", day=history.day) if _can_revert(history) else None
            history.day += 1
        else:
            history.git("checkout", "-q", "-b", f"side-{step}")
            history.commit(_direct(history, random.choice(texts)), "on a side")
            history.git("checkout", "-q", "main")
            history.commit({"tiny/spare.py": f"y = {step}"})
            history.merge(f"side-{step}", {"tiny/losses.py": random.choice(texts)})


def _direct(history: History, text: str) -> dict[str, str | None]:
    return {"tiny/losses.py": text}


def _can_revert(history: History) -> bool:
    return len(history.git("rev-list", "--parents", "-n1", "HEAD").split()) == 2 and bool(
        history.git("diff", "HEAD~1", "HEAD")
    )


def test_a_package_that_is_installed_later_is_noticed(history, swept, monkeypatch):
    from sentinel.records import ledger

    guarded = f"try:\n    import some_package\nexcept ImportError:\n    pass\nimport json, numpy\n{BUGGY}"
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": guarded})
    assert swept()["probed"] == 1
    assert swept()["probed"] == 0
    monkeypatch.setattr(ledger, "surroundings", lambda python: lambda name: f"{name} 1.0")
    assert swept()["probed"] == 1


OF_ANOTHER_MODULE = """\
recipe_version: 1
bug_id: TINY-TWICE
title: what is doubled
target: tiny
contract: call
boundary: tiny.more.twice
scenario: {arguments: {x: 1}}
expected_unpatched: {returned: 3}
expected_fixed: {returned: 2}
"""


def test_recipes_of_two_modules_have_separate_verdicts(history, ledger, tiny_catalog, tmp_path):
    (tmp_path / "recipes" / "tiny" / "TINY-TWICE.yaml").write_text(OF_ANOTHER_MODULE)
    twice = "def twice(x):\n    return {} * x\n"
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": BUGGY, "tiny/more.py": twice.format(3)})
    history.commit({"tiny/more.py": twice.format(2)})
    history.commit({"tiny/losses.py": FIXED})
    book, recipes = ledger(), find_recipes(tiny_catalog, ("tiny",))
    apart = book.sweep(recipes, Selection("main"), 1).records
    assert [verdicts(record) for record in apart] == [
        [("reproduced", "", 2), ("fixed", "", 1)],
        [("reproduced", "", 1), ("fixed", "", 2)],
    ]


#: A module that makes its process report, falsely, that it looked up no file of the checkout.
LIES = """
try:
    from sentinel.worker import trace
    trace._TRACE.questions = lambda: []
except Exception:
    pass
"""


def test_a_branch_decides_no_verdict_of_another_branch(history, swept):
    """A branch's code may forge its report, so a verdict on a branch is not reused for upstream's commits."""
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": BUGGY})
    history.commit({"README": "2"})
    history.git("checkout", "-q", "-b", "pull")
    history.commit({"tiny/losses.py": FIXED + LIES})
    history.commit({"tiny/losses.py": BUGGY}, "a revert: the files are those of main again")
    history.git("checkout", "-q", "main")
    assert verdicts(swept(ref="pull"))[-2:] == [("fixed", "", 1), ("reproduced", "", 1)]
    history.commit({"README": "3"})
    assert verdicts(swept()) == [("reproduced", "", 3)]


def test_a_branch_verdict_holds_only_for_the_same_package_files(history, swept):
    """Code of a branch can hide its imports by computing their names."""
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": FIXED})
    history.git("checkout", "-q", "-b", "pull")
    late = BUGGY.replace("return", "import importlib; importlib.import_module('.late', __package__)\n    return")
    history.commit({"tiny/losses.py": late, "tiny/late.py": LIES})
    history.commit({"README": "the same packages"})
    history.commit({"tiny/late.py": "raise ValueError('another text')"})
    record = swept(ref="pull")
    assert verdicts(record)[:2] == [("fixed", "", 1), ("reproduced", "", 2)]
    assert len(record["runs"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement", ["from tiny.deep import late", "import importlib; importlib.import_module('tiny.deep.late')"]
)
def test_a_lying_commit_decides_no_verdict_of_other_code(history, swept, brute_force, statement):
    """The import closure is not reported by the commit but read from the source, including imports in functions."""
    late = BUGGY.replace("return", f"{statement}\n    return")
    history.commit(
        {"tiny/__init__.py": "", "tiny/losses.py": late, "tiny/deep/__init__.py": "", "tiny/deep/late.py": ""}
    )
    history.commit({"tiny/deep/late.py": LIES})
    assert verdicts(swept()) == [("reproduced", "", 2)]
    history.commit({"tiny/deep/late.py": "raise ValueError('another text')"})
    history.commit({"tiny/losses.py": BUGGY})
    record = swept()
    assert by_commit(record, history.commits) == brute_force(history.commits)
    assert len(record["runs"]) == 3, record["runs"]


def test_verdicts_of_merged_branches_and_releases_are_reused(history):
    history.commit({"tiny/__init__.py": ""})
    history.git("checkout", "-q", "-b", "pull")
    merged = history.commit({"a": "1"})
    history.git("checkout", "-q", "main")
    main = history.merge("pull", {"b": "1"})
    history.git("checkout", "-q", "-b", "release")
    one, two = history.commit({"c": "1"}), history.commit({"c": "2"})
    for lineage in (Lineage(history.path / ".git", main), Lineage(history.path / ".git", "main")):
        assert all(lineage.vouches(source, commit) for source in (merged, main) for commit in (merged, main, two))
        assert lineage.vouches(one, two)
        assert not any(lineage.vouches(*pair) for pair in ((two, one), (one, main), (one, merged)))
    nobody = Lineage(history.path / ".git", None)  # a mirror without upstream's own branch
    assert nobody.vouches(merged, two)
    assert not nobody.vouches(two, merged)


@pytest.mark.parametrize("name", ["packaging", "yaml", "pytest", "absent"])
def test_another_interpreter_gives_the_same_package_names(name):
    assert surroundings(sys.executable)(name) == surroundings(None)(name)
