"""SkyRL: the Megatron worker, on a stand-in megatron.core."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sentinel.targets import Binding, Dialect, StandIn
from sentinel.worker.kit import stand_in

from .shared import (
    BATCH,
    CUDA,
    GYM,
    K3_IS_CUT,
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
    WRAPPER,
    OneProcess,
    batch_fields,
    configuration_of,
    current_device,
    no_ray,
    other_ranks_have,
    swapped,
    training_batch,
)
from .workers import NO_OTHER_TERM, rollout_kl_options


class _Router:
    """Stand-in RouterReplay: what one router is told to do, whose routes it holds, and of how many tokens."""

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
    """Stand-in schedule: Megatron's without a pipeline, one microbatch after the other."""

    def __init__(self) -> None:
        self.microbatch = -1
        self.losses: list[Any] = []

    def __call__(
        self,
        *,
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        forward_only: bool,
        **_: Any,
    ) -> list[Any]:
        collected = []
        for self.microbatch in range(num_microbatches):
            output, loss_function = forward_step_func(data_iterator, model[0])
            loss, data = loss_function(output)
            self.losses.append(loss)
            collected.append(data)
            if not forward_only:
                (loss / num_microbatches).backward()
        return collected


def _parallel_state() -> Any:
    """Megatron's mpu for one process: every axis of size 1, rank 0, no group, first and last stage."""
    axes = ("tensor_model_parallel", "context_parallel", "data_parallel", "pipeline_model_parallel")
    kinds = {"world_size": 1, "rank": 0, "group": None}
    answers = {f"get_{axis}_{kind}": answer for axis in axes for kind, answer in kinds.items()}
    answers |= {"get_pipeline_model_parallel_last_rank": 0}
    answers |= dict.fromkeys(("is_pipeline_first_stage", "is_pipeline_last_stage"), True)
    return stand_in(**{name: (lambda *_, _answer=answer, **__: _answer) for name, answer in answers.items()})


def _megatron_core() -> dict[str, Any]:
    """The modules of megatron.core that SkyRL imports inside functions, with what it takes from them."""
    state, inside = _parallel_state(), "megatron.core.transformer"
    action = stand_in(REPLAY_FORWARD="replay_forward", REPLAY_BACKWARD="replay_backward")
    return {
        "megatron": stand_in(core=stand_in(parallel_state=state)),
        "megatron.core.parallel_state": state,
        f"{inside}.moe.router_replay": stand_in(RouterReplay=_Router, RouterReplayAction=action),
        f"{inside}.transformer_block": stand_in(get_num_layers_to_build=lambda config, **_: config.num_layers),
        f"{inside}.transformer_layer": stand_in(get_transformer_layer_offset=lambda config, **_: 0),
    }


def _megatron_model(logits: Callable[[Any], Any], layers: int) -> Any:
    """Stand-in model of the Megatron worker: ``logits(input_ids)`` is what it computes."""
    import torch

    model: Any = torch.nn.Module()
    model.forward = lambda sequences, *_, **__: logits(sequences)
    model.zero_grad_buffer = lambda: None
    replay = {"moe_enable_routing_replay": layers > 0, "num_layers": layers}
    absent = dict.fromkeys(("fp8", "mtp_num_layers", "num_moe_experts"))
    model.config = stand_in(sequence_parallel=False, **replay, **absent)
    return model


@contextlib.contextmanager
def _megatron_worker(
    boundary: Any, options: Mapping[str, Any], schedule: _Schedule, logits: Callable[[Any], Any], layers: int = 0
) -> Iterator[Any]:
    """The target's worker around its own model wrapper, on a stand-in megatron.core.

    :param layers: mixture-of-experts layers whose routes are replayed.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    core = _megatron_core()
    sys.modules.update(core)
    _Router.schedule, _Router.global_router_replay_instances = schedule, [_Router() for _ in range(layers)]
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    utils, workers = boundary.imported[MEGATRON_UTILS], boundary.imported[MEGATRON_WORKER]
    users = (boundary.module, workers, utils, boundary.imported[MEGATRON_MODELS])
    settings = configuration_of(boundary, {"trainer.remove_microbatch_padding": False, **options}).trainer
    swaps = (
        *(swapped(module, "mpu", core["megatron.core.parallel_state"]) for module in users if hasattr(module, "mpu")),
        swapped(utils, "get_attr_wrapped_model", lambda model, name, **_: getattr(model, name)),
        swapped(utils, "unwrap_model", lambda model, *_: model),
        swapped(boundary.module, "finalize_model_grads", lambda *_, **__: None),
        swapped(boundary.module, "get_forward_backward_func", lambda: schedule),
        no_ray(boundary),
        current_device(boundary.device),
    )
    with contextlib.ExitStack() as alone:
        for swap in swaps:
            alone.enter_context(swap)
        model = _megatron_model(logits, layers)
        policy_loss = boundary.imported[PPO].PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
        worker = object.__new__(workers.MegatronPolicyWorkerBase)
        vars(worker).update(
            cfg=settings,
            actor_module=[model],
            model=boundary.owner(settings, [model], None, policy_loss),
            strategy=OneProcess(),
            enable_router_replay=layers > 0,
            **dict.fromkeys(("optimizer", "scheduler")),
            **dict.fromkeys(("empty_cuda_cache", "is_vlm"), False),
        )
        yield worker


def _megatron_rollout_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Logits over two tokens whose log-softmax at token 0, the id of every token, is the scenario's log-prob."""
    import torch

    log_probs, schedule = inputs["log_probs"], _Schedule()
    if not (log_probs < 0).all():
        raise ValueError("no logits over two tokens have a log-prob that is not below 0")
    equal = (log_probs == inputs["rollout_log_probs"]) & (inputs["response_mask"] != 0)
    if inputs["kl_estimator"] == "abs" and equal.any():
        raise ValueError("a log-softmax is a rounding off, and where both are equal |d| has no gradient to compare")
    rows = log_probs.shape[0]
    exact = log_probs.double()  # near 0 the other token's probability is lost in fewer bits
    pair = torch.stack([exact, torch.log(-torch.expm1(exact))], -1).to(log_probs.dtype)
    logits = torch.cat([pair, torch.zeros(rows, 1, 2, device=pair.device)], 1)
    by_rows = {"trainer.max_tokens_per_microbatch": 0, "trainer.micro_train_batch_size_per_gpu": rows}
    fields = batch_fields(log_probs, inputs["response_mask"], rollout_logprobs=inputs["rollout_log_probs"])
    options = {**rollout_kl_options(inputs), **by_rows}
    with _megatron_worker(boundary, options, schedule, lambda sequences: logits) as worker:
        output = worker.forward_backward(training_batch(boundary, fields))
    (loss,) = schedule.losses
    # A microbatch without a token that counts is taken for a padding one, whose metrics are left out.
    return {"rollout_kl": output.metrics.get("rollout_kl"), "loss": loss.detach()}


def _router_replay(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A step over microbatches of the target's own iterator; only it knows what a padding microbatch carries."""
    import torch

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
        optional["router_padding_mask"] = torch.zeros(rows, length, dtype=torch.bool)  # every token has its routes
    fields = batch_fields(log_probs, torch.ones_like(log_probs), **optional)
    options = {**NO_OTHER_TERM, "trainer.max_tokens_per_microbatch": inputs["max_tokens_per_microbatch"]}
    ranks = other_ranks_have(boundary, inputs["padding_microbatches"])
    with ranks, _megatron_worker(boundary, options, schedule, logits, layers) as worker:
        training = boundary.function.__name__ == "forward_backward_mini_batch"
        (worker.forward_backward if training else worker._forward_logprobs)(training_batch(boundary, fields))
        left_over = any(router.action is not None for router in _Router.global_router_replay_instances)
    return {"model_calls": calls, "left_over": left_over}


_MEGATRON = (
    StandIn(
        "self", "the real worker is made without its constructor, which starts Ray and GPUs, and given its attributes"
    ),
    StandIn("mpu", "Megatron's parallel state for one process: every axis of size 1, rank 0, first and last stage"),
    StandIn(
        "schedule", "get_forward_backward_func: Megatron's schedule without a pipeline, one microbatch after the other"
    ),
    StandIn("get_attr_wrapped_model, unwrap_model", "the model is not wrapped, so its attributes are its own"),
    StandIn("finalize_model_grads", "nothing: it reduces gradients over ranks, and there is one"),
    StandIn("process group", "torch's fake backend of world size 1, whose collectives change nothing"),
    *(GYM, RAY, STRATEGY, MODEL, CUDA),
)
_REPLAY = (
    StandIn(
        "RouterReplay",
        "records for each router the action and the routes it is given; megatron-core keeps the same state",
    ),
    StandIn(
        "get_num_layers_to_build, get_transformer_layer_offset", "without a pipeline a rank holds every layer, from 0"
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


BINDINGS = (
    _megatron("forward_backward_mini_batch", "rollout_kl", _megatron_rollout_kl, _MEGATRON, *K3_IS_CUT),
    _megatron("forward_backward_mini_batch", "router_replay", _router_replay, _REPLAY),
    _megatron("forward", "router_replay", _router_replay, _REPLAY),
)
