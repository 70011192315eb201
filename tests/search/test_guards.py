import pytest

from sentinel.search.guards import SIZE, SOME, Constants, constants_at, function_of, ways_to

CODE = '''
def loss(ratio, mask, clip=0.3, *, scale=1.0):
    """Return a number like 77."""
    return _bounded(ratio.clamp(-20.0, 12.5)) if len(mask) > 32 else ratio[:, -64:]


def _bounded(ratio):
    return ratio.where(ratio < 7.25, 2)


def other(ratio):
    return ratio.clamp(max=99.0)
'''


def test_constants_are_those_of_the_function_and_of_what_it_calls():
    assert constants_at(CODE.encode(), 2) == Constants((0.3, -20.0, 12.5, 7.25), (32, 64))
    assert constants_at(b"def broken(", 1) == constants_at(CODE.encode(), 1) == Constants()


@pytest.mark.parametrize(
    ("guard", "way"),
    [
        ("if self.config.use_kl:", {"use_kl": True}),
        ("if not batch['packed']:", {"packed": False}),
        ("if mode == 'b' and config.get('size', 1) > 3:", {"mode": "b", "size": 4}),
        ("if mode == Mode.SLOW:", {"mode": {"member": "SLOW"}}),
        ("if group is not None:", {"group": SOME}),
        ("if len(rows) > 8:", {SIZE: 9}),
        ("if flag:", {"flag": True}),
        ("if fast:", {"level": 3}),
        ("if 'extra' in batch:", {"extra": SOME}),
    ],
)
def test_a_way_to_a_line_sets_all_conditions_around_it(guard, way):
    function = function_of(
        f"def f(self, batch, mode, group, rows):\n    fast = self.level > 2\n    {guard}\n        x = 1"
    )
    assert ways_to(function, 4)[0] == way


def test_a_line_after_a_return_needs_the_return_not_to_run():
    text = "def f(a, b):\n    if a is not None:\n        return 1\n    if b:\n        return 2\n    return 3"
    assert ways_to(function_of(text), 6)[0] == {"a": None, "b": False}


def test_a_condition_that_the_text_does_not_explain_gives_no_way():
    assert ways_to(function_of("def f(a):\n    if (a > a.mean()).any():\n        x = 1"), 3) == []
