import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import adopt_pins, load_recipe
from sentinel.recipes.digests import document_digest
from sentinel.reports import store
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def forge(evidence: Path, tiny: Any) -> Callable[[str, Change], Path]:
    """Write a changed copy of the buggy commit's evidence."""

    def write(name: str, change: Change) -> Path:
        document = json.loads((evidence / "tiny" / "TINY-MEAN" / f"git-{tiny.buggy[:12]}.json").read_text())
        change(document)
        file = Path(f"{name}.json")
        file.write_text(json.dumps(document))
        return file

    return write


@pytest.mark.slow
def test_verify_accepts_genuine_evidence(run_sentinel, mirrored, evidence, tiny):
    answer = run_sentinel("verify", evidence, "--json")
    found = {Path(item["evidence"]).name: item for item in answer.json()}
    assert answer.status == 0
    assert {name: item["outcome"] for name, item in found.items()} == {
        f"git-{tiny.buggy[:12]}.json": "same",
        f"git-{tiny.fixed[:12]}.json": "same",
        "git-main.json": "same",
        "git-pull-9-head.json": "undecided",
    }
    assert found["git-main.json"]["conclusion"] == "the same: every number is identical"
    assert found["git-main.json"]["subject"].endswith(f"at git:{tiny.fixed[:7]}")  # the commit of main at that time
    assert found["git-pull-9-head.json"]["conclusion"] == "the same verdict; there are no numbers to compare"
    assert "of this catalog" in found["git-main.json"]["recipe"]


FORGERIES: dict[str, tuple[Change, str]] = {
    "observation": (lambda d: d["observation"][""]["loss"].update(tensor=27.0), "loss: 27.0 recorded, 26.0 now"),
    "behaviour": (lambda d: d["observed_bad_behavior"].update(loss=99.0), "observed_bad_behavior.loss: 99.0 recorded"),
    "comparison": (lambda d: d["comparison"][0].update(unpatched=99.0), "comparison.loss.unpatched: 99.0 recorded"),
    "expectation": (
        lambda d: d["expectation"]["fixed"]["loss"].update(value=2.0),
        "expectation: the evidence differs from its recipe",
    ),
    "scenario": (
        lambda d: d["scenario"]["variants"][""].update(loss_agg_mode="x"),
        "scenario: loss_agg_mode differs from",
    ),
    "more scenario": (
        lambda d: d["scenario"]["variants"].update(other={}),
        "scenario: the variants in the evidence are not",
    ),
    "blob": (lambda d: d["boundary"].update(blob="0" * 40), "tiny/losses.py: blob 0000"),
    "file": (
        lambda d: d.update(boundary={**d["boundary"], "file": "x.py"}, adapter="sha256:" + 64 * "0"),
        "x.py: file x",
    ),
    "line": (lambda d: d["boundary"].update(line=77), "tiny/losses.py: line 77 recorded, 2 now"),
    "commit": (lambda d: d["checkout"].update(commit="0" * 40), "commit: 0000"),
    "tree": (lambda d: d["checkout"].update(tree="0" * len(d["checkout"]["tree"])), "tree: 000000000000 recorded"),
    "other ref": (lambda d: d.update(ref="git:main", checkout=None), "newly fixed: reproduced -> fixed"),
}


def test_verify_detects_every_forgery(run_sentinel, mirrored, forge):
    files = {name: forge(name, change) for name, (change, _) in FORGERIES.items()}
    answer = run_sentinel("verify", *files.values(), "--json")
    assert answer.status == 1
    found = {Path(item["evidence"]).stem: item for item in answer.json()}
    for name, (_, sentence) in FORGERIES.items():
        assert found[name]["outcome"] == "different", name
        assert any(sentence in line for line in found[name]["differences"]), (name, found[name]["differences"])


def _with_recipe(document: dict[str, Any], **changes: Any) -> None:
    """Change the recipe in evidence, and its digest."""
    document["recipe"]["document"] |= changes
    document["recipe"]["digest"] = document_digest(document["recipe"]["document"])


@pytest.mark.parametrize("digest", ["1" * 64, None])
def test_a_recipe_with_a_wrong_digest_is_rejected(run_sentinel, mirrored, forge, digest):
    def change(document: dict[str, Any]) -> None:
        document["recipe"]["document"]["title"] = "x"
        document["recipe"]["digest"] = f"sha256:{digest}" if digest else document["recipe"]["digest"]

    answer = run_sentinel("verify", forge("forged", change))
    assert answer.status == 1
    assert answer.out.endswith("\nthe recipe in the file does not match its digest\n")


def test_a_different_recipe_of_a_known_bug_is_reported_first(run_sentinel, mirrored, forge):
    def swap(document: dict[str, Any]) -> None:
        _with_recipe(document, expected_unpatched={"loss": 1.0}, expected_fixed={"loss": 26.0})

    first = run_sentinel("verify", forge("swapped", swap)).out.splitlines()[0]
    assert "by a recipe other than the catalog's TINY-MEAN: reproduced at git:" in first
    assert "TINY-MEAN was" not in first


COULD_NOT: dict[str, tuple[Change, str]] = {
    "boundary": (lambda d: _with_recipe(d, boundary="os.system"), "'os.system' is outside the target's package tiny"),
    "another bug": (lambda d: _with_recipe(d, bug_id="ANOTHER"), "is about tiny ANOTHER, but"),
    "commit": (lambda d: d.update(ref="git:" + "a" * 40), "is not in the mirror"),
    "target": (lambda d: d.update(target="nope"), "no adapter for target 'nope'"),
    "law": (lambda d: d.update(bug_id=""), "is of the law None"),
    "work tree": (lambda d: d.update(ref="path", checkout={**d["checkout"], "dirty": True}), "--repo DIR"),
    "version": (lambda d: d.update(schema_version=99), "schema version 99"),
    "folder": (lambda d: d.update(ref="path:/"), "the evidence names a folder, which a run never writes"),
    "release": (
        lambda d: d.update(ref="pypi:latest", checkout={**d["checkout"], "commit": None, "version": "1; rm"}),
        "not a ref: 'pypi:1; rm'",
    ),
}


def test_evidence_that_cannot_be_checked_has_a_reason(run_sentinel, mirrored, forge):
    files = {name: forge(name, change) for name, (change, _) in COULD_NOT.items()}
    Path("broken.json").write_text("{")
    answer = run_sentinel("verify", *files.values(), "broken.json", "missing.json", "--json")
    found = {Path(item["evidence"]).stem: item for item in answer.json()}
    for name, (_, sentence) in COULD_NOT.items():
        assert found[name]["outcome"] == "could not", name
        assert sentence in found[name]["conclusion"], (name, found[name]["conclusion"])
    assert "not JSON" in found["broken"]["conclusion"]
    assert "cannot be read" in found["missing"]["conclusion"]
    assert answer.status == 2


def test_evidence_cannot_set_options(run_sentinel, mirrored, forge):
    """The user's options choose containment, device and interpreter. A difference from the evidence is reported."""
    claimed = {"sandbox": "off", "device": "cuda:0;rm", "python": "2.7", "platform": "x"}
    answer = run_sentinel("verify", forge("claims", lambda d: d["environment"].update(claimed)), "--sandbox=basic")
    assert answer.status == 0, answer.out + answer.err
    for line in ("sandbox: off recorded, basic now", "device: cuda:0;rm recorded, cpu now", "python: 2.7 recorded"):
        assert line in answer.out


@pytest.mark.parametrize("change", [
    {"bugs": {}}, {"bugs": []}, {"bugs": {"x": {}}}, {"bugs": {"x": {"base": None}}}, {"bugs": {"x": {"base": {}}}},
    {"contribution_version": 2}, {"contribution_version": None}, {"runner": "x"}, {"runner": {}}, {"target": 5},
    {"fix": {"file": "x"}}, {"tried": []}, {"related": [5]}, {"reason": None},
], ids=str)  # fmt: skip
def test_a_malformed_contribution_is_reported_in_one_sentence(run_sentinel, evidence, tiny, change):
    side = json.loads((evidence / "tiny" / "TINY-MEAN" / f"git-{tiny.buggy[:12]}.json").read_text())
    whole = {"contribution_version": 1, "target": "tiny", "bugs": {"TINY-MEAN": {"base": side}}, "fix": None}
    whole |= {"tried": None, "related": [], "reason": "", "runner": {"sides": {"base": "fixed"}, "packages": []}}
    Path("evidence.json").write_text(json.dumps({**whole, **change}))
    answer = run_sentinel("verify", "evidence.json")
    assert answer.status == 2
    assert "could not be verified: evidence.json: not a contribution: at $." in answer.out or (
        "could not be verified: evidence.json: x, base: not valid evidence: at $" in answer.out
    )


def test_the_copy_of_the_recipe_is_verified_on_a_working_tree(run_sentinel, mirrored, forge, tiny):
    inside = forge("inside", lambda d: _with_recipe(d, story="told otherwise"))
    clean = forge("clean", lambda d: d.update(ref="path"))
    answer = run_sentinel("verify", inside, clean)
    assert answer.status == 0
    assert "recipe: the copy inside the evidence; the recipe of this catalog differs" in answer.out
    assert answer.out.count("the same: every number is identical") == 2
    other = run_sentinel("verify", clean, "--repo", tiny.upstream)  # main is at the fixed commit
    assert other.status == 2
    assert "could not be verified: the evidence is about code with tree hash" in other.out


def test_a_published_recipe_is_verified_from_its_evidence(run_sentinel, mirrored, tiny, tiny_catalog, tmp_path):
    blob = {
        "bug_id": "TINY-MEAN",
        "validation_mode": "hook",
        "hooked_boundary": "tiny.losses.agg_loss",
        "expected_invariant": "masked tokens do not count",
        "constructed_scenario": {
            "loss_mat": [[1.0, 100.0], [1.0, -50.0]],
            "response_mask": [[1, 0], [1, 0]],
            "loss_agg_mode": "token-mean",
        },
        "expected_unpatched": {"loss": 26.0},
        "expected_fixed": {"loss": 1.0},
    }
    (tmp_path / "published.json").write_text(json.dumps(blob))
    native = load_recipe(tiny.recipe, tiny_catalog)
    recipe = adopt_pins(load_recipe(tmp_path / "published.json", tiny_catalog), {native.bug_id: native})
    runner = Runner(tiny_catalog, lambda t, ref, pull: open_checkout(t, ref, pull=pull), Options())
    try:
        file = store.write(tmp_path / "reports", runner.decide(Job(recipe, Ref("git", tiny.buggy))))
    finally:
        runner.close()
    answer = run_sentinel("verify", file)
    assert answer.status == 0, answer.out
    assert "the copy inside the evidence" in answer.out


def test_report_shows_the_last_run(run_sentinel, evidence, tiny):
    import shutil

    shutil.copytree(evidence, "sentinel-reports")
    item = {"evidence": f"tiny/TINY-MEAN/git-{tiny.buggy[:12]}.json", "outcome": "passed"}
    Path("sentinel-reports/run.json").write_text(json.dumps({"items": [item]}))
    text = run_sentinel("report").out
    assert "reproduced  passed" in text
    assert "fixed  " not in text
    Path("sentinel-reports/run.json").write_text("[]")
    answer = run_sentinel("report")
    assert answer.status == 2
    assert "run.json: not the run.json of a run; run pytest again" in answer.err


@pytest.mark.parametrize("command", [("report",), ("report", "accept")], ids=" ".join)
def test_report_without_a_run_is_an_error(run_sentinel, command):
    answer = run_sentinel(*command)
    assert answer.status == 2
    assert answer.err.startswith("nothing was examined: no such folder: sentinel-reports; run pytest")
    Path("sentinel-reports").mkdir()
    assert "sentinel-reports has no evidence" in run_sentinel(*command).err


def test_evidence_folders_come_from_the_settings(run_sentinel, mirrored, evidence, tiny, monkeypatch):
    """Commands read the folder that the settings give to a run. The command line takes precedence."""
    Path("sentinel.toml").write_text(f'report-dir = "{evidence}"\nbaseline = "accepted"\nrepo = "nowhere"\n')
    assert "1 reproduced, 1 unavailable, 2 fixed" in run_sentinel("report").out
    assert str(evidence) in run_sentinel("show", "TINY-MEAN").out
    assert "accepted" in run_sentinel("report", "changes", "--no-bisect").err  # the folder does not exist yet
    assert run_sentinel("report", "accept").out.endswith("4 lines changed\n")
    assert Path("accepted/tiny.jsonl").is_file()
    out = run_sentinel("report", "changes", "--no-bisect").out
    assert out.startswith(f"3 verdicts of {evidence} compared with {Path.cwd() / 'accepted'}, which has 4 verdicts")
    assert "\nnot decided:\n  unavailable: " in out
    assert "baseline" in run_sentinel("show", "TINY-MEAN").out
    assert run_sentinel("report", "findings", "--json").json()[0]["steps"][-1]["because"] == "fixed at git:main"
    assert run_sentinel("report", "site").status == 0
    for command in (("report", "--from"), ("report", "accept", "--from"), ("report", "changes", "--baseline")):
        assert "no such folder: elsewhere" in run_sentinel(*command, "elsewhere").err
    Path("sentinel.toml").unlink()
    monkeypatch.setenv("OUTPUT_DIR", str(evidence))  # a run uses it too
    assert run_sentinel("report").status == 0


def test_accept_updates_and_prunes_a_baseline(run_sentinel, evidence, tiny):
    answer = run_sentinel("report", "accept", "--from", evidence)
    assert answer.status == 0
    assert f"reports/tiny/TINY-MEAN/git-{tiny.buggy[:12]}.json: new: reproduced" in answer.out
    assert answer.out.endswith("4 lines changed\n")
    again = run_sentinel("report", "accept", "--from", evidence, "--to", "reports")
    assert again.out == f"4 verdicts of {evidence} compared: 0 lines changed\n"
    lines = Path("reports/tiny.jsonl")
    before = lines.read_text()
    lines.write_text(before.replace(f"git:{tiny.buggy}", "git:old"))
    assert "git-old.json: removed" in run_sentinel("report", "accept", "--from", evidence, "--prune").out
    assert lines.read_text() == before


def test_show_prints_the_last_verdicts(run_sentinel, evidence, tiny):
    import shutil

    shutil.copytree(evidence, "sentinel-reports")
    run_sentinel("report", "accept")
    Path("sentinel-reports/tiny/TINY-MEAN/git-main.json").write_text("{")
    answer = run_sentinel("show", "TINY-MEAN")
    assert "git-main.json:1:2: not JSON" in answer.err
    rows = {line.split()[0]: line.split()[1:] for line in answer.out.splitlines() if line.startswith("git:")}
    assert rows[f"git:{tiny.buggy}"] == ["reproduced", "reproduced", "reproduced", "before"]
    assert rows["git:main"] == ["fixed", "watched"]
    assert rows["git:pull/9/head"] == ["unavailable", "(ref)", "unavailable", "(ref)"]
