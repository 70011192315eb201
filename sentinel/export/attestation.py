"""Evidence as an in-toto statement, which GitHub's attestation action or cosign can sign.

Statement: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md; predicate:
https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.reports.store import parse, regular

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
ENVELOPE = "application/vnd.in-toto+json"

_RESULTS = {"reproduced": "FAILED", "fixed": "PASSED"}
_LISTS = {"FAILED": "failedTests", "PASSED": "passedTests", "WARNED": "warnedTests"}


def statement(evidence_name: str, evidence_text: str, repository: str) -> str:
    """The statement of one evidence file: its subject is the code that was measured.

    :param evidence_name: the file that lies beside the statement.
    :raises SentinelError: where the code has no digest, as of a working tree with changes.
    """
    document = json.loads(evidence_text)
    result = _RESULTS.get(document["verdict"], "WARNED")
    lists: dict[str, list[str]] = {name: [] for name in _LISTS.values()}
    lists[_LISTS[result]].append(str(document["bug_id"] or document["law"]))
    configuration = [
        {"name": evidence_name, "digest": {"sha256": _sha256(evidence_text.encode())}, "mediaType": "application/json"},
        {"name": document["recipe"]["file"], "digest": _digest(document["recipe"]["digest"])},
        *([{"name": "adapter", "digest": _digest(document["adapter"])}] if document["adapter"] else []),
    ]
    return _dumps(
        {
            "_type": STATEMENT,
            "subject": [_subject(document, repository)],
            "predicateType": PREDICATE,
            "predicate": {"result": result, "configuration": configuration, **lists},
        }
    )


def _subject(document: Mapping[str, Any], repository: str) -> dict[str, Any]:
    checkout = document["checkout"] or {}
    if checkout.get("commit") and not checkout.get("dirty"):
        return {"name": repository, "digest": {"gitCommit": checkout["commit"]}}
    if checkout.get("digest"):
        return {"name": str(document["ref"]), "digest": _digest(checkout["digest"])}
    raise SentinelError(
        f"{document['bug_id']} at {document['ref']}: only a commit or a release can be attested; "
        "commit the changes first"
    )


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    return {algorithm: value}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _dumps(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attested:
    """A statement that was read.

    :ivar evidence: the evidence file beside it.
    :ivar problems: digests that are not those of what lies there.
    :ivar signed: whether it came in an envelope with signatures; who signed is not looked at.
    """

    evidence: Path
    problems: tuple[str, ...]
    signed: bool


def attested(file: Path) -> Attested | None:
    """What a statement (or an envelope of one) says, compared with what lies beside it; None for any other file.

    :raises SentinelError: where it is a statement of something else, or the evidence is not there.
    """
    try:
        document = parse(file)
    except SentinelError:
        return None  # whatever it is, it is reported as evidence that is none
    signed = isinstance(document, dict) and document.get("payloadType") == ENVELOPE
    if signed:
        document = _opened(file, document)
    if not isinstance(document, dict) or document.get("_type") != STATEMENT:
        return None
    if document.get("predicateType") != PREDICATE:
        raise SentinelError(f"{file}: a statement of {document.get('predicateType')}, not of {PREDICATE}")
    try:
        first = document["predicate"]["configuration"][0]
        evidence = file.parent / Path(str(first["name"])).name
        content = regular(evidence)
        return Attested(evidence, tuple(_problems(document, first, evidence.name, content)), signed)
    except OSError as error:
        raise SentinelError(f"{file}: its evidence {evidence} is not there ({error.strerror})") from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise SentinelError(f"{file}: a statement that names no evidence ({error!r})") from None


def _opened(file: Path, envelope: Mapping[str, Any]) -> Any:
    try:
        return json.loads(base64.b64decode(str(envelope["payload"]), validate=True))
    except (KeyError, ValueError, binascii.Error, RecursionError):
        raise SentinelError(f"{file}: an envelope without a readable payload") from None


def _problems(document: Mapping[str, Any], first: Mapping[str, Any], name: str, content: bytes) -> list[str]:
    problems = []
    if first["digest"]["sha256"] != _sha256(content):
        problems.append(f"{name} has the sha256 {_sha256(content)}, the statement says {first['digest']['sha256']}")
    evidence = json.loads(content)
    for item in document["predicate"]["configuration"][1:]:
        told = evidence["adapter"] if item["name"] == "adapter" else evidence["recipe"]["digest"]
        if item["digest"] != _digest(str(told)):
            problems.append(f"the {item['name']} of the evidence is {told}, the statement says {item['digest']}")
    checkout = evidence["checkout"] or {}
    subject = document["subject"][0]["digest"]
    if subject not in ({"gitCommit": checkout.get("commit")}, _digest(str(checkout.get("digest")))):
        problems.append(f"the evidence is about {checkout.get('commit')}, the statement about {subject}")
    if document["predicate"]["result"] != _RESULTS.get(evidence["verdict"], "WARNED"):
        problems.append(f"the evidence says {evidence['verdict']}, the statement {document['predicate']['result']}")
    return problems
