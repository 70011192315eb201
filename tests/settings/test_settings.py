import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import SentinelError
from sentinel.settings import NAMED, Settings, read_file, settle
from sentinel.targets.refs import Ref

KNOWN = ["verl", "roll", "demo"]


def settled(tmp_path: Path, file: dict[str, Any] | None = None, **given: Any) -> Any:
    return settle({key.replace("_", "-"): value for key, value in given.items()}, file or {}, KNOWN, tmp_path)


def test_settings_have_defaults(tmp_path):
    found = settled(tmp_path)
    assert not found.selects_items
    assert (found.device, found.timeout, found.sandbox, found.report_dir) == ("cpu", 60, "", Path("sentinel-reports"))


def test_lists_are_given_by_comma_or_repetition(tmp_path):
    found = settled(tmp_path, target=["verl, roll", "verl"], bug=["A*,B", "C"], ref=["git:main,verl=pypi:0.9.1"])
    assert found.targets == ("verl", "roll")
    assert found.bugs == ("A*", "B", "C")
    assert found.refs_of("verl") == (Ref("git", "main"), Ref("pypi", "0.9.1"))
    assert found.refs_of("roll") == (Ref("git", "main"),)
    assert found.selects("verl", "AB")
    assert not found.selects("demo", "AB")
    assert not found.selects("verl", "D")


def test_all_selects_every_target_except_the_demo(tmp_path):
    assert settled(tmp_path, target=["all"]).targets == ("verl", "roll")


def test_the_command_line_overrides_the_file(tmp_path):
    file = {"target": "roll", "timeout": 5, "sandbox": "off"}
    found = settled(tmp_path, file, target=["verl"])
    assert (found.targets, found.timeout, found.sandbox) == (("verl",), 5, "off")


def test_paths_in_a_settings_file_are_relative_to_it(tmp_path):
    for name in ("work", "mine", "old", "a,b"):
        (tmp_path / name).mkdir()
    file = {"repo": ["verl=work", "a,b"], "recipes": "mine", "baseline": "old", "report-dir": "out"}
    found = settled(tmp_path, file)
    assert found.refs == (("verl", Ref("path", str(tmp_path / "work"))), (None, Ref("path", str(tmp_path / "a,b"))))
    assert (found.recipes, found.baseline, found.report_dir) == (
        (tmp_path / "mine",),
        tmp_path / "old",
        tmp_path / "out",
    )


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settled(tmp_path, repo=["~/work"]).refs == ((None, Ref("path", str(tmp_path / "work"))),)


def test_published_environment_variables_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "out"))
    assert settled(tmp_path).report_dir == tmp_path / "out"
    assert settled(tmp_path, report_dir="mine").report_dir == Path("mine")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device": "cuda:x"}, "unknown device 'cuda:x'; write cpu, cuda or cuda:N"),
        ({"timeout": "0"}, "the timeout must be more than 0 and less than 86400 seconds (a day), not 0"),
        ({"timeout": "nan"}, "must be more than 0 and less than 86400 seconds (a day), not nan"),
        ({"timeout": "soon"}, "the timeout must be a number of seconds, not 'soon'"),
        ({"sandbox": "bsic"}, "unknown sandbox 'bsic' — did you mean 'basic'?"),
        ({"recipes": ["nowhere"]}, "no such folder: nowhere"),
        ({"repo": ["dem=."]}, "unknown target 'dem' in 'dem=.' — did you mean 'demo'?"),
        ({"ref": ["-x"]}, "not a ref: '-x'; write git:<sha|tag|branch|pull/N/head>"),
        ({"ref": ["demo=git:-c"]}, "a git name cannot begin with '-'"),
        ({"ref": ["git:../../etc/passwd"]}, "that is not a git name"),
        ({"ref": ["git:main;touch pwned"]}, "that is not a git name"),
        ({"ref": ["pypi:--index-url=https://evil.invalid"]}, "write a version such as pypi:0.9.1"),
        ({"repo_url": ["--upload-pack=touch pwned"]}, "begins with '-' like an option"),
        ({"repo_url": ["https://host.invalid/$(touch pwned)"]}, "contains a blank or a character that a shell"),
        ({"repo_url": ["https://host.invalid/a;touch${IFS}pwned"]}, "a character that a shell interprets"),
        ({"repo_url": ["ssh://-oProxyCommand=id/x"]}, "it has no host"),
    ],
    ids=str,
)
def test_invalid_options_on_the_command_line_are_rejected(given, said, tmp_path):
    """``tests/bad_input`` tests the effect on a run."""
    with pytest.raises(SentinelError) as raised:
        settled(tmp_path, **given)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("sentinel.toml", 'target = ["verl"]\ntimeout = 5', {"target": ["verl"], "timeout": 5}),
        ("pyproject.toml", '[tool.sentinel]\ntarget = "verl"', {"target": "verl"}),
        ("pyproject.toml", "[tool.other]\nx = 1", {}),
        ("pyproject.toml", "[tool\n", {}),  # pytest itself reports it
        ("sentinel.toml", "", {}),
    ],
)
def test_settings_files_are_read(name, text, values, tmp_path):
    (tmp_path / name).write_text(text)
    assert read_file(tmp_path) == (values, tmp_path / name if values else None)


def test_sentinel_toml_takes_precedence_over_pyproject(tmp_path):
    (tmp_path / "sentinel.toml").write_text("timeout = 1")
    (tmp_path / "pyproject.toml").write_text("[tool.sentinel]\ntimeout = 2")
    assert read_file(tmp_path)[0] == {"timeout": 1}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sentinel.toml", "target = [", "sentinel.toml:1:1: not TOML: "),
        ("sentinel.toml", 'targets = "verl"', "sentinel.toml: unknown option 'targets' — did you mean 'target'?"),
        ("pyproject.toml", "[tool]\nsentinel = 3", "pyproject.toml: [tool.sentinel] must be a table of options"),
        (
            "sentinel.toml",
            '[sentinel]\ntarget = "verl"',
            "sentinel.toml: write the options without the line [sentinel]",
        ),
        (
            "sentinel.toml",
            "[tool.sentinel]\ntimeout = 3",
            "sentinel.toml: write the options without the line [tool.sentinel]",
        ),
        ("sentinel.toml", "target = 3", "sentinel.toml: target must be a string or a list of strings, not 3"),
        ("sentinel.toml", "target = [3]", "target must be a string or a list of strings"),
        ("sentinel.toml", "timeout = true", "timeout must be a number, not True"),
        ("sentinel.toml", 'device = ["cpu"]', "device must be a string, not ['cpu']"),
        ("sentinel.toml", "baseline = {a = 1}", "baseline must be a string"),
    ],
)
def test_invalid_options_in_a_file_are_rejected(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(SentinelError) as raised:
        read_file(tmp_path)
    assert said in str(raised.value)


def test_an_option_is_declared_once(pytester, tmp_path):
    """pytest's options, the keys of files and the options of commands are exactly the declared ones."""
    text = pytester.runpytest_inprocess("--help").stdout.str()
    assert set(re.findall(r"^ +--sentinel-([a-z-]+)=", text, re.MULTILINE)) == set(NAMED)
    for name, option in NAMED.items():
        (tmp_path / "sentinel.toml").write_text(f"{name} = {'5' if option.number else repr('x')}")
        assert list(read_file(tmp_path)[0]) == [name]


def test_settings_round_trip(tmp_path):
    (tmp_path / "a=b").mkdir()
    given = {
        "target": ["verl"], "bug": ["A*", "B"], "ref": ["roll=git:main", "pypi:1.0"], "recipes": [str(tmp_path)],
        "python": ["verl=" + sys.executable], "repo_url": ["https://host.invalid/me/roll"], "report_dir": "out",
        "baseline": str(tmp_path), "device": "cuda:1", "timeout": "2.5", "sandbox": "off", "laws": "deep",
        "sarif": "x.sarif",
    }  # fmt: skip
    for settings in (settled(tmp_path, **given), settled(tmp_path, repo=["verl=" + str(tmp_path / "a=b")])):
        read: dict[str, Any] = {}
        for word in settings.words():
            name, _, text = word.removeprefix("--sentinel-").partition("=")
            read.setdefault(name, []).append(text)
        assert settle({k: v if NAMED[k].many else v[0] for k, v in read.items()}, {}, KNOWN, tmp_path) == settings
    assert Settings().words() == []


def test_a_ref_and_a_working_tree_of_one_target_conflict(tmp_path):
    tree = str(tmp_path)
    said = "--sentinel-ref and --sentinel-repo both select the code of verl; leave one out, or write both as refs"
    for given in ({"ref": ["verl=git:main"], "repo": [tree]}, {"ref": ["git:main"], "repo": ["verl=" + tree]}):
        with pytest.raises(SentinelError, match=re.escape(said)):
            settled(tmp_path, **given)
    assert len(settled(tmp_path, ref=["verl=git:main"], repo=["roll=" + tree]).refs) == 2
    # The command line's selection replaces that of the file.
    assert settled(tmp_path, {"ref": "git:main"}, repo=[tree]).refs == ((None, Ref("path", tree)),)
