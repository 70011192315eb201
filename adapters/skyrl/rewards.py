"""Bindings for SkyRL's rules that score a response, and for its filters of training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import rule_reward
from sentinel.binding.kit import torch

from .shared import CODE

_ENVIRONMENTS = "skyrl_gym.envs"

_TRAINER = StandIn("self", "the real trainer starts a cluster; the method reads only these options")

_HASHES = ("#### {answer}", "6 times 7 is\n#### {answer}")
_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_TAGS = ("<answer>{answer}</answer>", "I see. <answer> {answer} </answer>")


@dataclass(frozen=True)
class _Trajectory:
    """A stand-in for SkyRL's TrajectoryID."""

    instance_id: str

    def to_string(self) -> str:
        return self.instance_id


def _token_rewards(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token rewards that SkyRL's trainer computes from one reward per response.

    If the number of rows is odd, each response is the only step of a trajectory, and SkyRL merges steps.
    """
    mask = inputs["response_mask"] != 0
    lengths, rows = mask.sum(-1).tolist(), len(mask)
    steps = rows % 2 == 1 and min(lengths) > 0 and "merge_stepwise_output" in kit.source_of(boundary.function)
    generator = kit.stand_in(n_samples_per_prompt=1, step_wise_trajectories=steps, merge_stepwise_output=steps)
    filters = rows % 2 == 0  # prompts of one response are never filtered
    algorithm = kit.stand_in(zero_variance_filter=filters, zero_variance_filter_tol=0.0)
    trainer = kit.stand_in(
        cfg=kit.stand_in(generator=generator, trainer=kit.stand_in(algorithm=algorithm, step_wise_training=False)),
        all_metrics={},
    )
    output = {
        "prompt_token_ids": [[1]] * rows,
        "response_ids": [[5] * length for length in lengths],
        "rewards": inputs["rewards"].tolist(),
        "loss_masks": [[1] * length for length in lengths],
        "stop_reasons": None,
        "rollout_metrics": None,
        "rollout_logprobs": None,
        "is_last_step": [True] * rows,
        "trajectory_ids": [_Trajectory(str(row)) for row in range(rows)],
    }
    answer = boundary.function(trainer, output, [str(row) for row in range(rows)])
    # Since April 2026, the method may merge rows, and returns a tuple: the output, and the uids of the remaining rows.
    kept = answer[0] if isinstance(answer, tuple) else answer
    width = mask.shape[1]
    rewards = [row + [0.0] * (width - len(row)) for row in kept["rewards"]]
    return {"token_level_rewards": torch.tensor(rewards, dtype=inputs["rewards"].dtype)}


_REWARDS = (
    Binding(
        "skyrl.train.trainer.RayPPOTrainer.postprocess_generator_output", "token_reward", call=_token_rewards,
        stand_ins=(_TRAINER,), fixed={"score_as": None}, accepts={"response_mask": ("full", "right")},
    ),
    rule_reward(f"{_ENVIRONMENTS}.gsm8k.utils.compute_score", *_HASHES, notations="numbers"),
    rule_reward(f"{_ENVIRONMENTS}.aime.utils.compute_score", *_LINES, notations="minerva"),
    rule_reward(
        f"{_ENVIRONMENTS}.search.utils.compute_score", *_TAGS, notations="questions", call=kit.apply_rule_to_answers,
    ),
    rule_reward(
        f"{_ENVIRONMENTS}.search.utils.compute_score_subem", *_TAGS, notations="questions",
        call=kit.apply_rule_to_answers,
        # Without the answer -3: the rule searches the whole response for the answer without its punctuation, so it
        # would find 3 in the wrong answer 43.
        accepts={"ground_truth": ("42", "7", "100")},
    ),
)  # fmt: skip


_SAMPLING = "train.utils.trainer_utils"
_GENERATORS = "train.generators.utils"


def _sample(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the responses that SkyRL's dynamic sampling keeps.

    The requested batch is larger than any scenario, so that SkyRL does not drop responses to fit it. If
    groups are kept in both halves of the scenario, the halves arrive in two batches.
    """
    rewards, labels = inputs["rewards"].tolist(), list(inputs["group"])
    rows: list[Any] = [[row] for row in range(len(labels))]
    batch = {
        "prompt_token_ids": rows,
        "response_ids": rows,
        "rewards": rewards,
        "loss_masks": [[1]] * len(rows),
        "stop_reasons": ["stop"] * len(rows),
        "rollout_metrics": None,
        "rollout_logprobs": None,
    }
    state: dict[str, Any] = {"sample_batch_count": 1}
    options = {"train_batch_size": 1_000_000, "n_samples_per_prompt": kit.group_size(inputs)}
    for part in _batches_of(labels, rewards):
        own = {name: [column[row] for row in part] for name, column in batch.items() if column is not None}
        boundary.function({**batch, **own}, [labels[row] for row in part], options, state)
    # The entry is missing if SkyRL kept no row.
    collected = state.get("collected_generator_output", {"response_ids": [], "rewards": []})
    return {"numbers": [row for (row,) in collected["response_ids"]], "rewards": collected["rewards"]}


def _batches_of(labels: Sequence[Any], rewards: Sequence[float]) -> list[list[int]]:
    """Return the rows of each batch. SkyRL needs a group with different rewards in each batch."""
    groups = kit.rows_of_groups(labels)
    half = len(groups) // 2
    parts = [[row for rows in part for row in rows] for part in (groups[:half], groups[half:])]
    varied = [any(len({rewards[row] for row in rows}) > 1 for rows in part) for part in (groups[:half], groups[half:])]
    in_order = [row for part in parts for row in part] == [*range(len(labels))]
    return parts if all(varied) and in_order else [[*range(len(labels))]]


def _filter_groups(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rewards, labels = inputs["rewards"].tolist(), list(inputs["group"])
    numbers = boundary.invoke({}, rewards, labels, loss_masks=[[1]] * len(labels))
    return {"numbers": numbers, "rewards": [rewards[row] for row in numbers]}


def _filter_truncated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss mask after SkyRL's filter of truncated responses. A response is truncated if it fills its row."""
    mask = inputs["response_mask"] != 0
    rows = [[1] * int(row.sum()) for row in mask]
    full = [len(row) == mask.shape[1] for row in rows]
    if "stop_reasons" in boundary.parameters:
        kept = boundary.function(rows, ["length" if cut else "stop" for cut in full])
    else:
        ids = [[5] * (len(row) - 1) + [5 if cut else 2] for row, cut in zip(rows, full)]
        kept = boundary.function(rows, ids, 2)
    padded = [row + [0] * (mask.shape[1] - len(row)) for row in kept]
    return {"kept": torch.tensor(padded)}


def _alone(line: int) -> Dialect:
    return Dialect(
        "group_of_one",
        "kept",
        "nothing is filtered if each prompt has one response",
        f"{CODE}/{_SAMPLING.replace('.', '/')}.py#L{line}",
    )


_FILTERS = (
    Binding(
        f"skyrl.{_SAMPLING}.handle_filter_sampling", "group_filter", call=_sample, fixed={"group_layout": "equal"},
        dialects=(_alone(556),),
    ),
    Binding(f"skyrl.{_SAMPLING}.zero_variance_filter", "group_filter", call=_filter_groups, dialects=(_alone(663),)),
    Binding(
        f"skyrl.{_GENERATORS}.apply_overlong_filtering", "overlong_filter", call=_filter_truncated,
        accepts={"response_mask": ("full", "right")},
    ),
)  # fmt: skip


BINDINGS = (*_REWARDS, *_FILTERS)
