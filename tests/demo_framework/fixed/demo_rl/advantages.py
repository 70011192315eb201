"""Group advantages."""

from collections import defaultdict

import torch


def group_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = token_level_rewards.sum(dim=-1)
    accepted = response_mask.any(dim=-1)
    groups = defaultdict(list)
    for row, prompt in enumerate(index):
        if accepted[row]:
            groups[prompt].append(row)
    centred = torch.zeros_like(scores)
    for rows in groups.values():
        centred[rows] = scores[rows] - scores[rows].mean()
    advantages = centred.unsqueeze(-1) * response_mask
    return advantages, advantages
