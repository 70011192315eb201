"""Compare the rows of a rollout with the dataset's rows and with the arguments of reward functions.

This module runs inside the training, because texts must not leave that process. Messages contain only row numbers,
token counts and names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.contracts.contract import DoesNotApply
from sentinel.targets import Steps


def frozen(value: Any) -> Any:
    """Copy nested lists and dictionaries, because a reward function may change them. Other objects are not copied."""
    if isinstance(value, (list, tuple)):
        return [frozen(one) for one in value]
    return {name: frozen(one) for name, one in value.items()} if isinstance(value, dict) else value


def tokens_of(ids: Any, mask: Any) -> list[list[int]]:
    """Return the token ids of each row, without those whose mask is 0."""
    chosen = mask.bool().tolist()
    return [[one for one, kept in zip(*row) if kept] for row in zip(ids.tolist(), chosen)]


#: Maximum number of rows of a dataset that are compared with their text.
_ROWS = 32


def compare_tokens(steps: Steps, trainer: Any, name: str, given: Mapping[str, Any]) -> str:
    """Check that the rows of a new trainer's dataset have the tokens of their own texts.

    Return a description of the first difference; empty if there is none.

    :param name: the trainer's attribute, which is a dataset or a mapping of several.
    :param given: the arguments of the trainer's constructor, as ``facts.arguments_of`` describes them.
    :raises DoesNotApply: if tokens and texts cannot be compared; the message is the reason.
    """
    several: Any = getattr(trainer, name, None)
    if steps.tokens is None:
        raise DoesNotApply("")
    if given.get("tokens"):
        raise DoesNotApply(f"your dataset already has tokens (column {given['tokens'][0]})")
    if "formatting_func" in given or getattr(trainer, "_is_vlm", False):
        raise DoesNotApply("formatting_func makes the texts" if "formatting_func" in given else "rows have images")
    for dataset in several.values() if isinstance(several, dict) else [several]:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise DoesNotApply(f"{name} is a stream, whose rows can be read only once")
        rows = [dict(dataset[place]) for place in range(min(len(dataset), _ROWS))]
        for column in ("image", "images", "tools", "chat_template_kwargs"):
            if rows and column in rows[0]:
                raise DoesNotApply(f"rows with the column {column} are not compared")
        if rows and (wrong := steps.tokens(trainer, rows)):
            return f"{name}: {wrong}"
    return ""


def compare_prompts(
    steps: Steps, trainer: Any, rows: Sequence[Mapping[str, Any]], batch: Mapping[str, Any], sampled: list[list[int]]
) -> str:
    """Check that a batch has the tokens of the dataset's prompts, and that its completions continue these.

    Return a description of the first difference; empty if there is none.

    :param sampled: the prompt tokens from which completions were generated; empty if they were not observed.
    :raises DoesNotApply: if the prompts cannot be compared; the message is the reason.
    """
    if steps.prompts is None or not {"prompt_ids", "prompt_mask"} <= batch.keys():
        raise DoesNotApply("the batch has no prompt tokens")
    expected, observed = steps.prompts(trainer, rows), tokens_of(batch["prompt_ids"], batch["prompt_mask"])
    wrong = _different(observed, expected)
    if wrong:
        row = wrong[0]
        other = _owner(observed[row], expected)
        how = (
            f"row {row} has the tokens of row {other}'s prompt"
            if other is not None
            else f"row {row} has {len(observed[row])} tokens, and its prompt is {len(expected[row])} tokens"
        )
        return f"the prompt tokens of {len(wrong)} of {len(expected)} rows are not those of the dataset's prompt: {how}"
    if len(sampled) == len(observed) and (wrong := _different(sampled, observed)):
        row = wrong[0]
        return (
            f"{len(wrong)} of {len(observed)} completions were generated from other prompt tokens than the batch's: "
            f"row {row} was generated from {len(sampled[row])} tokens, and the batch has {len(observed[row])}"
        )
    return ""


def compare_rewarded(
    steps: Steps,
    trainer: Any,
    rows: Sequence[Mapping[str, Any]],
    batch: Mapping[str, Any],
    calls: Sequence[tuple[int, Mapping[str, Any]]],
) -> str:
    """Check that each reward function received the values of the rows that it scores.

    Return a description of the first difference; empty if there is none. For all reward functions but the first, a
    value counts as wrong only if it belongs to another row, because an earlier function may have changed the arguments.

    :param calls: for each call, the number of the reward function and a copy of its arguments.
    :raises DoesNotApply: if the arguments cannot be compared; the message is the reason.
    """
    if steps.completions is None or not {"completion_ids", "completion_mask"} <= batch.keys():
        raise DoesNotApply("the batch has no completion tokens")
    if not calls:
        raise DoesNotApply("none of the reward functions is a plain function, so their arguments are unknown")
    ids = tokens_of(batch["completion_ids"], batch["completion_mask"])
    own: dict[str, Sequence[Any]] = {name: frozen([row.get(name) for row in rows]) for name in rows[0]}
    own |= {"prompts": own.pop("prompt")} if "prompt" in own else {}
    own |= {"completions": steps.completions(trainer, rows, ids), "completion_ids": ids}
    for number, arguments in calls:
        for name in own.keys() & arguments.keys():
            given, known = arguments[name], own[name]
            if not isinstance(given, list) or len(given) != len(known):
                raise DoesNotApply(f"a reward function received {name} with a different number of rows")
            masked = [not one for one in ids] if name.startswith("completion") else [False] * len(known)
            wrong = [row for row in _different(given, known) if not masked[row]]
            other = _owner(given[wrong[0]], known) if wrong else None
            if wrong and (other is not None or not number):
                what = f"the value of row {other}" if other is not None else "a value that no row has"
                return (
                    f"reward function {number} got wrong `{name}` for {len(wrong)} of {len(known)} rows: "
                    f"for row {wrong[0]}, {what}"
                )
    return ""


def _different(given: Sequence[Any], own: Sequence[Any]) -> list[int]:
    """Return the indices of rows whose values differ.

    :raises DoesNotApply: if the numbers of rows differ.
    """
    if len(given) != len(own):
        raise DoesNotApply("the batch does not have as many rows as the data loader returned")
    return [row for row, (one, other) in enumerate(zip(given, own)) if not _same(one, other)]


def _owner(value: Any, own: Sequence[Any]) -> int | None:
    return next((row for row, one in enumerate(own) if _same(value, one)), None)


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # comparing arrays or foreign objects may raise an exception
        return True
