"""Bindings for prime-rl's own language models: their forward passes over documents that are packed into one row."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

_MODELS = "prime_rl.trainer.models"
_BASE, _HEAD = f"{_MODELS}.base", f"{_MODELS}.layers.lm_head"
_FLASH = "flash_attention_2"

#: Names of flash-linear-attention's kernels in prime-rl -> stand-ins.
_LINEAR = {
    "fla_causal_conv1d": kit.convolve_packed, "chunk_gated_delta_rule": kit.apply_delta_rule,
    "FusedRMSNormGated": kit.make_gated_norm,
}  # fmt: skip


def _select_all(q: Any, k: Any, _: Any, starts: Any, ends: Any, topk: int, *__: Any) -> Any:
    """Select all tokens of a document that a query sees, because there are fewer than ``topk``."""
    places = torch.arange(topk)[None] + starts[:, None]
    return torch.where(places < ends[:, None], places, len(k))


def _attend_selected(q: Any, kv: Any, indices: Any, sm_scale: float) -> Any:
    """Compute the attention to selected keys, of which the first :data:`_RANK` features are the values."""
    keys = kv[0, indices[0, :, 0], 0]
    scores = torch.einsum("shd,std->sht", q[0], keys) * sm_scale
    absent = indices[0, :, 0] == kv.shape[1] - 1
    weights = torch.softmax(scores.masked_fill(absent[:, None], float("-inf")), -1)
    return torch.einsum("sht,std->shd", weights, keys[..., :_RANK])[None]


_RANK = 6
#: Names of the kernels of sparse attention in prime-rl -> stand-ins.
_SPARSE = {"fp8_indexer": _select_all, "_SparseMLA": kit.stand_in(apply=_attend_selected)}


@contextmanager
def _on_cpu(kind: Any) -> Iterator[None]:
    """Replace FlashAttention's kernel in the classes that a model's module uses."""
    module = sys.modules[kind.__module__]
    layers = [value for value in vars(module).values() if isinstance(value, type) and hasattr(value, "_funcs")]
    layers.append(sys.modules[f"{_MODELS}.layers.attn"].FlashAttention)
    linear = sys.modules.get(f"{_MODELS}.qwen3_5_moe.modeling_qwen3_5_moe")
    sparse = sys.modules.get(f"{_MODELS}.glm_moe_dsa.sparse_mla_attention")
    with ExitStack() as swaps:
        for using, kernels in ((linear, _LINEAR), (sparse, _SPARSE)):
            swaps.enter_context(kit.swap_all(using, **kernels))
        for layer in layers:
            swaps.enter_context(kit.swap(layer, "_funcs", dict.fromkeys((2, 3, 4), kit.attend_packed)))
        yield


def _build(boundary: Any, kind: Any, inputs: Mapping[str, Any]) -> Any:
    """Build a model of prime-rl from the checkpoint of the architecture's model in transformers.

    The weights are then written as a checkpoint and read again, as they are for the inference engine.
    """
    if "_check_and_adjust_attn_implementation" not in vars(boundary.imported[_BASE].PreTrainedModelPrimeRL):
        raise AbsentError("this version's models need FlashAttention's package")
    checkpoint = kit.read_checkpoint(kit.build_model(*(inputs[name] for name in _GIVEN)))
    config = kind.config_class(**inputs["config"], use_grouped_mm=False)
    config._attn_implementation = _FLASH if "gpt_oss" not in boundary.path else "eager"
    head = boundary.imported[_HEAD]
    with _on_cpu(kind), kit.keep_random_state(), kit.swap(head, "get_logger", kit.make_silent_logger):
        model = kind(config)
        model.load_state_dict(model.convert_to_prime(checkpoint))
        written = model.convert_to_hf({name: value.clone() for name, value in model.state_dict().items()})
        model.load_state_dict(model.convert_to_prime(written))
        head.inject_prime_lm_head(model, chunk_size=4)
    return model


_GIVEN = ("architecture", "config", "seed", "embeddings")


def _predicted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with prime-rl's model and its fused output layer.

    prime-rl's output layer replaces the ``forward`` of the model's class, which is called here if it is the boundary.
    """
    owner = boundary.owner
    whole = owner.__name__.endswith("ForCausalLM")
    kind = owner if whole else getattr(boundary.module, f"{owner.__name__.removesuffix('Model')}ForCausalLM")
    model, documents = _build(boundary, kind, inputs), inputs["documents"]
    packed = kit.pack_documents(documents)
    ids, embed = packed["ids"], model.get_input_embeddings()
    tokens = {"input_ids": ids} if inputs["form"] == "ids" else {"inputs_embeds": embed(ids)}
    routes = {"routed_experts": _route(model.config, documents)} if inputs["replays_experts"] else {}
    arguments = {
        **tokens,
        **routes,
        # Without positions, a model computes those of one document.
        **({} if whole and len(documents) == 1 else {"position_ids": packed["positions"]}),
        "labels": ids.roll(-1),
        "temperature": torch.full(ids.shape, inputs["temperature"]),
        "seq_lens": packed["lengths"],
    }
    with kit.swap(boundary.module.torch, "histc", _count), _on_cpu(kind):
        made = boundary.function(model, **arguments) if whole else model(**arguments)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return {
        "log_probs": kit.read_packed(made["logprobs"][0], documents),
        "embedding": embed.weight,
        "parameters": trained,
    }


def _count(values: Any, bins: int, min: int, max: int) -> Any:
    """Count experts. On a CPU, torch's function does not count integers, and a loop over experts needs integers."""
    return torch.bincount(values.long().flatten(), minlength=bins)


def _route(config: Any, documents: Any) -> Any:
    """Return the experts of each token in each layer, ``[1, tokens, layers, experts per token]``."""
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    experts = next(getattr(config, name) for name in names if hasattr(config, name))
    several, layers = config.num_experts_per_tok, range(config.num_hidden_layers)
    places = [place for document in documents for place in range(len(document))]
    return torch.tensor(
        [[[kit.choose_experts(layer, place, experts, several) for layer in layers] for place in places]]
    )


_SIZES: Mapping[str, Any] = {
    "vocab_size": 12, "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32, "pad_token_id": None,
}  # fmt: skip
_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 6}
_LAYERS: Mapping[str, Any] = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 2}
_LINEAR_LAYERS: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 4, "linear_value_head_dim": 6, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
}  # fmt: skip
#: Package and class of each model -> options of its configuration.
_OPTIONS: Mapping[tuple[str, str], tuple[Mapping[str, Any], ...]] = {
    ("llama", "Llama"): ({"rope_theta": 100.0}, {"tie_word_embeddings": True}),
    ("qwen3", "Qwen3"): ({}, {**_LAYERS, "use_sliding_window": True, "attention_bias": True}),
    ("qwen3_moe", "Qwen3Moe"): (
        {**_EXPERTS, "num_experts": 4, "decoder_sparse_step": 1, "norm_topk_prob": True},
        {**_EXPERTS, "num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [0], "norm_topk_prob": False},
    ),
    ("glm4_moe", "Glm4Moe"): (
        {**_EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 0, "use_qk_norm": True},
        {
            **_EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5, "attention_bias": True, "norm_topk_prob": False,
        },
    ),
    ("minimax_m2", "MiniMaxM2"): ({**_EXPERTS, "num_local_experts": 4, "rotary_dim": 2},),
    ("afmoe", "Afmoe"): (
        {**_EXPERTS, **_LAYERS, "num_experts": 4, "num_dense_layers": 0, "num_shared_experts": 1},
        {
            **_EXPERTS, **_LAYERS, "num_experts": 4, "num_dense_layers": 1, "num_shared_experts": 1,
            "mup_enabled": True, "route_scale": 1.5,
        },
    ),
    ("laguna", "Laguna"): (
        {
            **_EXPERTS, **_LAYERS, "num_experts": 4, "shared_expert_intermediate_size": 6, "gating": "per-head",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10.0, "partial_rotary_factor": 1.0},
            },
        },
    ),
    ("qwen3_5", "Qwen3_5"): (_LINEAR_LAYERS,),
    ("qwen3_5_moe", "Qwen3_5Moe"): (
        {**_LINEAR_LAYERS, **_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 6},
    ),
    ("glm_moe_dsa", "GlmMoeDsa"): (
        {
            **_EXPERTS, "num_key_value_heads": 2, "n_routed_experts": 4, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "q_lora_rank": 7, "kv_lora_rank": _RANK, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 3, "v_head_dim": 5, "index_n_heads": 2, "index_head_dim": 6, "index_topk": 64,
        },
    ),
    ("nemotron_h", "NemotronH"): (
        {
            **_EXPERTS, "layers_block_type": ["attention", "moe"], "n_routed_experts": 4, "moe_latent_size": 6,
            "moe_shared_expert_intermediate_size": 6, "routed_scaling_factor": 1.5,
        },
        {
            **_EXPERTS, "layers_block_type": ["moe", "attention"], "n_routed_experts": 4, "norm_topk_prob": False,
            "moe_shared_expert_intermediate_size": 6,
        },
    ),
    ("gpt_oss", "GptOss"): ({**_EXPERTS, **_LAYERS, "num_local_experts": 4},),
}  # fmt: skip
_NO_REPLAY = ("llama", "qwen3", "qwen3_5", "gpt_oss")


def _bind(package: str, name: str, part: str) -> Binding:
    """Bind the forward pass of a model's outer or inner class."""
    module = f"{_MODELS}.{package}.modeling_{package}"
    # AFMoE's outer class requires token ids, but its inner class does not.
    # GPT-OSS's inner class takes the documents' lengths among its further arguments.
    parts = _PARTS if part == "Model" and package != "gpt_oss" else _PARTS[:1]
    forms = {"form": ("ids",)} if name + part == "AfmoeForCausalLM" else {}
    return Binding(
        f"{module}.{name}{part}.forward", "model_forward", call=_predicted, imports=(_BASE, _HEAD),
        stand_ins=_STAND_INS,
        requires=(
            f"{_MODELS}.base.PreTrainedModelPrimeRL.convert_to_prime",
            *(f"{module}.{name}{each}.forward(seq_lens)" for each in parts),
        ),
        fixed={
            "architecture": f"{name}ForCausalLM", "context_parallel_size": 1,
            **({"replays_experts": False} if package in _NO_REPLAY else {}),
        },
        accepts={"config": tuple({**_SIZES, **options} for options in _OPTIONS[package, name]), **forms},
    )  # fmt: skip


_PARTS = ("ForCausalLM", "Model")
_STAND_INS = (
    StandIn("FlashAttention, flash-linear-attention, sparse attention", "the formulas of these kernels, on a CPU"),
)
BINDINGS = tuple(_bind(package, name, part) for package, name in _OPTIONS for part in _PARTS)
