"""SkyRL: the rules by which the environments of its gym score a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding, StandIn
from sentinel.worker.kit import ruled, ruled_of_answers, stand_in

_ENVIRONMENTS = "skyrl_gym.envs"

_TRAINER = StandIn("self", "the real trainer starts a cluster; the method reads these options alone")

_HASHES = ("#### {answer}", "6 times 7 is\n#### {answer}")
_LINES = ("Answer: {answer}", "So it is.\nAnswer: {answer}")
_TAGS = ("<answer>{answer}</answer>", "I see. <answer> {answer} </answer>")


def _rule(name: str, wordings: tuple[str, ...], call: Any = ruled, **accepts: Any) -> Binding:
    return Binding(f"{_ENVIRONMENTS}.{name}", "rule_reward", call=call, accepts={"wording": wordings, **accepts})


def _laid(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The rewards that the trainer makes of a generator's; a response has as many tokens as there are in its row."""
    import torch

    mask = inputs["response_mask"] != 0
    lengths, rows = mask.sum(-1).tolist(), len(mask)
    generator = stand_in(n_samples_per_prompt=1, step_wise_trajectories=False, merge_stepwise_output=False)
    algorithm = stand_in(zero_variance_filter=False, zero_variance_filter_tol=0.0)
    trainer = stand_in(
        cfg=stand_in(generator=generator, trainer=stand_in(algorithm=algorithm, step_wise_training=False)),
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
    }
    answer = boundary.function(trainer, output, [str(row) for row in range(rows)])
    found = (
        answer[0] if isinstance(answer, tuple) else answer
    )  # since April 2026 rows may be merged, and uids with them
    width = mask.shape[1]
    rewards = [row + [0.0] * (width - len(row)) for row in found["rewards"]]
    return {"token_level_rewards": torch.tensor(rewards, dtype=inputs["rewards"].dtype)}


BINDINGS = (
    Binding(
        "skyrl.train.trainer.RayPPOTrainer.postprocess_generator_output",
        "token_reward",
        call=_laid,
        stand_ins=(_TRAINER,),
        fixed={"score_as": None},
        accepts={"response_mask": ("full", "right")},
    ),
    _rule("gsm8k.utils.compute_score", _HASHES),
    _rule("aime.utils.compute_score", _LINES),
    _rule("search.utils.compute_score", _TAGS, ruled_of_answers),
    # It looks for the answer anywhere, without its punctuation: 3 is in 43.
    _rule("search.utils.compute_score_subem", _TAGS, ruled_of_answers, ground_truth=("42", "7", "100")),
)

UNBOUND = {
    f"{_ENVIRONMENTS}.sql.*": "it runs a response's query on a database, which is a download",
    f"{_ENVIRONMENTS}.lcb.*": "it runs a response's program on tests, which a probe may not",
    f"{_ENVIRONMENTS}.searchcode.*": "it asks the rules that are bound, and services of search and of Python",
    f"{_ENVIRONMENTS}.rlm.*": "it runs a response's program, and asks a model",
    f"{_ENVIRONMENTS}.*": "it asks the rules that are bound, and the parts of these",
}
