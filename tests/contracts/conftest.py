"""The contracts' float64 references, asked in an oracle process as a run asks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from contract_kit import Oracle, scenario

from sentinel.contracts.contract import DoesNotApply
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import Tensor
from sentinel.worker.answers import Sat
from sentinel.worker.client import Zygote


@pytest.fixture(scope="session")
def _session(zygote: Zygote) -> Iterator[Any]:
    process = zygote.oracle()
    served = process.session()
    yield served
    served.close()
    process.close()


@pytest.fixture
def oracle(_session: Any) -> Oracle:
    """``oracle(contract, **inputs)`` with the contract's defaults, or ``oracle(contract, whole scenario)``."""

    def ask(name: str, whole: Mapping[str, Any] | None = None, /, **inputs: Any) -> dict[str, Any]:
        contract = bundled_catalog().contracts[name]
        asked = scenario(name, **inputs) if whole is None else dict(whole)
        file = contract.measure.__code__.co_filename
        request = {"boundary": "", "contract": name, "contract_file": file, "adapter": "", "given": []}
        _session.send({**request, "describe": False, "calls": {"": {"inputs": asked}}})
        told = _session.receive()
        assert isinstance(told, Sat), told
        answer = told.answers[""]
        if answer.silent:
            raise DoesNotApply(answer.silent)
        assert answer.observation is not None, answer
        return {key: v.nested() if isinstance(v, Tensor) else v for key, v in answer.observation.items()}

    return ask
