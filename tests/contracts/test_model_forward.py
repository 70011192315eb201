"""The contract of a model's forward pass: its reference obeys the chain rule of probability, and sees what differs."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from contract_kit import measured

from sentinel.contracts.model_forward import HIDDEN, VOCABULARY, choose_experts

pytest.importorskip("transformers")
CONFIG: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 10, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32,
    "pad_token_id": None,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "decoder_sparse_step": 1}
DOCUMENTS = [[3, 1, 4], [1, 5, 9, 2]]


def given(**changes: Any) -> dict[str, Any]:
    embeddings = torch.arange(VOCABULARY * HIDDEN).reshape(VOCABULARY, HIDDEN).sin()
    return {
        "architecture": "Qwen3MoeForCausalLM", "config": {**CONFIG, **EXPERTS}, "documents": DOCUMENTS, "seed": 1,
        "embeddings": embeddings.double(), **changes,
    }  # fmt: skip


def test_documents_do_not_see_each_other():
    whole = measured("model_forward", **given())["log_probs"]
    alone = [measured("model_forward", **given(documents=[document]))["log_probs"] for document in DOCUMENTS]
    assert whole == pytest.approx([value for part in alone for value in part], abs=1e-6)


def test_a_token_has_no_influence_on_earlier_tokens():
    first, other = (measured("model_forward", **given(documents=[[3, 1, 4, last]]))["log_probs"] for last in (1, 5))
    assert first[:2] == pytest.approx(other[:2], abs=1e-6)
    assert first[2] != pytest.approx(other[2], abs=1e-3)


def test_probabilities_of_all_next_tokens_add_up_to_one():
    several = [[3, 1, token] for token in range(VOCABULARY)]
    log_probs = measured("model_forward", **given(documents=several))["log_probs"][1::2]
    assert sum(torch.tensor(log_probs).exp()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"replays_experts": True}, {"seed": 2}])
def test_options_change_all_results(change):
    usual, other = (measured("model_forward", **given(**changes)) for changes in ({}, change))
    assert all(usual[key] != other[key] for key in usual)


def test_replayed_experts_are_distinct():
    assert choose_experts(layer=1, place=2, experts=4, several=2) == [3, 0]
