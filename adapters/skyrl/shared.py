"""Helpers that SkyRL's bindings share: configurations, batches, and stand-ins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from sentinel import AbsentError, Dialect, DriftError, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

#: Links of dialects refer to SkyRL's main branch of August 2026.
CODE = "https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl"

BACKEND = "skyrl.backends.skyrl_train"
PPO = f"{BACKEND}.utils.ppo_utils"
TORCH = f"{BACKEND}.utils.torch_utils"
OFF_POLICY = f"{BACKEND}.utils.off_policy_correction_utils"
BATCH = f"{BACKEND}.training_batch"
WORKER_UTILS = f"{BACKEND}.workers.worker_utils"
CONFIG = "skyrl.train.config"
#: The former package, which was configured with Hydra.
FORMER = "skyrl_train"
FORMER_PPO = f"{FORMER}.utils.ppo_utils"
#: Current path -> former paths. In the former package, the configuration is a Hydra file in the package itself.
MOVED = {
    BACKEND: (FORMER,),
    f"{BACKEND}.inference_servers": (f"{FORMER}.inference_engines",),
    TORCH: (FORMER_PPO,),
    "skyrl.train": (FORMER,),
    "skyrl.train.generators.skyrl_gym_generator.SkyRLGymGenerator": (
        f"{FORMER}.generators.skygym_generator.SkyGymGenerator",
    ),
    CONFIG: (FORMER,),
}
WRAPPER = f"{BACKEND}.workers.megatron.megatron_model_wrapper"
MEGATRON_WORKER = f"{BACKEND}.workers.megatron.megatron_worker"
MEGATRON_UTILS = f"{BACKEND}.distributed.megatron.megatron_utils"
MEGATRON_MODELS = f"{BACKEND}.distributed.megatron.model_utils"

#: Creating the configuration imports the second module. It is listed so that this happens before the call.
CONFIGURED = (CONFIG, f"{BACKEND}.inference_servers.utils", PPO)
WORKING = (*CONFIGURED, BATCH, WORKER_UTILS)
REPLAY = f"{BACKEND}.utils.replay_utils"
WITH_MEGATRON = (*WORKING, MEGATRON_WORKER, MEGATRON_UTILS, MEGATRON_MODELS, REPLAY)


#: Only float32, because Megatron computes log-probs in single precision from logits of any dtype.
SINGLE = ("float32",)

#: The switch of the rollout KL loss, which exists only in #1811.
OPTION = f"{CONFIG}.AlgorithmConfig.use_rollout_kl_loss"
#: The option that limits microbatches by tokens.
LIMIT = f"{CONFIG}.TrainerConfig.max_tokens_per_microbatch"


def ppo_line(number: int) -> str:
    return f"{CODE}/backends/skyrl_train/utils/ppo_utils.py#L{number}"


#: A dialect of compute_approx_kl, which computes every KL of a training step.
K3_IS_CUT = (Dialect("clamp", 10.0, "k3 is clamped to [-10, 10]", ppo_line(118), {"kl_estimator": ("k3",)}),)


def no_ray(boundary: Any) -> AbstractContextManager[Any]:
    return kit.swap(boundary.imported[PPO], "ray", kit.stand_in(is_initialized=lambda: False))


def other_ranks_have(boundary: Any, more: int) -> AbstractContextManager[Any]:
    """Make SkyRL's iterator add ``more`` padding microbatches, as if another rank had more microbatches."""
    from torch.distributed import ReduceOp

    def all_reduce(count: Any, op: Any) -> None:
        assert op is ReduceOp.MAX
        count.add_(more)

    if not hasattr(boundary.imported[WORKER_UTILS], "dist"):
        raise AbsentError("this version does not pad microbatches")
    ranks = kit.stand_in(is_initialized=lambda: True, ReduceOp=ReduceOp, all_reduce=all_reduce)
    return kit.swap(boundary.imported[WORKER_UTILS], "dist", ranks)


def current_device(name: str) -> AbstractContextManager[Any]:
    return kit.swap(torch.cuda, "current_device", lambda: 0 if name.startswith("cuda") else torch.device(name))


def configuration_of(boundary: Any, options: Mapping[str, Any]) -> Any:
    """Make SkyRL's default configuration with ``options`` set by their dotted paths."""
    config = boundary.imported[CONFIG]
    if hasattr(config, "SkyRLTrainConfig"):
        made = config.SkyRLTrainConfig(environment=config.EnvironmentConfig(skyrl_gym=None))
    else:
        made = _load_yaml_defaults(config)
    if hasattr(made.trainer.algorithm, "temperature"):
        options = {"trainer.algorithm.temperature": 1.0, **options}
    # Log to the console, because SkyRL rejects the default, wandb, if the environment has no key for it.
    return with_options(made, {"trainer.logger": "console", **options})


def with_options(made: Any, options: Mapping[str, Any]) -> Any:
    """Set options of a configuration by their dotted paths, and return the configuration."""
    # Only old versions have Hydra configurations, and only they are expected to lack options.
    missing = AbsentError if type(made).__name__ == "DictConfig" else DriftError
    for path, value in options.items():
        *heads, last = path.split(".")
        try:
            node = functools.reduce(getattr, heads, made)
        except AttributeError:
            raise missing(f"this version's configuration has no option {path!r}") from None
        if not hasattr(node, last):  # setting a missing option would succeed and have no effect
            raise missing(f"this version's configuration has no option {path!r}")
        setattr(node, last, value)
    return made


def refused(call: Callable[[], Any]) -> tuple[Any, dict[str, str] | None]:
    """Return (``call()``, None), or (None, exception) if the call rejects its arguments."""
    try:
        return call(), None
    except (AssertionError, ValueError, NotImplementedError) as error:
        return None, {"type": type(error).__name__, "message": str(error)}


def training_batch(boundary: Any, fields: Mapping[str, Any]) -> Any:
    made = boundary.imported[BATCH].TrainingInputBatch(dict(fields))
    made.metadata = {"response_length": fields["loss_mask"].shape[1]}
    return made


def batch_fields(log_probs: Any, mask: Any, **optional: Any) -> dict[str, Any]:
    """Return the fields of a training batch in which each row has one prompt token and a response."""
    rows, tokens = log_probs.shape
    ones = torch.ones(rows, tokens, dtype=torch.long)
    lengthened = torch.ones(rows, tokens + 1, dtype=torch.long)
    zeros = {name: torch.zeros(rows, tokens) for name in ("values", "returns", "advantages")}
    same = {name: log_probs.detach().clone() for name in ("action_log_probs", "base_action_log_probs")}
    masks = {"attention_mask": lengthened, "response_mask": ones, "loss_mask": mask}
    fields = {"sequences": torch.zeros_like(lengthened), **masks, **same, **zeros, **optional}
    # On the CPU, because the driver makes the batch there; the worker moves it to its device.
    return {name: value.cpu() for name, value in fields.items()}


class OneProcess:
    """A stand-in for SkyRL's distributed strategy that runs in one process, and stores the last loss."""

    loss: Any

    def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
        self.loss = loss
        loss.backward()

    def all_reduce(self, metrics: Mapping[str, Any], op: str = "mean", group: Any = None) -> dict[str, Any]:
        return dict(metrics)


RAY = StandIn("ray", "the loss registries call ray.is_initialized(); without a cluster it returns False")
GYM = StandIn(
    "environment.skyrl_gym", "None: settings from a package that releases ship separately; the step does not read them"
)
STRATEGY = StandIn("strategy", "one process: backward is loss.backward(), and a reduction over ranks changes nothing")
MODEL = StandIn("model", "a model that returns the scenario's log-probs; its weights are not checked")
CUDA = StandIn("torch.cuda.current_device", "returns the scenario's device, to which the worker moves its batch")
RANKS = StandIn(
    "dist", "in the batch iterator: another data-parallel rank with more microbatches, so that padding is added"
)


def algorithm_of(boundary: Any, options: Mapping[str, Any]) -> Any:
    """Make the ``algorithm`` section of SkyRL's configuration with ``options`` set by their dotted paths."""
    config = boundary.imported[CONFIG]
    own = hasattr(config, "AlgorithmConfig")
    return with_options(config.AlgorithmConfig() if own else _load_yaml_defaults(config).trainer.algorithm, options)


def _load_yaml_defaults(config: Any) -> Any:
    """Load the default options from SkyRL's YAML file, in versions that use Hydra."""
    from pathlib import Path

    from omegaconf import OmegaConf

    beside = Path(str(config.__file__)).parent
    made: Any = OmegaConf.load(next(beside.rglob("ppo_base_config.yaml")))
    made.trainer.algorithm.max_seq_len = None  # the trainer sets this option
    OmegaConf.set_struct(made, True)
    return made


def is_averaged_inside(module: Any) -> bool:
    """Return True if policy losses are averages over a microbatch (until March 2026), and False if they are sums."""
    import inspect

    return "loss_reduction" in inspect.signature(module.reduce_loss).parameters


#: With these options, an averaged loss equals the sum over tokens divided by the number of rows.
AS_SUMS = {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 1}
