"""SkyRL: the rules by which the environments of its gym score a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding

_ENVIRONMENTS = "skyrl_gym.envs"

_HASHES = ("#### {answer}", "6 times 7 is\n#### {answer}")
_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_TAGS = ("<answer>{answer}</answer>", "I see. <answer> {answer} </answer>")


def _ruled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Some rules tell more than their score."""
    found = boundary.function(inputs["response"], inputs["ground_truth"])
    return {"score": found["score"] if isinstance(found, Mapping) else found}


def _answers(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A question may have several right answers."""
    return {"score": boundary.function(inputs["response"], {"target": [inputs["ground_truth"], "another"]})}


def _rule(name: str, wordings: tuple[str, ...], call: Any = _ruled, **accepts: Any) -> Binding:
    return Binding(f"{_ENVIRONMENTS}.{name}", "rule_reward", call=call, accepts={"wording": wordings, **accepts})


BINDINGS = (
    _rule("gsm8k.utils.compute_score", _HASHES),
    _rule("aime.utils.compute_score", _LINES),
    _rule("search.utils.compute_score", _TAGS, _answers),
    # It looks for the answer anywhere, without its punctuation: 3 is in 43.
    _rule("search.utils.compute_score_subem", _TAGS, _answers, ground_truth=("42", "7", "100")),
)

UNBOUND = {
    f"{_ENVIRONMENTS}.sql.*": "it runs a response's query on a database, which is a download",
    f"{_ENVIRONMENTS}.lcb.*": "it runs a response's program on tests, which a probe may not",
    f"{_ENVIRONMENTS}.searchcode.*": "it asks the rules that are bound, and services of search and of Python",
    f"{_ENVIRONMENTS}.rlm.*": "it runs a response's program, and asks a model",
    f"{_ENVIRONMENTS}.*": "it asks the rules that are bound, and the parts of these",
}
