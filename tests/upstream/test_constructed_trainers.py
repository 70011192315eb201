"""Bindings that construct TRL's trainers run code that no other binding runs, and detect changes in this code."""

from collections.abc import Iterator

import pytest
from binding_kit import Bound, Open, once_each, opened, opened_twin
from twins import Edit

from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects
from sentinel.values.literals import Tensor

pytest.importorskip("transformers")
pytest.importorskip("datasets")

SHA = "f2cd57710ae345ea6428ae95363267fcf38a3dc8"
OWN = "trl/experimental"
#: Changes of TRL: the trainer, the file, the text, its replacement, and the scenario that shows the change.
CHANGES = [
    (
        "ORPOTrainer", f"{OWN}/orpo/orpo_trainer.py", "self.beta = args.beta\n", "self.beta = 2 * args.beta\n",
        "other_settings",
    ),
    (
        "OnlineDPOTrainer", f"{OWN}/online_dpo/online_dpo_trainer.py", 'logs["loss"] = round(tr_loss_scalar / (',
        'logs["loss"] = round(2 * tr_loss_scalar / (', "loss_gap",
    ),
    (
        "A2POTrainer", f"{OWN}/a2po/a2po_trainer.py", "loss = ((implicit_reward - target) ** 2).mean()",
        "loss = ((implicit_reward - target) ** 2).sum()", "update",
    ),
    (
        "ServerDistillationTrainer", f"{OWN}/server_distillation/server_distillation_trainer.py",
        "top_logprobs=requested_top_k,\n            temperature=self.temperature,",
        "top_logprobs=requested_top_k,\n            temperature=2 * self.temperature,", "update",
    ),
    (
        "AsyncGRPOTrainer", f"{OWN}/async_grpo/async_grpo_trainer.py",
        "loss = loss / tokens_per_rank.to(torch.float32)", "loss = loss * tokens_per_rank.to(torch.float32)", "update",
    ),
    (
        "RLOOTrainer", "trl/trainer/rloo_trainer.py", "        logps = (per_token_logps * completion_mask).sum(1)",
        "        logps = per_token_logps.sum(1)", "update",
    ),
    (
        "GRPOTrainer", "trl/trainer/grpo_trainer.py", "tool_mask[idx_with_tool] += [0] * tool_length",
        "tool_mask[idx_with_tool] += [1] * tool_length", "update",
    ),
    (
        "CPOTrainer", f"{OWN}/cpo/cpo_trainer.py",
        'concatenated_batch["concatenated_input_ids"] = batch["prompt_input_ids"].repeat(2, 1)',
        'concatenated_batch["concatenated_input_ids"] = batch["prompt_input_ids"].repeat_interleave(2, 0)', "update",
    ),
]  # fmt: skip
#: Trainer -> an option of the scenario that is tried. Other trainers have their default options.
OPTIONS = {"ORPOTrainer": "'beta': 0.25", "GRPOTrainer": "'environment_factory'", "CPOTrainer": "'T5'"}
TRAINERS = [
    subject.boundary
    for subject in subjects(bundled_catalog(), "trl")[0]
    if subject.contract.name == "constructed_trainer"
]
#: In every run; the other trainers in nightly runs.
FEW = ("SFTTrainer", "AsyncGRPOTrainer", "PPOTrainer")


def trainer_of(boundary: str) -> str:
    return boundary.split(".")[-2]


@pytest.fixture(scope="module")
def main() -> Iterator[Open]:
    yield from once_each(opened)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bound]:
    edits: list[Edit] = [(file, old, new) for _, file, old, new, _ in CHANGES]
    yield from opened_twin("trl", SHA, edits, tmp_path_factory.mktemp("trl"))


def observed(code: Bound, boundary: str, form: str = "") -> tuple[dict, set[str]]:
    """Return what a trainer's step with changed options shows, and the keys that the definition contradicts."""
    (subject,) = (each for each in code.subjects if each.boundary == boundary)
    scenarios, option = code.scenarios(subject), OPTIONS.get(trainer_of(boundary), "plain")
    scenario = next((inputs for name, inputs in scenarios.items() if option in name), scenarios["plain"])
    trial = code.ask(subject, "the_oracle_agrees", {"": scenario})
    assert not trial.refused
    return trial.case.observation[""], {item.key for item in trial.violations}


@pytest.mark.slow
@pytest.mark.parametrize(
    "boundary",
    [
        pytest.param(each, id=trainer_of(each), marks=() if trainer_of(each) in FEW else pytest.mark.nightly)
        for each in TRAINERS
    ],
)
def test_a_trainer_trains_for_one_step_and_agrees_with_the_definition(main, boundary):
    code = main("trl", SHA)
    first, wrong = observed(code, boundary)
    assert not wrong
    assert isinstance(first["update"], Tensor)
    assert any(first["update"].nested())
    assert observed(code, boundary)[0] == first


@pytest.mark.parametrize(("trainer", "key"), [(trainer, key) for trainer, *_, key in CHANGES])
def test_a_change_in_a_trainer_shows(main, twin, trainer, key):
    boundary = next(each for each in TRAINERS if trainer_of(each) == trainer)  # two modules have a GRPOTrainer
    before, _ = observed(main("trl", SHA), boundary)
    after, wrong = observed(twin, boundary)
    assert after[key] != before[key]
    assert key == "update" or key in wrong
