"""Define the contract of group-based advantages, which compare each response with the other responses to the same
prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

from sentinel.contracts.aggregation import replaced
from sentinel.contracts.contract import (
    GROUP,
    GROUP_LAYOUT,
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
from sentinel.contracts.normalisation import (
    LAWS_OF_TOKENS,
    REWARD_LAYOUT,
    lay_out_groups,
    place_rewards,
    root,
    rows_of,
    squares,
    whitened,
)
from sentinel.values.lazy import torch
from sentinel.values.literals import tensor

#: Estimators that use one score per response; remax and optimal_token_baseline use token rewards.
_ESTIMATORS = ("grpo", "gdpo", "reinforce_plus_plus_baseline", "gpg", "rloo", "opo", "maxrl", "passk")

#: Estimators whose paper divides by the group's standard deviation, and those whose paper whitens the batch.
_BY_STD = ("grpo", "gdpo")
_WHITENED = ("gdpo", "reinforce_plus_plus_baseline")


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages with the scenario's estimator. The score ``s_i`` of response i is the sum of its rewards; mean
    and std are those of the ``n`` scores in its group. ``A_it =``

    * grpo (arXiv:2402.03300, section 4.1.2): ``(s_i - mean) / (std + epsilon)``; without std, Dr. GRPO
      (arXiv:2503.20783, section 3.2): ``s_i - mean``;
    * gdpo (arXiv:2601.05242, section 3): grpo of each reward component, weighted and added up, then whitened over the
      responses of the batch; one component is the score;
    * reinforce_plus_plus_baseline (arXiv:2501.03262): ``s_i - mean``, then whitened over the tokens of the batch;
    * rloo (arXiv:2402.14740, section 3.3): ``s_i - sum_{j != i} s_j / (n - 1)``;
    * opo (arXiv:2505.23585): ``s_i - sum_j |m_j| s_j / sum_j |m_j|``, the minimum-variance baseline if the
      gradient norm grows with response length;
    * gpg (arXiv:2504.02546): ``B / (B - M) (s_i - mean)``, where M of the B responses are in groups of equal scores and
      have no gradient;
    * passk (GRPO-PassK, arXiv:2503.19595): ``max - second`` for the best response, 0 for the others;
    * maxrl (arXiv:2602.02710): ``(s_i - mean) / (mean + epsilon)``;
    * remax (arXiv:2310.10505): ``sum_{k >= t} r_ik - b_i``, b_i the score of the greedy response;
    * optimal_token_baseline (Greensmith et al. 2004, token by token): ``G_it - sum_j W_jt G_jt / (sum_j W_jt +
      epsilon)`` with the reward-to-go G and ``W_it = sum_{k <= t} |grad log p_ik|^2``, where the squared norm of the
      gradient with respect to the logits is ``1 - 2 p + sum_v p_v^2``; t numbers the valid tokens of each response.

    Groups contain only responses with a valid token, because a rejected row must have the effect of an absent one. The
    return equals the advantage; for remax and optimal_token_baseline it is the reward to go.
    """
    valid = inputs["response_mask"] != 0
    rewards = inputs["token_level_rewards"]
    if inputs["masked_rewards"] == "ignored":
        rewards = torch.where(valid, rewards, 0.0)
    if inputs["estimator"] in ("remax", "optimal_token_baseline"):
        returns = torch.where(valid, torch.where(valid, rewards, 0.0).flip(-1).cumsum(-1).flip(-1), 0.0)
        remax = inputs["estimator"] == "remax"
        baselines = inputs["reward_baselines"][:, None] if remax else _token_baselines(returns, valid, inputs)
        return {"advantages": torch.where(valid, returns - baselines, 0.0), "returns": returns}
    lengths = valid.sum(-1)
    if inputs["component_scores"] is None:
        of_responses = _of_responses(rewards.sum(-1), lengths, inputs)
    else:
        of_components = [_of_responses(scores, lengths, inputs) for scores in inputs["component_scores"]]
        of_responses = sum(weight * one for weight, one in zip(inputs["component_weights"], of_components))
    white = _chosen(inputs, "whiten", _WHITENED)
    if white and inputs["estimator"] == "gdpo":
        of_responses = whitened(of_responses, lengths > 0)
    advantages = torch.where(valid, of_responses[:, None], 0.0)
    if white and inputs["estimator"] != "gdpo":
        advantages = whitened(advantages, valid, inputs["std"] == "unbiased")
    return {"advantages": advantages, "returns": advantages}


def _token_baselines(returns: Any, valid: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute each token's baseline, [batch, tokens]: the weighted mean of the group's returns at the same step."""
    if inputs["old_log_probs"] is None or inputs["sum_squared_probs"] is None:
        raise DoesNotApply("the optimal token baseline needs token probabilities, which the scenario does not have")
    squared_norms = 1 - 2 * torch.exp(inputs["old_log_probs"]) + inputs["sum_squared_probs"]
    weights = torch.where(valid, squared_norms, 0.0).cumsum(-1)
    epsilon = 1e-8 if inputs["epsilon"] is None else inputs["epsilon"]
    baselines = torch.zeros_like(returns)
    for rows in rows_of(inputs["group"]).values():
        steps = [valid[row].nonzero().flatten().tolist() for row in rows]
        for step in range(max(map(len, steps))):
            there = [(row, columns[step]) for row, columns in zip(rows, steps) if len(columns) > step]
            at = tuple(torch.tensor(there).T)
            if len(there) > 1:
                baselines[at] = (weights[at] * returns[at]).sum() / (weights[at].sum() + epsilon)
            elif inputs["group_of_one"] == "zero":
                baselines[at] = returns[at]
    return baselines


def _chosen(inputs: Mapping[str, Any], name: str, by_paper: Sequence[str]) -> bool:
    return inputs["estimator"] in by_paper if inputs[name] is None else bool(inputs[name])


def _of_responses(scores: Any, lengths: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute the advantage of each response, [batch]."""
    advantages = torch.zeros_like(scores)
    counted = [row for row in range(len(scores)) if inputs["rejected"] == "counted" or lengths[row] > 0]
    useful = 0
    for members in rows_of(inputs["group"][row] for row in counted).values():
        rows = [counted[member] for member in members]
        group = scores[rows]
        advantages[rows] = _of_group(group, lengths[rows], inputs)
        if inputs["zero_gradient"] == "equal_scores":
            useful += 0 if (group == group[0]).all() else len(rows)
        else:
            useful += int((group != 0).sum())
    return advantages * len(counted) / max(useful, 1) if inputs["estimator"] == "gpg" else advantages


def _of_group(scores: Any, lengths: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute the advantages of the responses to one prompt, [n]."""
    estimator, count = inputs["estimator"], len(scores)
    if estimator not in _ESTIMATORS:
        raise DoesNotApply(f"the contract does not define the estimator {estimator!r}")
    epsilon = 1e-6 if inputs["epsilon"] is None else inputs["epsilon"]
    by_std = _chosen(inputs, "norm_by_std", _BY_STD)
    if count == 1:
        if inputs["group_of_one"] == "zero":
            return torch.zeros_like(scores)
        return scores / (1 + epsilon) if by_std and estimator in ("grpo", "gdpo") else scores
    std = root(squares(scores - scores.mean(), inputs["std"] == "unbiased"), epsilon, inputs["epsilon_placement"])
    centred = scores - scores.mean()
    if estimator in ("grpo", "gdpo"):
        return centred / std if by_std else centred
    if estimator in ("reinforce_plus_plus_baseline", "gpg"):
        return centred
    if estimator == "rloo":
        return scores - (scores.sum() - scores) / (count - 1)
    if estimator == "opo":
        return scores - (lengths * scores).sum() / lengths.sum().clamp(min=1)
    if estimator == "maxrl":
        return centred / (scores.mean() + epsilon)
    best, second = scores.sort(descending=True).values[:2]
    gain = (best - second) / std if by_std else best - second
    return torch.where(torch.arange(count) == scores.argmax(), gain, 0.0)


#: Rewards of remax's greedy responses in a search.
_BASELINES = (0.0, 1.0, -1.0, 0.5)


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    place_rewards(inputs, choose)
    if inputs["group_layout"] != "any":
        lay_out_groups(inputs, choose)
    if inputs["estimator"] == "maxrl":  # rewards must not be negative, because their mean, a success rate, is a divisor
        rewards = inputs["token_level_rewards"]
        inputs["token_level_rewards"] = replaced(rewards, abs(rewards.array().astype("float64")))
    if inputs["estimator"] == "remax" and inputs["reward_baselines"] is None:
        rewards = inputs["token_level_rewards"]
        drawn = choose.integers(rewards.shape[0], 0, len(_BASELINES) - 1)
        inputs["reward_baselines"] = tensor([_BASELINES[number] for number in drawn], rewards.dtype)
    if inputs["components"] > 1 and inputs["component_scores"] is None:
        _draw_components(inputs, choose)
    if inputs["estimator"] == "optimal_token_baseline" and inputs["old_log_probs"] is None:
        _draw_distributions(inputs, choose)
    return inputs


#: Scores of a reward component, and weights of components, in a search.
_COMPONENT_SCORES = (0.0, 1.0, 0.5, -1.0)
_COMPONENT_WEIGHTS = (1.0, 0.5, 2.0)


def _draw_components(inputs: dict[str, Any], choose: Choose) -> None:
    """Draw a score of each response for each reward component, and the weights of the components."""
    rewards, count = inputs["token_level_rewards"], inputs["components"]
    drawn = [choose.integers(rewards.shape[0], 0, len(_COMPONENT_SCORES) - 1) for _ in range(count)]
    inputs["component_scores"] = tensor([[_COMPONENT_SCORES[number] for number in row] for row in drawn], "float32")
    inputs["component_weights"] = [choose.one_of(_COMPONENT_WEIGHTS) for _ in range(count)]


#: A search draws a token's log-prob, and the share of the remaining probability that goes to a single other token.
_TOKEN_LOG_PROBS = (-1.0, -0.5, -2.0, -0.125, 0.0)
_OTHER_SHARES = (0.5, 1.0, 0.1)


def _draw_distributions(inputs: dict[str, Any], choose: Choose) -> None:
    """Draw each token's probability, and a sum of squared probabilities that is possible for a distribution with this
    probability."""
    rewards = inputs["token_level_rewards"]
    log_probs, squares_ = [], []
    for _ in range(rewards.shape[0]):
        row = [_TOKEN_LOG_PROBS[n] for n in choose.integers(rewards.shape[1], 0, len(_TOKEN_LOG_PROBS) - 1)]
        rest = [_OTHER_SHARES[n] for n in choose.integers(rewards.shape[1], 0, len(_OTHER_SHARES) - 1)]
        log_probs.append(row)
        squares_.append([exp(x) ** 2 + share * (1 - exp(x)) ** 2 for x, share in zip(row, rest)])
    inputs["old_log_probs"] = tensor(log_probs, rewards.dtype)
    inputs["sum_squared_probs"] = tensor(squares_, rewards.dtype)


GROUP_ADVANTAGE = Contract(
    name="group_advantage",
    summary="token-level advantages of responses, relative to the other responses to the same prompt",
    source=(
        "GRPO (arXiv:2402.03300), section 4.1.2; Dr. GRPO (arXiv:2503.20783); RLOO (arXiv:2402.14740); REINFORCE++ "
        "(arXiv:2501.03262); ReMax (arXiv:2310.10505); OPO (arXiv:2505.23585); GPG (arXiv:2504.02546); GDPO "
        "(arXiv:2601.05242); GRPO-PassK (arXiv:2503.19595); MaxRL (arXiv:2602.02710); baselines of least "
        "variance (Greensmith et al. 2004, JMLR 5)"
    ),
    inputs=(
        per_token("token_level_rewards", "reward of each token; an outcome reward is on one token", "reward"),
        token_mask("1 for tokens that count; a rejected row is all 0"),
        REWARD_LAYOUT,
        GROUP,
        GROUP_LAYOUT,
        knob("epsilon", "added to the standard deviation; default: the boundary's own (1e-6)", (1e-6, 0.5), None),
        knob(
            "norm_by_std",
            "whether to divide by the group's standard deviation; default: as in the estimator's paper",
            (True, False),
            None,
        ),
        Input(
            "estimator",
            "string",
            "estimator: grpo, rloo, opo, gpg, passk, reinforce_plus_plus_baseline, gdpo, remax, maxrl, "
            "optimal_token_baseline; without one, the contract has no oracle",
            default=None,
        ),
        per_row("reward_baselines", "remax: the reward of the greedy response to the row's prompt", default=None),
        per_token(
            "old_log_probs", "optimal_token_baseline: log-probs of the policy that generated the tokens", default=None
        ),
        per_token(
            "sum_squared_probs",
            "optimal_token_baseline: the sum of p^2 over the vocabulary, at each token",
            default=None,
        ),
        # A search varies this input only for bindings that list its values in ``accepts``.
        Input("components", "integer", "gdpo: the number of reward components", default=1),
        Input(
            "component_scores",
            "tensor",
            "gdpo: the scores of each reward component, if there are several; default: the scores from the rewards",
            shape=("components", "batch"),
            default=None,
        ),
        Input("component_weights", "any", "gdpo: the weight of each reward component", default=None),
        dialect("std", "unbiased", "unbiased (n - 1) or biased (n)"),
        dialect(
            "epsilon_placement", "outside", "outside (std + epsilon) or inside (sqrt(variance + epsilon)) the root"
        ),
        dialect(
            "group_of_one",
            "zero",
            "the advantage of a group of one response: zero, or score (no baseline)",
        ),
        dialect("rejected", "absent", "whether statistics include rows without a valid token: absent or counted"),
        dialect(
            "masked_rewards",
            "ignored",
            "whether a reward on a masked token is part of its response's score: ignored or counted",
        ),
        dialect(
            "zero_gradient",
            "equal_scores",
            "responses that gpg counts as having no gradient: equal_scores (groups with equal scores) or zero_scores",
        ),
        dialect(
            "whiten",
            None,
            "whether advantages are whitened over all valid tokens of the batch: centred and divided by "
            "sqrt(variance + 1e-8), the variance as std says; default: as in the estimator's paper",
            kind="boolean",
        ),
    ),
    observes=(
        Observed("advantages", "advantage of each token", TOKENS),
        Observed("returns", "return of each token", TOKENS),
    ),
    measure=returned(advantages="as_is", returns="as_is?"),
    oracle=_oracle,
    law="a_rejected_row_is_an_absent_row",
    group="group",
    aliases={"index": "group", "uid": "group", "norm_adv_by_std_in_grpo": "norm_by_std"},
    laws=LAWS_OF_TOKENS,
    arrange=_arrange,
)
