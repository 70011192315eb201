import pytest

from sentinel.contracts.names import match_names, suggest_names
from sentinel.recipes.catalog import bundled_catalog

CONTRACTS = bundled_catalog().contracts


@pytest.mark.parametrize(
    ("contract", "parameters", "inputs"),
    [
        (
            "policy_loss",
            "logps old_logps adv mask eps",
            "log_probs old_log_probs advantages response_mask eps_clip_low+eps_clip_high",
        ),
        (
            "policy_loss",
            "log_prob old_log_prob advantages response_mask cliprange_low cliprange_high clip_ratio_c loss_agg_mode",
            "log_probs old_log_probs advantages response_mask eps_clip_low eps_clip_high dual_clip loss_agg_mode",
        ),
        (
            "value_loss",
            "values old_values returns mask cliprange",
            "vpreds values returns response_mask cliprange_value",
        ),
        ("value_loss", "vpreds values returns mask cliprange", "vpreds values returns response_mask cliprange_value"),
        (
            "generalised_advantage",
            "rewards values mask gamma lambd",
            "token_level_rewards values response_mask gamma lam",
        ),
        (
            "preference_loss",
            "policyChosenLogps policyRejectedLogps reference_chosen_logps reference_rejected_logps beta",
            "chosen_log_probs rejected_log_probs chosen_ref_log_probs rejected_ref_log_probs beta",
        ),
        ("kl_estimate", "logprobs ref_logprobs kl_penalty", "log_probs ref_log_probs kl_estimator"),
        (
            "importance_weight",
            "train_logps rollout_logps mask cap",
            "old_log_probs rollout_log_probs response_mask threshold_high",
        ),
        ("token_log_probs", "logits labels", "logits token_ids"),
        ("policy_loss", "cliprange_low cliprange_high", "eps_clip_low eps_clip_high"),
    ],
)
def test_conventional_names_need_no_mapping(contract, parameters, inputs):
    names = match_names(CONTRACTS[contract], parameters.split(), parameters.split()).names

    expected = dict(zip(parameters.split(), inputs.split(), strict=True))
    assert names == {one: name for name, of in expected.items() for one in of.split("+")}


def test_separate_bound_names_take_precedence_over_a_common_one():
    names = match_names(CONTRACTS["policy_loss"], ["cliprange", "cliprange_low", "cliprange_high"]).names

    assert names == {"eps_clip_low": "cliprange_low", "eps_clip_high": "cliprange_high"}


def test_unmatched_parameters_are_listed_and_never_guessed():
    found = match_names(CONTRACTS["policy_loss"], ["a", "b", "old_logps", "mask"], ["a", "old_logps"])

    assert found.missing == ("log_probs", "advantages", "algorithm")
    assert found.unknown == ("a",)  # b has a default


def test_two_parameters_that_fit_equally_well_are_ambiguous():
    found = match_names(CONTRACTS["policy_loss"], ["logps", "log_probs", "old_logps", "adv", "mask"])

    assert set(found.ambiguous["log_probs"]) == {"logps", "log_probs"}


def test_given_names_come_first():
    given = {"log_probs": "old_logps", "response_mask": None}
    found = match_names(CONTRACTS["policy_loss"], ["logps", "old_logps", "adv", "mask"], given=given)

    assert found.names["log_probs"] == "old_logps"
    assert "response_mask" not in found.names
    assert "response_mask" not in found.missing


def test_a_similar_parameter_is_suggested():
    suggested = suggest_names(CONTRACTS["policy_loss"], ["lgprobs", "advantag", "zzz"], ["log_probs", "advantages"])

    assert suggested == {"log_probs": "lgprobs", "advantages": "advantag"}


@pytest.mark.parametrize("name", ["dones", "terminated", "is_terminal"])
def test_the_end_of_an_episode_is_not_suggested_as_a_mask(name):
    assert suggest_names(CONTRACTS["policy_loss"], [name], ["response_mask"], likeness=0.0) == {}
