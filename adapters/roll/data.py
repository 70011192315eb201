"""ROLL: what prepares and collects samples, called with typed literals (the generic contract ``call``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.targets import Binding, StandIn

_TOKENIZER = StandIn("tokenizer", "a tokenizer is a download; this one gives a prompt the tokens that its letters are")
_PROCESSOR = StandIn("processor", "as the tokenizer; of images it keeps their number, in pixel_values")
_TRANSFORMERS = StandIn(
    "pad_without_fast_tokenizer_warning, BatchFeature",
    "of transformers, which is not installed: token ids and attention masks are padded on the right, and the features "
    "of a processor are a dictionary, as they would be",
)


def _postprocess_generate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The batch that it returns, as a dictionary: newer ones are no dataclass."""
    batch = boundary.function(**inputs["arguments"]).batch
    return {"returned": {"batch": {name: batch[name] for name in sorted(batch.keys())}}}


class _Features(dict[str, Any]):
    """What a processor returns, as far as a collator looks at it."""

    def __init__(self, data: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(data or {}, **more)

    def convert_to_tensors(self, tensor_type: str | None = None) -> None:
        import torch

        for name, value in self.items():
            self[name] = torch.tensor(value)


def _ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def _process(text: str, images: Any = None, **_: Any) -> _Features:
    made = _Features(input_ids=[_ids(text)], attention_mask=[[1] * len(text)])
    return made if images is None else _Features(made, pixel_values=[[1.0] * len(images)])


def _pad(_: Any, features: Mapping[str, list[list[int]]], **__: Any) -> dict[str, Any]:
    import torch

    width = max(map(len, features["input_ids"]))
    return {
        name: torch.tensor([row + [0] * (width - len(row)) for row in rows])
        for name, rows in features.items()
        if name != "labels"
    }


def _multimodal_collator(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A collator of the target's own class over tokens that are letters."""
    from sentinel.worker.drift import StandInNamespace

    class Processor:
        image_processor = StandInNamespace(patch_size=1)

        def __call__(self, *args: Any, **options: Any) -> _Features:
            return _process(*args, **options)

    tokenizer = StandInNamespace(encode=lambda text, **_: _ids(text))
    collator = boundary.owner(tokenizer=tokenizer, processor=Processor())
    if hasattr(collator, "image_load_sample_fn"):
        # Newer collators load images themselves: (images, options of the processor). The scenario's are loaded already.
        collator.image_load_sample_fn = lambda images, *_, **__: (images, {})
    with swapped(boundary.module, pad_without_fast_tokenizer_warning=_pad, BatchFeature=_Features):
        return {"returned": dict(boundary.function(collator, **inputs["arguments"]))}


@contextlib.contextmanager
def swapped(module: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


BINDINGS = (
    Binding("roll.utils.functionals.postprocess_generate", "call", call=_postprocess_generate),
    Binding(
        "roll.datasets.collator.DataCollatorWithPaddingForMM.__call__",
        "call",
        call=_multimodal_collator,
        stand_ins=(_TOKENIZER, _PROCESSOR, _TRANSFORMERS),
    ),
)
