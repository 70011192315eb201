"""Options that only some bindings have: the oracles agree with numbers that were computed by hand."""

import math

import pytest
import torch

from sentinel.binding import kit
from sentinel.contracts.distillation import DISTILLATION_LOSS
from sentinel.contracts.filters import TURN_PENALTY
from sentinel.contracts.importance_weight import IMPORTANCE_WEIGHT
from sentinel.contracts.policy_loss import POLICY_LOSS
from sentinel.contracts.responses import TOKEN_LOG_PROBS
from sentinel.contracts.returns import GENERALISED_ADVANTAGE
from sentinel.contracts.runs import TRAINING_LOOP
from sentinel.contracts.step_losses import PREFERENCE_LOSS


def _row(*values):
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(("second", "kept"), [(-1.0, 0.0), (0.5, 1.0)])
def test_the_geometric_mean_of_a_sequence_decides_and_tokens_keep_their_weights(second, kept):
    old = {"old_log_probs": _row(-1.0, -1.0), "rollout_log_probs": _row(-1.5, -1.0 - second)}
    bounds = {"level": "kept_by_mean", "mode": "mask", "threshold_low": 0.9, "threshold_high": 2.0}
    made = IMPORTANCE_WEIGHT.reference({**old, **bounds, "response_mask": torch.ones(1, 2)})
    assert made["weights"].tolist()[0] == pytest.approx([kept * math.exp(0.5), kept * math.exp(second)])


def test_an_on_policy_ratio_is_one_and_has_a_gradient():
    log_probs = _row(-1.0).requires_grad_()
    inputs = {"old_log_probs": _row(-3.0), "advantages": _row(2.0), "response_mask": torch.ones(1, 1)}
    loss = POLICY_LOSS.reference({"log_probs": log_probs, **inputs, "algorithm": "ppo", "on_policy": True})["loss"]
    assert (float(loss.detach()), float(torch.autograd.grad(loss, log_probs)[0])) == (-2.0, -2.0)


def test_vapo_has_one_lambda_for_returns_and_one_for_advantages():
    inputs = {"token_level_rewards": _row(0.0, 1.0), "values": _row(0.0, 0.5), "response_mask": torch.ones(1, 2)}
    options = {"gamma": 1.0, "lam": 0.0, "lam_returns": 1.0, "length_alpha": 1.0}
    made = GENERALISED_ADVANTAGE.reference({**inputs, **options})  # lambda 1 - 1 / 2 for two tokens
    assert (made["advantages"].tolist(), made["returns"].tolist()) == ([[0.75, 0.5]], [[1.0, 1.0]])


def test_a_preference_loss_adds_the_likelihood_of_the_chosen_response():
    sides = {f"{side}_{name}": _row(-1.0, -2.0) for side in ("chosen", "rejected") for name in ("log_probs", "mask")}
    sides |= {f"{side}_ref_log_probs": _row(-1.0, -2.0) for side in ("chosen", "rejected")}
    options = {"beta": 0.5, "loss_type": "sigmoid", "nll_weight": 2.0}
    made = PREFERENCE_LOSS.reference({**sides, **options})
    assert float(made["loss"]) == pytest.approx(math.log(2) + 2 * 1.5)


def test_a_nucleus_is_renormalised():
    inputs = {"logits": _row(*map(math.log, (0.5, 0.3, 0.2)))[None], "token_ids": torch.tensor([[1]])}
    options = {"temperature": 1.0, "top_p": 0.7, "with_entropy": False, "response_mask": torch.ones(1, 1)}
    assert float(TOKEN_LOG_PROBS.reference({**inputs, **options})["log_probs"]) == pytest.approx(math.log(0.3 / 0.8))


def test_a_teacher_with_one_known_token_and_a_small_probability_elsewhere():
    logits = {"logits": torch.zeros(1, 1, 2, dtype=torch.float64), "teacher_logits": _row(1.0, 0.0)[None]}
    options = {"beta": 1.0, "top_k": 1, "outside": -10.0, "response_mask": torch.ones(1, 1)}
    made = DISTILLATION_LOSS.reference({**logits, **options, "temperature": 1.0})
    assert float(made["loss"]) == pytest.approx(math.log(0.5) + 5.0)


def _run(**options):
    usual = {"rewards": [[1, 1, 0, 1], [1, 0, 1, 0]], "validation": [[1, 0]], "epochs": 2}
    return TRAINING_LOOP.reference({**usual, **options})


def test_a_run_skips_constant_groups_and_drops_what_a_step_does_not_need():
    made = _run(filters_constant_groups=True)
    assert made["trained"] == [2, 3, 4, 5] * 2
    assert made["saved"] == [1, 2]


@pytest.mark.parametrize(
    ("options", "steps", "saved"),
    [
        ({"stop_value": 0.5}, 1, [1]),
        ({"stop_value": 0.75}, 4, [2, 4]),
        ({"stop_value": 0.5, "validates_first": True}, 0, []),
        ({"time_limit": 3}, 3, [2, 3]),
    ],
)
def test_a_run_ends_early(options, steps, saved):
    made = _run(save_period=2, **options)
    assert (len(made["trained"]), made["saved"]) == (4 * steps, saved)


def test_a_truncated_response_has_no_weight():
    made = _run(epochs=1, filters_truncated=True, truncated=[[0, 1, 0, 0], [0, 0, 0, 0]])
    assert made["counted"] == [1, 0, 1, 1, 1, 1, 1, 1]
    assert [float(value) for value in made["advantages"][:4]] == [0.0, 0.0, -0.5, 0.5]


def test_a_faulty_turn_has_its_own_advantage():
    turns = [[(1, "said"), (2, "invalid")], [(1, "malformed"), (1, "heard")]]
    made = TURN_PENALTY.reference({"turns": turns, "invalid_advantage": -1.0})
    assert made["advantages"] == [1.0, -1.0, -1.0, 2.0, 2.0]


def test_an_all_reduce_keeps_the_gradient_of_the_ranks_own_part():
    def work(rank):
        own = torch.tensor([1.0 + rank], requires_grad=True)
        total = own * 3
        torch.distributed.all_reduce(total)
        return float(total), float(torch.autograd.grad(total.sum(), own)[0])

    assert kit.on_ranks(2, work) == [(9.0, 3.0)] * 2


def test_ranks_exchange_equal_parts():
    def work(rank):
        into, value = torch.zeros(2), torch.tensor([10.0 * rank, 10.0 * rank + 1])
        torch.distributed.all_to_all_single(into, value)
        return into.tolist()

    assert kit.on_ranks(2, work) == [[0.0, 10.0], [1.0, 11.0]]
