"""Recompute the losses, advantages, reference log-probs and batches of TRL's trainers for `sentinel watch`.

The formulas are from the papers that the documentation of TRL's configuration classes names. Their inputs are the
trainer's options, and the values that the model and the reward functions returned in the run. If a value is missing,
a function raises DoesNotApply with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from sentinel import DoesNotApply, Steps
from sentinel.binding.kit import torch

#: Rounding of a sum of float32 terms, relative to the sum of their absolute values.
_ROUNDING = 64 * 2.0**-23


def _need(holds: Any, reason: str) -> None:
    if not holds:
        raise DoesNotApply(reason)


def _get_reported(micro: Any, name: str = "log_probs", place: int = 0, model: str = "trained") -> Any:
    """Return the values that a model reported for one of its forward passes, as float64.

    :param name: the values: ``log_probs``, ``entropy``, ``log_sum_sq_probs`` or ``scores``.
    :param place: index of the forward pass, from 0. Unless ``name`` is ``scores``, only passes with log-probs count.
    :param model: ``trained`` or ``reference``.
    """
    passes = [one["reported"] for one in micro.forwards if one["model"] == model]
    passes = [one for one in passes if one["log_probs"] is not None or name == "scores"]
    _need(len(passes) > place, f"the {model} model does not report {name}")
    values = passes[place].get(name)
    _need(values is not None, f"the {model} model does not report {name}")
    _need(values.dtype == torch.float32, f"{name} are {values.dtype}, not float32")
    return values.double()


def _router_loss(micro: Any) -> Any:
    """Return the weighted auxiliary loss of a mixture-of-experts router, or 0 if the model has no router."""
    if not micro.attributes.get("aux_loss_enabled"):
        return 0.0
    return micro.attributes["router_aux_loss_coef"] * micro.forwards[0]["reported"]["aux_loss"].double()


def _accumulated(micro: Any) -> int:
    return 1 if micro.evaluating else int(micro.attributes["current_gradient_accumulation_steps"])


def _group_size(micro: Any) -> int:
    return int(micro.attributes["num_generations_eval" if micro.evaluating else "num_generations"])


# -- GRPO and RLOO -----------------------------------------------------------------------------------------------------


def _clipped(ratio: Any, advantages: Any, low: float, high: float, most: float | None = None) -> Any:
    """Compute PPO's clipped loss per token (arXiv:1707.06347). Ratios above ``most`` are replaced by ``most``."""
    capped = ratio if most is None else ratio.clamp(max=most)
    return -torch.minimum(capped * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def _vespo_weight(micro: Any, advantages: Any, log_ratio: Any, mask: Any) -> Any:
    """Return VESPO's weight of each sequence, as TRL's documentation defines it."""
    options, weights = micro.options, micro.batch.get("importance_sampling_ratio")
    log_w = (log_ratio.clamp(-20, 20) * mask).sum(-1, keepdim=True)
    if weights is not None:
        log_w = log_w + weights.double().log().clamp(math.log(1e-8), 20).sum(-1, keepdim=True)
    log_w = log_w.clamp(math.log(1e-8), 20)
    positive = advantages >= 0
    power = torch.where(positive, options["vespo_k_pos"], options["vespo_k_neg"])
    rate = torch.where(positive, options["vespo_lambda_pos"], options["vespo_lambda_neg"]).clamp(min=1e-4)
    return torch.exp(rate + power * log_w - rate * log_w.exp()).detach()


def _off_policy_mask(micro: Any, advantages: Any, log_probs: Any, old: Any, mask: Any) -> Any:
    """Return the off-policy mask of DeepSeek-V3.2: 1 for rows that are trained on, otherwise 0."""
    threshold = micro.attributes["off_policy_mask_threshold"]
    sampling = micro.batch.get("sampling_per_token_logps")
    apart = ((old if sampling is None else sampling.double()) - log_probs).nan_to_num(nan=0.0)
    mean = (apart * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)
    reason = "a completion is so close to off_policy_mask_threshold that rounding decides whether it is masked"
    _need(((mean - threshold).abs() > 1e-5).all(), reason)
    return ((advantages >= 0) | (mean <= threshold)).double()


def _high_entropy_mask(micro: Any, entropies: Any, mask: Any) -> Any:
    """Return a mask of the fraction ``top_entropy_quantile`` of tokens with the highest entropy (arXiv:2506.01939)."""
    _need(micro.world == 1, "top_entropy_quantile depends on the tokens of all ranks, but only one rank is observed")
    own = entropies[mask != 0].float()
    least = torch.quantile(own, 1 - micro.attributes["top_entropy_quantile"]) if len(own) else torch.zeros(())
    reason = "the entropy of a token is so close to the quantile that rounding decides whether the token is trained"
    _need(micro.facts["device"] == "cpu" or ((own - least).abs() > 1e-5).all(), reason)
    return (((entropies.float() * mask.float()) >= least) & (mask != 0)).double()


def _grpo_loss(micro: Any) -> tuple[Any, Any]:
    """Compute the loss of GRPO and its variants (arXiv:2402.03300, 2503.14476, 2503.20783, 2506.13585, 2511.20347)."""
    options, had, batch = micro.options, micro.attributes, micro.batch
    _need(not options.get("use_liger_kernel"), "with use_liger_kernel, another package computes the loss")
    _need(not had.get("use_adaptive_entropy"), "use_adaptive_entropy changes the coefficient during training")
    width, kind = batch["completion_ids"].shape[1], had["loss_type"]
    mask = batch["completion_mask"].double() * (1 if "tool_mask" not in batch else batch["tool_mask"].double())
    log_probs, entropies = (_get_reported(micro, name)[:, -width:] for name in ("log_probs", "entropy"))
    advantages = batch["advantages"].double()
    advantages = advantages[:, None] if advantages.dim() == 1 else advantages
    old = batch["old_per_token_logps"].double() if "old_per_token_logps" in batch else log_probs.detach()
    log_ratio = log_probs - old
    if had["importance_sampling_level"] == "sequence":
        ratio = torch.exp((log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0))
    else:
        _need(had["importance_sampling_level"] == "token", "unknown importance_sampling_level")
        ratio = torch.exp(log_ratio)
    if kind in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        terms = _clipped(ratio, advantages, had["epsilon_low"], had["epsilon_high"], options["delta"])
    elif kind == "cispo":
        terms = -ratio.clamp(max=had["epsilon_high"]).detach() * advantages * log_probs
    elif kind == "sapo":
        heat = torch.where(advantages > 0, options["sapo_temperature_pos"], options["sapo_temperature_neg"])
        terms = -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * advantages
    elif kind == "vespo":
        terms = -_vespo_weight(micro, advantages, log_ratio, mask) * advantages * log_probs
    else:
        raise DoesNotApply(f"loss_type {kind!r} is unknown")
    if had["off_policy_mask_threshold"] is not None:
        terms = terms * _off_policy_mask(micro, advantages, log_probs, old, mask)
    upper = _high_entropy_mask(micro, entropies, mask) if had["top_entropy_quantile"] < 1.0 else 1.0
    terms = terms * upper
    if had["use_vllm"] and had["vllm_importance_sampling_correction"] and kind != "vespo":
        terms = terms * batch["importance_sampling_ratio"].double()
    if had["beta"]:
        _need("ref_per_token_logps" in batch, "the batch has no log-probs of the reference")
        apart = batch["ref_per_token_logps"].double() - log_probs
        divergence = torch.exp(apart) - apart - 1  # k3 of http://joschu.net/blog/kl-approx.html
        terms = terms + had["beta"] * divergence * (ratio if options.get("use_bias_correction_kl") else 1.0)
    weights, steps = mask.expand(len(mask), width), _accumulated(micro)
    if kind in ("grpo", "sapo"):
        weights = weights / mask.sum(-1, keepdim=True).clamp(min=1.0) / len(mask) / steps
    elif kind == "bnpo":
        weights = weights / mask.sum().clamp(min=1.0) / steps
    elif kind == "dr_grpo":
        weights = weights / (len(mask) * had["max_completion_length"]) / steps
    elif kind == "luspo":
        weights = weights / len(mask) / steps
    else:
        tokens = batch["num_items_in_batch"].double().clamp(min=1.0) / micro.world
        share = 1.0 if micro.evaluating else steps / options["steps_per_generation"]
        weights = weights / (tokens * share)
    loss = (terms * weights).sum()
    size = (terms.abs() * weights).sum() * (1 + log_ratio.abs().max() + log_probs.abs().max())
    if had.get("_entropy_bonus_enabled"):
        acts = mask * upper
        loss = loss - had["entropy_coef"] * (entropies * acts).sum() / acts.sum().clamp(min=1.0) / steps
        size = size + had["entropy_coef"] * entropies.max()
    return loss + _router_loss(micro) / steps, _ROUNDING * (size + abs(float(_router_loss(micro))))


def _rloo_loss(micro: Any) -> tuple[Any, Any]:
    """Compute RLOO's loss, which treats a completion as one action (arXiv:2402.14740)."""
    had, batch = micro.attributes, micro.batch
    mask, advantages = batch["completion_mask"].double(), batch["advantages"].double()
    log_probs = _get_reported(micro)[:, -mask.shape[1] :]
    log_ratio = (log_probs * mask).sum(-1) - batch["old_logps"].double()
    rounding = 4 * 2.0**-23 * (log_probs * mask).abs().sum(-1)
    terms = _clipped(log_ratio.exp(), advantages, had["epsilon_low"], had["epsilon_high"])
    size = (terms.abs() * (1 + rounding / 2.0**-23) + advantages.abs()).mean()
    return terms.mean() + _router_loss(micro), _ROUNDING * (size + abs(float(_router_loss(micro))))


def _rewards(micro: Any, of_batch: bool) -> Any:
    """Return a [rows, functions] table of rewards, and the functions' weights. A missing reward is NaN.

    :param of_batch: True if advantages depend on the rewards of all groups, and thus of all ranks.
    """
    _need(not micro.attributes.get("environments"), "rewards also come from environments")
    weights = micro.attributes.get("reward_weights")
    _need(weights, "reward_weights could not be read")
    columns = dict(micro.rewards)
    _need(len(micro.rewards) == len(columns) == len(weights), "the results of some reward functions cannot be observed")
    returned = [[math.nan if one is None else one for one in columns[place]] for place in range(len(weights))]
    table = torch.tensor(returned, dtype=torch.float64).T
    _need(len(table) == len(micro.batch["advantages"]), "the observed rewards are not those of this batch's rows")
    whole = len(table) % _group_size(micro) == 0
    _need(micro.world == 1 or (whole and not of_batch), "advantages depend on the rewards of other ranks")
    return table, torch.tensor(weights, dtype=torch.float64)


def _nan_std(values: Any) -> Any:
    """Return the unbiased standard deviation over the last dimension without NaN values, or 0 for a single value."""
    count = (~values.isnan()).sum(-1, keepdim=True)
    apart = (values - values.nanmean(-1, keepdim=True)).nan_to_num(nan=0.0)
    variance = apart.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)
    return torch.where(count > 1, variance.sqrt(), 0.0)


def _weighted_sum(table: Any, weights: Any) -> Any:
    return (table * weights).nansum(-1).masked_fill(table.isnan().all(-1), math.nan)


def _grpo_advantages(micro: Any) -> tuple[Any, Any]:
    """Compute GRPO's advantages, scaled by group (arXiv:2402.03300), batch (2508.08221) or function (2601.05242)."""
    peers, scale = _group_size(micro), micro.attributes["scale_rewards"]
    several = micro.attributes["multi_objective_aggregation"] == "normalize_then_sum"
    table, weights = _rewards(micro, of_batch=several or scale == "batch")
    _need(len(table) % peers == 0, "the batch has an incomplete group")
    size = table.abs().nan_to_num(nan=0.0).max() * weights.abs().sum()
    if several:
        each = table.view(-1, peers, len(weights)).transpose(1, 2)
        _need((~each.isnan()).sum(-1).min() > 1, "a group has only one reward")
        scaled = (each - each.nanmean(-1, keepdim=True)) / (_nan_std(each) + 1e-4)
        rewards = _weighted_sum(scaled.transpose(1, 2).reshape(table.shape), weights)
        size = size / (_nan_std(each).min() + 1e-4)
        advantages, divisor = rewards - rewards.nanmean(), _nan_std(rewards) + 1e-4
    else:
        kind = micro.attributes["multi_objective_aggregation"]
        _need(kind == "sum_then_normalize", f"multi_objective_aggregation {kind!r} is unknown")
        _need(scale in ("group", "batch", "none"), f"scale_rewards {scale!r} is unknown")
        rewards = _weighted_sum(table, weights)
        grouped = rewards.view(-1, peers)
        advantages = (grouped - grouped.nanmean(-1, keepdim=True)).view(-1)
        spread = _nan_std(grouped).expand_as(grouped).reshape(-1) if scale == "group" else _nan_std(rewards)
        divisor = torch.ones(()) if scale == "none" else spread + 1e-4
    advantages = (advantages / divisor).nan_to_num(nan=0.0)
    return advantages, 16 * 2.0**-23 * size * (1 + advantages.abs()) / divisor + 1e-6


def _rloo_advantages(micro: Any) -> tuple[Any, Any]:
    """Compute RLOO's advantages: each reward minus the mean of the group's other rewards (arXiv:2402.14740)."""
    had = micro.attributes
    table, weights = _rewards(micro, of_batch=bool(had["normalize_advantages"]))
    rewards, rounding = _weighted_sum(table, weights), 0.0
    if had.get("reward_clip_range"):
        rewards = rewards.clamp(*had["reward_clip_range"])
    if had["beta"]:  # the estimator k1 of http://joschu.net/blog/kl-approx.html, summed over a completion
        policy, reference = _rloo_references(micro)
        rewards = rewards - had["beta"] * (policy - reference).sum(-1)
        rounding = _ROUNDING * had["beta"] * (policy.abs() + reference.abs()).sum(-1).max()
    grouped = rewards.view(-1, _group_size(micro))
    count = (~grouped.isnan()).sum(-1, keepdim=True)
    advantages = (grouped - (grouped.nansum(-1, keepdim=True) - grouped) / (count - 1)).view(-1)
    largest = table.abs().nan_to_num(nan=0.0).max() * weights.abs().sum()
    rounding = 4 * rounding + 16 * 2.0**-23 * largest * grouped.shape[1]
    if had["normalize_advantages"]:
        spread = _nan_std(advantages) + 1e-4
        advantages = (advantages - advantages.nanmean()) / spread
        rounding = rounding / spread * (1 + advantages.abs().nan_to_num(nan=0.0))
    return advantages.nan_to_num(nan=0.0), rounding + 1e-6


def _grpo_references(micro: Any) -> tuple[Any, Any]:
    _need(micro.options.get("beta"), "there is no reference (beta is 0)")
    _need("ref_per_token_logps" in micro.batch, "the batch has no log-probs of the reference")
    # The reference is compared while a loss is computed, not while a batch is produced.
    _need("num_items_in_batch" in micro.batch and micro.rewards is None, "")
    mask = micro.batch["completion_mask"].double()
    return _get_reported(micro)[:, -mask.shape[1] :] * mask, micro.batch["ref_per_token_logps"].double() * mask


def _rloo_references(micro: Any) -> tuple[Any, Any]:
    """Return the log-probs of a new batch's completions under the policy and under the reference."""
    _need(micro.rewards is not None, "")  # the reference is compared while a batch is produced, not in the loss
    _need(micro.attributes["beta"], "there is no reference (beta is 0)")
    mask = micro.batch["completion_mask"].double()
    sides = {True: [], False: []}
    for one in micro.forwards:
        values = one["reported"]["log_probs"]
        _need(values.dtype == torch.float32, f"log-probs are {values.dtype}, not float32")
        sides[one["model"] == "reference"].append(values[:, -mask.shape[1] :].double())
    # Without a separate reference model, the reference is the model without its adapter, which runs second.
    if not sides[True]:
        half = len(sides[False]) // 2
        sides = {True: sides[False][half:], False: sides[False][:half]}
    _need(all(sum(map(len, several)) == len(mask) for several in sides.values()), "not all log-probs were observed")
    policy, reference = (torch.cat(sides[side]) * mask for side in (False, True))
    return policy, reference


def _completion_ends(micro: Any) -> str:
    """Describe a completion whose mask does not end with its first end token. Return "" if there is none.

    A completion without an end token must be cut off at the maximum length.
    """
    had, batch = micro.attributes, micro.batch
    for name in ("tools", "environments", "rollout_func", "environment_factories"):
        _need(not had.get(name), f"{name} makes completions of several turns")
    ends, ids, mask = had.get("eos_token_ids"), batch["completion_ids"], batch["completion_mask"] != 0
    _need(ends, "the end tokens were not read")
    is_end = torch.isin(ids, torch.tensor(ends))
    until = (is_end.cumsum(-1) - is_end.long()) == 0  # True up to the first end token
    ended = is_end.any(-1)
    wrong = (until != mask).any(-1) & ended
    if not wrong.any():
        lengths, stops = mask.sum(-1), ("use_vllm", "use_transformers_continuous_batching", "generation_kwargs")
        # A completion without an end token was cut off at the maximum length, so no other completion can be longer.
        # This does not hold with the options in ``stops``, which can end a completion in other ways.
        cut = (lengths > 0) & (lengths < lengths.max()) & ~ended
        if cut.any() and not micro.facts["generation"] and not any(map(micro.options.get, stops)):
            row = int(cut.nonzero()[0])
            return (
                f"{int(cut.sum())} of {len(ids)} completions have no end token although others are longer: "
                f"row {row} has {int(lengths[row])} tokens, and the longest has {int(lengths.max())}"
            )
        return ""
    row = int(wrong.nonzero()[0])
    return (
        f"completion_mask has {int(mask[row].sum())} tokens in row {row}, and the completion has "
        f"{int(until[row].sum())} up to its first end token"
    )


def _grpo_batch(micro: Any) -> str:
    """Describe the first error in a batch of GRPO. Return "" if there is none.

    A batch that is used after an optimizer step must contain the log-probs of the policy that generated it. The
    completions must be as described in :func:`_completion_ends`.
    """
    options, batch = micro.options, micro.batch
    uses = (options.get("steps_per_generation") or 1) * (options.get("num_iterations") or 1)
    if not micro.evaluating and options["gradient_accumulation_steps"] % uses and "old_per_token_logps" not in batch:
        return (
            f"old_per_token_logps is missing, although completions are used for {uses} micro-batches, and the "
            f"optimizer steps after every {options['gradient_accumulation_steps']}: the ratio is wrongly always 1"
        )
    return _completion_ends(micro)


def _generated_epoch(options: Mapping[str, Any]) -> tuple[int, int]:
    """Return the maximum number of prompts that an epoch skips, and how often it loads each of the remaining prompts.

    An epoch consists of whole generation batches, so it may skip prompts.
    """
    peers = options["num_generations"]
    uses = options["num_iterations"] * options["steps_per_generation"]
    return options["generation_batch_size"] // peers - 1, peers * uses


def _synchronized(args: Any, step: int) -> float | None:
    """Return the weight of the policy when TRL mixes policy and reference after a step (TR-DPO, arXiv:2404.09656).

    Return 0 if the reference is not updated after this step, and None if it is never updated.
    """
    if not args.sync_ref_model:
        return None
    return 0.0 if step % args.ref_model_sync_steps else float(args.ref_model_mixup_alpha)


def _sampled(micro: Any) -> None:
    options, had = micro.options, micro.attributes
    neutral = {"top_p": (None, 1.0), "top_k": (None, 0), "min_p": (None, 0.0), "repetition_penalty": (None, 1.0)}
    for name, values in neutral.items():
        _need(options.get(name) in values, f"{name} is set to {options.get(name)}")
    for name in ("generation_kwargs", "use_vllm", "use_transformers_continuous_batching", "use_transformers_paged"):
        _need(not options.get(name), f"{name} is set")
    for name in ("tools", "environments", "rollout_func"):
        _need(not had.get(name), f"the trainer has {name}")
    _need(not options.get("mask_truncated_completions"), "mask_truncated_completions excludes some completions")


def _require_plain_texts(trainer: Any) -> None:
    """Raise DoesNotApply if tools, environments, images, rollout_func or your own tokenizer may change the texts."""
    for name in ("rollout_func", "tools", "environments", "environment_factories", "_is_vlm"):
        _need(not getattr(trainer, name, None), f"{name.removeprefix('_is_')} is used")
    _need(type(trainer.processing_class).__module__.startswith("transformers."), "the tokenizer is your own")


def _prompt_tokens(trainer: Any, rows: Any) -> Any:
    """Tokenize the prompts of dataset rows: texts directly, messages with the chat template."""
    _require_plain_texts(trainer)
    _need(hasattr(trainer, "_tokenize_prompts"), "this version's trainer has no method _tokenize_prompts")
    for name in ("image", "images", "tools", "chat_template_kwargs"):
        _need(name not in rows[0], f"the dataset has the column {name}")
    tokenizer, prompts = trainer.processing_class, [row["prompt"] for row in rows]
    if isinstance(prompts[0], str):
        return tokenizer(text=prompts)["input_ids"]
    made = tokenizer.apply_chat_template(
        conversation=prompts, chat_template=getattr(trainer, "chat_template", None), add_generation_prompt=True,
        tokenize=True, return_dict=True, padding=True, **(trainer.chat_template_kwargs or {}),
    )  # fmt: skip
    kept = zip(made["input_ids"], made["attention_mask"])
    return [[one for one, real in zip(ids, mask) if real] for ids, mask in kept]


def _decode(trainer: Any, rows: Any, ids: Any) -> Any:
    """Decode completions to the form that reward functions take: texts, or messages if the prompts are messages."""
    _require_plain_texts(trainer)
    tokenizer = trainer.processing_class
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    if isinstance(rows[0]["prompt"], str):
        return texts
    parsed = any(getattr(tokenizer, name, None) for name in ("response_template", "response_schema"))
    _need(not parsed, "the tokenizer parses responses into messages")
    return [[{"role": "assistant", "content": text}] for text in texts]


# -- DPO and KTO ------------------------------------------------------------------------------------------------------


def _reference_log_probs(micro: Any, place: int = 0, passes: int = 1) -> Any:
    """Return log-probs of the reference, which is a separate model or the trained model without its adapter.

    :param place: index of the reference's forward pass, from 0.
    :param passes: the number of forward passes with the adapter. Those without the adapter follow them.
    """
    if any(one["model"] == "reference" for one in micro.forwards):
        return _get_reported(micro, place=place, model="reference")
    _need(micro.facts["adapters"], "there is no reference model")
    return _get_reported(micro, place=passes + place)


def _pair_log_probs(micro: Any) -> tuple[Any, Any, Any]:
    """Return each response's log-prob under the policy and the reference, and the policy's log-probs of its tokens."""
    had, batch = micro.attributes, micro.batch
    mask = batch["completion_mask"][:, 1:].double()
    tokens = _get_reported(micro)[:, -mask.shape[1] :] * mask
    weights, place, length = mask, mask.cumsum(-1), mask.sum(-1)
    if had["ld_alpha"] is not None:  # arXiv:2409.06411
        shared = torch.minimum(*length.chunk(2)).repeat(2)[:, None]
        weights = mask * torch.where(place <= shared, 1.0, had["ld_alpha"])
    policy = (tokens * weights).sum(-1)
    if had["precompute_ref_logps"]:
        return policy, torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]]).double(), tokens
    reference = _reference_log_probs(micro)
    return policy, (reference[:, -mask.shape[1] :] * mask * weights).sum(-1), tokens


def _divergence_slope(ratio: Any, kind: str, alpha: float) -> Any:
    """Return the derivative of an f-divergence at a log-ratio, up to a constant (arXiv:2309.16240)."""
    if kind == "reverse_kl" or (kind == "alpha_divergence" and abs(alpha - 1) < 1e-6):
        return ratio
    if kind == "forward_kl":
        return 1 - torch.exp(-ratio)
    if kind == "js_divergence":
        return math.log(2) + torch.nn.functional.logsigmoid(ratio)
    if kind == "alpha_divergence":
        return (torch.exp(((alpha - 1) * ratio).clamp(max=80.0)) - 1) / (alpha - 1)
    raise DoesNotApply(f"f_divergence_type {kind!r} is unknown")


def _pair_loss(kind: str, micro: Any, policy: Any, reference: Any, tokens: Any) -> Any:
    """Return each pair's loss for a loss type. DPOConfig's documentation names the paper that defines the loss type."""
    had, log_sigmoid = micro.attributes, torch.nn.functional.logsigmoid
    beta, smooth = had["beta"], had["label_smoothing"]
    chosen, rejected = (policy - reference).chunk(2)
    alpha = had["f_alpha_divergence_coef"]
    scores = [_divergence_slope(one, had["f_divergence_type"], alpha) for one in (chosen, rejected)]
    lengths = micro.batch["completion_mask"].double().sum(-1).clamp(min=1.0).chunk(2)
    delta = scores[0] - scores[1]
    mean = scores[0] / lengths[0] - scores[1] / lengths[1]
    if kind == "sigmoid":
        return -log_sigmoid(beta * delta)
    if kind == "sigmoid_norm":
        return -log_sigmoid(beta * mean)
    if kind == "hinge":
        return torch.relu(1 - beta * delta)
    if kind == "ipo":
        return (mean - 1 / (2 * beta)) ** 2
    if kind == "exo_pair":
        odds, target = beta * delta, (math.log1p(-smooth), math.log(smooth))
        return torch.sigmoid(odds) * (log_sigmoid(odds) - target[0]) + torch.sigmoid(-odds) * (
            log_sigmoid(-odds) - target[1]
        )
    if kind == "nca_pair":
        return -log_sigmoid(beta * chosen) - 0.5 * (log_sigmoid(-beta * chosen) + log_sigmoid(-beta * rejected))
    if kind == "robust":
        clean, flipped = -log_sigmoid(beta * delta), -log_sigmoid(-beta * delta)
        return ((1 - smooth) * clean - smooth * flipped) / (1 - 2 * smooth)
    if kind == "bco_pair":
        return -log_sigmoid(beta * chosen) - log_sigmoid(-beta * rejected)
    if kind == "sppo_hard":
        return (chosen - 0.5 / beta) ** 2 + (rejected + 0.5 / beta) ** 2
    if kind in ("aot", "aot_unpaired"):
        first, second = chosen, rejected
        if kind == "aot":
            first, second = (side.chunk(2)[0] - side.chunk(2)[1] for side in (policy, reference))
        near = any((side.sort(0).values.diff().abs() < 1e-4).any() for side in (first, second))
        reason = "two rows of a batch are so similar that rounding decides how aot sorts them"
        _need(not (near and tokens.requires_grad), reason)
        gap = beta * (first.sort(0).values - second.sort(0).values)
        return -log_sigmoid(gap) * (1 - smooth) - log_sigmoid(-gap) * smooth
    if kind == "apo_zero":
        return 1 - torch.sigmoid(beta * chosen) + torch.sigmoid(beta * rejected)
    if kind == "apo_down":
        return torch.sigmoid(beta * chosen) + 1 - torch.sigmoid(beta * (chosen - rejected))
    if kind == "discopop":
        odds = beta * delta
        blend = torch.sigmoid(odds / micro.options["discopop_tau"])
        return -log_sigmoid(odds) * (1 - blend) + torch.exp(-odds) * blend
    if kind == "sft":
        mask = micro.batch["completion_mask"][:, 1:].chunk(2)[0] != 0
        return (-tokens.chunk(2)[0][mask].mean()).expand(len(chosen))
    raise DoesNotApply(f"loss_type {kind!r} is unknown")


def _dpo_loss(micro: Any) -> tuple[Any, Any]:
    had = micro.attributes
    _need(not micro.options.get("use_liger_kernel"), "with use_liger_kernel, another package computes the loss")
    _need("position_ids" not in micro.batch and "completion_mask" in micro.batch, "rows are packed (padding_free)")
    policy, reference, tokens = _pair_log_probs(micro)
    weights: Any = 1.0
    if had["use_weighting"]:  # arXiv:2406.11827
        mask = micro.batch["completion_mask"][:, 1:].double()
        aligned = (tokens - _get_reported(micro, "log_sum_sq_probs")[:, -mask.shape[1] :]) * mask
        chosen, rejected = torch.exp(aligned.sum(-1) / mask.sum(-1).clamp(min=1)).chunk(2)
        weights = (chosen * rejected).detach()
    loss = _router_loss(micro)
    policy = policy if policy.requires_grad else policy.requires_grad_()
    for kind, share in zip(had["loss_types"], had["loss_weights"]):
        loss = loss + (_pair_loss(kind, micro, policy, reference, tokens) * weights).mean() * share
    through = loss.requires_grad  # False for loss type sft, which uses only the log-probs of tokens
    (slope,) = torch.autograd.grad(loss, policy, retain_graph=True, allow_unused=True) if through else (None,)
    largest = policy.detach().abs() + reference.abs() + 1
    size = loss.detach().abs() + ((slope.abs() * largest).sum() if slope is not None else 0.0) + had["beta"]
    return loss, _ROUNDING * size


def _dpo_references(micro: Any) -> tuple[Any, Any]:
    policy, reference, _ = _pair_log_probs(micro)
    return policy, reference


def _kto_log_probs(micro: Any) -> tuple[Any, Any, Any]:
    """Return the completions' log-probs under policy and reference, and KTO's KL estimate (0 if it is not used)."""
    had, batch = micro.attributes, micro.batch
    estimates = bool(had["calculate_KL"])
    mask = batch["completion_mask"][:, 1:].double()

    def of_rows(log_probs: Any, kept: Any) -> Any:
        return (log_probs[:, -kept.shape[1] :] * kept).sum(-1)

    policy, known = of_rows(_get_reported(micro, place=estimates), mask), had["precompute_ref_logps"]
    passes = 1 + estimates
    reference = batch["ref_logps"].double() if known else of_rows(_reference_log_probs(micro, estimates, passes), mask)
    if not estimates:
        return policy, reference, 0.0
    _need(micro.world == 1, "the KL estimate depends on the rows of all ranks, but only one rank is observed")
    mask = batch["KL_completion_mask"][:, 1:].double()
    other = batch["ref_KL_logps"].double() if known else of_rows(_reference_log_probs(micro, 0, passes), mask)
    return policy, reference, (of_rows(_get_reported(micro), mask) - other).mean().detach().clamp(min=0)


def _kto_loss(micro: Any) -> tuple[Any, Any]:
    """Compute the loss of KTO (arXiv:2402.01306) or of APO-zero for unpaired rows (arXiv:2408.06266)."""
    had, desired = micro.attributes, micro.batch["label"].bool()
    policy, reference, apart = _kto_log_probs(micro)
    ratio, beta = policy - reference, had["beta"]
    _need(had["loss_type"] in ("kto", "apo_zero_unpaired"), f"loss_type {had['loss_type']!r} is unknown")
    if had["loss_type"] == "kto":
        terms = 1 - torch.sigmoid(beta * torch.where(desired, ratio - apart, apart - ratio))
    else:
        terms = torch.sigmoid(beta * torch.where(desired, -ratio, ratio))
    weights = torch.where(desired, had["desirable_weight"], had["undesirable_weight"])
    largest = policy.detach().abs() + reference.abs() + 1
    size = (weights * (1 + beta * (largest + largest.max()))).mean()
    router = _router_loss(micro)
    return (weights * terms).mean() + router, _ROUNDING * (size + abs(float(router)))


def _kto_references(micro: Any) -> tuple[Any, Any]:
    return _kto_log_probs(micro)[:2]


# -- rows --------------------------------------------------------------------------------------------------------------


def _tokenize(trainer: Any, text: Any, **options: Any) -> Any:
    """Tokenize a text directly, or messages with the chat template."""
    tokenizer = trainer.processing_class
    _need(type(tokenizer).__module__.startswith("transformers."), "the tokenizer is your own")
    if isinstance(text, str):
        return tokenizer(text=text)
    return tokenizer.apply_chat_template(text, tokenize=True, return_dict=True, **options)


def _append_end(trainer: Any, text: Any) -> Any:
    """Append the end token to a text, as TRL's trainers do. Return messages unchanged."""
    end = trainer.processing_class.eos_token
    return text + end if isinstance(text, str) and not text.endswith(end) else text


def _common_prefix_length(one: list[int], other: list[int]) -> int:
    return next((place for place, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))


def _truncate(options: Any, row: list[Any]) -> list[Any]:
    """Truncate a row to ``max_length`` tokens, on the side that ``truncation_mode`` sets."""
    most = options.max_length
    return row if most is None else row[-most:] if options.truncation_mode == "keep_end" else row[:most]


def _describe_tokens(number: int, name: str, got: list[int], expected: list[int], trainer: Any) -> str:
    """Describe the first difference between the tokens of a row and the tokens of its text."""
    end = trainer.processing_class.eos_token_id
    if got == expected[:-1] and expected[-1] == end:
        return f"{name} of row {number} has no end token, which the trainer appends to a text"
    place = _common_prefix_length(got, expected)
    return f"{name} of row {number} has {len(got)} tokens, and its text has {len(expected)}: token {place} differs"


def _compare_tokens(trainer: Any, rows: Any, sides: Mapping[str, str]) -> str:
    """Describe the first prepared row whose tokens differ from those of its texts. Return "" if there is none.

    A completion begins where the tokens of prompt and answer differ from those of the prompt alone.

    :param sides: column of an answer's text -> column of its tokens.
    """
    for number, row in enumerate(rows):
        _need({"prompt", "prompt_ids", *sides} <= row.keys(), "the prepared rows have no text")
        prompt = _tokenize(trainer, row["prompt"], add_generation_prompt=True)["input_ids"]
        whole = {
            name: _tokenize(trainer, _append_end(trainer, row["prompt"] + row[side]))["input_ids"]
            for side, name in sides.items()
        }
        start = min(_common_prefix_length(prompt, ids) for ids in whole.values())
        for name, ids in {"prompt_ids": prompt[:start], **{name: ids[start:] for name, ids in whole.items()}}.items():
            if row[name] != ids:
                return _describe_tokens(number, name, row[name], ids, trainer)
    return ""


def _pair_tokens(trainer: Any, rows: Any) -> str:
    return _compare_tokens(trainer, rows, {"chosen": "chosen_ids", "rejected": "rejected_ids"})


def _kto_tokens(trainer: Any, rows: Any) -> str:
    """Describe the first error in rows that KTO's trainer prepared. Return "" if there is none.

    Mismatched completions must be those of other rows in the batch (arXiv:2402.01306, section 4.1).
    """
    wrong, size = _compare_tokens(trainer, rows, {"completion": "completion_ids"}), _batch_size(trainer)
    first = rows[:size]
    if wrong or "KL_completion_ids" not in rows[0] or len(first) < size or trainer.args.dataset_num_proc:
        return wrong
    own, others = ([row[name] for row in first] for name in ("completion_ids", "KL_completion_ids"))
    if sorted(own) != sorted(others):
        return f"KL_completion_ids of the first {size} rows are not a permutation of these rows' completions"
    if own == others and any(one != own[0] for one in own):
        return f"KL_completion_ids of each of the first {size} rows are the row's own completion, not another row's"
    return ""


def _batch_size(trainer: Any) -> int:
    return int(trainer.args.per_device_train_batch_size)


def _require_collator(collator: Any, rows: Any, name: str, *columns: str) -> None:
    """Raise DoesNotApply unless the collator's class has this name and the columns are lists of tokens."""
    _need(type(collator).__name__ == name, "the collator is your own")
    _need(rows and all(isinstance(row.get(one), list) for row in rows for one in columns), "rows are not token lists")


def _get_columns(rows: Any, *names: str) -> dict[str, list[Any]]:
    """Return the values of the named columns. Columns that the rows lack are omitted."""
    return {name: [row[name] for row in rows] for name in names if name in rows[0]}


#: Column of a batch -> its padding value.
_FILLS = {"labels": -100, "attention_mask": 0, "completion_mask": 0}


def _compare_batch(batch: Any, columns: Mapping[str, list[Any]]) -> str:
    """Describe the first difference between a right-padded batch and its rows' columns. Return "" if there is none."""
    for name, expected in columns.items():
        if name not in batch:
            continue
        if len(batch[name]) != len(expected):
            return (
                f"{name} of a batch has {len(batch[name])} rows, and {len(expected)} rows of the dataset were collated"
            )
        for number, (row, other) in enumerate(zip(batch[name].tolist(), expected)):
            if not isinstance(other, list):
                if not math.isclose(row, other, rel_tol=1e-6, abs_tol=1e-6):
                    return f"{name} of row {number} of a batch is {row:g}, and {other:g} in the dataset"
                continue
            if name.removeprefix("KL_") in _FILLS:
                other = other + [_FILLS[name.removeprefix("KL_")]] * (len(row) - len(other))
            wrong = [place for place, (one, another) in enumerate(zip(row, other)) if one != another]
            if wrong or len(row) < len(other):
                place = wrong[0] if wrong else len(row)
                shown = " differs from the dataset row"
                if name.endswith(("position_ids", "mask")):
                    shown = f" is {row[place] if wrong else 'missing'}, not {other[place]}"
                return f"{name} of token {place} in row {number} of a batch{shown}"
    return ""


def _expected_columns(collator: Any, prompts: Any, answers: Any, prefix: str = "") -> dict[str, list[Any]]:
    """Return the expected columns of a batch in which each row is a prompt and an answer."""
    _need(
        hasattr(collator, "max_length"),
        "this version's collator has no max_length, so that rows are truncated elsewhere",
    )
    pairs = [*zip(prompts, answers)]
    mode = getattr(collator, "truncation_mode", "keep_start")
    most = SimpleNamespace(max_length=collator.max_length, truncation_mode=mode)
    ids = [_truncate(most, prompt + answer) for prompt, answer in pairs]
    masks = [_truncate(most, [0] * len(prompt) + [1] * len(answer)) for prompt, answer in pairs]
    of_rows = {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids], "completion_mask": masks}
    return {f"{prefix}{name}": several for name, several in of_rows.items()}


def _dpo_collated(collator: Any, rows: Any, batch: Any) -> str:
    _require_collator(collator, rows, "DataCollatorForPreference", "prompt_ids", "chosen_ids", "rejected_ids")
    answers = [row[name] for name in ("chosen_ids", "rejected_ids") for row in rows]
    columns = _expected_columns(collator, [row["prompt_ids"] for row in rows] * 2, answers)
    return _compare_batch(batch, {**columns, **_get_columns(rows, "ref_chosen_logps", "ref_rejected_logps")})


def _kto_collated(collator: Any, rows: Any, batch: Any) -> str:
    _require_collator(collator, rows, "DataCollatorForUnpairedPreference", "prompt_ids", "completion_ids")
    columns = _get_columns(rows, "label", "ref_logps", "ref_KL_logps")
    for prefix in ("", "KL_"):
        if f"{prefix}completion_ids" in rows[0]:
            answers = [row[f"{prefix}completion_ids"] for row in rows]
            columns |= _expected_columns(collator, [row["prompt_ids"] for row in rows], answers, prefix)
    return _compare_batch(batch, columns)


# -- reward models -----------------------------------------------------------------------------------------------------


def _reward_loss(micro: Any) -> tuple[Any, Any]:
    """Compute the Bradley-Terry loss with margins (arXiv:2307.09288) and centering (arXiv:2312.09244)."""
    scores, center = _get_reported(micro, "scores"), micro.options["center_rewards_coefficient"]
    _need(scores.shape[1] == 1, "the model has several scores")
    chosen, rejected = scores[:, 0].chunk(2)
    margin = micro.batch["margin"].double() if "margin" in micro.batch else 0.0
    loss = -torch.nn.functional.logsigmoid(chosen - rejected - margin).mean()
    if center is not None:
        loss = loss + center * (chosen + rejected).square().mean()
    return loss, _ROUNDING * (1 + scores.detach().abs().max()) ** 2


def _reward_batch(micro: Any) -> str:
    columns = micro.facts.get("given", {}).get("columns", {})
    _need(not micro.facts["collator"], f"{micro.facts['collator']} makes the batches")
    if "margin" in columns and "margin" not in micro.batch:
        return "the margins of the dataset do not reach the batch"
    return _right_padding(micro)


def _reward_tokens(trainer: Any, rows: Any) -> str:
    for number, row in enumerate(rows):
        for side in ("chosen", "rejected"):
            _need(side in row, f"the prepared rows have no column {side}")
            texts = [_append_end(trainer, row[side])]
            if "prompt" in row:  # preparation may already have put the prompt before the answer
                whole, prompt = row[side], row["prompt"]
                texts = [_append_end(trainer, prompt + whole), *(texts if whole[: len(prompt)] == prompt else ())]
            several = [_tokenize(trainer, text)["input_ids"] for text in texts]
            if row[f"{side}_ids"] not in several:
                return _describe_tokens(number, f"{side}_ids", row[f"{side}_ids"], several[-1], trainer)
    return ""


def _reward_collated(collator: Any, rows: Any, batch: Any) -> str:
    _require_collator(collator, rows, "DataCollatorForPreference", "chosen_ids", "rejected_ids")
    ids = [row[f"{side}_ids"] for side in ("chosen", "rejected") for row in rows]
    columns = {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids]}
    return _compare_batch(batch, {**columns, **_get_columns(rows, "margin")})


def _right_padding(micro: Any) -> str:
    """Describe the row that attends to most padding tokens on its right. Return "" if none attends to more than one."""
    pads, ends, attention = micro.facts["pads"], micro.facts["ends"], micro.batch.get("attention_mask")
    _need(not micro.facts["collator"], f"{micro.facts['collator']} makes the batches")
    _need(attention is not None, "rows are packed")
    _need(pads is not None and pads != ends, "the padding token is also the end token")
    ids = micro.batch["input_ids"]
    trailing = (ids != pads).flip(-1).cumsum(-1).flip(-1) == 0
    wrong = ((attention != 0) & trailing).sum(-1)
    return f"row {int(wrong.argmax())} attends to {int(wrong.max())} tokens of padding" if wrong.max() > 1 else ""


# -- SFT ---------------------------------------------------------------------------------------------------------------


def _sft_loss(micro: Any) -> tuple[Any, Any]:
    options, labels = micro.options, micro.batch.get("labels")
    _need(not micro.facts["loss_function"], "compute_loss_func is yours")
    _need(labels is not None and "shift_labels" not in micro.batch, "labels were not read")
    learned = labels[:, 1:] != -100
    _need(options["loss_type"] in ("nll", "dft", "chunked_nll"), f"loss_type {options['loss_type']!r} is unknown")
    if micro.facts["smoothing"] and options["loss_type"] == "nll":
        one, share = micro.forwards[0], options["label_smoothing_factor"]
        _need("mean_log_prob" in one, "some log-probs were not recomputed")
        reason = "with label_smoothing_factor, the loss lacks the router's auxiliary loss"
        _need(not micro.attributes.get("aux_loss_enabled"), reason)
        nll, mean = (-one[name].double() for name in ("log_probs", "mean_log_prob"))
        _need(nll.shape == learned.shape, "the model's outputs and the labels differ in length")
        terms, slack = (1 - share) * nll + share * mean, float(one["bound"])
        _need(not terms[learned].isnan().any(), "some log-probs were not recomputed")
    else:
        log_probs, slack = _get_reported(micro), 0.0
        _need(log_probs.shape == learned.shape, "the model's outputs and the labels differ in length")
        terms = -log_probs * (log_probs.detach().exp() if options["loss_type"] == "dft" else 1.0)  # arXiv:2508.05629
    terms = torch.where(learned, terms, 0.0)
    count = float(learned.sum()) if micro.items is None else float(micro.items)
    scale = micro.world if options.get("average_tokens_across_devices") and micro.items is not None else 1
    router = _router_loss(micro) / (_accumulated(micro) if micro.items is not None else 1)
    loss = terms.sum() / max(count, 1.0) * scale
    size = terms.abs().sum() / max(count, 1.0) * scale
    return loss + router, _ROUNDING * (size + abs(float(router))) + slack * float(learned.sum()) / max(count, 1.0)


def _sft_tokens(trainer: Any, rows: Any) -> str:
    options = trainer.args
    _need(
        "labels" in rows[0] and hasattr(trainer, "chat_template"),
        "this version prepares no labels, or its trainer has no chat_template",
    )
    for number, row in enumerate(rows):
        template, masks = {"chat_template": trainer.chat_template}, []
        of_assistant = {**template, "return_assistant_tokens_mask": options.assistant_only_loss}
        if "prompt" in row:
            prompt = _tokenize(trainer, row["prompt"], add_generation_prompt=True, **template)["input_ids"]
            whole = _tokenize(trainer, _append_end(trainer, row["prompt"] + row["completion"]), **of_assistant)
            if trainer.completion_only_loss:
                start = _common_prefix_length(prompt, whole["input_ids"])
                masks.append([place >= start for place in range(len(whole["input_ids"]))])
        else:
            text = row.get("messages", row.get(options.dataset_text_field))
            _need(text, "the prepared rows have no text (packing, or a column of another name)")
            whole = _tokenize(trainer, _append_end(trainer, text), **of_assistant)
        if options.assistant_only_loss:
            masks.append(whole["assistant_masks"])
        ids = _truncate(options, whole["input_ids"])
        labels = [one if all(kept) else -100 for one, *kept in zip(whole["input_ids"], *masks)]
        labels = _truncate(options, labels)
        if row["input_ids"] != ids:
            return _describe_tokens(number, "input_ids", row["input_ids"], ids, trainer)
        wrong = [place for place, (one, other) in enumerate(zip(row["labels"], labels)) if one != other]
        if wrong:
            got, right = (sum(one != -100 for one in several) for several in (row["labels"], labels))
            how = "is trained" if row["labels"][wrong[0]] != -100 else "is not trained"
            return (
                f"row {number} trains on {got} of its {len(ids)} tokens and should train on {right}; the first "
                f"difference: token {wrong[0]} {how}"
            )
    return ""


def _sft_collated(collator: Any, rows: Any, batch: Any) -> str:
    """Describe the first difference between a batch of SFT and its rows. Positions must restart at each document."""
    _require_collator(collator, rows, "DataCollatorForLanguageModeling", "input_ids")
    documents = [list(row.get("seq_lengths") or [len(row["input_ids"])]) for row in rows]
    places = [[place for length in lengths for place in range(length)] for lengths in documents]
    ids = [row["input_ids"] for row in rows]
    columns = {"input_ids": ids, "position_ids": places, "attention_mask": [[1] * len(row) for row in ids]}
    if all("labels" in row for row in rows):
        columns["labels"] = [row["labels"] for row in rows]
    elif not any(name in row for row in rows for name in ("completion_mask", "assistant_masks")):
        columns["labels"] = columns["input_ids"]
    if collator.padding_free:
        if "labels" in columns:  # the first token of a document is not predicted from the document before it
            starts = [[not place for place in row] for row in places]
            columns["labels"] = [
                [-100 if first else one for one, first in zip(*pair)] for pair in zip(columns["labels"], starts)
            ]
        columns = {name: [[one for row in several for one in row]] for name, several in columns.items()}
    return _compare_batch(batch, columns)


def _unwatched(options: Mapping[str, Any]) -> list[str]:
    """List the parts of a training run that `sentinel watch` cannot check with these options."""
    parts = ["the backward pass from log-probs to parameters, because the output layer is fused with the log-probs"]
    if options.get("use_liger_kernel"):
        parts = ["the loss and its backward pass, which another package computes (use_liger_kernel)"]
    if options.get("packing"):
        parts.append("which tokens packing cuts off, because packed rows have no text (packing)")
    if options.get("use_vllm"):
        parts.append("the generation in vLLM (use_vllm)")
    return parts


# -- the options and methods of each trainer ---------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHARED = _words(
    "learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout dataset_num_proc "
    "max_length truncation_mode pad_to_multiple_of pad_token logging_steps gradient_checkpointing bf16 "
    "lr_scheduler_kwargs use_liger_kernel torch_empty_cache_steps activation_offloading padding_free sync_ref_model "
    "ref_model_mixup_alpha ref_model_sync_steps beta label_smoothing_factor"
)
_ONLINE = _words(
    "remove_unused_columns num_generations num_generations_eval max_completion_length shuffle_dataset "
    "generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs "
    "repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode "
    "vllm_structured_outputs_regex vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout "
    "vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size num_iterations "
    "epsilon epsilon_high reward_weights mask_truncated_completions log_completions log_multimodal "
    "num_completions_to_print log_unique_prompts use_transformers_continuous_batching "
    "transformers_continuous_batching_config use_transformers_paged"
)
_OF_GRPO = _words(
    "cast_lm_head_to_fp32 delta sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg "
    "vespo_lambda_neg importance_sampling_level multi_objective_aggregation scale_rewards loss_type "
    "top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta "
    "entropy_target max_tool_calling_iterations vllm_importance_sampling_correction vllm_importance_sampling_mode "
    "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap "
    "off_policy_mask_threshold use_bias_correction_kl log_completions_hub_repo"
)
_OF_DPO = _words(
    "precompute_ref_log_probs precompute_ref_batch_size loss_type loss_weights ld_alpha f_divergence_type "
    "f_alpha_divergence_coef label_smoothing use_weighting discopop_tau"
)
_OF_SFT = _words(
    "chat_template_path dataset_text_field dataset_kwargs eos_token shuffle_dataset packing packing_strategy "
    "eval_packing completion_only_loss assistant_only_loss loss_type"
)
_OF_KTO = _words(
    "desirable_weight undesirable_weight loss_type train_sampling_strategy precompute_ref_log_probs "
    "precompute_ref_batch_size"
)


def _upper(options: Mapping[str, Any]) -> Any:
    return options["epsilon"] if options["epsilon_high"] is None else options["epsilon_high"]


def _generation_option(name: str, options: Mapping[str, Any]) -> Any:
    """Return a generation option, or None if ``generation_kwargs`` may override it."""
    return None if options.get("generation_kwargs") else options[name]


_SAME = _words(
    "temperature top_p top_k min_p repetition_penalty num_generations max_completion_length num_iterations beta "
    "mask_truncated_completions"
)
_SETTINGS = {
    **{name: name for name in sorted(_SAME)},
    "epsilon_low": "epsilon",
    "epsilon_high": _upper,
    "reward_weights": "reward_weights",
    **{f"generation_config.{name}": partial(_generation_option, name) for name in ("temperature", "top_p", "top_k")},
    "generation_config.max_new_tokens": partial(_generation_option, "max_completion_length"),
    "generation_config.do_sample": lambda options: None if options.get("generation_kwargs") else True,
}
#: Values of ``Steps.lacks``: ``_OFFLINE`` for a trainer that learns from the answers of a dataset, and ``_GENERATES``
#: for a trainer that generates answers itself.
_OFFLINE = frozenset({"advantages", "samples", "prompts", "completions"})
_GENERATES = frozenset({"tokens", "collators", "labels"})
_SCORES = ("_generate_and_score_completions", "_calculate_rewards", "_generate", "_prepare_inputs")
_SAMPLES = ("_generate_single_turn", "_generate", "_generate_and_score_completions", "_prepare_inputs")
_OF_ROWS = {
    "rewards": ("_calculate_rewards", "_generate", "_generate_and_score_completions", "_prepare_inputs"),
    "prompts": ("_tokenize_prompts", "_generate", "_generate_and_score_completions", "_prepare_inputs"),
}
_LOG_PROBS = ("_compute_loss", "compute_loss", "_get_per_token_logps_and_entropies", "_prepare_inputs")
_OF_TOKENS = {"tokens": ("_prepare_dataset",)}
_IN_GRPO = ("get_off_policy_mask", "get_gamma_weights", "get_high_entropy_mask")


def _named(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


STEPS = (
    Steps(
        "trl.trainer.grpo_trainer.GRPOTrainer",
        unwatched=_unwatched,
        methods={"loss": (*_LOG_PROBS, *_IN_GRPO), "advantages": _SCORES, "samples": _SAMPLES, **_OF_ROWS},
        knows=_SHARED | _ONLINE | _OF_GRPO,
        settings={
            **_SETTINGS,
            **_named("loss_type scale_rewards importance_sampling_level multi_objective_aggregation"),
            **_named("top_entropy_quantile off_policy_mask_threshold entropy_coef"),
        },
        splits=frozenset({"steps_per_generation", "generation_batch_size"}),
        loss=_grpo_loss, advantages=_grpo_advantages, references=_grpo_references, batch=_grpo_batch,
        samples=_sampled, prompts=_prompt_tokens, completions=_decode, lacks=_GENERATES,
        synchronized=_synchronized, epoch=_generated_epoch,
    ),
    Steps(
        "trl.trainer.rloo_trainer.RLOOTrainer",
        unwatched=_unwatched,
        methods={"loss": _LOG_PROBS, "advantages": _SCORES, "samples": _SAMPLES, **_OF_ROWS},
        knows=_SHARED | _ONLINE | {"normalize_advantages", "reward_clip_range"},
        settings={**_SETTINGS, **_named("normalize_advantages reward_clip_range")},
        loss=_rloo_loss, advantages=_rloo_advantages, references=_rloo_references, batch=_completion_ends,
        samples=_sampled, prompts=_prompt_tokens, completions=_decode, lacks=_GENERATES | {"items"},
        synchronized=_synchronized, epoch=_generated_epoch,
    ),
    Steps(
        "trl.trainer.dpo_trainer.DPOTrainer",
        unwatched=_unwatched,
        methods={
            "loss": ("_compute_loss", "compute_loss", "compute_ref_log_probs", "_prepare_inputs"), **_OF_TOKENS
        },
        knows=_SHARED | _OF_DPO,
        settings={
            **_named("beta ld_alpha f_divergence_type f_alpha_divergence_coef label_smoothing use_weighting"),
            "precompute_ref_logps": "precompute_ref_log_probs",
            "loss_types": "loss_type",
            "loss_weights": "loss_weights",
        },
        loss=_dpo_loss, references=_dpo_references, batch=_right_padding, tokens=_pair_tokens,
        collators={"trl.trainer.dpo_trainer.DataCollatorForPreference.torch_call": _dpo_collated},
        lacks=_OFFLINE | {"labels"}, synchronized=_synchronized,
    ),
    Steps(
        "trl.trainer.sft_trainer.SFTTrainer",
        unwatched=_unwatched,
        methods={"loss": ("compute_loss", "_prepare_inputs"), **_OF_TOKENS},
        knows=_SHARED | _OF_SFT,
        loss=_sft_loss, batch=_right_padding, tokens=_sft_tokens, lacks=_OFFLINE | {"references"},
        collators={"trl.trainer.sft_trainer.DataCollatorForLanguageModeling.torch_call": _sft_collated},
    ),
    Steps(
        "trl.trainer.kto_trainer.KTOTrainer",
        unwatched=_unwatched,
        methods={
            "loss": ("_compute_loss", "compute_loss", "_compute_kl_logps", "compute_ref_log_probs", "_prepare_inputs"),
            **_OF_TOKENS,
        },
        knows=_SHARED | _OF_KTO,
        settings={
            **_named("beta desirable_weight undesirable_weight loss_type"),
            "precompute_ref_logps": "precompute_ref_log_probs",
        },
        loss=_kto_loss, references=_kto_references, batch=_right_padding, tokens=_kto_tokens,
        collators={"trl.trainer.kto_trainer.DataCollatorForUnpairedPreference.torch_call": _kto_collated},
        lacks=_OFFLINE | {"labels"}, synchronized=_synchronized,
    ),
    Steps(
        "trl.trainer.reward_trainer.RewardTrainer",
        methods={"loss": ("compute_loss", "_prepare_inputs"), **_OF_TOKENS},
        knows=_SHARED | _words("chat_template_path eos_token center_rewards_coefficient"),
        loss=_reward_loss, batch=_reward_batch, tokens=_reward_tokens, lacks=_OFFLINE | {"references", "labels"},
        collators={"trl.trainer.reward_trainer.DataCollatorForPreference.torch_call": _reward_collated},
    ),
)  # fmt: skip
