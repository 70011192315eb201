"""The oracles of policy losses: the loss of each token, algorithm by algorithm, from the papers.

Throughout, ``r`` is the ratio ``p / p_old`` (:func:`~sentinel.contracts.aggregation.log_ratio`), ``A`` the advantage,
``sg`` the stopped gradient. Papers state objectives to maximise; a loss here is minus that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.contracts.aggregation import aggregate, exponential, fraction, log_ratio, row_mean
from sentinel.contracts.contract import DoesNotApply
from sentinel.values.lazy import torch


@dataclass(frozen=True)
class Step:
    """What the algorithms read; every tensor is [batch, tokens], and 0 at masked tokens."""

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
    """The loss of each token, and which tokens the clip range and the second clip cut (None: there is no such)."""

    per_token: Any
    clipped: Any = None
    second: Any = None


def _clipped_surrogate(step: Step) -> Losses:
    """PPO, equation 7: ``-min(r A, clip(r, 1 - e_low, 1 + e_high) A)``, with two bounds as in DAPO's
    Clip-Higher. Dual clip (arXiv:1912.09729), for ``A < 0``: ``-max(min(...), c A)``.
    """
    plain, bounded = -step.ratio * step.advantages, -step.ratio.clamp(*step.band) * step.advantages
    losses, c = torch.maximum(plain, bounded), step.inputs["dual_clip"]
    if c is None:
        return Losses(losses, bounded > plain)
    ceiling, negative = -c * step.advantages, step.advantages < 0
    second = negative & (losses > ceiling)
    return Losses(torch.where(negative, torch.minimum(losses, ceiling), losses), bounded > plain, second)


def _cispo(step: Step) -> Losses:
    """CISPO, equations 4 and 5: ``-sg(clip(r, 1 - e_low, 1 + e_high)) A log p``."""
    weights = step.ratio.clamp(*step.band).detach()
    return Losses(-weights * step.advantages * step.log_probs, _outside(step))


def _cispo_unified(step: Step) -> Losses:
    """CISPO, equations 6 and 7: the same times 0 where PPO would clip, that is, for ``A > 0`` with ``r`` above the band
    and for ``A < 0`` with ``r`` below it."""
    low, high = step.band
    masked = ((step.advantages > 0) & (step.ratio > high)) | ((step.advantages < 0) & (step.ratio < low))
    return Losses(_cispo(step).per_token * ~masked, _outside(step))


def _icepop(step: Step) -> Losses:
    """Double-sided masking (arXiv:2510.18855): ``-sg(r) A log p`` inside of the band, 0 outside."""
    outside = _outside(step)
    return Losses(-step.ratio.detach() * ~outside * step.advantages * step.log_probs, outside)


def _outside(step: Step) -> Any:
    low, high = step.band
    return (step.ratio < low) | (step.ratio > high)


def _sapo(step: Step) -> Losses:
    """SAPO, section 3: ``-f(r) A`` with the gate ``f(r) = 4 / tau * sigmoid(tau (r - 1))``, ``tau`` being
    tau_pos for ``A > 0`` and tau_neg otherwise."""
    # Of two plain numbers torch.where makes single precision.
    positive, other = (step.advantages.new_tensor(step.inputs[name]) for name in ("tau_pos", "tau_neg"))
    tau = torch.where(step.advantages > 0, positive, other)
    return Losses(-4 / tau * torch.sigmoid(tau * (step.ratio - 1)) * step.advantages)


def _reinforce(step: Step) -> Losses:
    """Williams 1992, and GPG (arXiv:2504.02546): ``-A log p``."""
    return Losses(-step.advantages * step.log_probs)


def _importance_sampling(step: Step) -> Losses:
    """PPO, equation 6: ``-r A``, nothing clipped."""
    return Losses(-step.ratio * step.advantages)


def _cross_entropy(step: Step) -> Losses:
    """``-log p``."""
    return Losses(-step.log_probs)


def _gmpo(step: Step) -> Losses:
    """GMPO, section 3: ``-A (prod_t min(r_t^s, clip(r_t, e^-e_low, e^e_high)^s)^s)^(1/|y|)`` with ``s = sign A``; the
    loss of the response stands at each of its tokens."""
    logs, sign = step.log_ratio, torch.sign(step.advantages)
    bounded = logs.clamp(-step.inputs["eps_clip_low"], step.inputs["eps_clip_high"])
    least = sign * torch.minimum(sign * logs, sign * bounded)
    losses = -row_mean(step.advantages, step.valid) * row_mean(least, step.valid).exp()
    return Losses(losses, sign * bounded < sign * logs)


def _dppo(divergence: Callable[[Step], Any]) -> Callable[[Step], Losses]:
    def losses(step: Step) -> Losses:
        """DPPO, section 4: ``-M r A`` with ``M = 0`` where ``r`` has moved the way that ``A`` pushes and the
        divergence of the token's probability exceeds the threshold, else 1; section 5.4: ``r`` capped from above."""
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
        elif cap is not None:  # the weight is a constant, and the token's own log-prob carries the gradient
            weights = weights.detach() * (step.log_probs - step.log_probs.detach()).exp()
        return Losses(-weights * step.advantages * ~masked, masked, capped)

    return losses


def _total_variation(step: Step) -> Any:
    """DPPO, equation 13: ``|p - p_old|``."""
    return (step.log_probs.exp() - step.old_log_probs.exp()).abs()


def _binary_kl(step: Step) -> Any:
    """DPPO, equation 14: ``q log(q / p) + (1 - q) log((1 - q) / (1 - p))`` with ``q = p_old``."""
    q, epsilon = step.old_log_probs.exp(), step.inputs["epsilon"]
    rest = -torch.expm1(step.old_log_probs)  # 1 - q, exact for q near 1
    other = torch.log((rest + epsilon) / (-torch.expm1(step.log_probs) + epsilon))
    return q * (step.old_log_probs - step.log_probs) + torch.where(rest == 0, 0.0, rest * other)


def _squared_log_ratio(step: Step) -> Losses:
    """Kimi k1.5, equation 3, whose gradient is ``A grad log p - beta / 2 grad (log r)^2`` with the ratio of whole
    responses; the same token by token is DRO's loss: ``-A log p + beta / 2 (log r)^2``.

    The square of a whole response is spread evenly over its tokens.
    """
    penalty = step.log_ratio.square()
    if step.inputs["ratio_level"] == "sequence":
        penalty = penalty / step.valid.sum(-1, keepdim=True).clamp(min=1)
    elif step.inputs["ratio_level"] != "token":
        raise DoesNotApply("the squared log-ratio is of tokens or of whole responses")
    return Losses(-step.advantages * step.log_probs + step.inputs["beta"] / 2 * penalty)


def _topr(step: Step) -> Losses:
    """TOPR, equation 8: ``-w+ A log p`` for positive responses, ``-w- sg(clip(r, 0, 1)) A log p`` for the others."""
    scores = step.inputs["scores"]
    positive = step.advantages > 0 if scores is None else (scores[:, None] > 0).expand_as(step.advantages)
    tapered = step.inputs["negative_weight"] * step.ratio.clamp(0, 1).detach()
    weights = torch.where(positive, float(step.inputs["positive_weight"]), tapered)
    return Losses(-weights * step.advantages * step.log_probs, ~positive & (step.ratio > 1))


def _clip_cov(step: Step) -> Losses:
    """Clip-Cov (arXiv:2505.22617, section 4.1): PPO's loss, but 0 at tokens drawn from those that PPO does not clip and
    whose covariance lies between the bounds; as many as ``cov_share`` of the tokens that count, and at least one."""
    ppo, covariance = _clipped_surrogate(step), _covariance(step)
    low, high = step.inputs["cov_low"], step.inputs["cov_high"]
    _refuse_ties(covariance, low, high)
    inside = step.valid.clone()
    inside[step.valid] = (covariance > low) & (covariance < high)
    inside &= ~ppo.clipped
    if int(inside.sum()) > _chosen(step):
        raise DoesNotApply("which of the tokens within the bounds are left out is drawn at random")
    return Losses(ppo.per_token * ~inside, inside)


def _kl_cov(step: Step) -> Losses:
    """KL-Cov (arXiv:2505.22617, section 4.2): ``-r A``, with ``coefficient * |log r|`` added at the tokens whose
    covariance is largest: ``cov_share`` of those that count, and at least one."""
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
    """Compute the token-wise covariance ``(log p - mean log p) (A - mean A)`` of the tokens that count, [n]."""
    if step.inputs["cov_share"] is None:
        raise DoesNotApply(f"{step.inputs['algorithm']} without cov_share has no reference")
    log_probs, advantages = step.log_probs.detach()[step.valid], step.advantages[step.valid]
    return (log_probs - log_probs.mean()) * (advantages - advantages.mean())


def _chosen(step: Step) -> int:
    return max(int(step.inputs["cov_share"] * int(step.valid.sum())), 1)


def _refuse_ties(values: Any, *bounds: float) -> None:
    """Refuse a scenario where a covariance is as good as at a bound: rounding would choose."""
    if any(bool(((values - bound).abs() < 1e-3).any()) for bound in bounds):
        raise DoesNotApply("a covariance lies at the bound itself")


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

#: Of what the ratio is, in the papers that do not take each token's own.
_LEVELS = {"gspo": "geometric", "gspo_token": "geometric", "topr": "sequence", "kimi": "sequence"}


def policy_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the loss of each token by its algorithm, times the importance weights, and aggregate.

    The clip range is applied before the importance weights: they change the measure, not the objective.

    :raises DoesNotApply: for an algorithm without a definition here, and where chance or rounding decides.
    """
    algorithm = inputs["algorithm"]
    if algorithm not in ALGORITHMS:
        raise DoesNotApply(f"{algorithm} has no reference")
    inputs = {**inputs, "ratio_level": inputs["ratio_level"] or _LEVELS.get(algorithm, "token")}
    step = _step(inputs)
    losses = ALGORITHMS[algorithm](step)
    per_token = losses.per_token * _weights(step)
    zeros = torch.zeros_like(step.valid)
    return {
        "loss": aggregate(per_token, inputs),
        "per_token_loss": per_token,
        "clip_fraction": fraction(zeros if losses.clipped is None else losses.clipped, step.valid),
        "dual_clip_fraction": fraction(zeros if losses.second is None else losses.second, step.valid),
        "approx_kl": fraction(_k1(step), step.valid),
    }


def _step(inputs: Mapping[str, Any]) -> Step:
    valid = inputs["response_mask"] != 0
    log_probs, old, advantages = (
        torch.where(valid, inputs[name], 0.0) for name in ("log_probs", "old_log_probs", "advantages")
    )
    if inputs["advantage_level"] == "sequence":
        advantages = row_mean(advantages, valid)
    logs = log_ratio(log_probs, old, valid, inputs["ratio_level"])
    if inputs["algorithm"] == "gspo_token":  # s_t = sg(s) p_t / sg(p_t): the value of the sequence, each one's gradient
        logs = logs.detach() + log_probs - log_probs.detach()
    return Step(log_probs, old, _cut(logs, inputs), advantages.detach(), valid, inputs)


def _cut(logs: Any, inputs: Mapping[str, Any]) -> Any:
    clamp = inputs["log_ratio_clamp"]
    if clamp is None:
        return logs
    return logs.clamp(max=clamp) if inputs["log_ratio_clamp_side"] == "upper" else logs.clamp(-clamp, clamp)


def _weights(step: Step) -> Any:
    """Compute importance weights of the tokens; of gmpo, whose ratio is a geometric mean, their geometric mean.

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
    """Compute ``log p_old - log p``, cut as the ratio is where that is a token's own."""
    logs = log_ratio(step.log_probs.detach(), step.old_log_probs, step.valid)
    return -(_cut(logs, step.inputs) if step.inputs["ratio_level"] == "token" else logs)
