from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from contract_kit import measured

from sentinel.contracts.rollouts import WeightEngine
from sentinel.contracts.table_engine import TableEngine

#: Two prompts of 1 and 2 tokens; a response that ends with EOS, and one that fills its three columns.
GENERATED: Mapping[str, Any] = {
    "prompt_token_ids": [[8], [8, 9]],
    "response_token_ids": [[5, 0], [5, 6, 7]],
    "response_length": 3,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def test_the_end_token_belongs_to_the_response():
    seen = measured("response_masks", **GENERATED)
    assert seen == {"response_mask": [[1, 1, 0], [1, 1, 1]], "counted_prompt_tokens": 0}


def test_batches_are_padded_on_both_sides():
    given: dict[str, Any] = {}

    def not_padding(**inputs: Any) -> dict[str, Any]:
        given.update(inputs)
        whole = torch.cat((inputs["prompts"], inputs["responses"]), dim=-1)
        return {"response_mask": whole != inputs["pad_token_id"]}

    seen = measured("response_masks", not_padding, **GENERATED)
    assert given["prompts"].tolist() == [[0, 8], [8, 9]]
    assert given["prompt_mask"].tolist() == [[0, 1], [1, 1]]
    assert given["responses"].tolist() == [[5, 0, 0], [5, 6, 7]]
    assert seen == {"response_mask": [[1, 0, 0], [1, 1, 1]], "counted_prompt_tokens": 3}


def test_rollouts_that_are_not_taken_remain():
    seen = measured("rollout_collection", completed=3, needed=2)
    assert seen == {"times": [1, 1, 1], "size": 2, "taken": [0, 1], "left": [2]}


@pytest.mark.parametrize(
    ("taken", "left", "times"), [([0, 1], [], [1, 1, 0]), ([0, 1], [1, 2], [1, 2, 1]), ([0, 0], [1, 2], [2, 1, 1])]
)
def test_lost_and_duplicated_rollouts_are_detected(taken, left, times):
    seen = measured("rollout_collection", lambda **_: {"taken": taken, "left": left}, completed=3, needed=2)
    assert seen["times"] == times


@pytest.mark.parametrize(("rejected", "taken", "left"), [([1], [0, 2], []), ([0, 1], [2], [])])
def test_an_exhausted_loader_leaves_a_smaller_batch(rejected, taken, left):
    seen = measured("rollout_collection", completed=3, needed=2, filters=True, rejected=rejected)
    assert (seen["taken"], seen["left"], seen["size"]) == (taken, left, len(taken))
    dropped = measured(
        "rollout_collection", lambda **_: {"taken": [], "left": rejected}, completed=3, needed=2, rejected=rejected
    )
    assert dropped["times"] == [0, 0, 0]  # rejected rollouts may remain


#: Two turns of two tokens, with one token of the environment between them.
EPISODE = {"said": [2, 2], "heard": [1, 0], "turns": 2, "max_tokens": 100}


def test_the_reward_of_a_turn_is_within_its_tokens():
    seen = measured("rollout_episode", **EPISODE, rewards=[1.0, 0.5])
    assert (seen["loss_mask"], seen["reward"], seen["turn_rewards"]) == ([1, 1, 0, 1, 1], 1.5, [1.0, 0.5])
    assert measured("rollout_episode", **EPISODE)["reward"] is None


@pytest.mark.parametrize(
    ("reward", "total", "turns"), [(0.5, 0.5, None), ([0, 0, 1.0, 0, 0.5], 1.5, [0.0, 0.5]), ([0] * 5, 0, [0, 0])]
)
def test_lost_and_misplaced_rewards_are_detected(reward, total, turns):
    answer = {"loss_mask": [1, 1, 0, 1, 1], "cut": False, "reward": reward}
    seen = measured("rollout_episode", lambda **_: answer, **EPISODE, rewards=[1.0, 0.5])
    assert (seen["reward"], seen["turn_rewards"]) == (total, turns)


def test_each_generation_has_the_weights_of_the_last_update():
    assert measured("engine_weights", generations=[1, 2])["versions"] == [1, 2, 2]


@pytest.mark.parametrize(
    ("level", "wakes", "version"),
    [
        (1, lambda engine: engine.wake_up(), 3),  # the weights are kept
        (2, lambda engine: engine.wake_up(), -1),  # they are discarded
        (2, lambda engine: (engine.wake_up(), engine.reload()), 0),  # the initial checkpoint
        (2, lambda engine: (engine.wake_up(), engine.load(3)), 3),
        (2, lambda engine: (engine.load(3), engine.wake_up()), -1),  # their memory was not mapped
        (1, lambda engine: engine.wake_up(["weights"]), -1),  # there is no cache
        (1, lambda engine: None, -1),
    ],
)
def test_a_sleeping_engine_loses_weights_by_its_level(level, wakes, version):
    engine = WeightEngine()
    engine.load(3)
    engine.sleep(level)
    wakes(engine)
    engine.generate()
    assert engine.versions == [version]


def asked(request, configured=None, **given):
    """Return the observation of a boundary that sends this request for this configuration."""
    return measured(
        "sampling_request",
        lambda **inputs: {"request": request(inputs), "configured": configured or {}},
        **{"temperature": None, **given},
    )


def test_a_request_has_the_configured_options():
    given = {"temperature": 0.7, "top_k": 20, "stop": ["a"]}
    seen = measured("sampling_request", **given)
    assert (seen["temperature"], seen["top_k"], seen["stop"]) == (0.7, 20, [97])
    assert (seen["top_p"], seen["unlike_configured"], seen["changed_beside"]) == (None, 0, 0)


def test_a_missing_option_means_the_engines_default():
    seen = asked(lambda _: {"temperature": 0.7}, temperature=0.7, top_k=20, repetition_penalty=1.1, stop=["a"])
    assert (seen["top_k"], seen["repetition_penalty"], seen["stop"]) == (-1, 1.0, [])


@pytest.mark.parametrize("request_", [{"temperature": 0}, {"temperature": 0.7, "top_k": 1}, {"do_sample": False}])
def test_every_spelling_of_greedy_decoding_is_understood(request_):
    seen = asked(lambda _: request_, greedy=True)
    assert seen["greedy"] == 1
    assert asked(lambda _: {"temperature": 0.7}, greedy=True)["greedy"] == 0


def test_an_option_changes_no_other_option():
    broken = lambda given: {"top_p": given["top_p"], "no_stop_trim": given["top_p"] is None}  # noqa: E731
    seen = asked(broken, top_p=0.9)
    assert (seen["changed_beside"], seen["which"]) == (1, ["no_stop_trim"])


def test_an_unchanged_option_keeps_its_configured_value():
    seen = asked(lambda _: {"top_p": 1.0, "top_k": 0}, {"top_p": 0.7, "top_k": -1}, temperature=1.0)
    assert (seen["unlike_configured"], seen["which"]) == (1, ["top_p"])
    configured = {"temperature": 0.7, "greedy": True}
    assert asked(lambda _: {"temperature": 0}, configured, greedy=True)["unlike_configured"] == 0
    assert asked(lambda _: {"temperature": 0}, configured, temperature=0.7, greedy=True)["unlike_configured"] == 0


@pytest.mark.parametrize(
    ("numbers", "alike", "ends"),
    [
        ([0, 0, 1], [[True, True, False], [True, True, False], [False, False, True]], (0, 1)),
        ([7, 7, 100], [[True, True, False], [True, True, False], [False, False, True]], (7, 100)),
        ([0, 1, 1], [[True, False, False], [False, True, True], [False, True, True]], (0, 1)),
    ],
)
def test_groups_are_compared_by_their_rows(numbers, alike, ends):
    seen = measured(
        "group_numbers", lambda **_: {"numbers": torch.tensor(numbers)}, labels=numpy.array(["a", "a", "b"])
    )
    assert (seen["alike"], (seen["lowest"], seen["highest"])) == (alike, ends)


def test_labels_may_be_names():
    assert measured("group_numbers", labels=numpy.array([7, 3, 7]))["numbers"] == [0, 1, 0]


@pytest.mark.parametrize(
    ("said", "heard", "room", "mask", "cut"),
    [
        ([2], [0], 9, [1, 1], False),
        ([2], [3], 9, [1, 1], False),
        ([2, 1], [2, 1], 9, [1, 1, 0, 0, 1], False),
        ([4], [0], 4, [1, 1, 1, 1], False),
        ([5], [0], 4, [1, 1, 1, 1], True),
    ],
)
def test_environment_text_without_an_answer_is_not_in_the_response(said, heard, room, mask, cut):
    seen = measured("rollout_episode", said=said, heard=heard, turns=len(said), max_tokens=room)
    assert (seen["loss_mask"], seen["cut"]) == (mask, cut)


#: A question, and an answer of two words: <|im_start|> role, new line, words, <|im_end|>, new line.
ASKED = [1, 7, 3, 100, 2, 3]
ANSWERED = [1, 8, 3, 150, 151, 2]
CHAT = [["user", 1], ["assistant", 2]]


def test_only_answers_and_their_ends_are_trained():
    seen = measured("trained_tokens", conversation=CHAT)
    assert seen["token_ids"] == [*ASKED, *ANSWERED]
    assert seen["trained"] == [0] * 6 + [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("room", "kept"), [(11, [1, 1]), (10, [1]), (9, None)])
def test_truncated_tokens_are_not_trained(room, kept):
    seen = measured("trained_tokens", conversation=CHAT, max_tokens=room)
    assert seen["trained"] == ([] if kept is None else [0] * 9 + kept)
    kept_anyway = measured("trained_tokens", conversation=CHAT, max_tokens=8, untrained="kept")
    assert kept_anyway["trained"] == [0] * 8


def test_training_can_be_limited_to_the_last_answer():
    seen = measured("trained_tokens", conversation=[*CHAT, ["user", 1], ["assistant", 1]], trains="last")
    assert seen["trained"] == [0] * (12 + 1 + 6 + 3) + [1, 1]


def test_the_new_line_after_an_answer_can_count():
    seen = measured("trained_tokens", conversation=[*CHAT, *CHAT], after_the_end="counted")
    assert seen["trained"][:13] == [0] * 9 + [1, 1, 1, 1]


def test_tool_replies_may_share_a_turn():
    chat = [*CHAT, ["tool", 1], ["tool", 1], ["assistant", 1]]
    apart = measured("trained_tokens", conversation=chat)["token_ids"]
    together = measured("trained_tokens", conversation=chat, tools_share_a_turn=True)["token_ids"]
    assert apart[13:25] == [1, 9, 3, 200, 2, 3, 1, 9, 3, 250, 2, 3]
    assert together[13:24] == [1, 7, 3, 4, 200, 5, 4, 250, 5, 2, 3]


def test_a_mask_that_trains_the_question_is_detected():
    def broken(**_):
        return {"token_ids": [*ASKED, *ANSWERED], "loss_mask": [1] * 12}

    assert measured("trained_tokens", broken, conversation=CHAT)["trained"] == [1] * 12


#: A question, an answer, a tool's reply, another answer.
TWO_TURNS = [["user", 1], ["assistant", 2], ["tool", 1], ["assistant", 1]]
HEARD = [3, 1, 9, 3, 200, 2, 3, 1, 8, 3]
ROW_OF = "of this row"


def a_loop(broken: str = "", **inputs: Any) -> dict[str, Any]:
    """Return a correct agent loop for one or more answers, with the given fault."""
    engine, spent = TableEngine(inputs), 0
    prompt = engine.tokenizer.apply_chat_template(engine.prompt, add_generation_prompt=True)
    ids, mask, log_probs, experts, versions, shared = [], [], [], [], [], dict(inputs["options"])
    while True:
        room = {} if inputs["max_tokens"] is None else {"max_tokens": inputs["max_tokens"]}
        if broken != "limit" and room:
            room["max_tokens"] -= len(ids)
        asked = {**({"temperature": 1.0} if broken == "options" else shared), **room}
        before = engine.version
        answer = engine.answer(prompt + (ids if broken != "context" else []), asked)
        ids += answer.ids
        mask += [1] * len(answer.ids)
        log_probs += answer.log_probs
        experts = experts + answer.experts[len(answer.experts) - len(answer.ids) :]
        experts = answer.experts[len(prompt) :] if broken == "experts" else experts
        versions += [engine.version if broken == "version" else before] * len(answer.ids)
        spent = answer.count + (spent if broken != "count" else 0)
        full = len(ids) == inputs["max_tokens"]
        if answer.ends == "abort" and not full and (inputs["resumed"] or broken == "resumed"):
            continue
        heard = engine.heard()
        if answer.ends != "stop" or not heard:
            break
        written = engine.tokenizer.encode("\n" + engine.tokenizer.written(heard, add_generation_prompt=True))
        written = written[broken == "separator" :]
        ids += written
        mask += [int(broken == "mask")] * len(written)
        log_probs += [0.0] * len(written)
        experts += [0] * len(written)
        versions += [0] * len(written)
    if broken == "order":
        log_probs.reverse()
    return {
        "prompt_ids": prompt,
        "response_ids": ids,
        "loss_mask": mask,
        "log_probs": [] if broken == "lost" else torch.tensor(log_probs),
        "experts": torch.tensor(experts).reshape(-1, 1, 1),
        "versions": versions,
        "cut": (answer.ends == "length" or (answer.ends == "abort" and full)) != (broken == "cut"),
        "row": [None if broken == "row" else ROW_OF],
        "messages": [*engine.messages, *engine.messages[2:3]] if broken == "messages" else engine.messages,
        "counts": [spent],
        "engine": engine,
    }


PLAIN: Mapping[str, Any] = {"conversation": TWO_TURNS, "pieces": [[2], [1]], "turns": 2, "after_an_answer": ("tool",)}
RESUMED: Mapping[str, Any] = {
    "conversation": [["user", 1], ["assistant", 3]],
    "pieces": [[2, 1]],
    "turns": 1,
    "after_an_answer": ("user",),
    "interrupted": True,
    "routed": True,
}


@pytest.mark.parametrize("end", ["eos", "length"])
@pytest.mark.parametrize("scenario", [PLAIN, RESUMED, {**RESUMED, "resumed": False}, {**RESUMED, "max_tokens": 2}])
def test_a_correct_rollout_loop_agrees_with_the_oracle(scenario, end):
    given = {**scenario, "options": {"temperature": 0.5}, "end": end}
    assert measured("rollout", a_loop, **given) == measured("rollout", **given)


def test_a_conversation_equals_a_hand_made_one():
    seen = measured("rollout", **PLAIN)
    prompt = [*ASKED, 1, 8, 3]
    assert seen["token_ids"] == [*prompt, 150, 151, 2, *HEARD, 250, 2]
    assert seen["trained"] == [0] * len(prompt) + [1, 1, 1] + [0] * len(HEARD) + [1, 1]
    assert seen["asked"] == [*prompt, -1, *prompt, 150, 151, 2, *HEARD, -1]
    assert not any(count for name, count in seen.items() if name.endswith("_astray"))


def test_tokens_added_after_an_answer_are_not_trained():
    prompt = [*ASKED, 1, 8, 3]
    text = measured("rollout", **PLAIN, heard_as="text", end="text")
    assert text["token_ids"] == [*prompt, 150, 151, 200, 250]
    closed = measured("rollout", **PLAIN, end="text")
    assert closed["token_ids"] == [*prompt, 150, 151, 2, *HEARD, 250]
    assert closed["trained"][len(prompt) :] == [1, 1, 0] + [0] * len(HEARD) + [1]


@pytest.mark.parametrize(
    ("broken", "scenario", "key"),
    [
        ("mask", PLAIN, "trained"),
        ("separator", PLAIN, "token_ids"),
        ("context", PLAIN, "asked"),
        ("order", PLAIN, "log_probs_astray"),
        ("lost", PLAIN, "log_probs_astray"),
        ("experts", RESUMED, "experts_astray"),
        ("version", RESUMED, "versions_astray"),
        ("cut", PLAIN, "cut_astray"),
        ("options", {**PLAIN, "options": {"temperature": 0.5}}, "options_astray"),
        ("limit", {**RESUMED, "max_tokens": 3}, "limits_astray"),
        ("row", PLAIN, "rows_astray"),
        ("count", PLAIN, "counts_astray"),
        ("messages", PLAIN, "messages_astray"),
        ("resumed", {**RESUMED, "resumed": False}, "asked"),
    ],
)
def test_lost_rollout_data_is_detected(broken, scenario, key):
    seen, demanded = measured("rollout", partial(a_loop, broken), **scenario), measured("rollout", **scenario)
    assert seen[key] != demanded[key]


def test_tokens_after_the_last_trained_one_are_not_compared():
    def padded(**inputs: Any) -> dict[str, Any]:
        made = a_loop(**inputs)
        return {**made, "response_ids": [*made["response_ids"], 0], "loss_mask": [*made["loss_mask"], 0],
                "log_probs": None, "experts": None, "versions": None}  # fmt: skip

    assert measured("rollout", padded, **PLAIN) == measured("rollout", **PLAIN)


#: Rollouts of three versions for steps 1 and 2; the current step is 1.
BUFFER = {"versions": [0, 1, 1, 0], "targets": [1, 1, 2, 1], "step": 1, "needed": 2, "max_age": 1}


def test_a_buffer_gives_a_step_its_own_rollouts():
    seen = measured("rollout_buffer", **BUFFER)
    assert (seen["taken"], seen["left"], seen["missing"], seen["age"]) == ([0, 1], [2, 3], 0, 0.5)
    assert (seen["open_targets"], seen["done_until"]) == ([1, 2], 1)
    fresh = measured("rollout_buffer", **{**BUFFER, "max_age": 0})
    assert (fresh["taken"], fresh["left"], fresh["missing"], fresh["age"]) == ([], [1, 2], 1, None)


@pytest.mark.parametrize(
    ("selects", "taken", "left"),
    [("arrival", [0, 1], [2, 3]), ("newest", [1, 2], [0, 3]), ("oldest", [0, 3], [1, 2]), ("ready", [0, 1], [2, 3])],
)
def test_a_buffer_selects_by_version(selects, taken, left):
    seen = measured("rollout_buffer", **BUFFER, selects=selects)
    assert (seen["taken"], seen["left"]) == (taken, left)


def test_a_resumed_buffer_drops_what_no_step_may_use():
    seen = measured("rollout_buffer", **{**BUFFER, "step": 2, "needed": 1}, restored="resumed")
    assert (seen["taken"], seen["left"], seen["done_until"]) == ([2], [], 2)
    newest = measured("rollout_buffer", **BUFFER, selects="arrival", restored="saved", capacity=2, keeps="newest")
    assert newest["taken"] == [1, 2]
