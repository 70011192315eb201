"""Names and stand-ins that several modules of the NeMo-RL adapter use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.binding import kit
from sentinel.binding.kit import torch

MAIN = "https://github.com/NVIDIA-NeMo/RL/blob/7ea279abfbeb698b092856d0dab61e7cf39bc909/nemo_rl"
ALGORITHMS, BATCHES = "nemo_rl.algorithms", "nemo_rl.distributed.batched_data_dict"
BATCH = f"{BATCHES}.BatchedDataDict"
LOSSES, PREPARED = f"{ALGORITHMS}.loss.loss_functions", f"{ALGORITHMS}.loss.utils"
SAMPLING = f"{ALGORITHMS}.logits_sampling_utils"


class Options(dict[str, Any]):
    """A dictionary whose keys can also be read as attributes, as NeMo-RL reads options since July 2026."""

    __getattr__ = dict.__getitem__


class Words:
    """A stand-in tokenizer for texts of numbers. Each number is the id of a token."""

    pad_token_id = 0

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **_: Any) -> str:
        return " ".join(message["content"] for message in messages)

    def __call__(self, text: str, **_: Any) -> kit.Named:
        return kit.Named({"input_ids": torch.tensor([[int(word) for word in text.split()]])})

    def batch_decode(self, rows: Any, **_: Any) -> list[str]:
        return [str(row) for row in rows]


def message(role: str, ids: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"role": role, "content": "", "token_ids": torch.tensor(ids), **more}


def configured(kind: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """Make NeMo-RL's configuration of the given class, which is a typed dictionary or a pydantic model.

    :raises AbsentError: if the scenario needs an option that this version does not have.
    """
    return kind(**kit.keep_accepted(kind, {**defaults, **options}, defaults))
