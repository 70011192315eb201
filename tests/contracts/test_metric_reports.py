from typing import Any

import pytest
import torch
from contract_kit import measured, scenario

MASK = torch.tensor([[1, 0], [1, 1]])


def test_metrics_exclude_padding():
    seen = measured("batch_report", advantages=torch.tensor([[1.0, 99.0], [2.0, -3.0]]), response_mask=MASK)
    assert (seen["advantages_mean"], seen["advantages_max"], seen["advantages_min"]) == (0.0, 2.0, -3.0)
    assert (seen["response_length_mean"], seen["response_length_max"], seen["response_length_min"]) == (1.5, 2.0, 1.0)
    assert seen["values_mean"] is None


def test_an_integer_mask_changes_no_metric():
    def twin(advantages: Any, response_mask: Any, **_: Any) -> dict[str, Any]:
        return {"advantages_max": advantages[response_mask].max()}

    seen = measured("batch_report", twin, advantages=torch.tensor([[1.0, 99.0], [2.0, -3.0]]), response_mask=MASK)
    assert seen["advantages_max"] == 99.0


def test_the_smallest_ratio_excludes_masked_zeros():
    given = {
        "log_probs": torch.log(torch.tensor([[1.5, 2.0, 1.0]])),
        "old_log_probs": torch.zeros(1, 3),
        "response_mask": torch.tensor([[1, 1, 0]]),
    }

    def twin(log_probs: Any, response_mask: Any, **_: Any) -> dict[str, Any]:
        ratios = log_probs.exp() * response_mask
        return {"ratio_max": ratios.max(), "ratio_min": ratios.min()}

    assert measured("ratio_report", **given) == {"ratio_max": pytest.approx(2.0), "ratio_min": pytest.approx(1.5)}
    assert measured("ratio_report", twin, **given)["ratio_min"] == 0.0


def test_explained_variance_equals_the_definition(oracle):
    """Over the three valid tokens, the returns 1, 2 and 3 have variance 1, and the errors 0, 0 and 1.5 have 0.75."""
    rows = {"returns": [[1.0, 2.0], [3.0, 9.0]], "values": [[1.0, 2.0], [1.5, 0.0]], "response_mask": [[1, 1], [1, 0]]}
    seen = oracle("explained_variance", scenario("explained_variance", **rows))
    assert seen == {"explained_variance": pytest.approx(0.25)}
    shifted = {**rows, "values": [[11.0, 12.0], [13.0, 0.0]]}  # a constant error counts as explained
    assert oracle("explained_variance", scenario("explained_variance", **shifted))["explained_variance"] == 1.0


def test_a_mean_of_parts_weighs_samples_equally():
    given = {"parts": [[1.0, 1.0, 1.0], [0.0, None]], "missing": True}

    def twin(parts: Any, **_: Any) -> dict[str, Any]:
        means = [sum(value or 0.0 for value in part) / len(part) for part in parts]
        return {"mean": sum(means) / len(means)}

    assert measured("mean_of_parts", **given) == {"mean": 0.75, "loss": 0.25}
    assert measured("mean_of_parts", twin, **given) == {"mean": 0.5, "loss": None}


def test_pass_at_k_counts_sets_of_k_responses():
    """Three of the six pairs of 1, 0, 0, 0 contain the 1. One pair of 1, 1, 0, 0 contains none."""
    given = {"right": [[1, 0, 0, 0], [1, 1, 0, 0]], "of": "any"}
    assert measured("pass_at_k", k=2, **given)["pass_at_k"] == pytest.approx((3 / 6 + 5 / 6) / 2)
    assert measured("pass_at_k", k=4, **given) == {"pass_at_k": 1.0, "mean": 0.375}
    assert measured("pass_at_k", k=1, scale=100.0, **given)["pass_at_k"] == pytest.approx(37.5)
