import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, Lab, returned

from sentinel.contracts.contract import REQUIRED, Contract
from sentinel.laws.law import Law
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.values.literals import Namespace, tensor
from sentinel.worker.answers import Measured

CONTRACTS = sorted(bundled_catalog().contracts)


@pytest.fixture(params=CONTRACTS)
def contract(request: pytest.FixtureRequest) -> Contract:
    return bundled_catalog().contracts[request.param]


def test_contract_declarations_are_complete(contract):
    names = [item.name for item in contract.inputs]
    assert len(set(names)) == len(names)
    assert len(set(contract.keys)) == len(contract.keys)
    assert contract.summary
    assert contract.source
    assert all(item.meaning for item in (*contract.inputs, *contract.observes))
    assert contract.law in (None, *bundled_catalog().laws)
    for alias, name in contract.aliases.items():
        assert alias not in names
        assert name in names or name in contract.keys
    masks = {item.name for item in contract.inputs if item.domain == "mask"}
    assert contract.mask in masks or not masks
    assert contract.open_keys or any(item.default is REQUIRED for item in contract.inputs)
    knobs = {item.name: item.default for item in contract.inputs if item.knob}
    assert contract.lacking() == knobs
    for name in knobs:
        assert contract.lacking(name) == {other: value for other, value in knobs.items() if other != name}


def test_contracts_are_read_without_torch():
    modules = sorted({contract.of_its_module.__module__ for contract in bundled_catalog().contracts.values()})
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_binding_names_a_contract_and_its_inputs():
    catalog = bundled_catalog()
    for target in catalog.targets.values():
        for binding in target.bindings:
            contract = catalog.contracts[binding.contract]
            assert all(contract.input(name) for name in binding.arguments.keys() - target.arguments.keys())
            assert binding.boundary.partition(".")[0] in target.packages
            assert not set(binding.outputs) - set(contract.keys) or binding.call, binding.boundary


def test_loss_aggregation_observes_gradients(decide, broken_tree):
    scenario = {**MASKED_TOKENS["scenario"], "theta": 2.0, "learning_rate": 0.5}
    measured = decide({**MASKED_TOKENS, "scenario": scenario}, broken_tree).measurement
    seen = measured.observation[""]
    # The loss of theta * loss_mat is 2 * 26. Its derivative by theta is 26, and the step is negative.
    assert seen["loss"].nested() == 52.0
    assert seen["theta_gradient"].nested() == 26.0
    assert seen["parameter_update_delta"] == -13.0
    assert seen["per_token_gradient"].nested() == [[0.5, 0.5], [0.5, 0.5]]
    assert seen["masked_token_gradient_abs_sum"].nested() == 1.0


CALLED = {
    "mod.py": """
import torch

class Actor:
    def __init__(self, scale):
        self.scale = scale

    def step(self, x):
        self.seen = True
        return {"y": (self.scale * x).sum(), "kept": x.detach()}

def mutate(x, rows):
    x.mul_(2)
    rows.append(1)
    return x.clone()

def refuse(x):
    raise ValueError("no rollout_logprobs")

def scaled(self, x):
    return self.scale * x
"""
}


def ask(lab: Lab, boundary: str, **inputs: Any) -> Mapping[str, Any]:
    process = lab.open(lab.write(CALLED))
    adapter, contract = lab._files()
    answer = process.probe(
        {
            "boundary": boundary,
            "contract": "call",
            "contract_file": contract,
            "adapter": adapter,
            "requires": [],
            "given": sorted(inputs),
            "variants": {"": {"arguments": {}, "positional": [], "self": None, "catch": False, **inputs}},
        }
    )
    assert isinstance(answer, Measured), answer
    seen: Mapping[str, Any] = answer.observation[""]
    return seen


def test_call_observes_the_result_and_gradients(lab):
    x = tensor([1.0, 2.0], "float32", requires_grad=True)
    seen = ask(lab, "pkg.mod.Actor.step", self=Namespace({"scale": 3.0}), arguments={"x": x})
    assert seen["returned"]["y"].nested() == 9.0
    assert seen["gradients"] == {"x": tensor([3.0, 3.0], "float32")}
    assert seen["dtypes"] == {"y": "float32", "kept": "float32"}
    assert seen["mutated"] == ["self.seen"]
    assert seen["raised"] is None


def test_a_gradient_inside_an_argument_is_addressed_by_its_path(decide, broken_tree):
    losses = broken_tree / "demo_rl" / "losses.py"
    made = "\n\ndef made(values):\n    return {'values': values}\n"
    losses.write_text(losses.read_text() + made + "\n\ndef total(out):\n    return (out['values'] ** 2).sum()\n")
    values = {"tensor": [1.0, 2.0], "dtype": "float32", "requires_grad": True}
    document = {
        "recipe_version": 1, "bug_id": "DEMO-NESTED", "title": "x", "target": "demo", "contract": "call",
        "boundary": "demo_rl.losses.total", "upstream": {"status": "unreported"},
        "scenario": {"arguments": {"out": {"new": "demo_rl.losses.made", "arguments": {"values": values}}}},
        "expected_unpatched": {"gradients.out.values": [1.0, 2.0]},
        "expected_fixed": {"returned": 5.0, "gradients.out.values": [2.0, 4.0]},
    }  # fmt: skip
    assert decide(document, broken_tree).verdict.name == "fixed"


def test_call_observes_mutated_arguments(lab):
    seen = ask(lab, "pkg.mod.mutate", positional=[tensor([1.0], "float32"), [0]])
    assert seen["mutated"] == ["positional.0", "positional.1.1"]
    assert seen["arguments"]["positional.0"] == tensor([2.0], "float32")


def test_call_can_observe_an_exception(lab):
    seen = ask(lab, "pkg.mod.refuse", positional=[1], catch=True)
    assert seen["raised"] == {"type": "ValueError", "message": "no rollout_logprobs"}
    assert seen["returned"] is None


def test_call_observes_exactly_the_declared_keys(lab):
    seen = ask(lab, "pkg.mod.mutate", positional=[tensor([1.0], "float32"), []])
    assert set(seen) == set(bundled_catalog().contracts["call"].keys)


def test_a_function_can_be_called_with_self(lab):
    process = lab.open(lab.write(CALLED))
    assert returned(lab.probe(process, "pkg.mod.scaled", x=2, self=Namespace({"scale": 4}))) == 8


SUMMING = """
from sentinel.contracts.contract import Contract, Input, Observed

def _measure(call, inputs):
    return {"total": call(loss_mat=inputs["loss_mat"])["total"]}

def _oracle(inputs):
    assert str(inputs["loss_mat"].dtype) == "torch.float64"
    return {"total": inputs["loss_mat"].sum()}

SUMMING = Contract(
    name="summing", summary="a sum", source="a test",
    inputs=(Input("loss_mat", "tensor", "numbers"),), observes=(Observed("total", "their sum"),),
    measure=_measure, oracle=_oracle, law="the_oracle_agrees",
)
"""
ADAPTER = """
from sentinel.targets import Binding, PackageRoot, Target

TARGET = Target(
    name="summer", repository="https://example.invalid/summer", roots=(PackageRoot("pkg"),),
    bindings=(Binding("pkg.mod.total", "summing", outputs=("total",)),),
)
"""


@pytest.fixture
def summing(tmp_path: Path) -> Catalog:
    from sentinel.targets.loading import load_file

    for name, text in (("summing_contract.py", SUMMING), ("summer.py", ADAPTER)):
        (tmp_path / name).write_text(text)
    module = load_file(tmp_path / "summing_contract.py")
    return bundled_catalog().with_(adapters=[tmp_path / "summer.py"], contracts=[module.SUMMING])


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("return loss_mat.sum()", "fixed"),
        ("return loss_mat.sum() + 1", "reproduced"),
        ("return loss_mat.sum().double()", "fixed"),
        ("return loss_mat.to(dtype=__import__('torch').bfloat16).sum()", "fixed"),
    ],
)
def test_a_contract_of_another_package_is_used(body, verdict, summing, decide, lab):
    tree = lab.write({"mod.py": f"def total(loss_mat):\n    {body}\n"})
    recipe = {
        "recipe_version": 1,
        "bug_id": "SUMMER-1",
        "title": "a sum",
        "target": "summer",
        "contract": "summing",
        "boundary": "pkg.mod.total",
        "scenario": {"loss_mat": [1.0, 2.0, 3.5]},
    }
    decision = decide(recipe, tree, catalog=summing)
    assert (decision.verdict.name, decision.law) == (verdict, "the_oracle_agrees"), decision.verdict.reason
    assert decision.measurement.oracle == {"": {"total": tensor(6.5, "float64")}}


def test_a_law_that_needs_an_oracle_does_not_apply_without_one(decide, broken_tree):
    recipe = {key: value for key, value in MASKED_TOKENS.items() if not key.startswith("expected")}
    generic = {
        "contract": "call",
        "scenario": {
            "arguments": {
                "loss_mat": {"tensor": [[1.0]]},
                "loss_mask": {"tensor": [[1]]},
                "loss_agg_mode": "token-mean",
            }
        },
    }
    decision = decide({**recipe, **generic, "invariant": "the_oracle_agrees"}, broken_tree)
    assert decision.verdict.name == "inconclusive"
    assert "has no oracle" in decision.verdict.reason


def test_an_invariant_of_another_package_decides(decide, broken_tree):
    law = Law("losses_are_small", "a loss is below 10", _small)
    recipe = {key: value for key, value in MASKED_TOKENS.items() if not key.startswith("expected")}
    catalog = bundled_catalog().with_(laws=[law])
    decision = decide({**recipe, "invariant": "losses_are_small"}, broken_tree, catalog=catalog)
    assert decision.verdict.name == "reproduced"


def _small(case: Any) -> list[Any]:
    from sentinel.laws.law import Violation

    loss = case.observation[""]["loss"].nested()
    return [Violation("loss", loss, 10.0, f"the loss is {loss}")] if loss > 10 else []
