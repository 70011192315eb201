"""Boundaries that move rows, price responses and schedule a training, at older commits of the corpus: the oracle
agrees with each that answers, or a recipe says what is wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commits import COMMITS
from shipped import RECIPES, runner

from sentinel.deciding.bench import Bench, Subject, Undecidable
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects
from sentinel.search.hunt import Hunt, Tally
from sentinel.targets.refs import Ref

CONTRACTS = (
    *("row_surgery", "minibatch_iteration", "balanced_partition", "kl_coefficient", "learning_rate"),
    *("token_reward", "overlong_penalty", "overlong_filter", "group_filter", "difficulty_filter"),
    *("second_moment_mask", "rule_reward"),
)
#: Scenarios of each boundary.
ENOUGH = 12
#: Upstream's text is read, and some of it has such strings.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

LAW = bundled_catalog().laws["the_oracle_agrees"]


#: A runner for each target: what was searched holds its process until its runner is closed.
@pytest.fixture(scope="module")
def searching(request: pytest.FixtureRequest) -> Iterator[Runner]:
    warm = runner()
    yield warm
    warm.close()


def hunted(bench: Bench, subject: Subject) -> tuple[Tally, str]:
    """What drawn scenarios say of the law at a boundary; nothing where it is not to be called, and why."""
    hunt, why = Hunt(bench, subject, 0, [LAW], shrinking=20), ""
    try:
        hunt.run(ENOUGH)
    except Undecidable as error:  # test_named_commits.py asks whether it may be
        why = str(error) if error.failure.kind == "python" else ""
    return hunt.tallies[LAW], why


def known(searching: Runner, subject: Subject, ref: Ref) -> bool:
    """Whether a recipe says that the boundary is wrong at this commit, and is right."""
    return any(
        recipe.boundary in subject.binding.paths and searching.decide(Job(recipe, ref)).verdict.name == "reproduced"
        for recipe in RECIPES.values()
    )


@pytest.mark.parametrize(
    ("searching", "target", "sha"),
    [pytest.param(*item.values[0][:1], *item.values[0], id=item.id, marks=item.marks) for item in COMMITS],
    indirect=["searching"],
)
def test_the_oracle_agrees(searching: Runner, target: str, sha: str) -> None:
    ref = Ref("git", sha)
    found = [item for item in subjects(bundled_catalog(), target)[0] if item.contract.name in CONTRACTS]
    try:
        ground = searching.ground(target, ref, [item.binding for item in found])
    except Unavailable as error:
        pytest.skip(error.reason)
    answers = [(subject, *hunted(ground.bench, subject)) for subject in found]
    ground.bench.close()
    spoken = any(tally.spoken for _, tally, _ in answers)
    too_new = next((why for *_, why in answers if why), "")
    if too_new and not spoken:
        pytest.skip(too_new)
    assert spoken
    wrong = {
        subject.name: finding.violations[0].detail
        for subject, tally, _ in answers
        for finding in tally.findings
        if not known(searching, subject, ref)
    }
    assert not wrong, "\n".join(f"{name}: {detail}" for name, detail in wrong.items())
