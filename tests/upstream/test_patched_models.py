"""The models of frameworks equal the models of transformers, and a changed line in a model is detected."""

import random
from collections.abc import Iterator

import pytest
from binding_kit import Bound, Open, each_twin, once_each, opened
from twins import Edit

from sentinel.contracts.choices import Choices

MAIN = {
    "primerl": "559b44772e471d1538537b8805cc77f3824a5e64", "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
}  # fmt: skip
#: Package and inner class -> the text to replace in the model's file, and its replacement.
CASES = {
    "llama.LlamaModel": ("rotary_emb(hidden_states, position_ids", "rotary_emb(hidden_states, 2 * position_ids"),
    "qwen3.Qwen3Model": ("= config.sliding_window", "= config.sliding_window + 1"),
    "qwen3_moe.Qwen3MoeModel": ("routed_experts[:, :, layer_idx", "routed_experts[:, :, 0"),
    "glm4_moe.Glm4MoeModel": ("=config.routed_scaling_factor", "=1.0"),
    "minimax_m2.MiniMaxM2Model": ("route_norm=True", "route_norm=False"),
    "afmoe.AfmoeModel": ("torch.sigmoid(gate_states)", "gate_states"),
    "laguna.LagunaModel": ("F.softplus(self", "F.silu(self"),
    "gpt_oss.GptOssModel": ("F.softmax(top_logits", "F.softmax(2 * top_logits"),
    "qwen3_5.Qwen3_5Model": ("seq_lens.to(device", "seq_lens.sum()[None].to(device"),
    "qwen3_5_moe.Qwen3_5MoeModel": ("beta = b.sigmoid()", "beta = b.relu()"),
    "glm_moe_dsa.GlmMoeDsaModel": (" - flat_position_ids.to(", " - 0 * flat_position_ids.to("),
    "nemotron_h.NemotronHModel": ("=config.norm_topk_prob", "=True"),
}
#: verl's functions for models of transformers -> the text to replace in the function's file, and its replacement.
FUNCTIONS = {
    "dense_common.forward_with_torch_backend": ("temperature=temperature,\n", "temperature=2 * temperature,\n"),
    "dense_common.forward_with_triton_backend": (
        '        temperature,\n        "none"',
        '        1.0,\n        "none"',
    ),
    "qwen3_5.qwen3_5_gated_delta_net_forward": ("beta = b.sigmoid()", "beta = b.relu()"),
    "qwen3_5.forward_with_normal_backend": (
        'kwargs.pop("cu_seqlens", None)',
        '(kwargs.pop("cu_seqlens"), None)[1]',
    ),
    "monkey_patch._ulysses_flash_attention_forward": ("concat(position_ids_list,", "concat(position_ids_list[::-1],"),
    "tiled_mlp.TiledMLP.backward": ("i * x_shards[0].shape[0]", "0"),
}


@pytest.fixture(scope="module")
def code() -> Iterator[Open]:
    yield from once_each(lambda target: opened(target, MAIN[target]))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """The main of a target with all changes."""

    def changed(target: str) -> list[Edit]:
        place = "src/prime_rl/trainer/models/{0}/modeling_{0}.py"
        place = place if target == "primerl" else "verl/models/transformers/{0}.py"
        cases = CASES if target == "primerl" else FUNCTIONS
        return [(place.format(name.split(".")[0]), *change) for name, change in cases.items()]

    yield from each_twin(MAIN, changed, tmp_path_factory)


def _disagreements(bound: Bound, boundary: str) -> list[str]:
    """Return the differences from transformers in a few scenarios with each configuration of a model."""
    (subject,) = [each for each in bound.subjects if each.boundary == boundary]
    accepts, found = subject.binding.accepts, []
    for config in accepts["config"]:
        for seed in range(4):
            choose = Choices(random.Random(seed).randbytes(4096))
            options = {
                "config": config, "seed": seed % 2, "temperature": 0.5,
                "context_parallel_size": accepts.get("context_parallel_size", [1])[-1],
                "replays_experts": seed < 2 and "replays_experts" not in subject.binding.fixed,
            }  # fmt: skip
            given = bound._arranged(subject, {**bound._plain(subject, None), **options}, choose)
            trial = bound.ask(subject, "the_oracle_agrees", {"": given})
            found += [item.detail for item in trial.violations]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", CASES)
def test_a_changed_line_of_a_model_is_detected(code, twin, model):
    package, name = model.split(".")
    boundary = f"prime_rl.trainer.models.{package}.modeling_{package}.{name}.forward"
    assert _disagreements(code("primerl"), boundary) == []
    assert _disagreements(twin("primerl"), boundary) != []


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_changed_line_of_a_patch_is_detected(code, twin, function):
    boundary = f"verl.models.transformers.{function}"
    assert _disagreements(code("verl"), boundary) == []
    assert _disagreements(twin("verl"), boundary) != []
