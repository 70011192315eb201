"""Define contracts of policy updates: the gradient that reaches the optimizer after a worker has split the batch.

The model is a table: the forward pass returns each token's entry of ``log_probs``. The gradient of the table depends on
everything that the worker does with the loss. A binding gives the worker

* a model (or forward step) that returns, for the rows that it receives, the same rows of ``log_probs``; it does not
  copy them, so that gradients reach the table;
* an optimizer that accumulates the gradient in ``step`` and clears it in ``zero_grad``. It changes no parameter, so
  that every mini-batch uses the same parameters.

The call returns ``gradient`` (accumulated by the optimizer), and ``pg_loss``, ``kl_loss`` and ``entropy`` as the
trainer logs them, reduced as the framework reduces the result of an update; None if they are not reported.
``told_log_probs`` are the log-probs that the worker returns, in the order of the batch. A table of ``entropies`` is a
second parameter, whose gradient is ``entropy_gradient``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.contracts.aggregation import (
    AGGREGATION_INPUTS,
    LOSS_AGG_MODES,
    aggregate,
    detached,
    leaf,
    log_ratio,
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
    per_row,
    per_token,
    token_mask,
)
from sentinel.contracts.kl_estimate import KL_ESTIMATE
from sentinel.contracts.policy_loss import POLICY_LOSS, draw_rollout_policy
from sentinel.values.lazy import torch

#: The ways in which a worker may split its rows: (rows per microbatch, tokens per microbatch).
CUTS: tuple[tuple[int | None, int | None], ...] = ((None, None), (1, None), (2, None), (1, 8), (None, 8))


def _measure_policy_update(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    tables = {name: leaf(inputs[name]) for name in ("log_probs", "entropies") if inputs[name] is not None}
    outputs = call(**{**inputs, **tables})
    arrived = ("told_log_probs", *(("entropy_gradient", "entropy") if "entropies" in tables else ()))
    return {
        "gradient": detached(outputs["gradient"]),
        **{name: _number(outputs.get(name)) for name in ("pg_loss", "kl_loss")},
        **{name: detached(outputs[name]) for name in arrived if outputs.get(name) is not None},
    }


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _oracle_policy_update(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the gradient and the metrics of PPO's mini-batch steps (arXiv:1707.06347, algorithm 1).

    Each mini-batch ``M`` takes one step with the loss ``L(M) = L_clip(M) + beta KL(M) - c H(M)``, each term aggregated
    over all of ``M`` by ``loss_agg_mode``. The gradient does not depend on the split of ``M`` into ranks and
    microbatches. Metrics are means over mini-batches.
    """
    log_probs, entropies = inputs["log_probs"], inputs["entropies"]
    rows = len(log_probs)
    size = inputs["mini_batch_size"] or rows
    tables = ("log_probs",) if entropies is None else ("log_probs", "entropies")
    gradients = {name: torch.zeros_like(inputs[name]) for name in tables}
    reports: dict[str, list[float]] = {name: [] for name in ("pg_loss", "kl_loss", "entropy")[: 1 + len(tables)]}
    for start in range(0, rows, size):
        batch = _rows_of_an_update(inputs, slice(start, start + size))
        losses = {"pg_loss": _policy_loss(batch)}
        if inputs["kl_coef"] and inputs["ref_log_probs"] is not None:
            losses["kl_loss"] = _kl_loss(batch)
        if entropies is not None:
            losses["entropy"] = _term(batch["entropies"], batch, "entropy")
        total = losses["pg_loss"] + inputs["kl_coef"] * losses.get("kl_loss", 0.0)
        total = total - inputs["entropy_coef"] * losses.get("entropy", 0.0)
        for name, gradient in gradients.items() if total.requires_grad else ():
            (slope,) = torch.autograd.grad(total, inputs[name], retain_graph=True, allow_unused=True)
            gradient += 0.0 if slope is None else slope
        for name, loss in losses.items():
            reports[name].append(float(loss.detach()))
    reported = {name: sum(slope) / len(slope) if slope else None for name, slope in reports.items()}
    log_probs_back = torch.where(inputs["response_mask"] != 0, log_probs, 0)
    of_entropy = {"entropy_gradient": gradients["entropies"]} if entropies is not None else {}
    return {"gradient": gradients["log_probs"], **of_entropy, **reported, "told_log_probs": log_probs_back}


_TENSORS = (
    "log_probs",
    "old_log_probs",
    "rollout_log_probs",
    "ref_log_probs",
    "entropies",
    "advantages",
    "response_mask",
)


def _rows_of_an_update(inputs: Mapping[str, Any], part: slice) -> dict[str, Any]:
    return {**inputs, **{name: inputs[name][part] for name in _TENSORS if inputs[name] is not None}}


#: Global counts for batches that are split across ranks. They are None: the oracle aggregates over the whole batch.
_WHOLE = dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size"))


def _policy_loss(batch: Mapping[str, Any]) -> Any:
    return POLICY_LOSS.reference({**batch, **_WHOLE, "algorithm": "ppo"})["loss"]


def _kl_loss(batch: Mapping[str, Any]) -> Any:
    """Compute the KL term. An unbiased estimate (DeepSeek-V3.2, arXiv:2512.02556, equation 7) is multiplied by the
    ratio of the trained to the old policy.
    """
    kl = KL_ESTIMATE.reference({**batch, "clamp": batch["kl_clamp"]})["kl"]
    if batch["unbiased_kl"]:
        kl = kl * log_ratio(batch["log_probs"], batch["old_log_probs"], batch["response_mask"] != 0).exp()
    return _term(kl, batch, "kl")


def _term(values: Any, batch: Mapping[str, Any], name: str) -> Any:
    """Reduce the KL or the entropy of tokens to a scalar, by ``kl_agg_mode`` or ``entropy_agg_mode``."""
    mode = batch[f"{name}_agg_mode"] or batch["loss_agg_mode"]
    return aggregate(values, {**batch, **_WHOLE, "loss_agg_mode": mode})


def _arrange_policy_update(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Convert log-ratios to log-probs, and choose numbers of ranks and microbatches that divide the rows."""
    spread(inputs, "log_probs", "old_log_probs")
    reference = inputs["ref_log_probs"]
    if reference is not None:
        inputs["ref_log_probs"] = place_behind(inputs["log_probs"], reference.array())
    else:
        inputs["kl_coef"] = 0.0
    if inputs["entropies"] is None:
        inputs["entropy_coef"] = 0.0
    draw_rollout_policy(inputs, choose)
    return fitting(inputs, choose)


def fitting(inputs: dict[str, Any], choose: Choose, mask: str = "response_mask") -> dict[str, Any]:
    """Set ``dp_size`` or ``micro_batch_size`` to 1, in place, if it does not divide the number of rows evenly."""
    rows, ranks = inputs[mask].shape[0], inputs.get("dp_size", 1)
    if rows % ranks:
        ranks = inputs["dp_size"] = 1
    if inputs["micro_batch_size"] and rows // ranks % inputs["micro_batch_size"]:
        inputs["micro_batch_size"] = 1
    return inputs


def cut_otherwise(inputs: Mapping[str, Any], choose: Choose, mask: str = "response_mask") -> list[dict[str, Any]]:
    """Return the same batch with another split into microbatches, for the law ``parts_add_up``."""
    rows = inputs[mask].shape[0] // inputs.get("dp_size", 1)
    packs = "max_tokens_per_microbatch" in inputs
    now = (inputs["micro_batch_size"], inputs.get("max_tokens_per_microbatch"))
    others = [cut for cut in CUTS if cut != now and not (cut[0] and rows % cut[0]) and (packs or cut[1] is None)]
    if rows < 2:
        raise DoesNotApply("a batch of one row cannot be split")
    size, tokens = choose.one_of(others)
    return [{**inputs, "micro_batch_size": size, **({"max_tokens_per_microbatch": tokens} if packs else {})}]


def inputs_of(contract: Contract, *names: str) -> tuple[Input, ...]:
    """Return the named inputs of a contract, in its order."""
    return tuple(item for item in contract.inputs if item.name in names)


MICRO_BATCH_SIZE = drawn(
    "micro_batch_size", "rows of one forward pass on a rank; default: all rows of the rank", (None, 1, 2)
)

#: Inputs that split a batch and must not change the result.
CUTTING = (
    drawn(
        "dp_size",
        "data-parallel ranks; each has equally many consecutive rows of a step, and gradients are averaged",
        (1, 2),
    ),
    MICRO_BATCH_SIZE,
    drawn(
        "max_tokens_per_microbatch",
        "token budget of a microbatch, which replaces micro_batch_size; default: no packing by tokens",
        (None, 8),
    ),
)

#: A search varies this input only for bindings that simulate other ranks and list its values in ``accepts``.
PADDING_MICROBATCHES = Input(
    "padding_microbatches",
    "integer",
    "number of additional microbatches on another data-parallel rank, if ranks pad to the same number",
    default=0,
)

#: A search varies this input only for bindings that list its values in ``accepts``.
KEEPS_OLD_LOG_PROBS = Input(
    "keeps_old_log_probs",
    "boolean",
    "whether the batch lacks old log-probs, and the worker keeps those of its first pass over the batch",
    default=False,
)

#: A search varies this input only for bindings that list its values in ``accepts``. The model of such a binding returns
#: other log-probs if a row arrives without its own images and positions.
WITH_IMAGES = Input(
    "with_images", "boolean", "whether each row has an image, and positions with channels", default=False
)

#: The model's parameters.
TABLE = per_token(
    "log_probs",
    "log-probs of the trained policy, in nats, <= 0: the model's parameters, which its forward pass returns",
    "log_prob",
    differentiable=True,
)

#: A search varies these inputs only for bindings that list their values in ``accepts``.
PACKED = Input("packed", "boolean", "whether the worker packs the rows of a microbatch without padding", default=False)
FUSED_HEAD = Input(
    "fused_head",
    "boolean",
    "whether the model returns hidden states, and the worker applies the output layer to them in chunks",
    default=False,
)

POLICY_UPDATE = Contract(
    name="policy_update",
    summary="a policy update: from a batch through mini-batches, ranks and microbatches to the optimizer",
    source=(
        "PPO (arXiv:1707.06347), equation 7 and algorithm 1, with a KL term as in GRPO (arXiv:2402.03300), equation 3; "
        "aggregation as in loss_aggregation. The split into microbatches must not change the sum"
    ),
    inputs=(
        TABLE,
        per_token("old_log_probs", "old log-probs, the denominator of the ratio, for the same tokens", "log_ratio"),
        per_token("advantages", "advantage of each token", "advantage"),
        token_mask(dtype="int64", dtypes=()),
        per_token(
            "ref_log_probs",
            "log-probs of the reference policy for the same tokens; default: no KL term",
            "log_ratio",
            default=None,
        ),
        knob("kl_coef", "coefficient of the KL term", (0.0, 0.5)),
        per_token(
            "entropies",
            "entropy of the trained policy at each token, in nats: parameters that the forward pass returns; default: "
            "no entropy term",
            "entropy",
            default=None,
            differentiable=True,
        ),
        knob("entropy_coef", "coefficient of the entropy bonus", (0.0, 0.25)),
        *(replace(item, default="k3") for item in inputs_of(KL_ESTIMATE, "kl_estimator")),
        # A search varies this input only for bindings that list its values in ``accepts``.
        Input(
            "unbiased_kl",
            "boolean",
            "whether the KL estimate is multiplied by the ratio of the trained to the old policy",
            default=False,
        ),
        *inputs_of(POLICY_LOSS, "eps_clip_low", "eps_clip_high", "dual_clip"),
        *inputs_of(POLICY_LOSS, "rollout_log_probs", "importance_weight_cap"),
        knob(
            "loss_agg_mode",
            "how per-token losses of a mini-batch are reduced to a scalar",
            LOSS_AGG_MODES,
            "token-mean",
            kind="string",
        ),
        Input(
            "loss_scale_factor",
            "number",
            "constant divisor of seq-mean-token-sum-norm; default: the number of columns",
            default=None,
        ),
        Input("mini_batch_size", "integer", "rows of one optimizer step over all ranks; default: all", default=None),
        *CUTTING,
        PADDING_MICROBATCHES,
        KEEPS_OLD_LOG_PROBS,
        WITH_IMAGES,
        PACKED,
        FUSED_HEAD,
        dialect(
            "empty_rows",
            "absent",
            "whether a mini-batch counts rows without a valid token as sequences: absent or counted",
        ),
        *(item for item in AGGREGATION_INPUTS if item.name == "sequence_norm"),
        dialect("log_ratio_clamp", None, "as in policy_loss"),
        *inputs_of(POLICY_LOSS, "ratio_level", "advantage_level"),
        dialect("kl_clamp", None, "bound of the KL estimate, as the input clamp of kl_estimate"),
        *(
            dialect(
                f"{term}_agg_mode",
                None,
                f"how the {term} of tokens is reduced to a scalar; default: like the loss",
                "string",
            )
            for term in ("kl", "entropy")
        ),
    ),
    observes=(
        Observed(
            "gradient", "gradient of log_probs that reaches the optimizer, summed over its steps", TOKENS, "gradient"
        ),
        Observed("pg_loss", "the reported policy loss, without the KL term", role="metric"),
        Observed("kl_loss", "the reported KL term, without its coefficient", role="metric"),
        Observed("entropy_gradient", "gradient of entropies that reaches the optimizer", TOKENS, "gradient"),
        Observed("entropy", "the reported entropy term, without its coefficient", role="metric"),
        Observed("told_log_probs", "the returned log-probs, row by row", TOKENS, "metric"),
    ),
    measure=_measure_policy_update,
    oracle=_oracle_policy_update,
    aliases={"ref_log_prob": "ref_log_probs", "kl_loss_coef": "kl_coef", "max_token_len": "max_tokens_per_microbatch"},
    laws=laws_of_tokens(
        "a_rejected_row_is_an_absent_row",
        "groups_are_isolated",
        "a_sequence_decision_is_one_decision",
        "twins_agree",
        "representation_is_invisible",
        "normalisation_laws",
        "gradients_stay_where_they_belong",
    ),
    arrange=_arrange_policy_update,
    parts=cut_otherwise,
)


# -- recomputed log-probs ----------------------------------------------------------------------------------------------


def _measure_recomputed_log_probs(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe log-probs and entropies. ``call`` returns ``log_probs`` and, optionally, ``entropy``, row by row."""
    outputs, valid = call(**inputs), inputs["response_mask"] != 0
    return {
        "rows": len(outputs["log_probs"]),
        **{name: _in_rows(outputs.get(name), valid) for name in ("log_probs", "entropy")},
    }


def _in_rows(values: Any, valid: Any) -> Any:
    """Set masked tokens to 0, and rows that the boundary did not return to NaN."""
    if values is None:
        return None
    missing = values.new_full((max(len(valid) - len(values), 0), *values.shape[1:]), float("nan"))
    return torch.where(valid, torch.cat((values.detach(), missing))[: len(valid)], 0.0)


def _oracle_recomputed_log_probs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's outputs for each row, in the batch's order. They do not depend on how the batch is split."""
    return {"log_probs": inputs["log_probs"], "entropy": inputs["entropies"]}


RECOMPUTED_LOG_PROBS = Contract(
    name="recomputed_log_probs",
    summary="a forward pass over a batch in microbatches: log-probs and entropies of each row, in the batch's order",
    source=(
        "PPO (arXiv:1707.06347), equation 6: the denominator of a token's ratio is its own log-prob, in its own row"
    ),
    inputs=(
        per_token("log_probs", "log-probs of the response tokens, in nats, which the forward pass returns", "log_prob"),
        per_token("entropies", "entropy at each of these tokens, in nats, which the forward pass returns", "entropy"),
        token_mask("1 for response tokens", dtype="int64", dtypes=()),
        MICRO_BATCH_SIZE,
        # Drawn more often, because only dynamic batches change the order of rows.
        replace(CUTTING[-1], choices=(None, 8, 8, 8)),
        PADDING_MICROBATCHES,
        WITH_IMAGES,
        PACKED,
        FUSED_HEAD,
    ),
    observes=(
        Observed("log_probs", "the log-prob of each response token; 0 elsewhere", TOKENS),
        Observed("entropy", "the entropy at each response token; 0 elsewhere", TOKENS),
        Observed("rows", "number of returned rows"),
    ),
    measure=_measure_recomputed_log_probs,
    oracle=_oracle_recomputed_log_probs,
    aliases={"loss_mask": "response_mask"},
    laws=AS_DEFINED,
    arrange=fitting,
)


# -- supervised updates ------------------------------------------------------------------------------------------------
#
# The model is a table, as above. A row is a sequence: a first token, which nothing predicts, and ``tokens`` further
# tokens. The output for a token is at the position before it. A row of the table is therefore ``log_probs`` and, at the
# last position, ``output_after``, the output for a token that is not in the sequence.


def _measure_supervised_update(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    tables = {name: leaf(inputs[name]) for name in ("log_probs", "output_after")}
    outputs = call(**{**inputs, **tables})
    return {
        "loss": float(outputs["loss"]),
        "gradient": detached(outputs["gradient"]),
        "gradient_after": detached(outputs["gradient_after"]),
    }


def _oracle_supervised_update(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the mean negative log-likelihood over the valid tokens of all rows."""
    valid = inputs["response_mask"] != 0
    count = int(valid.sum())
    if inputs["first_counts"] and inputs["first_token"] == "counted":
        count += len(valid)
    count = max(count, 1)
    return {
        "loss": -torch.where(valid, inputs["log_probs"], 0.0).sum().detach() / count,
        "gradient": -valid.to(inputs["log_probs"]) / count,
        "gradient_after": torch.zeros_like(inputs["output_after"]),
    }


SUPERVISED_UPDATE = Contract(
    name="supervised_update",
    summary="a supervised update: from a batch through ranks and microbatches to the optimizer",
    source=(
        "maximum likelihood of a token given those before it (Bengio et al., A Neural Probabilistic Language Model, "
        "2003, section 2), averaged over the tokens of the batch"
    ),
    inputs=(
        per_token(
            "log_probs",
            "log-probs of each token after the first, in nats, <= 0: parameters that the forward pass returns",
            "log_prob",
            differentiable=True,
        ),
        per_row(
            "output_after",
            "the model's output at the last position of each row, which is the same for every label",
            "log_prob",
            differentiable=True,
        ),
        token_mask("1 for trained tokens after the first", dtype="int64", dtypes=()),
        drawn(
            "first_counts",
            "whether the mask also marks the first token of each row, which nothing predicts",
            (False, True),
        ),
        *CUTTING,
        PACKED,
        FUSED_HEAD,
        dialect(
            "first_token",
            "absent",
            "whether the loss's divisor counts a first token that the mask marks: absent or counted",
        ),
    ),
    observes=(
        Observed("loss", "the loss that is minimised"),
        Observed("gradient", "gradient of log_probs that reaches the optimizer", TOKENS, "gradient"),
        Observed("gradient_after", "gradient of output_after that reaches the optimizer", ("batch",), "gradient"),
    ),
    measure=_measure_supervised_update,
    oracle=_oracle_supervised_update,
    aliases={"loss_mask": "response_mask"},
    laws=laws(
        "masked_values_have_no_influence groups_are_isolated order_does_not_matter padding_is_invisible "
        "parts_add_up finite_in_finite_out",
        *AS_DEFINED,
    ),
    arrange=fitting,
    parts=cut_otherwise,
)


# -- from scored rollouts to the optimiser -----------------------------------------------------------------------------


def _measure_training_step(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the gradient of a training step, and the first function after which a row is not intact.

    ``call`` returns the ``gradient``, and ``stages``: for each boundary that the batch passed through, the boundary's
    name and the resulting parts, each a mapping from field to column. Rows are identified by their ``number``; every
    other field of ``rows`` in a part must belong to the same row.
    """
    outputs = call(**{**_of_an_update(), **inputs, "log_probs": leaf(inputs["log_probs"])})
    rows, every = outputs["rows"], list(range(len(inputs["response_mask"])))
    lost = [
        place
        for place, (_, parts) in enumerate(outputs["stages"], start=1)
        if sorted(number for part in parts for number in _whole(part, rows)) != every
    ]
    where = outputs["stages"][lost[0] - 1][0] if lost else ""
    return {"gradient": detached(outputs["gradient"]), "lost_at": lost[0] if lost else 0, "lost_by": where}


def _of_an_update() -> dict[str, Any]:
    """Return the defaults of a policy update's optional inputs; a training step sets only some of these inputs."""
    return {item.name: item.default for item in POLICY_UPDATE.inputs if item.default is not REQUIRED}


def _whole(part: Mapping[str, Any], rows: Mapping[str, Any]) -> list[int]:
    """Return the numbers of a part's intact rows. A row is not intact if its fields belong to different rows."""
    columns = {name: part[name] for name in rows if name in part}
    columns = {name: column if hasattr(column, "dtype") else list(column) for name, column in columns.items()}
    return [
        number
        for place, number in enumerate(columns["number"].tolist())
        if all(_equal(rows[name][number], column[place]) for name, column in columns.items())
    ]


def _equal(one: Any, other: Any) -> bool:
    if getattr(one, "shape", ()) == () or len(one.shape) != len(other.shape):
        return bool(getattr(one, "shape", ()) == getattr(other, "shape", ()) and one == other)
    width = min(one.shape[0], other.shape[0])  # rows may be padded to different lengths
    return bool((one[:width] == other[:width]).all()) and not (one[width:].any() or other[width:].any())


def _oracle_training_step(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradient of a policy update. A response's advantage is its reward minus the mean reward of its prompt
    (Dr. GRPO, arXiv:2503.20783, section 3.2)."""
    rewards, labels = inputs["rewards"], inputs["group"]
    groups = torch.tensor([[one == other for other in labels] for one in labels]).to(rewards)
    above = rewards - groups @ rewards / groups.sum(-1)
    advantages = above[:, None] * (inputs["response_mask"] != 0)
    update = _oracle_policy_update({**_of_an_update(), **inputs, "advantages": advantages})
    return {"gradient": update["gradient"], "stages": [], "rows": {}}


def _arrange_training_step(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Make at least one token of every response valid, and draw prompts with at least two responses each."""
    spread(inputs, "log_probs", "old_log_probs")
    with_a_token(inputs, choose)
    rows = inputs["response_mask"].shape[0]
    if rows < 2:
        raise DoesNotApply("a training step needs at least two responses to each prompt")
    order = choose.permutation(rows)
    if inputs["group_layout"] == "equal":
        size = choose.one_of([size for size in range(2, rows + 1) if rows % size == 0])
        inputs["group"] = [f"prompt {row // size}" for row in range(rows)]
    else:
        prompts = choose.integer(1, rows // 2)
        inputs["group"] = [f"prompt {order[row] % prompts}" for row in range(rows)]
    return fitting(inputs, choose)


_OF_A_STEP = """
    log_probs old_log_probs response_mask loss_agg_mode eps_clip_low eps_clip_high dual_clip dp_size micro_batch_size
    max_tokens_per_microbatch empty_rows sequence_norm log_ratio_clamp
"""

TRAINING_STEP = replace(
    POLICY_UPDATE,
    name="training_step",
    summary="a training step of the driver: from scored responses through advantages and splits to the optimizer",
    inputs=(
        *inputs_of(POLICY_UPDATE, *_OF_A_STEP.split()),
        per_row("rewards", "score of each response", "reward"),
        GROUP,
        Input("group_layout", "string", "any, or equal: each group is the same number of adjacent rows", default="any"),
    ),
    observes=(
        POLICY_UPDATE.observes[0],
        Observed("lost_at", "the first boundary after which a row is not intact; 0: none"),
        Observed("lost_by", "the name of that boundary", role="other"),
    ),
    measure=_measure_training_step,
    oracle=_oracle_training_step,
    aliases={},
    laws=("order_does_not_matter", "parts_add_up", "padding_is_invisible", *AS_DEFINED),
    group="group",
    arrange=_arrange_training_step,
)
