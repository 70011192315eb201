from pathlib import Path

from sentinel.reports.evidence import evidence
from sentinel.reports.github import add_to_summary, workflow_commands

ACTIONS = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": "/work"}


def test_nothing_is_written_outside_of_actions(decide, tmp_path):
    results = [(evidence(decide("reproduced")), "failed")]
    assert workflow_commands(results, {}, {}) == []
    add_to_summary(results, {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")})
    assert not (tmp_path / "summary").exists()


def test_only_failures_are_annotated(decide):
    results = [(evidence(decide("reproduced")), "failed"), (evidence(decide("fixed")), "passed")]
    (line,) = workflow_commands(results, {}, ACTIONS)
    assert line.startswith("::error title=ROLL-AGGLOSS-TOKENMEAN-MASK%3A reproduced::roll at git:c09bc8b")


def test_an_annotation_in_the_workspace_names_file_and_line(decide):
    document = {**evidence(decide("reproduced")), "ref": "path"}
    (line,) = workflow_commands([(document, "failed")], {"roll": Path("/work/ROLL")}, ACTIONS)
    assert line.startswith("::error file=ROLL/roll/utils/functionals.py,line=312,endLine=340,")
    (line,) = workflow_commands([(document, "failed")], {"roll": Path("/elsewhere/ROLL")}, ACTIONS)
    assert "file=" not in line


def test_the_summary_is_appended_to_the_job_summary(decide, tmp_path):
    file = tmp_path / "summary"
    file.write_text("before\n")
    add_to_summary([(evidence(decide("fixed")), "passed")], {**ACTIONS, "GITHUB_STEP_SUMMARY": str(file)})
    assert file.read_text().startswith("before\n## Sentinel")
