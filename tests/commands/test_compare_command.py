from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sentinel.recipes.catalog
from sentinel.recipes.catalog import Catalog

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")

MEAN = "(loss_mat * loss_mask).sum() / loss_mask.sum().clamp(min=1)"
CODE = "def agg_loss(loss_mat, loss_mask, loss_agg_mode='token-mean'):\n    return {returned}\n"

Compare = Callable[..., Any]


@pytest.fixture
def compare(
    run_sentinel: Any, tiny_catalog: Catalog, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Compare:
    """Return a function that runs the command on tiny's main and a second framework with the code ``other``."""

    recipe = tiny.recipe

    def run(
        *arguments: str,
        other: str = MEAN,
        declared: str = "",
        mode: str = "token-mean",
        preload: str = "",
        tiny: str = "git:main",
    ) -> Any:
        text = (recipe.parents[2] / "adapters" / "tiny.py").read_text().replace('"tiny"', '"other"')
        text = text.replace("tiny.losses", "other.losses")
        text = text.replace("    pypi=", f"    preload=({preload!r},),\n    pypi=") if preload else text
        text = text.replace('"token-mean"', repr(mode))
        folder = tmp_path / f"tree{len(list(tmp_path.iterdir()))}"
        (folder / "other").mkdir(parents=True)
        (folder / "other" / "__init__.py").touch()
        (folder / "other" / "losses.py").write_text(CODE.format(returned=other))
        (folder / "other.py").write_text(text.replace('outputs=("loss",),', f'outputs=("loss",), {declared}'))
        catalog = tiny_catalog.with_(adapters=[folder / "other.py"])
        monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: catalog)
        return run_sentinel("compare", *arguments, "--ref", f"other=path:{folder}", "--ref", f"tiny={tiny}")

    return run


@pytest.mark.slow
def test_equal_functions_agree(compare):
    answer = compare("loss_aggregation", "--json")
    assert answer.status == 0, answer.err
    [function] = answer.json()["functions"]
    assert (answer.json()["reference"], function["function"]) == ("tiny agg_loss", "other agg_loss")
    assert (function["differences"], function["place"]) == ([], "other/losses.py:1")
    assert function["scenarios"] >= 30


@pytest.mark.slow
def test_a_difference_is_shown_on_the_smallest_scenario_with_both_definitions(compare):
    answer = compare("loss_aggregation", other=f"2 * {MEAN}")
    assert answer.status == 1
    assert "    loss_mat = [[1.0]]\n    response_mask = [[1]]\n" in answer.out
    assert "  loss of tiny agg_loss: 1; the definition: 1\n" in answer.out
    assert "  loss of other agg_loss: 2; the definition: 1\n" in answer.out
    assert answer.out.endswith("compared with tiny agg_loss: 0 agree, 1 differ, 0 not compared\n")


@pytest.mark.slow
def test_each_function_is_called_with_its_own_settings(compare):
    fixed = 'fixed={"batch_num_tokens": 4},'
    answer = compare("loss_aggregation", other="(loss_mat * loss_mask).sum() / 4", declared=fixed)
    assert answer.status == 1, answer.out
    assert "    batch_num_tokens: None for tiny agg_loss, 4 for other agg_loss\n" in answer.out
    values = [line.split(": ", 1)[1] for line in answer.out.splitlines() if line.startswith("  loss of ")]
    for returned, defined in (value.split("; the definition: ") for value in values):
        assert returned == defined


def test_functions_without_a_common_choice_are_not_compared(compare):
    answer = compare("loss_aggregation", mode="token-sum", other="(loss_mat * loss_mask).sum()")
    assert answer.status == 2
    assert "not compared: other agg_loss: no value of loss_agg_mode is accepted by both functions" in answer.out


@pytest.mark.slow
def test_known_bugs_are_named_when_present(compare, tiny, run_sentinel):
    there = compare("loss_aggregation", "--targets", "other,tiny", tiny=f"git:{tiny.buggy}")
    assert (there.status, "known bugs of tiny agg_loss: TINY-MEAN" in there.out) == (1, True), there.out
    assert "TINY-MEAN" not in compare("loss_aggregation", "--targets", "other,tiny").out


@pytest.mark.slow
def test_rounding_and_non_finite_numbers_are_not_differences(compare):
    rewritten = "((loss_mat * loss_mask) / loss_mask.sum()).sum()"  # NaN if no token counts
    assert compare("loss_aggregation", other=rewritten).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["no_such_package", "torch._dynamo"])
def test_a_missing_package_of_a_target_is_named(compare, preload):
    wanting = f"{MEAN}\n\nfrom no_such_package import Base\n\nclass Config(Base):\n    pass\n\nNAMES = Config.fields\n"
    answer = compare("loss_aggregation", other=wanting, preload=preload)
    [line] = [line for line in answer.out.splitlines() if "not compared: other" in line]
    lacking = f"; other needs {preload}, not installed here: pip install {preload}"
    assert line.endswith(lacking) == ("." not in preload)
    assert ("other needs" in line) == ("." not in preload)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loss_agregation"], "is not a contract — did you mean 'loss_aggregation'?"),
        (["grp"], "did you mean 'grpo'?"),
        (["kl_estimate"], "no function of tiny is bound to the contract kl_estimate"),
        (["call"], "has no oracle"),
        (["loss_aggregation", "--examples", "0"], "must be at least 1"),
        (["loss_aggregation", "--targets", "tinny"], "unknown target 'tinny' — did you mean 'tiny'?"),
        (["loss_aggregation", "--ref", "git:nowhere"], "the mirror has no branch, tag or commit 'nowhere'"),
        (["loss_aggregation", "--ref", "nonsense"], "nonsense"),
    ],
)
def test_compare_rejects_invalid_input_in_one_sentence(run_sentinel, arguments, said):
    answer = run_sentinel("compare", *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") <= 2


def test_an_unavailable_target_is_named(compare, run_sentinel):
    compare("loss_aggregation")  # leaves the catalog of two
    answer = run_sentinel("compare", "loss_aggregation")
    assert answer.status == 2
    assert "not compared: other: no mirror of other; run `sentinel mirror add other`" in answer.out
    refused = run_sentinel("compare", "loss_aggregation", "--ref", "tiny=git:nowhere")
    assert (refused.status, refused.out) == (2, "")
    assert "the mirror has no branch, tag or commit 'nowhere'" in refused.err


def test_ctrl_c_prints_the_finished_comparisons(monkeypatch, compare):
    from sentinel.tools.compare.commands import compare as command  # a later import may give another module object

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Frameworks, "_compare", stop)
    answer = compare("loss_aggregation")
    assert answer.status == 130
    assert answer.out.endswith("compared with tiny agg_loss: 0 agree, 0 differ, 0 not compared; interrupted\n")
