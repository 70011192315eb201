"""Another interpreter in containment: the files of its environment that it can see, and errors at its start."""

import json
import sys
from pathlib import Path

import pytest

from sentinel.worker import interpreters
from sentinel.worker.containment import outermost


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "reason_against", lambda: None)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Return the packages of an environment whose interpreter is a link to another place."""
    (tmp_path / "base" / "bin").mkdir(parents=True)
    (tmp_path / "base" / "bin" / "python3").write_bytes(b"\x7fELF")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(tmp_path / "base" / "bin" / "python3")
    (tmp_path / "env" / "pyvenv.cfg").write_text(f"home = {tmp_path / 'base' / 'bin'}\n")
    packages = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "base" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    return packages


def shown(packages: Path, *names: str) -> set[str]:
    """Return what is visible of a folder that contains the environment."""
    words = interpreters.wrap([str(packages.parents[2] / "bin" / "python"), "-c", ""], "/scratch", packages=names)
    top = f"{packages.parents[3]}/"
    places = outermost(json.loads(words[words.index("--contained") + 1])["readable"])
    return {place.removeprefix(top) for place in places if place.startswith(top)}


def test_an_environment_and_its_base_are_visible(packages):
    assert shown(packages) == {"env/bin", "env/lib", "env/pyvenv.cfg", "base/bin", "base/lib"}


def test_declared_editable_installs_are_visible(packages, tmp_path):
    """Only the named packages of such a project are visible."""
    for name in ("edited/named", "older/src/named", "older/src/unnamed"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "edited" / "pyproject.toml").write_text("")
    (tmp_path / "older" / "single.py").write_text("")
    info = packages / "edited-1.dist-info"
    info.mkdir()
    told = {"url": (tmp_path / "edited").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(told))
    (packages / "older.pth").write_text(f"import os\n{tmp_path / 'older' / 'src'}\n{tmp_path / 'older'}\nrelative\n")

    def elsewhere(*names: str) -> set[str]:
        return {place for place in shown(packages, *names) if not place.startswith(("env/", "base/"))}

    assert elsewhere() == set()
    assert elsewhere("named.part", "single") == {"edited/named", "older/src/named", "older/single.py"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"dir_info": {"editable": true}}', '{"url": 3, "dir_info": 4}'])
def test_files_that_describe_no_environment_are_ignored(packages, text):
    info = packages / "edited-1.dist-info"
    info.mkdir()
    (info / "direct_url.json").write_text(text)
    assert "env/lib" in shown(packages)


def test_an_interpreter_in_a_home_folder_does_not_expose_the_folder(packages, tmp_path):
    home = packages.parents[2]
    (home / "notes").write_text("")
    (home / "pyvenv.cfg").unlink()
    assert "env/notes" not in shown(packages)
    assert "env" not in shown(packages)


def test_folders_of_shared_libraries_are_visible(packages, tmp_path, monkeypatch):
    for name in ("libraries", "letters"):
        (tmp_path / name).mkdir()
    (tmp_path / "libraries" / "libfast.so.3").write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'libraries'}:{tmp_path / 'letters'}::.")
    assert {place for place in shown(packages) if not place.startswith(("env/", "base/"))} == {"libraries"}


def test_circular_links_end(packages):
    (packages.parents[2] / "pyvenv.cfg").write_text(f"home = {packages.parents[2] / 'bin'}\n")
    assert "env/lib" in shown(packages)


def test_a_script_is_rejected_as_an_interpreter(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec python3\n")
    with pytest.raises(
        interpreters.InterpreterError, match=r"python is a script; name the interpreter that it starts, as"
    ):
        interpreters.wrap([str(script)], "/scratch")


def test_an_interpreter_runs_uncontained_when_containment_is_impossible(monkeypatch):
    monkeypatch.setattr(interpreters, "reason_against", lambda: "it needs Linux")
    assert interpreters.wrap([sys.executable, "-c", ""], "/scratch") == [sys.executable, "-c", ""]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("raise SystemExit('none of your business')", "none of your business"),
        ("print('hello')", "it did not print JSON"),
        ("", "it did not print JSON"),
        ("raise SystemExit(3)", "no output"),
    ],
)
def test_an_interpreter_with_useless_output_is_reported(script, says):
    with pytest.raises(interpreters.InterpreterError, match=rf"cannot run .*python.*: {says}"):
        interpreters.ask(None, "-c", script)


def test_an_interpreter_gets_few_environment_variables(monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    known = interpreters.ask(None, "-c", "import json, os; print(json.dumps(sorted(os.environ)))")
    assert "PATH" in known
    assert "GITHUB_TOKEN" not in known
