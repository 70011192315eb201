"""Bindings for the policy updates of SkyRL's FSDP and Megatron workers. A stand-in replaces megatron.core."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MPU, aggregated
from sentinel.binding.kit import torch

from .shared import (
    BACKEND,
    BATCH,
    CODE,
    CONFIG,
    CUDA,
    GYM,
    K3_IS_CUT,
    LIMIT,
    MEGATRON_MODELS,
    MEGATRON_UTILS,
    MEGATRON_WORKER,
    MODEL,
    OPTION,
    PPO,
    RANKS,
    RAY,
    REPLAY,
    SINGLE,
    STRATEGY,
    WITH_MEGATRON,
    WORKER_UTILS,
    WORKING,
    WRAPPER,
    OneProcess,
    batch_fields,
    configuration_of,
    current_device,
    is_averaged_inside,
    no_ray,
    other_ranks_have,
    ppo_line,
    training_batch,
)
from .tensors import REDUCTIONS, empty_rows_count

ALGORITHM = "trainer.algorithm"
#: Options that leave only the policy loss, which is 0 if all advantages are 0.
NO_OTHER_TERM = {f"{ALGORITHM}.use_kl_loss": False, f"{ALGORITHM}.use_entropy_loss": False}


def rollout_kl_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **NO_OTHER_TERM,
        f"{ALGORITHM}.use_rollout_kl_loss": True,
        f"{ALGORITHM}.rollout_kl_loss_coef": inputs["coefficient"],
        f"{ALGORITHM}.rollout_kl_estimator_type": inputs["kl_estimator"],
    }


def _make_fixed_model(log_probs: Any) -> Any:
    """Make a stand-in model for SkyRL's FSDP worker that always returns ``log_probs``, with entropies of 0."""
    model: Any = torch.nn.Module()
    entropy = {"entropy": torch.zeros(log_probs.shape[0], log_probs.shape[1] + 1, device=log_probs.device)}
    model.forward = lambda *_, **__: (log_probs, entropy)
    return model


@contextlib.contextmanager
def _fsdp_worker(
    boundary: Any, options: Mapping[str, Any], log_probs: Any, model: Any, strategy: OneProcess
) -> Iterator[Any]:
    configuration = configuration_of(boundary, options)
    settings = configuration.trainer
    # With Hydra, a worker kept the whole configuration.
    kept = {"training_step", "forward"} if type(configuration).__name__ == "DictConfig" else {"training_step"}
    worker = kit.stand_in(
        cfg=configuration if boundary.function.__name__ in kept else settings,
        model=model,
        strategy=strategy,
        optimizer=None,
        scheduler=kit.stand_in(get_last_lr=lambda: [0.0]),
        mesh_rank=kit.stand_in(dp_size=1),
        device_mesh=kit.stand_in(get_group=lambda name: None),
        _micro_batches_accumulated=0,
    )
    with no_ray(boundary), current_device(log_probs.device.type):
        if hasattr(boundary.imported[PPO], "PolicyLossRegistry"):
            worker.policy_loss_fn = boundary.imported[PPO].PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
        yield worker


def _fsdp_step(
    boundary: Any, options: Mapping[str, Any], log_probs: Any, fields: Mapping[str, Any], strategy: OneProcess
) -> Any:
    """Run one microbatch through the forward and backward pass of SkyRL's FSDP worker."""
    with _fsdp_worker(boundary, options, log_probs, _make_fixed_model(log_probs), strategy) as worker:
        utils = boundary.imported[WORKER_UTILS]
        # Older versions have only BatchIterator.
        iterator = getattr(utils, "BaseBatchIterator", None) or utils.BatchIterator
        experience = iterator.batch_to_experience(training_batch(boundary, fields))
        # Until December 2025, the index of the step and the number of microbatches were parameters.
        formerly = {"global_step": 0, "local_step": 0, "accumulation_steps": 1}
        return boundary.invoke({}, worker, experience, microbatch_weight=1.0, **formerly)


def _fsdp_rollout_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs, strategy = inputs["log_probs"], OneProcess()
    fields = batch_fields(log_probs, inputs["response_mask"], rollout_logprobs=inputs["rollout_log_probs"])
    status = _fsdp_step(boundary, rollout_kl_options(inputs), log_probs, fields, strategy)
    return {"rollout_kl": status["rollout_kl"], "loss": strategy.loss.detach()}


def _fsdp_device(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Count the tensors that a training step creates on a wrong device, and its operations that mix two devices.

    The log-probs are on ``meta``, so one real device is enough. The step runs up to the backward pass, because later
    code reads values, which a meta tensor does not have.
    """
    from torch.overrides import TorchFunctionMode

    class LossIsMade(Exception):
        pass

    class Stop(OneProcess):
        def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
            raise LossIsMade

    code = inspect.unwrap(boundary.function).__code__
    made: list[str] = []
    mixed: list[str] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", "")
            if name == "item" and args[0].device.type == "meta":
                return 0.0  # a meta tensor has no value, and the observation does not need one
            result = function(*args, **(kwargs or {}))
            if sys._getframe(1).f_code is code:
                devices = {item.device.type for item in args if isinstance(item, torch.Tensor)}
                if not devices and isinstance(result, torch.Tensor) and result.device.type != "meta":
                    made.append(name)
                if len(devices) > 1:
                    mixed.append(name)
            return result

    zeros = torch.zeros(2, 3)
    log_probs = torch.zeros(2, 3, device="meta", requires_grad=True)
    fields = batch_fields(zeros, torch.ones(2, 3), rollout_logprobs=zeros.clone())
    with Watch(), contextlib.suppress(LossIsMade):
        _fsdp_step(boundary, inputs["arguments"]["configuration"], log_probs, fields, Stop())
    return {"returned": {"created_off_device": len(made), "mixed_device_operations": len(mixed)}}


_FSDP = (
    StandIn("self", "the real worker's constructor starts Ray and GPUs; the step reads only these attributes"),
    *(GYM, RAY, STRATEGY, MODEL, CUDA),
)


_WORKERS = (
    Binding(
        f"{BACKEND}.workers.worker.PolicyWorkerBase._forward_backward_micro", "rollout_kl", call=_fsdp_rollout_kl,
        imports=WORKING, stand_ins=_FSDP, requires=(OPTION,), dialects=K3_IS_CUT, dtypes=SINGLE,
        twins=(f"{WRAPPER}.MegatronModelWrapper.forward_backward_mini_batch",),
    ),
    Binding(
        f"{BACKEND}.workers.worker.PolicyWorkerBase._forward_backward_micro", "call",
        formerly=(f"{BACKEND}.workers.worker.PolicyWorkerBase.training_step",), call=_fsdp_device, imports=WORKING,
        stand_ins=_FSDP,
    ),
)  # fmt: skip


# -- an update of the policy by the FSDP worker, from a batch through its microbatches to the gradient -----------------


class _Table:
    """A stand-in model that looks up the log-probs and entropies of a sequence by its first token."""

    def __init__(self, log_probs: Any, entropies: Any) -> None:
        self._log_probs, self._entropies = log_probs, entropies

    def train(self) -> None:
        pass

    eval = train

    def __call__(self, sequences: Any, *_: Any, return_output: bool = True, **__: Any) -> Any:
        places = sequences[:, 0] % len(self._log_probs)  # modulo, because padding rows have random ids
        entropy = torch.zeros(sequences.shape)
        if self._entropies is not None:
            entropy = torch.nn.functional.pad(self._entropies[places], (0, 1))
        return (self._log_probs[places], {"entropy": entropy}) if return_output else self._log_probs[places]


def _make_options(inputs: Mapping[str, Any], rows: int) -> dict[str, Any]:
    clips = {"eps_clip_low": inputs["eps_clip_low"], "eps_clip_high": inputs["eps_clip_high"]}
    if inputs["dual_clip"] is not None:
        clips |= {"policy_loss_type": "dual_clip", "clip_ratio_c": inputs["dual_clip"]}
    kl = inputs["ref_log_probs"] is not None
    chosen = {**clips, "use_kl_loss": kl, "use_entropy_loss": bool(inputs["entropy_coef"])}
    chosen |= {"kl_loss_coef": inputs["kl_coef"], "entropy_loss_coef": inputs["entropy_coef"]}
    options = {f"{ALGORITHM}.{name}": value for name, value in chosen.items()}
    options[f"{ALGORITHM}.kl_estimator_type"] = inputs["kl_estimator"]
    options["trainer.micro_train_batch_size_per_gpu"] = inputs["micro_batch_size"] or rows
    if inputs["max_tokens_per_microbatch"] is not None:
        options["trainer.max_tokens_per_microbatch"] = inputs["max_tokens_per_microbatch"]
    return options


def _divide_advantages(boundary: Any, inputs: Mapping[str, Any], fields: Mapping[str, Any]) -> Any:
    """Divide advantages by the denominator of the loss with the code of SkyRL's driver (#1296)."""
    module, length = boundary.imported[PPO], inputs["loss_scale_factor"]
    mask, reduction = fields["loss_mask"], REDUCTIONS[inputs["loss_agg_mode"]]
    if hasattr(module, "apply_loss_reduction_to_advantages_minibatch"):
        return module.apply_loss_reduction_to_advantages_minibatch(
            fields["advantages"], mask, reduction, micro_batch_size=len(mask), max_seq_len=length
        )
    options = {f"{ALGORITHM}.loss_reduction": reduction, f"{ALGORITHM}.max_seq_len": length}
    driver = kit.stand_in(cfg=configuration_of(boundary, options))
    trainer = importlib.import_module("skyrl.train.trainer").RayPPOTrainer
    return trainer.normalize_minibatch_advantages(driver, training_batch(boundary, fields))["advantages"]


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one policy update of SkyRL's FSDP worker over the microbatches of one rank.

    The worker adds up losses, because the driver has already divided advantages by the loss denominator
    (``apply_loss_reduction_to_advantages_minibatch``).
    """
    if is_averaged_inside(boundary.imported[PPO]):
        raise AbsentError("this version averages losses over microbatches instead of adding them up")
    log_probs, mask = inputs["log_probs"], inputs["response_mask"] != 0
    count, tokens = log_probs.shape
    fields = batch_fields(
        log_probs,
        mask.to(log_probs.dtype),
        action_log_probs=inputs["old_log_probs"],
        advantages=inputs["advantages"],
        attention_mask=torch.nn.functional.pad(mask, (1, 0), value=True).long(),
        response_mask=mask.long(),
        sequences=torch.arange(count)[:, None].expand(count, tokens + 1).clone(),
    )
    fields["advantages"] = _divide_advantages(boundary, inputs, fields)
    if inputs["ref_log_probs"] is not None:
        fields["base_action_log_probs"] = inputs["ref_log_probs"].cpu()
    by_tokens = hasattr(boundary.imported[CONFIG].TrainerConfig, "max_tokens_per_microbatch")
    if inputs["max_tokens_per_microbatch"] is not None and not by_tokens:
        raise AbsentError("this version has no option max_tokens_per_microbatch; it limits microbatches by rows")
    model, more = _Table(log_probs, inputs["entropies"]), inputs["padding_microbatches"]
    ranks = _with_padding(boundary, more)
    options, overrides = _override(boundary, inputs, _make_options(inputs, count))
    with ranks, _fsdp_worker(boundary, options, log_probs, model, OneProcess()) as worker:
        worker._forward_backward_micro = types.MethodType(boundary.owner._forward_backward_micro, worker)
        answer = boundary.function(worker, training_batch(boundary, fields), **overrides)
    # Newer workers return a record of metrics and outputs. Older workers include the outputs in the metrics.
    metrics = getattr(answer, "metrics", answer)
    outputs = getattr(answer, "loss_fn_outputs", None) or metrics.get("loss_fn_outputs")
    rows = _log_probs_of(outputs or (), log_probs)
    names = {"pg_loss": "policy_loss", "kl_loss": "policy_kl", "entropy": "policy_entropy"}
    reported = {ours: metrics.get(theirs) for ours, theirs in names.items()}
    return {**kit.gradients_of(inputs), **reported, "told_log_probs": rows}


@contextlib.contextmanager
def _with_padding(boundary: Any, more: int) -> Iterator[None]:
    """Make SkyRL add ``more`` padding microbatches with random ids, and restore the random state afterwards."""
    with kit.keep_random_state(), other_ranks_have(boundary, more) if more else contextlib.nullcontext():
        yield


def _log_probs_of(outputs: Any, like: Any) -> Any:
    """Return the log-probs of the response tokens, aligned on the right, or None if there are no rows."""
    rows = [torch.tensor(output["logprobs"], dtype=like.dtype) for output in outputs]
    rows = [torch.nn.functional.pad(row, (like.shape[1] - len(row), 0)) for row in rows]
    return torch.stack(rows) if rows else None


def _recompute(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that SkyRL's FSDP worker recomputes for a batch."""
    log_probs, mask, more = inputs["log_probs"], inputs["response_mask"] != 0, inputs["padding_microbatches"]
    count, tokens = log_probs.shape
    fields = batch_fields(
        log_probs,
        mask.to(log_probs.dtype),
        attention_mask=torch.nn.functional.pad(mask, (1, 0), value=True).long(),
        sequences=torch.arange(count)[:, None].expand(count, tokens + 1).clone(),
    )
    source = kit.source_of(boundary.owner._forward_micro_batch)
    # In spring 2026, the reference's worker required these fields, which SkyRL sets to None in batches without images.
    fields |= {name: None for name in ("pixel_values", "image_grid_thw") if f'micro_batch["{name}"]' in source}
    options = {"trainer.micro_forward_batch_size_per_gpu": inputs["micro_batch_size"] or count}
    if inputs["max_tokens_per_microbatch"] is not None:
        if not hasattr(boundary.imported[CONFIG].TrainerConfig, "max_tokens_per_microbatch"):
            raise AbsentError("this version has no option max_tokens_per_microbatch; it limits microbatches by rows")
        options["trainer.max_tokens_per_microbatch"] = inputs["max_tokens_per_microbatch"]
    ranks = _with_padding(boundary, more)
    with ranks, _fsdp_worker(boundary, options, log_probs, _Table(log_probs, None), OneProcess()) as worker:
        worker._forward_micro_batch = types.MethodType(boundary.owner._forward_micro_batch, worker)
        answer = boundary.function(worker, training_batch(boundary, fields))
    outputs = getattr(answer, "loss_fn_outputs", None)
    return {"log_probs": answer["output"] if outputs is None else _log_probs_of(outputs, log_probs)}


_UPDATE_DIALECTS = (
    Dialect(
        "empty_rows", "counted",
        "the sum of sequence means is divided by the number of rows, including empty ones",
        f"{CODE}/backends/skyrl_train/utils/ppo_utils.py#L1192",
    ),
    Dialect(
        "kl_agg_mode", "seq-mean-token-mean",
        "the KL is the mean over sequences of the mean over tokens, for every reduction of the policy loss",
        f"{CODE}/backends/skyrl_train/workers/worker.py#L1077",
    ),
    Dialect(
        "entropy_agg_mode", "token-mean",
        "the entropy is the mean over tokens, for every reduction of the policy loss",
        f"{CODE}/backends/skyrl_train/workers/worker.py#L1062",
    ),
    Dialect("kl_clamp", 10.0, "k3 is clamped to [-10, 10]", ppo_line(118), {"kl_estimator": ("k3",)}),
    Dialect(
        "log_ratio_clamp", 20.0, "safe_exp_delta clamps a log-ratio to [-20, 20] to prevent overflow",
        f"{CODE}/backends/skyrl_train/utils/torch_utils.py#L191",
    ),
)  # fmt: skip
#: Ranks can have different numbers of microbatches only if microbatches are limited by tokens.
_UNEVEN = {"max_tokens_per_microbatch": (None, 8, 8), "padding_microbatches": (0, 1, 2)}
_UPDATES = (
    *(
        Binding(
            f"{BACKEND}.workers.worker.{owner}WorkerBase.forward", "recomputed_log_probs", call=_recompute,
            imports=WORKING, stand_ins=(*_FSDP, RANKS), fixed={"entropies": None},
            accepts={"response_mask": ("full", "left", "left"), **_UNEVEN}, dtypes=("float32",),
        )
        for owner in ("Policy", "Ref")
    ),
    Binding(
        f"{BACKEND}.workers.worker.PolicyWorkerBase.forward_backward", "policy_update", call=_update, imports=WORKING,
        stand_ins=_FSDP, fixed={"dp_size": 1},
        accepts={
            "response_mask": ("full", "left"), "kl_estimator": ("k1", "k2", "k3"), "loss_agg_mode": tuple(REDUCTIONS),
            "loss_scale_factor": (8, 3), **_UNEVEN,
        },
        dtypes=("float32",),
        dialects=_UPDATE_DIALECTS,
    ),
)  # fmt: skip


# -- a critic, and supervised training, by the FSDP worker -------------------------------------------------------------

_OF_WORKERS = f"{BACKEND}.workers.worker"


class _Critic(_Table):
    """A stand-in critic that looks up the values of a sequence by its first token."""

    def __call__(self, sequences: Any, *_: Any, return_output: bool = False, **__: Any) -> Any:
        values = self._log_probs[sequences[:, 0] % len(self._log_probs)]
        return (values, None) if return_output else values

    def parameters(self) -> list[Any]:
        return [self._log_probs]


class _Losses(OneProcess):
    """A strategy that adds up the losses of microbatches. Its optimizer changes no parameter."""

    def __init__(self) -> None:
        self.total = 0.0

    def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
        super().backward(loss, model, optimizer)
        self.total += float(loss.detach())

    def optimizer_step(self, *_: Any, **__: Any) -> None:
        """Do nothing, because the scenario observes the gradient."""


def _rows_of(mask: Any) -> dict[str, Any]:
    """Return the sequences, which identify their rows, and the attention mask. Each row has one prompt token."""
    rows, tokens = mask.shape
    return {
        "sequences": torch.arange(rows)[:, None].expand(rows, tokens + 1).clone(),
        "attention_mask": torch.nn.functional.pad(mask, (1, 0), value=True).long(),
    }


def _microbatches(key: str, rows: int, tokens: int) -> dict[str, Any]:
    """Return options that limit microbatches by tokens if the number of rows is odd, or to one row if it is even."""
    if rows % 2:
        return {"trainer.max_tokens_per_microbatch": 2 * (tokens + 1)}
    return {f"trainer.micro_{key}_batch_size_per_gpu": 1}


def _update_critic(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one update of SkyRL's critic over several microbatches, and return its loss with its gradient."""
    table, mask = inputs["vpreds"].detach().requires_grad_(), inputs["response_mask"] != 0
    given = {"values": inputs["values"].clone(), "returns": inputs["returns"].clone()}
    fields = batch_fields(table, mask.to(table.dtype), **given, **_rows_of(mask))
    options = {f"{ALGORITHM}.value_clip": inputs["cliprange_value"], **_microbatches("train", *table.shape)}
    strategy = _Losses()
    with _fsdp_worker(boundary, options, table, _Critic(table, None), strategy) as worker:
        worker.cfg, worker.critic_loss_fn = (
            getattr(worker.cfg, "trainer", worker.cfg),
            boundary.imported[PPO].ppo_critic_loss,
        )
        worker._forward_backward_micro = types.MethodType(boundary.owner._forward_backward_micro, worker)
        answer = boundary.owner.forward_backward(worker, training_batch(boundary, fields))
        count = worker._micro_batches_accumulated or 1
        boundary.owner.optim_step(worker)
    loss = kit.attach_gradient(strategy.total / count, inputs["vpreds"], table.grad)
    return {"loss": loss, "clip_fraction": answer.metrics.get("values_clipfrac") if len(table) == 1 else None}


def _compute_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that SkyRL's critic computes for a batch in several microbatches."""
    table, mask = inputs["outputs"].detach(), inputs["response_mask"] != 0
    fields = batch_fields(table, mask.to(table.dtype), **_rows_of(mask))
    options = _microbatches("forward", *table.shape)
    with _fsdp_worker(boundary, options, table, _Critic(table, None), OneProcess()) as worker:
        worker._forward_micro_batch = types.MethodType(boundary.owner._forward_micro_batch, worker)
        answer = boundary.owner.forward(worker, training_batch(boundary, fields))
    if not hasattr(answer, "loss_fn_outputs"):
        return {"values": answer["output"].to(table.dtype)}
    return {"values": torch.tensor([output["values"] for output in answer.loss_fn_outputs], dtype=table.dtype)}


_NAME = "cross_entropy"


def _supervised_fields(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a supervised batch, in which every token has an answer's place.

    As in SkyRL's collator, the loss mask is divided by the number of trained tokens.
    """
    mask = inputs["response_mask"] != 0
    share = mask.to(inputs["log_probs"].dtype) / max(int(mask.sum()), 1)
    every = _rows_of(torch.ones_like(mask))
    return batch_fields(inputs["log_probs"], share, **every)


def _loss_of(answer: Any, rows: int) -> float:
    """Return the reported loss, or the sum of the reported losses of tokens if the number of rows is odd."""
    if rows % 2:
        return float(sum(loss for output in answer.loss_fn_outputs for loss in output["elementwise_loss"]))
    return float(answer.metrics["loss"])


def _limits(inputs: Mapping[str, Any]) -> dict[str, Any]:
    size = inputs["micro_batch_size"] or len(inputs["log_probs"])
    limits = {f"trainer.micro_{name}_batch_size_per_gpu": size for name in ("train", "forward")}
    limits["trainer.max_tokens_per_microbatch"] = inputs["max_tokens_per_microbatch"] or 0
    return limits


def _train_supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train on a batch with SkyRL's FSDP worker, and then evaluate it. Return the loss that the boundary computes."""
    log_probs = inputs["log_probs"]
    model = _Table(log_probs, None)
    with _fsdp_worker(boundary, _limits(inputs), log_probs, model, OneProcess()) as worker:
        for name in ("_forward_backward_micro", "_forward_micro_with_loss"):
            setattr(worker, name, types.MethodType(getattr(boundary.owner, name), worker))

        def run(name: str) -> Any:
            batch = training_batch(boundary, _supervised_fields(inputs))
            return getattr(boundary.owner, name)(worker, batch, loss_fn=_NAME, loss_fn_config={"eps_clip_low": 0.25})

        answers = {"forward_backward": run("forward_backward"), "_forward_micro_with_loss": run("forward")}
    return _supervised_result(inputs, answers[boundary.function.__name__])


def _supervised_result(inputs: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    log_probs = inputs["log_probs"]
    gradient = torch.zeros_like(log_probs) if log_probs.grad is None else log_probs.grad
    after = torch.zeros_like(inputs["output_after"])  # no label needs this output
    return {"loss": _loss_of(answer, len(log_probs)), "gradient": gradient, "gradient_after": after}


_SUPERVISED: dict[str, Any] = {"dp_size": 1, "first_counts": False}
_MORE = (
    Binding(
        f"{_OF_WORKERS}.CriticWorkerBase.forward_backward", "value_loss", call=_update_critic, imports=WORKING,
        stand_ins=_FSDP, accepts={"response_mask": ("full", "left")}, dtypes=SINGLE,
        fixed=aggregated("seq-mean-token-mean"),
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", ppo_line(174)),
            *empty_rows_count(ppo_line(173), ("seq-mean-token-mean",)),
        ),
    ),
    Binding(
        f"{_OF_WORKERS}.CriticWorkerBase.forward", "critic_values", call=_compute_values, imports=WORKING,
        stand_ins=_FSDP, requires=(f"{_OF_WORKERS}.CriticWorkerBase.forward_backward",),
        accepts={"response_mask": ("full", "left")}, dtypes=SINGLE,
        dialects=(
            Dialect(
                "outside_the_mask", "any", "the values of all tokens are returned",
                f"{CODE}/backends/skyrl_train/workers/worker.py#L1560",
            ),
        ),
    ),
    *(
        Binding(
            f"{_OF_WORKERS}.PolicyWorkerBase.{name}", "supervised_update", call=_train_supervised, imports=WORKING,
            stand_ins=_FSDP, fixed=_SUPERVISED, dtypes=SINGLE, requires=(LIMIT,),
        )
        for name in ("forward_backward", "_forward_micro_with_loss")
    ),
)  # fmt: skip


# -- the Megatron worker, on a stand-in megatron.core ------------------------------------------------------------------


class _Router:
    """A stand-in for Megatron's RouterReplay.

    It records the action, the microbatch to which its routes belong, and the number of tokens that have routes.
    """

    global_router_replay_instances: list[_Router] = []  # noqa: RUF012 - Megatron's own attribute
    schedule: _Schedule

    def __init__(self) -> None:
        self.action, self.routes_of, self.rows = None, None, 0

    def set_target_indices(self, target: Any) -> None:
        self.routes_of, self.rows = self.schedule.microbatch, len(target)

    @classmethod
    def set_replay_data(cls, layers: list[Any]) -> None:
        for router, target in zip(cls.global_router_replay_instances, layers, strict=True):
            router.set_target_indices(target)

    @classmethod
    def set_global_router_replay_action(cls, action: Any) -> None:
        for router in cls.global_router_replay_instances:
            router.action = action

    @classmethod
    def clear_global_indices(cls) -> None:
        for router in cls.global_router_replay_instances:
            router.routes_of, router.rows = None, 0

    @classmethod
    def clear_global_router_replay_action(cls) -> None:
        cls.set_global_router_replay_action(None)


class _Schedule:
    """A stand-in for Megatron's pipeline schedule that runs one microbatch after the other."""

    def __init__(self) -> None:
        self.microbatch = -1
        self.losses: list[Any] = []

    def __call__(self, *, num_microbatches: int, forward_only: bool, **parts: Any) -> list[Any]:
        collected = []
        for self.microbatch in range(num_microbatches):
            output, loss_function = parts["forward_step_func"](parts["data_iterator"], parts["model"][0])
            loss, data = loss_function(output)
            self.losses.append(loss)
            collected.append(data)
            if not forward_only:
                (loss / num_microbatches).backward()
        return collected


def _make_megatron_core() -> dict[str, Any]:
    """Make stand-in modules with the names that SkyRL imports from megatron.core."""
    state, inside = kit.make_single_rank_mpu(get_pipeline_model_parallel_last_rank=0), "megatron.core.transformer"
    action = kit.stand_in(REPLAY_FORWARD="replay_forward", REPLAY_BACKWARD="replay_backward")
    return {
        "megatron": kit.stand_in(core=kit.stand_in(parallel_state=state)),
        "megatron.core.parallel_state": state,
        f"{inside}.moe.router_replay": kit.stand_in(RouterReplay=_Router, RouterReplayAction=action),
        f"{inside}.transformer_block": kit.stand_in(get_num_layers_to_build=lambda config, **_: config.num_layers),
        f"{inside}.transformer_layer": kit.stand_in(get_transformer_layer_offset=lambda config, **_: 0),
    }


def _make_megatron_model(logits: Callable[[Any], Any], layers: int) -> Any:
    """Make a stand-in model for SkyRL's Megatron worker that returns ``logits(input_ids)``."""

    def forward(
        sequences: Any, *_: Any, output_processor: Any = None, output_processor_context: Any = None, **__: Any
    ) -> Any:
        made = logits(sequences)
        if output_processor is None:
            return made
        # The output layer's weight is the identity, so that hidden states are logits.
        head = kit.stand_in(weight=torch.eye(made.shape[-1], dtype=made.dtype), sequence_parallel=False)
        hidden = made.transpose(0, 1)
        return output_processor(
            hidden_states=hidden, output_layer=head, output_weight=None, context=output_processor_context
        )

    model: Any = torch.nn.Module()
    model.forward = forward
    model.zero_grad_buffer = lambda: None
    replay = {"moe_enable_routing_replay": layers > 0, "num_layers": layers}
    absent = dict.fromkeys(("fp8", "mtp_num_layers", "num_moe_experts"))
    model.config = kit.stand_in(sequence_parallel=False, **replay, **absent)
    return model


@contextlib.contextmanager
def _megatron_worker(
    boundary: Any, options: Mapping[str, Any], schedule: _Schedule, logits: Callable[[Any], Any], layers: int = 0
) -> Iterator[Any]:
    """Make SkyRL's Megatron worker and model wrapper, with stand-ins for megatron.core.

    :param layers: the number of mixture-of-experts layers whose routes are replayed.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    core = _make_megatron_core()
    sys.modules.update(core)
    _Router.schedule, _Router.global_router_replay_instances = schedule, [_Router() for _ in range(layers)]
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    utils, workers = boundary.imported[MEGATRON_UTILS], boundary.imported[MEGATRON_WORKER]
    wrapper = boundary.imported.get(WRAPPER, boundary.module)
    users = (wrapper, workers, utils, boundary.imported[MEGATRON_MODELS])
    settings = configuration_of(boundary, {"trainer.remove_microbatch_padding": False, **options}).trainer
    unwrapped = {
        "get_attr_wrapped_model": lambda model, name, **_: getattr(model, name),
        "unwrap_model": kit.return_first,
    }
    if hasattr(utils, "PackedSeqParams"):
        unwrapped["PackedSeqParams"] = kit.Named
    scheduled = {"finalize_model_grads": lambda *_, **__: None, "get_forward_backward_func": lambda: schedule}
    with contextlib.ExitStack() as alone:
        for module in users:
            alone.enter_context(kit.swap(module, "mpu", core["megatron.core.parallel_state"]))
        for swaps in (kit.swap_all(utils, **unwrapped), kit.swap_all(wrapper, **scheduled), no_ray(boundary)):
            alone.enter_context(swaps)
        alone.enter_context(current_device(boundary.device))
        model = _make_megatron_model(logits, layers)
        policy_loss = boundary.imported[PPO].PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
        yield kit.make_unbuilt(
            workers.MegatronPolicyWorkerBase,
            cfg=settings,
            actor_module=[model],
            model=wrapper.MegatronModelWrapper(settings, [model], None, policy_loss),
            strategy=OneProcess(),
            enable_router_replay=layers > 0,
            **dict.fromkeys(("optimizer", "scheduler")),
            **dict.fromkeys(("empty_cuda_cache", "is_vlm"), False),
        )


def _megatron_rollout_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the KL loss between trainer and rollout. The vocabulary has two tokens; token 0 has the given log-prob."""
    log_probs, schedule = inputs["log_probs"], _Schedule()
    if not (log_probs < 0).all():
        raise AbsentError("the scenario has a log-prob of 0 or more, which finite logits over two tokens cannot yield")
    equal = (log_probs == inputs["rollout_log_probs"]) & (inputs["response_mask"] != 0)
    if inputs["kl_estimator"] == "abs" and equal.any():
        raise AbsentError("the scenario has equal log-probs; rounding would give the KL estimator abs a gradient there")
    rows = log_probs.shape[0]
    exact = log_probs.double()  # in float32, the other token's probability would be imprecise near 0
    pair = torch.stack([exact, torch.log(-torch.expm1(exact))], -1).to(log_probs.dtype)
    logits = torch.cat([pair, torch.zeros(rows, 1, 2, device=pair.device)], 1)
    by_rows = {"trainer.max_tokens_per_microbatch": 0, "trainer.micro_train_batch_size_per_gpu": rows}
    fields = batch_fields(log_probs, inputs["response_mask"], rollout_logprobs=inputs["rollout_log_probs"])
    options = {**rollout_kl_options(inputs), **by_rows}
    with _megatron_worker(boundary, options, schedule, lambda sequences: logits) as worker:
        output = worker.forward_backward(training_batch(boundary, fields))
    (loss,) = schedule.losses
    # rollout_kl may be missing: a microbatch without a valid token counts as padding, so its metrics are omitted.
    return {"rollout_kl": output.metrics.get("rollout_kl"), "loss": loss.detach()}


#: The temperature of Megatron's runs, by which the worker divides logits. The model multiplies them by it.
_TEMPERATURE = 0.5


def _layout_options(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a scenario's layout. Long enough rows are computed in chunks of two tokens."""
    trainer = boundary.imported[CONFIG].TrainerConfig
    if inputs["fused_head"] and not hasattr(trainer, "fused_lm_head_logprob"):
        raise AbsentError("this version has no option fused_lm_head_logprob")
    if not hasattr(boundary.imported[CONFIG].AlgorithmConfig, "temperature"):
        raise AbsentError("this version's algorithm has no option temperature")
    options = {"trainer.remove_microbatch_padding": inputs["packed"], "trainer.logprobs_chunk_size": 2}
    options[f"{ALGORITHM}.temperature"] = _TEMPERATURE
    if inputs["fused_head"]:
        options["trainer.fused_lm_head_logprob"] = True
    return options


def _megatron_fields(inputs: Mapping[str, Any], mask: Any, every: Any) -> tuple[dict[str, Any], Any]:
    """Return a batch in which each token has its own id, and a function from ids to logits over these ids.

    Each row has one prompt token, followed by the tokens of ``every``, which are at its end.

    :param mask: the tokens whose log-probs matter. The logits of other tokens are constant.
    """
    log_probs = inputs["log_probs"]
    rows, tokens = log_probs.shape
    if not (log_probs[mask] < 0).all():
        raise AbsentError("the scenario has a log-prob of 0 or more, which finite logits cannot yield")
    size = rows * (tokens + 1)
    ids = torch.arange(size).reshape(rows, tokens + 1)

    def logits(sequences: Any) -> Any:
        known = torch.where(mask, log_probs, -1.0).double()  # in float32, other tokens would be imprecise near 0
        odds = known - torch.log(-torch.expm1(known) / (size - 1))
        table = torch.zeros(size, size, dtype=torch.float64).index_put((ids[:, :-1], ids[:, 1:]), odds)
        return table.to(log_probs.dtype)[sequences % size] * _TEMPERATURE

    attended = torch.arange(tokens + 1)[None] >= tokens - every.sum(-1, keepdim=True)
    fields = batch_fields(log_probs, mask.to(log_probs.dtype), sequences=ids, attention_mask=attended.long())
    return {**fields, "response_mask": every.long()}, logits


def _megatron_update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one policy update of SkyRL's Megatron worker over the microbatches of one rank."""
    mask, log_probs = inputs["response_mask"] != 0, inputs["log_probs"]
    fields, logits = _megatron_fields(inputs, mask, mask)
    fields |= {"action_log_probs": inputs["old_log_probs"], "advantages": inputs["advantages"]}
    fields["advantages"] = _divide_advantages(boundary, inputs, fields)
    if inputs["ref_log_probs"] is not None:
        fields["base_action_log_probs"] = inputs["ref_log_probs"]
    options, overrides = _override(boundary, inputs, _make_options(inputs, len(mask)))
    ranks = _with_padding(boundary, inputs["padding_microbatches"])
    options |= _layout_options(boundary, inputs)
    with ranks, _megatron_worker(boundary, options, _Schedule(), logits) as worker:
        answer = worker.forward_backward(training_batch(boundary, fields), **overrides)
    reported = {"pg_loss": answer.metrics.get("policy_loss"), "kl_loss": answer.metrics.get("policy_kl")}
    even = inputs["max_tokens_per_microbatch"] is None  # otherwise, rows are returned in the order of microbatches
    rows = _log_probs_of(answer.loss_fn_outputs, log_probs) if even else None
    return {**kit.gradients_of(inputs), **reported, "told_log_probs": rows}


def _override(
    boundary: Any, inputs: Mapping[str, Any], options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options, and arguments of the update. Arguments override clip bounds if the number of rows is odd.

    The type of the loss stays an option, because ppo_policy_loss reads it from the configuration.
    """
    if len(inputs["log_probs"]) % 2 == 0 or "loss_fn_config" not in boundary.parameters:
        return options, {}
    names = {
        name.removeprefix(f"{ALGORITHM}."): name
        for name in options
        if name.endswith(("clip_low", "clip_high", "ratio_c"))
    }
    config = {name: options.pop(path) for name, path in names.items()}
    return options, {"loss_fn": options.get(f"{ALGORITHM}.policy_loss_type", "regular"), "loss_fn_config": config}


def _megatron_recompute(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that SkyRL's Megatron worker recomputes for a batch."""
    mask, log_probs = inputs["response_mask"] != 0, inputs["log_probs"]
    fields, logits = _megatron_fields(inputs, mask, mask)
    options = {"trainer.micro_forward_batch_size_per_gpu": inputs["micro_batch_size"] or len(mask)}
    options["trainer.max_tokens_per_microbatch"] = inputs["max_tokens_per_microbatch"] or 0
    ranks = _with_padding(boundary, inputs["padding_microbatches"])
    options |= _layout_options(boundary, inputs)
    with ranks, _megatron_worker(boundary, options, _Schedule(), logits) as worker:
        return {"log_probs": worker._forward_logprobs(training_batch(boundary, fields)).to(log_probs.dtype)}


def _megatron_supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train on a batch with SkyRL's Megatron worker, and then evaluate it. Both losses must be equal."""
    mask = inputs["response_mask"] != 0
    fields, logits = _megatron_fields(inputs, mask, torch.ones_like(mask))
    fields["loss_mask"] = _supervised_fields(inputs)["loss_mask"]
    options, schedule = {**_limits(inputs), **_layout_options(boundary, inputs)}, _Schedule()
    with _megatron_worker(boundary, options, schedule, logits) as worker:
        trains = {"loss_fn": _NAME, "loss_fn_config": {"eps_clip_low": 0.25}}
        answers = [worker.forward_backward(training_batch(boundary, fields), **trains)]
        answers.append(worker.forward(training_batch(boundary, fields), **trains))
    return _supervised_result(inputs, answers[boundary.path.endswith("MegatronPolicyWorkerBase.forward")])


def _router_replay(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step of SkyRL's Megatron worker. Return the routes that the stand-in routers replayed."""
    routes = inputs["expert_indices"]
    rows, length, layers, _ = routes.shape
    schedule, calls = _Schedule(), []

    def logits(sequences: Any) -> Any:
        routers = [dict(vars(router)) for router in _Router.global_router_replay_instances]
        calls.append({"tokens": sequences.numel(), "routers": routers})
        return torch.zeros(*sequences.shape, 8, device=sequences.device, requires_grad=torch.is_grad_enabled())

    log_probs = torch.full((rows, length - 1), -2.0)
    optional = {"rollout_logprobs": log_probs.clone(), "rollout_expert_indices": routes.to(torch.uint8)}
    if "router_padding_mask" in boundary.imported[BATCH].TrainingInput.__annotations__:
        optional["router_padding_mask"] = torch.zeros(rows, length, dtype=torch.bool)  # every token has routes
    fields = batch_fields(log_probs, torch.ones_like(log_probs), **optional)
    options = {**NO_OTHER_TERM, "trainer.max_tokens_per_microbatch": inputs["max_tokens_per_microbatch"]}
    # Batches with an odd number of rows are packed. No row has padding, so the number of tokens is the same.
    options["trainer.remove_microbatch_padding"] = rows % 2 == 1 and hasattr(
        boundary.imported[MEGATRON_UTILS], "PackedSeqParams"
    )
    ranks = other_ranks_have(boundary, inputs["padding_microbatches"])
    with ranks, _megatron_worker(boundary, options, schedule, logits, layers) as worker:
        training = boundary.function.__name__ == "forward_backward_mini_batch"
        (worker.forward_backward if training else worker._forward_logprobs)(training_batch(boundary, fields))
        left_over = any(router.action is not None for router in _Router.global_router_replay_instances)
    return {"model_calls": calls, "left_over": left_over}


_MEGATRON = (
    StandIn(
        "self", "the real class without its constructor, which starts Ray and GPUs; the adapter sets its attributes"
    ),
    MPU,
    StandIn("schedule", "replaces get_forward_backward_func; runs one microbatch after the other, without a pipeline"),
    StandIn("get_attr_wrapped_model, unwrap_model", "returns the model, which is not wrapped here"),
    StandIn("finalize_model_grads", "does nothing; the real function reduces over ranks, of which there is one"),
    StandIn("process group", "torch's fake backend of world size 1, whose collectives change nothing"),
    *(GYM, RAY, STRATEGY, MODEL, CUDA),
)
_REPLAY = (
    StandIn("RouterReplay", "records the action and the routes of each router; megatron-core keeps the same state"),
    StandIn(
        "get_num_layers_to_build, get_transformer_layer_offset",
        "returns the number of all layers, and 0: without a pipeline, a rank has every layer",
    ),
    RANKS,
    *_MEGATRON,
)


def _megatron(
    method: str, contract: str, call: Callable[..., Any], stand_ins: tuple[StandIn, ...], *dialects: Dialect
) -> Binding:
    return Binding(
        f"{WRAPPER}.MegatronModelWrapper.{method}",
        contract,
        call=call,
        imports=WITH_MEGATRON,
        stand_ins=stand_ins,
        requires=(OPTION,) if contract == "rollout_kl" else (REPLAY,),
        dtypes=SINGLE,
        dialects=dialects,
    )


_LAYOUTS = {"packed": (False, True), "fused_head": (False, True)}
_MINI_BATCH = f"{WRAPPER}.MegatronModelWrapper.forward_backward_mini_batch"


def _of_megatron(
    path: str, contract: str, call: Callable[..., Any], fixed: Mapping[str, Any], *dialects: Dialect, **accepts: Any
) -> Binding:
    """Bind a function of SkyRL's Megatron worker in all layouts."""
    return Binding(
        path,
        contract,
        call=call,
        imports=(*WITH_MEGATRON, WRAPPER),
        stand_ins=(*_MEGATRON, RANKS),
        fixed=fixed,
        accepts={**_LAYOUTS, **accepts},
        requires=(REPLAY, LIMIT, f"{CONFIG}.TrainerConfig.remove_microbatch_padding"),
        dtypes=SINGLE,
        dialects=dialects,
    )


_MEGATRON_UPDATES = (
    _of_megatron(
        _MINI_BATCH, "policy_update", _megatron_update, {"dp_size": 1, "entropies": None}, *_UPDATE_DIALECTS,
        response_mask=("full", "left"), kl_estimator=("k1", "k2", "k3"), loss_agg_mode=tuple(REDUCTIONS),
        loss_scale_factor=(8, 3), **_UNEVEN,
    ),
    _of_megatron(
        f"{WRAPPER}.MegatronModelWrapper.forward", "recomputed_log_probs", _megatron_recompute, {"entropies": None},
        response_mask=("full", "left", "left"), **_UNEVEN,
    ),
    *(
        _of_megatron(path, "supervised_update", _megatron_supervised, _SUPERVISED)
        for path in (_MINI_BATCH, f"{MEGATRON_WORKER}.MegatronPolicyWorkerBase.forward")
    ),
)  # fmt: skip
_MEGATRON = (
    _megatron("forward_backward_mini_batch", "rollout_kl", _megatron_rollout_kl, _MEGATRON, *K3_IS_CUT),
    _megatron("forward_backward_mini_batch", "router_replay", _router_replay, _REPLAY),
    _megatron("forward", "router_replay", _router_replay, _REPLAY),
)


BINDINGS = (*_WORKERS, *_UPDATES, *_MORE, *_MEGATRON_UPDATES, *_MEGATRON)
