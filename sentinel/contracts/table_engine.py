"""Define the contract of a rollout: a scripted inference engine, and the training data that a framework's loop builds.

Every token is distinct. Its log-prob and experts follow from its id and the version of the weights that generated it,
so the contract can check that each value in the training data belongs to its token.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, REQUIRED, Choose, Input, Observed, drawn, knob, rule
from sentinel.contracts.conversations import chat
from sentinel.values.lazy import torch

#: The names that engines use for the sampling option that limits the tokens of an answer.
_LIMITS = ("max_new_tokens", "max_tokens")


def log_prob_of(token: int, version: int) -> float:
    """Return a nonzero log-prob that identifies a token and the weights that sampled it."""
    return -(1 + (7 * token + 31 * version) % 127) / 64


def expert_of(token: int, version: int) -> int:
    """Return a nonzero expert number that identifies a token and the weights that routed it."""
    return 1 + (5 * token + 11 * version) % 61


def nucleus_of(token: int, version: int) -> list[int]:
    """Return the tokens that the engine could sample with top-p instead of a token, including the token itself."""
    return [token, *range(1, 1 + (token + version) % 3)]


@dataclass(frozen=True)
class Answer:
    """One answer of the engine.

    :ivar experts: for each token of the context and the answer, the expert that the weights of ``version`` choose.
    :ivar ends: why the answer ends: ``stop``, ``length`` or ``abort``. After ``abort``, the loop must request the rest.
    :ivar count: a number that the engine reports with this answer. The loop must report the sum over answers.
    """

    ids: list[int]
    log_probs: list[float]
    experts: list[int]
    version: int
    ends: str
    text: str
    count: int = 0


class TableEngine:
    """A scripted inference engine: it returns the scenario's answers one after another, and records the requests.

    The engine respects the token limit of a request. When it interrupts an answer, it loads new weights before it
    generates the rest.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.tokenizer, self.messages = chat(inputs)
        self.version, self.requests = 1, list[tuple[list[int], dict[str, Any]]]()
        self._pieces = pieces_of(inputs)
        self._turns = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        self.prompt = self.messages[: self._turns[0]]
        self._turn = -1

    def answer(self, token_ids: Any, sampling: Mapping[str, Any] | None = None) -> Answer:
        context, sampling = [int(token) for token in token_ids], dict(sampling or {})
        self.requests.append((context, sampling))
        if not self._pieces:
            assert len(self.requests) < 100, "the loop does not stop sending requests"
            return Answer([], [], [expert_of(token, self.version) for token in context], self.version, "stop", "")
        turn, ids, ends = self._pieces.pop(0)
        limits = [sampling[name] for name in _LIMITS if sampling.get(name) is not None]
        if limits and limits[0] < len(ids):
            ids, ends = ids[: max(limits[0], 0)], "length"
        self._turn, version = turn, self.version
        self.version += ends == "abort"
        return Answer(
            ids,
            [log_prob_of(token, version) for token in ids],
            [expert_of(token, version) for token in (*context, *ids)],
            version,
            ends,
            self.tokenizer.text_of(ids),
            len(self.requests),
        )

    def heard(self) -> list[dict[str, str]]:
        """Return the environment's messages after the last turn; empty at the end of the conversation."""
        later = self._turns[self._turn + 1 : self._turn + 2]
        return self.messages[self._turns[self._turn] + 1 : later[0]] if later else []


def in_sglangs_words(answer: Answer, routed: bool, nuclei: bool = False) -> dict[str, Any]:
    """Return the answer in the format of SGLang's server, which sends no experts for the last token.

    :param nuclei: whether the server also returns the tokens that top-p kept at each position.
    """
    import numpy

    experts = base64.b64encode(numpy.array(answer.experts[:-1], numpy.int32).tobytes()).decode()
    meta = {
        "output_token_logprobs": [[log_prob, token, None] for log_prob, token in zip(answer.log_probs, answer.ids)],
        "finish_reason": {"type": answer.ends},
        "prompt_tokens": len(answer.experts) - len(answer.ids),
        "completion_tokens": len(answer.ids),
        "cached_tokens": answer.count,
        "weight_version": str(answer.version),
        **dict.fromkeys(("spec_accept_token_num", "spec_draft_token_num", "spec_verify_ct"), answer.count),
    }
    if routed:
        meta["routed_experts"] = experts
    if nuclei:
        kept = [nucleus_of(token, answer.version) for token in answer.ids]
        meta["top_p_token_ids"] = [token for tokens in kept for token in tokens]
        meta["top_p_token_offsets"] = [sum(map(len, kept[:count])) for count in range(len(kept) + 1)]
    return {"text": answer.text, "meta_info": meta}


def experts_beside(experts: Any) -> list[Any] | None:
    """Return one expert per token, and None for the last token.

    :param experts: an array of the experts of all tokens but the last, with axes for layer and choice.
    """
    return None if experts is None else [*_listed(experts), None]


def pieces_of(inputs: Mapping[str, Any]) -> list[tuple[int, list[int], str]]:
    """Split the scenario's answers at interruptions into pieces ``(turn, token ids, ends)``; see
    :attr:`Answer.ends`."""
    tokenizer, messages = chat(inputs)
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    pieces = []
    for turn, (content, words) in enumerate(zip(answers, inputs["pieces"])):
        ids, last = tokenizer.encode(content), turn + 1 == len(answers)
        if inputs["end"] == "eos" if last else inputs["heard_as"] != "text" and inputs["end"] != "text":
            ids.append(tokenizer.eos_token_id)
        for place, count in enumerate(words):
            final = place + 1 == len(words)
            ends = "abort" if not final else "length" if last and inputs["end"] == "length" else "stop"
            pieces.append((turn, ids if final else ids[:count], ends))
            if not final and not inputs["resumed"]:
                return pieces
            ids = [] if final else ids[count:]
    return pieces


def _measure_rollout(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the training data of a rollout, and count the values that are wrong or belong to other tokens.

    ``call`` returns ``prompt_ids``, ``response_ids`` with their ``loss_mask``, and the ``engine``. It may also return

    * ``log_probs``, ``experts`` and ``versions``: lists with one entry per response token, or per token of prompt and
      response. An entry is None for a token without a value; a list is empty if the loop loses the values;
    * ``nuclei``: for each response token, the tokens that top-p kept at its position;
    * ``asked``: the requests; without it, those that the engine recorded;
    * ``cut``: whether the response was truncated;
    * ``counts``: the sums of the answers' counts;
    * ``row``: the values of ``row`` that the environment received;
    * ``messages``: the messages that the loop keeps.

    A key is None or missing if the framework has no such data. Tokens after the last trained token are not compared.
    """
    outputs = call(**inputs)
    prompt, ids, mask = (_listed(outputs[name]) for name in ("prompt_ids", "response_ids", "loss_mask"))
    trained = [place for place, counts in enumerate(mask) if counts]
    end = max(trained, default=-1) + 1
    requests = outputs["asked"] if "asked" in outputs else outputs["engine"].requests
    cut, total = outputs.get("cut"), sum(range(len(requests) + 1))
    return {
        "token_ids": torch.tensor([*prompt, *ids[:end]], dtype=torch.int64),
        "trained": torch.tensor([0] * len(prompt) + [int(counts != 0) for counts in mask[:end]], dtype=torch.int64),
        "asked": torch.tensor([token for context, _ in requests for token in (*context, -1)], dtype=torch.int64),
        **{f"{name}_astray": _astray(inputs, ids, trained, outputs.get(name), of) for name, of in _OWN.items()},
        "nuclei_astray": _nuclei_astray(inputs, ids, trained, outputs.get("nuclei")),
        "cut_astray": 0 if cut is None else int(bool(cut) is not _is_cut(inputs)),
        "options_astray": sum(
            name in options and options[name] != value
            for _, options in requests
            for name, value in inputs["options"].items()
        ),
        "limits_astray": sum(_limit_is_another(inputs, *request) for request in requests),
        "rows_astray": sum(row != ROW for row in outputs.get("row") or ()),
        "counts_astray": sum(count != total for count in outputs.get("counts") or ()),
        "messages_astray": _messages_astray(inputs, outputs.get("messages") or (), len(requests)),
    }


#: Kind of data -> its value for a token id and a version of the weights.
_OWN: Mapping[str, Callable[[int, int], float]] = {
    "log_probs": log_prob_of,
    "experts": expert_of,
    "versions": lambda _, version: version,
}


def _astray(inputs: Mapping[str, Any], ids: list[int], trained: list[int], values: Any, of: Any) -> int:
    """Count trained tokens whose log-prob, expert or version belongs to another token."""
    if values is None or (of is expert_of and not inputs["routed"]):
        return 0
    answers, owners = _answers(inputs), _owners(inputs)
    if of is expert_of:  # the last token of an answer has no experts yet; the engine routes it in the next request
        routed = [place < len(answer.ids) for answer in answers for place, _ in enumerate(answer.ids, 1)]
        owners = [pair if is_routed else (-1, 0) for pair, is_routed in zip(owners, routed)]
    beside = _listed(values)[-len(ids) :]
    return sum(
        beside[place : place + 1] not in ([of(token, version)], [None])
        for place, (token, version) in _generated(inputs, ids, trained, owners)
    )


def _nuclei_astray(inputs: Mapping[str, Any], ids: list[int], trained: list[int], nuclei: Any) -> int:
    """Count trained tokens whose top-p tokens are missing or belong to another token."""
    pairs = _generated(inputs, ids, trained, _owners(inputs)) if nuclei is not None else []
    return sum([*map(list, nuclei[place : place + 1])] != [nucleus_of(*owner)] for place, owner in pairs)


def _answers(inputs: Mapping[str, Any]) -> list[Answer]:
    engine = TableEngine(inputs)
    return [engine.answer([]) for _ in pieces_of(inputs)]


def _owners(inputs: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return each generated token, with the version of the weights that generated it."""
    return [(token, answer.version) for answer in _answers(inputs) for token in answer.ids]


def _generated(
    inputs: Mapping[str, Any], ids: list[int], trained: list[int], owners: list[tuple[int, int]]
) -> list[tuple[int, tuple[int, int]]]:
    """Return the place of each trained token, and the token that was generated there with its version. Other tokens
    than those of the engine are left out.
    """
    old = _stale(inputs)
    counted = [owner for owner, is_old in zip(owners, old) if not is_old]
    return [(place, owner) for place, owner in zip(trained, counted) if ids[place] == owner[0]]


def _stale(inputs: Mapping[str, Any]) -> list[bool]:
    """Return for each generated token whether it is masked because newer weights continued its answer."""
    if inputs["stale"] == "trained" or not inputs["resumed"]:
        return [False for _, tokens, _ in pieces_of(inputs) for _ in tokens]
    room, count, old = inputs["max_tokens"], 0, list[bool]()
    for _, tokens, ends in pieces_of(inputs):
        count += len(tokens)
        old += [ends == "abort" and (room is None or count <= room)] * len(tokens)
    return old


def _messages_astray(inputs: Mapping[str, Any], kept: Any, requests: int) -> int:
    """Count the non-assistant messages that are duplicated, or missing although the engine has answered them."""
    if not kept:
        return 0
    _, messages = chat(inputs)
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    answered = [message["content"] for message in messages[: turns[min(requests, len(turns)) - 1]]]
    texts = [message["content"] for message in kept if message["role"] != "assistant"]
    return sum(
        texts.count(message["content"]) > 1 or (message["content"] in answered and message["content"] not in texts)
        for message in messages
        if message["role"] != "assistant"
    )


#: The data of the scenario's row, which its environment must receive.
ROW = "of this row"


def _listed(values: Any) -> list[Any]:
    """Return a list with one number per token; of nested lists, the first number."""
    plain: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    while plain and isinstance(plain[0], (list, tuple)):
        plain = [value[0] for value in plain]
    return plain


def _whole(inputs: Mapping[str, Any]) -> tuple[list[int], list[int], int]:
    """Return the conversation's token ids, the positions of generated tokens, and the position of the response's first
    token."""
    tokenizer, messages = chat(inputs)
    first = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
    ids = tokenizer.encode(tokenizer.written(messages[:first], add_generation_prompt=True))
    start, spoken = len(ids), list[int]()
    if inputs["heard_as"] == "text":
        for message in messages[first:]:
            words = tokenizer.encode(message["content"])
            spoken += range(len(ids), len(ids) + len(words)) if message["role"] == "assistant" else ()
            ids += words
        ids, spoken = [*ids, tokenizer.eos_token_id], [*spoken, len(ids)]
    else:
        ids, spoken = tokenizer.encode(tokenizer.written(messages)), tokenizer.spoken(messages)
        if inputs["end"] == "text":  # the template, not the policy, wrote the end tokens
            spoken = [place for place in spoken if ids[place] != tokenizer.eos_token_id]
    spoken = spoken[: sum(len(tokens) for _, tokens, _ in pieces_of(inputs))]
    return ids[: spoken[-1] + 1 if spoken else start], spoken, start


def _is_cut(inputs: Mapping[str, Any]) -> bool:
    ids, _, start = _whole(inputs)
    room = inputs["max_tokens"]
    *_, (_, _, ends) = pieces_of(inputs)
    return ends == "length" or (room is not None and len(ids) - start > room)


def _limit_is_another(inputs: Mapping[str, Any], context: list[int], options: Mapping[str, Any]) -> bool:
    """Return True if the token limit in a request for a single-turn response is not the number of tokens that are
    left."""
    limits = [options[name] for name in _LIMITS if options.get(name) is not None]
    left = None if inputs["max_tokens"] is None else inputs["max_tokens"] - (len(context) - _whole(inputs)[2])
    return bool(limits) and left is not None and len(inputs["pieces"]) == 1 and limits[0] != left


def _oracle_rollout(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Build the conversation with the template, and train on the policy's tokens within the limit. Each request has all
    tokens before its answer."""
    ids, spoken, start = _whole(inputs)
    room = len(ids) if inputs["max_tokens"] is None else inputs["max_tokens"]
    masked = [place for place, is_old in zip(spoken, _stale(inputs)) if is_old]
    begins = [place for place in spoken if place - 1 not in spoken] or [start]
    contexts = []
    for turn, tokens, _ in pieces_of(inputs):
        contexts.append(begins[turn])
        begins[turn] += len(tokens)
    return {
        "prompt_ids": ids[:start],
        "response_ids": ids[start : start + room],
        "loss_mask": [int(place in spoken and place not in masked) for place in range(start, len(ids))][:room],
        "asked": [(ids[:place], {}) for place in contexts if place - start < room],
    }


def _arrange_rollout(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw a chat that ends with the policy, with up to the maximum number of turns, with or without interruptions.

    The token limit grows by 16 with each further turn, to leave room for the tokens of the template.
    """
    conversation: list[list[Any]] = [["system", choose.integer(1, 2)]] if inputs["system"] else []
    conversation.append(["user", choose.integer(1, 3)])
    pieces = []
    for turn in range(choose.integer(1, inputs["turns"])):
        if turn:
            role = choose.one_of(inputs["after_an_answer"])
            conversation += [[role, choose.integer(1, 2)] for _ in range(choose.integer(1, inputs["heard"]))]
        cuts = []
        words = choose.integer(1, 4) + inputs["interrupted"]
        conversation.append(["assistant", words])
        if inputs["interrupted"]:  # at a random position, and perhaps also right before or after the first token
            cuts = sorted([choose.integer(1, words - 1), *choose.integers(choose.integer(0, 1), 0, words - 1)])
        pieces.append([end - start for start, end in zip([0, *cuts], [*cuts, words])])
    room = None if inputs["max_tokens"] is None else inputs["max_tokens"] + 16 * (len(pieces) - 1)
    return {**inputs, "conversation": conversation, "pieces": pieces, "turns": len(pieces), "max_tokens": room}


ROLLOUT = rule(
    name="rollout",
    summary="the training data that a framework's loop builds from a prompt, engine answers and environment messages",
    source=(
        "a policy gradient covers exactly the tokens that the policy generated, each given its context, with the "
        "log-probs, experts and weights of their generation"
    ),
    inputs=(
        Input("conversation", "any", "turns as (role, number of words); every word is distinct", choices=((),)),
        Input(
            "pieces",
            "any",
            "for each answer, the words of each piece; all pieces but the last are interrupted",
            choices=((),),
        ),
        drawn("turns", "maximum number of answers", (1, 2, 3), REQUIRED),
        drawn("heard", "maximum number of messages between two answers", (1, 2), 2),
        drawn("system", "whether the chat starts with a system message", (False, True)),
        Input("after_an_answer", "any", "roles that may appear between two answers", choices=(("user",), ("tool",))),
        drawn(
            "heard_as",
            "form of the environment's messages: chat (after an answer); text (inserted into one answer); again "
            "(messages of a chat that is rendered again from its beginning)",
            ("chat", "text", "again"),
        ),
        drawn("routed", "whether the engine returns experts", (False, True, True)),
        drawn("interrupted", "whether the engine stops to load new weights", (False, True, True)),
        drawn(
            "end",
            "end of the last answer: eos; length (the limit); text (a stop string without a token of its own)",
            ("eos", "length", "text"),
        ),
        knob("resumed", "whether an interrupted answer is continued", (True, True, False)),
        # A search varies this input only for bindings that list its values in ``accepts``.
        Input(
            "stale",
            "string",
            "tokens that older weights generated, of an answer that newer weights continued: trained or masked",
            default="trained",
        ),
        drawn("max_tokens", "maximum tokens of a response", (None, None, 6, 2)),
        Input(
            "options",
            "mapping",
            "sampling options that the loop receives",
            default={},
            choices=({}, {"temperature": 0.5}, {"top_p": 0.75, "top_k": 7}),
        ),
        drawn("default_system", "whether the template adds a system message to a chat without one", (False, True)),
        drawn("tools_share_a_turn", "whether consecutive tool messages form one user turn", (False, True)),
    ),
    observes=(
        Observed("token_ids", "tokens of prompt and response up to the last trained token", ("tokens",)),
        Observed("trained", "1 for each of these tokens that is trained on, else 0", ("tokens",)),
        Observed("asked", "the tokens of all requests, with -1 after each request", ("asked",)),
        Observed("log_probs_astray", "number of tokens with a missing or wrong log-prob"),
        Observed("experts_astray", "number of tokens with missing or wrong experts"),
        Observed("versions_astray", "number of tokens with a wrong weight version"),
        Observed("nuclei_astray", "number of tokens with missing or wrong tokens of top-p"),
        Observed("cut_astray", "1 if the flag for a truncated response is wrong"),
        Observed("options_astray", "number of sampling options with a wrong value, over all requests"),
        Observed("limits_astray", "number of requests whose token limit is not the rest of the response's limit"),
        Observed("rows_astray", "number of times that the environment received no data, or the data of another row"),
        Observed("messages_astray", "number of messages of other roles that are not kept exactly once"),
        Observed("counts_astray", "number of reported counts that are not the sum over all answers"),
    ),
    measure=_measure_rollout,
    oracle=_oracle_rollout,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_rollout,
)
