"""Start a worker. This file is run by its path, in any interpreter with torch and numpy.

``bootstrap.py DESCRIPTOR`` runs the preloader; ``bootstrap.py --contained SETTINGS PROGRAM ARGUMENT...`` runs a command
in containment. The package ``sentinel`` is loaded from its file, and the folder that contains it is not added to
``sys.path``, so the worker cannot import the other packages of the controller's environment.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def main() -> None:
    package = Path(__file__).resolve().parent.parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != package / "worker"]
    spec = spec_from_file_location("sentinel", package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["sentinel"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["sentinel"])
    if sys.argv[1] == "--contained":
        from sentinel.worker.interpreters import run

        run(sys.argv[2], sys.argv[3:])
    from sentinel.worker.preloader import serve

    serve(int(sys.argv[1]))


if __name__ == "__main__":
    main()
