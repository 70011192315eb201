"""Define the invariants of a training run, which hold in each step or from one step to the next.

An invariant is checked only if everything that it depends on could be read from the run. Otherwise the invariant is
skipped, and the reason is reported. The user's own code (a subclass, a loss, a scheduler, a callback) is not checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from sentinel.commands.console import counted
from sentinel.contracts.contract import DoesNotApply
from sentinel.targets import Steps
from sentinel.tools.watch.facts import SET, SHARDED
from sentinel.tools.watch.training import TILTS

_TRAINER = "a transformers Trainer"
#: Returns a description of the fault; "" if there is no fault; None if nothing was compared.
Check = Callable[[str, Mapping[str, Any], dict[str, Any]], "str | None"]
#: Returns why an invariant does not apply to a training with these facts; empty if it applies.
Unless = Callable[[Mapping[str, Any], "Steps | None"], str]


@dataclass(frozen=True)
class Invariant:
    """A property that every training run must have, and the check of it.

    :ivar of: the kinds of events that the invariant checks.
    :ivar reason: what must hold.
    :ivar needs: the parts that a run must have for the invariant to apply.
    :ivar broken: the check, which may store data for the next check.
    :ivar unless: returns why the invariant does not apply to a training.
    :ivar where: the method that computes the checked value: a name, or a key of :attr:`Steps.methods`.
    :ivar advice: a first step for finding the cause.
    :ivar settings: options that a message names even if they are at their defaults.
    :ivar across: whether the invariant compares the processes of a run. All processes then share its stored data.
    :ivar evaluates: whether the invariant is also checked in evaluations.
    :ivar note: whether a fault may be intended. Such a fault is printed, but does not count as a violation.
    """

    name: str
    of: tuple[str, ...]
    reason: str
    needs: str
    broken: Check
    unless: Unless = lambda facts, steps: ""
    where: str = ""
    advice: str = ""
    settings: tuple[str, ...] = ()
    across: bool = False
    evaluates: bool = False
    note: bool = False


@dataclass
class Memory:
    """The state of all invariants for one process of the run.

    :ivar without: the names of invariants that the user switched off.
    :ivar together, kept: the data that each invariant stores between checks: for all processes, and for this one.
    :ivar looks: how often each invariant was checked.
    :ivar facts: the facts of the trainer; empty until they are known.
    :ivar skipped: maps the name of each skipped invariant to the reason.
    :ivar failed: errors that checks raised and that have not been reported yet.
    """

    without: Sequence[str] = ()
    together: dict[str, Any] = field(default_factory=dict)
    looks: Counter[str] = field(default_factory=Counter)
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    known: Sequence[Steps] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @property
    def steps(self) -> Steps | None:
        """Return the adapter's declaration for the observed trainer class, or None."""
        return next((one for one in self.known if one.trainer == self.facts.get("class")), None)

    def settings(self, always: Sequence[str] = ()) -> str:
        """Format options for a message: the options ``always``, then the framework's options that are not at their
        defaults."""
        options = self.facts.get("options", {})
        changed = [name for name in self.facts.get("changed", ()) if name not in _ASIDE] if self.steps else []
        chosen = [name for name in dict.fromkeys((*always, *changed)) if name in options]
        return ", ".join(f"{name}={options[name]!r}" for name in chosen[:_SETTINGS])

    def look(self, kind: str, values: Mapping[str, Any]) -> list[tuple[Invariant, str]]:
        """Check an event with each invariant that applies. Return the violated invariants, each with its message."""
        if kind == "facts":
            self.facts, self.kept = values, {}
            reasons = {one.name: one.unless(values, self.steps) for one in INVARIANTS}
            self.skipped = {name: why for name, why in reasons.items() if why not in ("", ELSEWHERE)}
        looks, evaluating = [], bool(values.get("evaluating"))
        for one in INVARIANTS:
            if kind not in one.of or one.name in self.without or one.unless(self.facts, self.steps):
                continue
            if evaluating and not one.evaluates:
                continue
            name = one.name + IN_EVALUATION * (evaluating and one.of != ("evaluated",))
            memory = (self.together if one.across else self.kept).setdefault(name, {})
            try:
                how = one.broken(kind, {**values, "facts": self.facts, "steps": self.steps}, memory)
            except DoesNotApply as why:
                if not self.looks[name] and str(why):
                    self.skipped[name] = str(why)
                continue
            except Exception as error:  # the other invariants of this event are still checked
                self.failed.append(f"{name}: {type(error).__name__}: {error}"[:200])
                continue
            if how is not None:
                self.looks[name] += 1
                self.skipped.pop(name, None)
                looks.append((one, how))
        place = "in an evaluation, " * (evaluating and kind != "tokens")
        return [(one, place + how + self._more(one)) for one, how in looks if how]

    def _more(self, one: Invariant) -> str:
        """Return the last lines of a message: which method to inspect, the settings, and the advice."""
        steps, places = self.steps, self.facts.get("places", {})
        names = (steps.methods.get(one.where) if steps else None) or (one.where,)
        trainer = str(self.facts.get("class", "")).rpartition(".")[2]
        place = next((places[name] for name in names if name in places), trainer)
        shown = self.settings(one.settings)
        lines = [f"in {place}" * bool(place), f"set: {shown}" * bool(shown), f"try: {one.advice}" * bool(one.advice)]
        return "".join(f"\n  {line}" for line in lines if line)


#: Options that messages leave out, and the maximum number of options in a message.
_ASIDE = ("bf16", "logging_steps", "gradient_checkpointing", "log_completions", "generation_batch_size")
_SETTINGS = 6


#: The reason for skipping an invariant because the run lacks a part that the invariant needs, such as a reference.
#: Such invariants are counted together, not listed by reason.
ELSEWHERE = "this run does not have the part that it needs"
#: The suffix of an invariant's name when the invariant is checked in an evaluation.
IN_EVALUATION = " (evaluation)"


def _facts_read(facts: Mapping[str, Any], steps: Steps | None) -> str:
    return "" if facts else "the trainer's settings were not read"


def _own(*names: str) -> Unless:
    """Return a condition for :attr:`Invariant.unless`: the user has overridden none of these methods.

    :param names: names of methods, or keys of :attr:`Steps.methods`.
    """

    def unless(facts: Mapping[str, Any], steps: Steps | None) -> str:
        if not facts:
            return "the trainer's settings were not read"
        methods = [name for key in names for name in (steps.methods.get(key, ()) if steps else ())]
        own = next((facts["own"][name] for name in (*names, *methods) if name in facts["own"]), "")
        return f"{own} is your own" if own else ""

    return unless


def _also(*conditions: Unless) -> Unless:
    return lambda facts, steps: next((why for one in conditions if (why := one(facts, steps))), "")


def _documented(what: str) -> Unless:
    """Return a condition for :attr:`Invariant.unless`: the adapter documents ``what``, and all options that are set."""

    def unless(facts: Mapping[str, Any], steps: Steps | None) -> str:
        if not facts or steps is None:
            return _facts_read(facts, steps) or f"the adapter does not document {facts['class'] or 'this trainer'}"
        if not getattr(steps, what):
            return ELSEWHERE if what in steps.lacks else f"the adapter does not document the trainer's {what}"
        unknown = [name for name in facts["changed"] if name not in steps.knows]
        return f"the adapter does not know the option {unknown[0]}" if unknown else ""

    return unless


def _undocumented(facts: Mapping[str, Any], steps: Steps | None) -> str:
    """Return a reason if neither the adapter nor transformers documents the trainer; otherwise ""."""
    plain = facts["class"] == "transformers.trainer.Trainer"
    return "" if plain or steps is not None else f"the adapter does not document {facts['class'] or 'this trainer'}"


def _repeatable(facts: Mapping[str, Any], steps: Steps | None) -> str:
    random = facts.get("random")
    return f"forward passes are random: {random[0]}" if random else _facts_read(facts, steps)


def _observed(facts: Mapping[str, Any], steps: Steps | None) -> str:
    return "the model is compiled (torch_compile), so its outputs are not observed" if facts.get("compiled") else ""


def _has_reference(facts: Mapping[str, Any], steps: Steps | None) -> str:
    none = steps is not None and steps.advantages is not None and not facts["options"].get("beta", True)
    return "there is no reference (beta is 0)" if none else ""


def _concerns(part: str) -> Unless:
    """Return a condition for :attr:`Invariant.unless`: :attr:`Steps.lacks` does not name this part."""
    return lambda facts, steps: ELSEWHERE if steps and part in steps.lacks else ""


_generates, _labelled = _concerns("advantages"), _concerns("labels")


def _referred(facts: Mapping[str, Any], steps: Steps | None) -> str:
    return "" if facts.get("reference", True) else ELSEWHERE


def _synchronizes(wanted: bool) -> Unless:
    """Return a condition for :attr:`Invariant.unless`: ``sync_ref_model`` has the wanted value."""

    def unless(facts: Mapping[str, Any], steps: Steps | None) -> str:
        return "" if bool(facts.get("options", {}).get("sync_ref_model")) == wanted else ELSEWHERE

    return unless


def _trains_on_completions(facts: Mapping[str, Any], steps: Steps | None) -> str:
    options, columns = facts["options"], facts.get("given", {}).get("columns")
    chosen = options.get("completion_only_loss", False)
    if chosen is None:  # the default: the trainer chooses by the dataset's columns
        chosen = columns is None or "prompt" in columns
    return "" if chosen or options.get("assistant_only_loss") else ELSEWHERE


def _evaluates(facts: Mapping[str, Any], steps: Steps | None) -> str:
    return "" if facts.get("evaluates") else ELSEWHERE


def _sharded(facts: Mapping[str, Any], steps: Steps | None) -> str:
    return "parameters are sharded" if facts.get("distributed") in SHARDED else ""


def _callback(*names: str) -> Unless:
    def unless(facts: Mapping[str, Any], steps: Steps | None) -> str:
        name = next((name for name in names if name in facts.get("callbacks", {})), "")
        return f"{facts['callbacks'][name]}.{name} is your own" if name else ""

    return unless


def _one_process(facts: Mapping[str, Any], steps: Steps | None) -> str:
    if not facts:
        return "the trainer's settings were not read"
    if facts["scaler"]:
        return "gradients are scaled (fp16)"
    return "" if facts["distributed"] == "NO" else f"several processes combine gradients ({facts['distributed']})"


def _micro(values: Mapping[str, Any]) -> Any:
    """Convert an observed micro-batch to the argument that functions of :class:`Steps` take."""
    facts = values["facts"]
    names = ("batch", "attributes", "forwards", "items", "rewards")
    given = {name: values.get(name) for name in names}
    given |= {"evaluating": bool(values.get("evaluating")), "world": values.get("world", 1)}
    return SimpleNamespace(facts=facts, options=facts["options"], **given)


def _near(one: Any, other: Any, relative: float = 1e-3, absolute: float = 1e-5) -> bool:
    return torch.allclose(
        torch.as_tensor(one).double(), torch.as_tensor(other).double(), rtol=relative, atol=absolute, equal_nan=True
    )


def _trimmed(row: torch.Tensor) -> bytes:
    """Return a row as bytes. Zeros at both ends are removed, because padding may add or remove them."""
    places = row.reshape(-1).nonzero()
    return _bits(row.reshape(-1)[int(places.min()) : int(places.max()) + 1]) if len(places) else b""


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _rows_stay(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    rows: Mapping[str, torch.Tensor] = values["rows"]
    if kind == "produced":
        memory["rows"] = rows
        return None
    produced: Mapping[str, torch.Tensor] = memory.get("rows", {})
    missing = sorted(produced.keys() - rows.keys())
    if missing:
        return f"{', '.join(missing)} was computed for each row but does not reach the loss"
    shared = sorted(produced.keys() & rows.keys())
    if not shared:
        return None
    rows_made = [{name: _trimmed(produced[name][row]) for name in shared} for row in range(len(produced["advantages"]))]
    for row in range(len(rows["advantages"])):
        here = {name: _trimmed(rows[name][row]) for name in shared}
        if here in rows_made:
            continue
        nearest = max(rows_made, key=lambda other: sum(here[name] == other[name] for name in shared))
        return f"{', '.join(n for n in shared if here[n] != nearest[n])} of row {row} changed after they were computed"
    return ""


def _sampling_options(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    options = [(name, pair) for name, pair in values.items() if isinstance(pair, tuple)]
    wrong = [
        f"{name} is {got}, but {wanted} is configured"
        for name, (wanted, got) in options
        if (wanted or None) != (got or None)
    ]
    return "; ".join(wrong)


def _ratio_is_one(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    mask = values["response_mask"] != 0
    if not mask.any():
        return None
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
    return (
        f"log-probs of rollout and trainer differ by {mean:.3g} on average, although no optimizer step lies between "
        f"them (by response length and token position: {where})"
    )


def mismatch(memory: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean absolute difference between the log-probs of rollout and trainer, in nats.

    It is computed for each range of token positions (such as ``token 2-3``) and response lengths (``length 4-7``).
    """
    return {
        f"{name} {1 << power}" + (f"-{(2 << power) - 1}" if power else ""): total / count
        for (name, power), (total, count) in sorted(memory.get("sums", {}).items())
    }


#: Largest mean difference, in nats, between the log-probs of an inference engine and of a trainer with equal weights.
_AGREE = 0.1


def _of_the_model(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    if kind == "answers" and not _policy(values):
        return None
    memory.setdefault(kind, {})[values["moment"]] = values
    call, answer = (memory.get(name, {}).pop(values["moment"], None) for name in ("call", "answers"))
    if call is None or answer is None:
        if call or answer:
            memory[kind] = {values["moment"]: values}
        return None
    of_loss, mask, policy = call["log_probs"], call["response_mask"] != 0, _policy(answer)
    of_model = policy["log_probs"][:, -of_loss.shape[1] :]
    if of_model.shape != of_loss.shape:
        return None
    apart = (of_model - of_loss)[mask & ~of_model.isnan()].abs()
    if not len(apart):
        return None
    most = max(_AGREE, 2 * float(policy["bound"]))
    return (
        f"a token's log-prob in the loss differs by {float(apart.max()):.3g} from the one that the model computes"
        if float(apart.max()) > most
        else ""
    )


def _policy(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first forward pass of the trained model whose log-probs were recomputed; empty if there is none."""
    return next((one for one in values["forwards"] if one["model"] == "trained" and "log_probs" in one), {})


def _reported_are_the_models(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    compared, most = False, 0.0
    for one in values["forwards"]:
        reported = one["reported"]["log_probs"]
        if reported is None or "log_probs" not in one or reported.shape != one["log_probs"].shape:
            continue
        known = ~one["log_probs"].isnan() & (reported != 0)
        if known.any():
            compared = True
            apart = float((one["log_probs"] - reported)[known].abs().max())
            most = max(most, apart if apart > max(2 * float(one["bound"]), 1e-4) else 0.0)
    fault = f"a log-prob that the model reports differs by {most:.3g} from its last layer's" if most else ""
    return fault if compared else None


def _labels_are_tokens(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    batch = values["batch"]
    labels, attention, ids = batch.get("labels"), batch.get("attention_mask"), batch.get("input_ids")
    if labels is None or ids is None or labels.shape != ids.shape:
        return None
    learned = labels != -100
    for shift, how in ((1, "later"), (-1, "earlier")):
        moved = ids.roll(shift, -1)
        if learned.sum() > 1 and (labels == moved)[learned].all() and (moved != ids)[learned].any():
            return f"all {int(learned.sum())} labels are the tokens one position {how} than the model expects"
    if attention is not None and attention.shape == labels.shape:
        behind = learned[:, 1:] & (attention[:, 1:] == 0) & (attention[:, :-1] == 0)
        if behind.any():
            return f"the loss includes {int(behind.sum())} padding tokens"
    return ""


def _prompts_are_masked(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    options, batch = values["facts"]["options"], values["batch"]
    labels, attention = batch.get("labels"), batch.get("attention_mask")
    # If the option is left at its default, the trainer derives its attribute from the dataset's columns.
    chosen = options.get("completion_only_loss"), values["attributes"].get("completion_only_loss")
    partly = True in (*chosen, options.get("assistant_only_loss"))
    if labels is None or attention is None or not partly or labels.shape != attention.shape:
        return None
    short = (attention != 0).sum(-1) < (options.get("max_length") or math.inf)
    masked = ((labels == -100) & (attention != 0))[:, 1:].any(-1)[short]
    memory["any"] = memory.get("any", False) or bool(masked.any())
    memory["rows"] = memory.get("rows", 0) + len(masked)
    if memory["any"] or memory["rows"] < _ROWS:
        return ""
    return f"all {memory['rows']} rows train on all their tokens, including the prompt, which should be masked"


#: Number of rows after which unmasked prompts are reported.
_ROWS = 8


def _mean_of_labels(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    policy, labels = _policy(values), values["batch"].get("labels")
    if not policy or labels is None or "advantages" in values["batch"]:
        return None
    learned = labels[:, 1:] != -100
    if policy["log_probs"].shape != learned.shape or policy["log_probs"][learned].isnan().any():
        return None
    if any(one["reported"]["aux_loss"] is not None for one in values["forwards"]):
        raise DoesNotApply("the model adds an auxiliary loss")
    terms = -policy["log_probs"][learned].double()
    items = float(values["items"]) if values["items"] is not None else float(learned.sum())
    # If labels are counted over all ranks, the loss of one rank is multiplied by the number of ranks.
    shared = values.get("world", 1) if values["items"] is not None else 1
    expected, loss = float(terms.sum()) / max(items, 1.0) * shared, float(values["loss"])
    most = (2 * float(policy["bound"]) * len(terms) + 1e-3 * float(terms.abs().sum())) / max(items, 1.0) * shared
    apart = abs(loss - expected) > most + 1e-6
    return f"the loss is {loss:.6g}; the mean cross-entropy of the labels is {expected:.6g}" if apart else ""


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _loss(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    expected, rounding = map(_number, values["steps"].loss(_micro(values)))
    loss = float(values["loss"])
    if not math.isfinite(expected) or not math.isfinite(rounding):
        raise DoesNotApply("the documented loss of this batch is not finite")
    if abs(loss - expected) <= rounding + 1e-6:
        return ""
    ratio = loss / expected if abs(expected) > 100 * rounding + 1e-9 else math.nan
    shown = f" ({ratio:.4g} times as much)" if math.isfinite(ratio) else ""
    steps = values["attributes"].get("current_gradient_accumulation_steps") or 1
    close = 1e-4 + rounding / abs(expected or 1.0)  # tolerance for the ratio to count as equal to the factor
    factor = next((one for one in (steps, 1 / steps) if steps > 1 and _near(ratio, one, close)), 1)
    if factor != 1 and values.get("evaluating"):
        how = "multiplied" if factor > 1 else "divided"
        shown += f", as if it were {how} by {steps} accumulated micro-batches, which an evaluation does not have"
    elif factor > 1:
        shown += f", as if the divisor left out the accumulation of {steps} micro-batches"
    elif factor < 1:
        shown += f", as if the loss were divided twice by the {steps} accumulated micro-batches"
    return f"a micro-batch's loss is {loss:.6g}, and its documented value is {expected:.6g}{shown}"


def _gradient(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Compare the gradient of a micro-batch's loss with the gradient of the documented loss, for each model output.

    Observed gradients are divided by the gradient of the loss itself, which removes scale factors. The documented
    gradient is computed three times: for the observed outputs, and for these outputs plus and minus their rounding
    error. Any value in between is accepted, because near a clip bound the gradients on both sides are right.
    """
    scale, slopes = values["slope"], values["slopes"]
    if scale is None or not scale or not any(slopes):
        raise DoesNotApply("no gradient of the loss was observed")
    if _loss(kind, values, {}):
        return None
    several = [_slopes(values, shift) for shift in (0, 1, -1)]
    for place, observed in enumerate(slopes):
        for name, gradient in observed.items():
            expected = torch.stack([one[place][name].double() for one in several])
            if not torch.isfinite(expected).all():
                raise DoesNotApply("the documented gradient of this batch is not finite")
            got = torch.zeros_like(expected[0]) if gradient is None else gradient.double() / float(scale)
            low, high, size = expected.amin(0), expected.amax(0), expected.abs().amax(0)
            # Log-probs of tokens without a label are set to 0. Their gradients have no effect and are not compared.
            shown = values["forwards"][place]["reported"]["log_probs"]
            used = shown != 0 if getattr(shown, "shape", None) == got.shape else torch.ones_like(got, dtype=torch.bool)
            most = 4 * (high - low) + 1e-3 * size + 1e-4 * (size * used).max()
            wrong = ((got < low - most) | (got > high + most)) & used
            if wrong.any():
                at = (got - expected[0]).abs().masked_fill(~wrong, -1.0).argmax()
                how = ""
                if not got[wrong].any():
                    how = ": there is no gradient, as after a detach() or under no_grad()"
                elif not expected[0][wrong].any():
                    how = ": these elements should have no gradient, as if a detach() or a clip bound were missing"
                return (
                    f"an element of the gradient of the loss with respect to {name} is "
                    f"{float(got.reshape(-1)[at]):.4g}; the documented loss gives "
                    f"{float(expected[0].reshape(-1)[at]):.4g} ({int(wrong.sum())} of {wrong.numel()} elements "
                    f"differ){how}; the value of the loss is right ({float(values['loss']):.3g})"
                )
    return ""


def _slopes(values: Mapping[str, Any], shift: int) -> list[dict[str, torch.Tensor]]:
    """Return the documented loss's gradients, after each output was shifted by ``shift`` times its rounding error."""
    leaves: list[dict[str, torch.Tensor]] = []
    forwards = []
    for one, observed in zip(values["forwards"], values["slopes"]):
        moved = {name: one["reported"][name].detach().clone() for name in observed}
        for value in moved.values():
            value += shift * 16 * torch.finfo(value.dtype).eps * (value.abs() + 1)
            value.requires_grad_()
        leaves.append(moved)
        forwards.append({**one, "reported": {**one["reported"], **moved}})
    loss, _ = values["steps"].loss(_micro({**values, "forwards": forwards}))
    inputs = [value for moved in leaves for value in moved.values()]
    through = getattr(loss, "requires_grad", False)
    found = iter(torch.autograd.grad(loss, inputs, allow_unused=True) if through else [None] * len(inputs))
    return [
        {name: torch.zeros_like(value) if (one := next(found)) is None else one for name, value in moved.items()}
        for moved in leaves
    ]


def _advantages(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    for place, returned in values["rewards"]:
        infinite = [row for row, one in enumerate(returned) if one is not None and math.isinf(one)]
        if infinite:
            return f"reward function {place} returned {returned[infinite[0]]} for completion {infinite[0]}"
    expected, rounding = values["steps"].advantages(_micro(values))
    advantages = values["batch"]["advantages"].double()
    if advantages.shape != expected.shape:
        return f"advantages have the shape {tuple(advantages.shape)}, and their rewards {tuple(expected.shape)}"
    wrong = ~((advantages - expected).abs() <= rounding)
    if not wrong.any():
        return ""
    row = int(wrong.nonzero()[0])
    returned = ", ".join(f"{columns[row]}" for _, columns in values["rewards"])
    return (
        f"{int(wrong.sum())} of {len(wrong)} advantages do not follow from what the reward functions returned: "
        f"row {row} has reward {returned} and advantage {float(advantages[row]):.6g}, not {float(expected[row]):.6g}"
    )


def _constant(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    returned = {one for _, column in values["rewards"] for one in column}
    if not values["rewards"]:
        return None
    memory["same"] = memory.get("same", 0) + 1 if len(returned) == 1 else 0
    return (
        f"every reward in {_CONSTANT} successive checked batches was {returned.pop()}, which gives no advantage"
        if memory["same"] == _CONSTANT
        else ""
    )


#: Number of batches with equal rewards after which a note is printed.
_CONSTANT = 3


def _starts_as_policy(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    if values["step"] or values["attributes"]["global_step"]:
        return None
    if values["facts"].get("started"):
        raise DoesNotApply(f"the LoRA adapter changes the model from the start: {values['facts']['started']}")
    policy, reference = values["steps"].references(_micro(values))
    count = values["batch"]["completion_mask"].sum(-1).max() if policy.dim() == 1 else 1
    bound = max((float(one["bound"]) for one in values["forwards"] if "bound" in one), default=0.05)
    apart = float((policy - reference).abs().max())
    if apart <= 4 * bound * float(count) + 1e-4:
        return ""
    return f"before the first step, the reference's log-probs differ from the policy's by up to {apart:.3g}"


def _adapters_are_off(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that the reference's log-probs do not come from the trained model with its adapters on."""
    passes = [one["adapter"] for one in values["forwards"] if one["reported"]["log_probs"] is not None]
    if any(one["model"] == "reference" for one in values["forwards"]):
        raise DoesNotApply("the reference is a separate model")
    if kind == "answers" and passes:
        memory["trained"] = passes[0]
    if len(passes) < 1 + (kind == "answers") or not memory.get("trained"):
        return None
    how = f"all {len(passes)} forward passes use the trained adapter {memory['trained']}; the reference must not use it"
    return "" if {*passes} - {memory["trained"]} else how


def _resumed(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    facts = values["facts"]
    if kind == "facts":
        wrong = _resumed_elsewhere(facts)
        known = facts.get("random_state")
        return wrong or (
            None if known is None else "" if known else "the random number generators' state is not the checkpoint's"
        )
    if not values.get("places") or values["global_step"] != facts["first_step"]:
        return None
    try:
        saved = torch.load(f"{facts['checkpoint']}/optimizer.pt", map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:
        raise DoesNotApply(f"the checkpoint's optimizer.pt cannot be read: {type(error).__name__}") from None
    for name, (*_, state) in values["parameters"].items():
        for key, was in saved["state"].get(values["places"][name], {}).items():
            if key not in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer") or was is None:
                continue
            now, was = state.get(key), torch.as_tensor(was).reshape(-1)
            if now is None:
                return f"the optimizer has no {key} of {name} before the first step, although the checkpoint has it"
            now = torch.as_tensor(now).reshape(-1)
            if not _near(now, was[: len(now)], 1e-2, 1e-12):
                return f"before the first step, the optimizer's {key} of {name} differs from the checkpoint's"
    return ""


def _resumed_elsewhere(facts: Mapping[str, Any]) -> str:
    """Return a fault if training resumes at another step or batch than the checkpoint's; otherwise ""."""
    step, options, epoch = facts.get("saved_step"), facts["options"], facts.get("epoch", {})
    if step is None:
        return ""
    if facts["first_step"] != step:
        return f"the training resumes at step {facts['first_step']}, and the checkpoint is of step {step}"
    batches, accumulated = epoch.get("batches"), options["gradient_accumulation_steps"]
    if not batches or options.get("ignore_data_skip"):
        return ""
    # Before 4.46, transformers did not count an incomplete last step of an epoch.
    per_epoch = {max(batches // accumulated, 1), math.ceil(batches / accumulated)}
    expected = {step % one * accumulated for one in per_epoch}
    if facts["skipped"] in expected:
        return ""
    how = "trains on batches of the first steps again" if facts["skipped"] < min(expected) else "leaves out batches"
    return (
        f"the resumed epoch skips {facts['skipped']} of its {batches} batches, but step {step} came after "
        f"{min(expected)} of them: the training {how}"
    )


def _plan(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how often this process will load each row in the epoch.

    :raises DoesNotApply: if this was not recorded.
    """
    epoch: Mapping[str, Any] | None = values.get("epoch")
    if epoch is None:
        raise DoesNotApply("the training data were loaded before watching began")
    if "counts" not in epoch:
        raise DoesNotApply(epoch["why"])
    return epoch


def _epoch(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that all processes together load each row as often as configured in an epoch."""
    facts, steps, epoch = values["facts"], values["steps"], _plan(values)
    world = epoch["world"]
    several = _of_all(memory, (values.get("moment"), facts["first_step"]), {**values, **epoch}, epoch["counts"], world)
    if several is None:
        return None
    if len({len(one) for one in several}) > 1:
        raise DoesNotApply("processes have datasets of different sizes")
    counts, options = torch.stack(several).sum(0), facts["options"]
    dropped = epoch["size"] * world - 1 if options.get("dataloader_drop_last") else 0
    declared = steps is not None and steps.epoch is not None
    most, times = steps.epoch(options) if declared else (dropped, 1)
    left = int((counts == 0).sum())
    if left > most:
        return f"an epoch leaves out {left} of the {len(counts)} rows of the dataset; it may leave out at most {most}"
    loaded = counts[counts > 0]
    low, high = int(loaded.min()), int(loaded.max())
    # Several processes need equally many rows, so they load some rows twice.
    if low < times or (high > times and (declared or world == 1)):
        return f"an epoch loads a row {low if low != times else high} times instead of {times}"
    return ""


def _shuffled(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that the next epoch has another order of rows than this one."""
    epoch, options = _plan(values), values["facts"]["options"]
    steps = max(epoch["batches"] // options["gradient_accumulation_steps"], 1)
    limit = options.get("max_steps", -1)
    if (limit if limit > 0 else options.get("num_train_epochs", 1) * steps) <= steps:
        raise DoesNotApply("the training has one epoch")
    return "the next epoch has the same random order of rows as this one" if epoch["repeats"] else ""


def _follows(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that a synchronized reference is the configured mean of the policy's and its own earlier weights."""
    share = values["share"]
    for name, (before, after, policy) in values["pieces"].items():
        expected = before.double() + share * (policy.double() - before.double())
        spacing = torch.finfo(after.dtype).eps
        most = 4 * spacing * (before.double().abs() + policy.double().abs()) + 1e-12
        wrong = (after.double() - expected).abs() > most
        if wrong.any():
            at = int((after.double() - expected).abs().masked_fill(~wrong, -1.0).argmax())
            got, right, mine, own = (float(one[at]) for one in (after, expected, policy, before))
            how = f"{share:g} times the policy's {mine:.6g} plus {1 - share:g} times its own {own:.6g}"
            return f"element {at} of the reference's {name} is {got:.6g} instead of {right:.6g} ({how})"
    return "" if values["pieces"] else None


def _is_not_policy(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that the reference's log-probs differ from the policy's after the policy has changed."""
    if kind == "stepped":
        several = values["parameters"].values()
        moved = max(
            (float((after.double() - before.double()).abs().max()) for before, after, *_ in several), default=0.0
        )
        size = max((float(before.double().abs().max()) for before, *_ in several), default=0.0)
        memory["moved"] = max(memory.get("moved", 0.0), moved / max(size, 1e-12))
        return None
    if memory.get("moved", 0.0) < _MOVED:
        return None
    policy, reference = values["steps"].references(_micro(values))
    if not policy.any():
        return None
    memory["equal"] = memory.get("equal", 0) + 1 if torch.equal(policy, reference) else 0
    how = (
        "the reference's log-probs equal the policy's bit by bit, although the policy's weights have changed by up to "
        f"{memory['moved']:.2g} of the largest weight"
    )
    return how if memory["equal"] >= _EQUAL else ""


#: Relative change of a weight from which the policy's log-probs must differ from the reference's, and number of
#: successive batches with equal log-probs after which the fault is reported.
_MOVED, _EQUAL = 1e-3, 2


def _rows_are(name: str) -> Check:
    """Return a check that reports ``values[name]``: a fault that the training process has found, or none."""

    def broken(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
        fault, why = values[name]
        if why:
            raise DoesNotApply(why)
        return str(fault)

    return broken


def _batch(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    if (kind == "scored") != ("advantages" in values["batch"]):
        return None
    return str(values["steps"].batch(_micro(values)))


def _samples(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that the completions are samples of the policy, by a statistical test.

    If they are, the likelihood ratio between the policy at another temperature and the policy has mean 1. The product
    of these ratios therefore exceeds 1/p with a probability of at most p, however long the run is (Ville's inequality).
    """
    one, mask = _policy(values), values["batch"].get("completion_mask")
    if not values["fresh"] or "entropy" not in one or mask is None:
        return None
    values["steps"].samples(_micro(values))
    width = mask.shape[1]
    known = (mask != 0) & ~one["log_probs"][:, -width:].isnan()
    known &= values["batch"].get("tool_mask", mask) != 0
    log_probs, entropy = (one[name][:, -width:][known].double() for name in ("log_probs", "entropy"))
    slack = 2 * float(one["bound"])
    totals = memory.setdefault("totals", dict.fromkeys(TILTS, 0.0))
    for tilt in TILTS:
        totals[tilt] += float((tilt * log_probs - one[f"tilt {tilt:g}"][:, -width:][known].double() - slack).sum())
    for name, value in (("log_probs", log_probs), ("minus entropy", -entropy), ("tokens", torch.ones_like(entropy))):
        memory[name] = memory.get(name, 0.0) + float(value.sum())
    evidence = torch.logsumexp(torch.tensor([*totals.values()]), 0) - math.log(len(totals))
    if evidence <= _EVIDENCE:
        return ""
    count = memory["tokens"]
    mean, expected = memory["log_probs"] / count, memory["minus entropy"] / count
    how = "more probable" if mean > expected else "less probable"
    return (
        f"the mean log-prob of {int(count)} sampled tokens is {mean:.4g}; for samples of the policy, it would be about "
        f"{expected:.4g}, the policy's negative entropy: the tokens are {how} than samples of the policy"
    )


#: Log of the inverse probability of a false alarm in a whole run.
_EVIDENCE = math.log(1e6)


def _settings_arrive(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    made, facts, steps = values.get("made"), values["facts"], values["steps"]
    if made is None:
        raise DoesNotApply("the trainer was created before watching began")
    wrong = []
    for path, option in steps.settings.items():
        try:
            expected = option(facts["options"]) if callable(option) else facts["options"][option]
        except KeyError:
            continue
        got = made.get(path)
        if got not in (None, SET) and expected not in (None, SET) and not _same(got, expected):
            name = option if isinstance(option, str) else "the configuration"
            wrong.append(f"trainer.{path} is {got!r}, but {name} is {expected!r}")
    return "; ".join(wrong)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) or isinstance(other, list):
        one, other = (value if isinstance(value, list) else [value] for value in (one, other))
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _optimizer(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    created, options = values.get("created"), values["facts"]["options"]
    if created is None:
        raise DoesNotApply("the optimizer is your own, or was created before watching began")
    if options.get("optim") not in ("adamw_torch", "adamw_torch_fused") or options.get("optim_args"):
        raise DoesNotApply(f"optim is {options.get('optim')}")
    expected = {"lr": options["learning_rate"], "eps": options["adam_epsilon"]}
    expected["betas"] = [options["adam_beta1"], options["adam_beta2"]]
    for group in created["groups"]:
        for name, value in expected.items():
            if group["names"] and not _same(group.get(name), value):
                return f"{name} is {group.get(name)}, but {value} is configured"
        decayed = [name for name in group["names"] if name in created["linear"]]
        if decayed and not _same(group["weight_decay"], options["weight_decay"]):
            right = options["weight_decay"]
            return f"weight_decay of {decayed[0]} is {group['weight_decay']}, but {right} is configured"
        others = [name for name in group["names"] if name.endswith(".bias") or name in created["norms"]]
        if others and group["weight_decay"]:
            return f"weight_decay of {others[0]} is {group['weight_decay']}, but it should be 0 for biases and norms"
    return ""


def _divided_once(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    configured, done = values["facts"]["options"].get("gradient_accumulation_steps"), len(values["losses"])
    if values["wanted"] and done == configured != values["wanted"] and not values["facts"].get("streams"):
        return (
            f"losses are divided by current_gradient_accumulation_steps={values['wanted']}, but the step has {done} "
            "micro-batches"
        )
    for raw, returned, steps in values["returned"]:
        if steps and not _near(returned, float(raw) / steps, 1e-2 if raw.dtype != torch.float32 else 1e-4, 1e-9):
            return (
                f"compute_loss returned {float(raw):.6g}, and {float(returned):.6g} was differentiated instead of "
                f"{float(raw) / steps:.6g} (for {values['wanted']} micro-batches in a step)"
            )
    return "" if values["returned"] else None


def _of_all(memory: dict[str, Any], key: Any, values: Mapping[str, Any], own: Any, over: int) -> list[Any] | None:
    """Store what one process observed at a moment. Return the observations of all processes when the last one arrives.

    :param key: the moment. ``own``: the observation of this process. ``over``: the number of processes.
    :raises DoesNotApply: if the processes split parameters or rows.
    """
    if values.get("world", 1) > 1 and not values.get("replicated"):
        raise DoesNotApply("parameters or rows are split over ranks")
    moments = memory.setdefault("moments", {})
    several = moments.setdefault(key, {})
    several[values.get("process")] = own
    while len(moments) > _KEPT:
        moments.pop(next(iter(moments)))
    return [*several.values()] if len(several) == over else None


def _items(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that a supervised loss is divided by the number of labels of the whole step."""
    own = memory.setdefault(f"process {values.get('process')}", {})
    if kind == "answers":
        labels, items = values["batch"].get("labels"), values["items"]
        if own.get("step") != values["step"]:
            own.clear()
            own |= {"step": values["step"], "items": [], "trained": 0, "labels": 0, "shifts": False}
        known = labels is not None and items is not None and "shift_labels" not in values["batch"]
        if known and labels.dim() == 2 and "advantages" not in values["batch"]:
            own["items"].append(float(items))
            own["trained"] += int((labels[:, 1:] != -100).sum())
            # Older versions of transformers count the label of the first token, too.
            known_loss = not _undocumented(values["facts"], values["steps"]) and not values["facts"]["loss_function"]
            own["shifts"] = known_loss and values["attributes"].get("_loss_shifts_labels")
            own["labels"] += int((labels != -100).sum())
        return None
    if own.get("step") != values["step"] or not own["items"] or len(own["items"]) != len(values["losses"]):
        return None
    world = values.get("world", 1)
    over = world if values["facts"]["options"].get("average_tokens_across_devices") else 1
    several = _of_all(memory, (values["step"], values.get("process") if over == 1 else 0), values, dict(own), over)
    if several is None:
        return None
    items = [one for each in several for one in each["items"]]
    trained, labels = (sum(each[name] for each in several) for name in ("trained", "labels"))
    most = trained if all(each["shifts"] for each in several) else labels
    if min(items) == max(items) and trained <= items[0] <= most:
        return ""
    shown = f"{min(items):g}" if min(items) == max(items) else f"{min(items):g} to {max(items):g}"
    ranks = f" of {over} processes" * (over > 1)
    return (
        f"losses of a step are divided by {shown} tokens (num_items_in_batch), but its {len(items)} micro-batches"
        f"{ranks} train on {trained} labels"
        + ", because the labels of first tokens are not predicted"
        * bool(min(items) == max(items) == labels)
    )


def _tokens_counted(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    """Check that a policy loss is divided by the number of trained tokens of all processes."""
    batch, world = values["batch"], values.get("world", 1)
    if "num_items_in_batch" not in batch or "completion_mask" not in batch:
        return None
    trained = int(((batch["completion_mask"] != 0) & (batch.get("tool_mask", batch["completion_mask"]) != 0)).sum())
    own = trained, float(batch["num_items_in_batch"])
    several = _of_all(memory, (values["step"], values.get("moment")), values, own, world)
    if several is None:
        return None
    trained = sum(one for one, _ in several)
    wrong = [items for _, items in several if items != trained]
    ranks = f" of {world} processes" * (world > 1)
    return (
        f"num_items_in_batch is {wrong[0]:g}, but the completions{ranks} have {trained} trained tokens" if wrong else ""
    )


def _evaluated(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    if values["dropout"]:
        return f"dropout is on: {values['dropout']}"
    changed = values["changed"]
    return f"{changed[0]} changed ({counted(len(changed), 'value')} in all)" if changed else ""


def _mean_of_batches(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    """Check that an evaluation's loss is the mean loss of its batches. A smaller last batch may count less."""
    losses, returned = [float(one) for one in values["losses"]], values["returned"]
    if returned is None or not losses or not all(map(math.isfinite, losses)):
        raise DoesNotApply("the evaluation returned no loss")
    if values["batches"] != len(losses):
        raise DoesNotApply("the number of batches is unknown, or a batch has several losses")
    whole, last = losses[:-1], losses[-1]
    means = [sum(losses) / len(losses), sum(whole) / len(whole) if whole else last]
    slack = 1e-3 * max(map(abs, losses)) + 1e-6
    if min(means) - slack <= returned <= max(means) + slack:
        return ""
    return f"eval_loss is {returned:.6g}, but the mean of its {len(losses)} batches is {means[0]:.6g}"


def _gradients_add_up(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    most = values["facts"]["options"].get("max_grad_norm")
    factors = []
    for name, (total, size, gradient) in values["sums"].items():
        if not isinstance(total, torch.Tensor) or not torch.isfinite(total).all() or not total.any():
            continue
        total, gradient, size = total.double(), gradient.double(), size.double()
        factor = float((gradient * total).sum() / total.square().sum())
        spacing = 2.0**-6 if values["sums"][name][2].dtype != torch.float32 else 2.0**-14
        if ((gradient - factor * total).abs() > spacing * (size + size.mean()) * max(abs(factor), 1e-3)).any():
            return f"the gradient of {name} is not proportional to the sum over {len(values['losses'])} micro-batches"
        factors.append((factor, name, spacing))
    if not factors:
        return None
    low, high = min(factors), max(factors)
    slack = 16 * max(spacing for _, _, spacing in factors)
    if high[0] - low[0] > slack * high[0] or high[0] > 1 + slack:
        how = f"the gradient of {high[1]} is {high[0]:.4g} times the sum over micro-batches"
        return f"{how}, and that of {low[1]} {low[0]:.4g} times its sum; clipping gives all the same factor, at most 1"
    norm = float(values["norm"]) if values["norm"] is not None else math.nan
    if most and norm > most * (1 + slack):
        return f"the norm of the gradients is {norm:.4g} at the step, but max_grad_norm is {most:g}"
    if (not most or norm < most * (1 - slack)) and low[0] < 1 - slack:
        how = f"gradients are {low[0]:.4g} times their sum over micro-batches"
        return f"{how}, although their norm {norm:.4g} is below max_grad_norm {most}"
    return ""


#: transformers does not know where a dataset without a length ends. It counts the dataset's last micro-batches towards
#: the next step.
_ENDS = "the dataset has no length, so the step at its end may have a different number of micro-batches"


def _as_often(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    if memory.get("step") != values.get("step"):  # the event that ends a step may have been dropped
        memory.update(step=values.get("step"), batches=[])
    if kind == "consumed":
        options, age = values["facts"]["options"], values.get("age", 0)
        most = (options.get("steps_per_generation") or math.inf) * (options.get("num_iterations") or 1)
        if age > most:
            return f"a rollout is used by {age} micro-batches; steps_per_generation and num_iterations allow {most}"
        rows = values["rows"]
        batch = [tuple(_trimmed(rows[name][row]) for name in sorted(rows)) for row in range(len(rows["advantages"]))]
        before = memory.setdefault("batches", [])
        again = values["facts"]["options"].get("num_iterations", 1) > 1  # a batch may be used again within a step

        # Batches of a collapsed policy are not compared, because it generates equal rows.
        many = any(rows["advantages"].reshape(-1)) and len(set(batch)) == len(batch)
        if many and batch in before and not again:
            return "two micro-batches of one step have the same rows"
        before.append(batch)
        return ""
    wanted, done = values["wanted"], len(values["losses"])
    if values["facts"].get("streams"):
        raise DoesNotApply(_ENDS)
    if done == values["facts"]["options"].get("gradient_accumulation_steps"):  # micro_batches_add_up checks the divisor
        return ""
    return f"a step had {done} micro-batches; the configuration requires {wanted}" if wanted and done != wanted else ""


def _scheduled(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    expected, last = values["scheduled"], values["last"]
    if not values["theirs"]:
        given = values["facts"].get("given", {"optimizers": True})
        own = "optimizers" in given
        raise DoesNotApply("the scheduler is your own" if own else "the trainer did not create its scheduler itself")
    rate = values["facts"]["options"].get("learning_rate")
    mine = [one for one, initial in zip(last, values["initial"]) if initial == rate]
    if expected is None:
        raise DoesNotApply(values["unscheduled"])
    if not mine:
        raise DoesNotApply(f"no parameter group of your optimizer starts at learning_rate={rate}")
    wrong = [one for one in mine if not _near(one, expected, 1e-4, 1e-12)]
    if wrong:
        return f"the learning rate is {wrong[0]:.6g}, but the schedule gives {expected:.6g}"
    rates = [] if values["facts"]["callbacks"] else values["rates"]
    other = [one for one in rates if not _near(one, expected, 1e-4, 1e-12)]
    return f"the optimizer's learning rate is {other[0]:.6g}, but the schedule gives {expected:.6g}" if other else ""


def _held(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    if values["facts"].get("created") is None:
        raise DoesNotApply("the optimizer is your own, or was created before watching began")
    names = values["left"]
    return f"the optimizer does not contain {', '.join(names[:3])}, although requires_grad is set" if names else ""


def _rule(kind: str, old: Any, gradient: Any, group: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
    """Return a parameter's update by the formula in torch's documentation. Return None for an unknown optimizer or
    option."""
    odd = any(group.get(name) for name in ("amsgrad", "maximize", "nesterov", "dampening", "differentiable"))
    rate, decay = group.get("lr"), group.get("weight_decay", 0.0)
    if odd or not isinstance(rate, float) or gradient is None:
        return None
    old, gradient = old.double(), gradient.double()
    if kind in ("torch.optim.adamw.AdamW", "torch.optim.adam.Adam") and isinstance(group.get("betas"), list):
        decoupled = group.get("decoupled_weight_decay", kind.endswith("AdamW"))
        gradient = gradient if decoupled else gradient + decay * old
        (first, second), count = group["betas"], float(state.get("step", 0)) + 1
        mean, square = (
            (torch.zeros_like(old) + state.get(name, 0.0)).double()  # the state is empty before the first step
            for name in ("exp_avg", "exp_avg_sq")
        )
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient.square()
        scale = (square / (1 - second**count)).sqrt() + group["eps"]
        return -rate * mean / (1 - first**count) / scale - (rate * decay * old if decoupled else 0.0)
    if kind == "torch.optim.sgd.SGD":
        gradient = gradient + decay * old
        if group.get("momentum") and isinstance(state.get("momentum_buffer"), torch.Tensor):
            gradient = gradient + group["momentum"] * state["momentum_buffer"].double()
        return -rate * gradient
    return None


def _follow_gradients(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    known = False
    for name, (before, after, gradient, group, state) in values["parameters"].items():
        if values["optimizer"].startswith("torch.optim.") and gradient is None:
            known = True
            if not torch.equal(before, after):
                return f"{name} has no gradient but changed"
        if gradient is not None and not torch.isfinite(gradient).all():
            return f"the gradient of {name} is not finite"
        update = _rule(values["optimizer"], before, gradient, group, state)
        if update is None or not torch.isfinite(update).all():
            continue
        known, halves = True, before.dtype != torch.float32
        spacing = torch.finfo(before.dtype).eps
        moved = after.double() - before.double()
        most = 4 * spacing * (before.abs().double() + update.abs()) + (0.1 if halves else 2e-3) * update.abs() + 1e-12
        wrong = (moved - update).abs() > most
        if wrong.any():
            at = int(wrong.nonzero()[0])
            optimizer = values["optimizer"].rpartition(".")[2]
            if torch.equal(before, after):
                return (
                    f"{name} has a gradient but did not change; {optimizer} would change it by {float(update[at]):.4g}"
                )
            how = f"{optimizer} would change it by {float(update[at]):.4g}"
            return f"element {at} of {name} changed by {float(moved[at]):.4g}, but {how}"
    if not known:
        raise DoesNotApply(f"the update rule of {values['optimizer']} is not known")
    return ""


def _lost(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    due = stayed = 0
    dtype = None
    for before, after, gradient, group, state in values["parameters"].values():
        update = _rule(values["optimizer"], before, gradient, group, state)
        if update is not None:
            due += int((update != 0).sum())
            stayed += int(((update != 0) & (before == after)).sum())
            dtype = before.dtype
    if not due:
        return None
    if stayed <= 0.9 * due:
        return ""
    return (
        f"{stayed} of {due} observed elements did not change: the update is smaller than the spacing of {dtype} numbers"
    )


def _reference_stays(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    for name, (first, now, trained) in values["reference"].items():
        if trained:
            return f"the optimizer contains the reference's {name}"
        if not torch.equal(first, now):
            return f"the reference's {name} changed"
    return "" if values["reference"] else None


def _disturbed(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str:
    apart, largest = float(values["apart"]), float(values["largest"])
    if not apart > (_HALF_APART if values["halves"] else _APART) * largest:
        return ""
    of = "padding tokens" if values["what"] == "padding" else "tokens of the first document of a row"
    return (
        f"changing {values['tokens']} {of} changes the last hidden states of other tokens by up to {apart:.3g}, "
        f"which must not depend on them (the largest hidden state is {largest:.3g})"
    )


#: Largest change of a hidden state that counts as a rounding error, as a share of the largest hidden state: in single
#: precision, and in half precision.
_APART, _HALF_APART = 1e-3, 5e-2


def _ranks_agree(kind: str, values: Mapping[str, Any], memory: dict[str, Any]) -> str | None:
    if not values.get("replicated"):
        return None
    own: dict[str, Any]
    if kind == "answers":
        ids = values["batch"].get("input_ids")
        if ids is None or "advantages" in values["batch"]:  # a collapsed policy may generate the same rows
            return None
        own = {"its rows": _bits(ids)}
    elif kind == "stepping":
        own = {"the learning rate": values["rates"]}
    else:
        own = {name: _bits(after) for name, (_, after, *_) in values["parameters"].items()}
    others = memory.setdefault(f"{kind} {values['moment' if kind == 'answers' else 'step']}", {})
    apart = [name for other in others.values() for name in own.keys() & other.keys() if own[name] != other[name]]
    compared, same = bool(others), own in others.values()
    others[values["process"]] = own
    while len(memory) > _KEPT:
        memory.pop(next(iter(memory)))
    if kind != "answers":
        return f"{min(apart)} differs between processes" if apart else ""
    alike = memory.pop("alike", 0)
    # Equal rows are reported only if they occur twice in succession, because the end of a dataset may cause them once.
    memory["alike"] = alike if not compared else alike + 1 if same else 0
    return "two processes train on the same rows" if same and memory["alike"] > 1 else ""


#: Maximum number of moments whose observations are stored until all processes have reported theirs.
_KEPT = 64

INVARIANTS = (
    Invariant(
        "rows_stay_together", ("produced", "consumed"),
        "advantages, masks and old log-probs of a row belong to that row's tokens",
        f"{_TRAINER}, and a bound function that returns a batch with advantages", _rows_stay,
        _also(_generates, _own("advantages", "training_step", "compute_loss", "_compute_loss")), "_prepare_inputs",
        "Compare the batch before and after it is shuffled and split.",
    ),
    Invariant(
        "the_loss_is_the_documented_one", ("answers",), "the loss is the one that the configuration names",
        f"{_TRAINER} that the adapter documents", _loss, _also(_documented("loss"), _own("loss"), _observed), "loss",
        "Compare this function with the formula of loss_type in the documentation.", evaluates=True,
    ),
    Invariant(
        "the_gradient_is_the_documented_one", ("answers",), "the gradient of the loss is that of the documented loss",
        f"{_TRAINER} that the adapter documents, and a model that reports log-probs or scores", _gradient,
        _also(_documented("loss"), _own("loss"), _observed,
              lambda facts, steps: "gradients are scaled (fp16)" if facts["scaler"] else ""), "loss",
        "Compare this function with the formula of loss_type in the documentation.",
    ),
    Invariant(
        "advantages_follow_from_rewards", ("scored",), "advantages are computed from rewards as configured",
        f"{_TRAINER} that the adapter documents, and reward functions in Python", _advantages,
        _also(_documented("advantages"), _own("advantages")), "advantages",
        "Print what the reward functions return, and the advantages.", evaluates=True,
    ),
    Invariant(
        "rewards_judge_their_own_rows", ("rows",), "a reward function gets a row's own completion, prompt and columns",
        f"{_TRAINER} that the adapter documents, and reward functions in Python", _rows_are("rewarded"),
        _also(_documented("completions"), _own("rewards")), "rewards",
        "Print the arguments of the reward function next to the decoded completion_ids of the batch.", evaluates=True,
    ),
    Invariant(
        "prompts_are_the_datasets", ("rows",), "completions continue the dataset's prompts, whole and unchanged",
        f"{_TRAINER} that the adapter documents", _rows_are("prompts"),
        _also(_documented("prompts"), _own("prompts")), "prompts",
        "Decode prompt_ids of the batch next to the dataset's prompt.", evaluates=True,
    ),
    Invariant(
        "rewards_differ", ("scored",), "equal rewards give no advantage", f"{_TRAINER} with reward functions",
        _constant, where="advantages", advice="Print some completions with their rewards.", note=True,
    ),
    Invariant(
        "the_reference_starts_as_the_policy", ("answers", "scored"), "the reference is the policy before training",
        f"{_TRAINER} that the adapter documents, a reference model, and no dropout", _starts_as_policy,
        _also(
            _documented("references"), _has_reference, _own("loss", "advantages"), _repeatable, _observed,
            lambda facts, steps: "ref_model was given" if "ref_model" in facts.get("given", {}) else "",
            lambda facts, steps: "" if "given" in facts else "the trainer was created before watching began",
        ),
        "loss", "Compare both forward passes: attention mask, temperature, adapters, and the path of the reference.",
    ),
    Invariant(
        "the_reference_has_no_adapter", ("answers", "scored"),
        "the reference of a model with an adapter is the model without the adapter",
        f"{_TRAINER} that the adapter documents, with LoRA or another adapter, and a reference", _adapters_are_off,
        _also(
            _documented("loss"), _has_reference, _own("loss", "advantages"), _observed,
            lambda facts, steps: "" if facts.get("adapters") and steps and steps.references else ELSEWHERE,
            lambda facts, steps: ELSEWHERE if facts["options"].get("precompute_ref_log_probs") else "",
        ),
        "loss", "Check that adapters are off in the reference's forward pass.",
    ),
    Invariant(
        "the_reference_is_not_the_policy", ("answers", "scored", "stepped"), "the reference does not follow the policy",
        f"{_TRAINER} that the adapter documents, and a reference model", _is_not_policy,
        _also(
            _documented("references"), _has_reference, _own("loss", "advantages"), _observed,
            lambda facts, steps: "sync_ref_model updates the reference" if facts["options"].get("sync_ref_model")
            else "",
        ),
        "loss", "Check that adapters are off, and weights are not shared, in the reference's forward pass.",
    ),
    Invariant(
        "settings_arrive", ("facts",), "attributes of a new trainer have the configuration's values",
        f"{_TRAINER} that the adapter documents", _settings_arrive, _documented("settings"), "__init__",
        "Print the attribute after the trainer is made.",
    ),
    Invariant(
        "the_batch_means_what_it_should", ("scored", "answers"),
        "masks cover the response with its end token, and exclude padding",
        f"{_TRAINER} that the adapter documents", _batch, _also(_documented("batch"), _own("advantages", "loss")),
        "advantages", "Print one row's tokens with its masks and labels.", evaluates=True,
    ),
    Invariant(
        "batches_are_their_rows", ("collated",), "a collator only pads or joins rows; positions restart per document",
        f"{_TRAINER} that the adapter documents, and rows that this process collates", _rows_are("rows"),
        _also(
            lambda facts, steps: "" if steps and steps.collators else ELSEWHERE, _facts_read,
            lambda facts, steps: f"{facts['collator']} makes the batches" if facts.get("collator") else "",
            lambda facts, steps: "other processes collate the rows (dataloader_num_workers)"
            if facts["options"].get("dataloader_num_workers") else "",
        ),
        "", "Print one row of the dataset next to its row in a batch that the collator makes.",
    ),
    Invariant(
        "tokens_are_the_datasets", ("tokens",), "rows of a dataset have the tokens and labels of their own text",
        f"{_TRAINER} that the adapter documents, and a dataset of texts or messages", _rows_are("tokens"),
        _also(_documented("tokens"), _own("tokens")), "tokens",
        "Print the text of this row next to its decoded tokens and labels.",
        ("completion_only_loss", "assistant_only_loss", "max_length"), evaluates=True,
    ),
    Invariant(
        "other_tokens_change_nothing", ("disturbed",), "padding and other documents do not affect a token",
        f"{_TRAINER}, padding or packed documents, no dropout, and whole parameters", _disturbed,
        _also(_repeatable, _sharded, _observed, _own("loss", "compute_loss")), "compute_loss",
        "Print attention_mask and position_ids of the model's forward pass.",
    ),
    Invariant(
        "samples_come_from_the_policy", ("answers",), "the policy that generates is the one that is trained",
        f"{_TRAINER} that the adapter documents, and no dropout", _samples,
        _also(
            _documented("samples"), _own("samples", "loss"), _repeatable, _observed,
            lambda facts, steps: f"the model's generation config sets {facts['generation'][0]}" if facts["generation"]
            else "",
        ),
        "samples", "Compare the generation options and weights with the trainer's.",
    ),
    Invariant(
        "sampling_is_as_asked", ("generated",), "the policy samples at the configured temperature",
        f"{_TRAINER} that generates with transformers", _sampling_options, _also(_generates, _own("samples")),
        "samples",
        "Print the generation config that is passed to generate().",
    ),
    Invariant(
        "the_first_ratio_is_one", ("fresh",), "before a step, the policy is still the one that generated the samples",
        "a loss with old log-probs whose calls can be read", _ratio_is_one,
        _also(_generates, lambda facts, steps: _repeatable(facts, steps) if facts else "", _callback("on_substep_end")),
        "advantages",
        "Compare the temperature and the weights of both log-probs.", across=True,
    ),
    Invariant(
        "log_probs_are_the_models", ("call", "answers"), "the loss gets the model's log-probs of the trained tokens",
        f"{_TRAINER}, and a loss with log-probs whose calls can be read", _of_the_model,
        _also(_generates, _own("loss"), _observed),
        "loss",
        "Check the shift between logits and labels, and the temperature.",
    ),
    Invariant(
        "reported_log_probs_are_the_models", ("answers",), "reported log-probs equal those of the model's last layer",
        f"{_TRAINER}, and a model that reports log-probs", _reported_are_the_models, _also(_own("loss"), _observed),
        "loss",
        "Check the temperature and the labels of the model's output layer.", evaluates=True,
    ),
    Invariant(
        "labels_are_tokens", ("answers",), "a label is the token at the same position; the model shifts the labels",
        f"{_TRAINER}, and labels", _labels_are_tokens,
        _also(
            _labelled, _own("loss", "compute_loss"),
            lambda facts, steps: "compute_loss_func is yours" if facts["loss_function"] else "",
        ),
        "compute_loss", "Print input_ids and labels of one batch of the collator.", evaluates=True,
    ),
    Invariant(
        "prompts_are_not_learned", ("answers",), "if completions only are configured, prompts are not trained on",
        f"{_TRAINER}, and labels", _prompts_are_masked,
        _also(
            _facts_read, _trains_on_completions,
            lambda facts, steps: f"your collator {facts['collator']} makes the batches" if facts["collator"] else "",
        ),
        "compute_loss", "Print input_ids and labels of one batch of the collator.",
    ),
    Invariant(
        "the_loss_is_that_of_the_labels", ("answers",), "a supervised loss is the mean cross-entropy of its labels",
        f"{_TRAINER} that uses the model's own loss, and labels", _mean_of_labels,
        _also(
            _own("compute_loss"), _observed,
            lambda facts, steps: ELSEWHERE if facts["class"] != "transformers.trainer.Trainer"
            else "compute_loss_func or label smoothing is used" if facts["loss_function"] or facts["smoothing"] else "",
        ),
        "compute_loss", "Check the divisor: the tokens of the whole step, not of the micro-batch.", evaluates=True,
    ),
    Invariant(
        "the_divisor_is_the_number_of_labels", ("answers", "stepping"),
        "a supervised loss is divided by the labels of the whole step", f"{_TRAINER}, and labels",
        _items,
        _also(_labelled,
            _own("compute_loss", "training_step", "get_batch_samples", "_get_num_items_in_batch"),
            lambda facts, steps: _ENDS if facts.get("streams") else "",
            lambda facts, steps: "several devices in one process" if (facts["options"].get("_n_gpu") or 1) > 1 else "",
        ),
        "_get_num_items_in_batch", "Print num_items_in_batch in compute_loss.", ("gradient_accumulation_steps",),
        across=True,
    ),
    Invariant(
        "the_divisor_is_the_number_of_tokens", ("scored",),
        "a policy loss is divided by the trained tokens of all ranks",
        f"{_TRAINER} whose batch has num_items_in_batch", _tokens_counted,
        _also(_generates, _concerns("items"), _own("advantages", "training_step")), "advantages",
        "Print num_items_in_batch next to completion_mask.sum() on each rank.", across=True, evaluates=True,
    ),
    Invariant(
        "an_evaluation_trains_nothing", ("evaluated",), "an evaluation changes no parameter and uses no dropout",
        f"{_TRAINER} that evaluates", _evaluated,
        _also(
            _evaluates, _own("evaluation_loop", "evaluate", "prediction_step"), _callback("on_prediction_step"),
            _sharded,
            lambda facts, steps: "the optimizer swaps the weights in evaluations" if facts["weights_swap"] else "",
            lambda facts, steps: "with use_vllm, adapters are merged into the model" if facts["options"].get("use_vllm")
            else "",
        ),
        "evaluation_loop", "Look for train() and in-place changes in the methods that an evaluation calls.",
        evaluates=True,
    ),
    Invariant(
        "an_evaluation_is_the_mean_of_its_batches", ("evaluated",), "eval_loss is the mean loss of the batches",
        f"{_TRAINER} that evaluates, in one process", _mean_of_batches,
        _also(
            _evaluates, _own("evaluation_loop", "evaluate", "prediction_step"),
            lambda facts, steps: "" if facts["distributed"] == "NO" else "the losses of several processes are gathered",
        ),
        "evaluation_loop", "Print the losses that prediction_step returns.", evaluates=True,
    ),
    Invariant(
        "micro_batches_add_up", ("stepping",), "splitting a batch does not change the loss", _TRAINER, _divided_once,
        _also(_own("training_step"), lambda facts, steps: "several devices in one process"
              if (facts["options"].get("_n_gpu") or 1) > 1 else ""),
        "training_step", "Check whether both the loss and the trainer divide by gradient_accumulation_steps.",
    ),
    Invariant(
        "gradients_add_up", ("stepping",), "the gradient of a step is the clipped sum of its micro-batches' gradients",
        f"{_TRAINER} in one process", _gradients_add_up,
        _also(_one_process, _own("training_step", "_clip_grad_norm"),
              _callback("on_pre_optimizer_step", "on_substep_end", "on_optimizer_step")),
        "_clip_grad_norm", "Look for zero_grad between micro-batches, and for the clipping.",
        ("max_grad_norm", "gradient_accumulation_steps"),
    ),
    Invariant(
        "samples_are_used_as_often_as_configured", ("consumed", "stepping"), "a step has the configured batch size",
        _TRAINER, _as_often,
        _also(_own("training_step", "advantages"), lambda facts, steps: "gradients are scaled (fp16)" if facts["scaler"]
              else ""),
        "training_step", "Count the calls of optimizer.step() and of generation for each step.",
        ("gradient_accumulation_steps", "steps_per_generation", "num_iterations"),
    ),
    Invariant(
        "the_rate_is_the_schedules", ("stepping",), "the learning rate follows the configured schedule",
        _TRAINER, _scheduled,
        _also(_own("create_scheduler", "create_optimizer_and_scheduler"),
              lambda facts, steps: "steps may be skipped (fp16)" if facts["scaler"] else ""),
        "create_scheduler", "Compare the arguments of get_scheduler() with these settings, and count the calls of "
        "lr_scheduler.step().", ("lr_scheduler_type", "learning_rate", "warmup_steps", "max_steps"),
    ),
    Invariant(
        "the_optimizer_is_as_configured", ("facts",), "learning rate, decay and betas have the configured values",
        _TRAINER, _optimizer,
        _own("create_optimizer", "create_optimizer_and_scheduler", "get_decay_parameter_names",
             "get_optimizer_cls_and_kwargs"),
        "create_optimizer", "Print trainer.optimizer.", ("optim", "learning_rate", "weight_decay"),
    ),
    Invariant(
        "the_optimizer_has_all_parameters", ("stepping",), "a parameter that requires a gradient is trained", _TRAINER,
        _held, _own("create_optimizer", "create_optimizer_and_scheduler"), "create_optimizer",
        "Print the groups of trainer.optimizer.",
    ),
    Invariant(
        "parameters_follow_gradients", ("stepped",), "an update follows the optimizer's rule",
        f"a torch optimizer, and {_TRAINER}", _follow_gradients,
        _sharded,
        "", "Look for code that changes parameters or gradients in addition to the optimizer.",
    ),
    Invariant(
        "training_resumes_where_it_stopped", ("facts", "stepped"),
        "a resumed training continues with the checkpoint's optimizer and random numbers",
        f"{_TRAINER} that resumes from a checkpoint", _resumed,
        _also(
            lambda facts, steps: "" if facts.get("checkpoint") else ELSEWHERE, _sharded,
            _own("_load_optimizer_and_scheduler", "_load_rng_state", "create_optimizer", "get_train_dataloader",
                 "get_batch_samples", "training_step"),
            _callback("on_step_begin"),
        ),
        "", "Check what is loaded: optimizer.pt, scheduler.pt, rng_state.pth and trainer_state.json of the checkpoint.",
    ),
    Invariant(
        "epochs_are_shuffled_anew", ("facts",), "each epoch has another random order of rows",
        f"{_TRAINER} and a dataset with a length", _shuffled,
        _also(
            _own("get_train_dataloader", "_get_dataloader", "_get_train_sampler"), _undocumented,
            lambda facts, steps: "shuffle_dataset=False" if facts["options"].get("shuffle_dataset") is False else "",
            lambda facts, steps: "train_sampling_strategy orders the rows"
            if facts["options"].get("train_sampling_strategy") not in (None, "random") else "",
        ),
        "_get_train_sampler", "Iterate the sampler of trainer.get_train_dataloader() twice and compare the orders.",
    ),
    Invariant(
        "an_epoch_has_all_rows", ("facts",), "an epoch loads all rows of the dataset equally often",
        f"{_TRAINER} and a dataset with a length", _epoch,
        _also(
            _own("get_train_dataloader", "_get_dataloader", "_get_train_sampler"), _undocumented,
            lambda facts, steps: "train_sampling_strategy makes the batches"
            if facts["options"].get("train_sampling_strategy") not in (None, "random", "sequential", "group_by_length")
            else "",
        ),
        "_get_train_sampler", "Count how often the sampler of trainer.get_train_dataloader() yields each row.",
        across=True,
    ),
    Invariant(
        "updates_are_not_lost", ("stepped",), "an update below half the spacing of floating-point numbers is lost",
        f"a torch optimizer, and {_TRAINER}", _lost,
        advice="Train in float32, or with a larger learning rate.", note=True,
    ),
    Invariant(
        "the_reference_stays", ("stepping",), "the reference model does not change", f"{_TRAINER} with a reference",
        _reference_stays,
        _also(
            _concerns("references"), _referred, _synchronizes(False), _own("training_step"),
            _callback("on_step_begin", "on_step_end", "on_substep_end"),
        ),
        "", "Look for code that shares or loads weights between both models.",
    ),
    Invariant(
        "the_reference_follows_as_configured", ("synchronized",),
        "a synchronized reference is the configured mean of itself and the policy", f"{_TRAINER} with sync_ref_model",
        _follows,
        _also(
            lambda facts, steps: "" if steps and steps.synchronized else ELSEWHERE, _referred, _synchronizes(True),
            _sharded, _own("training_step"), _callback("on_step_begin", "on_step_end", "on_optimizer_step"),
        ),
        "", "Compare the callback that synchronizes the reference with ref_model_mixup_alpha.",
        ("ref_model_mixup_alpha", "ref_model_sync_steps"),
    ),
    Invariant(
        "the_reference_may_stay", ("stepping",), "only a callback of yours may change the reference",
        f"{_TRAINER} with a reference", _reference_stays,
        _also(_concerns("references"), _referred, _synchronizes(False),
              lambda facts, steps: "" if facts.get("callbacks") else ELSEWHERE),
        advice="If your callback does not update the reference, look for shared weights.", note=True,
    ),
    Invariant(
        "ranks_agree", ("answers", "stepping", "stepped"), "replicas are equal and train on different rows",
        f"{_TRAINER} in several processes that each have the whole model", _ranks_agree,
        lambda facts, steps: ELSEWHERE if facts.get("distributed") == "NO" else "", across=True,
        advice="Check seeds and the sampler of each rank.",
    ),
)  # fmt: skip
