"""``sentinel adapt`` proposes bindings for a framework that has no adapter, and marks its guesses as questions."""

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo_kit import Repository

from sentinel.cli import main
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes.catalog import bundled_catalog, load_adapter
from sentinel.search.bindings import CheckoutTrees, Definitions
from sentinel.targets import Target
from sentinel.tools.adapt.commands.adapt import needs_preload
from sentinel.tools.adapt.imports import Imports
from sentinel.tools.adapt.past import with_past
from sentinel.tools.adapt.project import open_project
from sentinel.tools.adapt.proposals import Layout, NearMiss, Proposal, propose
from sentinel.tools.adapt.signatures import Signature, classes_of, signatures
from sentinel.tools.adapt.writing import adapter_text
from sentinel.worker import stubs
from sentinel.worker.probe import _stub_reason

CONTRACTS = bundled_catalog().contracts

LOSSES = '''
import missing_tracker
import missing_attention.ops as attention
from missing_base import Trainer


def policy_loss(logps, old_logps, adv, mask, eps=0.2):
    ratio = (logps - old_logps).exp()
    losses = -torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
    return (losses * mask).sum() / mask.sum()


def masked_sum(values, mask):
    return (values * mask).sum()


def aggregate(losses, mask):
    """The mean over responses of the sum over tokens."""
    return (losses * mask).sum(-1).mean()


def grpo_advantages(rewards, mask, group_size: int):
    """Rewards of shape [seq_len, bsz]."""
    scores = rewards.sum(0).view(-1, group_size)
    scores = (scores - scores.mean(-1, keepdim=True)) / (scores.std(-1, keepdim=True) + 1e-6)
    return (torch.zeros_like(mask) + scores.view(1, -1)) * mask, None


def kl_penalty(logps, ref_logps, kind):
    if kind == "k1":
        return logps - ref_logps
    if kind == "k3":
        return (ref_logps - logps).exp() - (ref_logps - logps) - 1


def value_loss(values, old_values, returns, loss_mask, delta: float):
    return {"loss": (values - returns).square().mean(), "clip_fraction": loss_mask.mean()}


def fused_logprobs(logits, labels):
    import missing_kernels

    return missing_kernels.log_probs(attention.flatten(logits), labels)


def teacher_advantages(rewards, mask, group_size, teacher):
    return teacher(rewards) * mask


class MyTrainer(Trainer):
    def dpo_loss(self, chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps):
        margin = chosen_logps - rejected_logps - ref_chosen_logps + ref_rejected_logps
        self.log(margin)
        return -torch.nn.functional.logsigmoid(self.args.beta * margin - self.smoothing).mean()


class ValueLoss(torch.nn.Module):
    def __init__(self, clip_range=0.2):
        self.clip_range = clip_range

    def forward(self, values, old_values, returns, mask):
        clipped = old_values + (values - old_values).clamp(-self.clip_range, self.clip_range)
        loss = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
        return (loss * mask).sum() / mask.sum()
'''


def read(name: str, text: str = LOSSES) -> Signature:
    (found,) = signatures(text, "mylab.losses", "mylab/losses.py", [name])
    return found


def proposed(name: str) -> Proposal:
    found = propose(read(name), CONTRACTS)
    assert isinstance(found, list)
    return found[0]


@pytest.mark.parametrize(
    ("name", "contract", "arguments"),
    [
        ("policy_loss", "policy_loss", {"log_probs": "logps", "advantages": "adv", "eps_clip_low": "eps"}),
        ("masked_sum", "masked_statistics", {"response_mask": "mask"}),
        ("aggregate", "loss_aggregation", {"loss_mat": "losses"}),
        ("grpo_advantages", "group_advantage", {"token_level_rewards": "rewards"}),
        ("kl_penalty", "kl_estimate", {"ref_log_probs": "ref_logps", "kl_estimator": "kind"}),
        ("value_loss", "value_loss", {"vpreds": "values", "values": "old_values"}),
        ("fused_logprobs", "token_log_probs", {"token_ids": "labels"}),
        ("MyTrainer.dpo_loss", "preference_loss", {"chosen_ref_log_probs": "ref_chosen_logps"}),
        ("ValueLoss.forward", "value_loss", {"vpreds": "values", "values": "old_values"}),
    ],
)
def test_a_function_is_bound_to_the_contract_that_its_parameters_fit(name, contract, arguments):
    found = proposed(name)
    assert found.contract == contract
    assert arguments.items() <= found.arguments.items()


def test_axes_groups_and_missing_outputs_are_read_from_the_body():
    found = proposed("grpo_advantages")
    assert found.options["tokens_first"] is True
    assert found.options["group"] == "group_size"
    assert found.fixed["group_layout"] == "equal"
    assert found.reads == {"advantages": 0}  # the second value is always None
    assert any("[seq_len, bsz]" in each for each in found.questions)


def test_choices_are_the_strings_that_the_body_compares_with():
    assert proposed("kl_penalty").accepts["kl_estimator"] == ("k1", "k3")
    assert proposed("kl_penalty").accepts["response_mask"] == (None,)


def test_a_dictionary_is_read_by_its_keys():
    assert proposed("value_loss").reads == {"loss": "loss", "clip_fraction": "clip_fraction"}


def test_a_setting_without_a_parameter_is_a_guess_and_a_question():
    found = proposed("aggregate")
    assert found.fixed["loss_agg_mode"] == "token-mean"
    assert "it has no parameter for loss_agg_mode; 'token-mean' is a guess." in found.questions
    delta = proposed("value_loss")
    assert delta.constants == {"delta": 1.0}
    assert any("what is delta?" in each for each in delta.questions)


def test_the_attributes_of_a_method_are_listed():
    found = proposed("MyTrainer.dpo_loss")
    assert found.objects == {"self": {"args.beta": 'inputs["beta"]', "smoothing": "None"}}  # log is a method
    assert "which values do these members of the object have in a real run: smoothing?" in found.questions


def test_a_near_miss_names_the_missing_parameter():
    found = propose(read("teacher_advantages"), CONTRACTS)
    assert isinstance(found, NearMiss)
    assert found.reason == "no input of the contract matches the parameter teacher"


@pytest.mark.parametrize(
    "text",
    [
        "async def policy_loss(logps, old_logps, adv, mask): return adv",
        "def preprocess_loss_inputs(logps, old_logps, adv, mask): return adv",
        "def log_loss_metrics(logps, old_logps, adv, mask): return adv",
        "def policy_loss(logps, old_logps, adv, mask): pass",
        "def plan(logps, old_logps, adv, mask): return adv",
    ],
)
def test_nothing_is_proposed_for_helpers(text):
    name = text.partition("def ")[2].partition("(")[0]
    assert propose(read(name, text), CONTRACTS) is None


def project_in(folder: Path, **files: str) -> Path:
    (folder / "mylab").mkdir(parents=True)
    (folder / "mylab" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text('[project]\nname = "mylab"\ndependencies = [\n  "missing-base>=2.1",\n]\n')
    for name, text in files.items():
        (folder / "mylab" / f"{name}.py").write_text(text)
    return folder


def test_all_missing_packages_are_listed_at_once(tmp_path):
    project = open_project(str(project_in(tmp_path / "work", losses=LOSSES)))
    trees = CheckoutTrees(project.checkout)
    definitions = Definitions(trees, project.target.roots)
    sources = {file: (project.target.module_of(file), trees.blob(blob)) for file, blob in definitions.sources("")}
    found = Imports(definitions, sources).packages(
        map(read, ("policy_loss", "fused_logprobs", "MyTrainer.dpo_loss")), None
    )
    assert found.install == {
        "missing_attention": ("mylab.losses.fused_logprobs",),  # its body uses them
        "missing_kernels": ("mylab.losses.fused_logprobs",),
        "missing_base": ("mylab.losses.MyTrainer.dpo_loss",),  # its class has a base from there
    }
    assert found.stub == ("missing_tracker",)
    assert project.requires["missing_base"] == "missing-base>=2.1"


def test_former_paths_and_names_come_from_the_history(tmp_path):
    repository = Repository(tmp_path / "work")
    project_in(repository.path)
    repository.git("init", "--quiet", "--initial-branch=main")
    old = "def masked_sum(values, loss_mask):\n    return (values * loss_mask).sum()\n"
    repository.commit("old", {"mylab/core.py": old})
    repository.commit("new", {"mylab/core.py": None, "mylab/losses.py": LOSSES})
    project = open_project(str(repository.path))
    (found,) = with_past([proposed("masked_sum")], project, CONTRACTS)
    assert found.formerly == ("mylab.core.masked_sum",)
    assert found.earlier == {"response_mask": ("loss_mask",)}
    assert '("mask", "loss_mask")' in adapter_text(project.target, [found], [], CONTRACTS, "mylab_adapter.py")


def test_the_adapter_is_python_that_loads(tmp_path):
    names = (
        "policy_loss",
        "masked_sum",
        "aggregate",
        "grpo_advantages",
        "kl_penalty",
        "value_loss",
        "MyTrainer.dpo_loss",
    )
    project = open_project(str(project_in(tmp_path / "work", losses=LOSSES)))
    missed = propose(read("teacher_advantages"), CONTRACTS)
    assert isinstance(missed, NearMiss)
    file = tmp_path / "mylab_adapter.py"
    text = adapter_text(project.target, list(map(proposed, names)), [missed], CONTRACTS, file.name)
    file.write_text(text)
    target = load_adapter(file, CONTRACTS).target
    assert [binding.boundary for binding in target.bindings] == [f"mylab.losses.{name}" for name in names]
    assert target.roots == project.target.roots
    assert (
        "# mylab.losses.teacher_advantages (group_advantage): no input of the contract matches the parameter teacher"
        in text
    )


def test_text_from_foreign_code_stays_in_comments(tmp_path):
    """Messages and strings of the framework's code are written into the adapter, which is a program."""
    text = (
        LOSSES.replace('"k3"', '"k3\\n\\ud800\\x1b[31m"')
        .replace('"k1"', '"k1"')
        .replace("kind ==", "kind in (None, 'k2') or kind ==")
    )
    several = propose(read("kl_penalty", text), CONTRACTS)
    assert isinstance(several, list)
    found = several[0]
    found = replace(
        found, questions=(*found.questions, "it cannot be called: \nimport os\r\n\x1b]0;title\x85\u2028raise")
    )
    project = open_project(str(project_in(tmp_path / "work", losses=text)))
    written = adapter_text(project.target, [found], [], CONTRACTS, "mylab_adapter.py")
    assert {type(node).__name__ for node in ast.parse(written).body} == {"Expr", "ImportFrom", "Assign"}
    assert "\x1b" not in written
    assert not [line for line in written.splitlines() if line.lstrip().startswith(("import os", "raise"))]
    written.encode()  # no lone surrogate


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda folder: folder / "nowhere", SentinelError, "no such folder"),
        (lambda folder: folder / "file.txt", SentinelError, "is a file; give the folder of the project"),
        (lambda folder: folder / "empty", NothingExamined, "has no Python file"),
        (lambda folder: folder / "tests", NothingExamined, "no Python package"),
    ],
)
def test_an_invalid_source_is_rejected(tmp_path, make, error, said):
    (tmp_path / "file.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "tests" / "tests").mkdir(parents=True)
    (tmp_path / "tests" / "tests" / "test_a.py").touch()
    with pytest.raises(error, match=said):
        open_project(str(make(tmp_path)))


def test_a_project_without_a_fitting_function_exits_with_2(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project_in(
        tmp_path / "work",
        other="def teacher_advantages(rewards, mask, group_size, teacher):\n    return teacher(rewards) * mask\n",
    )
    assert main(["adapt", "work"]) == 2
    said = capsys.readouterr().err
    assert "nothing was examined: mylab has 1 function that seem" in said
    assert "no input of the contract matches the parameter teacher" in said
    assert not list(tmp_path.glob("*.py"))


#: One right function, one whose mean divides by all tokens, one that needs a package.
THREE = """
import torch


def masked_sum(values, mask):
    return torch.where(mask != 0, values, 0.0).sum()


def masked_mean(values, mask):
    return torch.where(mask != 0, values, 0.0).mean()


def seq_mean_loss(losses, mask):
    if ~mask.any():
        return losses.sum() * 0
    return (torch.where(mask, losses, 0.0).sum(-1)).mean()
"""


@pytest.mark.slow
def test_an_adapter_is_written_and_tried(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project_in(tmp_path / "work", losses=THREE)
    assert main(["adapt", "work", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["function"].rpartition(".")[2]: row for row in answer["proposals"]}
    assert rows["masked_sum"]["broken"] == {}
    assert len(rows["masked_sum"]["held"]) > 8
    assert "the_oracle_agrees" in rows["masked_mean"]["broken"]
    assert rows["masked_mean"]["oracle_agrees_with"] == {}  # a mean of each row does not agree either
    assert rows["seq_mean_loss"]["oracle_agrees_with"] == {
        "loss_agg_mode": "seq-mean-token-sum",  # the exception of a failed call shows that it takes a boolean mask
        "empty_rows": "counted",
    }
    text = (tmp_path / "mylab_adapter.py").read_text()
    assert 'bools=("response_mask",)' in text
    assert "# - the oracle agrees only with empty_rows='counted'. If this is intended, add" in text
    assert "Dialect(" not in text.replace("dialects=(Dialect(", "")  # a person decides what is intended

    assert main(["adapt", "work"]) == 2  # nothing is overwritten
    assert "mylab_adapter.py exists" in capsys.readouterr().err
    assert main(["adapt", "work", "--check", "mylab_adapter.py"]) == 0
    table = capsys.readouterr().out
    assert "mylab.losses.masked_mean" in table
    assert "broken: " in table
    assert re.search(r"mylab\.losses\.masked_mean breaks the_oracle_agrees: .*expected .*\n  \w+ = \[", table)
    assert re.search(r"masked_sum .* \d+ hold \(in at least \d+ scenarios each\)", table)


#: Right functions of vectors, configurations, attributes, ends of episodes, texts and steps.
VECTORS = """
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch

VERSION = version("mylab")


@dataclass
class Config:
    scale_rewards: bool = True
    unused: int = 3


def future_sum(values: list[float], discount_factor: float) -> list[float]:
    sums, running = [], 0.0
    for value in reversed(values):
        running = value + discount_factor * running
        sums.append(running)
    return sums[::-1]


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    mean, std = (rewards.mean(), rewards.std()) if len(rewards) > 1 else (0.0, 1.0)
    return (rewards - mean) / (std + 1e-6)


def grpo_advantages(rewards: list[np.ndarray], config: Config, tracker) -> list[np.ndarray]:
    found = []
    for group in rewards:
        centred = group - group.mean()
        found.append(centred / (group.std(ddof=1) + 1e-6) if config.scale_rewards and len(group) > 1 else centred)
    return found


def gae_returns(rewards, values, dones, gamma, lam):
    advantages, running, following = torch.zeros_like(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        alive = 1.0 - dones[t]
        running = rewards[t] + gamma * alive * following - values[t] + gamma * lam * alive * running
        advantages[t] = running
        following = values[t]
    return advantages, advantages + values


def grade_answer(given_answer: str, ground_truth: str) -> bool:
    return given_answer.strip() == ground_truth.strip()


def lr_multiplier(step: int, total_steps: int) -> float:
    return 0.5 * (1 + np.cos(np.pi * step / total_steps))


class Trainer:
    def __init__(self, model, clip_coef=0.2, reduction="mean"):
        self.model, self.clip_coef = model, clip_coef
        self.reduction = reduction

    def policy_loss(self, log_probs, old_log_probs, advantages, mask):
        ratio = torch.exp(torch.where(mask.bool(), log_probs - old_log_probs, 0.0))
        losses = -torch.min(ratio * advantages, ratio.clamp(1 - self.clip_coef, 1 + self.clip_coef) * advantages)
        return self.average(losses, mask)

    def average(self, losses, mask):
        assert self.reduction == "mean"
        return torch.where(mask.bool(), losses, 0.0).sum() / mask.sum().clamp(min=1)
"""


def several(name: str) -> list[Proposal]:
    found = propose(read(name, VECTORS), CONTRACTS, classes_of(ast.parse(VECTORS).body))
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("name", "contract", "layouts"),
    [
        ("future_sum", "discounted_return", [Layout("row", "list")]),
        ("group_advantages", "group_advantage", [Layout("group", "array")]),
        ("grpo_advantages", "group_advantage", [Layout("groups", "array")]),
        ("gae_returns", "generalised_advantage", [Layout("batch"), Layout("stream")]),
        ("lr_multiplier", "learning_rate", [Layout("steps")]),
    ],
)
def test_annotations_and_parameters_determine_the_layout(name, contract, layouts):
    assert [each.layout for each in several(name) if each.contract == contract] == layouts


def test_a_configuration_gets_the_inputs_and_defaults_that_the_body_reads():
    found = several("grpo_advantages")[0]
    assert found.objects == {"config": {"scale_rewards": 'inputs["norm_by_std"]'}}
    assert found.constants == {"tracker": None}  # never read
    loss = several("Trainer.policy_loss")[0]
    assert loss.objects == {"self": {"clip_coef": 'inputs["eps_clip_low"]', "reduction": "'mean'"}}


def test_a_dictionary_gets_the_keys_that_the_body_reads():
    text = (
        "def value_loss(batch, cliprange):\n"
        "    values, kept = batch['values'], batch['old_values']\n"
        "    return (values - batch['returns']).square().mean() * batch.get('mask') + kept * cliprange\n"
    )
    found = propose(read("value_loss", text), CONTRACTS)
    assert isinstance(found, list)
    keys = found[0].objects["batch"]
    assert keys["['values']"] == 'inputs["vpreds"]'
    assert keys["['mask']"] == 'inputs["response_mask"]'
    assert "batch={'mask': inputs[" in adapter_text(Target("m", "", ()), found[:1], [], CONTRACTS, "own.py")


@pytest.mark.slow
def test_right_functions_are_proposed_in_the_form_that_agrees_with_the_oracle(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project_in(tmp_path / "work", losses=VECTORS)
    assert main(["adapt", "work", "--json"]) == 0
    rows = {row["function"].partition("losses.")[2]: row for row in json.loads(capsys.readouterr().out)["proposals"]}
    agree = {name for name, row in rows.items() if "the_oracle_agrees" in row["held"] or row["oracle_agrees_with"]}
    assert agree == {
        "future_sum", "group_advantages", "grpo_advantages", "gae_returns", "grade_answer", "lr_multiplier",
        "Trainer.policy_loss",
    }  # fmt: skip
    assert rows["group_advantages"]["oracle_agrees_with"] == {"std": "biased", "group_of_one": "score"}
    text = (tmp_path / "mylab_adapter.py").read_text()
    assert 'each="stream"' in text  # as [batch, tokens], its loop would run over rows
    assert 'stub_versions={"mylab": "0.0.0"}' in text
    assert main(["adapt", "work", "--check", "mylab_adapter.py"]) == 0  # the written file gives the same


ADAPTER = """
from sentinel.targets import Binding, PackageRoot, Target


def _call(boundary, inputs):
    mask = inputs["response_mask"]
    {first}
    return {{"advantages": boundary.invoke(inputs), "returns": None}}


TARGET = Target(
    "mylab",
    "https://example.invalid/mylab",
    (PackageRoot("mylab"),),
    bindings=(
        Binding(
            "mylab.losses.advantages",
            "group_advantage",
            {call}
            arguments={{"token_level_rewards": ("rewards",), "response_mask": ("mask",), "group": ("index",)}},
            fixed={{"estimator": "grpo", "norm_by_std": True, "epsilon": 1e-6}},
            outputs=("advantages",),
        ),
    ),
)
"""

BIASED = """
import torch


def advantages(rewards, mask, index):
    rewards = torch.where(mask != 0, rewards, 0.0)
    scores, there = rewards.sum(-1), (mask != 0).any(-1)
    result = torch.zeros_like(scores)
    for one in set(index):
        mine = [place for place, each in enumerate(index) if each == one and there[place]]
        rows = torch.tensor(mine, dtype=torch.long)
        if len(rows) > 1:
            result[rows] = (scores[rows] - scores[rows].mean()) / (scores[rows].std(correction=0) + 1e-6)
    return result[:, None] * mask
"""


def check(tmp_path: Path, capsys: pytest.CaptureFixture[str], losses: str = BIASED, **parts: str) -> dict[str, Any]:
    project_in(tmp_path / "work", losses=losses)
    (tmp_path / "own.py").write_text(ADAPTER.format(**parts))
    main(["adapt", str(tmp_path / "work"), "--check", str(tmp_path / "own.py"), "--json"])
    [row] = json.loads(capsys.readouterr().out)["proposals"]
    return row


@pytest.mark.slow
def test_a_check_names_the_choice_with_which_the_oracle_agrees(tmp_path, capsys):
    row = check(tmp_path, capsys, call="", first="")
    assert row["oracle_agrees_with"] == {"std": "biased"}
    assert row["scenarios"]["the_oracle_agrees"]["token_level_rewards"]["tensor"]


@pytest.mark.slow
def test_exceptions_of_the_function_are_counted_beside_laws_that_hold(tmp_path, capsys):
    unbound = BIASED.replace("if len(rows) > 1:", "if len(rows) > 1:\n            alone = 1.0").replace(
        "* mask", "* mask * alone"
    )
    row = check(tmp_path, capsys, unbound, call="", first="")
    [(reason, count)] = row["raised"].items()
    assert "UnboundLocalError" in reason
    assert count > 1
    assert row["held"]


@pytest.mark.slow
def test_no_law_holds_if_the_adapter_raises_for_some_scenarios(tmp_path, capsys):
    row = check(tmp_path, capsys, call="call=_call,", first="assert mask.sum() < 2, 'too many tokens'")
    assert row["held"] == []
    assert re.search(r"AssertionError: too many tokens, .* \(in \d+ calls, \d+ scenarios\)", row["failed"])


def test_adapt_reads_which_packages_a_probe_needs_from_its_reason(monkeypatch):
    used = SimpleNamespace(used=["transformers.utils", "psutil.cpu_count()"])
    monkeypatch.setattr(stubs, "state", lambda: used)
    assert needs_preload(_stub_reason()) == ["psutil", "transformers"]
    used.used.append("a_package_of_no_target")
    assert not needs_preload(_stub_reason())
