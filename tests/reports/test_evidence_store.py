import errno
import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from sentinel.errors import SentinelError
from sentinel.reports import store
from sentinel.reports.evidence import evidence
from sentinel.targets.refs import Ref

PLACE = "roll/ROLL-AGGLOSS-TOKENMEAN-MASK/git-c09bc8bc9f43.json"


def test_evidence_round_trips(decide, tmp_path):
    file = store.write(tmp_path / "reports", decide())
    assert file == tmp_path / "reports" / PLACE
    assert store.load(file) == evidence(decide())
    assert store.find(tmp_path / "reports", decide()) == evidence(decide())
    assert store.find(tmp_path / "reports", decide(ref=Ref("git", "main"), checkout=None)) is None
    assert [item.name for item in file.parent.iterdir()] == [file.name], "no temporary file is left"


def test_only_a_new_folder_gets_a_gitignore(decide, tmp_path):
    new, old = tmp_path / "a" / "sentinel-reports", tmp_path / "reports"
    old.mkdir()
    store.write(new, decide())
    store.write(old, decide())
    assert "*" in (new / ".gitignore").read_text().split()
    assert not (old / ".gitignore").exists()


@pytest.mark.parametrize(
    ("ref", "checkout", "name"),
    [
        (Ref("git", "main"), False, "git-main.json"),
        (Ref("git", "pull/12/head"), False, "git-pull-12-head.json"),
        (Ref("pypi", "0.9.1"), False, "pypi-0.9.1.json"),
        (Ref("path", "/home/alice/verl"), True, "path-333333333333.json"),
        (Ref("path", "/home/alice/verl"), False, "path-absent.json"),
        (Ref("installed"), False, "installed-absent.json"),
    ],
)
def test_each_ref_has_its_own_file_name(decide, ref, checkout, name):
    there = replace(decide().checkout, ref=ref) if checkout else None
    assert store.evidence_path(decide(ref=ref, checkout=there)).name == name


def test_a_law_without_a_recipe_has_its_own_place(decide, recipe):
    path = store.evidence_path(decide(recipe=recipe(bug_id=""), law="groups_are_isolated"))
    assert str(path) == "roll/laws/roll.utils.functionals.agg_loss/groups_are_isolated/git-c09bc8bc9f43.json"


def test_a_file_in_place_of_the_folder_is_an_error(decide, tmp_path):
    (tmp_path / "reports").write_text("mine")
    with pytest.raises(SentinelError, match=r"cannot write reports to .*reports: .*--sentinel-report-dir"):
        store.write(tmp_path / "reports", decide())
    assert (tmp_path / "reports").read_text() == "mine"


def test_a_full_disk_leaves_the_old_evidence(decide, tmp_path, monkeypatch):
    file = store.write(tmp_path, decide())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    with pytest.raises(SentinelError, match=r"No space left on device.*free space"):
        store.write(tmp_path, decide("fixed"))
    assert store.load(file)["verdict"] == "reproduced"
    assert list(file.parent.iterdir()) == [file]


def test_an_interruption_leaves_no_half_file(decide, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(tmp_path, decide())
    assert not [item for item in tmp_path.rglob("*") if item.is_file()]


@pytest.mark.parametrize("content", ["mine", "{}", '{"schema_version": 1}', "[" * 100_000])
def test_files_that_are_not_evidence_are_not_overwritten(decide, tmp_path, content):
    file = tmp_path / PLACE
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(SentinelError, match="is not Sentinel evidence, so it is not overwritten"):
        store.write(tmp_path, decide())
    assert file.read_text() == content


@pytest.mark.parametrize("length", [1, 5, 40, 400, -2])
@pytest.mark.parametrize("zeros", [0, 64])
def test_truncated_evidence_is_written_again(decide, tmp_path, length, zeros):
    """After a power failure, a file may be incomplete or contain zeros. The run names it and continues."""
    file = store.write(tmp_path, decide())
    whole = file.read_bytes()
    file.write_bytes(whole[:length] + b"\0" * zeros)
    with pytest.warns(store.DamagedEvidence, match=f"{PLACE} was damaged and has been overwritten"):
        store.write(tmp_path, decide())
    assert file.read_bytes() == whole


def test_zeroed_evidence_is_written_again(decide, tmp_path):
    file = store.write(tmp_path, decide())
    whole = file.read_bytes()
    for content in (b"\0" * 4096, whole[:300] + b"\0" * 200 + whole[500:]):
        file.write_bytes(content)
        with pytest.warns(store.DamagedEvidence):
            store.write(tmp_path, decide())
        assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"x\.json:1:2: not JSON"),
        ("[]", "not Sentinel evidence"),
        ('{"schema_version": 7}', "schema version 7"),
        ('{"schema_version": 1}', r"not valid evidence: at \$"),
        ('{"schema_version": NaN}', "1:20: not JSON: JSON has no NaN or infinity"),
        ('{"schema_version": -1.5e999}', "is too large for a float"),
        ('{"schema_version": 1, "schema_version": 1}', "an object has the key 'schema_version' twice"),
        ("[" * 100_000, "1:1: nested deeper"),
        ("\xff\xfe", "1:1: not UTF-8"),
    ],
)
def test_reading_another_file_is_an_error(tmp_path, content, message):
    file = tmp_path / "x.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(SentinelError, match=message):
        store.load(file)


def test_reading_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(SentinelError, match="cannot be read: No such file"):
        store.load(tmp_path / "x.json")


def test_only_evidence_files_are_listed(decide, tmp_path):
    file = store.write(tmp_path, decide())
    store.write_run(tmp_path, [], started=datetime.now(timezone.utc), duration=1.0, command=["pytest"])
    (tmp_path / "roll" / ".x.json").write_text("{}")
    assert list(store.files(tmp_path)) == [file]


def test_run_json_has_the_varying_data(tmp_path):
    items = [store.RunItem("b", "failed", "reproduced", 0.25), store.RunItem("a", "passed", "fixed", 0.5, PLACE)]
    started = datetime(2026, 8, 1, 12, tzinfo=timezone.utc)
    command = ["pytest", "--sentinel-repo-url=https://me:token@host/x", "a b"]
    file = store.write_run(tmp_path, items, started=started, duration=2.0, command=command)
    run = json.loads(file.read_text())
    assert [item["id"] for item in run["items"]] == ["a", "b"]
    assert run["totals"] == {
        "items": 2,
        "outcomes": {"failed": 1, "passed": 1},
        "verdicts": {"fixed": 1, "reproduced": 1},
        "undecided": {},
    }
    assert run["started"] == "2026-08-01T12:00:00.000+00:00"
    assert "token" not in run["command"]
    assert "'a b'" in run["command"]


def test_histories_next_to_evidence_are_not_read_as_evidence(tmp_path):
    for place in ("history/demo/BUG/git-main.json", "demo/BUG/git-main.json"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("{}")
    assert [file.relative_to(tmp_path).as_posix() for file in store.files(tmp_path)] == ["demo/BUG/git-main.json"]
