"""A small catalog for tests of recipes: one framework, a contract of each kind, two laws."""

from pathlib import Path
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed
from sentinel.laws.law import Law
from sentinel.recipes.catalog import Adapter, Catalog
from sentinel.targets import Binding, PackageRoot, Target
from sentinel.values.literals import tensor


def _never(*args: Any) -> Any:
    raise AssertionError("a recipe is loaded without calling anything")


def _zeros(scenario: Any) -> Any:
    rows, columns = scenario["response_mask"].shape
    return tensor([[0.0] * columns for _ in range(rows)], "float32")


AGGREGATION = Contract(
    name="aggregation",
    summary="a scalar from per-token losses",
    source="a test",
    inputs=(
        Input("loss_mat", "tensor", "per-token losses", shape=("batch", "tokens"), differentiable=True),
        Input("response_mask", "tensor", "1 where a token counts", dtype="int64", shape=("batch", "tokens")),
        Input("mode", "string", "the mode", default="token-mean"),
        Input("old_log_probs", "tensor", "log-probs", default=_zeros),
        Input("scale", "number", "a divisor", default=None),
        Input("theta", "number", "the parameter", default=1.0),
    ),
    observes=(Observed("loss", "the loss"), Observed("gradient", "its gradient", ("batch", "tokens"))),
    measure=_never,
    law="masked_values_have_no_influence",
    aliases={"loss_mask": "response_mask", "token_mean_loss": "loss"},
)

STEP = Contract(
    name="step",
    summary="an advantage step without a law",
    source="a test",
    inputs=(
        Input("rewards", "tensor", "reward of each sequence"),
        Input("norm", "mapping", "normalisation", default=None),
    ),
    observes=(Observed("advantages", "the advantages"),),
    measure=_never,
)

CALL = Contract(
    name="call",
    summary="anything",
    source="a test",
    inputs=(Input("arguments", "any", "arguments", default={}),),
    observes=(Observed("returned", "what it returned"),),
    measure=_never,
    open_keys=True,
)

TOY = Target(
    name="toy",
    repository="https://example.org/toy",
    roots=(PackageRoot("toy"), PackageRoot("plug/toy_plugins", "plug")),
    pypi="toy",
    bindings=(
        Binding("toy.losses.agg_loss", "aggregation", formerly=("toy.old.agg_loss",)),
        Binding("toy.actor.Actor._advantages", "step"),
        Binding("toy.both.function", "aggregation"),
        Binding("toy.both.function", "step"),
    ),
)

OTHER = Target("other", "https://example.org/other", (PackageRoot("other"),), bindings=(Binding("other.f", "step"),))


def catalog(*folders: Path) -> Catalog:
    file = Path(__file__)
    return Catalog(
        adapters={target.name: Adapter(target, file, "sha256:0") for target in (TOY, OTHER)},
        contracts={contract.name: contract for contract in (AGGREGATION, STEP, CALL)},
        laws={
            name: Law(name, name.replace("_", " "), lambda case: [])
            for name in ("masked_values_have_no_influence", "order_does_not_matter")
        },
        recipe_folders=folders,
    )
