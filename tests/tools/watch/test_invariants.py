"""Each invariant is reported if it is broken, is not reported if it holds, and is skipped with a reason if an input
is unknown."""

import asyncio
import inspect
import queue
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sentinel import DoesNotApply, Steps
from sentinel.tools.watch import training
from sentinel.tools.watch.invariants import INVARIANTS, Memory
from sentinel.tools.watch.link import Watching
from sentinel.tools.watch.rows import compare_prompts, compare_rewarded, compare_tokens
from sentinel.tools.watch.training import TILTS, Event, Training
from sentinel.tools.watch.wrapping import Budget, Call, Watcher

_IDS = torch.tensor([[5, 6, 7, 8], [5, 9, 4, 0]])
_LOG_PROBS = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -1.0, -4.0]])
_LABELS = torch.tensor([[-100, -100, 7, 8], [-100, 9, 4, -100]])
_ATTENTION = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
_ROWS = {"advantages": torch.tensor([1.0, -1.0]), "ids": torch.tensor([[3, 4, 0], [6, 0, 0]])}
_TRAINER = SimpleNamespace(args=SimpleNamespace(num_generations=2))
_MEAN = (2.0 + 3.0 + 0.5 + 1.0) / 4

#: The facts about a trainer of transformers whose settings are all known.
_FACTS: dict[str, Any] = {
    "class": "transformers.trainer.Trainer", "own": {}, "callbacks": {}, "collator": "", "changed": [], "random": [],
    "places": {"compute_loss": "Trainer.compute_loss (transformers/trainer.py:2122)"}, "device": "cpu",
    "scaler": False, "distributed": "NO", "generation": [], "loss_function": False, "smoothing": False, "given": {},
    "created": {"groups": [], "linear": [], "norms": []}, "evaluates": True, "weights_swap": False,
    "options": {"learning_rate": 0.1, "max_grad_norm": 1.0, "completion_only_loss": True, "optim": "adamw_torch",
                "steps_per_generation": 2, "adam_epsilon": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.999,
                "weight_decay": 0.1, "gradient_accumulation_steps": 1, "num_train_epochs": 3},
    "first_step": 0, "reference": True,
}  # fmt: skip


def _planned(*counts: int, **changed: Any) -> tuple[str, dict[str, Any]]:
    epoch = {"counts": torch.tensor(counts), "batches": 4, "size": 2, "world": 1, "replicated": True, "repeats": False}
    return "facts", {**_FACTS, "epoch": {**epoch, **changed}, "moment": 0}


def _followed(after: float) -> tuple[str, dict[str, Any]]:
    before, after_it, policy = (torch.tensor([one]) for one in (1.0, after, 2.0))
    return "synchronized", {"share": 0.75, "pieces": {"w": (before, after_it, policy)}}


def _resumed_at(step: int, skipped: int, **changed: Any) -> tuple[str, dict[str, Any]]:
    """Resume from a checkpoint of step 6, in an epoch of 4 batches and 2 steps."""
    options = {**_FACTS["options"], "gradient_accumulation_steps": 2}
    known = {"checkpoint": "there", "random_state": True, "saved_step": 7, "first_step": step, "skipped": skipped}
    return "facts", {**_planned(1, 1, 1, 1)[1], "options": options, **known, **changed}


def _advantages(micro: Any) -> tuple[Any, Any]:
    rewards = torch.tensor(dict(micro.rewards)[0], dtype=torch.float64)
    return rewards - rewards.mean(), 1e-6


def _loss_of(micro: Any) -> tuple[Any, Any]:
    """Return the mean of the reported log-probs, weighted by their own values; 2 without them."""
    reported = micro.forwards[0]["reported"]["log_probs"]
    return (2.0, 1e-4) if reported is None else ((-reported * reported.detach().exp()).mean(), 1e-4)


def _of_this(micro: Any) -> None:
    if micro.options.get("top_k"):
        raise DoesNotApply("top_k is 5")


_STEPS = Steps(
    "demo.Trainer", {"loss": ("_compute_loss",), "advantages": ("_score",)}, frozenset({"beta"}), {"beta": "beta"},
    loss=_loss_of, advantages=_advantages, collators={"demo.Collator.collate": lambda collator, rows, batch: ""},
    references=lambda micro: (torch.ones(2) * micro.attributes["global_step"], micro.batch["reference"]),
    batch=lambda micro: str(micro.batch.get("wrong", "")), samples=_of_this,
    prompts=lambda trainer, rows: [[ord(one) for one in row["prompt"]] for row in rows],
    completions=lambda trainer, rows, ids: ["".join(map(chr, row)) for row in ids],
    tokens=lambda trainer, rows: "; ".join(f"{row['text']} has {row['ids']}" for row in rows if row["ids"] != [7]),
    synchronized=lambda args, step: args.alpha,
)  # fmt: skip
_DOCUMENTED = {
    **_FACTS, "class": "demo.Trainer", "options": {**_FACTS["options"], "beta": 0.1},
    "places": {"_compute_loss": "Trainer._compute_loss (demo/trainer.py:7)"}, "changed": ["beta"],
}  # fmt: skip


def _memory(facts: dict[str, Any] = _FACTS, **more: Any) -> Memory:
    memory = Memory(known=(_STEPS,), **more)
    memory.look("facts", facts)
    return memory


def _forward(log_probs: Any = _LOG_PROBS, **more: Any) -> dict[str, Any]:
    reported = {"log_probs": None, "aux_loss": None, **more.pop("reported", {})}
    known = {"model": "trained", "ids": _IDS, "log_probs": log_probs, "bound": 1e-5, "adapter": None}
    return {**known, "reported": reported, **more}


def _answers(log_probs: Any = _LOG_PROBS, **changed: Any) -> tuple[str, dict[str, Any]]:
    batch = {"input_ids": _IDS, "labels": _LABELS, "attention_mask": _ATTENTION}
    batch |= {name: changed.pop(name) for name in ("labels", "input_ids") if name in changed}
    said = {"loss": _MEAN, "batch": batch, "forwards": [_forward(log_probs)], "attributes": {"global_step": 1}}
    said |= {"items": 4, "moment": 1, "step": 1, "fresh": True, "world": 1, "slope": None, "slopes": []}
    return "answers", {**said, **changed}


def _stepping(**changed: Any) -> tuple[str, dict[str, Any]]:
    weight = torch.ones(2)
    said = {"left": [], "reference": {"w": (weight, weight, False)}, "rates": [0.1], "scheduled": 0.1, "step": 3}
    said |= {"theirs": True, "last": [0.1], "initial": [0.1], "norm": torch.tensor(1.0), "world": 1}
    said |= {"sums": {"w": (2 * weight, 2 * weight, weight)}}
    mean = torch.tensor(_MEAN)
    return "stepping", {"losses": [mean], "returned": [(mean, mean / 2, 2)], "wanted": 1, **said, **changed}


def _of_rank(rank: int, seen: tuple[str, dict[str, Any]], **changed: Any) -> tuple[str, dict[str, Any]]:
    return seen[0], {**seen[1], "process": rank, "step": 3, "world": 2, "replicated": True, "repeats": False, **changed}


def _stepped(before: Any, after: Any, gradient: Any, **group: Any) -> tuple[str, dict[str, Any]]:
    values = (torch.tensor(before), torch.tensor(after), gradient, {"lr": 0.1, "weight_decay": 0.0, **group}, {})
    said = {"parameters": {"w": values}, "optimizer": "torch.optim.sgd.SGD", "places": {}, "global_step": 0}
    return "stepped", said


def _disturbed(apart: float) -> tuple[str, dict[str, Any]]:
    return "disturbed", {"apart": apart, "largest": 3.0, "what": "padding", "tokens": 2, "halves": False}


def _scored(**changed: Any) -> tuple[str, dict[str, Any]]:
    batch = {"advantages": torch.tensor([0.5, -0.5]), **changed.pop("batch", {})}
    said = {"batch": batch, "rewards": [(0, [1.0, 0.0])], "attributes": {"global_step": 1}, "world": 1, "step": 1}
    return "scored", {**said, "forwards": [], **changed}


def _counted(items: int, **changed: Any) -> tuple[str, dict[str, Any]]:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    return _scored(batch={"completion_mask": mask, "num_items_in_batch": torch.tensor(items)}, **changed)


def _evaluated(**changed: Any) -> tuple[str, dict[str, Any]]:
    said = {"losses": [1.0, 3.0], "batches": 2, "returned": 2.0, "changed": [], "dropout": "", "evaluating": True}
    return "evaluated", {**said, **changed}


def _rows(prompts: str = "", rewarded: str = "", why: str = "") -> tuple[str, dict[str, Any]]:
    return "rows", {"prompts": (prompts, why), "rewarded": (rewarded, why)}


def _documented(**changed: Any) -> tuple[str, dict[str, Any]]:
    batch = {"completion_mask": torch.ones(2, 3, dtype=torch.long), "reference": torch.zeros(2)}
    return _answers(**{"loss": 2.0, "batch": batch, "attributes": {"global_step": 0}, "step": 0, **changed})


def _differentiated(extra: float = 1.0, detached: bool = True) -> tuple[str, dict[str, Any]]:
    """Make the documented loss of reported log-probs, whose gradient the run scaled."""
    leaf = _LOG_PROBS.clone().requires_grad_()
    loss = (-leaf * (leaf.detach() if detached else leaf).exp()).mean()
    (slope,) = torch.autograd.grad(loss, leaf)
    forwards = [_forward(reported={**_REPORTED, "log_probs": _LOG_PROBS})]
    slopes = {"slope": torch.tensor(0.5), "slopes": [{"log_probs": extra * 0.5 * slope}]}
    return _documented(forwards=forwards, loss=loss.detach(), **slopes)


def _adapted(*adapters: str) -> tuple[str, dict[str, Any]]:
    return _documented(forwards=[_forward(reported=_REPORTED, adapter=one) for one in adapters], loss=0.2093)


def _sampled(log_probs: float, fresh: bool = True) -> tuple[str, dict[str, Any]]:
    """Make a batch of tokens with a log-prob, drawn from two tokens with the probabilities 0.9 and 0.1."""
    policy = torch.tensor([0.9, 0.1]).log()
    entropy = -float((policy.exp() * policy).sum())
    tilted = {f"tilt {one:g}": torch.full((8, 8), float(torch.logsumexp((1 + one) * policy, 0))) for one in TILTS}
    whole = _forward(torch.full((8, 8), log_probs), entropy=torch.full((8, 8), entropy), **tilted)
    mask = torch.ones(8, 8, dtype=torch.long)
    return _documented(forwards=[whole], batch={"completion_mask": mask, "reference": torch.zeros(2)}, fresh=fresh)


_CALL = {"log_probs": _LOG_PROBS[:, 1:], "response_mask": torch.tensor([[1, 1], [1, 0]]), "moment": 1}
_FLIPPED = {name: value.flip(0) for name, value in _ROWS.items()}
_FRESH = ("fresh", {"log_probs": _LOG_PROBS, "old_log_probs": _LOG_PROBS + 0.01, "response_mask": _ATTENTION[:, 1:]})
_REPORTED = {"log_probs": _LOG_PROBS, "aux_loss": None}
_KEPT = [
    ("produced", {"rows": _ROWS}), ("consumed", {"rows": _FLIPPED}), ("call", _CALL), _answers(), _answers(step=3),
    _stepping(), ("generated", {"temperature": (0.7, 0.7), "top_k": (0, None), "moment": 1}), _FRESH,
    _stepped([1.0], [0.9], torch.tensor([1.0])), _answers(forwards=[_forward(reported=_REPORTED)]),
    _disturbed(1e-6), *[_of_rank(rank, _stepping()) for rank in range(2)], _counted(3), _evaluated(),
    _planned(1, 1, 1, 1),
    *[_of_rank(rank, _counted(6)) for rank in range(2)], _evaluated(returned=1.4),
]  # fmt: skip
_MADE = {"made": {"beta": 0.1}}
_KEPT_DOCUMENTED = [
    _scored(), _rows(), _documented(), _sampled(-0.105), _sampled(-0.8), _stepped([1.0], [0.9], torch.tensor([1.0])),
    _documented(attributes={"global_step": 1}, step=1), _differentiated(), ("collated", {"rows": ("", "")}),
    ("tokens", {"tokens": ("", "")}), _documented(evaluating=True),
]  # fmt: skip
_SYNCHRONIZES = {**_DOCUMENTED, "options": {**_DOCUMENTED["options"], "sync_ref_model": True}}
_GROUP = {"lr": 0.1, "eps": 1e-8, "betas": [0.9, 0.999], "weight_decay": 0.1, "names": ["w"]}
_CREATED = {"created": {"groups": [{**_GROUP, "weight_decay": 0.0}], "linear": ["w"], "norms": ["norm.weight"]}}
_DECAYED = {**_CREATED["created"], "groups": [{**_GROUP, "names": ["norm.weight"]}]}
_BROKEN: dict[str, list[Any]] = {
    "rows_stay_together": [_KEPT[0], ("consumed", {"rows": {**_ROWS, "advantages": _ROWS["advantages"].flip(0)}})],
    "prompts_are_not_learned": [_answers(labels=_IDS.masked_fill(_ATTENTION == 0, -100))] * 4,
    "sampling_is_as_asked": [("generated", {"temperature": (0.7, 1.0)})],
    "the_first_ratio_is_one": [("fresh", {**_FRESH[1], "old_log_probs": 0.5 * _LOG_PROBS})],
    "log_probs_are_the_models": [("call", {**_CALL, "log_probs": _LOG_PROBS[:, :2]}), _answers()],
    "reported_log_probs_are_the_models": [
        _answers(forwards=[_forward(reported={**_REPORTED, "log_probs": 0.5 * _LOG_PROBS})])],
    "labels_are_tokens": [_answers(labels=_IDS.roll(1, 1).masked_fill(_LABELS == -100, -100))],
    "the_loss_is_that_of_the_labels": [_answers(loss=2 * _MEAN)],
    "the_divisor_is_the_number_of_labels": [_answers(items=8, step=3), _stepping()],
    "micro_batches_add_up": [_stepping(returned=[(torch.tensor(_MEAN), torch.tensor(_MEAN / 4), 2)])],
    "gradients_add_up": [_stepping(norm=torch.tensor(2.0))],
    "samples_are_used_as_often_as_configured": [_stepping(losses=[torch.tensor(_MEAN)] * 2)],
    "the_rate_is_the_schedules": [_stepping(last=[0.2])],
    "the_optimizer_has_all_parameters": [_stepping(left=["head"])],
    "parameters_follow_gradients": [_stepped([1.0], [1.0], torch.tensor([1.0]))],
    "ranks_agree": [_of_rank(rank, _stepping(rates=[0.1 + rank])) for rank in range(2)],
    "the_reference_stays": [_stepping(reference={"w": (torch.ones(2), torch.zeros(2), False)})],
    "other_tokens_change_nothing": [_disturbed(apart=0.2)],
    "the_reference_may_stay": [_stepping(reference={"w": (torch.ones(2), torch.zeros(2), False)})],
    "the_divisor_is_the_number_of_tokens": [_of_rank(rank, _counted(3)) for rank in range(2)],
    "an_evaluation_trains_nothing": [_evaluated(changed=["w"])],
    "an_evaluation_is_the_mean_of_its_batches": [_evaluated(returned=4.0)],
    "updates_are_not_lost": [_stepped([1.0], [1.0], torch.tensor([1e-9]))],
    "an_epoch_has_all_rows": [_planned(1, 1, 0, 1)],
    "epochs_are_shuffled_anew": [_planned(1, 1, 1, 1, repeats=True)],
    "training_resumes_where_it_stopped": [("facts", {**_FACTS, "checkpoint": "there", "random_state": False})],
    "the_optimizer_is_as_configured": [("facts", {**_FACTS, **_CREATED})],
    "the_loss_is_the_documented_one": [_documented(loss=4.0)],
    "advantages_follow_from_rewards": [_scored(rewards=[(0, [0.0, 1.0])])],
    "rewards_differ": [_scored(rewards=[(0, [1.0, 1.0])], batch={"advantages": torch.zeros(2)})] * 3,
    "the_reference_starts_as_the_policy": [
        _documented(batch={"completion_mask": torch.ones(2, 3), "reference": torch.ones(2)})],
    "the_reference_is_not_the_policy": [
        _stepped([1.0], [0.9], torch.tensor([1.0])),
        *[_documented(batch={"completion_mask": torch.ones(2, 3), "reference": torch.ones(2)}, step=1,
                      attributes={"global_step": 1})] * 2],
    "the_gradient_is_the_documented_one": [_differentiated(detached=False)],
    "batches_are_their_rows": [("collated", {"rows": ("position_ids of token 3 is 3, not 0", "")})],
    "the_reference_has_no_adapter": [_adapted("mine", "mine")],
    "the_reference_follows_as_configured": [_followed(1.25)],
    "settings_arrive": [("facts", {**_DOCUMENTED, "made": {"beta": 0.2}})],
    "the_batch_means_what_it_should": [_scored(batch={"wrong": "a mask is one late"})],
    "samples_come_from_the_policy": [_sampled(-0.105)] * 6,
    "prompts_are_the_datasets": [_rows(prompts="row 0 has 1 token")],
    "tokens_are_the_datasets": [("tokens", {"tokens": ("row 0 has 1 token", "")})],
    "rewards_judge_their_own_rows": [_rows(rewarded="row 0 got row 1's")],
}  # fmt: skip
_OF_THE_ADAPTER = list(_BROKEN)[-15:]


def _facts_for(name: str) -> dict[str, Any]:
    facts = {**_DOCUMENTED, **_MADE} if name in _OF_THE_ADAPTER else _FACTS
    facts = {**facts, "adapters": True} if name == "the_reference_has_no_adapter" else facts
    facts = _SYNCHRONIZES if name == "the_reference_follows_as_configured" else facts
    facts = {**facts, "distributed": "MULTI_CPU"} if name == "ranks_agree" else facts
    return {**facts, "callbacks": {"on_step_end": "Mine"}} if name == "the_reference_may_stay" else facts


def test_a_satisfied_invariant_is_not_reported():
    plain, documented = _memory(), _memory({**_DOCUMENTED, **_MADE})
    assert [plain.look(*seen) for seen in _KEPT] == [[]] * len(_KEPT)
    assert [documented.look(*seen) for seen in _KEPT_DOCUMENTED] == [[]] * len(_KEPT_DOCUMENTED)
    looks = plain.looks + documented.looks
    only_with = {"the_reference_may_stay", "the_reference_has_no_adapter", "training_resumes_where_it_stopped"}
    only_with |= {"the_reference_follows_as_configured", "ranks_agree"}
    in_evaluation = {"the_loss_is_the_documented_one (evaluation)", "the_batch_means_what_it_should (evaluation)"}
    assert set(looks) == {one.name for one in INVARIANTS} - only_with | in_evaluation


@pytest.mark.parametrize("name", [one.name for one in INVARIANTS])
def test_a_broken_invariant_is_reported_and_can_be_switched_off(name):
    memory, without = _memory(_facts_for(name)), _memory(_facts_for(name), without=[name])
    said = [one.name for seen in _BROKEN[name] for one, _ in memory.look(*seen)]
    assert name in said
    assert name not in [one.name for seen in _BROKEN[name] for one, _ in without.look(*seen)]


@pytest.mark.parametrize(
    ("seen", "how"),
    [
        ([_KEPT[0], ("consumed", {"rows": {"advantages": _ROWS["advantages"]}})], "ids was computed for each row"),
        ([("consumed", {"rows": _ROWS})] * 2, "two micro-batches of one step have the same rows"),
        (
            [_answers(labels=torch.tensor([[-100, 6, 7, 8], [-100, 9, 0, 0]]), input_ids=torch.tensor(
                [[5, 6, 7, 8], [5, 9, 0, 0]]), attention=None)],
            "",
        ),
        (
            [("fresh", {**_FRESH[1], "old_log_probs": _LOG_PROBS - torch.tensor([0.0, 0.0, 0.6])})],
            "differ by 0.12 on average, although no optimizer step lies between them (by response length and token "
            "position: length 2-3 0.12, token 1 0, token 2-3 0.2)",
        ),
        ([_stepping(left=["head"])], "the optimizer does not contain head, although"),
        (
            [_answers(items=8, step=3), _stepping()],
            "divided by 8 tokens (num_items_in_batch), but its 1 micro-batches train on 4 labels",
        ),
        (
            [("consumed", {"rows": _ROWS, "age": 3})],
            "a rollout is used by 3 micro-batches; steps_per_generation and num_iterations allow 2",
        ),
        ([("facts", {**_FACTS, "created": _DECAYED})], "weight_decay of norm.weight is 0.1, but it should be 0"),
        ([_answers(step=3), _answers(items=8, step=3), _stepping(losses=[1, 1])], "divided by 4 to 8 tokens"),
        ([_stepped([1.0], [0.5], None)], "w has no gradient but changed"),
        (
            [_stepped([1.0], [0.7], torch.tensor([1.0]))],
            "element 0 of w changed by -0.3, but SGD would change it by -0.1",
        ),
        (
            [_stepping(reference={"w": (torch.ones(1), torch.ones(1), True)})],
            "the optimizer contains the reference's w",
        ),
        (
            [_stepping(sums={"w": (torch.ones(2), torch.ones(2), torch.tensor([1.0, 0.0]))})],
            "the gradient of w is not proportional to the sum over 1 micro-batches",
        ),
        (
            [_of_rank(rank, _stepped([1.0], [0.5 + rank], torch.ones(1))) for rank in range(2)],
            "w differs between processes",
        ),
        (
            [_of_rank(rank, _answers(input_ids=_IDS + moment), moment=moment) for moment in range(3)
             for rank in range(2)],
            "two processes train on the same rows",
        ),
    ],
)  # fmt: skip
def test_a_report_describes_the_violation(seen, how):
    memory = _memory({**_FACTS, "distributed": "MULTI_CPU"} if "replicated" in seen[-1][1] else _FACTS)
    assert how in "; ".join(said for one in seen for _, said in memory.look(*one))


_OF_TWO = {"global_step": 1, "current_gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("seen", "name", "how"),
    [
        ([_planned(1, 0, 1, 0)], "an_epoch_has_all_rows", "leaves out 2 of the 4 rows of the dataset; it may"),
        ([_planned(1, 2, 1, 1)], "an_epoch_has_all_rows", "loads a row 2 times instead of 1"),
        ([_stepping(wanted=2)], "micro_batches_add_up", "divided by current_gradient_accumulation_steps=2, but"),
        (
            [_answers(items=4, step=3, attributes={"_loss_shifts_labels": True}, labels=_IDS.masked_fill(
                _ATTENTION == 0, -100), loss=0.0), _stepping()],
            "the_divisor_is_the_number_of_labels", "divided by 4 tokens (num_items_in_batch), but its 1 micro-batches "
            "train on 5 labels",
        ),
        (
            [_answers(items=7, step=3, attributes={"_loss_shifts_labels": True}, labels=_IDS.masked_fill(
                _ATTENTION == 0, -100), loss=0.0), _stepping()],
            "the_divisor_is_the_number_of_labels", "train on 5 labels, because the labels of first tokens are not",
        ),
        ([_resumed_at(7, 0)], "training_resumes_where_it_stopped", "skips 0 of its 4 batches, but step 7 came after 2"),
        ([_resumed_at(7, 4)], "training_resumes_where_it_stopped", "the training leaves out batches"),
        ([_resumed_at(0, 2)], "training_resumes_where_it_stopped", "resumes at step 0, and the checkpoint is of step"),
        ([_resumed_at(7, 2, random_state=False)], "training_resumes_where_it_stopped", "number generators' state"),
    ],
)  # fmt: skip
def test_rows_counts_and_resumed_runs_are_described(seen, name, how):
    memory = _memory()
    said = {one.name: text for event in seen for one, text in memory.look(*event)}
    assert how in said[name]


@pytest.mark.parametrize(
    "seen",
    [
        _planned(1, 2, 1, 1, world=2), _planned(1, 1, 1, why="streamed"), _resumed_at(7, 2), _stepping(),
        ("facts", {**_FACTS, "epoch": {"why": "the rows are streamed", "world": 1}}),
        _resumed_at(7, 0, options={**_FACTS["options"], "ignore_data_skip": True}), _resumed_at(7, 3, saved_step=None),
    ],
)  # fmt: skip
def test_correct_epochs_and_resumed_runs_are_not_reported(seen):
    assert _memory().look(*seen) == []


def test_the_epoch_of_an_undocumented_trainer_is_not_judged():
    """Another trainer may load each prompt several times."""
    kind, facts = _planned(8, 8, 8, 0)
    memory = _memory()
    assert memory.look(kind, {**facts, "class": "demo.Other"}) == []
    assert memory.skipped["an_epoch_has_all_rows"] == "the adapter does not document demo.Other"


def test_the_reference_is_compared_with_the_configured_mixture():
    memory = _memory(_SYNCHRONIZES)
    assert memory.look(*_followed(1.75)) == []
    ((one, said),) = memory.look(*_followed(1.25))
    assert one.name == "the_reference_follows_as_configured"
    assert "w is 1.25 instead of 1.75 (0.75 times the policy's 2 plus 0.25 times its own 1)" in said
    assert memory.looks["the_reference_follows_as_configured"] == 2
    assert _memory(_DOCUMENTED).look(*_followed(1.25)) == [], "nothing synchronizes the reference"


def test_a_factor_of_the_accumulation_is_described_by_its_direction():
    for changed, how in (
        ({"loss": 4.0}, "as if the divisor left out the accumulation of 2 micro-batches"),
        ({"loss": 1.0}, "as if the loss were divided twice by the 2 accumulated"),
        ({"loss": 1.005}, "(0.5025 times as much)\n"),
        ({"loss": 4.0, "evaluating": True}, "as if it were multiplied by 2 accumulated micro-batches, which an eval"),
        ({"loss": 1.0, "evaluating": True}, "as if it were divided by 2 accumulated micro-batches, which an eval"),
    ):
        said = {one.name: text for one, text in _memory(_DOCUMENTED).look(*_documented(attributes=_OF_TWO, **changed))}
        assert how in said["the_loss_is_the_documented_one"]


def test_a_wrong_gradient_is_described_by_what_it_looks_like():
    for extra, how in ((0.0, "after a detach() or under no_grad()"), (2.0, "elements differ)")):
        kind, seen = _differentiated(extra)
        ((one, said),) = _memory(_DOCUMENTED).look(kind, seen)
        assert one.name == "the_gradient_is_the_documented_one"
        assert f"{how}; the value of the loss is right ({float(seen['loss']):.3g})\n" in said
        assert "other values" not in said, "it does not follow: the value of a loss of 0 does not show a factor"
        assert "try: Compare this function with the formula" in said


@pytest.mark.parametrize(
    ("seen", "how"),
    [
        ([_documented(loss=4.0, evaluating=True)], "in an evaluation, a micro-batch's loss is 4"),
        ([_of_rank(rank, _counted(3)) for rank in range(2)],
         "num_items_in_batch is 3, but the completions of 2 processes have 6 trained tokens"),
        ([_evaluated(dropout="layers.0 (0.1)")], "in an evaluation, dropout is on: layers.0 (0.1)"),
        ([_evaluated(returned=4.0)], "in an evaluation, eval_loss is 4, but the mean of its 2 batches is 2"),
        ([_evaluated(changed=["w", "the learning rate"])], "in an evaluation, w changed (2 values in all)"),
    ],
)  # fmt: skip
def test_evaluations_and_counts_over_ranks_are_described(seen, how):
    memory = _memory({**_DOCUMENTED, **_MADE})
    assert how in "; ".join(said for one in seen for _, said in memory.look(*one))


def test_a_supervised_loss_is_divided_by_the_labels_of_all_ranks():
    facts = {**_FACTS, "options": {**_FACTS["options"], "average_tokens_across_devices": True}}
    for items, how in ((8, []), (4, ["the_divisor_is_the_number_of_labels"])):
        together: dict[str, Any] = {}
        ranks = [_memory(facts, together=together) for _ in range(2)]
        seen = [_answers(step=3, items=items), _stepping()]
        looks = [(rank, one) for one in seen for rank in range(2)]
        said = [one.name for rank, this in looks for one, _ in ranks[rank].look(*_of_rank(rank, this))]
        assert [one for one in said if one == "the_divisor_is_the_number_of_labels"] == how


def test_datasets_are_compared_with_their_texts():
    rows = [{"text": "a", "ids": [7]}, {"text": "b", "ids": [8]}]
    trainer = SimpleNamespace(train_dataset=rows, eval_dataset={"one": rows[:1]}, stream=iter(rows))
    assert compare_tokens(_STEPS, trainer, "train_dataset", {}) == "train_dataset: b has [8]"
    assert compare_tokens(_STEPS, trainer, "eval_dataset", {}) == ""
    for name, given, why in (
        ("stream", {}, "stream is a stream"),
        ("train_dataset", {"tokens": ["input_ids"]}, "your dataset already has tokens .column input_ids."),
        ("train_dataset", {"formatting_func": True}, "formatting_func makes the texts"),
    ):
        with pytest.raises(DoesNotApply, match=why):
            compare_tokens(_STEPS, trainer, name, given)


def test_collators_of_one_name_in_two_modules_are_compared(monkeypatch):
    seen: list[str] = []
    steps = []
    for name in ("one_rl", "two_rl"):
        module = ModuleType(name)
        exec("class Collator:\n    def collate(self, rows):\n        return rows\n", module.__dict__)
        monkeypatch.setitem(sys.modules, name, module)
        compared = {f"{name}.Collator.collate": lambda collator, rows, batch, name=name: seen.append(name) or ""}
        steps.append(Steps(f"{name}.Trainer", collators=compared))
    watcher = Watcher(Budget())
    training = Training(watcher, steps=steps)
    training.attach()
    for name in ("one_rl", "two_rl"):
        sys.modules[name].Collator().collate([1])
        training._collated = None
    training.stop()
    watcher.restore()
    assert seen == ["one_rl", "two_rl"]


def test_a_collator_that_the_run_patches_is_compared(monkeypatch):
    """The patch calls the method that was wrapped when the module was imported."""
    module = ModuleType("one_rl")
    exec("class Collator:\n    def collate(self, rows):\n        return rows\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "one_rl", module)
    seen: list[Any] = []
    compared = {"one_rl.Collator.collate": lambda collator, rows, batch: seen.append(batch) or ""}
    watcher = Watcher(Budget())
    training = Training(watcher, steps=[Steps("one_rl.Trainer", collators=compared)])
    training.attach()
    collate = module.Collator.collate
    monkeypatch.setattr(module.Collator, "collate", lambda self, rows: [*collate(self, rows), 2])
    training._loading((), {})
    assert module.Collator().collate([1]) == [1, 2]
    monkeypatch.setattr(module.Collator, "collate", staticmethod(int))  # it cannot be wrapped
    training._loading((), {})
    collate(None, [1])
    training.stop()
    watcher.restore()
    assert seen == [[1, 2]]


def test_a_message_names_the_function_the_settings_and_one_thing_to_try():
    (said,) = [how for _, how in _memory({**_DOCUMENTED, **_MADE}).look(*_documented(loss=4.0))]
    assert said == (
        "a micro-batch's loss is 4, and its documented value is 2 (2 times as much)\n"
        "  in Trainer._compute_loss (demo/trainer.py:7)\n  set: beta=0.1\n"
        "  try: Compare this function with the formula of loss_type in the documentation."
    )


@pytest.mark.parametrize(
    ("name", "facts", "why"),
    [
        (
            "the_loss_is_the_documented_one",
            {"own": {"_compute_loss": "Mine._compute_loss"}},
            "Mine._compute_loss is your",
        ),
        ("the_loss_is_the_documented_one", {"changed": ["new"]}, "the adapter does not know the option new"),
        ("the_reference_starts_as_the_policy", {"given": {"ref_model": True}}, "ref_model was given"),
        ("the_reference_starts_as_the_policy", {"random": ["dropout (p 0.1)"]}, "forward passes are random: dropout"),
        ("samples_come_from_the_policy", {"options": {"top_k": 5}}, "top_k is 5"),
        ("samples_come_from_the_policy", {"generation": ["top_p"]}, "the model's generation config sets top_p"),
        ("the_divisor_is_the_number_of_labels", {"streams": True}, "the dataset has no length, so the step at its end"),
        ("samples_are_used_as_often_as_configured", {"streams": True}, "the dataset has no length, so the step at its"),
        ("settings_arrive", {"made": None}, "the trainer was created before watching began"),
        ("the_optimizer_is_as_configured", {"created": None}, "the optimizer is your own"),
        (
            "gradients_add_up",
            {"callbacks": {"on_pre_optimizer_step": "Mine"}},
            "Mine.on_pre_optimizer_step is your own",
        ),
        ("gradients_add_up", {"scaler": True}, "gradients are scaled (fp16)"),
        ("the_reference_stays", {"callbacks": {"on_step_end": "Mine"}}, "Mine.on_step_end is your own"),
        ("micro_batches_add_up", {"own": {"training_step": "Mine.training_step"}}, "Mine.training_step is your own"),
    ],
)
def test_an_invariant_with_an_unread_input_is_skipped(name, facts, why):
    memory = _memory({**_DOCUMENTED, **_MADE, **facts})
    broken = [seen for seen in _BROKEN[name] if seen[0] != "facts"]
    assert name not in [one.name for seen in broken for one, _ in memory.look(*seen)]
    assert why in memory.skipped[name]
    assert memory.looks[name] == 0


@pytest.mark.parametrize("off", [1.0, 0.5])
def test_a_gradient_that_the_run_scales_is_judged_relative_to_the_loss(off):
    said = [one.name for one, _ in _memory({**_DOCUMENTED, **_MADE}).look(*_differentiated(extra=off))]
    assert said == ["the_gradient_is_the_documented_one"] * (off != 1.0)


def test_an_output_that_no_gradient_reaches_has_a_gradient_of_zero():
    kind, seen = _differentiated()
    ((said, how),) = _memory({**_DOCUMENTED, **_MADE}).look(kind, {**seen, "slopes": [{"log_probs": None}]})
    assert said.name == "the_gradient_is_the_documented_one"
    assert "with respect to log_probs is 0; the documented loss gives " in how


def test_tokens_without_a_label_have_any_gradient():
    kind, seen = _differentiated()
    one = seen["forwards"][0]["reported"]
    one["log_probs"] = torch.where(_LOG_PROBS == -1.0, 0.0, _LOG_PROBS)
    seen["loss"] = (-one["log_probs"] * one["log_probs"].exp()).mean()
    assert _memory({**_DOCUMENTED, **_MADE}).look(kind, seen) == []


def test_a_reference_without_its_adapter_is_not_named():
    memory = _memory({**_DOCUMENTED, **_MADE, "adapters": True})
    names = [one.name for seen in (_adapted("mine", ""), _adapted("mine", "copy")) for one, _ in memory.look(*seen)]
    assert "the_reference_has_no_adapter" not in names
    assert memory.looks["the_reference_has_no_adapter"] == 2


def test_an_adapter_that_starts_with_another_policy_is_not_judged():
    memory = _memory({**_DOCUMENTED, **_MADE, "started": "init_lora_weights='pissa'"})
    assert memory.look(*_BROKEN["the_reference_starts_as_the_policy"][0]) == []
    why = "the LoRA adapter changes the model from the start: init_lora_weights='pissa'"
    assert memory.skipped["the_reference_starts_as_the_policy"] == why


@pytest.mark.parametrize(
    ("state", "how"),
    [
        ({"step": 3.0, "exp_avg": torch.ones(2)}, None),
        ({}, "the optimizer has no step of w before the first step, although the checkpoint has it"),
        (
            {"step": 3.0, "exp_avg": torch.zeros(2)},
            "before the first step, the optimizer's exp_avg of w differs from the",
        ),
    ],
)
def test_an_optimizers_state_is_compared_with_the_checkpoints(tmp_path, state, how):
    saved = {0: {"step": torch.tensor(9.0)}, 1: {"step": torch.tensor(3.0), "exp_avg": torch.ones(4)}}
    torch.save({"state": saved}, tmp_path / "optimizer.pt")
    memory = _memory({**_FACTS, "checkpoint": str(tmp_path), "first_step": 3})
    _, seen = _stepped([1.0, 1.0], [0.9, 0.9], torch.ones(2))
    seen["parameters"]["w"] = (*seen["parameters"]["w"][:-1], state)
    for step, hit in ((4, False), (3, True)):
        said = [text for one, text in memory.look("stepped", {**seen, "places": {"w": 1}, "global_step": step})
                if one.name == "training_resumes_where_it_stopped"]  # fmt: skip
        assert len(said) == (hit and how is not None)
    assert said == [] if how is None else said[0].startswith(how)


def test_a_check_that_fails_hides_no_other():
    memory = _memory()
    named = [one.name for one, _ in memory.look(*_answers(labels=_IDS.roll(1, 1), loss="nonsense"))]
    assert named == ["labels_are_tokens"]
    assert memory.failed == [
        "the_loss_is_that_of_the_labels: ValueError: could not convert string to float: 'nonsense'"
    ]


@pytest.mark.parametrize(
    ("given", "changed", "why"),
    [
        ({"optimizers": True}, {"theirs": False}, "the scheduler is your own"),
        ({}, {"theirs": False}, "the trainer did not create its scheduler itself"),
        (
            {},
            {"scheduled": None, "unscheduled": "the number of steps is not known"},
            "the number of steps is not known",
        ),
    ],
)
def test_a_rate_that_is_not_the_schedules_is_not_judged(given, changed, why):
    memory = _memory({**_FACTS, "given": given})
    assert memory.look(*_stepping(**changed, last=[0.2], rates=[0.2])) == []
    assert memory.skipped["the_rate_is_the_schedules"] == why


def test_a_dataset_without_prompts_has_none_to_mask():
    options = {**_FACTS["options"], "completion_only_loss": None}
    for column, elsewhere in (("text", True), ("prompt", False)):
        facts = {**_FACTS, "options": options, "given": {"columns": {column: "str"}}}
        (one,) = (one for one in INVARIANTS if one.name == "prompts_are_not_learned")
        assert (one.unless(facts, None) != "") == elsewhere


def test_without_facts_no_framework_invariant_is_checked():
    memory = Memory()
    for seen in (_answers(loss=9.0), _stepping(last=[9.0], wanted=5), ("generated", {"temperature": (0.7, 1.0)})):
        assert memory.look(*seen) == []


def test_samples_of_the_policy_give_no_alarm_however_many():
    memory = _memory({**_DOCUMENTED, **_MADE})
    drawn = torch.Generator().manual_seed(0)
    for _ in range(100):
        kind, seen = _sampled(0.0)
        rare = torch.rand(8, 8, generator=drawn) < 0.1
        seen["forwards"][0]["log_probs"] = torch.where(rare, 0.1, 0.9).log()
        assert memory.look(kind, seen) == []
    assert memory.looks["samples_come_from_the_policy"] == 100


def test_equal_processes_are_not_reported_as_different():
    together: dict[str, Any] = {}
    ranks = [_memory(together=together), _memory(together=together)]
    for rank, memory in enumerate(ranks):
        mean = {"loss": 2 * _MEAN, "world": 2}  # DDP divides the sum of the ranks' losses by two
        for seen in (_answers(input_ids=_IDS + rank, items=4, **mean), _stepping(),
                     _stepped([1.0], [0.5], torch.ones(1))):  # fmt: skip
            said = memory.look(*_of_rank(rank, seen))
            assert [one.name for one, _ in said if one.name in ("ranks_agree", "the_loss_is_that_of_the_labels")] == []


@pytest.mark.slow
def test_observing_an_optimizer_step_changes_nothing():
    """For any trainer, the step is counted, and no exception of the watcher reaches the training."""
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


def test_an_error_of_an_observation_is_noted_and_its_time_counts(monkeypatch):
    watcher = Watcher(Budget())
    training = Training(watcher)
    with monkeypatch.context() as clock, training._guard():
        clock.setattr(time, "perf_counter", lambda: 1e9)
        raise ValueError("of ours")
    assert watcher.failed == {"ValueError: of ours": 1}
    assert watcher.budget.spent > 1e8
    with pytest.raises(KeyboardInterrupt), training._guard():
        raise KeyboardInterrupt


@pytest.mark.parametrize("looked_at", [True, False])
def test_rows_are_copied_only_in_observed_steps(looked_at, monkeypatch):
    watcher, memory = Watcher(Budget()), _memory()
    training = Training(watcher)

    def said() -> list[str]:
        kinds = []
        while not watcher.events.empty():
            seen = watcher.events.get_nowait()
            assert memory.look(seen.kind, {**seen.values, "step": seen.step}) == []
            kinds.append(seen.kind)
        return kinds

    training._look = looked_at
    training._produce((_TRAINER,), {})
    training._hold((_TRAINER,), {name: one.clone() for name, one in _ROWS.items()})
    assert said() == ["produced"] * looked_at
    training._look = True
    training._consumed(_ROWS)
    assert said() == ["produced"] * (not looked_at) + ["consumed"]
    training._look = False
    others = {name: one.flip(0) + 1 for name, one in _ROWS.items()}
    training._produce((_TRAINER,), {})
    training._hold((_TRAINER,), others)
    others["advantages"].mul_(2)  # so the computed values are no longer known
    training._consumed(others)
    assert said() == ["produced", "consumed"]
    monkeypatch.setattr("sentinel.tools.watch.training.LARGEST", 1)
    watcher.steps += 1
    training._produce((_TRAINER,), {})
    training._hold((_TRAINER,), _ROWS)
    training._consumed(_ROWS)
    assert said() == ["produced", "consumed"], "what is too large takes the place of what was before"
    watcher.restore()


def test_dropped_rows_are_not_expected():
    """If a full queue drops the event of computed rows, rows that reach the loss are not compared with older rows."""
    watcher = Watcher(Budget())
    training = Training(watcher)
    for _ in range(watcher.events.maxsize):
        watcher.events.put(None)
    training._produce((_TRAINER,), {})
    training._hold((_TRAINER,), _ROWS)
    watcher.events.get()
    for _ in range(2):
        training._consumed(_ROWS)
    watcher.restore()
    assert [one.kind for one in list(watcher.events.queue) if one] == ["produced"]
    memory = _memory()
    again = [("consumed", {"rows": _ROWS, "step": number}) for number in range(2)]
    assert [memory.look(*one) for one in again] == [[], []], "the step between them had no room"


def test_what_reward_functions_return_is_recorded_and_unchanged():
    """A returned iterator is not consumed, and ``torch.nn.Module.__call__`` is not replaced."""

    class Reward:
        def __call__(self, completions: Any) -> Any:
            return (float(len(one)) for one in completions)

    def counts(completions: Any) -> Any:
        return [None if one == "b" else len(one) for one in completions]

    def twice(completions: Any) -> Any:
        return [2 * one for one in counts(completions)]

    watcher, model, made = Watcher(Budget()), torch.nn.Linear(1, 1), Reward()
    training, code = Training(watcher), torch.nn.Module.__call__.__code__
    trainer = SimpleNamespace(reward_funcs=[counts, made, model, twice])
    training._trainer = lambda: trainer
    for one in (*trainer.reward_funcs, counts):  # the last one is another trainer's
        training._listen_to_reward(one)
    assert torch.nn.Module.__call__.__code__ is code
    counts(["aa"])
    training._produce((), {})
    assert training._rewarded == [], "only an observed step of a documented trainer is compared"
    assert counts(["aa", "b"]) == [2, None]
    assert list(made(["aa"])) == [2.0]
    assert twice(["aa"]) == [4]
    assert training._rewards == [(0, [2.0, None]), (3, [4.0])]
    watcher.restore()


def test_awaited_reward_functions_are_observed_each_on_its_own():
    async def first(completions: Any) -> Any:
        await asyncio.sleep(0.02)
        return [float(len(one)) for one in await second(completions)]

    async def second(completions: Any) -> Any:
        await asyncio.sleep(0.01)
        return [one + "a" for one in completions] if completions[0] == "a" else [1.0, 2.0]

    async def both() -> None:
        await asyncio.gather(first(["a", "bc"]), second(["d", "e"]))

    watcher = Watcher(Budget())
    training, trainer = Training(watcher), SimpleNamespace(reward_funcs=[first, second])
    training._trainer = lambda: trainer
    for one in trainer.reward_funcs:
        training._listen_to_reward(one)
    assert all(map(inspect.iscoroutinefunction, trainer.reward_funcs)), "a trainer awaits them"
    training._produce((), {})
    asyncio.run(both())
    assert sorted(training._rewards) == [(0, [2.0, 3.0]), (1, [1.0, 2.0])], "a call by another one is left out"
    watcher.restore()
    assert watcher.failed == {}


_TEXTS = [{"prompt": "ab", "answer": (1.0,)}, {"prompt": "c", "answer": (2.0,)}]
_GIVEN = {
    "prompts": ["ab", "c"],
    "completions": ["x", "yz"],
    "completion_ids": [[120], [121, 122]],
    "answer": [[1.0], [2.0]],
}
_PADDED = {
    "prompt_ids": torch.tensor([[97, 98], [0, 99]]), "prompt_mask": torch.tensor([[1, 1], [0, 1]]),
    "completion_ids": torch.tensor([[120, 0], [121, 122]]), "completion_mask": torch.tensor([[1, 0], [1, 1]]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "sampled", "given", "how"),
    [
        ({}, [], {}, ""),
        ({}, [[97, 98], [99]], {}, ""),
        ({"completion_mask": torch.zeros(2, 2)}, [], {}, ""),  # the mask leaves out a truncated completion
        ({"prompt_mask": torch.tensor([[0, 1], [0, 1]])}, [], {}, "row 0 has 1 tokens, and its prompt is 2 tokens"),
        ({"prompt_ids": _PADDED["prompt_ids"].flip(0), "prompt_mask": _PADDED["prompt_mask"].flip(0)}, [], {},
         "row 0 has the tokens of row 1's prompt"),
        ({}, [[97, 98], [98]], {}, "completions were generated from other prompt tokens than the batch's: row 1 was"),
        ({}, [], {"completions": ["yz", "x"]}, "wrong `completions` for 2 of 2 rows: for row 0, the value of row 1"),
        ({}, [], {"completions": ["x", "y"]}, "wrong `completions` for 1 of 2 rows: for row 1, a value that no"),
        ({}, [], {"completion_ids": [[120], [121]]}, "wrong `completion_ids` for 1 of 2 rows"),
        ({}, [], {"prompts": ["c", "ab"]}, "wrong `prompts` for 2 of 2 rows"),
        ({}, [], {"answer": [[2.0], [1.0]]}, "wrong `answer` for 2 of 2 rows"),
    ],
)  # fmt: skip
def test_reward_functions_and_rollouts_receive_the_datasets_rows(batch, sampled, given, how):
    calls = [(0, {**_GIVEN, **given})]
    found = (
        compare_prompts(_STEPS, None, _TEXTS, {**_PADDED, **batch}, sampled),
        compare_rewarded(_STEPS, None, _TEXTS, {**_PADDED, **batch}, calls),
    )
    assert how in "; ".join(found)
    assert any(found) == bool(how)


def test_only_values_of_other_rows_are_reported_after_the_first_reward_function():
    calls = [(0, _GIVEN), (1, {**_GIVEN, "completions": ["x!", "yz!"]})]
    assert compare_rewarded(_STEPS, None, _TEXTS, _PADDED, calls) == ""
    calls = [(0, _GIVEN), (1, {**_GIVEN, "completions": ["yz", "x"]})]
    assert "reward function 1 got wrong `completions`" in compare_rewarded(_STEPS, None, _TEXTS, _PADDED, calls)


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([], "none of the reward functions is a plain function"),
        ([(0, {"answer": [1.0]})], "with a different number of rows"),
    ],
)
def test_rows_that_cannot_be_compared_are_skipped_with_the_reason(calls, why):
    with pytest.raises(DoesNotApply, match=why):
        compare_rewarded(_STEPS, None, _TEXTS, _PADDED, calls)
    memory = _memory({**_DOCUMENTED, **_MADE})
    memory.look(*_rows(why=why))
    assert memory.skipped["rewards_judge_their_own_rows"] == memory.skipped["prompts_are_the_datasets"] == why


def test_a_produced_batch_is_compared_with_the_arguments_before_a_reward_function_changes_them():
    def spoils(prompts: Any, completions: Any, **_: Any) -> Any:
        completions.reverse()
        return [1.0, 0.0]

    watcher = Watcher(Budget())
    training, trainer = Training(watcher, steps=(_STEPS,)), SimpleNamespace(reward_funcs=[spoils], model=None)
    training._trainer, training._documented = lambda: trainer, _STEPS
    trainer.args, trainer.state = None, SimpleNamespace(global_step=0)
    training._listen_to_reward(spoils)
    training._produce((trainer, _TEXTS), {})
    spoils(**{name: list(value) for name, value in _GIVEN.items()})
    training._hold((trainer,), {**_PADDED, "advantages": torch.ones(2)})
    watcher.restore()
    assert [event.values for event in watcher.events.queue if event.kind == "rows"] == [
        {**_rows()[1], "evaluating": False}
    ]
    assert watcher.failed == {}


def test_rows_of_an_evaluation_do_not_replace_training_rows():
    watcher = Watcher(Budget())
    training, trainer = Training(watcher), SimpleNamespace(model=torch.nn.Linear(1, 1), args=None)
    training._trainer = lambda: trainer
    for mode, advantages in ((True, torch.ones(2)), (False, torch.zeros(2))):
        trainer.model.train(mode)
        training._look = False
        training._produce((trainer,), {})
        training._hold((trainer,), {"advantages": advantages})
    training._produced()
    (event,) = watcher.events.queue
    assert event.values["rows"]["advantages"].tolist() == [1.0, 1.0]


def test_an_event_is_sent_before_the_call_that_follows_it():
    watching, sent = object.__new__(Watching), list[Any]()
    watching.watcher, watching._connection = Watcher(Budget()), SimpleNamespace(send=sent.append)  # type: ignore
    watching.watcher.copies.put(Call(0, 1, {}, None, {}, 0, ""))
    watching.watcher.events.put(Event("facts", 0, 0, {}))
    assert watching._send_all()
    assert [kind for kind, _ in sent] == ["event", "call"]


def test_numbers_are_logged_to_the_configured_logger(monkeypatch):
    told: list[Any] = []
    reporter = type("Reporter", (), {"__module__": "transformers.integrations.x"})()
    reporter.on_log = lambda *_, logs, **__: told.append(logs)
    printer = SimpleNamespace(on_log=lambda *_, **__: told.append("printed"))
    trainer = SimpleNamespace(
        callback_handler=SimpleNamespace(callbacks=[printer, reporter]), args=0, state=0, control=0, model=0
    )
    training._log_numbers(trainer, {"sentinel/violations": 1}, 3)
    assert told == [{"sentinel/violations": 1}]
    wandb: Any = ModuleType("wandb")
    wandb.run, wandb.log = object(), lambda counts, commit: told.append((counts, commit))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    training._log_numbers(None, {"sentinel/checked": 2}, 3)
    assert told[1:] == [({"sentinel/checked": 2}, False)]
    wandb.run, mlflow = None, ModuleType("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    vars(mlflow).update(active_run=object, log_metrics=lambda counts, step: told.append((counts, step)))
    training._log_numbers(None, {"sentinel/checked": 3}, 4)
    assert told[2:] == [({"sentinel/checked": 3}, 4)]
    mlflow.active_run = lambda: None
    training._log_numbers(None, {"sentinel/checked": 5}, 6)
    assert len(told) == 3, "nobody has a run open"


def test_sampled_log_probs_equal_those_of_all_tokens(monkeypatch):
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 5)
    model = SimpleNamespace(get_output_embeddings=lambda: head, config=None)
    hidden, ids = torch.rand(2, 7, 4), torch.randint(5, (2, 7))
    whole = training._log_probs(model, hidden, ids, 0.7, some=False)["log_probs"]
    monkeypatch.setattr(training, "_FEW_LOGITS", 20)
    few = training._log_probs(model, hidden, ids, 0.7, True, 3)
    some = few["log_probs"]
    assert whole.shape == some.shape == (2, 6)
    assert not whole.isnan().any()
    # Fewer rows may take another kernel of the matrix product, which differs by rounding on some CPUs.
    assert torch.allclose(some[~some.isnan()], whole[~some.isnan()], rtol=1e-6)
    assert (~some.isnan()).nonzero().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4]]
    logits = torch.nn.functional.linear(hidden[0, 3], head.weight, head.bias).detach() / 0.7
    drawn = torch.distributions.Categorical(logits=logits.detach())
    assert float(few["entropy"][0, 3]) == pytest.approx(float(drawn.entropy()))
    assert float(few["tilt 1"][0, 3]) == pytest.approx(float(torch.log(logits.softmax(0).square().sum())))
    monkeypatch.setattr(training, "_LOGITS", 15)
    assert training._log_probs(model, hidden, ids, 0.7, some=False)["log_probs"].isnan().any()
    head.weight.data = head.weight.data.bfloat16()
    assert training._log_probs(model, hidden, ids, 0.7, True)["bound"] > 1000 * few["bound"]
    assert training._log_probs(SimpleNamespace(get_output_embeddings=torch.nn.Identity), hidden, ids, 0.7, True) == {}


def test_sampled_log_probs_detect_a_wrong_token_but_not_a_loss():
    """A loss is not judged if some of its log-probs are unknown."""
    some = _LOG_PROBS.clone()
    some[0, 2], some[1, 1] = torch.nan, torch.nan
    assert _memory().look(*_answers(some, loss=2 * _MEAN)) == []
    memory = _memory()
    for log_probs, named in ((_LOG_PROBS[:, 1:], []), (_LOG_PROBS[:, 1:] - 1.0, ["log_probs_are_the_models"])):
        memory.look("call", {**_CALL, "log_probs": log_probs})
        assert [one.name for one, _ in memory.look(*_answers(some))] == named
