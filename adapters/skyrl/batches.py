"""Bindings for SkyRL's functions that join, merge, pad, pack and report finished rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .shared import CONFIGURED, GYM, configuration_of

_ASYNC = "skyrl.train.fully_async_trainer.FullyAsyncRayPPOTrainer"
_GROUPS = f"{_ASYNC}.convert_generation_group_mini_batch_to_training_input"
_OUTPUTS, _REPORTS = "skyrl.train.generators.utils", "skyrl.train.utils.trainer_utils"
_GENERATOR = "skyrl.train.generators.skyrl_gym_generator.SkyRLGymGenerator"
_COLLATOR = "skyrl.train.dataset.collators.PackedDataCollator.__call__"
_PADDING = "skyrl.train.dataset.preprocess.convert_prompts_responses_to_batch_tensors"

_TRAINER = StandIn("self", "the real trainer starts Ray; the step reads only these attributes")
_TOKENIZER = StandIn("tokenizer", "only its pad_token_id is read; text that it decodes is only printed")
_LOOP = StandIn("agent_loop", "returns the scenario's responses; the loop has bindings of its own")
_BAR = StandIn("tqdm", "awaits the tasks without a progress bar")

#: The columns of a response. The adapter adds a prompt and a loss mask.
_RESPONSE = {
    "layouts": {
        "response": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]},
        "log_probs": {"kind": "tensor", "dtype": "float32", "shape": ["tokens"]},
        "reward": {"kind": "tensor", "dtype": "float32", "shape": []},
    }
}
_TOKENS = {"layouts": {"tokens": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]}}}
_PAD, _MORE = 7, 0.25
#: Two of SkyRL's own environments. SkyRL reports the mean of each environment's metrics.
_ENVIRONMENTS = ("gsm8k", "aime")


def _prompt(place: int) -> list[int]:
    return [1000 + place] * (1 + place)


def _loss_mask(count: int) -> list[int]:
    """Return a loss mask of ``count`` tokens with 0 for the second token, and 1 for all others."""
    return [int(place != 1) for place in range(count)]


def _generator_output(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the samples in the format of SkyRL's generator output. Rewards get a constant, because the first is 0."""
    return {
        "prompt_token_ids": [_prompt(place) for place, _ in enumerate(samples)],
        "response_ids": [sample["response"].tolist() for sample in samples],
        "rewards": [float(sample["reward"]) + _MORE for sample in samples],
        "loss_masks": [_loss_mask(len(sample["response"])) for sample in samples],
        "rollout_logprobs": [sample["log_probs"].tolist() for sample in samples],
        "stop_reasons": ["length" if place % 2 else "stop" for place, _ in enumerate(samples)],
    }


def _samples_of(told: Mapping[str, Any], like: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert SkyRL's generator output back to samples.

    A sample is empty if its prompt, loss mask or stop reason differs from that in ``like``.
    """
    same = ("prompt_token_ids", "loss_masks", "stop_reasons")
    count = len(told["response_ids"])
    return [
        {
            "response": torch.tensor(told["response_ids"][row]),
            "log_probs": torch.tensor(told["rollout_logprobs"][row]),
            "reward": torch.tensor(told["rewards"][row] - _MORE),
        }
        if all(told[name][row] == like[name][row] for name in same)
        else {}
        for row in range(count)
    ]


def _read_row(row: int, ids: Any, there: Any, answered: Any, rewards: Any, mask: Any, log_probs: Any) -> dict[str, Any]:
    """Return the response, log-probs and reward of a left-padded row, or an empty dict if a column is misaligned."""
    count = int(answered.sum())
    first, start = len(answered) - count, len(ids) - count
    fits = [
        bool(answered[first:].all()) and not mask[:first].any() and not rewards[:-1].any(),
        ids[there.bool()][: -count or None].tolist() == _prompt(row) and int(there.sum()) == count + len(_prompt(row)),
        mask[first:].tolist() == _loss_mask(count) and bool((ids[~there.bool()] == _PAD).all()),
        not log_probs[:first].any(),
    ]
    columns = {"response": ids[start:], "log_probs": log_probs[first:], "reward": rewards[-1] - _MORE}
    return columns if all(fits) else {}


def _generate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Generate a batch with SkyRL and a stand-in agent loop, which returns the scenario's responses.

    Return no samples if SkyRL called the loop with wrong arguments. If the number of samples is even, two samples are
    the steps of one trajectory.
    """
    samples = inputs["samples"]
    given, asked = _generator_output(samples), list[Any]()
    steps = 2 if len(samples) % 2 == 0 and "step_wise_trajectories" in kit.source_of(boundary.function) else 1

    async def loop(prompt: Any, env_class: Any, extras: Any, *limits: Any, **more: Any) -> Any:
        row = int(prompt[0]["content"])
        asked.append((row, env_class, extras, limits[:2], more.get("sampling_params")))
        outputs = [step(steps * row + place) for place in range(steps)]
        if steps == 1:
            return outputs[0]
        return kit.stand_in(step_outputs=outputs, e2e_time=2.0 + row, time_splits={"llm": 1.0, "env": 0.5})

    def step(row: int) -> Any:
        return kit.stand_in(
            response_ids=given["response_ids"][row],
            reward=given["rewards"][row],
            stop_reason=given["stop_reasons"][row],
            loss_mask=given["loss_masks"][row],
            prompt_ids=given["prompt_token_ids"][row],
            rollout_logprobs=given["rollout_logprobs"][row],
            env_metrics={"turns": 1.0 + row},
            e2e_time=2.0 + row,
            time_splits=None,
            pixel_values=None,
            image_grid_thw=None,
            rollout_expert_indices=None,
        )

    off = ("zero_reward_on_non_stop", "apply_overlong_filtering", "use_cache_salt")
    settings = kit.stand_in(
        **dict.fromkeys(off, False),
        step_wise_trajectories=steps > 1,
        sampling_params=kit.stand_in(max_generate_length=100, logprobs=1),
        max_input_length=1000,
        inference_engine=kit.stand_in(enable_return_routed_experts=False),
    )
    made = kit.make_unbuilt(boundary.owner, generator_cfg=settings, batched=False, agent_loop=loop)
    count = len(samples) // steps
    request = {
        "prompts": [[{"role": "user", "content": str(row)}] for row in range(count)],
        "env_classes": [_ENVIRONMENTS[row % 2] for row in range(count)],
        "env_extras": [{"row": row} for row in range(count)],
        "sampling_params": {"logprobs": 1, "top_k": 5},
        "trajectory_ids": [f"trajectory {row}" for row in range(count)],
    }
    bar = kit.stand_in(gather=lambda *tasks, **_: asyncio.gather(*tasks))
    with kit.swap(boundary.module, "tqdm", bar):
        told = kit.run_async(boundary.function(made, request))
    own = [(row, _ENVIRONMENTS[row % 2], {"row": row}, (100, 1000), request["sampling_params"]) for row in range(count)]
    fits = sorted(asked, key=itemgetter(0)) == own
    if steps > 1:
        ids = [f"trajectory {row // steps}" for row in range(len(samples))]
        fits = fits and told["trajectory_ids"] == ids and told["is_last_step"] == [False, True] * count
    return {"samples": _samples_of(told, given) if fits else []}


def _make_training_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make a training batch from groups of one response. Each comes from an older policy than the one before.

    One more group was dropped. It appears only in metrics.
    """
    samples = inputs["samples"]
    given, count = _generator_output(samples), len(samples)
    sizes = {"trainer.train_batch_size": count, "trainer.policy_mini_batch_size": count}
    made = kit.make_unbuilt(
        boundary.owner,
        cfg=configuration_of(boundary, {**sizes, "generator.n_samples_per_prompt": 1}),
        tokenizer=kit.stand_in(pad_token_id=_PAD, decode=str),
        all_metrics={},
        dispatch=kit.stand_in(get_lcm_dp_size=lambda: 1),
        global_step=7,
        max_staleness_steps=1,
        trajectory_logger=None,
    )

    def group(row: int, number: int) -> Any:
        output = {name: column[row : row + 1] for name, column in given.items()}
        output |= {"rollout_metrics": {"own/avg": 1.5 + number}, "trajectory_generation_times": [2.0 + number]}
        step = 7 - number
        return kit.stand_in(
            generator_output=output,
            uid=str(number),
            global_step_when_scheduled=step,
            group_completion_time_s=3.0 + number * number,
            prompts=[[{"role": "user", "content": str(row)}]],
        )

    batch = boundary.function(made, [group(row, row) for row in range(count)], [group(0, count)])
    names = ("sequences", "attention_mask", "response_mask", "rewards", "loss_mask", "rollout_logprobs")
    return {"samples": [_read_row(row, *(batch[name][row] for name in names)) for row in range(count)]}


def _make_tensors(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    samples = inputs["samples"]
    given = _generator_output(samples)
    lists = [[0.0] * (len(ids) - 1) + [reward] for ids, reward in zip(given["response_ids"], given["rewards"])]
    tokens = (given["prompt_token_ids"], given["response_ids"], lists, given["loss_masks"], given["rollout_logprobs"])
    if "rollout_expert_indices" not in boundary.parameters:
        columns = boundary.function(_PAD, *tokens)[:6]
        return {"samples": [_read_row(row, *(column[row] for column in columns)) for row in range(len(samples))]}
    routes = [_routes(row, len(ids)) for row, ids in enumerate(given["response_ids"])]
    columns = boundary.function(_PAD, *tokens, rollout_expert_indices=[each.numpy() for each in routes])
    found = [_read_row(row, *(column[row] for column in columns[:6])) for row in range(len(samples))]
    return {"samples": [each if _has_routes(columns, row, routes[row]) else {} for row, each in enumerate(found)]}


def _routes(row: int, count: int) -> Any:
    """Return the experts of each token but the last, in two layers with two experts each."""
    tokens = len(_prompt(row)) + count - 1
    return (torch.arange(tokens * 4).reshape(tokens, 2, 2) + 5 * row) % 64


def _has_routes(columns: Sequence[Any], row: int, routes: Any) -> bool:
    """Return True if the row's attended tokens, except the last, have its routes."""
    return bool(torch.equal(columns[6][row][columns[1][row].bool()][:-1].long(), routes))


def _merge_turns(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the turns of a trajectory with SkyRL, and read each turn from the merged responses.

    Before turn n, counted from 0, the environment adds n tokens. From turn 2 on, the prompt is another one, so two
    responses remain. SkyRL keeps only the last turn's reward of each, so the scenario's rewards are returned for all
    turns. If the number of turns is odd, each token has a reward, and SkyRL keeps all rewards.
    """
    samples = inputs["samples"]
    given, count = _generator_output(samples), len(samples)
    rewards = given["rewards"]
    if count % 2:
        given["rewards"] = [[*[0.0] * (len(ids) - 1), reward] for ids, reward in zip(given["response_ids"], rewards)]
    prompts = ([5, 6], [8, 6])
    held: list[int] = []
    for place, ids in enumerate(given["response_ids"]):
        held = [*prompts[place // 2]] if place in _STARTS else held + _heard(place)
        given["prompt_token_ids"][place] = held
        held = held + ids
    given |= {"trajectory_ids": ["one"] * count, "is_last_step": [place + 1 == count for place in range(count)]}
    told = boundary.function(given)
    parts = [range(min(2, count)), *([range(2, count)] if count > 2 else [])]
    lasts = [part[-1] for part in parts]
    whole = told["prompt_token_ids"] == [*prompts[: len(parts)]] and len(told["response_ids"]) == len(parts)
    whole = whole and told["is_last_step"] == [last + 1 == count for last in lasts]
    whole = whole and told["stop_reasons"] == [given["stop_reasons"][last] for last in lasts]
    whole = whole and (count % 2 == 1 or told["rewards"] == [rewards[last] for last in lasts])
    found: list[dict[str, Any]] = []
    for row, part in enumerate(parts):
        found += _read_turns(told, row, part, samples) if whole else []
    return {"samples": found}


#: The turns that begin a response. Later turns continue it.
_STARTS = (0, 2)


def _heard(place: int) -> list[int]:
    return [2000 + place] * place


def _read_turns(told: Mapping[str, Any], row: int, part: range, samples: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the turns of a merged response, or an empty list if it has other tokens."""
    ids, mask, logs = (told[name][row] for name in ("response_ids", "loss_masks", "rollout_logprobs"))
    rewards = told["rewards"][row] if isinstance(told["rewards"][row], list) else None
    found, end = [], 0
    for place in part:
        heard = [] if place in _STARTS else _heard(place)
        start = end + len(heard)
        silent = ids[end:start] == heard and not any([*mask[end:start], *logs[end:start]])
        end = start + len(samples[place]["response"])
        fits = silent and mask[start:end] == _loss_mask(end - start)
        columns = {"response": torch.tensor(ids[start:end]), "log_probs": torch.tensor(logs[start:end])}
        reward = samples[place]["reward"]
        if rewards is not None and end > start:
            fits = fits and not any(rewards[start : end - 1])
            reward = torch.tensor(rewards[end - 1] - _MORE)
        found.append({**columns, "reward": reward} if fits else {})
    return found if end == len(ids) else []


def _pack_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack rows with SkyRL's collator for two ranks, and read each row at the offsets that SkyRL returns.

    Segments are padded to a multiple of four tokens. Each row begins with one prompt token.
    """
    samples = inputs["samples"]
    rows = [[9, *sample["tokens"].tolist()] for sample in samples]
    masks = [_loss_mask(len(row) - 1) for row in rows]
    examples = [
        {"input_ids": row, "loss_mask": mask, "attention_mask": [1] * len(row), "num_actions": len(mask)}
        for row, mask in zip(rows, masks)
    ]
    ranks = 2 if len(rows) > 1 else 1
    sizes = {"tp_size": 1, "pp_size": 1, "cp_size": 2, "dp_size": ranks}
    options = {"max_tokens_per_microbatch": 12, "batch_size": len(rows), "micro_train_batch_size_per_gpu": 1, **sizes}
    made = boundary.owner(kit.stand_in(pad_token_id=_PAD), **options)
    batch = boundary.function(made, examples, batch_size=len(rows))
    share, found = 1 / sum(map(sum, masks)), dict[int, dict[str, Any]]()
    for ids, there, loss, lengths in zip(*(batch[name] for name in _BINS)):
        start = 0
        for length in lengths.tolist():
            own = ids[start : start + length].tolist()
            flags = loss[start : start + length].tolist()
            step = start + -(-length // 4) * 4
            row = rows.index(own) if own in rows else -1
            fits = row >= 0 and bool(there[start : start + length].all()) and not there[start + length : step].any()
            fits = fits and torch.allclose(
                torch.tensor(flags[: length - 1]), torch.tensor([share * flag for flag in masks[row]])
            )
            if fits and not any(loss[start + length - 1 : step].tolist()):
                found[row] = {"tokens": ids[start + 1 : start + length]}
            start = step
    return {"samples": [found.get(row, {}) for row in range(len(rows))]}


_BINS = ("sequences", "attention_mask", "loss_mask", "sub_seq_lengths")


def _report_pass_at_k(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pass@k and the mean score that SkyRL reports for the data set ``own``.

    The data set ``other`` has the opposite rewards, so the result changes if SkyRL mixes the two.
    """
    right, count = inputs["right"], len(inputs["right"][0])
    rows = [(name, place, value) for place, own in enumerate(right) for value in own for name in ("own", "other")]
    rewards = [float(value if name == "own" else 1 - value) for name, _, value in rows]
    output = {"rewards": rewards, "response_ids": [[1]] * len(rows)}
    uids, sources = [f"{name} {place}" for name, place, _ in rows], [name for name, *_ in rows]
    told = boundary.function(output, uids, sources, count)
    return {"pass_at_k": told[f"eval/own/pass_at_{count}"], "mean": told["eval/own/avg_score"]}


BINDINGS = (
    Binding(
        f"{_GENERATOR}.generate", "collation", call=_generate, fixed=_RESPONSE,
        stand_ins=(StandIn("self", "the real constructor needs a tokenizer and an engine"), _LOOP, _BAR),
        requires=(f"{_GENERATOR}.generate(disable_tqdm)",),
    ),
    Binding(
        _GROUPS, "collation", requires=(f"{_GROUPS}(dropped_groups)",), call=_make_training_batch,
        fixed=_RESPONSE, imports=CONFIGURED, stand_ins=(GYM, _TRAINER, _TOKENIZER),
    ),
    Binding(
        _PADDING, "collation", call=_make_tensors, fixed=_RESPONSE, requires=(f"{_PADDING}(pad_token_id)",),
    ),
    Binding(f"{_OUTPUTS}._merge_single_trajectory", "collation", call=_merge_turns, fixed=_RESPONSE),
    Binding(_COLLATOR, "collation", call=_pack_rows, fixed=_TOKENS, stand_ins=(_TOKENIZER,)),
    Binding(f"{_REPORTS}.calculate_per_dataset_metrics", "pass_at_k", call=_report_pass_at_k, accepts={"of": ("all",)}),
)  # fmt: skip
