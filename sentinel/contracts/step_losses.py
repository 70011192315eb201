"""Define contracts of further losses: context-parallel, prompt, rollout KL, preference and decoupled losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.contracts.aggregation import (
    detached,
    differentiated,
    draw_behind,
    leaf,
    place_behind,
    spread,
    with_a_token,
)
from sentinel.contracts.contract import (
    AS_DEFINED,
    GROUP,
    REQUIRED,
    TOKENS,
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    drawn,
    knob,
    laws,
    laws_of_tokens,
    per_token,
    returned,
    rule,
    token_mask,
)
from sentinel.contracts.kl_estimate import KL_ESTIMATE
from sentinel.contracts.normalisation import rows_of
from sentinel.contracts.updates import MICRO_BATCH_SIZE, cut_otherwise, fitting
from sentinel.values.lazy import torch
from sentinel.values.literals import tensor

# -- context-parallel losses -------------------------------------------------------------------------------------------


def _oracle_context_parallel_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean over the sequence's tokens, which does not depend on the number of ranks."""
    return {"loss": inputs["losses"].mean()}


def _arrange_context_parallel_loss(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    inputs["losses"] = tensor([choose.one_of((1.0, 2.0, 0.5)) for _ in range(choose.integer(1, 6))], "float32")
    inputs["prompt_length"] = choose.integer(1, 5)
    return inputs


CONTEXT_PARALLEL_LOSS = rule(
    name="context_parallel_loss",
    summary="the mean loss of a sequence whose tokens are split over context-parallel ranks",
    source="data and context parallelism are implementations of one sum (Megatron-LM, arXiv:2104.04473)",
    inputs=(
        Input("losses", "any", "loss of each response token: tensor [tokens]", choices=((),)),
        drawn("prompt_length", "number of prompt tokens, which are split over the ranks too", (4,), REQUIRED),
        drawn("context_parallel_size", "number of context-parallel ranks", (1, 2, 4), REQUIRED),
        drawn("per_token", "whether the sum of losses is divided by the number of all tokens", (True, False), REQUIRED),
    ),
    observes=(Observed("loss", "the loss of the sequence"),),
    measure=returned(loss="number"),
    oracle=_oracle_context_parallel_loss,
    arrange=_arrange_context_parallel_loss,
)


# -- prompt losses -----------------------------------------------------------------------------------------------------


def _oracle_prompt_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the mean over prompts of each prompt's mean token loss.

    ``mean_p sum_{i in p, t} m_it l_it / sum_{i in p, t} m_it``
    """
    losses, valid = inputs["loss_mat"], inputs["response_mask"] != 0
    prompts = [torch.tensor(rows) for rows in rows_of(inputs["group"]).values()]
    if not all(valid[rows].any() for rows in prompts):
        raise DoesNotApply("a prompt has no valid token")
    return {"loss": torch.stack([losses[rows][valid[rows]].mean() for rows in prompts]).mean()}


def _arrange_prompt_loss(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw prompts with equal numbers of responses in adjacent rows."""
    rows = inputs["response_mask"].shape[0]
    size = choose.one_of([size for size in range(1, rows + 1) if rows % size == 0])
    inputs["group"] = [f"prompt {row // size}" for row in range(rows)]
    return inputs


PROMPT_LOSS = Contract(
    name="prompt_loss",
    summary="the mean over prompts of the mean loss over each prompt's tokens",
    source="a mean over prompts: if all tokens have the same loss, it is the loss of the batch",
    inputs=(
        per_token("loss_mat", "per-token losses", "loss", differentiable=True),
        token_mask(dtypes=()),
        GROUP,
    ),
    observes=(
        Observed("loss", "the loss of the batch"),
        Observed("per_token_gradient", "d loss / d loss_mat", TOKENS, "gradient"),
    ),
    measure=differentiated(loss_mat="per_token_gradient"),
    oracle=_oracle_prompt_loss,
    laws=("masked_values_have_no_influence", "the_oracle_agrees", "nothing_else_is_touched", "finite_in_finite_out"),
    group="group",
    arrange=_arrange_prompt_loss,
)


# -- rollout KL --------------------------------------------------------------------------------------------------------


def _measure_rollout_kl(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe a training step whose loss is only the rollout KL term."""
    log_probs = inputs["log_probs"].detach().clone().requires_grad_(True)
    outputs = call(**{**inputs, "log_probs": log_probs})
    return {"rollout_kl": outputs["rollout_kl"], "loss": outputs["loss"], "per_token_gradient": log_probs.grad}


def _oracle_rollout_kl(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the rollout KL term: the coefficient times the mean KL estimate of a sequence, averaged over sequences.

    If another policy sampled the tokens, the estimate is multiplied by the importance weight ``p / p_behaviour``.

    If tokens are samples of the trained policy, the gradient of the expectation includes the gradient of their
    probability (arXiv:2506.09477, equation 5). The estimate is then multiplied by ``exp(log_probs - sg(log_probs))``,
    which is 1 and has the gradient of the log-prob.
    """
    valid, log_probs = inputs["response_mask"] != 0, inputs["log_probs"]
    sampled_by = inputs["behaviour_log_probs"]
    kl = KL_ESTIMATE.reference({**inputs, "clamp": None, "ref_log_probs": inputs["rollout_log_probs"]})["kl"]
    if sampled_by is not None:
        kl = kl * torch.exp(torch.where(valid, log_probs - sampled_by, 0.0))
    elif inputs["of_the_samples"] == "differentiated":
        kl = kl * torch.exp(log_probs - log_probs.detach())
    if inputs["clamp"] is not None:
        kl = kl.clamp(-inputs["clamp"], inputs["clamp"])
    totals = torch.where(valid, kl, 0.0).sum(-1)
    if inputs["mean_over"] == "tokens":
        rollout_kl = totals.sum() / valid.sum().clamp(min=1)
    else:
        rollout_kl = (totals / valid.sum(-1).clamp(min=1)).mean()
    loss = inputs["coefficient"] * rollout_kl
    loss.backward()
    return {"rollout_kl": rollout_kl.detach(), "loss": loss.detach()}


#: Values of ``log_probs - behaviour_log_probs`` that a search draws, if another policy sampled the tokens.
_BEHAVIOUR_RATIOS = (0.0, 0.5, -0.5, 1.0, 0.25)


def _arrange_rollout_kl(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "rollout_log_probs")
    if inputs["off_policy"] and inputs["behaviour_log_probs"] is None:
        inputs["behaviour_log_probs"] = draw_behind(inputs["log_probs"], _BEHAVIOUR_RATIOS, choose)
    return inputs


ROLLOUT_KL = Contract(
    name="rollout_kl",
    summary="the loss term that penalises the KL between the trained policy and the rollout policy",
    source="Schulman, Approximating KL Divergence (http://joschu.net/blog/kl-approx.html): k1, k2, k3; abs is |k1|",
    inputs=(
        per_token("log_probs", "log-probs of the trained policy, in nats, < 0", "log_prob", differentiable=True),
        per_token("rollout_log_probs", "log-probs of the policy that generated the tokens", "log_ratio"),
        token_mask(),
        knob("kl_estimator", "k1, abs, k2 or k3", ("k1", "abs", "k2", "k3"), REQUIRED),
        knob("coefficient", "coefficient of the term in the loss", (1.0, 0.5), REQUIRED),
        Input(
            "mean_over",
            "string",
            "sequences (the mean over sequences of each sequence's mean), or tokens (one mean over all valid tokens)",
            default="sequences",
        ),
        Input(
            "off_policy",
            "boolean",
            "whether a search draws behaviour_log_probs",
            default=False,
        ),
        per_token(
            "behaviour_log_probs",
            "log-probs of the policy that sampled the tokens; default: the trained policy sampled them",
            default=None,
        ),
        dialect("clamp", None, "each token's estimate is clamped to [-clamp, clamp], and has no gradient outside"),
        dialect(
            "of_the_samples",
            "fixed",
            "probability of sampling the tokens: fixed (only the estimate has a gradient), or differentiated (this "
            "probability has a gradient too)",
        ),
    ),
    observes=(
        Observed("rollout_kl", "the reported estimate; the term is a multiple of it"),
        Observed("loss", "the loss that is differentiated, if it has only this term"),
        Observed("per_token_gradient", "d loss / d log_probs", TOKENS, "gradient"),
    ),
    measure=_measure_rollout_kl,
    oracle=_oracle_rollout_kl,
    aliases={"old_log_probs": "rollout_log_probs", "loss_mask": "response_mask"},
    laws=laws_of_tokens(
        "a_rejected_row_is_an_absent_row",
        "groups_are_isolated",
        "parts_add_up",
        "a_sequence_decision_is_one_decision",
        "representation_is_invisible",
        "metrics_tell_the_truth",
        "normalisation_laws",
    ),
    arrange=_arrange_rollout_kl,
)


# -- preference losses -------------------------------------------------------------------------------------------------


_SIDES = ("chosen", "rejected")


def _oracle_preference_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute a preference loss (DPO, IPO, LD-DPO, KTO and others) of chosen and rejected responses.

    DPO, equation 7: ``-log sigmoid(beta h)``, where ``h`` is the chosen response's log-ratio minus the rejected
    response's, each summed over its tokens. IPO, equation 17: ``(h - 1 / (2 beta))^2``, where log-ratios are averaged
    over tokens. LD-DPO, section 3: tokens beyond the shorter response's length have weight ld_alpha. Conservative DPO,
    equation 3: in a share ``label_smoothing`` of the pairs, the labels chosen and rejected are swapped.

    KTO, equation 7: the mean over responses of ``sigmoid(beta (z - h))`` for chosen and ``sigmoid(beta (h - z))`` for
    rejected responses. APO: the same with ``z = 0``. ORPO, equation 7: ``-beta log sigmoid(log odds)`` of the mean
    token likelihood.
    """
    scores = []
    shared = torch.minimum(*((inputs[f"{side}_mask"] != 0).sum(-1) for side in _SIDES))
    for side in _SIDES:
        valid = inputs[f"{side}_mask"] != 0
        reference = inputs[f"{side}_ref_log_probs"] if inputs["reference"] == "given" else 0.0
        ratios = torch.where(valid, inputs[f"{side}_log_probs"] - reference, 0.0)
        if inputs["ld_alpha"] is not None:
            ratios = torch.where(valid.cumsum(-1) <= shared[:, None], ratios, inputs["ld_alpha"] * ratios)
        tokens = valid.sum(-1) if inputs["loss_type"] in ("ipo", "orpo") or inputs["averaged"] else 1
        scores.append(ratios.sum(-1) / tokens)
    loss = _of_pairs(scores[0], scores[1], inputs)
    if inputs["nll_weight"]:
        loss = loss + inputs["nll_weight"] * _nll_of_chosen(inputs)
    return {"loss": loss}


def _nll_of_chosen(inputs: Mapping[str, Any]) -> Any:
    """Compute the mean over pairs of the chosen response's negative log-likelihood (RPO, arXiv:2404.19733, equation
    2)."""
    valid = inputs["chosen_mask"] != 0
    totals = -torch.where(valid, inputs["chosen_log_probs"], 0.0).sum(-1)
    if inputs["nll_over"] == "tokens":
        return totals.sum() / valid.sum()
    return (totals / valid.sum(-1) if inputs["nll_over"] == "responses" else totals).mean()


def _of_pairs(chosen: Any, rejected: Any, inputs: Mapping[str, Any]) -> Any:
    """Compute the mean loss from the scores of the chosen and the rejected responses."""
    beta = inputs["beta"]
    if inputs["loss_type"] == "ipo":
        return (chosen - rejected - 1 / (2 * beta)).square().mean()
    if inputs["loss_type"] in ("kto", "apo_zero"):
        beside = _of_microbatches(chosen + rejected, inputs) / 2 if inputs["loss_type"] == "kto" else 0.0
        return torch.cat([beside - chosen, rejected - beside]).mul(beta).sigmoid().mean()
    if inputs["loss_type"] == "orpo":
        chosen, rejected = (logs - torch.log(-torch.expm1(logs)) for logs in (chosen, rejected))
        return -beta * torch.nn.functional.logsigmoid(chosen - rejected).mean()
    margin, share = beta * (chosen - rejected), inputs["label_smoothing"]
    loss = -torch.nn.functional.logsigmoid(margin)
    if share:
        loss = (1 - share) * loss - share * torch.nn.functional.logsigmoid(-margin)
    return loss.mean()


def _of_microbatches(ratios: Any, inputs: Mapping[str, Any]) -> Any:
    """Return KTO's reference point of each row: the mean log-ratio of the row's microbatch, but at least 0."""
    parts = ratios.detach().split(inputs["micro_batch_size"] or len(ratios))
    return torch.cat([part.mean().clamp(min=0).expand(len(part)) for part in parts])


def _arrange_preference_loss(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    for side in _SIDES:
        with_a_token(inputs, choose, f"{side}_mask")
    smoothing = inputs["label_smoothing"] if inputs["loss_type"] == "sigmoid" else 0.0  # other losses do not define it
    return {**inputs, "label_smoothing": smoothing}


def _of(side: str) -> tuple[Input, ...]:
    return (
        per_token(
            f"{side}_log_probs", f"log-probs of the {side} response's tokens, in nats", "log_prob", differentiable=True
        ),
        per_token(f"{side}_ref_log_probs", "reference log-probs of the same tokens", "log_prob"),
        per_token(f"{side}_mask", "1 for response tokens", "mask", dtype="int64"),
    )


PREFERENCE_LOSS = Contract(
    name="preference_loss",
    summary="the preference loss of pairs of a chosen and a rejected response",
    source=(
        "DPO (arXiv:2305.18290), equation 7; IPO (arXiv:2310.12036), equation 17, averaged over tokens as its "
        "authors recommend (https://github.com/huggingface/trl/pull/1265); LD-DPO (arXiv:2409.06411), section 3; "
        "conservative DPO (https://ericmitchell.ai/cdpo.pdf), equation 3; KTO (arXiv:2402.01306), equation 7; "
        "APO (arXiv:2408.06266), section 4; ORPO (arXiv:2403.07691), equation 7"
    ),
    inputs=(
        *_of("chosen"),
        *_of("rejected"),
        knob("beta", "strength of the regularisation", (0.1, 0.5), REQUIRED),
        knob("loss_type", "sigmoid (DPO), ipo or orpo", ("sigmoid", "ipo"), REQUIRED),
        knob("ld_alpha", "LD-DPO: weight of tokens beyond the length of the other response", (None, 0.25)),
        knob("label_smoothing", "conservative DPO: share of pairs whose labels are swapped", (0.0, 0.25)),
        Input(
            "averaged",
            "boolean",
            "whether log-ratios are averaged over a response's tokens, which ipo and orpo always do",
            default=False,
        ),
        Input(
            "nll_weight", "number", "weight of the chosen responses' negative log-likelihood in the loss", default=0.0
        ),
        Input(
            "nll_over",
            "string",
            "the mean of that likelihood: responses (each response's mean over its tokens), sums (each response's "
            "sum), or tokens (one mean over the tokens of all chosen responses)",
            default="responses",
        ),
        dialect("reference", "given", "given: log-probs are relative to a reference's; none: they are used alone"),
    ),
    observes=(
        Observed("loss", "the mean over pairs"),
        Observed("chosen_gradient", "d loss / d chosen_log_probs", TOKENS, "other"),
        Observed("rejected_gradient", "d loss / d rejected_log_probs", TOKENS, "other"),
    ),
    measure=differentiated(chosen_log_probs="chosen_gradient", rejected_log_probs="rejected_gradient"),
    oracle=_oracle_preference_loss,
    laws=("order_does_not_matter", "the_oracle_agrees", "nothing_else_is_touched", "every_knob_counts"),
    mask="chosen_mask",
    arrange=_arrange_preference_loss,
)


def _arrange_preference_update(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    return fitting(_arrange_preference_loss(inputs, choose), choose, "chosen_mask")


def _pairs_cut_otherwise(inputs: Mapping[str, Any], choose: Choose) -> list[dict[str, Any]]:
    if inputs["loss_type"] == "kto":
        raise DoesNotApply("KTO's loss depends on the split, because each microbatch estimates its own reference point")
    return cut_otherwise(inputs, choose, mask="chosen_mask")


def _loss_types(item: Input) -> Input:
    """Return the input ``loss_type`` with the losses of whole updates, which are means over responses. Return any other
    input unchanged."""
    types = knob("loss_type", "sigmoid (DPO), ipo, kto or apo_zero", ("sigmoid", "ipo", "kto", "apo_zero"), REQUIRED)
    return types if item.name == "loss_type" else item


PREFERENCE_UPDATE = replace(
    PREFERENCE_LOSS,
    name="preference_update",
    summary="a preference update: from a batch of pairs through microbatches to the optimizer",
    inputs=(*map(_loss_types, PREFERENCE_LOSS.inputs), MICRO_BATCH_SIZE),
    observes=(
        PREFERENCE_LOSS.observes[0],
        *(replace(item, role="gradient") for item in PREFERENCE_LOSS.observes[1:]),
    ),
    laws=("parts_add_up", *PREFERENCE_LOSS.laws),
    arrange=_arrange_preference_update,
    parts=_pairs_cut_otherwise,
)


# -- decoupled policy losses -------------------------------------------------------------------------------------------


def _measure_decoupled_loss(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    leaves = {name: leaf(inputs[name]) for name in ("log_probs", "proximal_log_probs")}
    outputs = call(**{**inputs, **leaves})
    loss = outputs["loss"]
    slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True) if loss.requires_grad else (None, None)
    gradients = [torch.zeros_like(value) if slope is None else slope for value, slope in zip(leaves.values(), slopes)]
    return {
        "loss": detached(loss),
        "gradient": gradients[0],
        "proximal_gradient": gradients[1],
        "ratio": detached(outputs["ratio"]),
    }


def _oracle_decoupled_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the decoupled PPO loss, ``-min(r A, clip(r) A) w``, over tokens whose weight ``w`` is within its bounds.

    ``r = pi / pi_prox`` and the constant ``w = pi_prox / pi_behaviour``. The ratio is reported for all tokens,
    including dropped ones.
    """
    valid, eps = inputs["response_mask"] != 0, inputs["eps_clip"]
    proximal = _proximal(inputs)
    ratio = (inputs["log_probs"] - proximal).exp()
    weight = (proximal.detach() - inputs["behaviour_log_probs"]).exp()
    kept = valid & (weight <= inputs["weight_high"])
    if inputs["weight_low"] is not None:
        kept &= weight >= inputs["weight_low"]
    gains = inputs["advantages"] * ratio, inputs["advantages"] * ratio.clamp(1 - eps, 1 + eps)
    of_tokens = -torch.minimum(*gains)
    if inputs["surrogate"] == "cispo":  # MiniMax-M1 (arXiv:2506.13585), equations 4 and 5
        of_tokens = -gains[1].detach() * inputs["log_probs"]
    losses = torch.where(kept, of_tokens * weight, 0.0)
    counted = kept if inputs["denominator"] == "kept" else valid
    return {"loss": losses.sum() / counted.sum().clamp(min=1), "ratio": torch.where(valid, ratio, 0.0)}


def _proximal(inputs: Mapping[str, Any]) -> Any:
    """Return the log-probs of the proximal policy, which is the version before the trained policy.

    If they are interpolated, the log-prob of version v is linear in v, between the policy that sampled and the trained
    policy.
    """
    if inputs["proximal"] == "given":
        return inputs["proximal_log_probs"]
    trained, behaviour, versions = inputs["log_probs"].detach(), inputs["behaviour_log_probs"], inputs["staleness"]
    return trained if inputs["proximal"] == "trained" else behaviour + (versions - 1) / versions * (trained - behaviour)


def _arrange_decoupled_loss(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "proximal_log_probs")
    ratios = inputs["behaviour_log_probs"].array()
    inputs["behaviour_log_probs"] = place_behind(inputs["proximal_log_probs"], ratios)
    return inputs


DECOUPLED_LOSS = Contract(
    name="decoupled_loss",
    summary="a policy loss with a ratio to a proximal policy, and importance weights for the sampling policy",
    source=(
        "decoupled PPO (arXiv:2110.00641), equation 2, in which the proximal policy and the weight are constants; "
        "tokens whose weight is out of bounds are dropped, as in IcePop (Ring-1T, arXiv:2510.18855)"
    ),
    inputs=(
        per_token("log_probs", "log-probs of the trained policy, in nats", "log_prob", differentiable=True),
        per_token(
            "proximal_log_probs",
            "log-probs of the proximal policy, the denominator of the ratio",
            "log_ratio",
            differentiable=True,
        ),
        per_token("behaviour_log_probs", "log-probs of the policy that sampled", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(dtype="bool", dtypes=()),
        knob("eps_clip", "bound of |ratio - 1|", (0.2, 0.6)),
        drawn(
            "correction",
            "the framework's name of the mode that drops tokens: icepop or mask",
            ("mask", "icepop"),
            REQUIRED,
        ),
        knob("weight_low", "smallest weight of a kept token", (None, 0.5)),
        knob("weight_high", "largest weight of a kept token", (2.0, 5.0)),
        # A search varies the next three inputs only for bindings that list their values in ``accepts``.
        Input(
            "proximal",
            "string",
            "log-probs of the proximal policy: given, interpolated (between the other two policies, by versions) or "
            "trained (those of the trained policy)",
            default="given",
        ),
        Input("surrogate", "string", "the loss of a token before its weight: ppo or cispo", default="ppo"),
        Input("staleness", "integer", "versions between the policy that sampled and the trained policy", default=1),
        dialect(
            "denominator",
            "counted",
            "divisor of the loss: counted (tokens of the mask) or kept (tokens with a weight within bounds)",
        ),
    ),
    observes=(
        Observed("loss", "the loss"),
        Observed("gradient", "d loss / d log_probs", TOKENS, "gradient"),
        Observed("proximal_gradient", "d loss / d proximal_log_probs, through the ratio only", TOKENS, "gradient"),
        Observed("ratio", "the reported ratio of each token", TOKENS, "metric"),
    ),
    measure=_measure_decoupled_loss,
    oracle=_oracle_decoupled_loss,
    aliases={"loss_mask": "response_mask"},
    laws=laws(
        "masked_values_have_no_influence order_does_not_matter padding_is_invisible metrics_tell_the_truth "
        "every_knob_counts",
        *AS_DEFINED,
    ),
    arrange=_arrange_decoupled_loss,
)


# -- distilled policy losses -------------------------------------------------------------------------------------------


def _oracle_distilled_loss(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute a policy loss joined with the reverse KL from the student to a teacher (KDRL, equation 8).

    ``L = rl_weight L_PPO + distill_weight mean(KL)``. If ``rl_weight`` is 0, the KL is the reward of an unclipped
    policy gradient: ``L = -distill_weight mean(r sg(log p_teacher - log p))``. Means are over valid tokens.
    """
    valid, eps = inputs["response_mask"] != 0, inputs["eps_clip"]
    ratio = torch.where(valid, inputs["log_probs"] - inputs["old_log_probs"], 0.0).exp()
    log_r = torch.where(valid, inputs["teacher_log_probs"] - inputs["log_probs"], 0.0)
    if inputs["rl_weight"] == 0:
        losses = -inputs["distill_weight"] * ratio * log_r.detach()
    else:
        gains = inputs["advantages"] * ratio, inputs["advantages"] * ratio.clamp(1 - eps, 1 + eps)
        kl = KL_ESTIMATE.reference({**inputs, "clamp": None, "ref_log_probs": inputs["teacher_log_probs"]})["kl"]
        losses = -inputs["rl_weight"] * torch.minimum(*gains) + inputs["distill_weight"] * kl
    return {"loss": torch.where(valid, losses, 0.0).sum() / valid.sum().clamp(min=1)}


def _arrange_distilled_loss(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    spread(inputs, "log_probs", "old_log_probs")
    inputs["teacher_log_probs"] = place_behind(inputs["log_probs"], -inputs["teacher_log_probs"].array())
    return inputs


DISTILLED_LOSS = Contract(
    name="distilled_loss",
    summary="a policy loss joined with the reverse KL from the student to a teacher",
    source="KDRL (arXiv:2506.02208), equation 8, with PPO's clipped loss (arXiv:1707.06347), equation 7",
    inputs=(
        per_token("log_probs", "log-probs of the student, in nats", "log_prob", differentiable=True),
        per_token("old_log_probs", "old log-probs of the student, the denominator of the ratio", "log_ratio"),
        per_token("teacher_log_probs", "log-probs of the teacher for the same tokens", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(dtype="bool", dtypes=()),
        knob("eps_clip", "bound of |ratio - 1|", (0.2, 0.6)),
        knob("rl_weight", "weight of the policy loss; 0: the KL is the reward", (1.0, 0.5, 0.0)),
        knob("distill_weight", "weight of the KL", (0.5, 0.25)),
        knob("kl_estimator", "estimator of the KL, whose gradient is used: k1 or k2", ("k2", "k1")),
    ),
    observes=(
        Observed("loss", "the loss"),
        Observed("per_token_gradient", "d loss / d log_probs", TOKENS, "gradient"),
    ),
    measure=differentiated(log_probs="per_token_gradient"),
    oracle=_oracle_distilled_loss,
    aliases={"loss_mask": "response_mask"},
    laws=laws(
        "masked_values_have_no_influence order_does_not_matter padding_is_invisible every_knob_counts "
        "gradients_stay_where_they_belong",
        *AS_DEFINED,
    ),
    arrange=_arrange_distilled_loss,
)
