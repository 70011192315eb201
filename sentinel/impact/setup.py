"""Turn a recipe's scenario into the training in which its bug bites: the configuration, and what is rare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sentinel.closeness import agree
from sentinel.contracts.contract import Contract
from sentinel.errors import SentinelError
from sentinel.impact.batches import GROUP_SIZES, Batch
from sentinel.impact.parts import Part, part_of
from sentinel.impact.toy import Array
from sentinel.recipes import Recipe, parse_address
from sentinel.values import Tensor, from_array

#: What is rare is in every batch of this number.
EVERY = 10

#: A log-ratio that training meets rarely, and what it is that of.
_LARGE = 5.0
_LOG_PROBS = ("log_probs", "old_log_probs", "ref_log_probs", "rollout_log_probs")

_REWARDS = "token_level_rewards"

#: Responses to a prompt, at least.
_FEWEST = 5


class NotTakenError(SentinelError):
    """A boundary, or a reference, has no answer for a batch of training."""


@dataclass(frozen=True)
class Rarity:
    """Hold a token as the scenario has it and ordinary batches have not.

    :ivar values: canonical input -> its value there; all that a token has but the mask.
    :ivar rare: the names of those that make it rare.
    :ivar counts: whether the token counts; ``accepted`` whether its response does.
    """

    values: Mapping[str, float]
    rare: tuple[str, ...]
    counts: bool
    accepted: bool

    def __str__(self) -> str:
        where = "a token that counts" if self.counts else "a masked token"
        where += "" if self.accepted else " of a rejected response"
        return ", ".join(f"{name} {self.values[name]:.6g}" for name in self.rare) + f" at {where}"

    def plant(self, given: Mapping[str, Array], batch: Batch, uniform: float) -> None:
        """Give these values to one token of the batch that is of this kind; to none where there is none."""
        accepted = np.broadcast_to(batch.mask.any(-1, keepdims=True), batch.mask.shape)
        kind = batch.mask == self.counts
        exactly = np.argwhere(kind & (accepted == self.accepted))
        cells = exactly if len(exactly) else np.argwhere(kind)
        if len(cells):
            row, column = cells[int(uniform * len(cells))]
            for name, value in self.values.items():
                given[name][row, column] = value


@dataclass(frozen=True)
class Setup:
    """Hold how a recipe's boundary is trained through.

    :ivar variant: the scenario's variant whose configuration is taken: the first on which the recipe expects another
        value with the bug than without.
    :ivar settings: its inputs.
    :ivar rarities: what every tenth batch has, one token each.
    :ivar all_rejected: whether every tenth batch is rejected altogether.
    :ivar alone: whether every tenth batch has a response that is alone in its group; others have none.
    :ivar share: how many such batches make up the global one, whose counts the boundary divides by.
    :ivar rejecting: whether responses that do not end are rejected.
    :ivar alike: whether prompts have as many responses each.
    """

    contract: Contract
    part: Part
    variant: str
    settings: Mapping[str, Any]
    rarities: tuple[Rarity, ...]
    all_rejected: bool
    alone: bool
    share: int
    rejecting: bool = True
    alike: bool = False

    @property
    def configuration(self) -> dict[str, Any]:
        """The settings that a user would write into a configuration, where they are not the default."""
        return {
            item.name: value
            for item in self.contract.inputs
            if isinstance(value := self.settings[item.name], (bool, int, float, str))
            and value != item.default
            and not item.dialect
            and item.name not in ("batch_num_tokens", "global_batch_size")
        }

    @property
    def group_sizes(self) -> Sequence[int]:
        """How many responses each prompt has. Where they are alike, the scenario's number is doubled until there is
        something to compare: a bug may be one of groups of three."""
        if not self.alike:
            return GROUP_SIZES
        labels = self.settings.get(self.contract.group)
        size = labels.count(labels[0]) if isinstance(labels, list) else 1
        while size < _FEWEST:
            size *= 2
        return [size] * len(GROUP_SIZES)

    @property
    def notes(self) -> list[str]:
        """What the batches are like where they are not ordinary, for a reader."""
        rare = [str(item) for item in self.rarities]
        rare += ["no response that is accepted"] if self.all_rejected else []
        rare += ["a response that is alone in its group"] if self.alone else []
        notes = [f"every {EVERY}th batch has, as the scenario: {'; '.join(rare)}"] if rare else []
        notes += [f"each batch is one of {self.share} that make up the global one"] if self.share > 1 else []
        notes += [] if self.rejecting else ["no response is rejected: the boundary refuses a batch with one that is"]
        if self.alike and not _alike(self.settings):
            notes.append("prompts have as many responses each: the boundary refuses a batch in which they have not")
        return notes

    def inputs(self, batch: Batch, rare: Array | None) -> dict[str, Any]:
        """Return what the boundary is given of a batch.

        :param rare: a random number for each rarity that is to be planted, or None.
        """
        given = {name: np.array(of(batch)) for name, of in self.part.inputs.items() if name in self.settings}
        if rare is not None:
            for rarity, uniform in zip(self.rarities, rare):
                rarity.plant(given, batch, float(uniform))
            if self.alone:
                given[self.contract.group][0] = "alone"
        return {name: self._literal(name, value, given, batch) for name, value in self.settings.items()}

    def slopes(self, batch: Batch, observation: Mapping[str, Any]) -> Array:
        """Return the slope of the loss with respect to each token's log-prob; ranks, and mini-batches, average theirs.

        :raises NotTakenError: where what was observed is of another shape.
        """
        seen = observation.get(self.part.key)
        shape = (len(batch.rewards),) if self.part.is_per_row else batch.mask.shape
        if not isinstance(seen, Tensor) or seen.shape != shape:
            form = list(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
            raise NotTakenError(f"the boundary's {self.part.key} should be {list(shape)}, and is {form}")
        shares = self.settings.get("dp_size") or 1
        if "mini_batch_size" in self.settings:  # it observes the sum of all, and averages its ranks itself
            shares = math.ceil(shape[0] / (self.settings["mini_batch_size"] or shape[0]))
        return self.part.slopes(batch, seen.array().astype(np.float64)) * self.share / shares

    def _literal(self, name: str, value: Any, given: Mapping[str, Array], batch: Batch) -> Any:
        if name == self.contract.mask and isinstance(value, Tensor):
            return from_array(batch.mask, value.dtype)
        if name in batch.counts and value is not None:
            return batch.counts[name] * self.share
        if isinstance(value, list) and name in given:
            return given[name].tolist()
        return from_array(given[name], value.dtype, value.requires_grad) if isinstance(value, Tensor) else value


def setups(recipe: Recipe, contract: Contract, variants: Mapping[str, Mapping[str, Any]]) -> list[Setup]:
    """Return how the recipe's boundary is trained through, and what is tried in turn where it refuses the batches:
    some take no response of which no token counts, and some no groups of different sizes.

    :param variants: the recipe's, with the dialects that the contract's reference reads, where head is that.
    :returns: nothing where the boundary is no part of the toy's step.
    """
    part, name = part_of(contract), _telling(recipe)
    settings = variants[name]
    if part is None:
        return []
    mask = settings.get(contract.mask)
    counts = mask.array() != 0 if isinstance(mask, Tensor) else None
    rarities = tuple(_rarities(settings, contract, counts))
    labels = settings.get(contract.group)
    group_of_one = isinstance(labels, list) and any(labels.count(label) == 1 for label in labels)
    first = Setup(
        contract,
        part,
        name,
        settings,
        rarities,
        counts is not None and not counts.any(),
        not rarities and group_of_one and not _alike(settings),
        _share(settings, counts),
        alike=_alike(settings),
    )
    second = replace(first, alike=True, alone=False)
    return [first, second, replace(second, rejecting=False)]


def _alike(settings: Mapping[str, Any]) -> bool:
    return settings.get("group_layout") == "equal"


def _telling(recipe: Recipe) -> str:
    """Return the first variant on which another value is expected with the bug than without."""
    first: dict[str, str] = {}
    for text, unpatched in recipe.expected_unpatched.items():
        fixed = recipe.expected_fixed.get(text)
        if fixed is not None and not agree(unpatched.value, fixed.value).agrees:
            address = parse_address(text, recipe.variants)
            first.setdefault(address.kind, address.variants[0])
    return first.get("value", first.get("difference", next(iter(recipe.variants))))


def _share(settings: Mapping[str, Any], counts: Array | None) -> int:
    """Return how many microbatches, or ranks, like the scenario make up the global batch that it states."""
    if counts is None or not counts.any():
        return 1
    own = {"batch_num_tokens": counts.sum(), "global_batch_size": counts.any(-1).sum()}
    return max(1, *(int((settings.get(name) or 0) // count) for name, count in own.items()))


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
    rarities: dict[str, Rarity] = {}
    for cell in np.ndindex(shape):
        token = {name: float(value[cell]) for name, value in values.items()}
        accepted = bool(counts[cell[0]].any())
        rare = [name for name, value in token.items() if not np.isfinite(value)]
        rare += [name for name in _LOG_PROBS if name in token and name not in rare and _far(token, name)]
        if not counts[cell] and accepted and token.get(_REWARDS, 0.0) != 0 and _REWARDS not in rare:
            rare.append(_REWARDS)
        if rare:
            rarity = Rarity(token, tuple(rare), bool(counts[cell]), accepted)
            rarities.setdefault(str(rarity), rarity)
    return list(rarities.values())


def _far(token: Mapping[str, float], name: str) -> bool:
    """Whether a log-prob is far from that of another policy."""
    return any(_LARGE < abs(token[name] - token[other]) < np.inf for other in _LOG_PROBS if other in token)
