"""Define the contract of policy losses, which reduce log-probs, old log-probs and advantages to a scalar.

Throughout, ``r`` is the ratio ``p / p_old`` (:func:`~sentinel.contracts.aggregation.log_ratio`), ``A`` is the
advantage, and ``sg`` stops the gradient. Papers state objectives to maximise; the loss is the negative objective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.contracts.aggregation import (
    AGGREGATION_INPUTS,
    RATIO_PRECISION,
    aggregate,
    count_globally,
    cut_rows,
    detached,
    draw_behind,
    exponential,
    fraction,
    gradient,
    leaf,
    log_ratio,
    metric,
    replaced,
    row_mean,
    spread,
)
from sentinel.contracts.contract import (
    PER_ACTION,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    laws_of_tokens,
    per_row,
    per_token,
    token_mask,
)
from sentinel.values.lazy import torch

# -- the loss of each token, algorithm by algorithm, from the papers ---------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The inputs of a policy-loss algorithm. Every tensor is [batch, tokens] and 0 at masked tokens."""

    log_probs: Any
    old_log_probs: Any
    log_ratio: Any
    advantages: Any
    valid: Any
    inputs: Mapping[str, Any]

    @property
    def ratio(self) -> Any:
        return exponential(self.log_ratio, self.inputs)

    @property
    def band(self) -> tuple[float, float]:
        return 1 - self.inputs["eps_clip_low"], 1 + self.inputs["eps_clip_high"]


@dataclass(frozen=True)
class Losses:
    """The loss of each token, and flags for tokens whose loss is changed by clipping (``clipped``) or by dual clipping
    (``second``)."""

    per_token: Any
    clipped: Any = None
    second: Any = None


def _clipped_surrogate(step: Step) -> Losses:
    """Compute PPO's clipped loss, ``-min(r A, clip(r, 1 - e_low, 1 + e_high) A)`` (equation 7), with an optional dual
    clip.

    The two bounds are those of DAPO's Clip-Higher. Dual clip (arXiv:1912.09729), for ``A < 0``: ``-max(min(...), c
    A)``.
    """
    plain, bounded = -step.ratio * step.advantages, -step.ratio.clamp(*step.band) * step.advantages
    losses, c = torch.maximum(plain, bounded), step.inputs["dual_clip"]
    if c is None:
        return Losses(losses, bounded > plain)
    ceiling, negative = -c * step.advantages, step.advantages < 0
    second = negative & (losses > ceiling)
    return Losses(torch.where(negative, torch.minimum(losses, ceiling), losses), bounded > plain, second)


def _cispo(step: Step) -> Losses:
    """Compute CISPO's loss (equations 4 and 5): ``-sg(clip(r, 1 - e_low, 1 + e_high)) A log p``."""
    weights = step.ratio.clamp(*step.band).detach()
    return Losses(-weights * step.advantages * step.log_probs, _outside(step))


def _cispo_unified(step: Step) -> Losses:
    """Compute CISPO's loss (equations 6 and 7), which is 0 for tokens that PPO would clip.

    PPO clips tokens with ``A > 0`` and ``r`` above the range, or ``A < 0`` and ``r`` below it. Other tokens have the
    loss of :func:`_cispo`.
    """
    low, high = step.band
    masked = ((step.advantages > 0) & (step.ratio > high)) | ((step.advantages < 0) & (step.ratio < low))
    return Losses(_cispo(step).per_token * ~masked, _outside(step))


def _icepop(step: Step) -> Losses:
    """Compute IcePop's loss (arXiv:2510.18855): ``-sg(r) A log p`` for ratios inside the band, 0 outside."""
    outside = _outside(step)
    return Losses(-step.ratio.detach() * ~outside * step.advantages * step.log_probs, outside)


def _outside(step: Step) -> Any:
    low, high = step.band
    return (step.ratio < low) | (step.ratio > high)


def _sapo(step: Step) -> Losses:
    """Compute SAPO's loss (section 3): ``-f(r) A`` with the gate ``f(r) = 4 / tau * sigmoid(tau (r - 1))``.

    ``tau`` is tau_pos for ``A > 0`` and tau_neg otherwise.
    """
    # Tensors, because torch.where returns single precision for two Python numbers.
    positive, other = (step.advantages.new_tensor(step.inputs[name]) for name in ("tau_pos", "tau_neg"))
    tau = torch.where(step.advantages > 0, positive, other)
    return Losses(-4 / tau * torch.sigmoid(tau * (step.ratio - 1)) * step.advantages)


def _reinforce(step: Step) -> Losses:
    """Compute REINFORCE's loss (Williams 1992; GPG, arXiv:2504.02546): ``-A log p``."""
    return Losses(-step.advantages * step.log_probs)


def _importance_sampling(step: Step) -> Losses:
    """Compute the unclipped loss (PPO, equation 6): ``-r A``."""
    return Losses(-step.ratio * step.advantages)


def _cross_entropy(step: Step) -> Losses:
    """Compute the cross entropy: ``-log p``."""
    return Losses(-step.log_probs)


def _gmpo(step: Step) -> Losses:
    """Compute GMPO's loss (section 3), with the geometric mean of clipped ratios.

    ``-A (prod_t min(r_t^s, clip(r_t, e^-e_low, e^e_high)^s)^s)^(1/|y|)`` with ``s = sign A``; the loss of the response
    is repeated at each of its tokens.
    """
    logs, sign = step.log_ratio, torch.sign(step.advantages)
    bounded = logs.clamp(-step.inputs["eps_clip_low"], step.inputs["eps_clip_high"])
    least = sign * torch.minimum(sign * logs, sign * bounded)
    losses = -row_mean(step.advantages, step.valid) * row_mean(least, step.valid).exp()
    return Losses(losses, sign * bounded < sign * logs)


def _dppo(divergence: Callable[[Step], Any]) -> Callable[[Step], Losses]:
    def losses(step: Step) -> Losses:
        """Compute DPPO's loss (section 4): ``-M r A``, with a mask M for tokens outside the trust region.

        ``M = 0`` if ``r`` has moved in the direction of ``A`` and the divergence of the token's probability exceeds the
        threshold, else 1. By section 5.4, ``r`` has an upper bound.
        """
        rises, distance = step.log_probs > step.old_log_probs, divergence(step).detach()
        too_high = (step.advantages > 0) & rises & (distance > step.inputs["eps_clip_high"])
        falls = step.log_probs < step.old_log_probs
        too_low = (step.advantages < 0) & falls & (distance > step.inputs["eps_clip_low"])
        masked, cap, weights = too_high | too_low, step.inputs["ratio_cap"], step.ratio
        capped = torch.zeros_like(masked) if cap is None else (weights > cap) & ~masked
        if cap is not None:
            weights = weights.clamp(max=cap)
        if step.inputs["surrogate"] == "log_prob":
            weights = weights.detach() * step.log_probs
        elif cap is not None:  # the weight is a constant; only the log-prob has a gradient
            weights = weights.detach() * (step.log_probs - step.log_probs.detach()).exp()
        return Losses(-weights * step.advantages * ~masked, masked, capped)

    return losses


def _total_variation(step: Step) -> Any:
    """Compute the total variation (DPPO, equation 13): ``|p - p_old|``."""
    return (step.log_probs.exp() - step.old_log_probs.exp()).abs()


def _binary_kl(step: Step) -> Any:
    """Compute the binary KL (DPPO, equation 14), ``q log(q / p) + (1 - q) log((1 - q) / (1 - p))`` with ``q =
    p_old``.
    """
    q, epsilon = step.old_log_probs.exp(), step.inputs["epsilon"]
    rest = -torch.expm1(step.old_log_probs)  # 1 - q, exact for q near 1
    other = torch.log((rest + epsilon) / (-torch.expm1(step.log_probs) + epsilon))
    return q * (step.old_log_probs - step.log_probs) + torch.where(rest == 0, 0.0, rest * other)


def _squared_log_ratio(step: Step) -> Losses:
    """Compute the loss of Kimi k1.5, equation 3. Its gradient is ``A grad log p - beta / 2 grad (log r)^2`` with the
    ratio of whole responses; with token ratios it is DRO's loss: ``-A log p + beta / 2 (log r)^2``.

    The squared log-ratio of a response is distributed evenly over its tokens.
    """
    penalty = step.log_ratio.square()
    if step.inputs["ratio_level"] == "sequence":
        penalty = penalty / step.valid.sum(-1, keepdim=True).clamp(min=1)
    elif step.inputs["ratio_level"] != "token":
        raise DoesNotApply("the squared log-ratio is defined only for the ratio levels token and sequence")
    return Losses(-step.advantages * step.log_probs + step.inputs["beta"] / 2 * penalty)


def _topr(step: Step) -> Losses:
    """Compute TOPR's loss (equation 8): ``-w+ A log p`` for positive responses, ``-w- sg(clip(r, 0, 1)) A log p`` for
    other responses.
    """
    scores = step.inputs["scores"]
    positive = step.advantages > 0 if scores is None else (scores[:, None] > 0).expand_as(step.advantages)
    tapered = step.inputs["negative_weight"] * step.ratio.clamp(0, 1).detach()
    weights = torch.where(positive, float(step.inputs["positive_weight"]), tapered)
    return Losses(-weights * step.advantages * step.log_probs, ~positive & (step.ratio > 1))


def _clip_cov(step: Step) -> Losses:
    """Compute Clip-Cov's loss (arXiv:2505.22617, section 4.1): PPO's loss, but 0 at random tokens of high covariance.

    The tokens are drawn from those that PPO does not clip and whose covariance is between the bounds. The number of
    drawn tokens is ``cov_share`` of the valid tokens, but at least one.
    """
    ppo, covariance = _clipped_surrogate(step), _covariance(step)
    low, high = step.inputs["cov_low"], step.inputs["cov_high"]
    _refuse_ties(covariance, low, high)
    inside = step.valid.clone()
    inside[step.valid] = (covariance > low) & (covariance < high)
    inside &= ~ppo.clipped
    if int(inside.sum()) > _chosen(step):
        raise DoesNotApply("Clip-Cov drops random tokens here, so there is no single right loss")
    return Losses(ppo.per_token * ~inside, inside)


def _kl_cov(step: Step) -> Losses:
    """Compute KL-Cov's loss (arXiv:2505.22617, section 4.2): ``-r A``, plus a penalty at the tokens with the highest
    covariance.

    The penalty is ``coefficient * |log r|``. It applies to ``cov_share`` of the valid tokens, but at least to one.
    """
    covariance, count = _covariance(step), _chosen(step)
    chosen = torch.zeros_like(step.valid)
    if count < len(covariance):
        _refuse_ties(covariance.sort(descending=True).values[count - 1 : count + 1].diff(), 0.0)
    if len(covariance):
        largest = torch.zeros_like(covariance, dtype=torch.bool)
        largest[covariance.topk(min(count, len(covariance))).indices] = True
        chosen[step.valid] = largest
    penalty = step.inputs["cov_kl_coef"] * step.log_ratio.abs()
    return Losses(-step.ratio * step.advantages + penalty * chosen)


def _covariance(step: Step) -> Any:
    """Compute the token-wise covariance ``(log p - mean log p) (A - mean A)`` of the valid tokens, [n]."""
    if step.inputs["cov_share"] is None:
        raise DoesNotApply(f"the contract defines {step.inputs['algorithm']} only if cov_share is set")
    log_probs, advantages = step.log_probs.detach()[step.valid], step.advantages[step.valid]
    return (log_probs - log_probs.mean()) * (advantages - advantages.mean())


def _chosen(step: Step) -> int:
    return max(int(step.inputs["cov_share"] * int(step.valid.sum())), 1)


def _refuse_ties(values: Any, *bounds: float) -> None:
    if any(bool(((values - bound).abs() < 1e-3).any()) for bound in bounds):
        raise DoesNotApply("a covariance is so close to a bound that rounding decides whether the token is selected")


ALGORITHMS: dict[str, Callable[[Step], Losses]] = {
    "ppo": _clipped_surrogate,
    "gspo": _clipped_surrogate,  # GSPO, equation 5, with the ratio of equation 7
    "gspo_token": _clipped_surrogate,  # GSPO, section 4.3
    "cispo": _cispo,
    "cispo_unified": _cispo_unified,
    "icepop": _icepop,
    "sapo": _sapo,
    "reinforce": _reinforce,
    "gpg": _reinforce,
    "importance_sampling": _importance_sampling,
    "cross_entropy": _cross_entropy,
    "gmpo": _gmpo,
    "dppo_tv": _dppo(_total_variation),
    "dppo_kl": _dppo(_binary_kl),
    "dro": _squared_log_ratio,
    "kimi": _squared_log_ratio,
    "topr": _topr,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
}

#: Algorithm -> level of the ratio, for papers that do not use token ratios.
_LEVELS = {"gspo": "geometric", "gspo_token": "geometric", "topr": "sequence", "kimi": "sequence"}


def policy_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the algorithm's loss per token, multiply it by the importance weights, and aggregate.

    Importance weights are applied after clipping: they correct the sampling distribution and are not part of the ratio.

    :raises DoesNotApply: for an algorithm without an oracle, or if the result depends on chance or rounding.
    """
    algorithm = inputs["algorithm"]
    if algorithm not in ALGORITHMS:
        raise DoesNotApply(f"the contract does not define the algorithm {algorithm}")
    inputs = {**inputs, "ratio_level": inputs["ratio_level"] or _LEVELS.get(algorithm, "token")}
    step = _step(_per_ratio(inputs))
    losses = ALGORITHMS[algorithm](step)
    per_token = _per_step(losses.per_token * _weights(step), inputs)
    zeros = torch.zeros_like(step.valid)
    return {
        "loss": aggregate(per_token, inputs),
        "per_token_loss": per_token,
        "clip_fraction": fraction(zeros if losses.clipped is None else losses.clipped, step.valid),
        "dual_clip_fraction": fraction(zeros if losses.second is None else losses.second, step.valid),
        "approx_kl": fraction(_per_step(_k1(step), inputs), inputs["response_mask"]),
    }


def _per_ratio(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs with one column for each ratio: for each step, from the sum of its actions' log-probs, or for
    each action.

    A policy's probability of a step is the product of the probabilities of its actions (PPO, equation 6, with an action
    of several dimensions or a chunk of actions).
    """
    if inputs["log_probs"].dim() == len(TOKENS):
        return inputs
    there = {name: inputs[name] for name in PER_ACTION if inputs.get(name) is not None}
    if inputs["action_ratio"] == "joint":
        return {**inputs, **{name: value.sum(-1) for name, value in there.items()}}
    count = inputs["log_probs"].shape[-1]
    of_steps = {
        name: inputs[name].repeat_interleave(count, -1)
        for name in ("advantages", "response_mask", "importance_weights")
        if inputs[name] is not None
    }
    return {**inputs, **of_steps, **{name: value.flatten(1) for name, value in there.items()}}


def _per_step(values: Any, inputs: Mapping[str, Any]) -> Any:
    """Add up the values of each step's actions, or average them, [batch, tokens]."""
    if inputs["log_probs"].dim() == len(TOKENS) or inputs["action_ratio"] == "joint":
        return values
    of_actions = values.unflatten(-1, inputs["log_probs"].shape[1:])
    return of_actions.mean(-1) if inputs["action_ratio"] == "mean" else of_actions.sum(-1)


def _step(inputs: Mapping[str, Any]) -> Step:
    valid = inputs["response_mask"] != 0
    log_probs, old, advantages = (
        torch.where(valid, inputs[name], 0.0) for name in ("log_probs", "old_log_probs", "advantages")
    )
    if inputs["on_policy"]:
        old = log_probs.detach()
    if inputs["advantage_level"] == "sequence":
        advantages = row_mean(advantages, valid)
    logs = log_ratio(log_probs, old, valid, inputs["ratio_level"])
    if inputs["algorithm"] == "gspo_token":  # sg(s) p_t / sg(p_t): value of the sequence, gradient of the token
        logs = logs.detach() + log_probs - log_probs.detach()
    return Step(log_probs, old, _cut(logs, inputs), advantages.detach(), valid, inputs)


def _cut(logs: Any, inputs: Mapping[str, Any]) -> Any:
    clamp = inputs["log_ratio_clamp"]
    if clamp is None:
        return logs
    return logs.clamp(max=clamp) if inputs["log_ratio_clamp_side"] == "upper" else logs.clamp(-clamp, clamp)


def _weights(step: Step) -> Any:
    """Return the importance weight of each token; for GMPO, the geometric mean over the sequence.

    Decoupled PPO (arXiv:2110.00641): the weight is ``p_old / p_rollout``.
    """
    weights = torch.ones_like(step.advantages)
    if step.inputs["importance_weights"] is not None:
        weights = weights * step.inputs["importance_weights"].detach()
    if step.inputs["rollout_log_probs"] is not None:
        rollout = log_ratio(step.old_log_probs, step.inputs["rollout_log_probs"], step.valid).exp()
        cap = step.inputs["importance_weight_cap"]
        weights = weights * (rollout if cap is None else rollout.clamp(max=cap))
    weights = torch.where(step.valid, weights, 1.0)
    if step.inputs["algorithm"] != "gmpo":
        return weights
    return row_mean((weights + step.inputs["epsilon"]).log(), step.valid).exp()


def _k1(step: Step) -> Any:
    """Compute the log-ratio ``log p_old - log p`` of each token. It is clamped like the log-ratio if ratios are per
    token and ``reported_log_ratio`` is ``cut``."""
    logs = log_ratio(step.log_probs.detach(), step.old_log_probs, step.valid)
    cut = step.inputs["ratio_level"] == "token" and step.inputs["reported_log_ratio"] == "cut"
    return -(_cut(logs, step.inputs) if cut else logs)


# -- measure and scenarios ---------------------------------------------------------------------------------------------

_METRICS = ("clip_fraction", "dual_clip_fraction", "approx_kl")

#: Values of ``old_log_probs - rollout_log_probs`` that a search draws, for boundaries with importance weights.
_ROLLOUT_RATIOS = (0.0, 0.5, -0.5, 1.0, 0.25)

#: Algorithms whose paper defines one advantage per response.
_ONE_ADVANTAGE = ("gspo", "gmpo")

#: Algorithms that select tokens by a statistic of the whole batch.
_OF_THE_BATCH = ("clip_cov", "kl_cov")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe a policy loss, its gradient and its metrics.

    ``call`` returns ``loss``; or only ``per_token_loss``, whose sum over valid tokens is then the loss. A metric is one
    number, or one number per token; then its mean over valid tokens is observed.
    """
    log_probs, mask = leaf(inputs["log_probs"]), inputs["response_mask"]
    outputs = call(**{**inputs, "log_probs": log_probs})
    per_token, loss = outputs.get("per_token_loss"), outputs.get("loss")
    if per_token is not None:
        per_token = per_token.reshape(*mask.shape, -1).sum(-1)  # add up the actions of each step
    if loss is None:
        assert per_token is not None, "a policy loss returns a loss, or a loss for each token"
        loss = torch.where(mask != 0, per_token, 0.0).sum()
    return {
        "loss": detached(loss),
        "per_token_gradient": gradient(loss, log_probs),
        "per_token_loss": None if per_token is None else torch.where(mask != 0, detached(per_token), 0.0),
        **{name: metric(outputs.get(name), mask) for name in _METRICS},
    }


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "old_log_probs")
    count_globally(inputs, choose)
    draw_rollout_policy(inputs, choose)
    if inputs["algorithm"] in _ONE_ADVANTAGE:
        advantages = inputs["advantages"]
        values = advantages.array().copy()
        values[:] = values[:, :1]
        inputs["advantages"] = replaced(advantages, values)
    return inputs


def draw_rollout_policy(inputs: dict[str, Any], choose: Choose) -> None:
    """Draw the log-probs of another policy that sampled the tokens, in place, if ``importance_weight_cap`` is set."""
    if inputs["importance_weight_cap"] is not None and inputs["rollout_log_probs"] is None:
        inputs["rollout_log_probs"] = draw_behind(inputs["old_log_probs"], _ROLLOUT_RATIOS, choose)


def _parts_of_a_policy_loss(inputs: Mapping[str, Any], choose: Choose) -> list[dict[str, Any]]:
    if inputs["algorithm"] in _OF_THE_BATCH:
        raise DoesNotApply(f"{inputs['algorithm']} uses statistics of the whole batch, which cannot be split")
    return cut_rows(inputs, choose)


POLICY_LOSS = Contract(
    name="policy_loss",
    summary="the policy loss of tokens that another policy generated",
    source=(
        "PPO (arXiv:1707.06347), dual clip (arXiv:1912.09729), GSPO (arXiv:2507.18071), CISPO (arXiv:2506.13585), "
        "SAPO (arXiv:2511.20347), GPG (arXiv:2504.02546), GMPO (arXiv:2507.20673), DPPO (arXiv:2602.04879), "
        "Kimi k1.5 (arXiv:2501.12599), TOPR (arXiv:2503.14286), Clip-Cov and KL-Cov (arXiv:2505.22617); aggregation "
        "as in loss_aggregation"
    ),
    inputs=(
        per_token("log_probs", "log-probs of the trained policy, in nats, <= 0", "log_prob", differentiable=True),
        per_token("old_log_probs", "old log-probs, the denominator of the ratio, for the same tokens", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(),
        Input(
            "algorithm",
            "string",
            "algorithm: ppo, gspo, gspo_token, cispo, cispo_unified, sapo, gpg, reinforce, importance_sampling, "
            "icepop, gmpo, dppo_tv, dppo_kl, dro, kimi, topr, cross_entropy, clip_cov, kl_cov",
        ),
        knob(
            "eps_clip_low",
            "lower clip range of the ratio, below 1; gmpo: of the log-ratio, below 0; dppo: the divergence threshold "
            "for negative advantages",
            (0.2, 0.1, 0.4),
        ),
        knob(
            "eps_clip_high",
            "upper clip range of the ratio, above 1; gmpo: of the log-ratio, above 0; dppo: the divergence threshold "
            "for positive advantages",
            (0.2, 0.28, 0.1, 0.9),
        ),
        knob(
            "dual_clip",
            "ppo, gspo, gspo_token: for negative advantages, the largest loss divided by |advantage|; above 1",
            (None, 3.0, 1.5),
        ),
        knob("ratio_cap", "dppo: the largest weight of a token (truncated importance sampling)", (None, 5.0, 1.5)),
        knob("tau_pos", "sapo: temperature for positive advantages", (1.0, 2.0)),
        knob("tau_neg", "sapo: temperature for other advantages", (1.05, 1.0, 2.0)),
        knob("beta", "dro and kimi: coefficient of half the squared log-ratio", (0.1, 0.5)),
        knob("positive_weight", "topr: weight of the responses with positive score", (1.0, 0.5)),
        knob("negative_weight", "topr: weight of other responses", (1.0, 0.5)),
        Input(
            "actions_per_step",
            "integer",
            "embodied RL: actions of each step (a chunk of actions, or the dimensions of one). Log-probs are then "
            "[batch, tokens, actions], and a token is a step with one advantage and one mask value; default: one",
            default=None,
        ),
        per_row(
            "scores",
            "topr: the reward whose sign makes a response positive; default: each token's advantage",
            default=None,
        ),
        Input(
            "cov_share",
            "number",
            "clip_cov and kl_cov: the fraction of valid tokens that is selected",
            default=None,
        ),
        Input("cov_low", "number", "clip_cov: the covariance above which tokens are drawn", default=1.0),
        Input("cov_high", "number", "clip_cov: the covariance below which tokens are drawn", default=5.0),
        Input("cov_kl_coef", "number", "kl_cov: coefficient of |log-ratio|", default=1.0),
        *AGGREGATION_INPUTS,
        per_token(
            "importance_weights",
            "importance weight of each token's loss, between the old policy and the rollout policy",
            "weight",
            default=None,
        ),
        per_token(
            "rollout_log_probs",
            "log-probs of the policy that generated the tokens; each token's loss is multiplied by "
            "min(exp(old_log_probs - rollout_log_probs), importance_weight_cap)",
            default=None,
        ),
        Input("importance_weight_cap", "number", "upper bound of these weights; default: no bound", default=None),
        Input(
            "on_policy",
            "boolean",
            "whether the trained policy's own log-probs, as constants, replace old_log_probs, so that each ratio is 1",
            default=False,
        ),
        dialect(
            "ratio_level",
            None,
            "level of the ratio: token, sequence (product), geometric (mean over the sequence), segment (mean over "
            "a run of valid tokens); default: as in the algorithm's paper",
            kind="string",
        ),
        dialect(
            "action_ratio",
            "joint",
            "the ratio of a step with several actions: joint (the product of the actions' ratios), or one per action, "
            "with the losses added up (sum) or averaged (mean)",
        ),
        dialect(
            "log_ratio_clamp",
            None,
            "the log-ratio is clamped to [-clamp, clamp], and has no gradient outside",
        ),
        dialect("log_ratio_clamp_side", "both", "sides that log_ratio_clamp bounds: both, or upper"),
        dialect(
            "reported_log_ratio",
            "cut",
            "the log-ratio that approx_kl averages: cut (clamped by log_ratio_clamp), or whole",
        ),
        RATIO_PRECISION,
        dialect(
            "surrogate",
            "ratio",
            "dppo: the factor with the gradient: ratio (weight * advantage) or log_prob (stopped weight * advantage * "
            "log-prob). The gradients are the same, the losses are not",
        ),
        dialect(
            "epsilon",
            0.0,
            "dppo_kl: added to 1 - p and 1 - p_old in the binary KL; gmpo: to a weight before its logarithm",
        ),
        dialect(
            "advantage_level",
            "token",
            "token (the token's advantage) or sequence (the mean advantage over the response's valid tokens)",
        ),
    ),
    observes=(
        Observed("loss", "the scalar loss"),
        Observed("per_token_gradient", "d loss / d log_probs", TOKENS, "gradient"),
        Observed("per_token_loss", "loss of each token before aggregation, if the boundary returns it", TOKENS),
        Observed("clip_fraction", "fraction of valid tokens that the clip range clips", role="metric"),
        Observed("dual_clip_fraction", "fraction of valid tokens that dual_clip clips", role="metric"),
        Observed("approx_kl", "mean of old_log_probs - log_probs over the valid tokens", role="metric"),
    ),
    measure=_measure,
    oracle=policy_loss,
    aliases={
        "log_prob": "log_probs",
        "logprobs": "log_probs",
        "old_log_prob": "old_log_probs",
        "loss_mask": "response_mask",
        "cliprange_low": "eps_clip_low",
        "cliprange_high": "eps_clip_high",
        "clip_ratio_c": "dual_clip",
        "rollout_is_weights": "importance_weights",
        "rollout_logprobs": "rollout_log_probs",
    },
    laws=laws_of_tokens("a_sequence_decision_is_one_decision", "normalisation_laws"),
    arrange=_arrange,
    parts=_parts_of_a_policy_loss,
)
