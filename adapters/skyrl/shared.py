"""What SkyRL's bindings share: where things are, its own configuration and batches, and the stand-ins' reasons."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from sentinel.binding.drift import AbsentError, DriftError
from sentinel.binding.kit import stand_in, swapped, torch
from sentinel.targets import Dialect, StandIn

#: Dialects say where SkyRL says so by a line of main in August 2026.
CODE = "https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl"

BACKEND = "skyrl.backends.skyrl_train"
PPO = f"{BACKEND}.utils.ppo_utils"
TORCH = f"{BACKEND}.utils.torch_utils"
OFF_POLICY = f"{BACKEND}.utils.off_policy_correction_utils"
BATCH = f"{BACKEND}.training_batch"
WORKER_UTILS = f"{BACKEND}.workers.worker_utils"
CONFIG = "skyrl.train.config"
#: Until it moved: a package of its own, configured by Hydra.
FORMER = "skyrl_train"
FORMER_PPO = f"{FORMER}.utils.ppo_utils"
FORMER_TORCH = f"{FORMER}.utils.torch_utils"
#: Before that the configuration was a file of Hydra's beside the package, and no module.
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

#: The configuration imports the second one when it is made, and so inside a probe if it were not named here.
CONFIGURED = (CONFIG, f"{BACKEND}.inference_servers.utils", PPO)
WORKING = (*CONFIGURED, BATCH, WORKER_UTILS)
REPLAY = f"{BACKEND}.utils.replay_utils"
WITH_MEGATRON = (*WORKING, MEGATRON_WORKER, MEGATRON_UTILS, MEGATRON_MODELS, REPLAY)


#: Megatron's log-probs are those of logits taken to single precision, whatever these are.
SINGLE = ("float32",)

#: The switch of the rollout KL loss, which only #1811 has.
OPTION = f"{CONFIG}.AlgorithmConfig.use_rollout_kl_loss"


def ppo_line(number: int) -> str:
    return f"{CODE}/backends/skyrl_train/utils/ppo_utils.py#L{number}"


#: Of compute_approx_kl, which every KL of a training step comes from.
K3_IS_CUT = (Dialect("clamp", 10.0, "k3 is cut to [-10, 10]", ppo_line(118), {"kl_estimator": ("k3",)}),)


# -- what every case is made of ---------------------------------------------------------------------------------------


def no_ray(boundary: Any) -> AbstractContextManager[Any]:
    return swapped(boundary.imported[PPO], "ray", stand_in(is_initialized=lambda: False))


def other_ranks_have(boundary: Any, more: int) -> AbstractContextManager[Any]:
    """Stand in for another data-parallel rank with ``more`` microbatches: what makes the iterator add padding ones."""
    from torch.distributed import ReduceOp

    def all_reduce(count: Any, op: Any) -> None:
        assert op is ReduceOp.MAX
        count.add_(more)

    if not hasattr(boundary.imported[WORKER_UTILS], "dist"):
        raise AbsentError("not in this version: no rank waits for another, and none has padding microbatches")
    ranks = stand_in(is_initialized=lambda: True, ReduceOp=ReduceOp, all_reduce=all_reduce)
    return swapped(boundary.imported[WORKER_UTILS], "dist", ranks)


def current_device(name: str) -> AbstractContextManager[Any]:
    return swapped(torch.cuda, "current_device", lambda: 0 if name.startswith("cuda") else torch.device(name))


def configuration_of(boundary: Any, options: Mapping[str, Any]) -> Any:
    """Make the target's own configuration, with options by their dotted paths."""
    config = boundary.imported[CONFIG]
    if hasattr(config, "SkyRLTrainConfig"):
        made = config.SkyRLTrainConfig(environment=config.EnvironmentConfig(skyrl_gym=None))
    else:
        made = _of_hydra(config)
    if hasattr(made.trainer.algorithm, "temperature"):
        options = {"trainer.algorithm.temperature": 1.0, **options}
    # wandb, the default, is refused where the environment has no key for it.
    return with_options(made, {"trainer.logger": "console", **options})


def with_options(made: Any, options: Mapping[str, Any]) -> Any:
    """Set options of a configuration by their dotted paths."""

    missing = AbsentError if type(made).__name__ == "DictConfig" else DriftError  # Hydra's are all of former versions
    for path, value in options.items():
        *heads, last = path.split(".")
        try:
            node = functools.reduce(getattr, heads, made)
        except AttributeError:
            raise missing(f"the configuration has no option {path!r}") from None
        if not hasattr(node, last):  # setting it would succeed silently, and look like an option without effect
            raise missing(f"the configuration has no option {path!r}")
        setattr(node, last, value)
    return made


def refused(call: Callable[[], Any]) -> tuple[Any, dict[str, str] | None]:
    """Call: the answer, and the error by which it refused its arguments, if it did."""
    try:
        return call(), None
    except (AssertionError, ValueError, NotImplementedError) as error:
        return None, {"type": type(error).__name__, "message": str(error)}


def training_batch(boundary: Any, fields: Mapping[str, Any]) -> Any:
    made = boundary.imported[BATCH].TrainingInputBatch(dict(fields))
    made.metadata = {"response_length": fields["loss_mask"].shape[1]}
    return made


def batch_fields(log_probs: Any, mask: Any, **optional: Any) -> dict[str, Any]:
    """Make the fields that a training batch always has: one prompt token and the response, ids and advantages 0."""
    rows, tokens = log_probs.shape
    ones = torch.ones(rows, tokens, dtype=torch.long)
    lengthened = torch.ones(rows, tokens + 1, dtype=torch.long)
    zeros = {name: torch.zeros(rows, tokens) for name in ("values", "returns", "advantages")}
    same = {name: log_probs.detach().clone() for name in ("action_log_probs", "base_action_log_probs")}
    masks = {"attention_mask": lengthened, "response_mask": ones, "loss_mask": mask}
    fields = {"sequences": torch.zeros_like(lengthened), **masks, **same, **zeros, **optional}
    return {name: value.cpu() for name, value in fields.items()}  # a batch comes from the driver; the worker moves it


class OneProcess:
    """Stand-in strategy: nothing is sharded, so a backward pass is the loss's own."""

    loss: Any

    def backward(self, loss: Any, model: Any, optimizer: Any) -> None:
        self.loss = loss
        loss.backward()

    def all_reduce(self, metrics: Mapping[str, Any], op: str = "mean", group: Any = None) -> dict[str, Any]:
        return dict(metrics)


RAY = StandIn("ray", "the loss registries ask ray.is_initialized(); without a cluster it answers False")
GYM = StandIn(
    "environment.skyrl_gym", "None: settings of environments, from a package that releases ship apart; not read here"
)
STRATEGY = StandIn("strategy", "one process: backward is loss.backward(), a reduction over ranks changes nothing")
MODEL = StandIn("model", "a model whose log-probs are those of the scenario; its weights are not what is measured")
CUDA = StandIn("torch.cuda.current_device", "the worker moves its batch there; answers the device of the scenario")
RANKS = StandIn("dist", "in the batch iterator: another data-parallel rank with more microbatches, which makes padding")


def algorithm_of(boundary: Any, options: Mapping[str, Any]) -> Any:
    """Make the algorithm's part of the target's own configuration: a class, or once a file of defaults."""
    config = boundary.imported[CONFIG]
    own = hasattr(config, "AlgorithmConfig")
    return with_options(config.AlgorithmConfig() if own else _of_hydra(config).trainer.algorithm, options)


def _of_hydra(config: Any) -> Any:
    """Load the file of defaults beside the package or module of the configuration."""
    from pathlib import Path

    from omegaconf import OmegaConf

    beside = Path(str(config.__file__)).parent
    made: Any = OmegaConf.load(next(beside.rglob("ppo_base_config.yaml")))
    made.trainer.algorithm.max_seq_len = None  # the trainer put it there
    OmegaConf.set_struct(made, True)
    return made


def is_averaged_inside(module: Any) -> bool:
    """Whether losses average over their microbatch themselves, as they did until March 2026."""
    import inspect

    return "loss_reduction" in inspect.signature(module.reduce_loss).parameters


#: With these an average is the sum over the tokens, divided by the rows: what losses are without one.
AS_SUMS = {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 1}
