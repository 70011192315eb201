"""ROLL's bindings beside the oracles: they agree on scenarios made by hand, and differ where it is said here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from binding_kit import Bound, at, bound, compared_with, opened

from sentinel.values.literals import tensor

MAIN = "8eb27cc2dc34c4d1310b169d9b86d339004d811a"
FIX = "f67f5d31074bf71ff44ef674eaa2ebddfa57783d"
BASE = "c09bc8bc9f43d69968cb5dbfcb5d129b7fb08682"

FUNCTIONALS = "roll.utils.functionals"
AGENTIC = "roll.pipeline.agentic.utils"
PADDED = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]

#: What main no longer has -> the last state of it that is in the corpus.
GONE = {
    f"{FUNCTIONALS}.batch_reward_norm": "541d7f6d7812da483832e87b56aa65a87aeceb2f",
}

#: What averages the losses of tokens: ROLL #444 sums those that the mask leaves out.
TOKEN_MEANS = [
    (f"{FUNCTIONALS}.agg_loss", "loss_aggregation"),
    ("roll.pipeline.rlvr.actor_worker.ActorWorker.loss_func", "policy_loss"),
    ("roll.pipeline.agentic.agentic_actor_worker.ActorWorker.loss_func", "policy_loss"),
]


@pytest.fixture(scope="module")
def main() -> Iterator[Bound]:
    yield from opened("roll", MAIN)


#: boundary -> the scenarios in which it is not what the oracle says.
DIFFERS = {
    # Its rows are sorted by their lengths once more, over all minibatches that keep_minibatch is to keep.
    "roll.utils.functionals.batch_balance": {"keep_minibatches=True"},
}


@pytest.fixture(scope="module")
def fixed() -> Iterator[Bound]:
    yield from opened("roll", FIX)


@pytest.fixture(scope="module", params=at(base=BASE, fix=FIX, main=MAIN))
def anywhere(request: pytest.FixtureRequest) -> Iterator[tuple[str, Bound]]:
    for opened_at in opened("roll", request.param):
        yield request.param, opened_at


@pytest.fixture
def newest(main: Bound, boundary: str) -> Iterator[Bound]:
    """Main; or, for a boundary that is gone, where it was last."""
    if boundary not in GONE:
        yield main
        return
    yield from opened("roll", GONE[boundary])


@pytest.mark.parametrize(("boundary", "contract"), bound("roll"))
def test_oracle_and_boundary_agree(newest: Bound, boundary: str, contract: str) -> None:
    wrong = newest.disagreements(newest.subject(boundary, contract))
    unsaid = {name for name, said in wrong.items() if "weights are cut from above" not in said}
    assert unsaid == DIFFERS.get(boundary, set()), wrong


@pytest.mark.parametrize(("boundary", "contract"), bound("roll"))
def test_oracle_and_boundary_agree_behind_padding(fixed: Bound, boundary: str, contract: str) -> None:
    """At the fix of #444, without which means of tokens differ."""
    subject = fixed.subject(boundary, contract)
    declared = subject.contract.input(subject.contract.mask)
    if declared is None or "right" not in declared.choices:
        pytest.skip("it takes no mask with padding")
    if contract == "generalised_advantage":
        pytest.skip("what the critic says of padding is in it: see below")
    wrong = fixed.disagreements(subject, PADDED)
    assert {name: said for name, said in wrong.items() if "weights are cut from above" not in said} == {}


@pytest.mark.parametrize(("boundary", "contract"), TOKEN_MEANS)
def test_token_means_sum_what_the_mask_leaves_out(anywhere: tuple[str, Bound], boundary: str, contract: str) -> None:
    sha, code = anywhere
    wrong = code.disagreements(code.subject(boundary, contract), PADDED)
    assert bool(wrong) == (sha != FIX)


@pytest.mark.parametrize("boundary", [f"{FUNCTIONALS}.compute_advantage", f"{AGENTIC}.agentic_compute_advantage"])
def test_the_critics_values_of_padding_are_in_the_advantages(main: Bound, boundary: str) -> None:
    """The values are masked for the batch, and handed to GAE as they were."""
    subject = main.subject(boundary, "generalised_advantage")
    scenario: dict[str, Any] = {
        **main.scenarios(subject)["plain"],
        "token_level_rewards": tensor([[0.0, 0.0]], "float32"),
        "values": tensor([[0.0, 0.0]], "float32"),
        "response_mask": tensor([[1.0, 0.0]], "float32"),
        "gamma": 1.0,
        "lam": 0.5,
    }
    outlier = {**scenario, "values": tensor([[0.0, 8.0]], "float32")}
    law = "masked_values_have_no_influence"
    trial = main.ask(subject, law, {"baseline": scenario, "outlier": outlier})
    advantages, returns = trial.violations
    assert advantages.observed.nested() == returns.observed.nested() == [[4.0, 0.0]]
    assert [compared_with(trial, item).nested() for item in (advantages, returns)] == [[[0.0, 0.0]]] * 2


def test_groups_of_one_lose_their_reward_to_the_batchs_deviation(main: Bound) -> None:
    """Mean and deviation are the batch's, and yet a group of one is set to 0 as if they were the group's."""
    subject = main.subject(f"{AGENTIC}.agentic_reward_norm", "reward_normalisation")
    plain = main.scenarios(subject)["plain"]
    batch = {**plain, "mean_level": "batch", "std_level": "batch", "rewards": tensor([0.0, 2.0], "float32")}
    (violation,) = main.ask(subject, "the_oracle_agrees", {"": {**batch, "group": ["p", "q"]}}).violations
    assert violation.observed.nested() == [0.0, 0.0]
    assert not main.ask(subject, "the_oracle_agrees", {"": {**batch, "group": ["p", "p"]}}).violations


def test_without_a_clip_the_critics_clip_fraction_is_its_loss(main: Bound) -> None:
    subject = main.subject("roll.pipeline.base_worker.CriticWorker.loss_func", "value_loss")
    scenario = {
        **main.scenarios(subject)["plain"],
        "cliprange_value": None,
        "vpreds": tensor([[3.0]], "float32"),
        "values": tensor([[3.0]], "float32"),
        "returns": tensor([[0.0]], "float32"),
        "response_mask": tensor([[1.0]], "float32"),
    }
    (violation,) = main.ask(subject, "metrics_tell_the_truth", {"": scenario}).violations
    assert (violation.key, violation.observed) == ("clip_fraction", 9.0)


@pytest.mark.parametrize("method", ["_compute_tis_loss", "_compute_cispo_loss", "_compute_topr_loss"])
def test_clip_fractions_count_padding(main: Bound, method: str) -> None:
    subject = main.subject(f"roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker.{method}", "policy_loss")
    scenario = {
        **main.scenarios(subject)["plain"],
        "log_probs": tensor([[-1.0, 0.0]], "float32"),
        "old_log_probs": tensor([[-2.0, 0.0]], "float32"),
        "advantages": tensor([[-1.0, 0.0]], "float32"),
        "scores": tensor([0.0], "float32"),
        "response_mask": tensor([[1.0, 0.0]], "float32"),
    }
    (violation,) = main.ask(subject, "metrics_tell_the_truth", {"": scenario}).violations
    assert (violation.key, violation.observed, violation.demanded) == ("clip_fraction", 0.5, 1.0)
