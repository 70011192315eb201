"""A log is evidence only if each named test failed without the fix and passed with it."""

import pytest

from sentinel.tools.upstream.upstream_tests import proves

TEST = "tests/test_loss.py::test_mask"


def log(without: str, with_fix: str) -> str:
    return f"$ pytest {TEST}  # without the fix\n{without}\n\n$ pytest {TEST}  # with the fix\n{with_fix}\n"


@pytest.mark.parametrize(
    ("without", "with_fix", "proven"),
    [
        ("===== 1 failed, 2 passed =====", "===== 3 passed =====", True),
        ("1 failed", "1 passed, 1 skipped", True),
        ("1 passed", "1 passed", False),
        ("1 failed", "1 failed, 1 passed", False),
        ("1 failed", "===== 1 error =====\nERROR: found no collectors", False),
        ("1 failed", "1 passed, 2 errors", False),
        ("1 failed", "1 skipped", False),
    ],
)
def test_a_log_needs_a_failure_without_the_fix_and_a_pass_with_it(without, with_fix, proven):
    assert proves(log(without, with_fix), [TEST]) is proven


def test_each_named_test_must_be_in_the_log():
    text = log("1 failed", "1 passed")
    assert proves(text, [f"{TEST}[float16]"]), "a parameter of a test that ran"
    assert not proves(text, [TEST, "tests/test_loss.py::test_clip"])
    assert not proves(text, [])
    assert not proves("", [TEST])
