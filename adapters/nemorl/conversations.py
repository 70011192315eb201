"""Bindings for NeMo-RL's environments, and for rollouts in which each sample has its own conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import rule_reward
from sentinel.binding.kit import torch

from .shared import BATCHES, Words, message

_ROLLOUTS, _GRPO = "nemo_rl.experience.rollouts", "nemo_rl.algorithms.grpo"
_ENVIRONMENTS = "nemo_rl.environments"
_PARTS = ("reward/first", "reward/second")


class _Environment:
    """A stand-in environment. It checks that it gets the metadata, and the engine the stop strings, of its last step.

    :ivar stop: the stop strings that the engine must get next.
    """

    def __init__(self, replies: Sequence[tuple[str, float, bool]], named: bool, asks: int) -> None:
        self._replies, self._named, self._turn, self._asks = replies, named, 0, asks
        self.stop: Any = None
        self.step = kit.stand_in(remote=self._step)

    def _step(self, logs: Any, infos: Any) -> Any:
        text, reward, ended = self._replies[self._turn]
        asked = [infos[0]["turn"], len(logs[0])] == [self._turn, 2 * self._turn + 2] and len(infos) == len(logs) == 1
        rewards: Any = torch.tensor([reward if asked else float("nan")])
        if self._named:
            rewards = dict(zip(_PARTS, (rewards - 1, torch.ones(1))))
        self._turn += 1
        self.stop = [f"{self._asks} {self._turn}"]
        said, after = [{"role": "environment", "content": text}], [{"turn": self._turn}]
        return partial(kit.return_first, (said, after, [self.stop], rewards, torch.tensor([ended]), [None]))


class _Engine:
    """A stand-in engine that generates the scenario's numbers of tokens, one conversation at a time."""

    cfg: Mapping[str, Any] = {"backend": "vllm", "vllm_cfg": {"async_engine": True, "max_model_len": 1000}}

    def __init__(
        self, batch: Any, lengths: Mapping[int, Sequence[int]], environments: Sequence[Any], room: int
    ) -> None:
        self._batch, self._lengths, self._room = batch, lengths, room
        self._environments = dict(zip(lengths, environments))
        self._turns = {first: count() for first in lengths}

    def _answer(self, ids: Any, start: int, stop: Any) -> dict[str, Any]:
        first = int(ids[0])
        length = self._lengths[first][next(self._turns[first])]
        made = min(length, self._room)
        whole = torch.cat([ids[:start], torch.full((made,), 5)])
        # A token that differs is not trained on as the policy's token would be.
        whole = whole if stop == self._environments[first].stop else whole[:-1]
        lengths = {"unpadded_sequence_lengths": len(whole), "generation_lengths": len(whole) - start}
        return {"output_ids": whole, "logprobs": torch.zeros(len(whole)), "truncated": length > self._room, **lengths}

    def generate(self, data: Any, greedy: bool = False) -> Any:
        rows = [
            self._answer(ids, start, stop)
            for ids, start, stop in zip(data["input_ids"], data["input_lengths"].tolist(), data["stop_strings"])
        ]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        padded = {
            name: torch.nn.utils.rnn.pad_sequence(column, batch_first=True)
            if isinstance(column[0], torch.Tensor) else torch.tensor(column)
            for name, column in columns.items()
        }  # fmt: skip
        return self._batch(padded)

    async def generate_async(self, data: Any, greedy: bool = False) -> Any:
        for row in range(len(data["input_ids"])):
            own = {name: column[row : row + 1] for name, column in data.items()}
            yield row, self._batch({**self.generate(own), "gen_leader_worker_idx": [[row]]})


async def _at_once(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


async def _collect(groups: Any) -> list[Any]:
    return [group async for group in groups]


def _converse(named: bool, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a conversation next to a shorter one with another environment. Return its loss mask and its reward.

    :param named: True if environments return several rewards with names, which add up.
    """
    batch, module = boundary.imported[BATCHES].BatchedDataDict, boundary.module
    turns = list(zip(inputs["said"], inputs["heard"]))
    rewards = [*inputs["rewards"], *[0.0] * len(turns)]
    replies = [("6 " * heard, rewards[place], place + 1 == len(turns)) for place, (_, heard) in enumerate(turns)]
    environments = {"other": _Environment([("7 7 ", 0.375, True)], named, 3), "task": _Environment(replies, named, 1)}
    rows = batch(
        {
            "message_log": [[message("user", [3, 4, 8])], [message("user", [1, 2])]],
            "task_name": [*environments],
            "extra_env_info": [{"turn": 0}, {"turn": 0}],
            "stop_strings": [None, None],
        }
    )
    engine = _Engine(batch, {3: [1], 1: inputs["said"]}, [*environments.values()], inputs["max_tokens"])
    arguments = engine, rows, Words(), environments, 1000
    ray = kit.stand_in(get=lambda futures: [answer() for answer in futures])
    with kit.swap(module, "ray", ray), kit.swap(module.asyncio, "to_thread", _at_once):
        if boundary.path.endswith("_groups"):
            groups = kit.run_async(_collect(module.run_async_multi_turn_rollout_groups(*arguments, 1, inputs["turns"])))
            made = batch.from_batches([group.final_batch for group in groups])
        elif boundary.path.endswith(("run_async_multi_turn_rollout", "run_sample_multi_turn_rollout")):
            made, _ = module.run_async_multi_turn_rollout(*arguments, inputs["turns"])
        else:
            made, _ = module.run_multi_turn_rollout(*arguments, inputs["turns"])
    boundary.imported[_GRPO].add_grpo_token_loss_masks_and_generation_logprobs(made["message_log"])
    mask = [int(flag) for one in made["message_log"][1][1:-1] for flag in one["token_loss_mask"]]
    reward, other = made["total_reward"][1], made["total_reward"][0]
    if named:
        reward, other = (sum(made[name][place] for name in _PARTS) for place in (1, 0))
    return {"loss_mask": mask, "cut": bool(made["truncated"][1]), "reward": reward if other == 0.375 else float("nan")}


def _verify(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with a worker that scores three responses, of which the others are known."""
    owner, text, truth = boundary.owner, inputs["response"], inputs["ground_truth"]
    right = "<think>hm</think>\n<answer>5</answer>" if "MultiReward" in boundary.path else "Answer: 5"
    options = {} if "MultiReward" in boundary.path else {"math_verify_impl": "dapo_math_verify"}
    made, answers = owner.verify(kit.make_unbuilt(owner), [right, text, "no"], ["5", truth, "5"], True, **options)
    if isinstance(made, Mapping):
        made = made["reward/correctness"]
    if [made[0] == 1, made[2] == 1, len(made), len(answers)] != [True, False, 3, 3]:
        return {"score": float("nan")}
    return {"score": made[1]}


class _Remote:
    """A stand-in for a Ray actor. Its methods return functions, which a stand-in for ``ray.get`` calls."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> Any:
        return kit.stand_in(remote=lambda *given, **named: partial(getattr(self._made, name), *given, **named))


def _make_workers(boundary: Any, number: int) -> list[Any]:
    module = boundary.module
    if "VLM" in boundary.path:
        reward = {"reward_functions": [{"name": "exact_alnum", "weight": 2.0}]}
        return [_Remote(module.VLMVerifyWorker(reward)) for _ in range(number)]
    kinds = {
        "MathMulti": "HFMultiRewardVerifyWorker",
        "Math": "HFVerifyWorker",
        "CodeJaccard": "CodeJaccardVerifyWorker",
    }
    kind = next(name for word, name in kinds.items() if word in boundary.path)
    return [_Remote(kit.make_unbuilt(getattr(module, kind))) for _ in range(number)]


def _step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response in an environment with two workers, in a batch of five. The answer has two messages."""
    text, truth = inputs["response"], inputs["ground_truth"]
    impl = "hf_math_verify" if "Multi" in boundary.path else "dapo_math_verify"
    options = {"cfg": {"math_verify_impl": impl}, "num_workers": 2, "_worker_counter": count(1)}
    environment = kit.make_unbuilt(boundary.owner, workers=_make_workers(boundary, 2), **options)
    user = {"role": "user", "content": "Answer: 5 <answer>5</answer>"}
    logs = [[user, {"role": "assistant", "content": "nothing"}] for _ in range(5)]
    half = len(text) // 2
    logs[3] = [user, *({"role": "assistant", "content": part} for part in (text[:half], text[half:]))]
    infos = [{"ground_truth": truth if place == 3 else "5", "number": place} for place in range(5)]
    with kit.swap(boundary.module, "ray", kit.stand_in(get=lambda futures: [answer() for answer in futures])):
        made = boundary.function(environment, logs, infos)
    rewards = made.rewards["reward/correctness"] if isinstance(made.rewards, Mapping) else made.rewards
    right = [info["number"] for info in made.metadata] == [*range(5)] and bool(made.terminateds.all())
    scored = made.observations[3]["content"].startswith(("Environment: correct", "Environment: jaccard aligned"))
    others = rewards[[0, 1, 2, 4]].max()
    if not right or others >= 1 or len(rewards) != 5 or scored != bool(rewards[3] > 0.5):
        return {"score": float("nan")}
    return {"score": float(rewards[3])}


_STAND_INS = (StandIn("engine, environment, ray", "return the scenario's text immediately"),)
_EPISODE: dict[str, Any] = {
    "imports": (_GRPO, BATCHES), "stand_ins": _STAND_INS,
    "requires": (f"{_ROLLOUTS}.run_async_multi_turn_rollout_groups", f"{_GRPO}._initial_grpo_save_state"),
}  # fmt: skip
_MATH, _CODE = f"{_ENVIRONMENTS}.math_environment", f"{_ENVIRONMENTS}.code_jaccard_environment"
_LINES, _TAGS = ("Answer: {answer}", "So it is.\nAnswer: {answer}"), "<think>so</think>\n<answer>{answer}</answer>"
_WORKERS = (StandIn("workers, ray", "two workers score their part of the batch in this process"),)
BINDINGS = (
    *(
        Binding(f"{_ROLLOUTS}.{name}", "rollout_episode", call=partial(_converse, named), **_EPISODE)
        for name, named in (
            ("run_async_multi_turn_rollout", False), ("run_sample_multi_turn_rollout", True),
            ("run_async_multi_turn_rollout_groups", True), ("calculate_rewards", True),
        )
    ),
    rule_reward(f"{_MATH}.HFVerifyWorker.verify", *_LINES, notations="minerva", call=_verify),
    rule_reward(f"{_MATH}.HFMultiRewardVerifyWorker.verify", _TAGS, call=_verify),
    *(
        rule_reward(
            f"{path}.step", *wordings, call=_step, stand_ins=_WORKERS, requires=(f"{path}.step",), accepts=accepts,
        )
        for path, wordings, accepts in (
            (f"{_MATH}.MathEnvironment", _LINES, {}), (f"{_MATH}.MathMultiRewardEnvironment", (_TAGS,), {}),
            (f"{_CODE}.CodeJaccardEnvironment", ("{answer}",), {}),
            (f"{_ENVIRONMENTS}.vlm_environment.VLMEnvironment", (_TAGS,), {"ground_truth": ("42", "7", "100")}),
        )
    ),
)  # fmt: skip
