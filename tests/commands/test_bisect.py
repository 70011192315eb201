"""``sentinel bisect``: what it prints, and what it says to wrong input."""

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


def test_bisect_finds_the_fix(run_sentinel, tiny):
    answer = run_sentinel("bisect", "TINY-MEAN", "--good", "main", "--bad", tiny.buggy)
    assert answer.status == 0
    assert f"{tiny.fixed} 2026-01-01 a change\ntook away TINY-MEAN" in answer.out
    told = run_sentinel("bisect", "TINY-MEAN", "--good", "main", "--bad", tiny.buggy, "--json").json()
    assert (told["found"]["sha"], told["seeks"]) == (tiny.fixed, "fixed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["bisect", "TINY-MEEN", "--good", "main", "--bad", "main"],
            "no recipe matches 'TINY-MEEN' — did you mean 'TINY-MEAN'?",
        ),
        (["bisect", "TINY-MEAN", "--good", "main"], "--bad"),
        (["bisect", "TINY-MEAN", "--good", "main", "--bad", "main"], "same commit"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(run_sentinel, arguments, said):
    answer = run_sentinel(*arguments)
    assert answer.status == 2
    assert said in answer.err
