import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft4Validator

from sentinel.reports.brief import brief
from sentinel.reports.evidence import evidence
from sentinel.reports.sarif import sarif

SCHEMA = json.loads((Path(__file__).parent / "data" / "sarif-schema-2.1.0.json").read_text())
REPOSITORIES = {"roll": "https://github.com/alibaba/ROLL"}


def log(*decisions: Any, outcome: str = "") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(sarif([(evidence(item), outcome) for item in decisions], REPOSITORIES))
    Draft4Validator(SCHEMA).validate(document)
    return document


@pytest.mark.parametrize(
    ("verdict", "kind", "level"),
    [
        ("reproduced", "fail", "error"),
        ("fixed", "pass", "none"),
        ("inconclusive", "open", "none"),
        ("unavailable", "notApplicable", "none"),
    ],
)
def test_each_verdict_has_its_kind_and_level(decide, verdict, kind, level):
    (result,) = log(decide(verdict))["runs"][0]["results"]
    assert (result["kind"], result["level"]) == (kind, level)


def test_only_an_expected_failure_is_suppressed(decide):
    for outcome, expected in (("xfailed", ["external"]), ("failed", [])):
        (result,) = log(decide("reproduced"), outcome=outcome)["runs"][0]["results"]
        assert [each["kind"] for each in result.get("suppressions", [])] == expected


@pytest.mark.parametrize(("severity", "level"), [("high", "error"), ("medium", "warning"), ("low", "note")])
def test_the_level_follows_from_the_severity(decide, recipe, severity, level):
    bug = recipe(document={"severity": severity, "story": "One\nparagraph.\n\nAnother."})
    document = log(decide("reproduced", recipe=bug))["runs"][0]
    (result,) = document["results"]
    assert result["level"] == level
    assert result["message"]["text"].split("\n") == [
        "token-mean sums masked tokens",
        f"reproduced (the bug is present); {severity}",
        "loss: 26.0, right 1.0; 3 of 5 differ",
        "repeat: pytest recipes/roll/ROLL-AGGLOSS-TOKENMEAN-MASK.yaml::git:c09bc8b",
    ]
    assert document["tool"]["driver"]["rules"][0]["fullDescription"]["text"] == "One paragraph.\n\nAnother."
    assert log(decide("fixed", recipe=bug))["runs"][0]["results"][0]["level"] == "none"


def test_results_are_at_the_boundarys_lines(decide):
    (run,) = log(decide("reproduced"))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "roll/utils/functionals.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 312, "endLine": 340}
    assert run["versionControlProvenance"][0]["revisionId"] == decide("reproduced").checkout.commit
    assert run["tool"]["driver"]["rules"][0]["helpUri"].endswith("/pull/444")


def test_a_broken_law_has_its_rank(decide):
    document = {**evidence(decide("reproduced")), "bug_id": None, "law": "padding_is_invisible"}
    (run,) = json.loads(sarif([(document, "failed")], ranks={"padding_is_invisible": 2}))["runs"]
    assert run["results"][0]["properties"]["rank"] == 2
    assert brief(document).grade == "rank 2"


def test_evidence_without_an_end_line_is_accepted(decide):
    document = evidence(decide("reproduced"))
    del document["boundary"]["end_line"]
    (run,) = json.loads(sarif([(document, "failed")]))["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 312}


def test_each_ref_is_a_run_and_each_bug_a_rule(decide):
    from sentinel.targets.refs import Ref

    runs = log(decide("reproduced"), decide("fixed", ref=Ref("git", "f" * 40)))["runs"]
    assert len(runs) == 2
    assert len({run["automationDetails"]["id"] for run in runs}) == 2
    fingerprints = {run["results"][0]["partialFingerprints"]["sentinel/v1"] for run in runs}
    assert len(fingerprints) == 1
