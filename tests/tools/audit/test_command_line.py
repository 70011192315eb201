"""Settings in commands and launch scripts, which are read without executing them."""

import os
from pathlib import Path

import pytest

from sentinel.errors import SentinelError
from sentinel.tools.audit.command_line import of_script, of_words
from sentinel.tools.audit.launch import launch_of

SCRIPT = """\
#!/bin/bash
set -ex
python tools/convert.py --format torch
HERE="$(cd "$(dirname "$0")" && pwd)"
source "${HERE}/models/small.sh"
STEPS=${STEPS:-300}
ARGS=(
   --kl-loss-coef 0.00
   # --lr 1
   --stop "a b" 'c'
)
ARGS+=(--colocate)
if [ "$GPUS" -gt 1 ]; then
    TP=2
    EXTRA=(--sequence-parallel)
fi
FLAGS="--eps-clip 0.2"
ray job submit --address=http://x --runtime-env-json="{\\"a\\": \\"$HOME\\"}" \\
   -- python3 train.py --steps ${STEPS} "${ARGS[@]}" $FLAGS --tp $TP ${EXTRA[@]} ${MODEL_ARGS[@]} \\
   +algorithm.kl_penalty="low_var_kl" --data $(ls data) "$@"
touch /nowhere/executed
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text("MODEL_ARGS=(--num-layers 2)\n")
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    return file


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("python -m a.main_ppo algorithm.adv_estimator=grpo +a.b=1", ["algorithm.adv_estimator=grpo", "+a.b=1"]),
        ("torchrun --nproc-per-node 8 train.py --lr 1e-6 --shift -2", ["lr=1e-6", "shift=-2"]),
        ("ray job submit --address x -- python3 train.py --use-kl --kl-coef=0", ["use-kl=true", "kl-coef=0"]),
        ("A=1 python train.py --stop a b --config-name x y.z=1", ["stop=[a, b]", "config-name=x", "y.z=1"]),
        ("algorithm.gamma=1", ["algorithm.gamma=1"]),
    ],
)
def test_settings_of_a_typed_command_are_read(words, settings):
    assert list(of_words(words.split()).settings) == settings


@pytest.mark.parametrize(
    ("words", "program", "settings"),
    [
        ("accelerate launch --config_file zero3.yaml --num_processes 8 train.py --beta 0.1", "train.py", ["beta=0.1"]),
        ("torchrun --nproc-per-node 8 -m trl.scripts.grpo --beta 0.1", "trl.scripts.grpo", ["beta=0.1"]),
        ("deepspeed --include localhost:0,1 train.py --deepspeed ds.json", "train.py", ["deepspeed=ds.json"]),
        ("deepspeed --module openrlhf.cli.train_dpo --beta 0.1", "openrlhf.cli.train_dpo", ["beta=0.1"]),
        ("python -m torch.distributed.run --nproc_per_node 8 train.py --lr 1", "train.py", ["lr=1"]),
        ("python -m areal.launcher.local gsm8k.py --config x.yaml a.b=1", "gsm8k.py", ["config=x.yaml", "a.b=1"]),
        ("ray job submit --address x --runtime-env-json={} -- python3 -m a.b c.d=1", "a.b", ["c.d=1"]),
        ("env A=1 B=2 srun --ntasks 8 uv run --with x python -u train.py --lr 1", "train.py", ["lr=1"]),
        ("uv run examples/run_grpo.py --config g.yaml grpo.n=4", "examples/run_grpo.py", ["config=g.yaml", "grpo.n=4"]),
        ("uv run rl --max-steps 4", "rl", ["max-steps=4"]),
        ("python train.py --reward-functions rewards.py --lr 1", "train.py", ["reward-functions=rewards.py", "lr=1"]),
        ("python -m a.b --plugin mine.py --lr 1", "a.b", ["plugin=mine.py", "lr=1"]),
        ("ls --all", "", ["all=true"]),
    ],
)
def test_launchers_are_skipped(words, program, settings):
    line = of_words(words.split())
    assert (line.program, list(line.settings)) == (program, settings)


def test_a_launch_script_is_read(script):
    """Variables, arrays, sourced files, and what only a shell can evaluate."""
    line = of_script(script)
    assert line.where == f"{script}:18"
    assert line.settings == (
        "steps=300",
        "kl-loss-coef=0.00",
        "stop=[a b, c]",
        "colocate=true",
        "eps-clip=0.2",
        "tp=${?}",
        "sequence-parallel=${?}",
        "num-layers=2",
        "+algorithm.kl_penalty=low_var_kl",
        "data=${?}",
    )
    assert line.unknown == ("tp", "sequence-parallel", "data")
    assert (line.further, line.arguments) == (("$(ls data) (line 20)",), '"$@" (line 20)')
    assert line.others == (f"{script}:3 (tools/convert.py)",)


@pytest.mark.parametrize(
    ("command", "settings", "unknown"),
    [
        ('bash -c "python train.py --lr $LR --x $HOME"', ["lr=3", "x=${?}"], ["x"]),
        ("srun sh -lc 'python train.py --lr 1'", ["lr=1"], []),
        ("python train.py $(cat opts.txt)", ["a=1", "b=[2, 3]"], []),
        ('python train.py all="$(< opts.txt)" --c 1', ["all=--a 1\n--b 2 3", "c=1"], []),
        ("python train.py --a $(date) --c 1", ["a=${?}", "c=1"], ["a"]),
        ("python train.py $(options) --c 1", ["c=1"], []),
        ("python train.py --c 1 $(options)", ["c=${?}"], ["c"]),
        ("python train.py $(cat gone.txt) --c 1", ["c=1"], []),
    ],
)
def test_shells_and_their_substitutions_are_read(tmp_path, command, settings, unknown):
    (tmp_path / "opts.txt").write_text("--a 1\n--b 2 3\n")
    (tmp_path / "run.sh").write_text(f"LR=3\n{command}\n")
    line = of_script(tmp_path / "run.sh")
    assert (list(line.settings), list(line.unknown)) == (settings, unknown)


def test_parts_of_a_value_and_missing_files_are_named(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        'D=$(cd x && pwd)\nsource "$D/models/8B.sh"\nF=$(date)\npython train.py --data "$F/a.parquet" --x $F\n'
    )
    launch = launch_of(script, (), ())
    assert launch.settings == (("data", "${?}"), ("x", "${?}"))
    missing, unknown, *_ = sorted(launch.unread, key=len, reverse=True)
    assert missing == (
        "the script sources files that do not exist, so variables that it sets earlier are not known: "
        f"…/models/8B.sh ({script}:2)"
    )
    assert unknown == "not known: settings that only a shell can compute: data=…/a.parquet, x"


RUN = "python train.py --lr 1 "


@pytest.mark.parametrize(
    ("text", "further"),
    [
        (RUN + "${EXTRA}", "${EXTRA} (line 1)"),
        ("python train.py --colocate ${EXTRA}", "${EXTRA} (line 1)"),
        (RUN + '"${EXTRA:-}" --${NAME}', '"${EXTRA:-}" (line 1)'),
        ("if a; then A+=(8); fi\n" + RUN + '"${A[@]}"', '"${A[@]}" (line 2)'),
        ("if a; then A+=(--x $B); fi\n" + RUN + '"${A[@]}"', '"${A[@]}" (line 2)'),
        ("A=\n[ -z $B ] && A='--x 1'\n" + RUN + "--y=$A", "--y=$A (line 3)"),
        ("for a in '' --x; do " + RUN + "$a; done", "$a (line 1)"),
        ("A=\nwhile a; do " + RUN + "$A; A=--x; done", "$A (line 2)"),
        ("A=\ncase $1 in a) A=--x;; esac\n" + RUN + "$A", "$A (line 3)"),
        ("run() { " + RUN + '"$@"; }\nrun --x', '"$@" (line 1)'),
        ("f() { A=--x; }\nA=\nf\n" + RUN + "$A", "$A (line 4)"),
        ("A=\ng() { " + RUN + "$A; }\nA=--x\ng", "$A (line 2)"),
        ("f() { local -n a=$1; a+=(--x); }\nA=()\nf A\n" + RUN + "${A[@]}", "${A[@]} (line 4)"),
        ("A=\n: ${A:=--x}\n" + RUN + "$A", "$A (line 3)"),
        ("A=\nread -r A < f\n" + RUN + "$A", "$A (line 3)"),
        ("A=\nprintf -v A %s --x\n" + RUN + "$A", "$A (line 3)"),
        ("A=()\nA[0]=--x\n" + RUN + "${A[@]}", "${A[@]} (line 3)"),
        ("A=\nsource gone.sh\n" + RUN + "$A", "$A (line 3)"),
        ("A=\neval A=--x $B\n" + RUN + "$A", "$A (line 3)"),
        ("A=--y\n" + RUN + "${A/y/x}", "${A/y/x} (line 2)"),
        ("A=(--y $B)\n" + RUN + "${A[@]}", "$B (line 1)"),
        ("alias t='" + RUN + "'\nt --x", '"$@" (line 1)'),
        ('run() { "$@" --x; }\nrun ' + RUN, "the function run (line 2)"),
        ("echo --x | xargs " + RUN, "xargs"),
        (RUN + "--data a $HOME/x --p=$PORT --seed '$A' --dir \"$DIR\"", None),
        ("N=1\nif a; then N=2; fi\nfor s in 1 2; do " + RUN + "--n $N --seed $s; done", None),
        ("main() { A=(--n ${N:-3})\n A+=(--x)\n " + RUN + '"${A[@]}"; }\nmain', None),
    ],
)
def test_words_that_may_set_any_option_are_listed(tmp_path, text, further):
    (tmp_path / "run.sh").write_text(text + "\n")
    assert of_script(tmp_path / "run.sh").further[:1] == ((further,) if further else ())


@pytest.mark.parametrize(
    "string", ['"$A $B"', '"${A} ${B} "', '" $A  ${B}"', '"$A $(cat b.txt)"', '"$A $B$C"', '"\n  $A \\\n  $B"']
)
def test_quoted_words_keep_their_spaces(tmp_path, string):
    (tmp_path / "b.txt").write_text("--y 2\n")
    (tmp_path / "run.sh").write_text(f"A='--x 1'\nB='--y 2'\nC=\nD={string}\npython train.py $D\n")
    assert of_script(tmp_path / "run.sh").settings == ("x=1", "y=2")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("A=(--n 1)\nif a; then A+=(--x 2 y.z=3); fi\n", ("n=1", "x=${?}", "y.z=${?}")),
        ("A=(a.b=1)\nif a; then A=(a.b=2 c=1); fi\n", ("a.b=${?}", "a.b=${?}", "c=${?}")),
    ],
)
def test_options_added_in_a_branch_are_unknown(tmp_path, text, settings):
    (tmp_path / "run.sh").write_text(text + 'python train.py "${A[@]}"\n')
    line = of_script(tmp_path / "run.sh")
    assert (line.settings, line.further) == (settings, ())


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (': "${MODEL:=a/b}"\n: ${TP:=2}\n', ["a/b", "2"]),
        ("TP=\n: ${MODEL:=a/b} ${TP:=2}\n", ["a/b", "2"]),
        ("MODEL=c\nTP=\n: ${MODEL:=a/b} ${TP=2}\n", ["c", ""]),
        ("MODEL=\nTP=\nMODEL=${MODEL:-a/b}\nTP=${TP-2}\n", ["a/b", ""]),
        ("MODEL=$(cd x && pwd)/m\nTP=$(echo $x | wc -l)\n", ["${?}", "${?}"]),
        ("MODEL=$HOME/m\nTP=$(nproc)\n", ["${?}", "${?}"]),
        ("A=1\nMODEL=m\nTP=$(((A + 2) * 4 / 5))\n", ["m", "2"]),
        ("A=1\nMODEL=m\nTP=$((A * $NOBODY))\n", ["m", "${?}"]),
        ("MODEL=${MODEL:-$HOME/m}\nTP=$((9**9))\n", ["${?}", "${?}"]),
        (". /etc/profile.d/train.sh\nMODEL=m\nTP=${TP:-2}\n", ["m", "${?}"]),
        ("source env/bin/activate\nMODEL=m\nTP=${TP:-2}\n", ["m", "${?}"]),
    ],
)
def test_defaults_of_variables_and_one_word_commands_are_read(tmp_path, text, settings):
    (tmp_path / "run.sh").write_text(f'{text}python train.py --model $MODEL tp="$TP"\n')
    line = of_script(tmp_path / "run.sh")
    assert (line.settings, line.further) == (tuple(map("=".join, zip(("model", "tp"), settings))), ())


@pytest.mark.parametrize(
    "line",
    [
        "export $(grep -v '^#' train.env | xargs)",
        'for opt in "$@"; do declare "${opt%%=*}=${opt#*=}"; done',
        'while IFS== read -r key val; do export "$key=$val"; done < train.env',
    ],
)
def test_a_variable_set_by_a_computed_name_is_unknown(tmp_path, line):
    (tmp_path / "run.sh").write_text(f'MODEL=m\n{line}\npython train.py --model "$MODEL" --tp "${{TP:-2}}"\n')
    assert of_script(tmp_path / "run.sh").settings == ("model=${?}", "tp=${?}")


@pytest.mark.parametrize(
    ("text", "settings", "others"),
    [
        ("cat > t.sh <<EOF\npython train.py --n $N\nEOF\nbash t.sh\n", ["n=4"], []),
        ("cat <<EOF > t.sh\npython train.py --n $N\nEOF\nchmod +x t.sh\n./t.sh\n", ["n=4"], []),
        ("cat > ./t <<EOF\npython train.py --n \\$N --m $(cat m)\nEOF\n./t\n", ["n=${?}", "m=${?}"], []),
        ("tee $DIR/t.sh <<'EOF'\npython train.py --n ${N:-1}\nEOF\nN=2 bash $DIR/t.sh\n", ["n=2"], []),
        ("cat > t.sh <<'EOF'\npython train.py --n ${N:-1}\nEOF\nexport N\nnohup bash -x t.sh &\n", ["n=4"], []),
        ("cat > t.sh <<'EOF'\npython train.py --n ${N:-1}\nEOF\nset -a\nbash t.sh\n", ["n=${?}"], []),
        ("bash <<EOF\npython train.py --n $N\nEOF\n", ["n=4"], []),
        ("cat <<EOF | sbatch\npython train.py --n $N\nEOF\n", ["n=4"], []),
        ("srun -N 2 bash there.sh\n", ["n=3"], []),
        ("echo 'python a.py --n 4' > there.sh\nbash there.sh\npython b.py --n 1\n", ["n=1"], ["run.sh:3 (there.sh)"]),
        ("bash gone.sh\npython b.py --n 1\n", ["n=1"], ["run.sh:2 (gone.sh)"]),
        ("curl x | bash\nbash $DIR\npython b.py --n 1\n", ["n=1"], ["run.sh:2 (bash)", "run.sh:3 (…)"]),
        ("cat > t.sh <<EOF\npython a.py\nEOF\ncat >> t.sh <<EOF\n--n 1\nEOF\nbash t.sh\npython b.py --n 1\n", ["n=1"],
         ["run.sh:8 (t.sh)"]),
        ("python b.py --n 1\ncat there.sh | grep n\nfind . -name a.sh\n", ["n=1"], []),
        ("bash run.sh\npython b.py --n 1\n", ["n=1"], ["run.sh:2 (run.sh)"]),
    ],
)  # fmt: skip
def test_scripts_that_a_script_writes_or_runs_are_read_or_named(tmp_path, text, settings, others):
    (tmp_path / "there.sh").write_text("python train.py --n 3\n")
    (tmp_path / "run.sh").write_text(f"N=4\n{text}")
    line = of_script(tmp_path / "run.sh")
    assert (list(line.settings), [other.rpartition("/run.sh")[2] and other for other in line.others]) == (
        settings, [f"{tmp_path}/{other}" for other in others],
    )  # fmt: skip


def test_a_script_that_gets_the_command_may_add_options(tmp_path):
    (tmp_path / "run.sh").write_text("bash dist.sh train.py --n 1\n")
    assert of_script(tmp_path / "run.sh").further == ("dist.sh",)


def test_defaults_that_the_environment_may_replace_are_listed(tmp_path):
    (tmp_path / "run.sh").write_text("N=${N:-1}\n: ${M:=2}\npython train.py --n $N --m $M --k ${K-3} --a ${1:-4}\n")
    line = of_script(tmp_path / "run.sh")
    assert line.settings == ("n=1", "m=2", "k=3", "a=4")
    assert line.assumed == ("N=1", "M=2", "K=3", "1=4")
    (said,) = launch_of(tmp_path / "run.sh", (), ()).unread
    assert said == "read as the script's defaults, which the environment may replace: N=1, M=2, K=3, 1=4"
    assert of_script(tmp_path / "run.sh", arguments=["5"]).settings[-1] == "a=${?}"
    (tmp_path / "run.sh").write_text("N=2\nN=${N:-1}\npython train.py --n $N\n")
    assert of_script(tmp_path / "run.sh").assumed == ()


def test_a_shell_command_inside_a_typed_command_is_read():
    assert of_words(["srun", "bash", "-lc", "cd x && python train.py --lr 1"]).settings == ("lr=1",)


def test_a_script_that_sources_itself_is_read_once(script):
    (script.parent / "models" / "small.sh").write_text(
        'source "${HERE}/models/small.sh"\nMODEL_ARGS=(--num-layers 3)\n'
    )
    assert "num-layers=3" in of_script(script).settings


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"echo no\n", "no command in it runs a Python program; give the command itself after --"),
        (b"\0", "is not a launch script: it contains a NUL byte"),
        (b"#" * ((1 << 20) + 1), "at most 1 MiB are read"),
        (b"A=xxxxxxxx\n" + b"A=$A$A\n" * 40 + b"python x.py a=$A\n", "have more than 2 MiB"),
        (b"A=(x y)\n" + b'A=("${A[@]}" "${A[@]}")\n' * 40 + b'python x.py a="${A[@]}"\n', "have more than 2 MiB"),
        (b"A=" + b"x" * 500_000 + b"\npython x.py " + b"$A" * 200_000 + b"\n", "have more than 2 MiB"),
        (b"( " * 3000 + b"echo" + b" )" * 3000, "nested too deep"),
        (None, "No such file"),
    ],
)
def test_an_invalid_launch_script_is_rejected(tmp_path, content, says):
    file = tmp_path / "run.sh"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SentinelError, match=says):
        of_script(file)


@pytest.mark.slow
def test_files_that_source_each_other_are_read_once(tmp_path):
    """Five files with a hundred such lines each would otherwise be read ten billion times."""
    for number in range(6):
        text = f'source "$HERE/{number + 1}.sh"\n' * 100 if number < 5 else "A=1\n"
        (tmp_path / f"{number}.sh").write_text(text + "python train.py --lr 1\n")
    with pytest.raises(SentinelError, match="have more than 2 MiB"):
        of_script(tmp_path / "0.sh")


def test_a_pipe_in_place_of_a_script_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "run.sh")
    with pytest.raises(SentinelError, match="not a regular file"):
        of_script(tmp_path / "run.sh")


def test_text_that_is_not_shell_is_read_as_far_as_possible(tmp_path):
    file = tmp_path / "run.sh"
    file.write_bytes(b"python train.py --lr 1\nfi ))) ${ \xff\nif ((\n")
    assert "lr=1" in of_script(file).settings


def test_a_script_gets_its_own_arguments(tmp_path):
    """Functions, aliases and other files have other arguments."""
    file = tmp_path / "run.sh"
    file.write_text('python train.py --lr 1 "$@"\n')
    assert of_script(file, arguments=["--beta", "2", "a.b=3"]).settings == ("lr=1", "beta=2", "a.b=3")
    file.write_text('run() { python train.py --lr 1 "$@"; }\nrun --beta 2\n')
    assert of_script(file, arguments=["--beta", "3"]).further == ('"$@" (line 1)',)
    file.write_text("set -euo pipefail\nOWN=$@\npython train.py --lr 1 $OWN ${@}\n")
    line = of_script(file)
    assert (line.settings, line.further, line.arguments) == (("lr=1",), (), "$@ (line 2)"), "read as none, and said"
    assert of_script(file, arguments=["--beta", "3"]).settings == ("lr=1", "beta=3", "beta=3")
    for again in ("set a --beta 3", "set -- --beta 3", "set -e -- --beta 3"):
        file.write_text(f'{again}\npython train.py --lr 1 "$@"\n')
        assert (of_script(file).further, of_script(file).arguments) == (('"$@" (line 2)',), "")
    file.write_text("alias t='python train.py --lr 1'\nt --x\n")
    assert of_script(file, arguments=["--beta", "3"]).further == ('"$@" (line 1)',)
