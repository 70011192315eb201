import ast
import os
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from history_kit import History

from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.search import inventory
from sentinel.search.coverage import Coverage, coverage
from sentinel.search.inventory import Source, read, signal_functions
from sentinel.sources.gittrees import GitTrees

AGGREGATE = "def agg_loss(loss_mat, loss_mask):\n    return (loss_mat * loss_mask).sum()\n"


def carriers(text: str, module: str = "tiny.algos") -> list[str]:
    return [function.name for function in signal_functions(ast.parse(text).body, module)]


@pytest.mark.parametrize(
    "text",
    [
        AGGREGATE,
        "async def grade(sample):\n    return sample['answer'] == sample['ground_truth']",
        # The class name and the annotation of the argument show the signal.
        "class Sample:\n    @classmethod\n    def from_dict(cls, data):\n        return cls(data['status'])",
        "def check(x: DataProto, group_index: int):\n    return x[group_index]",
        # Rows that are yielded one by one.
        "def cycle_dataloader(dataloader):\n    while True:\n        for x in dataloader:\n            yield x",
        # Only the keys of the mapping show the signal.
        "def prepare(x):\n    x['advantages'] = x['rewards'].sum() - x['values']\n    x['labels'] = x['loss_mask'] * 2",
        # The body of a closure counts as part of the enclosing function.
        "def make_schedule(optimizer):\n    def factor(step):\n        return lr * step\n    return wrapped(factor)",
        "if True:\n    def masked_mean(x, mask):\n        return (x * mask).sum() / mask.sum()",
    ],
)
def test_functions_with_training_signal_are_found(text):
    assert len(carriers(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def free_port(host):\n    return host + 1",
        "def launch_server(args, url):\n    return args[url]",
        # Functions that compute nothing: abstract ones, and those that only pass their arguments on.
        "def agg_loss(loss_mat, loss_mask):\n    ...",
        "def agg_loss(loss_mat, loss_mask):\n    '''The loss.'''\n    raise NotImplementedError",
        "def agg_loss(loss_mat, loss_mask):\n    return other(loss_mat, loss_mask)",
        # Whole words only: `task` is not `mask`, and `blossom` is not `loss`.
        "def blossom(tasks, unique_lossless):\n    return tasks[0] + 1",
        # Kernels run on a GPU only; the function that launches them is counted.
        "@triton.autotune([])\n@triton.jit\ndef agg_loss(loss_mat, loss_mask):\n    return loss_mat * loss_mask",
        # A layer of a model, for any input.
        "class AttentionLayer:\n    def forward(self, hidden_states, x):\n        return hidden_states * x",
    ],
)
def test_functions_without_signal_are_not_found(text):
    assert carriers(text) == []


def test_methods_have_qualified_names_and_lines_with_decorators():
    text = "class A:\n    class B:\n        @property\n        def advantages(rewards):\n            return x[0]\n"
    [found] = signal_functions(ast.parse(text).body, "tiny.norm")
    assert (found.name, found.span) == ("A.B.advantages", (3, 5))
    assert found.subjects == ("advantage", "reward")


def test_of_two_definitions_the_last_counts():
    [found] = signal_functions(ast.parse(AGGREGATE + AGGREGATE).body, "tiny.algos")
    assert found.span == (3, 4)


@pytest.mark.parametrize("module", ["tiny.tests.test_loss", "tiny.test_loss"])
def test_tests_are_not_in_the_inventory(module):
    assert carriers(AGGREGATE, module) == []
    assert carriers(AGGREGATE, "tiny._test_helpers") == ["agg_loss"]  # it trains, whatever its name


def test_every_pattern_matches_whole_words_and_matters():
    assert inventory._subjects_in("oldLogProbs") == ((0, "log-probability"),)
    assert inventory._subjects_in("catalog_problem") == ()
    for subject, levels in inventory.WORDS.items():
        assert any(levels), subject
    assert all(of_itself > beside >= 0 for of_itself, beside in inventory.SITES.values())


HOSTILE = {
    "syntax": b"def agg_loss(:\n",
    "null": b"x = '\0'",
    "coding": b"# coding: nowhere\n",
    "nested": b"(" * 100_000,
    "operators": b"x = " + b"-" * 100_000 + b"1",
    "long": b"#" * (inventory.LARGEST_SOURCE + 1),
}


def test_an_unparsable_file_is_reported_and_the_rest_is_read():
    files = {name: ("tiny.x", content) for name, content in HOSTILE.items()} | {"good": ("tiny.x", AGGREGATE.encode())}
    found = read(files)
    assert {name for name, source in found.items() if source.unread} == set(HOSTILE)
    assert [function.name for function in found["good"].functions] == ["agg_loss"]
    assert "MiB" in found["long"].unread


def _ending(work: tuple[str, bytes]) -> Source:
    os._exit(1)


def test_a_file_that_ends_the_process_ends_the_command(monkeypatch):
    monkeypatch.setattr(inventory, "_parse", _ending)
    with pytest.raises(SentinelError, match="seconds or 2 GiB to parse"):
        read({"x": ("tiny.x", b"")})


FILES = {
    "tiny/__init__.py": "from tiny.losses import agg_loss\n",
    "tiny/losses.py": AGGREGATE + "def masked_mean(x, mask):\n    return (x * mask).mean()\n",
    "tiny/rows.py": "def pack(input_ids, seqlens):\n    return input_ids[seqlens]\n\ndef port():\n    return 1 + 1\n",
}


def seen(history: History, catalog: Catalog) -> list[Coverage]:
    moved = replace(catalog.targets["tiny"], no_signal=("*.rows.p*",), moved={"tiny": ("old",)})
    target = replace(moved, roots=(*moved.roots, replace(moved.roots[0], path="old")))
    trees = GitTrees(history.path / ".git")
    try:
        return [coverage(target, trees, history.git("rev-parse", f"{sha}^{{tree}}")) for sha in history.commits]
    finally:
        trees.close()


def test_coverage_is_computed_over_a_history(history, tiny_catalog):
    history.commit({name.replace("tiny/", "old/"): text for name, text in FILES.items()})
    history.commit({**{name.replace("tiny/", "old/"): None for name in FILES}, **FILES})
    history.commit({"tiny/losses.py": "def agg_loss(x, y):\n    return (x * y).sum()\n", "tiny/rows.py": "def ("})
    before, now, broken = seen(history, tiny_catalog)
    for package, found in (("old", before), ("tiny", now)):
        assert {function.path: (function.state, function.contracts) for function in found.functions} == {
            f"{package}.losses.agg_loss": ("bound", ("loss_aggregation",)),
            f"{package}.losses.masked_mean": ("not bound", ()),
            f"{package}.rows.pack": ("no signal", ()),
        }
    assert now.modules["tiny.rows"] == {"bound": 0, "not bound": 0, "no signal": 1}
    assert sum(now.totals.values()) == 3
    assert (now.outside, dict(now.unread)) == ((), {})
    # A bound function without signal names is not counted. Unreadable code is reported.
    assert broken.outside == ()
    assert [*broken.unread] == ["tiny/rows.py"]


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MEAN = "def masked_mean(x, mask):\n    return (x * mask).mean()\n"
PORT = "def port():\n    return 1 + 1\n"


def test_fixes_without_a_recipe_are_mined(history, tiny_catalog, store, tmp_path, monkeypatch):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": AGGREGATE + MEAN, "tiny/net.py": PORT})
    found = AGGREGATE.replace(".sum()", ".sum() / loss_mask.sum()")
    for subject, files in {
        "Fix the denominator (#1)": {"tiny/losses.py": found + MEAN},
        "feat: another mean": {"tiny/losses.py": found + MEAN.replace("mean()", "sum()")},
        "fix typo": {"tiny/losses.py": found + MEAN},
        "fix a comment": {"tiny/losses.py": found + MEAN.replace("\n    r", "\n    'It says more.'\n    # why\n    r")},
        "wrong mean (#4)": {"tiny/losses.py": found + MEAN.replace("mean()", "sum()")},
        "bugfix": {"tiny/net.py": PORT.replace("1 + 1", "2 + 2")},
        "fix the mean, as shown (#7)": {"tiny/losses.py": found + MEAN},
    }.items():
        history.commit(files, subject)
    store.add(tiny_catalog.targets["tiny"], str(history.path))
    (tmp_path / "known.jsonl").write_text('{"target": "tiny", "pull": 7}\n{"target": "other", "pull": 4}\n')
    unseen = runpy.run_path(str(BENCHMARKS / "unseen.py"))
    known = unseen["Known"]("tiny", [tmp_path / "known.jsonl"])
    miner = unseen["Miner"](tiny_catalog.targets["tiny"], store)
    mined = [miner.candidate(*pair) for pair in miner.pairs(known, unseen["SPEAKS"])]
    assert {one.subject: (one.state, [function.path for function in one.functions]) for one in mined} == {
        "Fix the denominator (#1)": ("bound", ["tiny.losses.agg_loss"]),
        "fix a comment": ("outside the inventory", []),
        "wrong mean (#4)": ("not bound", ["tiny.losses.masked_mean"]),
        "bugfix": ("outside the inventory", []),
    }
