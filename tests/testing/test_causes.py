"""Reports about a user's function: wrong formulas are named and come first, edge cases come last, matches are shown."""

import inspect
from dataclasses import dataclass

import pytest
import torch

from sentinel.recipes.catalog import bundled_catalog
from sentinel.testing import check_function
from sentinel.testing.alternatives import other_settings
from sentinel.testing.checking import Check

PPO = {"algorithm": "ppo", "mode": "token-mean"}


def of(inner, bound="1 - eps, 1 + high"):
    """Return the source of a PPO loss without guards against NaN, as people write it."""
    names = {"torch": torch}
    exec(
        "def ppo(lp_new, lp_behav, A, resp_mask, eps=0.2, high=0.28):\n"
        "    ratio = torch.exp(lp_new - lp_behav)\n"
        f"    losses = -torch.{inner}(ratio * A, ratio.clamp({bound}) * A)\n"
        "    return (losses * resp_mask).sum() / resp_mask.sum().clamp(min=1)\n",
        names,
    )
    return names["ppo"]


NAMES = {"eps_clip_low": "eps", "eps_clip_high": "high"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "cause"),
    [
        (of("max"), "minimum and maximum swapped"),
        (of("min", "1 - high, 1 + eps"), "eps and high swapped"),
        (of("min", "1 - eps, 1 + eps"), "eps used as high"),
    ],
    ids=["max", "bounds", "one bound"],
)
def test_a_common_slip_is_named_first_and_edge_cases_last(f, cause):
    report = check_function(f, "policy_loss", examples=60, names=NAMES, **PPO)
    text = str(report)

    assert f"Probable cause: {cause}." in text
    first, edges = text.split("\nHardening: NaN or infinity")
    assert "breaks the_oracle_agrees:" in first
    assert "breaks masked_values" not in first
    assert "  finite_in_finite_out: " in edges
    assert "observed nan, expected" in edges or "observed -inf, expected" in edges
    assert "ppo(" not in edges
    laws = list(report.laws)
    assert (laws[0], laws[-1]) == ("the_oracle_agrees", "finite_in_finite_out")


def critic(values, old_values, returns, mask, cliprange=0.2):
    clipped = old_values + (values - old_values).clamp(-cliprange, cliprange)
    losses = torch.minimum((values - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * (losses * mask).sum() / mask.sum().clamp(min=1)


def group_norm(rewards, group_size, eps=1e-6):
    groups = rewards.view(group_size, -1)
    return ((groups - groups.mean(0)) / (groups.std(0) + eps)).view(-1)


def cispo(lp, old_lp, adv, mask, low=0.2, high=0.2):
    ratio = torch.exp(lp - old_lp).clamp(1 - low, 1 + high)
    return -(ratio * adv * lp * mask).sum() / mask.sum().clamp(min=1)


def grpo(lp_new, lp_behav, lp_ref, A, resp_mask, eps=0.2, beta=0.04):  # noqa: N803
    keep = resp_mask.bool()
    ratio = torch.exp(torch.where(keep, lp_new - lp_behav, 0.0))
    surrogate = torch.min(ratio * A[:, None], ratio.clamp(1 - eps, 1 + eps) * A[:, None])
    delta = torch.where(keep, lp_ref - lp_new, 0.0)
    return torch.where(keep, beta * (delta.exp() - delta - 1) - surrogate, 0.0).sum() / keep.sum().clamp(min=1)


def rewarded_kl(lp_new, lp_behav, lp_ref, A, resp_mask, eps=0.2, beta=0.04):  # noqa: N803
    return grpo(lp_new, lp_behav, lp_ref, A, resp_mask, eps, -beta)


def undiscounted(rewards, mask, gamma):
    return torch.where(mask.bool(), rewards.flip(-1).cumsum(-1).flip(-1), 0.0)


def scaled_log_probs(logits, labels, temperature=1.0):
    return torch.log_softmax(logits * temperature, -1).gather(-1, labels[..., None]).squeeze(-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "contract", "options", "cause"),
    [
        (undiscounted, "discounted_return", {}, "gamma ignored (as if it were 1)"),
        (scaled_log_probs, "token_log_probs", {}, "the inverse of temperature"),
        (critic, "value_loss", {}, "minimum and maximum swapped, factor=0.5"),
        (group_norm, "reward_normalisation", {}, "groups along the wrong axis"),
        (cispo, "policy_loss", {**PPO, "algorithm": "cispo"}, "a gradient through a value that must be detached"),
        (rewarded_kl, "policy_loss", {**PPO, "shapes": {"advantages": "batch"}}, "the opposite sign of beta"),
    ],
)
def test_slips_are_named_together_with_another_setting(f, contract, options, cause):
    assert cause in " ".join(str(check_function(f, contract, examples=60, **options)).split())


@pytest.mark.slow
def test_a_setting_that_explains_nothing_is_refuted_by_a_few_calls():
    """A search of all laws for each setting, such as the side of the padding, would take about 300 calls each."""
    calls = 0

    def f(logps, old_logps, adv, mask, eps=0.2):
        nonlocal calls
        calls += 1
        ratio = (logps - old_logps).exp()
        return -((ratio * adv).minimum(ratio.clamp(1 - eps, 1 + eps) * adv) * mask).mean()

    text = str(check_function(f, "policy_loss", examples=60, **PPO))
    assert "Probable cause: padding counted in the denominator." in text
    assert "It holds if masks have no holes" not in text
    assert calls < 800


@pytest.mark.slow
def test_per_response_advantages_and_a_kl_penalty_need_only_options():
    report = check_function(grpo, "policy_loss", examples=40, shapes={"advantages": "batch"}, **PPO)
    assert report.broken == ["finite_in_finite_out"], str(report)
    assert "lp_behav = old_log_probs, lp_ref = ref_log_probs, A = advantages" in str(report)
    assert "beta = kl_coef" in str(report)
    assert "Never read: kl_estimator; the reference uses 'k3'" in str(report)

    without = check_function(grpo, "policy_loss", examples=40, **PPO)
    assert "pass shapes={'advantages': 'batch'}" in " ".join(str(without).split())
    other = check_function(grpo, "policy_loss", examples=40, shapes={"advantages": "batch"}, kl_estimator="k1", **PPO)
    assert "the_oracle_agrees" in other.broken


def with_terms(logps, old_logps, adv, mask, entropy, kl, eps=0.2, beta=0.04, ent_coef=0.01):
    keep = mask.bool()
    ratio = torch.exp(torch.where(keep, logps - old_logps, 0.0).clamp(-20, 20))
    adv = torch.where(keep, adv, 0.0)
    losses = -torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv) + beta * kl - ent_coef * entropy
    return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)


TERMS = {"examples": 60, "dialects": {"log_ratio_clamp": 20.0}, **PPO}


@pytest.mark.slow
def test_a_loss_may_have_further_terms():
    report = check_function(with_terms, "policy_loss", **TERMS)
    assert report.ok, str(report)
    assert report.laws["the_oracle_agrees"].judged == 60
    assert report.laws["every_knob_counts"].judged

    def fixed(logps, old_logps, adv, mask, entropies):
        return with_terms(logps, old_logps, adv, mask, entropies, 0.0, ent_coef=0.003)

    text = check_function(fixed, "policy_loss", **TERMS).laws["the_oracle_agrees"].text
    assert "entropy_coef=0.003" in text.partition("It agrees with")[2]
    assert check_function(fixed, "policy_loss", entropy_coef=0.003, **TERMS).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (lambda *x, ent_coef: with_terms(*x, ent_coef=-ent_coef), "the opposite sign of ent_coef"),
        (lambda *x, ent_coef: with_terms(*x, ent_coef=0.0), ""),
        (lambda *x, ent_coef: with_terms(*x, ent_coef=0.0) - ent_coef * x[4].mean(), ""),
    ],
    ids=["a penalty", "no bonus", "a mean over padding"],
)
def test_a_wrong_entropy_bonus_is_named(wrong, cause):
    def f(logps, old_logps, adv, mask, entropy, kl, eps=0.2, beta=0.04, ent_coef=0.01):
        return wrong(logps, old_logps, adv, mask, entropy, kl, eps, beta, ent_coef=ent_coef)

    report = check_function(f, "policy_loss", **TERMS)
    assert "the_oracle_agrees" in report.broken
    assert cause in " ".join(str(report).split())


def truncated(logps, old_logps, rollout_logps, adv, mask, eps=0.2, cap=2.0):
    keep = mask.bool()
    weights = torch.exp(torch.where(keep, old_logps - rollout_logps, 0.0)).clamp(max=cap)
    ratio = torch.exp(torch.where(keep, logps - old_logps, 0.0).clamp(-20, 20))
    adv = torch.where(keep, adv, 0.0)
    losses = -torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv) * weights
    return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)


@pytest.mark.slow
def test_rollout_log_probs_and_the_cap_of_their_weights_are_drawn():
    report = check_function(truncated, "policy_loss", **TERMS)
    assert report.ok, str(report)
    assert report.laws["the_oracle_agrees"].judged == 60
    assert report.laws["every_knob_counts"].judged

    def uncapped(logps, old_logps, rollout_logps, adv, mask, eps=0.2, cap=2.0):
        return truncated(logps, old_logps, rollout_logps, adv, mask, eps, float("inf"))

    assert "the_oracle_agrees" in check_function(uncapped, "policy_loss", **TERMS).broken


@pytest.mark.slow
def test_per_response_rewards_are_spread_over_tokens():
    def centred(scores, mask, num_generations):
        groups = scores.view(-1, num_generations)
        return (groups - groups.mean(-1, keepdim=True)).flatten()

    options = {"estimator": "grpo", "norm_by_std": False, "shapes": {"rewards": "batch"}}
    report = check_function(
        centred, "group_advantage", examples=40, dialects={"rejected": "counted", "group_of_one": "zero"}, **options
    )
    assert "the_oracle_agrees" not in report.broken, str(report)
    with pytest.raises(TypeError, match="response_mask of policy_loss does not have one number per token"):
        Check("policy_loss", shapes={"response_mask": "batch"}, **PPO)
    with pytest.raises(TypeError, match="use the contract reward_normalisation"):
        check_function(lambda scores, k: scores, "group_advantage", estimator="grpo")


@pytest.mark.parametrize("name", ["lp_behav", "behavior", "mu", "rollout", "gen_logps", "logps_mu"])
def test_behaviour_log_probs_match_the_old_policy_and_never_the_reference(name):
    names = {"torch": torch}
    exec(f"def f(lp, {name}, lp_ref, A, mask): return lp", names)
    bound = Check("policy_loss", **PPO).bind(names["f"])
    assert bound.names["old_log_probs"] == name
    assert bound.names["ref_log_probs"] == "lp_ref"


def test_an_error_about_parameters_names_everything_that_is_missing():
    def f(lp, lp_ref_policy, adv, msk, extra, beta):
        return lp

    with pytest.raises(TypeError) as failure:
        Check("policy_loss", **PPO).bind(f)
    text = str(failure.value)
    assert "'old_log_probs': '…'" in text
    assert "'response_mask': 'msk'" in text
    assert "extra needs a value" in text
    assert "tau_pos" not in text  # of another algorithm


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_agg_mode": "tokenmean"}, "does not define loss_agg_mode='tokenmean' — did you mean 'token-mean'"),
        ({"examples": "many"}, "examples='many': the number of scenarios must be a positive integer"),
    ],
)
def test_a_misspelled_option_is_an_error(options, message):
    with pytest.raises(TypeError, match=message):
        Check("policy_loss", algorithm="ppo", **options)


def test_the_coefficient_of_another_algorithm_is_not_matched():
    def f(lp, old_lp, adv, mask, beta=0.1):
        return lp

    assert "beta" not in Check("policy_loss", **PPO).bind(f).names.values()
    assert Check("policy_loss", algorithm="dro").bind(f).names["beta"] == "beta"
    assert Check("policy_loss", beta=0.5, **PPO).choices["kl_coef"] == 0.5
    with pytest.raises(TypeError, match="does not define algorithm='grpo'; it defines ppo, gspo"):
        Check("policy_loss", algorithm="grpo")


@pytest.mark.slow
def test_inputs_that_call_never_reads_are_named():
    def loss(logps, old, adv, mask, low=0.2, high=0.2):
        return of("min")(logps, old, adv, mask, low, high)

    def call(f, x):
        return f(x.log_probs, x.old_log_probs, x.advantages, x.response_mask, x.eps_clip_low)

    text = " ".join(str(check_function(loss, "policy_loss", call=call, examples=20, **PPO)).split())
    assert "reads: log_probs, old_log_probs, advantages, response_mask, eps_clip_low Never" in text
    assert "Never read: eps_clip_high; the reference uses 0.2" in text


@dataclass
class Rollout:
    lp: torch.Tensor
    old: torch.Tensor
    adv: torch.Tensor
    mask: torch.Tensor


def rollout_loss(rollout):
    return of("max")(rollout.lp, rollout.old, rollout.adv, rollout.mask, 0.2, 0.2)


@pytest.mark.slow
def test_the_code_of_a_failure_makes_objects_with_fields():
    def call(f, x):
        return f(Rollout(x.log_probs, x.old_log_probs, x.advantages, x.response_mask))

    text = check_function(rollout_loss, "policy_loss", call=call, examples=20, **PPO).laws["the_oracle_agrees"].text
    code = inspect.cleandoc(text.partition("\n\n")[2].partition("\n\n  loss: observed")[0])
    assert "from test_causes import Rollout" in code
    names = {}
    exec(code.replace("\nrollout_loss(", "\nresult = rollout_loss("), names)
    assert float(names["result"]) == pytest.approx(float(text.partition("observed ")[2].partition(",")[0]))


@pytest.mark.slow
def test_an_error_in_a_call_names_its_place():
    with pytest.raises(
        TypeError, match=r"call= \(test_causes.py:\d+\) raised AttributeError: unknown input 'logprobs'"
    ):
        check_function(of("min"), "policy_loss", call=lambda f, x: f(x.logprobs), **PPO)

    def mean(f, x):
        mask = x.response_mask
        adv = (x.advantages * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        return f(x.log_probs, x.old_log_probs, x.log_probs.detach(), adv, mask, x.eps_clip_low, 0.0)

    report = check_function(
        grpo,
        "policy_loss",
        call=mean,
        examples=60,
        eps_clip_high=0.2,
        eps_clip_low=0.2,
        dialects={"advantage_level": "sequence"},
        **PPO,
    )
    texts = [each.text for each in report.laws.values() if each.edge]
    assert any("computed NaN or infinity and passed it to grpo" in text for text in texts), texts


@pytest.mark.slow
def test_a_failure_says_why_a_law_judged_few_scenarios():
    report = check_function(of("min"), "policy_loss", names=NAMES, examples=60, **PPO)
    text = " ".join(report.laws["masked_values_have_no_influence"].text.split())
    assert "scenarios judged (the others were not judged, most often because: the scenario has no masked token)" in text


def test_settings_whose_choices_are_dictionaries_have_alternatives():
    catalog = bundled_catalog()
    targets = list(catalog.targets.values())
    found = {name: other_settings(contract, targets, {}) for name, contract in catalog.contracts.items()}
    assert {"options": {"temperature": 0.5}} in found["rollout"]
