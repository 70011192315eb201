"""Define the contract of distillation losses, which reduce the logits of a student and a teacher to a scalar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sentinel.contracts.aggregation import CONTEXT_PARALLEL, cut_token_mean, differentiated
from sentinel.contracts.contract import (
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    drawn,
    knob,
    laws_of_tokens,
    token_mask,
)
from sentinel.contracts.updates import MICRO_BATCH_SIZE, cut_otherwise, fitting
from sentinel.values.lazy import torch

_LOGITS = ("batch", "tokens", "vocabulary")


def _oracle_distillation_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the generalised Jensen-Shannon divergence (arXiv:2306.13649, equation 1), summed over valid tokens and
    divided by their number.

    With the student S, the teacher T and their mixture ``M = beta T + (1 - beta) S``, a token's divergence is ``beta
    KL(T || M) + (1 - beta) KL(S || M)``; at beta 0 it is ``KL(T || S)``, at beta 1 ``KL(S || T)``. The divisor is the
    number of valid tokens in the whole step.
    """
    valid, beta = inputs["response_mask"] != 0, inputs["beta"]
    distributions = []
    for name in ("logits", "teacher_logits"):
        kept = torch.where(valid[..., None], inputs[name], 0.0)
        distributions.append(torch.log_softmax(kept / inputs["temperature"], -1))
    student, teacher = _known(distributions[0], distributions[1], inputs)
    if inputs["mixture"] == "divergences":
        divergences = torch.zeros_like(student[..., 0])
        if beta < 1:
            divergences = divergences + (1 - beta) * _divergence(teacher, student)
        if beta > 0:
            divergences = divergences + beta * _divergence(student, teacher)
    elif beta == 0:
        divergences = _divergence(teacher, student)
    elif beta == 1:
        divergences = _divergence(student, teacher)
    else:
        mixture = (beta * teacher.exp() + (1 - beta) * student.exp()).log()
        divergences = beta * _divergence(teacher, mixture) + (1 - beta) * _divergence(student, mixture)
    total = inputs.get("batch_num_tokens")
    count = int(valid.sum()) if total is None else total
    return {"loss": torch.where(valid, divergences, 0.0).sum() / max(count, 1)}


def _divergence(one: Any, other: Any) -> Any:
    return (one.exp() * (one - other)).sum(-1)


def _known(student: Any, teacher: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return both distributions' log-probs, if only the teacher's ``top_k`` log-probs are known.

    By ``outside``, other tokens are removed from both distributions, or have a small probability for the teacher.
    """
    size = inputs["top_k"]
    if size is None or size >= teacher.shape[-1]:
        return student, teacher
    likeliest = teacher.topk(size + 1, -1).values
    if (likeliest[..., -2] - likeliest[..., -1] < 1e-3)[inputs["response_mask"] != 0].any():
        raise DoesNotApply("two tokens are so close in the teacher's distribution that rounding decides which is used")
    teacher, places = teacher.topk(size, -1)
    if inputs["outside"] is None:
        return student.gather(-1, places).log_softmax(-1), teacher.log_softmax(-1)
    whole = torch.full_like(student, inputs["outside"])
    return student, whole.scatter(-1, places, teacher.log_softmax(-1))


def _arrange_distillation_loss(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Add the number of the batch's valid tokens to ``batch_num_tokens``, which a search draws without them."""
    if inputs["batch_num_tokens"] is not None:
        inputs["batch_num_tokens"] += max(int((inputs["response_mask"].array() != 0).sum()), 1)
    return inputs


DISTILLATION_LOSS = Contract(
    name="distillation_loss",
    summary="the divergence between a student's and a teacher's next-token distributions",
    source="on-policy distillation (GKD, arXiv:2306.13649), equation 1",
    inputs=(
        Input(
            "logits",
            "tensor",
            "student logits of each response token, from the position before it",
            shape=_LOGITS,
            differentiable=True,
            domain="value",
        ),
        Input("teacher_logits", "tensor", "teacher logits at the same positions", shape=_LOGITS, domain="value"),
        token_mask(dtype="int64", dtypes=()),
        knob("beta", "0 is the forward KL (teacher || student), 1 the reverse", (0.5, 0.0, 1.0, 0.1)),
        knob("temperature", "temperature that divides both logits", (1.0, 2.0)),
        Input("top_k", "integer", "number of the teacher's likeliest tokens that are used; default: all", default=None),
        Input(
            "outside",
            "number",
            "the teacher's log-prob of any other token, while its top_k log-probs are normalised among themselves; "
            "default: both distributions have only the top_k tokens",
            default=None,
        ),
        Input("vocabulary_ranks", "integer", "ranks over which the student's vocabulary is split", default=1),
        CONTEXT_PARALLEL,
        dialect(
            "mixture",
            "distributions",
            "beta strictly between 0 and 1: distributions (divergences from the mixture of both), or divergences "
            "(1 - beta times the forward KL, plus beta times the reverse KL)",
        ),
        drawn(
            "batch_num_tokens",
            "valid tokens of the whole step; default: those of the batch",
            (None, 0, 3),
            kind="number",
        ),
    ),
    observes=(
        Observed("loss", "the loss"),
        Observed("logits_gradient", "d loss / d logits", _LOGITS, "gradient"),
    ),
    measure=differentiated(logits="logits_gradient"),
    oracle=_oracle_distillation_loss,
    laws=laws_of_tokens(
        "a_sequence_decision_is_one_decision",
        "metrics_tell_the_truth",
        "normalisation_laws",
        "representation_is_invisible",
        "groups_are_isolated",
    ),
    arrange=_arrange_distillation_loss,
    parts=cut_token_mean,
)


DISTILLATION_UPDATE = replace(
    DISTILLATION_LOSS,
    name="distillation_update",
    summary="a distillation update: from a batch through microbatches to the optimizer",
    inputs=(
        *(item for item in DISTILLATION_LOSS.inputs if item.name != "batch_num_tokens"),
        knob("generated", "whether the student generates the completions, or the dataset contains them", (True, False)),
        MICRO_BATCH_SIZE,
    ),
    arrange=fitting,
    parts=cut_otherwise,
)
