import math
from typing import Any

import pytest
from contract_kit import measured

STEERED: dict[str, Any] = {
    "adaptive": True,
    "initial": 0.5,
    "target_kl": 2.0,
    "horizon": 10,
    "samples_per_step": 5,
    # 50 % and 10 % above the target, at the target, 50 % below.
    "kls": [3.0, 2.2, 2.0, 1.0],
}


def test_an_adaptive_coefficient_moves_towards_its_target():
    seen = measured("kl_coefficient", **STEERED)["coefficients"]
    # By half of the error, which is clipped to 0.2.
    assert seen == pytest.approx([0.5, 0.5 * 1.1, 0.55 * 1.05, 0.55 * 1.05, 0.55 * 1.05 * 0.9], rel=1e-12)


def test_a_fixed_coefficient_does_not_change():
    assert measured("kl_coefficient", **{**STEERED, "adaptive": False})["coefficients"] == [0.5] * 5


def _rates(schedule: str, **given: Any) -> list[float]:
    rates: list[float] = measured("learning_rate", schedule=schedule, **given)["rates"]
    return rates


def test_learning_rates_equal_hand_computed_ones():
    given: dict[str, Any] = {"warmup_steps": 2, "training_steps": 6, "peak": 4.0}
    assert _rates("constant", **given) == [0.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert _rates("constant", **{**given, "warmup_steps": 0}) == [4.0] * 6
    eighth = math.cos(math.pi / 4)
    assert _rates("cosine", **given) == pytest.approx([0, 2, 4, 2 + 2 * eighth, 2, 2 - 2 * eighth])
    assert _rates("cosine", **given, min_ratio=0.5) == pytest.approx([0, 2, 4, 3 + eighth, 3, 3 - eighth])
    assert _rates("cosine", **given, first_step=1) == pytest.approx([2, 4, 2 + 2 * eighth, 2, 2 - 2 * eighth, 0])
    assert _rates("wsd", **given, stable_ratio=0.5) == pytest.approx([0, 2, 4, 4, 4, 2])
    assert _rates("wsd", **given, stable_ratio=0.0) == pytest.approx(_rates("cosine", **given))


def test_the_warm_up_starts_at_the_configured_rate():
    given: dict[str, Any] = {"warmup_steps": 2, "training_steps": 3, "min_ratio": 0.5}
    assert _rates("cosine", **given) == [0.0, 0.5, 1.0]
    assert _rates("cosine", **given, initial_ratio=0.2) == pytest.approx([0.2, 0.6, 1.0])
    assert _rates("cosine", **given, warmup_from="minimum") == [0.5, 0.75, 1.0]


def test_a_first_rate_of_zero_is_detected():
    """Until #1463, verl added one warm-up step if there were none."""

    def call(training_steps: int, warmup_steps: int, **_: Any) -> dict[str, Any]:
        return {"rates": [min(1, step / max(1, warmup_steps)) for step in range(training_steps)]}

    given: dict[str, Any] = {"schedule": "constant", "training_steps": 3}
    assert measured("learning_rate", call, warmup_steps=2, **given) == measured(
        "learning_rate", warmup_steps=2, **given
    )
    assert measured("learning_rate", call, warmup_steps=0, **given)["rates"][0] == 0.0


def test_the_schedule_length_counts_samples_and_epochs():
    """6 of 8 steps are allowed. Each has 4 * 2 * 3 samples, trained on twice in batches of 8, so it makes 6 updates."""
    given = {"steps_per_epoch": 4, "epochs": 2, "max_steps": 6, "prompts_per_step": 4, "samples_per_prompt": 2}
    given |= {"turns": 3, "batch_size": 8, "update_epochs": 2, "warmup_ratio": 0.25}

    def twin(turns: int, **others: Any) -> dict[str, Any]:
        return {"length": 12}

    assert measured("schedule_length", **given) == {"length": 36.0, "warmup": 9.0}
    assert measured("schedule_length", unit="steps", **given)["length"] == 6.0
    assert measured("schedule_length", unit="samples", **given)["length"] == 288.0
    assert measured("schedule_length", twin, **given) == {"length": 12.0, "warmup": None}
