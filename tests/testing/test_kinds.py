"""Functions of twenty kinds keep the laws of their contract, and bugs of the field in them are named."""

import pytest
from kinds import KINDS

from sentinel.testing import check_function, checking

#: Enough scenarios for these bugs; a check of a user draws 100.
EXAMPLES = 25

#: No scenario shows these: there, the right answer is nowhere but in the box.
NOT_NAMED = {"anywhere in the response"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.correct.__name__)
def test_a_correct_function_breaks_nothing_but_its_edges_and_its_bugs_are_named(kind, monkeypatch):
    # Whether a law is broken depends on neither: the smallest scenario, and other settings that would be right.
    monkeypatch.setattr(checking, "_SHRINKING", 8)
    monkeypatch.setattr(checking.Check, "_agreeing_choices", lambda *_: {})
    report = check_function(kind.correct, kind.contract, examples=EXAMPLES, **kind.options)
    assert set(report.broken) == set(kind.edges), str(report)
    assert sum(bool(each.judged) for each in report.laws.values()) > 1

    named = {}
    for bug in kind.bugs:
        broken = check_function(kind.broken(bug), kind.contract, examples=EXAMPLES, **kind.options)
        named[bug] = [law for law in broken.broken if law not in kind.edges]
    assert {bug for bug, laws in named.items() if not laws} == NOT_NAMED & kind.bugs.keys()


def test_there_are_twenty_kinds_and_sixty_bugs():
    assert len({kind.contract for kind in KINDS}) == 20
    assert sum(len(kind.bugs) for kind in KINDS) == 60
