import math
from typing import Any

import pytest
import torch
from contract_kit import measured

from sentinel.contracts.step_losses import PREFERENCE_UPDATE

LOSSES = {
    "loss_mat": torch.tensor([[1.0, 3.0], [5.0, 99.0], [2.0, 4.0], [6.0, 8.0]]),
    "response_mask": torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]),
    "group": ["p", "p", "q", "q"],
}


def test_every_prompt_has_the_same_weight():
    seen = measured("prompt_loss", **LOSSES)
    assert seen["loss"] == (3.0 + 5.0) / 2
    assert seen["per_token_gradient"] == [
        [pytest.approx(1 / 6)] * 2,
        [pytest.approx(1 / 6), 0.0],
        [0.125, 0.125],
        [0.125, 0.125],
    ]


def test_a_mean_over_responses_is_detected():
    def twin(loss_mat: Any, response_mask: Any, **_: Any) -> dict[str, Any]:
        return {"loss": ((loss_mat * response_mask).sum(-1) / response_mask.sum(-1)).mean() / 2}

    assert measured("prompt_loss", twin, **LOSSES)["loss"] != measured("prompt_loss", **LOSSES)["loss"]


def test_the_loss_does_not_depend_on_the_number_of_ranks():
    losses = torch.tensor([1.0, 2.0, 6.0])
    for ranks in (1, 2):
        given = {"losses": losses, "prompt_length": 2, "context_parallel_size": ranks, "per_token": True}
        assert measured("context_parallel_loss", **given) == {"loss": 3.0}


def test_the_kl_penalty_and_the_reported_kl_are_right():
    seen = measured(
        "penalised_advantage",
        log_probs=torch.tensor([[-1.0, -2.0, 0.0]], dtype=torch.float64),
        ref_log_probs=torch.tensor([[-1.5, -1.0, 0.0]], dtype=torch.float64),
        values=torch.zeros(1, 3, dtype=torch.float64),
        response_mask=torch.tensor([[1.0, 1.0, 0.0]]),
        rewards=torch.tensor([1.0], dtype=torch.float64),
        kl_coef=0.1,
    )
    assert seen["kl"] == [[0.5, -1.0, 0.0]]
    # rewards -0.05 and 0.1 + 1
    assert seen["advantages"] == [[pytest.approx(1.05), pytest.approx(1.1), 0.0]]


STEP: dict[str, Any] = {
    "log_probs": torch.tensor([[-1.0, -1.0]], dtype=torch.float64),
    "proximal_log_probs": torch.tensor([[-1.1, -1.0]], dtype=torch.float64),
    "behaviour_log_probs": torch.tensor([[-1.3, -4.0]], dtype=torch.float64),
    "advantages": torch.ones(1, 2, dtype=torch.float64),
    "response_mask": torch.tensor([[True, True]]),
    "correction": "mask",
}


def test_a_weight_is_a_constant():
    seen = measured("decoupled_loss", **STEP)
    # r w / 2 for the first token; the second's weight e^3 is out of bounds.
    value = math.exp(0.1) * math.exp(0.2) / 2
    assert seen["loss"] == pytest.approx(-value)
    assert seen["gradient"] == [[pytest.approx(-value), 0.0]]
    assert seen["proximal_gradient"] == [[pytest.approx(value), 0.0]]
    assert seen["ratio"] == [[pytest.approx(math.exp(0.1)), 1.0]]


def test_a_wrong_divisor_of_the_loss_is_detected():
    counted, kept = (measured("decoupled_loss", **STEP, denominator=name)["loss"] for name in ("counted", "kept"))
    assert kept == pytest.approx(2 * counted)


def test_an_undetached_weight_is_detected():
    def twin(log_probs: Any, proximal_log_probs: Any, behaviour_log_probs: Any, **_: Any) -> dict[str, Any]:
        ratio = (log_probs - proximal_log_probs).exp()
        weight = (proximal_log_probs - behaviour_log_probs).exp()
        return {"loss": -(ratio * weight)[0, 0] / 2, "ratio": ratio}

    assert measured("decoupled_loss", twin, **STEP)["proximal_gradient"] == [[pytest.approx(0.0, abs=1e-15), 0.0]]


def test_the_proximal_policy_can_be_interpolated():
    """One of two versions lies between the policies, so the ratio and the weight are both the root of the quotient."""
    step = {**STEP, "proximal": "interpolated", "staleness": 2}
    log_probs, behaviour = STEP["log_probs"], STEP["behaviour_log_probs"]
    roots = ((log_probs - behaviour) / 2).exp()
    assert measured("decoupled_loss", **step)["ratio"] == [[pytest.approx(float(root)) for root in roots[0]]]


@pytest.mark.parametrize(
    ("options", "loss", "gradient"),
    [
        ({}, (-1.0 - 2.0) / 2 + 0.5 * (0.5 + 0.125) / 2, [-0.5 - 0.25, -1.0 + 0.125]),
        ({"kl_estimator": "k1"}, -1.5 + 0.5 * (-1.0 + 0.5) / 2, [-0.5 + 0.25, -1.0 + 0.25]),
        ({"rl_weight": 0.0}, -0.5 * (1.0 - 0.5) / 2, [-0.25, 0.125]),
    ],
)
def test_a_policy_loss_is_joined_with_a_teacher(options, loss, gradient):
    """The ratios are 1, so the gradient of a token's policy loss is minus its advantage, over two tokens."""
    rows = {
        "log_probs": [[-2.0, -1.0]],
        "old_log_probs": [[-2.0, -1.0]],
        "teacher_log_probs": [[-1.0, -1.5]],
        "advantages": [[1.0, 2.0]],
        "response_mask": [[1.0, 1.0]],
    }
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in rows.items()}
    seen = measured("distilled_loss", **tensors, distill_weight=0.5, **options)
    assert seen["loss"] == pytest.approx(loss)
    assert seen["per_token_gradient"] == [[pytest.approx(value) for value in gradient]]


def pairs(tokens: int, **more: Any) -> dict[str, Any]:
    ones = torch.ones(1, tokens, dtype=torch.float64)
    sides = {"chosen": 0.1, "rejected": -0.1}
    return {
        **{f"{side}_log_probs": height * ones for side, height in sides.items()},
        **{f"{side}_ref_log_probs": 0 * ones for side in sides},
        **{f"{side}_mask": ones for side in sides},
        "beta": 0.1,
        **more,
    }


@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_ipo_does_not_depend_on_length(tokens):
    assert measured("preference_loss", **pairs(tokens, loss_type="ipo"))["loss"] == pytest.approx(23.04)


@pytest.mark.parametrize("tokens", [1, 3])
def test_orpo_compares_the_odds_of_a_token(tokens):
    """Probabilities 0.8 and 0.2 have the odds 4 and 1/4, whose ratio is 16 for any length."""
    given = pairs(tokens, loss_type="orpo", reference="none")
    for side, likely in (("chosen", 0.8), ("rejected", 0.2)):
        given[f"{side}_log_probs"] = torch.full((1, tokens), math.log(likely), dtype=torch.float64)
    assert measured("preference_loss", **given)["loss"] == pytest.approx(0.1 * math.log(17 / 16))


def test_dpo_uses_the_sum_of_log_probs():
    seen = measured("preference_loss", **pairs(2, loss_type="sigmoid"))
    assert seen["loss"] == pytest.approx(math.log1p(math.exp(-0.1 * 0.4)))
    slope = -0.1 / (1 + math.exp(0.1 * 0.4))
    assert seen["chosen_gradient"] == [[pytest.approx(slope)] * 2]
    assert seen["rejected_gradient"] == [[pytest.approx(-slope)] * 2]


def test_ld_dpo_weighs_tokens_beyond_the_shorter_response_less():
    """The responses share one token. The chosen one has 0.1 + 3 * 0.25 * 0.1, the rejected one -0.1."""
    given = pairs(4, loss_type="sigmoid", ld_alpha=0.25)
    given["rejected_mask"] = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert measured("preference_loss", **given)["loss"] == pytest.approx(math.log1p(math.exp(-0.1 * 0.275)))


def test_label_smoothing_weighs_the_losses_of_both_orders_of_a_pair():
    """DPO with a margin of 0.4 and beta 0.1, of which one pair in four is labelled the wrong way round."""
    seen = measured("preference_loss", **pairs(2, loss_type="sigmoid", label_smoothing=0.25))
    right, wrong = (math.log1p(math.exp(sign * 0.04)) for sign in (-1, 1))
    assert seen["loss"] == pytest.approx(0.75 * right + 0.25 * wrong)


def test_the_split_of_pairs_does_not_matter_but_a_sum_does():
    def added_up(chosen_log_probs: Any, micro_batch_size: int | None, **inputs: Any) -> dict[str, Any]:
        given = {**PREFERENCE_UPDATE.lacking(), **inputs, "chosen_log_probs": chosen_log_probs}
        loss = PREFERENCE_UPDATE.reference(given)["loss"]
        return {"loss": loss * len(chosen_log_probs) / (micro_batch_size or len(chosen_log_probs))}

    given = {name: value.repeat(2, 1) if hasattr(value, "repeat") else value for name, value in pairs(2).items()}
    cuts = [{**given, "loss_type": "sigmoid", "micro_batch_size": size} for size in (2, 1)]
    whole, parts = (measured("preference_update", **cut) for cut in cuts)
    assert whole == parts
    whole, parts = (measured("preference_update", added_up, **cut) for cut in cuts)
    assert parts["loss"] == pytest.approx(2 * whole["loss"])


def test_kto_uses_the_reference_point_of_its_microbatch():
    """The log-ratios are 0.4 and 0.2, then -0.6 and -0.4. The KL estimate of all four is 0."""
    given = {
        "chosen_log_probs": torch.tensor([[-0.6], [-1.6]], dtype=torch.float64),
        "rejected_log_probs": torch.tensor([[-0.8], [-1.4]], dtype=torch.float64),
        **{f"{side}_ref_log_probs": -torch.ones(2, 1, dtype=torch.float64) for side in ("chosen", "rejected")},
        **{f"{side}_mask": torch.ones(2, 1, dtype=torch.int64) for side in ("chosen", "rejected")},
        "beta": 1.0,
    }

    def mean(*margins: float) -> float:
        return sum(1 / (1 + math.exp(margin)) for margin in margins) / len(margins)

    apart = measured("preference_update", **given, loss_type="kto", micro_batch_size=1)
    assert apart["loss"] == pytest.approx(mean(0.1, 0.1, -0.6, 0.4))
    whole = measured("preference_update", **given, loss_type="kto", micro_batch_size=2)
    without = measured("preference_update", **given, loss_type="apo_zero")
    assert whole["loss"] == pytest.approx(without["loss"]) == pytest.approx(mean(0.4, -0.2, -0.6, 0.4))


def test_without_a_reference_log_probs_are_compared_directly():
    given = {**pairs(2, loss_type="sigmoid"), "reference": "none"}
    zeros = {f"{side}_ref_log_probs": torch.zeros(1, 2) for side in ("chosen", "rejected")}
    relative = measured("preference_loss", **{**given, **zeros, "reference": "given"})
    assert measured("preference_loss", **given)["loss"] == pytest.approx(relative["loss"])


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_divergence_equals_a_hand_computed_one(beta):
    """The student has 3/4 and 1/4, the teacher 1/2 and 1/2. The second token is invalid."""
    student, teacher, step = (0.75, 0.25), (0.5, 0.5), 4
    logits = torch.tensor([[[math.log(p) for p in student], [5.0, 0.0]]], dtype=torch.float64)
    mixture = [beta * t + (1 - beta) * s for s, t in zip(student, teacher)]

    def divergence(one: Any, other: Any) -> float:
        return sum(p * math.log(p / q) for p, q in zip(one, other))

    inside = beta * divergence(teacher, mixture) + (1 - beta) * divergence(student, mixture)
    expected = {0.0: divergence(teacher, student), 1.0: divergence(student, teacher)}.get(beta, inside)
    seen = measured(
        "distillation_loss",
        logits=logits,
        teacher_logits=torch.zeros(1, 2, 2, dtype=torch.float64),
        response_mask=torch.tensor([[1, 0]]),
        beta=beta,
        batch_num_tokens=step,
    )
    assert seen["loss"] == pytest.approx(expected / step)
    assert seen["logits_gradient"][0][1] == [0.0, 0.0]


def test_a_step_is_divided_by_its_trained_tokens():
    given = {
        "logits": torch.tensor([[[0.0, 2.0], [0.0, 2.0]]], dtype=torch.float64),
        "teacher_logits": torch.zeros(1, 2, 2, dtype=torch.float64),
        "beta": 0.0,
        "temperature": 1.0,
    }
    step = measured("distillation_update", response_mask=torch.ones(1, 2), micro_batch_size=1, **given)
    first = measured("distillation_update", response_mask=torch.tensor([[1, 0]]), micro_batch_size=1, **given)
    assert step["loss"] == pytest.approx(first["loss"]) == pytest.approx(0.43378083)
    assert step["logits_gradient"][0][0][0] == pytest.approx(first["logits_gradient"][0][0][0] / 2)


def test_a_mean_over_a_microbatch_is_detected():
    def twin(logits: Any, response_mask: Any, **_: Any) -> dict[str, Any]:
        return {"loss": (logits[..., 0] * response_mask).sum() / response_mask.sum()}

    given = {
        "logits": torch.tensor([[[0.0, 2.0]]]),
        "teacher_logits": torch.zeros(1, 1, 2),
        "response_mask": torch.ones(1, 1),
        "batch_num_tokens": 8,
    }
    assert measured("distillation_loss", twin, **given)["loss"] != measured("distillation_loss", **given)["loss"]
