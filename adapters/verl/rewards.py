"""Bindings for verl's reward rules, which score a response, and its reward managers, which assign scores to tokens."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import BOXES, NORMALISERS, rule_reward
from sentinel.binding.kit import torch

from .shared import MAIN

_RULES = "verl.utils.reward_score"
_MANAGERS = "verl.workers.reward_manager"
_LOOP = "verl.experimental.reward_loop.reward_manager"
_PROTOCOL = "verl.protocol"

_TOKENIZER = StandIn("tokenizer", "a real one is a download; here a text consists of token numbers")
_EXECUTOR = StandIn("ProcessPoolExecutor", "threads, because a probe must not start processes; the scores are the same")
_SCORE = StandIn("compute_score", "a rule of one data set, which returns the scenario's score of the response")

# -- rules -------------------------------------------------------------------------------------------------------------

#: The answer formats that the prompts of the data sets require, one per line.
_EVERY = "I think so.\nAnswer: {answer}\n<answer>{answer}</answer>\n#### {answer}\n\\boxed{{{answer}}}"
_HASHES = ("#### {answer}", "6 times 7 is\n#### {answer}")
_TAGS = ("<answer>{answer}</answer>", "I see. <answer> {answer} </answer>")
_DATA_SETS = ("openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "math_dapo", "aime2024")
_QUESTIONS = ("searchR1_nq", "searchR1_hotpotqa")


def _score_dapo(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # Some versions accept a boxed answer only with the option strict_box_verify.
    boxes_alone = inputs["wording"] == "boxed" and not boundary.module.verify("\\boxed{7}", "7")[0]
    options = {"strict_box_verify": True} if boxes_alone else {}
    return {"score": kit.score_of(boundary.function(inputs["response"], inputs["ground_truth"], **options))}


def _score_by_data_source(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    truth: Any = inputs["ground_truth"]
    if inputs["rule"].startswith("searchR1"):
        truth = {"target": [truth]}
    return {"score": kit.score_of(boundary.function(inputs["rule"], inputs["response"], truth))}


def _score_in_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    responses, truths = ["", inputs["response"], "", ""], ["1", inputs["ground_truth"], "2", "3"]
    return {"score": boundary.function([None] * 4, responses, truths, [None] * 4)[1]}


def _prints(line: int, **where: tuple[Any, ...]) -> Dialect:
    return Dialect(
        "nothing_else_is_touched",
        reason="Python's global generator selects one response in 64 to be printed",
        link=f"{MAIN}/utils/reward_score/search_r1_like_qa_em.py#L{line}",
        where=where,
    )


_QA = f"{_RULES}.search_r1_like_qa_em"
_RULED = (
    rule_reward(f"{_RULES}.gsm8k.compute_score", *_HASHES, notations="numbers"),
    rule_reward(
        f"{_RULES}.math_reward.compute_score", *BOXES, notations="math", formerly=(f"{_RULES}.math.compute_score",)
    ),
    rule_reward(
        f"{_RULES}.math_dapo.compute_score",
        "Answer: {answer}",
        "So it is.\nAnswer: {answer}\n",
        "boxed",
        notations="minerva",
        call=_score_dapo,
        dialects=(
            Dialect(
                "the_oracle_agrees",
                reason="the content of a box is compared unchanged",
                link=f"{MAIN}/utils/reward_score/math_dapo.py#L217",
                where={"wording": ("boxed",), "notation": tuple(NORMALISERS["minerva"].split())},
            ),
        ),
    ),
    rule_reward(
        f"{_RULES}.prime_math.compute_score", *BOXES, notations="values", imports=(f"{_RULES}.prime_math.grader",)
    ),
    rule_reward(f"{_RULES}.math_batch.compute_score_batched", *BOXES, notations="math", call=_score_in_batch),
    rule_reward(
        f"{_QA}.compute_score", *_TAGS, notations="questions", call=kit.apply_rule_to_answers, dialects=(_prints(108),)
    ),
    rule_reward(
        f"{_QA}.compute_score_subem",
        "<answer>It is {answer}.</answer>",
        notations="questions",
        call=kit.apply_rule_to_answers,
        # Without the answer -3: the rule searches the whole response for the answer without its punctuation, so it
        # would find 3 in the wrong answer 43.
        accepts={"ground_truth": ("42", "7", "100")},
        dialects=(_prints(142),),
    ),
    rule_reward(
        f"{_RULES}.default_compute_score",
        _EVERY,
        call=_score_by_data_source,
        formerly=(f"{_RULES}._default_compute_score",),
        imports=tuple(f"{_RULES}.{name}" for name in ("gsm8k", "math_dapo")),
        requires=(f"{_RULES}.math_dapo",),  # older trainers choose between two rules that have bindings of their own
        accepts={"rule": (*_DATA_SETS, *_QUESTIONS)},
        dialects=(_prints(108, rule=_QUESTIONS),),
    ),
)

# -- managers ----------------------------------------------------------------------------------------------------------


class _Tokenizer:
    """A stand-in tokenizer that decodes each token as its id. Padding is 0."""

    eos_token = "$"

    def decode(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        return " ".join(str(token) for token in ids.tolist() if token or not skip_special_tokens)

    def batch_decode(self, rows: Any, **options: Any) -> list[str]:
        return [self.decode(row, **options) for row in rows]


def _make_batch(boundary: Any, mask: Any) -> Any:
    """Make a batch of responses to one-token prompts. Each token of a response is the number of its row."""
    import numpy

    rows = torch.arange(1, len(mask) + 1)[:, None]
    there = (mask != 0).long()
    return boundary.imported[_PROTOCOL].DataProto.from_dict(
        tensors={
            "prompts": rows.clone(),
            "responses": rows * there,
            "attention_mask": torch.cat((torch.ones_like(rows), there), dim=-1),
        },
        non_tensors={
            "reward_model": numpy.array([{"ground_truth": str(int(row))} for row in rows], dtype=object),
            "data_source": numpy.array(["a data set"] * len(mask), dtype=object),
            "extra_info": numpy.array([{} for _ in mask], dtype=object),
        },
    )


def _make_rule(rewards: Any, mask: Any, as_record: bool = False, prompt: int = 0) -> Callable[..., Any]:
    """Make a reward rule that returns the scenario's score of a response, and -1e6 for any other text.

    :param prompt: the number of prompt tokens that precede the response in the text.
    """
    worth = {
        (" ".join([str(n + 1)] * (prompt + int(row.sum()))), str(n + 1)): float(rewards[n])
        for n, row in enumerate(mask != 0)
    }

    def score(data_source: Any, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> Any:
        reward = worth.get((solution_str, ground_truth), -1e6)
        return {"score": reward, "acc": reward > 0} if as_record else reward

    return score


def _make_rule_of(inputs: Mapping[str, Any], prompt: int = 0) -> Callable[..., Any]:
    return _make_rule(inputs["rewards"], inputs["response_mask"], inputs["score_as"] == "record", prompt)


def _token_rewards(make: Callable[[Any, Any], Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token rewards that one of verl's reward managers computes.

    :param make: returns the manager, given its class and the reward rule.
    """
    mask = inputs["response_mask"]
    # Until March 2025, rules also received the prompt. In the first versions, the manager selected the rule itself.
    score = _make_rule_of(inputs, int("sequences" in boundary.function.__code__.co_varnames))
    itself = hasattr(boundary.module, "_select_rm_score_fn")
    manager = boundary.owner(_Tokenizer(), num_examine=0) if itself else make(boundary.owner, score)
    own = {"ProcessPoolExecutor": _Threads, "_select_rm_score_fn": partial(_select_rule, score)}
    data = _make_batch(boundary, mask)
    # Half of the scenarios also print two responses of the data set, and read verl's record of all results.
    records = "return_dict" in boundary.parameters and int((mask != 0).sum()) % 2 == 1
    if records:
        manager.num_examine = 2
    if inputs["score_as"] is None:
        _require_extraction(boundary)
        data.batch["rm_scores"] = _place(inputs["rewards"], mask)
        data.non_tensor_batch["acc"] = (inputs["rewards"] > 0).numpy()
        data.meta_info["reward_extra_keys"] = ["acc"]
    with kit.swap_all(boundary.module, **own), contextlib.redirect_stdout(io.StringIO()):
        made = boundary.function(manager, data, **({"return_dict": True} if records else {}))
    if not records:
        return {"token_level_rewards": made}
    further = made.get("reward_extra_info", {})
    # No reward is right if verl returns further results of other responses.
    wrong = "acc" in further and [bool(each > 0) for each in further["acc"]] != [bool(r > 0) for r in inputs["rewards"]]
    return {"token_level_rewards": made["reward_tensor"] - (1e6 if wrong else 0.0)}


def _require_extraction(boundary: Any) -> None:
    if not hasattr(boundary.owner, "_extract_reward_from_rm_scores"):
        raise AbsentError("this version's managers extract rewards in another way")


def _place(rewards: Any, mask: Any) -> Any:
    """Return token rewards: the reward of each response, on its last valid token."""
    last = (mask != 0).sum(-1, keepdim=True) - 1
    return torch.zeros(mask.shape).scatter(1, last, rewards[:, None].float())


def _select_rule(score: Any, source: Any) -> Any:
    return partial(score, source)


class _Threads(ThreadPoolExecutor):
    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(max_workers=2)
        self._processes: dict[int, Any] = {}


def _apply_to_each(score: Callable[..., Any]) -> Callable[..., list[Any]]:
    def scores(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[Any]:
        return [score(*row) for row in zip(data_sources, solution_strs, ground_truths, extra_infos)]

    return scores


def _manager(owner: Any, score: Any, **options: Any) -> Any:
    return owner(_Tokenizer(), num_examine=0, compute_score=score, **options)


def _manager_of_batches(owner: Any, score: Any) -> Any:
    return _manager(owner, _apply_to_each(score))


def _make_dapo_manager(owner: Any, score: Any) -> Any:
    return _manager(owner, score, max_resp_len=1024, overlong_buffer_cfg=kit.stand_in(enable=False, len=1))


def _assemble(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    scores = [float(score) for score in inputs["rewards"]]
    return {"token_level_rewards": boundary.function(_make_batch(boundary, inputs["response_mask"]), scores)}


def _one_by_one(boundary: Any, score: Any, mask: Any, options: Mapping[str, Any] | None = None) -> list[float]:
    """Return the scores from a verl reward manager that is called once for each response.

    :param options: options of the reward manager. #5255 moved them to another section of the configuration.
    """
    from omegaconf import OmegaConf

    settings = {"reward_kwargs": dict(options or {})}
    config = OmegaConf.create(
        {"reward": settings, "reward_model": settings, "trainer": {"experiment_name": "sentinel"}}
    )

    async def ask() -> list[float]:
        manager = boundary.owner(config, _Tokenizer(), score)
        # In some versions, this attribute is a property that returns the running event loop.
        if not isinstance(getattr(boundary.owner, "loop", None), property):
            manager.loop = asyncio.get_running_loop()
        data = _make_batch(boundary, mask)
        return [float((await boundary.function(manager, data[n : n + 1]))["reward_score"]) for n in range(len(mask))]

    return asyncio.run(ask())


def _run_single(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    scores = _one_by_one(boundary, _make_rule_of(inputs), mask)
    return {"token_level_rewards": boundary.owner.assemble_rm_scores(_make_batch(boundary, mask), scores)}


_ENDS = {"response_mask": ("full", "right")}
#: A manager returns the rewards that the batch already has. Then no rule is called.
_GIVEN = {"score_as": ("number", "record", None)}


def _lays(path: str, call: Any, *stand_ins: StandIn, **more: Any) -> Binding:
    accepts = {**_ENDS, **more.pop("accepts", {})}
    return Binding(path, "token_reward", call=call, stand_ins=stand_ins, imports=(_PROTOCOL,), accepts=accepts, **more)


# -- the overlong penalty ----------------------------------------------------------------------------------------------


def _options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    buffer = {"enable": True, "len": inputs["buffer"], "penalty_factor": inputs["factor"], "log": False}
    return {"max_resp_len": inputs["max_length"], "overlong_buffer_cfg": buffer}


def _penalise(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf

    mask = inputs["response_mask"]
    options = _options(inputs)
    options["overlong_buffer_cfg"] = OmegaConf.create(options["overlong_buffer_cfg"])
    logged = int((mask != 0).sum()) % 2 == 1
    options["overlong_buffer_cfg"].log = logged
    manager = _manager(boundary.owner, _make_rule(inputs["rewards"], mask), **options)
    if not logged:
        return {"rewards": boundary.function(manager, _make_batch(boundary, mask)).sum(-1)}
    made = boundary.function(manager, _make_batch(boundary, mask), return_dict=True)
    penalties = torch.stack([torch.as_tensor(each).float() for each in made["reward_extra_info"]["overlong_reward"]])
    rewards = made["reward_tensor"].sum(-1)
    # No reward is right if the logged penalty is not its difference from the score.
    wrong = not torch.allclose(rewards - inputs["rewards"], penalties, atol=1e-3)
    return {"rewards": rewards - (1e6 if wrong else 0.0)}


def _penalise_one_by_one(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    return {"rewards": torch.tensor(_one_by_one(boundary, _make_rule(inputs["rewards"], mask), mask, _options(inputs)))}


def _punishes(path: str, call: Any, line: str, *stand_ins: StandIn, **more: Any) -> Binding:
    return Binding(
        path,
        "overlong_penalty",
        call=call,
        imports=(_PROTOCOL,),
        stand_ins=stand_ins,
        accepts=_ENDS,
        dialects=(
            Dialect(
                "beyond_limit",
                "linear",
                "an engine generates at most max_resp_len tokens, so longer responses are not defined",
                f"{MAIN}/{line}",
            ),
        ),
        **more,
    )


#: The method that places scores on tokens. Before May 2026, it is absent, and the reward loop does this itself.
_ASSEMBLES = f"{_LOOP}.base.RewardManagerBase.assemble_rm_scores"
_STANDING = (_TOKENIZER, _SCORE)

BINDINGS = (
    *_RULED,
    _lays(
        f"{_MANAGERS}.naive.NaiveRewardManager.__call__", partial(_token_rewards, _manager), *_STANDING,
        formerly=("verl.trainer.main_ppo.RewardManager.__call__",), accepts=_GIVEN,
    ),
    _lays(
        f"{_MANAGERS}.dapo.DAPORewardManager.__call__", partial(_token_rewards, _make_dapo_manager), *_STANDING,
        accepts=_GIVEN,
    ),
    _lays(
        f"{_MANAGERS}.batch.BatchRewardManager.__call__", partial(_token_rewards, _manager_of_batches), *_STANDING,
        accepts=_GIVEN,
    ),
    _lays(
        f"{_MANAGERS}.prime.PrimeRewardManager.__call__", partial(_token_rewards, _manager), *_STANDING, _EXECUTOR,
        accepts=_GIVEN,
    ),
    _lays(_ASSEMBLES, _assemble, fixed={"score_as": None}),
    *(
        _lays(f"{_LOOP}.{file}.{name}RewardManager.run_single", _run_single, *_STANDING, requires=(_ASSEMBLES,))
        for file, name in (("naive", "Naive"), ("dapo", "DAPO"), ("gdpo", "GDPO"))
    ),
    _punishes(
        f"{_MANAGERS}.dapo.DAPORewardManager.__call__", _penalise, "workers/reward_manager/dapo.py#L126", *_STANDING,
    ),
    _punishes(
        f"{_LOOP}.dapo.DAPORewardManager.run_single", _penalise_one_by_one,
        "experimental/reward_loop/reward_manager/dapo.py#L113", *_STANDING,
        formerly=tuple(
            (
                f"verl.experimental.reward.{folder}.dapo.DAPORewardLoopManager.run_single"
                for folder in ("reward_manager", "reward_loop")
            ),
        ),
    ),
)  # fmt: skip
