"""Loss aggregation. Bug: padding changes the loss."""

import demo_missing_tracker as tracker
import torch


@tracker.traced("agg_loss")
def agg_loss(
    loss_mat: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    logger: tracker.Logger | None = None,
) -> torch.Tensor:
    if loss_agg_mode != "token-mean":
        raise ValueError(f"unknown loss_agg_mode {loss_agg_mode!r}")
    return loss_mat.sum() / loss_mask.sum()
