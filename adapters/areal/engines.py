"""Bindings for AReaL's FSDP engine and for the trainers above it. A table of log-probs replaces the model.

Nothing is sharded. On several ranks, the gradients of all ranks are averaged and divided among the ranks before the
optimizer's step, as FSDP divides them after the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import PREFERENCE_LOSS, RANKS, aggregated
from sentinel.binding.kit import torch

_ENGINE, _ARGUMENTS, _DATA = "areal.engine.fsdp_engine", "areal.api.cli_args", "areal.utils.data"
_ACTOR, _CRITIC, _LM = "areal.trainer.ppo.actor", "areal.trainer.ppo.critic", "areal.trainer.sft.lm_engine"
_DPO = "areal.trainer.dpo.dpo_engine"
_TREE, _TREE_SCORES = "areal.models.tree_attn.tree", "areal.models.tree_attn.functional"
_GRADIENTS, _SCALING = "areal.engine.fsdp_utils.grad", "areal.engine.fsdp_utils.multi_tensor_apply"
_STATS, _ULYSSES = "areal.utils.stats_tracker", "areal.models.fsdp.ulysses"
_CODE = "https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal"

_MODEL = StandIn("model", "a table of log-probs, in which the forward pass looks up the successors of its tokens")
_UNSHARDED = StandIn(
    "engine",
    "the real engine without sharding; ranks average their gradients and divide them before the optimizer's step",
)
_OPTIMIZER = StandIn("optimizer", "adds up gradients, and changes no parameter")
_SCORES = StandIn(
    "gather_logprobs",
    "reads the log-probs in the model's outputs, which are not normalised, because rows share tokens; the replaced "
    "functions have bindings of their own",
)
_PLATFORM = StandIn("current_platform", "names the device of the scenario's tensors")
_STAND_INS = (_MODEL, _UNSHARDED, _OPTIMIZER, _PLATFORM, RANKS)

#: The logit of a token that cannot follow.
_NEVER = -1000.0
#: The prompt tokens that the rows of a tree share.
_SHARED = 2
#: The number of tokens in a block of a tree, of which the length of a tree is a multiple.
_BLOCK = 8


@dataclass(frozen=True)
class Form:
    """How rows are laid out for the model.

    ``tree`` joins the rows' common prompts; ``values`` makes a model with one output per position; ``parts`` is the
    number of ranks over which the tokens of each microbatch are divided (Ulysses, arXiv:2309.14509).
    """

    tree: bool = False
    values: bool = False
    parts: int = 1

    @property
    def prompt(self) -> int:
        """The number of prompt tokens."""
        return _SHARED if self.tree else 1

    def ids(self, rows: int, width: int) -> Any:
        """Return the ids [rows, prompt and response tokens]. Each response token has its own id."""
        own = torch.arange(rows * (width + self.prompt)).reshape(rows, -1) + self.prompt
        if self.tree:
            own[:, : self.prompt] = torch.arange(self.prompt)
        return own


class _Table:
    """A stand-in model. The output at a position has the table's entries of the tokens that may follow its token.

    A token at a wrong position, or with a wrong set of visible tokens, has other outputs.

    :param table: entries [rows, prompt and response tokens] of each token, its only parameter.
    """

    def __init__(self, table: Any, form: Form) -> None:
        rows, width = table.shape
        self.table, self._form, self.model = table, form, self
        self._ids = form.ids(rows, width - form.prompt)
        self._size = int(self._ids.max()) + 2

    def parameters(self) -> list[Any]:
        return [self.table]

    def __call__(self, input_ids: Any, position_ids: Any, **options: Any) -> Any:
        ids = input_ids.reshape(-1)
        columns = torch.zeros(self._size, dtype=torch.int64)
        columns[self._ids] = torch.arange(self._ids.shape[1])
        # Padding tokens have the id 0. Their outputs are not compared.
        wrong = (ids != 0) & (position_ids.reshape(-1) != columns[ids])
        mask = options.get("tree_block_mask")
        if mask is not None:
            every = torch.arange(len(ids))
            seen = mask.mask_mod(0, 0, every[:, None], every[None, :])
            wrong |= (ids != 0) & ~self._sees_its_row(ids, seen)
        outputs = self._values(ids) if self._form.values else self._successors(ids)
        return kit.stand_in(logits=(outputs + wrong[:, None] * torch.arange(outputs.shape[1]))[None])

    def _sees_its_row(self, ids: Any, seen: Any) -> Any:
        """Return whether each position sees exactly the tokens of its row up to its own."""
        right = []
        for number, visible in zip(ids.tolist(), seen):
            row, column = (self._ids == number).nonzero()[0].tolist() if (self._ids == number).any() else (0, -1)
            right.append(sorted(ids[visible].tolist()) == self._ids[row, : column + 1].tolist())
        return torch.tensor(right)

    def _values(self, ids: Any) -> Any:
        entries = torch.zeros(self._size, dtype=self.table.dtype).index_put((self._ids,), self.table)
        return entries[ids][:, None]

    def _successors(self, ids: Any) -> Any:
        """Return logits [positions, vocabulary]. The last token of the vocabulary has the rest of the probability."""
        before, after = self._ids[:, :-1].flatten(), self._ids[:, 1:].flatten()
        # Only masked tokens have log-probs above 0.
        entries = torch.nan_to_num(self.table[:, 1:].flatten(), nan=0.0, posinf=0.0, neginf=_NEVER)
        rest = torch.log(-torch.expm1(entries.clamp(max=-1e-6)))
        whole = self.table.new_full((self._size, self._size), _NEVER)
        whole = whole.index_put((before, torch.full_like(before, self._size - 1)), rest)
        return whole.index_put((before, after), entries)[ids]


class _Sum:
    """A stand-in optimizer that adds up each step's gradient times its learning rate."""

    def __init__(self, table: Any) -> None:
        self._table, self.total = table, torch.zeros_like(table)
        self.param_groups = [{"lr": 1.0}]
        self.rates: list[float] = []

    def zero_grad(self) -> None:
        self._table.grad = None

    def step(self) -> None:
        self.rates.append(self.param_groups[0]["lr"])
        self.last = torch.zeros_like(self._table) if self._table.grad is None else self.rates[-1] * self._table.grad
        self.total += self.last


@dataclass(frozen=True)
class Run:
    """What the ranks did: the gradient of all optimizers, the loss, and each rank's engine and answer."""

    gradient: Any
    loss: Any
    engines: Sequence[Any]
    answers: Sequence[Any]


class _Rates:
    """A stand-in scheduler that sets these learning rates, one for each step."""

    def __init__(self, optimizer: Any, rates: Sequence[float]) -> None:
        self._optimizer, self._rates = optimizer, [*rates]
        self.step()

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self._optimizer.param_groups]

    def step(self) -> None:
        self._optimizer.param_groups[0]["lr"] = self._rates.pop(0) if self._rates else 1.0


def _engine_of(boundary: Any, config: Any, table: Any, form: Form, ranks: int, rates: Sequence[float]) -> Any:
    """Make AReaL's FSDP engine around a table of log-probs, without calling its constructor."""
    base = boundary.imported[_ENGINE].FSDPEngine

    class Engine(base):  # type: ignore[misc, valid-type]
        """AReaL's engine without sharding."""

        dp_group = data_parallel_group = sp_group = None
        _ensure_ready = train = eval = staticmethod(lambda *_: None)
        get_version = staticmethod(lambda: 0)

        def __init__(self) -> None:
            self.config, self.device, self.logger = config, boundary.device, kit.make_silent_logger()
            self.parallel_helper = kit.stand_in(dp_size=ranks, sp_size=form.parts, tp_size=1)
            self.model_config, self.is_vision_model = kit.stand_in(model_type="qwen2"), False
            self.enable_tree_training, self.model = form.tree, _Table(table, form)
            self.optimizer, self.optimizer_config = _Sum(table), config.optimizer
            self.lr_scheduler = _Rates(self.optimizer, rates)
            whole = kit.stand_in(get_group=lambda: tuple(range(ranks)))
            alone = kit.stand_in(get_group=lambda: (torch.distributed.get_rank(),))
            self.world_mesh = {"dp_sp": whole, "tp": alone}
            self.losses: list[Any] = []
            self.evaluated: list[Any] = []
            self.steps: list[Mapping[str, float]] = []

        def _compute_logprobs_and_loss(self, *batch: Any, **options: Any) -> Any:
            loss = super()._compute_logprobs_and_loss(*batch, **options) * self._without_epsilon(*batch)
            self.losses.append(loss.detach())
            return loss

        def _without_epsilon(self, _: Any, ctx: Any, loss: Any, weigh: Any, *__: Any, **___: Any) -> Any:
            """Return the factor that undoes the addition of 1e-5 to the number of tokens in the supervised loss."""
            count = weigh(ctx.mb_input)
            return 1 + 1e-5 / count if getattr(loss, "__name__", "") == "compute_packed_sft_loss" and count else 1.0

        def eval_batch(self, *batch: Any, **options: Any) -> Any:
            first = len(self.losses)
            self.evaluated.append(super().eval_batch(*batch, **options))
            del self.losses[first:]
            return self.evaluated[-1]

        def optimizer_step(self) -> Any:
            """Take AReaL's step with this rank's part of the average gradient of all ranks. Where no contract is about
            the step, only add up the gradient, because AReaL takes no step if the norm is not finite.
            """
            table = self.model.table
            table.grad = torch.zeros_like(table) if table.grad is None else table.grad
            torch.distributed.all_reduce(table.grad, op=torch.distributed.ReduceOp.AVG)
            own = torch.arange(table.numel()).reshape(table.shape) % ranks == torch.distributed.get_rank()
            table.grad = torch.where(own, table.grad, 0.0)
            if not rates:
                self.optimizer.step()
                return {}
            self.steps.append(super().optimizer_step())
            norm = self.steps[-1]["grad_norm"]
            if norm > config.optimizer.gradient_clipping:
                # Undo the addition of 1e-6 to the norm.
                self.optimizer.total += self.optimizer.last * 1e-6 / norm
            return dict(self.steps[-1])

    return Engine()


def _configured(boundary: Any, inputs: Mapping[str, Any], rows: int, width: int, form: Form, **options: Any) -> Any:
    """Return the options of an actor: microbatches, and a limit of the gradient's norm."""
    arguments = boundary.imported[_ARGUMENTS]
    config = arguments.PPOActorConfig(experiment_name="", trial_name="", path="")
    size, limit = inputs.get("micro_batch_size"), inputs.get("max_tokens_per_microbatch")
    pair = options.pop("granularity", 1)
    if form.tree:
        size, limit = None, -(-(width + form.prompt) // _BLOCK) * _BLOCK + (0 if limit else _BLOCK * rows)
    norm = inputs.get("max_norm")
    vars(config).update(
        mb_spec=arguments.MicroBatchSpec(
            n_mbs=rows // ((size or rows) * pair) or 1, max_tokens_per_mb=limit, granularity=pair
        ),
        optimizer=arguments.OptimizerConfig(gradient_clipping=1e30 if norm is None else norm),
        pad_to_maximum=form.tree,
        is_critic=form.values,
        ppo_n_minibatches=1,
        rejection_sampling=None,
        **options,
    )
    config.fsdp.offload_params = bool(inputs.get("offloads"))
    return config


def _read_score(logits: Any, labels: Any, *_: Any, **__: Any) -> Any:
    return logits.gather(-1, labels[:, None]).squeeze(-1)


def _read_scores(logits: Any, labels: Any, *_: Any, **__: Any) -> Any:
    return _read_score(logits, labels), torch.zeros(len(labels), dtype=logits.dtype)


def _gather(value: Any, **_: Any) -> list[Any]:
    parts: list[Any] = []
    torch.distributed.all_gather(parts, value)
    return parts


def _rank() -> int:
    return int(torch.distributed.get_rank())


_SEQUENCE_GROUP = {
    "get_ulysses_sequence_parallel_group": lambda: None,
    "get_ulysses_sequence_parallel_rank": _rank,
}


def _run(boundary: Any, inputs: Mapping[str, Any], table: Any, form: Form, work: Any, **options: Any) -> Run:
    """Run ``work(engine, rows)`` on each rank, where ``rows`` is the rank's slice of the batch.

    :param table: entries [rows, response tokens] of the tokens after the prompt, or values of the tokens before them.
    """
    rows, width = table.shape
    ranks = inputs.get("dp_size") or 1
    share = rows // ranks
    config = _configured(boundary, inputs, share, width, form, **options)
    ranks_in_all = ranks * form.parts
    entries = torch.nn.functional.pad(table.detach(), (0, 1) if form.values else (form.prompt, 0))
    if form.values and inputs.get("output_after") is not None:
        entries[:, -1] = inputs["output_after"].detach()
    tables = [entries.clone().requires_grad_() for _ in range(ranks_in_all)]
    engines = [_engine_of(boundary, config, own, form, ranks, inputs.get("rates", ())) for own in tables]
    boundary.imported[_STATS].DEFAULT_TRACKER.stats.clear()
    platform = kit.stand_in(current_device=lambda: boundary.device, device_type=boundary.device)
    named = {"gather_logprobs": _read_score, "gather_logprobs_entropy": _read_scores} if form.tree else {}
    with (
        kit.swap_all(
            boundary.imported[_ENGINE], **({"dist_F": kit.stand_in(all_gather=_gather)} if form.parts > 1 else {})
        ),
        kit.swap_all(boundary.imported[_ULYSSES], **(_SEQUENCE_GROUP if form.parts > 1 else {})),
        kit.swap(boundary.imported[_GRADIENTS], "current_platform", platform),
        kit.swap(boundary.imported[_SCALING], "current_platform", platform),
        kit.swap_all(boundary.imported[_TREE_SCORES], **named),
        kit.swap_all(boundary.imported[_TREE], **({"BLOCK_SIZE": _BLOCK} if form.tree else {})),
    ):
        answers = kit.on_ranks(
            ranks_in_all, lambda rank: work(engines[rank], slice(rank % ranks * share, (rank % ranks + 1) * share))
        )
    total = sum(engine.optimizer.total for engine in engines)
    cut = total[:, :-1] if form.values else total[:, form.prompt :]
    return Run(cut, sum(sum(engine.losses) for engine in engines) / ranks, engines, answers)


def _sequences(mask: Any, form: Form) -> dict[str, Any]:
    """Return token ids [rows, prompt and response tokens], the mask of trained tokens, and that of all tokens.

    A row ends with its last valid token, but has at least one.
    """
    rows, width = mask.shape
    ends = (mask * torch.arange(1, width + 1)).amax(-1, keepdim=True).clamp(min=1)
    there = torch.arange(width + form.prompt)[None] < ends + form.prompt
    own = torch.nn.functional.pad(mask, (form.prompt, 0))
    return {"input_ids": form.ids(rows, width), "attention_mask": there, "loss_mask": own}


def _part(columns: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    return {name: column[rows] for name, column in columns.items()}


# -- log-probs and values ----------------------------------------------------------------------------------------------


def _recomputed(form: Form, scorer: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that AReaL computes in a forward pass over packed microbatches.

    :param scorer: the module of the trainer that asks the engine, or an empty string to ask the engine itself.
    """
    mask = inputs["response_mask"].long()
    batch = _sequences(torch.ones_like(mask) if not form.tree else mask, form)
    batch.pop("loss_mask")

    def work(engine: Any, rows: slice) -> Any:
        if scorer == _ACTOR:
            return boundary.imported[_ACTOR].PPOActor(engine.config, engine)._compute_logp(_part(batch, rows))
        if scorer == _DPO:
            vars(engine.config).update(beta=0.1, loss_type="sigmoid")
            return boundary.imported[_DPO].DPOEngine(engine)._compute_logp(_part(batch, rows))
        return engine.forward_batch(_part(batch, rows), aggregate_fn=lambda parts: torch.cat(parts, dim=-1))

    made = _run(boundary, inputs, inputs["log_probs"], form, work).answers[0]
    start, width = form.prompt - 1, mask.shape[1]
    return {"log_probs": torch.nn.functional.pad(made, (0, start + width - made.shape[1]))[:, start : start + width]}


def _valued(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that AReaL's critic computes in a forward pass over packed microbatches."""
    mask = inputs["response_mask"].long()
    batch = _sequences(mask, _VALUES)

    def work(engine: Any, rows: slice) -> Any:
        return boundary.imported[_CRITIC].PPOCritic(engine.config, engine)._compute_values(_part(batch, rows))

    made = _run(boundary, inputs, inputs["outputs"], _VALUES, work).answers[0]
    return {"values": torch.nn.functional.pad(made, (0, mask.shape[1] + 1 - made.shape[1]))[:, :-1]}


# -- updates -----------------------------------------------------------------------------------------------------------


def _updated(form: Form, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one update of AReaL's actor. The value at position t belongs to token t + 1."""
    mask = inputs["response_mask"].long()
    batch = _sequences(mask, form)
    moved = (form.prompt - 1, 1)
    old = torch.nn.functional.pad(inputs["old_log_probs"], moved)
    batch |= {"loss_mask": batch["loss_mask"].roll(-1, -1), "logprobs": old, "prox_logp": old}
    batch["advantages"] = torch.nn.functional.pad(inputs["advantages"], moved)
    rows = len(mask)
    batch |= {"rewards": torch.zeros(rows), "tot_rewards": torch.zeros_like(old), "kl_rewards": torch.zeros_like(old)}
    clips = {"eps_clip": inputs["eps_clip_low"], "eps_clip_higher": inputs["eps_clip_high"]}

    def work(engine: Any, part: slice) -> None:
        boundary.imported[_ACTOR].PPOActor(engine.config, engine)._ppo_update(_part(batch, part))

    run = _run(boundary, inputs, inputs["log_probs"], form, work, **clips, c_clip=inputs["dual_clip"])
    return {"gradient": run.gradient, "pg_loss": None, "kl_loss": None}


def _fitted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one supervised update with AReaL's trainer."""
    batch = _sequences(inputs["response_mask"].long(), _PACKED)

    def work(engine: Any, part: slice) -> None:
        boundary.imported[_LM].LMEngine(engine)._train_lm(_part(batch, part))

    run = _run(boundary, inputs, inputs["log_probs"], _PACKED, work)
    after = torch.zeros_like(inputs["output_after"])
    return {"loss": run.loss, "gradient": run.gradient, "gradient_after": after}


def _rates_of(inputs: Mapping[str, Any]) -> list[float]:
    """Return the rate of each step: a warm-up from a quarter, a plateau, and a decay to a quarter."""
    steps, warmup, decay = inputs["steps"], inputs["warmup_steps"], inputs["decay_steps"]
    rising = [0.25 + 0.75 * step / warmup for step in range(warmup)]
    falling = [max(1 - 0.75 * step / max(decay - 1, 1), 0.25) for step in range(decay)]
    return [*rising, *[1.0] * (steps - warmup - decay), *falling]


def _looped(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run supervised steps with AReaL's trainer, and evaluate the same rows before the first step."""
    mask = inputs["response_mask"].long()
    batch = _sequences(mask, _PACKED)

    def work(engine: Any, part: slice) -> None:
        trainer = boundary.imported[_LM].LMEngine(engine)
        if inputs["validates"]:
            trainer._evaluate_lm(_part(batch, part))
        for _ in range(inputs["steps"]):
            trainer._train_lm(_part(batch, part))
            engine.lr_scheduler_step()

    run = _run(boundary, {**inputs, "rates": _rates_of(inputs)}, inputs["log_probs"], _PACKED, work)
    engine = run.engines[0]
    logged = {name: sum(step[name] for step in engine.steps) / len(engine.steps) for name in ("grad_norm", "lr")}
    return {
        "gradient": run.gradient,
        "rates": engine.optimizer.rates,
        "loss": run.loss / inputs["steps"],
        "grad_norm": None if inputs["max_norm"] is None else logged["grad_norm"],
        "logged_rate": logged["lr"],
        "validation_loss": engine.evaluated[0] if inputs["validates"] and mask.any() else None,
        "lost_steps": inputs["steps"] - len(engine.steps),
    }


def _criticised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one update of AReaL's critic, and return its loss with its gradient."""
    mask = inputs["response_mask"].long()
    batch = _sequences(mask, _VALUES)
    columns = {name: torch.nn.functional.pad(inputs[name], (0, 1)) for name in ("values", "returns")}
    batch |= {**columns, "loss_mask": batch["loss_mask"].roll(-1, -1)}

    def work(engine: Any, part: slice) -> None:
        boundary.imported[_CRITIC].PPOCritic(engine.config, engine)._ppo_update(_part(batch, part))

    # Microbatches of 16 tokens, so that a batch has several.
    cut = {**inputs, "max_tokens_per_microbatch": 16}
    run = _run(boundary, cut, inputs["vpreds"], _VALUES, work, eps_clip=inputs["cliprange_value"])
    return {"loss": kit.attach_gradient(run.loss, inputs["vpreds"], run.gradient), "clip_fraction": None}


_SIDES = ("chosen", "rejected")


def _interleaved(inputs: Mapping[str, Any], name: str) -> Any:
    """Return both sides of each pair in adjacent rows, padded on the right to the same length."""
    sides = [inputs[f"{side}_{name}"] for side in _SIDES]
    width = max(side.shape[1] for side in sides)
    padded = [torch.nn.functional.pad(side, (0, width - side.shape[1])) for side in sides]
    return torch.stack(padded, dim=1).flatten(0, 1)


def _paired(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one preference update with AReaL's trainer. Rejected rows follow their chosen rows."""
    mask, table = _interleaved(inputs, "mask").long(), _interleaved(inputs, "log_probs")
    batch = _sequences(mask, _PACKED)
    batch["ref_logprobs"] = torch.nn.functional.pad(_interleaved(inputs, "ref_log_probs"), (0, 1))

    def work(engine: Any, part: slice) -> None:
        boundary.imported[_DPO].DPOEngine(engine)._train_dpo(_part(batch, part))

    options = {"beta": inputs["beta"], "loss_type": inputs["loss_type"], "granularity": 2}
    return _of_pairs(_run(boundary, inputs, table, _PACKED, work, **options), inputs)


def _of_pairs(run: Run, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of pairs with the gradients of both sides."""
    sides = run.gradient.unflatten(0, (-1, 2)).unbind(1)
    loss = run.loss
    for side, slope in zip(_SIDES, sides):
        table = inputs[f"{side}_log_probs"]
        loss = kit.attach_gradient(loss, table, slope[:, : table.shape[1]])
    return {"loss": loss}


_PACKED, _VALUES, _JOINED, _DIVIDED = Form(), Form(values=True), Form(tree=True), Form(parts=3)
_IMPORTS = (
    _ENGINE,
    _ARGUMENTS,
    _STATS,
    _ACTOR,
    _CRITIC,
    _LM,
    _DPO,
    _TREE,
    _TREE_SCORES,
    _GRADIENTS,
    _SCALING,
    _ULYSSES,
)
#: Required, because older engines do not split the forward pass, the loss and the step into these methods.
_NOW = (f"{_ENGINE}.FSDPEngine._compute_logprobs_and_loss", f"{_TREE}.build_packed_tree_batch")


def _bind(path: str, contract: str, call: Any, **more: Any) -> Binding:
    needed = (*_NOW, path, *more.get("imports", _IMPORTS))
    options = {"stand_ins": _STAND_INS, "imports": _IMPORTS, "requires": needed, "dtypes": ("float32",), **more}
    return Binding(path, contract, call=call, **options)


_OF_UPDATES: Mapping[str, Any] = {
    "fixed": {
        **dict.fromkeys(("ref_log_probs", "entropies", "loss_scale_factor", "rollout_log_probs")),
        **dict.fromkeys(("kl_coef", "entropy_coef"), 0.0),
        "loss_agg_mode": "token-mean",
    },
    "accepts": {"dual_clip": (None, 3.0)},
}
_LOOP: Mapping[str, Any] = {
    "fixed": {
        **dict.fromkeys(("old_log_probs", "advantages", "entropies", "policy_weights", "supervised_weights")),
        **dict.fromkeys(("distill_weights", "teacher_log_probs")),
        **dict.fromkeys(("several_terms", "with_images", "with_routes", "fused_head"), False),
        "resumes_after": 0,
        "algorithm": "cross_entropy",
        "kl_coef": 0.0,
        **dict.fromkeys(("eps_clip_low", "eps_clip_high"), 0.2),
    },
    "accepts": {"validates": (False, True), "offloads": (False, True)},
}
_CRITICISED: Mapping[str, Any] = {
    "fixed": aggregated("token-mean"),
    "accepts": {"cliprange_value": (0.2, 0.6)},
    "dialects": (
        Dialect("factor", 0.5, "the loss is half the squared error", f"{_CODE}/utils/functional/functional.py#L866"),
    ),
}
_SUPERVISED: Mapping[str, Any] = {"fixed": {"first_counts": False}}
_SCORED: Mapping[str, Any] = {"fixed": {"entropies": None}}
_JOINING: Mapping[str, Any] = {"stand_ins": (*_STAND_INS, _SCORES)}

#: Functions that the calls of this module run -> the contract that checks them, and the call.
_PIECES: tuple[tuple[str, str, str, Any, Mapping[str, Any]], ...] = (
    (
        f"{_ENGINE}.FSDPEngine", "_compute_logprobs _compute_forward_result _prepare_mb_inputs",
        "recomputed_log_probs", partial(_recomputed, _PACKED, ""), _SCORED,
    ),
    (
        _ULYSSES, "ulysses_pad ulysses_pad_and_slice_inputs ulysses_prepare_inputs",
        "recomputed_log_probs", partial(_recomputed, _DIVIDED, ""), _SCORED,
    ),
    (_DATA, "amend_position_ids", "recomputed_log_probs", partial(_recomputed, _PACKED, ""), _SCORED),
    (
        f"{_ACTOR}.PPOActor", "_compute_logp", "recomputed_log_probs", partial(_recomputed, _PACKED, _ACTOR),
        _SCORED,
    ),
    (f"{_DPO}.DPOEngine", "_compute_logp", "recomputed_log_probs", partial(_recomputed, _PACKED, _DPO), _SCORED),
    (
        f"{_ENGINE}.FSDPEngine",
        "_compute_logprobs_entropy _compute_logprobs_and_loss _prepare_mb_list forward_backward_batch train_batch",
        "policy_update", partial(_updated, _PACKED), _OF_UPDATES,
    ),
    (_DATA, "MicroBatchList.to", "policy_update", partial(_updated, _PACKED), _OF_UPDATES),
    (_ARGUMENTS, "MicroBatchSpec.new", "policy_update", partial(_updated, _PACKED), _OF_UPDATES),
    (
        f"{_ENGINE}.FSDPEngine", "optimizer_step lr_scheduler_step eval_batch", "loop_update", _looped, _LOOP,
    ),
    (
        _GRADIENTS,
        "get_main_grads_for_grad_norm get_grad_norm_fp32 clip_grad_by_total_norm_fp32 fsdp2_clip_grad_norm",
        "loop_update", _looped, _LOOP,
    ),
    (_SCALING, "local_multi_tensor_scale", "loop_update", _looped, _LOOP),
    (f"{_ENGINE}.FSDPEngine", "_compute_values", "value_loss", _criticised, _CRITICISED),
    (f"{_LM}.LMEngine", "_evaluate_lm", "loop_update", _looped, _LOOP),
    (f"{_LM}.LMEngine", "_train_lm", "supervised_update", _fitted, _SUPERVISED),
    (
        _TREE,
        "TrieNode.get_sequence_tree_indices build_packed_tree_batch _greedy_build_tries _extract_sequences "
        "_pack_input_ids _build_attention_mask _apply_causal_mask_blockwise get_packed_tree_position_ids",
        "recomputed_log_probs", partial(_recomputed, _JOINED, ""), {**_SCORED, **_JOINING},
    ),
    (
        _TREE_SCORES,
        "_gather_packed_tree_logprobs _compute_internal_node_logprobs _compute_transition_logprob "
        "merge_packed_tree_results",
        "recomputed_log_probs", partial(_recomputed, _JOINED, ""), {**_SCORED, **_JOINING},
    ),
    (
        "areal.models.tree_attn.module_fsdp", "create_block_mask_from_dense",
        "recomputed_log_probs", partial(_recomputed, _JOINED, ""), {**_SCORED, **_JOINING},
    ),
    (_TREE, "_pack_extra_data", "policy_update", partial(_updated, _JOINED), {**_OF_UPDATES, **_JOINING}),
    (
        _TREE_SCORES,
        "gather_packed_tree_logprobs_entropy _gather_packed_tree_logprobs_entropy "
        "_compute_internal_node_logprobs_entropy _compute_transition_logprob_entropy",
        "policy_update", partial(_updated, _JOINED), {**_OF_UPDATES, **_JOINING},
    ),
)  # fmt: skip

BINDINGS = (
    *(
        _bind(f"{owner}.{name}", contract, call, **more)
        for owner, names, contract, call, more in _PIECES
        for name in names.split()
    ),
    _bind(
        f"{_CRITIC}.PPOCritic._compute_values", "critic_values", _valued,
        dialects=(
            Dialect(
                "outside_the_mask", "any", "the values of all tokens are returned", f"{_CODE}/trainer/ppo/critic.py#L35"
            ),
        ),
    ),
    _bind(f"{_CRITIC}.PPOCritic._ppo_update", "value_loss", _criticised, **_CRITICISED),
    _bind(
        f"{_DPO}.DPOEngine._train_dpo", "preference_update", _paired,
        fixed=PREFERENCE_LOSS.lacking("beta", "loss_type"), accepts={"loss_type": ("sigmoid", "ipo")},
    ),
)  # fmt: skip
