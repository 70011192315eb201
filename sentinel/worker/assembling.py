"""Calls a function that nobody has bound: makes its arguments of the drawn inputs, as the lexicon says."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import zlib
from collections.abc import Mapping
from typing import Any

from sentinel.worker.drift import StandInMissingError


class Settings(dict[str, Any]):
    """A configuration in the place of one that cannot be built: read by attribute or by key, and by nothing that was
    not put in."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise StandInMissingError(f"the code reads a setting {name!r} that the lexicon does not know")

    def __missing__(self, name: str) -> Any:
        raise StandInMissingError(f"the code reads a setting {name!r} that the lexicon does not know")


def assembled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make the arguments and call: the answer, and what stands in the containers afterwards where there is none."""
    how = inputs["how"]
    maker = _Maker(boundary, inputs, how)
    made = {name: maker.made(spec) for name, spec in how["parameters"].items()}
    arguments = {**made}
    leading = [arguments.pop(how["own"])] if how["own"] else []
    returned = boundary.function(*leading, **arguments)
    if inspect.iscoroutine(returned):
        returned = asyncio.run(returned)
    if returned is not None:
        return {"returned": returned}
    return {"left": {name: made[name] for name, spec in how["parameters"].items() if "fields" in spec}}


class WordTokenizer:
    """A tokenizer of words, in the place of one that would be downloaded: the same words are the same ids."""

    vocab_size = 1000
    pad_token, eos_token, bos_token, unk_token = "<pad>", "<eos>", "<bos>", "<unk>"
    pad_token_id, eos_token_id, bos_token_id, unk_token_id = 0, 1, 2, 3
    padding_side, chat_template, name_or_path, model_max_length = "right", None, "words", 512
    additional_special_tokens, all_special_ids = (), (0, 1, 2, 3)

    def __init__(self) -> None:
        self._words: dict[int, str] = dict(enumerate((self.pad_token, self.eos_token, self.bos_token, self.unk_token)))

    def __len__(self) -> int:
        return self.vocab_size

    def _id(self, word: str) -> int:
        known = {other: number for number, other in self._words.items()}
        number = known.get(word, 4 + zlib.crc32(word.encode()) % (self.vocab_size - 4))
        self._words.setdefault(number, word)
        return number

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"<\|?\w+\|?>|\s*[^\s<]+|\s+|<", text)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._id(word) for word in self.tokenize(text)]

    def decode(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        numbers = [int(number) for number in (ids if hasattr(ids, "__iter__") else [ids])]
        shown = [number for number in numbers if not (skip_special_tokens and number in self.all_special_ids)]
        return "".join(self._words.get(number, f" w{number}") for number in shown)

    def batch_decode(self, rows: Any, **more: Any) -> list[str]:
        return [self.decode(row, **more) for row in rows]

    def convert_tokens_to_ids(self, words: Any) -> Any:
        return self._id(words) if isinstance(words, str) else [self._id(word) for word in words]

    def __call__(self, text: Any, return_tensors: str = "", **_: Any) -> Any:
        import torch

        rows = [self.encode(one) for one in ([text] if isinstance(text, str) else text)]
        width = max(map(len, rows), default=0)
        made = {
            "input_ids": [row + [0] * (width - len(row)) for row in rows] if return_tensors else rows,
            "attention_mask": [[1] * len(row) + [0] * (width - len(row)) * bool(return_tensors) for row in rows],
        }
        if return_tensors:
            return Settings({name: torch.tensor(value) for name, value in made.items()})
        return Settings({name: value[0] for name, value in made.items()} if isinstance(text, str) else made)

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **more: Any,
    ) -> Any:
        messages = conversation
        if messages and isinstance(messages[0], (list, tuple)):
            return [self.apply_chat_template(one, tools, tokenize, add_generation_prompt, **more) for one in messages]
        text = "".join(f"<|{one['role']}|> {one['content']} {self.eos_token}" for one in messages)
        text += "<|assistant|>" * add_generation_prompt
        if not tokenize:
            return text
        as_tensors = more.get("return_tensors")
        if more.get("return_dict"):
            return self(text, return_tensors=as_tensors or "")
        return self([text], return_tensors="pt")["input_ids"] if as_tensors else self.encode(text)


def _alone() -> Any:
    """The process group of a world of one."""
    from torch import distributed

    if not distributed.is_initialized():
        from torch.testing._internal.distributed.fake_pg import FakeStore

        # A contained process has no sockets; this backend leaves what it is given as it is, and gathers nothing.
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        distributed.all_gather = lambda parts, one, *_, **__: parts[0].copy_(one)
        distributed.all_gather_into_tensor = lambda whole, one, *_, **__: whole.copy_(one)
    return distributed.group.WORLD


class _Maker:
    def __init__(self, boundary: Any, inputs: Mapping[str, Any], how: Mapping[str, Any]) -> None:
        self._boundary, self._inputs, self._prompt = boundary, inputs, how["prompt"]

    def made(self, spec: Mapping[str, Any]) -> Any:
        if "input" in spec:
            return self._formed(self._drawn(spec), spec.get("form", ""))
        if "derived" in spec:
            return self._formed(self._derived(spec["derived"]), spec.get("form", ""))
        if "fields" in spec:
            return self._container(spec)
        return self._object(spec)

    def _formed(self, value: Any, form: str) -> Any:
        import numpy
        import torch

        if form == "array":
            if isinstance(value, torch.Tensor):
                return value.detach().numpy()
            array = numpy.empty(len(value), dtype=object)
            array[:] = value
            return array
        if form == "tensors":
            return list(value.unbind(0))
        if form == "list" and isinstance(value, torch.Tensor):
            return value.tolist()
        if form == "tensor" and isinstance(value, list):
            numbers = {label: number for number, label in enumerate(dict.fromkeys(value))}
            return torch.tensor([numbers[label] for label in value])
        return value

    def _drawn(self, spec: Mapping[str, Any]) -> Any:
        """The drawn value, within its precondition."""
        import torch

        value = self._inputs[spec["input"]]
        if spec.get("inside"):
            mask = self._mask()
            return value if mask is None else torch.where(mask != 0, value, 0.0)
        logits = next((item for name, item in self._inputs.items() if name.endswith("logits")), None)
        if spec.get("ids") and logits is not None:
            value = value % logits.shape[-1]
        if spec.get("ids") and spec.get("whole") and self._prompt:
            value = torch.cat([torch.full_like(value[:, :1], 3).expand(-1, self._prompt), value], dim=1)
        return value

    def _mask(self) -> Any:
        return self._inputs.get("response_mask", self._inputs.get("attention_mask"))

    def _hull(self) -> Any:
        """Where something stands: the prompt, and the tokens up to the last that counts."""
        import torch

        mask = self._mask() != 0
        there = mask.flip(-1).long().cumsum(-1).flip(-1) > 0
        return torch.cat([torch.ones(len(mask), self._prompt, dtype=torch.bool), there], dim=1).long()

    def _derived(self, what: str) -> Any:
        import torch

        if what == "group":
            return list(self._inputs["group"])
        if what == "tokenizer":
            return WordTokenizer()
        if what == "process_group":
            return _alone()
        if what == "vocabulary":
            sizes = [value.shape[-1] for name, value in self._inputs.items() if name.endswith("logits")]
            return sizes[0] if sizes else WordTokenizer.vocab_size
        mask = self._mask()
        if what == "attention":
            return self._hull()
        if what == "positions":
            return (self._hull().cumsum(-1) - 1).clamp(min=0)
        if what == "lengths":
            return self._hull()[:, self._prompt :].sum(-1)
        if what == "edges":
            return torch.arange(len(mask) + 1, dtype=torch.int32) * (mask.shape[1] + self._prompt)
        if what == "rows":
            return len(mask)
        return int((mask != 0).sum()) if what == "valid" else mask.shape[1] + self._prompt

    def _container(self, spec: Mapping[str, Any]) -> Any:
        import torch

        fields = {name: self.made(part) for name, part in spec["fields"].items()}
        if not spec["of"]:
            return fields
        tensors = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
        others = {name: value for name, value in fields.items() if name not in tensors}
        meta = {name: self.made(part) for name, part in spec.get("meta", {}).items()}
        made = _found(spec["of"])
        if hasattr(made, "from_dict") and "non_tensors" in inspect.signature(made.from_dict).parameters:
            arrays = {name: self._formed(value, "array") for name, value in others.items() if isinstance(value, list)}
            others = {name: value for name, value in others.items() if name not in arrays}
            return made.from_dict(tensors=tensors, non_tensors={**others, **arrays}, meta_info=meta)
        if "batch_size" in inspect.signature(made.__init__).parameters:
            rows = [len(next(iter(tensors.values())))] if tensors else []
            batch = made({**tensors}, batch_size=rows)
            for name, value in others.items():
                batch.set_non_tensor(name, value)
            return batch
        return made(tensors)

    def _object(self, spec: Mapping[str, Any]) -> Any:
        """The framework's own object with its own defaults, where it can be made so; else one of what is read."""
        attributes = {name: self.made(part) for name, part in spec["attributes"].items()}
        made: Any = None
        if spec["of"] == "self":
            owner = self._boundary.owner
            whole: Any = type(owner.__name__, (owner,), {"__module__": owner.__module__})
            whole.__abstractmethods__ = frozenset()
            made = whole.__new__(whole)
        elif spec["of"]:
            try:
                made = _found(spec["of"])()
            except Exception:  # it has fields without defaults
                made = None
        if made is None:
            return Settings(attributes)
        for name, value in attributes.items():
            if spec["of"] == "self" or hasattr(made, name):
                object.__setattr__(made, name, value)
        return made


def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
