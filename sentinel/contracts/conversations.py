"""Define the contract of functions that select the trained tokens of a chat.

In a scenario, each word of a chat is a distinct token.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentinel.contracts.contract import AS_DEFINED, Choose, Input, Observed, dialect, drawn, knob, rule
from sentinel.values.lazy import torch

Message = Mapping[str, Any]

_ROLES = ("system", "user", "assistant", "tool")
_TOKEN = r"<[^<>]+>|\n|[^\s<]+"
_SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>", "\n", "<tool>", "</tool>", *_ROLES)


def messages_of(conversation: Sequence[Sequence[Any]]) -> list[dict[str, str]]:
    """Convert turns to chat messages in which every word is distinct.

    :param conversation: turns ``(role, number of words)`` or ``(role, number of words, text at the end)``.
    """
    return [
        {"role": role, "content": " ".join([*(f"w{turn}.{word}" for word in range(words)), *text])}
        for turn, (role, words, *text) in enumerate(conversation)
    ]


class ChatTokenizer:
    """A tokenizer with one token per word and ChatML's chat template.

    :param default_system: whether the template adds a system message to a chat without one.
    :param tools_share_a_turn: whether consecutive tool messages form one user turn.
    """

    eos_token, pad_token, chat_template = "<|im_end|>", "<pad>", "of words"
    eos_token_id, pad_token_id = _SPECIAL.index("<|im_end|>"), 0
    padding_side, truncation_side, name_or_path = "right", "right", "words"
    all_special_ids = (0, 1, 2)
    bos_token = bos_token_id = None

    def __init__(self, default_system: bool = False, tools_share_a_turn: bool = False) -> None:
        self._default_system, self._shared = default_system, tools_share_a_turn
        # some code expects a processor and reads its attribute ``tokenizer``
        self.tokenizer, self.model_input_names = (self, ("input_ids", "attention_mask"))

    def written(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """Render a chat as text."""
        messages = list(messages)
        if self._default_system and not (messages and messages[0]["role"] == "system"):
            messages = [{"role": "system", "content": "you help"}, *messages]
        text = ""
        for place, message in enumerate(messages):
            role, content = message["role"], message["content"]
            if not isinstance(content, str):
                content = "".join(part["text"] for part in content)
            if role == "tool" and self._shared:
                first = not place or messages[place - 1]["role"] != "tool"
                last = place + 1 == len(messages) or messages[place + 1]["role"] != "tool"
                text += ("<|im_start|>user\n" if first else "") + f"<tool>{content}</tool>"
                text += "<|im_end|>\n" if last else ""
            else:
                text += f"<|im_start|>{role}\n{content}<|im_end|>\n"
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")

    def tokens(self, text: str) -> list[str]:
        return re.findall(_TOKEN, text)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [_number(token) for token in self.tokens(text)]

    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(_SPECIAL[token] if token < len(_SPECIAL) else f"<{token}>" for token in _plain(ids))

    def batch_decode(self, rows: Any, **_: Any) -> list[str]:
        return [self.decode(row) for row in rows]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return _number(tokens) if isinstance(tokens, str) else [_number(token) for token in tokens]

    def text_of(self, ids: Sequence[int]) -> str:
        """Convert token ids to text. Tokens that are not words are left out."""
        return " ".join(f"w{(token - 100) // 50}.{(token - 100) % 50}" for token in ids if 100 <= token < _BEYOND)

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def __len__(self) -> int:
        return _BEYOND * 2

    def __call__(self, text: Any, **options: Any) -> Any:
        ids = self.encode(text)
        if options.get("truncation") and options.get("max_length") is not None:
            ids = ids[: options["max_length"]]
        handed = self._handed(ids, True, **options)
        if options.get("return_offsets_mapping"):
            handed["offset_mapping"] = [match.span() for match in re.finditer(_TOKEN, text)]
        return handed

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
        **options: Any,
    ) -> Any:
        # Only the tokenizer's own template may add a system message; a template that the caller passes does not.
        writer = self if options.get("chat_template") is None else ChatTokenizer(False, self._shared)
        text = writer.written(conversation, add_generation_prompt)
        if not tokenize:
            return text
        ids = self.encode(text)
        if options.get("truncation") and options.get("max_length") is not None:
            ids = ids[: options["max_length"]]
        handed = self._handed(ids, return_dict, **options)
        if options.get("return_assistant_tokens_mask"):
            places = writer.spoken(conversation)
            handed["assistant_masks"] = [int(place in places) for place in range(len(ids))]
        return handed

    def spoken(self, messages: Sequence[Message], last: bool = False, after_the_end: bool = False) -> list[int]:
        """Return the positions of the assistant's tokens: its words, and the end token of each of its turns.

        :param last: whether only its last turn counts.
        :param after_the_end: whether the new line after an end token counts too.
        """
        turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        places: list[int] = []
        for turn in turns[-1:] if last else turns:
            start = len(self.encode(self.written(messages[:turn], add_generation_prompt=True)))
            end = len(self.encode(self.written(messages[: turn + 1])))
            places += range(start, end if after_the_end else end - 1)
        return places

    def _handed(self, ids: list[int], as_mapping: bool, return_tensors: str | None = None, **_: Any) -> Any:
        tokens: Any = ids
        ones: Any = [1] * len(ids)
        if return_tensors == "pt":
            tokens, ones = torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64)
        return {"input_ids": tokens, "attention_mask": ones} if as_mapping else tokens


def chat(inputs: Mapping[str, Any]) -> tuple[ChatTokenizer, list[dict[str, str]]]:
    """Return the tokenizer and the messages of a scenario."""
    tokenizer = ChatTokenizer(inputs["default_system"], inputs["tools_share_a_turn"])
    return tokenizer, messages_of(inputs["conversation"])


_BEYOND = 100_000


def _number(token: str) -> int:
    """Return the id of a token, which is the same in every process."""
    if token in _SPECIAL:
        return _SPECIAL.index(token)
    word = re.fullmatch(r"w(\d+)\.(\d+)", token)
    return 100 + 50 * int(word[1]) + int(word[2]) if word else _BEYOND + zlib.crc32(token.encode()) % _BEYOND


def _plain(ids: Any) -> list[int]:
    plain: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return plain


def _measure_trained_tokens(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the tokens of a chat and which of them are trained.

    ``call`` returns ``token_ids`` and their ``loss_mask``; ``token_ids`` is None if the chat is left out. The new line
    after the last message is not compared, because some templates omit it.
    """
    outputs = call(**inputs)
    ids = [] if outputs.get("token_ids") is None else _plain(outputs["token_ids"])
    mask = _plain(outputs["loss_mask"]) if ids else []
    if ids[-1:] == [_number("\n")]:
        ids, mask = ids[:-1], mask[: len(ids) - 1]
    return {"token_ids": torch.tensor(ids), "trained": torch.tensor([int(counts != 0) for counts in mask])}


def _oracle_trained_tokens(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of the chat, and a mask of the tokens that the policy generates: its words, and the end token
    of each of its turns. Other tokens of the template are not trained."""
    tokenizer, messages = chat(inputs)
    ids = tokenizer.encode(tokenizer.written(messages))
    counted = inputs["after_the_end"] == "counted"
    trained = tokenizer.spoken(messages, inputs["trains"] == "last", counted)
    if (turn := skipped_turn(inputs)) is not None:
        left_out = tokenizer.spoken(messages[: turn + 1], True, counted)
        trained = [place for place in trained if place not in left_out]
    room = inputs["max_tokens"]
    ids = ids if room is None else ids[:room]
    mask = [int(place in trained) for place in range(len(ids))]
    return {"token_ids": ids if any(mask) or inputs["untrained"] == "kept" else None, "loss_mask": mask}


def skipped_turn(inputs: Mapping[str, Any]) -> int | None:
    """Return the place of the message whose answer is not trained; None if there is none, or only one answer."""
    turns = [place for place, (role, *_) in enumerate(inputs["conversation"]) if role == "assistant"]
    if inputs["skipped"] == "none" or len(turns) < 2:
        return None
    return turns[0] if inputs["skipped"] == "first" else turns[-1]


def _arrange_trained_tokens(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw a chat: an optional system message, then user or tool messages before each answer of the policy. The chat
    ends with an answer."""
    conversation: list[list[Any]] = [["system", choose.integer(1, 2)]] if choose.integer(0, 1) else []
    conversation.append(["user", choose.integer(1, 3)])
    for turn in range(choose.integer(1, 3)):
        if turn:
            role = choose.one_of(("user", *inputs["after_an_answer"]))
            conversation += [[role, choose.integer(1, 2)] for _ in range(choose.integer(1, 2) if role == "tool" else 1)]
        conversation.append(["assistant", choose.integer(1, 3)])
    inputs["conversation"] = conversation
    return inputs


def _put_text(inputs: Mapping[str, Any], text: str, length: int) -> list[tuple[Mapping[str, Any], bool]]:
    """Append a string to each message. Return no scenario if the string contains a token of the template."""
    if not text or any(token in _SPECIAL for token in re.findall(rf"\w+|{_TOKEN}", text)):
        return []
    conversation = [[role, words, text] for role, words, *_ in inputs["conversation"]]
    return [({**inputs, "conversation": conversation}, True)]


CONVERSATION = rule(
    name="trained_tokens",
    summary="the tokens of a chat that are trained: the policy's words and the end of each of its turns",
    source=(
        "maximum likelihood of the answer given its context (InstructGPT, arXiv:2203.02155, section "
        "3.5, step 1); the format is ChatML, in which the model generates <|im_end|> at the end of its turn"
    ),
    inputs=(
        Input(
            "conversation",
            "any",
            "turns as (role, number of words) or (role, number of words, text that follows); every word is distinct",
            choices=((),),
        ),
        Input(
            "after_an_answer",
            "any",
            "roles besides the user that may appear between two answers",
            default=("tool",),
            choices=(("tool",),),
        ),
        drawn(
            "default_system",
            "whether the template adds a system message to a chat without one",
            (False, True),
        ),
        drawn(
            "tools_share_a_turn",
            "whether consecutive tool messages form one user turn",
            (False, True),
        ),
        knob("trains", "train all answers, or only the last", ("all", "last")),
        # A search varies this input only for bindings that list its values in ``accepts``.
        Input(
            "skipped",
            "string",
            "the answer that a flag of its message excludes from training, if there are several: none, first or last",
            default="none",
        ),
        Input(
            "apart",
            "boolean",
            "whether the data have the last answer in a column of its own, or all messages in one column",
            default=False,
        ),
        drawn("max_tokens", "maximum number of tokens of a chat; further tokens are cut off", (None, 12, 20)),
        dialect("after_the_end", "absent", "the new line after the end of an answer: absent (not trained), or counted"),
        dialect("untrained", "left out", "a chat without a trained token: left out, or kept"),
    ),
    observes=(
        Observed("token_ids", "the ids of the chat", ("tokens",)),
        Observed("trained", "1 for ids that are trained", ("tokens",)),
    ),
    measure=_measure_trained_tokens,
    oracle=_oracle_trained_tokens,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_trained_tokens,
    put_text=_put_text,
)
