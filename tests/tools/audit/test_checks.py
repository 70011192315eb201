"""The checks in a configuration class are evaluated without importing it, as far as the values are known."""

import pytest

from sentinel.tools.audit.checks import UNKNOWN, Raised, class_values, raised_by
from sentinel.tools.audit.option_classes import checks_of_class

BASE = """
class Base:
    NAMES = ["size"]
    def __post_init__(self):
        for name in self.NAMES:
            if getattr(self, name) is None:
                setattr(self, name, 8)
        if os.environ.get("X"):
            self.device = 1
"""
CODE = """
from base import Base
LARGEST = 100
class Config(Base):
    NAMES = Base.NAMES + ["other"]
    size: int = 8
    def __post_init__(self):
        super().__post_init__()
        self.whole = self.size * self.world_size
        self.kind = {True: "group", False: "none"}.get(self.kind, self.kind)
{body}
"""
DIVISIBLE = "if self.whole % self.number != 0:\n    raise ValueError(f'{self.whole} is no multiple of {self.number}')"


def follow(tmp_path, body, **values):
    (tmp_path / "base.py").write_text(BASE)
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    (tmp_path / "config.py").write_text(CODE.replace("{body}", lines) + "raise SystemExit('it is not imported')\n")
    checked = checks_of_class(tmp_path / "config.py", "Config", lambda name: tmp_path / f"{name}.py")[""]
    fields = {**class_values(checked.attributes), "other": 1, "size": 8, "world_size": 1, "kind": None, **values}
    return raised_by(checked.methods, fields, checked.constants, checked.starts)


@pytest.mark.parametrize(
    ("body", "values", "raised"),
    [
        (DIVISIBLE, {"number": 7}, Raised("ValueError", "8 is no multiple of 7", ("whole", "number"))),
        (DIVISIBLE, {"number": 7, "size": None}, Raised("ValueError", "8 is no multiple of 7", ("whole", "number"))),
        (DIVISIBLE, {"number": 4}, None),
        (DIVISIBLE, {"number": UNKNOWN}, None),
        (DIVISIBLE, {"number": 7, "size": UNKNOWN}, None),
        (
            "if self.kind not in ['group', 'none']:\n    raise ValueError('bad ' + self.kind)",
            {"kind": "grup"},
            Raised("ValueError", "bad grup", ("kind",)),
        ),
        ("if self.kind not in ['group', 'none']:\n    raise ValueError", {"kind": True}, None),
        (
            "assert self.number < LARGEST, 'too many'",
            {"number": 200},
            Raised("AssertionError", "too many", ("number",)),
        ),
        ("if unknown():\n    self.number = 1\nassert self.number == 1", {"number": 2}, None),
        ("if unknown():\n    return\nassert self.number == 1", {"number": 2}, None),
        ("change(self)\nassert self.number == 1", {"number": 2}, None),
        ("self.change()\nassert self.number == 1", {"number": 2}, Raised("AssertionError", "", ("number",))),
        ("if self.number > 1 and unknown():\n    raise ValueError", {"number": 2}, None),
        (
            "if self.number > 1 or unknown():\n    raise ValueError",
            {"number": 2},
            Raised("ValueError", "", ("number",)),
        ),
        ("try:\n    self.number = 1\nexcept KeyError:\n    pass\nassert self.number == 1", {"number": 2}, None),
        ("assert self.device == 2", {"device": 2}, None),  # the base class may set it
        ("while True:\n    self.number = 1", {"number": 2}, None),
    ],
)
def test_only_a_certain_exception_is_found(tmp_path, body, values, raised):
    assert follow(tmp_path, body, **values) == raised


def test_a_class_with_the_name_of_its_base_is_read_once(tmp_path):
    (tmp_path / "config.py").write_text("from elsewhere import Config\n\n\nclass Config(Config):\n    size: int = 8\n")
    checked = checks_of_class(tmp_path / "config.py", "Config", lambda name: None)[""]
    assert len(checked.methods) == 1
