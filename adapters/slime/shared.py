"""Helpers for all modules of the slime adapter: parallel state, lists of samples, and stand-ins."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sentinel import AbsentError, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

MAIN = "https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime"
PPO = "slime.utils.ppo_utils"
LOSS = "slime.backends.megatron_utils.loss"
CP = "slime.backends.megatron_utils.cp_utils"
TYPES = "slime.utils.types"

ARGS = StandIn("args", "the trainer's command-line namespace, of which the boundary reads only these fields")
SELF = StandIn("self", "the real manager starts a cluster; the method reads only these attributes")
LOG_PROBS = StandIn(
    "get_log_probs_and_entropy", "returns the scenario's log-probs; their computation from logits is not checked"
)


def parallel_state(boundary: Any) -> tuple[Any, ...]:
    """Return ``(parallel_state,)`` if the boundary takes this argument, as in one week of January 2026, or ``()``."""
    sizes = dict.fromkeys(("cp_size", "dp_size", "dp_cp_size"), 1)
    groups = dict.fromkeys(("cp_group", "dp_group", "tp_group"))
    return (kit.stand_in(cp_rank=0, **sizes, **groups),) if "parallel_state" in boundary.parameters else ()


@contextlib.contextmanager
def one_rank(context_parallel_rank: int | None = 0, **sizes: int) -> Iterator[None]:
    """Make all modules of slime use a Megatron parallel state (``mpu``) for a single process.

    :param context_parallel_rank: the context-parallel rank. If None, use the rank that torch.distributed returns, and a
        data-parallel group of only this rank.
    :param sizes: axes with a size other than 1, such as ``context_parallel=2``.
    """
    ranks = {f"get_{axis}_world_size": size for axis, size in sizes.items()}
    mpu = kit.make_single_rank_mpu(**ranks, get_context_parallel_rank=context_parallel_rank or 0)
    if context_parallel_rank is None:
        mpu.get_context_parallel_rank = lambda: torch.distributed.get_rank()
        mpu.get_data_parallel_group = _data_parallel_group
    users = [m for n, m in list(sys.modules.items()) if n.startswith("slime.") and "mpu" in getattr(m, "__dict__", {})]
    before = [module.mpu for module in users]
    core = sys.modules.get("megatron.core")
    try:
        sys.modules["megatron.core"] = kit.stand_in(mpu=mpu)
        for module in users:
            module.mpu = mpu  # type: ignore[attr-defined]
        yield
    finally:
        for module, old in zip(users, before):
            module.mpu = old  # type: ignore[attr-defined]
        if core is None:
            del sys.modules["megatron.core"]
        else:
            sys.modules["megatron.core"] = core


def _data_parallel_group(with_context_parallel: bool = False, *_: Any, **__: Any) -> tuple[int, ...] | None:
    return None if with_context_parallel else (torch.distributed.get_rank(),)


class Answer(dict[str, Any]):
    """A result of slime's ``get_log_probs_and_entropy``: a dict that callers can also unpack as ``(None, dict)``."""

    def __iter__(self) -> Iterator[Any]:
        return iter((None, dict(self)))


def kl_name(compute_approx_kl: Any, estimator: str) -> str:
    """Return the name that this version of slime uses for a KL estimator.

    :raises AbsentError: if this version has no such estimator.
    """
    for name in (estimator, *_FORMER_NAMES.get(estimator, ())):
        try:
            compute_approx_kl(torch.zeros(1), torch.zeros(1), kl_loss_type=name)
        except ValueError:
            continue
        return name
    raise AbsentError(f"this version has no KL estimator {estimator}")


_FORMER_NAMES = {"k1": ("kl",)}


def as_samples(inputs: Mapping[str, Any], *names: str) -> dict[str, list[Any]]:
    return {name: list(inputs[name]) for name in names}


def valid_samples(inputs: Mapping[str, Any], *names: str) -> dict[str, list[Any]]:
    """Return each named input as a list of rows, each cut after its last valid token."""
    return {name: [row[:n] for row, n in zip(inputs[name], kit.lengths_of(inputs, "response_mask"))] for name in names}


def valid_counts(inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the number of tokens of each response, and of each response with a one-token prompt."""
    lengths = kit.lengths_of(inputs, "response_mask")
    return {"response_lengths": lengths, "total_lengths": [n + 1 for n in lengths]}


def policy_args(inputs: Mapping[str, Any], **options: Any) -> Any:
    """Return the command-line options that slime's policy loss reads."""
    off = ("use_rollout_logprobs", "use_opsm", "get_mismatch_metrics", "use_tis", "use_unbiased_kl")
    usual: dict[str, Any] = {
        **dict.fromkeys(off, False),
        "advantage_estimator": "grpo",
        "eps_clip": inputs["eps_clip_low"],
        "eps_clip_high": inputs["eps_clip_high"],
        "eps_clip_c": inputs["dual_clip"],
        "rollout_top_p": 1.0,
        "custom_pg_loss_reducer_function_path": None,
        "loss_aggregation": "sample_mean",  # an option in #2090, which was not merged
    }
    return kit.stand_in(**{**usual, **options})


def policy_batch(inputs: Mapping[str, Any], mask: Any) -> dict[str, Any]:
    """Return a batch for slime's policy loss. Each row, including its padding, is one sample."""
    names = {"advantages": inputs["advantages"], "log_probs": inputs["old_log_probs"], "loss_masks": mask}
    return {**{name: list(rows) for name, rows in names.items()}, "unconcat_tokens": None, **full_lengths(inputs)}


def policy_microbatch(
    boundary: Any, inputs: Mapping[str, Any], reducer: Any, more: Mapping[str, Any], **options: Any
) -> Any:
    """Compute slime's policy loss of a microbatch, by default without KL and entropy terms.

    :param more: additional fields of the batch.
    """
    args = policy_args(inputs, **{"entropy_coef": 0.0, "use_kl_loss": False, **options})
    log_probs, batch = list(inputs["log_probs"]), {**policy_batch(inputs, inputs["response_mask"]), **more}
    answer = Answer(log_probs=log_probs, entropy=[torch.zeros_like(row) for row in log_probs])
    with one_rank(), kit.swap(boundary.module, "get_log_probs_and_entropy", lambda *_, **__: answer):
        return boundary.function(args, *parallel_state(boundary), batch, torch.zeros(()), reducer)


def shards(lengths: list[int], ranks: int) -> list[list[list[int]]]:
    """Return the token positions of each response that each context-parallel rank has.

    There are twice as many chunks as ranks. The first rank has the first and the last chunk, the second rank has the
    second and the last but one, and so on. A token is at the position that predicts it. The prompt is one token.
    """
    sizes = [-(-(n + 1) // (2 * ranks)) for n in lengths]
    owners = [[min(t // size, 2 * ranks - 1 - t // size) for t in range(n)] for size, n in zip(sizes, lengths)]
    return [[[t for t, owner in enumerate(row) if owner == rank] for row in owners] for rank in range(ranks)]


def joined(parts: list[list[Any]], own: list[list[list[int]]]) -> list[Any]:
    """Join the parts of each sample, in the order of the tokens.

    If a rank returned a wrong number of tokens, the sample is NaN (0 for integers), so no comparison accepts it.

    :param parts: for each rank, its part of each sample.
    :param own: the positions of the tokens in these parts, from :func:`shards`.
    """
    samples = []
    for row, own_places in zip(zip(*parts), zip(*own)):
        order = torch.tensor([t for part in own_places for t in part], dtype=torch.long).argsort()
        whole = [len(part) for part in row] == [len(part) for part in own_places]
        samples.append(torch.cat(row)[order] if whole else _nothing(row[0], len(order)))
    return samples


def _nothing(like: Any, count: int) -> Any:
    return like.new_full((count, *like.shape[1:]), float("nan") if like.is_floating_point() else 0)


def as_rows(samples: list[Any], width: int) -> Any:
    """Pad samples with zeros on the right, and stack them to a tensor ``[batch, tokens]``."""
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in samples])


def full_lengths(inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the same two lists as :func:`valid_counts`, but count padding as part of the response."""
    rows, tokens = inputs["response_mask"].shape
    return {"response_lengths": [tokens] * rows, "total_lengths": [tokens + 1] * rows}


def mask_sums(masks: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the sum of each sample's mask as ``rollout_mask_sums`` and as ``group_mask_sums``."""
    return {name: [mask.sum() for mask in masks] for name in ("rollout_mask_sums", "group_mask_sums")}


class Session:
    """A stand-in HTTP session that sends nothing. The response to a request is the payload of the request."""

    def __init__(self, **_: Any) -> None:
        self._payload: Any = None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def post(self, url: str, json: Any = None) -> Session:
        self._payload = json
        return self

    def raise_for_status(self) -> None:
        pass

    async def json(self) -> Any:
        return self._payload
