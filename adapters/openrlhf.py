"""OpenRLHF (OpenRLHF/OpenRLHF): how Sentinel's contracts bind to its boundaries.

Its trainers want Ray, DeepSpeed and vLLM, and import them; none of that decides what a loss, an estimator or a mask
computes. Those imports become ghosts, and the methods run on instances of the real classes that lack what they do not
read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel.contracts.conversations import chat
from sentinel.contracts.normalisation import REWARD_NORMALISATION
from sentinel.targets import Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.worker.drift import AbsentError, UnknownInputError
from sentinel.worker.families import balanced_partition, masked_statistic, policy_loss, rule_reward
from sentinel.worker.kit import (
    coefficients,
    entropy_beside,
    estimated,
    group_size,
    on_ranks,
    own_randomness,
    passed,
    stand_in,
    swapped,
    taken,
    two_token_logits,
)

_MAIN = "https://github.com/OpenRLHF/OpenRLHF/blob/3c3be6234e0cb353e76bb8019947db9dfe99fca7/openrlhf"
_MADE = f"{_MAIN}/trainer/ppo_utils/experience_maker.py"
_LOSS = "openrlhf.models.loss"
_UTILS = "openrlhf.models.utils"
_ACTOR = "openrlhf.models.actor.Actor"
_PPO = "openrlhf.trainer.ppo_utils"
_EXPERIENCE = f"{_PPO}.experience"
_MAKER = f"{_PPO}.experience_maker.RemoteExperienceMaker"
_NAIVE = f"{_PPO}.experience_maker.NaiveExperienceMaker"
_DPO = "openrlhf.trainer.dpo_trainer.DPOTrainer"
_SFT = "openrlhf.datasets.sft_dataset.SFTDataset"

#: A response ends where padding begins; tokens of an environment stand between those of the policy.
_PADDED = {"response_mask": ("full", "right")}


def _made(boundary: Any, **options: Any) -> Any:
    """An instance by its own constructor, which takes an option of a later version only at its default."""
    parameters = inspect.signature(boundary.owner.__init__).parameters
    lacking = [name for name, value in options.items() if name not in parameters and value is not None]
    if lacking:
        raise AbsentError(f"not in this version: {boundary.owner.__name__} has no option {lacking[0]!r}")
    return boundary.owner(**{name: value for name, value in options.items() if name in parameters})


def _without(boundary: Any, **attributes: Any) -> Any:
    """An instance of the real class without what its constructor sets up; it has these attributes alone."""
    made = object.__new__(boundary.owner)
    vars(made).update(attributes)
    return made


# -- losses -----------------------------------------------------------------------------------------------------------

_MODES = {"token-mean": True, "seq-mean-token-mean": False}
_COUNTS = ("dp_size", "batch_num_tokens", "global_batch_size")
_AGGREGATES: dict[str, Any] = {"loss_agg_mode": tuple(_MODES), "loss_scale_factor": (None,)}


def _counts(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a loss is told of the global batch; until May 2026 it was told nothing."""
    given = {name: inputs[name] for name in _COUNTS if inputs[name] is not None}
    if given and "batch_num_tokens" not in boundary.parameters:
        raise UnknownInputError("a loss is the mean over the batch that it has", next(iter(given)))
    return given


def _level(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """How a loss is aggregated; until April 2025 it was a mean over sequences."""
    of_tokens = _MODES[inputs["loss_agg_mode"]]
    if "token_level_loss" in inspect.signature(boundary.owner.__init__).parameters:
        return {"token_level_loss": of_tokens}
    if of_tokens:
        raise AbsentError("not in this version: losses are means over sequences")
    return {}


def _of_a_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A row is a microbatch, and all of them are one step of the optimiser; the loss is their mean."""
    aggregate = boundary.imported[_LOSS].aggregate_loss
    losses, mask = inputs["loss_mat"], inputs["response_mask"].to(inputs["loss_mat"].dtype)
    rows, level = len(losses), _MODES[inputs["loss_agg_mode"]]
    found = boundary.function(range(rows), stand_in(), rows, lambda row: mask[row : row + 1])
    parts = [aggregate(losses[row : row + 1], mask[row : row + 1], level, **info) for row, info in found]
    return {"loss": sum(parts) / rows}


def _of_a_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"].to(inputs["loss_mat"].dtype)
    counts = boundary.invoke({}, strategy=stand_in(), loss_mask=mask)
    aggregate = boundary.imported[_LOSS].aggregate_loss
    return {"loss": aggregate(inputs["loss_mat"], mask, _MODES[inputs["loss_agg_mode"]], **counts)}


def _normalised_by(function: str, call: Any) -> Binding:
    return Binding(
        f"openrlhf.utils.loss_utils.{function}",
        "loss_aggregation",
        call=call,
        imports=(_LOSS,),
        fixed=dict.fromkeys(("weights", *_COUNTS, "loss_scale_factor")),
        accepts=_AGGREGATES,
    )


def _range(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The clip range; until May 2025 it had one bound."""
    low, high = inputs["eps_clip_low"], inputs["eps_clip_high"]
    if "clip_eps_low" in inspect.signature(boundary.owner.__init__).parameters:
        return {"clip_eps_low": low, "clip_eps_high": high}
    if low != high:
        raise AbsentError("not in this version: the clip range is symmetric")
    return {"clip_eps": low}


def _correction(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of truncated importance sampling, in the four ways in which they have been spelt."""
    cap = inputs["importance_weight_cap"]
    if inputs["rollout_log_probs"] is None or cap is None:
        return {}
    parameters = inspect.signature(boundary.owner.__init__).parameters
    if "is_correction_level" in parameters:
        options = {"is_correction_level": "token", "is_correction_mode": "clip"}
        return {**options, "is_correction_threshold": [0.0, cap]}
    both = "vllm_is_correction_type" in parameters or "use_icepop" in parameters
    switch = {"enable_vllm_is_correction": True} if "enable_vllm_is_correction" in parameters else {}
    return {**switch, "vllm_is_truncated_threshold": [0.0, cap] if both else cap}


def _policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """GSPO is asked for by its name alone: its definition is a mean over sequences, whatever the default is. Of the two
    boundaries one is the class, whose constructor knows that."""
    if boundary.owner is None:
        boundary = replace(boundary, owner=boundary.function, function=boundary.function.forward)
    gspo = inputs["algorithm"] == "gspo"
    options = {"policy_loss_type": "gspo"} if gspo else _level(boundary, inputs)
    correction = _correction(boundary, inputs)
    loss = _made(boundary, **options, **_range(boundary, inputs), dual_clip=inputs["dual_clip"], **correction)
    names = taken(inputs, "log_probs", "old_log_probs", "advantages", "response_mask")
    rollout = {"rollout_log_probs": inputs["rollout_log_probs"]} if correction else {}
    found = boundary.invoke({**names, **_counts(boundary, inputs), **rollout}, loss)
    told = found if isinstance(found, tuple) else (found,)
    told = (*told, None, None)
    return {"loss": told[0], "clip_fraction": told[1], "approx_kl": told[2]}


def _value(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    loss = _made(boundary, clip_eps=inputs["cliprange_value"], **_level(boundary, inputs))
    names = taken(inputs, "vpreds", "values", "returns", "response_mask")
    return {"loss": boundary.invoke({**names, **_counts(boundary, inputs)}, loss)}


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    loss = _made(boundary, **_level(boundary, inputs))
    names = taken(inputs, "log_probs", "response_mask")
    return {"loss": boundary.invoke({**names, **_counts(boundary, inputs)}, loss)}


_CLIP = ("eps_clip_low", "eps_clip_high", "dual_clip")
_UNSCALED = {"loss_scale_factor": None}
_LOSSES = (
    Binding(
        f"{_LOSS}.aggregate_loss",
        "loss_aggregation",
        arguments={"loss_mat": ("loss",), "loss_agg_mode": ("token_level_loss",)},
        outputs=("loss",),
        call=partial(
            passed, takes=("loss_mat", "response_mask", "loss_agg_mode", *_COUNTS), says={"loss_agg_mode": _MODES}
        ),
        fixed={"weights": None, "loss_scale_factor": None},
        accepts=_AGGREGATES,
    ),
    _normalised_by("iter_grad_accum_global_norm", _of_a_step),
    _normalised_by("get_loss_batch_info", _of_a_batch),
    policy_loss(
        f"{_LOSS}.PolicyLoss",
        _policy,
        "gspo",
        _CLIP,
        fixed={**_UNSCALED, "loss_agg_mode": "seq-mean-token-mean"},
    ),
    policy_loss(
        f"{_LOSS}.PolicyLoss.forward",
        _policy,
        "ppo",
        _CLIP,
        Dialect(
            "log_ratio_clamp",
            20.0,
            "the log-ratio is cut to [-20, 20] against overflow",
            f"{_MAIN}/models/loss.py#L185",
        ),
        fixed=_UNSCALED,
        accepts={"importance_weight_cap": (None, 2.0), **_AGGREGATES},
    ),
    Binding(
        f"{_LOSS}.ValueLoss.forward",
        "value_loss",
        arguments={"vpreds": ("values",), "values": ("old_values",)},
        call=_value,
        fixed=_UNSCALED,
        accepts=_AGGREGATES,
        dialects=(Dialect("factor", 0.5, "the loss is half the squared error", f"{_MAIN}/models/loss.py#L290"),),
    ),
    policy_loss(
        f"{_LOSS}.SFTLoss.forward",
        _supervised,
        "cross_entropy",
        (),
        arguments={"log_probs": ("per_token_logps",)},
        fixed=_UNSCALED,
        accepts=_AGGREGATES,
    ),
)


# -- an update of the actor -------------------------------------------------------------------------------------------

_TRAINER = "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer"
_DEEPSPEED = "openrlhf.utils.deepspeed.deepspeed"


class _Bar:
    """A progress bar that shows nothing."""

    def __init__(self, items: Any, **_: Any) -> None:
        self._items = items

    def __iter__(self) -> Any:
        return iter(self._items)

    def set_postfix(self, *_: Any) -> None:
        pass


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's own loop on each rank, from its buffer of rows without padding to DeepSpeed, which divides a loss
    by the microbatches of a step and averages over ranks. A token is known by its id, wherever it ends up."""
    import torch

    mask, count = inputs["response_mask"], inputs["dp_size"]
    rows, width = mask.shape
    share, budget = rows // count, inputs["max_tokens_per_microbatch"]
    size = share if budget is not None else inputs["micro_batch_size"] or share
    steps = 1 if budget is not None else share // size
    tables = [inputs[name] for name in ("log_probs", "entropies") if inputs[name] is not None]
    flat = [torch.nn.functional.pad(table, (1, 0)).flatten() for table in tables]
    ids = torch.arange(rows * (width + 1)).reshape(rows, width + 1)
    args = _update_options(inputs, rows)
    last = (mask * torch.arange(1, width + 1)).amax(-1, keepdim=True).clamp(min=1)
    whole = {
        "sequences": ids,
        "attention_mask": (torch.arange(width + 1)[None] <= last).long(),
        "action_mask": mask.bool(),
        "action_log_probs": inputs["old_log_probs"],
        "base_action_log_probs": inputs["ref_log_probs"],
        "advantages": inputs["advantages"],
        "total_length": last[:, 0] + 1,
    }
    losses: list[Any] = []

    class Table:
        def __call__(self, sequences: Any, *_: Any, **__: Any) -> Any:
            said = [table[sequences[:, 1:]] for table in flat]
            return said[0], _Output(entropy=said[1] if len(said) > 1 else torch.zeros_like(said[0]))

        def backward(self, loss: Any) -> None:
            losses.append(loss / steps)

        train = step = staticmethod(lambda: None)

    def rank(number: int) -> Any:
        strategy = object.__new__(boundary.imported[_DEEPSPEED].DeepspeedStrategy)
        vars(strategy).update(
            args=args, world_size=count, accumulated_gradient=steps, use_dynamic_batch=budget is not None
        )
        type(strategy).ring_attn_group = None
        strategy.ds_device_mesh = {"dp": stand_in(get_group=lambda: None)}
        schedule = stand_in(get_last_lr=lambda: [0.0])
        trainer = boundary.owner(
            strategy, Table(), None, None, schedule, micro_train_batch_size=size, dataloader_pin_memory=False
        )
        part = slice(number * share, (number + 1) * share)
        given = {name: None if column is None else column[part] for name, column in whole.items()}
        trainer.replay_buffer.append(boundary.imported[_EXPERIENCE].Experience(**given, info={}))
        with swapped(torch.cuda, "current_device", lambda: "cpu"):
            return boundary.function(trainer, inputs["kl_coef"])

    with (
        own_randomness(),
        swapped(torch.cuda, "current_device", lambda: 0),
        swapped(boundary.module, "torch_dist_barrier_and_cuda_sync", lambda: None),
        swapped(boundary.module, "tqdm", _Bar),
    ):
        told = on_ranks(count, rank)[0]
    (sum(losses) / count).backward()
    named = {"pg_loss": "policy_loss", "kl_loss": "kl", "entropy": "entropy_loss"}
    entropies = inputs["entropies"]
    return {
        "gradient": inputs["log_probs"].grad,
        "entropy_gradient": None if entropies is None else entropies.grad,
        **{name: told.get(theirs) for name, theirs in named.items()},
    }


def _update_options(inputs: Mapping[str, Any], rows: int) -> Any:
    """What the trainer reads of its command line."""
    reference, budget = inputs["ref_log_probs"], inputs["max_tokens_per_microbatch"]
    kl = stand_in(use_loss=reference is not None, init_coef=inputs["kl_coef"], estimator=inputs["kl_estimator"])
    correction = {"is_correction_enable": False, "is_correction_threshold": None, "is_correction_type": "tis"}
    return stand_in(
        train=stand_in(
            max_epochs=1,
            dynamic_batch_enable=budget is not None,
            batch_size=rows,
            max_tokens_per_gpu=budget,
            colocate_all=False,
            async_enable=False,
        ),
        rollout=stand_in(batch_size=rows, n_samples_per_prompt=1),
        actor=stand_in(
            eps_clip_low_high=(inputs["eps_clip_low"], inputs["eps_clip_high"]),
            dual_clip=inputs["dual_clip"],
            policy_loss_type="ppo",
            aux_loss_coef=0.0,
            entropy_coef=None if inputs["entropies"] is None else inputs["entropy_coef"],
        ),
        algo=stand_in(kl=kl, advantage=stand_in(**correction)),
        ds=stand_in(packing_samples=False, ring_attn_size=1, tensor_parallel_size=1),
        vllm=stand_in(sync_backend="nccl"),
    )


_UPDATES = (
    Binding(
        f"{_TRAINER}.ppo_train",
        "policy_update",
        call=_update,
        imports=(_DEEPSPEED, _EXPERIENCE),
        requires=("openrlhf.utils.loss_utils.iter_grad_accum_global_norm",),
        stand_ins=(
            StandIn("actor", "a table of log-probs: the forward pass answers those of the tokens that it is given"),
            StandIn("DeepSpeed", "its engine divides a loss by the microbatches of a step, and averages over ranks"),
            StandIn("ranks", "threads of one process, by functions in the place of torch.distributed's"),
        ),
        fixed={"loss_agg_mode": "token-mean", "loss_scale_factor": None},
        accepts={"kl_estimator": ("k1", "k2", "k3")},
        dialects=(
            Dialect(
                "log_ratio_clamp",
                20.0,
                "the log-ratio is cut to [-20, 20] against overflow",
                f"{_MAIN}/models/loss.py#L185",
            ),
            Dialect("kl_clamp", 10.0, "an estimate is cut to [-10, 10]", f"{_MAIN}/models/utils.py#L88"),
        ),
    ),
)


# -- KL, rewards and masked statistics --------------------------------------------------------------------------------


def _landed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without a penalty; it adds the KL that it is given, or has computed, times 0."""
    import torch

    mask = inputs["response_mask"]
    nothing = torch.zeros(mask.shape)
    given = {"log_probs": nothing, "log_probs_base": nothing} if "log_probs" in boundary.parameters else {"kl": nothing}
    found = boundary.invoke({"rewards": inputs["rewards"], "response_mask": mask}, kl_coef=0.0, **given)
    return {"token_level_rewards": found[0] if isinstance(found, tuple) else found}


_STATISTICS = {"values": ("tensor",), "axis": ("dim",), "epsilon": ("eps",)}
_NUMBERS = (
    Binding(
        f"{_UTILS}.compute_approx_kl",
        "kl_estimate",
        outputs=("kl",),
        call=partial(
            estimated,
            {"k1": {"use_kl_estimator_k3": False}, "k3": {"use_kl_estimator_k3": True}},
            ("log_probs", "ref_log_probs"),
        ),
        fixed={"response_mask": None},
        accepts={"kl_estimator": ("k1", "k2", "k3")},
        dialects=(Dialect("clamp", 10.0, "an estimate is cut to [-10, 10]", f"{_MAIN}/models/utils.py#L88"),),
    ),
    Binding(
        f"{_UTILS}.compute_reward",
        "token_reward",
        arguments={"rewards": ("r",)},
        call=_landed,
        fixed={"score_as": None},
        accepts=_PADDED,
    ),
    masked_statistic(f"{_UTILS}.masked_mean", "mean", "axis", arguments=_STATISTICS),
    masked_statistic(
        f"{_UTILS}.masked_normalize",
        "whiten",
        "epsilon",
        arguments=_STATISTICS,
        fixed={"unbiased": False, "axis": "token"},
        dialects=(
            Dialect("epsilon_placement", "floor", "the variance is at least eps", f"{_MAIN}/models/utils.py#L178"),
        ),
    ),
)


# -- log-probs of a model ---------------------------------------------------------------------------------------------


def _from_logits(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """On a copy: it divides the model's logits in place, which nobody reads again."""
    temperature = {"temperature": inputs["temperature"]} if "temperature" in boundary.parameters else {}
    if not temperature and inputs["temperature"] != 1.0:
        raise AbsentError("not in this version: there is no sampling temperature")
    found = boundary.invoke({}, logits=inputs["logits"].clone(), labels=inputs["token_ids"], **temperature)
    return {"log_probs": found, "entropy": None}


def _from_a_model(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One token of a prompt stands before the response. The model is a table of the scenario's logits."""
    import torch

    logits, ids, mask = inputs["logits"], inputs["token_ids"], inputs["response_mask"]
    tokens = ids.shape[1]
    behind = torch.zeros_like(logits[:, :1])

    class Table(torch.nn.Module):
        def forward(self, *_: Any, **__: Any) -> Any:
            return _Output(logits=torch.cat([logits, behind], 1))

    model = Table()
    actor = boundary.owner(model, temperature=inputs["temperature"])
    actor.packing_samples = False
    sequences = torch.cat([torch.zeros_like(ids[:, :1]), ids], 1)
    whole = torch.ones_like(sequences)
    if "num_actions" in boundary.parameters:
        found = boundary.invoke({}, actor, sequences=sequences, num_actions=tokens, attention_mask=whole)
    else:
        found = boundary.invoke({}, actor, sequences=sequences, action_mask=mask, attention_mask=whole)
    return {"log_probs": found, "entropy": None}


class _Output(dict[str, Any]):
    """What a model of transformers returns: a mapping whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


_MODEL = StandIn("model", "a table of the scenario's logits; what a network computes is not what is looked at")
_LOG_PROBS = (
    Binding(f"{_UTILS}.log_probs_from_logits", "token_log_probs", call=_from_logits, fixed={"with_entropy": False}),
    Binding(
        f"{_UTILS}.compute_entropy",
        "token_log_probs",
        call=partial(entropy_beside, "log_probs_from_logits"),
        fixed={"temperature": 1.0, "with_entropy": True},
    ),
    Binding(
        f"{_ACTOR}.forward", "token_log_probs", call=_from_a_model, stand_ins=(_MODEL,), fixed={"with_entropy": False}
    ),
)


# -- advantages and returns -------------------------------------------------------------------------------------------


def _gae(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    names = taken(inputs, "values", "token_level_rewards", "response_mask", "gamma", "lam")
    return boundary.invoke(names, _without(boundary))


def _returns(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    names = taken(inputs, "token_level_rewards", "response_mask", "gamma")
    return boundary.invoke(names, _without(boundary))


def _options(estimator: str, samples: int, gamma: float = 1.0) -> Any:
    """The options that an advantage reads, as they are grouped since April 2026 and as they were before."""
    advantage = stand_in(estimator=estimator, gamma=gamma, lambd=1.0, no_std_norm=False)
    reward = stand_in(clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None)
    return stand_in(
        algo=stand_in(advantage=advantage, kl=stand_in(use_loss=False)),
        rollout=stand_in(n_samples_per_prompt=samples, max_new_tokens=None),
        reward=reward,
        data=stand_in(max_len=None),
        advantage_estimator=estimator,
        n_samples_per_prompt=samples,
        gamma=gamma,
        lambd=1.0,
        reward_clip_range=None,
        no_advantage_std_norm=False,
        overlong_buffer_len=None,
        stop_properly_penalty_coef=None,
    )


def _advantages(
    boundary: Any, estimator: str, samples: int, kl: Any, mask: Any, rewards: Any, coefficient: float
) -> Any:
    """What the experience maker makes of one experience, whose rows stand in the order of their prompts."""
    import torch

    options = _options(estimator, samples, 1.0 if coefficient == 0.0 else 0.0)
    experience = stand_in(
        index=[*range(len(rewards))],
        rewards=rewards.clone(),
        kl=kl,
        action_mask=mask,
        values=torch.zeros(mask.shape),
        response_length=(mask != 0).sum(-1),
        truncated=None,
        info={"reward": rewards.clone(), "response_length": (mask != 0).sum(-1)},
        to_device=lambda *_: None,
    )
    maker = _without(
        boundary,
        strategy=stand_in(args=options),
        args=options,
        advantage_estimator=estimator,
        kl_ctl=stand_in(value=coefficient),
    )
    (found,) = boundary.function(maker, [experience])
    return found.advantages


def _relative(estimator: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    samples = group_size(inputs)
    if samples == 1:
        raise AbsentError("its command line refuses one sample a prompt with this estimator")
    if estimator not in inspect.getsource(inspect.unwrap(boundary.function)):
        raise AbsentError(f"not in this version: there is no estimator {estimator}")
    rewards = inputs["rewards"]
    mask = torch.ones(len(rewards), 1)
    return {"normalised": _advantages(boundary, estimator, samples, torch.zeros(mask.shape), mask, rewards, 0.0)[:, 0]}


def _whitened(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without discount the return of a token is its own reward, and that minus its KL."""
    import torch

    advantages, mask = inputs["advantages"], inputs["response_mask"]
    rewards = torch.zeros(len(advantages))
    return {"normalised": _advantages(boundary, "reinforce", 1, -advantages, mask.float(), rewards, 1.0)}


_MAKING = StandIn("self", "an experience maker starts Ray actors; the step reads options, and a KL coefficient")
_SAMPLES = StandIn("experience", "a record of tensors; the step reads those that it is given")


_ESTIMATORS: Mapping[str, Mapping[str, Any]] = {
    "group_norm": {"std_level": "group", "leave_one_out": False, "epsilon": 1e-9},
    "dr_grpo": {"std_level": None, "leave_one_out": False, "epsilon": 1e-9},
    "rloo": {"std_level": None, "leave_one_out": True, "epsilon": 1e-9},
}


def _by_estimator(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Which of its estimators has these settings."""
    settings = {key: inputs[key] for key in ("std_level", "leave_one_out")}
    names = [name for name, fixed in _ESTIMATORS.items() if settings.items() <= fixed.items()]
    if not names:
        raise AbsentError("no estimator leaves one out and scales")
    return _relative(names[0], boundary, inputs)


_ADVANTAGES = (
    Binding(
        f"{_MAKER}.get_advantages_and_returns",
        "generalised_advantage",
        formerly=(f"{_NAIVE}.get_advantages_and_returns",),
        arguments={"token_level_rewards": ("rewards",), "lam": ("lambd",)},
        outputs=("advantages", "returns"),
        call=_gae,
    ),
    Binding(
        f"{_MAKER}.get_cumulative_returns",
        "discounted_return",
        formerly=(f"{_NAIVE}.get_cumulative_returns",),
        arguments={"token_level_rewards": ("rewards",)},
        outputs=("returns",),
        call=_returns,
        fixed={"kl": None, "kl_coef": 0.0},
    ),
    Binding(
        f"{_MAKER}.compute_advantages_and_returns",
        "reward_normalisation",
        call=_by_estimator,
        stand_ins=(_MAKING, _SAMPLES),
        fixed={
            **REWARD_NORMALISATION.lacking("std_level", "leave_one_out"),
            "mean_level": "group",
            "epsilon": 1e-9,
            "group_layout": "equal",
        },
        accepts={"std_level": (None, "group")},
    ),
    Binding(
        f"{_MAKER}.compute_advantages_and_returns",
        "advantage_normalisation",
        call=_whitened,
        stand_ins=(_MAKING, _SAMPLES),
        fixed={"mean_level": "batch", "std_level": "batch", "leave_one_out": False, "epsilon": 1e-8},
        accepts=_PADDED,
        dialects=(
            Dialect("std", "biased", "the variance divides by the tokens", f"{_MADE}#L316"),
            Dialect("epsilon_placement", "floor", "the variance is at least 1e-8", f"{_MADE}#L317"),
            Dialect("masked_output", "any", "the loss multiplies by its mask", f"{_MAIN}/models/loss.py#L34"),
        ),
    ),
)


# -- length penalties and the KL coefficient --------------------------------------------------------------------------


def _overlong(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    experience = stand_in(
        rewards=inputs["rewards"].clone(), response_length=(inputs["response_mask"] != 0).sum(-1), info={}
    )
    boundary.function([experience], inputs["max_length"], inputs["buffer"], inputs["factor"])
    return {"rewards": experience.rewards}


def _kl_coefficient(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if inputs["adaptive"]:
        return coefficients(boundary.function(inputs["initial"], inputs["target_kl"], inputs["horizon"]), inputs)
    return coefficients(boundary.module.FixedKLController(inputs["initial"]), inputs)


_SCALARS = (
    Binding(f"{_PPO}.length_penalty.apply_overlong_penalty", "overlong_penalty", call=_overlong, stand_ins=(_SAMPLES,)),
    Binding(f"{_PPO}.kl_controller.AdaptiveKLController", "kl_coefficient", call=_kl_coefficient),
)


# -- experiences and padding ------------------------------------------------------------------------------------------


def _padded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """It pads to the longest row: one more row, of the length that there is to be, is cut off again."""
    import torch

    values, value = inputs["values"], inputs["pad_value"]
    longest = torch.full((1, inputs["length"]), value, dtype=values.dtype)
    rows = [row[None] for row in values] + [longest]
    if value != 0 and "value" not in boundary.parameters:
        raise AbsentError("not in this version: rows are padded with 0")
    options = {"value": value, "stack": False}
    found = boundary.function(
        rows, side=inputs["side"], **{name: options[name] for name in options if name in boundary.parameters}
    )
    return {"padded": found.reshape(len(rows), -1)[:-1]}


def _drawn(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    sampler = boundary.owner(range(inputs["size"]), 1, 0, shuffle=True, seed=inputs["seed"])
    drawn = []
    for epoch in range(inputs["epochs"]):
        sampler.set_epoch(epoch)
        drawn += list(boundary.function(sampler))
    return {"drawn": drawn}


_ROWS = (
    Binding("openrlhf.utils.distributed_sampler.DistributedSampler.__iter__", "epoch_order", call=_drawn),
    Binding(
        "openrlhf.utils.utils.zero_pad_sequences",
        "column_padding",
        formerly=(f"{_PPO}.replay_buffer.zero_pad_sequences",),
        call=_padded,
    ),
    balanced_partition("openrlhf.utils.seqlen_balancing.get_seqlen_balanced_partitions"),
)


# -- supervised and preference data -----------------------------------------------------------------------------------


def _trained_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A mask stands at the position that predicts a token, as the trainer reads it: by the token, one to the right."""
    import torch

    before = inputs["prompts"].shape[1]
    rows = []
    for prompt, counts, response, length in zip(
        inputs["prompts"], inputs["prompt_mask"], inputs["responses"], inputs["lengths"]
    ):
        ids = torch.cat([prompt[counts != 0], response[:length]])[None]
        own = int(counts.sum())
        dataset = _without(
            boundary, pretrain_mode=False, multiturn=False, prompt_ids_lens=[own], response_ranges=None, max_length=99
        )
        mask = boundary.function(dataset, ids, 0)[0, :-1]
        whole = torch.zeros(before + len(response))
        whole[before - own + 1 :][: len(mask)] = mask
        rows.append(whole)
    return {"response_mask": torch.stack(rows)}


def _trained_of_a_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One item of a dataset with one conversation. Its mask stands one position before a token."""
    tokenizer, messages = chat(inputs)
    dataset = _without(
        boundary,
        tokenizer=tokenizer,
        pretrain_mode=False,
        max_length=1000,
        multiturn=inputs["trains"] == "all",
        input_template=None,
        input_key="messages",
        output_key=None,
        apply_chat_template=tokenizer.apply_chat_template,
    )
    row = dataset.process_data({"messages": messages})
    vars(dataset).update(
        prompts=[row["prompt"]],
        responses=[row["response"]],
        prompt_ids_lens=[row["prompt_ids_len"]],
        response_ranges=[row["response_ranges"]],
    )
    ids, _, mask = boundary.function(dataset, 0)
    return {"token_ids": ids[0], "loss_mask": [0, *mask[0, :-1].tolist()]}


def _log_sum(trainer: Any, sides: Mapping[str, Any], of_prompt: float) -> Any:
    """The trainer's log-probs of both sides, behind a prompt of two tokens; each model has its own of the second.

    The token that stands there has the scenario's log-prob.
    """
    import torch

    ids, masks, tables = [], [], []
    for side in ("chosen", "rejected"):
        log_probs, mask = sides[f"{side}_log_probs"], sides[f"{side}_mask"]
        prompt = torch.full((len(mask), 1), of_prompt, dtype=log_probs.dtype)
        tables.append(torch.cat([prompt, log_probs], 1))
        masks.append(torch.cat([torch.ones(len(mask), 2, dtype=torch.int64), mask.long()], 1))
        ids.append(torch.ones_like(masks[-1]))
    longest = max(int(one.shape[1]) for one in tables)
    table = torch.cat([torch.nn.functional.pad(one, (0, longest - one.shape[1]), value=-1.0) for one in tables])
    logits = two_token_logits(table)
    logits = torch.cat([logits, torch.zeros_like(logits[:, :1])], 1)

    def model(*_: Any, return_logprobs: bool = False, **__: Any) -> Any:
        output = _Output(logits=logits)
        return (table, output) if return_logprobs else output

    lengths = [2] * len(ids[0])
    return trainer.concatenated_forward(model, ids[0], masks[0], ids[1], masks[1], lengths)[:2]


def _preference(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As ``fit`` does: the log-probs of both models, and the loss of both. Either of the two is the boundary."""
    of_trainer = boundary.imported[_DPO.rpartition(".")[0]]
    trainer = object.__new__(of_trainer.DPOTrainer)
    loss = of_trainer.DPOLoss(inputs["beta"], 0.0, inputs["loss_type"] == "ipo")
    vars(trainer).update(
        loss_fn=loss,
        tokenizer=stand_in(pad_token_id=0),
        strategy=stand_in(ring_attn_group=None),
        packing_samples=False,
        args=stand_in(packing_samples=False),
    )
    policy = _log_sum(trainer, inputs, -0.5)
    reference = {f"{side}_log_probs": inputs[f"{side}_ref_log_probs"] for side in ("chosen", "rejected")}
    fixed = _log_sum(trainer, {**inputs, **reference}, -1.5)
    return {"loss": loss(*policy, *fixed)[0]}


def _pairs(boundary: str, loss_type: str) -> Binding:
    """The trainer's log-probs are asked for by DPO's loss, the loss by IPO's."""
    return Binding(
        boundary,
        "preference_loss",
        call=_preference,
        imports=(_DPO.rpartition(".")[0],),
        stand_ins=(_MODEL, StandIn("self", "a trainer starts DeepSpeed; the step reads a token id")),
        fixed={"loss_type": loss_type, "ld_alpha": None},
        accepts={"chosen_mask": ("full", "right"), "rejected_mask": ("full", "right")},
    )


_DATA = (
    Binding(
        f"{_SFT}.get_loss_mask",
        "response_masks",
        call=_trained_tokens,
        stand_ins=(StandIn("self", "a dataset reads files; the mask reads the length of a prompt"),),
    ),
    Binding(
        f"{_SFT}.__getitem__",
        "trained_tokens",
        call=_trained_of_a_chat,
        requires=(f"{_SFT}.process_data",),
        stand_ins=(StandIn("tokenizer", "a word is a token, in a template of ChatML's form"),),
        fixed={"max_tokens": None},
        dialects=(
            Dialect(
                "after_the_end",
                "counted",
                "the new line behind an answer's end is trained with it",
                f"{_MAIN}/datasets/sft_dataset.py#L107",
            ),
        ),
    ),
    _pairs(f"{_DPO}.concatenated_forward", "sigmoid"),
    _pairs(f"{_LOSS}.DPOLoss.forward", "ipo"),
)


# -- agents, and rules that score them ---------------------------------------------------------------------------------


class _Letters:
    """A tokenizer: a letter is a token."""

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        import torch

        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}


class _Speaker:
    """An engine that says so many tokens in each turn, or as many of them as it may."""

    def __init__(self, said: Sequence[int]) -> None:
        self._said = iter(said)

    async def generate(self, _: Any, params: Any, **__: Any) -> Any:
        says = next(self._said)
        ids = [1] * min(says, params.max_tokens)
        reason = "length" if says > params.max_tokens else "stop"
        return stand_in(outputs=[stand_in(token_ids=ids, text="x" * len(ids), finish_reason=reason, logprobs=None)])


def _episode(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Behind a prompt of two tokens; what comes after the last turn is the environment's, and cut off here."""
    import asyncio

    import torch

    said, heard = inputs["said"], iter(inputs["heard"])
    left = [len(said)]

    async def answer(_: Any, __: Any) -> dict[str, Any]:
        left[0] -= 1
        return {"rewards": torch.tensor(0.0), "environment_feedback": "y" * next(heard), "done": not left[0]}

    if hasattr(boundary.module, "AgentInstanceBase") and boundary.owner.__name__ == "MultiTurnAgentExecutor":
        bases = (boundary.module.AgentInstanceBase,)
        agent = type("Agent", bases, {"__init__": lambda self: None, "step": answer})
        executor = boundary.owner(agent)
    elif len(said) > 1 or inputs["heard"][-1]:
        raise AbsentError("it has one turn, and no environment")
    else:
        executor = boundary.owner()
    params = stand_in(max_tokens=None, logprobs=None)
    room = 2 + inputs["max_tokens"]
    given = {"sampling_params": params, "max_length": room, "hf_tokenizer": _Letters(), "llm_engine": _Speaker(said)}
    found = asyncio.run(boundary.invoke({}, executor, prompt="pp", label="", **given))
    spans = found["action_ranges"]
    spoken = {token for start, end in spans for token in range(start, end)}
    mask = [int(token in spoken) for token in range(2, spans[-1][1])]
    return {"loss_mask": mask, "cut": found.get("truncated", False)}


_AGENT = "openrlhf.utils.agent"
_RULES = "openrlhf.utils.math_utils"
_ENGINE = (
    StandIn("llm_engine", "answers as many tokens as the scenario says"),
    StandIn("hf_tokenizer", "a letter is a token"),
)
_AGENTS = (
    Binding(f"{_AGENT}.MultiTurnAgentExecutor.execute", "rollout_episode", call=_episode, stand_ins=_ENGINE),
    Binding(f"{_AGENT}.SingleTurnAgentExecutor.execute", "rollout_episode", call=_episode, stand_ins=_ENGINE),
    *(rule_reward(f"{_RULES}.{name}", "bare") for name in ("grade_answer", "grade_answer_mathd", "grade_answer_sympy")),
)


# -- what is asked for by recipes alone -------------------------------------------------------------------------------


def _in_a_ring(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """On a machine without an accelerator, in a ring of two ranks."""
    import torch

    ones = torch.ones
    with (
        swapped(boundary.module.dist, "get_world_size", lambda *_, **__: 2),
        swapped(torch, "ones", lambda *shape, device=None, **more: ones(*shape, **more)),
    ):
        return {"returned": boundary.function(**inputs["arguments"], ring_attn_group=None)}


def _passed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The reported pass rate, where engines have answered ``consumed`` prompts, and ``accepted`` samples are left."""
    numbers = inputs["arguments"]
    samples = numbers["samples_per_prompt"]
    rollout = stand_in(batch_size=1, n_samples_per_prompt=samples, vllm_generate_batch_size=None)
    args = stand_in(
        rollout=rollout,
        vllm=stand_in(enable_sleep=False),
        algo=stand_in(dynamic_filtering_enable=True),
        rollout_batch_size=1,
        n_samples_per_prompt=samples,
        vllm_generate_batch_size=None,
        vllm_enable_sleep=False,
        dynamic_filtering=True,
    )
    answered = ([None] * numbers["accepted"], numbers["consumed"], False)
    generator = _without(boundary, args=args, prompts_dataloader=[], _generate_vllm=lambda **_: answered)
    return {"returned": boundary.function(generator)[1]}


_CALLS = (
    Binding(
        "openrlhf.models.ring_attn_utils.pad_sequences",
        "call",
        call=_in_a_ring,
        stand_ins=(StandIn("ring_attn_group", "two ranks; the function asks for their number"),),
    ),
    Binding(
        f"{_PPO}.samples_generator.SamplesGenerator.generate_samples",
        "call",
        call=_passed,
        stand_ins=(StandIn("_generate_vllm", "engines answer; what they say is how many prompts and samples"),),
    ),
)

_UNBOUND: dict[str, str] = {
    f"{_LOSS}.PairWiseLoss.forward": "one log-sigmoid of a difference of two scores",
    f"{_LOSS}.LogExpLoss.forward": "one logarithm of a difference of two scores, which recipes ask for as it is",
    f"{_LOSS}.GPTLMLoss.forward": "the mean of a cross entropy; nothing calls it any more",
    f"{_LOSS}.*": "options, which the losses that are bound are asked with",
    f"{_UTILS}._logsumexp_by_chunk": "log_probs_from_logits, which is bound, asks it",
    "openrlhf.models.actor.Actor.__init__": "it loads a model",
    "openrlhf.models.model.*": "it puts a head on a model, and loads it",
    "openrlhf.models.ring_attn_utils.*": "slices and gathers of the ranks of a ring; a recipe has their padding",
    "openrlhf.cli.*": "it reads options, starts a trainer, or serves a reward model",
    "openrlhf.datasets.prompts_dataset.*": "columns of text, in a template",
    "openrlhf.datasets.reward_dataset.*": "pairs of texts as a tokenizer makes them, padded by what is bound",
    f"{_SFT}.collate_fn": "zero_pad_sequences, which is bound, for each column",
    f"{_DPO}.concatenated_inputs": "concatenated_forward, which is bound, asks it",
    f"{_DPO}._get_batch_logps": "concatenated_forward, which is bound, asks it",
    **dict.fromkeys(
        (f"openrlhf.trainer.{name}_trainer.*" for name in ("dpo", "rm", "sft")),
        "DeepSpeed's loop around a model, and around losses that are bound",
    ),
    "openrlhf.trainer.ppo_trainer.compute_eval_metrics": "means over an evaluation; nothing is trained on them",
    "openrlhf.trainer.ppo_trainer.*": "it starts Ray's actors, asks them in turn, and saves",
    "openrlhf.trainer.ppo_trainer_async.*": "queues between Ray's actors",
    f"{_PPO}.length_penalty.apply_length_penalties": "it asks apply_overlong_penalty, which is bound, by the options",
    f"{_MAKER}.__init__": "options",
    f"{_MAKER}.make_experience": "it asks Ray's models; what it makes of their answers is bound",
    f"{_MAKER}.make_experience_batch": "it asks three methods in turn",
    f"{_PPO}.samples_generator.SamplesGenerator._process_response_into_experience": "recipes ask it as it is",
    f"{_PPO}.samples_generator.*": "it hands prompts to vLLM's engines, and waits for them",
    "openrlhf.trainer.ray.launcher.*": "a forward pass of a model on its device",
    "openrlhf.trainer.ray.ppo_actor.*": "steps of a model on its device; its losses and what they divide by are bound",
    "openrlhf.trainer.ray.ppo_critic.*": "steps of a critic on its device; its loss is bound",
    "openrlhf.trainer.ray.utils.*": "where Ray puts an actor",
    "openrlhf.trainer.ray.vllm_engine.*": "an engine of vLLM",
    f"{_AGENT}.*": "options of executors that are bound, and requests to a service or a user's function",
    "openrlhf.utils.deepspeed.*": "DeepSpeed's own steps, gradients and checkpoints",
    "openrlhf.utils.logging_utils.*": "it hands numbers to a service",
    "openrlhf.utils.loss_utils._optimizer_step_loss_norm": "iter_grad_accum_global_norm, which is bound, asks it",
    f"{_RULES}.*": "parts of the graders that are bound",
    "openrlhf.utils.seqlen_balancing.*": "parts of get_seqlen_balanced_partitions, which is bound, counts and metrics",
    "openrlhf.utils.distributed_sampler.*": "__iter__, which is bound, is asked after it",
    "openrlhf.utils.utils.remove_pad_token": "a row without its padding",
    "openrlhf.utils.vlm_utils.*": "images, as a processor makes them",
}

TARGET = Target(
    name="openrlhf",
    arguments={
        "response_mask": ("action_mask", "loss_mask", "mask", "response_mask"),
        "ref_log_probs": ("log_probs_base",),
    },
    repository="https://github.com/OpenRLHF/OpenRLHF",
    roots=(PackageRoot("openrlhf"),),
    pypi="openrlhf",
    preload=("torch._dynamo", "transformers"),
    bindings=tuple(
        replace(binding, dtypes=("float32", "bfloat16"))
        for binding in (
            *_LOSSES,
            *_UPDATES,
            *_NUMBERS,
            *_LOG_PROBS,
            *_ADVANTAGES,
            *_SCALARS,
            *_ROWS,
            *_DATA,
            *_AGENTS,
            *_CALLS,
        )
    ),
    unbound=_UNBOUND,
)
