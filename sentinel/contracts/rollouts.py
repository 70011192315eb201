"""Rollouts: what an engine and an environment are asked for, and what becomes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, REQUIRED, Choose, Input, Observed, drawn, knob, returned, rule
from sentinel.values.lazy import torch

# -- rollout episodes --------------------------------------------------------------------------------------------------


def _oracle_rollout_episode(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the policy said, with what it heard between two turns; what comes after its last turn, it never answers.
    A response has no more tokens than there is room for, and says so where it had to be cut."""
    mask: list[int] = []
    for generated, observed in zip(inputs["said"], inputs["heard"]):
        mask += [1] * generated + [0] * observed
    whole = mask[: len(mask) - inputs["heard"][-1]]
    room = inputs["max_tokens"]
    return {"loss_mask": whole[:room], "cut": len(whole) > room}


def _arrange_rollout_episode(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """A word and EOS at least in every turn; the environment may say something with the last one, too. The limit is
    that of an episode of one turn: in a conversation it is the engine's, for each turn."""
    turns = choose.integer(1, inputs["turns"])
    inputs["said"] = [choose.integer(2, 4) for _ in range(turns)]
    inputs["heard"] = [choose.integer(1, 2) for _ in range(turns - 1)] + [choose.integer(0, 2)]
    inputs["turns"] = turns
    if turns > 1 or inputs["heard"][-1]:
        inputs["max_tokens"] = 100
    return inputs


ROLLOUT_EPISODE = rule(
    name="rollout_episode",
    summary="the response that turns of a policy and its environment make",
    source="a response is what the policy said, and what it heard before that; n tokens are within a limit of n",
    inputs=(
        Input("said", "any", "tokens that the policy says in each turn, EOS among them", choices=([],)),
        Input("heard", "any", "tokens that the environment answers to each turn, the last one included", choices=([],)),
        drawn("turns", "how many turns there may be", (1, 2, 3), REQUIRED),
        drawn("max_tokens", "most tokens of a response", (100, 2, 4), REQUIRED),
    ),
    observes=(
        Observed("loss_mask", "for each token of the response: 1 the policy's, 0 the environment's", ("response",)),
        Observed("cut", "whether the response is said to have reached its limit"),
    ),
    measure=returned(loss_mask="integers", cut="truth"),
    oracle=_oracle_rollout_episode,
    arrange=_arrange_rollout_episode,
)


# -- rollout collection ------------------------------------------------------------------------------------------------


def _measure_rollout_collection(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``taken`` and ``left``: rollouts by their number, which is the order that they end in."""
    outputs = call(**inputs)
    taken, left = ([int(number) for number in outputs[name]] for name in ("taken", "left"))
    places = torch.tensor([*taken, *left], dtype=torch.int64)
    return {
        "times": torch.bincount(places, minlength=inputs["completed"]),
        "size": len(taken),
        "taken": taken,
        "left": left,
    }


def _oracle_rollout_collection(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of as many as are needed; what is not in it is still there."""
    done = range(inputs["completed"])
    return {"taken": done[: inputs["needed"]], "left": done[inputs["needed"] :]}


def _arrange_rollout_collection(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Complete no less than a batch: nothing else is to be waited for."""
    inputs["completed"] = inputs["needed"] + choose.integer(0, 4)
    return inputs


ROLLOUT_COLLECTION = rule(
    name="rollout_collection",
    summary="a batch that is taken of the rollouts that are done, and what is left for the next",
    source="a queue: what is put in is taken out once",
    inputs=(
        drawn("completed", "rollouts that are done", (0,), REQUIRED),
        drawn("needed", "rollouts of a batch", (2, 1, 3), REQUIRED),
    ),
    observes=(
        Observed("times", "how often each rollout is in the batch or among what is left", ("rollouts",)),
        Observed("size", "rollouts of the batch"),
        Observed("taken", "which these are", role="other"),
        Observed("left", "what is left", role="other"),
    ),
    measure=_measure_rollout_collection,
    oracle=_oracle_rollout_collection,
    arrange=_arrange_rollout_collection,
)


# -- truncation --------------------------------------------------------------------------------------------------------


def _measure_truncation(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``token_ids``, those that are left, in their order and without padding or a note that something
    is missing, and the ``loss_mask`` beside them."""
    outputs = call(**inputs)
    mask = outputs.get("loss_mask")
    return {
        "token_ids": torch.as_tensor(list(outputs["token_ids"]), dtype=torch.int64),
        "loss_mask": None if mask is None else torch.as_tensor(list(mask), dtype=torch.int64),
    }


def _oracle_truncation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is too long, ``side`` loses the surplus and the other end stays. Padding changes none of it."""
    surplus = max(len(inputs["token_ids"]) - inputs["max_length"], 0)

    def left_of(values: Any) -> Any:
        return values[surplus:] if inputs["side"] == "left" else values[: len(values) - surplus]

    mask = inputs["loss_mask"]
    return {"token_ids": left_of(inputs["token_ids"]), "loss_mask": None if mask is None else left_of(mask)}


def _arrange_truncation(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw tokens that all differ: a prompt, and an answer that is trained on."""
    prompt, answer = choose.integer(0, 4), choose.integer(1, 4)
    inputs["token_ids"] = [65 + place for place in range(prompt + answer)]
    inputs["loss_mask"] = [0] * prompt + [1] * answer
    return inputs


TRUNCATION = rule(
    name="truncation",
    summary="what is left of a sequence of tokens or letters that is longer than there is room for",
    source="truncation sides as tokenizers define them: `left` loses the beginning, `right` loses the end",
    inputs=(
        Input("token_ids", "any", "the sequence; of a text, the code points of its letters", choices=([],)),
        Input("loss_mask", "any", "1 where a token is trained on; null where the boundary has none", default=None),
        drawn("max_length", "how many of them there is room for", (3, 1, 2, 5), REQUIRED),
        knob("side", "the end that loses tokens: left or right", ("right", "left"), REQUIRED),
        drawn(
            "padded",
            "whether what is shorter than max_length is filled up to it; the padding is no part of the answer",
            (False, True),
        ),
    ),
    observes=(
        Observed("token_ids", "the tokens that are left, in their order", ("kept",)),
        Observed("loss_mask", "the loss mask of these", ("kept",)),
    ),
    measure=_measure_truncation,
    oracle=_oracle_truncation,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_truncation,
)


# -- sampling requests -------------------------------------------------------------------------------------------------


#: Option -> what it is, two values of it, what a request without it means, and what engines call it.
_PARAMETERS: Mapping[str, tuple[str, tuple[Any, Any], Any, tuple[str, ...]]] = {
    "temperature": ("divisor of the logits", (0.7, 1.5), 1.0, ()),
    "top_p": ("probability of the tokens that are sampled from", (0.9, 0.5), 1.0, ()),
    "top_k": ("number of the tokens that are sampled from", (50, 20), -1, ()),
    "min_p": ("probability of a token that is sampled, by the likeliest one's", (0.1, 0.2), 0.0, ()),
    "max_new_tokens": ("most tokens of a response", (8, 4), None, ("max_tokens", "max_completion_tokens")),
    "min_new_tokens": ("fewest tokens of a response", (2, 3), 0, ("min_tokens",)),
    "repetition_penalty": ("divisor of the logits of tokens that were there already", (1.1, 1.5), 1.0, ()),
    "presence_penalty": ("taken off the logits of tokens that were said", (0.5, 1.5), 0.0, ()),
    "frequency_penalty": ("taken off the logits of tokens each time that they were said", (0.5, 1.5), 0.0, ()),
    "stop": ("texts that end a response, of one letter each", (["a"], ["b", "c"]), [], ("stop_strings",)),
    "stop_token_ids": ("tokens that end a response", ([5], [6, 7]), [], ()),
    "ignore_eos": ("whether a response goes on behind its end", (False, True), False, ()),
    "seed": ("of the samples", (1, 2), None, ("sampling_seed",)),
    "greedy": ("whether the likeliest token is taken, whatever else is said", (False, True), False, ()),
}
_LISTS = ("stop", "stop_token_ids")


def _measure_sampling_request(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns the ``request``, in an engine's words, and what the framework's configuration says of each
    option (``configured``). It is called twice: an option that is turned turns nothing else."""
    outputs, untouched = call(**inputs), call(**dict.fromkeys(inputs))
    request, configured = _understood(outputs["request"]), outputs["configured"]
    implied = {"greedy", *(("temperature",) if configured.get("greedy") else ())}
    alone = [name for name in configured if inputs[name] is None and name not in implied]
    unlike = [name for name in alone if _plain(name, configured[name]) != _plain(name, request[name])]
    beside = [_beside(answer["request"]) for answer in (outputs, untouched)]
    changed = [name for name in {**beside[0], **beside[1]} if beside[0].get(name) != beside[1].get(name)]
    return {
        **{name: None if inputs[name] is None else _number(name, request[name]) for name in _PARAMETERS},
        "unlike_configured": len(unlike),
        "changed_beside": len(changed),
        "which": sorted([*unlike, *changed]),
    }


def _understood(request: Mapping[str, Any]) -> dict[str, Any]:
    """Read each option as an engine understands the request."""
    options = {}
    for name, (_, _, without, words) in _PARAMETERS.items():
        values = [request[word] for word in (name, *words) if request.get(word) is not None]
        options[name] = values[0] if values else without
    options["greedy"] = options["temperature"] == 0 or options["top_k"] == 1 or request.get("do_sample") is False
    return {**options, "temperature": 0.0} if options["greedy"] else options


def _plain(name: str, value: Any) -> Any:
    """Write a value in one form of those that mean the same."""
    value = _PARAMETERS[name][2] if value is None else value
    if name == "top_k":
        return value if 0 < value < 10**6 else -1
    return [value] if name in _LISTS and not isinstance(value, (list, tuple)) else value


def _number(name: str, value: Any) -> Any:
    value = _plain(name, value)
    if name not in _LISTS:
        return -1 if value is None else value
    return torch.tensor([ord(item) if isinstance(item, str) else int(item) for item in value], dtype=torch.int64)


def _beside(request: Mapping[str, Any]) -> dict[str, str]:
    words_of_options = {"do_sample", *(word for name, (*_, words) in _PARAMETERS.items() for word in (name, *words))}
    return {name: repr(value) for name, value in request.items() if name not in words_of_options}


def _oracle_sampling_request(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """As configured; what is greedy has the temperature 0. An option changes what it says, and nothing else."""
    request = {name: value for name, value in inputs.items() if value is not None}
    if inputs["greedy"]:
        request["temperature"] = 0.0
    return {"request": request, "configured": {}}


def _arrange_sampling_request(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Keep one option, or two; the others are what the framework's configuration has by default."""
    chosen = [name for name in _PARAMETERS if inputs[name] is not None]
    chosen.sort(key=lambda name: bool(inputs[name] == _PARAMETERS[name][1][0]))  # the least plain come first
    kept = [choose.one_of(chosen) for _ in range(choose.integer(1, 2))]
    return {name: value if name in kept else None for name, value in inputs.items()}


SAMPLING_REQUEST = rule(
    name="sampling_request",
    summary="what an inference engine is asked for, by the options of a configuration",
    source=(
        "log-probs and samples are of the distribution that the configuration names, whoever is asked for them: an "
        "option changes what it says, and nothing else"
    ),
    inputs=tuple(
        knob(
            name,
            f"{meaning}; null: what the framework's configuration has by default",
            values,
            REQUIRED if name == "temperature" else None,
            kind="any",
        )
        for name, (meaning, values, *_) in _PARAMETERS.items()
    ),
    observes=(
        *(
            Observed(name, f"the request's: {meaning}", (name,) if name in _LISTS else ())
            for name, (meaning, *_) in _PARAMETERS.items()
        ),
        Observed(
            "unlike_configured", "options left alone that are asked for otherwise than the configuration has them"
        ),
        Observed("changed_beside", "what else the request has otherwise for the options that are given"),
        Observed("which", "these", role="other"),
    ),
    measure=_measure_sampling_request,
    oracle=_oracle_sampling_request,
    law="every_knob_counts",
    laws=("the_oracle_agrees", "every_knob_counts", "nothing_else_is_touched"),
    arrange=_arrange_sampling_request,
)
