"""Containers of rows can fail: in a copy of main each boundary has one line changed, and a law says so of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from binding_kit import Bound, opened_twin
from twins import Edit

#: "main in August 2026".
MAIN = {
    "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
    "roll": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "skyrl": "a9564572eb8e91076be43c1bd5e4615e3de17265",
}

_PROTO = "verl/protocol.py"
_DICTS = "verl/utils/tensordict_utils.py"
_ROLL = "roll/distributed/scheduler/protocol.py"
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
    },
    "roll": {
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
    "skyrl": {
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

#: What main itself has wrong: see test_bindings_verl.py.
KNOWN = {"verl.protocol.DataProto.make_iterator": {"intact"}}


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
    found: set[str] = set()
    for law in subject.laws:
        for scenario in twins[target].scenarios(subject).values():
            found |= {item.key for item in twins[target].ask(subject, law.name, {"": scenario}).violations}
    assert found - KNOWN.get(boundary, set())
