"""An exception belongs to the target or to the harness."""

import pytest
import torch

from sentinel.worker import attribution, tensors

TARGET, ADAPTER, CONTRACT, KIT, TORCH = (
    "/checkout/rl/losses.py", "/elsewhere/adapter.py", "/elsewhere/rules/__init__.py",
    f"{attribution._SENTINEL}binding/kit/calls.py", "/site-packages/torch/functional.py",
)  # fmt: skip


def raised(statement: str, *files: str) -> BaseException:
    """Return the exception of a statement in the last file; code of each file calls code of the next."""
    inner = f"lambda: exec(compile({statement!r}, {files[-1]!r}, 'exec'))"
    for file in files[-2::-1]:
        inner = f"lambda: eval(compile({f'({inner})()'!r}, {file!r}, 'eval'))"
    try:
        eval(inner)()
    except (LookupError, ValueError, ArithmeticError, OSError) as error:
        return error
    raise AssertionError(f"{statement} raises nothing")


@pytest.mark.parametrize(
    ("statement", "files", "is_harness"),
    [
        ("{}['ratio']", [KIT], True),
        ("{}['ratio']", [ADAPTER], True),
        ("{}['ratio']", ["/elsewhere/rules/other.py"], True),
        ("{}['ratio']", ["/elsewhere/adapter_of_another.py"], False),
        ("{}['ratio']", [ADAPTER, TARGET], False),
        ("raise ValueError('no batch')", [KIT, ADAPTER, TARGET], False),
        ("1 / 0", [ADAPTER, TORCH], True),  # an error of torch belongs to its caller
        ("1 / 0", [ADAPTER, TARGET, TORCH], False),
        ("{}['ratio']", [ADAPTER, TARGET, KIT], True),  # a wrong stand-in that the target calls
        ("raise OSError('the engine is gone')", [ADAPTER, TARGET, KIT], False),  # a stand-in that raises on purpose
        ("raise ValueError('one value')", [KIT, ADAPTER], True),
        ("1 / 0", [KIT, "/site-packages/torch/autograd/__init__.py"], False),  # the target's graph has no derivative
    ],
)
def test_an_exception_belongs_to_the_innermost_own_code(statement, files, is_harness):
    error = raised(statement, *files)
    place = attribution.harness_place(error, ("/checkout",), (ADAPTER, CONTRACT))
    assert (place is not None) == is_harness
    assert place is None or place.tb_frame.f_code.co_filename in files


def test_calls_of_torch_on_another_device_belong_to_their_caller():
    """There, each call of torch passes a function of Sentinel, which is the innermost frame."""
    file, names = TARGET, {"torch": torch}
    exec(compile("def add():\n    return torch.ones(2) + torch.ones(3)", file, "exec"), names)
    with tensors.on_device("meta"), pytest.raises(RuntimeError) as raised:
        names["add"]()
    assert attribution.harness_place(raised.value, ("/checkout",), (ADAPTER, CONTRACT)) is None
    assert attribution.programming_error(raised.value, ("/checkout",)) == "RuntimeError"
