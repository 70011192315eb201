"""Whether a configuration reaches a bug: said only where the recipe names settings that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.errors import SentinelError
from sentinel.findings.reach import flattened, reach, read

AFFECTS = ["loss_agg_mode=token-mean with any masked token"]


@pytest.mark.parametrize(
    ("configuration", "answer"),
    [
        ({"actor": {"loss_agg_mode": "token-mean"}}, "reached"),
        ({"actor": {"loss_agg_mode": "seq-mean-token-sum"}}, "not reached"),
        ({"actor": {"lr": 1.0}}, "not known"),
        ({"actor": {"loss_agg_mode": "token-mean"}, "critic": {"loss_agg_mode": "token-sum"}}, "not known"),
    ],
)
def test_one_setting(configuration: object, answer: str) -> None:
    assert reach(AFFECTS, flattened(configuration))[0] == answer


def test_all_settings_of_a_line_and_any_line() -> None:
    affects = ["a.x=true together with a.y=grpo", "b=1"]
    assert reach(affects, flattened({"a": {"x": True, "y": "grpo"}, "b": 2}))[0] == "reached"
    assert reach(affects, flattened({"a": {"x": False, "y": "grpo"}, "b": 2}))[0] == "not reached"
    assert reach(affects, flattened({"a": {"x": True}, "b": 2}))[0] == "not known"
    assert reach([], {})[0] == "not known"


def test_a_file_that_is_no_configuration_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for text in ("- 1", "a: [", "just words"):
        file.write_text(text)
        with pytest.raises(SentinelError, match=r"run\.yaml"):
            read(file)
    with pytest.raises(SentinelError, match="No such file"):
        read(tmp_path / "gone.yaml")


def test_one_is_not_true(tmp_path: Path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text("lr: 1\nclip: 0.0\nflag: true\nnone:\n")
    assert read(file) == {"lr": "1", "clip": "0.0", "flag": "true", "none": "null"}
