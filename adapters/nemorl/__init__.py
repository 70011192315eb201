"""Bindings for NeMo-RL (NVIDIA-NeMo/RL).

NeMo-RL requires Python 3.13 and packages of the NVIDIA stack. Its losses, estimators and batches work without both:
they import the missing packages without using them, and ``typing_extensions`` provides the newer standard-library
names.

Losses take tensors of whole sequences. A sequence's first token is never predicted, so the adapter prepends a column
to every tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from sentinel import AbsentError, Alias, Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.binding import kit
from sentinel.binding.families import (
    DISCOUNTED_RETURN,
    LAYOUTS,
    WEIGHTS,
    WORDS,
    WeightEngine,
    chat,
    group_advantage,
    masked_statistic,
    normalised_rewards,
)
from sentinel.binding.kit import torch

from . import (
    alignment,
    buffers,
    containers,
    conversations,
    crossed,
    objectives,
    packing,
    parallel,
    planes,
    rewards,
    runs,
    workers,
)
from .shared import ALGORITHMS, BATCHES, LOSSES, MAIN, SAMPLING, Options, Words, configured, message

_UTILS, _GRPO, _ESTIMATORS = (f"{ALGORITHMS}.{name}" for name in ("utils", "grpo", "advantage_estimator"))
_VALUES = "nemo_rl.models.value.workers.dtensor_value_worker_v2"
_MESSAGES_OF, _PROCESSORS = "nemo_rl.data.llm_message_utils", "nemo_rl.data.processors"

# -- lengths and reports -----------------------------------------------------------------------------------------------


def _count_train_steps(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of training steps that NeMo-RL's driver passes to Megatron's scheduler."""
    most = 10**6 if inputs["max_steps"] is None else inputs["max_steps"]
    whole = kit.stand_in(
        grpo=kit.stand_in(max_num_steps=most, max_num_epochs=inputs["epochs"]),
        policy={"megatron_cfg": {"enabled": True}},
    )
    boundary.function(whole, range(inputs["steps_per_epoch"]))
    boundary.module._maybe_inject_megatron_train_iters(whole)
    return {"length": whole.policy["megatron_cfg"]["train_iters"]}


_LENGTHS = (
    Binding(
        f"{ALGORITHMS}.single_controller_utils.setup._clamp_max_num_steps", "schedule_length", call=_count_train_steps,
        fixed={"samples_per_prompt": 1, "turns": 1, "update_epochs": 1, "warmup_ratio": 0.0, "unit": "steps"},
    ),
)  # fmt: skip


def _pass_at_k(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean over prompts of NeMo-RL's pass@k. The function returns a sum, so it gets one prompt at a time."""
    right = inputs["right"]
    shares = [boundary.function(torch.tensor(own, dtype=torch.float32), len(own), inputs["k"]) for own in right]
    return {"pass_at_k": sum(shares) / len(shares)}


def _validate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracy that NeMo-RL's validation computes from the accuracy of each batch."""
    import dataclasses

    parts = [[value for value in part if value is not None] for part in inputs["parts"]]
    if not dataclasses.is_dataclass(boundary.module.DPOValMetrics):
        raise AbsentError("this version's DPOValMetrics is not a dataclass")
    names = [field.name for field in dataclasses.fields(boundary.module.DPOValMetrics)]
    metrics = iter({**{name: [0.0] for name in names}, "accuracy": [sum(part) / len(part)]} for part in parts)
    counts = iter(parts)
    policy = kit.stand_in(
        prepare_for_training=lambda: None,
        train=lambda *_, **__: {"all_mb_metrics": {**next(metrics), "num_valid_samples": [len(next(counts))]}},
    )
    batches = [kit.stand_in(size=len(part)) for part in parts]
    with kit.swap(boundary.module, "add_ref_logprobs_to_data", lambda *_, **__: batches):
        return {"mean": boundary.function(policy, [], None, 0, None, -1, 1, 1, "")[0].accuracy}


_REPORTS = (
    Binding("nemo_rl.evals.eval.eval_pass_k", "pass_at_k", call=_pass_at_k, accepts={"of": ("any",)}),
    Binding(
        f"{ALGORITHMS}.dpo.validate_one_dataset", "mean_of_parts", call=_validate, fixed={"missing": False},
        stand_ins=(StandIn("policy", "returns a batch's metrics; no model runs"),),
    ),
)  # fmt: skip

# -- KL and masked statistics ------------------------------------------------------------------------------------------

_COUNT_EPSILON = Dialect(
    "count_epsilon", 1e-8, "eps is added to a count, which may be 0", f"{MAIN}/algorithms/utils.py#L224"
)
_NUMBERS = (
    Binding(  # the option kl_type exists since November 2025
        f"{_UTILS}.calculate_kl",
        "kl_estimate",
        formerly=(f"{_UTILS}.calculate_kl_penalty_joschu2020",),
        arguments={
            "log_probs": ("logprobs", "logprobs_policy"),
            "ref_log_probs": ("logprobs_reference",),
            "kl_estimator": ("kl_type",),
        },
        outputs=("kl",),
        call=partial(kit.call_estimator, {"k3": {}}, ("log_probs", "ref_log_probs")),
        fixed={"response_mask": None},
        accepts={"kl_estimator": ("k1", "k2", "k3")},
        dialects=(objectives.CLAMPED,),
    ),
    masked_statistic(f"{_UTILS}.masked_mean", "mean", "axis", arguments={"axis": ("dim",)}, dialects=(_COUNT_EPSILON,)),
    masked_statistic(f"{_UTILS}.masked_var", "var", "unbiased", dialects=(_COUNT_EPSILON,)),
)

# -- advantages --------------------------------------------------------------------------------------------------------


def _make_prompts(group: Sequence[Any]) -> Any:
    """Make a one-token prompt for each row. The rows of a group have the same prompt."""
    labels = list(dict.fromkeys(group))
    return torch.tensor([[labels.index(label)] for label in group])


def _make_estimator(boundary: Any, **options: Any) -> Any:
    """Construct the boundary's advantage estimator. The given options replace the adapter's defaults."""
    kl = kit.stand_in(use_kl_in_reward=False, reference_policy_kl_penalty=0.0, reference_policy_kl_type="k1")
    usual = {
        "use_leave_one_out_baseline": False,
        "normalize_rewards": True,
        "minus_baseline": False,
        "reward_weights": None,
    }

    of_loss = Options({**vars(kl), **{name: options.pop(name) for name in list(options) if name in vars(kl)}})
    return boundary.owner(Options({**usual, **options}), of_loss)


def _group_advantage(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute group advantages with NeMo-RL. GDPO sums several rewards per response; all but the first are 0."""
    estimator = _make_estimator(boundary, normalize_rewards=inputs["norm_by_std"] is not False, minus_baseline=True)
    rewards, mask = inputs["token_level_rewards"].sum(-1), inputs["response_mask"]
    more: dict[str, Any] = {}
    if "repeated_batch" in boundary.parameters:
        named = {f"reward{name}": rewards if "1" in name else rewards * 0 for name in ("1", "2", "/1", "/2")}
        # Until June 2026, the names of rewards had no slash.
        names = boundary.module.get_gdpo_reward_component_keys(named)
        more = {"repeated_batch": {name: named[name] for name in names}}
    advantages = boundary.function(estimator, _make_prompts(inputs["group"]), rewards, mask, **more)
    return {"advantages": advantages, "returns": advantages}


def _leave_one_out(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rewards = inputs["rewards"]
    estimator = _make_estimator(boundary, use_leave_one_out_baseline=inputs["leave_one_out"], normalize_rewards=False)
    advantages = boundary.function(estimator, _make_prompts(inputs["group"]), rewards, torch.ones(len(rewards), 1))
    return {"normalised": advantages[:, 0]}


def _baseline(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    group = _make_prompts(inputs["group"]), inputs["rewards"], torch.ones_like(inputs["rewards"])
    baseline = boundary.function(*group, leave_one_out_baseline=inputs["leave_one_out"])[0]
    return {"normalised": inputs["rewards"] - baseline}


def _normalise_by_estimator(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # All rewards are 0, and the KL estimate of a token is its negated advantage, with a penalty of 1.
    advantages, mask = inputs["advantages"], inputs["response_mask"]
    if advantages.abs().max() > 10:
        raise AbsentError(
            "advantages are passed as KL estimates, which NeMo-RL clamps to ±10; the scenario has a larger advantage"
        )
    estimator = _make_estimator(boundary, use_kl_in_reward=True, reference_policy_kl_penalty=1.0)
    nothing = torch.zeros_like(advantages)
    penalty = {"logprobs_policy": -advantages, "logprobs_reference": nothing}
    normalised = boundary.function(estimator, _make_prompts(range(len(mask))), nothing[:, 0], mask, **penalty)
    return {"normalised": normalised}


_GAE: Mapping[str, Any] = {
    **dict.fromkeys(("gae_lambda", "gae_gamma", "normalize_advantages", "gae_lambda_value", "gae_lambda_policy")),
    "length_adaptive_alpha": 0.0,
}


def _critic(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    vapo = {"lam_returns": "gae_lambda_value", "length_alpha": "length_adaptive_alpha"}
    if any(inputs[name] and option not in kit.source_of(boundary.owner) for name, option in vapo.items()):
        raise AbsentError("this version has one lambda for all advantages and returns")
    chosen = {option: inputs[name] for name, option in vapo.items() if inputs[name] is not None}
    chosen |= {"gae_lambda": inputs["lam"], "gae_gamma": inputs["gamma"], "normalize_advantages": inputs["whiten"]}
    if inputs["lam_returns"] is not None:  # then nothing uses the common lambda
        chosen |= {"gae_lambda": None, "gae_lambda_policy": inputs["lam"]}
    estimator = _make_estimator(boundary, **{**_GAE, **chosen})
    if "rewards" in boundary.parameters:
        return boundary.function(estimator, None, _outcome(inputs), inputs["response_mask"], inputs["values"])
    return boundary.invoke(kit.take_inputs(inputs, "token_level_rewards", "values", "response_mask"), estimator)


def _outcome(inputs: Mapping[str, Any]) -> Any:
    return torch.where(inputs["response_mask"] != 0, inputs["token_level_rewards"], 0.0).sum(-1)


def _raw(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    estimator = _make_estimator(boundary, normalize_advantages=inputs["whiten"])
    made = boundary.function(estimator, None, _outcome(inputs), inputs["response_mask"])[0]
    return {"returns": None, "advantages": made} if inputs["whiten"] else {"returns": made}


def _filter(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows that NeMo-RL's dynamic sampling keeps.

    The batch contains each row twice. The step takes as many rows as the filter keeps of the first copy, so the rows
    of the second copy are surplus.
    """
    rewards, rows = inputs["rewards"].float(), len(inputs["rewards"])
    of_prompts = boundary.imported[_UTILS].calculate_baseline_and_std_per_prompt
    std = of_prompts(_make_prompts(inputs["group"]), rewards, torch.ones_like(rewards), leave_one_out_baseline=False)[1]
    step = {"num_prompts_per_step": int((std != 0).sum()) or rows + 1, "num_generations_per_prompt": 1}
    options = Options({**step, "use_dynamic_sampling": True, "dynamic_sampling_max_gen_batches": 9})
    columns = {"number": torch.arange(rows), "total_reward": rewards}
    batch = boundary.imported[BATCHES].BatchedDataDict({name: column.repeat(2) for name, column in columns.items()})
    timer = kit.bookkeeping(time=lambda _: nullcontext())
    made = boundary.function(batch, std.repeat(2), std.repeat(2), 1, Options(grpo=options, ppo=options), timer)[0]
    return {"numbers": made["number"].tolist(), "rewards": made["filtered_reward"].tolist()}


def _landed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = kit.take_inputs(inputs, "rewards", "response_mask")
    return {"token_level_rewards": boundary.invoke(names, _make_estimator(boundary, **_GAE))}


_OF_LOSS = StandIn("configurations", "the options of an estimator, readable as attributes and as dictionary keys")
_AT = f"{MAIN}/algorithms/advantage_estimator.py#L"
_NUMBER = ("a reward is one number per response, to which no mask applies", f"{_AT}80")
_BIASED = Dialect("std", "biased", "the variance divides by the token count", f"{_AT}259")
_COUNTED = (Dialect("masked_rewards", "counted", *_NUMBER), Dialect("masked_values_have_no_influence", None, *_NUMBER))
_ADVANTAGES = (
    *(
        group_advantage(
            f"{_ESTIMATORS}.{name}AdvantageEstimator.compute_advantage", _group_advantage, estimator, knobs, *_COUNTED,
            *dialects, stand_ins=(_OF_LOSS,), fixed={"reward_layout": "outcome"},
            accepts={"response_mask": ("full", "right")},
        )
        for name, estimator, knobs, dialects in (
            ("GRPO", "grpo", ("norm_by_std",), ()),
            ("GDPO", "gdpo", ("norm_by_std",), ()),
            ("ReinforcePlusPlus", "reinforce_plus_plus_baseline", (), (_BIASED,)),
        )
    ),
    normalised_rewards(
        f"{_ESTIMATORS}.GRPOAdvantageEstimator.compute_advantage", _leave_one_out, "leave_one_out",
        stand_ins=(_OF_LOSS,), fixed={"std_level": None},
    ),
    normalised_rewards(
        f"{_UTILS}.calculate_baseline_and_std_per_prompt", _baseline, "leave_one_out", fixed={"std_level": None},
    ),
    Binding(
        f"{_ESTIMATORS}.ReinforcePlusPlusAdvantageEstimator.compute_advantage", "advantage_normalisation",
        call=_normalise_by_estimator, stand_ins=(_OF_LOSS,),
        fixed={"mean_level": "batch", "std_level": "batch", "leave_one_out": False, "epsilon": 1e-08},
        dialects=(
            _BIASED,
            Dialect("epsilon_placement", "floor", "the standard deviation is clamped to at least 1e-8", f"{_AT}260"),
            Dialect("masked_output", "any", "the loss applies the mask", f"{_AT}261"),
        ),
    ),
    *(
        Binding(
            f"{_ESTIMATORS}.GeneralizedAdvantageEstimator.{method}", "generalised_advantage",
            outputs=("advantages", "returns"), call=_critic, stand_ins=(_OF_LOSS,), fixed=fixed,
        )
        for method, fixed in (("_compute_gae", {}), ("compute_advantage", {"reward_layout": "outcome"}))
    ),
    Binding(
        f"{_ESTIMATORS}.GeneralizedAdvantageEstimator.compute_advantage", "generalised_advantage",
        outputs=("advantages", "returns"), call=_critic, stand_ins=(_OF_LOSS,), fixed={"reward_layout": "outcome"},
        accepts={"lam_returns": (None, 1.0, 0.5), "length_alpha": (None, 1.0, 2.0)},
        dialects=(Dialect("whiten", True, "advantages are whitened, as the configuration asks", f"{_AT}493"),),
    ),
    *(
        Binding(
            f"{_ESTIMATORS}.RawRewardAdvantageEstimator.compute_advantage", "discounted_return", call=_raw,
            fixed={**DISCOUNTED_RETURN.lacking(), "gamma": 1.0, "reward_layout": "outcome"}, stand_ins=(_OF_LOSS,),
            dialects=dialects,
        )
        for dialects in (
            (),
            (
                Dialect("whiten", True, "advantages are whitened, as the configuration asks", f"{_AT}293"), _BIASED,
                Dialect("epsilon_placement", "floor", "the variance is clamped to at least 1e-8", f"{_AT}296"),
            ),
        )
    ),
    *(
        Binding(f"{ALGORITHMS}.{module}.dynamic_sampling", "group_filter", call=_filter, imports=(_UTILS, BATCHES))
        for module in ("grpo", "ppo")
    ),
    Binding(
        f"{_ESTIMATORS}.GeneralizedAdvantageEstimator._build_token_level_rewards", "token_reward", call=_landed,
        stand_ins=(_OF_LOSS,), fixed={"score_as": None},
    ),
)  # fmt: skip

# -- rewards, prompts and masks ----------------------------------------------------------------------------------------


def _penalise_overlong(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    logs = [[{"role": "assistant", "token_ids": torch.zeros(int((row != 0).sum()))}] for row in mask]
    batch = {"total_reward": inputs["rewards"].clone(), "message_log": logs}
    of_buffer = {"overlong_buffer_length": inputs["buffer"], "overlong_buffer_penalty": inputs["factor"]}
    options = {"max_response_length": inputs["max_length"], "stop_properly_penalty_coef": None, **of_buffer}
    off = {"enabled": False, **dict.fromkeys(options)}
    config = configured(boundary.module.RewardShapingConfig, {"enabled": True, **options}, off)
    return {"rewards": boundary.function(batch, config)["total_reward"]}


def _number_groups(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the group number of each rollout, according to the prompt that NeMo-RL extracts from it."""
    labels = inputs["labels"].tolist()
    groups = list(dict.fromkeys(labels))
    answer = message("assistant", [5, 6], generation_logprobs=torch.zeros(2))
    places = enumerate(map(groups.index, labels))
    logs = [[message("user", [1, 2, 10 + place]), answer, message("user", [40 + row])] for row, place in places]
    prompts = boundary.invoke({}, message_logs=logs, original_prompt_lengths=torch.full((len(logs),), 3))
    ids = [tuple(token for message in log for token in message["token_ids"].tolist()) for log in prompts]
    order = list(dict.fromkeys(ids))
    return {"numbers": torch.tensor([order.index(prompt) for prompt in ids])}


def _mask_episode(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return NeMo-RL's loss mask of an episode whose prompt contains an assistant message.

    The function's mask also has entries for the environment's text after the last turn, which the adapter removes.
    """
    log = [message("user", [1, 2]), message("assistant", [3]), message("user", [4])]
    for generated, observed in zip(inputs["said"], inputs["heard"]):
        log.append(message("assistant", [5] * generated, generation_logprobs=torch.zeros(generated)))
        log.append(message("user", [6] * observed))
    if inputs["max_tokens"] < 100:
        raise AbsentError(
            "NeMo-RL applies the length limit in the engine, not in this function; the scenario has a limit"
        )
    boundary.function([log])
    mask = [int(flag) for message in log[:-1] for flag in message["token_loss_mask"]]
    return {"loss_mask": mask[4:] if not any(mask[:4]) else mask, "cut": False}


def _run_rollout(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run NeMo-RL's multi-turn rollout with the scenario's turns and replies, and return the loss mask and the reward.

    The batch's first row is another conversation, with another environment. It ends after one turn.
    """
    turns, room, turn = list(zip(inputs["said"], inputs["heard"])), inputs["max_tokens"], iter(range(1000))
    rewards = iter(inputs["rewards"])

    def generate(data: Any, **_: Any) -> dict[str, Any]:
        ids, starts = data["input_ids"], data["input_lengths"]
        length = turns[place := next(turn)][0]
        environment.heard, environment.ended = turns[place][1], place + 1 == len(turns)
        counts = torch.tensor([1, min(length, room)][-len(ids) :])
        output = torch.cat([ids, torch.zeros(len(ids), int(counts.max()), dtype=ids.dtype)], 1)
        for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist())):
            output[row, start : start + count] = 5
        return {
            "output_ids": output, "unpadded_sequence_lengths": starts + counts, "logprobs": torch.zeros(output.shape),
            "generation_lengths": counts, "truncated": torch.tensor([False, length > room][-len(ids) :]),
        }  # fmt: skip

    def reply(text: str, reward: float, ended: bool) -> Any:
        said, numbers = [{"role": "environment", "content": text}], (torch.tensor([reward]), torch.tensor([ended]))
        return partial(kit.return_first, (said, [None], [None], *numbers, [None]))

    def step(*_: Any) -> Any:
        return reply("6 " * environment.heard, next(rewards, 0.0), environment.ended)

    def end(*_: Any) -> Any:
        return reply("7 7 ", 0.375, True)

    environment = kit.stand_in(step=kit.stand_in(remote=step))
    environments = {"other": kit.stand_in(step=kit.stand_in(remote=end)), "task": environment}
    rows = {
        "message_log": [[message("user", [3, 4, 8])], [message("user", [1, 2])]],
        "task_name": [*environments],
        "extra_env_info": [None, None],
        "stop_strings": [None, None],
    }
    arguments = kit.stand_in(generate=generate), boundary.imported[BATCHES].BatchedDataDict(rows), Words()
    with kit.swap(boundary.module, "ray", kit.stand_in(get=lambda futures: [answer() for answer in futures])):
        made, _ = boundary.function(*arguments, environments, 1000, inputs["turns"])
    boundary.imported[_GRPO].add_grpo_token_loss_masks_and_generation_logprobs(made["message_log"])
    mask = [int(flag) for message in made["message_log"][1][1:-1] for flag in message["token_loss_mask"]]
    return {"loss_mask": mask, "cut": bool(made["truncated"][1]), "reward": made["total_reward"][1]}


def _engine_versions(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each generated sample, the version of the weights that the engine had loaded.

    A colocated engine sleeps between the generations.
    """
    engine, updates = WeightEngine(), 0

    def transfer(**_: Any) -> list[Any]:
        engine.load(updates)
        return [True]

    policy = kit.stand_in(
        **dict.fromkeys(("offload_before_refit", "offload_after_refit"), lambda: None),
        get_free_memory_bytes=lambda: 1 << 30,
        prepare_refit_info=lambda: None,
        **dict.fromkeys(("stream_weights_via_ipc_zmq", "broadcast_weights_for_collective"), lambda **_: []),
    )
    generation = kit.stand_in(
        weight_synchronizer=None,
        prepare_for_generation=lambda tags=None, **_: engine.wake_up(tags),
        **dict.fromkeys(("update_weights_via_ipc_zmq", "update_weights_from_collective"), transfer),
    )
    with kit.swap(boundary.module, "ray", kit.stand_in(get=kit.return_first)):
        for updates, count in enumerate(inputs["generations"], start=1):  # noqa: B007 - the transfer reads `updates`
            if inputs["sleeps"]:
                engine.sleep()
            boundary.function(policy, generation, inputs["sleeps"])
            for _ in range(count):
                engine.wake_up()
                engine.generate()
                if inputs["sleeps"]:
                    engine.sleep()
    return {"versions": engine.versions}


def _flatten(boundary: Any, log: Any, **options: Any) -> tuple[Any, Any]:
    """Flatten a message log into token ids and a loss mask, as NeMo-RL's collators do."""
    data = boundary.imported[_MESSAGES_OF]
    data.add_loss_mask_to_message_log([log], **options)
    flat, _ = data.batched_message_log_to_flat_message([log])
    return flat["token_ids"][0], flat["token_loss_mask"][0]


def _process_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Process a chat with NeMo-RL's data processor, and return its token ids and loss mask."""
    tokenizer, messages = chat(inputs)
    # A prompt that only contains the user's text does not change it.
    prompt = "{}" if boundary.path.endswith("get_formatted_message_log") else None
    row, task = {"messages": messages, "task_name": "chats"}, kit.stand_in(prompt=prompt, system_prompt=None)
    prepare = boundary.function if "processor" in boundary.path else boundary.imported[_PROCESSORS].sft_processor
    made = prepare(row, task, tokenizer, 1000, 0, add_generation_prompt=True)
    ids, mask = _flatten(boundary, made["message_log"], only_unmask_final=inputs["trains"] == "last")
    return {"token_ids": ids, "loss_mask": mask}


def _process_pair(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Process a preference pair, and return the token ids and the loss mask of the prompt and the chosen answer."""
    tokenizer, messages = chat(inputs)
    other = {"role": "assistant", "content": "w9.9"}
    answers = [{"rank": rank, "completion": [answer]} for rank, answer in enumerate((messages[-1], other))]
    row, task = {"context": messages[:-1], "completions": answers}, kit.stand_in(prompt=None, system_prompt=None)
    collates = "collate" in boundary.path
    prepare = boundary.imported[_PROCESSORS].preference_preprocessor if collates else boundary.function
    made = prepare(row, task, tokenizer, 1000, 0)
    ids, mask = _flatten(boundary, made["message_log_chosen"], only_unmask_final=True)
    against, _ = _flatten(boundary, made["message_log_rejected"], only_unmask_final=True)
    shared = next(place for place, pair in enumerate(zip(ids, against)) if pair[0] != pair[1])
    if collates:
        batch = boundary.function([made], tokenizer, 1, True)
        ids, mask = (batch[name][0][: batch["input_lengths"][0]] for name in ("input_ids", "token_mask"))
    return {"token_ids": ids, "loss_mask": [int(flag) * (place >= shared) for place, flag in enumerate(mask)]}


_BEHIND = "the newline after the end of an answer is part of the message, and is trained"
_CHATS: dict[str, Any] = {
    "stand_ins": (WORDS,),
    "imports": (_MESSAGES_OF, _PROCESSORS),
    "dialects": (Dialect("after_the_end", "counted", _BEHIND, f"{MAIN}/data/llm_message_utils.py#L560"),),
}
_COLLATES, _PAIR = "nemo_rl.data.collate_fn.preference_collate_fn", f"{_PROCESSORS}.preference_preprocessor"
_MASKED = f"{_GRPO}.add_grpo_token_loss_masks_and_generation_logprobs"
_WHOLE, _PAIRS = {"max_tokens": None}, {"max_tokens": None, "trains": "last"}
_MESSAGES = (
    Binding(f"{_PROCESSORS}.sft_processor", "trained_tokens", call=_process_chat, fixed=_WHOLE, **_CHATS),
    Binding(_PAIR, "trained_tokens", call=_process_pair, fixed=_PAIRS, **_CHATS),
    Binding(
        _COLLATES, "trained_tokens", call=_process_pair, fixed=_PAIRS, requires=(_COLLATES, _PAIR), **_CHATS,
        formerly=("nemo_rl.data.datasets.preference_collate_fn", "nemo_rl.data.datasets.dpo_collate_fn"),
    ),
    Binding(
        f"{ALGORITHMS}.reward_functions.apply_reward_shaping", "overlong_penalty", call=_penalise_overlong,
        dialects=(
            Dialect(
                "beyond_limit", "linear", "the penalty grows with each token",
                f"{MAIN}/algorithms/reward_functions.py#L163",
            ),
        ),
    ),
    Binding(
        f"{_GRPO}.extract_initial_prompt_messages", "group_numbers",
        formerly=(f"{_GRPO}._extract_prompt_only_messages",), call=_number_groups,
    ),
    Binding(_MASKED, "rollout_episode", call=_mask_episode),
    Binding(
        f"{_GRPO}.refit_policy_generation", "engine_weights", call=_engine_versions,
        stand_ins=(WEIGHTS, StandIn("policy, ray", "return immediately; only the version of the weights is observed"),),
    ),
    Binding(
        "nemo_rl.experience.rollouts.run_multi_turn_rollout", "rollout_episode", call=_run_rollout, requires=(_MASKED,),
        imports=(_GRPO, BATCHES),
        stand_ins=(StandIn("engine, environment, ray", "return the scenario's text immediately"),),
    ),
)  # fmt: skip

# -- log-probs ---------------------------------------------------------------------------------------------------------

_PARALLEL = "nemo_rl.distributed.model_utils"


def _score(way: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with NeMo-RL. Functions for tensor parallelism get two ranks, each with half of the vocabulary.

    Each sequence begins with a one-token prompt. The logits at its last position predict no token.
    """
    if inputs["context_parallel_size"] > 1:
        return parallel.score_windows(boundary, inputs, chunked=way in ("chunks", "alone"))
    module, logits = boundary.imported[_PARALLEL], inputs["logits"]
    size, ids = logits.shape[-1], kit.prepend_prompt(inputs["token_ids"])
    chosen: dict[str, Any] = {"chunk_size": 2} if way == "chunks" else {}
    chosen |= parallel.filter_options(boundary, inputs)

    def score(own: Any, rank: int) -> Any:
        bounds = rank * own.shape[-1], (rank + 1) * own.shape[-1]
        if way == "gathered":
            wanted = torch.nn.functional.pad(ids[:, 1:, None], (0, 0, 0, 1))
            return module.ChunkedDistributedGatherLogprob.apply(own, wanted, *bounds, 2, 0)[:, :-1, 0]
        if way == "entropy":
            return -module.ChunkedDistributedEntropy.apply(own, 2, 0)[:, :-1]
        made = module.from_parallel_logits_to_logprobs(own, ids, *bounds, 0, cp_group=(rank,), **chosen)
        return made[:, : logits.shape[1]]

    whole = torch.cat([logits, -logits[:, :1].detach()], 1)
    if "sampling_params" in chosen and way != "alone" and whole.shape[1] % 2:
        # As the error of NeMo-RL says, the length must be a multiple of the number of ranks.
        whole, ids = torch.cat([whole, whole[:, -1:]], 1), torch.nn.functional.pad(ids, (0, 1))
    with kit.swap(torch.Tensor, "cuda", lambda self: self):
        if way == "alone":
            chosen.setdefault("sampling_params", boundary.imported[SAMPLING].TrainingSamplingParams(top_k=size))
            values = module.get_next_token_logprobs_from_logits(ids, whole, **chosen)
        else:
            values = kit.score_by_vocabulary(whole, score)[0]
    if way == "entropy":
        return {"log_probs": torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0], "entropy": values}
    return {"log_probs": values, "entropy": None}


def _call_on_cpu(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    with kit.swap(torch.Tensor, "cuda", lambda self: self):
        return {"returned": boundary.function(**inputs["arguments"])}


def _opd_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # The advantages of on-policy distillation are the teacher's log-probs minus the student's, which are 0 here.
    advantages, mask = inputs["advantages"], inputs["response_mask"]
    named = {"teacher_logprobs": advantages, "prev_logprobs": torch.zeros_like(advantages)}
    return {"normalised": boundary.function(boundary.owner({}, {}), None, None, mask, **named)}


def _shift_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Shift a critic's outputs right by one position with NeMo-RL, and remove the column of the prompt."""
    whole = torch.cat([inputs["outputs"], inputs["output_after"][:, None]], 1)
    if boundary.owner is not None:
        return {"values": boundary.function(boundary.owner(lambda logits: logits), logits=whole)[:, 1:]}
    return {"values": boundary.function(whole)[:, 1:]}


_FILTERS: Mapping[str, tuple[Any, ...]] = {"top_k": (None, 2), "top_p": (1.0, 0.6)}
_TWO_RANKS = StandIn("ranks", "two tensor-parallel ranks are threads of one process")
_SCORED = (
    *(
        Binding(
            path, "token_log_probs", call=partial(_score, way), imports=(_PARALLEL, SAMPLING),
            stand_ins=(_TWO_RANKS,), requires=(path, f"{_PARALLEL}.get_next_token_logprobs_from_logits", SAMPLING),
            fixed={"temperature": 1.0, "with_entropy": way == "entropy", "entropy_of": "sampled"},
            accepts={**_FILTERS, "context_parallel_size": (1, 1, 2)} if way in ("whole", "chunks", "alone") else {},
        )
        for path, way in (
            (f"{_PARALLEL}.from_parallel_logits_to_logprobs", "whole"),
            *(
                (f"{_PARALLEL}.{kind}LogprobWithSampling.{one}", way)
                for kind, way in (("Distributed", "whole"), ("ChunkedDistributed", "chunks"))
                for one in ("forward", "backward")
            ),
            *((f"{_PARALLEL}.DistributedLogprob.{one}", "whole") for one in ("forward", "backward")),
            *((f"{_PARALLEL}.ChunkedDistributedLogprob.{one}", "chunks") for one in ("forward", "backward")),
            (f"{_PARALLEL}.ChunkedDistributedEntropy.forward", "entropy"),
            *((f"{_PARALLEL}.ChunkedDistributedGatherLogprob.{one}", "gathered") for one in ("forward", "backward")),
            (f"{_PARALLEL}.get_next_token_logprobs_from_logits", "alone"), (f"{SAMPLING}.apply_top_k_top_p", "alone"),
        )
    ),
    Binding(
        f"{_PARALLEL}.get_next_token_logprobs_from_logits", "call", call=_call_on_cpu,
        stand_ins=(StandIn("cuda", "leaves a tensor on the CPU"),),
    ),
    Binding(
        f"{_ESTIMATORS}.OPDAdvantageEstimator.compute_advantage", "advantage_normalisation", call=_opd_advantages,
        fixed={"mean_level": None, "std_level": None, "leave_one_out": False, "epsilon": 1e-6},
        requires=(f"{_ESTIMATORS}.OPDAdvantageEstimator",), accepts={"response_mask": ("full",)},
    ),
    *(
        Binding(
            f"{_VALUES}.{name}", "critic_values", call=_shift_values, requires=(f"{_VALUES}.right_shift_values",),
            dialects=(
                Dialect(
                    "outside_the_mask", "any", "the function returns the value of every position",
                    f"{MAIN}/models/value/workers/dtensor_value_worker_v2.py#L64",
                ),
            ),
        )
        for name in ("right_shift_values", "RightShiftLossWrapper.__call__")
    ),
)  # fmt: skip

# -- rewards and reports of a step -------------------------------------------------------------------------------------


def _scale_rewards(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Multiply rewards by 2 with NeMo-RL's scaling, and divide the result by 2."""
    rewards, bound = inputs["rewards"].float(), 10.0
    if rewards.abs().max() > bound:
        raise AbsentError(
            f"NeMo-RL clips rewards to the configured range (here ±{bound:g}); the scenario has a larger reward"
        )
    config = Options(enabled=True, source_min=-bound, source_max=bound, target_min=-2 * bound, target_max=2 * bound)
    batch = {"total_reward": rewards, "reward/one": rewards.clone()}
    return {"normalised": boundary.function(batch, config)["total_reward"] / 2}


def _clipped_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    config = Options(advantage_clip_low=None, advantage_clip_high=None)
    if inputs["clip"] is not None:
        config = Options(advantage_clip_low=-inputs["clip"], advantage_clip_high=inputs["clip"])
    return {"normalised": boundary.function(inputs["rewards"], config)}


def _estimate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages with the estimator that NeMo-RL creates for the configured name."""
    name = inputs["estimator"].removesuffix("_baseline")
    kl = Options(use_kl_in_reward=False, reference_policy_kl_penalty=0.0, reference_policy_kl_type="k1")
    options = {"use_leave_one_out_baseline": False, "normalize_rewards": inputs["norm_by_std"] is not False}
    config = Options(adv_estimator=Options(name=name, minus_baseline=True, reward_weights=None, **options))
    estimator = boundary.function(Options(grpo=config, ppo=config, loss_fn=kl))
    rewards, components = inputs["token_level_rewards"].sum(-1), ("reward1", "reward2", "reward/1", "reward/2")
    named = {one: rewards if "1" in one else rewards * 0 for one in components}
    batch = named if name == "gdpo" else {}
    if batch:  # until June 2026, the names of rewards had no slash
        batch = {one: named[one] for one in boundary.imported[_ESTIMATORS].get_gdpo_reward_component_keys(named)}
    advantages = estimator.compute_advantage(
        _make_prompts(inputs["group"]), rewards, inputs["response_mask"], repeated_batch=batch
    )
    return {"advantages": advantages, "returns": advantages}


def _penalise_turns(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the advantages of all tokens after NeMo-RL has replaced those of faulty turns."""
    logs, faults = [], {"invalid": "is_invalid_tool_call", "malformed": "has_malformed_thinking"}
    for turns in inputs["turns"]:
        logs.append([])
        for length, kind in turns:
            own = {} if kind == "heard" else {"generation_logprobs": torch.zeros(length)}
            flags = {faults[kind]: True} if kind in faults else {}
            logs[-1].append(message("user" if kind == "heard" else "assistant", [5] * length, **own, **flags))
    lengths = [sum(length for length, _ in turns) for turns in inputs["turns"]]
    numbers = torch.arange(1.0, 1 + len(logs))[:, None]
    data = {"advantages": numbers.expand(len(logs), max(lengths))}
    boundary.function(data, logs, inputs["invalid_advantage"], inputs["malformed_advantage"])
    return {"advantages": [one for row, length in zip(data["advantages"], lengths) for one in row[:length]]}


def _mask_flagged(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response mask after NeMo-RL masked the flagged samples."""
    mask = inputs["response_mask"]
    flags = (mask != 0).sum(-1) == mask.shape[1]  # responses that fill all columns
    batch = {"mask_sample": flags, "loss_multiplier": torch.ones(len(mask))}
    boundary.function(batch)
    return {"kept": mask * batch["loss_multiplier"][:, None].to(mask)}


def _average_metric(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean that NeMo-RL reports for a metric with one value per sample."""
    parts = [[float(value) for value in part] for part in inputs["parts"]]
    if "masked_advantages" in boundary.parameters:
        tensors = [torch.tensor(part) for part in parts]
        return {"mean": boundary.function(tensors, tensors, [1])["reward"]}
    values = [value for part in parts for value in part]
    if "train_result" in boundary.parameters:
        (name, *_) = sorted(boundary.module._MB_METRIC_MEAN)
        return {"mean": boundary.function({"all_mb_metrics": {name: values}})[name]}
    return {"mean": boundary.function({"reward": values})["reward"]}


def _solved(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    right = inputs["right"]
    prompts = torch.tensor([[place, 7] for place, own in enumerate(right) for _ in own])
    return {"pass_at_k": boundary.function(prompts, torch.tensor([float(x) for own in right for x in own]))}


def _fill_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Extend a batch to a multiple of four rows with NeMo-RL. Check that the new rows are masked, and remove them."""
    fields = inputs["fields"]
    rows = len(fields["number"])
    tokens = torch.arange(3 * rows).reshape(rows, 3)
    batch = boundary.imported[BATCHES].BatchedDataDict(
        {
            "input_ids": torch.cat([fields["number"][:, None], fields["tokens"]], 1),
            "input_lengths": fields["number"] * 1,
            "token_mask": torch.ones_like(tokens),
            "sample_mask": torch.ones(rows),
            "reference_policy_logprobs": fields["weights"],
        }
    )
    made = boundary.function(batch, 2, 2)
    number, tokens = made["input_ids"][:, 0], made["input_ids"][:, 1:]
    weighted = (made["token_mask"] * made["sample_mask"][:, None]).sum(-1) == 3
    if not torch.equal(weighted, torch.arange(len(number)) < rows) or not torch.equal(number, made["input_lengths"]):
        return {"parts": [], "metas": []}
    whole = {"number": number, "tokens": tokens, "weights": made["reference_policy_logprobs"]}
    return {"parts": [{name: column[:rows] for name, column in whole.items()}], "metas": [inputs["meta"]]}


_STEPS = (
    normalised_rewards(f"{_GRPO}.scale_rewards", _scale_rewards, fixed={"mean_level": None, "std_level": None}),
    normalised_rewards(
        f"{_GRPO}._clip_grpo_advantages", _clipped_advantages, "clip", fixed={"mean_level": None, "std_level": None},
        requires=(f"{_GRPO}._clip_grpo_advantages",),
    ),
    *(
        group_advantage(
            f"{_GRPO}._create_advantage_estimator", _estimate, estimator, knobs, *_COUNTED, *dialects,
            stand_ins=(_OF_LOSS,), fixed={"reward_layout": "outcome"}, accepts={"response_mask": ("full", "right")},
            imports=(_ESTIMATORS,), requires=(f"{_GRPO}._create_advantage_estimator", _ESTIMATORS),
        )
        for estimator, knobs, dialects in (
            ("grpo", ("norm_by_std",), ()), ("gdpo", ("norm_by_std",), ()),
            ("reinforce_plus_plus_baseline", (), (_BIASED,)),
        )
    ),
    Binding(
        f"{_GRPO}._apply_message_level_advantage_penalties", "turn_penalty", call=_penalise_turns,
        requires=(f"{_GRPO}._apply_message_level_advantage_penalties",),
    ),
    Binding(f"{_GRPO}._apply_mask_sample_filter", "overlong_filter", call=_mask_flagged),
    *(
        Binding(path, "mean_of_parts", call=_average_metric, fixed={"missing": False})
        for path in (
            f"{_GRPO}.aggregate_rollout_metrics",
            f"{ALGORITHMS}.single_controller_utils.utils.reduce_advantage_pump_metrics",
            f"{ALGORITHMS}.single_controller_utils.utils.aggregate_step_metrics",
        )
    ),
    Binding(
        "nemo_rl.environments.metrics.calculate_pass_rate_per_prompt", "pass_at_k", call=_solved,
        accepts={"of": ("all",)},
    ),
    Binding(
        f"{_UTILS}.maybe_pad_last_batch", "row_surgery", call=_fill_batch, imports=(BATCHES,),
        fixed={
            "surgery": "repeat", "count": 1,
            "layouts": {name: LAYOUTS[name] for name in ("number", "tokens", "weights")},
        },
    ),
)  # fmt: skip

# -- collation ---------------------------------------------------------------------------------------------------------


def _make_log(sample: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert a sample to a message log. Its first token is the user's message; the rest is the assistant's."""
    cuts = (("user", slice(0, 1)), ("assistant", slice(1, None)))
    names = {"token_ids": "token_ids", "generation_logprobs": "logprobs"}
    return [
        {"role": role, "content": sample["tag"], **{name: sample[ours][cut] for name, ours in names.items()}}
        for role, cut in cuts
        if len(sample["token_ids"][cut])
    ]


def _flatten_logs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten message logs to a padded batch with NeMo-RL, and convert the batch back to samples.

    If the boundary decomposes or restores message logs, the logs are decomposed and restored in between.
    """
    samples, data = inputs["samples"], boundary.imported[_MESSAGES_OF]
    logs = [_make_log(sample) for sample in samples]
    flat, lengths = data.batched_message_log_to_flat_message(
        logs, {"token_ids": 9}, make_sequence_length_divisible_by=4
    )
    columns = {"token_ids": "token_ids", "logprobs": "generation_logprobs"}
    if "compose" not in boundary.path and "reconstruct" not in boundary.path and "attach" not in boundary.path:
        cut = ({ours: flat[name][row, :length] for ours, name in columns.items()} for row, length in enumerate(lengths))
        return {"samples": [{**own, "tag": flat["content"][row][0]} for row, own in enumerate(cut)]}
    batch = boundary.imported[BATCHES].BatchedDataDict(
        {"input_ids": flat["token_ids"], "generation_logprobs": flat["generation_logprobs"]}
    )
    batch.update(data.decompose_message_log(logs))
    data.attach_message_log_view(batch)
    read = []
    for sample, log in zip(samples, batch["message_log"]):
        probs = [turn.get("generation_logprobs", sample["logprobs"][: len(turn["token_ids"])]) for turn in log]
        ids = torch.cat([turn["token_ids"] for turn in log])
        read.append({"token_ids": ids, "logprobs": torch.cat(probs), "tag": log[0]["content"]})
    return {"samples": read}


def _collate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate samples with NeMo-RL, and convert the batch back. A tag is the environment's extra information."""
    rows = [
        {
            "message_log": [{"role": "user", "content": "", **sample}],
            "length": len(sample["token_ids"]),
            "loss_multiplier": 1.0,
            "extra_env_info": {"tag": sample["tag"]},
            "idx": place,
        }
        for place, sample in enumerate(inputs["samples"])
    ]
    made = boundary.function(rows)
    read = []
    for place, (log, info) in enumerate(zip(made["message_log"], made["extra_env_info"])):
        whole = made["idx"][place] == place and made.get("length", {place: len(log[0]["token_ids"])})[place]
        own = {name: log[0][name] for name in ("token_ids", "logprobs")}
        read.append({**own, "tag": info["tag"]} if whole == len(own["token_ids"]) else {})
    return {"samples": read}


def _pack_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack sequences into one row and unpack them with NeMo-RL. Return no samples if the positions are wrong."""
    samples = inputs["samples"]
    ids = torch.nn.utils.rnn.pad_sequence([sample["token_ids"] for sample in samples], batch_first=True)
    lengths = torch.tensor([len(sample["token_ids"]) for sample in samples])
    packed, places, _ = boundary.module.pack_sequences(ids, lengths, [len(samples)], return_attention_mask=False)
    rows = boundary.module.unpack_tensor(packed[..., None].float(), lengths)[..., 0].long()
    wanted = torch.cat([torch.arange(length) for length in lengths.tolist()])
    right = torch.equal(places[0, : len(wanted)], wanted)
    cut = [row[:length] for row, length in zip(rows, lengths.tolist())]
    others = [{name: sample[name] for name in ("logprobs", "tag")} for sample in samples]
    return {"samples": [{"token_ids": own, **other} for own, other in zip(cut, others)] if right else []}


def _pad_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, length = inputs["values"], inputs["length"]
    if "pad_side" in boundary.parameters:
        rows = [boundary.function(row, length, inputs["side"], inputs["pad_value"]) for row in values]
        return {"padded": torch.stack(rows)}
    if values.shape[1] > length or inputs["side"] != "right" or inputs["pad_value"]:
        raise AbsentError(
            "NeMo-RL's function only adds zeros on the right; the scenario needs other padding, or truncation"
        )
    return {"padded": boundary.function(values, length)}


_SAMPLES = {
    "layouts": {
        "token_ids": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]},
        "logprobs": {"kind": "tensor", "dtype": "float32", "shape": ["tokens"]},
        "tag": {"kind": "text"},
    }
}
_COMMON = "nemo_rl.models.huggingface.common"
_COLLATED = (
    *(
        Binding(
            path, "collation", formerly, call=call, fixed=_SAMPLES, imports=(_MESSAGES_OF, BATCHES),
            requires=() if formerly else (path,),
        )
        for path, call, formerly in (
            *(
                (f"{_MESSAGES_OF}.{name}", _flatten_logs, ())
                for name in (
                    "message_log_to_flat_messages", "batched_message_log_to_flat_message", "decompose_message_log",
                    "reconstruct_message_log", "attach_message_log_view",
                )
            ),
            *(
                (f"nemo_rl.data.collate_fn.{name}", _collate, (f"nemo_rl.data.datasets.{name}",))
                for name in ("rl_collate_fn", "eval_collate_fn")
            ),
            *(
                (f"{_COMMON}.{name}", _pack_rows, ())
                for name in ("pack_sequences", "unpack_tensor", "group_and_cat_tensors")
            ),
        )
    ),
    Binding(f"{_MESSAGES_OF}._pad_tensor", "column_padding", call=_pad_values),
    Binding(
        f"{_GRPO}._pad_teacher_logprobs", "column_padding", call=_pad_values, fixed={"side": "right"},
        requires=(f"{_GRPO}._pad_teacher_logprobs",),
    ),
    *(
        Binding(
            path, "trained_tokens", call=_process_chat, fixed=_WHOLE, requires=(f"{_PROCESSORS}.sft_processor",),
            **_CHATS,
        )
        for path in (f"{_MESSAGES_OF}.add_loss_mask_to_message_log", f"{_MESSAGES_OF}.get_formatted_message_log")
    ),
)  # fmt: skip

# -- bindings for recipes only -----------------------------------------------------------------------------------------


def _process_prompt(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of the prompt that NeMo-RL's processor makes from the recipe's conversation."""
    answer = boundary.function(inputs["arguments"], None, Words(), 100, 0)
    return {"returned": [token for message in answer["message_log"] for token in message["token_ids"].tolist()]}


_CALLS = (
    Binding(
        f"{_PROCESSORS}.helpsteer3_data_processor", "call", call=_process_prompt,
        stand_ins=(StandIn("tokenizer", "each word is a token, and its number is the token's id"),),
    ),
)  # fmt: skip


def _with_imports(bindings: Sequence[Binding]) -> list[Binding]:
    """Return bindings that are not in versions without one of the modules that they import."""
    return [replace(binding, requires=(*binding.requires, *binding.imports)) for binding in bindings]


_BINDINGS = (
    *objectives.BINDINGS,
    *_SCORED,
    *_STEPS,
    *_COLLATED,
    *_LENGTHS,
    *_REPORTS,
    *_NUMBERS,
    *_ADVANTAGES,
    *_MESSAGES,
    *containers.BINDINGS,
    *_with_imports(parallel.BINDINGS),
    *_with_imports(conversations.BINDINGS),
    *_with_imports(crossed.BINDINGS),
    *_with_imports(packing.BINDINGS),
    *_with_imports(buffers.BINDINGS),
    *rewards.BINDINGS,
    *_CALLS,
    *alignment.BINDINGS,
    *runs.BINDINGS,
    *planes.BINDINGS,
    *workers.BINDINGS,
)
#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "nemo_rl.data_plane.*", "nemo_rl.distributed.virtual_cluster.*", "nemo_rl.distributed.worker_groups.*",
    "nemo_rl.evals.*", "nemo_rl.models.generation.*", "nemo_rl.models.megatron.setup.*", "nemo_rl.utils.*",
)  # fmt: skip

TARGET = Target(
    name="nemorl", arguments={"response_mask": ("mask", "response_mask")},
    repository="https://github.com/NVIDIA-NeMo/RL", roots=(PackageRoot("nemo_rl"), PackageRoot("nemo_reinforcer")),
    moved={
        "nemo_rl": ("nemo_reinforcer",),
        LOSSES: (f"{ALGORITHMS}.loss_functions", "nemo_reinforcer.algorithms.loss_functions"),
    },
    preload=("torch._dynamo", "pydantic", "transformers", "transformers.models.auto.processing_auto", "requests"),
    # NeMo-RL patches tokenizers of transformers before 5.12. Before Python 3.12, pydantic requires the TypedDict of
    # typing_extensions.
    at_import={"transformers.__version__": "5.11.0", "typing.TypedDict": Alias("typing_extensions.TypedDict")},
    bindings=tuple(replace(binding, dtypes=("float32", "bfloat16")) for binding in _BINDINGS), no_signal=_NO_SIGNAL,
)  # fmt: skip
