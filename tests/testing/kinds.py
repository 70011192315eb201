"""A correct function of each of twenty kinds, and three bugs of the field in each.

A bug is a replacement in the source of the correct function.
"""

# ruff: noqa: E501  # a bug is one line

import inspect
import re
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  # the field's name for it


@dataclass(frozen=True)
class Kind:
    """A correct function and its bugs.

    :ivar bugs: name -> (old, new): one replacement in the source of :attr:`correct`.
    :ivar options: keyword arguments of the test for ``check_function``.
    :ivar edges: law -> why the correct function breaks it in an edge case.
    """

    correct: object
    contract: str
    bugs: dict
    options: dict = field(default_factory=dict)
    edges: dict = field(default_factory=dict)

    def broken(self, bug):
        old, new = self.bugs[bug]
        source = inspect.getsource(self.correct)
        assert source.count(old) >= 1, f"{bug}: {old!r} is not in the source"
        names = dict(globals())
        exec(compile(re.sub(r"^@.*\n", "", source.replace(old, new, 1)), f"<{bug}>", "exec"), names)
        return names[self.correct.__name__]


def ppo_loss(logps, old_logps, adv, mask, eps=0.2):
    ratio = torch.exp(torch.where(mask.bool(), logps - old_logps, 0.0))
    unclipped = ratio * adv
    clipped = torch.clamp(ratio, 1 - eps, 1 + eps) * adv
    loss = -torch.minimum(unclipped, clipped)
    return torch.where(mask.bool(), loss, 0.0).sum() / mask.sum().clamp(min=1)


def critic_loss(values, old_values, returns, mask, cliprange=0.2):
    clipped = old_values + (values - old_values).clamp(-cliprange, cliprange)
    losses = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * torch.where(mask.bool(), losses, 0.0).sum() / mask.sum().clamp(min=1)


def aggregate(losses, mask, mode):
    kept = torch.where(mask.bool(), losses, 0.0)
    if mode == "token-mean":
        return kept.sum() / mask.sum().clamp(min=1)
    rows = mask.bool().any(-1).sum().clamp(min=1)
    if mode == "seq-mean-token-sum":
        return kept.sum() / rows
    return (kept.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / rows


def grpo_advantages(rewards, mask, uids, eps=1e-6):
    scores = (rewards * mask).sum(-1)
    result = torch.zeros_like(scores)
    present = mask.bool().any(-1).tolist()
    for uid in set(uids):
        rows = [row for row, other in enumerate(uids) if other == uid and present[row]]
        if len(rows) > 1:
            group = scores[rows]
            result[rows] = (group - group.mean()) / (group.std() + eps)
    return result[:, None] * mask


def gae(rewards, values, mask, gamma, lam):
    advantages = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        following, running = 0.0, 0.0
        for t in reversed(range(rewards.shape[1])):
            if not mask[row, t]:
                continue
            delta = rewards[row, t] + gamma * following - values[row, t]
            running = delta + gamma * lam * running
            advantages[row, t] = running
            following = values[row, t]
    returns = torch.where(mask.bool(), advantages + values, 0.0)
    return advantages, returns


def gae_of_episodes(rewards, values, dones, next_value, gamma, lam):
    """GAE without a mask: [tokens] or [batch, tokens], and an episode ends at each step with ``dones``."""
    advantages = torch.zeros_like(rewards)
    running, following = 0.0, next_value
    for t in reversed(range(rewards.shape[-1])):
        alive = 1.0 - dones[..., t]
        delta = rewards[..., t] + gamma * alive * following - values[..., t]
        running = delta + gamma * lam * alive * running
        advantages[..., t] = running
        following = values[..., t]
    return advantages, advantages + values


def discounted(rewards, mask, gamma):
    returns = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        valid = mask[:, t].bool()
        running = torch.where(valid, rewards[:, t] + gamma * running, running)
        returns[:, t] = torch.where(valid, running, 0.0)
    return returns


def kl_penalty(logprobs, ref_logprobs, mask):
    log_ratio = torch.where(mask.bool(), ref_logprobs - logprobs, 0.0)
    return torch.exp(log_ratio) - 1 - log_ratio


def tis_weights(train_logps, rollout_logps, mask, cap=2.0):
    log_ratio = torch.where(mask.bool(), train_logps.detach() - rollout_logps, 0.0)
    return torch.exp(log_ratio).clamp(max=cap) * mask


def masked_whiten(values, mask, shift_mean=True):
    valid = mask.bool()
    kept = torch.where(valid, values, 0.0)
    count = valid.sum()
    mean = kept.sum() / count.clamp(min=1)
    centred = torch.where(valid, values - mean, 0.0)
    var = (centred**2).sum() / (count - 1).clamp(min=1)
    whitened = centred * torch.rsqrt(var + 1e-8)
    return whitened if shift_mean else torch.where(valid, whitened + mean, 0.0)


def normalize_rewards(rewards, group_ids, epsilon=1e-6):
    result = torch.zeros_like(rewards)
    for one in set(group_ids):
        rows = [row for row, other in enumerate(group_ids) if other == one]
        group = rewards[rows]
        if len(rows) > 1:
            result[rows] = (group - group.mean()) / (group.std() + epsilon)
    return result


def dpo_loss(policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps, beta=0.1):
    chosen = policy_chosen_logps - reference_chosen_logps
    rejected = policy_rejected_logps - reference_rejected_logps
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def sums_of_pairs(f, x):
    """Call a loss of pairs that takes the log-prob of each response."""
    total = {}
    for side in ("chosen", "rejected"):
        mask = x[f"{side}_mask"].bool()
        total[f"policy_{side}_logps"] = torch.where(mask, x[f"{side}_log_probs"], 0.0).sum(-1)
        total[f"reference_{side}_logps"] = torch.where(mask, x[f"{side}_ref_log_probs"], 0.0).sum(-1)
    return f(**total, beta=x.beta)


def sft_loss(logits, labels):
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none", ignore_index=-100)
    return losses.sum() / (labels[:, 1:] != -100).sum().clamp(min=1)


def distill_loss(student_logits, teacher_logits, mask, temperature=1.0):
    keep = mask.bool()[..., None]
    student = torch.log_softmax(torch.where(keep, student_logits, 0.0) / temperature, -1)
    teacher = torch.log_softmax(torch.where(keep, teacher_logits, 0.0) / temperature, -1)
    kl = F.kl_div(student, teacher, log_target=True, reduction="none").sum(-1)
    return kl.sum() / mask.sum().clamp(min=1)


def logprobs_from_logits(logits, labels, temperature=1.0):
    logits = logits / temperature
    picked = logits.gather(-1, labels[..., None]).squeeze(-1)
    return picked - torch.logsumexp(logits, -1)


def pack(attention_mask, max_tokens):
    microbatches, current, used = [], [], 0
    for row, length in enumerate(attention_mask.sum(-1).tolist()):
        if current and used + length > max_tokens:
            microbatches.append(current)
            current, used = [], 0
        current.append(row)
        used += length
    if current:
        microbatches.append(current)
    return microbatches


def split_batch(batch, size):
    rows = len(batch["number"])
    return [
        {name: column[start : start + size] for name, column in batch.items()}
        for start in range(0, rows, size)
    ]  # fmt: skip


def split_fields(f, x):
    """Call a function that splits a batch without metadata."""
    parts = f(x.fields, x.count)
    return {"parts": parts, "metas": [x.meta] * len(parts)}


def overlong(rewards, mask, max_len, buffer_len, factor=1.0):
    lengths = mask.sum(-1)
    exceeded = lengths - (max_len - buffer_len)
    penalty = (-exceeded / buffer_len * factor).clamp(min=-factor, max=0)
    return rewards + penalty


def keep_informative(rewards, group_ids):
    kept = []
    for row, one in enumerate(group_ids):
        group = [reward for reward, other in zip(rewards.tolist(), group_ids) if other == one]
        if len(group) > 1 and max(group) != min(group):
            kept.append(row)
    return kept


def kept_rows(f, x):
    """Call a filter that returns the numbers of the rows to train on."""
    numbers = f(x.rewards, x.group)
    return {"numbers": numbers, "rewards": x.rewards[numbers].tolist()}


def batch_metrics(advantages, values, mask):
    valid = mask.bool()
    lengths = mask.sum(-1).float()
    return {
        "advantages_mean": advantages[valid].mean(),
        "advantages_max": advantages[valid].max(),
        "values_mean": values[valid].mean(),
        "response_length_mean": lengths.mean(),
        "response_length_max": lengths.max(),
    }


def grade(response, ground_truth):
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", response)
    return 1.0 if boxes and boxes[-1].strip() == ground_truth.strip() else 0.0


KINDS = (
    Kind(
        ppo_loss,
        "policy_loss",
        {
            "mask ignored in the denominator": ("mask.sum().clamp(min=1)", "mask.numel()"),
            "clip bounds swapped": ("1 - eps, 1 + eps", "1 + eps, 1 - eps"),
            "maximum instead of minimum": ("torch.minimum", "torch.maximum"),
        },
        {"algorithm": "ppo", "mode": "token-mean"},
        {"finite_in_finite_out": "exp overflows for a log-ratio above 88, and 0 times infinity is NaN in the gradient"},
    ),
    Kind(
        critic_loss,
        "value_loss",
        {
            "minimum of the two losses": ("torch.maximum", "torch.minimum"),
            "clipped around the returns": ("old_values + (values - old_values)", "returns + (values - returns)"),
            "mean over padding": ("mask.sum().clamp(min=1)", "losses.numel()"),
        },
        {"dialects": {"factor": 0.5}},
        {"masked_values_have_no_influence": "a NaN below the mask: torch.where hides it in the loss, not in the gradient"},
    ),
    Kind(
        aggregate,
        "loss_aggregation",
        {
            "mean of means": ("kept.sum() / mask.sum().clamp(min=1)", "(kept.sum(-1) / mask.sum(-1).clamp(min=1)).mean()"),
            "padding in the row's length": ("mask.sum(-1).clamp(min=1)).sum()", "mask.shape[-1]).sum()"),
            "mask not applied": ("torch.where(mask.bool(), losses, 0.0)", "losses"),
        },
        {"mode": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")},
    ),
    Kind(
        grpo_advantages,
        "group_advantage",
        {
            "std of the whole batch": ("group.std()", "scores.std()"),
            "mean of the whole batch": ("group.mean()", "scores.mean()"),
            "rejected rows in the group": ("other == uid and present[row]", "other == uid"),
        },
        {"estimator": "grpo"},
        {"masked_values_have_no_influence": "a NaN below the mask: NaN times 0 is NaN"},
    ),
    Kind(
        gae,
        "generalised_advantage",
        {
            "off by one: the value of this step": ("gamma * following - values", "gamma * values[row, t] - values"),
            "lambda forgotten": ("gamma * lam * running", "gamma * running"),
            "bootstraps across padding": ("following, running = 0.0, 0.0", "following, running = values[row, -1], 0.0"),
        },
    ),
    Kind(
        gae_of_episodes,
        "generalised_advantage",
        {
            "bootstraps from the next episode": ("gamma * alive * following", "gamma * following"),
            "advantage of the next episode": ("gamma * lam * alive * running", "gamma * lam * running"),
            "the end is one step late": ("alive = 1.0 - dones[..., t]", "alive = 1.0 - dones[..., max(t - 1, 0)]"),
        },
    ),
    Kind(
        discounted,
        "discounted_return",
        {
            "forgets to discount": ("gamma * running", "running"),
            "from the left": ("reversed(range(rewards.shape[1]))", "range(rewards.shape[1])"),
            "padding is a step": ("torch.where(valid, rewards[:, t] + gamma * running, running)", "rewards[:, t] + gamma * running"),
        },
    ),
    Kind(
        kl_penalty,
        "kl_estimate",
        {
            "sign of the KL": ("ref_logprobs - logprobs", "logprobs - ref_logprobs"),
            "minus one forgotten": ("torch.exp(log_ratio) - 1 - log_ratio", "torch.exp(log_ratio) - log_ratio"),
            "reference with a gradient, policy without": ("ref_logprobs - logprobs", "ref_logprobs - logprobs.detach()"),
        },
        {"estimator": "k3"},
    ),
    Kind(
        tis_weights,
        "importance_weight",
        {
            "detach missing": ("train_logps.detach()", "train_logps"),
            "ratio upside down": ("train_logps.detach() - rollout_logps", "rollout_logps - train_logps.detach()"),
            "min instead of max": ("clamp(max=cap)", "clamp(min=cap)"),
        },
        {"level": "token", "mode": "truncate"},
    ),
    Kind(
        masked_whiten,
        "masked_statistics",
        {
            "biased variance": ("(count - 1).clamp(min=1)", "count.clamp(min=1)"),
            "mean over padding": ("kept.sum() / count.clamp(min=1)", "kept.mean()"),
            "std instead of its inverse": ("torch.rsqrt(var + 1e-8)", "torch.sqrt(var + 1e-8)"),
        },
        {"statistic": "whiten", "epsilon": 1e-8},
    ),
    Kind(
        normalize_rewards,
        "reward_normalisation",
        {
            "biased std": ("group.std()", "group.std(unbiased=False)"),
            "epsilon inside the difference": ("(group - group.mean()) / (group.std() + epsilon)", "(group - group.mean() + epsilon) / group.std()"),
            "leave-one-out mean": ("group.mean()", "(group.sum() - group) / (len(rows) - 1)"),
        },
    ),
    Kind(
        dpo_loss,
        "preference_loss",
        {
            "chosen and rejected swapped": ("(chosen - rejected)", "(rejected - chosen)"),
            "reference forgotten for the rejected": ("policy_rejected_logps - reference_rejected_logps", "policy_rejected_logps"),
            "beta outside the sigmoid": ("F.logsigmoid(beta * (chosen - rejected))", "beta * F.logsigmoid(chosen - rejected)"),
        },
        {"loss_type": "sigmoid", "call": sums_of_pairs},
    ),
    Kind(
        sft_loss,
        "supervised_loss",
        {
            "labels not shifted": ("logits[:, :-1].flatten(0, 1), labels[:, 1:]", "logits.flatten(0, 1), labels"),
            "shifted twice": ("logits[:, :-1].flatten(0, 1), labels[:, 1:]", "logits[:, :-2].flatten(0, 1), labels[:, 2:]"),
            "mean over ignored tokens": ("(labels[:, 1:] != -100).sum()", "labels[:, 1:].ne(-1).sum()"),
        },
    ),
    Kind(
        distill_loss,
        "distillation_loss",
        {
            "reverse KL": ("F.kl_div(student, teacher,", "F.kl_div(teacher, student,"),
            "temperature of the teacher forgotten": ("torch.where(keep, teacher_logits, 0.0) / temperature", "torch.where(keep, teacher_logits, 0.0)"),
            "batchmean": ("mask.sum().clamp(min=1)", "len(mask)"),
        },
        {"beta": 0.0},
    ),
    Kind(
        logprobs_from_logits,
        "token_log_probs",
        {
            "temperature multiplied": ("logits / temperature", "logits * temperature"),
            "label shift": ("labels[..., None]", "labels.roll(-1, -1)[..., None]"),
            "normaliser without temperature": ("picked - torch.logsumexp(logits, -1)", "picked - torch.logsumexp(logits * temperature, -1)"),
        },
    ),
    Kind(
        pack,
        "microbatch_packing",
        {
            "last microbatch dropped": ("    if current:\n        microbatches.append(current)\n", ""),
            "budget checked too late": ("used + length > max_tokens", "used > max_tokens"),
            "row lost at the boundary": ("        current.append(row)\n        used += length\n", "        else:\n            current.append(row)\n            used += length\n"),
        },
    ),
    Kind(
        split_batch,
        "row_surgery",
        {
            "remainder dropped": ("range(0, rows, size)", "range(0, rows - rows % size, size)"),
            "overlap of one row": ("start : start + size", "start : start + size + 1"),
            "only the tensors": ("in batch.items()", "in batch.items() if hasattr(column, 'shape')"),
        },
        {"surgery": "split", "call": split_fields},
    ),
    Kind(
        overlong,
        "overlong_penalty",
        {
            "penalty without an upper bound": (".clamp(min=-factor, max=0)", ".clamp(min=-factor)"),
            "padding counts as length": ("mask.sum(-1)", "torch.full((len(mask),), mask.shape[-1])"),
            "penalty added to itself in place": ("return rewards + penalty", "rewards += penalty\n    return rewards"),
        },
    ),
    Kind(
        keep_informative,
        "group_filter",
        {
            "keeps the uninformative": ("max(group) != min(group)", "max(group) == min(group)"),
            "batch instead of group": (" if other == one]", "]"),
            "drops groups with a zero": ("max(group) != min(group)", "min(group) > 0"),
        },
        {"call": kept_rows},
    ),
    Kind(
        batch_metrics,
        "batch_report",
        {
            "padding in the mean": ("advantages[valid].mean()", "(advantages * mask).mean()"),
            "padding in the maximum": ("advantages[valid].max()", "(advantages * mask).max()"),
            "length of the tensor": ("mask.sum(-1).float()", "torch.full((len(mask),), float(mask.shape[-1]))"),
        },
    ),
    Kind(
        grade,
        "rule_reward",
        {
            "substring": ("boxes[-1].strip() == ground_truth.strip()", "boxes[-1].strip() in ground_truth"),
            "anywhere in the response": ("boxes[-1].strip() == ground_truth.strip()", "response.count(ground_truth) > 0 and ground_truth[0] in boxes[0]"),
            "wrong answers rewarded too": ("else 0.0", "else 1.0"),
        },
        {"wording": "boxed"},
    ),
)  # fmt: skip
