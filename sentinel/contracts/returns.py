"""Define contracts of returns and advantages that are computed from later rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.aggregation import CONTEXT_PARALLEL, place_behind, spread, with_a_token
from sentinel.contracts.contract import (
    AS_DEFINED,
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    per_row,
    per_token,
    returned,
    token_mask,
)
from sentinel.contracts.kl_estimate import KL_ESTIMATE
from sentinel.contracts.normalisation import (
    LAWS_OF_TOKENS,
    REWARD_LAYOUT,
    WHITENING,
    place_rewards,
    runs,
    whitened_as_stated,
)
from sentinel.values.lazy import torch

# -- generalised advantage estimation ----------------------------------------------------------------------------------


def _oracle_generalised_advantage(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute GAE (equation 16) over valid tokens.

    ``A_t = sum_l (gamma lam)^l delta_{t+l}`` with ``delta_t = r_t + gamma V_{t+1} - V_t``. The value after the last
    token is 0. The return is ``A_t + V_t``. VAPO (arXiv:2504.05118) uses another lambda for the returns (section 4.1),
    and ``1 - 1 / (alpha l)`` for the advantages of a response of ``l`` tokens (equation 8).
    """
    rewards, values, gamma = inputs["token_level_rewards"], inputs["values"], inputs["gamma"]
    valid = inputs["response_mask"] != 0
    if inputs["masked_steps"] not in ("skipped", "counted"):
        raise DoesNotApply(f"the oracle does not define advantages for masked_steps={inputs['masked_steps']!r}")
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for row, counts in enumerate(valid):
        step = counts if inputs["masked_steps"] == "skipped" else torch.ones_like(counts)
        r, v = rewards[row, step], values[row, step]
        deltas = r + gamma * torch.cat([v[1:], v.new_zeros(1)])[: len(v)] - v
        steps = torch.arange(len(v), dtype=torch.float64)
        ahead = steps[None, :] - steps[:, None]  # l, for token t (row) and t + l (column)
        own, of_returns = _lambdas(inputs, len(v))
        advantages[row, step] = _decay(ahead, gamma * own) @ deltas
        returns[row, step] = _decay(ahead, gamma * of_returns) @ deltas + v
    if inputs["whiten"]:
        advantages = whitened_as_stated(advantages, valid, inputs)
    return {"advantages": advantages, "returns": returns}


def _lambdas(inputs: Mapping[str, Any], length: int) -> tuple[float, float]:
    """Return the lambda of the advantages and the lambda of the returns of a response with ``length`` tokens."""
    lam, alpha, of_returns = inputs["lam"], inputs["length_alpha"], inputs["lam_returns"]
    return (
        lam if alpha is None or not length else 1 - 1 / (alpha * length),
        lam if of_returns is None else of_returns,
    )


def _decay(ahead: Any, factor: float) -> Any:
    return torch.where(ahead >= 0, factor ** ahead.clamp(min=0), 0.0)


GENERALISED_ADVANTAGE = Contract(
    name="generalised_advantage",
    summary="token-level advantages and returns from token rewards and a critic's values",
    source="GAE (arXiv:1506.02438), equation 16, for an episode that ends with the last valid token",
    inputs=(
        per_token("token_level_rewards", "reward of each token", "reward"),
        per_token("values", "the critic's value at each token", "value"),
        token_mask("1 for tokens that count, which are the steps of the episode"),
        REWARD_LAYOUT,
        CONTEXT_PARALLEL,
        knob("gamma", "discount", (1.0, 0.5, 0.9, 0.0), REQUIRED),
        knob("lam", "GAE's lambda", (1.0, 0.5, 0.95, 0.0), REQUIRED),
        Input("lam_returns", "number", "VAPO: the lambda of the returns; default: lam", default=None),
        Input(
            "length_alpha",
            "number",
            "VAPO: if set, at least 1: the lambda of a response's advantages is 1 - 1 / (length_alpha * its length)",
            default=None,
        ),
        dialect(
            "whiten",
            False,
            "advantages (not returns) are centred and divided by their standard deviation over all valid tokens",
        ),
        *WHITENING,
        dialect(
            "masked_steps",
            "skipped",
            "masked tokens: skipped (not a step), or counted (a step with the reward and the value at that token)",
        ),
    ),
    observes=(
        Observed("advantages", "advantage of each valid token; 0 elsewhere", TOKENS),
        Observed("returns", "the critic's target at each valid token; 0 elsewhere", TOKENS),
    ),
    measure=returned(advantages="counted", returns="counted?"),
    oracle=_oracle_generalised_advantage,
    aliases={"rewards": "token_level_rewards", "lambd": "lam", "loss_mask": "response_mask"},
    laws=LAWS_OF_TOKENS,
    arrange=place_rewards,
)


# -- discounted returns ------------------------------------------------------------------------------------------------


def _measure_discounted_return(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe returns and advantages at valid tokens.

    ``call`` returns ``returns``, ``advantages`` or both. Without ``advantages``, the returns are the advantages.
    """
    outputs = {**call(**inputs)}
    if "advantages" in outputs:
        outputs.setdefault("returns", None)
    else:
        outputs["advantages"] = outputs["returns"]
    valid = inputs["response_mask"] != 0
    found = {key: outputs[key] for key in ("returns", "advantages")}
    return {key: None if value is None else torch.where(valid, value, 0.0) for key, value in found.items()}


def _oracle_discounted_return(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the discounted return of each token, from rewards minus a KL penalty.

    With a KL penalty, the reward of a valid token is ``r_t - kl_coef * kl_t`` (arXiv:2203.02155, equation 2). The
    return is ``G_t = sum_{k >= t} gamma^(k - t) (r_k - kl_coef * kl_k)`` (REINFORCE++, arXiv:2501.03262). The advantage
    is the return; if ``whiten`` is set, normalised over the batch.
    """
    valid = inputs["response_mask"] != 0
    penalty = inputs["kl_coef"] * inputs["kl"] if inputs["kl"] is not None and inputs["kl_coef"] else None
    returns = torch.zeros_like(inputs["token_level_rewards"])
    for row, counts in enumerate(valid):
        rewards = inputs["token_level_rewards"][row]
        own = torch.zeros_like(rewards) if penalty is None else torch.where(counts, penalty[row], 0.0)
        returns[row] = torch.where(counts, _returns(rewards, own, counts, inputs), 0.0)
    return {
        "returns": returns,
        "advantages": whitened_as_stated(returns, valid, inputs) if inputs["whiten"] else returns,
    }


def _returns(rewards: Any, penalty: Any, counts: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute the returns of one response, [tokens], from its valid tokens."""
    credit, gamma = inputs["credit"], inputs["gamma"]
    earned = torch.where(counts, rewards, 0.0)
    if credit == "response":
        return earned.sum() - penalty
    returns = torch.zeros_like(rewards)
    segments = runs(counts.tolist())
    if credit == "segment":
        steps = torch.stack([(earned - penalty)[run].sum() for run in segments]) if segments else rewards[:0]
        for run, value in zip(segments, _discounted(steps, gamma)):
            returns[run] = value
        return returns
    if credit != "discounted":
        raise DoesNotApply(f"the contract does not define the credit {credit!r}")
    if inputs["masked_steps"] == "counted":
        return _discounted(rewards - penalty, gamma)
    if inputs["masked_steps"] == "end":
        for run in segments:
            returns[run] = _discounted((earned - penalty)[run], gamma)
    elif inputs["masked_steps"] == "skipped":
        returns[counts] = _discounted((earned - penalty)[counts], gamma)
    else:
        raise DoesNotApply(f"the oracle does not define returns for masked_steps={inputs['masked_steps']!r}")
    return returns


def _discounted(rewards: Any, gamma: float) -> Any:
    """Compute ``sum_{k >= t} gamma^(k - t) r_k`` for each step t of ``rewards`` [steps]."""
    steps = torch.arange(len(rewards), dtype=torch.float64)
    ahead = steps[None, :] - steps[:, None]
    return torch.where(ahead >= 0, gamma ** ahead.clamp(min=0), 0.0).to(rewards) @ rewards


DISCOUNTED_RETURN = Contract(
    name="discounted_return",
    summary="token-level returns from token rewards and a KL penalty, without a critic",
    source="REINFORCE++ (arXiv:2501.03262), on KL-regularised token rewards (arXiv:2203.02155, equation 2)",
    inputs=(
        per_token(
            "token_level_rewards",
            "reward of each token; an outcome reward is on the last valid token",
            "reward",
        ),
        token_mask("1 for tokens that count, which are the steps of the episode"),
        REWARD_LAYOUT,
        CONTEXT_PARALLEL,
        knob("gamma", "discount of a step", (1.0, 0.5, 0.9, 0.0)),
        per_token("kl", "KL estimate of each token, in nats", "log_ratio", default=None),
        knob("kl_coef", "coefficient of the KL penalty", (0.0, 0.5, 0.1)),
        dialect(
            "credit",
            "discounted",
            "a token's return: discounted (discounted rewards from the token on), response (all rewards of the "
            "response minus the token's own KL penalty), segment (as discounted, with a run of valid tokens as "
            "one step)",
        ),
        dialect(
            "masked_steps",
            "skipped",
            "masked tokens: skipped (not a step), counted (a step with the reward at that token and no KL "
            "penalty), end (the episode ends before it, and another begins after it)",
        ),
        dialect(
            "whiten",
            False,
            "advantages are the returns, centred and divided by their standard deviation over all valid tokens; false: "
            "advantages are the returns",
        ),
        *WHITENING,
    ),
    observes=(
        Observed("returns", "return of each valid token; 0 elsewhere", TOKENS),
        Observed("advantages", "advantage of each valid token; 0 elsewhere", TOKENS),
    ),
    measure=_measure_discounted_return,
    oracle=_oracle_discounted_return,
    aliases={"rewards": "token_level_rewards", "loss_mask": "response_mask", "discount": "gamma"},
    laws=LAWS_OF_TOKENS,
    arrange=place_rewards,
)


# -- penalised advantages ----------------------------------------------------------------------------------------------


def _oracle_penalised_advantage(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages by GAE. A token's reward is ``-kl_coef k1``, plus the outcome reward on the last token
    (arXiv:2203.02155, equation 2).
    """
    valid = inputs["response_mask"] != 0
    kl = torch.where(valid, inputs["log_probs"] - inputs["ref_log_probs"], 0.0)
    rewards = -inputs["kl_coef"] * kl
    last = valid.shape[1] - 1 - valid.flip(-1).int().argmax(-1)
    rewards[torch.arange(len(rewards)), last] += torch.where(valid.any(-1), inputs["rewards"], 0.0)
    return {**GENERALISED_ADVANTAGE.reference({**inputs, "token_level_rewards": rewards}), "kl": kl}


def _arrange_penalised_advantage(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "ref_log_probs")
    return with_a_token(inputs, choose)


PENALISED_ADVANTAGE = Contract(
    name="penalised_advantage",
    summary="advantages of outcome rewards with a KL penalty, and the reported KL",
    source="GAE (arXiv:1506.02438), equation 16, on the KL-regularised rewards of arXiv:2203.02155, equation 2",
    inputs=(
        per_token("log_probs", "log-probs of the trained policy, in nats", "log_prob"),
        per_token("ref_log_probs", "log-probs of the reference, in nats", "log_ratio"),
        per_token("values", "the critic's value at each token", "value"),
        token_mask(dtypes=()),
        per_row("rewards", "outcome reward of each response", "reward"),
        knob("kl_coef", "coefficient of the penalty", (0.5, 0.1), REQUIRED),
        knob("gamma", "discount", (1.0, 0.5)),
        knob("lam", "GAE's lambda", (1.0, 0.5)),
    ),
    observes=(
        Observed("advantages", "advantage of each valid token; 0 elsewhere", TOKENS),
        Observed("kl", "the reported KL estimate (k1) of each valid token", TOKENS, "metric"),
    ),
    measure=returned(advantages="counted", kl="counted"),
    oracle=_oracle_penalised_advantage,
    law="metrics_tell_the_truth",
    laws=("groups_are_isolated", "order_does_not_matter", "metrics_tell_the_truth", "every_knob_counts", *AS_DEFINED),
    arrange=_arrange_penalised_advantage,
)


# -- distilled advantages ----------------------------------------------------------------------------------------------


def _oracle_distilled_advantage(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the returns of the rewards, minus the weighted KL estimates from the student to its teachers.

    On-policy distillation adds ``-c_i kl_i`` to the advantage of each token for each teacher i (arXiv:2601.02780,
    equation 8, where the KL estimate is k1 and ``c_i`` is 1). Without rewards, this sum is the advantage. If responses
    are routed, only the response's own teacher counts.
    """
    valid, rewards = inputs["response_mask"] != 0, inputs["token_level_rewards"]
    if valid.sum() < 2 and (inputs["whiten_rewards"] or inputs["whiten_advantages"]):
        raise DoesNotApply("the unbiased variance of fewer than two tokens is undefined")
    if inputs["whiten_rewards"]:
        rewards = whitened_as_stated(rewards, valid, inputs)
    kl = torch.zeros_like(rewards)
    for place, (name, coefficient) in enumerate(zip(_TEACHERS, (inputs["coefficient"], inputs["second_coefficient"]))):
        if coefficient is None:
            continue
        own = torch.tensor([not inputs["routed"] or _teacher_of(label) == place for label in inputs["teacher"]])
        clamp = inputs["clamp"] if inputs["kl_estimator"] == "k3" else None
        estimate = KL_ESTIMATE.reference({**inputs, "ref_log_probs": inputs[name], "clamp": clamp})["kl"]
        kl += coefficient * torch.where(own[:, None], estimate, 0.0)
    stated = {**inputs, "token_level_rewards": rewards, "kl": None, "kl_coef": 0.0, "whiten": False}
    returns = -kl if inputs["pure"] else _oracle_discounted_return(stated)["returns"]
    advantages = returns if inputs["pure"] else returns - kl
    if inputs["whiten_advantages"]:
        advantages = whitened_as_stated(advantages, valid, inputs)
    advantages = torch.where(valid, advantages, 0.0)
    if inputs["advantage_clip"] is not None:
        advantages = advantages.clamp(-inputs["advantage_clip"], inputs["advantage_clip"])
    return {"advantages": advantages, "returns": returns}


#: The log-probs of the teachers, in the order of their coefficients.
_TEACHERS = ("teacher_log_probs", "second_teacher_log_probs")


def _teacher_of(label: str) -> int:
    """Return the number of the teacher of a response: 0 for the label ``p``, otherwise 1."""
    return int(label != "p")


def _arrange_distilled_advantage(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Keep all log-probs at most 0. Responses are only routed if there are two teachers."""
    spread(inputs, "log_probs", _TEACHERS[0])
    inputs[_TEACHERS[1]] = place_behind(inputs["log_probs"], -inputs[_TEACHERS[1]].array())
    inputs["routed"] = inputs["routed"] and inputs["second_coefficient"] is not None
    return place_rewards(inputs, choose)


DISTILLED_ADVANTAGE = Contract(
    name="distilled_advantage",
    summary="advantages of a trainer's driver: returns, KL penalties of teachers, whitening, and clipping",
    source=(
        "on-policy distillation with several teachers (arXiv:2601.02780, equation 8), on returns of REINFORCE++ "
        "(arXiv:2501.03262)"
    ),
    inputs=(
        per_token("token_level_rewards", "reward of each token", "reward"),
        per_token("log_probs", "log-probs of the student, which sampled the tokens, in nats", "log_prob"),
        per_token(_TEACHERS[0], "log-probs of the first teacher for the same tokens", "log_ratio"),
        per_token(_TEACHERS[1], "log-probs of the second teacher for the same tokens", "log_ratio"),
        token_mask("1 for tokens that count, which are the steps of the episode"),
        Input(
            "teacher", "labels", "teacher of each response if responses are routed: p is the first", shape=("batch",)
        ),
        REWARD_LAYOUT,
        knob("coefficient", "coefficient of the first teacher's KL estimate", (1.0, 0.5)),
        knob("second_coefficient", "coefficient of the second teacher; None without this teacher", (None, 0.5, 2.0)),
        knob("routed", "whether each response has one teacher; otherwise all teachers count", (False, True)),
        knob("pure", "whether rewards are ignored", (False, True)),
        knob("kl_estimator", "k1, abs, k2 or k3", ("k1", "k2", "k3", "abs")),
        knob("gamma", "discount of a step", (1.0, 0.5)),
        knob("whiten_rewards", "whether token rewards are whitened first", (False, True)),
        knob("whiten_advantages", "whether advantages are whitened", (False, True)),
        knob("advantage_clip", "bound of |advantage|, after whitening", (None, 1.0), kind="number"),
        *(item for item in DISCOUNTED_RETURN.inputs if item.name in ("credit", "masked_steps")),
        *WHITENING,
        dialect("clamp", None, "bound of |kl| for the estimator k3; None for no bound"),
    ),
    observes=(
        Observed("advantages", "advantage of each valid token; 0 elsewhere", TOKENS),
        Observed("returns", "return of each valid token, without distillation unless pure; 0 elsewhere", TOKENS),
    ),
    measure=returned(advantages="counted", returns="counted?"),
    oracle=_oracle_distilled_advantage,
    # groups_are_isolated is not listed: whitening uses the whole batch.
    laws=tuple(law for law in LAWS_OF_TOKENS if law != "groups_are_isolated"),
    arrange=_arrange_distilled_advantage,
)
