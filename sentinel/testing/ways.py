"""List possible matches of a function's parameters and a contract's inputs if names alone do not decide the match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from sentinel.contracts.contract import TOKENS, Contract
from sentinel.contracts.names import suggest_names

#: Maximum number of assignments of parameters to inputs that are tried.
_MOST = 16


class Mismatch(TypeError):
    """Raised if a function's parameters and a contract's inputs do not match.

    :ivar table: lines that list which input each parameter receives.
    :ivar advice: lines that suggest options, derived from the names only.
    :ivar names: input -> parameter, for the inputs that match.
    :ivar missing: required inputs without a parameter.
    :ivar unknown: parameters without a default that match no input.
    :ivar ambiguous: input -> parameters that match it equally well.
    :ivar free: all parameters that match no input, including those with a default.
    :ivar undecided: options that the user must choose before the function can be called.
    """

    def __init__(
        self,
        table: Sequence[str],
        advice: Sequence[str],
        names: Mapping[str, str],
        missing: Sequence[str],
        unknown: Sequence[str],
        ambiguous: Mapping[str, Sequence[str]],
        free: Sequence[str],
        undecided: Sequence[str],
    ) -> None:
        super().__init__("\n".join([*table, *advice]))
        self.table, self.advice = table, advice
        self.names, self.missing, self.unknown = names, missing, unknown
        self.ambiguous, self.free, self.undecided = ambiguous, free, undecided


@dataclass(frozen=True)
class Way:
    """A possible match of a function's parameters and a contract's inputs, as options of a check.

    :ivar names: input -> parameter; None if the function does not take the input.
    :ivar responses: the inputs that the function takes as one number per response.
    """

    names: Mapping[str, str | None]
    responses: tuple[str, ...] = ()

    def __str__(self) -> str:
        shapes = f", shapes={dict.fromkeys(self.responses, 'batch')!r}" if self.responses else ""
        return f"names={dict(self.names)!r}{shapes}"


def ways(contract: Contract, mismatch: Mismatch) -> Iterator[Way]:
    """Yield possible matches, with the most likely ones first; none if the user must choose an option before.

    A missing input is assigned to a parameter with a similar name, to any other unmatched parameter, or to none. If the
    function takes no mask, a match with one number per response is tried too, because these numbers need no mask.
    """
    if mismatch.undecided:
        return
    similar = suggest_names(contract, mismatch.free, mismatch.missing)
    options: dict[str, Sequence[str | None]] = {
        **mismatch.ambiguous,
        **{
            name: list(dict.fromkeys([*filter(None, [similar.get(name)]), *mismatch.unknown, None]))
            for name in mismatch.missing
        },
    }
    for chosen in islice(product(*options.values()), _MOST):
        given = [name for name in chosen if name is not None]
        if len(set(given)) == len(given) and set(mismatch.unknown) <= {*given, *mismatch.names.values()}:
            names = dict(zip(options, chosen))
            yield Way(names)
            if responses := without_mask(contract, {**mismatch.names, **names}):
                yield Way(names, responses)


def without_mask(contract: Contract, names: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the inputs with one value per token that a function takes without taking their mask.

    :param names: input -> parameter; None if the function does not take the input.
    """
    masks = [item.name for item in contract.inputs if item.domain == "mask" and item.shape == TOKENS]
    return tuple(
        item.name
        for item in contract.inputs
        if item.shape == TOKENS and item.domain != "mask" and names.get(item.name) and masks
        if names.get(mask_of(contract, item.name)) is None
    )


def mask_of(contract: Contract, name: str) -> str:
    """Return the name of the mask for an input: ``chosen_mask`` for ``chosen_log_probs``; the contract's main mask if
    the input has no mask of its own."""
    own = contract.input(f"{name.partition('_')[0]}_mask")
    return own.name if own is not None and own.domain == "mask" else contract.mask
