"""Patch coverage: which changed statements ran."""

import pytest

from sentinel.comparing.observations import AFTER, BEFORE
from sentinel.comparing.patch import MOVED, PART, Patch, coverage, merge, pair_statements
from sentinel.comparing.units import parse

PLACE = ("toy/losses.py", "loss")


def patch(before: str, after: str) -> Patch:
    one, other = (parse(text.encode()).units["loss"] for text in (before, after))
    return Patch({PLACE: (one, other)}, {PLACE})


def test_a_boundary_needs_a_full_search_for_statements_that_no_full_search_ran():
    changes = patch(
        "def loss(x, mask):\n    y = x * mask\n    return y.sum()\n",
        "def loss(x, mask):\n    y = x\n    return y.mean()\n",
    )
    units = changes.units(AFTER)
    first = changes.note(AFTER, units, [(PLACE[0], 2)])
    assert changes.needs_search(first, [])
    changes.note_search(first, [PLACE])
    assert not changes.needs_search(first, [])
    second = changes.note(AFTER, units, [(PLACE[0], 3)])
    assert changes.needs_search(second, [])


def test_only_a_few_full_searches_try_the_same_statements():
    """Three; two at boundaries whose scenarios never call the changed function, because more would only take time."""
    code = "def loss(x, y):\n    if y is None:\n        return {}x\n    return {}y\n"
    for entered, expected in ((False, [True, True, False, False]), (True, [True, True, True, False])):
        changes = patch(code.format("", ""), code.format("-", "-"))
        ran = changes.note(AFTER, changes.units(AFTER), [(PLACE[0], 4)]) if entered else set()
        asked = []
        for _ in range(4):
            asked.append(changes.needs_search(ran, [PLACE]))
            changes.note_search(ran, [PLACE])
        assert asked == expected
        assert not changes.needs_search([], [])  # a boundary that cannot reach it
    assert not changes.needs_search([], [PLACE])  # another boundary's search has run it


def test_patch_coverage_joins_adjacent_lines_with_one_reason():
    code = (
        "def loss(x, scale):\n    if scale:\n        x = x {0} scale\n        x = x {0} 1\n    x = {0}x\n"
        "    return x if x.any() {1} 0\n"
    )
    changes = patch(code.format("+", "else"), code.format("-", "or 1 else"))
    ran = [(PLACE[0], 2), (PLACE[0], 5), (PLACE[0], 6)]
    elsewhere = changes.lines([PLACE])
    for side in (BEFORE, AFTER):
        changes.note(side, changes.units(side), ran)
    found = coverage(merge([*elsewhere, *changes.lines()]))
    assert (found["changed"], found["ran"]) == (8, 2)
    guards = {(each["side"], tuple(each["lines"])): each["guard"] for each in found["not_run"]}
    assert guards == {
        (side, lines): why for side in (BEFORE, AFTER) for lines, why in (((3, 4), "scale"), ((6, 6), PART))
    }
    assert sorted(each["statements"] for each in found["not_run"]) == [1, 1, 2, 2]


def test_a_part_of_a_line_is_examined_if_its_instructions_ran():
    changes = patch("def loss(x, on):\n    return x if on else 1\n", "def loss(x, on):\n    return x if on else 2\n")
    for side in (BEFORE, AFTER):
        changes.note(side, changes.units(side), [(PLACE[0], 2), (PLACE[0], 2, 11, 2, 12), (PLACE[0], 2, 16, 2, 18)])
    assert (changes.count, changes.count_examined()) == (2, 0), "the branch for False did not run"
    changes.note(BEFORE, changes.units(BEFORE), [(PLACE[0], 2, 24, 2, 25)])
    assert changes.count_examined() == 1
    changes.note(AFTER, changes.units(AFTER), [(PLACE[0], 2, 24, 2, 25)])
    assert changes.count_examined() == 2


def test_a_part_of_a_line_of_a_method_has_the_columns_of_the_file():
    """Methods were compared without their indentation, so no part of their lines counted as run."""
    code = "class Loss:\n    def loss(self, x, on):\n        return x if on else {0}\n"
    one, other = (parse(code.format(value).encode()).units["Loss.loss"] for value in (1, 2))
    place = (PLACE[0], "Loss.loss")
    changes = Patch({place: (one, other)}, {place})
    ran = [(PLACE[0], 3), (PLACE[0], 3, 15, 3, 16), (PLACE[0], 3, 20, 3, 22), (PLACE[0], 3, 28, 3, 29)]
    changes.note(AFTER, changes.units(AFTER), ran)
    assert changes.count_examined() == 1


def test_an_annotation_of_a_local_variable_is_no_change():
    code = "def loss(x):\n    y{} = x\n    return y\n"
    one, other = (parse(code.format(hint).encode()).units["loss"] for hint in ("", ": int"))
    assert one.like(other)


def test_a_statement_that_moved_past_lines_that_did_not_run_is_not_examined():
    """Both orders give the same numbers until the order of the rows is restored (verl #1440)."""
    scale, restore = "    x = x * mask\n", "    if order:\n        rows = sorted(order)\n        x = x[rows]\n"
    lines = "def loss(x, mask, order):\n", "    return x\n"
    changes = patch(lines[0] + scale + restore + lines[1], lines[0] + restore + scale + lines[1])
    for side, ran in ((BEFORE, (2, 3, 6)), (AFTER, (2, 5, 6))):
        changes.note(side, changes.units(side), [(PLACE[0], line) for line in ran])
    (item,) = changes.find_unexamined()
    assert (item.lines, item.guard) == ((4, 4), "order, and a changed line moved past it")
    assert [(line[2], line[3], line[-2], line[-1]) for line in changes.lines()] == [
        (BEFORE, 2, "", True),
        (AFTER, 5, MOVED, False),
    ]
    changes.note(AFTER, changes.units(AFTER), [(PLACE[0], 3), (PLACE[0], 4)])
    assert not changes.find_unexamined()


_BRANCH = "    if a:\n        x = x + 1\n"


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (f"    y = x\n{_BRANCH}", f"{_BRANCH}    y = x\n", True),  # it uses what they assign
        (f"    x.mul_(2)\n{_BRANCH}", f"{_BRANCH}    x.mul_(2)\n", True),
        (f"    z = 1\n{_BRANCH}", f"{_BRANCH}    z = 1\n", False),
        (f"    x = x * 2\n{_BRANCH}    x = x * 3\n", f"    x = 2 * x\n{_BRANCH}    x = 3 * x\n", False),
    ],
)
def test_a_moved_statement_passes_lines_that_share_its_variables(before, after, moved):
    changes = patch(f"def loss(x, a):\n{before}    return x\n", f"def loss(x, a):\n{after}    return x\n")
    last = after.count("\n") + 1
    changes.note(AFTER, changes.units(AFTER), [(PLACE[0], line) for line in (2, last)])
    assert any(line[-2] == MOVED for line in changes.lines()) == moved


def test_a_boundary_without_an_effect_of_a_line_did_not_examine_it():
    """Another boundary's results depend on the line, but that says nothing about the results of this boundary."""
    changes = patch("def loss(x, w):\n    return x * w\n", "def loss(x, w):\n    return x / w\n")
    ran = {each for side in (BEFORE, AFTER) for each in changes.note(side, changes.units(side), [(PLACE[0], 2)])}
    for boundary, matters in (("toy.f", False), ("toy.g", True)):
        changes.note_boundary(boundary, ran)
        for statement in ran:
            changes.note_influence(boundary, statement, matters)
    assert changes.ran_at("toy.f", [PLACE]) == (set(), ["toy.g"])
    assert (len(changes.ran_at("toy.g", [PLACE])[0]), changes.ran_at("toy.g", [PLACE])[1]) == (2, [])
    assert [changes.is_compared_at(boundary, [PLACE]) for boundary in ("toy.f", "toy.g")] == [False, True]
    assert not changes.find_unexamined()


def test_statements_that_assign_different_variables_are_not_paired():
    """The values of such statements have nothing to do with each other, so they are not compared."""
    body = "    size = x.shape[0]\n    if size > 1:\n        x = x / size\n    return x\n"
    rewritten = "    total, count = _count(x)\n    if count != 1:\n        x = total / count\n    return x\n"
    one, other = (parse(f"def loss(x):\n{text}".encode()).units["loss"] for text in (body, rewritten))
    assert {*pair_statements(one, other)} == {(1, None), (2, None), (3, 3), (None, 1), (None, 2)}
