"""A real trainer of transformers is watched: a bug is reported within a step, and watching changes no parameter."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from sentinel.tools.watch.facts import is_undisturbed_by_calls
from sentinel.tools.watch.invariants import INVARIANTS, Memory
from sentinel.tools.watch.training import Training
from sentinel.tools.watch.wrapping import Budget, Watcher

#: The packages are only located. An import would slow down each process that collects these tests.
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("transformers", "accelerate"))), reason="the extra `trl` is not installed"
)
_STEPS = 3
#: Settings of a trainer under which every invariant about a forward pass is checked.
_FACTS: dict[str, Any] = {
    "class": "transformers.trainer.Trainer", "own": {}, "callbacks": {}, "options": {}, "random": [], "changed": [],
    "distributed": "NO", "scaler": False, "generation": [], "loss_function": False, "smoothing": False, "collator": "",
    "weights_swap": False,
}  # fmt: skip


def _trainer(folder: Path, bug: str, patch: pytest.MonkeyPatch) -> Any:
    import transformers

    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    ids = torch.randint(2, 16, (16, 6))
    labels = ids.masked_fill(torch.arange(6) < torch.randint(1, 5, (16, 1)), -100)
    labels = labels.roll(1, 1) if bug == "labels one late" else labels
    labels = ids.clone() if bug == "first label counted" else labels
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels)]

    usual = transformers.Trainer.compute_loss

    def of_each(self: Any, *args: Any, num_items_in_batch: Any = None, **more: Any) -> Any:
        return usual(self, *args, **more)

    class Scaled(transformers.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, *args: Any, **more: Any) -> Any:
            return 0.5 * super().compute_loss(*args, **more)

    kind = Scaled if bug == "loss of the user" else transformers.Trainer
    if bug == "mean of means":
        patch.setattr(transformers.Trainer, "compute_loss", of_each)
    if bug == "moments not loaded":
        patch.setattr(
            transformers.Trainer, "_load_optimizer_and_scheduler",
            lambda self, place: place and self.lr_scheduler.load_state_dict(torch.load(f"{place}/scheduler.pt")),
        )  # fmt: skip
    if bug == "first label counted":
        patch.setattr(
            transformers.Trainer, "_get_num_items_in_batch",
            lambda self, batches, device: sum((one["labels"] != -100).sum() for one in batches),
        )  # fmt: skip
    if bug == "warm-up rounded down":
        down = lambda self, steps: int(steps * self.warmup_steps)  # noqa: E731
        patch.setattr(transformers.TrainingArguments, "get_warmup_steps", down)
    if bug == "rows left out":
        patch.setattr(transformers.Trainer, "_get_train_sampler", lambda self, rows=None: range(0, 16, 2))
    if bug == "one order":
        patch.setattr("accelerate.data_loader.SeedableRandomSampler.set_epoch", lambda self, epoch: None)
    if bug == "batches again":
        patch.setattr(transformers.trainer, "skip_first_batches", lambda loader, count: loader)
    if bug == "random state not loaded":
        patch.setattr(transformers.Trainer, "_load_rng_state", lambda self, place: None)
    if bug.startswith("evaluation"):
        evaluated = transformers.Trainer.prediction_step

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            loss, *others = evaluated(self, *args, **kwargs)
            if bug == "evaluation moves":
                with torch.no_grad():
                    next(self.model.parameters()).mul_(0.9)
            return (2 * loss if bug == "evaluation doubles" else loss, *others)

        patch.setattr(transformers.Trainer, "prediction_step", step)
    if bug == "constant rate":
        constant = torch.optim.lr_scheduler.LambdaLR
        patch.setattr(
            transformers.trainer, "get_scheduler", lambda *_, optimizer, **__: constant(optimizer, lambda _: 1)
        )
    options = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", max_steps=_STEPS, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, learning_rate=0.01, warmup_steps=1, logging_steps=1, save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    if bug == "warm-up rounded down":
        options.warmup_steps = 0.5
    if bug in ("one order", "two epochs"):
        options.max_steps = 5  # an epoch has 4
    model, parts = transformers.LlamaForCausalLM(config), dict[str, Any]()
    if bug == "compiled":
        options.torch_compile_backend, options.torch_compile = "eager", True
    if bug == "schedule of the user":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        parts["optimizers"] = optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    if bug.startswith("evaluation"):
        options.eval_strategy, options.eval_steps, options.per_device_eval_batch_size = "steps", 1, 2
        parts["eval_dataset"] = rows[:4]
    trainer = kind(model=model, args=options, train_dataset=rows, **parts)
    if bug == "head left out":
        trainer.create_optimizer()
        head = trainer.model.get_output_embeddings().weight
        for group in trainer.optimizer.param_groups:
            group["params"] = [one for one in group["params"] if one is not head]
    return trainer


def _trained(
    folder: Path,
    bug: str = "",
    watched: bool = True,
    rate: float = 0.01,
    times: int = 1,
    resume: bool = False,
    referred: bool = False,
) -> tuple[set[str], Memory, list[Any]]:
    watcher, memory = Watcher(Budget(every=1, share=1.0)), Memory()
    training = Training(watcher)
    with pytest.MonkeyPatch.context() as patch:
        importlib.import_module("transformers.trainer")
        if watched:
            training.attach()
        for time in range(times):
            trainer = _trainer(folder, bug, patch)
            trainer.args.learning_rate = rate
            if referred:  # each trainer has its own reference, with parameters of the same names
                torch.manual_seed(time)
                trainer.ref_model = type(trainer.model)(trainer.model.config)
            if resume:
                trainer.args.save_strategy, trainer.args.save_steps = "steps", 1
                torch.manual_seed(time)  # without dropout, a training draws random numbers only at its beginning
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-1" if resume and time else None)
        training.stop()
        watcher.restore()
    assert watcher.failed == {}
    named = set()
    while not watcher.events.empty():
        seen = watcher.events.get_nowait()
        values = {**seen.values, "moment": seen.moment, "step": seen.step, "process": 0}
        named |= {one.name for one, _ in memory.look(seen.kind, values)}
    return named, memory, [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.slow
def test_a_correct_training_has_no_report_and_no_change(tmp_path):
    named, memory, parameters = _trained(tmp_path)
    _, unwatched, same = _trained(tmp_path, watched=False)
    looks = memory.looks
    assert named == set()
    assert unwatched.looks == {}
    assert looks["gradients_add_up"] == looks["parameters_follow_gradients"] == _STEPS - 1, "the first rate is 0"
    assert looks["the_optimizer_is_as_configured"] == 1
    assert looks["the_loss_is_that_of_the_labels"] == 2 * _STEPS
    assert looks["the_rate_is_the_schedules"] == _STEPS
    assert looks["an_epoch_has_all_rows"] == 1
    assert memory.skipped["epochs_are_shuffled_anew"] == "the training has one epoch"
    assert all(torch.equal(one, other) for one, other in zip(parameters, same))


@pytest.mark.parametrize(
    ("bug", "invariant"),
    [
        ("labels one late", "labels_are_tokens"),
        ("mean of means", "the_loss_is_that_of_the_labels"),
        ("head left out", "the_optimizer_has_all_parameters"),
        ("constant rate", "the_rate_is_the_schedules"),
        ("evaluation moves", "an_evaluation_trains_nothing"),
        ("evaluation doubles", "an_evaluation_is_the_mean_of_its_batches"),
        ("first label counted", "the_divisor_is_the_number_of_labels"),
        ("warm-up rounded down", "the_rate_is_the_schedules"),
        ("rows left out", "an_epoch_has_all_rows"),
        ("one order", "epochs_are_shuffled_anew"),
    ],
)
def test_a_bug_in_a_training_is_named(tmp_path, bug, invariant):
    assert invariant in _trained(tmp_path, bug)[0]


def test_other_orders_in_later_epochs_are_right(tmp_path):
    named, memory, _ = _trained(tmp_path, "two epochs")
    assert (named, memory.looks["epochs_are_shuffled_anew"]) == (set(), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "skipped", "why"),
    [
        ("loss of the user", "the_loss_is_that_of_the_labels", "Scaled.compute_loss is your own"),
        ("schedule of the user", "the_rate_is_the_schedules", "the scheduler is your own"),
        ("compiled", "the_loss_is_that_of_the_labels", "the model is compiled (torch_compile), so its outputs are not"),
    ],
)
def test_code_of_the_user_is_not_judged(tmp_path, theirs, skipped, why):
    named, memory, _ = _trained(tmp_path, theirs)
    assert named == set()
    assert memory.skipped[skipped].startswith(why)
    assert memory.looks["parameters_follow_gradients"] >= _STEPS - 1, "the rest is checked"


@pytest.mark.parametrize(
    ("mask", "places", "cache", "apart"),
    [
        ([[0, 0, 1, 1, 1]], None, False, False),
        (None, None, False, True),  # the model is not told which tokens are padding
        ([[1, 1, 1, 1, 1]], [[0, 1, 0, 1, 2]], False, None),  # nothing is padding
        (None, [[0, 1, 0, 1, 2]], False, False),
        (None, [[0, 1, 0, 1, 2]], True, True),  # with a cache, transformers does not separate documents
    ],
)
def test_only_tokens_of_padding_and_other_documents_are_replaced(mask, places, cache, apart):
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaModel(transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, pad_token_id=0, eos_token_id=1,
    ))  # fmt: skip
    model.register_buffer("calls", torch.zeros(()))
    usual = model.forward

    def counts(*args: Any, **kwargs: Any) -> Any:
        model.calls.add_(1).add_(torch.rand(()))
        return usual(*args, **kwargs)

    model.forward = counts
    watcher = Watcher(Budget())
    training = Training(watcher)
    training._random = False
    kwargs: dict[str, Any] = {"input_ids": torch.tensor([[0, 0, 5, 6, 7]]), "use_cache": cache}
    kwargs |= {"attention_mask": torch.tensor(mask)} if mask else {}
    kwargs |= {"position_ids": torch.tensor(places)} if places else {}
    batch = {**kwargs, "attention_mask": torch.tensor(mask or [[0, 0, 1, 1, 1]])}
    if places and not mask:
        del batch["attention_mask"]
    state = model(**kwargs).last_hidden_state
    calls, random = model.calls.clone(), torch.get_rng_state()
    training._disturbed(model, kwargs, state, batch, False)
    assert torch.equal(model.calls, calls)
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    memory = Memory()
    memory.look("facts", {**_FACTS})
    events = [watcher.events.get_nowait() for _ in range(watcher.events.qsize())]
    named = [one.name for event in events for one, _ in memory.look(event.kind, {**event.values, "step": 0})]
    assert named == ["other_tokens_change_nothing"] * bool(apart)
    assert len(events) == (apart is not None)


@pytest.mark.parametrize(("module", "repeats"), [("transformers.utils.output_capturing", True), ("mine", False)])
def test_hooks_of_transformers_do_not_prevent_a_second_forward_pass(module, repeats):
    """transformers 5 records hidden states with hooks that stay in the model."""
    import transformers

    model = transformers.LlamaModel(transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    ))  # fmt: skip

    def hook(*_: Any) -> None:
        """Do nothing."""

    hook.__module__ = module
    model.layers[0].register_forward_hook(hook)
    assert is_undisturbed_by_calls(model) == repeats


@pytest.mark.slow
def test_an_evaluation_is_checked(tmp_path):
    named, memory, _ = _trained(tmp_path, "evaluation")
    assert named == set()
    assert memory.looks["the_loss_is_that_of_the_labels (evaluation)"] == 2 * _STEPS
    assert memory.looks["an_evaluation_trains_nothing"] == _STEPS
    assert memory.looks["the_loss_is_that_of_the_labels"] == 2 * _STEPS


@pytest.mark.slow
def test_a_second_trainer_is_observed_as_often_as_the_first(tmp_path):
    named, memory, _ = _trained(tmp_path, times=2)
    assert named == set()
    assert memory.looks["the_loss_is_that_of_the_labels"] == 2 * 2 * _STEPS
    assert memory.looks["micro_batches_add_up"] == 2 * _STEPS


@pytest.mark.slow
def test_a_second_trainer_has_its_own_reference(tmp_path):
    named, memory, _ = _trained(tmp_path, times=2, referred=True)
    assert named == set()
    assert memory.looks["the_reference_stays"] == 2 * _STEPS


@pytest.mark.slow
def test_a_training_that_resumes_is_checked_with_its_optimizers_state(tmp_path):
    named, memory, _ = _trained(tmp_path, times=2, resume=True)
    assert named == set()
    assert memory.looks["parameters_follow_gradients"] == (_STEPS - 1) + (_STEPS - 1), "the first rate is 0"
    assert memory.looks["the_rate_is_the_schedules"] == _STEPS + (_STEPS - 1)
    assert memory.looks["training_resumes_where_it_stopped"] == 2, "the random state, and the optimizer's"
    for bug in ("moments not loaded", "batches again", "random state not loaded"):
        assert "training_resumes_where_it_stopped" in _trained(tmp_path, bug, times=2, resume=True)[0]


def test_an_update_below_the_spacing_of_numbers_is_a_note(tmp_path):
    assert _trained(tmp_path, rate=1e-12)[0] == {"updates_are_not_lost"}
    assert [one.name for one in INVARIANTS if one.note and one.name == "updates_are_not_lost"]
