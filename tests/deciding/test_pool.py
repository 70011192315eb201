import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from sentinel.deciding.outcomes import Failure
from sentinel.deciding.pool import Processes, contained_places
from sentinel.errors import INSTALL
from sentinel.recipes.catalog import bundled, bundled_catalog
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options, Preloader


@pytest.mark.parametrize("kind", ["oracle", "target"])
def test_concurrent_threads_share_one_process(kind, catalog, warm_runs, fixed_tree, monkeypatch):
    """A second process would be discarded, together with all that a thread had started in it."""
    made: list[object] = []
    make = getattr(Preloader, kind)

    def counted(*given: object) -> object:
        made.append(make(*given))
        return made[-1]

    monkeypatch.setattr(Preloader, kind, counted)
    demo, ref = catalog.targets["demo"], Ref("path", str(fixed_tree))
    checkout = open_checkout(demo, ref)
    processes = Processes(catalog, Options())
    processes.preloader("demo").require(())
    together = threading.Barrier(4)

    def ask(_: int) -> object:
        together.wait()
        if kind == "target":
            return processes.loaded(demo, ref, checkout).process
        return processes._oracle("demo")

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    try:
        assert made == [answers[0]]
        assert answers == made * 4
    finally:
        processes.close()


@pytest.mark.parametrize(("device", "imported"), [("cpu", 1), ("cuda", 0)])
def test_nothing_is_imported_before_probes_that_use_a_gpu(device, imported, catalog, fixed_tree, monkeypatch):
    """After a module has used the GPU at import, forks of the process cannot use it."""
    loads: list[object] = []
    process = SimpleNamespace(
        dead=None, load=lambda *paths: loads.append(paths), probe=lambda request: None, close=bool
    )
    monkeypatch.setattr(Preloader, "target", lambda *_: process)
    processes = Processes(catalog, Options(device=device))
    demo, ref = catalog.targets["demo"], Ref("path", str(fixed_tree))
    request = {"contract": "call", "contract_file": "call.py"}
    processes.loaded(demo, ref, open_checkout(demo, ref)).probe(demo.bindings[0].boundary, request)
    assert len(loads) == imported


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        (("modelscope",), "demo needs modelscope, not installed here: pip install modelscope"),
        (("ray",), "demo needs ray, not installed here: pip install ray"),  # Sentinel's own extra `ray` is for sweeps
        (
            ("tensordict", "modelscope", "omegaconf"),
            "demo needs tensordict and modelscope and omegaconf, not installed here: "
            f"{INSTALL.format('targets')}; pip install modelscope",
        ),
        (("transformers", "pydantic"), f"not installed here: {INSTALL.format('nemorl')}"),
    ],
)
def test_all_missing_packages_are_named_with_an_extra_that_has_them(packages, said, catalog, warm_runs):
    processes = Processes(catalog, Options())
    explained = processes.explain("demo", Failure("import", "the module does not import", packages=packages))
    processes.close()
    assert explained.reason.endswith(said)


def test_a_package_that_only_this_process_finds_is_named(catalog, warm_runs, tmp_path, monkeypatch):
    (tmp_path / "modelscope.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    processes = Processes(catalog, Options())
    explained = processes.explain("demo", Failure("import", "it does not import", packages=("modelscope", "missing")))
    processes.close()
    assert explained.reason.endswith("; modelscope can be imported here, but workers do not read PYTHONPATH")


def test_an_adapter_is_visible_with_its_package(tmp_path):
    """An adapter may import modules of its own package, even if this is an editable install (only it is mounted)."""
    package = tmp_path / "project" / "mine"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py"):
        (package / name).write_text("")
    adapter = package / "inner" / "adapter.py"
    adapter.write_text(bundled("adapters").joinpath("demo.py").read_text().replace('name="demo"', 'name="mine"'))
    places = contained_places(bundled_catalog().with_(adapters=[adapter]), ["omegaconf"])
    assert str(package) in places.readable
    assert str(bundled("adapters") / "demo.py") in places.readable
    assert places.packages == ("omegaconf",)
