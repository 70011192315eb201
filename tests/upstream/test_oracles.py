"""The oracles beside real code, at base, head and main of the five seeds: they agree, or differ where and as is said
here; and each can fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from demo_kit import write_recipe
from shipped import PINS, Decisions, runner

from sentinel.deciding.outcomes import Decision, Measurement
from sentinel.deciding.runner import Job
from sentinel.laws.law import Case
from sentinel.laws.oracle import the_oracle_agrees
from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.targets.refs import Ref

VERL = "verl.trainer.ppo.core_algos"
ROLL = "roll.utils.functionals"
SLIME = "slime.utils.ppo_utils"
SKYRL = "skyrl.backends.skyrl_train.utils.ppo_utils"

#: The pull requests that the project comes from; the history of others reaches back to before these functions.
SEEDS = {"verl": 6452, "roll": 444, "areal": 1351, "slime": 1917, "skyrl": 1811}
REFS: dict[str, list[Ref]] = {}
for _pin in PINS:
    _seed = _pin.recipe.upstream.get("pull") == SEEDS.get(_pin.recipe.target, 0)
    if _seed and _pin.ref.kind == "git" and _pin.ref not in REFS.setdefault(_pin.recipe.target, []):
        REFS[_pin.recipe.target].append(_pin.ref)

#: "main in August 2026" of each target.
MAIN = {
    recipe.target: pin.ref
    for recipe in {p.recipe.bug_id: p.recipe for p in PINS}.values()
    for pin in recipe.pins
    if pin.note == "main in August 2026"
}

Ask = Callable[..., Decision]


@pytest.fixture(scope="module")
def decisions() -> Iterator[Decisions]:
    """A runner of its own: the shared one closes a revision's process when its shipped recipes are decided."""
    warm = runner()
    yield Decisions(warm)
    warm.close()


@pytest.fixture
def ask(decisions: Decisions, tmp_path: Path) -> Ask:
    """``ask(name, boundary, ref, scenario, variants)``: the decision of the law that the oracle agrees."""

    def decide(
        name: str, boundary: str, ref: Ref, scenario: Mapping[str, Any], variants: Mapping[str, Any]
    ) -> Decision:
        document = {
            "recipe_version": 1,
            "bug_id": name,
            "title": "the oracle beside real code",
            "target": boundary.partition(".")[0],
            "contract": "kl_estimate" if boundary in KL else "generalised_advantage",
            "boundary": boundary,
            "invariant": "the_oracle_agrees",
            "scenario": dict(scenario),
            "variants": dict(variants),
        }
        return decisions(Job(load_recipe(write_recipe(tmp_path, document), bundled_catalog()), ref))

    return decide


def everywhere(boundaries: Any) -> Any:
    return pytest.mark.parametrize(
        ("boundary", "ref"),
        [
            pytest.param(boundary, ref, id=f"{boundary}-{ref.short}")
            for boundary in boundaries
            for ref in REFS[boundary.partition(".")[0]]
        ],
    )


def _measured(decision: Decision) -> Measurement:
    assert decision.measurement is not None, decision.verdict.reason
    return decision.measurement


def _broken(decision: Decision) -> set[str]:
    """The addresses at which the law does not hold."""
    measured = _measured(decision)
    return {item.key for item in the_oracle_agrees(Case({}, measured.observation, measured.oracle))}


def test_the_boundaries_tried_here_are_bound() -> None:
    """The others have a file of their own each, ``test_bindings_<target>.py``."""
    bound = {
        binding.boundary
        for target in bundled_catalog().targets.values()
        for binding in target.bindings
        if binding.contract in ("kl_estimate", "generalised_advantage")
    }
    assert bound >= {*KL, *GAE}


# -- KL estimates ------------------------------------------------------------------------------------------------------


def _variants(*names: str, **clamp: float) -> dict[str, dict[str, Any]]:
    return {name: {"kl_estimator": name, "clamp": clamp.get(name)} for name in names}


#: boundary -> its estimators, with the clamp that its adapter declares for each and gives the line of.
KL = {
    f"{VERL}.kl_penalty": _variants("k1", "abs", "k2", "k3", "low_var_kl", k3=10, low_var_kl=10),
    f"{ROLL}.compute_approx_kl": _variants("k1", "abs", "k2", "k3", k3=10),
    f"{SLIME}.compute_approx_kl": _variants("k1", "k2", "k3", "low_var_kl", low_var_kl=10),
    f"{SKYRL}.compute_approx_kl": _variants("k1", "abs", "k2", "k3", k3=10),
    "areal.utils.data.KLEstimator._compute_approx_kl": {
        **_variants("k1", "k2", "k3", k1=10, k2=10, k3=10),
        **{f"{name}_as_it_is": {"kl_estimator": name, "clamp": None} for name in ("k1", "k2", "k3")},
    },
}
#: Where a mask can be given.
WITH_MASK = (f"{ROLL}.compute_approx_kl", f"{SKYRL}.compute_approx_kl")

#: Ordinary tokens, and one on either side that every estimator puts beyond a clamp at 10.
TOKENS = {
    "log_probs": [[-1.0, -0.5, -3.0, -0.125], [-2.0, -14.0, -0.1, -0.7]],
    "ref_log_probs": [[-1.25, -0.75, -2.0, -0.125], [-1.5, -1.0, -17.5, -0.9]],
}


@everywhere(KL)
def test_kl_estimates_agree(boundary: str, ref: Ref, ask: Ask) -> None:
    decision = ask(f"KL-{boundary}", boundary, ref, TOKENS, KL[boundary])
    assert (decision.verdict.name, _broken(decision)) == ("fixed", set()), decision.verdict.reason


@everywhere(WITH_MASK)
def test_masked_kl_estimates_agree(boundary: str, ref: Ref, ask: Ask) -> None:
    scenario = {**TOKENS, "response_mask": [[1, 1, 0, 1], [1, 0, 1, 0]]}
    decision = ask(f"KL-MASKED-{boundary}", boundary, ref, scenario, KL[boundary])
    assert (decision.verdict.name, _broken(decision)) == ("fixed", set()), decision.verdict.reason


@everywhere(KL)
def test_another_estimators_reference_does_not_agree(boundary: str, ref: Ref, ask: Ask) -> None:
    """The broken twin: whatever the code computed for one estimator, the oracle of another says otherwise."""
    measured = _measured(ask(f"KL-{boundary}", boundary, ref, TOKENS, KL[boundary]))
    assert measured.oracle is not None
    for name, reference in measured.oracle.items():
        for other, observed in measured.observation.items():
            same = KL[boundary][name]["clamp"] == KL[boundary][other]["clamp"] and {name, other} <= {"k3", "low_var_kl"}
            violations = the_oracle_agrees(Case({}, {name: observed}, {name: reference}))
            assert bool(violations) == (name != other and not same), (name, other)


@pytest.mark.parametrize("boundary", [name for name in KL if not name.startswith("areal")])
def test_a_clamp_that_is_not_the_frameworks_does_not_agree(boundary: str, ask: Ask) -> None:
    variants = {name: {**item, "clamp": None if item["clamp"] else 10} for name, item in KL[boundary].items()}
    decision = ask(f"KL-CLAMP-{boundary}", boundary, MAIN[boundary.partition(".")[0]], TOKENS, variants)
    assert decision.verdict.name == "reproduced"
    assert {key.partition(".")[0] for key in _broken(decision)} == set(variants)


#: A token whose ratio overflows float32, where k3 is cut to 10: the gradient is 0 by definition. It is 0 where the
#: log-ratio is cut first, and NaN where only the result is: 0 (from the clamp) times infinity (from exp).
OVERFLOW = {"log_probs": [[-100.0, -1.0]], "ref_log_probs": [[-0.5, -1.5]], "clamp": 10}
OVERFLOWS = {
    # https://github.com/verl-project/verl/blob/1dda039b9c6311889a9c9a26040677e1254814f9/verl/trainer/ppo/core_algos.py#L2241
    f"{VERL}.kl_penalty": ("k3", set()),
    # https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/roll/utils/functionals.py#L200
    f"{ROLL}.compute_approx_kl": ("k3", {"per_token_gradient"}),
    # https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/slime/utils/ppo_utils.py#L49
    f"{SLIME}.compute_approx_kl": ("low_var_kl", {"per_token_gradient"}),
    # https://github.com/NovaSky-AI/SkyRL/blob/a9564572eb8e91076be43c1bd5e4615e3de17265/skyrl/backends/skyrl_train/utils/ppo_utils.py#L115
    f"{SKYRL}.compute_approx_kl": ("k3", set()),
    # https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal/utils/data.py#L1697
    "areal.utils.data.KLEstimator._compute_approx_kl": ("k3", {"per_token_gradient"}),
}


@pytest.mark.parametrize("boundary", OVERFLOWS)
def test_a_ratio_that_overflows_before_the_clamp_has_no_finite_gradient(boundary: str, ask: Ask) -> None:
    estimator, broken = OVERFLOWS[boundary]
    variants = {"far": {"kl_estimator": estimator}}
    decision = ask(f"KL-FAR-{boundary}", boundary, MAIN[boundary.partition(".")[0]], OVERFLOW, variants)
    assert _broken(decision) == {f"far.{key}" for key in broken}
    gradient = _measured(decision).observation["far"]["per_token_gradient"].nested()
    assert (gradient[0][0] != gradient[0][0]) == bool(broken)  # NaN


# -- generalised advantages --------------------------------------------------------------------------------------------

#: boundary -> whether it whitens.
GAE = {
    f"{VERL}.compute_gae_advantage_return": True,
    f"{ROLL}.compute_gae_advantage_return": False,
    f"{SLIME}.vanilla_gae": False,
    f"{SLIME}.chunked_gae": False,
    f"{SKYRL}.compute_gae_advantage_return": True,
}

#: Two responses, the second with two tokens of padding, which is 0.
STEPS = {
    "token_level_rewards": [[0.0, 0.25, 0.0, 1.0], [0.0, -0.5, 0.0, 0.0]],
    "values": [[0.5, 0.25, 0.75, 0.5], [-0.25, 0.125, 0.0, 0.0]],
    "response_mask": [[1, 1, 1, 1], [1, 1, 0, 0]],
}
KNOBS = {
    "usual": {"gamma": 0.9, "lam": 0.8},
    "undiscounted": {"gamma": 1.0, "lam": 1.0},
    "one_step": {"gamma": 0.9, "lam": 0.0},
}
#: Values behind the mask, and a gap in it: the tokens of a tool between two turns.
GAPS = {
    **STEPS,
    "values": [[0.5, 4.0, 0.75, 0.5], [-0.25, 0.125, 4.0, 4.0]],
    "response_mask": [[1, 0, 1, 1], [1, 1, 0, 0]],
}
#: Whose function takes every token for a step; the adapter says so and gives the line. What stands behind the mask, and
#: whether the function may be asked about a gap, is its callers' business.
EVERY_TOKEN_IS_A_STEP = [name for name in GAE if not name.startswith("verl")]


def _long() -> dict[str, Any]:
    """Longer than two chunks of 128 tokens."""
    generator = random.Random(0)

    def row() -> list[float]:
        return [generator.randint(-8, 8) / 8 for _ in range(300)]

    return {"token_level_rewards": [row()], "values": [row()], "response_mask": [[1] * 300]}


@everywhere(GAE)
def test_advantages_agree(boundary: str, ref: Ref, ask: Ask) -> None:
    decision = ask(f"GAE-{boundary}", boundary, ref, {**STEPS, "whiten": GAE[boundary]}, KNOBS)
    assert (decision.verdict.name, _broken(decision)) == ("fixed", set()), decision.verdict.reason


@everywhere([f"{SLIME}.vanilla_gae", f"{SLIME}.chunked_gae"])
def test_advantages_across_chunks_agree(boundary: str, ref: Ref, ask: Ask) -> None:
    variants = {name: {**_long(), **knobs} for name, knobs in KNOBS.items()}
    decision = ask(f"GAE-LONG-{boundary}", boundary, ref, {}, variants)
    assert (decision.verdict.name, _broken(decision)) == ("fixed", set()), decision.verdict.reason


@everywhere(GAE)
def test_whitening_that_is_not_the_frameworks_does_not_agree(boundary: str, ref: Ref, ask: Ask) -> None:
    decision = ask(f"GAE-WHITEN-{boundary}", boundary, ref, {**STEPS, "whiten": not GAE[boundary]}, KNOBS)
    assert decision.verdict.name == "reproduced"
    assert _broken(decision) == {f"{name}.advantages" for name in KNOBS}


@everywhere(GAE)
def test_another_lambdas_reference_does_not_agree(boundary: str, ref: Ref, ask: Ask) -> None:
    """The broken twin: what the code computed for one discount and lambda is not the oracle's answer for another."""
    measured = _measured(ask(f"GAE-{boundary}", boundary, ref, {**STEPS, "whiten": GAE[boundary]}, KNOBS))
    assert measured.oracle is not None
    for name, reference in measured.oracle.items():
        for other in measured.oracle.keys() - {name}:
            case = Case({}, {name: measured.observation[other]}, {name: reference})
            assert {item.key for item in the_oracle_agrees(case)} == {f"{name}.advantages", f"{name}.returns"}


@everywhere(GAE)
def test_what_is_no_step_counts_where_the_function_says_so(boundary: str, ref: Ref, ask: Ask) -> None:
    decision = ask(f"GAE-GAPS-{boundary}", boundary, ref, {**GAPS, "whiten": GAE[boundary]}, KNOBS)
    if boundary in EVERY_TOKEN_IS_A_STEP:
        assert decision.verdict.name == "reproduced"
        assert _broken(decision) >= {"usual.advantages", "usual.returns"}
    else:
        assert (decision.verdict.name, _broken(decision)) == ("fixed", set()), decision.verdict.reason
