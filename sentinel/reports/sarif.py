"""Write a run as SARIF 2.1.0, for GitHub code scanning and other viewers.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import sentinel
from sentinel.reports.brief import brief
from sentinel.reports.escaping import message, paragraphs, visible, visible_data
from sentinel.reports.rows import MEANING

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"

_KINDS = {
    "reproduced": "fail",
    "changed": "fail",
    "inconclusive": "open",
    "unavailable": "notApplicable",
    "fixed": "pass",
}
#: SARIF's level for each rank of severity, with the most severe first. The last one is for failures without a severity.
_LEVELS = ("error", "warning", "note", "error")

Document = Mapping[str, Any]


def sarif(
    results: Iterable[tuple[Document, str]],
    repositories: Mapping[str, str] | None = None,
    ranks: Mapping[str, int] | None = None,
    more: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return a SARIF log with one SARIF run per target and ref, because a SARIF run describes one version of the code.

    :param results: (evidence document, pytest's outcome) pairs.
    :param repositories: target -> URL of its repository.
    :param ranks: law -> rank.
    :param more: SARIF runs of comparisons, which come first.
    """
    groups: dict[tuple[str, str], list[tuple[Document, str]]] = {}
    for document, outcome in results:
        if (document["verdict"], outcome) == ("reproduced", "skipped"):
            continue  # the bug that breaks this law has its own result
        groups.setdefault((str(document["target"]), str(document["ref"])), []).append((document, outcome))
    runs = [
        _run(target, ref, pairs, (repositories or {}).get(target, ""), ranks or {})
        for (target, ref), pairs in sorted(groups.items())
    ]
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [*more, *runs]}
    return json.dumps(visible_data(log, lines=True), indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def _run(
    target: str, ref: str, pairs: list[tuple[Document, str]], repository: str, ranks: Mapping[str, int]
) -> dict[str, Any]:
    pairs = sorted(pairs, key=lambda pair: (_rule_id(pair[0]), str(pair[0]["boundary"]["written"])))
    documents = [document for document, _ in pairs]
    rules = {_rule_id(document): _rule(document, repository) for document in documents}
    order = {name: index for index, name in enumerate(rules)}
    commit = next((d["checkout"]["commit"] for d in documents if d["checkout"] and d["checkout"]["commit"]), None)
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "Sentinel", "version": sentinel.__version__, "rules": list(rules.values())}},
        "automationDetails": {"id": f"sentinel/{message(target)}/{message(ref)}"},
        "columnKind": "unicodeCodePoints",
        "results": [_result(document, outcome, order, ranks) for document, outcome in pairs],
    }
    if repository and commit:
        run["versionControlProvenance"] = [
            {"repositoryUri": repository, "revisionId": commit, "mappedTo": {"uriBaseId": ROOT}}
        ]
    return run


def _rule_id(document: Document) -> str:
    return message(document["bug_id"] or document["law"] or "law")


def _rule(document: Document, repository: str) -> dict[str, Any]:
    title = message(document["title"]) or _rule_id(document)
    recipe = document["recipe"]["document"]
    story = "\n\n".join(map(message, paragraphs(str(recipe.get("story") or ""))))
    law = document["law"] or recipe.get("invariant")
    tags = {"training-signal", message(document["target"]), *([message(str(law))] if law else [])}
    rule: dict[str, Any] = {
        "id": _rule_id(document),
        "shortDescription": {"text": title},
        "fullDescription": {"text": story or title},
        "properties": {"tags": sorted(tags)},
    }
    pull = document["upstream"].get("pull")
    if pull and repository:
        rule["helpUri"] = f"{repository.removesuffix('.git')}/pull/{quote(visible(str(pull)))}"
    return rule


def _result(document: Document, outcome: str, order: Mapping[str, int], ranks: Mapping[str, int]) -> dict[str, Any]:
    kind = _KINDS[document["verdict"]]
    rank = 1 if document["verdict"] == "changed" else brief(document).rank
    name = _rule_id(document)
    boundary = document["boundary"]
    result: dict[str, Any] = {
        "ruleId": name,
        "ruleIndex": order[name],
        "kind": kind,
        "level": _LEVELS[rank] if kind == "fail" else "none",
        "message": {"text": _text(document)},
        # Independent of line numbers.
        "partialFingerprints": {
            "sentinel/v1": hashlib.sha256(f"{name}\n{visible(boundary['written'])}".encode()).hexdigest()
        },
        "properties": {"verdict": document["verdict"], "ref": message(str(document["ref"]))},
    }
    if outcome == "xfailed":
        result["suppressions"] = [{"kind": "external", "justification": "a known bug that is expected here"}]
    if document["law"] in ranks:
        result["properties"]["rank"] = ranks[document["law"]]
    if boundary["file"]:
        place: dict[str, Any] = {"artifactLocation": {"uri": quote(visible(boundary["file"])), "uriBaseId": ROOT}}
        if boundary["line"]:
            place["region"] = {"startLine": boundary["line"]}
            if boundary.get("end_line"):
                place["region"]["endLine"] = boundary["end_line"]
        logical = {"fullyQualifiedName": message(boundary["found"] or boundary["written"]), "kind": "function"}
        result["locations"] = [{"physicalLocation": place, "logicalLocations": [logical]}]
    return result


def _text(document: Document) -> str:
    about = brief(document)
    headline = f"{document['verdict']} ({MEANING[document['verdict']]})" + (f"; {about.grade}" if about.grade else "")
    why = [about.number] if about.number else [message(document["reason"])] if document["reason"] else []
    return "\n".join([about.title, headline, *why, f"repeat: {about.command}"])
