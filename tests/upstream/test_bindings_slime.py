"""slime's bindings beside the oracles: they agree on scenarios made by hand, and differ where it is said here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from binding_kit import Bound, at, bound, opened

from sentinel.values.literals import tensor

MAIN = "624b824a898ab0ec1fcb4d373004c7f3852bf515"
FIX = "ff40142cd373176ac51e3f91862acf4517e457ec"
BASE = "2091f7af3f767cc63e15783ceda3f5809829be34"
FSDP = "2a3969205ce37785b0a9f428a3c3ab1ea6422169"
REFERENCE = "4e08faaa319fe01f5cec174203324c6e0bb23660"
GREEDY = "8751e4d5c526610aca51aad4827c6345844c218a"

OPSM = "slime.utils.ppo_utils.compute_opsm_mask"
SUMS = "f37bbfeaebecd4f8bb3e9a08dac880cd93835406"
PROMPT_MEANS = "6f708931c34b78db6dd5c18334f4ec34a869447f"
GONE = "slime.backends.fsdp_utils."
LOSS = "slime.backends.megatron_utils.loss"
REWARDS = "slime.ray.rollout.RolloutManager._post_process_rewards"


@pytest.fixture(scope="module")
def main() -> Iterator[Bound]:
    yield from opened("slime", MAIN)


@pytest.fixture(scope="module", params=at(base=BASE, fix=FIX, main=MAIN))
def anywhere(request: pytest.FixtureRequest) -> Iterator[Bound]:
    yield from opened("slime", request.param)


@pytest.fixture(scope="module")
def fsdp() -> Iterator[Bound]:
    """Where the FSDP backend still is."""
    yield from opened("slime", FSDP)


@pytest.fixture(scope="module")
def reference() -> Iterator[Bound]:
    yield from opened("slime", REFERENCE)


@pytest.fixture(scope="module")
def prompt_means() -> Iterator[Bound]:
    """The head of #2090, which was not merged."""
    yield from opened("slime", PROMPT_MEANS)


@pytest.fixture(scope="module")
def greedy() -> Iterator[Bound]:
    yield from opened("slime", GREEDY)


#: What main no longer has -> a commit that is in the corpus and has it.
OLD = {
    ("slime.utils.ppo_utils.get_advantages_and_returns", "generalised_advantage"): BASE,
    ("slime.utils.ppo_utils.vanilla_tis_function", "importance_weight"): SUMS,
    (f"{GONE}actor.sum_of_sample_mean", "loss_aggregation"): SUMS,
    (f"{GONE}actor.sum_of_token", "loss_aggregation"): SUMS,
}

#: Every binding that main has the boundary of.
THERE = [
    parameters
    for parameters in bound("slime")
    if not parameters.values[0].startswith(GONE)
    and parameters.values not in OLD
    and parameters.values[1] != "prompt_loss"
]
PADDED = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]


#: What main has wrong; the recipes say why.
KNOWN = {
    f"{LOSS}.get_responses": {"temperature=0.0"},
    f"{LOSS}.get_log_probs_and_entropy": {"temperature=0.0"},
    "slime.rollout.rm_hub.async_rm": {"rule=boxed_math"},
    "slime.rollout.rm_hub.math_utils.grade_answer_verl": {"wording=bare"},
}


@pytest.mark.parametrize(("boundary", "contract"), THERE)
def test_oracle_and_boundary_agree(main: Bound, boundary: str, contract: str) -> None:
    wrong = main.disagreements(main.subject(boundary, contract))
    assert {name: said for name, said in wrong.items() if name not in KNOWN.get(boundary, ())} == {}
    assert set(wrong) >= KNOWN.get(boundary, set())


@pytest.mark.parametrize(("boundary", "contract"), THERE)
def test_oracle_and_boundary_agree_behind_padding(main: Bound, boundary: str, contract: str) -> None:
    subject = main.subject(boundary, contract)
    declared = subject.contract.input(subject.contract.mask)
    if declared is None or "right" not in declared.choices:
        pytest.skip("it takes no mask with padding")
    wrong = main.disagreements(subject, PADDED)
    assert {name: said for name, said in wrong.items() if name not in KNOWN.get(boundary, ())} == {}


@pytest.mark.parametrize(("boundary", "contract"), OLD)
def test_what_went_agrees_where_it_was(boundary: str, contract: str) -> None:
    for old in opened("slime", OLD[boundary, contract]):
        subject = old.subject(boundary, contract)
        masks = [None] if contract == "importance_weight" else [None, PADDED]
        assert [old.disagreements(subject, mask) for mask in masks] == [{}] * len(masks)


@pytest.mark.parametrize("mask", [None, PADDED], ids=["full", "padded"])
def test_context_parallel_ranks_answer_as_one(fsdp: Bound, mask: list[list[int]] | None) -> None:
    subject = fsdp.subject(f"{GONE}actor.get_logprob_and_entropy_with_cp", "token_log_probs")
    assert fsdp.disagreements(subject, mask) == {}


@pytest.mark.parametrize("mask", [None, PADDED], ids=["full", "padded"])
def test_every_prompt_weighs_the_same(prompt_means: Bound, mask: list[list[int]] | None) -> None:
    subject = prompt_means.subject(f"{LOSS}.get_pg_loss_reducer", "prompt_loss")
    assert prompt_means.disagreements(subject, mask) == {}


@pytest.mark.parametrize("mask", [None, PADDED], ids=["full", "padded"])
def test_the_reference_is_asked_for_its_log_probs(reference: Bound, mask: list[list[int]] | None) -> None:
    subject = reference.subject(f"{GONE}actor.FSDPTrainRayActor.compute_log_prob", "token_log_probs")
    assert reference.disagreements(subject, mask) == {}


@pytest.mark.parametrize("function", ["get_responses", "get_log_probs_and_entropy"])
def test_a_temperature_of_0_may_stand_for_1(greedy: Bound, function: str) -> None:
    assert greedy.disagreements(greedy.subject(f"{LOSS}.{function}", "token_log_probs")) == {}


def test_the_opsm_binding_takes_both_signatures(anywhere: Bound) -> None:
    assert anywhere.disagreements(anywhere.subject(OPSM, "sequence_rejection")) == {}


def test_groups_of_unequal_size_are_normalised_as_one(main: Bound) -> None:
    """Where a group has fewer samples than were asked for, the whole batch is taken for one group."""
    subject = main.subject(REWARDS, "reward_normalisation")
    scenario = {
        **main.scenarios(subject)["plain"],
        "rewards": tensor([0.0, 1.0, 5.0], "float32"),
        "group": ["p", "p", "q"],
        "std_level": None,
    }
    (violation,) = main.ask(subject, "the_oracle_agrees", {"": scenario}).violations
    assert violation.observed.nested() == [-2.0, -1.0, 3.0]
    assert violation.demanded.nested() == [-0.5, 0.5, 0.0]


def test_a_ratio_that_overflows_has_no_finite_gradient(main: Bound) -> None:
    """PPO clips what is above the range, so its gradient is 0; that of exp is infinite, and 0 times it is NaN."""
    subject = main.subject("slime.utils.ppo_utils.compute_policy_loss", "policy_loss")
    scenario = {
        **main.scenarios(subject)["plain"],
        "log_probs": tensor([[-1.0]], "float32"),
        "old_log_probs": tensor([[-91.0]], "float32"),
        "advantages": tensor([[1.0]], "float32"),
        "response_mask": tensor([[1.0]], "float32"),
    }
    (violation,) = main.ask(subject, "the_oracle_agrees", {"": scenario}).violations
    assert (violation.key, violation.symptom) == ("per_token_gradient", "non-finite")
