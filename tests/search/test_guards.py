import ast

import pytest

from sentinel.search.guards import (
    LISTED,
    NESTED,
    SIZE,
    SOME,
    Constants,
    constants,
    constants_at,
    function_of,
    other_kinds,
    ways_inside,
    ways_to,
)  # fmt: skip
from sentinel.targets import PackageRoot
from sentinel.worker.answers import NUMBERS, TEXTS

CODE = '''
def loss(ratio, mask, clip=0.3, *, scale=1.0):
    """Return a number like 77."""
    return _bounded(ratio.clamp(-20.0, 12.5)) if len(mask) > 32 else ratio[:, -64:]


def _bounded(ratio):
    return ratio.where(ratio < 7.25, 2)


def other(ratio):
    return ratio.clamp(max=99.0)
'''


ROOTS = (PackageRoot("pkg"),)


def write(folder, **files):
    (folder / "pkg").mkdir()
    for name, text in files.items():
        (folder / "pkg" / f"{name}.py").write_text(text, encoding="utf-8")
    return str(folder)


def test_constants_are_those_of_the_function_and_of_what_it_calls(tmp_path):
    base = write(tmp_path, code=CODE, broken="def broken(")
    assert constants_at(base, ROOTS, "pkg/code.py", 2) == Constants((0.3, -20.0, 12.5, 7.25), (32, 64))
    assert constants_at(base, ROOTS, "pkg/code.py", 1) == constants_at(base, ROOTS, "pkg/broken.py", 1) == Constants()


@pytest.mark.parametrize(
    ("start", "call"),
    [
        ("from pkg.far import near", "near(x)"),
        ("from . import far as other", "other.near(x)"),
        ("import pkg.far", "pkg.far.near(x)"),
        ("", "self.near(x)"),
    ],
)
def test_constants_of_functions_in_other_files_are_read(tmp_path, start, call):
    caller = (
        f"from pkg.far import Base\n{start}\n\nclass Grader(Base):\n    def score(self, x):\n        return {call}\n"
    )
    far = "class Base:\n    def near(self, x):\n        return near(x)\n\ndef near(x):\n    return x.clamp(max=7.5)\n"
    base = write(tmp_path, code=caller, far=far)
    line = caller.split("\n").index("    def score(self, x):") + 1
    assert constants_at(base, ROOTS, "pkg/code.py", line).numbers == (7.5,)


def test_calls_are_followed_up_to_a_bound(tmp_path):
    files = {
        f"f{n}": f"from pkg.f{n + 1} import g{n + 1}\ndef g{n}(x):\n    return g{n + 1}(x) > {n}.5\n" for n in range(6)
    }
    constants = constants_at(write(tmp_path, **files), ROOTS, "pkg/f0.py", 2)
    assert constants.numbers == (0.5, 1.5, 2.5, 3.5)


def test_a_file_outside_of_the_checkout_is_not_read(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    base = write(inside, code="from pkg.far import near\ndef f(x):\n    return near(x)\n")
    (tmp_path / "far.py").write_text("def near(x):\n    return x > 7.5\n", encoding="utf-8")
    (inside / "pkg" / "far.py").symlink_to(tmp_path / "far.py")
    assert constants_at(base, ROOTS, "pkg/code.py", 2) == Constants()


def test_strings_that_are_searched_and_lengths_of_texts_are_constants():
    text = """
def score(text, mode):
    tail = text[-LIMIT:]
    if "<answer>" in tail and mode in ("strict", "####"):
        return tail.rfind("\\\\fbox"), re.search(PATTERN, tail), tail.split(" "), tail.replace("x", "y")
    pattern = "<b>(.*)</b>"
    re.match(pattern, tail)
    return re.findall(r"(?i)Answer\\s*:\\s*([^\\n]+)", tail), re.search(r"\\\\boxed\\{(.*)\\}", tail)
"""
    values = {"LIMIT": ast.parse("300", mode="eval").body}
    values["PATTERN"] = ast.parse(r"re.compile(r'#### (\-?[0-9]+)')", mode="eval").body
    found = constants([function_of(text)], values)
    assert {*found.texts} == {"<answer>", "\\fbox", "####", "Answer:", "\\boxed{", "<b>"}
    assert found.lengths == (300,)
    assert found.sizes == ()


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
        ("if isinstance(rows, list):", {"rows": LISTED}),
        ("if isinstance(batch['rewards'][0], list):", {"rewards": NESTED}),
        ("if rows.dim() == 3:", {"rows": {"dims": 3}}),
        ("if len(rows.shape) == 3:", {"rows": {"dims": 3}}),
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


@pytest.mark.parametrize(("line", "value"), [(5, "b"), (6, "b"), (7, "c"), (8, "c"), (9, None)])
def test_a_later_branch_of_a_chain_has_its_own_string(line, value):
    """This was once wrong: nothing was tried for "not equal to this string", so only a chain's first branch ran."""
    function = function_of(
        "def f(self):\n    if self.on:\n        if self.loss_type == 'a':\n            x = 1\n"
        "        elif self.loss_type == 'b':\n            x = 2\n"
        "        elif self.loss_type == 'c':\n            x = 3\n        y = 1"
    )
    assert ways_to(function, line)[0] == {"on": True, **({"loss_type": value} if value else {})}


def test_ways_inside_a_line_lead_to_each_of_its_parts():
    function = function_of("def f(mask, group):\n    x = 1 if mask is not None else 2\n    y = group and mask")
    assert ways_inside(function, 2) == [{"mask": SOME}, {"mask": None}]
    assert ways_inside(function, 3) == [{"group": True}]


def test_a_function_gets_other_texts_and_types_if_it_reads_them():
    function = function_of("def f(text):\n    return isinstance(text[-300:].strip(), str)")
    assert other_kinds(function) == [
        {TEXTS: "blanks"}, {TEXTS: "case"}, {TEXTS: "empty"}, {TEXTS: 300}, {NUMBERS: "tensor"}, {NUMBERS: "numpy"}
    ]  # fmt: skip
    assert other_kinds(function_of("def f(x):\n    return x * 2")) == []
