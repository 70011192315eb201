import argparse
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sentinel.binding.drift import StandInNamespace
from sentinel.search.guards import options
from sentinel.worker import stubs
from sentinel.worker.answers import NUMBERS, TEXTS
from sentinel.worker.side_effects import (
    gradients,
    hidden_state,
    parts,
    replaced_arguments,
    require_gradients,
    shared_parts,
    turned,
)
from sentinel.worker.stubs import StubModule


def test_parts_of_every_kind_of_value_are_recorded():
    class Held:
        def __init__(self) -> None:
            self.rate, self._hidden = 0.5, 1

    value = {"text": "at 0x7f01 in /tree/a.py:12", "held": Held(), "stub": StubModule("ray"), "rows": [[1, 2], "b"]}
    found = dict(parts({"said": value}, "", ("/tree/",)))
    assert found["said.text"] == "at  in a.py:"
    assert found["said.held.rate"] == 0.5
    assert found["said.stub"] == "StubModule"
    assert found["said.rows has"] == 2
    assert found["said.rows.0"].nested() == [1, 2]
    assert not any("hidden" in path for path in found)
    assert not stubs.state().used


def test_options_are_changed_and_restored():
    @dataclasses.dataclass(frozen=True)
    class Config:
        epochs: int = 1
        mode: str = "a"
        nested: Any = dataclasses.field(default_factory=lambda: {"epochs": 1, "other": None})

    config = Config()
    back = list(turned({"self": StandInNamespace(config=config)}, {"epochs": 3, "mode": 2}))
    assert (config.epochs, config.mode, config.nested) == (3, "a", {"epochs": 3, "other": None})
    for each in back:
        each()
    assert config == Config()


def test_options_that_code_branches_on_are_read():
    found = options(
        """
    def step(self, batch):
        if self.config.use_kl and batch.get("kind") == "new":
            return [self.loss(i) for i in range(self.config.epochs)]
        share = 1.0 if self.share is None else self.share
        return 1 if self.count > 4 else len(batch)
    """
    )
    assert {name: found[name] for name in ("use_kl", "kind", "epochs", "count", "share")} == {
        "use_kl": [True, False],
        "kind": ["new"],
        "epochs": [2, 3, 1],
        "count": [4, 5],
        "share": [None, 0.5],
    }


def test_an_option_takes_numbers_around_1_instead_of_a_mask():
    mask = torch.tensor([[1, 0], [1, 1]])
    arguments = {"loss_mask": mask, "loss_weights": None}
    [(name, weights)] = replaced_arguments(arguments, {"loss_weights": {"some": True}})
    assert (name, weights.tolist()) == ("loss_weights", [[0.5, 1.0], [1.5, 2.0]])
    arguments = {"loss_mask": None, "token_mask": mask}
    assert [*replaced_arguments(arguments, {"loss_mask": {"some": True}})] == [("loss_mask", mask)]


def test_gradients_of_all_outputs_have_different_upstream_gradients():
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    found = gradients({"loss": weight * 2, "more": [weight.sum(), "text"]}, {})
    assert [each.tolist() for each in found.values()] == [[2 * 1 / 4 + 1, 2 * 2 / 4 + 1]]
    assert gradients([weight, 3], {}) == {}


def test_a_gradient_is_named_after_its_argument_whatever_the_order_of_the_operands():
    arguments = {"batch": {"values": torch.ones(2), "mask": torch.ones(2, dtype=torch.int64)}, "rewards": torch.ones(2)}
    require_gradients(arguments)
    values, rewards = arguments["batch"]["values"], arguments["rewards"]
    one, other = gradients(rewards - values, arguments), gradients(-values + rewards, arguments)
    assert {key.rpartition(" ")[2] for key in one} == {"batch.values", "rewards"}
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert not arguments["batch"]["mask"].requires_grad


def test_private_attributes_of_self_are_state_except_for_those_of_torch():
    trainer = argparse.Namespace(_metrics={"kl": [0.5]}, lr=1.0, __secret=2)
    assert hidden_state({"self": trainer, "other": trainer}) == {"given.self._metrics": {"kl": [0.5]}}
    assert hidden_state({"self": torch.nn.Linear(1, 1)}) == {}


def test_values_that_share_memory_are_named():
    value = torch.ones(2)
    holder = argparse.Namespace(advantages=value, returns=value.view(2, 1), other=value.clone())
    assert [*shared_parts("returned", [holder])] == [
        ("returned.0.returns shares memory with returned.0.advantages", "")
    ]


@pytest.mark.parametrize(
    ("settings", "new"),
    [
        ({"rewards": {"nested": True}}, {"rewards": [[1.0, 1.0], [2.0, 2.0]]}),
        ({"answer": {"listed": True}}, {"answer": ["a b"]}),
        ({"texts": "sft", "rewards": "sft"}, {"texts": ["sft"]}),  # a list of such values keeps being one
        ({TEXTS: "case"}, {"answer": "A B", "texts": ["X"]}),
        ({TEXTS: "empty"}, {"answer": "", "texts": [""]}),
        ({TEXTS: 4}, {"answer": "a b so "}),
        ({NUMBERS: "numpy"}, {"rewards": np.array([1.0, 2.0]), "count": np.array(3)[()]}),
    ],
)
def test_arguments_get_other_values_of_other_kinds(settings, new):
    arguments = {"self": "me", "answer": "a b", "texts": ["x"], "rewards": [1.0, 2.0], "count": 3}
    assert repr(dict(replaced_arguments(arguments, settings))) == repr(new)


def test_a_tensor_gets_more_or_fewer_dimensions():
    arguments = {"position_ids": torch.tensor([[0, 1]])}
    [(_, more)] = replaced_arguments(arguments, {"position_ids": {"dims": 3}})
    assert more.tolist() == [[[0, 1]], [[1, 2]], [[2, 3]]]
    [(_, fewer)] = replaced_arguments(arguments, {"position_ids": {"dims": 1}})
    assert fewer.tolist() == [0, 1]
