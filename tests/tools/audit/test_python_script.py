"""Python scripts that make a configuration are read without executing them; what is not read is reported."""

from pathlib import Path

import pytest

from sentinel.errors import NothingExamined, SentinelError
from sentinel.tools.audit.launch import launch_of
from sentinel.tools.audit.python_script import ANY, read_script

SCRIPT = """\
import os
raise SystemExit("it is not executed")
import trl
from trl import GRPOConfig as Config, GRPOTrainer

N = 8
LR: float = 1e-6
twice = 1
twice = 2
common = dict(learning_rate=LR, num_generations=N)
changed = {"beta": 0.1}
changed["beta"] = 0.2
if 1:
    changed["top_k"] = 4
more = {"loss_type": "grpo", "nested": {"a": 1}}

def main(parameter=0.5):
    config = Config(
        "out", epsilon=-0.2, steps=1024 * 4, names=["a", "b"], none=None, flag=True, kwargs={"x": N},
        twice=twice, parameter=parameter, computed=float(os.environ["X"]), text=f"{twice}", name=f"{N}-{LR}",
        actor=ActorConfig(lr=LR, optimizer=Optimizer(name="adam"), beta=compute(x=1)),
        **common, **changed, **more, **os.environ,
    )
    config.temperature = 0.9
    config.epsilon = 0.3
    config.steps += 1
    if parameter:
        config.flag = False
    GRPOTrainer(args=config, other=1)
    return trl.SFTConfig(packing=True)
"""


def test_arguments_that_are_literals_are_read(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    grpo, sft = read_script(file, ("GRPOConfig", "SFTConfig")).calls
    assert (grpo.name, grpo.line) == ("GRPOConfig", 18)
    assert grpo.settings == {
        "names": ["a", "b"], "none": None, "kwargs": {"x": 8}, "name": "8-1e-06", "actor.lr": 1e-6,
        "actor.optimizer.name": "adam",
        "learning_rate": 1e-6, "num_generations": 8, "loss_type": "grpo", "nested": {"a": 1}, "temperature": 0.9,
        "epsilon": 0.3,
    }  # fmt: skip
    assert sorted(grpo.unread) == sorted([
        "(argument without a name: 'out')", "twice", "parameter", "computed", "text", "actor.beta", "beta", "top_k",
        "**os.environ", "steps", "flag",
    ])  # fmt: skip
    assert (sft.name, sft.settings, sft.unread) == ("SFTConfig", {"packing": True}, [])


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("C(a=1)", {"a": 1}),
        ("module.C(a=1)", {"a": 1}),
        ("for i in range(3):\n    x = i\nC(a=x, i=i)", {}),
        ("x = 1\ndef f():\n    global x\n    x = 2\nC(a=x)", {}),
        ("import x\nx = 1\nC(a=x)", {}),
        ("x = 1\ndel x\nC(a=x)", {}),
        ("x = [1]\nx.append(2)\nC(a=x)", {}),
        ("try:\n    pass\nexcept E as x:\n    pass\nx = 1\nC(a=x)", {}),
        ("if (x := 1):\n    C(a=x)", {}),
        ("x = x\nC(a=x)", {}),
        ("x = y\ny = x\nC(a=x)", {}),
        ("C(a=9**9**9)", {}),
        ("C(a=1/0)", {}),
        ("C(a='x' * 10**9)", {}),
        ("C(a=" + "-" * 90 + "1)", {}),
        ("c = C(a=1)\nwhile True:\n    c.a = 2", {}),
        ("c = C(a=1)\nc.a = 2\nc.a = 3", {}),
        ("c = C(a=1)\nwith x():\n    c.a = 2", {"a": 2}),
        ("c = C(a=1)\nif __name__ == '__main__':\n    c.a = 2", {"a": 2}),
    ],
)
def test_a_name_is_read_only_if_nothing_else_can_bind_it(tmp_path, text, settings):
    (tmp_path / "train.py").write_text(text)
    (call,) = read_script(tmp_path / "train.py", ("C",)).calls
    assert call.settings == settings
    assert call.unread or settings


LATER = """
@dataclass
class Base(G):
    beta: float = 0.3
    epsilon: float = field(default=0.5)
    names: list = field(default_factory=list)
    def __post_init__(self):
        self.loss_type = "dapo"

class Mine(Base):
    beta = 0.4

config = Mine(lr=1e-6, epsilon=0.7)
setattr(config, "temperature", 0.9)
config = dataclasses.replace(config, steps=4)
config.top_p, config.top_k = 1, 2
other = replace(config, iterations=7)
if x:
    setattr(config, "mask", 1)
def tweak(args):
    args.scale = False
"""


def test_subclasses_setattr_and_replace_are_read(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(f"from trl import GRPOConfig as G\n{LATER}")
    (call,) = read_script(file, ("GRPOConfig",)).calls
    assert (call.name, call.settings) == (
        "GRPOConfig", {"beta": 0.4, "lr": 1e-6, "epsilon": 0.7, "temperature": 0.9, "steps": 4},
    )  # fmt: skip
    assert sorted(call.unread) == ["iterations", "loss_type", "mask", "names", "top_k", "top_p"]
    launch = launch_of(file, (), ("GRPOConfig",))
    assert (launch.assigned, launch.hidden) == ({"scale": f"{file}:22"}, frozenset())
    file.write_text(f"{file.read_text()}setattr(config, name, 1)\n")
    assert launch_of(file, (), ("GRPOConfig",)).hidden == {""}, "it may set any option"


@pytest.mark.parametrize(
    "write",
    [
        "args.__dict__.update(beta=1)",
        "args.__dict__.update({'beta': 1})",
        "args.__dict__['beta'] = 1",
        "args.__dict__.pop('beta')",
        "vars(args)['beta'] = 1",
        "vars(args).update(beta=1)",
        "args.__setattr__('beta', 1)",
        "object.__setattr__(args, 'beta', 1)",
        "if setattr(args, 'beta', 1): pass",
        "flag and setattr(args, 'beta', 1)",
        "match flag:\n    case 1:\n        args.beta = 1",
        "for args.beta in (1, 2): pass",
        "del args.beta",
        "OmegaConf.update(args, 'beta', 1)",
        "other = args\nother.beta = 1",
        "def tweak(config):\n    config.beta = 1\ntweak(args)",
        "class Mine(GRPOTrainer):\n    def step(self):\n        self.beta = 1",
    ],
)
def test_every_way_to_write_an_option_makes_it_unknown(tmp_path, write):
    """This holds if the script makes the configuration, and if it parses the configuration from its command line."""
    file = tmp_path / "train.py"
    file.write_text(f"args = C(beta=0, lr=1)\n{write}\nGRPOTrainer(args=args)\nprint(args)\n")
    launch = launch_of(file, (), ("C",))
    settings = dict(launch.settings)
    assert (settings.get("beta") != 0 or "beta" in launch.assigned, settings["lr"]) == (True, 1)
    file.write_text(f"args = parse()\n{write}\n")
    assert "beta" in launch_of(None, ["python", str(file), "--lr", "1"], ("C",)).assigned


@pytest.mark.parametrize(
    "write",
    [
        "args.__dict__.update(found)",
        "args.__dict__ |= found",
        "args.__dict__ = found",
        "vars(args)[name] = 1",
        "vars(args).update(found)",
        "args.__dict__.clear()",
        "args.__setattr__(name, 1)",
        "for name in found:\n    setattr(args, name, 1)",
        "[setattr(args, name, 1) for name in found]",
        "setattr(*found)",
        "exec('args.beta = 1')",
        "tweak(args)",
        "tweak(vars(args))",
        "tweak([args])",
        "other = args\ntweak(other)",
        "args.set_training(learning_rate=1)",
        "args.update(beta=1)",
        "args = tweak(args)",
        "def run(config):\n    tweak(config)\nrun(args)",
        "def build():\n    return args\nmine = build()\ntweak(mine)",
    ],
)
def test_code_that_may_write_any_option_makes_all_unknown(tmp_path, write):
    for made in ("args = ", "args: C = ", "args = other = ", "args = flag and ", "args = None if flag else "):
        _leaves_none_known(tmp_path, f"{made}C(beta=0, lr=1)\n{write}\nGRPOTrainer(args=args)\n")


@pytest.mark.parametrize(
    "text",
    [
        "args = tweak(C(beta=0))",
        "args = {'a': C(beta=0)}",
        "for args in [C(beta=0)]:\n    tweak(args)",
        "self.args = C(beta=0)\ntweak(self.args)",
        "def build():\n    return C(beta=0)\nargs = build()\ntweak(args)",
        "def build():\n    return C(beta=0), 1\nargs, x = build()\ntweak(args)",
        "D = C\nargs = D(beta=0)\ntweak(args)",
        "def run(self, config):\n    tweak(config)\nx.run(C(beta=0))",
        "tweak(args := C(beta=0))",
        "print(args := C(beta=0))\ntweak(args)",
    ],
)
def test_a_configuration_is_followed_through_every_binding(tmp_path, text):
    _leaves_none_known(tmp_path, f"{text}\n")


def _leaves_none_known(tmp_path, text):
    file = tmp_path / "train.py"
    file.write_text(text)
    launch = launch_of(file, (), ("C",))
    assert {value for _, value in launch.settings} == {"${?}"}
    assert launch.hidden == {""}
    assert "any option (" in launch.unread[0]


@pytest.mark.parametrize(
    "code",
    [
        "C.__init__.__defaults__ = (4,)",
        "C.__init__.__kwdefaults__['beta'] = 4",
        "C.__dataclass_fields__['beta'].default = 4",
        "C.__init__ = mine",
        "setattr(C, '__init__', mine)",
        "for field in fields(C):\n    field.default = 4",
        "mock.patch.object(C, '__init__', mine).start()",
        "tweak(C)",
        "tweak(classes=[C])",
        "def change(made):\n    made.__init__ = mine\nchange(C)",
        "def change(cls):\n    cls.__init__ = mine\nchange(C)",
        "@change\nclass Mine(C):\n    pass",
        "class Mine(C, metaclass=Change):\n    pass",
        "@change\nclass Mine(C):\n    beta: float = 0\nMine(beta=0, lr=1)",
        "@changes.these(beta=4)\n@dataclass\nclass Mine(C):\n    beta: float = 0\nMine(beta=0, lr=1)",
        "def change(cls):\n    cls.__init__ = mine\n    return cls\n@change\nclass Mine(C):\n    pass\nMine(lr=1)",
    ],
)
def test_code_that_may_change_class_defaults_makes_all_unknown(tmp_path, code):
    assert any(option.startswith(ANY) for option in _assigned_beside(tmp_path, code))


@pytest.mark.parametrize(
    "code",
    ["isinstance(args, C)", "names = [field.name for field in fields(C)]", "torch.Tensor.__repr__ = short", "x: C = 1",
     "class Mine(C):\n    pass",
     "@dataclasses.dataclass(kw_only=True)\nclass Mine(C):\n    pass", "print(C.__doc__)",
     "inspect.signature(C.__init__)", "C.beta"],
)  # fmt: skip
def test_code_that_only_reads_the_class_changes_nothing(tmp_path, code):
    assert not any(option.startswith(ANY) for option in _assigned_beside(tmp_path, code))


def _assigned_beside(tmp_path, code):
    file = tmp_path / "train.py"
    file.write_text(f"args = C(beta=0, lr=1)\n{code}\nGRPOTrainer(args=args)\n")
    return launch_of(file, (), ("C",)).assigned


def test_code_that_only_reads_the_configuration_changes_nothing(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        "def report(config):\n    print(config.beta)\nargs = C(beta=0)\nreport(args)\nlogger.info(args)\n"
        "x = args.to_dict()\nx.append(1)\nx = [args.beta, asdict(args), f'{args}']\n"
        "if args: GRPOTrainer(model, args, args=args)\n"
    )
    launch = launch_of(file, (), ("C",))
    assert (launch.settings, launch.assigned, launch.hidden, launch.unread) == ((("beta", 0),), {}, frozenset(), ())


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("common = {'a': 0}\nother = common\nother['a'] = 1\nC(**common)\n", "**common"),
        ("common = {'a': 0}\ntweak(common)\nC(**common)\n", "**common"),
        ("common = {'a': 0}\ndef f():\n    return common\nC(**common)\n", "**common"),
        ("config = C(a=1)\ndef never():\n    config.a = 2\n", "a"),
    ],
)
def test_values_that_other_code_may_change_are_unknown(tmp_path, text, unread):
    file = tmp_path / "train.py"
    file.write_text(text)
    (call,) = read_script(file, ("C",)).calls
    assert (call.settings, call.unread) == ({}, [unread])


def test_assignments_to_a_programs_arguments_are_listed(tmp_path):
    (tmp_path / "train.py").write_text("args = parse()\nargs.beta = 1\nsetattr(args, key, 2)\n")
    launch = launch_of(None, ["python", str(tmp_path / "train.py"), "--beta", "0"], ("C",))
    assert set(launch.assigned) == {"beta", "any option (setattr(args, key, 2))"}


@pytest.mark.parametrize(
    ("code", "assigned"),
    [
        ("for i, length in enumerate(lengths):\n    rewards[i] -= penalty\n    rewards[i] = 0.0\n", set()),
        ("for t in range(3):\n    values[:, t + 1] = 0\n    values[-1] = 1\n    values[mask == 0] = 2\n", set()),
        ("for i in range(3):\n    output['rewards'][i] = 0\n    args.layers[i].lr = 1\n", {"rewards", "layers.lr"}),
        ("metrics[f'reward/{name}'] = 1\n", set()),
        ("counts = defaultdict(int)\nfor key in keys:\n    counts[key] += 1\nprint(counts)\n", set()),
        ("class A:\n    def f(self, key):\n        self.seen = {}\n        self.seen[key] = 1\n", set()),
        ("for i in range(3):\n    args[i] = 1\ni = name\nargs[i] = 2\n", {"any option (args[i])"}),
        ("args[prefix + name] = 1\n", {"any option (args[prefix + name])"}),
        ("args[f'kl_{name}'] = 1\n", {"any option (args[f'kl_{name}'])"}),
        ("more = {}\nmore[key] = 1\nargs = merge(args, more)\n", {"any option (more[key])"}),
        ("more = {}\nmore['beta'] = 1\nreturned = more\n", {"beta"}),
        ("more = {}\nmore[key] = 1\nrun(**more)\n", {"any option (more[key])"}),
        ("def f(more):\n    more[key] = 1\nmore = {}\n", {"any option (more[key])"}),
    ],
)
def test_a_write_to_an_element_sets_no_other_option(tmp_path, code, assigned):
    (tmp_path / "train.py").write_text(code)
    assert read_script(tmp_path / "train.py", ("C",)).assigned.keys() == assigned


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("def (", r"train\.py:1:5: not Python: "),
        ("C(" * 5000, r"train\.py.*not Python"),
        ("x = " + "(" * 150 + "1" + ")" * 150, ""),
        ("\0", r"train\.py.*not Python"),
        ("#" * (1 << 20) + "#", "at most 1 MiB"),
    ],
)
def test_a_file_that_is_not_python_is_rejected(tmp_path, content, says):
    (tmp_path / "train.py").write_text(content)
    if not says:
        assert read_script(tmp_path / "train.py", ("C",)).calls == []
        return
    with pytest.raises(SentinelError, match=says):
        read_script(tmp_path / "train.py", ("C",))


def test_a_program_that_makes_a_configuration_is_read_instead_of_its_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("C(a=1, b=x)\nC(a=2)\n")
    launch = launch_of(None, ["accelerate", "launch", "--config_file", "z.yaml", "train.py", "--seed", "3"], ("C",))
    assert launch.settings == (("b", "${?}"), ("a", "${?}"))
    assert (launch.made_by, launch.read) == ("C", ("train.py:1: 1 setting of C read",))
    assert launch.unread == (
        "not read: arguments that train.py:1 computes: b",
        "not read: further calls in train.py: C (line 2)",
        "not known: arguments that differ between the calls of C: a",
        "not read: arguments of train.py itself: seed=3",
    )


def test_a_program_that_parses_its_arguments_is_configured_by_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("TrlParser((ScriptArguments, C)).parse_args_and_config()\n")
    (tmp_path / "grpo.yaml").write_text("beta: 0.1\n")
    launch = launch_of(None, ["torchrun", "train.py", "--config", "grpo.yaml", "--seed", "3"], ("C",))
    assert (launch.settings, launch.made_by) == ((("seed", 3),), "C")
    assert launch.config == Path("grpo.yaml")


def test_a_script_and_its_arguments_are_a_command(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("TrlParser((ScriptArguments, C)).parse_args_and_config()\n")
    launch = launch_of(file, ["--seed", "3"], ("C",))
    assert (launch.settings, launch.made_by) == ((("seed", 3),), "C")
    with pytest.raises(NothingExamined, match=r"it fills C from its command line; give its arguments after --"):
        launch_of(file, (), ("C",))
    assert launch_of(file, (), ("C",), configured=True).made_by == "C"
    (tmp_path / "run.sh").write_text('python train.py --seed 3 "$@"\n')
    (told,) = launch_of(tmp_path / "run.sh", (), ("C",)).unread
    assert told == '"$@" (line 1) was assumed to contain no options; give the script\'s arguments after --'
    assert launch_of(tmp_path / "run.sh", ["--lr", "1"], ("C",)).settings == (("seed", 3), ("lr", 1))


def test_a_configuration_is_found_like_hydra_finds_it(tmp_path, monkeypatch):
    """Hydra finds it by its name and by its folder, which is relative to the program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples" / "demo").mkdir(parents=True)
    (tmp_path / "examples" / "demo" / "rlvr.yaml").write_text("beta: 0.1\n")
    command = "python examples/start.py --config_path demo --config_name rlvr seed=3 +new.key=1"
    launch = launch_of(None, command.split(), ())
    assert (launch.config, launch.settings) == (Path("examples/demo/rlvr.yaml"), (("seed", 3), ("new.key", 1)))
    assert launch.added == {"new.key"}
    launch = launch_of(None, command.replace("rlvr", "gone").split(), ())
    assert (launch.config, launch.missing) == (None, {"config_path": "demo", "config_name": "gone"})
    with pytest.raises(NothingExamined, match=r"no settings follow the program"):
        launch_of(None, ["python", "train.py", "--config", "gone.yaml"], ())


def test_files_named_by_options_are_found_next_to_the_script(tmp_path):
    for name in ("custom.yaml", "a.toml"):
        (tmp_path / name).write_text("")
    (tmp_path / "run.sh").write_text(
        "python train.py a.toml rest --lr 1 --custom-config-path custom.yaml --x gone.yaml\n"
    )
    launch = launch_of(tmp_path / "run.sh", (), ())
    assert launch.files == {"custom_config_path": tmp_path / "custom.yaml"}
    assert (launch.config, launch.hidden) == (tmp_path / "a.toml", frozenset())
    assert launch.unread == ("not read: arguments without a name: rest",)
    (tmp_path / "run.sh").write_text("uv run rl @ a.toml @ gone.toml --lr 1\n")
    launch = launch_of(tmp_path / "run.sh", (), ())
    assert (launch.unread, launch.hidden) == (("not read: arguments without a name: gone.toml",), {""})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("accelerate launch --config_file z.yaml train.py", "train.py: it calls none of C"),
        ("accelerate launch --config_file z.yaml gone.py", "no settings follow the program.*gone.py is not a file"),
        ("python -m package", "no settings follow the program"),
    ],
)
def test_nothing_to_read_is_an_error(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    with pytest.raises(NothingExamined, match=says):
        launch_of(None, words.split(), ("C",))
    with pytest.raises(NothingExamined, match=r"it calls none of C"):
        launch_of(tmp_path / "train.py", (), ("C",))


@pytest.mark.parametrize(
    ("text", "settings", "unread"),
    [
        ("C(**{'a': 1, 'b': x})", {"a": 1}, ["b"]),
        ("base = dict(a=1)\nC(**{**base, 'b': 2})", {"a": 1, "b": 2}, []),
        ("base = dict(a=1)\nC(**(base | {'a': 2}))", {"a": 2}, []),
        ("C(**{'a': 1, **other()})", {"a": 1}, ["**other()"]),
        ("C(**{key: 1})", {}, ["**{key: 1}"]),
        ("table = {'a': 1}\ntable['b'] = 2\nC(**table)", {"a": 1, "b": 2}, []),
        ("table = {'a': 1}\nC(**table)\ntable['a'] = 2", {}, ["a"]),
        ("table = {'a': 1}\nif x:\n    table['b'] = 2\nC(**table)", {"a": 1}, ["b"]),
        ("table = {'a': 1}\ntable[key] = 2\nC(**table)", {}, ["**table"]),
        ("table = {'a': 1}\ntable.update(b=2)\nC(**table)", {}, ["**table"]),
    ],
)
def test_each_item_of_an_unpacked_dictionary_is_an_argument(tmp_path, text, settings, unread):
    (tmp_path / "train.py").write_text(text)
    (call,) = read_script(tmp_path / "train.py", ("C",)).calls
    assert (call.settings, call.unread) == (settings, unread)


PARSER = """
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--max-length", "-m", default=2048)
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lr", required=True)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--steps", default=5)
    parser.add_argument("data")
    parser.set_defaults(steps=6)
    return parser.parse_args()

args = parse()
C(beta=args.beta, length=args.max_length, packing=args.packing, bf16=args.bf16, lr=args.lr, model=args.model,
  steps=args.steps, data=args.data, other=args.other)
"""


def test_the_arguments_of_a_script_have_their_defaults_unless_they_are_given(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PARSER)
    (call,) = read_script(file, ("C",)).calls
    assert call.settings == {"beta": 0.1, "length": 2048, "packing": False, "bf16": True}
    assert call.unread == ["lr", "model", "steps", "data", "other"]
    launch = launch_of(file, ["--lr", "1e-6", "-m", "8", "--packing", "--no-bf16", "--seed", "1"], ("C",))
    assert dict(launch.settings) == {
        "beta": 0.1, "length": 8, "packing": True, "bf16": False, "lr": 1e-6,
        **dict.fromkeys(["model", "steps", "data", "other"], "${?}"),
    }  # fmt: skip
    assert "not read: arguments of train.py itself: seed=1" in launch.unread
    assert "read as the script's defaults, which arguments after -- replace: beta=0.1" in launch.unread


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("args = parse()\nC(beta=args.beta)", True),
        ("def main(args):\n    C(beta=args.beta)\nmain(parse())", True),
        ("def main(args):\n    C(beta=args.beta)\nargs = parse()\nmain(args)\nmain(other)", False),
        ("def main(args):\n    C(beta=args.beta)\nargs = parse()", False),
        ("class A:\n    def __init__(self, args):\n        C(beta=args.beta)\nargs = parse()", False),
        ("args = parse()\nargs.beta = 0.2\nC(beta=args.beta)", False),
        ("args = parse()\nsetattr(args, name, 0.2)\nC(beta=args.beta)", False),
        ("args = parse()\ntweak(args)\nC(beta=args.beta)", False),
        ("args = parse()\nargs = other()\nC(beta=args.beta)", False),
        ("@dataclass\nclass A:\n    beta: float = 0.1\ndef main(args: A):\n    C(beta=args.beta)", True),
        ("@dataclass\nclass A:\n    beta: float = 0.1\ndef main(args: A):\n    C(beta=args.beta)\nmain(A(0.2))", False),
        (
            "class A:\n    beta: int = 1\n    def f(self):\n        self.beta = 2\ndef f(a: A):\n    C(beta=a.beta)",
            False,
        ),
    ],
)
def test_an_argument_that_code_may_change_is_unknown(tmp_path, code, known):
    text = (
        "def parse():\n    p = ArgumentParser()\n    p.add_argument('--beta', default=0.1)\n    return p.parse_args()\n"
    )
    (tmp_path / "train.py").write_text(text + code)
    (call,) = read_script(tmp_path / "train.py", ("C",)).calls
    assert (call.settings, call.unread) == (({"beta": 0.1}, []) if known else ({}, ["beta"]))


def test_reward_functions_and_data_of_a_script_are_named(tmp_path):
    (tmp_path / "train.py").write_text(
        "data = load_dataset('a/b', split='train')\nC(a=1)\n"
        "GRPOTrainer(model, reward_funcs=[length, accuracy], train_dataset=data, processing_class=x,\n"
        "            eval_dataset=load_dataset('openai/gsm8k', 'main', split='train').map(prepare))\n"
        f"DPOTrainer(reward_funcs=[{'f, ' * 50}])\n"
    )
    launch = launch_of(tmp_path / "train.py", (), ("C",))
    *named, long = launch.references
    assert named == [
        "reward_funcs=[length, accuracy]",
        "train_dataset=load_dataset('a/b', split='train')",
        "eval_dataset=load_dataset('openai/gsm8k', 'main', split='train').map(prepare)",
    ]
    assert long == f"reward_funcs=[{'f, ' * 26}…"


@pytest.mark.parametrize(
    ("made", "known"),
    [
        ("cfg = GRPOConfig(beta=0.1)", True),
        ("cfg = GRPOConfig(beta=0.1)\ncfg = replace(cfg, beta=0.2)", True),
        ("cfg = TrlParser(GRPOConfig).parse_args_and_config()[0]", True),
        ("other, cfg = TrlParser((Other, GRPOConfig)).parse_args_and_config()", True),
        ("cfg = functools.partial(GRPOConfig, beta=0.2)()", False),
        ("from my_conf import cfg", False),
        ("cfg = importlib.import_module('my_conf').cfg", False),
        ("cfg = HfArgumentParser(GRPOConfig).parse_dict({'beta': 0.2})[0]", False),
        ("cfg = getattr(trl, 'GRPOConfig')(beta=0.2)", False),
        ("cfg = {'a': GRPOConfig}['a'](beta=0.2)", False),
    ],
)
def test_the_configuration_that_trains_is_the_one_that_is_read(tmp_path, made, known):
    file = tmp_path / "train.py"
    file.write_text(
        f"from trl import GRPOConfig, GRPOTrainer\nunused = GRPOConfig(beta=0.0)\n{made}\nGRPOTrainer(args=cfg)\n"
    )
    assigned = read_script(file, ("GRPOConfig",)).assigned
    assert any(option.startswith(ANY) for option in assigned) is not known


@pytest.mark.parametrize(
    ("script", "trainers"),
    [
        ("from trl import GRPOTrainer as T\nT(1)", ("trl.GRPOTrainer",)),
        ("import trl\ntrl.DPOTrainer(1)", ("trl.DPOTrainer",)),
        ("import trl.trainer.dpo as d\nd.DPOTrainer(1)", ("trl.trainer.dpo.DPOTrainer",)),
        ("from trl import GRPOTrainer\nclass Mine(GRPOTrainer): ...\nMine(1)", ("trl.GRPOTrainer",)),
        ("from trl import A2Trainer, B2Trainer\n(A2Trainer if x else B2Trainer)(1)\nA2Trainer(2)",
         ("trl.A2Trainer", "trl.B2Trainer")),
        ("from .mine import MyTrainer\nMyTrainer(1)", (".mine.MyTrainer",)),
        ("MyTrainer(1)", ("MyTrainer",)),
        ("from trl import GRPOTrainer\ndef f(x: GRPOTrainer): ...", ()),
        ("class GRPOTrainer: ...\nGRPOTrainer(1)", ()),
    ],
)  # fmt: skip
def test_the_trainers_that_a_script_uses_are_found(tmp_path, script, trainers):
    (tmp_path / "train.py").write_text(script)
    assert read_script(tmp_path / "train.py", ()).trainers == trainers


def test_the_classes_that_a_parser_gets_by_name_are_found(tmp_path):
    (tmp_path / "train.py").write_text("types = (Script, GRPOConfig)\nTrlParser(dataclass_types=types)\n")
    script = read_script(tmp_path / "train.py", ("GRPOConfig",))
    assert (script.parsed, script.also_parsed) == (("GRPOConfig",), ("Script",))
