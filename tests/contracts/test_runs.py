"""The contracts of whole training runs and of tokenizations of one text, on scenarios that are counted by hand."""

from typing import Any

import pytest
from contract_kit import measured

from sentinel.contracts.alignment import TOKEN_ALIGNMENT
from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import Choose

#: Two batches, in two epochs that are cut after three steps; the second batch has no advantages.
RUN: dict[str, Any] = {
    "rewards": [[1, 0, 1, 1], [0, 0, 0, 0]], "validation": [[1, 1, 1, 0], [0]], "epochs": 2, "max_steps": 3,
    "validation_period": 2, "save_period": 2,
}  # fmt: skip


def test_a_run_trains_validates_and_saves_at_its_periods():
    seen = measured("training_loop", **RUN)
    assert seen["trained"] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    assert seen["versions"] == [0, 1, 2]
    assert seen["advantages"] == [0.5, -0.5, 0, 0, 0, 0, 0, 0, 0.5, -0.5, 0, 0]
    assert (seen["reward"], seen["validated"], seen["saved"]) == ([0.75, 0.0, 0.75], [2], [2, 3])
    assert seen["validation"] == pytest.approx([0.6])


def test_a_run_validates_first_and_last_and_collects_ahead():
    seen = measured("training_loop", **RUN, validates_first=True, validates_last=True, ahead=1, centred=False)
    assert (seen["validated"], seen["versions"]) == ([0, 2, 3], [0, 0, 1])
    assert seen["advantages"][:4] == [1, 0, 1, 1]


def test_a_run_without_rollouts_has_only_rows_and_steps():
    seen = measured("training_loop", lambda **_: {"trained": [0], "validated": [], "saved": [1]}, **RUN)
    assert (seen["versions"], seen["advantages"], seen["reward"], seen["validation"]) == (None,) * 4


def test_two_tokenizations_agree_where_both_cut_the_text():
    seen = measured("token_alignment", student=["ab", "c", "d", " ef"], teacher=["a", "bc", "d", " e", "f"])
    assert (seen["student_chunks"], seen["teacher_chunks"]) == ([0, 0, 1, 2], [0, 0, 1, 2, 2])
    assert (seen["exact"], seen["correct"]) == ([0, 0, 1, 0], 3)


class Largest(Choices):
    """Always choose the last option."""

    def integer(self, low: int, high: int) -> int:
        return high

    def one_of(self, choices: Any) -> Any:
        return choices[-1]


@pytest.mark.parametrize("choose", [Choices(b""), Largest(b""), *(Choices(bytes([n] * 40)) for n in (90, 160, 220))])
def test_both_tokenizations_of_a_scenario_spell_the_same_text(choose: Choose):
    assert TOKEN_ALIGNMENT.arrange is not None
    made = TOKEN_ALIGNMENT.arrange({}, choose)
    assert "".join(made["student"]) == "".join(made["teacher"])
    assert all([*made["student"], *made["teacher"]])
