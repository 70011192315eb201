"""Reporters of other plugins with Sentinel's items: JUnit, SARIF, GitHub, and four plugins that read reports."""

import json
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, write_recipe

pytestmark = pytest.mark.usefixtures("warm_runs")


@pytest.fixture
def ask(pytester: pytest.Pytester, broken_tree: Path) -> list[str]:
    """Return arguments of a run with one failing item."""
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


#: The module of a reporter -> its options.
REPORTERS = {
    "pytest_html": ["--html=page.html", "--self-contained-html"],
    "pytest_reportlog": ["--report-log=log.jsonl"],
    "pytest_jsonreport": ["--json-report", "--json-report-file=report.json"],
    "allure_pytest": ["--alluredir=allure"],
}


def test_reporters_of_other_plugins_list_the_failures(pytester, ask):
    """All installed reporters (extra ``reporters``), and those of pytest and Sentinel, run together."""
    there = [name for name in REPORTERS if find_spec(name)]
    options = [option for name in there for option in REPORTERS[name]]
    run(pytester, *ask, "--junitxml=junit.xml", "--sentinel-sarif=run.sarif", *options)
    properties = ElementTree.parse(pytester.path / "junit.xml").iter("property")
    found = {item.get("name"): item.get("value") for item in properties}
    assert (found["sentinel_verdict"], found["sentinel_bug"]) == ("reproduced", "DEMO-MASKED-TOKENS")
    (found,) = json.loads((pytester.path / "run.sarif").read_text())["runs"]
    place = found["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "demo_rl/losses.py"
    if "pytest_html" in there:
        assert "DEMO-MASKED-TOKENS" in (pytester.path / "page.html").read_text()
    if "pytest_reportlog" in there:
        lines = [json.loads(line) for line in (pytester.path / "log.jsonl").read_text().splitlines()]
        (report,) = [line for line in lines if line.get("when") == "call"]
        assert ["sentinel_verdict", "reproduced"] in report["user_properties"]
    if "pytest_jsonreport" in there:
        (found,) = json.loads((pytester.path / "report.json").read_text())["tests"]
        assert found["outcome"] == "failed"
        assert {"sentinel_verdict": "reproduced"} in found["user_properties"]
    if "allure_pytest" in there:
        (file,) = (pytester.path / "allure").glob("*-result.json")
        assert json.loads(file.read_text())["status"] in ("failed", "broken")


@pytest.mark.slow
def test_github_gets_annotations_and_a_summary(pytester, ask, monkeypatch, tmp_path):
    result = run(pytester, *ask)
    assert "::error" not in result.stdout.str()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    result = run(pytester, *ask)
    place = r"file=broken/demo_rl/losses\.py,line=\d+,endLine=\d+"
    result.stdout.re_match_lines([rf"::error {place},title=DEMO-MASKED-TOKENS.*"])
    assert "DEMO" in (tmp_path / "summary.md").read_text()
