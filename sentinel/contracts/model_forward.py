"""Define the contract of a language model's forward pass: the log-probs of documents' tokens.

The reference is the model of the same architecture in transformers, which computes each document alone.
"""

from __future__ import annotations

import importlib
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

from sentinel.contracts.aggregation import CONTEXT_PARALLEL
from sentinel.contracts.contract import AS_DEFINED, Choose, DoesNotApply, Input, Observed, drawn, knob, rule
from sentinel.values.lazy import torch
from sentinel.values.literals import tensor

#: The number of tokens in the vocabulary, and the number of features of a token.
VOCABULARY, HIDDEN = 12, 8


def build_model(architecture: str, options: Mapping[str, Any], seed: int, embeddings: Any) -> Any:
    """Build a model of transformers, with weights in the dtype of ``embeddings`` that depend only on their names and on
    the seed.

    :param architecture: the name of the model's class in transformers.
    :param options: the options of the model's configuration.
    :param embeddings: the embedding of each token.
    :raises DoesNotApply: if the installed transformers lack this architecture.
    """
    try:
        kind = getattr(importlib.import_module("transformers"), architecture)
    except (ImportError, AttributeError):
        raise DoesNotApply(f"the installed transformers have no {architecture}") from None
    config = kind.config_class(**options)
    with torch.random.fork_rng(devices=[]):  # a constructor draws weights, which are replaced below
        model = kind._from_config(config, attn_implementation="eager", experts_implementation="eager")
    model = model.to(embeddings.dtype).eval()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.is_floating_point():
                weight.copy_(_draw_weight(name, weight, seed))
        model.get_input_embeddings().weight.copy_(embeddings)
    return model


def _draw_weight(name: str, weight: Any, seed: int) -> Any:
    """Return random weights that keep the size of features. Weights of a norm are near 1."""
    chance = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    values = torch.randn(weight.shape, generator=chance, dtype=torch.float64)
    if weight.ndim == 1:
        return values / 4 + ("norm" in name)
    return values / weight.shape[-1] ** 0.5


def choose_experts(layer: int, place: int, experts: int, several: int) -> list[int]:
    """Return the experts that a layer's router replays for a token of a document."""
    first = 3 * place + layer
    return [(first + number) % experts for number in range(several)]


def _measure_model_forward(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe log-probs, and the gradients of their weighted mean.

    ``call`` returns ``log_probs`` (of each token but the first of each document), ``embedding`` (the parameter that has
    the embeddings of all tokens) and ``parameters`` (all parameters that are trained). Gradients are observed only if
    the boundary computes them.
    """
    outputs = call(**inputs)
    log_probs, embedding = outputs["log_probs"], outputs["embedding"]
    if not log_probs.requires_grad:
        return {"log_probs": log_probs, "embedding_gradient": None, "gradient_norm": None}
    # Each token has a weight of its own, so that the gradient is not symmetric.
    weights = 1 + torch.arange(len(log_probs), dtype=log_probs.dtype) / 4
    (weights * log_probs).mean().backward()
    slopes = [weight.grad.double() for weight in outputs["parameters"] if weight.grad is not None]
    norm = torch.stack([slope.norm() for slope in slopes]).norm()
    return {"log_probs": log_probs.detach(), "embedding_gradient": embedding.grad, "gradient_norm": norm}


def _oracle_model_forward(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute ``log softmax(z_t / T)[token t + 1]`` of each document with the architecture's model in transformers."""
    names = ("architecture", "config", "seed", "embeddings")
    model = build_model(*(inputs[name] for name in names))
    log_probs = []
    for document in inputs["documents"]:
        with ExitStack() as replay:
            if inputs["replays_experts"]:
                replay.enter_context(_replay_experts(model, len(document)))
            logits = model(torch.tensor([document]), use_cache=False).logits[0, :-1] / inputs["temperature"]
        log_probs.append(torch.log_softmax(logits, -1).gather(-1, torch.tensor(document[1:])[:, None])[:, 0])
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return {"log_probs": torch.cat(log_probs), "embedding": model.get_input_embeddings().weight, "parameters": trained}


@contextmanager
def _replay_experts(model: Any, tokens: int) -> Iterator[None]:
    """Make the routers of a model select the experts of :func:`choose_experts`. The weights of these experts are still
    those of the router's scores."""
    topk, here = torch.topk, [0]

    def enter(layer: int, *_: Any) -> None:
        here[0] = layer

    def select(values: Any, k: int, *given: Any, **more: Any) -> Any:
        if values.ndim != 2 or len(values) != tokens or k == values.shape[-1]:  # a choice among groups of experts
            return topk(values, k, *given, **more)
        chosen = torch.tensor([choose_experts(here[0], place, values.shape[-1], k) for place in range(tokens)])
        return values.gather(-1, chosen), chosen

    with ExitStack() as hooks:
        for number, layer in enumerate(model.get_decoder().layers):
            hooks.callback(layer.register_forward_pre_hook(partial(enter, number)).remove)
        hooks.enter_context(mock.patch("torch.topk", select))
        yield


def _arrange_model_forward(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw up to three documents and the embeddings of all tokens."""
    documents = [choose.integers(choose.integer(2, 5), 1, VOCABULARY - 1) for _ in range(choose.integer(1, 3))]
    chance = random.Random(inputs["seed"])
    rows = [[round(chance.gauss(0.0, 1.0), 2) for _ in range(HIDDEN)] for _ in range(VOCABULARY)]
    return {**inputs, "documents": documents, "embeddings": tensor(rows, "float32")}


def _no_documents(documents: Any) -> str:
    short = not isinstance(documents, Sequence) or not documents or min(map(len, documents)) < 2
    return "each document needs at least two tokens" if short else ""


MODEL_FORWARD = rule(
    name="model_forward",
    summary="a language model's forward pass: the log-probs of the tokens of several documents",
    source="the architecture's model in transformers, with the same weights, on each document alone",
    inputs=(
        Input("architecture", "string", "name of the model's class in transformers"),
        Input("config", "mapping", f"options of its configuration, with {VOCABULARY} tokens and {HIDDEN} features"),
        Input("documents", "any", "token ids of each document", choices=((),), problem=_no_documents),
        drawn("seed", "seed of the weights", (0, 1, 2)),
        Input("embeddings", "any", "the embedding of each token: tensor [vocabulary, features]", choices=((),)),
        knob("temperature", "divisor of the logits", (1.0, 0.5)),
        drawn("form", "form of the documents' tokens: ids, or embeddings", ("ids", "embeddings")),
        CONTEXT_PARALLEL,
        knob("replays_experts", "whether routers replay given experts instead of their own choice", (False, True)),
    ),
    observes=(
        Observed("log_probs", "log-prob of each token but the first of each document", ("places",)),
        Observed(
            "embedding_gradient",
            "gradient of the embeddings, for a mean of log-probs with weights 1, 5/4, 6/4, ...",
            ("vocabulary", "features"),
            "gradient",
        ),
        Observed("gradient_norm", "Euclidean norm of the gradients of all parameters", role="gradient"),
    ),
    measure=_measure_model_forward,
    oracle=_oracle_model_forward,
    laws=(*AS_DEFINED, "every_knob_counts"),
    arrange=_arrange_model_forward,
)
