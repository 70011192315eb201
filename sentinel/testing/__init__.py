"""Check a function of your own against the laws of a contract, in this process: see docs/own.md.

Importing this module imports neither torch nor Hypothesis.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.contracts.contract import Contract
    from sentinel.testing.report import Report

__all__ = ["LawBroken", "check_function", "parametrize_with_laws"]


class LawBroken(AssertionError):
    """Raised by a check: the function breaks a law, or the check of a law examined nothing that it should have."""


def check_function(
    f: Callable[..., Any],
    contract: str | Contract,
    *,
    names: Mapping[str, str | None] | None = None,
    call: Callable[[Any, Any], Any] | None = None,
    outputs: Sequence[str] | Mapping[str, Any] = (),
    expected_failed_laws: Mapping[str, str] | None = None,
    dialects: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtypes: Sequence[str] = ("float32", "float64", "bfloat16"),
    examples: int = 100,
    seed: int | None = None,
    **choices: Any,
) -> Report:
    """Check a function against all laws of a contract and return the report.

    :param contract: the contract, or its name; ``sentinel list contracts`` lists them.
    :param names: the contract's input -> the function's parameter, if the name is not the field's; None if the function
        does not have the input. One parameter may serve several inputs.
    :param call: ``call(f, x)`` calls the function, if it takes something else than the contract's tensors; ``x.name``
        is the input of that name.
    :param outputs: the contract's names of the returned tuple's elements, or output -> key, attribute or index.
    :param expected_failed_laws: law -> why the function is not meant to keep it. A law that it keeps is an error.
    :param dialects: the function's value for a choice on which papers and code legitimately differ.
    :param device: where the tensors are: ``cpu``, ``cuda``, ``cuda:1``.
    :param dtypes: the dtypes of float tensors; empty: float16 too.
    :param examples: the number of scenarios.
    :param seed: determines the scenarios. The default is pytest's ``--hypothesis-seed``, or 0.
    :param choices: an input's value. A tuple contains the values to draw from.
    :raises TypeError: if the function's parameters do not match the contract's inputs.
    """
    from sentinel.testing.checking import make_check

    options: dict[str, Any] = {"names": names, "call": call, "outputs": outputs, "dialects": dialects, "device": device}
    options |= {"dtypes": dtypes, "examples": examples, "seed": seed, "expected_failed_laws": expected_failed_laws}
    return make_check(contract, {**choices, **options}).report(f)


def parametrize_with_laws(
    f: Callable[..., Any] | None, contract: str | Contract, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test once for each law of a contract. The test takes ``check`` and calls it.

    In pytest each law is one test. A method of ``unittest.TestCase`` runs each law as a subtest.

    :param f: the function; None if the test passes it: ``check(f)``.
    :param options: see :func:`check_function`.
    """
    from sentinel.testing.checking import make_check

    check = make_check(contract, options)
    if f is not None:
        check.bind(f)  # raises for a wrong name when the module is imported, not in each test

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def run(*arguments: Any, **named: Any) -> Any:
            if "check" in named:
                return test(*arguments, **named)
            case = arguments[0] if arguments and isinstance(arguments[0], unittest.TestCase) else None
            for law in check.laws:
                with case.subTest(law) if case else contextlib.suppress(unittest.SkipTest):
                    check.run_expecting(law, lambda one: test(*arguments, check=one, **named), f)
            return None

        run.pytestmark = [*getattr(test, "pytestmark", ()), *check.marks(f)]  # type: ignore[attr-defined]
        return run

    return decorate
