"""The models of frameworks equal the models of transformers, and a changed line in a model is detected."""

import random
from collections.abc import Iterator

import pytest
from binding_kit import Bound, opened, opened_twin

from sentinel.contracts.choices import Choices

MAIN = "559b44772e471d1538537b8805cc77f3824a5e64"
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


@pytest.fixture(scope="module")
def code() -> Iterator[Bound]:
    yield from opened("primerl", MAIN)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bound]:
    place = "src/prime_rl/trainer/models/{0}/modeling_{0}.py"
    edits = [(place.format(model.split(".")[0]), *change) for model, change in CASES.items()]
    yield from opened_twin("primerl", MAIN, edits, tmp_path_factory.mktemp("primerl"))


def _disagreements(bound: Bound, model: str) -> list[str]:
    """Return the differences from transformers in a few scenarios with each configuration of a model."""
    package, name = model.split(".")
    boundary = f"prime_rl.trainer.models.{package}.modeling_{package}.{name}.forward"
    (subject,) = [each for each in bound.subjects if each.boundary == boundary]
    found = []
    for config in subject.binding.accepts["config"]:
        for seed in range(4):
            choose = Choices(random.Random(seed).randbytes(4096))
            replays = seed % 2 == 0 and "replays_experts" not in subject.binding.fixed
            given = {**bound._plain(subject, None), "config": config, "replays_experts": replays}
            trial = bound.ask(subject, "the_oracle_agrees", {"": bound._arranged(subject, given, choose)})
            found += [item.detail for item in trial.violations]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", CASES)
def test_a_changed_line_of_a_model_is_detected(code, twin, model):
    assert _disagreements(code, model) == []
    assert _disagreements(twin, model) != []
