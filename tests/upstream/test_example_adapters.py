"""The adapters in docs/examples, made with ``sentinel adapt``, load, and break exactly the listed laws."""

from contextlib import closing
from pathlib import Path

import pytest
from shipped import MIRRORS

from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog, load_adapter
from sentinel.settings import Settings
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.tools.adapt.project import Project
from sentinel.tools.adapt.trying import catalog_with, runner_for, try_bindings

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))

#: Values on masked tokens are multiplied by 0, and infinity times 0 is NaN.
TIMES_THE_MASK = {"masked_values_have_no_influence"}
NAN_GRADIENT = {*TIMES_THE_MASK, "gradients_stay_where_they_belong"}
#: The standard deviation of one value is NaN.
ALONE = {"finite_in_finite_out", "the_oracle_agrees"}

#: Example -> the ref and the laws that its functions break.
BROKEN: dict[str, tuple[Ref, dict[str, set[str]]]] = {
    "swift": (
        Ref("pypi", "4.6.0"),
        {"swift.rl_core.advantage._sdar_agg_loss": {*TIMES_THE_MASK, "a_rejected_row_is_an_absent_row"}},
    ),
    "rlinf": (
        Ref("git", "a3816b596478dcd8a5c69a6ec1468c9519f77b5b"),
        {
            "rlinf.algorithms.advantages.compute_grpo_advantages": ALONE,
            "rlinf.algorithms.registry.calculate_adv_and_returns": ALONE,
            "rlinf.algorithms.utils.safe_normalize": ALONE,
            "rlinf.algorithms.advantages.compute_gae_advantages_and_returns": TIMES_THE_MASK,
            # It searches another response's mask for the last token, because `fliplr` reverses the batch, not the
            # tokens.
            "rlinf.algorithms.advantages.compute_reinpp_advantages": {
                "a_rejected_row_is_an_absent_row", "padding_is_invisible", "the_oracle_agrees",
            },
            "rlinf.algorithms.losses.compute_ppo_actor_loss": {*NAN_GRADIENT, *ALONE},
            "rlinf.algorithms.registry.policy_loss": {*NAN_GRADIENT, *ALONE},
            "rlinf.algorithms.losses.compute_decoupled_ppo_actor_loss": NAN_GRADIENT,
            "rlinf.algorithms.losses.compute_ppo_critic_loss": TIMES_THE_MASK,
            "rlinf.algorithms.losses.compute_grpo_actor_loss_fn": TIMES_THE_MASK,
            "rlinf.utils.utils.masked_mean": {*TIMES_THE_MASK, "finite_in_finite_out"},
            "rlinf.utils.utils.masked_sum": TIMES_THE_MASK,
            "rlinf.utils.utils.seq_mean_token_sum": {*TIMES_THE_MASK, "a_rejected_row_is_an_absent_row"},
            "rlinf.utils.utils.seq_mean_token_mean": {*NAN_GRADIENT, *ALONE, "a_rejected_row_is_an_absent_row"},
        },
    ),
}  # fmt: skip


#: A registered function without a binding: it takes ``**kwargs``, and gets the arguments of the bound member.
MEMBERS = ("compute_grpo_actor_loss_fn",)


def test_the_folder_has_examples():
    assert set(NAMES) == set(BROKEN)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_a_valid_adapter(name):
    target = load_adapter(FOLDER / f"{name}.py", bundled_catalog().contracts).target
    assert target.name == name
    assert name not in bundled_catalog().adapters
    assert len(target.bindings) >= 8
    for dialect in (dialect for binding in target.bindings for dialect in binding.dialects):
        assert dialect.reason
        assert "/blob/" in dialect.link


def is_here(name: str, ref: Ref) -> bool:
    """Whether the code can be opened without the network."""
    if ref.kind == "git":
        return MIRRORS.get(name) is not None
    return any((MIRRORS.home.wheels / f"ms-{name}").glob(f"*-{ref.name}-*.whl"))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_breaks_exactly_the_listed_laws(name):
    ref, broken = BROKEN[name]
    catalog = catalog_with(bundled_catalog(), FOLDER / f"{name}.py")
    target = catalog.targets[name]
    if not is_here(name, ref):
        source = target.pypi if ref.kind == "pypi" else target.repository
        pytest.skip(f"the code of {name} is not in SENTINEL_HOME; `sentinel adapt {source}` fetches it")
    try:
        project = Project(target, ref, open_checkout(target, ref, store=MIRRORS))
    except Unavailable as error:
        pytest.skip(error.reason)
    with closing(runner_for(catalog, Settings(), project)) as runner:
        results = try_bindings(runner, catalog, project, only=(*(each.boundary for each in target.bindings), *MEMBERS))
    assert {boundary: result.failed for boundary, result in results.items() if result.failed} == {}
    assert {boundary: set(result.broken) for boundary, result in results.items() if result.broken} == broken
