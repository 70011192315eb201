"""Options read off code and YAML without importing it."""

from sentinel.configuration.declared import options_of_parser, options_of_tree
from sentinel.configuration.option_classes import options_of_class
from sentinel.configuration.options import Option

BASE = """
from dataclasses import dataclass, field
from enum import Enum
raise RuntimeError("it is not imported")

LEVEL = "group"

@dataclass
class Norm:
    level: str | None = field(default=LEVEL, metadata={"choices": ["batch", "group", None]})
    eps: float = 1e-5

class Kind(str, Enum):
    A = "a"

@dataclass
class Base:
    seed: int = 1
    lr: float = 0.5
"""

CONFIG = """
import copy
from dataclasses import dataclass, field
from typing import Dict, List, Literal, Optional
from package.base import Base, Kind, Norm

def computed():
    return 3

@dataclass
class Actor(Base):
    lr: float = 1.0
    estimator: Literal["gae", "grpo"] = "gae"
    norm: Norm | None = None
    other: Optional[Norm] = field(default=None)
    always: "Norm" = field(default_factory=lambda: copy.deepcopy(Norm(eps=0.1)))
    kind: Kind = Kind.A
    many: Dict[str, Norm] = field(default_factory=dict)
    names: List[str] = field(default_factory=lambda: ["a", "b"])
    needed: str = field()
    told: int = computed()
    bounded: float = Field(0.2, ge=0)
    shaped: Norm = Field(default_factory=Norm)

@dataclass
class Train:
    actor: Actor = field(default_factory=Actor)
    again: "Train | None" = None
"""


def test_classes_and_their_sections(tmp_path):
    (tmp_path / "base.py").write_text(BASE)
    (tmp_path / "config.py").write_text(CONFIG)
    files = {"package.base": tmp_path / "base.py"}
    found = options_of_class(tmp_path / "config.py", "Train", files.get)
    expected = {
        "actor.seed": Option("1"),
        "actor.lr": Option("1.0"),
        "actor.estimator": Option("gae", ("gae", "grpo")),
        "actor.norm": Option("null"),
        "actor.norm.level": Option("group", ("batch", "group", "null")),
        "actor.norm.eps": Option("1e-05"),
        "actor.other": Option("null"),
        "actor.other.eps": Option("1e-05"),
        "actor.always.eps": Option("0.1"),
        "actor.kind": Option(None),
        "actor.many": Option(""),
        "actor.names": Option("a,b"),
        "actor.needed": Option(None),
        "actor.told": Option(None),
        "actor.bounded": Option("0.2"),
        "actor.shaped.eps": Option("1e-05"),
        "again": Option("null"),
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "actor.always" not in found
    assert "actor.many.level" not in found
    assert "again.actor.lr" in found  # and it ends
    assert options_of_class(tmp_path / "config.py", "Nothing", files.get) == {}
    assert "actor.norm.level" not in options_of_class(tmp_path / "config.py", "Train", {}.get)


def test_classes_that_would_never_end_are_left(tmp_path):
    lines = ["from dataclasses import dataclass, field"]
    for level in range(12, -1, -1):
        fields = [f"    f{place}: C{level + 1} = field(default_factory=C{level + 1})" for place in range(10)]
        lines += ["@dataclass", f"class C{level}:", *(fields if level < 12 else ["    last: int = 1"])]
    (tmp_path / "wide.py").write_text("\n".join(lines))
    assert len(options_of_class(tmp_path / "wide.py", "C0", {}.get)) < 2000


def test_arguments(tmp_path):
    file = tmp_path / "arguments.py"
    file.write_text("""
raise RuntimeError("it is not imported")
def add(parser):
    parser.add_argument("--eps-clip", type=float, default=0.2)
    parser.add_argument("-k", "--kl-type", choices=["k1", "k2"], default="k1")
    parser.add_argument("--use-opsm", action="store_true")
    parser.add_argument("--no-save", action="store_false", dest="save")
    parser.add_argument("--path")
    parser.add_argument("--model", required=True)
    reset(parser, "--rate", default=compute())
    print("nothing")
""")
    assert options_of_parser(file) == {
        "eps_clip": Option("0.2"),
        "kl_type": Option("k1", ("k1", "k2")),
        "use_opsm": Option("false"),
        "save": Option("true"),
        "path": Option("null"),
        "model": Option(None),
        "rate": Option(None),
    }


def test_a_tree(tmp_path):
    file = tmp_path / "trainer.yaml"
    file.write_text("defaults: [actor]\nhydra: {run: 1}\nactor: {lr: 1, path: '???', clip: {}}\nn:\n")
    assert options_of_tree(file) == {
        "actor.lr": Option("1"),
        "actor.path": Option(None),
        "actor.clip": Option(""),
        "n": Option("null"),
    }
