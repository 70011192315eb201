"""Bindings for SkyRL's driver, and for the training batches that the driver passes to workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel import AbsentError, Binding, DriftError, StandIn
from sentinel.binding import kit

from .shared import (
    BATCH,
    CONFIG,
    CONFIGURED,
    GYM,
    PPO,
    RAY,
    WORKER_UTILS,
    algorithm_of,
    configuration_of,
    no_ray,
    refused,
    training_batch,
)


def _layout(dtype: str, *shape: str, mask: bool = False) -> dict[str, Any]:
    return {"dtype": dtype, "shape": ["batch", *shape], **({"mask": True} if mask else {})}


#: The fields of TrainingInput, SkyRL's schema of a training batch, with the dtypes that the driver makes.
FIELDS = {
    "sequences": _layout("int64", "length"),
    "attention_mask": _layout("int64", "length", mask=True),
    "response_mask": _layout("int64", "response", mask=True),
    "loss_mask": _layout("float32", "response", mask=True),
    "action_log_probs": _layout("float32", "response"),
    "returns": _layout("float32", "response"),
    "advantages": _layout("float32", "response"),
}
#: Image fields are left out, because each row may have any number of images, and padding rows have none.
OPTIONAL_FIELDS = {
    "base_action_log_probs": _layout("float32", "response"),
    "values": _layout("float32", "response"),
    "rollout_logprobs": _layout("float32", "response"),
    "rollout_expert_indices": _layout("uint8", "length", "layers", "top-k"),
    "router_padding_mask": _layout("bool", "length"),
}


def _padding_microbatch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:

    unknown = inputs["optional_fields"].keys() - boundary.imported[BATCH].TrainingInput.__annotations__.keys()
    if unknown:
        raise DriftError(f"this version's TrainingInput has no field {', '.join(sorted(unknown))}")
    batch = training_batch(boundary, {**inputs["fields"], **inputs["optional_fields"]})
    iterator = boundary.owner(batch, inputs["max_tokens_per_microbatch"])
    padding = boundary.invoke({}, iterator)
    return {"real_rows": next(iter(iterator)), "made_rows": padding, "loss_mask": padding["loss_mask"]}


_CORRECTION = "trainer.algorithm.off_policy_correction"
#: The training step ignores rollout log-probs with the first of these configurations, and reads them with any other.
_NEED_LOG_PROBS: tuple[dict[str, Any], ...] = (
    {}, {f"{_CORRECTION}.tis_ratio_type": "token"}, {f"{_CORRECTION}.sequence_mask_metric": "product"},
    {f"{_CORRECTION}.outlier_token_is_threshold_high": 100.0},
    {f"{_CORRECTION}.token_mask_is_threshold_low": 0.5, f"{_CORRECTION}.token_mask_is_threshold_high": 2.0},
    {"trainer.algorithm.policy_loss_type": "rollout_is"}, {"trainer.algorithm.use_rollout_kl_loss": True},
)  # fmt: skip


def _validate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a configuration with SkyRL. Return whether it is accepted, and the values of ``watched`` options."""
    configuration = configuration_of(boundary, inputs["arguments"]["configuration"])
    with no_ray(boundary):
        _, refusal = refused(lambda: boundary.invoke({}, configuration))
    settled = {}
    for path in inputs["arguments"].get("watched", ()):
        value = configuration
        for name in path.split("."):
            value = getattr(value, name)
        settled[path] = value
    return {"returned": {"accepted": refusal is None, "settled": settled}}


def _convert(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rows = len(inputs["response_token_ids"])
    sizes = {
        "trainer.train_batch_size": rows,
        "trainer.policy_mini_batch_size": rows,
        "generator.n_samples_per_prompt": 1,
    }
    trainer = kit.stand_in(
        cfg=configuration_of(boundary, {**sizes, **inputs["configuration"]}),
        tokenizer=kit.stand_in(pad_token_id=0),
        all_metrics={},
        dispatch=kit.stand_in(get_lcm_dp_size=lambda: 1),
        pad_batch=lambda batch: batch,
    )
    rollouts = {
        "prompt_token_ids": inputs["prompt_token_ids"],
        "response_ids": inputs["response_token_ids"],
        "rewards": inputs["rewards"],
        "loss_masks": inputs["loss_masks"],
        "rollout_logprobs": inputs["rollout_log_probs"],
    }
    batch, refusal = refused(lambda: boundary.invoke({}, trainer, rollouts, [str(row) for row in range(rows)]))
    if batch is not None and "rollout_logprobs" not in batch:
        raise AbsentError("this version's training batches have no rollout log-probs")
    return {"refusal": refusal, "rollout_log_probs": None if batch is None else batch["rollout_logprobs"]}


_DRIVER = (
    Binding(
        f"{WORKER_UTILS}.TokenBasedBatchIterator._create_padding_microbatch", "batch_surgery", call=_padding_microbatch,
        imports=(BATCH,), fixed={"layouts": FIELDS, "optional_layouts": OPTIONAL_FIELDS},
    ),
    Binding("skyrl.train.utils.utils.validate_cfg", "call", call=_validate, imports=CONFIGURED, stand_ins=(GYM, RAY)),
    Binding(
        "skyrl.train.trainer.RayPPOTrainer.convert_to_training_input", "training_input", call=_convert,
        imports=CONFIGURED,
        stand_ins=(
            GYM,
            StandIn(
                "self",
                "the real trainer starts Ray; the step reads only cfg, tokenizer, all_metrics and dispatch, "
                "or pad_batch, which adds no row on one rank",
            ),
            StandIn("tokenizer", "the step reads only its pad_token_id"),
            StandIn("dispatch", "one data-parallel rank, so no row is added to make the batch divisible"),
        ),
        accepts={"needing": _NEED_LOG_PROBS},
    ),
)  # fmt: skip


_KIND = {True: "adaptive", False: "fixed"}


def _coefficients(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        "kl_ctrl.type": _KIND[inputs["adaptive"]],
        "kl_ctrl.kl_target": inputs["target_kl"],
        "kl_ctrl.horizon": inputs["horizon"],
        "kl_loss_coef": inputs["initial"],
    }
    controller = boundary.function(algorithm_of(boundary, options))
    return kit.read_coefficients(controller, inputs)


_SCHEDULES = (Binding(f"{PPO}.get_kl_controller", "kl_coefficient", call=_coefficients, imports=(CONFIG,)),)


def _report_pass_at_k(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    right = inputs["right"]
    rewards = [float(value) for responses in right for value in responses]
    uids = [str(place) for place, responses in enumerate(right) for _ in responses]
    report = boundary.function({"rewards": rewards}, uids)
    average, share = report[:2] if isinstance(report, tuple) else (report["avg_score"], report["pass_at_n"])
    return {"pass_at_k": share, "mean": average}


_REPORTS = (
    Binding(
        "skyrl.train.generators.utils.get_metrics_from_generator_output",
        "pass_at_k",
        call=_report_pass_at_k,
        accepts={"of": ("all",)},
    ),
)


BINDINGS = (*_DRIVER, *_SCHEDULES, *_REPORTS)
