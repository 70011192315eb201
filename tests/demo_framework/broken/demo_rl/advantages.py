"""Group advantages. Bug: a rejected response still counts in its group's mean."""

from collections import defaultdict

import torch


def group_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = token_level_rewards.sum(dim=-1)
    groups = defaultdict(list)
    for row, prompt in enumerate(index):
        groups[prompt].append(row)
    centred = scores.clone()
    for rows in groups.values():
        centred[rows] = scores[rows] - scores[rows].mean()
    advantages = centred.unsqueeze(-1) * response_mask
    return advantages, advantages
