"""Check your own functions against the laws of a contract, in the current process. See docs/own.md.

Importing this module imports neither torch nor Hypothesis.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from sentinel.testing.errors import LawBroken

if TYPE_CHECKING:
    from sentinel.contracts.contract import Contract
    from sentinel.testing.report import Report

__all__ = ["LawBroken", "check_function", "parametrize_with_laws"]


def check_function(f: Callable[..., Any], contract: str | Contract, **options: Any) -> Report:
    """Check a function against all laws of a contract and return the report.

    :param contract: the contract, or its name. ``sentinel list contracts`` lists the names.
    :param options: ``names``, ``call``, ``shapes``, ``outputs``, ``expected_failed_laws``, ``dialects``, ``device``,
        ``dtypes``, ``examples`` and ``seed``: see :class:`sentinel.testing.checking.Check`. Any other keyword sets the
        contract's input with this name to a value, or to a tuple of values to draw from.
    :raises TypeError: if the function's parameters do not match the contract's inputs.
    """
    from sentinel.testing.checking import Check

    return Check(contract, **options).report(f)


def parametrize_with_laws(
    f: Callable[..., Any] | None, contract: str | Contract, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that runs a test once for each law of a contract.

    The test must have a parameter ``check`` and must call it. In pytest, each law is a separate test; in a method of
    ``unittest.TestCase``, each law is a subtest.

    :param f: the function to check, or None if the test passes the function: ``check(f)``.
    :param options: see :func:`check_function`.
    """
    from sentinel.testing.checking import Check

    check = Check(contract, **options)
    if f is not None:
        check.bind(f)  # so that a wrong name raises when the module is imported, and not in each test

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def run(*arguments: Any, **named: Any) -> Any:
            if "check" in named:
                return named["check"].require_call(test(*arguments, **named))
            case = arguments[0] if arguments and isinstance(arguments[0], unittest.TestCase) else None
            for law in check.laws:
                with case.subTest(law) if case else contextlib.suppress(unittest.SkipTest):
                    check.run_expecting(law, lambda one: one.require_call(test(*arguments, check=one, **named)), f)
            return None

        run.pytestmark = [*getattr(test, "pytestmark", ()), *check.marks(f)]  # type: ignore[attr-defined]
        return run

    return decorate
