"""Evidence as an in-toto statement, and a statement that says another thing than its evidence."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import SentinelError
from sentinel.export.attestation import ENVELOPE, PREDICATE, STATEMENT, attested, statement

EVIDENCE: dict[str, Any] = {
    "bug_id": "B",
    "law": None,
    "verdict": "reproduced",
    "ref": "git:" + "a" * 40,
    "recipe": {"file": "B.yaml", "digest": "sha256:" + "1" * 64},
    "adapter": "sha256:" + "2" * 64,
    "checkout": {"commit": "a" * 40, "dirty": False, "digest": None},
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    text = json.dumps(EVIDENCE)
    (tmp_path / "evidence-base.json").write_text(text)
    file = tmp_path / "statement-base.json"
    file.write_text(statement("evidence-base.json", text, "https://example.invalid/r"))
    return file


def test_it_is_a_statement_about_the_code(written):
    document = json.loads(written.read_text())
    assert (document["_type"], document["predicateType"]) == (STATEMENT, PREDICATE)
    assert document["subject"] == [{"name": "https://example.invalid/r", "digest": {"gitCommit": "a" * 40}}]
    assert document["predicate"]["result"] == "FAILED"
    assert document["predicate"]["failedTests"] == ["B"]


def test_its_digests_agree_until_something_is_changed(written):
    found = attested(written)
    assert found.problems == ()
    evidence = written.parent / "evidence-base.json"
    evidence.write_text(json.dumps({**EVIDENCE, "verdict": "fixed", "checkout": {"commit": "b" * 40}}))
    changed = attested(written)
    assert len(changed.problems) == 3


def test_an_envelope_is_opened_and_its_signatures_are_not_judged(written):
    payload = base64.b64encode(written.read_bytes()).decode()
    written.write_text(json.dumps({"payloadType": ENVELOPE, "payload": payload, "signatures": [{"sig": "x"}]}))
    found = attested(written)
    assert (found.signed, found.problems) == (True, ())


def test_what_is_wrong_with_a_statement_is_said(written):
    document = json.loads(written.read_text())
    for change, told in (
        ({"predicateType": "other"}, "not of"),
        ({"predicate": {}}, "names no evidence"),
        ({"predicate": {"configuration": [{"name": "../gone.json"}]}}, "is not there"),
    ):
        written.write_text(json.dumps({**document, **change}))
        with pytest.raises(SentinelError, match=told):
            attested(written)


def test_a_changed_tree_cannot_be_attested():
    text = json.dumps({**EVIDENCE, "checkout": {"commit": "a" * 40, "dirty": True, "digest": None}})
    with pytest.raises(SentinelError, match="commit the changes"):
        statement("evidence-base.json", text, "r")
