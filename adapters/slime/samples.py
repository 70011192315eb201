"""Bindings for slime's functions that build samples from an agent's turns, distribute them over ranks, and log them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MPU, RANKS
from sentinel.binding.kit import torch

from .shared import ARGS, CP, TYPES, one_rank

_TRAJECTORY, _SHARED = "slime.agent.trajectory", "slime.utils.data.process_rollout_data"
_SCHEDULE = "slime.utils.dp_schedule.build_dp_schedule(rollout_indices)"
_REPORTS = "slime.observability.train_metric_utils"
_STORE = StandIn("ray", "holds the parts of a batch in this process")
_LOGGED = StandIn("logging_utils", "records the metrics that slime reports; the contract checks these")

#: The columns of a response. The adapter adds a prompt of one token.
_RESPONSE = {
    "layouts": {
        name: {"kind": "tensor", "dtype": dtype, "shape": ["tokens"]}
        for name, dtype in (("tokens", "int64"), ("log_probs", "float32"))
    }
}
#: Token ids that no sample has: of the prompt, of the environment, and of an answer that must not be trained.
_PROMPT, _HEARD, _UNTRAINED = 1005, 1999, 1500
_HISTORIES = ("same", "retokenised", "rewritten", "forked", "regenerated", "branched", "longer")

#: A turn of an agent: the messages and the tokens before an answer, and the tokens of the answer.
_Turn = tuple[list[dict[str, str]], list[int], list[int]]
#: A sample that follows from an agent's turns: its prompt, its response, and the response's loss mask.
_Made = tuple[list[int], list[int], list[int]]


def _turns(history: str, ids: list[int]) -> tuple[list[_Turn], list[_Made]]:
    """Return an agent's turns in which the model generates ``ids``, and the samples that follow from these turns.

    The policy gradient covers each generated token once, and only after the tokens that preceded it. So an answer that
    the client has replaced is not trained. An answer after other tokens needs a sample of its own.
    """
    asked, heard, other_heard = ([{"role": "user", "content": text}] for text in ("ask", "hear", "hear otherwise"))
    answer, other = ([{"role": "assistant", "content": text}] for text in ("answer 0", "another answer"))
    again, first, rest, ones = [*asked, *answer, *heard], ids[:1], ids[1:], [1] * len(ids)
    if history == "longer":
        return [(asked, [_PROMPT], [*ids, _UNTRAINED])], [([_PROMPT], ids, ones)]
    if history == "retokenised":
        before, old = [_UNTRAINED, _UNTRAINED + 2, _HEARD], [_UNTRAINED, _UNTRAINED + 1]
        foreign = [*other_heard, *other]  # the client also sends an answer that the model did not generate
        turns = [([*foreign, *asked], [_PROMPT], old), ([*foreign, *again], [_PROMPT, *before], ids)]
        return turns, [([_PROMPT], [*before, *ids], [0, 0, 0, *ones])]
    if history == "rewritten":
        before = [_PROMPT, _UNTRAINED + 2, _HEARD]
        turns = [(asked, [_PROMPT], [_UNTRAINED]), ([*asked, *other, *heard], before, ids)]
        return turns, [(before, ids, ones)]
    start, middle, end = (asked, [_PROMPT], first), rest[:1], rest[1:]
    if history == "forked":
        before = [_PROMPT + 1, *first, _HEARD]
        return [start, (again, before, rest)], [([_PROMPT], first, [1]), (before, rest, ones[1:])]
    if history == "regenerated":
        before = [_PROMPT, _UNTRAINED, _HEARD]
        turns = [start, (asked, [_PROMPT], middle), ([*asked, *other, *heard], before, end)]
        return turns, [([_PROMPT], first, [1]), ([_PROMPT], middle, [1]), (before, end, ones[2:])]
    if history == "branched":
        branches = [[*first, _HEARD], [*first, _HEARD + 1]]
        turns = [start, (again, [_PROMPT, *branches[0]], middle)]
        turns.append(([*asked, *answer, *other_heard], [_PROMPT, *branches[1]], end))
        made = [([_PROMPT], [*branches[0], *middle], [1, 0, 1]), ([_PROMPT], [*branches[1], *end], [0, 0, *ones[2:]])]
        return turns, made
    return [start, (again, [_PROMPT, *first, _HEARD], rest)], [([_PROMPT], [*first, _HEARD, *rest], [1, 0, *ones[1:]])]


def _recorded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Record an agent's turns with slime, and return the trained tokens of the samples that slime builds."""
    module, kind, read = boundary.module, boundary.imported[TYPES].Sample, []
    for place, sample in enumerate(inputs["samples"]):
        ids, logs = sample["tokens"].tolist(), sample["log_probs"].tolist()
        history = inputs["history"] if len(ids) > 2 else "same"  # the others need three tokens
        manager, base = module.TrajectoryManager(), kind(index=place, group_index=9, prompt="", label=f"label {place}")
        log_prob_of = dict(zip(ids, logs))
        turns, expected = _turns(history, ids)
        if len(ids) == 1:
            turns, expected = turns[:1], [([_PROMPT], ids, [1])]
        for number, (messages, before, after) in enumerate(turns):
            answer = {"role": "assistant", "content": f"answer {number}"}
            turn = module.TurnRecord(before, after, "stop", [log_prob_of.get(token, -9.0) for token in after])
            manager.record_turn("session", turn=turn, prompt_messages=[], response_message=answer)  # is ignored
            manager.record_turn("session", turn=turn, prompt_messages=[*messages], response_message=answer)
        options = {"base_sample": base, "reward": 0.25 + place, "extra_metadata": {"key": place}}
        options |= {"max_sample_tokens": 1 + len(ids)} if history == "longer" else {}
        made = manager.get_trajectory("session", **options)
        again = manager.get_trajectory("session", **options)
        read.append({} if again else _responses(made, place, expected))
    return {"samples": read}


def _responses(made: list[Any], place: int, expected: list[_Made]) -> dict[str, Any]:
    """Return the trained tokens and their log-probs, or an empty dict if any other field of a sample is wrong."""
    fits = [len(made) == len(expected)]
    own: list[tuple[int, float]] = []
    for sample, (prompt, response, mask) in zip(made, expected):
        tokens = list(zip(response, sample.rollout_log_probs, mask))
        fits += [
            (sample.tokens, sample.loss_mask, sample.response_length) == ([*prompt, *response], mask, len(mask)),
            all(log == 0.0 for _, log, flag in tokens if not flag),
            (sample.index, sample.group_index, sample.rollout_id) == (place, 9, place),
            (sample.reward, sample.label, sample.metadata["key"]) == (0.25 + place, f"label {place}", place),
        ]
        own += [(token, log) for token, log, flag in tokens if flag]
    columns = dict(zip(("tokens", "log_probs"), (torch.tensor(column) for column in zip(*own))))
    return columns if all(fits) else {}


def _processed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Distribute samples over two ranks, and read each sample from the data that slime prepares for the rank."""
    samples, found = inputs["samples"], dict[int, dict[str, Any]]()
    lengths, rewards = (
        [10 + 3 * place for place, _ in enumerate(samples)],
        [0.5 * place for place, _ in enumerate(samples)],
    )
    parts = [[place for place in range(len(samples)) if place % 2 == rank] for rank in range(2)]
    boxes = [
        kit.stand_in(
            inner={
                "partition": part,
                "total_lengths": [*lengths],
                "raw_reward": [*rewards],
                **{name: [samples[place][name] for place in part] for name in ("tokens", "log_probs")},
            }
        )
        for part in parts
    ]
    for rank, part in enumerate(parts):
        with kit.swap(boundary.module, "ray", kit.stand_in(get=kit.return_first)):
            data = boundary.function(kit.stand_in(), boxes, rank, 2)
        for at, place in enumerate(part):
            # Return an empty sample if its length, its reward or the list of all rewards is wrong.
            own = data["total_lengths"][at] == lengths[place] and data["raw_reward"] == rewards
            own = own and data.get("local_raw_reward", rewards[rank::2])[at] == rewards[place]
            found[place] = {name: data[name][at] for name in ("tokens", "log_probs")} if own else {}
    return {"samples": [found.get(place, {}) for place, _ in enumerate(samples)]}


def _logged(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean reward and the mean advantage that slime logs for samples on several ranks. NaN is returned
    instead if another number that slime logs is wrong.

    With ``ci_test``, slime also requires plausible log-probs, and those of the reference in the first rollout.
    """
    parts, waiting, told = inputs["parts"], list[Any](), dict[str, Any]()
    everything = [value for part in parts for value in part]
    rollout = len(everything) % 2
    options = {"wandb_always_use_train_step": bool(rollout), "ci_test": True, "global_batch_size": 1}
    options |= dict.fromkeys(("log_multi_turn", "log_passrate", "log_correct_samples"), True)
    args = kit.stand_in(
        **options, n_samples_per_prompt=1, rollout_batch_size=len(everything), rollout_max_response_len=3
    )

    def gather(log: Any, into: Any = None, **_: Any) -> None:
        if into is None:
            waiting.append(log)
        else:
            into[:] = [log, *(one for one in waiting if one.keys() == log.keys())]

    def record(_: Any, metrics: Mapping[str, Any], **__: Any) -> None:
        told.update(metrics)

    places, batches = [*range(1, len(parts)), 0], list[Any]()
    for rank in places:
        own, count = parts[rank], len(parts[rank])
        columns = {"advantages": [torch.tensor([1 - value, 9.0]) for value in own]}
        for name in ("log_probs", "ref_log_probs"):
            columns[name] = [torch.tensor([-0.25 - value / 2, -7.0]) for value in own]
        columns["entropy"] = [torch.tensor([0.25 + value / 2] * 2) for value in own]
        batch = {
            "rewards": own,
            "raw_reward": everything,
            "local_raw_reward": own,
            "round_number": [1 + place for place in range(count)],
            "response_lengths": [2] * count,
            "total_lengths": [5 + place for place in range(count)],
            "loss_masks": [torch.tensor([1, 0])] * count,  # each response has a second, masked token
            "global_batch_sizes": [len(everything)],
            "learning_rate": torch.tensor(0.5),
            **columns,
        }
        batches.append(batch)
        world = kit.stand_in(get_rank=lambda rank=rank: rank, gather_object=gather)
        stands = {"dist": world, "logging_utils": kit.stand_in(log=record)}
        with one_rank(data_parallel=len(parts)), kit.swap_all(boundary.module, **stands):
            for name, answer in (("src_rank", 0), ("group_gloo", None)):
                setattr(
                    sys.modules["megatron.core"].mpu, f"get_data_parallel_{name}", lambda answer=answer, **_: answer
                )
            boundary.function(rollout, args, batch)
    mean = sum(everything) / len(everything)
    expected = {"step": rollout * len(everything), "learning_rate": 0.5, "entropy": 0.25 + mean / 2}
    if any(abs(told[f"rollout/{name}"] - value) > 1e-5 for name, value in expected.items()):
        return {"mean": float("nan"), "loss": float("nan")}
    return {"mean": told["rollout/rewards"], "loss": told["rollout/advantages"]}


BINDINGS = (
    *(
        Binding(
            f"{_TRAJECTORY}.{path}", "collation", call=_recorded, fixed=_RESPONSE, imports=(TYPES,),
            accepts={"history": _HISTORIES},
        )
        for path in ("_SampleBuilder.to_sample", "_SampleBuilder.append_turn", "TrajectoryManager.get_trajectory")
    ),
    # Older versions of this function distribute the samples themselves.
    Binding(
        _SHARED, "collation", call=_processed, fixed=_RESPONSE, stand_ins=(ARGS, _STORE), requires=(_SCHEDULE,),
    ),
    Binding(
        f"{_REPORTS}.log_rollout_data", "mean_of_parts", call=_logged, imports=(CP,), fixed={"missing": False},
        stand_ins=(ARGS, MPU, RANKS, _LOGGED),
    ),
)  # fmt: skip
