"""SkyRL until it moved, in January 2026: ``skyrl_train``, a package of its own under Hydra.

Its functions of tensors are bound by their present names (``formerly``); what reads the configuration has bindings of
its own here, on the defaults of its file. Their present names stand beside them: recipes of those speak of these, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sentinel.targets import Binding

from .policy_losses import POLICY_LOSSES
from .shared import CODE, FORMER, FORMER_CONFIG, FORMER_PPO, PPO, given_inputs
from .tensors import BINDINGS as TENSORS
from .tensors import BY_SEQUENCE, REDUCTIONS, empty_rows_count

#: Losses that came after the move.
_LATER = ("rollout_is_policy_loss", "dppo_policy_loss", "importance_sampling_loss", "cross_entropy_loss")


def _former(binding: Binding) -> Binding:
    path = binding.boundary.replace(PPO, FORMER_PPO)
    return replace(binding, boundary=path, formerly=(binding.boundary,), imports=(FORMER_CONFIG,), requires=(path,))


def _averaged_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = given_inputs(inputs, "loss_mat", "response_mask")
    reduction = REDUCTIONS[inputs["loss_agg_mode"]]
    return {"loss": boundary.invoke(names, loss_reduction=reduction, max_seq_len=inputs["loss_scale_factor"])}


BINDINGS = (
    *(_former(item) for item in POLICY_LOSSES if item.boundary.rpartition(".")[2] not in _LATER),
    *(_former(item) for item in TENSORS if item.boundary == f"{PPO}.ppo_critic_loss"),
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

_HYDRA = "it reads all of Hydra's configuration; what it became in skyrl is bound"
UNBOUND: Mapping[str, str] = {
    f"{FORMER_PPO}.*": "registers of functions, by name; the functions are bound",
    f"{FORMER}.models.*": _HYDRA,
    f"{FORMER}.model_wrapper.*": _HYDRA,
    f"{FORMER}.trainer.*": _HYDRA,
    f"{FORMER}.workers.*": _HYDRA,
    f"{FORMER}.utils.utils.*": _HYDRA,
    f"{FORMER}.generators.*": "but for its loop and its batches, which are bound, it puts records together",
}
