"""Functions of twenty kinds keep the laws of their contract, and bugs of the field in them are named."""

import pytest
import torch
from kinds import KINDS, gae, gae_of_episodes

from sentinel.testing import check_function, checking

#: Enough scenarios for these bugs. The default number is 100.
EXAMPLES = 25

#: Bugs that no scenario shows, because no scenario has the right answer outside the box.
NOT_NAMED = {"anywhere in the response"}

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.correct.__name__)
def test_a_correct_function_passes_and_its_bugs_are_named(kind, device, monkeypatch):
    # Shrinking, and the search for settings that would be right, do not affect whether a law is broken.
    monkeypatch.setattr(checking, "_SHRINKING", 8)
    monkeypatch.setattr(checking.Check, "_agreeing_choices", lambda *_: {})
    options = {"examples": EXAMPLES, "device": device, **kind.options}
    report = check_function(kind.correct, kind.contract, **options)
    assert set(report.broken) == set(kind.edges), str(report)
    assert sum(bool(each.judged) for each in report.laws.values()) > 1

    named = {}
    for bug in kind.bugs:
        broken = check_function(kind.broken(bug), kind.contract, **options)
        named[bug] = [law for law in broken.broken if law not in kind.edges]
    assert {bug for bug, laws in named.items() if not laws} == NOT_NAMED & kind.bugs.keys()


def test_there_are_twenty_kinds_and_sixty_bugs():
    assert len({kind.contract for kind in KINDS}) == 20
    assert sum(len(kind.bugs) for kind in KINDS) == 63  # GAE has a form with a mask and one with the ends of episodes


def gae_of_starts(rewards, values, dones, next_value, next_done, gamma=0.99, gae_lambda=0.95):
    """GAE with flags at the steps that begin an episode."""
    starts = torch.cat([dones, next_done[..., None]], -1)
    following = torch.cat([values, next_value[..., None]], -1)
    advantages, running = torch.zeros_like(rewards), 0.0
    for t in reversed(range(rewards.shape[-1])):
        alive = 1.0 - starts[..., t + 1]
        delta = rewards[..., t] + gamma * alive * following[..., t + 1] - values[..., t]
        running = delta + gamma * gae_lambda * alive * running
        advantages[..., t] = running
    return advantages


def gae_of_bools(rewards, values, terminated, truncated, gamma, lam):
    return gae_of_episodes(rewards, values, (terminated & ~truncated).to(rewards), 0.0, gamma, lam)


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"dones": "tokens"}], ids=["rows", "one stream"])
def test_ends_of_episodes_replace_a_mask(form):
    for f in (gae_of_episodes, gae_of_starts, gae_of_bools):
        report = check_function(f, "generalised_advantage", shapes=form, examples=EXAMPLES)
        assert report.ok, str(report)


def test_a_stream_needs_a_parameter_for_the_ends():
    with pytest.raises(TypeError, match="shapes: gae needs a parameter for the ends of episodes"):
        check_function(gae, "generalised_advantage", shapes={"dones": "tokens"})
