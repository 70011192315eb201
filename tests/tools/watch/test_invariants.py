"""Each invariant of a training says how it is broken, and nothing where it is kept."""

import queue
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sentinel.tools.watch import training
from sentinel.tools.watch.invariants import INVARIANTS, Memory
from sentinel.tools.watch.training import Training
from sentinel.tools.watch.wrapping import Budget, Watcher

_IDS = torch.tensor([[5, 6, 7, 8], [5, 9, 4, 0]])
_LOG_PROBS = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -1.0, -4.0]])
_LABELS = torch.tensor([[-100, -100, 7, 8], [-100, 9, 4, -100]])
_ATTENTION = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
_ROWS = {"advantages": torch.tensor([1.0, -1.0]), "ids": torch.tensor([[3, 4, 0], [6, 0, 0]])}
#: Whose function gave these rows: a trainer that samples two responses to a prompt.
_TRAINER = SimpleNamespace(args=SimpleNamespace(num_generations=2))
_MEAN = (2.0 + 3.0 + 0.5 + 1.0) / 4


def _answers(**changed: Any) -> tuple[str, dict[str, Any]]:
    said = {"loss": _MEAN, "log_probs": _LOG_PROBS, "ids": _IDS, "labels": _LABELS, "attention_mask": _ATTENTION}
    return "answers", {"items": 4, "moment": 1, "loss_type": "nll", **said, **changed}


def _pairs(**changed: Any) -> tuple[str, dict[str, Any]]:
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])
    margin = 0.1 * ((-5.0 + 4.0) - (-1.5 + 3.0))
    loss = float(-torch.nn.functional.logsigmoid(torch.tensor(margin)))
    said = {"log_probs": _LOG_PROBS, "ref_log_probs": torch.tensor([[-9.0, -2.0, -2.0], [-1.0, -2.0, -9.0]])}
    said |= {"completion_mask": mask, "loss": loss, "loss_type": "sigmoid", "beta": 0.1, "ld_alpha": None}
    return "answers", {"label_smoothing": 0.0, "ids": _IDS, "moment": 1, "items": None, **said, **changed}


def _stepping(**changed: Any) -> tuple[str, dict[str, Any]]:
    weight = torch.ones(2)
    said = {"left": [], "reference": {"w": (weight, weight, False)}, "rates": [0.1], "scheduled": 0.1, "step": 3}
    return "stepping", {"losses": [torch.tensor(_MEAN)], "wanted": 1, **said, **changed}


def _of_rank(rank: int, seen: tuple[str, dict[str, Any]], **changed: Any) -> tuple[str, dict[str, Any]]:
    return seen[0], {**seen[1], "process": rank, "step": 3, "world": 2, "replicated": True, **changed}


def _stepped(before: Any, after: Any, gradient: Any) -> tuple[str, dict[str, Any]]:
    return "stepped", {"parameters": {"w": (torch.tensor(before), torch.tensor(after), gradient)}}


_CALL = {"log_probs": _LOG_PROBS[:, 1:], "response_mask": torch.tensor([[1, 1], [1, 0]]), "moment": 1}
_FLIPPED = {name: value.flip(0) for name, value in _ROWS.items()}
_PROMPTS = {"prompt_ids": torch.tensor([[5, 6], [5, 6]])}
_UNLIKE = {**_ROWS, **_PROMPTS, "advantages": torch.tensor([1.0, -0.5])}
_KEPT = [
    ("produced", {"rows": {**_ROWS, **_PROMPTS}, "peers": 2}),
    ("produced", {"rows": _ROWS}), _answers(partly=True), ("consumed", {"rows": _FLIPPED}),
    ("generated", {"temperature": (0.7, 0.7), "top_k": (0, None), "moment": 1}), ("call", _CALL), _answers(),
    _stepping(), _stepped([1.0], [0.9], torch.tensor([1.0])), _pairs(),
    ("fresh", {"log_probs": _LOG_PROBS, "old_log_probs": _LOG_PROBS + 0.01, "response_mask": _ATTENTION[:, 1:]}),
]  # fmt: skip
_BROKEN = {
    "rows_stay_together": [_KEPT[1], ("consumed", {"rows": {**_ROWS, "advantages": _ROWS["advantages"].flip(0)}})],
    "advantages_are_of_one_prompt": [("produced", {"rows": _UNLIKE, "peers": 2})],
    "prompts_are_not_learned": [_answers(labels=_IDS.masked_fill(_ATTENTION == 0, -100), partly=True)],
    "sampling_is_as_asked": [("generated", {"temperature": (0.7, 1.0)})],
    "the_first_ratio_is_one": [("fresh", {**_KEPT[-1][1], "old_log_probs": 0.5 * _LOG_PROBS})],
    "log_probs_are_the_models": [("call", {**_CALL, "log_probs": _LOG_PROBS[:, :2]}), _answers()],
    "labels_are_tokens": [_answers(labels=_LABELS.roll(1, 1))],
    "the_loss_is_that_of_the_labels": [_answers(loss=2 * _MEAN)],
    "the_loss_is_that_of_the_pairs": [_pairs(beta=1.0)],
    "micro_batches_add_up": [_answers(), _answers(), _stepping(losses=[torch.tensor(_MEAN)] * 2)],
    "samples_are_used_as_often_as_configured": [_stepping(wanted=2)],
    "the_rate_is_the_schedules": [_stepping(rates=[0.2])],
    "parameters_follow_gradients": [_stepped([1.0], [1.0], torch.tensor([1.0]))],
    "ranks_agree": [_of_rank(rank, _stepping(rates=[0.1 + rank])) for rank in range(2)],
    "the_reference_stays": [_stepping(reference={"w": (torch.ones(2), torch.zeros(2), False)})],
}


def test_what_is_kept_is_not_said():
    memory = Memory()
    assert [memory.look(*seen) for seen in _KEPT] == [[]] * len(_KEPT)
    assert set(memory.looks) == {one.name for one in INVARIANTS}


@pytest.mark.parametrize("name", [one.name for one in INVARIANTS])
def test_what_is_broken_is_said_and_can_be_switched_off(name):
    memory, without = Memory(), Memory([name])
    said = [one.name for seen in _BROKEN[name] for one, _ in memory.look(*seen)]
    assert name in said
    assert name not in [one.name for seen in _BROKEN[name] for one, _ in without.look(*seen)]


@pytest.mark.parametrize(
    ("seen", "how"),
    [
        ([_KEPT[1], ("consumed", {"rows": {"advantages": _ROWS["advantages"]}})], "ids was computed for each row"),
        ([("consumed", {"rows": _ROWS})] * 2, "two micro-batches of one step have the same rows"),
        ([_answers(labels=_LABELS.masked_fill(_ATTENTION == 0, 0))], "padding is learned"),
        (
            [("fresh", {**_KEPT[-1][1], "old_log_probs": _LOG_PROBS - torch.tensor([0.0, 0.0, 0.6])})],
            "0.12 apart on average, before any step (length 2-3 0.12, token 1 0, token 2-3 0.2)",
        ),
        ([_stepping(left=["head"])], "no optimizer has head, although"),
        ([_stepped([1.0], [0.5], None)], "w has no gradient but changed"),
        ([_stepping(reference={"w": (torch.ones(1), torch.ones(1), True)})], "the optimizer holds its w"),
        (
            [_of_rank(rank, _stepped([1.0], [0.5 + rank], torch.ones(1))) for rank in range(2)],
            "w differs between processes",
        ),
        (
            [_of_rank(rank, _answers(), moment=moment, ids=_IDS + moment) for moment in range(2) for rank in range(2)],
            "two processes train on the same rows",
        ),
    ],
)
def test_how_it_is_broken(seen, how):
    memory = Memory()
    assert how in "; ".join(said for one in seen for _, said in memory.look(*one))


def test_processes_that_keep_step_are_not_said_to_differ():
    together: dict[str, Any] = {}
    ranks = [Memory(together=together), Memory(together=together)]
    for rank, memory in enumerate(ranks):
        mean = {"loss": 2 * _MEAN, "world": 2}  # DDP divides the sum of the ranks' losses by two
        for seen in (_answers(ids=_IDS + rank, labels=_LABELS, attention_mask=None, items=4, **mean), _stepping(),
                     _stepped([1.0], [0.5], torch.ones(1))):  # fmt: skip
            said = memory.look(*_of_rank(rank, seen))
            assert [one.name for one, _ in said if one.name in ("ranks_agree", "the_loss_is_that_of_the_labels")] == []


def test_a_step_of_an_optimiser_is_seen_and_changes_nothing():
    """Whatever trains: the step is counted, and no exception of ours reaches it."""
    watcher = Watcher(Budget(every=1, share=1.0))
    training = Training(watcher)
    training.attach()
    weight = torch.nn.Parameter(torch.ones(2))
    trainer = SimpleNamespace(model=SimpleNamespace(named_parameters=lambda: iter([("w", weight)])), args=None)
    training._trainer = lambda: trainer
    optimiser = torch.optim.SGD([weight], lr=0.5)
    weight.grad = torch.ones(2)
    optimiser.step()
    training.stop()
    optimiser.step()
    assert weight.tolist() == [0.0, 0.0]
    assert watcher.steps == 1
    assert any("AttributeError" in why for why in watcher.failed), "args is None, which is noted"
    with pytest.raises(queue.Empty):
        watcher.copies.get_nowait()


@pytest.mark.parametrize("looked_at", [True, False])
def test_rows_are_copied_where_a_look_is_due(looked_at, monkeypatch):
    watcher, memory = Watcher(Budget()), Memory()
    training = Training(watcher)

    def said() -> list[str]:
        kinds = []
        while not watcher.events.empty():
            seen = watcher.events.get_nowait()
            assert memory.look(seen.kind, {**seen.values, "step": seen.step}) == []
            kinds.append(seen.kind)
        return kinds

    training._look = looked_at
    training._hold((_TRAINER,), {name: one.clone() for name, one in _ROWS.items()})
    assert said() == ["produced"] * looked_at
    training._look = True
    training._consumed(_ROWS)
    assert said() == ["produced"] * (not looked_at) + ["consumed"]
    training._look = False
    others = {name: one.flip(0) + 1 for name, one in _ROWS.items()}
    training._hold((_TRAINER,), others)
    others["advantages"].mul_(2)  # what was computed is known no longer
    training._consumed(others)
    assert said() == ["produced", "consumed"]
    monkeypatch.setattr("sentinel.tools.watch.training.LARGEST", 1)
    watcher.steps += 1
    training._hold((_TRAINER,), _ROWS)
    training._consumed(_ROWS)
    assert said() == ["produced", "consumed"], "what is too large takes the place of what was before"
    watcher.restore()


def test_rows_that_had_no_room_are_not_looked_for():
    """Beside those of a batch before, what reaches the loss would seem to come from nowhere."""
    watcher = Watcher(Budget())
    training = Training(watcher)
    for _ in range(watcher.events.maxsize):
        watcher.events.put(None)
    training._hold((_TRAINER,), _ROWS)
    watcher.events.get()
    for _ in range(2):
        training._consumed(_ROWS)
    watcher.restore()
    assert [one.kind for one in list(watcher.events.queue) if one] == ["produced"]
    memory = Memory()
    again = [("consumed", {"rows": _ROWS, "step": number}) for number in range(2)]
    assert [memory.look(*one) for one in again] == [[], []], "the step between them had no room"


def test_a_logger_is_told_as_its_user_configured_it(monkeypatch):
    told: list[Any] = []
    reporter = type("Reporter", (), {"__module__": "transformers.integrations.x"})()
    reporter.on_log = lambda *_, logs, **__: told.append(logs)
    printer = SimpleNamespace(on_log=lambda *_, **__: told.append("printed"))
    trainer = SimpleNamespace(
        callback_handler=SimpleNamespace(callbacks=[printer, reporter]), args=0, state=0, control=0, model=0
    )
    training._tell_logger(trainer, {"sentinel/violations": 1}, 3)
    assert told == [{"sentinel/violations": 1}]
    wandb: Any = ModuleType("wandb")
    wandb.run, wandb.log = object(), lambda counts, commit: told.append((counts, commit))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    training._tell_logger(None, {"sentinel/checked": 2}, 3)
    assert told[1:] == [({"sentinel/checked": 2}, False)]
    wandb.run, mlflow = None, ModuleType("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    vars(mlflow).update(active_run=object, log_metrics=lambda counts, step: told.append((counts, step)))
    training._tell_logger(None, {"sentinel/checked": 3}, 4)
    assert told[2:] == [({"sentinel/checked": 3}, 4)]
    mlflow.active_run = lambda: None
    training._tell_logger(None, {"sentinel/checked": 5}, 6)
    assert len(told) == 3, "nobody has a run open"


def test_log_probs_of_some_tokens_are_those_of_all(monkeypatch):
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 5)
    model = SimpleNamespace(get_output_embeddings=lambda: head, config=None)
    hidden, ids = torch.rand(2, 7, 4), torch.randint(5, (2, 7))
    whole = training._log_probs(model, hidden, ids, 0.7, some=False)
    monkeypatch.setattr(training, "_FEW_LOGITS", 15)
    some = training._log_probs(model, hidden, ids, 0.7, some=True)
    assert whole.shape == some.shape == (2, 6)
    assert not whole.isnan().any()
    assert torch.equal(some[~some.isnan()], whole[~some.isnan()])
    assert int((~some.isnan()).sum()) == 3
    monkeypatch.setattr(training, "_LOGITS", 15)
    assert torch.equal(training._log_probs(model, hidden, ids, 0.7, some=False).isnan(), some.isnan())


def test_some_tokens_show_one_that_is_off_and_add_up_to_no_loss():
    """Nothing is said of a loss of which a part is not known."""
    some = _LOG_PROBS.clone()
    some[0, 2], some[1, 1] = torch.nan, torch.nan
    memory = Memory()
    assert memory.look(*_answers(log_probs=some, loss=2 * _MEAN)) == []
    assert memory.look(*_pairs(log_probs=some, loss=99.0)) == []
    memory = Memory()
    for log_probs, named in ((_LOG_PROBS[:, 1:], []), (_LOG_PROBS[:, 1:] - 1.0, ["log_probs_are_the_models"])):
        memory.look("call", {**_CALL, "log_probs": log_probs})
        assert [one.name for one, _ in memory.look(*_answers(log_probs=some))] == named
