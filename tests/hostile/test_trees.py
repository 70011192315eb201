"""Malicious git trees, repositories and working trees."""

import os
import re
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, Repository, copy_demo, returned, write_recipe

from sentinel.cli import main
from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.records.workcopy import WorkCopy
from sentinel.sources import MirrorStore, checkouts, commits, gitbinary, gitrefs, open_checkout, path
from sentinel.sources.adding import open_directory
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

TARGET = Target("demo", "https://example.invalid/demo.git", (PackageRoot("demo_rl"),))
MAIN = Ref.parse("git:main")
BLOB, LINK, TREE = "100644", "120000", "40000"


class Raw(Repository):
    """A repository whose objects are written byte by byte, because git would reject them."""

    def write(self, kind: str, content: bytes) -> str:
        command = ["git", "-C", str(self.path), "hash-object", "-t", kind, "-w", "--literally", "--stdin"]
        return subprocess.run(command, input=content, capture_output=True, check=True).stdout.decode().strip()

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """Write a tree object.

        :param entries: mode, name and object of each entry, in this order.
        """
        lines = (f"{mode} ".encode() + os.fsencode(name) + b"\0" + bytes.fromhex(sha) for mode, name, sha in entries)
        return self.write("tree", b"".join(lines))

    def head(self, package: str, branch: str = "main") -> str:
        """Commit a tree as the package root of a branch."""
        commit = self.git("commit-tree", self.tree((TREE, "demo_rl", package)), "-m", "raw")
        self.git("update-ref", f"refs/heads/{branch}", commit)
        return commit


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    repository = Raw(tmp_path / "upstream")
    repository.path.mkdir()
    repository.git("init", "--quiet", "--initial-branch=main")
    return repository


@pytest.fixture
def code(raw: Raw) -> str:
    return raw.write("blob", b"VALUE = 1\n")


@pytest.fixture
def mirrored(raw: Raw, store: MirrorStore) -> Callable[[], Checkout]:
    """Return the checkout of the repository's main, through a mirror."""

    def make() -> Checkout:
        store.add(TARGET, str(raw.path))
        return open_checkout(TARGET, MAIN, store=store)

    return make


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Return the file that ``program`` creates."""
    return tmp_path / "ran"


@pytest.fixture
def program(tmp_path: Path, ran: Path) -> str:
    file = tmp_path / "program.sh"
    file.write_text(f"#!/bin/sh\necho ran >> {ran}\nexit 1\n")
    file.chmod(0o755)
    return str(file)


def _files(made: Checkout) -> list[str]:
    return sorted(path.relative_to(made.path).as_posix() for path in made.path.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("..", "leads out"), ("../out.py", "leads out"), ("/out.py", "leads out"), ("a/../out.py", "leads out"),
        (".", "leads out"), ("a\\..\\out.py", "leads out"), ("x" * 300, "too long"),
        ("x/" * 600 + "out.py", "too long"),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_tree_with_a_name_outside_its_folder_is_rejected(raw, code, mirrored, tmp_path, name, says):
    raw.head(raw.tree((BLOB, name, code)))
    with pytest.raises(Unavailable, match=says):
        mirrored()
    assert list(tmp_path.rglob("out.py")) == []


@pytest.mark.parametrize("kinds", [(BLOB, BLOB), (BLOB, TREE), (TREE, BLOB)])
def test_a_tree_with_two_entries_of_one_name_is_rejected(raw, code, mirrored, kinds):
    objects = {BLOB: code, TREE: raw.tree((BLOB, "inner.py", code))}
    raw.head(raw.tree(*((kind, "same", objects[kind]) for kind in kinds)))
    with pytest.raises(Unavailable, match="conflicts with another file"):
        mirrored()


def test_deceptive_names_are_kept_unchanged(raw, code, mirrored):
    names = [
        "A.py",
        "a.py",
        "a\nb.py",
        "\x1b[2J.py",
        "\u202egnp.py",
        os.fsdecode(b"\xff.py"),
        "-rf",
        "e\u0301",
        "\u00e9",
    ]
    raw.head(raw.tree(*((BLOB, name, code) for name in sorted(names, key=os.fsencode))))
    assert _files(mirrored()) == sorted(f"demo_rl/{name}" for name in names)


def test_unusual_modes_are_normalised(raw, code, mirrored, move):
    """git treats an entry that is not a file, link or folder as a submodule."""
    modes = {"setuid.py": "104777", "fifo.py": "010644", "device.py": "060666", "none.py": "0"}
    package = raw.tree(*((mode, name, code) for name, mode in sorted(modes.items())))
    raw.head(package)
    for made in (mirrored(), move(package)):
        status = (made.path / "demo_rl" / "setuid.py").lstat()
        assert (stat.S_ISREG(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, 0o444)
        gone = {Path(item.path).name: item.reason for item in made.left_out}
        assert gone == dict.fromkeys(["fifo.py", "device.py", "none.py"], "a submodule")


def test_a_file_that_is_also_a_folder_is_rejected(raw, code, mirrored):
    raw.head(raw.tree((BLOB, "folder.py", raw.tree((BLOB, "x.py", code)))))
    with pytest.raises(Unavailable):
        mirrored()


@pytest.mark.parametrize("points", ["/etc/passwd", "../../../../secret", "/proc/self/environ", "../../upstream/x", "."])
def test_links_out_of_the_tree_are_left_out(raw, code, mirrored, tmp_path, points):
    (tmp_path / "secret").write_text("key")
    link = raw.write("blob", os.fsencode(points))
    raw.head(raw.tree((BLOB, "__init__.py", code), (LINK, "link", link)))
    made = mirrored()
    link_there = made.path / "demo_rl" / "link"
    assert not link_there.is_symlink() or link_there.resolve().is_relative_to(made.path.resolve())
    assert link_there.is_symlink() == (points == ".")


@pytest.mark.parametrize("mode", [LINK, "160000"])
def test_a_package_root_that_is_a_link_is_rejected(raw, code, mirrored, mode):
    """The package itself is a link or a submodule."""
    points = raw.write("blob", b"/usr/lib/python3") if mode == LINK else "1" * 40
    commit = raw.git("commit-tree", raw.tree((mode, "demo_rl", points), (BLOB, "other.py", code)), "-m", "raw")
    raw.git("update-ref", "refs/heads/main", commit)
    with pytest.raises(Unavailable, match="none of its package roots"):
        mirrored()


@pytest.mark.slow
def test_chains_of_links_are_resolved_safely(raw, code, mirrored, move):
    """Long chains, cycles and detours: only links that end inside the tree are followed."""
    points = {f"chain{n:02}.py": f"chain{n + 1:02}.py" for n in range(60)}
    points |= {"chain60.py": "__init__.py", "circle.py": "elcric.py", "elcric.py": "circle.py", "own.py": "own.py"}
    points |= {"up": "..", "around.py": "up/demo_rl/up/demo_rl/__init__.py", "out.py": "up/../checkout.json"}
    points |= {"cache": "../../tree.pycache", "through": "up/up", "by.py": "through/checkout.json", "no.py": "gone.py"}
    links = [(LINK, name, raw.write("blob", os.fsencode(aim))) for name, aim in points.items()]
    package = raw.tree(*sorted([(BLOB, "__init__.py", code), *links], key=lambda entry: entry[1]))
    raw.head(package)
    for made in (mirrored(), mirrored(), move(package), move(package)):
        there = {path.name: path for path in (made.path / "demo_rl").iterdir()}
        assert all(path.resolve().is_relative_to(made.path.resolve()) for path in there.values())
        assert {"__init__.py", "chain60.py", "chain59.py", "up", "around.py"} <= set(there)
        assert not {"circle.py", "own.py", "out.py", "cache", "by.py", "no.py"} & set(there)


def test_names_with_a_meaning_for_tools_are_harmless(raw, code, mirrored):
    """Compiled code and git's own folders are left out. Names that are special on other systems are kept."""
    inner = raw.tree((BLOB, "evil.cpython-311.pyc", code), (BLOB, "config", code))
    tools = [(TREE, ".git", inner), (TREE, "__pycache__", inner), (BLOB, "sourceless.pyc", code)]
    names = [
        ".GIT",
        "git~1",
        ".git ",
        ".gi\u200ct",
        ".gitattributes",
        ".gitmodules",
        "__PYCACHE__",
        "A.py",
        "a.py",
        "con",
    ]
    entries = [(BLOB, "__init__.py", code), *tools, *((BLOB, name, code) for name in names)]
    raw.head(raw.tree(*sorted(entries, key=lambda entry: os.fsencode(entry[1]))))
    for made in (mirrored(), mirrored()):
        assert _files(made) == sorted(f"demo_rl/{name}" for name in ["__init__.py", *names])


DATES = ["99999999999999999999 +0000", "-1 +0000", "0 +9999", "1 -9999", "253402300800 +0000", "x", "", "1e9 +0000"]


def test_malformed_commits_are_rejected(raw, code):
    """Invalid dates, no author, no message, control characters, repeated parents, tags of tags."""
    tree = raw.tree((TREE, "demo_rl", raw.tree((BLOB, "__init__.py", code))))
    parent, made = "", []
    for date in DATES:
        who = f"author \x1b[31m <::error::> {date}\ncommitter C <c@e.org> {date}\n"
        text = f"tree {tree}\n{parent}{who}\n\x1b]0;x\x07\u202e::error::x\n##[error]x (#{'9' * 5000})\n"
        made.append(raw.write("commit", text.encode()))
        parent = f"parent {made[-1]}\n" * 3
    made.append(raw.write("commit", f"tree {tree}\n{parent}\n".encode()))
    raw.git("update-ref", "refs/heads/main", made[-1])
    aim, kind = made[-1], "commit"
    for number in range(60):
        tag = f"object {aim}\ntype {kind}\ntag v1.{number}\ntagger T <t@e.org> {DATES[0]}\n\nx\n"
        aim, kind = raw.write("tag", tag.encode()), "tag"
    raw.git("update-ref", "refs/tags/v1.0", aim)
    found = commits.history(raw.path / ".git", made[-1])
    assert {commit.sha for commit in found} <= set(made)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", commit.date) for commit in found)
    assert all(commit.pull is None or commit.pull < 1 << 63 for commit in found)
    assert {tag.name for tag in commits.releases(raw.path / ".git")} <= {"v1.0"}


def test_a_deeply_nested_tree_is_rejected(raw, code, mirrored):
    """Ten objects that describe ten billion files."""
    tree = raw.tree(*((BLOB, f"{number}.py", code) for number in range(10)))
    for _ in range(9):
        tree = raw.tree(*((TREE, str(number), tree) for number in range(10)))
    raw.head(tree)
    began = time.process_time()
    with pytest.raises(Unavailable, match="printed more than"):
        mirrored()
    assert time.process_time() - began < 10


def test_a_revision_with_too_many_files_is_rejected(raw, code, mirrored, monkeypatch):
    large = raw.write("blob", bytes(1 << 20))
    raw.head(raw.tree(*((BLOB, f"{number}.py", large) for number in range(5))))
    with monkeypatch.context() as patch:
        patch.setattr(checkouts, "MOST_BYTES", 4 << 20)
        with pytest.raises(Unavailable, match="have more than 4194304 bytes"):
            mirrored()
        patch.setattr(checkouts, "MOST_FILES", 4)
        with pytest.raises(Unavailable, match="has more than 4 files"):
            mirrored()
    assert len(_files(mirrored())) == 5


def test_an_oversized_source_file_in_a_tree_is_left_out(raw, code, mirrored, monkeypatch):
    monkeypatch.setattr("sentinel.sources.trees.SOURCE_LIMIT", 2 << 20)
    raw.head(raw.tree((BLOB, "__init__.py", code), (BLOB, "large.py", raw.write("blob", bytes(3 << 20)))))
    made = mirrored()
    assert _files(made) == ["demo_rl/__init__.py"]
    assert [(gone.path, gone.size) for gone in made.left_out] == [("demo_rl/large.py", 3 << 20)]


@pytest.fixture
def move(raw: Raw, tmp_path: Path) -> Iterator[Callable[[str], Checkout]]:
    """Move a sweep's working copy to a package root's tree."""
    trees = GitTrees(raw.path / ".git")
    copy = WorkCopy(tmp_path / "user" / "copy", TARGET, trees)
    yield lambda package: copy.move("0" * 40, [("demo_rl", package)])
    trees.close()


def test_a_folder_outside_the_tree_is_neither_made_nor_removed(raw, code, move, tmp_path):
    (tmp_path / "user" / "documents").mkdir()
    (tmp_path / "user" / "documents" / "thesis").write_text("years")
    nothing = raw.tree()
    for name in ("documents", "made"):
        tree = raw.tree((TREE, name, nothing))
        for _ in range(3):  # out of demo_rl, tree and copy, into the user's folder
            tree = raw.tree((TREE, "..", tree))
        with pytest.raises(Unavailable, match="leads out"):
            move(tree)
        move(raw.tree((BLOB, "__init__.py", code)))
    assert (tmp_path / "user" / "documents" / "thesis").read_text() == "years"
    assert not (tmp_path / "user" / "made").exists()


def test_a_package_root_inside_another_is_written_once(raw, code, tmp_path):
    """For three days, upstream had a package in a folder of the same name; working copies move there and back."""
    trees = GitTrees(raw.path / ".git")
    copy = WorkCopy(tmp_path / "user" / "copy", TARGET, trees)
    inner = raw.tree((BLOB, "__init__.py", code))
    outer = raw.tree((TREE, "inside", inner))
    both, alone = {"demo_rl": outer, "demo_rl/inside": inner}, {"demo_rl": inner}
    for roots in (both, alone, {"demo_rl/inside": inner}, both, alone, {"demo_rl/inside": inner}, alone):
        made = copy.move("0" * 40, tuple(roots.items()))
        expected = "demo_rl/__init__.py" if roots is alone else "demo_rl/inside/__init__.py"
        assert _files(made) == [expected]
        assert [str(file.relative_to(made.path)) for file in made.path.rglob("*.py")] == [expected]
    trees.close()


def test_a_sweep_rejects_a_deeply_nested_tree(raw, move):
    tree = raw.tree()
    for _ in range(10):
        tree = raw.tree(*((TREE, str(number), tree) for number in range(10)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sentinel.records.workcopy.MOST_FILES", 1000)
        with pytest.raises(Unavailable, match="more than 1000 files"):
            move(tree)


def test_a_sweep_rejects_trees_that_are_too_deep_too_large_or_invalid(raw, code, move, monkeypatch):
    monkeypatch.setattr("sentinel.sources.gittrees.SOURCE_LIMIT", 2 << 20)
    monkeypatch.setattr("sentinel.sources.trees.SOURCE_LIMIT", 2 << 20)
    deep = raw.tree()
    for _ in range(6):
        deep = raw.tree((TREE, "x" * 200, deep))
    with pytest.raises(Unavailable, match="too long"):
        move(deep)
    with pytest.raises(Unavailable, match="is not a tree"):
        move(raw.write("tree", b"100644 without an end"))
    made = move(raw.tree((BLOB, "__init__.py", code), (BLOB, "large.py", raw.write("blob", bytes(3 << 20)))))
    assert _files(made) == ["demo_rl/__init__.py"]
    assert [(gone.path, gone.size) for gone in made.left_out] == [("demo_rl/large.py", 3 << 20)]


def _config(program: str, path: Path) -> str:
    """Yield every setting with which a repository's configuration can run a program."""
    hooks = path / "hooks"
    hooks.mkdir(exist_ok=True)
    names = ("post-checkout", "pre-auto-gc", "reference-transaction", "fsmonitor-watchman", "post-index-change")
    for name in names:
        shutil.copy(program, hooks / name)
    (path / "included").write_text(f'[core]\n\tpager = {program}\n[alias]\n\trev-parse = "!{program}"\n')
    return f"""
[core]
\trepositoryformatversion = 1
\thooksPath = {hooks}
\tfsmonitor = {program}
\tsshCommand = {program}
\tgitProxy = {program}
\taskPass = {program}
\tpager = {program}
\teditor = {program}
\talternateRefsCommand = {program}
\tattributesFile = {path}/attributes
[extensions]
\tpartialClone = origin
[remote "origin"]
\turl = file://{path}
\tpromisor = true
\tpartialclonefilter = blob:none
\tuploadpack = {program}
\tvcs = ext
[protocol]
\tallow = always
[protocol "file"]
\tallow = always
[protocol "ext"]
\tallow = always
[protocol "ssh"]
\tallow = always
[url "ext::{program} "]
\tinsteadOf = https://
\tinsteadOf = file://
[credential]
\thelper = "!{program}"
[uploadpack]
\tpackObjectsHook = {program}
[filter "evil"]
\tsmudge = {program}
\tclean = {program}
\tprocess = {program}
\trequired = true
[diff "evil"]
\ttextconv = {program}
\tcommand = {program}
[alias]
\tls-tree = "!{program}"
[include]
\tpath = {path}/included
"""


@pytest.fixture
def armed(raw: Raw, program: str) -> Raw:
    """A repository whose configuration runs a program at every opportunity. One object is missing, so that a reader has
    a reason to fetch it.
    """
    copy_demo(raw.path)
    raw.commit("broken", {"demo_rl/sub.py": "$Id$\n"})
    attributes = b"* filter=evil diff=evil export-subst working-tree-encoding=UTF-16 eol=crlf ident\n"
    modules = f'[submodule "x"]\n\tpath = demo_rl/x\n\turl = ext::{program}\n\tupdate = !{program}\n'.encode()
    planted = {".gitattributes": attributes, "demo_rl/.gitattributes": attributes, ".gitmodules": modules}
    for name, content in planted.items():
        (raw.path / name).write_bytes(content)
        raw.git("update-index", "--add", "--cacheinfo", f"100644,{raw.write('blob', content)},{name}")
    raw.git("update-index", "--add", "--cacheinfo", f"160000,{raw.commits['broken']},demo_rl/x")
    raw.commits["armed"] = raw.git("commit-tree", raw.git("write-tree"), "-p", "HEAD", "-m", "armed")
    raw.git("update-ref", "refs/heads/main", raw.commits["armed"])
    gone = raw.git("rev-parse", "HEAD:demo_rl/rejection.py")
    (raw.path / ".git" / "objects" / gone[:2] / gone[2:]).unlink()
    git_dir = raw.path / ".git"
    (git_dir / "attributes").write_text("* filter=evil\n")
    (git_dir / "config").write_text(_config(program, git_dir))
    return raw


@pytest.fixture(params=["git", "an older git"])
def git_of_some_age(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace git by a version before 2.45, which has no variable that forbids a lazy fetch."""
    if request.param == "an older git":
        monkeypatch.delitem(gitbinary._ENVIRONMENT, "GIT_NO_LAZY_FETCH")


#: A remote that runs a program on every fetch.
REMOTES = {
    "a program in the place of git's": "url = file://{path}\n\tuploadpack = {program}",
    "a transport that is a program": "url = ext::{program}",
}


@pytest.fixture(params=REMOTES.values(), ids=REMOTES.keys())
def promising(request: pytest.FixtureRequest, raw: Raw, program: str) -> Raw:
    """A working tree whose trees have to be fetched."""
    copy_demo(raw.path)
    raw.commit("broken", {})
    gone = raw.git("rev-parse", "HEAD:demo_rl")
    (raw.path / ".git" / "objects" / gone[:2] / gone[2:]).unlink()
    remote = request.param.format(path=raw.path, program=program)
    allowed = "".join(f'[protocol "{name}"]\n\tallow = always\n' for name in ("file", "ext", "ssh"))
    (raw.path / ".git" / "config").write_text(
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n"
        f'[remote "origin"]\n\t{remote}\n\tpromisor = true\n{allowed}'
    )
    return raw


@pytest.mark.usefixtures("git_of_some_age")
def test_a_working_tree_fetches_nothing(promising, store, ran):
    made = open_checkout(TARGET, Ref("path", str(promising.path)), store=store)
    assert (made.commit, made.roots) == (None, ("demo_rl",))
    assert not ran.exists()


def test_plain_git_would_run_the_planted_command(promising, ran):
    """This shows that the previous test can fail: git with the repository's configuration runs the program."""
    command = ["git", "-C", str(promising.path), "ls-tree", "-r", "HEAD"]
    subprocess.run(command, check=False, capture_output=True, env={"PATH": os.environ["PATH"]}, timeout=30)
    assert ran.exists()


@pytest.mark.usefixtures("git_of_some_age")
def test_a_working_tree_runs_nothing(armed, store, ran):
    made = open_checkout(TARGET, Ref("path", str(armed.path)), store=store)
    assert made.commit == armed.commits["armed"]
    assert not ran.exists()


@pytest.mark.usefixtures("git_of_some_age")
def test_a_mirror_copies_no_configuration(armed, store, ran):
    store.add(TARGET, str(armed.path))
    assert "program" not in (store.path("demo") / "config").read_text()
    assert not (store.path("demo") / "hooks").exists()
    with pytest.raises(Unavailable, match="which the mirror lacks"):
        open_checkout(TARGET, MAIN, store=store)
    with pytest.raises(SentinelError):
        store.update(TARGET)
    assert not ran.exists()


def test_git_attributes_change_no_content(armed, store):
    armed.write("blob", (armed.path / "demo_rl" / "rejection.py").read_bytes())  # the missing object
    store.add(TARGET, str(armed.path))
    made = open_checkout(TARGET, MAIN, store=store)
    assert (made.path / "demo_rl" / "sub.py").read_text() == "$Id$\n"
    assert [gone.path for gone in made.left_out] == ["demo_rl/x"]
    assert made.tree == open_checkout(TARGET, Ref("path", str(armed.path)), store=store).tree


def test_git_environment_variables_have_no_effect(armed, store, program, ran, monkeypatch, tmp_path):
    settings = {"core.fsmonitor": program, "core.hooksPath": str(tmp_path), "protocol.allow": "always"}
    for number, (key, value) in enumerate(settings.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    named = {
        "CONFIG_COUNT": "3", "CONFIG_PARAMETERS": f"'core.fsmonitor={program}'", "ALLOW_PROTOCOL": "ext:file",
        "NO_LAZY_FETCH": "0", "EXTERNAL_DIFF": program, "PAGER": program, "ASKPASS": program, "DIR": "/",
        "WORK_TREE": "/", "GRAFT_FILE": str(tmp_path / "grafts"), "OBJECT_DIRECTORY": "/",
        "ALTERNATE_OBJECT_DIRECTORIES": "/", "NAMESPACE": "x", "SHALLOW_FILE": "/dev/null", "TEMPLATE_DIR": "/",
    }  # fmt: skip
    for name, value in named.items():
        monkeypatch.setenv(f"GIT_{name}", value)
    made = open_checkout(TARGET, Ref("path", str(armed.path)), store=store)
    assert made.commit == armed.commits["armed"]
    assert not ran.exists()


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    tree = copy_demo(tmp_path / "tree")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    return tree


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize(
    "what", ["HEAD", "config", "commondir", "packed-refs", "objects/info/alternates", "shallow", "refs/heads/main"]
)
def test_a_pipe_in_a_git_directory_does_not_block(work_tree, store, monkeypatch, what):
    monkeypatch.setattr(path, "_PATIENCE", 1.0)
    (work_tree / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (work_tree / ".git" / what).parent.mkdir(parents=True, exist_ok=True)
    _pipe(work_tree / ".git" / what)

    def read() -> None:
        made = open_checkout(TARGET, Ref("path", str(work_tree)), store=store)
        assert (made.commit, made.roots) == (None, ("demo_rl",))
        with pytest.raises(SentinelError):
            store.add(TARGET, str(work_tree))

    _within(15, read)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Run a function in a thread, so that a hang does not stop the test."""
    told: list[BaseException | None] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            told.append(error)
        else:
            told.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert told, "it hangs"
    if told[0] is not None:
        raise told[0]


@pytest.mark.parametrize(
    "content", [b"gitdir: /dev", b"gitdir: ../tree", b"\xff\0\xff", b"", b"gitdir: \0", b"x" * 1000]
)
def test_a_git_file_that_points_elsewhere_is_not_followed(tmp_path, store, content):
    tree = copy_demo(tmp_path / "tree")
    (tree / ".git").write_bytes(content)
    made = open_checkout(TARGET, Ref("path", str(tree)), store=store)
    assert (made.commit, made.roots) == (None, ("demo_rl",))
    with pytest.raises(SentinelError, match="is not a git directory"):
        open_directory(tree)


def test_a_git_file_that_is_not_regular_is_rejected(tmp_path, store):
    tree = copy_demo(tmp_path / "tree")
    os.mkfifo(tree / ".git")
    _within(10, lambda: _plain(tree, store))
    (tree / ".git").unlink()
    (tree / ".git").symlink_to("/dev/zero")
    _within(10, lambda: _plain(tree, store))


def _plain(tree: Path, store: MirrorStore) -> None:
    assert open_checkout(TARGET, Ref("path", str(tree)), store=store).commit is None


def test_circular_alternates_are_rejected(work_tree, store):
    objects = work_tree / ".git" / "objects"
    (objects / "info" / "alternates").write_text(f"{objects}\n../../.git/objects\n" * 500)
    assert open_directory(work_tree)[1] == (objects,)


def test_a_ref_cannot_take_the_name_of_another(raw, code, store):
    """Python's line ends differ from git's: after U+2028, the rest of a name would be another line."""
    honest = raw.head(raw.tree((BLOB, "__init__.py", code)))
    forged = raw.head(raw.tree((BLOB, "evil.py", code)), "other")
    lines = f"# pack-refs with: peeled fully-peeled sorted \n{honest} refs/tags/v1.0\n"
    lines += "".join(f"{forged} refs/tags/v1.0{end}x\n" for end in ("\u2028", "\x85", "\x0c", "\x1c", "\r"))
    (raw.path / ".git" / "packed-refs").write_text(lines, newline="")
    assert gitrefs.read_refs(raw.path / ".git")["refs/tags/v1.0"] == honest
    store.add(TARGET, str(raw.path))
    assert store.resolve(TARGET, "v1.0") == honest


def test_pipes_sockets_devices_and_links_out_are_left_out(tmp_path, store):
    tree = copy_demo(tmp_path / "tree")
    package = tree / "demo_rl"
    (tmp_path / "secret.py").write_text("key")
    os.mkfifo(package / "pipe.py")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(package, os.O_RDONLY)  # the whole path may be too long for a socket
        server.bind(f"/proc/self/fd/{here}/socket.py")
        os.close(here)
        for name, points in {
            "out.py": "../../secret.py",
            "zero.py": "/dev/zero",
            "round": ".",
            "self.py": "self.py",
        }.items():
            (package / name).symlink_to(points)
        made: list[Checkout] = []
        _within(10, lambda: made.append(open_checkout(TARGET, Ref("path", str(tree)), store=store)))
    gone = {Path(item.path).name for item in made[0].left_out}
    assert gone == {"pipe.py", "socket.py", "out.py", "zero.py", "self.py"}
    assert not any("key" in Path(made[0].path / file).read_text() for file in _files(made[0]))


@pytest.mark.parametrize(
    "name",
    [
        "--upload-pack=touch ran",
        "-x",
        "--output=ran",
        "ext::touch ran",
        "main --",
        "@{upstream}",
        "main:demo_rl",
        "main^{/x}",
    ],
)
def test_a_ref_cannot_be_an_option_of_git(armed, store, name, monkeypatch, ran):
    monkeypatch.chdir(ran.parent)
    store.add(TARGET, str(armed.path))
    with pytest.raises(SentinelError):
        open_checkout(TARGET, Ref.parse(f"git:{name}"), store=store)
    assert not ran.exists()


@pytest.mark.parametrize(
    "url",
    ["ext::touch ran", "--upload-pack=touch ran", "ssh://-oProxyCommand=touch ran/x", "file:///x;touch ran", "fd::1"],
)
def test_a_url_cannot_run_a_command(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["mirror", "add", "demo", f"--repo-url={url}"]) != 0
    assert main(["mirror", "add", "demo", f"--from={url}"]) != 0
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


PLANTED = (
    "sitecustomize.py", "usercustomize.py", "conftest.py", "torch.py", "numpy.py", "json.py", "colorsys.py",
    "sentinel.py", "pytest.py", "pip.py", "git.py", "evil.pth", "setup.py",
)  # fmt: skip


@pytest.fixture
def planted(broken_tree: Path, ran: Path) -> Path:
    """The demo framework with files next to it and in it that other programs would run."""
    for folder in (broken_tree, broken_tree / "demo_rl"):
        for name in PLANTED:
            (folder / name).write_text(f"import os; open({str(ran)!r}, 'a').write({name!r} + ' ' + __name__ + '\\n')\n")
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -p demo_rl.conftest --nonsense\n")
        (folder / "tox.ini").write_text("[pytest]\naddopts = --nonsense\n")
        (folder / "pyproject.toml").write_text(
            "[tool.pytest.ini_options]\naddopts = '--nonsense'\n[tool.sentinel]\nx = 1\n"
        )
        (folder / "sentinel.toml").write_text("nonsense = 1\n")
    return broken_tree


def test_files_of_a_checkout_are_not_executed(planted, ran, decide):
    assert decide(MASKED_TOKENS, planted).verdict.name == "reproduced"
    assert not ran.exists()


def test_pytest_does_not_execute_files_of_a_checkout(planted, ran, pytester, warm_runs):
    write_recipe(pytester.path / "good", MASKED_TOKENS)
    options = ["--sentinel-target=demo", "--sentinel-recipes=good", "--sentinel-laws=off"]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options, f"--sentinel-repo={planted}")
    result.assert_outcomes(failed=1)
    assert "reproduced" in result.stdout.str()
    assert not ran.exists()


WHERE = """
import sys
def where(names, first):
    if first:
        sys.path.insert(0, __file__.rpartition("/")[0])
    return {name: str(getattr(__import__(name), "__file__", None)) for name in names}
"""


def test_the_interpreters_own_modules_are_found(planted, ran, lab, store):
    """A checkout has only package roots, so no file in it is found before the standard library."""
    (planted / "demo_rl" / "asking.py").write_text(WHERE)
    (planted / "demo_rl" / "colorsys.py").write_text("")
    made = open_checkout(bundled_catalog().targets["demo"], Ref("path", str(planted)), store=store)
    process = lab.preloader.target(made, ("demo_rl",))
    lab.processes.append(process)
    names = ["torch", "numpy", "json", "colorsys", "sentinel"]
    found = returned(lab.probe(process, "demo_rl.asking.where", names=names, first=False))
    assert [name for name in names if str(made.path) in found[name]] == []
    assert not ran.exists()
    # A head may put its own folder first in its own process. Modules that the worker has loaded stay.
    found = returned(lab.probe(process, "demo_rl.asking.where", names=names, first=True))
    assert [name for name in names if str(made.path) in found[name]] == ["colorsys"]
