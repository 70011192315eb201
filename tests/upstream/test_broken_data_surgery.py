"""Containers, partitions and schedules can fail: in a copy of main each has a line changed, and a law says so."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest
from binding_kit import Bound, opened_twin
from twins import Edit

from sentinel.contracts.choices import Choices

#: "main in August 2026".
MAIN = {
    "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
    "roll": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "areal": "cbff54d645d2cd8ee1f1c358a82f3f473588433d",
    "slime": "624b824a898ab0ec1fcb4d373004c7f3852bf515",
    "skyrl": "a9564572eb8e91076be43c1bd5e4615e3de17265",
}

_PROTO = "verl/protocol.py"
_DICTS = "verl/utils/tensordict_utils.py"
_ROLL = "roll/distributed/scheduler/protocol.py"
_TORCH = "verl/utils/torch_functional.py"
_VERL_BALANCE = "verl/utils/seqlen_balancing.py"
_AREAL = "areal/utils/data.py"
_SEQPACK = "areal/utils/seqpack.py"
_SLIME = "slime/utils/seqlen_balancing.py"
_SKYRL = "skyrl/backends/skyrl_train/training_batch.py"

#: target -> boundary, and what is put in place of what.
EDITS: Mapping[str, Mapping[str, Edit]] = {
    "verl": {
        "verl.protocol.DataProto.chunk": (
            _PROTO,
            "non_tensor_batch_lst[i][key] = non_tensor_lst[i]",
            "non_tensor_batch_lst[i][key] = non_tensor_lst[-1 - i]",
        ),
        "verl.protocol.DataProto.split": (
            _PROTO,
            "return [self[i : i + split_size] for i in range(0, len(self), split_size)]",
            "return [self[i : i + split_size] for i in range(0, len(self) - split_size + 1, split_size)]",
        ),
        "verl.protocol.DataProto.concat": (_PROTO, "np.concatenate(val, axis=0)", "np.concatenate(val[::-1], axis=0)"),
        "verl.protocol.DataProto.reorder": (
            _PROTO,
            "        self.batch = self.batch[indices]\n        self.non_tensor_batch = {key: val[indices_np]",
            "        self.batch = self.batch[indices]\n        self.non_tensor_batch = {key: val",
        ),
        "verl.protocol.DataProto.repeat": (
            _PROTO,
            "repeated_non_tensor_batch[key] = np.repeat(val, repeat_times, axis=0)\n            else:",
            "repeated_non_tensor_batch[key] = np.tile(val, repeat_times)\n            else:",
        ),
        "verl.protocol.DataProto.sample_level_repeat": (
            _PROTO,
            "repeat_times = torch.tensor(repeat_times)\n",
            "repeat_times = torch.tensor(repeat_times) + 1\n",
        ),
        "verl.protocol.DataProto.make_iterator": (_PROTO, "for _ in range(epochs):", "for _ in range(1):"),
        "verl.protocol.pad_dataproto_to_divisor": (
            _PROTO,
            "padding_protos.append(data[:take_size])",
            "padding_protos.append(data[-take_size:])",
        ),
        "verl.protocol.unpad_dataproto": (_PROTO, "data = data[:-pad_size]", "data = data[pad_size:]"),
        "verl.utils.tensordict_utils.chunk_tensordict": (
            _DICTS,
            "list(tensors[i * chunk_size : (i + 1) * chunk_size])",
            "list(tensors[:chunk_size])",
        ),
        "verl.utils.tensordict_utils.concat_tensordict": (
            _DICTS,
            "nested_tensors_to_concat = [td[key] for td in data]",
            "nested_tensors_to_concat = [td[key] for td in data[::-1]]",
        ),
        "verl.utils.tensordict_utils.index_select_tensor_dict": (
            _DICTS,
            "selected_tensors = [tensor_lst[idx] for idx in indices]",
            "selected_tensors = [tensor_lst[idx] for idx in sorted(indices)]",
        ),
        "verl.utils.tensordict_utils.pad_to_divisor": (
            _DICTS,
            "padding_protos.append(data[:take_size])",
            "padding_protos.append(data[-take_size:])",
        ),
        "verl.utils.tensordict_utils.unpad": (_DICTS, "data = data[:-pad_size]", "data = data[pad_size:]"),
        "verl.utils.tensordict_utils.make_iterator": (_DICTS, "for _ in range(epochs):", "for _ in range(1):"),
        "verl.utils.seqlen_balancing.get_seqlen_balanced_partitions": (
            _VERL_BALANCE,
            "sorted_partitions[i] = sorted(partition)",
            "sorted_partitions[i] = sorted(partition)[i:]",
        ),
        "verl.utils.seqlen_balancing.karmarkar_karp": (
            _VERL_BALANCE,
            "self.sets[i].merge(other.sets[self.k - 1 - i])",
            "self.sets[i].merge(other.sets[0])",
        ),
        "verl.utils.seqlen_balancing.get_group_balanced_partitions": (
            _VERL_BALANCE,
            "sample_indices.extend(groups[group_idx][0])",
            "sample_indices.extend(groups[group_idx][0][:1])",
        ),
        "verl.utils.seqlen_balancing.prepare_dynamic_batch": (
            _VERL_BALANCE,
            "non_tensors = {key: value[batch_idx] for",
            "non_tensors = {key: value[: len(batch_idx)] for",
        ),
        "verl.utils.seqlen_balancing.restore_dynamic_batch": (
            _VERL_BALANCE,
            "torch.tensor(get_reverse_idx(indices), dtype=torch.long)",
            "torch.tensor(indices, dtype=torch.long)",
        ),
        "verl.trainer.ppo.ray_trainer.RayPPOTrainer._balance_batch": (
            "verl/trainer/ppo/ray_trainer.py",
            "global_idx = torch.tensor([j for partition in global_partition_lst for j in partition])",
            "global_idx = torch.tensor([j for partition in global_partition_lst for j in partition]).clamp(min=1)",
        ),
        "verl.trainer.ppo.core_algos.get_kl_controller": (
            "verl/trainer/ppo/core_algos.py",
            "np.clip(current_kl / target - 1, -0.2, 0.2)",
            "np.clip(current_kl / target - 1, -0.2, 0.3)",
        ),
        "verl.utils.torch_functional.get_constant_schedule_with_warmup": (
            _TORCH,
            "float(max(1.0, num_warmup_steps))\n        return 1.0",
            "float(max(1.0, num_warmup_steps))\n        return 1.0 if current_step else 0.0",
        ),
        "verl.utils.torch_functional.get_cosine_schedule_with_warmup": (
            _TORCH,
            "return max(min_lr_ratio, x * coef + intercept)",
            "return max(min_lr_ratio, x * 0.5 + 0.5)",
        ),
        "verl.utils.torch_functional.get_wsd_schedule_with_warmup": (
            _TORCH,
            "return (1.0 - min_lr_ratio) * value + min_lr_ratio",
            "return max(value, min_lr_ratio)",
        ),
    },
    "roll": {
        "roll.utils.kl_controller.get_kl_controller": (
            "roll/utils/kl_controller.py",
            "mult = 1 + proportional_error * n_steps / self.horizon",
            "mult = 1 + proportional_error / self.horizon",
        ),
        "roll.utils.functionals.get_seqlen_balanced_partitions": (
            "roll/utils/functionals.py",
            "sorted_partitions.append(sorted(partition))",
            "sorted_partitions.append(sorted(partition)[1:])",
        ),
        "roll.utils.functionals.batch_balance": (
            "roll/utils/functionals.py",
            "global_idx = torch.tensor([j for partition in global_partition_lst for j in partition])",
            "global_idx = torch.tensor([j for partition in global_partition_lst for j in partition] * 2)[: batch_size]",
        ),
        "roll.distributed.scheduler.protocol.DataProto.chunk": (
            _ROLL,
            "non_tensor_batch_lst[i][key] = non_tensor_lst[i]",
            "non_tensor_batch_lst[i][key] = non_tensor_lst[-1 - i]",
        ),
        "roll.distributed.scheduler.protocol.DataProto.concat": (
            _ROLL,
            "non_tensor_batch[k] = custom_np_concatenate(v)",
            "non_tensor_batch[k] = custom_np_concatenate(v[::-1])",
        ),
        "roll.distributed.scheduler.protocol.DataProto.reorder": (
            _ROLL,
            "self._non_tensor_batch = {key: val[indices_np] for",
            "self._non_tensor_batch = {key: val for",
        ),
        "roll.distributed.scheduler.protocol.DataProto.repeat": (
            _ROLL,
            "np.repeat(val, repeat_times, axis=0)",
            "np.tile(val, repeat_times)",
        ),
        "roll.distributed.scheduler.protocol.DataProto.make_iterator": (
            _ROLL,
            "for _ in range(epochs):",
            "for _ in range(1):",
        ),
        "roll.distributed.scheduler.protocol.pad_dataproto_to_divisor": (
            _ROLL,
            "padding_protos.append(data[:take_size])",
            "padding_protos.append(data[-take_size:])",
        ),
        "roll.distributed.scheduler.protocol.unpad_dataproto": (
            _ROLL,
            "data = data[:-pad_size]",
            "data = data[pad_size:]",
        ),
    },
    "areal": {
        "areal.engine.fsdp_utils.get_cosine_schedule_with_warmup": (
            "areal/engine/fsdp_utils/__init__.py",
            "max(1, num_training_steps - num_warmup_steps)",
            "max(1, num_training_steps)",
        ),
        "areal.utils.data.concat_padded_tensors": (
            _AREAL,
            "_pad_cat_dim0(values, pad_value=pv)",
            "_pad_cat_dim0(values[::-1], pad_value=pv)",
        ),
        "areal.utils.data.split_and_unpad_tensor": (
            _AREAL,
            "split_result[i][key] = s\n",
            'split_result[i].setdefault("input_ids", s)\n',
        ),
        "areal.utils.data.pack_tensor_dict": (
            _AREAL,
            "packed_tensor[start:end] = value[i][: end - start]",
            "packed_tensor[start:end] = value[0][: end - start]",
        ),
        "areal.utils.data.pad_packed_tensor_dict": (
            _AREAL,
            "new_value[new_start : new_start + length] = value[start:end]",
            "new_value[start:end] = value[start:end]",
        ),
        "areal.utils.data.split_padded_tensor_dict_into_mb_list": (
            _AREAL,
            "backward_indices[forward_indices] = np.arange(bs)",
            "backward_indices[:] = np.arange(bs)[::-1]",
        ),
        "areal.utils.data.allocate_balanced_mbs": (
            _AREAL,
            "group_indices = sorted([sorted(g) for g in group_indices])",
            "group_indices = [sorted(place for group in group_indices for place in group)]",
        ),
        "areal.utils.seqpack.ffd_allocate": (
            _SEQPACK,
            "res = _ffd_allocate(np.array(values), capacity, min_groups)",
            "res = _ffd_allocate(np.array(values), 2 * capacity, min_groups)",
        ),
        "areal.utils.seqpack.kk_allocate": (
            _SEQPACK,
            "partitions = _kk_partition(values, k, equal_size=equal_size)",
            "partitions = _kk_partition(values, k, equal_size=equal_size)[1:]",
        ),
        "areal.utils.seqpack.balanced_greedy_partition": (
            _SEQPACK,
            "if counts[i] < m and sums[i] < min_sum:",
            "if counts[i] < 2 * m and sums[i] < min_sum and i == 0:",
        ),
        "areal.infra.controller.train_controller._dispatch_tensors": (
            "areal/infra/controller/train_controller.py",
            "items.append(item_list[idx])",
            "items.append(item_list[0])",
        ),
        "areal.infra.controller.train_controller._merge_tensors": (
            "areal/infra/controller/train_controller.py",
            "reordered[orig_idx] = result_item",
            "reordered[-1 - orig_idx] = result_item",
        ),
        "areal.experimental.engine.archon_utils.create_lr_scheduler": (
            "areal/experimental/engine/archon_utils.py",
            "num_warmup_steps = get_num_warmup_steps(optimizer_config, total_train_steps)",
            "num_warmup_steps = 0",
        ),
    },
    "slime": {
        "slime.utils.seqlen_balancing.get_seqlen_balanced_partitions": (
            _SLIME,
            "sorted_partitions[i] = sorted(partition)",
            "sorted_partitions[i] = sorted(partition)[i:]",
        ),
        "slime.utils.seqlen_balancing.karmarkar_karp": (
            _SLIME,
            "self.sets[i].merge(other.sets[self.k - 1 - i])",
            "self.sets[i].merge(other.sets[0])",
        ),
        "slime.utils.seqlen_balancing.first_fit_pack": (
            _SLIME,
            "if bin_sums[j] + length <= max_tokens_per_bin:",
            "if bin_sums[j] <= max_tokens_per_bin:",
        ),
        "slime.utils.dp_schedule.build_dp_schedule": (
            "slime/utils/dp_schedule.py",
            "local_start = len(partitions[r])",
            "local_start = 0",
        ),
    },
    "skyrl": {
        "skyrl.backends.skyrl_train.utils.ppo_utils.get_kl_controller": (
            "skyrl/backends/skyrl_train/utils/ppo_utils.py",
            "np.clip(current / target - 1, -0.2, 0.2)",
            "np.clip(current - target, -0.2, 0.2)",
        ),
        "skyrl.backends.skyrl_train.training_batch.TensorBatch.chunk": (
            _SKYRL,
            "chunk_data[key] = value[i : i + chunk_size]",
            "chunk_data[key] = value[:chunk_size]",
        ),
        "skyrl.backends.skyrl_train.training_batch.TensorBatch.cat": (
            _SKYRL,
            "TensorList.cat([shard[key] for shard in shards])",
            "TensorList.cat([shard[key] for shard in shards[::-1]])",
        ),
        "skyrl.backends.skyrl_train.training_batch.TensorBatch.slice": (
            _SKYRL,
            "slice_obj = slice(start, end, step)",
            "slice_obj = slice(start, end + 1, step)",
        ),
        "skyrl.backends.skyrl_train.training_batch.pad_training_input_batch": (
            _SKYRL,
            "torch.zeros(pad_size, *additional_dims, dtype=tensor.dtype, device=tensor.device)",
            "torch.ones(pad_size, *additional_dims, dtype=tensor.dtype, device=tensor.device)",
        ),
    },
}

#: What main itself has wrong: see test_bindings_<target>.py.
KNOWN = {
    "verl.protocol.DataProto.make_iterator": {"intact"},
    "verl.trainer.ppo.ray_trainer.RayPPOTrainer._balance_batch": {"strayed"},
    "roll.utils.functionals.batch_balance": {"strayed"},
    "areal.utils.data.split_and_unpad_tensor": {"intact"},
}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Bound]]:
    opened = _Opened(tmp_path_factory)
    yield opened
    opened.close()


class _Opened(dict[str, Bound]):
    """One copy of each target, made when the first of its boundaries is asked about."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._open: list[Iterator[Bound]] = []

    def __missing__(self, target: str) -> Bound:
        made = opened_twin(target, MAIN[target], list(EDITS[target].values()), self._folders.mktemp(target))
        self._open.append(made)
        self[target] = next(made)
        return self[target]

    def close(self) -> None:
        for opened in self._open:
            next(opened, None)


@pytest.mark.parametrize(("target", "boundary"), [(target, name) for target, edits in EDITS.items() for name in edits])
def test_a_law_says_that_the_twin_is_broken(twins: Mapping[str, Bound], target: str, boundary: str) -> None:
    (subject,) = (item for item in twins[target].subjects if item.boundary == boundary)
    asked = (
        scenario for seed in range(4) for scenario in twins[target].scenarios(subject, None, _drawn(seed)).values()
    )
    found = (
        item.key
        for scenario in asked
        for law in subject.laws
        if law.vary is None
        for item in twins[target].ask(subject, law.name, {"": scenario}).violations
    )
    assert any(key not in KNOWN.get(boundary, set()) for key in found)


def _drawn(seed: int) -> Choices:
    return Choices(random.Random(seed).randbytes(64))
