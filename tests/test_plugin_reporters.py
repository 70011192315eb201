"""Other people's reporters beside Sentinel's items: JUnit, SARIF, GitHub, and four plugins that read reports."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, write_recipe

pytestmark = pytest.mark.usefixtures("warm_runs")


@pytest.fixture
def ask(pytester: pytest.Pytester, broken_tree: Path) -> list[str]:
    """Arguments of a run with one failing item."""
    write_recipe(pytester.path / "mine", MASKED_TOKENS)
    return [
        "--sentinel-target=demo",
        "--sentinel-recipes=mine",
        f"--sentinel-repo={broken_tree}",
        "--sentinel-laws=off",
    ]


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    result.assert_outcomes(failed=1)
    return result


def test_junit_properties(pytester, ask):
    run(pytester, *ask, "--junitxml=junit.xml")
    found = {
        item.get("name"): item.get("value") for item in ElementTree.parse(pytester.path / "junit.xml").iter("property")
    }
    assert found["sentinel_verdict"] == "reproduced"
    assert found["sentinel_bug"] == "DEMO-MASKED-TOKENS"


def test_sarif(pytester, ask):
    run(pytester, *ask, "--sentinel-sarif=run.sarif")
    (found,) = json.loads((pytester.path / "run.sarif").read_text())["runs"]
    place = found["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "demo_rl/losses.py"


def test_github(pytester, ask, monkeypatch, tmp_path):
    result = run(pytester, *ask)
    assert "::error" not in result.stdout.str()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    result = run(pytester, *ask)
    place = r"file=broken/demo_rl/losses\.py,line=\d+,endLine=\d+"
    result.stdout.re_match_lines([rf"::error {place},title=DEMO-MASKED-TOKENS.*"])
    assert "DEMO" in (tmp_path / "summary.md").read_text()


def test_pytest_html(pytester, ask):
    pytest.importorskip("pytest_html", reason="pytest-html is not installed (extra reporters)")
    run(pytester, *ask, "--html=page.html", "--self-contained-html")
    assert "DEMO-MASKED-TOKENS" in (pytester.path / "page.html").read_text()


def test_pytest_reportlog(pytester, ask):
    pytest.importorskip("pytest_reportlog", reason="pytest-reportlog is not installed (extra reporters)")
    run(pytester, *ask, "--report-log=log.jsonl")
    lines = [json.loads(line) for line in (pytester.path / "log.jsonl").read_text().splitlines()]
    (report,) = [line for line in lines if line.get("when") == "call"]
    assert ["sentinel_verdict", "reproduced"] in report["user_properties"]


def test_pytest_json_report(pytester, ask):
    pytest.importorskip("pytest_jsonreport", reason="pytest-json-report is not installed (extra reporters)")
    run(pytester, *ask, "--json-report", "--json-report-file=report.json")
    (found,) = json.loads((pytester.path / "report.json").read_text())["tests"]
    assert found["outcome"] == "failed"
    assert {"sentinel_verdict": "reproduced"} in found["user_properties"]


def test_allure(pytester, ask):
    pytest.importorskip("allure_pytest", reason="allure-pytest is not installed (extra reporters)")
    run(pytester, *ask, "--alluredir=allure")
    (file,) = (pytester.path / "allure").glob("*-result.json")
    assert json.loads(file.read_text())["status"] in ("failed", "broken")
