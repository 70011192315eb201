from collections.abc import Iterator
from functools import partial

import pytest

from sentinel.binding import drift
from sentinel.worker import defaults

CONFIGURATION = """
from dataclasses import dataclass, field

@dataclass
class Loss:
    clip: float = 0.2
    mode: str = "mean"
    scale: int = 3

@dataclass
class Other:
    clip: float = 0.2
    rate: float = 0.1
    scale: int = 4

@dataclass
class Options:
    loss: Loss = field(default_factory=Loss)
    other: Other = field(default_factory=Other)
"""

FILE = "loss: {clip: 0.2, mode: mean, scale: '${other.scale}', steps: 5}\n"


@pytest.fixture
def sources(tmp_path, monkeypatch) -> Iterator[list[str]]:
    (tmp_path / "own_options.py").write_text(CONFIGURATION)
    (tmp_path / "own_options.yaml").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    yield ["own_options.Options", "own_options.yaml"]
    defaults._nodes.cache_clear()


@pytest.mark.parametrize(
    ("source", "given", "name", "said"),
    [
        (0, {"clip": 0.5, "mode": "sum", "of_another_package": 1}, "scale", [3]),
        (0, {"clip": 0.5, "rate": 1.0}, "scale", [4]),  # the part with more of the options
        (0, {"clip": 0.5}, "scale", []),  # one common attribute is not enough
        (0, {"clip": 0.5, "scale": 1}, "name", []),
        (1, {"clip": 0.5, "mode": "sum"}, "steps", [5]),
        (1, {"clip": 0.5, "mode": "sum"}, "scale", []),  # it belongs to another option
        (0, {"rate": 1.0, "mode": "sum", "clip": 0.5}, "scale", []),  # two parts have as many, and differ
    ],
)
def test_a_default_comes_from_the_part_that_shares_most_attributes(sources, source, given, name, said):
    assert defaults.default_of(sources[source : source + 1], given, name) == said


def test_a_stand_in_configuration_takes_missing_options_from_the_defaults(sources, monkeypatch):
    monkeypatch.setattr(drift, "_declared", [partial(defaults.default_of, sources[:1])])
    args = drift.StandInNamespace(clip=0.5, mode="sum")
    assert (args.clip, args.scale, getattr(args, "unknown", None)) == (0.5, 3, None)
    with pytest.raises(drift.StandInMissingError, match="'unknown', which the adapter's stand-in lacks"):
        _ = args.unknown
    with pytest.raises(drift.StandInMissingError, match="'scale'"):
        _ = drift.StandInNamespace(clip=0.5).scale
