"""Invariants of a training from one step to the next. Each is an object that checks the observed events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sentinel.contracts.step_losses import PREFERENCE_LOSS

_TRAINER, _OPTIMISER = "a trainer of transformers", "an optimizer of torch"


@dataclass(frozen=True)
class Invariant:
    """One invariant.

    :ivar of: the kinds of events that it checks.
    :ivar needs: what a run must have for it to apply.
    :ivar broken: returns the violation in words; empty if the invariant holds. It may store data for the next check.
    :ivar across: whether it compares processes of one run, and shares its stored data between them.
    """

    name: str
    of: tuple[str, ...]
    reason: str
    needs: str
    broken: Callable[[str, Mapping[str, Any], dict[str, Any]], str]
    across: bool = False


@dataclass
class Memory:
    """Data that each invariant stores between checks of one process, and the number of its checks."""

    without: Sequence[str] = ()
    together: dict[str, Any] = field(default_factory=dict)
    looks: Counter[str] = field(default_factory=Counter)
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)

    def look(self, kind: str, values: Mapping[str, Any]) -> list[tuple[Invariant, str]]:
        looks = []
        for one in INVARIANTS:
            if kind in one.of and one.name not in self.without:
                self.looks[one.name] += 1
                memory = self.together if one.across else self.kept
                looks.append((one, one.broken(kind, values, memory.setdefault(one.name, {}))))
        return [(one, how) for one, how in looks if how]


def _near(one: Any, other: Any, relative: float = 1e-3, absolute: float = 1e-5) -> bool:
    return torch.allclose(
        torch.as_tensor(one).double(), torch.as_tensor(other).double(), rtol=relative, atol=absolute, equal_nan=True
    )


def _trimmed(row: torch.Tensor) -> bytes:
    """Return a row's numbers without leading and trailing zeros, which padding adds and removes."""
    places = row.reshape(-1).nonzero()
    return _bits(row.reshape(-1)[int(places.min()) : int(places.max()) + 1]) if len(places) else b""


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _rows_stay(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    rows: Mapping[str, torch.Tensor] = values["rows"]
    if kind == "produced":
        memory["rows"] = rows
        return ""
    produced: Mapping[str, torch.Tensor] = memory.get("rows", {})
    missing = sorted(produced.keys() - rows.keys())
    if missing:
        return f"{', '.join(missing)} was computed for each row but does not reach the loss"
    shared = sorted(produced.keys() & rows.keys())
    if not shared:
        return ""
    rows_made = [{name: _trimmed(produced[name][row]) for name in shared} for row in range(len(produced["advantages"]))]
    for row in range(len(rows["advantages"])):
        here = {name: _trimmed(rows[name][row]) for name in shared}
        if here in rows_made:
            continue
        nearest = max(rows_made, key=lambda other: sum(here[name] == other[name] for name in shared))
        return f"{', '.join(n for n in shared if here[n] != nearest[n])} of row {row} changed after they were computed"
    return ""


def _of_one_prompt(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    rows, size = values["rows"], values.get("peers") or 0
    prompts, advantages = rows.get("prompt_ids"), rows.get("advantages")
    if size < 2 or prompts is None or advantages.dim() != 1:
        return ""
    labels = [_trimmed(row) for row in prompts]
    for label in dict.fromkeys(labels):
        peers = advantages[[row for row, other in enumerate(labels) if other == label]].double()
        apart = abs(float(peers.sum()))  # part of a group may be in another process
        if len(peers) % size == 0 and apart > 1e-3 * float(peers.abs().sum()) + 1e-4:
            return f"the values of {len(peers)} responses to one prompt sum to {float(peers.sum()):.6g}"
    return ""


def _sampling_options(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    options = [(name, pair) for name, pair in values.items() if isinstance(pair, tuple)]
    wrong = [f"{name} is {got}, not {wanted}" for name, (wanted, got) in options if (wanted or None) != (got or None)]
    return "; ".join(wrong)


def _ratio_is_one(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    mask = values["response_mask"] != 0
    if not mask.any():
        return ""
    apart = (values["log_probs"] - values["old_log_probs"]).abs().double()
    mean, sums = float(apart[mask].mean()), memory.setdefault("sums", {})
    for name, numbers in (("token", mask.cumsum(-1)), ("length", mask.sum(-1, keepdim=True).expand_as(mask))):
        powers = numbers[mask].double().log2().floor().long()  # the first, the second and third, the next four, …
        for power in powers.unique().tolist():
            total, count = sums.get((name, power), (0.0, 0))
            here = apart[mask][powers == power]
            sums[name, power] = total + float(here.sum()), count + len(here)
    if mean <= _AGREE:
        return ""
    where = ", ".join(f"{name} {one:.3g}" for name, one in mismatch(memory).items())
    return f"they are {mean:.3g} apart on average, before any step ({where})"


def mismatch(memory: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean difference between log-probs of rollout and trainer, by token position and response length."""
    return {
        f"{name} {1 << power}" + (f"-{(2 << power) - 1}" if power else ""): total / count
        for (name, power), (total, count) in sorted(memory.get("sums", {}).items())
    }


#: Largest mean difference, in nats, between log-probs of an engine and a trainer with the same weights.
_AGREE = 0.1


def _of_the_model(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    memory.setdefault(kind, {})[values["moment"]] = values
    call, answer = (memory.get(name, {}).pop(values["moment"], None) for name in ("call", "answers"))
    if call is None or answer is None:
        if call or answer:
            memory[kind] = {values["moment"]: values}
        return ""
    of_loss, mask = call["log_probs"], call["response_mask"] != 0
    of_model = answer["log_probs"][:, -of_loss.shape[1] :]
    if of_model.shape != of_loss.shape:
        return ""
    apart = (of_model - of_loss)[mask & ~of_model.isnan()].abs()
    if not len(apart):
        return ""
    return f"a token's differs by {float(apart.max()):.3g} from the model's" if float(apart.max()) > _AGREE else ""


def _counted(values: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the trained tokens except the first, for a batch whose labels and log-probs are all known."""
    labels, log_probs = values.get("labels"), values["log_probs"]
    learned = None if labels is None or "ref_log_probs" in values else labels[:, 1:] != -100
    complete = learned is not None and log_probs.shape == learned.shape and not log_probs[learned].isnan().any()
    return learned if complete else None


def _labels_are_tokens(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    labels, ids, attention = (values.get(name) for name in ("labels", "ids", "attention_mask"))
    if labels is None or ids is None or labels.shape != ids.shape:
        return ""
    learned = labels != -100
    if (labels != ids)[learned].any():
        return f"{int((labels != ids)[learned].sum())} of {int(learned.sum())} labels are not the token there"
    if attention is not None and (attention[learned] == 0).any():
        return "padding is learned"
    return ""


def _prompts_are_masked(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    labels, attention = values.get("labels"), values.get("attention_mask")
    if labels is None or attention is None or not values.get("partly") or labels.shape != attention.shape:
        return ""
    masked = ((labels == -100) & (attention != 0)).any(-1)
    return "" if masked.any() or not len(masked) else f"{len(masked)} of {len(masked)} rows train on all their tokens"


def _mean_of_labels(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    learned = _counted(values)
    if learned is None or "advantages" in values:
        return ""
    total = -float(values["log_probs"][learned].sum())
    items = float(values["items"]) if values["items"] is not None else float(learned.sum())
    memory["total"], memory["count"] = memory.get("total", 0.0) + total, memory.get("count", 0) + int(learned.sum())
    shared = values["items"] is not None and values.get("world", 1)  # a count over all ranks; this is one rank's loss
    expected = total / max(items, 1.0) * (shared or 1)
    if values.get("loss_type") not in (None, "nll", "chunked_nll"):
        return ""
    loss = float(values["loss"])
    return (
        ""
        if _near(loss, expected, 1e-2, 1e-4)
        else f"it is {loss:.6g}; the mean cross-entropy of the labels is {expected:.6g}"
    )


def _of_pairs(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    mask, loss_type = values.get("completion_mask"), values.get("loss_type")
    if (
        mask is None
        or "ref_log_probs" not in values
        or loss_type not in ("sigmoid", "ipo")
        or values["label_smoothing"]
        or values["log_probs"].isnan().any()
    ):
        return ""
    inputs: dict[str, Any] = {"beta": values["beta"], "loss_type": loss_type, "ld_alpha": values["ld_alpha"]}
    for name, whole in (("log_probs", values["log_probs"]), ("ref_log_probs", values["ref_log_probs"])):
        for side, half in zip(("chosen", "rejected"), whole.double().chunk(2)):
            inputs[f"{side}_{name}"] = half
    for side, half in zip(("chosen", "rejected"), mask[:, 1:].chunk(2)):
        inputs[f"{side}_mask"] = half
    expected, loss = float(PREFERENCE_LOSS.reference(inputs)["loss"]), float(values["loss"])
    return (
        "" if _near(loss, expected, 1e-2, 1e-4) else f"it is {loss:.6g}; {loss_type} of these pairs is {expected:.6g}"
    )


def _steps_add_up(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    if kind == "answers":
        learned = _counted(values)
        if learned is not None:
            memory["total"] = memory.get("total", 0.0) - float(values["log_probs"][learned].sum())
            memory["count"] = memory.get("count", 0) + int(learned.sum())
            memory["calls"] = memory.get("calls", 0) + 1
            memory["plain"] = values.get("loss_type") in (None, "nll", "chunked_nll")
        return ""
    total, count, calls, plain = (memory.pop(name, 0) for name in ("total", "count", "calls", "plain"))
    losses = sum(map(float, values["losses"]))
    if values.get("world", 1) > 1:  # each rank has a part of a step's tokens
        return ""
    if not count or not plain or calls != len(values["losses"]) or _near(losses, total / count, 1e-2, 1e-4):
        return ""
    mean = total / count
    return f"the losses of {calls} micro-batches sum to {losses:.6g}; the mean over their {count} tokens is {mean:.6g}"


def _as_often(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    if memory.get("step") != values.get("step"):  # the event that ended the previous step may have been dropped
        memory.update(step=values.get("step"), batches=[])
    if kind == "consumed":
        rows = values["rows"]
        batch = [tuple(_trimmed(rows[name][row]) for name in sorted(rows)) for row in range(len(rows["advantages"]))]
        before = memory.setdefault("batches", [])
        if len(set(batch)) > 1 and batch in before:
            return "two micro-batches of one step have the same rows"
        before.append(batch)
        return ""
    wanted, done = values["wanted"], len(values["losses"])
    return f"a step had {done} micro-batches; {wanted} are configured" if wanted and done != wanted else ""


def _scheduled(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    expected = values["scheduled"]
    wrong = [rate for rate in values["rates"] if expected is not None and not _near(rate, expected, 1e-4, 1e-12)]
    return f"it is {wrong[0]:.6g}; the schedule gives {expected:.6g}" if wrong else ""


def _follow_gradients(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    if kind == "stepping":
        names = values["left"]
        return f"no optimizer has {', '.join(names[:3])}, although a gradient is required" if names else ""
    for name, (before, after, gradient) in values["parameters"].items():
        moved = not torch.equal(before, after)
        has = gradient is not None and bool((gradient != 0).any())
        if moved and gradient is None:
            return f"{name} has no gradient but changed"
        if has and not moved and before.dtype == torch.float32:
            return f"{name} has a gradient but did not change"
        if has and not torch.isfinite(gradient).all():
            return f"the gradient of {name} is not finite"
    return ""


def _reference_stays(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    for name, (first, now, trained) in values["reference"].items():
        if trained:
            return f"the optimizer holds its {name}"
        if not torch.equal(first, now):
            return f"its {name} changed"
    return ""


def _ranks_agree(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    if not values.get("replicated"):
        return ""
    own: dict[str, Any]
    if kind == "answers":
        own = {"its rows": _bits(values["ids"])}
    elif kind == "stepping":
        own = {"its learning rate": values["rates"]}
    else:
        own = {name: _bits(after) for name, (_, after, _) in values["parameters"].items()}
    others = memory.setdefault(f"{kind} {values['moment' if kind == 'answers' else 'step']}", {})
    apart = [name for other in others.values() for name in own.keys() & other.keys() if own[name] != other[name]]
    compared, same = bool(others), own in others.values()
    others[values["process"]] = own
    while len(memory) > _KEPT:
        memory.pop(next(iter(memory)))
    if kind != "answers":
        return f"{min(apart)} differs between processes" if apart else ""
    alike = memory.pop("alike", 0)
    memory["alike"] = alike if not compared else alike + 1 if same else 0  # once may be the end of a dataset
    return "two processes train on the same rows" if same and memory["alike"] > 1 else ""


#: Checks that are stored for the other processes.
_KEPT = 64

INVARIANTS = (
    Invariant(
        "rows_stay_together", ("produced", "consumed"),
        "advantages, masks and old log-probs of a row belong to that row's tokens",
        f"{_TRAINER}, and a bound function that returns a batch with advantages", _rows_stay,
    ),
    Invariant(
        "advantages_are_of_one_prompt", ("produced",), "advantages are relative to other responses to the same prompt",
        f"{_TRAINER} with several responses to a prompt", _of_one_prompt,
    ),
    Invariant(
        "sampling_is_as_asked", ("generated",), "another temperature samples from another policy",
        f"{_TRAINER} that generates with transformers", _sampling_options,
    ),
    Invariant(
        "the_first_ratio_is_one", ("fresh",), "before a step, the policy is the one that sampled",
        "a loss with old log-probs whose calls can be read", _ratio_is_one, across=True,
    ),
    Invariant(
        "log_probs_are_the_models", ("call", "answers"), "the loss trains the tokens whose log-probs it receives",
        f"{_TRAINER}, and a loss with log-probs whose calls can be read", _of_the_model,
    ),
    Invariant(
        "labels_are_tokens", ("answers",), "a label is the token at its position",
        f"{_TRAINER}, and labels", _labels_are_tokens,
    ),
    Invariant(
        "prompts_are_not_learned", ("answers",), "the configuration trains on completions only",
        f"{_TRAINER}, labels", _prompts_are_masked,
    ),
    Invariant(
        "the_loss_is_that_of_the_labels", ("answers",), "a supervised loss is the mean cross-entropy of its labels",
        f"{_TRAINER}, and labels", _mean_of_labels,
    ),
    Invariant(
        "the_loss_is_that_of_the_pairs", ("answers",), f"as {PREFERENCE_LOSS.source}",
        f"{_TRAINER}, and pairs with a reference", _of_pairs,
    ),
    Invariant(
        "micro_batches_add_up", ("answers", "stepping"), "the split of a batch changes nothing",
        f"{_TRAINER}, and labels", _steps_add_up,
    ),
    Invariant(
        "samples_are_used_as_often_as_configured", ("consumed", "stepping"), "a step has the configured batch size",
        _TRAINER, _as_often,
    ),
    Invariant(
        "the_rate_is_the_schedules", ("stepping",), "the rate follows the configured schedule", _TRAINER, _scheduled,
    ),
    Invariant(
        "parameters_follow_gradients", ("stepping", "stepped"), "exactly the parameters with a gradient change",
        f"{_OPTIMISER}, and {_TRAINER}", _follow_gradients,
    ),
    Invariant(
        "the_reference_stays", ("stepping",), "the reference model does not change", f"{_TRAINER} with a reference",
        _reference_stays,
    ),
    Invariant(
        "ranks_agree", ("answers", "stepping", "stepped"), "replicas are equal and train on different rows",
        f"{_TRAINER} in several processes that each have the whole model", _ranks_agree, across=True,
    ),
)  # fmt: skip
