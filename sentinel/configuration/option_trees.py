"""Options that are declared as a tree of values in YAML (OmegaConf, Hydra)."""

from __future__ import annotations

from pathlib import Path

from sentinel.configuration.files import MISSING, flattened, read_mapping, settings_of
from sentinel.configuration.options import Option


def options_of_tree(file: Path) -> dict[str, Option]:
    """What the file itself says. What its Hydra ``defaults`` list brings in is not looked up: it is no option here."""
    data = settings_of(read_mapping(file))
    return {name: Option(None if text == MISSING else text) for name, text in flattened(data).items()}
