"""verl's recipes of losses that no paper defines token by token can fail: a twin of main gives the other verdict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twins import Decide, Twins, deciding, skip_without

MAIN = "git:1dda039b9c6311889a9c9a26040677e1254814f9"

_CORE = "verl/trainer/ppo/core_algos.py"
_MASKED = (
    "\n    log_prob, old_log_prob, advantages = ("
    "torch.where(response_mask > 0, item, 0.0) for item in (log_prob, old_log_prob, advantages))"
)
_CLIP_COV = 'assert clip_cov_ratio > 0, "clip_ratio should be larger than 0."'
_KL_COV = 'assert kl_cov_ratio > 0, "kl_cov_ratio should be larger than 0."'

TWINS: Twins = {
    "clip_cov masked": (MAIN, ((_CORE, _CLIP_COV, _CLIP_COV + _MASKED),)),
    "kl_cov masked": (MAIN, ((_CORE, _KL_COV, _KL_COV + _MASKED),)),
}


@pytest.fixture(scope="module")
def decide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decide]:
    yield from deciding("verl", TWINS, tmp_path_factory.mktemp("verl"))


@pytest.mark.parametrize(
    ("bug_id", "twin", "at_pin", "at_twin"),
    [
        ("VERL-CLIP-COV-MASKED-NAN-GRADIENT", "clip_cov masked", "reproduced", "fixed"),
        ("VERL-KL-COV-MASKED-NAN-GRADIENT", "kl_cov masked", "reproduced", "fixed"),
    ],
)
def test_a_twin_gives_the_other_verdict(decide: Decide, bug_id: str, twin: str, at_pin: str, at_twin: str) -> None:
    pinned = skip_without(decide(bug_id, TWINS[twin][0]))
    assert (pinned.verdict.name, decide(bug_id, twin).verdict.name) == (at_pin, at_twin)
