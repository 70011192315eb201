"""Arguments for the constructors of TRL's trainers: small random models, rows, reward functions, environments."""

from __future__ import annotations

import importlib
import queue
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sentinel.binding import kit
from sentinel.binding.kit import torch

PROMPTS = ("one and two is", "so two and one is", "two and two is", "one is")
_GOOD = ("three", "three so", "four", "so one")
_BAD = ("four so", "two", "so so two", "two")
_CHAT = (
    "{% for tool in tools or () %}{{ tool['function']['name'] + ' ' }}{% endfor %}"
    "{% for m in messages %}{{ m['role'] + ' ' }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    "{% for each in m['tool_calls'] or () %}{{ each['function'] | string }}{% endfor %}"
    "{{ '<end>' }}{% endgeneration %}{% else %}{{ m['content'] + ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)
_LETTERS = ("<pad>", "<end>", "<unk>", *"abdefhinorstuvwx", "Ġ", "Ċ")
_MERGES = ("Ġ o", "n e", "i s", "s o", "Ġ so", "r e", "a n", "an d")


def make_tokenizer(merges: int = len(_MERGES)) -> Any:
    """Make a small byte-level BPE tokenizer with the given number of merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")
    pairs = [tuple(pair.split()) for pair in _MERGES]
    words = {word: place for place, word in enumerate((*_LETTERS, *map("".join, pairs)))}
    made = Tokenizer(models.BPE(words, pairs[:merges], unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, name_or_path="small", **special)
    tokenizer.chat_template = _CHAT
    return tokenizer


#: Kind of model -> the options of its configuration, in addition to those of every model.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "Llama": {},
    "Mixtral": {
        "num_local_experts": 3, "num_experts_per_tok": 1, "output_router_logits": True, "router_aux_loss_coef": 0.25,
    },
    "T5": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
}  # fmt: skip


def make_model(seed: int, head: str = "CausalLM", labels: int = 1, kind: str = "Llama") -> Any:
    """Make a one-layer model with random weights. Equal seeds give equal weights."""
    transformers: Any = importlib.import_module("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(_LETTERS) + len(_MERGES), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=96, pad_token_id=0, eos_token_id=1,
        bos_token_id=None, **_KINDS[kind], **({} if head == "CausalLM" else {"num_labels": labels}),
    )  # fmt: skip
    head = "ConditionalGeneration" if kind == "T5" else head
    with kit.keep_random_state():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{kind}For{head}")(config)
    for weight in model.parameters():
        weight.data *= 20 if weight.ndim > 1 else 1  # large, so that outputs depend on the input
    model.config._name_or_path = model.name_or_path = "small"
    model.config.architectures = [type(model).__name__]
    return model


def make_rows(kind: str, chat: bool) -> list[dict[str, Any]]:
    """Return rows of the given kind for a dataset, as text or as chat messages: 16 rows for ``ids``, otherwise 4."""
    made: list[dict[str, Any]] = []
    for place, (prompt, good, bad) in enumerate([*zip(PROMPTS, _GOOD, _BAD)] * (4 if kind == "ids" else 1)):
        texts = {"prompt": prompt, "chosen": f" {good}", "rejected": f" {bad}", "reference": f" so {good}"}
        texts |= {"completion": texts["chosen" if place % 2 else "rejected"]}
        said = {name: [{"role": "assistant", "content": text.strip()}] for name, text in texts.items()}
        said["prompt"] = [{"role": "user", "content": prompt}]
        row: dict[str, Any] = {name: (said if chat else texts).get(name) for name in COLUMNS[kind]}
        if kind in ("messages", "chats"):
            row |= {"messages": said["prompt"] + said["chosen"]}  # until June 2026, distillation reads this column
        elif kind == "texts":
            row = {"text": prompt + texts["chosen"]}
        elif kind == "talks":  # the form of ShareGPT
            row = {"conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": good}]}
        elif kind == "ids":
            row = {"input_ids": make_tokenizer().encode(prompt)}
        elif kind == "steps":
            row = {"prompt": prompt, "completions": [good, bad], "labels": [True, bool(place % 2)]}
        elif kind == "labels":
            row["label"] = bool(place % 2)
        elif kind == "hints":
            row |= {"privileged_context": good, "solution": good}
        elif kind == "answers":
            row["completion"] = (said if chat else texts)["chosen"]
        made.append(row)
    return made


_PAIR = ("prompt", "chosen", "rejected")
#: Kind of rows -> its only form. The other kinds have the forms ``text`` and ``chat``.
FORMS: Mapping[str, tuple[str, ...]] = {
    "messages": ("chat",), "chats": ("chat",), "ids": ("text",), "steps": ("text",), "texts": ("text",),
    "talks": ("chat",),
}  # fmt: skip
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompts": _PAIR[:1], "chats": _PAIR[:1], "hints": _PAIR[:1], "pairs": _PAIR, "triples": (*_PAIR, "reference"),
    "answers": ("prompt", "completion"), "labels": ("prompt", "completion"), "messages": (), "ids": (), "steps": (),
    "texts": (), "talks": (),
}  # fmt: skip


def _get_text(completion: Any) -> str:
    return completion if isinstance(completion, str) else "".join(message["content"] or "" for message in completion)


def _count(completions: Any, **_: Any) -> list[float]:
    return [sum(map(ord, _get_text(each))) % 7 / 7 for each in completions]


def _of_one_prompt(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Return different rewards for the completions of the first prompt, and 0.5 for all other completions."""
    return [place / 4 if prompt == prompts[0] else 0.5 for place, prompt in enumerate(prompts)]


def _length(completions: Any, missing: int = 6, **_: Any) -> list[Any]:
    return [len(text) / 8 if len(text) != missing else None for text in map(_get_text, completions)]


async def _count_later(completions: Any, bonus: Any = 0, **_: Any) -> list[float]:
    return [each + 0.25 * more for each, more in zip(_count(completions), bonus or [0] * len(completions))]


async def _length_later(completions: Any, **_: Any) -> list[Any]:
    return _length(completions)


def _format_row(row: Mapping[str, Any]) -> str:
    return f"{row['text']} so"


def _of_some_prompts(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Return different rewards for the completions of the last two prompts of the dataset, and 0.5 for all others."""
    texts = [_get_text(prompt) for prompt in prompts]
    return [place / 4 if text in PROMPTS[2:] else 0.5 for place, text in enumerate(texts)]


def _compute_metric(evaluated: Any) -> dict[str, float]:
    """Return a metric that depends on every prediction and label of an evaluation."""
    parts = evaluated.predictions, evaluated.label_ids
    arrays = [part for each in parts for part in (each if isinstance(each, tuple) else (each,)) if part is not None]
    numbers = torch.cat([torch.tensor(array).flatten().double() for array in arrays])
    return {"whole": float((numbers * torch.linspace(0.5, 1.5, len(numbers))).sum())}


def _make_worker() -> Any:
    """Make a stand-in rollout worker with finished rollouts in its queue."""
    done: Any = queue.Queue()
    tokenizer = make_tokenizer()
    for place, (prompt, good) in enumerate([*zip(PROMPTS, _GOOD)] * 8):
        asked, said = tokenizer.encode(prompt), [*tokenizer.encode(f" {good}"), 1]
        columns = {
            "input_ids": asked + said,
            "completion_mask": [0] * len(asked) + [1] * len(said),
            "old_log_probs": [0.0] * len(asked) + [-0.25 * (n % 5) - 1 for n in range(len(said))],
        }
        about = {"prompt": [], "completion": [], "model_version": 0, "group_id": place // 2, "enqueued_at": None}
        scored = {"advantage": (-1.0) ** place * (1 + place % 3), "metrics": {"reward": place % 4 / 4}}
        tensors = {name: torch.tensor(column) for name, column in columns.items()}
        done.put(kit.stand_in(**tensors, **about, **scored))
    return kit.stand_in(
        rollout_buffer=done, metrics_queue=queue.Queue(), **_idle("start stop update_model_version check_health")
    )


def _idle(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), lambda *_: None)


class _Game:
    """An environment for GRPO with one tool, ``add``. TRL calls ``reset`` and ``get_reward``."""

    def __init__(self) -> None:
        self._total = 0

    def reset(self, **row: Any) -> str:
        self._total = len(row)
        return " so"

    def add(self, steps: int) -> str:
        """Go on.

        Args:
            steps: how far.
        """
        self._total += steps
        return "two" if steps else "three and four"

    def get_reward(self) -> float:
        return self._total / 8


class _SlowGame:
    """An environment for GRPO whose tool and reward are coroutines."""

    def __init__(self) -> None:
        self._total = 0.0

    def reset(self, **row: Any) -> None:
        self._total = 0.5

    async def add(self, steps: int) -> str:
        """Go on.

        Args:
            steps: how far.
        """
        if steps > 2:
            raise ValueError("so")
        self._total += steps
        return "two"

    async def get_reward(self) -> float:
        return self._total / 4


def parse_answer(ids: Any, prefix: Any = ()) -> dict[str, Any]:
    """Convert a completion to a message whose tool calls depend on the completion's first token."""
    text = make_tokenizer().decode(ids, skip_special_tokens=True)
    calls = [
        {"type": kind, "name": "add", "function": {"name": name, "arguments": {"steps": ids[0] % 4}}}
        for kind, name in (("function", "add"), ("function", "lose"), ("other", "add"))
    ][: 1 + ids[0] % 3]
    message = {"role": "assistant", "content": text}
    return message if ids[0] % 5 == 0 else {**message, "tool_calls": calls}


def _generate_rollouts(prompts: Any, trainer: Any) -> dict[str, Any]:
    """Return a completion for each prompt. Tokens with the ``env_mask`` 0 are the environment's."""
    tokenizer = make_tokenizer()
    texts = [_get_text(prompt) for prompt in prompts]
    said = make_answers([f"{place} {text}" for place, text in enumerate(texts)], 6)
    return {
        "prompt_ids": tokenizer(text=texts)["input_ids"], "completion_ids": said,
        "logprobs": [[-1.0 - token / 16 for token in ids] for ids in said],
        "env_mask": [[int(token % 3 > 0) for token in ids] for ids in said],
        "bonus": [len(ids) % 2 for ids in said], "of": "rollouts",
    }  # fmt: skip


def make_answers(texts: list[str], most: int) -> list[list[int]]:
    """Return at most ``most`` token ids for each text. Shorter answers end with the EOS token."""
    seeds = [zlib.crc32(text.encode()) for text in texts]
    answers = [[3 + (seed >> place) % 20 for place in range(1 + seed % most)] for seed in seeds]
    return [[*ids, 1] if len(ids) < most else ids for ids in answers]


#: Value of a scenario's option ``data`` -> function that converts the dataset.
DATA: Mapping[str, Callable[[Any], Any]] = {
    "a stream": lambda rows: rows.to_iterable_dataset(),
    "with margins": lambda rows: rows.add_column("margin", [0.25 * (place % 3) for place in range(len(rows))]),
    "of two environments": lambda rows: rows.add_column("environment", ["game", "slow game"] * (len(rows) // 2)),
}

#: Parameter of a constructor -> name of an object -> function that makes it. If a trainer needs the parameter and the
#: options do not name an object, the first object is passed.
OBJECTS: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    "ref_model": {"a model": lambda: make_model(2), "none": lambda: None},
    "processing_class": {"none": lambda: None},
    "compute_metrics": {"a number": lambda: _compute_metric},
    "formatting_func": {"a function": lambda: _format_row},
    "rollout_func": {"a function": lambda: _generate_rollouts},
    "environment_factory": {"one": lambda: _Game, "two": lambda: {"game": _Game, "slow game": _SlowGame}},
    "teacher_model": {"a model": lambda: make_model(3), "a name": lambda: "small"},
    "reward_model": {"a model": lambda: make_model(4, "SequenceClassification")},
    "rollout_worker": {"a worker": _make_worker},
    "weight_transfer": {
        "nothing": lambda: kit.stand_in(**_idle("init_weight_transfer pause send_weights resume destroy"))
    },
    "value_model": {"a model": lambda: make_model(5, "SequenceClassification")},
    "reward_funcs": {
        "a function": lambda: _count,
        "two functions": lambda: [_count, _length],
        "two async functions": lambda: [_count_later, _length_later],
        "a name": lambda: "small",
        "a function of some prompts": lambda: _of_some_prompts,
        "two numbers": lambda: [_count, partial(_length, missing=-1)],
        "a model": lambda: make_model(4, "SequenceClassification"),
        "a function of one prompt": lambda: _of_one_prompt,
        "a function and models": lambda: [
            _count, make_model(4, "SequenceClassification"), "small",
        ],
    },
}  # fmt: skip
