"""Define contracts of partitions, which distribute rows over ranks, microbatches and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentinel.contracts.aggregation import with_a_token
from sentinel.contracts.contract import REQUIRED, Choose, Contract, Input, Observed, dialect, drawn, per_token, rule
from sentinel.values.lazy import torch
from sentinel.values.literals import tensor

# -- balanced partition ------------------------------------------------------------------------------------------------


def _measure_balanced_partition(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe how sequences are distributed. ``call`` returns ``parts``: for each part, the batch indices of its
    sequences in order."""
    lengths, count = inputs["lengths"], len(inputs["lengths"])
    parts = [[int(place) for place in part] for part in call(**inputs)["parts"]]
    places = [place for part in parts for place in part if 0 <= place < count]
    loads = [sum(lengths[place] for place in part if 0 <= place < count) for part in parts]
    sizes = [len(part) for part in parts]
    labels = inputs["prompts"] or list(range(count))
    owners: dict[Any, set[int]] = {}
    for number, part in enumerate(parts):
        for place in part:
            owners.setdefault(labels[place % count], set()).add(number)
    # Each minibatch is distributed separately, so differences between the parts' loads may add up over minibatches.
    deals = count // inputs["minibatch_size"] if inputs["minibatch_size"] else 1
    whole = deals * max(sum(n for n, label in zip(lengths, labels) if label == one) for one in labels)
    spread = max(loads, default=0) - min(loads, default=0)
    return {
        "times": torch.bincount(torch.tensor(places, dtype=torch.int64), minlength=count),
        "parts": len(parts),
        "empty": sizes.count(0),
        "uneven": max(sizes, default=0) - min(sizes, default=0) if inputs["equal_size"] else 0,
        "torn": sum(len(numbers) > 1 for numbers in owners.values()),
        "strayed": _strayed(parts, inputs["minibatch_size"]),
        "excess": max(spread - whole, 0),
        "spread": spread,
    }


def _strayed(parts: Sequence[Sequence[int]], size: int | None) -> int:
    """Count the sequences that are not trained on in their own minibatch. Each minibatch consists of the same number of
    sequences of every part."""
    if size is None:
        return 0
    each = max(size // max(len(parts), 1), 1)
    return sum(turn // each != place // size for part in parts for turn, place in enumerate(part))


def _oracle_balanced_partition(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Distribute sequences (or prompts) from short to long, one per part in each round. In a round, the longest goes to
    the part with the smallest load, so that loads differ by at most the length of the longest sequence."""
    labels = inputs["prompts"] or list(range(len(inputs["lengths"])))
    size = inputs["minibatch_size"] or len(labels)
    dealt: list[list[int]] = [[] for _ in range(inputs["parts"])]
    for start in range(0, len(labels), size):
        members: dict[Any, list[int]] = {}
        for place in range(start, min(start + size, len(labels))):
            members.setdefault(labels[place], []).append(place)
        whole = sorted(members.values(), key=lambda item: sum(inputs["lengths"][place] for place in item))
        for first in range(0, len(whole), inputs["parts"]):
            least = sorted(dealt, key=lambda part: sum(inputs["lengths"][place] for place in part))
            for part, item in zip(least, reversed(whole[first : first + inputs["parts"]])):
                part += item
    return {"parts": dealt}


def _arrange_balanced_partition(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Draw at least one sequence (or group) per part. If parts must have equal size, draw a multiple of the number of
    parts."""
    parts, turns = inputs["parts"], choose.one_of((2, 1, 3))
    minibatches = choose.integer(2, 3) if inputs["keep_minibatches"] else 1
    even = inputs["equal_size"] or inputs["keep_minibatches"]
    groups = parts * turns * minibatches + (0 if even else choose.integer(0, parts - 1))
    members = choose.one_of((2, 1, 3)) if inputs["grouped"] else 1
    inputs["prompts"] = [f"prompt {n // members}" for n in range(groups * members)] if inputs["grouped"] else None
    inputs["minibatch_size"] = parts * turns if inputs["keep_minibatches"] else None
    inputs["lengths"] = [1 + n for n in choose.integers(groups * members, 0, 40)]
    inputs["lengths"][choose.integer(0, len(inputs["lengths"]) - 1)] += 3
    return inputs


BALANCED_PARTITION = rule(
    name="balanced_partition",
    summary="the distribution of sequences over ranks or microbatches with balanced token counts",
    source=(
        "multiway number partitioning by largest differences (Karmarkar and Karp 1982; Korf, IJCAI 2009): each item "
        "is in one part, and merging the largest with the smallest bounds the difference of parts by the longest item"
    ),
    inputs=(
        drawn("parts", "number of parts", (2, 1, 3, 4), REQUIRED),
        drawn("equal_size", "whether parts have equal numbers of sequences", (True, False)),
        Input("grouped", "boolean", "whether sequences of one prompt stay in one part", default=False),
        Input("keep_minibatches", "boolean", "whether sequences stay in their minibatch", default=False),
        Input("lengths", "any", "tokens of each sequence", choices=((),)),
        Input(
            "prompts", "any", "prompt id of each sequence, if sequences of one prompt stay in one part", default=None
        ),
        Input(
            "minibatch_size", "integer", "sequences per minibatch, if sequences stay in their minibatch", default=None
        ),
    ),
    observes=(
        Observed("times", "number of parts that contain each sequence", ("sequences",)),
        Observed("parts", "number of parts"),
        Observed("empty", "number of empty parts"),
        Observed("uneven", "difference in sequences between the largest and the smallest part, if they must be equal"),
        Observed("torn", "number of prompts whose sequences are in several parts"),
        Observed("strayed", "number of sequences that are trained on in the wrong minibatch"),
        Observed("excess", "amount by which loads differ beyond the longest sequence (or prompt) of each minibatch"),
        Observed("spread", "largest difference between the loads of two parts", role="other"),
    ),
    measure=_measure_balanced_partition,
    oracle=_oracle_balanced_partition,
    aliases={"k_partitions": "parts", "seqlen_list": "lengths"},
    arrange=_arrange_balanced_partition,
)


# -- microbatch packing ------------------------------------------------------------------------------------------------


def _measure_microbatch_packing(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe how rows are packed. ``call`` returns ``parts``: for each microbatch, the batch indices of its rows."""
    parts = [list(part) for part in call(**inputs)["parts"]]
    lengths = (inputs["attention_mask"] != 0).sum(-1)
    places = torch.tensor([row for part in parts for row in part], dtype=torch.int64)
    largest = max((int(lengths[part].sum()) for part in parts), default=0)
    return {
        "times": torch.bincount(places, minlength=len(lengths)).float(),
        "excess": float(max(largest - inputs["max_tokens_per_microbatch"], 0)),
        "microbatches": len(parts),
        "uneven": len(parts) % inputs.get("stages", 1),
        "short": max(inputs.get("least", 1) - sum(map(bool, parts)), 0),
        "contents": torch.tensor(_contents(parts, lengths.tolist(), inputs), dtype=torch.int64),
    }


def _contents(parts: Sequence[Sequence[int]], lengths: Sequence[int], inputs: Mapping[str, Any]) -> list[int]:
    """Return the lengths of each microbatch's rows, and 0 after each microbatch, if an algorithm defines them.

    With worst fit, two microbatches may be equally empty. Then only the tokens of the microbatches are defined.
    """
    contents = []
    for part in parts if _is_defined(inputs) else ():
        own = sorted((lengths[row] for row in part), reverse=True)
        unique = inputs["leftovers"] == "first_fit" or 2 * max(own, default=0) > inputs["max_tokens_per_microbatch"]
        contents.append(own if unique else [sum(own)])
    return [number for own in sorted(contents) for number in (*own, 0)]


def _is_defined(inputs: Mapping[str, Any]) -> bool:
    """Return True if an algorithm defines the microbatches, and no minimum or multiple changes their number."""
    return bool(inputs.get("algorithm", "any") != "any" and inputs["stages"] == 1 and inputs["least"] == 1)


def _oracle_microbatch_packing(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the packing of the algorithm, or a valid one: each row has a microbatch of its own, so no part exceeds the
    budget."""
    if not _is_defined(inputs):
        return {"parts": [[row] for row in range(len(inputs["attention_mask"]))]}
    lengths, room = (inputs["attention_mask"] != 0).sum(-1).tolist(), inputs["max_tokens_per_microbatch"]
    rows = list(range(len(lengths)))
    if inputs["algorithm"] == "next_fit":
        parts: list[list[int]] = [[]]
        for row in rows:
            if sum(lengths[each] for each in parts[-1]) + lengths[row] > room:
                parts.append([])
            parts[-1].append(row)
        return {"parts": parts}
    rows.sort(key=lambda row: -lengths[row])
    if inputs["algorithm"] == "first_fit_decreasing":
        return {"parts": _fit_first(rows, lengths, room)}
    return {"parts": _fit_by_size(rows, lengths, room, inputs["leftovers"] == "worst_fit")}


def _fit_first(rows: Sequence[int], lengths: Sequence[int], room: int, worst: bool = False) -> list[list[int]]:
    """Put each row into the first part that has room, or into the one with the most room if ``worst`` is True."""
    parts: list[list[int]] = []
    for row in rows:
        free = [room - sum(lengths[each] for each in part) for part in parts]
        fitting = [place for place, left in enumerate(free) if left >= lengths[row]]
        if not fitting:
            parts.append([row])
        else:
            parts[max(fitting, key=lambda place: free[place]) if worst else fitting[0]].append(row)
    return parts


def _fit_by_size(rows: Sequence[int], lengths: Sequence[int], room: int, worst: bool) -> list[list[int]]:
    """Pack rows, from long to short, as modified first fit decreasing does (Johnson and Garey 1985, section 2).

    Each row above half of the budget has a part. These parts get a row above a third each, from the fullest part to the
    emptiest; parts without such a row get two rows above a sixth, in reverse order. Then other rows fill them.
    """
    parts = [[row] for row in rows if 2 * lengths[row] > room]
    rest = [row for row in rows if 2 * lengths[row] <= room]

    def free(part: Sequence[int]) -> int:
        return room - sum(lengths[row] for row in part)

    def take(part: list[int], candidates: Sequence[int]) -> None:
        row = next(row for row in candidates if lengths[row] <= free(part))
        part.append(row)
        rest.remove(row)

    for part in parts:
        medium = [row for row in rest if 3 * lengths[row] > room]
        if medium and lengths[medium[-1]] <= free(part):
            take(part, medium)
    for part in [part for part in reversed(parts) if len(part) == 1]:
        small = [row for row in rest if room < 6 * lengths[row] <= 2 * room]
        if len(small) > 1 and lengths[small[-1]] + lengths[small[-2]] <= free(part):
            take(part, small[-1:])
            take(part, small[:-1])
    for part in parts:
        while rest and lengths[rest[-1]] <= free(part):
            take(part, rest)
    return parts + _fit_first(rest, lengths, room, worst)


def _arrange_microbatch_packing(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Make at least one token of each row valid, and the budget at least as large as the longest row. The number of
    rows is a multiple of the number of stages. An algorithm gets more rows, of very different lengths.
    """
    if inputs["algorithm"] != "any":
        room, count = choose.one_of((24, 18, 12)), choose.integer(3, 9)
        if choose.integer(0, 1):  # a third of the budget, and a little more or less
            lengths = [room // 6 + number for number in choose.integers(count, 0, room // 2)]
        else:  # rows of a sixth to a third of the budget share microbatches with rows of half of the budget
            longest = [room // 2 + 1 + number for number in choose.integers(choose.integer(1, 2), 0, 1)]
            lengths = longest + [room // 6 + 1 + number for number in choose.integers(count, 0, room // 6)]
            lengths += [1 + number for number in choose.integers(choose.integer(0, 2), 0, room // 6)]
        lengths = [lengths[place] for place in choose.permutation(len(lengths))]
        inputs["max_tokens_per_microbatch"] = room
        mask = [[int(place < length) for place in range(room)] for length in lengths]
        inputs["attention_mask"] = tensor(mask, inputs["attention_mask"].dtype)
    with_a_token(inputs, choose, "attention_mask")
    inputs["max_tokens_per_microbatch"] = max(inputs["max_tokens_per_microbatch"], inputs["attention_mask"].shape[-1])
    if inputs["attention_mask"].shape[0] % inputs["stages"]:
        inputs["stages"] = 1
    inputs["least"] = min(inputs["least"], inputs["attention_mask"].shape[0])
    return inputs


MICROBATCH_PACKING = Contract(
    name="microbatch_packing",
    summary="microbatches within a token budget",
    source="bin packing (Johnson et al., 1974): every item in one bin, and no bin above its capacity",
    inputs=(
        per_token("attention_mask", "1 for tokens that are not padding", "mask", dtype="int64"),
        drawn("max_tokens_per_microbatch", "maximum tokens of a microbatch; no row has more", (100, 5, 6, 8), REQUIRED),
        # A search varies this input only for bindings that list its values in ``accepts``.
        Input("stages", "integer", "the number of microbatches must be a multiple of this number", default=1),
        Input("least", "integer", "minimum number of microbatches; none of these is empty", default=1),
        Input(
            "algorithm",
            "string",
            "the algorithm of the packing: any, next_fit (a row starts a microbatch if the last one has no room), "
            "first_fit_decreasing, modified_first_fit_decreasing (Johnson and Garey 1985)",
            default="any",
        ),
        dialect(
            "leftovers",
            "first_fit",
            "how modified_first_fit_decreasing packs rows that fit no microbatch of a long row: first_fit, or "
            "worst_fit (into the emptiest microbatch)",
        ),
    ),
    observes=(
        Observed("times", "number of microbatches that contain each row", ("batch",)),
        Observed("excess", "tokens by which the largest microbatch exceeds the budget"),
        Observed("microbatches", "number of microbatches, which need not be minimal", role="other"),
        Observed("uneven", "number of microbatches beyond a multiple of the stages"),
        Observed("short", "number of microbatches with rows that are missing to the minimum"),
        Observed("contents", "lengths of each microbatch's rows, if the algorithm defines them", ("rows",)),
    ),
    measure=_measure_microbatch_packing,
    oracle=_oracle_microbatch_packing,
    aliases={"max_token_len": "max_tokens_per_microbatch"},
    laws=("the_oracle_agrees", "nothing_else_is_touched"),
    mask="attention_mask",
    arrange=_arrange_microbatch_packing,
)
