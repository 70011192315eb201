"""Define the contract of the updates of a whole training loop: its gradients, its learning rates and what it logs.

The model is a table, as in :mod:`sentinel.contracts.updates`. Each step of the loop trains on the whole batch, and the
optimizer changes no parameter. So all steps have the same gradient, and only their learning rates differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import CONTEXT_PARALLEL, detached, leaf, place_behind, replaced
from sentinel.contracts.contract import (
    AS_DEFINED,
    TOKENS,
    Choose,
    Contract,
    Input,
    Observed,
    dialect,
    drawn,
    knob,
    laws,
    per_token,
    token_mask,
)
from sentinel.contracts.kl_estimate import KL_ESTIMATE
from sentinel.contracts.policy_loss import POLICY_LOSS
from sentinel.contracts.updates import CUTTING, FUSED_HEAD, TABLE, WITH_IMAGES, cut_otherwise, fitting, inputs_of
from sentinel.values.lazy import torch
from sentinel.values.literals import Tensor

#: The rate of the first step of a warm-up, divided by the highest rate.
LOWEST_RATE = 0.25

_NUMBERS = ("loss", "grad_norm", "entropy", "old_kl", "validation_loss", "logged_rate", "lost_steps")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the gradient, the rates and the logged numbers. A number that a trainer does not log is None."""
    outputs = call(**{**inputs, "log_probs": leaf(inputs["log_probs"])})
    numbers = {name: outputs.get(name) for name in _NUMBERS}
    return {
        "gradient": detached(outputs["gradient"]),
        "rates": torch.tensor(list(map(float, outputs["rates"])), dtype=torch.float64),
        **{name: None if value is None else float(value) for name, value in numbers.items()},
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the sum of the steps' gradients, each multiplied by the step's learning rate, and what they log.

    The loss is the sum of its terms (:func:`_terms`). If the Euclidean norm of its gradient exceeds ``max_norm``, the
    gradient is multiplied by ``max_norm`` divided by the norm (Pascanu et al., arXiv:1211.5063, algorithm 1). The rate
    rises linearly in the warm-up, then stays constant, and falls linearly at the end (WSD, arXiv:2404.06395).
    """
    valid, log_probs = inputs["response_mask"] != 0, inputs["log_probs"]
    terms = _terms(inputs)
    total = sum(terms.values())
    (slope,) = torch.autograd.grad(total, log_probs, allow_unused=True) if total.requires_grad else (None,)
    slope = torch.zeros_like(log_probs) if slope is None else slope
    norm, most = float(slope.norm()), inputs["max_norm"]
    share = 1.0 if most is None or norm <= most else most / norm
    taken, later = range(inputs["resumes_after"], inputs["steps"]), inputs["logged_rate_of"] == "next"
    rates = [_rate(inputs, step) for step in taken]
    logged = [_rate(inputs, step + 1) for step in taken] if later else rates
    return {
        "gradient": slope * share * sum(rates),
        "rates": rates,
        "logged_rate": sum(logged) / len(logged),
        "loss": total.detach(),
        "grad_norm": None if most is None else norm,
        "entropy": _mean(inputs["entropies"], valid),
        "old_kl": _mean(_k3(inputs), valid & _sampled(inputs)),
        "validation_loss": _mean(-log_probs, valid) if inputs["validates"] else None,
        "lost_steps": 0.0,
    }


def _rate(inputs: Mapping[str, Any], step: int) -> float:
    """Return the rate of a step, from 0, divided by the highest rate."""
    warmup, decay = inputs["warmup_steps"], inputs["decay_steps"]
    if step < warmup:
        return LOWEST_RATE + (1 - LOWEST_RATE) * float(step / warmup)
    fallen = step - (inputs["steps"] - decay)
    return max(1 - (1 - LOWEST_RATE) * fallen / (decay - 1), LOWEST_RATE) if decay and fallen > 0 else 1.0


def _mean(values: Any, flags: Any) -> float | None:
    """Return the mean of the flagged values; None if there are none, because frameworks log different numbers then."""
    return float(values.detach()[flags].mean()) if values is not None and bool(flags.any()) else None


def _weights(inputs: Mapping[str, Any], name: str, default: float) -> Any:
    """Return the weights of a term, [batch, tokens]: 0 for masked tokens."""
    weights, valid = inputs[name], inputs["response_mask"] != 0
    weights = torch.full_like(inputs["log_probs"], default) if weights is None else weights
    return torch.where(valid, weights, 0.0).detach()


def _sampled(inputs: Mapping[str, Any]) -> Any:
    """Flag the tokens that the old policy sampled: those with a weight in the policy loss or in the distillation."""
    return (_weights(inputs, "policy_weights", 1.0) != 0) | (_weights(inputs, "distill_weights", 0.0) != 0)


def _old(inputs: Mapping[str, Any]) -> Any:
    old = inputs["old_log_probs"]
    return inputs["log_probs"].detach() if old is None else old


def _k3(inputs: Mapping[str, Any]) -> Any:
    """Compute the k3 estimate of the KL from the trained policy to the old policy, which sampled the tokens."""
    if inputs["old_log_probs"] is None:
        return None
    both = {"log_probs": inputs["old_log_probs"], "ref_log_probs": inputs["log_probs"].detach()}
    return KL_ESTIMATE.reference({**both, "kl_estimator": "k3", "response_mask": inputs["response_mask"]})["kl"]


def _terms(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the terms of the loss. Each is the mean of ``w l`` over the tokens with a weight ``w`` other than 0.

    * policy: the loss of ``algorithm`` as in the contract policy_loss, plus ``kl_coef / 2 (log r)^2`` with the ratio
      ``r`` to the old policy (Kimi k1.5, arXiv:2501.12599, equation 3), unless ``algorithm`` is cross_entropy;
    * supervised: the cross entropy ``-log p``;
    * distillation: the policy gradient with the reverse KL to a teacher as the cost, ``-r sg(log p_teacher - log p)``
      (KDRL, arXiv:2506.02208; see the contract distilled_loss), in a trust region (``distill_trust``).
    """
    log_probs, valid = inputs["log_probs"], inputs["response_mask"] != 0
    old, advantages = _old(inputs), inputs["advantages"]
    advantages = torch.zeros_like(log_probs) if advantages is None else advantages
    weights = _weights(inputs, "policy_weights", 1.0)
    batch = {
        **{name: inputs[name] for name in ("algorithm", "eps_clip_low", "eps_clip_high")},
        **dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size")),
        "log_probs": log_probs,
        "old_log_probs": old,
        "advantages": advantages,
        "response_mask": weights != 0,
        "importance_weights": weights,
    }
    surrogate = POLICY_LOSS.reference({**batch, "loss_agg_mode": "token-mean"})["loss"]
    logs = torch.where(valid, log_probs - old, 0.0)
    drift = (inputs["algorithm"] != "cross_entropy") * inputs["kl_coef"] / 2 * logs.square()
    terms = {"policy": surrogate + _weighted(drift, weights)}
    terms["supervised"] = _weighted(-log_probs, _weights(inputs, "supervised_weights", 0.0))
    if inputs["teacher_log_probs"] is not None:
        cost = (inputs["teacher_log_probs"] - log_probs).detach()
        near = torch.exp(torch.where(valid, log_probs, 0.0)) - torch.exp(torch.where(valid, old, 0.0))
        inside = near.detach() >= -inputs["distill_trust"]
        losses = inputs["distill_kl_coef"] / 2 * logs.square() - inside * cost * logs.exp()
        terms["distillation"] = _weighted(losses, _weights(inputs, "distill_weights", 0.0))
    return terms


def _weighted(losses: Any, weights: Any) -> Any:
    count = int((weights != 0).sum())
    return torch.where(weights != 0, losses * weights, 0.0).sum() / max(count, 1)


#: Log-ratios that a search may draw. The contract policy_loss has ratios that overflow.
_MOST_NATS = 20.0


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Convert log-ratios to log-probs, and draw the weights of the terms if the loss has several."""
    current = inputs["log_probs"]
    if inputs["old_log_probs"] is not None:
        ratios = inputs["old_log_probs"].array().astype(np.float64)
        inputs["old_log_probs"] = place_behind(current, ratios.clip(-_MOST_NATS, _MOST_NATS))
    least = max(inputs["warmup_steps"] + inputs["decay_steps"], inputs["resumes_after"] + 1)
    inputs["steps"] = max(inputs["steps"], least)
    if inputs["several_terms"]:
        inputs["policy_weights"] = _draw(current, (1.0, 0.0, 0.5), choose)
        inputs["supervised_weights"] = _draw(current, (0.0, 1.0, 0.25), choose)
        inputs["distill_weights"] = _draw(current, (0.0, 1.0, 2.0), choose)
        inputs["teacher_log_probs"] = place_behind(current, _draw(current, (0.5, -0.25, 1.5, 0.0), choose).array())
    return fitting(inputs, choose)


def _draw(like: Tensor, values: tuple[float, ...], choose: Choose) -> Tensor:
    places = np.array(choose.integers(like.array().size, 0, len(values) - 1), np.int64)
    return replaced(like, np.array(values)[places].reshape(like.shape))


#: A search varies this input only for bindings that list its values in ``accepts``.
WITH_ROUTES = Input(
    "with_routes",
    "boolean",
    "whether each token has the experts that its rollout chose, which the model must receive (R3, arXiv:2510.11370); "
    "the model returns other log-probs otherwise",
    default=False,
)


def _term(name: str, meaning: str) -> Input:
    return per_token(f"{name}_weights", f"weight of each token in {meaning}; 0: the token is not counted", default=None)


LOOP_UPDATE = Contract(
    name="loop_update",
    summary="updates of a training loop: from a batch to the optimizer and to the logged numbers",
    source=(
        "PPO (arXiv:1707.06347), algorithm 1, with the losses of the contract policy_loss; gradient clipping "
        "(arXiv:1211.5063, algorithm 1); warm-up and decay (arXiv:2404.06395). The split must not change the sum"
    ),
    inputs=(
        TABLE,
        per_token("old_log_probs", "log-probs of the policy that sampled the tokens", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(dtype="int64", dtypes=()),
        per_token(
            "entropies", "entropy at each token, in nats, which the forward pass returns too", "entropy", default=None
        ),
        Input("algorithm", "string", "the policy loss: an algorithm of the contract policy_loss", default="ppo"),
        *inputs_of(POLICY_LOSS, "eps_clip_low", "eps_clip_high"),
        knob("kl_coef", "coefficient of half the squared log-ratio to the old policy", (0.0, 0.5)),
        Input(
            "several_terms",
            "boolean",
            "whether the loss also has a supervised term and a distillation; a search then draws the weights of tokens",
            default=False,
        ),
        _term("policy", "the policy loss"),
        _term("supervised", "the cross entropy"),
        _term("distill", "the distillation"),
        per_token("teacher_log_probs", "log-probs of the teacher for the same tokens", default=None),
        drawn("steps", "number of steps; each trains on the whole batch", (1, 3)),
        drawn("warmup_steps", "steps in which the rate rises linearly, from a quarter of the highest rate", (0, 2)),
        drawn("decay_steps", "last steps, in which the rate falls linearly, to a quarter in the last step", (0, 2)),
        Input(
            "resumes_after",
            "integer",
            "the step after which the run was saved, and from which it resumes; 0: it starts at the first step",
            default=0,
        ),
        knob("max_norm", "largest norm of a step's gradient; default: no bound", (None, 0.25)),
        Input(
            "validates",
            "boolean",
            "whether the loop computes the loss of the same rows as validation, before the first step",
            default=False,
        ),
        *CUTTING,
        CONTEXT_PARALLEL,
        Input(
            "offloads",
            "boolean",
            "whether a manager moves gradients to the CPU after each backward pass, and scales and cuts them there",
            default=False,
        ),
        FUSED_HEAD,
        WITH_IMAGES,
        WITH_ROUTES,
        dialect(
            "logged_rate_of", "own", "the step whose rate a step logs: own, or next (the scheduler's rate after it)"
        ),
        dialect("distill_trust", 1.0, "largest fall of a token's probability since sampling that is distilled"),
        dialect("distill_kl_coef", 0.0, "coefficient of half the squared log-ratio to the old policy in distillation"),
    ),
    observes=(
        Observed(
            "gradient",
            "gradient of log_probs that reaches the optimizer, summed over steps, each multiplied by the step's rate",
            TOKENS,
            "gradient",
        ),
        Observed("rates", "the learning rate of each step, divided by the highest rate", ("steps",)),
        Observed("lost_steps", "number of steps for which nothing was logged", role="metric"),
        Observed("loss", "the logged loss, the mean over steps", role="metric"),
        Observed("grad_norm", "the logged norm of the gradient before it is cut", role="metric"),
        Observed("logged_rate", "the logged learning rate divided by the highest, the mean over steps", role="metric"),
        Observed("entropy", "the logged mean entropy of valid tokens", role="metric"),
        Observed("old_kl", "the logged mean k3 estimate of the KL to the policy that sampled", role="metric"),
        Observed("validation_loss", "the logged validation loss: the mean over valid tokens", role="metric"),
    ),
    measure=_measure,
    oracle=_oracle,
    laws=laws(
        "order_does_not_matter padding_is_invisible parts_add_up every_knob_counts metrics_tell_the_truth",
        *AS_DEFINED,
    ),
    arrange=_arrange,
    parts=cut_otherwise,
)
