"""What a worker answers to a probe, from the socket to the evidence: parsed, judged, written and read again.

The records of a session, of an import and of a source are parsed too.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentinel.deciding import verdicts
from sentinel.deciding.outcomes import Decision, Measurement, Provenance
from sentinel.recipes import Expected, Recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.reports.evidence import dumps, evidence, validate
from sentinel.targets.refs import Ref
from sentinel.values.literals import Tensor
from sentinel.worker import answers, protocol
from sentinel.worker.answers import Failed

CATALOG = bundled_catalog()
LAWS = [CATALOG.laws[name] for name in CATALOG.contracts["loss_aggregation"].laws]
INPUTS = {"loss_mat": Tensor("float32", (1, 2), bytes(8)), "response_mask": Tensor("bool", (1, 2), b"\1\0")}
NAMES = ("a", "b")
EXPECTED = {"a.loss": Expected(26.0), "difference(a, b).loss": Expected(0.0)}
DIGEST = "sha256:" + "0" * 64
VARIANTS = dict.fromkeys(NAMES, INPUTS)
RECIPE = Recipe("A", "a", "demo", "loss_aggregation", "a.b", VARIANTS, Path("a.yaml"), DIGEST, EXPECTED, EXPECTED)
CLAIM = {"boundary": "a.b", "module": "a", "module_file": "/a.py", "file": "/a.py", "line": 1, "signature": "()"}
FAILURE = {"kind": "drift", "reason": "a", "traceback": "", "provenance": CLAIM}
BESIDE = {"provenance": CLAIM, "ghosts": ["g"], "stand_ins": [["s", "why"]]}


def _frame(text: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">QQ", len(text), len(body)) + text + body


FOUND = (
    _frame(b'{"$":"map","v":[["failure",{"$":"map","v":[["kind",["drift"]],["reason",""],["traceback",""],["provenance",null]]}]]}'),
    _frame(b'{"$":"tensor","d":"float32","s":[15000000,0],"n":0,"g":false}'),
    _frame(b'["\\ud800"]'),
    _frame(b"9" * 4000),
    _frame(b"[" * 100_000),
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    yield from FOUND
    for loss in (
        26.0,
        Tensor("float32", (), bytes(4)),
        Tensor("bfloat16", (1, 2), bytes(4)),
        [1, "a", None, {"x": True}],
    ):
        observation = {name: {"loss": loss, "per_token_gradient": loss} for name in NAMES}
        yield protocol.encode({"observation": observation, **BESIDE, "asked": ["t:"]})
        effects = {"mutated": ["a"], "globals": [], "again": {"loss": loss}}
        called = {"a": {"observation": {"loss": loss}, "effects": effects}, "b": {"silent": "no"}}
        yield protocol.encode({"answers": called, **BESIDE, "functions": ["a.b"]})
    for kind in ("drift", "not-in-this-version", "ref"):
        yield protocol.encode({"failure": {**FAILURE, "kind": kind, "place": "/a.py"}})
        yield protocol.encode({"answers": {"a": {"refused": FAILURE}, "b": {"refused": FAILURE}}})
    yield protocol.encode({"imported": True, "compiled": ["/a.py"]})
    yield protocol.encode({"spans": [[1, 2]], "names": ["f(x)"], "error": ""})


def one(data: bytes) -> None:
    try:
        value = protocol.decode(data)
    except protocol.ProtocolError:
        return
    for parsed in (answers.of_import, answers.of_source, answers.of_greeting, answers.of_preload, _session, _probe):
        try:
            parsed(value)
        except protocol.ProtocolError:
            continue


def _session(value: Any) -> None:
    answers.of_session(value, NAMES)


def _probe(value: Any) -> None:
    told = answers.of_probe(value, NAMES)
    if isinstance(told, Failed):
        return
    place = Provenance("a.b", "a", "a.py", told.provenance.line, "0" * 40, told.provenance.signature)
    measured = Measurement(told.observation, place, told.ghosts, told.stand_ins, questions=told.questions)
    judged = [verdicts.by_expectation(RECIPE, told.observation)]
    judged += [verdicts.by_law(law, RECIPE, measured, CATALOG.contracts["loss_aggregation"]) for law in LAWS]
    for verdict, comparisons in judged:
        document = evidence(Decision(RECIPE, Ref("installed"), verdict, measurement=measured, comparisons=comparisons))
        validate(json.loads(dumps(document)))
