"""Turn a recipe's scenario into the training in which its bug bites: the configuration, and what is rare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sentinel.contracts.contract import Contract
from sentinel.errors import SentinelError
from sentinel.impact.batches import GROUP_SIZES, Batch
from sentinel.impact.parts import Part, part_of
from sentinel.impact.toy import Array
from sentinel.recipes import Recipe, parse_address
from sentinel.values.closeness import agree
from sentinel.values.literals import Tensor, from_array

#: The scenario's own rows are in every batch of this number.
EVERY = 10

#: Responses to a prompt, at least.
_FEWEST = 5


class NotTakenError(SentinelError):
    """A boundary, or a reference, has no answer for a batch of training."""


@dataclass(frozen=True)
class Setup:
    """Hold how a recipe's boundary is trained through.

    :ivar variant: the scenario's variant whose configuration is taken: the first on which the recipe expects another
        value with the bug than without.
    :ivar settings: its inputs. Its rows stand in every tenth batch in the place of as many others.
    :ivar share: how many such batches make up the global one, whose counts the boundary divides by.
    :ivar rejecting: whether responses that do not end are rejected.
    :ivar alike: whether prompts have as many responses each.
    """

    contract: Contract
    part: Part
    variant: str
    settings: Mapping[str, Any]
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
        notes = [f"every {EVERY}th batch has the scenario's own rows"]
        notes += [f"each batch is one of {self.share} that make up the global one"] if self.share > 1 else []
        notes += [] if self.rejecting else ["no response is rejected: the boundary refuses a batch with one that is"]
        if self.alike and not _alike(self.settings):
            notes.append("prompts have as many responses each: the boundary refuses a batch in which they have not")
        return notes

    def with_rows(self, batch: Batch) -> Batch:
        """Give rows of the batch the scenario's mask; to all of them, where it rejects each of its own."""
        own = self.settings.get(self.contract.mask)
        if not isinstance(own, Tensor):
            return batch
        mask, rows = batch.mask & own.array().any(), self._rows(batch)
        mask[rows] = False
        return replace(batch, mask=_planted(mask, rows, own) != 0)

    def inputs(self, batch: Batch, rows: bool) -> dict[str, Any]:
        """Return what the boundary is given of a batch.

        :param rows: whether the scenario's rows stand in it.
        """
        given = {name: of(batch) for name, of in self.part.inputs.items() if name in self.settings}
        for name in given if rows else ():
            own, places = self.settings[name], self._rows(batch)
            if isinstance(own, Tensor):
                given[name] = _planted(given[name], places, own)
            elif isinstance(own, list) and not self.alike:
                given[name] = given[name].astype(object)
                given[name][places] = [f"scenario {label}" for label in own[: len(places)]]
        return {name: self._literal(name, value, given, batch) for name, value in self.settings.items()}

    def _rows(self, batch: Batch) -> Array:
        """Return which rows are the scenario's: of one prompt, the one with the most, so that none is left alone."""
        own = (self.settings.get(name) for name in self.part.inputs)
        size = next(value.shape[0] for value in own if isinstance(value, Tensor))
        return np.flatnonzero(batch.prompts == np.bincount(batch.prompts).argmax())[:size]

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
    first = Setup(contract, part, name, settings, _share(settings, counts), alike=_alike(settings))
    second = replace(first, alike=True)
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


def _planted(values: Array, rows: Array, own: Tensor) -> Array:
    """Put the scenario's rows in the place of these, as far as there is room."""
    result, part = values.astype(np.float64), own.array()[: len(rows)]
    if part.ndim == 1:
        result[rows] = part
    else:
        part = part[:, : values.shape[1]]
        result[rows, : part.shape[1]] = part
    return result
