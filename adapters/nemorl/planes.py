"""A binding for NeMo-RL's training loop in which driver and workers exchange rows through TransferQueue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from . import runs
from .shared import ALGORITHMS, Words

_PLANE, _ACTOR = "nemo_rl.data_plane", "nemo_rl.experience.sync_rollout_actor"
_NSYS = "nemo_rl.utils.nsys"
_CODEC, _MIXIN, _POLICY = f"{_PLANE}.codec", f"{_PLANE}.worker_mixin", "nemo_rl.models.policy.tq_policy"
#: The methods of NeMo-RL's policy that exchange rows with the store.
_METHODS = (
    "prepare_step", "prepare_val_partition", "discard_samples", "finish_step", "read_from_dataplane",
    "write_to_dataplane", "get_logprobs_from_meta", "get_reference_policy_logprobs_from_meta", "train_from_meta",
)  # fmt: skip


class Store:
    """A stand-in for TransferQueue that stores each sample's columns in memory."""

    def __init__(self, codec: Any) -> None:
        self._codec, self._samples, self.partitions = codec, {}, {}  # type: ignore[var-annotated]

    def register_partition(self, partition_id: str, **options: Any) -> None:
        self.partitions[partition_id] = options

    def put_samples(self, sample_ids: Sequence[str], partition_id: str, fields: Any, tags: Any = None) -> None:
        for name in fields.keys():  # noqa: SIM118  (iterating over a TensorDict gives rows)
            column = fields[name]
            rows = column.unbind() if hasattr(column, "unbind") else column
            for key, value in zip(sample_ids, rows, strict=True):
                self._samples.setdefault((partition_id, key), {})[name] = value

    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        from tensordict import NonTensorStack, TensorDict

        columns = {}
        for name in select_fields:
            own = [self._samples[partition_id, key][name] for key in sample_ids]
            tensors = isinstance(own[0], torch.Tensor)
            columns[name] = self._codec.stack_or_nest(own) if tensors else NonTensorStack(*own)
        return TensorDict(columns, batch_size=[len(sample_ids)])

    def clear_samples(self, sample_ids: Sequence[str], partition_id: str) -> None:
        for key in sample_ids:
            self._samples.pop((partition_id, key), None)

    def row(self, partition_id: str, sample_id: str) -> Any:
        """Return the columns of a sample, or None if the store does not have it."""
        return self._samples.get((partition_id, sample_id))

    def count(self) -> int:
        return len(self._samples)


def _make_worker(mixin: Any, run: Any, store: Store) -> Any:
    """Make a worker with NeMo-RL's methods that read and write the store. The stand-in ``run`` computes the results."""

    class Worker(mixin):  # type: ignore[misc]
        tokenizer, cfg, _dp_client = Words(), {}, store

        def train(self, data: Any, **options: Any) -> dict[str, Any]:
            made = run.train(data, **options)
            device = {"gpu_name": "NVIDIA H100 80GB HBM3", "model_dtype": torch.bfloat16}
            return {**made, **device, "global_loss": made["loss"]}

        def get_logprobs(self, data: Any, micro_batch_size: Any = None) -> Any:
            return self.batch(run.get_logprobs(data))

        def get_reference_policy_logprobs(self, data: Any, micro_batch_size: Any = None) -> Any:
            return self.batch(run.get_reference_policy_logprobs(data))

        batch = staticmethod(run._batch)

        def _local_coords(self) -> dict[str, int]:
            return {}

    return Worker()


def _add_store_methods(boundary: Any, run: Any, config: Any, store: Store) -> None:
    """Add NeMo-RL's methods that read and write the store to ``run``, the stand-in for the policy."""
    worker = _make_worker(boundary.imported[_MIXIN].TQWorkerMixin, run, store)

    def ask(method: str, meta: Sequence[Any], common_kwargs: Mapping[str, Any], **_: Any) -> list[Any]:
        return [getattr(worker, method)(meta=own, **common_kwargs) for own in meta]

    group = kit.stand_in(run_all_workers_sharded_data=ask, get_all_worker_results=kit.return_first)
    group.cluster = kit.stand_in(world_size=lambda: 2)
    policy = kit.make_unbuilt(
        boundary.imported[_POLICY].TQPolicy,
        dp_client=store,
        cfg=config.policy,
        tq_partition_id="train",
        sharding_annotations=run.sharding_annotations,
        worker_group=group,
        flops_tracker=kit.stand_in(reset=lambda: None, track_batch=lambda lengths: None, total_flops=3e12),
        _router_replay_enabled=config.policy["router_replay"]["enabled"],
    )
    run.dp_cfg, run.tq_partition_id = config.data_plane, policy.tq_partition_id
    for name in _METHODS:
        setattr(run, name, getattr(policy, name))


def _ran(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run the training loop with :class:`Store` in place of TransferQueue, and with numbers as names of samples."""
    imported, module = boundary.imported, boundary.module
    store, names, actor = Store(imported[_CODEC]), count(), imported[_ACTOR]

    def train(**named: Any) -> None:
        run, config = named["policy"], named["master_config"]
        config.data_plane = {"enabled": True}
        _add_store_methods(boundary, run, config, store)
        with kit.swap_all(
            module,
            SyncRolloutActor=runs._actors(actor.SyncRolloutActor),
            make_actor_runtime_env=lambda name: name,
            ray=kit.stand_in(get=runs._get),
            refit_policy_generation=run.load,
            MemoryTracker=lambda: kit.stand_in(snapshot_start_of_stage={}.get),
        ):
            boundary.function(**named)

    with ExitStack() as alone:
        alone.enter_context(kit.on_cpu(imported[_NSYS]))
        alone.enter_context(kit.swap(actor, "uuid", kit.stand_in(uuid4=lambda: next(names))))
        alone.enter_context(kit.swap(imported[_PLANE], "build_data_plane_client", lambda *_, **__: store))
        there = {name: getattr(boundary, name) for name in ("path", "parameters", "imported")}
        loop = kit.stand_in(function=train, module=imported[runs._GRPO], **there)  # has the configuration's classes
        return runs._ran("grpo", "prompts", False, loop, inputs)


BINDINGS = (
    Binding(
        f"{ALGORITHMS}.grpo_sync.grpo_train_sync", "training_loop", call=_ran,
        imports=(*runs._IMPORTS, *runs._OF_ROLLOUTS, runs._GRPO, _PLANE, _CODEC, _MIXIN, _POLICY, _ACTOR, _NSYS),
        requires=(f"{runs._GRPO}._initial_grpo_save_state", f"{_POLICY}.TQPolicy.read_from_dataplane"),
        accepts=runs._choices("grpo_sync.grpo_train_sync", "grpo", "prompts"),
        stand_ins=(*runs._STAND_INS, StandIn("TransferQueue", "keeps the columns of samples in memory")),
    ),
)  # fmt: skip
