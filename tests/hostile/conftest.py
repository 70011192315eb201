"""Fixtures: run attacks under the containment level that a test names."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks import ATTACKS, Attack
from demo_kit import Lab, returned

from sentinel.sources import Home, MirrorStore
from sentinel.worker.client import Preloader


@pytest.fixture
def store(tmp_path: Path) -> MirrorStore:
    return MirrorStore(Home(tmp_path / "home"))


@pytest.fixture
def _strict_is_to_be_had(offered: Callable[[str], str]) -> None:
    offered("strict")


@pytest.fixture
def lab(preloader: Preloader, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(preloader, tmp_path / "lab")
    yield lab
    for process in lab.processes:
        process.close()


def _attacking(lab: Lab, **options: Any) -> Attack:
    process = lab.open(lab.write({"attacks.py": ATTACKS}), **options)

    def attack(what: str, **arguments: Any) -> Any:
        return returned(lab.probe(process, f"pkg.attacks.{what}", **arguments))

    return attack


@pytest.fixture
def strict(_strict_is_to_be_had: None, lab: Lab) -> Attack:
    return _attacking(lab, sandbox="strict")


@pytest.fixture
def basic(lab: Lab) -> Attack:
    return _attacking(lab, sandbox="basic")
