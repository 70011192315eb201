"""Bindings for AReaL's actor update and for its computation of log-probs. A table of log-probs replaces the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS
from sentinel.binding.kit import torch

_ACTOR = "areal.trainer.ppo.actor"
_ENGINE = "areal.engine.fsdp_engine"
_ARGUMENTS = "areal.api.cli_args"


def _type_of(images: bool) -> Any:
    """Return the configuration of a model that takes images, or of one that takes only text."""
    return kit.stand_in(model_type="qwen3_vl" if images else "qwen2")


class _Model:
    """A stand-in model that returns each token's entry of a table, [rows * tokens].

    With images, a token without its own position, or a microbatch without the images of its rows, gets other entries.
    Position c of a token is ``100 row + 10 c + column``, computed from its row's image.
    """

    def __init__(self, table: Any, width: int, images: bool) -> None:
        self._table, self._width, self._images, self.model = table, width, images, self

    def compute_3d_position_ids(self, input_ids: Any, image_grid_thw: Any, **_: Any) -> Any:
        columns, channels = torch.arange(input_ids.shape[1]), torch.arange(3)
        return 100 * image_grid_thw[None, :, :1] + 10 * channels[:, None, None] + columns

    def __call__(self, input_ids: Any, **options: Any) -> Any:
        logits = self._table[input_ids.roll(-1, dims=-1)]
        return kit.stand_in(logits=logits + self._deviations(input_ids, **options) if self._images else logits)

    def _deviations(self, ids: Any, position_ids: Any, pixel_values: Any, cu_seq_lens_q: Any, **_: Any) -> Any:
        """Return 0 for each token whose position and images are its own, otherwise 1. A padding sequence may follow."""
        row, column = ids // self._width, ids % self._width
        wanted = 100 * row + 10 * torch.arange(3)[:, None, None] + column
        own = (position_ids == wanted).all(0)
        starts = ids.flatten()[cu_seq_lens_q[:-1].long()][: len(pixel_values)]
        return 1.0 - (own & torch.equal(pixel_values, _pixels(starts // self._width))).float()


def _pixels(rows: Any) -> Any:
    return rows[:, None] * 2.0 + 0.5


def _pictured(rows: int, width: int) -> dict[str, Any]:
    """Return the columns of rows with one image each."""
    images = [
        {"image_grid_thw": torch.tensor([[row, 1, 1]]), "pixel_values": _pixels(torch.tensor([row]))}
        for row in range(rows)
    ]
    return {"multi_modal_input": images, "mm_token_type_ids": torch.zeros(rows, width, dtype=torch.int64)}


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one update of AReaL's actor and return the gradient with respect to the log-probs.

    Each token has a unique id, with which the stand-in model looks up the token's log-prob, so AReaL may reorder
    tokens. The value at position t belongs to token t + 1. The loss is averaged over ranks, as FSDP averages gradients.
    """
    mask, count, named = inputs["response_mask"].bool(), inputs["dp_size"], kit.named_tokens(inputs)
    named.pop("rewards")
    rows, width = mask.shape
    share = rows // count
    table = kit.tables_of(inputs)["log_probs"]
    # The old log-probs are passed as those of the behaviour policy and as those of the proximal policy.
    scored, old = "rewards" in inputs, inputs["old_log_probs"]
    of_tokens = {"loss_mask": mask, "logprobs": old, "prox_logp": old, "advantages": inputs.get("advantages", old)}
    whole = {
        **named,
        **{name: torch.nn.functional.pad(column, (0, 1)) for name, column in of_tokens.items()},
        **dict.fromkeys(("rewards", "tot_rewards"), torch.zeros(rows)),
        "kl_rewards": torch.zeros(rows, width + 1),
    }
    images = inputs.get("with_images", False)
    whole |= _pictured(rows, width + 1) if images else {}
    arguments = boundary.imported[_ARGUMENTS]
    config = arguments.PPOActorConfig(experiment_name="", trial_name="", path="")
    vars(config).update(
        eps_clip=inputs["eps_clip_low"],
        eps_clip_higher=inputs["eps_clip_high"],
        c_clip=inputs["dual_clip"],
        ppo_n_minibatches=1,
        rejection_sampling=None,
        mb_spec=arguments.MicroBatchSpec(
            n_mbs=share // (inputs["micro_batch_size"] or share), max_tokens_per_mb=inputs["max_tokens_per_microbatch"]
        ),
    )
    engine_of = boundary.imported[_ENGINE].FSDPEngine
    losses: list[Any] = []

    class Engine(engine_of):  # type: ignore[misc, valid-type]
        """AReaL's engine without sharding and without optimiser steps."""

        dp_group = data_parallel_group = None
        optimizer_zero_grad = _ensure_ready = train = staticmethod(lambda *_: None)
        optimizer_step = staticmethod(dict)
        get_version = staticmethod(lambda: 0)

        def __init__(self) -> None:
            self.config, self.device, self.logger = config, boundary.device, boundary.module.logger
            self.parallel_helper = kit.stand_in(dp_size=count, sp_size=1, tp_size=1)
            self.model_config, self.enable_tree_training = _type_of(images), False
            self.is_vision_model, self.model = images, _Model(table, width + 1, images)

        def _compute_logprobs_entropy(self, logits: Any, *_: Any) -> Any:
            return logits, torch.zeros_like(logits)

        def _get_vocab_min_max_logits(self, logits: Any, *_: Any) -> Any:
            return logits.detach(), logits.detach()

        def _compute_logprobs_and_loss(self, *batch: Any, **options: Any) -> Any:
            loss = super()._compute_logprobs_and_loss(*batch, **options)
            losses.append(loss)
            return loss.detach().requires_grad_()

    stages = []
    if scored:
        before = {name: torch.nn.functional.pad(of_tokens[name], (1, 0)) for name in ("loss_mask", "logprobs")}
        whole = {**named, **before, "rewards": inputs["rewards"]}
        norm = arguments.NormConfig(mean_level="group", std_level=None, group_size=kit.group_size(inputs))
        vars(config).update(reward_norm=norm, adv_norm=None, discount=1.0, gae_lambda=1.0, kl_ctl=0.0, reward_clip=1e9)
        actor = boundary.owner(config, Engine())
        whole = getattr(actor, "_compute_advantages", actor.compute_advantages)(dict(whole))
        stages = [("_compute_advantages", [whole])]

    def rank(number: int) -> None:
        part = slice(number * share, (number + 1) * share)
        actor = boundary.owner(config, Engine())
        boundary.function(actor, {name: column[part] for name, column in whole.items()})

    with kit.swap_all(boundary.module.stats_tracker, scalar=lambda **_: None, stat=lambda **_: None):
        kit.on_ranks(count, rank)
    (sum(losses) / count).backward()
    rest = {"stages": stages, "rows": named} if scored else {"pg_loss": None, "kl_loss": None}
    return {"gradient": inputs["log_probs"].grad, **rest}


def _recomputed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that AReaL's engine computes in a forward pass over packed microbatches."""
    named, table = kit.named_tokens(inputs), kit.prepend_prompt(inputs["log_probs"]).flatten()
    rows, size = len(named["number"]), inputs["micro_batch_size"]
    width, images = inputs["log_probs"].shape[1], inputs["with_images"]
    arguments = boundary.imported[_ARGUMENTS]
    config = arguments.PPOActorConfig(experiment_name="", trial_name="", path="")
    config.mb_spec = arguments.MicroBatchSpec(
        n_mbs=rows // (size or rows), max_tokens_per_mb=inputs["max_tokens_per_microbatch"]
    )

    class Engine(boundary.owner):  # type: ignore[misc, name-defined]
        """AReaL's engine without sharding."""

        dp_group = data_parallel_group = None
        _ensure_ready = staticmethod(lambda *_: None)

        def __init__(self) -> None:
            self.config, self.device, self.logger = config, boundary.device, kit.make_silent_logger()
            self.parallel_helper = kit.stand_in(dp_size=1, sp_size=1, tp_size=1)
            self.model_config, self.enable_tree_training = _type_of(images), False
            self.is_vision_model, self.model = images, _Model(table, width + 1, images)

        def _compute_logprobs(self, logits: Any, *_: Any) -> Any:
            return logits

    batch = {name: named[name] for name in ("input_ids", "attention_mask")}
    batch |= _pictured(rows, width + 1) if images else {}
    made = kit.on_ranks(
        1, lambda _: boundary.function(Engine(), batch, aggregate_fn=lambda parts: torch.cat(parts, dim=-1))
    )[0]
    return {"log_probs": torch.nn.functional.pad(made, (0, width + 1 - made.shape[1]))[:, :width]}


_UPDATE = Binding(
    f"{_ACTOR}.PPOActor._ppo_update", "policy_update", formerly=(f"{_ACTOR}.PPOActor.ppo_update",), call=_update,
    imports=(_ENGINE, _ARGUMENTS), requires=(f"{_ENGINE}.FSDPEngine._compute_logprobs_and_loss",),
    stand_ins=(
        StandIn("model", "a table of log-probs, in which the forward pass looks up its input tokens"),
        StandIn("engine", "the real engine without sharding over a process group and without optimiser steps"), RANKS,
        StandIn("stats_tracker", "discards the reported values, which do not affect the update"),
    ),
    fixed={
        **dict.fromkeys(("ref_log_probs", "entropies", "loss_scale_factor")),
        **dict.fromkeys(("kl_coef", "entropy_coef"), 0.0), "loss_agg_mode": "token-mean",
    },
    accepts={"dual_clip": (None, 3.0), "with_images": (False, True)}, dtypes=("float32",),
)  # fmt: skip

BINDINGS = (
    _UPDATE,
    Binding(
        f"{_ENGINE}.FSDPEngine.forward_batch", "recomputed_log_probs", call=_recomputed, imports=(_ARGUMENTS,),
        requires=(f"{_ENGINE}.FSDPEngine._compute_logprobs_and_loss",),
        stand_ins=(_UPDATE.stand_ins[0], _UPDATE.stand_ins[1], RANKS), fixed={"entropies": None},
        accepts={"response_mask": ("full", "right", "right"), "with_images": (False, True)}, dtypes=("float32",),
    ),
    replace(
        _UPDATE, contract="training_step", fixed={"group_layout": "equal", "loss_agg_mode": "token-mean"},
        accepts={"dual_clip": (None, 3.0)},
    ),
)  # fmt: skip
