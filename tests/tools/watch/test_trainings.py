"""A real trainer of transformers, watched: what is broken in it is named within a step, and no parameter changes."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel.tools.watch.invariants import Memory
from sentinel.tools.watch.training import Training
from sentinel.tools.watch.wrapping import Budget, Watcher

#: Looked for, and not imported: each process that collects these tests would pay for it.
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("transformers", "accelerate"))), reason="the extra `trl` is not installed"
)
_STEPS = 3


def _trainer(folder: Path, bug: str) -> Any:
    import transformers

    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    ids = torch.randint(2, 16, (16, 6))
    labels = ids.masked_fill(torch.arange(6) < torch.randint(1, 5, (16, 1)), -100)
    labels = labels.roll(1, 1) if bug == "labels one late" else labels
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels)]

    class Trains(transformers.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, num_items_in_batch: Any = None, **more: Any) -> Any:
            items = None if bug == "mean of means" else num_items_in_batch
            return super().compute_loss(model, inputs, num_items_in_batch=items, **more)

    options = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", max_steps=_STEPS, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, learning_rate=0.01, warmup_steps=1, logging_steps=1, save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Trains(model=transformers.LlamaForCausalLM(config), args=options, train_dataset=rows)
    if bug == "head left out":
        trainer.create_optimizer()
        head = trainer.model.get_output_embeddings().weight
        for group in trainer.optimizer.param_groups:
            group["params"] = [one for one in group["params"] if one is not head]
    if bug == "constant rate":
        trainer.create_optimizer()
        trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(trainer.optimizer, 1.0)
    return trainer


def _trained(folder: Path, bug: str = "", watched: bool = True) -> tuple[set[str], dict[str, int], list[Any]]:
    watcher, memory = Watcher(Budget(every=1, share=1.0)), Memory()
    training = Training(watcher)
    trainer = _trainer(folder, bug)
    if watched:
        training.attach()
    trainer.train()
    training.stop()
    watcher.restore()
    assert watcher.failed == {}
    named = set()
    while not watcher.events.empty():
        seen = watcher.events.get_nowait()
        named |= {one.name for one, _ in memory.look(seen.kind, {**seen.values, "moment": seen.moment})}
    return named, memory.looks, [parameter.detach().clone() for parameter in trainer.model.parameters()]


def test_a_training_without_a_bug_is_not_named_and_not_changed(tmp_path):
    named, looks, parameters = _trained(tmp_path)
    _, unwatched, same = _trained(tmp_path, watched=False)
    assert named == set()
    assert unwatched == {}
    assert looks["the_loss_is_that_of_the_labels"] == 2 * _STEPS
    assert looks["the_rate_is_the_schedules"] == _STEPS
    assert all(torch.equal(one, other) for one, other in zip(parameters, same))


@pytest.mark.parametrize(
    ("bug", "invariant"),
    [
        ("labels one late", "labels_are_tokens"),
        ("mean of means", "micro_batches_add_up"),
        ("head left out", "parameters_follow_gradients"),
        ("constant rate", "the_rate_is_the_schedules"),
    ],
)
def test_a_bug_is_named(tmp_path, bug, invariant):
    assert invariant in _trained(tmp_path, bug)[0]
