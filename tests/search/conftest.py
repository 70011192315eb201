"""Fixtures: an open target with toy functions, some with known faults."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_kit import Lab
from toy import TOY, TOY_ALONE, TOY_WITH_MANY_OFFSETS, TOY_WITH_OFFSET
from toy_target import TOYS, OpenToys

from sentinel.deciding.law_session import Subject
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Runner
from sentinel.recipes.catalog import Catalog
from sentinel.search.checks import subjects
from sentinel.sources import open_checkout
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options, Preloader


@pytest.fixture
def toys(catalog: Catalog) -> Catalog:
    return catalog.with_(
        adapters=[Path(__file__).parent / "toy_adapter.py"],
        contracts=[TOY, TOY_ALONE, TOY_WITH_OFFSET, TOY_WITH_MANY_OFFSETS],
    )


@pytest.fixture
def runners() -> Iterator[list[Runner]]:
    """The runners of the open targets of a test, in order."""
    opened: list[Runner] = []
    yield opened
    for runner in opened:
        runner.close()


@pytest.fixture
def open_toys(toys: Catalog, lab: Lab, warm_runs: Preloader, runners: list[Runner]) -> OpenToys:
    def opened(*names: str, code: str = TOYS, **options: float) -> tuple[OpenTarget, dict[str, Subject]]:
        tree = lab.write({"toys.py": code})

        def checkout(target: object, ref: Ref, pull: int | None) -> Checkout:
            return open_checkout(toys.adapters["toys"].target, ref)

        runner = Runner(toys, checkout, Options(**{"timeout": 20.0, **options}))
        runners.append(runner)
        found = {item.boundary.rpartition(".")[2]: item for item in subjects(toys, "toys")[0]}
        wanted = {name: found[name] for name in names} if names else found
        open_target = runner.open_target("toys", Ref("path", str(tree)), [item.binding for item in wanted.values()])
        return open_target, wanted

    return opened
