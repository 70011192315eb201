from importlib import metadata
from typing import Any

import pytest

from sentinel.commands import doctor
from sentinel.worker import client, interpreters


class FakePreloader:
    """Starts immediately, or fails with ``trouble``."""

    trouble = ""

    def __init__(self, options: Any, preload: Any) -> None:
        pass

    def hello(self) -> dict[str, str]:
        if self.trouble:
            raise client.WorkerError(self.trouble)
        return {"torch": "2.99.0", "numpy": "2.88.0"}

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "Preloader", FakePreloader)
    monkeypatch.setattr(doctor, "_DEVICES", """print('["NVIDIA H200"]')""")


def checks(answer: Any) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in answer.json()}


@pytest.mark.slow
def test_doctor_reports_a_complete_installation(run_sentinel, mirrored, tmp_path):
    answer = run_sentinel("doctor", "--json")
    found = checks(answer)
    assert answer.status == 0
    assert found["torch"]["found"] == "2.99.0"
    assert found["devices"]["found"] == "cpu; cuda: NVIDIA H200"
    assert found["mirrors"] == {"name": "mirrors", "state": "ok", "found": "tiny", "advice": ""}
    assert found["SENTINEL_HOME"]["found"].startswith(str(tmp_path / "home"))
    strict = found["strict sandbox"]["found"] == "available"
    assert found["sandbox"]["found"].startswith("strict (default)" if strict else "basic (default)")
    assert ("control groups" in found) == ("system call filter" in found) == strict
    assert found["git"]["found"].startswith("git version")
    if strict:
        assert found["other interpreters"]["state"] == ("note" if interpreters.reason_against() else "ok")
    text = run_sentinel("doctor")
    assert text.status == 0
    assert any(line.split()[:3] == ["ok", "torch", "2.99.0"] for line in text.out.splitlines())
    last = text.out.splitlines()[-1]
    assert last == "next: `pytest --sentinel-target=tiny` checks tiny for known bugs; `sentinel` lists all commands"


def test_the_next_step_without_a_mirror_is_what_pypi_provides(run_sentinel):
    last = run_sentinel("doctor").out.splitlines()[-1]
    assert last.startswith("next: `pytest --sentinel-target=tiny` checks its releases on PyPI for known bugs; ")
    assert last.endswith("to check any commit, run `sentinel mirror add tiny` first")


@pytest.mark.slow
def test_doctor_reports_a_worker_that_does_not_start(run_sentinel, monkeypatch):
    monkeypatch.setattr(FakePreloader, "trouble", "it printed nothing")
    answer = run_sentinel("doctor")
    assert answer.status == 1
    assert answer.out.splitlines()[-2:] == [
        "missing: worker",
        "next: run `python -c 'import torch, numpy'` and fix its error; then run `sentinel doctor` again",
    ]
    assert checks(run_sentinel("doctor", "--json"))["worker"]["found"] == "it printed nothing"


def test_doctor_reports_another_package_named_sentinel(run_sentinel, monkeypatch):
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"sentinel": ["RL_Sentinel", "sentinel"]})
    answer = run_sentinel("doctor", "--json")
    assert answer.status == 1
    assert "also contains files of sentinel" in checks(answer)["import name"]["found"]


def test_doctor_reports_a_missing_package_of_an_extra(run_sentinel, monkeypatch):
    needs = [
        'no-such-package>=2; extra == "targets"',
        'pytest>=9999; extra == "targets"',
        "numpy",
        "broken requirement!",
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: needs)
    check = checks(run_sentinel("doctor", "--json"))["targets extra"]
    assert check["state"] == "note"
    assert check["found"].startswith("without no-such-package>=2, pytest>=9999 (installed: ")
    assert check["advice"] == "pip install '.[targets]' in a checkout of Sentinel"


def test_doctor_reports_an_unfinished_mirror(run_sentinel, tmp_path):
    (tmp_path / "home" / "mirrors" / "tiny.git").mkdir(parents=True)
    answer = run_sentinel("doctor", "--json")
    assert answer.status == 0
    assert "incomplete; `sentinel mirror add tiny` creates it again" in checks(answer)["mirror tiny"]["found"]
