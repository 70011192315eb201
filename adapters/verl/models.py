"""Bindings for the functions with which verl replaces parts of transformers models.

The models are those of transformers. verl's functions compute their attention, their MLPs, their output layer, or their
linear attention.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS
from sentinel.binding.kit import torch

_MODELS, _ULYSSES = "verl.models.transformers", "verl.utils.ulysses"


def _build(inputs: Mapping[str, Any]) -> Any:
    return kit.build_model(*(inputs[name] for name in ("architecture", "config", "seed", "embeddings")))


def _pack(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a forward pass over packed documents."""
    packed = kit.pack_documents(inputs["documents"])
    embed = model.get_input_embeddings()
    tokens = {"input_ids": packed["ids"]} if inputs["form"] == "ids" else {"inputs_embeds": embed(packed["ids"])}
    return {**tokens, "position_ids": packed["positions"], "use_cache": False}


def _result(model: Any, log_probs: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "log_probs": kit.read_packed(log_probs, inputs["documents"]),
        "embedding": model.get_input_embeddings().weight,
        "parameters": list(model.parameters()),
    }


def _select(logits: Any, ids: Any, temperature: float) -> Any:
    """Return the log-prob of each next token."""
    return torch.log_softmax(logits / temperature, -1).gather(-1, ids.roll(-1)[..., None])[..., 0]


def _project(hidden: Any, weight: Any, labels: Any, temperature: float, _: str) -> tuple[Any, Any]:
    """Compute log-probs and entropies as verl's Triton kernel does."""
    distribution = torch.log_softmax(hidden @ weight.T / temperature, -1)
    log_probs = distribution.gather(-1, labels[..., None])[..., 0]
    return log_probs, -(distribution.exp() * distribution).sum(-1)


def _fused(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model with verl's forward pass, which ends with log-probs."""
    model = _build(inputs)
    ids = kit.pack_documents(inputs["documents"])["ids"]
    arguments = {**_pack(model, inputs), "temperature": inputs["temperature"], "return_dict": True}
    if inputs["form"] == "embeddings":
        arguments["labels"] = ids
    if "shift_labels" in boundary.parameters and inputs["seed"] == 1:
        arguments["shift_labels"] = ids.roll(-1)
    with ExitStack() as swaps:
        swaps.enter_context(kit.swap(boundary.module, "CausalLMOutputForPPO", kit.Named))
        for module in boundary.imported.values():
            swaps.enter_context(kit.swap(module, "linear_cross_entropy", _project))
        made = boundary.function(model, **arguments)
    return _result(model, made["log_probs"][0], inputs)


def _attend(
    query: Any, key: Any, value: Any, _: Any, __: Any, position_ids: Any, sliding_window: Any = None, **more: Any
) -> Any:
    """Compute the attention of one packed row, as the function of transformers with FlashAttention does."""
    (starts,) = torch.nonzero(position_ids[0] == 0, as_tuple=True)
    ends = torch.cat([starts, torch.tensor([position_ids.shape[1]])])
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    rows = (query[0], key[0], value[0], ends, ends)
    scale = more.get("softmax_scale")
    return kit.attend_packed(*rows, causal=True, window_size=window, softmax_scale=scale)[None]


def _attended(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model whose attention is verl's, on ranks that share the tokens of each row (Ulysses)."""
    ranks, ulysses = inputs["context_parallel_size"], boundary.imported[_ULYSSES]
    used = importlib.import_module("transformers.integrations.flash_attention")
    model = _build(inputs)
    model.config._attn_implementation = "flash_attention_2"

    def run(_: int) -> Any:
        if ranks == 1:
            return _select(model(**_pack(model, inputs)).logits, ids, inputs["temperature"])
        arguments = _pack(model, {**inputs, "form": "ids"})
        width = ranks * -(-ids.shape[1] // ranks)
        rows = {name: _fill(arguments.pop(name), width) for name in ("input_ids", "position_ids")}
        rows = {name: ulysses.slice_input_tensor(row, dim=1) for name, row in rows.items()}
        return model(**rows, **arguments).logits.detach()

    ids = kit.pack_documents(inputs["documents"])["ids"]
    with (
        mock.patch.object(used, "_flash_attention_forward", boundary.function),
        kit.swap(boundary.module, "_flash_attention_forward", _attend),
        kit.swap(ulysses, "_ULYSSES_SEQUENCE_PARALLEL_GROUP", tuple(range(ranks)) if ranks > 1 else None),
    ):
        made = kit.on_ranks(ranks, run) if ranks > 1 else [run(0)]
    if ranks == 1:
        return _result(model, made[0][0], inputs)
    logits = torch.cat(made, 1)[:, : ids.shape[1]]
    return _result(model, _select(logits, ids, inputs["temperature"])[0], inputs)


def _fill(row: Any, width: int) -> Any:
    """Fill a row of ids or positions with one more document."""
    return torch.cat([row, torch.arange(width - row.shape[1])[None]], 1)


def _tiled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model whose MLPs are verl's, in tiles of the row."""
    tiled = boundary.module
    module, name = tiled._MODEL_TYPE_TO_MLP_CLASS[inputs["architecture"].removesuffix("ForCausalLM").lower()]
    model = _build(inputs)
    kind = getattr(importlib.import_module(module), name)
    with mock.patch.object(kind, "forward"):
        tiled._patch_mlp_class(kind, tiled._mlp_forward_fn, 1 + inputs["seed"])
        logits = model(**_pack(model, inputs)).logits
    ids = kit.pack_documents(inputs["documents"])["ids"]
    return _result(model, _select(logits, ids, inputs["temperature"])[0], inputs)


def _mixed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model whose linear attention is verl's, with one of verl's forward passes or that of transformers.

    transformers 5.11 removed attributes that verl reads from layers; here, the layers have them.
    """
    modeling = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    model, qwen = _build(inputs), boundary.module
    for layer, kind in zip(model.model.layers, model.config.layer_types):
        layer.layer_type = kind
        if kind == "linear_attention":
            layer.linear_attn.causal_conv1d_fn = _convolve if inputs["seed"] == 1 else None
            layer.linear_attn.chunk_gated_delta_rule = kit.apply_delta_rule if inputs["seed"] else _apply_to_one
    packed = kit.pack_documents(inputs["documents"])
    ids, ends = packed["ids"], torch.nn.functional.pad(packed["lengths"].cumsum(0), (1, 0)).int()
    arguments = {**_pack(model, inputs), "cu_seqlens": ends, "cu_seqlens_cpu": ends}
    with (
        mock.patch.object(modeling.Qwen3_5GatedDeltaNet, "forward", qwen.qwen3_5_gated_delta_net_forward),
        mock.patch.object(modeling.Qwen3_5DecoderLayer, "forward", qwen.qwen3_5_decoder_layer_forward),
        kit.swap(qwen, "Qwen3_5CausalLMOutputForPPO", kit.Named),
    ):
        if "_backend" not in boundary.path:
            made = model(**arguments)
        elif inputs["seed"] == 1 and "shift_labels" in boundary.parameters:
            made = boundary.function(model, **arguments, temperature=inputs["temperature"], shift_labels=ids.roll(-1))
        else:
            made = boundary.function(model, **arguments, temperature=inputs["temperature"])
    log_probs = made["log_probs"] if "log_probs" in made else _select(made["logits"], ids, inputs["temperature"])
    return _result(model, log_probs[0], inputs)


def _convolve(x: Any, weight: Any, bias: Any, activation: str, seq_idx: Any) -> Any:
    """Compute the causal convolution of packed documents, ``[1, channels, tokens]``, like causal_conv1d."""
    ends = torch.nn.functional.pad(torch.bincount(seq_idx[0].long()).cumsum(0), (1, 0))
    return kit.convolve_packed(x.transpose(1, 2), weight, bias, activation, ends)[0].transpose(1, 2)


def _apply_to_one(
    query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any, output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
) -> Any:  # fmt: skip
    """Apply the gated delta rule to one document."""
    return kit.apply_delta_rule(query, key, value, g, beta, use_qk_l2norm_in_kernel)


_SIZES: Mapping[str, Any] = {
    "vocab_size": 12, "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32, "pad_token_id": None,
}  # fmt: skip
_WINDOW: Mapping[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 2, "use_sliding_window": True,
}  # fmt: skip
_LINEAR: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 4, "linear_value_head_dim": 6, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
}  # fmt: skip
_ALONE = {"replays_experts": False, "context_parallel_size": 1}
_MODEL = StandIn("model", "a small model of transformers, with attention on a CPU")
#: Parameters that verl's functions have since May and July 2026.
_ROLLED = f"{_MODELS}.dense_common.forward_with_torch_backend(shift_labels)"
_PACKED = f"{_MODELS}.qwen3_5.forward_with_normal_backend(cu_seqlens_cpu)"
_KERNEL = "verl.utils.kernel.linear_cross_entropy"


def _bind(path: str, call: Any, architecture: str, *configs: Mapping[str, Any], **more: Any) -> Binding:
    options = {"accepts": {"config": tuple({**_SIZES, **config} for config in configs), **more.pop("accepts", {})}}
    fixed = {"architecture": architecture, **_ALONE, **more.pop("fixed", {})}
    return Binding(
        f"{_MODELS}.{path}", "model_forward", call=call, stand_ins=(_MODEL, RANKS), fixed=fixed, **options, **more
    )


BINDINGS = (
    _bind("dense_common.forward_with_torch_backend", _fused, "Qwen3ForCausalLM", {}, _WINDOW, requires=(_ROLLED,)),
    _bind(
        "dense_common.forward_with_triton_backend", _fused, "Qwen2ForCausalLM", {}, imports=(_KERNEL,),
        requires=(_ROLLED,),
    ),
    *(
        _bind(
            f"qwen3_5.forward_with_{name}_backend", _mixed, "Qwen3_5ForCausalLM", _LINEAR, accepts={"form": ("ids",)},
            requires=(_PACKED,),
        )
        for name in ("torch", "normal")
    ),
    *(
        _bind(f"qwen3_5.qwen3_5_{name}_forward", _mixed, "Qwen3_5ForCausalLM", _LINEAR, requires=(_PACKED,))
        for name in ("gated_delta_net", "decoder_layer")
    ),
    Binding(
        f"{_MODELS}.monkey_patch._ulysses_flash_attention_forward", "model_forward", call=_attended,
        imports=(_ULYSSES,), stand_ins=(_MODEL, RANKS),
        requires=(f"{_MODELS}.monkey_patch._ulysses_flash_attention_forward(query_length)",),
        fixed={"architecture": "Qwen3ForCausalLM", "replays_experts": False},
        accepts={"config": ({**_SIZES}, {**_SIZES, **_WINDOW}), "context_parallel_size": (1, 2)},
    ),
    *(
        _bind(f"tiled_mlp.{name}", _tiled, "LlamaForCausalLM", {})
        for name in ("TiledMLP.forward", "TiledMLP.backward", "GradientAccumulator.install_hooks")
    ),
)  # fmt: skip
