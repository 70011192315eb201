"""Functions that no adapter names: what the lexicon makes of them, and what they kept at an earlier revision."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from demo_kit import copy_demo

from sentinel.deciding.runner import Runner
from sentinel.history.held import held_to
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.search.automatic import Interface, understood
from sentinel.search.inferred import Outcome
from sentinel.search.signatures import signature
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

CATALOG = bundled_catalog()
SCENARIOS = 15

#: What an earlier revision has: masked statistics that nobody has bound.
EARLIER = '''
def reward_statistics(log_probs, response_mask, temperature=1.0):
    """The mean log-prob of each row, and how many tokens count."""
    scaled = log_probs / temperature
    return {"mean": (scaled * response_mask).sum(-1) / response_mask.sum(-1).clamp(min=1), "kept": response_mask.sum()}


def reward_clip(rewards, nobody_knows_this):
    return rewards.clamp(max=nobody_knows_this) * 2


class LossMaskActor:
    def loss_of(self, data):
        mask = data["response_mask"]
        return self._scaled(data["advantages"] * mask) / mask.sum().clamp(min=1)

    def _scaled(self, loss):
        return loss.sum() * self.config.kl_coef
'''


def read(text: str, name: str, method: bool = False) -> Interface:
    (node,) = (each for each in ast.walk(ast.parse(text)) if getattr(each, "name", "") == name)
    assert isinstance(node, ast.FunctionDef)
    owner = next((each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ClassDef)), None)
    methods = {each.name: each for each in owner.body if isinstance(each, ast.FunctionDef)} if owner else {}
    return understood(
        CATALOG.targets["demo"], f"demo_rl.new.{name}", signature(node, methods if method else None), method
    )


def test_what_all_names_say_is_understood():
    found = read(EARLIER, "reward_statistics")
    assert found.missing == ()
    assert [item.name for item in found.inputs] == ["log_probs", "response_mask", "temperature"]
    assert found.how["parameters"]["log_probs"] == {"input": "log_probs", "form": "tensor"}


def test_what_no_name_says_is_refused_and_named():
    assert read(EARLIER, "reward_clip").missing == ("nobody_knows_this",)


def test_a_method_is_read_with_what_it_calls_on_itself():
    found = read(EARLIER, "loss_of", method=True)
    assert found.missing == ()
    own = found.how["parameters"]["self"]
    assert own["of"] == "self"
    config = {"of": "", "attributes": {"kl_coef": {"input": "kl_coef"}}, "whole": True}
    assert own["attributes"] == {"config": config}
    assert sorted(found.how["parameters"]["data"]["fields"]) == ["advantages", "response_mask"]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("def f(values: dict): return values", ("values",)),  # the annotation has the word before the name
        ("def f(deterministic: bool, rewards): return rewards", ()),
        ("def f(rewards, mode: Literal['a', 'b']): return rewards", ()),
        ("def f(rewards, kind):\n    return rewards if kind in ('a', 'b') else kind == 'c'", ()),  # so has the body
        ("def f(rewards, kind): return kind(rewards)", ("kind",)),
        ("def f(data): return data['rewards'] + data['unheard']", ("data[unheard]",)),
        ("def f(data): return data['rewards'] + data.get('unheard', 0)", ()),
        ("def f(rewards, config):\n    return rewards * 2 if config.unheard else rewards", ()),
        (
            "def f(rewards, config):\n    return rewards * config.unheard if config.unheard else rewards",
            ("config.unheard",),
        ),
        ("def f(rewards):\n    yield rewards", ()),  # what it gives is looked at
        ("def f(draft_logits, padded_cu_seqlens, input_ids_rmpad): return draft_logits", ()),  # the last word says it
        ("def f(unheard: torch.Tensor, beside: 'Float[torch.Tensor, \"rows\"]'): return unheard", ()),
        ("def f(unheard: torch.Tensor | None = None): return unheard", ()),  # and is left out
        ("def f(rows):\n    return [row['input_ids'] for row in rows]", ()),
        ("def f(rows):\n    for row in rows:\n        row['unheard']", ("rows[][unheard]",)),
        ("def f(data): return data['meta']['temperature'] * data['rewards']", ()),
        ("def f(data): return data['meta']['unheard'] * data['rewards']", ("meta[unheard]",)),
    ],
)
def test_evidence_is_use_then_annotation_then_name(text, missing):
    assert read(text, "f").missing == missing


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(CATALOG, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options(timeout=20))
    yield made
    made.close()


def held(
    runner: Runner,
    tmp_path: Path,
    changed: str,
    earlier: str = EARLIER,
    catalog: Catalog = CATALOG,
    scenarios: int = SCENARIOS,
) -> dict[str, Outcome]:
    refs = []
    for name, text in (("then", earlier), ("now", changed)):
        tree = copy_demo(tmp_path / name)
        (tree / "demo_rl" / "statistics.py").write_text(text)
        refs.append(Ref("path", str(tree)))
    found = held_to(runner, catalog, "demo", (refs[0], refs[1]), ["*statistics*"], scenarios)
    return {one.path.removeprefix("demo_rl.statistics."): one for one in found}


def test_what_has_not_changed_breaks_nothing_and_is_called(runner, tmp_path):
    found = held(runner, tmp_path, EARLIER + "\n# a comment\n")
    answered = {name: one.answered for name, one in found.items() if not one.why}
    assert answered == {
        "reward_statistics": SCENARIOS,
        "reward_clip": 0,
        "LossMaskActor.loss_of": SCENARIOS,
        "LossMaskActor._scaled": 0,
    }
    assert not any(one.broken for one in found.values())
    outcome = found["reward_statistics"]
    assert outcome.held["masked_values_have_no_influence"] >= SCENARIOS // 5
    clip = found["reward_clip"]
    (why,) = clip.refused
    assert "nobody_knows_this" in why  # what was missing


#: What takes objects: a constructor of which not all can run, a configuration, and values that nobody knows.
OBJECTS = """
from dataclasses import dataclass, field


@dataclass
class RewardConfig:
    engine: object
    scale: float = 3.0


class RewardCollector:
    def __init__(self, config: RewardConfig, engine, limit: int = 7):
        self.limit = limit
        self.rewards = []
        self.stale = 0
        self.client = engine.connect()
        self.stale = self.client.stale

    def add_rewards(self, rewards):
        self.rewards.extend(rewards.tolist())

    def reward_limit(self, rewards):
        return rewards.clamp(max=self.limit)

    def reward_age(self, rewards):
        return rewards * self.stale

    def reward_from(self, rewards, client=None):
        try:
            return rewards * self.client.reward_factor()
        except Exception:
            return rewards

    def send_rewards(self, rewards):
        return self.client.send(rewards * 2).count + 1

    def mean_of_rewards(self):
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    def rewards_each(self, rewards):
        yield from rewards


def reward_scale(config: RewardConfig, rewards):
    return rewards * config.scale


def reward_if_known(rewards, nobody_knows_this):
    return rewards if nobody_knows_this is not None else None


def reward_time(rewards):
    import time

    return {"reward_seconds": time.perf_counter(), "reward": rewards}


def packed_log_prob_sum(log_probs, response_mask):
    assert log_probs.dim() == 1, "must be packed"
    return (log_probs * response_mask).sum()


def jagged_log_prob_sums(log_probs, response_mask):
    offsets = log_probs.offsets()  # rows as long as they are
    return (log_probs * response_mask).values().sum() / (len(offsets) - 1)


def log_probs_of_labels(self, input_ids, labels, return_dict: bool = False):
    assert return_dict
    hidden = self.model(input_ids)[0]
    return self.lm_head(hidden).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
"""


def test_objects_are_the_frameworks_own_as_far_as_they_can_be_built(runner, tmp_path):
    found = held(runner, tmp_path, OBJECTS, OBJECTS)
    outcomes = {name.rpartition(".")[2]: one for name, one in found.items() if not one.why}
    answered = {name: outcome.answered for name, outcome in outcomes.items() if outcome.answered}
    assert answered.keys() == {
        "add_rewards",  # what it changes is its answer
        "send_rewards",  # what it hands to somebody whom nobody knows, and no more
        "reward_limit",  # the constructor says what the limit is
        "mean_of_rewards",  # of those that another method has put there
        "rewards_each",
        "reward_scale",  # the default of the dataclass
        "reward_if_known",  # nobody asked anything of it but whether it is None
        "reward_time",
        "packed_log_prob_sum",
        "jagged_log_prob_sums",
        "log_probs_of_labels",  # what a framework puts into a model's class
    }
    refused = {name: next(iter(outcome.refused)) for name, outcome in outcomes.items() if not outcome.answered}
    assert "connect().stale" in refused["reward_age"]  # it was 0, and then something that nobody knows
    assert "connect().reward_factor()" in refused["reward_from"]  # though the code catches the refusal
    assert not any(outcome.broken for outcome in outcomes.values())  # nor does a clock


def test_a_law_that_was_kept_and_is_no_longer_is_of_rank_three(runner, tmp_path):
    changed = EARLIER.replace("(scaled * response_mask).sum(-1)", "scaled.sum(-1)")
    found = held(runner, tmp_path, changed, scenarios=40)
    outcome = found["reward_statistics"]
    assert {(item.rank, item.law.name if item.law else "", item.key) for item in outcome.broken} >= {
        (3, "masked_values_have_no_influence", "answer.returned.mean"),
        (4, "", "answer.returned.mean"),
    }
    assert not any("kept" in item.key for item in outcome.broken)  # nothing has changed there


def test_a_function_that_reads_more_now_is_compared_in_one_world(runner, tmp_path):
    found = held(runner, tmp_path, EARLIER.replace("self.config.kl_coef", "(self.config.kl_coef + self.config.beta)"))
    outcome = found["LossMaskActor.loss_of"]
    assert {item.rank for item in outcome.broken} == {4}
    found = held(runner, tmp_path / "more", EARLIER.replace("loss_of(self, data)", "loss_of(self, data, values)"))
    assert found["LossMaskActor.loss_of"].why == "it takes other things now"


#: Rows as objects, and a configuration of which some is in no default.
ROWS = """
from dataclasses import dataclass, field


@dataclass
class Options:
    reward_bonus: float = 1.5


@dataclass
class Row:
    tokens: list = field(default_factory=list)
    response_length: int = 0
    reward: float = None


def reward_of_rows(samples: list[Row], args):
    assert all(len(one.tokens) == one.response_length + 2 for one in samples)  # the prompt, and what was said
    return [one.reward * args.reward_bonus for one in samples] if not args.unheard_flag else []


def reward_of_row(one: Row):
    return 2 * one.reward + 1
"""


def test_rows_and_configurations_are_made_as_the_adapter_says(runner, tmp_path):
    adapter = CATALOG.adapters["demo"]
    module, fields = "demo_rl.statistics", {"tokens": "input_ids", "response_length": "response_lengths"}
    target = replace(
        adapter.target,
        rows={"Row": (f"{module}.Row", {**fields, "reward": "rewards"})},
        defaults=(f"{module}.Options",),
    )
    catalog = replace(CATALOG, adapters={**CATALOG.adapters, "demo": replace(adapter, target=target)})
    found = held(runner, tmp_path, ROWS, ROWS, catalog)
    for name in ("reward_of_rows", "reward_of_row"):
        outcome = found[name]
        assert outcome.answered == SCENARIOS, outcome.refused
        assert not outcome.broken
