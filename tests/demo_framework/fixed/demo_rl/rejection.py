"""Rejection of off-policy sequences."""

import torch


class Thresholds:
    """Thresholds from the trainer's command line."""

    def __init__(self, delta: float) -> None:
        self.delta = delta


def reject_sequences(
    options: Thresholds,
    log_probs: list[torch.Tensor],
    old_log_probs: list[torch.Tensor],
    advantages: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    kept, rejected = [], []
    for new, old, advantage, mask in zip(log_probs, old_log_probs, advantages, loss_masks, strict=True):
        valid = mask != 0
        divergence = torch.where(valid, old - new, 0.0).sum() / mask.sum().clamp(min=1)
        negative = torch.where(valid, advantage, 0.0).sum() < 0
        reject = (negative & (divergence > options.delta)).expand_as(new)
        kept.append((~reject).float())
        if valid.any():
            rejected.append(reject.float().mean())
    fraction = torch.stack(rejected).mean() if rejected else torch.tensor(0.0)
    return torch.cat(kept), fraction


def policy_loss(ppo_kl: torch.Tensor, advantages: torch.Tensor, eps_clip: float, eps_clip_high: float) -> torch.Tensor:
    ratio = (-ppo_kl).exp()
    clipped = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return torch.maximum(-ratio * advantages, -clipped * advantages)
