"""Rejection of off-policy sequences. Bug: the sign of each token's advantage decides about it."""

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
        divergence = ((old - new) * mask).sum() / mask.sum().clamp(min=1)
        reject = (advantage < 0) & (divergence > options.delta)
        kept.append((~reject).float())
        rejected.append(reject.float().mean())
    return torch.cat(kept), torch.stack(rejected).mean()


def policy_loss(ppo_kl: torch.Tensor, advantages: torch.Tensor, eps_clip: float, eps_clip_high: float) -> torch.Tensor:
    ratio = (-ppo_kl).exp()
    clipped = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return torch.maximum(-ratio * advantages, -clipped * advantages)
