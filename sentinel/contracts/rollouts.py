"""Define contracts of rollouts: requests to an inference engine, and the use of its responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, REQUIRED, Choose, Input, Observed, drawn, knob, returned, rule
from sentinel.values.lazy import torch

# -- rollout episodes --------------------------------------------------------------------------------------------------


def _measure_rollout_episode(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the loss mask, the truncation flag and the rewards of an episode.

    ``call`` returns ``loss_mask``, ``cut`` and, optionally, ``reward`` (one number, or a list with one per token) and
    ``log_probs`` (a list with one per token).
    """
    outputs = call(**inputs)
    reward, turns = outputs.get("reward") if inputs["rewards"] else None, None
    if isinstance(reward, (list, tuple)):
        ends, whole = [0], [float(one or 0.0) for one in reward]
        for generated, observed in zip(inputs["said"], inputs["heard"]):
            ends += [ends[-1] + generated, ends[-1] + generated + observed]
        turns = torch.tensor([sum(whole[start:end]) for start, end in zip(ends[::2], ends[1::2])])
        reward = sum(whole)
    return {
        "loss_mask": torch.as_tensor(list(outputs["loss_mask"]), dtype=torch.int64),
        "cut": bool(outputs["cut"]),
        "reward": None if reward is None else float(reward),
        "turn_rewards": turns,
        "log_probs": None if outputs.get("log_probs") is None else torch.tensor(outputs["log_probs"]),
    }


#: The log-prob of the policy's first token of an episode, and the difference between two of its successive tokens.
LOG_PROB_STEP = -0.125


def _oracle_rollout_episode(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss mask and the reward of an episode, in which the environment's tokens follow each turn.

    The engine gives the policy's n-th token the log-prob ``n LOG_PROB_STEP``; tokens of the environment have 0. Tokens
    after the policy's last turn are dropped. A response that exceeds the limit is truncated there and marked as
    truncated. The reward of a turn is on its last token, and the episode's reward is the sum over turns (Sutton and
    Barto, second edition, equation 3.7).
    """
    mask: list[int] = []
    rewards: list[float] = []
    for place, (generated, observed) in enumerate(zip(inputs["said"], inputs["heard"])):
        mask += [1] * generated + [0] * observed
        rewards += [0.0] * (generated - 1) + list(inputs["rewards"][place : place + 1]) + [0.0] * observed
    whole = mask[: len(mask) - inputs["heard"][-1]]
    room = inputs["max_tokens"]
    numbered = [LOG_PROB_STEP * sum(whole[: place + 1]) * flag for place, flag in enumerate(whole)]
    return {"loss_mask": whole[:room], "cut": len(whole) > room, "reward": rewards, "log_probs": numbered[:room]}


def _arrange_rollout_episode(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw turns of at least two tokens: a word and the end token.

    The environment may also respond to the last turn. The limit applies only to episodes of one turn; in longer
    episodes, the engine limits each turn.
    """
    turns = choose.integer(1, inputs["turns"])
    inputs["said"] = [choose.integer(2, 4) for _ in range(turns)]
    inputs["heard"] = [choose.integer(1, 2) for _ in range(turns - 1)] + [choose.integer(0, 2)]
    inputs["turns"] = turns
    inputs["rewards"] = [choose.one_of((1.0, 0.5, 0.0, -0.25)) for _ in range(turns)]
    if turns > 1 or inputs["heard"][-1]:
        inputs["max_tokens"] = 100
    return inputs


ROLLOUT_EPISODE = rule(
    name="rollout_episode",
    summary="the response that the turns of a policy and its environment form, and its reward",
    source=(
        "a response has all tokens up to the policy's last one; n tokens fit a limit of n; the "
        "return of an episode is the sum of its rewards"
    ),
    inputs=(
        Input("said", "any", "tokens that the policy generates in each turn, including EOS", choices=([],)),
        Input("heard", "any", "tokens of the environment after each turn, including the last", choices=([],)),
        Input("rewards", "any", "reward of the environment for each turn; default: not compared", default=[]),
        drawn("turns", "maximum number of turns", (1, 2, 3), REQUIRED),
        drawn("max_tokens", "maximum tokens of a response", (100, 2, 4), REQUIRED),
    ),
    observes=(
        Observed("loss_mask", "1 for the policy's tokens, 0 for the environment's", ("response",)),
        Observed("cut", "whether the response is marked as truncated at its limit"),
        Observed("reward", "the reward of the episode"),
        Observed("turn_rewards", "the reward within the tokens of each turn, if rewards are per token", ("turns",)),
        Observed("log_probs", "the recorded log-prob of each token; 0 for the environment's", ("response",)),
    ),
    measure=_measure_rollout_episode,
    oracle=_oracle_rollout_episode,
    arrange=_arrange_rollout_episode,
)


# -- rollout collection ------------------------------------------------------------------------------------------------


def _measure_rollout_collection(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe which finished rollouts are in the batch (``taken``) and which stay for the next one (``left``).

    Rollouts are numbered in the order in which they finish. Rejected rollouts do not count as left.
    """
    outputs = call(**inputs)
    taken, left = ([int(number) for number in outputs[name]] for name in ("taken", "left"))
    left = [number for number in left if number not in inputs["rejected"]]
    places = torch.tensor([*taken, *left], dtype=torch.int64)
    return {
        "times": torch.bincount(places, minlength=inputs["completed"]),
        "size": len(taken),
        "taken": taken,
        "left": left,
    }


def _oracle_rollout_collection(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of the required size, or of all accepted rollouts if they are fewer. The remaining rollouts stay
    for the next batch."""
    accepted = [number for number in range(inputs["completed"]) if number not in inputs["rejected"]]
    return {"taken": accepted[: inputs["needed"]], "left": accepted[inputs["needed"] :]}


def _arrange_rollout_collection(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw at least as many finished rollouts as a batch needs, so that the function does not wait for more.

    A filter may leave fewer.
    """
    inputs["completed"] = inputs["needed"] + choose.integer(0, 4)
    flags = choose.integers(inputs["completed"], 0, 2) if inputs["filters"] else []
    inputs["rejected"] = [number for number, flag in enumerate(flags) if flag == 1]
    return inputs


ROLLOUT_COLLECTION = rule(
    name="rollout_collection",
    summary="a batch of finished rollouts, and the rollouts that stay for the next batch",
    source="a queue: every item is returned once",
    inputs=(
        drawn("completed", "number of finished rollouts", (0,), REQUIRED),
        drawn("needed", "rollouts per batch", (2, 1, 3), REQUIRED),
        Input("filters", "boolean", "whether a filter rejects rollouts, which may leave too few", default=False),
        Input("rejected", "any", "numbers of the rollouts that the filter rejects", default=[]),
        Input("surplus", "integer", "number of rollouts that are started in addition to a batch", default=0),
    ),
    observes=(
        Observed("times", "number of times that each rollout occurs in taken and left together", ("rollouts",)),
        Observed("size", "number of rollouts in the batch"),
        Observed("taken", "numbers of the rollouts in the batch", role="other"),
        Observed("left", "numbers of the remaining rollouts", role="other"),
    ),
    measure=_measure_rollout_collection,
    oracle=_oracle_rollout_collection,
    arrange=_arrange_rollout_collection,
)


# -- the weights of an engine ------------------------------------------------------------------------------------------


class WeightEngine:
    """A stand-in engine that records the version of its weights, and has the memory levels of vLLM's sleep mode.

    Sleep of level 1 keeps the weights, level 2 discards them. ``reload`` restores the initial checkpoint, version 0.

    :ivar versions: for each call of ``generate``, the version of the weights; -1 if the engine was asleep or had none.
    """

    _MEMORY = ("weights", "kv_cache")

    def __init__(self) -> None:
        self.version, self.awake, self.versions = 0, set(self._MEMORY), list[int]()

    def sleep(self, level: int = 1) -> None:
        self.awake = set()
        self.version = self.version if level < 2 else -1

    def wake_up(self, tags: Any = None) -> None:
        self.awake |= set(self._MEMORY if tags is None else tags)

    def load(self, version: Any) -> None:
        """Load the weights of a version. They are lost if the engine's weight memory is asleep."""
        self.version = int(version) if "weights" in self.awake else -1

    def reload(self) -> None:
        self.version = 0 if "weights" in self.awake else -1

    def generate(self) -> None:
        self.versions.append(self.version if self.awake == set(self._MEMORY) else -1)


def _oracle_engine_weights(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each generation, the number of updates before it: on-policy samples need the current weights
    (Williams, 1992)."""
    counts = enumerate(inputs["generations"], start=1)
    return {"versions": [version for version, count in counts for _ in range(count)]}


def _arrange_engine_weights(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    inputs["generations"] = [choose.integer(1, inputs["most"]) for _ in range(choose.integer(1, 3))]
    return inputs


ENGINE_WEIGHTS = rule(
    name="engine_weights",
    summary="the weights with which an engine generates, after updates of the policy and after sleep",
    source="the policy gradient is an expectation over samples of the current policy (Williams, 1992)",
    inputs=(
        Input("generations", "any", "number of generations after each update of the policy", choices=([],)),
        drawn("most", "maximum number of generations after an update", (2, 1, 3)),
        drawn("sleeps", "whether the engine shares devices with the trainer, and sleeps during updates", (False, True)),
    ),
    observes=(Observed("versions", "for each generation, the number of updates before it", ("generations",)),),
    measure=returned(versions="integers"),
    oracle=_oracle_engine_weights,
    arrange=_arrange_engine_weights,
)


# -- truncation --------------------------------------------------------------------------------------------------------


def _measure_truncation(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the token ids and the loss mask after truncation.

    ``call`` returns ``token_ids`` and their ``loss_mask``: the remaining tokens, in order, without padding and without
    a truncation mark.
    """
    outputs = call(**inputs)
    mask = outputs.get("loss_mask")
    return {
        "token_ids": torch.as_tensor(list(outputs["token_ids"]), dtype=torch.int64),
        "loss_mask": None if mask is None else torch.as_tensor(list(mask), dtype=torch.int64),
    }


def _oracle_truncation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the tokens that exceed the limit, at ``side``. Padding does not count."""
    surplus = max(len(inputs["token_ids"]) - inputs["max_length"], 0)

    def left_of(values: Any) -> Any:
        return values[surplus:] if inputs["side"] == "left" else values[: len(values) - surplus]

    mask = inputs["loss_mask"]
    return {"token_ids": left_of(inputs["token_ids"]), "loss_mask": None if mask is None else left_of(mask)}


def _arrange_truncation(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw distinct tokens: a prompt, and an answer that is trained on."""
    prompt, answer = choose.integer(0, 4), choose.integer(1, 4)
    inputs["token_ids"] = [65 + place for place in range(prompt + answer)]
    inputs["loss_mask"] = [0] * prompt + [1] * answer
    return inputs


TRUNCATION = rule(
    name="truncation",
    summary="the tokens or characters that remain of a sequence above the limit",
    source="truncation sides as tokenizers define them: `left` loses the beginning, `right` loses the end",
    inputs=(
        Input("token_ids", "any", "the sequence; for a text, the code points of its characters", choices=([],)),
        Input("loss_mask", "any", "1 for tokens that are trained on; null if the boundary has no mask", default=None),
        drawn("max_length", "maximum number of tokens", (3, 1, 2, 5), REQUIRED),
        knob("side", "the end that loses tokens: left or right", ("right", "left"), REQUIRED),
        drawn(
            "padded",
            "whether shorter sequences are padded to max_length; padding is not part of the result",
            (False, True),
        ),
    ),
    observes=(
        Observed("token_ids", "the remaining tokens, in order", ("kept",)),
        Observed("loss_mask", "their loss mask", ("kept",)),
    ),
    measure=_measure_truncation,
    oracle=_oracle_truncation,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_truncation,
)


# -- sampling requests -------------------------------------------------------------------------------------------------


#: Option -> (meaning, the values that a search draws, the value if a request omits it, engines' other names for it).
_PARAMETERS: Mapping[str, tuple[str, tuple[Any, Any], Any, tuple[str, ...]]] = {
    "temperature": ("divisor of the logits", (0.7, 1.5), 1.0, ()),
    "top_p": ("top-p: probability mass of the tokens that are sampled from", (0.9, 0.5), 1.0, ()),
    "top_k": ("top-k: number of tokens that are sampled from", (50, 20), -1, ()),
    "min_p": ("min-p: smallest probability of a sampled token, relative to the likeliest token", (0.1, 0.2), 0.0, ()),
    "max_new_tokens": ("maximum tokens of a response", (8, 4), None, ("max_tokens", "max_completion_tokens")),
    "min_new_tokens": ("minimum tokens of a response", (2, 3), 0, ("min_tokens",)),
    "repetition_penalty": (
        "repetition penalty: divisor of the logits of tokens that occurred before",
        (1.1, 1.5),
        1.0,
        (),
    ),
    "presence_penalty": ("presence penalty: subtracted from the logits of generated tokens", (0.5, 1.5), 0.0, ()),
    "frequency_penalty": (
        "frequency penalty: subtracted from the logits of a token per occurrence",
        (0.5, 1.5),
        0.0,
        (),
    ),
    "stop": ("texts that end a response, of one character each", (["a"], ["b", "c"]), [], ("stop_strings",)),
    "stop_token_ids": ("tokens that end a response", ([5], [6, 7]), [], ()),
    "ignore_eos": ("whether generation continues after EOS", (False, True), False, ()),
    "seed": ("of the samples", (1, 2), None, ("sampling_seed",)),
    "greedy": ("whether the likeliest token is always taken (greedy)", (False, True), False, ()),
}
_LISTS = ("stop", "stop_token_ids")


def _measure_sampling_request(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the sampling request that the framework makes from a configuration.

    ``call`` returns the ``request`` with the engine's names, and the configured value of each option
    (``configured``). A second call sets no option. Apart from the options that the scenario sets, the two requests must
    be equal.
    """
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
    """Return the value of each option as an inference engine would interpret the request."""
    options = {}
    for name, (_, _, without, words) in _PARAMETERS.items():
        values = [request[word] for word in (name, *words) if request.get(word) is not None]
        options[name] = values[0] if values else without
    options["greedy"] = options["temperature"] == 0 or options["top_k"] == 1 or request.get("do_sample") is False
    return {**options, "temperature": 0.0} if options["greedy"] else options


def _plain(name: str, value: Any) -> Any:
    """Return a value in a canonical form, so that equal values compare equal."""
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
    """Return a request with the configured values. Greedy decoding is temperature 0. No option affects another one."""
    request = {name: value for name, value in inputs.items() if value is not None}
    if inputs["greedy"]:
        request["temperature"] = 0.0
    return {"request": request, "configured": {}}


def _arrange_sampling_request(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Set one or two of the drawn options. All other options have the framework's defaults."""
    chosen = [name for name in _PARAMETERS if inputs[name] is not None]
    chosen.sort(key=lambda name: bool(inputs[name] == _PARAMETERS[name][1][0]))  # options with an unusual value first
    kept = [choose.one_of(chosen) for _ in range(choose.integer(1, 2))]
    return {name: value if name in kept else None for name, value in inputs.items()}


SAMPLING_REQUEST = rule(
    name="sampling_request",
    summary="the request to an inference engine, from the options of a configuration",
    source=(
        "samples and log-probs come from the configured distribution, for every engine; an option "
        "has no effect on other options"
    ),
    inputs=tuple(
        knob(
            name,
            f"{meaning}; null: the framework's default",
            values,
            REQUIRED if name == "temperature" else None,
            kind="any",
        )
        for name, (meaning, values, *_) in _PARAMETERS.items()
    ),
    observes=(
        *(
            Observed(name, f"in the request: {meaning}", (name,) if name in _LISTS else ())
            for name, (meaning, *_) in _PARAMETERS.items()
        ),
        Observed(
            "unlike_configured",
            "number of options that the scenario does not set and whose requested value is not the configured one",
        ),
        Observed("changed_beside", "number of other fields of the request that the scenario's options change"),
        Observed("which", "the names of these options and fields", role="other"),
    ),
    measure=_measure_sampling_request,
    oracle=_oracle_sampling_request,
    law="every_knob_counts",
    laws=("the_oracle_agrees", "every_knob_counts", "nothing_else_is_touched"),
    arrange=_arrange_sampling_request,
)
