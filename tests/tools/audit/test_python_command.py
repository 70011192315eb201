"""The command that a Python script builds from strings or lists."""

import pytest

from sentinel.tools.audit.launch import launch_of

SCRIPT = """
@dataclass
class Arguments:
    steps: int = 5
    folder: str = "/data"
    resume: bool = False
    more: str = ""

def train(args: Arguments):
    optimizer = "--lr 1e-6 " "--optimizer adam "
    rollout = (
        f"--num-rollout {args.steps} --prompt-data {args.folder}/train.jsonl --model {path()}/{size()}_b "
        f"--buffer {1024 ** 3} --seed {seed()} "
        '--template \\'{"a": "b"}\\' '
    )
    if args.resume:
        rollout += "--resume --load /ckpt "
    if big():
        shape = "--tp 8 --sp "
    else:
        shape = "--tp 2 "
    loss = f"{shape}" "--eps-clip 0.2 "
    run(command=f"{optimizer} {rollout} {loss} {wandb(run=1)} {args.more} ")
"""


def test_the_options_in_a_scripts_strings_are_read(tmp_path):
    file = tmp_path / "run.py"
    file.write_text(SCRIPT)
    launch = launch_of(file, (), ("C",))
    assert dict(launch.settings) == {
        "lr": 1e-6, "optimizer": "adam", "num_rollout": 5, "prompt_data": "/data/train.jsonl",
        "template": {"a": "b"}, "eps_clip": 0.2,
        **dict.fromkeys(["model", "buffer", "seed", "resume", "load", "tp", "sp"], "${?}"),
    }  # fmt: skip
    assert launch.read == (f"{file}:23: 14 settings read",)
    assert launch.hidden == {""}
    assert launch.unread == (
        "not known: settings that the script computes: model=…/…_b, buffer, seed, resume, load, tp, sp",
        "not known: further options that may be set by wandb(run=1) (line 23)",
        "read as the script's defaults, which arguments after -- replace: steps=5, folder=/data, more=",
    )
    launch = launch_of(file, ["--steps", "7"], ("C",))
    assert dict(launch.settings)["num_rollout"] == 7


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("run(['python', '-m', 'p', 'a.b=1', '--c', '2', f'd={x}'])", {"a.b": 1, "c": 2, "d": "${?}"}),
        ("f = ['--a', '1', '--b']\nf.append('--c')\nf += ['--d', '4']\nrun(f)", {"a": 1, "b": True, "c": True, "d": 4}),
        ("f = ['--a', '1', '--b=2']\nif x:\n    f.extend(['--c', '3'])\nrun(f)", {"a": 1, "b": 2, "c": "${?}"}),
        ("f = ['--a', '1', '--b', '2', '--c', str(3)]\nrun('python x.py ' + ' '.join(f))", {"a": 1, "b": 2, "c": 3}),
        ("def f():\n    return '--a 1 --b 2 --c ' + str(x)\n", {"a": 1, "b": 2, "c": "${?}"}),
        ("run(f'--a 1 --b 2 --c {1 if x else 2}')", {"a": 1, "b": 2, "c": "${?}"}),
    ],
)
def test_strings_and_lists_are_joined_as_the_script_joins_them(tmp_path, code, settings):
    (tmp_path / "run.py").write_text(code)
    assert dict(launch_of(tmp_path / "run.py", (), ("C",)).settings) == settings


@pytest.mark.parametrize(
    "code",
    [
        "for f in x:\n    run('--a 1 --b 2 --c 3 ' + f)",
        "def run_all(f):\n    run('--a 1 --b 2 --c 3 ' + f)",
        "f = x()\nrun('--a 1 --b 2 --c 3 ' + f)",
        "f = '--d 4'\nf *= 2\nrun('--a 1 --b 2 --c 3 ' + f)",
        "run(['--a', '1', '--b', '2', '--c', '3', *x])",
    ],
)
def test_other_parts_may_contain_any_option(tmp_path, code):
    (tmp_path / "run.py").write_text(code)
    launch = launch_of(tmp_path / "run.py", (), ("C",))
    assert (dict(launch.settings), launch.hidden) == ({"a": 1, "b": 2, "c": 3}, {""})


def test_a_configuration_is_read_instead_of_a_command(tmp_path):
    (tmp_path / "run.py").write_text("run('--a 1 --b 2 --c 3')\nC(d=4)\n")
    assert launch_of(tmp_path / "run.py", (), ("C",)).settings == (("d", 4),)
