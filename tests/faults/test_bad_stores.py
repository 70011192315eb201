"""Stores that are damaged, empty, of another version, or in use by another process."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import killing
import pytest
from stores import PRUNE, add, opened, said, target

from sentinel.cli import main
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import Home, MirrorStore, checkouts, open_checkout, pruning, pypi
from sentinel.sources.gitbinary import run_checked
from sentinel.targets.refs import Ref


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("SENTINEL_HOME", str(folder))
    monkeypatch.setattr(pypi, "_answers", {})
    bundled_catalog()
    return folder


def flip(file: Path, at: int, count: int = 16) -> None:
    """Invert some bytes of a file."""
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[at : at + count] = bytes(byte ^ 0xFF for byte in content[at : at + count])
    file.write_bytes(content)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "empty"])
def test_a_damaged_pack_is_reported(damage, home, demo_repository):
    """No code is read from it. A new mirror is complete."""
    bare = home.parent / "packed.git"  # one pack, as in a clone
    demo_repository.git("clone", "-q", "--bare", "--no-local", str(demo_repository.path), str(bare))
    assert main(["mirror", "add", "demo", "--from", str(bare)]) == 0
    (pack,) = home.glob("mirrors/demo.git/objects/pack/*.pack")
    content = pack.read_bytes()
    pack.unlink()  # not the origin's file, to which it may be a link
    pack.write_bytes({"flipped": content, "cut off": content[: len(content) // 2], "empty": b""}[damage])
    if damage == "flipped":
        for at in range(100, len(content) - 60, 50):
            flip(pack, at, 4)
    with pytest.raises(Unavailable):
        open_checkout(target(), Ref.parse(f"git:{demo_repository.commits['fixed']}"), store=MirrorStore())
    assert list((home / "checkouts" / "demo").glob("*/tree")) == []
    pack.unlink()
    assert main(["mirror", "add", "demo", "--from", str(bare)]) == 0
    assert opened(f"git:{demo_repository.commits['fixed']}")() == 0


YEAR = 365 * 86400.0


@pytest.mark.parametrize("jump", [-YEAR, YEAR], ids=["set back", "set forward"])
def test_a_jumping_clock_does_no_harm(jump, home, fixed_tree, broken_tree):
    """At any time of the clock, files of a running process stay, and files of an ended process are removed."""
    mine = open_checkout(target(), Ref("path", str(fixed_tree)), store=MirrorStore())
    assert killing.apart(opened(f"path:{broken_tree}")).status == 0
    leftover = home / "checkouts" / "demo" / ".new-killed"
    leftover.mkdir()
    download = home / "wheels" / "demo-dist" / ".new-killed"
    download.mkdir(parents=True)
    for place in (mine.path.parent / "checkout.json", leftover, download):
        os.utime(place, (time.time() + jump, time.time() + jump))
    gone = pruning.prune(Home(home), older_than=30 * 86400.0, now=time.time())
    assert sorted(entry.path for entry in gone) == sorted([leftover, download])
    assert len(pruning.prune(Home(home))) == 1, "the other tree's, which nobody uses"
    assert (mine.path / "demo_rl").is_dir()


def at_once(actions: Sequence[Callable[[], int]]) -> list[int]:
    """Run each action in its own process, starting all at the same moment."""
    ready, begin = os.pipe()
    pids = []
    for action in actions:
        pid = os.fork()
        if not pid:
            os.close(begin)
            os.read(ready, 1)  # end of file
            done = killing.apart(action)
            if done.status:
                os.write(2, done.said.encode())
            os._exit(done.status if done.status is not None else 99)
        pids.append(pid)
    os.close(begin)
    os.close(ready)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.slow
def test_many_runs_share_an_empty_cache(home, demo_repository):
    """Each process adds the mirror and opens two checkouts. Afterwards there are one mirror and two checkouts."""
    refs = [f"git:{demo_repository.commits[name]}" for name in ("broken", "fixed")]

    def one() -> int:
        return add(demo_repository)() or opened(refs[0])() or opened(refs[1])()

    assert at_once([one] * 8) == [0] * 8
    run_checked(home / "mirrors" / "demo.git", "fsck", "--strict")
    assert sorted(place.name for place in (home / "mirrors").iterdir()) == [".demo.lock", "demo.git"]
    made = sorted(place.name for place in (home / "checkouts" / "demo").iterdir())
    assert len(made) == 3
    assert made[-1] == "refs"
    assert not [name for name in made if name.startswith(".")]
    assert len(list(home.glob("mirrors/demo.git/objects/pack/*.pack"))) <= 1


@pytest.mark.slow
def test_pruning_during_runs_is_safe(home, fixed_tree, broken_tree):
    """An open checkout stays until its run ends, however often other processes prune."""

    def run() -> int:
        for _ in range(8):
            for tree in (fixed_tree, broken_tree):
                made = open_checkout(target(), Ref("path", str(tree)), store=MirrorStore())
                assert (made.path / "demo_rl" / "losses.py").read_bytes() == (tree / "demo_rl/losses.py").read_bytes()
                assert len(checkouts.files(made)) == len(list(made.path.rglob("*.py")))
        return 0

    def again_and_again() -> int:
        return sum(said("cache", "prune", "--all")() for _ in range(8))

    def briefly() -> int:
        return sum(killing.apart(opened(f"path:{tree}")).status or 0 for tree in (fixed_tree, broken_tree) * 4)

    actions = [run, again_and_again, briefly, again_and_again, run, again_and_again, briefly]
    assert at_once(actions) == [0] * len(actions)
    assert killing.apart(lambda: PRUNE() or again_and_again()).status == 0
    assert list((home / "checkouts" / "demo").iterdir()) == []


@pytest.mark.parametrize(
    "content", [None, "", "\0" * 99, "[]", "null", '{"tree": 7}', '{"origins": 7, "left_out": [7]}']
)
def test_a_damaged_record_counts_as_missing(content, home, demo_repository, capsys):
    """No command ends with a traceback: the file is made again, or the message states how to make it. With None, half
    of the file is left.
    """
    assert add(demo_repository)() == 0
    ref = f"git:{demo_repository.commits['fixed']}"
    assert opened(ref)() == 0
    notes = [file for file in home.rglob("*.json") if "tree" not in file.parts]
    assert {file.name for file in notes} >= {"sentinel.json", "checkout.json", "files.json"}
    for file in notes:
        whole = file.read_text(encoding="utf-8")
        file.chmod(0o644)
        file.write_text(whole[: len(whole) // 2] if content is None else content, encoding="utf-8")
        assert main(["mirror", "list"]) == main(["cache", "list"]) == main(["cache", "prune"]) == 0
        if file.name == "sentinel.json":
            assert "`sentinel mirror add demo` creates it again" in capsys.readouterr().out
            assert add(demo_repository)() == 0
        assert opened(ref)() == 0
