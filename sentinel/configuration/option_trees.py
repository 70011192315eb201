"""Options that are declared as a tree of values in YAML (OmegaConf, Hydra)."""

from __future__ import annotations

from pathlib import Path

from sentinel.configuration.files import flattened, read_mapping
from sentinel.configuration.options import Option


def options_of_tree(file: Path) -> dict[str, Option]:
    """What the file itself says. What its Hydra ``defaults`` list brings in is not looked up: it is no option here."""
    data = {name: value for name, value in read_mapping(file).items() if name not in ("defaults", "hydra")}
    missing = "???"  # OmegaConf's word for a value that must be given
    return {name: Option(None if text == missing else text) for name, text in flattened(data).items()}
