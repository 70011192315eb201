"""SkyRL until it moved, in January 2026: ``skyrl_train``, a package of its own under Hydra.

What it has is bound by its present names (``MOVED``). Here is what it did otherwise: its loss took averages itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import taken

from .shared import CODE, FORMER, FORMER_PPO, PPO
from .tensors import BY_SEQUENCE, REDUCTIONS, empty_rows_count


def _averaged_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = taken(inputs, "loss_mat", "response_mask")
    reduction = REDUCTIONS[inputs["loss_agg_mode"]]
    return {"loss": boundary.invoke(names, loss_reduction=reduction, max_seq_len=inputs["loss_scale_factor"])}


BINDINGS = (
    Binding(
        f"{FORMER_PPO}.reduce_loss",
        "loss_aggregation",
        formerly=(f"{PPO}.reduce_loss",),
        arguments={"loss_mat": ("loss",), "response_mask": ("loss_mask",)},
        call=_averaged_loss,
        requires=(f"{FORMER_PPO}.reduce_loss",),
        fixed=dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "weights")),
        accepts={"loss_agg_mode": tuple(REDUCTIONS), "loss_scale_factor": (8, 3)},
        dialects=empty_rows_count(f"{CODE}/train/config/config.py#L881", BY_SEQUENCE),
    ),
)

_HYDRA = "but for what is bound, it reads all of Hydra's configuration"
UNBOUND: Mapping[str, str] = {
    f"{FORMER_PPO}.*": "registers of functions, by name; the functions are bound",
    f"{FORMER}.models.*": _HYDRA,
    f"{FORMER}.model_wrapper.*": _HYDRA,
    f"{FORMER}.trainer.*": _HYDRA,
    f"{FORMER}.workers.*": _HYDRA,
    f"{FORMER}.utils.utils.*": _HYDRA,
    f"{FORMER}.generators.*": "but for its loop and its batches, which are bound, it puts records together",
}
