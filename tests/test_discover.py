import json
from pathlib import Path
from typing import Any

import pytest
from demo_kit import REJECTED_ROW, copy_demo, write_recipe

from sentinel.cli import main
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import SentinelError
from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search import discovery, saving

pytestmark = pytest.mark.usefixtures("warm_runs")


@pytest.fixture(autouse=True)
def _little_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "SHRINKING", 50)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(list(arguments))
        except SystemExit as error:
            status = int(str(error.code))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.slow
def test_the_same_seed_gives_the_same_findings(said, broken_tree):
    command = ("discover", "demo", "--ref", f"path:{broken_tree}", "--examples", "60", "--seed", "3", "--json")
    first, second = said(*command), said(*command)
    assert first[0] == second[0] == 1
    documents = [json.loads(out) for _, out, _ in (first, second)]
    assert documents[0] == documents[1]
    for finding in documents[0]["findings"]:
        assert {"boundary", "law", "scenario", "observed", "demanded", "confirmed", "known_as"} <= set(finding)
    assert documents[0]["examples"] == 60
    assert documents[0]["not_searched"] == []


@pytest.mark.slow
def test_a_saved_finding_runs_at_once(said, demo_home, demo_repository, pytester):
    ref = f"git:{demo_repository.commits['broken']}"
    law = ("--boundary", "group_advantage", "--law", "a_rejected_row*")
    status, _, _ = said("discover", "demo", "--ref", ref, *law, "--examples", "20", "--seed", "1", "--save", "found")
    assert status == 1
    files = sorted(Path("found").glob("*.yaml"))
    assert files
    for file in files:
        assert load_recipe(file, bundled_catalog()).pins
        assert said("recipe", "check", str(file))[0] == 0
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *(str(file.absolute()) for file in files))
    result.assert_outcomes(xfailed=len(files))
    # Fixed by hand, as upstream would. The law holds again, and the recipe's verdict is fixed.
    mended = f"--sentinel-ref=git:{demo_repository.commits['fixed']}"
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", mended, *(str(file.absolute()) for file in files))
    result.assert_outcomes(passed=len(files))


def test_discover_exits_with_2_when_nothing_was_decided(said, tmp_path):
    tree = copy_demo(tmp_path / "tree", "fixed")
    code = "import a_rare_package.parts\n\n\ndef agg_loss(loss_mat, loss_mask, loss_agg_mode='token-mean'):\n"
    code += "    return a_rare_package.parts.mean(loss_mat, loss_mask)\n"
    (tree / "demo_rl" / "losses.py").write_text(code)
    only = ("--boundary", "agg_loss", "--examples", "20", "--seed", "1")
    status, out, err = said("discover", "demo", "--ref", f"path:{tree}", *only)
    assert status == 2
    assert "not searched: demo_rl.losses.agg_loss: every call raised: " in out
    assert err.splitlines()[-1].startswith("nothing was examined: ")
    assert "install a_rare_package in the environment of the probes" in out


@pytest.mark.slow
def test_an_interrupt_while_findings_are_compared_loses_none(said, broken_tree, tmp_path, monkeypatch):
    write_recipe(tmp_path / "mine", REJECTED_ROW)

    def interrupted(runner: Runner, job: Job) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "decide", interrupted)
    law = ("--boundary", "group_advantage", "--law", "a_rejected_row*", "--recipes", "mine", "--save")
    status, out, _ = said("discover", "demo", "--ref", f"path:{broken_tree}", *law, "--examples", "20", "--seed", "1")
    assert status == 1
    assert "1. demo_rl.advantages.group_advantage breaks a_rejected_row_is_an_absent_row" in out
    assert "not compared with known recipes: interrupted" in out
    assert "1 finding, 0 of them new, 1 not compared with known recipes" in out
    assert list(tmp_path.glob("*.yaml")) == []  # a finding that may be known is not saved


@pytest.mark.slow
def test_a_finding_that_cannot_be_saved_does_not_keep_others_from_being_saved(said, broken_tree, monkeypatch):
    drafts = iter([SentinelError("the draft is invalid")])

    def draft(*arguments: Any) -> dict[str, Any]:
        for error in drafts:
            raise error
        return saving.decisive_document(*arguments)

    monkeypatch.setattr("sentinel.commands.discover.decisive_document", draft)
    ref = ("--ref", f"path:{broken_tree}", "--examples", "60", "--seed", "3")
    status, out, err = said("discover", "demo", *ref, "--save", "found")
    assert (status, out.count("not saved: the draft is invalid")) == (2, 1)
    assert out.count("saved as found/") == len(list(Path("found").glob("*.yaml"))) > 0
    assert err.splitlines()[-1].endswith("the draft is invalid")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["dem"], "did you mean 'demo'"),
        (
            ["demo", "--boundary", "agg_los"],
            "does not bind 'agg_los'; the nearest bound function is demo_rl.losses.agg_loss",
        ),
        (["demo", "--law", "no_law"], "no law matches 'no_law'"),
        (["demo", "--budget", "soon"], "'soon' is not a duration; write 60s, 10m or 1h"),
        (["demo", "--examples", "0"], "'0' is not a number of scenarios"),
        (["demo", "--examples", "5", "--budget", "5s"], "not allowed with"),
        (["demo", "--ref", "HEAD"], "not a ref: 'HEAD'"),
    ],
)
def test_an_invalid_argument_names_the_valid_ones(arguments, sentence, said):
    status, _, err = said("discover", *arguments)
    assert status == 2
    assert sentence in err
