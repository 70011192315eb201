"""Provide language models for the contract ``model_forward``: a reference, its checkpoint, and packed documents."""

from __future__ import annotations

from typing import Any

from sentinel.contracts.model_forward import build_model as build_model
from sentinel.contracts.model_forward import choose_experts as choose_experts
from sentinel.values.lazy import torch

__all__ = (
    "apply_delta_rule", "attend_packed", "build_model", "choose_experts", "convolve_packed", "make_gated_norm",
    "pack_documents", "read_checkpoint", "read_packed",
)  # fmt: skip


def read_checkpoint(model: Any) -> dict[str, Any]:
    """Return the weights of a transformers model, under the names of published checkpoints."""
    from transformers.core_model_loading import revert_weight_conversion

    state: dict[str, Any] = revert_weight_conversion(model, dict(model.state_dict()))
    return {name: weight.clone() for name, weight in state.items()}


def pack_documents(documents: Any) -> dict[str, Any]:
    """Pack documents into one row, ``[1, tokens]``. Positions restart at 0, and ``lengths`` are those of documents."""
    ids = [token for document in documents for token in document]
    places = [place for document in documents for place in range(len(document))]
    lengths = torch.tensor([len(document) for document in documents])
    return {"ids": torch.tensor([ids]), "positions": torch.tensor([places]), "lengths": lengths}


def read_packed(values: Any, documents: Any) -> Any:
    """Return the values of a packed row, ``[tokens]``, that belong to predictions: all but each document's last."""
    return torch.cat([part[:-1] for part in values.split([len(document) for document in documents])])


def attend_packed(
    query: Any,
    key: Any,
    value: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *_: Any,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    **more: Any,
) -> Any:
    """Compute the attention of packed documents, as FlashAttention's function of this signature defines it.

    ``softmax(Q K^T / sqrt(d)) V`` (arXiv:1706.03762, equation 1) in each document, of which a token attends to itself
    and to at most ``window_size[0]`` tokens before it. Queries of several heads share the heads of keys and values
    (arXiv:2305.13245).

    :param query: ``[tokens, heads, features]``, and ``key`` and ``value`` with fewer or as many heads.
    """
    assert causal
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    shared = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
    documents = torch.arange(len(query))[:, None] >= cu_seqlens_q[1:-1]
    document, place = documents.sum(-1), torch.arange(len(query))
    distance = place[:, None] - place
    seen = (document[:, None] == document) & (distance >= 0)
    if window_size[0] >= 0:
        seen &= distance <= window_size[0]
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return torch.einsum("hqk,khd->qhd", weights, value)


def convolve_packed(
    x: Any, weight: Any, bias: Any = None, activation: str | None = None, cu_seqlens: Any = None, **_: Any
) -> tuple[Any, None]:
    """Compute a causal convolution of each channel in each packed document, as the function of this name in
    flash-linear-attention does.

    :param x: ``[1, tokens, channels]``, and ``weight`` ``[channels, width]``.
    """
    width, made = weight.shape[-1], []
    for document in _split_documents(x[0], cu_seqlens):
        padded = torch.nn.functional.pad(document, (0, 0, width - 1, 0))
        made.append(sum(padded[place : place + len(document)] * weight[:, place] for place in range(width)))
    values = torch.cat(made) if bias is None else torch.cat(made) + bias
    return (torch.nn.functional.silu(values) if activation else values)[None], None


def apply_delta_rule(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
    **_: Any,
) -> tuple[Any, None]:
    """Apply the gated delta rule (arXiv:2412.06464, equation 10) to each packed document.

    ``S_t = S_(t-1) (a_t (I - b_t k_t k_t^T)) + b_t v_t k_t^T``, and ``o_t = S_t q_t / sqrt(d)``.

    :param query: ``[1, tokens, heads, features]``; ``g``, the logarithm of ``a``, and ``beta``: ``[1, tokens, heads]``.
    """
    if use_qk_l2norm_in_kernel:
        query, key = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query, key))
    streams = (_split_documents(part[0], cu_seqlens) for part in (query, key, value, g, beta))
    outputs = []
    for queries, keys, values, gates, rates in zip(*streams):
        state = value.new_zeros(*values.shape[1:], keys.shape[-1])
        for q, k, v, gate, rate in zip(queries, keys, values, gates, rates):
            state = state * gate.exp()[:, None, None]
            change = rate[:, None] * (v - torch.einsum("hvk,hk->hv", state, k))
            state = state + torch.einsum("hv,hk->hvk", change, k)
            outputs.append(torch.einsum("hvk,hk->hv", state, q) * q.shape[-1] ** -0.5)
    return torch.stack(outputs)[None], None


def _split_documents(values: Any, ends: Any) -> Any:
    return [values] if ends is None else values.split(ends.diff().tolist())


def make_gated_norm(features: int, eps: float) -> Any:
    """Make a layer that divides by the root mean square (arXiv:1910.07467), and multiplies by a gate's SiLU."""

    class GatedNorm(torch.nn.RMSNorm):  # type: ignore[misc]
        def forward(self, values: Any, gate: Any) -> Any:
            return super().forward(values) * torch.nn.functional.silu(gate)

    return GatedNorm(features, eps)
