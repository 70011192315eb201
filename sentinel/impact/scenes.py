"""What a recipe's scenario says about the training in which its bug bites: the configuration, and what is rare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sentinel.contracts.contract import Contract
from sentinel.errors import SentinelError
from sentinel.impact.batches import GROUP_SIZES, Batch
from sentinel.impact.entering import Entrance
from sentinel.impact.entrances import entrance
from sentinel.impact.toy import Array
from sentinel.invariants.invariant import DoesNotApply
from sentinel.recipes import Recipe, parse_address
from sentinel.values import Tensor, from_array

#: A log-ratio that training meets rarely, and what it is that of.
_LARGE = 5.0
_LOG_PROBS = ("log_probs", "old_log_probs", "ref_log_probs", "rollout_log_probs")

_REWARDS = "token_level_rewards"

#: Responses to a prompt, at least.
_FEWEST = 5


@dataclass(frozen=True)
class Rarity:
    """A token as the scenario has it and ordinary batches have not.

    :ivar values: canonical input -> its value there; all that a token has but the mask.
    :ivar rare: the names of those that make it rare, or ``log-ratio``.
    :ivar counts: whether the token counts; ``accepted`` whether its response does.
    """

    values: Mapping[str, float]
    rare: tuple[str, ...]
    counts: bool
    accepted: bool

    def __str__(self) -> str:
        where = "a token that counts" if self.counts else "a masked token"
        where += "" if self.accepted else " of a rejected response"
        shown = ", ".join(f"{name} {_number(self.values[name])}" for name in self.rare)
        return f"{shown} at {where}"


@dataclass(frozen=True)
class Scene:
    """A recipe's scenario, as a way to train.

    :ivar variant: the one whose configuration is taken: the first on which the recipe expects another value where the
        bug is than where it is not.
    :ivar settings: its inputs.
    :ivar rarities: what every tenth batch has, one token each.
    :ivar all_rejected: whether every tenth batch is rejected altogether.
    :ivar alone: whether every tenth batch has a response that is alone in its group; others have none.
    :ivar lone: whether every tenth batch has one token that counts.
    :ivar cut_off: whether in every tenth batch no response ends.
    :ivar in_parts: whether a batch is cut into two parts, whose gradients add up.
    :ivar rejecting: whether responses that do not end are rejected.
    :ivar alike: whether prompts have as many responses each.
    """

    contract: Contract
    entrance: Entrance
    variant: str
    settings: Mapping[str, Any]
    rarities: tuple[Rarity, ...]
    all_rejected: bool
    alone: bool
    lone: bool
    cut_off: bool
    in_parts: bool
    rejecting: bool = True
    alike: bool = False

    @property
    def configuration(self) -> dict[str, Any]:
        """What of the settings is no tensor of the batch: what a user would write into a configuration."""
        plain, counted = (bool, int, float, str), ("batch_num_tokens", "global_batch_size")
        return {
            item.name: self.settings[item.name]
            for item in self.contract.inputs
            if isinstance(self.settings[item.name], plain)
            and self.settings[item.name] != item.default
            and not item.dialect
            and item.name not in counted
        }

    @property
    def group_sizes(self) -> Sequence[int]:
        """Where they are alike, the scenario's is doubled until there is something to compare: a bug may be one
        of groups of three."""
        if not self.alike:
            return GROUP_SIZES
        labels = self.settings.get(self.contract.group)
        size = labels.count(labels[0]) if isinstance(labels, list) else 1
        while size < _FEWEST:
            size *= 2
        return [size] * len(GROUP_SIZES)

    @property
    def temperature(self) -> float:
        """With which responses are sampled."""
        name = self.entrance.temperature
        return float(self.settings[name]) if name else 1.0

    @property
    def rare(self) -> list[str]:
        """What every tenth batch has and others have not, in words."""
        told = [str(item) for item in self.rarities]
        told += ["no response that is accepted"] if self.all_rejected else []
        told += ["no response that ends"] if self.cut_off else []
        told += ["one token that counts"] if self.lone else []
        return told + (["a response that is alone in its group"] if self.alone else [])

    def calls(self, batch: Batch, rare: Array | None) -> list[dict[str, Any]]:
        """What the boundary is given of a batch: one set of inputs, or one a part.

        :param rare: a random number for each rarity that is to be planted, or None.
        """
        given = {name: np.array(value) for name, value in self.entrance.inputs(batch).items()}
        for rarity, uniform in zip(self.rarities, () if rare is None else rare):
            _plant(given, rarity, batch, float(uniform))
        if self.alone and rare is not None:
            given[self.contract.group][0] = "alone"
        inputs = {name: self._literal(name, value, given, batch) for name, value in self.settings.items()}
        if not self.in_parts:
            return [inputs]
        assert self.contract.parts is not None
        try:
            return self.contract.parts({**inputs, **batch.counts}, Halves())
        except DoesNotApply as error:
            raise SentinelError(f"the batch cannot be cut into parts: {error}") from None

    def slopes(self, batch: Batch, observations: Sequence[Mapping[str, Any]]) -> Array:
        """Of the loss with respect to each token's log-prob; ranks, and mini-batches, average theirs."""
        return self.entrance.slopes(batch, self._joined(observations)) / self._shares(batch)

    def value_slopes(self, batch: Batch, observations: Sequence[Mapping[str, Any]]) -> Array | None:
        """Likewise, with respect to the critic's value of each token; None where there is no critic."""
        if self.entrance.value_slopes is None:
            return None
        return self.entrance.value_slopes(batch, self._joined(observations)) / self._shares(batch)

    def _joined(self, observations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The rows of the parts, below one another."""
        whole = dict(observations[0])
        if self.in_parts:
            for key, value in whole.items():
                if isinstance(value, Tensor) and len(value.shape) == 2:
                    joined = [part[key] for part in observations]
                    shape = (sum(item.shape[0] for item in joined), *value.shape[1:])
                    whole[key] = replace(value, shape=shape, data=b"".join(item.data for item in joined))
        return whole

    def _shares(self, batch: Batch) -> int:
        rows = len(batch.rewards)
        steps = math.ceil(rows / (self.settings.get("mini_batch_size") or rows))
        return steps if self.entrance.whole else self.settings.get("dp_size") or 1

    def _literal(self, name: str, value: Any, given: Mapping[str, Array], batch: Batch) -> Any:
        if name == self.contract.mask and name not in given and isinstance(value, Tensor):
            return from_array(batch.mask, value.dtype)
        if name in batch.counts and value is not None:
            return batch.counts[name]
        if isinstance(value, list) and name in given:
            return given[name].tolist()
        if not isinstance(value, Tensor):
            return value
        if name not in given:
            raise SentinelError(f"the scenario has {name}, which the toy's batches have not")
        return from_array(given[name], value.dtype, value.requires_grad)


class Halves:
    """The choices of a cut: in the middle."""

    def integer(self, low: int, high: int) -> int:
        return (low + high) // 2

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[0]

    def integers(self, count: int, low: int, high: int) -> list[int]:
        return [self.integer(low, high)] * count

    def permutation(self, count: int) -> list[int]:
        return list(range(count))


def entered(recipe: Recipe, contract: Contract) -> Entrance:
    """:raises SentinelError: where the toy cannot be trained through the recipe's boundary."""
    return entrance(contract, recipe.variants[_telling(recipe)], str(recipe.document.get("signal", "")))


def scene(recipe: Recipe, contract: Contract, variants: Mapping[str, Mapping[str, Any]]) -> Scene:
    """:param variants: the recipe's, with what the boundary or the reference is told beside them.
    :raises SentinelError: where the toy cannot be trained through the recipe's boundary.
    """
    enters = entered(recipe, contract)
    name = _telling(recipe)
    settings = variants[name]
    mask = settings.get(contract.mask)
    counts = mask.array() != 0 if isinstance(mask, Tensor) else None
    rarities = tuple(_rarities(settings, contract, counts))
    return Scene(
        contract,
        enters,
        name,
        settings,
        rarities,
        counts is not None and not counts.any(),
        not rarities and _has_a_group_of_one(settings, contract),
        not rarities and "finite_in_finite_out" in recipe.laws and _is_one_token(counts),
        enters.every_response and counts is not None and bool(counts.all()),
        not enters.whole
        and contract.parts is not None
        and ("parts_add_up" in recipe.laws or _is_a_part(settings, counts)),
        not enters.every_response,
        settings.get("group_layout") == "equal",
    )


def concessions(told: Scene) -> list[Scene]:
    """The scene, and what is tried instead where a boundary refuses its batches: some do not take a response of which
    no token counts, and some no groups of different sizes. What else they refuse, they refuse again."""
    milder = [told]
    if told.rejecting:
        milder.append(replace(told, rejecting=False))
    if not told.alike:
        milder += [replace(item, alike=True, alone=False) for item in milder]
    return milder


def _has_a_group_of_one(settings: Mapping[str, Any], contract: Contract) -> bool:
    """Where a boundary may have groups of different sizes."""
    labels = settings.get(contract.group)
    free = settings.get("group_layout") != "equal"
    return free and isinstance(labels, list) and any(labels.count(label) == 1 for label in labels)


def _is_one_token(counts: Array | None) -> bool:
    """Whether the scenario is one response, of which one token counts: a spread of one value is none."""
    return counts is not None and len(counts) == 1 and int(counts.sum()) == 1


def _telling(recipe: Recipe) -> str:
    """The first variant on which something else is expected where the bug is than where it is not."""
    told = {"value": "", "difference": ""}
    for text, unpatched in recipe.expected_unpatched.items():
        fixed = recipe.expected_fixed.get(text)
        address = parse_address(text, recipe.variants)
        if fixed is not None and not _alike(fixed.value, unpatched.value):
            told[address.kind] = told[address.kind] or address.variants[0]
    return told["value"] or told["difference"] or next(iter(recipe.variants))


def _alike(one: Any, other: Any) -> bool:
    """Whether two expected values are the same but for rounding."""
    try:
        left, right = (np.asarray(v.nested() if isinstance(v, Tensor) else v, float) for v in (one, other))
    except (TypeError, ValueError):
        return bool(one == other)
    return left.shape == right.shape and bool(np.isclose(left, right, rtol=1e-5, atol=1e-6, equal_nan=True).all())


def _is_a_part(settings: Mapping[str, Any], counts: Array | None) -> bool:
    """Whether the scenario is a microbatch: whether the global batch has more than it has itself."""
    if counts is None:
        return False
    own = {"batch_num_tokens": counts.sum(), "global_batch_size": counts.any(-1).sum()}
    return any((settings.get(name) or 0) > max(count, 1) for name, count in own.items())


def _rarities(settings: Mapping[str, Any], contract: Contract, counts: Array | None) -> list[Rarity]:
    values = {
        item.name: settings[item.name].array().astype(np.float64)
        for item in contract.inputs
        if item.shape == ("batch", "tokens") and item.name != contract.mask and isinstance(settings[item.name], Tensor)
    }
    if not values:
        return []
    shape = next(iter(values.values())).shape
    counts = np.ones(shape, dtype=bool) if counts is None else counts
    found: dict[str, Rarity] = {}
    for cell in np.ndindex(shape):
        row = {name: float(value[cell]) for name, value in values.items()}
        rare = [name for name, value in row.items() if not np.isfinite(value)]
        rare += [name for name in _LOG_PROBS if name in row and name not in rare and _far(row, name)]
        if not counts[cell] and counts[cell[0]].any() and row.get(_REWARDS, 0.0) != 0 and _REWARDS not in rare:
            rare.append(_REWARDS)
        if rare:
            rarity = Rarity(row, tuple(rare), bool(counts[cell]), bool(counts[cell[0]].any()))
            found.setdefault(str(rarity), rarity)
    return list(found.values())


def _far(row: Mapping[str, float], name: str) -> bool:
    """Whether a log-prob is far from that of another policy."""
    return any(_LARGE < abs(row[name] - row[other]) < np.inf for other in _LOG_PROBS if other in row)


def _plant(given: Mapping[str, Array], rarity: Rarity, batch: Batch, uniform: float) -> None:
    """Give one token of the batch what the scenario has at one of its kind; nothing where there is none."""
    accepted = np.broadcast_to(batch.mask.any(-1, keepdims=True), batch.mask.shape)
    kind = batch.mask == rarity.counts
    exactly = np.argwhere(kind & (accepted == rarity.accepted))
    cells = exactly if len(exactly) else np.argwhere(kind)
    if len(cells):
        row, column = cells[int(uniform * len(cells))]
        for name, value in rarity.values.items():
            given[name][row, column] = value


def _number(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{value:.6g}"
