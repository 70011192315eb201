"""ROLL's functions that prepare, collate and read samples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import chat
from sentinel.binding.kit import torch

MAIN = "https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/roll"

_TOKENIZER = StandIn("tokenizer", "a real tokenizer is a download; here each letter is a token")
_PROCESSOR = StandIn("processor", "like the tokenizer; for images it stores their number in pixel_values")
_TRANSFORMERS = StandIn(
    "pad_without_fast_tokenizer_warning, BatchFeature",
    "from transformers, which is not installed: it pads token ids and attention masks on the right, and "
    "processor features are a dictionary as in the original",
)


def _response_mask(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make the response masks of prompts with their responses.

    The function moves each row to the left until its prompt begins in the first column. The result is moved back.
    Batches of newer versions are not dataclasses.
    """
    mask = inputs["prompt_mask"]
    prompts = {
        "input_ids": inputs["prompts"],
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }
    output = torch.cat((inputs["prompts"], inputs["responses"]), dim=-1)
    batch = boundary.invoke(
        {},
        prompts=kit.stand_in(batch=prompts),
        output=output,
        num_return_sequences=1,
        sequence_length=output.shape[1],
        eos_token_id=inputs["eos_token_id"],
        pad_token_id=inputs["pad_token_id"],
    ).batch
    moved = (mask.shape[1] - mask.sum(-1)).tolist()
    return {"response_mask": torch.stack([row.roll(by) for row, by in zip(batch["response_mask"], moved)])}


class _Features(dict[str, Any]):
    """A stand-in for a processor's result, with the attributes that a collator reads."""

    def __init__(self, data: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(data or {}, **more)

    def convert_to_tensors(self, tensor_type: str | None = None) -> None:
        for name, value in self.items():
            self[name] = torch.tensor(value)


def _ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def _process(text: str, images: Any = None, **_: Any) -> _Features:
    made = _Features(input_ids=[_ids(text)], attention_mask=[[1] * len(text)])
    return made if images is None else _Features(made, pixel_values=[[1.0] * len(images)])


def _pad(_: Any, features: Mapping[str, list[list[int]]], **__: Any) -> dict[str, Any]:
    width = max(map(len, features["input_ids"]))
    return {
        name: torch.tensor([row + [0] * (width - len(row)) for row in rows])
        for name, rows in features.items()
        if name != "labels"
    }


def _multimodal_collator(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate with ROLL's own class. Each letter is a token."""

    class Processor:
        image_processor = kit.stand_in(patch_size=1)

        def __call__(self, *args: Any, **options: Any) -> _Features:
            return _process(*args, **options)

    tokenizer = kit.stand_in(encode=lambda text, **_: _ids(text))
    # Until August 2025, the default answer key was "extracted".
    collator = boundary.owner(tokenizer=tokenizer, processor=Processor(), answer_key="ground_truth")
    if hasattr(collator, "image_load_sample_fn"):
        # Newer collators load images themselves, and get (images, processor options). The scenario's images are already
        # loaded.
        collator.image_load_sample_fn = lambda images, *_, **__: (images, {})
    with (
        kit.swap(boundary.module, "pad_without_fast_tokenizer_warning", _pad),
        kit.swap(boundary.module, "BatchFeature", _Features),
    ):
        # For images, the batch has features of the model, which are not checked.
        batch = boundary.function(
            collator, [{**sample, "image": ["image"], "image_flag": True} for sample in inputs["samples"]]
        )
    return {"samples": [_read(batch, row) for row in range(len(batch["input_ids"]))]}


def _read(batch: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the prompt and the right answer of one row."""
    letters = (int(n) for n, there in zip(batch["input_ids"][row], batch["attention_mask"][row]) if there)
    sample = {"prompt": "".join(map(chr, letters))}
    return {**sample, "ground_truth": batch["ground_truth"][row]} if "ground_truth" in batch else sample


_SAMPLE = {"prompt": {"kind": "text"}, "ground_truth": {"kind": "text"}}


def _trained_of_a_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask of a chat, as an environment makes them."""
    tokenizer, messages = chat(inputs)
    ids = tokenizer.encode(tokenizer.written(messages))
    parts = boundary.module.split_by_token(ids, ids[0], messages=messages, tokenizer=tokenizer)
    masks = boundary.function(messages, parts, tokenizer)
    return {"token_ids": [*itertools.chain(*parts)], "loss_mask": [*itertools.chain(*masks)]}


_TURNS = "roll.pipeline.agentic.env_manager.token_mask_utils"


BINDINGS = (
    Binding(
        f"{_TURNS}.token_ids_to_assistant_mask", "trained_tokens", call=_trained_of_a_chat,
        requires=(f"{_TURNS}.split_by_token(messages)",), stand_ins=(_TOKENIZER,),
        # An environment has no tool turns, and makes its own system message.
        fixed={"trains": "all", "max_tokens": None, "after_an_answer": (), "default_system": False},
    ),
    Binding(
        "roll.utils.functionals.postprocess_generate", "response_masks", call=_response_mask,
        stand_ins=(
            StandIn(
                "prompts", "a batch with the given fields; the real container needs a backend that is not used here",
            ),
        ),
    ),
    Binding(
        "roll.utils.functionals.pad_to_length", "column_padding", outputs=("padded",),
        call=partial(kit.call_with, leading=("values",), takes=("length", "pad_value")), fixed={"side": "right"},
        dialects=(
            Dialect(
                "longer", "cut", "the function makes rows of exactly that length", f"{MAIN}/utils/functionals.py#L457",
            ),
        ),
    ),
    Binding(
        "roll.datasets.collator.DataCollatorWithPaddingForMM.__call__", "collation", call=_multimodal_collator,
        stand_ins=(_TOKENIZER, _PROCESSOR, _TRANSFORMERS), fixed={"layouts": _SAMPLE},
    ),
)  # fmt: skip
