"""Fixtures: the contracts' float64 references, computed in an oracle process as in a run."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from contract_kit import Oracle, scenario

from sentinel.contracts.contract import DoesNotApply
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import Tensor
from sentinel.worker.answers import Replies
from sentinel.worker.client import Preloader


@pytest.fixture(scope="session")
def _sessions(preloader: Preloader) -> Iterator[Any]:
    """Return an iterator of oracle sessions: always the same, or a new one if a test has killed the preloader."""
    with contextlib.ExitStack() as stack:

        def sessions() -> Iterator[Any]:
            while True:
                process = stack.enter_context(contextlib.closing(preloader.oracle()))
                session = stack.enter_context(contextlib.closing(process.session()))
                while not session.dead:
                    yield session

        yield sessions()


@pytest.fixture
def oracle(_sessions: Any) -> Oracle:
    """Return a function ``oracle(contract, **inputs)``, with the contract's defaults, or ``oracle(contract,
    scenario)``.
    """

    def ask(name: str, whole: Mapping[str, Any] | None = None, /, **inputs: Any) -> dict[str, Any]:
        contract = bundled_catalog().contracts[name]
        asked = scenario(name, **inputs) if whole is None else dict(whole)
        file = contract.file
        request = {"boundary": "", "contract": name, "contract_file": file, "adapter": "", "given": []}
        for _ in range(2):
            session = next(_sessions)
            session.send({**request, "describe": False, "calls": {"": {"inputs": asked}}})
            told = session.receive()
            if not session.dead:
                break
        assert isinstance(told, Replies), told
        answer = told.answers[""]
        if answer.silent:
            raise DoesNotApply(answer.silent)
        assert answer.observation is not None, answer
        return {key: v.nested() if isinstance(v, Tensor) else v for key, v in answer.observation.items()}

    return ask
