"""Token rewards: where in a response the score of the whole lands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, TOKENS, Choose, Contract, Input, Observed, per_row, token_mask
from sentinel.contracts.response_lengths import with_a_token


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``token_level_rewards`` [batch, tokens]."""
    rewards = call(**inputs)["token_level_rewards"]
    outside = (rewards != 0) & (inputs["response_mask"] == 0)
    return {"token_level_rewards": rewards, "rewards_outside": int(outside.sum())}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``r_t = score`` at the last token that counts, else 0: the return of every token is then the score."""
    import torch

    valid = inputs["response_mask"] != 0
    rewards = torch.zeros(valid.shape, dtype=torch.float64)
    last = valid.shape[1] - 1 - valid.flip(-1).int().argmax(-1)
    rewards[torch.arange(len(valid)), last] = inputs["rewards"].double()
    return {"token_level_rewards": rewards}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Every response has a token to be rewarded."""
    return with_a_token(inputs)


TOKEN_REWARD = Contract(
    name="token_reward",
    summary="the score of each response, as the reward of one of its tokens",
    source="InstructGPT (arXiv:2203.02155), equation 2: the score is of the whole response, to its last token",
    inputs=(
        per_row("rewards", "score of each response", "reward"),
        token_mask(dtypes=()),
        Input(
            "score_as",
            "string",
            "what a rule says of a response: number, or record (the score, with what else it found); null where no "
            "rule is asked",
            default="number",
            choices=("number", "record"),
        ),
    ),
    observes=(
        Observed("token_level_rewards", "reward of each token", TOKENS),
        Observed("rewards_outside", "how many tokens have a reward and do not count"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=(
        "groups_are_isolated",
        "order_does_not_matter",
        "padding_is_invisible",
        "twins_agree",
        "finite_in_finite_out",
        *AS_DEFINED,
    ),
    aliases={"scores": "rewards"},
    arrange=_arrange,
)
