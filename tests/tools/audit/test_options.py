"""Options are read from code and YAML without importing it."""

import pytest

from sentinel.tools.audit.declared import options_of_parser, options_of_tree
from sentinel.tools.audit.option_classes import options_of_class
from sentinel.tools.audit.options import Option, Options

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


def test_options_of_classes_and_sections_are_read(tmp_path):
    (tmp_path / "base.py").write_text(BASE)
    (tmp_path / "config.py").write_text(CONFIG)
    files = {"package.base": tmp_path / "base.py"}
    found, unread = options_of_class(tmp_path / "config.py", "Train", files.get)
    assert unread == {}
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
        "actor.kind": Option(None, ("a", "A")),
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
    assert options_of_class(tmp_path / "config.py", "Nothing", files.get) == ({}, {})
    assert "actor.norm.level" not in options_of_class(tmp_path / "config.py", "Train", {}.get)[0]


def test_a_base_class_of_another_package_may_declare_more(tmp_path):
    """Without that package, no option is known to be missing."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "base.py").write_text(
        "from elsewhere import Arguments\nclass Base(Arguments):\n    seed: int = 1\n"
    )
    (tmp_path / "package" / "config.py").write_text(
        "from typing import Generic, TypeVar\nimport enum\nfrom pydantic import BaseModel\nfrom .base import Base\n"
        "class Part(BaseModel, Generic[T]):\n    size: int = 4\n"
        "class Train(Base):\n    part: Part = field(default_factory=Part)\n    beta: float = 0.1\n"
    )
    found, unread = options_of_class(tmp_path / "package" / "config.py", "Train", {}.get)
    assert set(found) == {"seed", "part.size", "beta"}
    assert unread == {"": "Arguments of elsewhere"}
    options = Options("GRPO", "config.py", found, "Train", unread)
    assert not options.closed("learning_rate")
    assert options.may_declare("learning_rate") == "Arguments of elsewhere"
    assert Options("GRPO", "config.py", found, "Train", {"part.": "Arguments"}).closed("learning_rate")
    (tmp_path / "elsewhere.py").write_text("class Arguments:\n    learning_rate: float = 5e-5\n")
    files = {"elsewhere": tmp_path / "elsewhere.py"}
    found, unread = options_of_class(tmp_path / "package" / "config.py", "Train", files.get)
    assert (found["learning_rate"], unread) == (Option("5e-05"), {})


def test_a_relative_import_does_not_leave_the_packages(tmp_path):
    (tmp_path / "secret.py").write_text("class Base:\n    secret: int = 1\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "config.py").write_text(
        "from ..secret import Base\nclass Train(Base):\n    beta: float = 0.1\n"
    )
    assert options_of_class(tmp_path / "package" / "config.py", "Train", {}.get) == (
        {"beta": Option("0.1")},
        {"": "Base"},
    )


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("init_kl_coef", "algo.kl.init_coef"),
        ("normalize_reward", "reward.normalize_enable"),
        ("num_generation", "num_generations"),
        ("rollout.n_samples", "rollout.n_samples_per_prompt"),
        ("actor.eps", "actor.eps_clip"),
        ("actor.flash_attn", ""),
        ("zzz", ""),
    ],
)
def test_an_unknown_name_suggests_the_most_similar_option(wrong, meant):
    names = ("algo.kl.init_coef", "algo.kl.target", "reward.normalize_enable", "num_generations", "reward.clip_range",
             "rollout.n_samples_per_prompt", "actor.eps_clip")  # fmt: skip
    assert Options("PPO", "x.py", {name: Option("1") for name in names}).closest(wrong) == meant


UNION = """
from typing import Annotated, Literal, TypeAlias, Union

class Base:
    lr: float = 0.1

class Adam(Base):
    type: Literal["adam"] = "adam"
    beta: float = 0.9

class Sgd(Base):
    lr: float = 0.2
    type: Literal["sgd"] = "sgd"
    nesterov: bool = True

Optim: TypeAlias = Annotated[Adam | Sgd, Field(discriminator="type")]

class Train:
    optim: Optim = Adam()
    other: Union[Adam, Sgd, None] = None
    chunk: int | Literal["disabled"] = 8
"""


def test_the_members_of_a_union_are_options_of_its_section(tmp_path):
    (tmp_path / "x.py").write_text(UNION)
    options, _ = options_of_class(tmp_path / "x.py", "Train", {}.get)
    assert options == {
        "optim.type": Option("adam", ("adam", "sgd")), "optim.lr": Option(None), "optim.beta": Option("0.9"),
        "optim.nesterov": Option("true"), "other": Option("null"), "other.type": Option("adam", ("adam", "sgd")),
        "other.lr": Option(None), "other.beta": Option("0.9"), "other.nesterov": Option("true"), "chunk": Option("8"),
    }  # fmt: skip


def test_recursive_classes_are_read_to_a_limit(tmp_path):
    lines = ["from dataclasses import dataclass, field"]
    for level in range(12, -1, -1):
        fields = [f"    f{place}: C{level + 1} = field(default_factory=C{level + 1})" for place in range(10)]
        lines += ["@dataclass", f"class C{level}:", *(fields if level < 12 else ["    last: int = 1"])]
    (tmp_path / "wide.py").write_text("\n".join(lines))
    assert len(options_of_class(tmp_path / "wide.py", "C0", {}.get)[0]) < 2000


def test_options_of_argument_parsers_are_read(tmp_path):
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
    for prefix in ("actor", "critic"):
        parser.add_argument(f"--{prefix}.lr", default=1e-6 if prefix == "actor" else 9e-6)
""")
    options, more, flags = options_of_parser(file)
    assert (more, flags) == ({}, {"no_save": ("save", "false")})
    assert options == {
        "eps_clip": Option("0.2"),
        "kl_type": Option("k1", ("k1", "k2")),
        "use_opsm": Option("false"),
        "save": Option("true"),
        "path": Option("null"),
        "model": Option(None),
        "rate": Option(None),
        "actor.lr": Option(None),
        "critic.lr": Option(None),
    }
    file.write_text("for name in names():\n    parser.add_argument(f'--{name}.lr')\nparser.add_argument('--on')\n")
    options, more, _ = options_of_parser(file)
    assert (set(options), more) == ({"on"}, {"": "a call in arguments.py that computes the name of its option"})


def test_a_flag_is_read_as_the_setting_that_it_sets():
    options = Options("PPO", "x.py", {"save": Option("true"), "cut": Option("true")}, flags={
        "no_save": ("save", "false"), "cut": ("cut", "false"),
    })  # fmt: skip
    given = {"no_save": "true", "cut": "true", "rate": "1"}
    assert options.meaning(given, given.keys()) == {"save": "false", "cut": "false", "rate": "1"}
    assert options.meaning(given, ()) == given


@pytest.mark.parametrize(
    ("option", "takes", "expects"),
    [
        (Option("false"), ("true", "0", "yes", "null", "${x}"), {"tr": "true or false", "2": "true or false"}),
        (Option("0.2"), ("1e-6", "null", "0.1,0.2", "false"), {"0.2x": "a number", "": ""}),
        (Option("k1", ("k1", "k2")), ("k1", "k1,k2", "null"), {"k3": "k1 or k2", "k1,k3": "k1 or k2"}),
        (Option("text"), ("anything",), {}),
    ],
)
def test_a_value_outside_the_choices_is_invalid(option, takes, expects):
    assert {text: option.expects(text) for text in takes} == dict.fromkeys(takes, "")
    assert {text: option.expects(text) for text in expects} == expects


def test_options_of_a_yaml_tree_are_read(tmp_path):
    file = tmp_path / "trainer.yaml"
    file.write_text("defaults: [actor]\nhydra: {run: 1}\nactor: {lr: 1, path: '???', clip: {}}\nn:\n")
    assert options_of_tree(file)[0] == {
        "actor.lr": Option("1"),
        "actor.path": Option(None),
        "actor.clip": Option(""),
        "n": Option("null"),
    }
