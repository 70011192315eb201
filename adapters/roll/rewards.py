"""Bindings for ROLL's rewards, filters, sampling parameters and KL coefficient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import rule_reward, sampling_request
from sentinel.binding.kit import torch

from .containers import PROTOCOL
from .data import MAIN

_FUNCTIONALS = "roll.utils.functionals"
_CONTROLLERS = "roll.utils.kl_controller"
_RULES = "roll.pipeline.rlvr.rewards"

_CONFIG = StandIn(
    "pipeline_config", "the options that the function reads; the real configuration looks for checkpoints"
)
_ADDRESS = StandIn("get_node_ip", "a decorator reads the machine's address at import, for which a network is needed")
_SELF = StandIn("self", "the worker's constructor starts Ray; the method reads only these attributes")
_TOKENIZER = StandIn("tokenizer", "a real tokenizer is a download; here each letter is a token")
_SAMPLING = StandIn(
    "SamplingParams", "vLLM's record of sampling parameters, which older code creates; vLLM is not installed"
)


def _batch(boundary: Any, mask: Any, **more: Any) -> Any:
    """Return a batch of responses to one-token prompts, with masks as ROLL's trainer stores them."""
    there = torch.nn.functional.pad(mask != 0, (1, 0), value=True).long()
    tensors = {
        "attention_mask": there,
        "position_ids": (there.cumsum(-1) - 1).clamp(min=0) * there,
        "response_mask": kit.prepend_prompt(mask),
        "responses": torch.ones_like(mask, dtype=torch.long),
        **more,
    }
    return boundary.imported[PROTOCOL].DataProto.from_dict(tensors=tensors)


def _landed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    data = _batch(boundary, inputs["response_mask"], response_level_rewards=inputs["rewards"])
    return {"token_level_rewards": boundary.function(data)}


def _landed_in_the_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token rewards that ROLL computes from one reward per response, without a KL penalty."""
    zeros = torch.zeros_like(inputs["response_mask"])
    more = {"response_level_rewards": inputs["rewards"], "old_log_probs": zeros, "ref_log_probs": zeros}
    config = kit.stand_in(kl_penalty="kl", add_token_level_kl=False, reward_clip=None)
    controller = boundary.imported[_CONTROLLERS].FixedKLController(0.5)
    data, _ = boundary.function(_batch(boundary, inputs["response_mask"], **more), config, controller)
    return {"token_level_rewards": data.batch["token_level_rewards"]}


def _by_difficulty(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    data = _batch(boundary, torch.ones(len(inputs["group"]), 1), scores=inputs["rewards"])
    bounds = {"low_threshold": inputs["low"], "high_threshold": inputs["high"]}
    answer = boundary.function(data, n_sample=kit.group_size(inputs), **bounds)
    return {"kept": answer.batch["difficulty_mask"]}


def _masked(boundary: Any, mask: Any, scores: Any, **options: Any) -> Any:
    """Return the mask of the response tokens that ROLL trains on with the given filter options."""
    plain = {"max_len_mask": False, "difficulty_mask": False, "error_max_len_clip": False}
    data, _ = boundary.function(_batch(boundary, mask, scores=scores), kit.stand_in(**{**plain, **options}))
    return data.batch["final_response_mask"]


def _difficult(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = kit.stand_in(num_return_sequences=kit.group_size(inputs))
    kept = _masked(
        boundary,
        torch.ones(len(inputs["group"]), 1),
        inputs["rewards"],
        difficulty_mask=True,
        difficulty_low_threshold=inputs["low"],
        difficulty_high_threshold=inputs["high"],
        actor_infer=kit.stand_in(generating_args=arguments),
    )
    return {"kept": kept[:, 0]}


def _not_cut_off(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    return {"kept": _masked(boundary, mask, torch.zeros(len(mask)), max_len_mask=True)}


#: Options of a rollout. A keyword maps an option to the field of ROLL that has another name.
_OPTIONS = kit.fields(
    "temperature top_p top_k max_new_tokens repetition_penalty", stop="stop_strings", greedy=kit.DRAWS
)


def _request(boundary: Any, config: Any) -> Mapping[str, Any]:
    """Return the sampling parameters that ROLL makes from the configuration of its pipeline."""
    with kit.swap(boundary.module, "SamplingParams", dict):
        params = boundary.function({**config.to_dict(), "eos_token_id": []})
    return dict(params)


def _seen(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"score": boundary.function(inputs["response"], inputs["ground_truth"], inputs["rule"])}


def _chosen(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    scores = boundary.invoke({}, inputs["response"], inputs["ground_truth"], reward_type="loose")
    return {"score": scores[1]}


def _ruled(rule: Callable[[Any, str, str], Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with ``rule(boundary, response, truth)``."""
    return {"score": float(rule(boundary, inputs["response"], inputs["ground_truth"]))}


def _extracted(boundary: Any, response: str, truth: str) -> bool:
    found, text = boundary.function(response)
    return bool(found and text == truth)


def _code(boundary: Any, response: str, truth: str) -> bool:
    blocks, languages, _ = boundary.function(kit.stand_in(), "", response)
    return blocks == [truth] and languages == ["python"]


def _with(*arguments: Any, truth: Callable[[str], Any] | None = None) -> Callable[[Any, str, str], Any]:
    """Return a reward rule that calls the boundary with the response and the given arguments.

    :param truth: converts the ground truth, which is also passed; if it is None, the ground truth is not passed.
    """
    return lambda boundary, response, right: boundary.function(
        response, *(() if truth is None else (truth(right),)), *arguments
    )


def _repeated(boundary: Any, response: str, _: str) -> Any:
    return 1 + boundary.function(3, -1.0)(response)


def _of_last_line(rule: Callable[[Any, str, str], Any], before: str = "") -> Callable[[Any, str, str], Any]:
    """Return a reward rule that receives ``before`` and only the last line of a response. Scenarios may add lines
    before the response, which ROLL's rule would count.
    """
    return lambda boundary, response, right: rule(boundary, before + response.rpartition("\n")[2], right)


_JUDGE = kit.make_silent_logger()
#: Rule -> (its call, the wording of a response, the ground truth, a wrong answer).
_CHECKS: Mapping[str, tuple[Callable[[Any, str, str], Any], str, str, str]] = {
    "math_rule_reward_worker.check_and_extract_within_boxed": (
        _extracted,
        "\\boxed{{1}} \\boxed{{{answer}}}",
        "{42}",
        "43",
    ),
    "math_rule_reward_worker.format_reward_fn": (
        _of_last_line(lambda boundary, response, _: 1 + boundary.function(response)),
        "<think>Hm.</think>{answer}",
        "<answer>4</answer>",
        "4",
    ),
    "math_rule_reward_worker.long_block_penalty_reward_fn": (
        lambda boundary, response, _: 1 + boundary.function(response, 5),
        "so {answer}",
        "short",
        "longer",
    ),
    "video_r1_reward_worker.format_reward": (_with(), "<think>Hm.</think>{answer}", "<answer>4</answer>", "4"),
    "code_sandbox_reward_worker.CodeTester.extract_code_blocks": (
        _code,
        "Hm. ```python\ny = 1\n```</think>```python\n{answer}\n```",
        "x = 42",
        "x = 43",
    ),
    "llm_judge_reward_worker.LLMJudgeRewardWorker._extract_score": (
        lambda boundary, response, _: boundary.function(kit.stand_in(logger=_JUDGE), response),
        "Good. Score: {answer}",
        "10",
        "0",
    ),
    "llm_judge_reward_worker.LLMJudgeRewardWorker._extract_score_v2": (
        lambda boundary, response, _: boundary.function(kit.stand_in(logger=_JUDGE), response),
        "{answer}.",
        "YES",
        "NO",
    ),
    **{
        f"{name}.get_repetition_penalty_reward": (_repeated, "{answer}", "a b c d e f", "a b c a b c")
        for name in ("math_rule_reward_worker", "crossthinkqa_rule_reward_worker", "ifeval_rule_reward_worker")
    },
    **{
        f"ifeval_rule_reward_worker.{name}": check
        for name, check in {
            "verify_keywords": (_with(truth=lambda right: [right, "is"]), "It is {answer}.", "Blue", "red"),
            "verify_letter_frequency": (_with(2, truth=str), "{answer}-{answer}", "x", "y"),
            "verify_paragraph_count": (_of_last_line(_with(2), "one\n* * *\n"), "{answer}", "two", "two * * * three"),
            "verify_sentence_constraint": (_with(2, "at least"), "{answer}", "One. Two.", "One"),
            "verify_postscript": (_with(truth=str), "Bye. {answer} more", "P.S.", "Then"),
            "verify_bullet_points": (_with(2), "Two:\n{answer}", "* one\n- two", "* one"),
            "validate_repeat_prompt": (_with(truth=str), "{answer} This is it.", "Say it.", "Do it."),
            "validate_two_responses": (_of_last_line(_with()), "one ****** {answer}", "two", "one"),
        }.items()
    },
}

# -- reward workers ----------------------------------------------------------------------------------------------------


class _Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(map(chr, (token for token in ids.tolist() if token)))

    def batch_decode(self, rows: Any, **_: Any) -> list[str]:
        return [self.decode(row) for row in rows]


def _worked(tag: str, named: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with ROLL's worker, in a batch of three: the right answer, the response, and no answer.

    :param tag: the tag of each row.
    :param named: the column of the score.
    """
    truth, wording = inputs["ground_truth"], inputs["wording"]
    given = [wording.replace("{{", "{").replace("}}", "}").replace("{answer}", "Nothing"), inputs["response"], "no"]
    ids = [torch.tensor([*map(ord, text)]) for text in given]
    responses = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    labels = {
        "prompt": ["a prompt"] * 3, "ground_truth": [truth] * 3, "tag": [tag] * 3, "reward_model": [inputs["rule"]] * 3,
    }  # fmt: skip
    data = boundary.imported[PROTOCOL].DataProto.from_dict(
        {"responses": responses, "response_mask": (responses != 0).long()}, labels
    )
    worker = kit.make_unbuilt(
        boundary.owner, tokenizer=_Letters(), logger=kit.make_silent_logger(), reward_type="loose",
        response_length_penalty_coef=0.0, repetition_penalty_reward_fn=lambda *_: 0.0,
        response_length_reward_fn=lambda *_: 0.0,
    )  # fmt: skip
    made = boundary.owner.compute_rewards.__wrapped__(worker, data).batch[named].float()
    return {"score": made[1] - made[2]}


_AS_NUMBERS = "bare_point true_bare_point zeros plus"
_CHOICES = ("boxed", "All in all the answer is \\boxed{{{answer}}}.")
_LETTERS = {"ground_truth": ("B", "A", "D"), "wrong_answer": ("C", "E")}

_ENDS = {"response_mask": ("full", "right")}
_GROUPS = {"group_layout": "equal"}
_ALONE = Dialect(
    "group_of_one", "kept", "nothing is filtered if each prompt has one response", f"{MAIN}/utils/functionals.py#L604"
)

_REWARDS = (
    Binding(
        f"{_FUNCTIONALS}.expand_to_token_level", "token_reward", call=_landed, imports=(PROTOCOL,),
        fixed={"score_as": None}, accepts=_ENDS,
    ),
    Binding(
        f"{_FUNCTIONALS}.compute_token_reward", "token_reward", call=_landed_in_the_batch,
        imports=(PROTOCOL, _CONTROLLERS), stand_ins=(_CONFIG,), fixed={"score_as": None}, accepts=_ENDS,
        twins=(f"{_FUNCTIONALS}.expand_to_token_level",),
    ),
    Binding(
        f"{_FUNCTIONALS}.difficulty_mask", "difficulty_filter", call=_by_difficulty, imports=(PROTOCOL,), fixed=_GROUPS,
        dtypes=("float32",), dialects=(_ALONE,),
    ),
    Binding(
        f"{_FUNCTIONALS}.get_sample_level_mask", "difficulty_filter", call=_difficult, imports=(PROTOCOL,),
        stand_ins=(_CONFIG,), fixed=_GROUPS, dtypes=("float32",), dialects=(_ALONE,),
    ),
    Binding(
        f"{_FUNCTIONALS}.get_sample_level_mask", "overlong_filter", call=_not_cut_off, imports=(PROTOCOL,),
        stand_ins=(_CONFIG,), accepts=_ENDS,
    ),
    *(
        rule_reward(f"{_RULES}.{name}", *_CHOICES, notations="choices", call=_chosen, accepts=_LETTERS)
        for name in (
            "multiple_choice_boxed_rule_reward_worker.multiple_choice_boxed_reward_fn",
            "general_val_rule_reward_worker.single_choice_reward",
            "crossthinkqa_rule_reward_worker.crossthinkqa_reward_fn",
        )
    ),
    *(
        rule_reward(
            f"{_RULES}.{name}.compute_rewards", *_CHOICES, notations="choices", accepts=_LETTERS, imports=(PROTOCOL,),
            call=partial(_worked, tag, column), stand_ins=(_SELF, _TOKENIZER, _ADDRESS),
        )
        for name, tag, column in (
            ("multiple_choice_boxed_rule_reward_worker.MultipleChoiceBoxedRuleRewardWorker", "tag", "scores"),
            ("general_val_rule_reward_worker.GeneralValRuleRewardWorker", "ceval", "scores"),
            ("crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker", "tag", "scores"),
        )
    ),
    rule_reward(
        f"{_RULES}.video_r1_reward_worker.VideoR1RewardWorker.compute_rewards", "<answer>{answer}</answer>",
        notations=f"negative decimal spaces {_AS_NUMBERS}", imports=(PROTOCOL,),
        call=partial(_worked, "tag", "response_level_rewards"), stand_ins=(_SELF, _TOKENIZER, _ADDRESS),
        accepts={"rule": ("numerical", "regression")},
    ),
    rule_reward(
        f"{_RULES}.video_r1_reward_worker.accuracy_reward", "<answer>{answer}</answer>",
        "<think>6 times 7</think> <answer> {answer} </answer>", notations=f"negative decimal spaces {_AS_NUMBERS}",
        call=_seen, accepts={"rule": ("numerical", "OCR", "regression")},
        dialects=(
            Dialect(
                "the_oracle_agrees", reason="answers about a picture are compared word by word",
                link=f"{MAIN}/pipeline/rlvr/rewards/video_r1_reward_worker.py#L93",
                where={"rule": ("OCR",), "notation": tuple(_AS_NUMBERS.split())},
            ),
        ),
    ),
    *(
        rule_reward(
            f"{_RULES}.{name}", wording, call=partial(_ruled, rule), stand_ins=(_ADDRESS,),
            accepts={"ground_truth": (right,), "wrong_answer": (wrong,)},
        )
        for name, (rule, wording, right, wrong) in _CHECKS.items()
    ),
    sampling_request(
        "roll.distributed.strategy.vllm_strategy.create_sampling_params_for_vllm",
        "roll.configs.generating_args.GeneratingArguments", _request, _OPTIONS, _SAMPLING,
    ),
)  # fmt: skip


def _coefficients(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the coefficient of ROLL's KL controller after each step. Without a target, the coefficient is fixed."""
    target = inputs["target_kl"] if inputs["adaptive"] else None
    controller = boundary.function(init_kl_coef=inputs["initial"], target_kl=target, kl_horizon=inputs["horizon"])
    return kit.read_coefficients(controller, inputs)


_SCHEDULES = (Binding("roll.utils.kl_controller.get_kl_controller", "kl_coefficient", call=_coefficients),)


BINDINGS = (*_REWARDS, *_SCHEDULES)
