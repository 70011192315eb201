"""Checks of a user's function: how it is bound, run and judged, and what a failure shows."""

import functools
import inspect
import random
import re
import subprocess
import sys
import unittest
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sentinel.recipes.catalog import bundled_catalog
from sentinel.testing import LawBroken, check_function, checking, parametrize_with_laws
from sentinel.testing.checking import Check
from sentinel.testing.examples import example_of


@pytest.fixture(autouse=True)
def _little_shrinking(monkeypatch):
    """Shrinking takes most of the time of a check, and only messages depend on it."""
    monkeypatch.setattr(checking, "_SHRINKING", 25)


PPO = {"algorithm": "ppo", "mode": "token-mean", "dialects": {"log_ratio_clamp": 20.0}}


def loss(logps, old_logps, adv, mask, eps=0.2):
    keep = mask.bool()
    ratio = torch.exp(torch.where(keep, logps - old_logps, 0.0).clamp(-20, 20))
    adv = torch.where(keep, adv, 0.0)
    losses = -torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
    return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)


def wrong(logps, old_logps, adv, mask, eps=0.2):
    return loss(logps, old_logps, adv, mask, eps) * mask.sum().clamp(min=1) / mask.numel()


def check(f, contract="policy_loss", examples=8, **options):
    return check_function(
        f, contract, examples=examples, **({**PPO, **options} if contract == "policy_loss" else options)
    )


class Trainer:
    def loss(self, logps, old_logps, adv, mask):
        return loss(logps, old_logps, adv, mask)


class Module(torch.nn.Module):
    def forward(self, logps, old_logps, adv, mask):
        return loss(logps, old_logps, adv, mask)


def keywords(**tensors):
    return loss(**tensors)


def positional(logps, old_logps, adv, mask, /):
    return loss(logps, old_logps, adv, mask)


NAMES = {"log_probs": "logps", "old_log_probs": "old_logps", "advantages": "adv", "response_mask": "mask"}


def test_a_report_of_a_function_without_a_mask_can_be_printed():
    def k3(logp, ref_logp):
        return (ref_logp - logp).exp() - (ref_logp - logp) - 1

    report = check_function(k3, "kl_estimate", estimator="k3", examples=5)
    assert report.ok
    assert "Not tried: more than" in str(report)


@pytest.mark.parametrize(
    ("f", "options"),
    [
        (loss, {}),
        (Trainer().loss, {}),
        (functools.partial(loss, eps=0.2), {}),
        (lambda logps, old_logps, adv, mask: loss(logps, old_logps, adv, mask), {}),
        (Module(), {}),
        (positional, {}),
        (keywords, {"names": NAMES}),
    ],
    ids=["function", "method", "partial", "lambda", "module", "positional", "keywords"],
)
def test_any_callable_can_be_checked(f, options):
    report = check(f, examples=4, **options)

    assert report.ok, str(report)
    assert report.laws["the_oracle_agrees"].judged == 4


@pytest.mark.slow
def test_a_compiled_function_can_be_checked():
    # Not a parameter of the test above: torch.compile takes two seconds, in each process that collects.
    test_any_callable_can_be_checked(torch.compile(loss, backend="eager"), {})


@pytest.mark.slow
def test_a_choice_whose_definition_overflows_explains_no_difference():
    """The function clamps a log ratio of 90 to 80. Definitions that are tried as the explanation may overflow there."""

    def ratio(log_ratio):
        return torch.exp(log_ratio.clamp(-80, 80))

    def clamped(logps, old_logps, adv, mask, eps=0.2):
        keep = mask.bool()
        ratios = ratio(torch.where(keep, logps - old_logps, 0.0))
        losses = -torch.minimum(ratios * adv, ratios.clamp(1 - eps, 1 + eps) * adv)
        return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)

    options = {"algorithm": "ppo", "mode": "token-mean", "dtypes": ["float64"]}
    assert "the_oracle_agrees" in check_function(clamped, "policy_loss", examples=40, **options).broken


@pytest.mark.parametrize(
    ("f", "options"),
    [
        (lambda f, **x: (f(**x), torch.tensor(0.5), {"entropy": 2}), {}),
        (lambda f, **x: {"pg_loss": f(**x), "entropy": None}, {}),
        (lambda f, **x: namedtuple("Out", "loss other")(f(**x), 1), {}),
        (lambda f, **x: SimpleNamespace(loss=f(**x), kl=3), {}),
        (lambda f, **x: (1, f(**x)), {"outputs": ("", "loss")}),
        (lambda f, **x: {"a": f(**x)}, {"outputs": {"loss": "a"}}),
    ],
    ids=["tuple", "dictionary", "namedtuple", "attributes", "order", "key"],
)
def test_outputs_are_found_and_missing_ones_are_not_checked(f, options):
    def returning(logps, old_logps, adv, mask, eps=0.2):
        return f(loss, logps=logps, old_logps=old_logps, adv=adv, mask=mask, eps=eps)

    report = check(returning, **options)

    assert report.laws["the_oracle_agrees"].judged == 8, str(report)
    assert report.broken == []


def test_a_reported_metric_is_checked():
    def returning(logps, old_logps, adv, mask, eps=0.2):
        return loss(logps, old_logps, adv, mask, eps), {"pg_clipfrac": torch.tensor(0.5)}

    assert check(returning).broken == ["metrics_tell_the_truth"]


def test_an_unknown_output_is_an_error_that_lists_the_outputs():
    with pytest.raises(
        LawBroken, match=r"returned dict with x, but the contract's outputs are loss, .*outputs="
    ) as failure:
        Check("policy_loss", examples=2, **PPO).report(lambda logps, old_logps, adv, mask: {"x": 1}).laws[
            "the_oracle_agrees"
        ].require()
    assert failure.value


def test_call_translates_objects_batches_and_layouts():
    def of_batch(batch):  # [tokens, batch]
        return loss(batch["logps"].T, batch["old"].T, batch["adv"].T, batch["mask"].T)

    report = check(
        of_batch,
        call=lambda f, x: f(
            {"logps": x.log_probs.T, "old": x.old_log_probs.T, "adv": x.advantages.T, "mask": x.response_mask.T}
        ),
    )

    assert report.ok, str(report)
    assert "every_knob_counts" not in [name for name, each in report.laws.items() if each.judged]  # no knob is read


def test_a_parameter_that_does_not_match_is_an_error_with_a_suggestion():
    with pytest.raises(TypeError) as failure:
        Check("policy_loss", algorithm="ppo").bind(lambda lgprobs, old_logps, adv, mask, zeta: 0)

    message = str(failure.value)
    assert "lgprobs                  ?" in message
    assert "old_logps                old_log_probs" in message
    assert "?                        log_probs: log-probs of the trained policy" in message
    assert "names={'log_probs': 'lgprobs'}" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "ppo", "names": {"log_probs": "lp"}}, "has no parameter 'lp'"),
        ({"algorithm": "ppo", "names": {"logprobz": "logps"}}, "has no input 'logprobz'"),
        ({"algoritm": "ppo"}, "has no input 'algoritm' — did you mean 'algorithm'"),
        ({}, "Pass algorithm="),
        ({"algorithm": "ppo", "expected_failed_laws": {"finite": "x"}}, "policy_loss does not have the law 'finite'"),
    ],
)
def test_a_wrong_option_is_an_error(options, message):
    with pytest.raises(TypeError, match=message):
        Check("policy_loss", **options).bind(loss)
    with pytest.raises(TypeError, match="unknown contract 'polcy_loss' — did you mean 'policy_loss'"):
        Check("polcy_loss")


def test_missing_settings_are_not_drawn_and_one_parameter_may_serve_two():
    _, subject = Check("policy_loss", **PPO)._subject(loss)
    drawn = {item.name for item in subject.contract.inputs if item.choices or item.domain}

    assert drawn == {"log_probs", "old_log_probs", "advantages", "response_mask", "eps_clip_low"}
    assert subject.binding.fixed["eps_clip_high"]({"eps_clip_low": 0.3}) == 0.3


@pytest.mark.parametrize(
    ("annotation", "form"),
    [(torch.Tensor, torch.Tensor), (np.ndarray, np.ndarray), (list[str], list), (inspect.Parameter.empty, np.ndarray)],
)
def test_groups_and_lengths_have_the_form_that_the_function_takes(annotation, form):
    seen = []

    def normalise(rewards, uids):
        seen.append(type(uids))
        return rewards

    normalise.__annotations__ = {} if annotation is inspect.Parameter.empty else {"uids": annotation}
    check(normalise, "reward_normalisation", examples=2)
    assert set(seen) == {form}

    def grouped(rewards, num_generations):
        groups = rewards.view(-1, num_generations)
        return (groups - groups.mean(-1, keepdim=True)).flatten()

    assert check(grouped, "reward_normalisation", std_level=None).ok


@pytest.mark.slow
def test_the_failure_fits_on_a_screen_and_its_code_repeats_it():
    report = check(wrong, examples=30)
    text = report.laws["padding_is_invisible"].text

    assert len(text.splitlines()) < 40
    assert "more padding columns change nothing at valid positions" in text
    assert "arXiv:1707.06347" in text
    assert "GSPO" not in text
    text = report.laws["the_oracle_agrees"].text
    before, _, rest = text.partition("    wrong(")
    assert before.splitlines()[-3:-1] == ["    import torch", "    from test_own_functions import wrong"]
    call = inspect.cleandoc("    wrong(" + rest.partition("\n\n")[0])
    values = re.search(r"loss: observed (\S+), expected (\S+)", text)
    assert values is not None
    observed, expected = map(float, values.groups())
    assert float(eval(call)) == pytest.approx(observed)
    assert observed != pytest.approx(expected)
    assert "It agrees with" not in text  # with another mode, which was chosen


@pytest.mark.slow
def test_a_declared_alternative_is_suggested():
    def normalise(scores, uids):
        result = torch.zeros_like(scores)
        for uid in set(uids.tolist()):
            group = scores[uids == uid]
            result[uids == uid] = (group - group.mean()) / (group.std(unbiased=False) + 1e-4)
        return result

    text = check(normalise, "reward_normalisation", examples=30).laws["the_oracle_agrees"].text
    assert "It agrees with " in text
    assert "pass dialects={" in text
    assert "All laws then use that definition" in text
    assert "std: " in text

    advised = eval(text.partition("pass dialects=")[2].partition("}")[0] + "}")
    assert advised == {"std": "biased", "epsilon": 1e-4}
    assert "Left at the default" not in text
    assert (
        check(normalise, "reward_normalisation", examples=30, dialects=advised).laws["the_oracle_agrees"].word
        == "holds"
    )


@pytest.mark.slow
def test_a_parameter_that_keeps_its_default_is_named_and_its_value_is_tried():
    def wide(logps, old_logps, adv, mask, reach=0.28):
        return loss(logps, old_logps, adv, mask, reach)

    text = check(wide, examples=30).laws["the_oracle_agrees"].text
    assert "Left at the default: reach=0.28" in text
    assert "It agrees with eps_clip_low=0.28, eps_clip_high=0.28" in text


@pytest.mark.slow
def test_names_of_parameters_replace_those_of_inputs_once():
    class Critic(torch.nn.Module):
        clip = 0.2

        def forward(self, values, old_values, returns, mask):
            clipped = old_values + (values - old_values).clamp(-self.clip, self.clip)
            losses = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
            return 0.5 * torch.where(mask.bool(), losses, 0.0).sum() / mask.sum().clamp(min=1)

    report = check(Critic(), "value_loss", examples=30)
    assert "per_token_gradient: d loss / d values\n" in report.laws["masked_values_have_no_influence"].text
    assert "pass dialects={'cliprange_value': 0.2, 'factor': 0.5}" in report.laws["the_oracle_agrees"].text


def test_a_call_that_does_not_read_a_required_setting_is_an_error():
    with pytest.raises(TypeError, match=r"Pass kl_estimator=…; choose one of 'k1', 'abs', 'k2', 'k3'\."):
        check(lambda a, b: a - b, "kl_estimate", call=lambda f, x: f(x.log_probs, x.ref_log_probs))


def test_a_function_that_returns_nothing_does_not_pass():
    report = check(lambda rewards, uids: None, "reward_normalisation", examples=2)
    assert not report.ok
    text = report.laws["the_oracle_agrees"].text
    assert text == "every call raised: TypeError: <lambda> returned None; add a return statement"
    assert str(report).count("returned None") == 1


@pytest.mark.slow
def test_an_edge_case_is_one_failure_and_can_be_expected():
    def plain(logps, old_logps, adv, mask, eps=0.2):
        ratio = torch.exp(torch.where(mask.bool(), logps - old_logps, 0.0).clamp(-20, 20))
        adv = torch.where(mask.bool(), adv, 0.0)
        return -torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv).sum() / mask.sum()

    assert check(plain, examples=30).broken == ["finite_in_finite_out"]
    expected = {"finite_in_finite_out": "rows without tokens never reach it"}
    report = check(plain, examples=30, expected_failed_laws=expected)
    assert report.ok
    assert report.broken == []
    assert not check(loss, expected_failed_laws=expected).ok


def test_a_function_that_always_raises_is_broken_with_its_exception():
    def raising(logps, old_logps, adv, mask):
        raise KeyError("lost")

    report = check(raising, examples=3)
    assert not report.ok
    assert isinstance(report.laws["the_oracle_agrees"].cause, KeyError)
    with pytest.raises(LawBroken, match="every call raised"):
        report.laws["the_oracle_agrees"].require()


def test_a_function_that_sometimes_raises_is_reported():
    def particular(logps, old_logps, adv, mask, eps=0.2):
        assert mask.all(), "padding is not supported"
        return loss(logps, old_logps, adv, mask, eps)

    with pytest.warns(
        UserWarning, match=r"particular as policy_loss: \d of 8 scenarios raised .*padding is not supported"
    ) as warned:
        report = check(particular)
    code = particular.__code__
    assert {(each.filename, each.lineno) for each in warned} == {(code.co_filename, code.co_firstlineno)}
    assert not report.ok
    padding = report.laws["padding_is_invisible"]
    assert padding.word == "broken"
    assert padding.text.startswith("every call raised: AssertionError: padding is not supported")


@pytest.mark.slow
def test_defaults_and_dtypes_that_were_not_tried_are_named():
    report = check(loss)
    assert "these defaults of the function were not tried: eps=0.2. To try the default: names=" in str(report)
    assert "float16 (pass dtypes=())" in str(report)
    assert "float16" not in str(check(loss, dtypes=()))


def test_an_interrupt_ends_the_check():
    def interrupted(logps, old_logps, adv, mask):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted)


def test_global_state_is_restored():
    torch.set_num_threads(2)
    before = random.getstate(), torch.get_rng_state(), torch.get_num_threads(), torch.get_deterministic_debug_mode()
    check(loss, examples=2)
    after = random.getstate(), torch.get_rng_state(), torch.get_num_threads(), torch.get_deterministic_debug_mode()

    assert after[0] == before[0]
    assert torch.equal(after[1], before[1])
    assert after[2:] == before[2:]


@pytest.mark.slow
def test_a_failure_is_kept_and_tried_first_and_the_seed_determines_the_scenarios():
    from hypothesis import settings
    from hypothesis.database import InMemoryExampleDatabase

    memory = InMemoryExampleDatabase()
    settings.register_profile("in memory", settings.default, database=memory)
    settings.load_profile("in memory")
    texts = [check(wrong, examples=20, seed=3).laws["the_oracle_agrees"].text for _ in range(2)]
    again = check(wrong, examples=1, seed=4)

    assert texts[0] == texts[1]
    assert "the_oracle_agrees" in again.broken
    assert memory.data


# -- runners -----------------------------------------------------------------------------------------------------------

TEST = f"""
from sentinel.testing import parametrize_with_laws
import torch

{inspect.getsource(loss)}

{inspect.getsource(wrong)}

OPTIONS = {{"examples": 5, **{PPO!r}}}

@parametrize_with_laws(loss, "policy_loss", **OPTIONS)
def test_right(check):
    check()

@parametrize_with_laws(wrong, "policy_loss", expected_failed_laws={{"padding_is_invisible": "a constant"}}, **OPTIONS)
def test_wrong(check):
    check()

@parametrize_with_laws(loss, "policy_loss", expected_failed_laws={{"the_oracle_agrees": "no"}}, **OPTIONS)
def test_holds(check):
    check()

import pytest

@pytest.fixture
def made():
    return lambda logps, old_logps, adv, mask: loss(logps, old_logps, adv, mask)

@parametrize_with_laws(None, "policy_loss", **OPTIONS)
def test_fixture(check, made):
    check(made)
"""


@pytest.mark.slow
def test_each_law_is_a_test_of_plain_pytest(pytester):
    pytester.makepyfile(TEST)
    result = pytester.runpytest("-rA", "-p", "no:cacheprovider")

    result.stdout.fnmatch_lines_random(
        [
            "PASSED *::test_right[[]the_oracle_agrees]",
            "FAILED *::test_wrong[[]the_oracle_agrees]*",
            "XFAIL *::test_wrong[[]padding_is_invisible]*a constant",
            "FAILED *::test_holds[[]the_oracle_agrees]*",
            "PASSED *::test_fixture[[]padding_is_invisible]",
            "SKIPPED*the boundary has no option with a second value*",
        ]
    )
    assert result.parseoutcomes()["xfailed"] == 1


TRIED = """
from sentinel.testing import parametrize_with_laws


def aggregate(losses, mask, loss_type="grpo"):
    kept = losses * mask if loss_type == "grpo" else losses
    return kept.sum() / mask.sum().clamp(min=1)


@parametrize_with_laws(aggregate, "loss_aggregation", mode="token-mean", examples=20)
def test_aggregate(check):
    check()
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-q",), ("-n", "2", "-q"), ("-p", "no:terminal"), ("-W", "error")])
def test_the_summary_states_once_what_a_passing_test_tried(pytester, arguments):
    """All tests pass, and the summary states that scenarios had few tokens and only one loss_type."""
    pytester.makepyfile(TRIED)
    result = pytester.runpytest_subprocess("-k", "order or rejected_row", *arguments)

    lines = [line for line in result.outlines if line.startswith("aggregate as loss_aggregation: ")]
    assert result.ret == 0
    assert len(lines) == (0 if "no:terminal" in arguments else 1), result.outlines
    for line in lines:
        sizes = re.search(
            r": 20 scenarios of at most (\d+) rows, (\d+) tokens; left at the default: loss_type='grpo';", line
        )
        assert sizes is not None, line
        assert 2 <= int(sizes[1]) <= 12 >= int(sizes[2]) >= 2
        assert f"not tried: more than {sizes[1]} rows or {sizes[2]} tokens, float16 (pass dtypes=()), values" in line


@pytest.mark.slow
def test_checks_run_under_xdist(pytester):
    pytester.makepyfile(TEST)
    result = pytester.runpytest_subprocess("-n", "2", "-k", "test_right and (padding or oracle)")

    result.assert_outcomes(passed=2)


@pytest.mark.slow
def test_checks_run_under_unittest_and_in_a_script():
    class TestLoss(unittest.TestCase):
        @parametrize_with_laws(wrong, "policy_loss", examples=5, **PPO)
        def test_wrong(self, check):
            check()

        @parametrize_with_laws(loss, "policy_loss", examples=5, **PPO)
        def test_right(self, check):
            check()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(TestLoss).run(result)
    assert {str(case).partition("[")[2].partition("]")[0] for case, _ in result.failures} >= {"the_oracle_agrees"}
    assert not result.errors
    assert all("test_wrong" in str(case) for case, _ in result.failures)

    @parametrize_with_laws(wrong, "policy_loss", examples=5, **PPO)
    def run(check):
        check()

    with pytest.raises(LawBroken):
        run()


def test_importing_sentinel_testing_imports_no_torch():
    script = (
        "import sys, sentinel.testing; print(sorted({'torch', 'hypothesis', 'numpy', 'pytest'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "contract", [each for each in bundled_catalog().contracts.values() if each.laws], ids=lambda each: each.name
)
def test_the_two_lines_of_a_contract_can_be_bound(contract):
    signature, check_line = example_of(contract)
    names = {"parametrize_with_laws": lambda f, name, **options: Check(name, **options).bind(f)}
    exec(signature, names)

    bound = eval(check_line.removeprefix("@"), names)
    assert set(inspect.signature(names["f"]).parameters) >= set(bound.names.values()) - {"group"}


@pytest.mark.slow
def test_a_test_that_does_not_call_its_check_fails(pytester):
    pytester.makepyfile(
        """
        import unittest
        from sentinel.testing import parametrize_with_laws

        def masked_mean(values, mask):
            return (values * mask).sum() / mask.sum()

        @parametrize_with_laws(masked_mean, "masked_statistics", statistic="mean")
        def test_without_parentheses(check):
            check

        class TestCase(unittest.TestCase):
            @parametrize_with_laws(masked_mean, "masked_statistics", statistic="mean")
            def test_without_a_call(self, check):
                pass
        """
    )
    result = pytester.runpytest("-q", "-k", "parentheses")
    assert result.parseoutcomes().keys() == {"failed", "deselected"}
    assert pytester.runpytest("-q", "-k", "TestCase").ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*LawBroken: the test did not check *: it must call its argument, check()"])


@pytest.mark.slow
def test_a_call_that_never_calls_the_function_fails():
    options = {"statistic": "mean", "call": lambda f, x: (x.values * x.response_mask).sum() / x.response_mask.sum()}
    with pytest.raises(LawBroken, match="the function passed as call= never calls <lambda>: nothing was checked"):
        check_function(lambda values, mask: -values, "masked_statistics", **options)


def test_a_call_can_read_an_input_named_like_a_method():
    report = check_function(
        lambda batch: (batch["x"] * batch["keep"]).sum() / batch["keep"].sum().clamp(min=1),
        "masked_statistics",
        statistic="mean",
        examples=10,
        call=lambda f, x: f({"x": torch.where(x.response_mask != 0, x.values, 0.0), "keep": x.response_mask}),
    )
    assert report.laws["the_oracle_agrees"].word == "holds", str(report)


# -- steps of several actions ------------------------------------------------------------------------------------------


def joint_loss(logps, old_logps, adv, mask, eps=0.2):
    """One ratio for the actions of a chunk: [batch, chunks, actions], a reward and a mask value per chunk."""
    return loss(logps.sum(-1), old_logps.sum(-1), adv, mask, eps)


def loss_of_each_action(logps, old_logps, adv, mask, eps=0.2):
    keep = mask.bool()[..., None]
    ratio = torch.exp(torch.where(keep, logps - old_logps, 0.0).clamp(-20, 20))
    adv = torch.where(keep, adv[..., None], 0.0)
    losses = -torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
    return torch.where(keep, losses, 0.0).sum() / mask.bool().sum().clamp(min=1)


CHUNKED = {"actions_per_step": 2, "examples": 30}


@pytest.mark.slow
@pytest.mark.parametrize(("f", "ratio"), [(joint_loss, "joint"), (loss_of_each_action, "sum")])
def test_log_probs_of_action_chunks_are_supported(f, ratio):
    report = check(f, **CHUNKED, dialects={"log_ratio_clamp": 20.0, "action_ratio": ratio})
    assert report.ok, str(report)
    assert report.laws["the_oracle_agrees"].judged == 30

    other = "sum" if ratio == "joint" else "joint"
    wrong = check(f, **CHUNKED, dialects={"log_ratio_clamp": 20.0, "action_ratio": other})
    assert "the_oracle_agrees" in wrong.broken


@pytest.mark.slow
def test_a_masked_chunk_that_leaks_is_named():
    def leaking(logps, old_logps, adv, mask, eps=0.2):
        ratio = torch.exp((logps - old_logps).sum(-1).clamp(-20, 20))
        losses = -torch.minimum(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
        return losses.mean()

    broken = check(leaking, **CHUNKED).broken
    assert {"masked_values_have_no_influence", "padding_is_invisible", "gradients_stay_where_they_belong"} <= set(
        broken
    )


# -- devices and messages ----------------------------------------------------------------------------------------------


def test_tensors_are_on_the_requested_device(monkeypatch):
    """No GPU is needed, because ``cpu:0`` is handled like every device other than ``cpu``."""
    from sentinel.worker import tensors

    real_mode, moved = tensors._OnDevice, []
    real = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **k: moved.append(a[:1]) or real(self, *a, **k))
    made = []
    monkeypatch.setattr(tensors, "_OnDevice", lambda device: made.append(device) or real_mode(device))
    report = check(loss, examples=3, device="cpu:0")

    assert report.ok, str(report)
    assert moved.count(("cpu:0",)) >= 4 * 3
    assert set(made) == {"cpu:0"}


@pytest.mark.slow
def test_a_failure_of_several_calls_shows_them_all():
    def own_count(logps, old_logps, adv, mask, batch_num_tokens, eps=0.2):
        return loss(logps, old_logps, adv, mask, eps)

    report = check(own_count, examples=60)
    text = report.laws["parts_add_up"].text
    assert "parts together" in text
    assert text.count("    own_count(") in (2, 3)  # the batch and its parts, which may be equal

    def biased(logps, old_logps, adv, mask, eps=0.2):
        return loss(logps, old_logps, adv, mask, eps) * logps[0].exp().sum().detach()

    text = check(biased, examples=30).laws["order_does_not_matter"].text
    assert "in the second call (" in text
    assert text.count("    biased(") == 2


# -- forms of functions that contracts cover ---------------------------------------------------------------------------


def advantages_alone(rewards, mask, num_generations):
    """Groups of equal size and a mask, a biased deviation, and no returns."""
    scores = (rewards * mask).sum(-1).view(-1, num_generations)
    centred = scores - scores.mean(-1, keepdim=True)
    return (centred / (scores.std(-1, keepdim=True, unbiased=False) + 1e-6)).flatten()[:, None] * mask


def ppo_with_a_reported_kl(logps, old_logps, adv, mask):
    keep = mask.bool()
    kl = torch.where(keep, old_logps - logps, 0.0).sum() / keep.sum().clamp(min=1)
    return {"loss": loss(logps, old_logps, adv, mask), "approx_kl": kl.detach()}


def explained(values, returns, mask):
    keep = mask.bool()
    wanted, error = returns[keep], (returns - values)[keep]
    variance = wanted.var(unbiased=False) if len(wanted) else 0
    return {
        "explained_variance": float("nan")
        if len(wanted) < 2 or variance == 0
        else 1 - error.var(unbiased=False) / variance
    }


def scaled_sum(losses, mask, world_size, num_items_in_batch):
    """The loss scale of a rank whose gradients are averaged over ranks."""
    return (
        torch.where(mask.bool(), losses, 0.0).sum()
        * (world_size or 1)
        / (num_items_in_batch or mask.sum().clamp(min=1))
    )


@pytest.mark.parametrize(
    ("f", "contract", "options", "law"),
    [
        (
            advantages_alone, "group_advantage",
            {"estimator": "grpo", "dialects": {"std": "biased", "rejected": "counted"}}, "the_oracle_agrees",
        ),
        (
            ppo_with_a_reported_kl, "policy_loss",
            {"dialects": {"log_ratio_clamp": 20.0, "reported_log_ratio": "whole"}}, "metrics_tell_the_truth",
        ),
        (explained, "explained_variance", {}, None),
        (scaled_sum, "loss_aggregation", {"mode": "token-mean"}, "the_oracle_agrees"),
    ],
    ids=["equal groups, mask, biased, no returns", "a KL that is only reported", "explained variance", "loss scale"],
)  # fmt: skip
def test_a_contract_can_express(f, contract, options, law):
    report = check(f, contract, examples=30, **options)
    judged = [name for name, each in report.laws.items() if each.judged and each.word == "holds"]
    assert (law or judged[0]) in judged, str(report)
    assert "the_oracle_agrees" not in report.broken, str(report)


def test_a_default_that_no_test_changes_is_a_warning():
    """A passing test prints no report, and the branch behind the default may be wrong."""

    def with_kl(log_probs, old_log_probs, advantages, response_mask, reference_kl=0.0):
        return loss(log_probs, old_log_probs, advantages, response_mask) - reference_kl

    with pytest.warns(
        UserWarning,
        match=r"with_kl as policy_loss: left at the default: reference_kl=0\.0; other values are not checked",
    ):
        check_function(with_kl, "policy_loss", algorithm="ppo", mode="token-mean", examples=8)


def test_a_warning_of_the_function_is_shown_once_and_at_the_function():
    """torch warns where the package reads the number, and that line is not the cause."""

    def explained_with_a_gradient(values, returns, mask):
        return {"explained_variance": torch.ones((), requires_grad=True) * explained(values, returns, mask)[NAME]}

    torch.set_warn_always(True)  # otherwise torch shows it once in a process, where other tests ran too
    try:
        with pytest.warns(UserWarning, match="Converting a tensor with requires_grad=True to a scalar") as warned:
            check(explained_with_a_gradient, "explained_variance", examples=20)
    finally:
        torch.set_warn_always(False)
    code = explained_with_a_gradient.__code__
    assert [(each.filename, each.lineno) for each in warned] == [(code.co_filename, code.co_firstlineno)]


NAME = "explained_variance"


# -- what is not checked -----------------------------------------------------------------------------------------------


def ppo_with_entropy(logps, old_logps, adv, mask, entropy, bonus=0.01, scale=1.0):
    keep = mask.bool()
    bonuses = torch.where(keep, bonus * entropy * scale, 0.0)
    return loss(logps, old_logps, adv, mask) - bonuses.sum() / keep.sum().clamp(min=1)


@pytest.mark.parametrize(
    ("f", "options", "named"),
    [
        (functools.partial(ppo_with_entropy, entropy=0), {"names": {"entropy": None}}, "code that entropy=0 turns off"),
        (ppo_with_entropy, {"names": {"entropy_coef": "bonus"}, "entropy_coef": 0.0}, "code that bonus=0.0 turns off"),
        (
            ppo_with_entropy,
            {"call": lambda f, x: f(x.log_probs, x.old_log_probs, x.advantages, x.response_mask, 0.0)},
            "code that entropy=0.0 turns off",
        ),
    ],
    ids=["partial", "a coefficient of 0", "call"],
)
@pytest.mark.filterwarnings("ignore:.*left at the default")
def test_a_term_that_every_call_keeps_at_zero_is_named(f, options, named):
    report = check(f, **options)
    assert report.ok, str(report)
    assert named in str(report)
    assert named in report.tried


def test_a_parameter_that_call_never_passes_is_named():
    with pytest.warns(UserWarning, match=r"left at the default: eps=0\.2; other values"):
        report = check(loss, call=lambda f, x: f(x.log_probs, x.old_log_probs, x.advantages, x.response_mask))
    assert "Left at the default: eps=0.2" in str(report)


def test_entries_that_no_law_compares_are_listed():
    def loss_of(loss_mat, loss_mask):
        loss = (loss_mat * loss_mask).sum() / loss_mask.sum().clamp(min=1)
        return loss, {"kl": -3 * loss.detach(), "actor/entropy": 0.5}

    report = check_function(loss_of, "loss_aggregation", mode="token-mean", examples=5)
    assert "returned, but not compared: kl, actor/entropy" in report.tried
    assert "  Returned, but not compared: kl, actor/entropy" in str(report).splitlines()
