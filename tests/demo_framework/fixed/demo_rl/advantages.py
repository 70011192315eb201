"""Group advantages."""

from collections import defaultdict

import torch


def group_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    valid = response_mask != 0
    scores = torch.where(valid, token_level_rewards, 0.0).sum(dim=-1)
    accepted = valid.any(dim=-1)
    groups = defaultdict(list)
    for row, prompt in enumerate(index):
        if accepted[row]:
            groups[prompt].append(row)
    centred = torch.zeros_like(scores)
    for rows in groups.values():
        centred[rows] = scores[rows] - scores[rows].mean()
    advantages = torch.where(valid, centred.unsqueeze(-1), 0.0)
    return advantages, advantages.clone()
