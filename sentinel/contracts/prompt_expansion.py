"""Prompt expansion: each prompt becomes several samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Input, Observed, rule


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``prompt_of_sample``, and ``state``: for each prompt and each sample what it may write to."""
    import torch

    outputs = call(**inputs)
    samples = [id(state) for state in outputs["sample_states"]]
    prompts = {id(state) for state in outputs["prompt_states"]}
    return {
        "prompt_of_sample": torch.as_tensor(list(outputs["prompt_of_sample"]), dtype=torch.int64),
        "shared_with_sibling": len(set(samples)) < len(samples),
        "shared_with_prompt": bool(prompts & set(samples)),
    }


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The samples of a prompt stand together, in the order of the prompts, and each has a state of its own."""
    count = inputs["samples_per_prompt"]
    made = [prompt for prompt in range(inputs["prompts"]) for _ in range(count)]
    return {
        "prompt_of_sample": made,
        "sample_states": [[place] for place in made],
        "prompt_states": [[prompt] for prompt in range(inputs["prompts"])],
    }


PROMPT_EXPANSION = rule(
    name="prompt_expansion",
    summary="the samples that each prompt becomes",
    source="samples of a prompt are independent draws (GRPO, arXiv:2402.03300, section 4.1), which share no state",
    inputs=(
        Input("prompts", "integer", "how many prompts there are", choices=(1, 2, 3)),
        Input("samples_per_prompt", "integer", "how many samples each becomes", choices=(1, 2, 3)),
    ),
    observes=(
        Observed("prompt_of_sample", "the number of the prompt that each sample is of", ("samples",)),
        Observed("shared_with_sibling", "whether two samples have one and the same state"),
        Observed("shared_with_prompt", "whether a sample has the very state that the dataset keeps"),
    ),
    measure=_measure,
    oracle=_oracle,
)
