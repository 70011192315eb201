"""The fork before containment: root gets a new PID namespace at once, other users only later."""

import os
import subprocess
import sys
import tempfile

import pytest

from sentinel.worker import containment

FORKS = """
import os
from sentinel.worker.containment import fork

for _ in range(2):  # the second shows that whoever forked is where it was
    read, write = os.pipe()
    pid, first = fork()
    if pid == 0:
        os.write(write, str(os.getpid()).encode())
        os._exit(0)
    print(first, {b"1": "first", str(pid).encode(): "as outside"}[os.read(read, 20)])
    os.waitpid(pid, 0)
pid = os.fork()
if pid == 0:
    os._exit(0 if os.getpid() > 1 else 1)
print(os.waitpid(pid, 0)[1])
"""

IN_A_USER_NAMESPACE = ("unshare", "--user", "--map-root-user")


def told(*wrapped: str) -> list[str]:
    done = subprocess.run([*wrapped, sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def is_offered(*flags: str) -> bool:
    return subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or not is_offered("--pid", "--fork"), reason="only root may do so")
def test_root_forks_into_a_namespace_and_stays_outside():
    assert told() == ["True first", "True first", "0"]


@pytest.mark.skipif(not is_offered("--user", "--map-root-user"), reason="no user namespaces here")
def test_root_of_a_user_namespace_can_still_fork():
    assert told(*IN_A_USER_NAMESPACE) == ["False as outside", "False as outside", "0"]


@pytest.mark.skipif(not is_offered("--user", "--map-root-user"), reason="no user namespaces here")
def test_root_of_a_user_namespace_can_be_contained():
    asked = "from sentinel.worker import containment; print(containment.reason_against(), containment.may_be_others())"
    command = [*IN_A_USER_NAMESPACE, sys.executable, "-c", asked]
    assert subprocess.run(command, capture_output=True, text=True).stdout.split() == ["None", "False"]


@pytest.mark.skipif(os.geteuid() == 0, reason="for those who are not root")
def test_other_users_fork_without_a_namespace():
    assert told() == ["False as outside", "False as outside", "0"]


#: A scratch folder that is removed while a process makes its root there, as when the worker is killed.
REMOVED = """
import os, shutil, sys
from sentinel.worker import containment

parts, scratch = containment.outermost, sys.argv[1]
begun, begin = os.pipe()
removed, remove = os.pipe()

def interrupted(places):
    os.write(begin, b"!")
    os.read(removed, 1)
    return parts(places)

containment.outermost = interrupted
pid, first = containment.fork()
if pid == 0:
    try:
        containment.contain([], [], scratch, ready=lambda pid: None, first=first, wait=True)
    except containment.ContainmentError:
        os._exit(3)
    finally:
        os._exit(4)
os.read(begun, 1)
shutil.rmtree(scratch, ignore_errors=True)
print(os.path.exists(scratch))
os.write(remove, b"!")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.path.exists(scratch))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not is_offered("--mount", "--pid", "--fork"), reason="only root may do so")
def test_a_root_whose_folder_is_removed_leaves_no_files(tmp_path):
    scratch = tmp_path / "worker" / "target"
    scratch.mkdir(parents=True)
    command = [sys.executable, "-c", REMOVED, str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "3", "False"], done.stderr


#: A folder that a ``.pth`` file of the environment puts on the path.
EDITABLE = """
import site, sys
from sentinel.worker import containment

folder, scratch, secret, *declared = sys.argv[1:]
site.addsitedir(folder)
assert __import__("importlib.util").util.find_spec("edited")
containment.contain(containment.folders_of(declared), [], scratch, lambda pid: None, wait=True)
for file in (secret, secret.replace(".env", "edited/__init__.py")):
    try:
        print(len(open(file).read()))
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(containment.reason_against() is not None, reason="no containment here")
@pytest.mark.parametrize(
    ("declared", "seen"), [([], ["FileNotFoundError"] * 2), (["edited.x"], ["FileNotFoundError", "5"])]
)
def test_other_editable_installs_are_absent(tmp_path, declared, seen):
    """Only the folder of a package that a target declares is visible."""
    project = tmp_path / "project"
    (project / "edited").mkdir(parents=True)
    (project / "edited" / "__init__.py").write_text("x = 1")
    (project / ".env").write_text("TOKEN=secret")
    for name in ("packages", "scratch"):
        (tmp_path / name).mkdir()
    (tmp_path / "packages" / "edited.pth").write_text(f"{project}\n")
    for place in (*tmp_path.parents, tmp_path):
        if place.stat().st_uid == os.geteuid() and place.is_relative_to(tempfile.gettempdir()):
            place.chmod(0o755)
    words = [tmp_path / "packages", tmp_path / "scratch", project / ".env", *declared]
    done = subprocess.run([sys.executable, "-c", EDITABLE, *map(str, words)], capture_output=True, text=True)
    assert done.stdout.split() == seen, done.stderr
