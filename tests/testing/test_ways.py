"""Advice of sentinel.testing: if the user passes the advised options, the laws hold."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the field's name for it

from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.boundary_search import cheap_scenarios
from sentinel.testing import check_function, checking
from sentinel.testing.examples import example_of
from sentinel.testing.forms import definitions
from sentinel.testing.session import open_session

EXAMPLES = 25


@pytest.fixture(autouse=True)
def _little_shrinking(monkeypatch):
    monkeypatch.setattr(checking, "_SHRINKING", 25)


def dpo(policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps, beta=0.1):
    chosen = policy_chosen_logps - reference_chosen_logps
    rejected = policy_rejected_logps - reference_rejected_logps
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def wrong_dpo(policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps, beta=0.1):
    return dpo(policy_rejected_logps, policy_chosen_logps, reference_rejected_logps, reference_chosen_logps, beta)


def mean(losses, keep):
    keep = keep.bool()
    return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)


def mean_over_all_rows(losses, keep):
    keep = keep.bool()
    return (torch.where(keep, losses, 0.0).sum(-1) / keep.sum(-1).clamp(min=1)).mean()


def advised(message, word):
    """Return the options that a message advises."""
    line = next(line for line in message.splitlines() if word in line)
    values = {}
    for name in ("names", "shapes", "dialects"):
        found = re.search(rf"{name}=(\{{.*?\}})", line)
        values |= {name: eval(found[1])} if found else {}
    return values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "contract", "options", "keys"),
    [
        (dpo, "preference_loss", {"loss_type": "sigmoid"}, {"names", "shapes"}),
        (mean, "loss_aggregation", {"mode": "token-mean"}, {"names"}),
        (mean_over_all_rows, "loss_aggregation", {"mode": "seq-mean-token-mean"}, {"names", "dialects"}),
    ],
    ids=["sums", "a name", "a name and a dialect"],
)
def test_advice_for_an_input_without_a_parameter_was_tried(f, contract, options, keys):
    with pytest.raises(TypeError) as error:
        check_function(f, contract, **options)
    advice = advised(str(error.value), "agrees with the reference in 50 scenarios")
    assert advice.keys() == keys

    report = check_function(f, contract, examples=EXAMPLES, **options, **advice)
    assert report.ok, str(report)
    assert report.laws["the_oracle_agrees"].judged == EXAMPLES


@pytest.mark.slow
def test_a_wrong_function_gets_no_advice_as_if_it_agreed():
    with pytest.raises(TypeError) as error:
        check_function(wrong_dpo, "preference_loss", loss_type="sigmoid")
    message = str(error.value)
    assert "agrees with the reference" not in message
    assert "differs from the reference with all of them" in message
    assert message.count("names={'chosen_mask': None, 'rejected_mask': None}") == 2  # with and without shapes
    assert "call=lambda f, x" in message


def test_a_function_of_an_object_gets_the_advice_to_use_an_adapter_function():
    with pytest.raises(TypeError, match="call=lambda f, x"):
        check_function(lambda batch: batch["losses"].mean(), "loss_aggregation", mode="token-mean")


@pytest.mark.slow
def test_inputs_without_their_mask_that_are_taken_as_tokens_lead_to_advice_about_shapes():
    no_masks = {"chosen_mask": None, "rejected_mask": None}
    report = check_function(dpo, "preference_loss", loss_type="sigmoid", names=no_masks, examples=EXAMPLES)
    text = " ".join(report.laws["the_oracle_agrees"].text.split())
    cause = re.search(r"the function takes one number per response; pass (shapes=\{.*?\})", text)
    options = {"names": no_masks, "shapes": eval(cause[1].removeprefix("shapes="))}
    assert check_function(dpo, "preference_loss", loss_type="sigmoid", examples=EXAMPLES, **options).ok


def smoothed_dpo(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta, label_smoothing):
    margin = beta * (chosen_logps - rejected_logps - ref_chosen_logps + ref_rejected_logps)
    return -((1 - label_smoothing) * F.logsigmoid(margin) + label_smoothing * F.logsigmoid(-margin)).mean()


@pytest.mark.slow
def test_label_smoothing_of_a_preference_loss_is_checked():
    def wrong(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta, label_smoothing):
        given = (chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta)
        return (1 - 2 * label_smoothing) * smoothed_dpo(*given, label_smoothing)

    sums = {
        "names": {"chosen_mask": None, "rejected_mask": None},
        "shapes": {
            f"{side}_{name}": "batch" for side in ("chosen", "rejected") for name in ("log_probs", "ref_log_probs")
        },
    }
    assert check_function(smoothed_dpo, "preference_loss", loss_type="sigmoid", examples=EXAMPLES, **sums).ok
    report = check_function(wrong, "preference_loss", loss_type="sigmoid", examples=EXAMPLES, **sums)
    assert not report.ok
    assert "label_smoothing=0.25" in str(report)


# -- dialects ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_law_that_the_chosen_definition_itself_breaks_is_no_alarm():
    """A mean over all rows changes if a row without tokens is removed."""
    report = check_function(
        mean_over_all_rows,
        "loss_aggregation",
        mode="seq-mean-token-mean",
        names={"response_mask": "keep"},
        dialects={"empty_rows": "counted"},
        examples=60,
    )
    assert report.ok, str(report)

    def leaks(losses, keep):
        empty = ~keep.bool().any(-1, keepdim=True)
        return mean_over_all_rows(losses, keep) + torch.where(empty, losses, 0.0).sum()

    report = check_function(
        leaks,
        "loss_aggregation",
        mode="seq-mean-token-mean",
        names={"response_mask": "keep"},
        dialects={"empty_rows": "counted"},
        examples=60,
    )
    assert "masked_values_have_no_influence" in report.broken


@pytest.mark.slow
def test_advice_says_what_stays_broken():
    def f(losses, mask):
        return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()

    text = check_function(f, "loss_aggregation", mode="seq-mean-token-mean", examples=60).laws["the_oracle_agrees"].text
    assert "pass dialects={'empty_rows': 'counted'}" in text
    assert "Laws that are still broken with these dialects: masked_values_have_no_influence." in text


# -- NaN and infinity on masked tokens ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_zero_divided_by_zero_does_not_hide_an_infinity_below_the_mask():
    """Both mistakes give NaN: 0 / 0 without tokens, and 0 times an infinity on a masked token."""

    def f(losses, mask):
        return (losses * mask).sum() / mask.sum()

    report = check_function(f, "loss_aggregation", mode="token-mean")
    assert set(report.broken) == {"masked_values_have_no_influence", "finite_in_finite_out"}

    def kept(losses, mask):
        return torch.where(mask.bool(), losses, 0.0).sum() / mask.sum()

    assert check_function(kept, "loss_aggregation", mode="token-mean").broken == ["finite_in_finite_out"]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_an_infinity_below_the_mask_of_either_response_is_reported(side):
    def f(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, chosen_mask, rejected_mask, beta):
        sums = {}
        for name, values, reference, mask in (
            ("chosen", chosen_logps, ref_chosen_logps, chosen_mask),
            ("rejected", rejected_logps, ref_rejected_logps, rejected_mask),
        ):
            ratios = values - reference
            masked = ratios * mask if name == side else torch.where(mask.bool(), ratios, 0.0)
            sums[name] = masked.sum(-1)
        return -F.logsigmoid(beta * (sums["chosen"] - sums["rejected"])).mean()

    report = check_function(f, "preference_loss", loss_type="sigmoid")
    assert report.broken == ["masked_values_have_no_influence"], str(report)


def test_every_loss_with_a_mask_has_the_laws_about_nan_and_infinity():
    losses = [
        contract
        for contract in bundled_catalog().contracts.values()
        if any(item.key == "loss" for item in contract.observes) and any(i.domain == "mask" for i in contract.inputs)
    ]
    assert "preference_loss" in {contract.name for contract in losses}
    for contract in losses:
        assert {"masked_values_have_no_influence", "finite_in_finite_out"} <= {*checking.Check(contract).laws}


# -- masks without holes -----------------------------------------------------------------------------------------------


def gae(rewards, values, mask, gamma, lam):
    """GAE of right-padded responses: after a hole in the mask, the response continues without the earlier tokens."""
    keep = mask.bool()
    rewards, values = torch.where(keep, rewards, 0.0), torch.where(keep, values, 0.0)
    advantages, running = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        following = values[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros_like(running)
        running = (rewards[:, t] + gamma * following - values[:, t] + gamma * lam * running) * keep[:, t]
        advantages[:, t] = running
    return advantages, advantages + values


def undiscounted_gae(rewards, values, mask, gamma, lam):
    return gae(rewards, values, mask, 1.0, lam)


def halved_gae(rewards, values, mask, gamma, lam):
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    return advantages / 2, returns


def whitened_gae(rewards, values, mask, gamma, lam):
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    valid = advantages[mask.bool()]
    deviation = valid.var() if len(valid) > 1 else torch.zeros_like(valid.sum())
    return torch.where(mask.bool(), (advantages - valid.mean()) * torch.rsqrt(deviation + 1e-8), 0.0), returns


@pytest.mark.slow
def test_a_function_for_padding_at_the_end_gets_the_option_that_says_so():
    report = check_function(gae, "generalised_advantage")
    text = report.laws["the_oracle_agrees"].text
    assert "It holds if masks have no holes and are padded only on the right" in text
    padding = re.search(r"pass response_mask='(\w+)'", text)[1]
    report = check_function(gae, "generalised_advantage", response_mask=padding)
    assert report.ok, str(report)
    assert all(each.judged for each in report.laws.values()), str(report)
    assert "response_mask other than full or right" in report.tried.partition("not tried: ")[2]

    report = check_function(undiscounted_gae, "generalised_advantage", mask="right")
    assert "the_oracle_agrees" in report.broken


@pytest.mark.slow
def test_padding_is_not_offered_if_it_explains_nothing():
    text = str(check_function(halved_gae, "generalised_advantage"))
    assert "breaks the_oracle_agrees" in text
    assert "It holds if masks" not in text


@pytest.mark.slow
def test_padding_is_offered_together_with_another_setting():
    text = check_function(whitened_gae, "generalised_advantage").laws["the_oracle_agrees"].text
    advice = eval(re.search(r"pass dialects=(\{.*?\})", text)[1])
    assert advice == {"response_mask": "right", "whiten": True}
    report = check_function(whitened_gae, "generalised_advantage", dialects=advice)
    assert "the_oracle_agrees" not in report.broken, str(report)


def test_lengths_in_place_of_a_mask_mean_padding_at_the_end():
    def total(losses, lengths):
        keep = torch.arange(losses.shape[1]) < lengths[:, None]
        return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)

    report = check_function(total, "loss_aggregation", mode="token-mean", examples=EXAMPLES)
    assert report.ok, str(report)
    assert report.laws["the_oracle_agrees"].judged == EXAMPLES


@pytest.mark.parametrize("value", ["middle", ("right", "middle"), 3])
def test_another_padding_is_an_error(value):
    with pytest.raises(TypeError, match=r"response_mask=.*: the value of a mask is the side of its padding"):
        checking.Check("policy_loss", algorithm="ppo", response_mask=value)


# -- what must be chosen -----------------------------------------------------------------------------------------------


def test_summed_log_probs_are_offered_before_anything_is_chosen():
    with pytest.raises(TypeError) as error:
        check_function(dpo, "preference_loss")
    message = str(error.value)
    assert "Pass loss_type=…; choose one of 'sigmoid', 'ipo'" in message
    advice = advised(message, "one number per response")
    assert check_function(dpo, "preference_loss", loss_type="sigmoid", examples=EXAMPLES, **advice).ok


def of_batch_deviation(rewards, mask, group_ids, eps=1e-6):
    """The bug: the standard deviation of the whole batch instead of the group's."""
    scores = (rewards * mask).sum(-1)
    centred = torch.stack([score - scores[group_ids == g].mean() for score, g in zip(scores, group_ids)])
    return (centred / (scores.std() + eps))[:, None] * mask


@pytest.mark.slow
@pytest.mark.parametrize("call", [None, lambda f, x: f(x.token_level_rewards, x.response_mask, x.group, x.epsilon)])
def test_an_algorithm_that_the_reference_needs_is_asked_for(call):
    with pytest.raises(TypeError, match=r"Pass estimator=…; choose one of 'grpo', 'rloo'"):
        check_function(of_batch_deviation, "group_advantage", call=call)
    report = check_function(of_batch_deviation, "group_advantage", estimator="grpo", examples=EXAMPLES)
    assert "the_oracle_agrees" in report.broken
    with pytest.raises(TypeError, match="Pass estimator='remax', the only value that fits these parameters"):
        check_function(lambda rewards, mask, uids, reward_baselines: rewards, "group_advantage")


@pytest.mark.slow
def test_every_definition_that_can_be_chosen_has_a_reference():
    """If an option that the reference needs is left out, nothing is compared with the reference."""
    silent = set()
    for contract in bundled_catalog().contracts.values():
        for item in contract.inputs if contract.laws and contract.oracle else ():
            for value in definitions(item):
                options = {item.name: value}
                check = checking.Check(contract, **options)
                needed = [each.name for each in check.contract.inputs if each.name in ("cov_share", "estimator")]
                options |= {name: 0.5 for name in needed if name == "cov_share" and value.endswith("cov")}
                signature, line = example_of(contract)
                scope = {"parametrize_with_laws": lambda f, name, **given: (f, given)}
                exec(signature, scope)
                f, given = eval(line.removeprefix("@"), scope)
                check = checking.Check(contract, **{**given, **options})
                _, subject = check._subject(f)
                scenarios = [drawn.inputs for drawn in cheap_scenarios(subject, 0, 0, 12)]
                session = open_session(check.bind(f), "cpu")
                answers = session.references(subject, {str(n): each for n, each in enumerate(scenarios)}).answers
                if not any(each.observation for each in answers.values()):
                    silent.add((contract.name, value))
    assert not silent

    with pytest.raises(TypeError, match="Pass cov_share=…: clip_cov and kl_cov"):
        check_function(lambda logps, old, adv, mask: logps.sum(), "policy_loss", algorithm="clip_cov")


def test_an_option_with_described_values_can_be_chosen():
    def mean_of_rows(values, mask):
        return torch.where(mask.bool(), values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)

    assert check_function(mean_of_rows, "masked_statistics", statistic="mean", axis="token", examples=EXAMPLES).ok


# -- the defaults of the function --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_advice_about_a_default_tries_the_default():
    def clipped(values, old_values, returns, mask, cliprange=0.7):
        keep = mask.bool()
        near = old_values + (values - old_values).clamp(-cliprange, cliprange)
        losses = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
        return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)

    text = str(check_function(clipped, "value_loss", examples=EXAMPLES))
    assert "these defaults of the function were not tried: cliprange=0.7" in text
    advice = re.search(r"To try the default: names=(\{.*?\}), cliprange_value=([\d.]+)", text)
    names, value = eval(advice[1]), float(advice[2])
    reports = []
    for number in (value, 0.2):
        with pytest.warns(UserWarning, match=r"left at the default: cliprange=0\.7"):
            reports.append(
                check_function(clipped, "value_loss", examples=EXAMPLES, names=names, cliprange_value=number)
            )
    # The function's default is not the 0.2 of the definition.
    assert [report.laws["the_oracle_agrees"].word for report in reports] == ["holds", "broken"]


def of_groups(token_level_rewards, response_mask, index, epsilon=1e-6):
    """GRPO as in verl: a single response keeps its score, and rewards on masked tokens count."""
    scores = token_level_rewards.sum(-1)
    result = []
    for score, label in zip(scores, index):
        group = scores[index == label]
        result.append((score - group.mean()) / (group.std() + epsilon) if len(group) > 1 else score / (1 + epsilon))
    return torch.stack(result)[:, None] * response_mask


@pytest.mark.slow
def test_settings_that_only_explain_all_scenarios_together_are_named_together():
    report = check_function(of_groups, "group_advantage", estimator="grpo", examples=60)
    text = report.laws["the_oracle_agrees"].text
    advice = eval(re.search(r"pass dialects=(\{.*?\})", text)[1])
    assert advice == {"group_of_one": "score", "masked_rewards": "counted", "rejected": "counted"}
    report = check_function(of_groups, "group_advantage", estimator="grpo", dialects=advice, examples=60)
    assert report.laws["the_oracle_agrees"].word == "holds"
