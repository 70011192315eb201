"""SkyRL (NovaSky-AI/SkyRL): how Sentinel's contracts bind to its boundaries.

Its workers want Ray, GPUs and Megatron. None of that decides what these boundaries compute, so they run on the
target's own configuration, batches and iterators, with the small stand-ins that each binding names.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sentinel.targets import Binding, Dialect, PackageRoot, StandIn, Target

#: Dialects say where SkyRL says so by a line of main in August 2026.
_CODE = "https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl"

_BACKEND = "skyrl.backends.skyrl_train"
_PPO = f"{_BACKEND}.utils.ppo_utils"
_TORCH = f"{_BACKEND}.utils.torch_utils"
_OFF_POLICY = f"{_BACKEND}.utils.off_policy_correction_utils"
_BATCH = f"{_BACKEND}.training_batch"
_WORKER_UTILS = f"{_BACKEND}.workers.worker_utils"
_CONFIG = "skyrl.train.config"
_WRAPPER = f"{_BACKEND}.workers.megatron.megatron_model_wrapper"
_MEGATRON_WORKER = f"{_BACKEND}.workers.megatron.megatron_worker"
_MEGATRON_UTILS = f"{_BACKEND}.distributed.megatron.megatron_utils"
_MEGATRON_MODELS = f"{_BACKEND}.distributed.megatron.model_utils"

#: The configuration imports the second one when it is made, and so inside a probe if it were not named here.
_CONFIGURED = (_CONFIG, f"{_BACKEND}.inference_servers.utils", _PPO)
_WORKING = (*_CONFIGURED, _BATCH, _WORKER_UTILS)
_WITH_MEGATRON = (*_WORKING, _MEGATRON_WORKER, _MEGATRON_UTILS, _MEGATRON_MODELS, f"{_BACKEND}.utils.replay_utils")


#: Megatron's log-probs are those of logits taken to single precision, whatever these are.
_SINGLE = ("float32",)

#: The switch of the rollout KL loss, which only #1811 has.
_OPTION = f"{_CONFIG}.AlgorithmConfig.use_rollout_kl_loss"


def _ppo_line(number: int) -> str:
    return f"{_CODE}/backends/skyrl_train/utils/ppo_utils.py#L{number}"


#: Of compute_approx_kl, which every KL of a training step comes from.
_K3_IS_CUT = (Dialect("clamp", 10.0, "k3 is cut to [-10, 10]", _ppo_line(118), {"kl_estimator": ("k3",)}),)


# -- what every case is made of ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _swapped(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set ``(object, attribute, value)`` for the length of a call."""
    old = [(item, name, getattr(item, name)) for item, name, _ in changes]
    try:
        for item, name, value in changes:
            setattr(item, name, value)
        yield
    finally:
        for item, name, value in reversed(old):
            setattr(item, name, value)


def _stand_in(**attributes: Any) -> Any:
    from sentinel.worker.drift import StandInNamespace

    return StandInNamespace(**attributes)


def _no_ray(boundary: Any) -> tuple[Any, str, Any]:
    return boundary.imported[_PPO], "ray", _stand_in(is_initialized=lambda: False)


def _other_ranks_have(boundary: Any, more: int) -> tuple[Any, str, Any]:
    """Another data-parallel rank with ``more`` microbatches: what makes the iterator add padding ones."""
    from torch.distributed import ReduceOp

    def all_reduce(count: Any, op: Any) -> None:
        assert op is ReduceOp.MAX
        count.add_(more)

    ranks = _stand_in(is_initialized=lambda: True, ReduceOp=ReduceOp, all_reduce=all_reduce)
    return boundary.imported[_WORKER_UTILS], "dist", ranks


def _device(name: str) -> tuple[Any, str, Any]:
    import torch

    return torch.cuda, "current_device", lambda: torch.device(name)


def _configuration(boundary: Any, options: Mapping[str, Any]) -> Any:
    """The target's own configuration, with options by their dotted paths."""
    config = boundary.imported[_CONFIG]
    made = config.SkyRLTrainConfig(environment=config.EnvironmentConfig(skyrl_gym=None))
    # wandb, the default, is refused where the environment has no key for it.
    return _with_options(made, {"trainer.logger": "console", "trainer.algorithm.temperature": 1.0, **options})


def _with_options(made: Any, options: Mapping[str, Any]) -> Any:
    """A configuration, with options by their dotted paths."""
    from sentinel.worker.drift import DriftError

    for path, value in options.items():
        *heads, last = path.split(".")
        node = made
        for head in heads:
            if not hasattr(node, head):
                raise DriftError(f"the configuration has no option {path!r}")
            node = getattr(node, head)
        if not hasattr(node, last):  # setting it would succeed silently, and look like an option without effect
            raise DriftError(f"the configuration has no option {path!r}")
        setattr(node, last, value)
    return made


def _refusal(call: Callable[[], Any]) -> tuple[Any, dict[str, str] | None]:
    """What a call returned, and the error by which it refused its arguments, if it did."""
    try:
        return call(), None
    except (AssertionError, ValueError, NotImplementedError) as error:
        return None, {"type": type(error).__name__, "message": str(error)}


def _batch(boundary: Any, fields: Mapping[str, Any]) -> Any:
    made = boundary.imported[_BATCH].TrainingInputBatch(dict(fields))
    made.metadata = {"response_length": fields["loss_mask"].shape[1]}
    return made


def _fields(log_probs: Any, mask: Any, **optional: Any) -> dict[str, Any]:
    """The fields that a training batch always has: one prompt token and the response, ids and advantages 0."""
    import torch

    rows, tokens = log_probs.shape
    ones = torch.ones(rows, tokens, dtype=torch.long)
    lengthened = torch.ones(rows, tokens + 1, dtype=torch.long)
    zeros = {name: torch.zeros(rows, tokens) for name in ("values", "returns", "advantages")}
    same = {name: log_probs.detach().clone() for name in ("action_log_probs", "base_action_log_probs")}
    masks = {"attention_mask": lengthened, "response_mask": ones, "loss_mask": mask}
    fields = {"sequences": torch.zeros_like(lengthened), **masks, **same, **zeros, **optional}
    return {name: value.cpu() for name, value in fields.items()}  # a batch comes from the driver; the worker moves it


class _OneProcess:
    """Stand-in strategy: nothing is sharded, so a backward pass is the loss's own."""

    loss: Any = None

    def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
        self.loss = loss
        loss.backward()

    def all_reduce(self, metrics: Mapping[str, Any], op: str = "mean", group: Any = None) -> dict[str, Any]:
        return dict(metrics)


_RAY = StandIn("ray", "the loss registries ask ray.is_initialized(); without a cluster it answers False")
_GYM = StandIn(
    "environment.skyrl_gym", "None: settings of environments, from a package that releases ship apart; not read here"
)
_STRATEGY = StandIn("strategy", "one process: backward is loss.backward(), a reduction over ranks changes nothing")
_MODEL = StandIn("model", "a model whose log-probs are those of the scenario; its weights are not what is measured")
_CUDA = StandIn("torch.cuda.current_device", "the worker moves its batch there; answers the device of the scenario")
_RANKS = StandIn(
    "dist", "in the batch iterator: another data-parallel rank with more microbatches, which makes padding"
)


# -- batch surgery: the padding microbatch ----------------------------------------------------------------------------


def _layout(dtype: str, *shape: str, mask: bool = False) -> dict[str, Any]:
    return {"dtype": dtype, "shape": ["batch", *shape], **({"mask": True} if mask else {})}


#: TrainingInput, the schema of a training batch: dtypes as the driver's preprocessing makes them.
_FIELDS = {
    "sequences": _layout("int64", "length"),
    "attention_mask": _layout("int64", "length", mask=True),
    "response_mask": _layout("int64", "response", mask=True),
    "loss_mask": _layout("float32", "response", mask=True),
    "action_log_probs": _layout("float32", "response"),
    "returns": _layout("float32", "response"),
    "advantages": _layout("float32", "response"),
}
#: Without pictures: of these each row has any number, and padding needs none.
_OPTIONAL_FIELDS = {
    "base_action_log_probs": _layout("float32", "response"),
    "values": _layout("float32", "response"),
    "rollout_logprobs": _layout("float32", "response"),
    "rollout_expert_indices": _layout("uint8", "length", "layers", "top-k"),
    "router_padding_mask": _layout("bool", "length"),
}


def _padding_microbatch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    from sentinel.worker.drift import DriftError

    unknown = inputs["optional_fields"].keys() - boundary.imported[_BATCH].TrainingInput.__annotations__.keys()
    if unknown:
        raise DriftError(f"training batches have no {', '.join(sorted(unknown))} in this version")
    batch = _batch(boundary, {**inputs["fields"], **inputs["optional_fields"]})
    iterator = boundary.owner(batch, inputs["max_tokens_per_microbatch"])
    padding = boundary.invoke({}, iterator)
    return {"real_rows": next(iter(iterator)), "made_rows": padding, "loss_mask": padding["loss_mask"]}


# -- the driver: configuration and training input ---------------------------------------------------------------------


def _takes(*names: str, **needed: Any) -> dict[str, Any]:
    return {"names": list(names), "with": {f"trainer.algorithm.{option}": value for option, value in needed.items()}}


#: Options that take a name, with names that they have had throughout.
_NAMED_OPTIONS = {
    "trainer.algorithm.policy_loss_type": _takes("regular", "dual_clip", "gspo"),
    "trainer.algorithm.advantage_estimator": _takes("grpo", "rloo"),
    "trainer.algorithm.loss_reduction": _takes("token_mean", "sequence_mean"),
    "trainer.algorithm.off_policy_correction.tis_ratio_type": _takes("token", "sequence"),
    "trainer.algorithm.off_policy_correction.sequence_mask_metric": _takes("product", "geometric"),
    "trainer.algorithm.rollout_kl_estimator_type": _takes("k3", "k1", "k2", "abs", use_rollout_kl_loss=True),
    "trainer.algorithm.kl_estimator_type": _takes("k3", "k1", "k2", "abs", use_kl_loss=True),
    "trainer.algorithm.dynamic_sampling.type": _takes("filter", "replace"),
}

_CORRECTION = "trainer.algorithm.off_policy_correction"
#: Configurations whose training step reads the rollouts' log-probs, after one that does not.
_NEED_LOG_PROBS: tuple[dict[str, Any], ...] = (
    {},
    {f"{_CORRECTION}.tis_ratio_type": "token"},
    {f"{_CORRECTION}.sequence_mask_metric": "product"},
    {f"{_CORRECTION}.outlier_token_is_threshold_high": 100.0},
    {f"{_CORRECTION}.token_mask_is_threshold_low": 0.5, f"{_CORRECTION}.token_mask_is_threshold_high": 2.0},
    {"trainer.algorithm.policy_loss_type": "rollout_is"},
    {"trainer.algorithm.use_rollout_kl_loss": True},
)


def _validate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    configuration = _configuration(boundary, inputs["configuration"])
    with _swapped(_no_ray(boundary)):
        _, refusal = _refusal(lambda: boundary.invoke({}, configuration))
    settled = {}
    for path in inputs["watched"]:
        value = configuration
        for name in path.split("."):
            value = getattr(value, name)
        settled[path] = value
    return {"refusal": refusal, "settled": settled}


def _convert(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rows = len(inputs["response_token_ids"])
    sizes = {
        "trainer.train_batch_size": rows,
        "trainer.policy_mini_batch_size": rows,
        "generator.n_samples_per_prompt": 1,
    }
    trainer = _stand_in(
        cfg=_configuration(boundary, {**sizes, **inputs["configuration"]}),
        tokenizer=_stand_in(pad_token_id=0),
        all_metrics={},
        dispatch=_stand_in(get_lcm_dp_size=lambda: 1),
    )
    rollouts = {
        "prompt_token_ids": inputs["prompt_token_ids"],
        "response_ids": inputs["response_token_ids"],
        "rewards": inputs["rewards"],
        "loss_masks": inputs["loss_masks"],
        "rollout_logprobs": inputs["rollout_log_probs"],
    }
    batch, refusal = _refusal(lambda: boundary.invoke({}, trainer, rollouts, [str(row) for row in range(rows)]))
    return {"refusal": refusal, "rollout_log_probs": None if batch is None else batch["rollout_logprobs"]}


# -- the FSDP worker --------------------------------------------------------------------------------------------------

_ALGORITHM = "trainer.algorithm"
#: Without these the loss is the policy loss alone, which is 0 where all advantages are.
_NO_OTHER_TERM = {f"{_ALGORITHM}.use_kl_loss": False, f"{_ALGORITHM}.use_entropy_loss": False}


def _rollout_kl_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_NO_OTHER_TERM,
        f"{_ALGORITHM}.use_rollout_kl_loss": True,
        f"{_ALGORITHM}.rollout_kl_loss_coef": inputs["coefficient"],
        f"{_ALGORITHM}.rollout_kl_estimator_type": inputs["kl_estimator"],
    }


class _FixedModel:
    """Stand-in model of the FSDP worker: answers log-probs and an entropy of 0."""

    def __init__(self, log_probs: Any) -> None:
        self._log_probs = log_probs

    def train(self) -> None:
        pass

    def __call__(self, sequences: Any, *_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
        import torch

        return self._log_probs, {"entropy": torch.zeros(sequences.shape, device=self._log_probs.device)}


def _fsdp_step(
    boundary: Any, options: Mapping[str, Any], log_probs: Any, fields: Mapping[str, Any], strategy: _OneProcess
) -> Any:
    """One microbatch of weight 1 through the worker's forward and backward pass."""
    settings = _configuration(boundary, options).trainer
    worker = _stand_in(
        cfg=settings,
        model=_FixedModel(log_probs),
        strategy=strategy,
        optimizer=None,
        scheduler=_stand_in(get_last_lr=lambda: [0.0]),
        mesh_rank=_stand_in(dp_size=1),
        device_mesh=_stand_in(get_group=lambda name: None),
    )
    with _swapped(_no_ray(boundary), _device(log_probs.device.type)):
        worker.policy_loss_fn = boundary.imported[_PPO].PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
        experience = boundary.imported[_WORKER_UTILS].BaseBatchIterator.batch_to_experience(_batch(boundary, fields))
        return boundary.invoke({}, worker, experience, 1.0)


def _fsdp_rollout_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    log_probs, strategy = inputs["log_probs"], _OneProcess()
    fields = _fields(log_probs, inputs["response_mask"], rollout_logprobs=inputs["rollout_log_probs"])
    status = _fsdp_step(boundary, _rollout_kl_options(inputs), log_probs, fields, strategy)
    return {"rollout_kl": status["rollout_kl"], "loss": strategy.loss.detach()}


#: On first: what is off is what makes constants.
_TERMS = tuple(
    {f"{_ALGORITHM}.use_kl_loss": kl, f"{_ALGORITHM}.use_entropy_loss": entropy}
    for kl in (True, False)
    for entropy in (True, False)
)


def _fsdp_device(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The loss up to its backward pass; what follows only reads values, which a meta tensor does not have."""
    import torch

    class LossIsMade(Exception):
        pass

    class Stop(_OneProcess):
        def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
            raise LossIsMade

    zeros = torch.zeros(2, 3)
    log_probs = torch.zeros(2, 3, device=inputs["device"], requires_grad=True)
    with contextlib.suppress(LossIsMade):
        fields = _fields(zeros, torch.ones(2, 3), rollout_logprobs=zeros.clone())
        _fsdp_step(boundary, inputs["configuration"], log_probs, fields, Stop())
    return {}


_FSDP = (
    StandIn("self", "the real worker's constructor starts Ray and GPUs; the step reads these attributes alone"),
    *(_GYM, _RAY, _STRATEGY, _MODEL, _CUDA),
)


# -- the Megatron worker ----------------------------------------------------------------------------------------------


class _Action(enum.Enum):
    """Megatron's RouterReplayAction, as far as SkyRL uses it."""

    REPLAY_FORWARD = "replay_forward"
    REPLAY_BACKWARD = "replay_backward"


class _Router:
    """Stand-in RouterReplay: what one router is told to do, and whose routes it holds."""

    global_router_replay_instances: list[_Router] = []  # noqa: RUF012 - Megatron's own attribute

    def __init__(self, schedule: _Schedule) -> None:
        self.schedule, self.target, self.routes_of, self.action = schedule, None, None, None

    def set_target_indices(self, target: Any) -> None:
        self.target, self.routes_of = target, self.schedule.microbatch

    def seen(self) -> dict[str, Any]:
        action = None if self.action is None else self.action.value
        return {"action": action, "routes_of": self.routes_of, "rows": 0 if self.target is None else len(self.target)}

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
            router.target = router.routes_of = None

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


class _Module(types.ModuleType):
    """A stand-in module that says by name what it lacks."""

    def __getattr__(self, name: str) -> Any:
        from sentinel.worker.drift import StandInMissingError

        if name.startswith("__"):
            raise AttributeError(name)
        raise StandInMissingError(f"the code reads {self.__name__}.{name}, which the stand-in does not have")


def _parallel_state() -> dict[str, Any]:
    """Megatron's mpu for one process: every axis of size 1, rank 0, no group, first and last stage."""
    axes = ("tensor_model_parallel", "context_parallel", "data_parallel", "pipeline_model_parallel")
    kinds = {"world_size": 1, "rank": 0, "group": None}
    answers = {f"get_{axis}_{kind}": answer for axis in axes for kind, answer in kinds.items()}
    answers |= {
        "get_pipeline_model_parallel_last_rank": 0,
        "is_pipeline_first_stage": True,
        "is_pipeline_last_stage": True,
    }
    return {name: (lambda *_, _answer=answer, **__: _answer) for name, answer in answers.items()}


def _megatron_core() -> dict[str, types.ModuleType]:
    """The modules of megatron.core that SkyRL imports inside functions, with what it takes from them."""
    contents: dict[str, dict[str, Any]] = {
        "megatron": {},
        "megatron.core": {},
        "megatron.core.parallel_state": _parallel_state(),
        "megatron.core.transformer": {},
        "megatron.core.transformer.moe": {},
        "megatron.core.transformer.moe.router_replay": {"RouterReplay": _Router, "RouterReplayAction": _Action},
        "megatron.core.transformer.transformer_block": {
            "get_num_layers_to_build": lambda config, **_: config.num_layers
        },
        "megatron.core.transformer.transformer_layer": {"get_transformer_layer_offset": lambda config, **_: 0},
    }
    modules: dict[str, types.ModuleType] = {}
    for name, attributes in contents.items():
        module = modules[name] = _Module(name)
        vars(module).update(attributes, __path__=[])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    return modules


class _MegatronModel:
    """Stand-in model of the Megatron worker: ``logits(input_ids)`` is what it computes."""

    def __init__(self, logits: Callable[[Any], Any], layers: int) -> None:
        self._logits = logits
        self.config = _stand_in(
            moe_enable_routing_replay=layers > 0,
            num_layers=layers,
            sequence_parallel=False,
            **dict.fromkeys(("fp8", "mtp_num_layers", "num_moe_experts")),
        )

    def train(self) -> None:
        pass

    eval = zero_grad_buffer = train

    def modules(self) -> Iterator[Any]:
        return iter(())

    def __call__(self, sequences: Any, *_: Any, **__: Any) -> Any:
        return self._logits(sequences)


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
    _Router.global_router_replay_instances = [_Router(schedule) for _ in range(layers)]
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    utils, workers = boundary.imported[_MEGATRON_UTILS], boundary.imported[_MEGATRON_WORKER]
    users = (boundary.module, workers, utils, boundary.imported[_MEGATRON_MODELS])
    settings = _configuration(boundary, {"trainer.remove_microbatch_padding": False, **options}).trainer
    with _swapped(
        *((module, "mpu", core["megatron.core.parallel_state"]) for module in users if hasattr(module, "mpu")),
        (utils, "get_attr_wrapped_model", lambda model, name, **_: getattr(model, name)),
        (utils, "unwrap_model", lambda model, *_: model),
        (boundary.module, "finalize_model_grads", lambda *_, **__: None),
        (boundary.module, "get_forward_backward_func", lambda: schedule),
        _no_ray(boundary),
        _device(boundary.device),
    ):
        model = _MegatronModel(logits, layers)
        policy_loss = boundary.imported[_PPO].PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
        worker = object.__new__(workers.MegatronPolicyWorkerBase)
        vars(worker).update(
            cfg=settings,
            actor_module=[model],
            model=boundary.owner(settings, [model], None, policy_loss),
            strategy=_OneProcess(),
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
    fields = _fields(log_probs, inputs["response_mask"], rollout_logprobs=inputs["rollout_log_probs"])
    options = {**_rollout_kl_options(inputs), **by_rows}
    with _megatron_worker(boundary, options, schedule, lambda sequences: logits) as worker:
        output = worker.forward_backward(_batch(boundary, fields))
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
        routers = [router.seen() for router in _Router.global_router_replay_instances]
        calls.append({"tokens": sequences.numel(), "routers": routers})
        return torch.zeros(*sequences.shape, 8, device=sequences.device, requires_grad=torch.is_grad_enabled())

    log_probs = torch.full((rows, length - 1), -2.0)
    optional = {"rollout_logprobs": log_probs.clone(), "rollout_expert_indices": routes.to(torch.uint8)}
    if "router_padding_mask" in boundary.imported[_BATCH].TrainingInput.__annotations__:
        optional["router_padding_mask"] = torch.zeros(rows, length, dtype=torch.bool)  # every token has its routes
    fields = _fields(log_probs, torch.ones_like(log_probs), **optional)
    options = {**_NO_OTHER_TERM, "trainer.max_tokens_per_microbatch": inputs["max_tokens_per_microbatch"]}
    ranks = _other_ranks_have(boundary, inputs["padding_microbatches"])
    with _swapped(ranks), _megatron_worker(boundary, options, schedule, logits, layers) as worker:
        training = boundary.function.__name__ == "forward_backward_mini_batch"
        (worker.forward_backward if training else worker._forward_logprobs)(_batch(boundary, fields))
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
    *(_GYM, _RAY, _STRATEGY, _MODEL, _CUDA),
)
_REPLAY = (
    StandIn(
        "RouterReplay",
        "records for each router the action and the routes it is given; megatron-core keeps the same state",
    ),
    StandIn(
        "get_num_layers_to_build, get_transformer_layer_offset", "without a pipeline a rank holds every layer, from 0"
    ),
    _RANKS,
    *_MEGATRON,
)


def _megatron(
    method: str, contract: str, call: Callable[..., Any], stand_ins: tuple[StandIn, ...], *dialects: Dialect
) -> Binding:
    return Binding(
        f"{_WRAPPER}.MegatronModelWrapper.{method}",
        contract,
        call=call,
        imports=_WITH_MEGATRON,
        stand_ins=stand_ins,
        requires=(_OPTION,) if contract == "rollout_kl" else (),
        dtypes=_SINGLE,
        dialects=dialects,
    )


# -- functions of tensors alone ---------------------------------------------------------------------------------------

#: Where its masks come from: every response-level tensor is right-aligned, with padding on the left.
_RIGHT_ALIGNED = ("full", "left")


def _formerly(function: str) -> tuple[str, ...]:
    return (f"skyrl_train.utils.ppo_utils.{function}",)


#: A batch is float32, and a model bfloat16 or float32.
#: https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/train/dataset/preprocess.py#L214
#: https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/backends/skyrl_train/workers/model_wrapper.py#L158
_DTYPES = ("float32", "bfloat16")


def _given(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: inputs[name] for name in names}


def _kl(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    return boundary.invoke(_given(inputs, "log_probs", "ref_log_probs", "kl_estimator", "response_mask"))


def _gae(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """It looks at the mask for whitening alone: every token is a step of the episode. Padding stands on the left,
    before the first step, so that nothing is discounted through it.

    https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/backends/skyrl_train/utils/ppo_utils.py#L1332
    """
    return boundary.invoke(_given(inputs, "token_level_rewards", "values", "response_mask", "gamma", "lam"))


def _reinforce_plus_plus(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    return boundary.invoke(_given(inputs, "token_level_rewards", "response_mask", "gamma"))


def _of_groups(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    names = ("token_level_rewards", "response_mask", "group", "epsilon", "norm_by_std")
    return boundary.invoke(_given(inputs, *names))


def _whitens(line: int) -> Dialect:
    return Dialect("whiten", True, "the estimator's last step whitens its advantages over the batch", _ppo_line(line))


#: A score is the sum of a row's rewards, wherever they stand: the driver writes 0 where no response token stands.
_SUM_OF_ROW = "the score is the sum of a row's rewards, and the driver puts 0 where no token of the response stands"
_ZERO_OUTSIDE = f"{_CODE}/train/dataset/preprocess.py#L214"
#: The mask of an estimator is the extent of the response. A response that is filtered out keeps it and its place in the
#: group's statistics; what is 0 is its loss_mask, which no estimator sees.
_EXTENT = (
    "the estimators get response_mask, the extent of a response: one that is filtered out (loss_mask 0) still counts"
)
_GIVEN_EXTENT = f"{_CODE}/train/trainer.py#L1184"
_COUNTED = (
    Dialect("rejected", "counted", _EXTENT, _GIVEN_EXTENT),
    Dialect("a_rejected_row_is_an_absent_row", None, _EXTENT, _GIVEN_EXTENT),
    Dialect("masked_rewards", "counted", _SUM_OF_ROW, _ZERO_OUTSIDE),
    Dialect("masked_values_have_no_influence", None, _SUM_OF_ROW, _ZERO_OUTSIDE),
)


def _outcome(function: str, estimator: str, knobs: tuple[str, ...], *dialects: Dialect) -> Binding:
    """An estimator of one score a response: "operating only on Outcome reward", as its docstring says."""
    unused = [name for name in ("epsilon", "norm_by_std") if name not in knobs]
    return Binding(
        f"{_PPO}.{function}",
        "group_advantage",
        formerly=_formerly(function),
        arguments={"group": ("index",), "norm_by_std": ("grpo_norm_by_std",)},
        outputs=("advantages", "returns"),
        call=_of_groups,
        fixed={"estimator": estimator, "reward_layout": "outcome", **dict.fromkeys(unused)},
        accepts={"response_mask": _RIGHT_ALIGNED},
        dialects=(*_COUNTED, *dialects),
    )


# -- policy losses ----------------------------------------------------------------------------------------------------

#: Its policy losses are sums over tokens; advantages come to them scaled by the loss reduction.
_SUMMED = {
    "loss_agg_mode": "token-sum",
    **dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor", "importance_weights")),
}
#: What the contract has by default for knobs that a loss does not have.
_KNOBS = {
    "eps_clip_low": 0.2,
    "eps_clip_high": 0.2,
    "dual_clip": None,
    "ratio_cap": None,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "beta": 0.1,
    "positive_weight": 1.0,
    "negative_weight": 1.0,
}
_CLIP = {"eps_clip_low": "eps_clip_low", "eps_clip_high": "eps_clip_high"}

_SAFE_EXP = f"{_CODE}/backends/skyrl_train/utils/torch_utils.py#L191"
_SAFELY = (
    Dialect("log_ratio_clamp", 20.0, "safe_exp_delta cuts a log-ratio to [-20, 20] against overflow", _SAFE_EXP),
    Dialect("ratio_precision", "float32", "safe_exp_delta takes every exponential in single precision", _SAFE_EXP),
)


def _algorithm(boundary: Any, options: Mapping[str, Any]) -> Any:
    return _with_options(boundary.imported[_CONFIG].AlgorithmConfig(), options)


def _policy_loss(
    boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], behaviour: bool = False
) -> dict[str, Any]:
    """:param behaviour: the ratio is relative to the rollout's log-probs, so the old ones are handed in as those; the
    loss has the others as an argument too, for off-policy correction, which is off.
    """
    names = _given(inputs, "log_probs", "old_log_probs", "advantages", "response_mask")
    rollout = {"rollout_logprobs": inputs["old_log_probs"]} if behaviour else {}
    loss, metrics = boundary.invoke(names, config=_algorithm(boundary, options), **rollout)
    return {"loss": loss, "clip_fraction": metrics.get("clip_ratio")}


def _policy(
    function: str,
    algorithm: str | tuple[str, ...],
    knobs: Mapping[str, str],
    *dialects: Dialect,
    settings: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda inputs: {},
    behaviour: bool = False,
    fixed: Mapping[str, Any] = {},
) -> Binding:
    """:param knobs: canonical input -> option of the algorithm's configuration.
    :param settings: further options, from the canonical inputs.
    :param fixed: what the oracle is told of those options.
    """

    def call(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        given = {option: inputs[name] for name, option in knobs.items() if inputs[name] is not None}
        return _policy_loss(boundary, inputs, {**given, **settings(inputs)}, behaviour)

    several = isinstance(algorithm, tuple)
    return Binding(
        f"{_PPO}.{function}",
        "policy_loss",
        arguments={"response_mask": ("loss_mask",)},
        call=call,
        imports=(_CONFIG,),
        fixed={
            **_SUMMED,
            **{name: value for name, value in _KNOBS.items() if name not in knobs},
            **({} if several else {"algorithm": algorithm}),
            **fixed,
        },
        accepts={"algorithm": algorithm} if isinstance(algorithm, tuple) else {},
        dialects=dialects,
    )


def _clip_kind(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"policy_loss_type": "regular" if inputs["dual_clip"] is None else "dual_clip"}


_DIVERGENCES = {"dppo_tv": "binary_tv", "dppo_kl": "binary_kl"}


def _divergence(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"dppo.dppo_type": _DIVERGENCES[inputs["algorithm"]]}


def _cispo_ratios(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """With bounds that cut nothing but the smallest ratios: what is reported is taken before the cut."""
    import torch

    config = _algorithm(boundary, {"cispo.cispo_eps_clip_low": 0.0, "cispo.cispo_eps_clip_high": 5.0})
    names = _given(inputs, "log_probs", "old_log_probs", "response_mask")
    _, metrics = boundary.invoke(names, advantages=torch.ones_like(inputs["log_probs"]), config=config)
    return {name: metrics[f"cispo/{name}"] for name in ("ratio_max", "ratio_min")}


def _samples_of_a_prompt(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What one environment may write to is a list in its extras."""
    rows: list[dict[str, Any]] = [
        {"prompt": [], "env_class": None, "env_extras": {"state": [row]}, "uid": str(row)}
        for row in range(inputs["prompts"])
    ]
    made, owners = boundary.invoke(
        {},
        prompts=rows,
        n_samples_per_prompt=inputs["samples_per_prompt"],
        sampling_params={},
        default_env_class="env",
        training_phase="train",
        global_step=0,
    )
    return {
        "prompt_of_sample": [int(uid) for uid in owners],
        "sample_states": [extras["state"] for extras in made["env_extras"]],
        "prompt_states": [row["env_extras"]["state"] for row in rows],
    }


_CALLS = (
    Binding(
        f"{_PPO}.compute_policy_loss_cispo",
        "ratio_report",
        arguments={"response_mask": ("loss_mask",)},
        call=_cispo_ratios,
        imports=(_CONFIG,),
        requires=("skyrl.train.config.CISPOConfig.cispo_anchor",),
        dtypes=("float32",),  # safe_exp_delta takes every exponential in single precision
        dialects=_SAFELY[:1],
    ),
    Binding("skyrl.train.generators.utils.prepare_generator_input", "prompt_expansion", call=_samples_of_a_prompt),
)

_POLICY_LOSSES = (
    _policy("ppo_policy_loss", "ppo", {**_CLIP, "dual_clip": "clip_ratio_c"}, *_SAFELY, settings=_clip_kind),
    _policy(
        "gspo_policy_loss",
        "gspo_token",
        _CLIP,
        Dialect("log_ratio_clamp", 10.0, "the logarithm of the ratio is cut from above", _ppo_line(709)),
        Dialect("log_ratio_clamp_side", "upper", "it is cut from above alone", _ppo_line(709)),
    ),
    _policy(
        "sapo_policy_loss",
        "sapo",
        {"tau_pos": "sapo.tau_pos", "tau_neg": "sapo.tau_neg"},
        Dialect("log_ratio_clamp", 20.0, "the log-ratio is cut to [-20, 20] against overflow", _ppo_line(633)),
    ),
    _policy(
        "compute_policy_loss_cispo",
        "cispo",
        {"eps_clip_low": "cispo.cispo_eps_clip_low", "eps_clip_high": "cispo.cispo_eps_clip_high"},
        *_SAFELY,
    ),
    _policy("rollout_is_policy_loss", "icepop", _CLIP, *_SAFELY, behaviour=True),
    _policy(
        "dppo_policy_loss",
        ("dppo_tv", "dppo_kl"),
        {"eps_clip_low": "dppo.delta_low", "eps_clip_high": "dppo.delta_high"},
        *_SAFELY,
        Dialect(
            "epsilon", 1e-8, "1e-8 is added to both 1 - p of the binary KL", _ppo_line(910), {"algorithm": ("dppo_kl",)}
        ),
        settings=_divergence,
        behaviour=True,
    ),
    _policy(
        "compute_policy_loss_clip_cov",
        "clip_cov",
        _CLIP,
        Dialect(
            "nothing_else_is_touched",
            None,
            "it draws from the global generator, as dropout does",
            _ppo_line(980),
            symptom="global-state",
        ),
        # By default no token of a small batch has a covariance in range, and the loss is PPO's; and all that the bounds
        # name are no matter of chance.
        settings=lambda inputs: {
            "clip_cov.clip_ratio": 1.0,
            "clip_cov.clip_cov_lb": 0.05,
            "clip_cov.clip_cov_ub": 100.0,
        },
        fixed={"cov_share": 1.0, "cov_low": 0.05, "cov_high": 100.0},
    ),
    _policy(
        "compute_policy_loss_kl_cov",
        "kl_cov",
        {},
        Dialect(
            "order_does_not_matter",
            None,
            "of tokens with the same covariance (any two tokens that are alone have it) topk takes the first",
            _ppo_line(1038),
            symptom="value",
        ),
        settings=lambda inputs: {"kl_cov.kl_cov_frac": 0.3, "kl_cov.ppo_kl_coef": 1.0},
        fixed={"cov_share": 0.3, "cov_kl_coef": 1.0},
    ),
    _policy("importance_sampling_loss", "importance_sampling", {}),
    _policy("cross_entropy_loss", "cross_entropy", {}),
)


def _critic_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    config = _algorithm(boundary, {"value_clip": inputs["cliprange_value"]})
    names = _given(inputs, "vpreds", "values", "returns", "response_mask")
    loss, clip_fraction = boundary.invoke(names, config=config)
    return {"loss": loss, "clip_fraction": clip_fraction}


# -- loss reduction ---------------------------------------------------------------------------------------------------

_REDUCTIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
_BY_SEQUENCE = ("seq-mean-token-mean", "seq-mean-token-sum-norm")
_BATCH_SIZE = "sequence means are averaged over the batch, whose size is its number of rows, empty ones included"


def _empty_rows_count(line: str, modes: tuple[str, ...]) -> tuple[Dialect, ...]:
    where = {"loss_agg_mode": modes}
    return (
        Dialect("empty_rows", "counted", _BATCH_SIZE, line, where),
        Dialect("a_rejected_row_is_an_absent_row", None, _BATCH_SIZE, line, where, "value"),
    )


def _sum_of_losses(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    return boundary.invoke(_given(inputs, "loss_mat", "response_mask"))


def _scaled_advantages(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Losses in the place of advantages: what it makes of them is summed by its own ``reduce_loss``."""
    scaled = boundary.invoke(
        _given(inputs, "loss_mat", "response_mask"),
        loss_reduction=_REDUCTIONS[inputs["loss_agg_mode"]],
        micro_batch_size=len(inputs["loss_mat"]),
        max_seq_len=inputs["loss_scale_factor"],
    )
    return {"loss": boundary.module.reduce_loss(scaled, inputs["response_mask"])}


# -- the trainer's normalisation of advantages ------------------------------------------------------------------------


def _normalised_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The loss reduction that follows divides by the tokens of loss_mask, at least 1: with none it changes nothing."""
    import torch

    advantages, mask = _given(inputs, "advantages", "response_mask").values()
    fields = {"advantages": advantages.clone(), "response_mask": mask, "loss_mask": torch.zeros(mask.shape)}
    options = {"advantage_batch_normalize": True, "loss_reduction": "token_mean"}
    algorithm = _algorithm(boundary, options)
    settings = _stand_in(algorithm=algorithm, micro_train_batch_size_per_gpu=1)
    trainer = _stand_in(cfg=_stand_in(trainer=settings))
    batch = boundary.invoke({}, trainer, _batch(boundary, fields), [(0, len(advantages))])
    return {"normalised": batch["advantages"]}


# -- masked statistics ------------------------------------------------------------------------------------------------


def _mean(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    return boundary.invoke(_given(inputs, "values", "response_mask"), dim=None if inputs["axis"] is None else -1)


def _statistic(
    path: str, statistic: str, knobs: tuple[str, ...], call: Any = None, formerly: tuple[str, ...] = ()
) -> Binding:
    plain = {"axis": None, "unbiased": True, "shift_mean": True, "epsilon": 1e-8}
    names = ("values", "response_mask", *(name for name in knobs if name != "axis"))
    return Binding(
        path,
        "masked_statistics",
        formerly=formerly,
        arguments={"values": ("values", "tensor"), "response_mask": ("mask",)},
        outputs=("result",),
        call=call or (lambda boundary, inputs: boundary.invoke(_given(inputs, *names))),
        fixed={"statistic": statistic, **{name: value for name, value in plain.items() if name not in knobs}},
    )


# -- off-policy correction --------------------------------------------------------------------------------------------

_PAIR = ("old_log_probs", "rollout_log_probs", "response_mask")


def _corrected(boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], **more: Any) -> Any:
    config = _with_options(boundary.imported[_CONFIG].OffPolicyCorrectionConfig(), options)
    return boundary.invoke(_given(inputs, *_PAIR), off_policy_correction=config, **more)


def _truncated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The metric of sequences is a share of the sequences, so that it is none of the contract's."""
    level = inputs["level"]
    options = {f"{level}_tis_ratio_clip_high": inputs["threshold_high"]}
    weights, metrics = _corrected(boundary, inputs, options, tis_ratio_type=level)
    return {"weights": weights, "clip_fraction": metrics.get("tis_token_clip_high_ratio")}


def _thresholds(prefix: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_low": inputs["threshold_low"], f"{prefix}_high": inputs["threshold_high"]}


def _without_outliers(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    kept, _ = _corrected(boundary, inputs, _thresholds("outlier_token_is_threshold", inputs))
    return {"kept": kept}


def _masked_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    kept, metrics = _corrected(boundary, inputs, _thresholds("token_mask_is_threshold", inputs))
    return {"kept": kept, "clip_fraction": metrics["token_mask_ratio"]}


_SEQUENCE_METRICS = {"geometric": ("geometric", "geo_mask"), "sequence": ("product", "product_mask")}


def _masked_sequences(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    metric, prefix = _SEQUENCE_METRICS[inputs["level"]]
    kept, _ = _corrected(boundary, inputs, _thresholds(prefix, inputs), sequence_mask_metric=metric)
    return {"kept": kept}


def _correction(function: str, call: Any, fixed: Mapping[str, Any], **accepts: tuple[Any, ...]) -> Binding:
    return Binding(
        f"{_OFF_POLICY}.{function}",
        "importance_weight",
        arguments={"rollout_log_probs": ("rollout_logprobs",), "response_mask": ("loss_mask",)},
        call=call,
        imports=(_CONFIG,),
        fixed=fixed,
        accepts=accepts,
        dialects=_SAFELY,
    )


#: A mask needs both thresholds.
_LOWER = (0.5, 0.9)

_TENSORS = (
    Binding(
        f"{_PPO}.compute_approx_kl",
        "kl_estimate",
        formerly=_formerly("compute_approx_kl"),
        arguments={
            "ref_log_probs": ("log_probs_base",),
            "kl_estimator": ("kl_estimator_type",),
            "response_mask": ("loss_mask",),
        },
        outputs=("kl",),
        call=_kl,
        dialects=_K3_IS_CUT,
    ),
    Binding(
        f"{_PPO}.compute_gae_advantage_return",
        "generalised_advantage",
        formerly=_formerly("compute_gae_advantage_return"),
        arguments={"lam": ("lambd",)},
        outputs=("advantages", "returns"),
        call=_gae,
        accepts={"response_mask": _RIGHT_ALIGNED},
        dialects=(_whitens(1339),),
    ),
    Binding(
        f"{_PPO}.compute_reinforce_plus_plus_outcome_advantage",
        "discounted_return",
        formerly=_formerly("compute_reinforce_plus_plus_outcome_advantage"),
        outputs=("advantages", "returns"),
        call=_reinforce_plus_plus,
        fixed={"kl": None, "kl_coef": 0.0},
        accepts={"response_mask": _RIGHT_ALIGNED},
        dialects=(_whitens(1253),),
    ),
    _outcome(
        "compute_grpo_outcome_advantage",
        "grpo",
        ("epsilon", "norm_by_std"),
        Dialect(
            "group_of_one", "score", "a response without others has the baseline 0 and the scale 1", _ppo_line(1379)
        ),
    ),
    _outcome("compute_rloo_outcome_advantage", "rloo", ()),
    _outcome(
        "compute_maxrl_advantage",
        "maxrl",
        ("epsilon",),
        Dialect("group_of_one", "score", "a response without others has the baseline 0", _ppo_line(1416)),
    ),
    *_POLICY_LOSSES,
    *_CALLS,
    Binding(
        f"{_PPO}.ppo_critic_loss",
        "value_loss",
        arguments={"vpreds": ("values",), "values": ("old_values",), "response_mask": ("loss_mask",)},
        call=_critic_loss,
        imports=(_CONFIG,),
        fixed={
            "loss_agg_mode": "seq-mean-token-mean",
            **dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")),
        },
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", _ppo_line(174)),
            *_empty_rows_count(_ppo_line(173), ("seq-mean-token-mean",)),
        ),
    ),
    Binding(
        f"{_PPO}.reduce_loss",
        "loss_aggregation",
        arguments={"loss_mat": ("loss",), "response_mask": ("loss_mask",)},
        outputs=("loss",),
        call=_sum_of_losses,
        fixed={**{name: value for name, value in _SUMMED.items() if name != "importance_weights"}, "weights": None},
    ),
    Binding(
        f"{_PPO}.apply_loss_reduction_to_advantages_minibatch",
        "loss_aggregation",
        arguments={"loss_mat": ("advantages",), "response_mask": ("loss_mask",)},
        call=_scaled_advantages,
        fixed=dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "weights")),
        accepts={"loss_agg_mode": tuple(_REDUCTIONS), "loss_scale_factor": (8, 3)},
        dialects=_empty_rows_count(f"{_CODE}/train/config/config.py#L881", _BY_SEQUENCE),
    ),
    Binding(
        "skyrl.train.trainer.RayPPOTrainer._normalize_advantages",
        "advantage_normalisation",
        call=_normalised_advantages,
        imports=(_CONFIG, _BATCH),
        stand_ins=(StandIn("self", "the real trainer starts Ray; the step reads three options of its configuration"),),
        fixed={"mean_level": "batch", "std_level": "batch", "leave_one_out": False, "epsilon": 1e-8},
        accepts={"response_mask": _RIGHT_ALIGNED},
        dialects=(
            Dialect("std", "biased", "the variance divides by the number of tokens", f"{_CODE}/train/trainer.py#L1481"),
            Dialect("epsilon_placement", "floor", "the variance is at least 1e-8", f"{_CODE}/train/trainer.py#L1481"),
        ),
    ),
    _statistic(f"{_TORCH}.masked_mean", "mean", ("axis",), _mean, _formerly("masked_mean")),
    _statistic(f"{_PPO}.masked_var", "var", ("unbiased",), formerly=_formerly("masked_var")),
    _statistic(f"{_PPO}.masked_whiten", "whiten", ("shift_mean",), formerly=_formerly("masked_whiten")),
    _correction(
        "compute_tis_ratio",
        _truncated,
        {"mode": "truncate", "threshold_low": None},
        level=("token", "sequence"),
    ),
    _correction("compute_outlier_token_mask", _without_outliers, {"level": "every_token", "mode": "mask"}),
    _correction("compute_token_mask", _masked_tokens, {"level": "token", "mode": "mask"}, threshold_low=_LOWER),
    _correction(
        "compute_sequence_mask",
        _masked_sequences,
        {"mode": "mask"},
        level=("geometric", "sequence"),
        threshold_low=_LOWER,
    ),
)

_ONLY_NAMES = "it registers and looks up functions by name, and computes nothing"
_NOT_YET = "log-probs, entropies and metrics are not among the contracts yet"
_UNBOUND = {
    f"{_OFF_POLICY}.off_policy_correction_enabled": "it reads four options",
    f"{_OFF_POLICY}.compute_off_policy_correction": "it calls the four corrections, which are bound, one by one",
    f"{_OFF_POLICY}.apply_off_policy_correction": "it multiplies by what compute_off_policy_correction returns",
    f"{_PPO}.get_kl_controller": "it schedules a coefficient over the steps of a training",
    f"{_PPO}.register_advantage_estimator": _ONLY_NAMES,
    f"{_PPO}.register_policy_loss": _ONLY_NAMES,
    f"{_PPO}.sync_registries": _ONLY_NAMES,
    f"{_PPO}.repopulate_all_registries": _ONLY_NAMES,
    f"{_PPO}.compute_advantages_and_returns": "it calls an estimator, which is bound, by its name",
    f"{_TORCH}.safe_exp_delta": "one exponential; it runs in the losses that are bound",
    f"{_TORCH}.*": _NOT_YET,
    f"{_WORKER_UTILS}.*": _NOT_YET,
    "skyrl.train.utils.utils.*": "beside validate_cfg it sets up processes and devices",
}

TARGET = Target(
    name="skyrl",
    repository="https://github.com/NovaSky-AI/SkyRL",
    roots=(
        PackageRoot("skyrl"),
        PackageRoot("skyrl-gym/skyrl_gym", "skyrl-gym"),
        PackageRoot("skyrl-train/skyrl_train", "skyrl-train"),  # until it moved into skyrl
    ),
    pypi="skyrl",
    # torch imports its compiler on the first call of a function decorated with torch.compile.
    preload=("torch._dynamo", "tensordict", "omegaconf", "loguru"),
    bindings=(
        Binding(
            f"{_WORKER_UTILS}.TokenBasedBatchIterator._create_padding_microbatch",
            "batch_surgery",
            call=_padding_microbatch,
            imports=(_BATCH,),
            fixed={"layouts": _FIELDS, "optional_layouts": _OPTIONAL_FIELDS},
        ),
        Binding(
            "skyrl.train.utils.utils.validate_cfg",
            "configuration_check",
            call=_validate,
            imports=_CONFIGURED,
            stand_ins=(_GYM, _RAY),
            fixed={"named_options": _NAMED_OPTIONS},
        ),
        Binding(
            "skyrl.train.trainer.RayPPOTrainer.convert_to_training_input",
            "training_input",
            call=_convert,
            imports=_CONFIGURED,
            stand_ins=(
                _GYM,
                StandIn(
                    "self", "the real trainer starts Ray; the step reads cfg, tokenizer, all_metrics and dispatch alone"
                ),
                StandIn("tokenizer", "the step reads its pad_token_id alone"),
                StandIn("dispatch", "one data-parallel rank, so no row is added to make the batch divisible"),
            ),
            accepts={"needing": _NEED_LOG_PROBS},
        ),
        Binding(
            f"{_BACKEND}.workers.worker.PolicyWorkerBase._forward_backward_micro",
            "rollout_kl",
            call=_fsdp_rollout_kl,
            imports=_WORKING,
            stand_ins=_FSDP,
            requires=(_OPTION,),
            dialects=_K3_IS_CUT,
            dtypes=_SINGLE,
            twins=(f"{_WRAPPER}.MegatronModelWrapper.forward_backward_mini_batch",),
        ),
        Binding(
            f"{_BACKEND}.workers.worker.PolicyWorkerBase._forward_backward_micro",
            "device_placement",
            call=_fsdp_device,
            imports=_WORKING,
            stand_ins=_FSDP,
            accepts={"configuration": _TERMS},
            dialects=(
                Dialect(
                    "the_oracle_agrees",
                    reason="where the KL or entropy term is off, a zero of no dimension stands in for it on the CPU, "
                    "which PyTorch adds to a tensor on any device without a copy",
                    link=f"{_CODE}/backends/skyrl_train/workers/worker.py#L1067",
                    where={"configuration": _TERMS[1:]},
                ),
            ),
        ),
        _megatron("forward_backward_mini_batch", "rollout_kl", _megatron_rollout_kl, _MEGATRON, *_K3_IS_CUT),
        _megatron("forward_backward_mini_batch", "router_replay", _router_replay, _REPLAY),
        _megatron("forward", "router_replay", _router_replay, _REPLAY),
        *(replace(binding, dtypes=_DTYPES) for binding in _TENSORS),
    ),
    unbound=_UNBOUND,
)
