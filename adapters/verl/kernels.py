"""verl: small functions of tensors under the trainer: log-probs and entropies, masks, padding, truncation, batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.kit import log_probs_alone

_TORCH = "verl.utils.torch_functional"
_PROTOCOL = "verl.protocol"
_TRAINER = "verl.trainer.ppo.ray_trainer"


def _entropies(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """With the log-probs of the function beside it, so that a gradient has something to come from."""
    logits = inputs["logits"]
    rows, tokens, size = logits.shape
    log_probs = boundary.module.logprobs_from_logits_naive(logits, inputs["token_ids"])
    entropy = boundary.function(logits.reshape(rows * tokens, size)).reshape(rows, tokens)
    return {"log_probs": log_probs, "entropy": entropy}


def _logits(function: str, call: Any, with_entropy: bool) -> Binding:
    fixed = {"temperature": 1.0, "with_entropy": with_entropy}
    # A coarser dtype than the logits is what mixed precision does not compute these in.
    return Binding(f"{_TORCH}.{function}", "token_log_probs", call=call, fixed=fixed, dtypes=("float32", "float64"))


def _until_eos(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"response_mask": boundary.function(inputs["responses"], eos_token=inputs["eos_token_id"])}


def _of_attention(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the attention mask has at the columns of responses, which a rollout makes of their lengths."""
    import torch

    places = torch.arange(inputs["response_length"])
    there = (places[None, :] < inputs["lengths"][:, None]).long()
    tensors = {"responses": inputs["responses"], "attention_mask": torch.cat((inputs["prompt_mask"], there), dim=-1)}
    data = boundary.imported[_PROTOCOL].DataProto.from_dict(tensors=tensors)
    return {"response_mask": boundary.function(data)}


def _padded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "padded": boundary.function(
            inputs["values"], inputs["length"], inputs["pad_value"], left_pad=inputs["side"] == "left"
        )
    }


def _post_processed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """One sequence without padding; it comes out padded on the left."""
    import torch

    ids = torch.tensor([inputs["token_ids"]])
    found, there = boundary.function(
        ids, torch.ones_like(ids), inputs["max_length"], 0, left_pad=True, truncation=inputs["side"]
    )
    return {"token_ids": found[0][there[0].bool()].tolist()}


BINDINGS = (
    _logits("logprobs_from_logits", log_probs_alone, False),
    _logits("logprobs_from_logits_naive", log_probs_alone, False),
    _logits("logprobs_from_logits_v2", log_probs_alone, False),
    _logits("entropy_from_logits", _entropies, True),
    _logits("entropy_from_logits_with_chunking", _entropies, True),
    Binding(f"{_TORCH}.get_response_mask", "response_masks", call=_until_eos),
    Binding(f"{_TRAINER}.compute_response_mask", "response_masks", call=_of_attention, imports=(_PROTOCOL,)),
    Binding(f"{_TORCH}.pad_sequence_to_length", "column_padding", call=_padded),
    Binding(
        f"{_TORCH}.postprocess_data",
        "truncation",
        call=_post_processed,
        requires=(f"{_TORCH}.postprocess_data",),  # before, it was one with the tokenizer's call
        fixed={"padded": True},
    ),
)
