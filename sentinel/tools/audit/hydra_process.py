"""What :mod:`sentinel.tools.audit.composing` runs in a process of its own: ``FILE FOLDER...`` -> YAML, or a sentence.

It is no part of the package there, and imports nothing of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

#: The exit status where Hydra is not installed.
NO_HYDRA = 3

#: Bytes: a few aliases of aliases, which Hydra copies, are a thousand million settings.
_MEMORY = 2 << 30

#: What takes a value from elsewhere than the configuration. The names of the files that it is composed of may need one.
_RESOLVERS = ("oc.env", "now", "hydra", "python_version")


def main(file: str, folders: Sequence[str]) -> int:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.environ.clear()
    try:
        from hydra import compose  # noqa: F401
    except ImportError:
        return NO_HYDRA
    try:
        text = _composed(file, folders)
    except Exception as error:  # Hydra, OmegaConf and PyYAML raise what they like at a file that is no good
        print(_sentence(error), file=sys.stderr)
        return 1
    print(text)
    return 0


def _composed(file: str, folders: Sequence[str]) -> str:
    import warnings

    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    warnings.simplefilter("ignore")
    folder, name = os.path.split(file)
    with initialize_config_dir(folder, version_base=None):
        for resolver in _RESOLVERS:
            OmegaConf.clear_resolver(resolver)
        # Given even where it is empty: it replaces the file's own, which may name packages.
        path = ",".join(map(_quoted, folders))
        made = compose(name.removesuffix(".yaml"), [f"hydra.searchpath=[{path}]"])
        return OmegaConf.to_yaml(made, resolve=False)


def _quoted(folder: str) -> str:
    """Quote a folder in Hydra's grammar, where a quote and the backslashes before it are escaped."""
    import re

    inner = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), folder)
    return f"'file://{inner}'"


def _sentence(error: Exception) -> str:
    """Shorten an error by the list of places where Hydra looked."""
    if isinstance(error, RecursionError):
        return "the files name each other without end, or are nested too deep"
    text = " ".join(str(error).partition("\nConfig search path:")[0].split()).rstrip(".")
    return text or type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
