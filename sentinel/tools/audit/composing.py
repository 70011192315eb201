"""A Hydra configuration as a run gets it: what its ``defaults`` list names, with what it says itself.

hydra-core composes it, in a process of its own, and is given folders alone. A ``pkg://`` search path would import the
package, and that may be the copy that is looked at: it becomes the package's folder in the copy. Interpolations stay
text, and nothing is taken from the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.tools.audit import hydra_process
from sentinel.tools.audit.declared import places, tree_folders
from sentinel.tools.audit.files import mapping_of

#: Seconds; the largest configuration that people train with takes one.
_PATIENCE = 30


class NotComposedError(SentinelError):
    """Why a configuration could not be composed. What it says itself can still be read."""


class HydraMissingError(NotComposedError):
    """There is no Hydra beside Sentinel."""


def named(data: Mapping[Any, Any]) -> list[str]:
    """Say what the ``defaults`` list of a configuration names beside itself, in words."""
    listed = data.get("defaults")
    return [
        ", ".join(f"{name}: {value}" for name, value in entry.items()) if isinstance(entry, dict) else str(entry)
        for entry in (listed if isinstance(listed, list) else ())
        if entry != "_self_"
    ]


def search_path(
    data: Mapping[Any, Any], catalog: Catalog, target: Target, checkout: Checkout
) -> tuple[list[Path], list[str]]:
    """Say where files are looked for that a configuration names, beside its own folder: first where it says itself,
    then where the copy has its own."""
    node = data.get("hydra")
    written = node.get("searchpath") if isinstance(node, dict) else None
    folders, left_out = [], []
    for entry in written if isinstance(written, list) else ():
        scheme, _, name = str(entry).rpartition("://")
        folder = next(filter(os.path.isdir, _meant(scheme, name, target, checkout)), None)
        if folder is not None:
            folders.append(folder.absolute())
        else:
            left_out.append(
                f"hydra.searchpath: {entry} is left out: it is no folder here, and no package or folder of "
                f"{target.name}; name the folder, as file:///…"
            )
    return list(dict.fromkeys([*folders, *tree_folders(catalog, target, checkout)])), left_out


def _meant(scheme: str, name: str, target: Target, checkout: Checkout) -> Iterator[Path]:
    """Give the folders that an entry of a search path may mean, in the order in which they count."""
    if scheme == "pkg" and all(part.isidentifier() for part in name.split(".")):
        yield from (root.joinpath(*name.split(".")) for root in checkout.import_roots)
    elif scheme in ("", "file") and name:
        yield Path(name)
        if not Path(name).is_absolute():
            yield from places(target, checkout, name)


def composed(file: Path, folders: Sequence[Path]) -> dict[Any, Any]:
    """Give a configuration with all that it is composed of."""
    if file.suffix != ".yaml":
        raise NotComposedError("Hydra reads files whose names end in .yaml alone")
    # Isolated: the current folder may be the copy, and no plugin of Hydra's may come from there.
    command = [sys.executable, "-I", "-X", "utf8", hydra_process.__file__, *map(str, (file.absolute(), *folders))]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE, check=False, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotComposedError(f"Hydra takes longer than {_PATIENCE} seconds") from None
    if done.returncode == hydra_process.NO_HYDRA:
        raise HydraMissingError("hydra-core is not installed")
    if done.returncode:
        raise NotComposedError(f"Hydra says: {done.stderr.strip() or f'nothing, and ended with {done.returncode}'}")
    return mapping_of(done.stdout, f"{file} (composed)")
