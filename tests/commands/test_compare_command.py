"""``sentinel compare``: who means the same, what explains it where they do not, and wrong input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sentinel.recipes.catalog
from sentinel.recipes.catalog import Catalog

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")

MEAN = "(loss_mat * loss_mask).sum() / loss_mask.sum().clamp(min=1)"
#: The mean over sequences, whether they have a token that counts or not.
ROWS = "((loss_mat * loss_mask).sum(-1) / loss_mask.sum(-1).clamp(min=1)).mean()"
CODE = "def agg_loss(loss_mat, loss_mask, loss_agg_mode='token-mean'):\n    return {returned}\n"
DIALECT = 'dialects=(Dialect("empty_rows", "counted", "it divides by all rows", "https://example.org"),),'

Compare = Callable[..., Any]


@pytest.fixture
def compare(
    run_sentinel: Any, tiny_catalog: Catalog, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Compare:
    """``compare(*arguments, other=code, declared=...)``: tiny's main beside a second framework of that code."""

    def run(
        *arguments: str,
        other: str = MEAN,
        declared: str = "",
        mode: str = "token-mean",
        both: bool = False,
        preload: str = "",
    ) -> Any:
        text = (tiny.recipe.parents[2] / "adapters" / "tiny.py").read_text().replace('"tiny"', '"other"')
        text = text.replace("tiny.losses", "other.losses").replace("Binding, ", "Binding, Dialect, ")
        text = text.replace("    pypi=", f"    preload=({preload!r},),\n    pypi=") if preload else text
        text = text.replace('"token-mean"', f"{mode!r}, 'seq-mean-token-mean'" if both else repr(mode))
        folder = tmp_path / f"tree{len(list(tmp_path.iterdir()))}"
        (folder / "other").mkdir(parents=True)
        (folder / "other" / "__init__.py").touch()
        (folder / "other" / "losses.py").write_text(CODE.format(returned=other))
        (folder / "other.py").write_text(text.replace('outputs=("loss",),', f'outputs=("loss",), {declared}'))
        catalog = tiny_catalog.with_(adapters=[folder / "other.py"])
        monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: catalog)
        return run_sentinel("compare", *arguments, "--ref", f"other=path:{folder}", "--ref", "tiny=git:main")

    return run


def test_two_of_one_meaning_are_as_it_is_defined(compare):
    answer = compare("loss_aggregation", "--json")
    assert answer.status == 0, answer.err
    [row] = answer.json()["rows"]
    assert row["classes"] == [["the definition", "tiny agg_loss", "other agg_loss"]]
    assert (row["where"], row["apart"]) == ({"loss_agg_mode": "token-mean"}, [])
    assert min(row["scenarios"].values()) >= 30
    assert row["places"] == {"tiny agg_loss": "tiny/losses.py:2", "other agg_loss": "other/losses.py:1"}


def test_what_nothing_explains_is_shown_on_the_smallest_scenario(compare):
    answer = compare("loss_aggregation", other=f"2 * {MEAN}")
    assert answer.status == 1
    assert "2 functions of 2 frameworks mean 2 things; 1 as it is defined" in answer.out
    assert "the definition and other agg_loss: unexplained: other agg_loss is not as it is defined" in answer.out
    assert "    loss_mat = [[1.0]]; response_mask = [[1]]\n    loss is 1 and 2\n" in answer.out
    assert answer.out.endswith("1 unexplained; 2 answers of functions compared, 0 not compared\n")


def test_a_declared_dialect_explains_what_it_speaks_of_and_nothing_else(compare):
    answer = compare("loss_aggregation", "--json", other=ROWS, declared=DIALECT, mode="seq-mean-token-mean")
    assert answer.status == 0, answer.out
    [row] = [row for row in answer.json()["rows"] if row["apart"]]
    [apart] = row["apart"]
    assert apart["why"] == "empty_rows is absent and counted"
    assert apart["scenario"].startswith("loss_mat = [[1.0], [1.0]]; ")
    halved = compare("loss_aggregation", other=f"{ROWS} / 2", declared=DIALECT, mode="seq-mean-token-mean")
    assert halved.status == 1
    assert "unexplained: other agg_loss" in halved.out


def test_a_known_bug_explains_where_it_is_there_and_not_where_it_is_mended(compare, tiny, run_sentinel):
    there = run_sentinel("compare", "loss_aggregation", "--ref", f"git:{tiny.buggy}")
    assert (there.status, "known: TINY-MEAN" in there.out) == (0, True), there.out
    assert "TINY-MEAN" not in run_sentinel("compare", "loss_aggregation", "--ref", "git:main").out


def test_rounding_and_what_is_not_finite_are_no_other_meaning(compare):
    rewritten = "((loss_mat * loss_mask) / loss_mask.sum()).sum()"  # NaN of a batch of no token
    assert compare("loss_aggregation", other=rewritten).status == 0


def test_all_writes_the_page_and_the_data_with_a_batch_in_numbers(compare, tmp_path, monkeypatch):
    answer = compare("--all", "--examples", "10", other=f"2 * {MEAN}")
    assert answer.status == 1
    page = Path("docs/dialects.md").read_text()
    told = json.loads(Path("reports/dialects.json").read_text())
    [row] = told["rows"]
    assert (row["title"], row["unexplained"]) == ("Loss aggregation: loss_agg_mode = token-mean", 1)
    one, other = float(row["alike"]["the definition"]), float(row["alike"]["other agg_loss"])
    assert (one != 0, other) == (True, pytest.approx(2 * one, rel=1e-3))
    assert row["alike"]["tiny agg_loss"] == row["alike"]["the definition"]
    assert "2 functions of 2 frameworks mean 2 things; 1 as it is defined |  | 1 |" in page
    assert "| tiny agg_loss tiny/losses.py:2 | as defined |" in page
    assert "| other agg_loss other/losses.py:1 | A |" in page


def test_another_precision_is_a_twin(compare):
    """One of them is wrong in bfloat16 alone."""
    answer = compare("loss_aggregation", "--json", other=f"(1 if '32' in str(loss_mat.dtype) else 2) * {MEAN}")
    [row] = json.loads(answer.out)["rows"]
    assert row["headline"].endswith("mean 1 thing; 2 as it is defined")
    assert "float32" not in row["coarse"]["tiny agg_loss"]
    value, told = row["coarse"]["other agg_loss"].split(", and ")
    assert told == f"{row['alike']['other agg_loss']} in float32"
    assert float(value) == pytest.approx(2 * float(row["alike"]["other agg_loss"]), rel=1e-2)


def test_defaults_are_those_that_the_code_declares(compare, tiny, tmp_path):
    """In the tree at the ref, by the option that options.toml names."""
    file = tiny.recipe.parent.parent / "other" / "options.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        '[[options]]\nname = "T"\nkind = "classes"\nfile = "other/losses.py"\nclass = "Config"\n'
        '[defaults.loss_aggregation]\nloss_agg_mode = {option = "agg", is = {rows = "seq-mean-token-mean"}}\n'
    )
    two = f"{ROWS} if 'seq' in loss_agg_mode else {MEAN}\n\nfrom dataclasses import dataclass\n\n"
    two += "@dataclass\nclass Config:\n    agg: str = 'rows'\n"
    try:
        answer = compare("loss_aggregation", "--json", other=two, declared=DIALECT, mode="token-mean", both=True)
    finally:
        file.unlink()
    row = next(row for row in answer.json()["rows"] if row["title"].endswith("loss_agg_mode = token-mean"))
    value, said = row["usual"]["other agg_loss"].split(", ")
    assert said == "with loss_agg_mode = seq-mean-token-mean (agg)"
    assert value != row["alike"]["other agg_loss"]


@pytest.mark.parametrize("preload", ["", pytest.param("transformers", marks=pytest.mark.nightly)])
def test_a_family_of_packages_is_loaded_for_targets_that_name_it_alone(compare, preload):
    if preload:
        pytest.importorskip(preload)
    seen = "(2 if 'transformers' in __import__('sys').modules else 1)"
    [row] = compare("loss_aggregation", "--json", other=f"{seen} * {MEAN}", preload=preload).json()["rows"]
    assert row["headline"].endswith(f"{1 if preload else 2} as it is defined")


@pytest.mark.parametrize("preload", ["no_such_package", "torch._dynamo"])
def test_a_package_that_a_target_wants_is_named(compare, preload):
    """What lies inside of a package is there with it."""
    wanting = f"{MEAN}\n\nfrom no_such_package import Base\n\nclass Config(Base):\n    pass\n\nNAMES = Config.fields\n"
    answer = compare("loss_aggregation", other=wanting, preload=preload)
    [line] = [line for line in answer.out.splitlines() if "not compared: other" in line]
    lacking = f"; other wants {preload}, not installed here: pip install {preload}"
    assert line.endswith(lacking) == ("." not in preload)
    assert ("other wants" in line) == ("." not in preload)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loss_agregation"], "is no contract and no row of the table — did you mean 'loss_aggregation'?"),
        (["grp"], "did you mean 'grpo'?"),
        (["kl_estimate"], "nothing of tiny is bound to the contract kl_estimate"),
        (["call"], "has no definition"),
        ([], "name a contract"),
        (["loss_aggregation", "--all"], "name a contract"),
        (["loss_aggregation", "--examples", "0"], "at least one scenario has to be drawn"),
        (["loss_aggregation", "--targets", "tinny"], "unknown target 'tinny' — did you mean 'tiny'?"),
        (["loss_aggregation", "--ref", "git:nowhere"], "the mirror has no branch, tag or commit 'nowhere'"),
        (["loss_aggregation", "--ref", "nonsense"], "nonsense"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(run_sentinel, arguments, said):
    answer = run_sentinel("compare", *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") <= 2


def test_a_target_that_cannot_be_had_is_named_and_the_rest_is_compared(compare, run_sentinel):
    compare("loss_aggregation")  # leaves the catalog of two
    answer = run_sentinel("compare", "loss_aggregation")
    assert answer.status == 0
    assert "not compared: other: no mirror of other; run `sentinel mirror add other`" in answer.out
    assert "1 function of 1 framework mean 1 thing" in answer.out
    refused = run_sentinel("compare", "loss_aggregation", "--ref", "tiny=git:nowhere")
    assert (refused.status, refused.out) == (2, "")
    assert "the mirror has no branch, tag or commit 'nowhere'" in refused.err


def test_ctrl_c_shows_what_was_compared_until_then(run_sentinel, monkeypatch, compare):
    from sentinel.commands import compare as command  # whatever was imported anew, it asks the class that it has

    agreement = command.frameworks.Agreement
    of = agreement.of

    def once(self: Any, row: Any, members: Any) -> Any:
        monkeypatch.setattr(agreement, "of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        return of(self, row, members)

    monkeypatch.setattr(agreement, "of", once)
    answer = compare("loss_aggregation", mode="token-sum", other="(loss_mat * loss_mask).sum()")
    assert answer.status == 130
    assert "tiny agg_loss" in answer.out
    assert answer.out.endswith("0 unexplained; 1 answers of functions compared, 0 not compared; interrupted\n")
