import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from sentinel.comparing import asking
from sentinel.comparing.comparison import Comparison
from sentinel.deciding.runner import Runner

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")

CODE = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return {returned}
"""
MENDED = "(loss_mat * loss_mask).sum() / loss_mask.sum()"
FEW = ("--examples", "3")
#: A second boundary, without its body: the target binds registered functions like ``agg_loss``.
SECOND = """
def registered(name):
    return lambda function: function


@registered("mean")
def mean_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
"""

#: A loss of 0 for all inputs, which is always wrong, and a mean that counts masked tokens.
CONSTANT, OF_ALL = "loss_mat.sum() * 0.0", "(loss_mat * loss_mask).sum() / loss_mask.numel()"


@pytest.fixture(autouse=True)
def _little_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_SHRINKING", 20)


@pytest.fixture
def tree(tmp_path: Path) -> Any:
    """Return a function that makes a working tree of the framework."""

    def made(name: str, code: str) -> str:
        folder = tmp_path / name / "tiny"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "losses.py").write_text(code)
        return f"path:{folder.parent}"

    return made


@pytest.mark.slow
def test_a_fixed_bug_is_better_with_numbers_and_laws(run_sentinel, tiny, tmp_path):
    """``--save`` keeps earlier results and overwrites no other file."""
    file, same = tmp_path / "reports" / "changes.json", ("git:main", "git:main")
    answer = run_sentinel("diff", "tiny", f"git:{tiny.buggy}", "git:main", "--json", "--save", file, *FEW)
    assert answer.status == 1
    [found] = answer.json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "better")
    assert found["bugs"]["before"] == ["TINY-MEAN"]
    assert (found["unreached"], answer.json()["changed_statements"]) == ([], answer.json()["examined_statements"])
    assert found["places"] == dict.fromkeys(("before", "after"), "tiny.losses.agg_loss (tiny/losses.py:2)")
    [difference] = [item for item in found["differences"] if item["symptom"] == "value"]
    assert difference["before"]["loss"]["tensor"] != difference["after"]["loss"]["tensor"]
    assert difference["recipes"] == []
    assert "masked_values_have_no_influence" in {item["law"] for item in found["laws"]["before"]}
    assert found["laws"]["after"] == []
    run_sentinel("diff", "tiny", *same, "--save", file, *FEW)
    told = json.loads(file.read_text())["revisions"]["tiny"]
    assert [len(told[name]["rows"]) for name in sorted(told)] == [1, 0]
    [row] = [row for said in told.values() for row in said["rows"]]
    assert (row["is"], row["boundary"]) == ("better", "tiny.losses.agg_loss (tiny/losses.py:2)")
    file.write_text('{"rows": []}')
    answer = run_sentinel("diff", "tiny", *same, "--save", file, *FEW)
    assert (answer.status, file.read_text()) == (2, '{"rows": []}')
    assert "was not written by Sentinel, so it was not overwritten; name another file" in answer.err


SHARES = """
def shares(values):
    return [value / ({divisor}) for value in values]
"""
CALLED = """
recipe_version: 1
bug_id: TINY-SHARES
title: shares do not sum to 1
target: tiny
contract: call
boundary: tiny.losses.shares
story: a share is of the sum, and here it is of the number
scenario: {}
variants: {one: {positional: [[1.0, 3.0]]}}
expected_unpatched: {one.returned: [0.5, 1.5]}
expected_fixed: {one.returned: [0.25, 0.75]}
"""


@pytest.mark.parametrize(
    ("divisors", "said"),
    [
        (
            ("len(values)", "sum(values)"),
            "tiny.losses.shares: better\n   fixes TINY-SHARES; returned.0 is 0.5 times the previous value\n",
        ),
        (("sum(values)", "len(values)"), "tiny.losses.shares: worse\n   introduces TINY-SHARES"),
        (
            ("sum(values)", "sum(list(values))"),
            "no contract is bound to it, so only the scenarios of its known bugs were tried: TINY-SHARES",
        ),
        (("sum(values)", "2 * sum(values)"), "tiny.losses.shares: other"),
        (("sum(values)", "nothing"), "tiny.losses.shares: worse\n   it can no longer be called"),
    ],
)
def test_known_bugs_of_unbound_functions_are_decided_at_both_revisions(
    run_sentinel, tree, catalog, tmp_path, monkeypatch, divisors, said
):
    with_it = catalog.with_(recipe_folders=[tmp_path / "recipes"])
    monkeypatch.setattr("sentinel.recipes.catalog.bundled_catalog", lambda: with_it)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "TINY-SHARES.yaml").write_text(CALLED)
    trees = [tree(f"{place}", SHARES.format(divisor=each)) for place, each in enumerate(divisors)]
    assert said in run_sentinel("diff", "tiny", *trees, *FEW).out


@pytest.mark.slow
def test_a_known_bug_whose_function_only_reaches_changed_code_is_not_listed(
    run_sentinel, tree, catalog, tmp_path, monkeypatch
):
    """The change is examined at the boundary that contains it."""
    with_it = catalog.with_(recipe_folders=[tmp_path / "recipes"])
    monkeypatch.setattr("sentinel.recipes.catalog.bundled_catalog", lambda: with_it)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "TINY-SHARES.yaml").write_text(CALLED)
    caller = SHARES.format(divisor="sum(values) if agg_loss else 0")
    trees = [tree(name, CODE.format(returned=loss) + caller) for name, loss in (("a", MENDED), ("b", CONSTANT))]
    said = run_sentinel("diff", "tiny", *trees, *FEW).out
    assert "1. tiny.losses.agg_loss: worse" in said
    where = "its scenarios did not examine the changed lines; they were examined in scenarios of tiny.losses.agg_loss"
    assert f"not examined: tiny.losses.shares: {where}\n" in said


@pytest.mark.slow
def test_masks_that_the_adapter_excludes_are_compared_too(run_sentinel, tree, tiny, catalog, tmp_path, monkeypatch):
    """With padding at the end, the two losses are equal. The definition does not judge other masks."""
    adapter = tmp_path / "adapters" / "tiny.py"
    adapter.parent.mkdir()
    text = (tiny.recipe.parents[2] / "adapters" / "tiny.py").read_text()
    accepts = 'accepts={"loss_agg_mode"'
    assert accepts in text
    adapter.write_text(text.replace(accepts, 'accepts={"response_mask": ("full", "right"), "loss_agg_mode"', 1))
    narrow = replace(catalog, adapters={}, recipe_folders=()).with_(adapters=[adapter])
    monkeypatch.setattr("sentinel.recipes.catalog.bundled_catalog", lambda: narrow)
    filled = MENDED.replace("loss_mat * loss_mask", "loss_mat * loss_mask.flip(-1).cummax(-1).values.flip(-1)")
    trees = [tree(name, CODE.format(returned=returned)) for name, returned in (("one", MENDED), ("other", filled))]
    [found] = run_sentinel("diff", "tiny", *trees, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "other")
    [difference] = found["differences"]
    rows = difference["scenario"]["response_mask"]["tensor"]
    assert any(sorted(row, reverse=True) != row for row in rows), rows


@pytest.mark.slow
def test_worse_exits_with_1_only_for_worse_changes(run_sentinel, tiny):
    better = run_sentinel("diff", "tiny", f"git:{tiny.buggy}", "git:main", "--worse", "--markdown", *FEW)
    assert (better.status, "fixes TINY" in better.out) == (0, True)
    assert better.out.startswith("## What changes in tiny\n")
    assert better.out.count("\n| ") == 3  # the headings, the line below them, and the one that differs
    worse = run_sentinel("diff", "tiny", "git:main", f"git:{tiny.buggy}", "--worse", *FEW)
    assert worse.status == 1
    assert re.search(r"1\. tiny\.losses\.agg_loss: worse\n   introduces TINY-MEAN; loss .*; breaks ", worse.out)
    assert "(1 worse)" in worse.out


@pytest.mark.slow
def test_an_unknown_bug_is_found_by_drawing_and_shrunk(run_sentinel, tree, monkeypatch):
    monkeypatch.setattr(asking, "_SHRINKING", 300)
    negated = f"{MENDED} * (1 if (loss_mat * loss_mask).sum() >= 0 else -1)"  # the recipe's scenario is positive
    one, other = (tree(name, CODE.format(returned=code)) for name, code in (("one", MENDED), ("other", negated)))
    answer = run_sentinel("diff", "tiny", one, other, "--json")
    [found] = answer.json()["boundaries"]
    assert found["judgement"] == "worse"
    assert "loss has the opposite sign" in found["sentence"]
    [difference] = [item for item in found["differences"] if item["symptom"] == "value"]
    assert difference["scenario"]["loss_mat"]["shape"] == [1, 1]


@pytest.mark.slow
def test_another_order_of_a_sum_is_rounding(run_sentinel, tree):
    rewritten = "((loss_mat * loss_mask) / loss_mask.sum()).sum()"
    one, other = (tree(name, CODE.format(returned=code)) for name, code in (("one", MENDED), ("other", rewritten)))
    answer = run_sentinel("diff", "tiny", one, other, "--json")
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["state"]) == (0, "same numbers"), found
    assert 0 < found["rounding"] < 100  # values up to 1e8, where neighbouring float32 numbers differ by 8
    assert found["scenarios"] >= 100


WHOLE = """
import time, uuid, warnings


def _count(loss_mask):
    return {counted}


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    _count(loss_mask)
    {does}
    said = {{"text": {text}, "tokens": {tokens}, "at": time.time(), "id": uuid.uuid4().hex, "who": repr(object())}}
    return (loss_mat * loss_mask).sum() / loss_mask.sum(), said
"""
PLAIN = {"counted": "loss_mask.sum()", "does": "pass", "text": "'a'", "tokens": "loss_mask.sum()"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "now", "key"),
    [
        ("tokens", "loss_mask.numel()", "*returned.1.tokens"),
        ("tokens", "loss_mask.sum().int()", "*returned.1.tokens"),
        ("text", "'b'", "*returned.1.text"),
        ("counted", "loss_mask.numel()", "tiny.losses._count(*): returned"),
        ("text", "loss_mat.detach()", "*returned.1.text"),
        ("does", "loss_mask[:] = loss_mask", None),
        ("does", "warnings.warn('few')", "warnings*"),
    ],
)
def test_values_outside_the_contract_are_compared_too(run_sentinel, tree, part, now, key):
    one, other = (tree(name, WHOLE.format(**each)) for name, each in (("one", PLAIN), ("other", {**PLAIN, part: now})))
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    if key is None:  # equal files are not a difference
        assert found["state"] == "same numbers"
        return
    assert (answer.status, found["state"], found["judgement"]) == (1, "differs", "beside")
    [difference] = found["differences"]
    assert all(fnmatch(each, key) for each in difference["detail"]), difference["detail"]
    assert difference["before"] != difference["after"]


@pytest.mark.slow
def test_another_dtype_does_not_hide_other_values_outside_the_contract(run_sentinel, tree):
    code = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    return {returned}
"""
    sides = ("one", "loss, loss_mat.detach() * loss_mask"), ("other", "loss.double(), loss_mat.detach()")
    one, other = (tree(name, code.format(returned=returned)) for name, returned in sides)
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert [each["symptom"] for each in found["differences"]] == ["beside", "dtype"]


@pytest.mark.slow
def test_results_that_share_memory_now_are_a_difference(run_sentinel, tree):
    code = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    kept = loss_mat.detach() * 2
    return (loss_mat * loss_mask).sum() / loss_mask.sum(), [kept, {other}]
"""
    one, other = (tree(name, code.format(other=each)) for name, each in (("one", "kept.clone()"), ("other", "kept")))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "beside"), found
    [difference] = found["differences"]
    assert all(key.endswith("returned.1.1 shares memory with returned.1.0") for key in difference["detail"])


@pytest.mark.slow
def test_options_that_lead_to_changed_code_get_other_values(run_sentinel, tree):
    code = """
class Config:
    def __init__(self):
        self.cold = False


def _cold(loss):
    return loss * {factor}


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", config=Config()):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    return _cold(loss) if config.cold else loss
"""
    one, other = (tree(name, code.format(factor=factor)) for name, factor in (("one", 2), ("other", 3)))
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["state"], found["judgement"]) == (1, "differs", "other")
    [difference] = found["differences"]
    assert difference["scenario"]["settings"] == {"cold": True}
    assert "loss is 1.5 times the previous value" in found["sentence"]


@pytest.mark.slow
def test_the_parameter_that_a_changed_condition_tests_is_set(run_sentinel, tree):
    """As in TRL's DPO, the value is in a list that no scenario changes, and it is the last of many (trl #5079)."""
    names = "".join(f"    if kind == 'kind {number}':\n        loss = loss * {number}\n" for number in range(2, 8))
    code = f"""
def _scaled(loss, kind):
{names}    {{condition}}
        loss = loss + 1
    return loss


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", kinds=["plain"]):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    return _scaled(loss, kinds[0])
"""
    conditions = ("if True:", "if kind != 'sft':")
    one, other = (tree(name, code.format(condition=each)) for name, each in zip(("one", "other"), conditions))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "other"), found
    assert found["differences"][0]["scenario"]["settings"] == {"kind": "sft"}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "state"), [("loss + 1", "differs"), ("loss * 3", "not examined")])
def test_lines_that_a_changed_line_moved_past_must_run(run_sentinel, tree, change, state):
    """In verl's critic, the order of the rows was restored after such a line instead of before it (verl #1440)."""
    code = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
{}    return loss
"""
    line, branch = "    loss = loss * 2\n", f"    if loss == -123456:\n        loss = {change}\n"
    one, other = (tree(name, code.format(each)) for name, each in (("one", line + branch), ("other", branch + line)))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert found["state"] == state, found
    if state == "not examined":
        [idle] = found["unreached"]
        assert (idle["lines"], idle["guard"]) == ([5, 5], "loss == -123456, and a changed line moved past it")


def test_raising_at_one_revision_only_under_an_option_is_a_difference(run_sentinel, tree):
    code = """
class Config:
    def __init__(self):
        self.cold = False


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", config=Config()):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    if config.cold:
        loss = {cooled}
    return loss
"""
    one, other = (
        tree(name, code.format(cooled=cooled)) for name, cooled in (("one", "loss"), ("other", "loss[len('x'):][0]"))
    )
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["judgement"], found["differences"][0]["symptom"]) == (1, "other", "raises")


@pytest.mark.slow
def test_options_of_a_changed_line_are_set_together_with_those_leading_to_it(run_sentinel, tree):
    """Here, a group size has no effect until groups are enabled, and groups of one row hide the difference."""
    code = """
class Config:
    def __init__(self):
        self.grouped, self.size = False, 1


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", config=Config()):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    if config.grouped:
        for first in range(0, {rows}):
            loss = loss * 2
    return loss
"""
    rows = ("len(loss_mat), config.size", "len(loss_mat) // config.size")
    one, other = (tree(name, code.format(rows=each)) for name, each in zip(("one", "other"), rows))
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["state"]) == (1, "differs"), found
    assert found["differences"][0]["scenario"]["settings"].keys() == {"grouped", "size"}


@pytest.mark.slow
def test_a_clamp_that_hides_a_bug_is_worse_beyond_its_bounds(run_sentinel, tree):
    whole, cut = "loss_mat.sum() / loss_mask.sum()", "loss_mat.clamp(-5000, 5000).sum() / loss_mask.sum()"
    one, other = (tree(name, CODE.format(returned=code)) for name, code in (("one", whole), ("other", cut)))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", "--examples", "10").json()["boundaries"]
    assert found["judgement"] == "worse"


@pytest.mark.slow
def test_a_changed_line_that_few_scenarios_run_gets_more_scenarios(run_sentinel, tree):
    code = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    rows, tokens = loss_mask.shape
    if rows == tokens + 2:
        loss = loss * {factor}
    return loss
"""
    one, other = (
        tree(name, code.format(factor=factor))
        for name, factor in (("one", 2), ("other", "(2 + (loss_mask.sum() == rows))"))
    )
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["state"], found["unreached"]) == (1, "differs", [])


def test_all_conditions_before_a_changed_line_are_met_together(run_sentinel, tree):
    """The line is two calls away. It depends on two options, and on an argument that no scenario sets."""
    code = """
class Config:
    def __init__(self):
        self.cold, self.mode = False, "plain"


def _cooled(loss, config):
    if config.mode != "other":
        return loss
    return loss * {factor}


def _cold(loss, config, loss_weights):
    if config.cold and loss_weights is not None:
        return _cooled(loss, config)
    return loss


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", config=Config(), loss_weights=None):
    return _cold((loss_mat * loss_mask).sum() / loss_mask.sum(), config, loss_weights)
"""
    one, other = (tree(name, code.format(factor=factor)) for name, factor in (("one", 2), ("other", 3)))
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["state"], found["unreached"]) == (1, "differs", [])
    [difference] = found["differences"]
    assert difference["scenario"]["settings"] == {"cold": True, "mode": "other", "loss_weights": {"some": True}}


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("__init__.py", "import tiny.losses as losses\nlosses.agg_loss = print\n"),
        ("__init__.py", "import torch\nsetattr(torch.Tensor, 'sum', None)\n"),
        ("__init__.py", "def (\n"),
        ("losses.py", "from tiny.other import agg_loss\n"),
        ("losses/__init__.py", "def agg_loss(loss_mat, loss_mask):\n    return 0.0\n"),
        ("__init__.py", "import torch\ndef install(_=setattr(torch.Tensor, 'sum', None)):\n    pass\n"),
        ("__init__.py", "import torch\nclass Fast:\n    torch.Tensor.sum = None\n"),
        ("__init__.py", "import torch\nfor torch.Tensor.sum in [None]:\n    pass\n"),
    ],
    ids=[
        "an attribute",
        "a call",
        "no syntax",
        "a name bound again",
        "a package in the place of a module",
        "an attribute in a default",
        "an attribute in a class",
        "an attribute in a loop",
    ],
)
def test_changed_module_level_code_prevents_a_proof_of_equality(run_sentinel, tree, file, code):
    one, other = (tree(name, CODE.format(returned=MENDED)) for name in ("one", "other"))
    place = Path(other.partition(":")[2]) / "tiny" / file
    place.parent.mkdir(exist_ok=True)
    place.write_text((place.read_text() if place.exists() else "") + code)
    answer = run_sentinel("diff", "tiny", one, other, "--boundary", "agg_loss", *FEW)
    assert answer.status != 0
    assert "follows from the source text" not in answer.out


ESTIMATORS = """
REGISTRY = {}


def register(name):
    return lambda function: REGISTRY.setdefault(name, function)


@register("rloo")
def first(scores):
    return scores - scores.mean()


@register("opo")
def second(scores):
    return scores - scores.median()
"""


@pytest.mark.parametrize(
    "change",
    [
        lambda code: code.replace('"rloo"', '"x"').replace('"opo"', '"rloo"').replace('"x"', '"opo"'),
        lambda code: f'{code}\n\n@register("rloo")\ndef third(scores):\n    return scores\n',
    ],
    ids=["names exchanged", "a name registered again"],
)
def test_another_function_under_a_registered_name_prevents_a_proof(run_sentinel, tree, change):
    code = CODE.format(returned=MENDED) + ESTIMATORS
    answer = run_sentinel("diff", "tiny", tree("one", code), tree("other", change(code)), *FEW)
    assert answer.status == 2
    assert "module-level code that may change other functions" in answer.out
    renamed = code.replace("def first", "def centred")  # the same function
    assert "module-level code" not in run_sentinel("diff", "tiny", tree("a", code), tree("b", renamed), *FEW).out


def test_import_order_counts_when_two_files_register_one_name(run_sentinel, tree):
    def with_imports(name: str, *modules: str, key: str = "rloo") -> str:
        ref = tree(name, CODE.format(returned=MENDED) + ESTIMATORS)
        package = Path(ref.partition(":")[2]) / "tiny"
        package.joinpath("more.py").write_text(
            f'from tiny.losses import register\n\n\n@register("{key}")\ndef other(scores):\n    return scores\n'
        )
        package.joinpath("__init__.py").write_text("".join(f"import tiny.{module}\n" for module in modules))
        return ref

    twice = with_imports("one", "losses", "more"), with_imports("other", "more", "losses")
    answer = run_sentinel("diff", "tiny", *twice, *FEW)
    assert answer.status == 2
    assert "may change other functions: tiny/__init__.py:1" in answer.out
    once = with_imports("a", "losses", "more", key="x"), with_imports("b", "more", "losses", key="x")
    assert run_sentinel("diff", "tiny", *once, *FEW).status == 0


def test_the_condition_of_module_level_code_counts_too(run_sentinel, tree):
    one, other = (tree(name, CODE.format(returned=MENDED)) for name in ("one", "other"))
    for ref, condition in ((one, "False"), (other, "True")):
        place = Path(ref.partition(":")[2]) / "tiny" / "__init__.py"
        place.write_text(f"import tiny.losses as losses\nif {condition}:\n    losses.agg_loss = print\n")
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert answer.status != 0
    assert "follows from the source text" not in answer.out


def test_changed_comments_start_no_worker(run_sentinel, tree, monkeypatch):
    monkeypatch.setattr("sentinel.deciding.runner.Runner.open_target", None)
    one, other = tree("one", CODE.format(returned=MENDED)), tree("other", CODE.format(returned=f"{MENDED}  # right"))
    answer = run_sentinel("diff", "tiny", one, other)
    assert answer.status == 0
    assert (
        "no code that carries training signal differs (by the inventory's rule); "
        "this follows from the source text alone, so nothing was run" in answer.out
    )


def test_unreached_changes_need_calls_of_only_one_revision(run_sentinel, tree, monkeypatch):
    opened, open_target = [], Runner.open_target

    def noted(self: Any, target: str, ref: Any, bindings: Any) -> Any:
        opened.append(ref)
        return open_target(self, target, ref, bindings)

    monkeypatch.setattr(Runner, "open_target", noted)
    returned = f"sum([_cold() for _ in loss_mat.shape[9:]], {MENDED})"  # no condition leads to the call
    code = CODE.format(returned=returned) + "\ndef _cold():\n    return {}\n"
    one, other = (tree(name, code.replace("{}", number)) for name, number in (("one", "1"), ("other", "2")))
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["state"], found["scenarios"]) == (2, "not examined", 3)
    assert [(each["function"], each["lines"], each["called"]) for each in found["unreached"]] == [
        ("_cold", [6, 6], False)
    ]
    assert answer.err.splitlines()[-1].startswith(
        "nothing was examined: every boundary has changed lines that did not run"
    )
    assert {str(ref) for ref in opened} == {one}


def test_a_renamed_function_with_the_same_body_is_the_same_code(run_sentinel, tree):
    code = CODE.format(returned="(loss_mat * loss_mask).sum() / loss_mask.sum()")
    code += "\n\ndef step(*batch):\n    return agg_loss(*batch)\n"
    renamed = code.replace("agg_loss", "aggregated")
    one = tree("one", code)
    [found] = run_sentinel("diff", "tiny", one, tree("other", renamed), "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("same code", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("now", "state", "judgement"),
    [
        ("(loss_mat * loss_mask).sum() / loss_mask.numel()", "differs", "worse"),
        ("(loss_mask * loss_mat).sum() / loss_mask.sum()", "same numbers", ""),
    ],
)
@pytest.mark.parametrize("file", ["losses.py", "other.py"])
def test_a_renamed_and_modified_function_is_compared(run_sentinel, tree, now, state, judgement, file):
    code = CODE.format(returned="(loss_mat * loss_mask).sum() / loss_mask.sum()")
    caller = "\n\ndef step(*batch):\n    return agg_loss(*batch)\n"
    one, other = tree("one", code + caller), tree("other", caller.replace("agg_loss", "aggregated"))
    place = Path(other.partition(":")[2]) / "tiny" / file
    text = CODE.format(returned=now).replace("agg_loss", "aggregated")
    place.write_text(text + (caller.replace("agg_loss", "aggregated") if file == "losses.py" else ""))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == (state, judgement), found
    assert found["places"]["after"].startswith(f"tiny.{file[:-3]}.aggregated (tiny/{file}:")


@pytest.mark.parametrize("named", [True, False])
def test_a_removed_function_without_a_similar_one_is_worse_if_it_is_still_called(run_sentinel, tree, named):
    body = "\n".join(f"    part_{n} = (loss_mat * loss_mask).sum() / {n}" for n in range(1, 5))
    code = f"def agg_loss(loss_mat, loss_mask, loss_agg_mode='token-mean'):\n{body}\n    return part_1\n"
    caller = "\n\ndef step(batch):\n    return {}\n"
    one = tree("one", code + caller.format("agg_loss(*batch)"))
    other = tree("other", "def unrelated(x):\n    return x\n" + caller.format("agg_loss(*batch)" if named else "batch"))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("gone", "worse" if named else "")


@pytest.mark.slow
def test_a_removed_function_is_searched_under_another_name(run_sentinel, tree):
    """Two new functions are equally similar, and no caller names either, so the first one is only suggested."""
    body = "\n".join(f"    part_{n} = loss_mat[:, {n}:].sum() / loss_mask[:, {n}:].sum()" for n in range(4))
    code = f"def agg_loss(loss_mat, loss_mask):\n{body}\n    return part_0\n"
    both = "\n\n".join(code.replace("agg_loss", name).replace("part_0\n", "part_1\n") for name in ("first", "second"))
    one, other = tree("one", code), tree("other", both)
    answer = run_sentinel("diff", "tiny", one, other)
    assert answer.status == 2
    gone = "gone: tiny.losses.agg_loss (tiny/losses.py:1)\n  perhaps renamed to tiny.losses.first (tiny/losses.py:1)"
    assert gone in answer.out
    assert "new: tiny.losses.agg_loss" in run_sentinel("diff", "tiny", other, one).out


@pytest.mark.parametrize("calls", [True, False])
def test_new_code_does_not_introduce_bugs_of_its_callees(run_sentinel, tiny, tree, request, calls):
    others = "padding_is_invisible, a_rejected_row_is_an_absent_row"
    laws = f"invariant: masked_values_have_no_influence\nalso_breaks: [{others}]"
    recipe = tiny.recipe.read_text()
    request.addfinalizer(lambda: tiny.recipe.write_text(recipe))  # also in other tests
    tiny.recipe.write_text(recipe.replace("story:", f"{laws}\nstory:", 1))
    body = "agg_loss(loss_mat, loss_mask)" if calls else "loss_mat.sum() / loss_mask.sum()"
    added = f"{SECOND}    return {body}\n"
    old = CODE.format(returned="loss_mat.sum() / loss_mask.sum()")
    refs = tree("one", old), tree("other", old + added)
    answer = run_sentinel("diff", "tiny", *refs, "--json", "--save", "changes.json", *FEW)
    assert answer.status < 2, answer.err
    found = answer.json()["boundaries"][-1]
    assert found["state"] == "new"
    assert ("the code that it calls has known bugs, as before: TINY-MEAN" in found["reason"]) is calls
    assert found["judgement"] == ("" if calls else "worse")
    [told] = json.loads(Path("changes.json").read_text())["revisions"]["tiny"].values()
    said = [row["boundary"].startswith("tiny.losses.mean") for row in told["rows"]]
    assert ("1 new (1 worse)" in told["headline"], any(said)) == (not calls, not calls)


def test_new_code_that_always_raises_does_not_satisfy_laws(run_sentinel, tree):
    refusing = f"{CODE.format(returned='unknown(loss_mat)')}\n"
    refs = tree("one", "def quite_another(x):\n    return x\n"), tree("other", refusing)
    assert (
        "new: tiny.losses.agg_loss (tiny/losses.py:2): every call raised: "
        in run_sentinel("diff", "tiny", *refs, *FEW).out
    )


def test_a_boundary_that_only_the_adapter_lacked_is_not_new(run_sentinel, tree, tiny_catalog, monkeypatch):
    adapter = tiny_catalog.adapters["tiny"]
    bindings = tuple(replace(each, requires=("tiny.losses.more",)) for each in adapter.target.bindings)
    lacking = replace(adapter, target=replace(adapter.target, bindings=bindings))
    catalog = replace(tiny_catalog, adapters={"tiny": lacking}, recipe_folders=())
    monkeypatch.setattr("sentinel.recipes.catalog.bundled_catalog", lambda: catalog)
    code = CODE.format(returned="loss_mat.sum() / loss_mask.sum()")
    one, other = tree("one", code), tree("other", f"{code}\n\nmore = 1\n")
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert "not compared: tiny.losses.agg_loss: before: this version has no " in answer.out
    changed = tree("changed", f"{code.replace('sum()', 'mean()')}\n\nmore = 1\n")
    assert "new: tiny.losses.agg_loss" in run_sentinel("diff", "tiny", one, changed, *FEW).out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("summed", "divided", "judgement"),
    [
        ("loss_mat * loss_mask", "batch_num_tokens", ""),
        ("loss_mat * loss_mask", "2 * batch_num_tokens", "worse"),
        ("loss_mat", "batch_num_tokens", ""),  # the law is also broken at the base, without the option
    ],
)
def test_a_new_option_is_checked_against_its_laws(
    run_sentinel, tree, tiny_catalog, monkeypatch, summed, divided, judgement
):
    adapter = tiny_catalog.adapters["tiny"]
    bindings = tuple(
        replace(each, accepts={**each.accepts, "batch_num_tokens": (None, 3)}) for each in adapter.target.bindings
    )
    taking = replace(adapter, target=replace(adapter.target, bindings=bindings))
    catalog = replace(tiny_catalog, adapters={"tiny": taking}, recipe_folders=())
    monkeypatch.setattr("sentinel.recipes.catalog.bundled_catalog", lambda: catalog)
    before = CODE.format(returned=f"({summed}).sum() / loss_mask.sum()")
    tokens = f"(loss_mask.sum() if batch_num_tokens is None else {divided})"
    after = CODE.replace('"token-mean"', '"token-mean", batch_num_tokens=None')
    refs = tree("one", before), tree("other", after.format(returned=f"({summed}).sum() / {tokens}"))
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert found["judgement"] == judgement
    assert ("a new option or choice: breaks" in found["sentence"]) is (judgement == "worse")


@pytest.mark.slow
def test_a_newly_broken_part_is_worse_next_to_an_old_violation(run_sentinel, tree):
    rest = "(loss_mat * (1 - loss_mask)).sum()"
    one, other = (
        tree(name, CODE.format(returned=f"((loss_mat * loss_mask).sum() + {leak}) / loss_mask.sum()"))
        for name, leak in (("one", f"{rest}.detach()"), ("other", rest))
    )
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    details = {each["law"]: each["detail"] for each in found["laws"]["after"]}
    assert "gradient" in details["masked_values_have_no_influence"]


@pytest.mark.slow
def test_a_law_broken_in_more_scenarios_is_worse(run_sentinel, tree):
    """At the base, the law is already broken by the smallest scenario that differs."""
    leak = "(loss_mat * (1 - loss_mask)).sum() * ({} if len(loss_mat) < 3 else {})"
    one, other = (
        tree(name, CODE.format(returned=f"((loss_mat * loss_mask).sum() + {leak.format(*times)}) / loss_mask.sum()"))
        for name, times in (("one", (1, 0)), ("other", (2, 1)))
    )
    [found] = run_sentinel("diff", "tiny", one, other, "--json", "--examples", "30").json()["boundaries"]
    assert found["judgement"] == "worse", found["sentence"]
    details = {each["law"]: each["detail"] for each in found["laws"]["after"]}
    assert "masked_values_have_no_influence" in details


@pytest.mark.slow
@pytest.mark.parametrize(("off", "judgement"), [("0.5", "worse"), ("0.04", "worse"), ("0.01", "better")])
def test_a_value_further_from_the_right_one_is_worse(run_sentinel, tree, off, judgement):
    refs = [tree(name, CODE.format(returned=f"{MENDED} + {each}")) for name, each in (("one", "0.02"), ("other", off))]
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert found["judgement"] == judgement, found["sentence"]
    assert all(" at this revision, by 0.02 at the other" in each["detail"] for each in found["laws"]["after"])


@pytest.mark.slow
def test_a_step_towards_the_right_value_is_better_than_a_constant(run_sentinel, tree):
    refs = [tree(name, CODE.format(returned=each)) for name, each in (("one", CONSTANT), ("other", OF_ALL))]
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert found["judgement"] == "better", found["sentence"]
    [back] = run_sentinel("diff", "tiny", *refs[::-1], "--json", *FEW).json()["boundaries"]
    assert back["judgement"] == "worse", back["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "judgement"), [("1.0", "better"), ("(3.0 if len(loss_mat) > 2 else 1.0)", "worse")])
def test_a_fix_that_exposes_a_known_bug_of_both_revisions_is_better(
    run_sentinel, tree, tiny, request, factor, judgement
):
    """The base halves every loss. The head counts two additional tokens for each rejected row."""
    recipe = tiny.recipe.read_text()
    request.addfinalizer(lambda: tiny.recipe.write_text(recipe))  # also in other tests
    head, _, pins = recipe.partition("pins:")
    laws = (
        "also_breaks: [the_oracle_agrees, padding_is_invisible, groups_are_isolated, masked_values_have_no_influence]"
    )
    known = f"""invariant: a_rejected_row_is_an_absent_row
{laws}
when: {{response_mask: a rejected row}}
scenario:
  loss_mat: {{tensor: [[1.0, 2.0], [8.0, 4.0]], dtype: float32, requires_grad: true}}
  response_mask: [[1, 1], [0, 0]]
  loss_agg_mode: token-mean
expected_unpatched: {{loss: 0.75}}
expected_fixed: {{loss: 1.5}}
"""
    tiny.recipe.write_text(f"{head.partition('scenario:')[0]}{known}pins:{pins}")
    counted = "(loss_mask.sum() + 2 * (loss_mask.sum(-1) == 0).sum())"
    refs = (
        tree("one", CODE.format(returned=f"0.5 * {MENDED}")),
        tree("other", CODE.format(returned=f"{factor} * (loss_mat * loss_mask).sum() / {counted}")),
    )
    [found] = run_sentinel("diff", "tiny", *refs, "--json", "--examples", "30").json()["boundaries"]
    assert found["judgement"] == judgement, found["sentence"]


@pytest.mark.slow
def test_a_part_that_was_never_finite_satisfied_no_law(run_sentinel, tree):
    never = CODE.format(returned="(loss_mat * float('nan')).sum()")
    refs = tree("one", never), tree("other", CODE.format(returned=MENDED))  # NaN times a mask of 0
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert found["judgement"] == "better", found["sentence"]


def test_refs_without_common_boundaries_are_reported_as_not_examined(run_sentinel, tree):
    one, other = tree("one", CODE.format(returned=MENDED)), tree("other", "def quite_another(x):\n    return x\n")
    answer = run_sentinel("diff", "tiny", one, other)
    assert answer.status == 2
    assert answer.out.endswith(": nothing was compared; 1 change outside of all boundaries not examined; 1 gone\n")


@pytest.mark.slow
def test_a_changed_signature_is_reported(run_sentinel, tree):
    more = CODE.replace('"token-mean"', '"token-mean", floor=1e-2').format(returned=f"{MENDED} + floor")
    answer = run_sentinel("diff", "tiny", tree("one", CODE.format(returned=MENDED)), tree("other", more), *FEW)
    assert "   parameters: +floor\n" in answer.out


@pytest.mark.slow
def test_a_new_exception_is_a_difference(run_sentinel, tree):
    raising = CODE.format(returned=MENDED).replace("    return", "    assert loss_mat.sum() < 3\n    return")
    one, other = tree("one", CODE.format(returned=MENDED)), tree("other", raising)
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert {item["symptom"] for item in found["differences"]} == {"raises"}
    assert found["sentence"].startswith("it now raises: ")


@pytest.mark.parametrize(("where", "state"), [("loss_mat.sum() < 3", "differs"), ("True", "not compared")])
def test_a_result_that_the_adapter_can_no_longer_use_is_a_difference(
    where, state, run_sentinel, tree, tiny, catalog, tmp_path, monkeypatch
):
    """If only some calls of the adapter fail, this is a difference. If all fail, nothing is compared."""
    text = (tiny.recipe.parents[2] / "adapters" / "tiny.py").read_text()
    call = "def _call(boundary, inputs):\n    return {'loss': boundary.invoke(inputs).sum()}\n\n\nTARGET = Target("
    text = text.replace("TARGET = Target(", call).replace('outputs=("loss",)', "call=_call")
    (tmp_path / "tiny.py").write_text(text)
    reading = replace(catalog, adapters={}, recipe_folders=()).with_(adapters=[tmp_path / "tiny.py"])
    monkeypatch.setattr("sentinel.recipes.catalog.bundled_catalog", lambda: reading)
    refs = (
        tree("one", CODE.format(returned=MENDED)),
        tree("other", CODE.format(returned=f"None if {where} else {MENDED}")),
    )
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert found["state"] == state
    if state == "differs":
        assert found["judgement"] == "other"
        sentence = "the adapter now fails: AttributeError: 'NoneType' object has no attribute 'sum', in "
        assert found["sentence"].startswith(sentence)


def test_a_boundary_that_never_returns_at_one_revision_is_not_compared(run_sentinel, tree):
    raising = CODE.format(returned="loss_mat.no_such")
    answer = run_sentinel("diff", "tiny", tree("one", raising), tree("other", CODE.format(returned=MENDED)), *FEW)
    assert answer.status == 2
    assert "not compared: tiny.losses.agg_loss: before: every call raised: " in answer.out


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CODE.format(returned="(loss_mat * loss_mask).sum() / mask.sum()"), "NameError: name 'mask' is not defined"),
        (
            f"def mean(x, mask):\n    return (x * mask).sum() / mask.sum()\n{CODE}".format(
                returned="mean(loss_mat, loss_mask, index=1)"
            ),
            "TypeError: mean() got an unexpected keyword argument 'index'",
        ),
        (CODE.format(returned=f"{MENDED} * ([1] ** 2)"), "TypeError: unsupported operand type(s) for"),
        (CODE.format(returned=f"{MENDED} * {{}}['no such']"), "KeyError"),
        (CODE.format(returned=f"{MENDED} * ([1] ** None)"), "TypeError"),
        (
            "def refuse(*_):\n    raise TypeError('refuse() got what it does not want')\n"
            + CODE.format(returned="refuse(loss_mat)"),
            "TypeError: refuse() got",
        ),
    ],
)
def test_a_boundary_that_now_always_raises_is_worse(run_sentinel, tree, code, said):
    one, other = tree("one", CODE.format(returned=MENDED)), tree("other", code)
    answer = run_sentinel("diff", "tiny", one, other, "--worse", *FEW)
    assert answer.status == 1
    assert "1. tiny.losses.agg_loss: worse\n   it can no longer be called: " in answer.out
    assert said in answer.out


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("losses", f"{CODE.format(returned=MENDED)}x = (\n", "SyntaxError: '(' was never closed"),
        (
            "losses",
            f"from tiny import nosuch\n{CODE.format(returned=MENDED)}",
            "cannot import name 'nosuch' from 'tiny'",
        ),
        ("losses", f"import tiny.nosuch\n{CODE.format(returned=MENDED)}", "No module named 'tiny.nosuch'"),
        ("__init__", "raise RuntimeError('x')\n", "RuntimeError: x"),
    ],
)
def test_a_module_that_no_longer_imports_is_worse(run_sentinel, tree, file, text, said):
    """This holds if the boundary's own code is unchanged, and also if it cannot be read."""
    one, other = (tree(name, CODE.format(returned=MENDED)) for name in ("one", "other"))
    Path(other.removeprefix("path:"), "tiny", f"{file}.py").write_text(text)
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert answer.status == 1
    assert (
        "tiny.losses.agg_loss: worse\n   it can no longer be called: after: the module does not import: " in answer.out
    )
    assert said in answer.out
    assert "follows from the source text" not in answer.out


def test_a_link_out_of_the_tree_is_not_a_removed_function(run_sentinel, tree, tmp_path):
    one, other = (tree(name, CODE.format(returned=MENDED)) for name in ("one", "other"))
    file = Path(other.removeprefix("path:"), "tiny", "losses.py")
    file.rename(tmp_path / "elsewhere.py")
    file.symlink_to("../../elsewhere.py")
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert (answer.status, "gone" in answer.out) == (2, False)
    assert (
        "after: tiny/losses.py was left out of the checkout: a symbolic link that leads out of the checkout"
        in answer.out
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CODE.replace('="token-mean"', '="token-mean", *, weight').format(returned=f"{MENDED} * weight"), "'weight'"),
        (
            CODE.replace("loss_agg_mode", "scale=2, loss_agg_mode").format(returned=f"{MENDED} * ([1] ** scale)"),
            "(its parameters have changed, so ",
        ),
    ],
)
def test_a_possible_change_of_the_call_is_not_compared(run_sentinel, tree, code, reason):
    answer = run_sentinel("diff", "tiny", tree("one", CODE.format(returned=MENDED)), tree("other", code), *FEW)
    assert answer.status == 2
    assert "not compared: tiny.losses.agg_loss: " in answer.out
    assert reason in answer.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "judgement"),
    [
        ("loss_mat.dtype.itemsize < 4 and torch.zeros(1).dot(torch.zeros(1, dtype=loss_mat.dtype))", "other"),
        ("len(loss_mat) > 1 and torch.zeros(1).dot(torch.zeros(2))", "worse"),
    ],
)
def test_an_exception_only_in_half_precision_is_not_worse(run_sentinel, tree, refused, judgement):
    code = CODE.format(returned=MENDED)
    other = tree("other", code.replace("    return", f"    import torch\n    {refused}\n    return"))
    answer = run_sentinel("diff", "tiny", tree("one", code), other, "--json", "--examples", "60")
    [found] = answer.json()["boundaries"]
    assert "raises" in {item["symptom"] for item in found["differences"]}
    assert found["judgement"] == judgement


@pytest.mark.slow
@pytest.mark.parametrize("others", [False, True])
def test_a_helper_with_a_new_signature_is_judged_by_its_callers(run_sentinel, tree, others):
    """The helper rejects its old arguments. Its caller passes the new ones and returns the same values."""
    code = SECOND + "    return agg_loss(loss_mat{form}, loss_mask{form})\n"
    flat = MENDED.replace("loss_mask.sum()", "int(loss_mask.sum(0))")
    more = "\n\ndef elsewhere(x, mask):\n    return agg_loss(x, mask)\n" if others else ""
    one = CODE.format(returned=MENDED) + code.format(form="")
    other = CODE.format(returned=flat) + code.format(form=".flatten()") + more
    answer = run_sentinel("diff", "tiny", tree("one", one), tree("other", other), "--json", *FEW)
    found = {item["boundary"]: item for item in answer.json()["boundaries"]}
    assert found["tiny.losses.mean_loss"]["state"] == "same numbers"
    helper = found["tiny.losses.agg_loss"]
    assert helper["judgement"] == ("worse" if others else "other")
    assert ("the results of its callers have not: tiny.losses.mean_loss" in helper["reason"]) is not others


@pytest.mark.slow
def test_each_of_several_revisions_is_compared_with_the_previous_one(run_sentinel, tiny, monkeypatch):
    opened = []
    open_target = Runner.open_target

    def opening(self: Any, target: str, ref: Any, *rest: Any) -> Any:
        opened.append(ref.name)
        return open_target(self, target, ref, *rest)

    monkeypatch.setattr(Runner, "open_target", opening)
    refs = [f"git:{sha}" for sha in (tiny.buggy, tiny.fixed, tiny.buggy)]
    answer = run_sentinel("diff", "tiny", *refs, "--json", *FEW)
    assert [each["boundaries"][0]["judgement"] for each in answer.json()] == ["better", "worse"]
    assert answer.status == 1
    assert {*opened} == {tiny.buggy, tiny.fixed}
    assert opened.count(tiny.fixed) == 1 + 1  # found again by its code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny", "git:main", "git:no-such"], "the mirror has no branch, tag or commit 'no-such'"),
        (["tiny", "git:main", "demo=git:main"], "not a ref: 'demo=git:main'"),
        (["tiny", "git:main", "path:."], "has none of its package roots; looked for tiny"),
        (["tinny", "git:main", "git:main"], "unknown target 'tinny'"),
        (
            ["tiny", "git:main", "git:main", "--boundary", "agg_los"],
            "does not bind 'agg_los'; the nearest bound function is tiny.losses.agg_loss",
        ),
        (["tiny", "git:main", "git:main", "--examples", "0"], "must be at least 1"),
    ],
)
def test_diff_rejects_invalid_input_in_one_sentence(run_sentinel, arguments, said):
    answer = run_sentinel("diff", *arguments)
    assert answer.status == 2
    assert said in answer.err
    assert answer.err.count("\n") <= 2


@pytest.mark.slow
def test_ctrl_c_prints_and_saves_the_finished_comparisons(run_sentinel, tiny, tree, monkeypatch):
    """The second of two boundaries is listed as not compared."""
    compared, registered = Comparison.compare, "\ndef registered(name):\n    return lambda function: function\n"
    added = '\n\n@registered("mean")\ndef mean_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):\n    return {}\n'
    sums = {"one": "loss_mat.sum() / loss_mask.sum()", "other": MENDED}
    one, other = (
        tree(name, CODE.format(returned=each) + registered + added.format(each)) for name, each in sums.items()
    )

    def stopped(self: Any, name: str) -> Any:
        if len(self._results) == 1:
            raise KeyboardInterrupt
        return compared(self, name)

    pair = one, other, "--save", "changes.json", *FEW
    with monkeypatch.context() as at_once:
        at_once.setattr(Comparison, "compare", stopped)
        answer = run_sentinel("diff", "tiny", *pair)
    [said] = json.loads(Path("changes.json").read_text())["revisions"]["tiny"].values()
    assert (answer.status, len(said["rows"]), "interrupted" in said["headline"]) == (130, 1, True)
    assert "1. tiny.losses.agg_loss: better" in answer.out
    assert "not compared: tiny.losses.mean_loss: interrupted before its turn" in answer.out
    assert answer.out.endswith("; interrupted\n")
    # A complete result replaces an incomplete one, but not the other way round.
    run_sentinel("diff", "tiny", *pair)
    with monkeypatch.context() as at_once:
        at_once.setattr(Comparison, "compare", stopped)
        run_sentinel("diff", "tiny", *pair)
    [said] = json.loads(Path("changes.json").read_text())["revisions"]["tiny"].values()
    assert "interrupted" not in said["headline"]


@pytest.mark.slow
def test_changed_functions_come_before_their_callers(run_sentinel, tree):
    """The adapter lists `agg_loss` first, but only the function that it calls has changed."""
    registered = "\ndef registered(name):\n    return lambda function: function\n"
    added = '\n\n@registered("mean")\ndef mean_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):\n    return {}\n'
    calls = CODE.format(returned="mean_loss(loss_mat, loss_mask)") + registered
    one, other = (tree(name, calls + added.format(f"{factor} * {MENDED}")) for name, factor in (("one", 1), ("two", 2)))
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    names = [each["boundary"] for each in answer.json()["boundaries"]]
    assert names == ["tiny.losses.mean_loss", "tiny.losses.agg_loss"]


def test_a_boundary_whose_turn_comes_after_the_time_limit_is_not_compared(run_sentinel, tree, monkeypatch):
    monkeypatch.setattr(asking.Budget, "over", lambda budget: True)
    one, other = (tree(name, CODE.format(returned=code)) for name, code in (("one", MENDED), ("other", OF_ALL)))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["reason"]) == ("not compared", "the search ended before this boundary's turn")


GUARDED = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    {first}
    if loss == -123456:
        loss = loss * {factor}
    return loss
"""


@pytest.mark.slow
def test_no_difference_is_claimed_only_when_the_changed_lines_ran(run_sentinel, tree):
    """If no scenario and no option runs the changed lines, equal numbers of other lines prove nothing."""
    before, after = (GUARDED.format(first="pass", factor=factor) for factor in (2, 2.0))
    answer = run_sentinel("diff", "tiny", tree("one", before), tree("other", after), *FEW)
    assert answer.status == 2
    assert "no difference" not in answer.out
    assert "not examined: tiny.losses.agg_loss: " in answer.out
    guard = "(guarded by loss == -123456)"
    assert f"\n  tiny/losses.py:6 agg_loss {guard}, 6 agg_loss {guard[:-1]}; deleted)\n" in answer.out
    assert answer.err.splitlines()[-1].startswith("nothing was examined: ")
    # Only the line that runs counts as examined.
    again = tree("again", GUARDED.format(first="loss = loss * 2", factor=2))
    partly = tree("partly", GUARDED.format(first="loss = loss + loss", factor=2.0))
    answer = run_sentinel("diff", "tiny", again, partly, "--json", *FEW)
    told = answer.json()
    assert (answer.status, told["examined_statements"], told["changed_statements"]) == (2, 2, 4)
    assert {(each["side"], *each["lines"]) for each in told["not_examined"]} == {("before", 6, 6), ("after", 6, 6)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "symptom"),
    [
        ("loss = loss * 2", "loss = loss * 3", "value"),
        ("loss = loss * 2", "loss = loss['a']", "raises"),
        ("share = loss * 2; loss = share['a']", "share = loss * 3; loss = share['a']", "beside"),
        ("loss = float.fromhex(loss, loss * 2)", "loss = float.fromhex(loss * 2, loss)", "beside"),
    ],
    ids=["value", "exception", "variable before an exception", "argument of a call that raises"],
)
def test_a_branch_that_no_scenario_takes_is_compared(run_sentinel, tree, before, after, symptom):
    code = GUARDED.replace("loss = loss * {factor}", "{line}")
    one, other = (
        tree(name, code.format(first="pass", line=line)) for name, line in (("one", before), ("other", after))
    )
    answer = run_sentinel("diff", "tiny", one, other, "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (answer.status, found["state"]) == (1, "differs"), found
    [difference] = found["differences"]
    assert (difference["symptom"], difference["scenario"]["settings"]) == (symptom, {"loss == -123456 is true": True})


@pytest.mark.slow
def test_a_branch_of_a_function_that_no_scenario_calls_is_compared(run_sentinel, tree):
    code = """
import os


def _scaled(loss):
    if os.environ.get("NEVER_SET"):
        return loss * {factor}
    return loss


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    return _scaled(loss) if os.environ.get("NEVER_SET") else loss
"""
    one, other = (tree(name, code.format(factor=factor)) for name, factor in (("one", 2), ("other", 3)))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "other"), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("text.strip() == 'a'", "text == 'a'"),
        ("'a' in text[-300:]", "'a' in text"),
        ("'a' in text[-LIMIT:]", "'a' in text"),
    ],
    ids=["blanks", "length", "named length"],
)
def test_a_changed_function_gets_other_texts(run_sentinel, tree, before, after):
    code = """
LIMIT: int = 300


def _scale(text):
    return 2 if {test} else 3


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return (loss_mat * loss_mask).sum() / loss_mask.sum() * _scale("a")
"""
    one, other = (tree(name, code.format(test=test)) for name, test in (("one", before), ("other", after)))
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "other"), found


ONE_LINE = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    {line}
    return loss
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "if loss == -123456: loss = loss * 3",
        "loss = loss * 3 if loss == -123456 else loss",
        "loss == -123456 and loss.mul_(3)",
        "loss = sum([loss, *[loss * 2 for _ in 'x' if loss == -123456]])",
    ],
)
def test_a_partly_run_line_is_not_examined(run_sentinel, tree, line):
    before, after = (tree(name, ONE_LINE.format(line=text)) for name, text in (("one", "pass"), ("other", line)))
    answer = run_sentinel("diff", "tiny", before, after, *FEW)
    assert (answer.status, "no difference" in answer.out) == (2, False)
    reason = "a part of the line may not have run"
    if " for " in line and sys.version_info >= (3, 12):  # the parts of a comprehension are not distinguished
        reason = "it ran, but no compared result depends on it"
    assert f"tiny/losses.py:4 agg_loss ({reason}" in answer.out


@pytest.mark.slow
def test_the_mask_of_a_scenario_is_shown(run_sentinel, tree):
    """Scenarios with a text instead of the mask raise at both revisions, which does not prove that it has no effect."""
    refs = [
        tree(name, ONE_LINE.format(line=line)) for name, line in (("one", "pass"), ("other", "loss = loss_mat.mean()"))
    ]
    answer = run_sentinel("diff", "tiny", *refs, *FEW)
    assert answer.status == 1
    assert "response_mask = [[" in answer.out


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects of Python 3.10 have no columns")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "loss = loss * 2 if loss_mask.sum() > 1 else loss + loss",
            "loss = loss + loss if loss_mask.sum() > 1 else loss * 2",
        ),
        ("loss_mask.sum() > 1 and loss.mul_(1)", "loss_mask.sum() > 1 and loss.mul_(1.0)"),
        ("loss = sum([loss * 2 for _ in 'x' if 1])", "loss = sum([loss + loss for _ in 'x' if 1])"),
        ("if loss_mask.sum() > 1: loss = loss * 1", "if loss_mask.sum() > 1: loss = loss * 1.0"),
    ],
)
def test_the_parts_of_a_line_that_scenarios_ran_are_examined(run_sentinel, tree, before, after):
    refs = [tree(name, ONE_LINE.format(line=text)) for name, text in (("one", before), ("other", after))]
    answer = run_sentinel("diff", "tiny", *refs, *FEW)
    assert (answer.status, "no difference" in answer.out) == (0, True), answer.out


UNUSED = """
class Group:
    ranks = 1


GROUP = Group()


def _reduce(loss, group=None):
    return loss if group is None else loss * group.ranks


def _scale(loss, factor, unused=None):
    return loss * factor


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", flag=False):
    loss = (loss_mat * loss_mask).sum() / loss_mask.sum()
    {line}
    return loss
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss = _scale(loss, 2, loss_mask)", "loss = _scale(loss, 2, loss_mat)"),
        ("loss = _scale(loss, 2, unused=3)", "loss = _scale(loss, 2)"),
        ("loss_mask.new_zeros(loss.shape)", "loss_mask.new_ones(loss.shape)"),
        ("loss = loss.reshape(loss_mat.shape[2:])", "loss = loss.reshape(loss_mat.shape[3:])"),
        ("loss = sum([each * 2 for each in loss_mat.shape[2:]], loss)", "loss = sum([], loss)"),
        ("loss = loss.to('cpu') * 2", "loss = loss * 2"),
        ("loss = loss.contiguous()", "pass"),
        ("loss = _reduce(loss, group=GROUP)", "loss = _reduce(loss)"),
    ],
    ids=[
        "argument",
        "keyword",
        "discarded value",
        "equal by chance",
        "always empty",
        "cast",
        "cast before",
        "object that is read",
    ],
)
def test_a_line_that_ran_is_not_examined_if_no_compared_result_depends_on_it(run_sentinel, tree, before, after):
    refs = [tree(name, UNUSED.format(line=text)) for name, text in (("one", before), ("other", after))]
    answer = run_sentinel("diff", "tiny", *refs, *FEW)
    assert (answer.status, "no difference" in answer.out) == (2, False), answer.out
    assert "agg_loss (it ran, but no compared result depends on it" in answer.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("loss_mask = {'a': loss, 'b': loss_mask}", "loss_mask = {'a': loss, 'c': loss_mask}", "loss_mask.b"),
        ("count = loss_mask.sum()", "count = loss_mask.numel()", "count"),
        ("[].append(loss_mat.max())", "[].append(loss_mat.min())", "loss_mat.max()"),
        ("if loss > loss_mat.max(): pass", "if loss < loss_mat.max(): pass", "loss > loss_mat.max()"),
    ],
    ids=["keys", "variable", "argument", "condition"],
)
def test_a_value_that_differs_is_reported_although_no_result_depends_on_it(run_sentinel, tree, before, after, name):
    refs = [tree(side, UNUSED.format(line=text)) for side, text in (("one", before), ("other", after))]
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "beside"), found
    assert f"agg_loss(1): local.{name}" in found["differences"][0]["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "setting", "judgement"),
    [
        ("_scale(loss, 2, unused=callbacks)", "_scale(loss, 2, unused=None)", "callbacks", "beside"),
        ("loss = _scale(loss, 2 + flag)", "loss = _scale(loss, 2 + False)", "flag", "other"),
    ],
    ids=["None", "flag that is off"],
)
def test_an_argument_that_no_scenario_sets_gets_another_value(run_sentinel, tree, before, after, setting, judgement):
    code = UNUSED.replace("flag=False", "flag=False, callbacks=None")
    refs = [tree(side, code.format(line=text)) for side, text in (("one", before), ("other", after))]
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", judgement), found
    assert found["differences"][0]["scenario"]["settings"] == {setting: {"another": True}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss = loss * 2", "loss = 2 * loss"),
        ("factor = 2; loss = loss * factor", "times = 2; loss = loss * times"),
        ("loss = _scale(loss, 2)", "loss = _scale(factor=2, loss=loss)"),
        ("loss = loss.mean() * 2", "loss = _scale(loss.mean(), 2)"),
        ("loss = loss.sub(0, alpha=1)", "loss = _scale(loss, 1, loss_mask)"),
        ("if loss_mask.sum() > 0: loss = loss * 1", "if 0 < loss_mask.sum(): loss = loss * 1"),
    ],
    ids=["product", "name", "keywords", "helper", "other function", "comparison"],
)
def test_a_refactoring_stays_the_same(run_sentinel, tree, before, after):
    refs = [tree(name, UNUSED.format(line=text)) for name, text in (("one", before), ("other", after))]
    answer = run_sentinel("diff", "tiny", *refs, *FEW)
    assert (answer.status, "no difference" in answer.out) == (0, True), answer.out


UNBOUND = """
def compute_advantages(rewards, response_mask):
    return rewards * response_mask / {by}
"""


@pytest.mark.slow
@pytest.mark.parametrize("bound_too", [False, True])
def test_a_changed_signal_function_without_a_binding_is_not_examined(run_sentinel, tree, bound_too):
    loss = CODE.format(returned=MENDED)
    other_loss = loss.replace("return ", "return 1 * ") if bound_too else loss
    one, other = tree("one", loss + UNBOUND.format(by=2)), tree("other", other_loss + UNBOUND.format(by=3))
    for ref, text in ((one, "'a'"), (other, "'b'")):
        (Path(ref.removeprefix("path:")) / "tiny" / "paths.py").write_text(
            f"def helper(path):\n    return path + {text}\n"
        )
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert answer.status == (0 if bound_too else 2)
    assert "  tiny/losses.py:6 compute_advantages (no boundary reaches it)\n" in answer.out
    assert "1 changed function without training signal by the inventory's rule: tiny/paths.py:1 helper\n" in answer.out
    assert "; 1 changed signal function not bound" in answer.out
    assert ("no difference at the one boundary whose changed lines all ran" in answer.out) is bound_too
    reason = "nothing was examined: no boundary reaches the changed signal functions"
    assert (reason in answer.err) is not bound_too


@pytest.mark.parametrize("name", ["compute_advantages", "_flipped"])
def test_a_flipped_sign_next_to_an_unchanged_boundary_is_listed(run_sentinel, tree, name):
    code = CODE.format(returned=MENDED) + UNBOUND.replace("compute_advantages", name)
    answer = run_sentinel("diff", "tiny", tree("one", code.format(by=1)), tree("other", code.format(by=-1)), *FEW)
    assert (answer.status, f"tiny/losses.py:6 {name}" in answer.out) == (2, True)
    assert "nothing was examined: " in answer.err


def test_a_function_moved_to_another_file_is_not_a_change(run_sentinel, tree, tmp_path):
    loss, unbound = CODE.format(returned=MENDED), UNBOUND.format(by=2)
    one, other = tree("one", loss + unbound), tree("other", loss)
    (tmp_path / "other" / "tiny" / "advantages.py").write_text(unbound)
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert (answer.status, "compute_advantages" in answer.out) == (0, False)


@pytest.mark.slow
def test_many_unexamined_functions_take_a_few_lines(run_sentinel, tree):
    many = "".join(UNBOUND.replace("compute_advantages", f"compute_advantages_{number}") for number in range(76))
    one, other = (
        tree(f"by{by}", CODE.format(returned=f"{MENDED} * {by}") + many.replace("{by}", str(by))) for by in (2, 3)
    )
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert answer.status == 1
    assert sum("compute_advantages" in line for line in answer.out.splitlines()) == 1
    assert " and 70 more\n" in answer.out
    assert "76 changed signal functions not bound" in answer.out


WIDER = """
def wider(made):
    {change}
    return made


@wider
class Actor:
    ratio: float = 0.1
"""
UNREAD = [
    ("tiny/kl_control.py", "class Fixed:\n    def update(self, steps):\n        {}\n", "pass", "self.value *= 1.1"),
    ("tiny/options.py", "def add(parser):\n    parser.add_argument('--eps', default={})\n", "0.2", "20"),
    ("tiny/options.py", "class Actor:\n    ratio: float = {}\n", "0.2", "20"),
    ("tiny/options.py", "@wider(ratio={})\nclass Actor:\n    ratio: float = 0.2\n", "0.2", "20"),
    ("tiny/options.py", WIDER.format(change="made.ratio = {}"), "0.2", "20"),
    ("tiny/options.py", WIDER.format(change="setattr(made, 'ratio', {})"), "0.2", "20"),
    ("tiny/options.py", WIDER.format(change="made.__init__.__kwdefaults__['ratio'] = {}"), "0.2", "20"),
    ("tiny/options.py", WIDER.format(change="class made(made): ratio = {}"), "0.2", "20"),
    ("tiny/config/actor.yaml", "clip_ratio: {}\n", "0.2", "20  # wide"),
    ("train.py", "from tiny import train\n\nfor _ in range(3):\n    {}\n", "train()", "pass"),
    ("tool_kit/steps.py", "STEPS = {}\n", "1", "2"),
    ("examples/run.sh", "python train.py --lr {}\n", "1e-6", "1e-3"),
    ("sitecustomize.py", "import torch\n\ntorch.steps = {}\n", "1", "2"),
    ("conftest.py", "steps = {}\n", "1", "2"),
    ("patches.pth", "import {}\n", "patch_a", "patch_b"),
]


@pytest.mark.parametrize(("file", "text", "before", "after"), UNREAD, ids=[f"{row[0]} {row[3]}" for row in UNREAD])
def test_a_change_that_no_boundary_reads_is_not_examined(run_sentinel, tree, file, text, before, after):
    """Changes of a KL controller, of defaults, of settings and of the training loop are listed."""
    refs = []
    for name, value in (("one", before), ("other", after)):
        refs.append(tree(name, f"import tool_kit.steps\n{CODE.format(returned=MENDED)}"))
        place = Path(refs[-1].removeprefix("path:")) / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.format(value))
    answer = run_sentinel("diff", "tiny", *refs, *FEW)
    assert (answer.status, "follows from the source text" in answer.out) == (2, False)
    assert f"not examined: 1 change that no boundary reads: {file}" in answer.out
    assert answer.err.splitlines()[-1].startswith("nothing was examined: no boundary reads what has changed: ")


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("README.md", "lr 1", "lr 2"),
        ("tests/test_losses.py", "import tiny\n\nSTEPS = 1", "import tiny\n\nSTEPS = 2"),
        (".github/workflows/ci.yml", "lr: 1", "lr: 2"),
        ("tiny/config.yaml", "lr: 1  # small", "lr: 1  # enough"),
        ("tools/plot.py", "WIDTH = 1", "WIDTH = 2"),
    ],
)
def test_a_change_that_no_run_reads_keeps_the_proof(run_sentinel, tree, file, before, after):
    refs = []
    for name, text in (("one", before), ("other", after)):
        refs.append(tree(name, CODE.format(returned=MENDED)))
        place = Path(refs[-1].removeprefix("path:")) / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n")
    answer = run_sentinel("diff", "tiny", *refs)
    assert (answer.status, "from the source text" in answer.out, "not examined" in answer.out) == (0, True, False)


DEFAULTS = """
from dataclasses import dataclass

CLIP = {clip}
SETTINGS = {{"scale": 1.0}}


@dataclass
class Base:
    ratio: float = 2.0


@dataclass
class Actor(Base):
    {ratio}


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", config=None):
    scale = SETTINGS.get("scale", {scale})
    low = (config or Actor()).ratio if loss_agg_mode == "clipped" else CLIP if loss_agg_mode == "clip" else 1.0
    return (loss_mat * loss_mask).sum() / loss_mask.sum() * scale * low
"""


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["clip", "ratio", "hidden", "scale"])
def test_a_changed_default_with_equal_numbers_is_not_examined(run_sentinel, tree, changed):
    """Every scenario may set the option itself, or none may use it."""
    values = {"clip": "2.0", "ratio": "size: int = 1" if changed == "hidden" else "ratio: float = 2.0", "scale": "1.0"}
    ratio = {"ratio": "ratio: float = 1.5", "hidden": "size: int = 1\n    ratio: float = 1.5"}.get(changed)
    later = {"clip": {"clip": "1.5"}, "scale": {"scale": "20.0"}}.get(changed, {"ratio": ratio})
    later = {**values, **later}
    refs = tree("one", DEFAULTS.format(**values)), tree("other", DEFAULTS.format(**later))
    answer = run_sentinel("diff", "tiny", *refs, *FEW)
    assert (answer.status, "no difference" in answer.out) == (2, False)
    kind = {"hidden": "it may hide a field", "scale": "a default in the line"}.get(changed, "a value outside of")
    assert kind in answer.out


OPTION = f"""
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", rescale=False):
    loss = {MENDED}
    if rescale:
        loss = {{rescaled}}
    return loss
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rescaled", "worse"), [("loss + loss_mat.mean()", True), ("loss * 3.0", False)])
def test_a_law_about_relations_judges_options_that_no_contract_declares(run_sentinel, tree, rescaled, worse):
    refs = [tree(name, OPTION.format(rescaled=text)) for name, text in (("one", "loss * 2.0"), ("other", rescaled))]
    answer = run_sentinel("diff", "tiny", *refs, *FEW)
    assert "rescale = True" in answer.out
    assert ("breaks masked_values_have_no_influence" in answer.out) is worse
    assert ("agg_loss: other" in answer.out) is not worse


@pytest.mark.slow
@pytest.mark.parametrize("both", [True, False])
def test_values_not_finite_at_both_revisions_are_undecided(run_sentinel, tree, both):
    """They do not count as equal. They are listed only if they could hide a difference: if no scenario that runs the
    changed line gives a finite number."""
    part = (
        "loss_mat.sum() * float('nan')"
        if both
        else f"({MENDED}) * (loss_mat.sum() > 0).float() / (loss_mat.sum() > 0).float()"
    )
    one, other = (
        tree(name, CODE.format(returned=f"{part} * {factor}")) for name, factor in (("one", 1), ("other", 1.0))
    )
    answer = run_sentinel("diff", "tiny", one, other, "--examples", "20")
    undecided = r"undecided: tiny.losses.agg_loss: NaN or infinity at both revisions in loss \((\d+) of (\d+) calls\)"
    listed = re.findall(undecided, answer.out)
    assert len(listed) == both
    assert all(int(count) <= int(calls) for count, calls in listed)
    assert answer.status == (2 if both else 0)
    [found] = run_sentinel("diff", "tiny", one, other, "--examples", "20", "--json").json()["boundaries"]
    assert found["undecided"]["loss"] > 0
    assert ("every number that it returns is NaN or infinite at both revisions" in answer.out) is both


@pytest.mark.slow
def test_a_call_that_ends_or_hangs_the_process_is_worse(run_sentinel, tree):
    one = tree("one", CODE.format(returned=MENDED))
    for name, code, said in (
        ("ends", "import os; os._exit(1)", "the boundary ended the session"),
        ("hangs", "import time; time.sleep(99)", "the boundary hangs: no answer within 2 s"),
    ):
        other = CODE.format(returned=MENDED).replace("    return", f"    {code}\n    return")
        answer = run_sentinel("diff", "tiny", one, tree(name, other), "--worse", "--timeout", "2", *FEW)
        assert answer.status == 1, name
        assert "1. tiny.losses.agg_loss: worse\n" in answer.out
        assert f"after: {said}" in answer.out


@pytest.mark.slow
def test_the_number_of_returned_values_is_named_first_and_stand_ins_last(run_sentinel, tree):
    code = """
class Config:
    def __init__(self):
        for n in range({count}):
            setattr(self, f"option_{{n:03}}", n)


def _parts(loss_mask):
    return {parts}


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    _parts(loss_mask)
    config = Config()
    return {returned}
"""
    some = MENDED, "loss_mask.sum()", "loss_mask.numel()", "3"
    one = code.format(count=90, parts="1, 'a'", returned=", ".join(some))
    other = code.format(count=130, parts="1, 'a', 'b'", returned=", ".join([*some, "4"]))
    answer = run_sentinel("diff", "tiny", tree("one", one), tree("other", other), *FEW)
    assert "1. tiny.losses.agg_loss: beside\n   `agg_loss` returns 5 values; it returned 4\n" in answer.out
    assert "`_parts` returns 3 values; it returned 2" in answer.out
    assert answer.out.index("`agg_loss` returns") < answer.out.index("`_parts` returns")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_repeated_signal_interrupts_once(run_sentinel, tiny, monkeypatch, number):
    """``timeout`` signals the process, and then its process group."""
    settled = Comparison.settle

    def stopped(*_: Any) -> None:
        os.kill(os.getpid(), number)

    def again(self: Any, results: Any) -> Any:
        os.kill(os.getpid(), number)
        return settled(self, results)

    monkeypatch.setattr(Comparison, "compare", stopped)
    monkeypatch.setattr(Comparison, "settle", again)
    before = signal.getsignal(number)
    answer = run_sentinel("diff", "tiny", f"git:{tiny.buggy}", "git:main", *FEW)
    assert (answer.status, answer.out.endswith("; interrupted\n")) == (130, True)
    assert signal.getsignal(number) is before


@pytest.mark.slow
def test_sigterm_keeps_the_finished_results(tiny, tree, tmp_path):
    """The command runs in a separate process, and is ended like a job at its time limit. The second boundary hangs."""
    hangs = "    import time\n    time.sleep({})\n    return (loss_mat * loss_mask).sum() / loss_mask.sum()\n"
    one = tree("one", CODE.format(returned="loss_mat.sum() / loss_mask.sum()") + SECOND + hangs.format(599))
    other = tree("other", CODE.format(returned=MENDED) + SECOND + hangs.format(598))
    script = tmp_path / "command.py"
    script.write_text(
        "import sys\n"
        "from dataclasses import replace\n"
        "import sentinel.recipes.catalog as catalog\n"
        "bare = replace(catalog.bundled_catalog(), adapters={}, recipe_folders=())\n"
        f"tiny = bare.with_(adapters=[{str(tiny.recipe.parents[2] / 'adapters' / 'tiny.py')!r}])\n"
        "catalog.bundled_catalog = lambda: tiny\n"
        "from sentinel.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, script, "diff", "tiny", one, other, "--save", "changes.json", *FEW]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    first = run.stdout.readline()  # the file exists before the end
    assert first == "1. tiny.losses.agg_loss: better\n"
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "not compared: tiny.losses.mean_loss: interrupted before its turn" in out
    assert out.endswith("; interrupted\n")
    [said] = json.loads(Path("changes.json").read_text())["revisions"]["tiny"].values()
    assert [row["is"] for row in said["rows"]] == ["better"]


REGISTERED = """
LOSSES = {{}}


def registered(name):
    def put(function):
        LOSSES[name] = function
        return function

    return put


@registered("mean")
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return (loss_mat * loss_mask).sum() / loss_mask.sum()


def other(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return {other}


{entry}
"""
ENTRIES = {
    "a decorator": '@registered("mean")\ndef newer(loss_mat, loss_mask, loss_agg_mode="token-mean"):\n    return 1 * '
    "{other}",
    "an assignment": 'LOSSES["mean"] = other',
    "a call": 'registered("mean")(other)',
    "a lookup of an enumeration": "class Names:\n    MEAN = 'mean'\n\n\nLOSSES[Names.MEAN] = other",
}
RIGHT, WRONG = "(loss_mat * loss_mask).sum() / loss_mask.sum()", "(loss_mat * loss_mask).sum() / loss_mask.numel()"


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("other", [RIGHT, WRONG], ids=["right", "wrong"])
def test_a_key_that_leads_to_another_function_is_compared(run_sentinel, tree, entry, other):
    """Both revisions have the same code of the function to which the key led at first."""
    one, two = (REGISTERED.format(other=other, entry=text).replace("{other}", other) for text in ("", ENTRIES[entry]))
    answer = run_sentinel("diff", "tiny", tree("one", one), tree("two", two), "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert found["state"] == ("differs" if other == WRONG else "same numbers"), found
    assert found["judgement"] == ("worse" if other == WRONG else "")
    assert found["places"]["after"].startswith("tiny.losses.newer" if "decorator" in entry else "tiny.losses.other")
    if other == WRONG:
        assert "['mean'] now refers to " in found["sentence"]


def test_a_key_whose_first_function_stays_is_not_compared_with_the_second(run_sentinel, tree):
    code = REGISTERED.replace("LOSSES[name] = function", "LOSSES.setdefault(name, function)")
    one, two = (code.format(other=RIGHT, entry=text).replace("{other}", WRONG) for text in ("", ENTRIES["a decorator"]))
    answer = run_sentinel("diff", "tiny", tree("one", one), tree("two", two), "--json", *FEW)
    [found] = answer.json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("not examined", ""), found
    assert [each["function"] for each in found["unreached"]] == ["newer"]


@pytest.mark.parametrize("like", [True, False])
def test_an_import_that_leads_to_other_code_is_listed_for_an_unbound_function(run_sentinel, tree, tmp_path, like):
    """No line of a function differs, only the import statement above it."""
    unbound = "from tiny.{} import scaled\n" + CODE.format(returned=MENDED) + UNBOUND.format(by="scaled(2)")
    one, other = tree("one", unbound.format("first")), tree("other", unbound.format("second"))
    for name in ("one", "other"):
        for module, factor in (("first", 1), ("second", 1 if like else 2)):
            (tmp_path / name / "tiny" / f"{module}.py").write_text(f"def scaled(x):\n    return {factor} * x\n")
    answer = run_sentinel("diff", "tiny", one, other, *FEW)
    assert answer.status == (0 if like else 2), answer.out
    assert ("compute_advantages (scaled now refers to tiny.second.scaled)" in answer.out) is not like


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [True, False])
def test_a_name_that_an_import_binds_again_is_compared(run_sentinel, tree, tmp_path, wrong):
    code = CODE.format(returned=RIGHT)
    one, other = tree("one", code), tree("other", f"{code}\n\nfrom tiny.second import agg_loss\n")
    newer = code.replace(RIGHT, WRONG if wrong else f"1 * {RIGHT}")
    (tmp_path / "other" / "tiny" / "second.py").write_text(newer)
    [found] = run_sentinel("diff", "tiny", one, other, "--json", *FEW).json()["boundaries"]
    # a default of the new function is not examined
    assert (found["state"], found["judgement"]) == (("differs", "worse") if wrong else ("not examined", "")), found
    assert found["places"]["after"].startswith("tiny.losses.agg_loss (tiny/second.py:")


@pytest.mark.slow
def test_a_decorator_that_replaces_the_function_is_compared(run_sentinel, tree):
    code = CODE.format(returned=RIGHT)
    wrap = "import functools\n\n\ndef doubled(function):\n    @functools.wraps(function)\n"
    wrap += "    def twice(*a, **k):\n        return 2 * function(*a, **k)\n    return twice\n\n\n"
    one = wrap + code
    other = wrap + code.replace("def agg_loss", "@doubled\ndef agg_loss")
    [found] = run_sentinel("diff", "tiny", tree("one", one), tree("other", other), "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == ("differs", "worse"), found


@pytest.mark.slow
def test_a_removed_key_prevents_a_proof(run_sentinel, tree):
    code = REGISTERED.format(other=RIGHT, entry="")
    answer = run_sentinel(
        "diff", "tiny", tree("one", code), tree("two", code.replace('@registered("mean")\n', "")), *FEW
    )
    assert "module-level code that may change other functions: tiny/losses.py:" in answer.out
    marked = code.replace(
        "def other", "def marked(text):\n    return lambda function: function\n\n\n@marked('old')\ndef other"
    )
    refs = tree("marked", marked), tree("unmarked", marked.replace("@marked('old')\n", ""))
    assert "module-level code" not in run_sentinel("diff", "tiny", *refs, *FEW).out  # it keeps no functions


@pytest.mark.slow
def test_the_option_under_which_a_difference_shows_is_named(run_sentinel, tree, tiny_catalog, monkeypatch):
    adapter = tiny_catalog.adapters["tiny"]
    modes = {"loss_agg_mode": ("token-mean", "seq-mean-token-sum")}
    bindings = tuple(replace(each, accepts={**each.accepts, **modes}) for each in adapter.target.bindings)
    both = replace(adapter, target=replace(adapter.target, bindings=bindings))
    catalog = replace(tiny_catalog, adapters={"tiny": both}, recipe_folders=())
    monkeypatch.setattr("sentinel.recipes.catalog.bundled_catalog", lambda: catalog)
    code = CODE.format(returned=f"{RIGHT} if loss_agg_mode == 'token-mean' else (loss_mat * loss_mask).sum() * {{}}")
    answer = run_sentinel("diff", "tiny", tree("one", code.format(1)), tree("other", code.format(2)), "--examples=20")
    assert "loss is 2 times the previous value, if loss_agg_mode = 'seq-mean-token-sum'" in answer.out
    assert 'loss_agg_mode = "seq-mean-token-sum"' in answer.out


@pytest.mark.slow
@pytest.mark.parametrize("other", [RIGHT, WRONG], ids=["right", "wrong"])
def test_a_key_that_a_new_file_takes_over_is_compared(run_sentinel, tree, tmp_path, other):
    """A new file registers another function for the key. The file with the old function is unchanged."""
    code = REGISTERED.format(other=RIGHT, entry="")
    refs = [tree(name, code) for name in ("one", "other")]
    newer = ENTRIES["a decorator"].replace("{other}", other)
    (tmp_path / "other" / "tiny" / "more.py").write_text(
        f"from tiny import losses\n\n\n{newer}\n".replace("@", "@losses.")
    )
    [found] = run_sentinel("diff", "tiny", *refs, "--json", *FEW).json()["boundaries"]
    assert (found["state"], found["judgement"]) == (("differs", "worse") if other == WRONG else ("same numbers", ""))
    assert found["places"]["after"].startswith("tiny.more.newer (tiny/more.py:")
