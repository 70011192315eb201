import os
from collections.abc import Iterator

import pytest
from demo_kit import MASKED_TOKENS

pytestmark = pytest.mark.usefixtures("_strict_is_to_be_had")


@pytest.fixture(autouse=True)
def _secretive() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_checkouts_are_readable_under_any_umask(decide, demo_home, demo_repository):
    decision = decide(MASKED_TOKENS, f"git:{demo_repository.commits['broken']}", sandbox="strict")
    assert decision.verdict.name == "reproduced", decision.verdict.reason
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in decision.checkout.path.rglob("*"))
