"""Attacks on data that is stored between runs: checkouts, byte code, report folders, baselines, records and locks.

Each attack is a row of a table: the planted files, and the condition that must still hold.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, Decide, Lab, Repository, copy_demo, gone

from sentinel.cli import main
from sentinel.deciding.outcomes import Decision
from sentinel.errors import SentinelError
from sentinel.recipes.catalog import bundled_catalog
from sentinel.records import history
from sentinel.reports import store as reports
from sentinel.reports.baseline import update
from sentinel.reports.evidence import dumps, evidence
from sentinel.reports.lines import Recipes
from sentinel.search.saving import save
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.sources.checkouts import files
from sentinel.sources.home import remove_tree
from sentinel.sources.locks import hold
from sentinel.sources.pruning import prune
from sentinel.targets import PackageRoot, Target
from sentinel.targets.refs import Ref
from sentinel.tools.site.building import write
from sentinel.tools.upstream import life
from sentinel.tools.upstream.commands.report_findings import evidence_of
from sentinel.tools.upstream.commands.verify import _documents

TARGET = Target("demo", "https://example.invalid/demo.git", (PackageRoot("demo_rl"),))
MAIN = Ref.parse("git:main")


@pytest.fixture
def upstream(tmp_path: Path) -> Repository:
    repository = Repository(copy_demo(tmp_path / "upstream"))
    repository.git("init", "--quiet", "--initial-branch=main")
    (repository.path / "demo_rl" / "link.py").symlink_to("losses.py")
    repository.commit("one", {})
    return repository


def everything(folder: Path) -> dict[str, bytes | str]:
    """Return everything below a folder: the content of files, and the targets of links."""
    return {
        str(place.relative_to(folder)): os.readlink(place) if place.is_symlink() else place.read_bytes()
        for place in sorted(folder.rglob("*"))
        if place.is_symlink() or place.is_file()
    }


#: The target of the head's link. It is so deep that a path with many ``..`` is still inside when it is resolved.
DEEP = "/".join("d" * 40)

#: Import-time code that finds the worker's list of compiled files, and adds to it.
SAYS = """
import gc, os
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for each in gc.get_objects():
    if type(each) is list and __file__ in each:
        each.extend(item.replace("{tree}", here) if isinstance(item, str) else item for item in ADDED)
"""


@pytest.fixture
def compiled(lab: Lab, offered: Callable[[str], str], upstream: Repository, store: MirrorStore) -> Callable[..., Path]:
    """Return the store's checkouts, after a head has claimed that it compiled these files too."""
    lab.sandbox = offered("strict")

    def run(*added: Any) -> Path:
        package = upstream.path / "demo_rl"
        for up in range(41):
            folder = package / DEEP[: 2 * up] / "planted"
            folder.mkdir(parents=True)
            (folder / "x.py").write_text("VALUE = 1\n")
        (package / "unasked.py").write_text("VALUE = 1\n")
        (package / "inside").symlink_to(DEEP)
        upstream.commit("attack", {"demo_rl/evil.py": f"ADDED = {added!r}\n{SAYS}"})
        store.add(TARGET, str(upstream.path))
        made = open_checkout(TARGET, MAIN, store=store)
        usual = lab.preloader.options
        lab.preloader.options = replace(usual, sandbox="strict")
        try:
            process = lab.preloader.target(made, ("demo_rl",))
            lab.processes.append(process)
            compiler = lab.preloader.compile(made, files(made), lab.load(process, "demo_rl.evil.nothing"))
        finally:
            lab.preloader.options = usual
        assert compiler is None or gone(compiler)
        return store.home.checkouts

    return run


@pytest.mark.parametrize(
    "added",
    [
        ["{tree}/demo_rl/inside/" + "../" * up + "planted/x.py" for up in range(40)],
        ["{tree}/demo_rl/../demo_rl/unasked.py", "{tree}//demo_rl/unasked.py", "{tree}/demo_rl/inside/planted/x.py"],
        ["/etc/passwd", "/tmp/planted.py", "planted.py", "", ".", "/"],
        ["{tree}/demo_rl/\0.py", "{tree}/demo_rl/\ud800.py", "x" * 100_000],
        [None, 7, 1.5, b"bytes", ["nested"], {"key": "value"}],
        [f"{{tree}}/demo_rl/{number}.py" for number in range(20_000)],
    ],
    ids=["a link and ..", "another spelling", "outside", "no names", "no text", "many"],
)
def test_paths_from_a_head_are_not_followed(compiled, tmp_path, added):
    """Only names of files in its own checkout count."""
    made = list(compiled(*added).rglob("*.pyc"))
    assert {file.name.partition(".")[0] for file in made} in ({"__init__", "evil"}, set())
    assert all("/tree.pycache/" in str(file) and not file.is_symlink() for file in made)
    planted = [place for place in (tmp_path / "home").rglob("planted*") if "/tree/" not in str(place)]
    assert planted == []


def _swap(file: Path) -> None:
    """Replace content by other content of the same size, and keep the time of modification."""
    was = file.stat()
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(content[:-2] + b"#\n")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    file.chmod(0o444)


def _to(file: Path, points: str) -> None:
    file.unlink()
    file.symlink_to(points)


def _exchange(tree: Path) -> None:
    first, second = tree / "demo_rl" / "losses.py", tree / "demo_rl" / "rejection.py"
    first.rename(tree / "third")
    second.rename(first)
    (tree / "third").rename(second)


def _empty(file: Path) -> None:
    file.unlink()
    file.mkdir()


TAMPERINGS: dict[str, Callable[[Path], object]] = {
    "other content": lambda tree: _swap(tree / "demo_rl" / "losses.py"),
    "one file more": lambda tree: (tree / "demo_rl" / "planted.py").write_text(""),
    "one folder more": lambda tree: (tree / "demo_rl" / "torch").mkdir(),  # a namespace package
    "a folder beside the package": lambda tree: (tree / "numpy").mkdir(),
    "one link more": lambda tree: (tree / "demo_rl" / "planted.py").symlink_to("/etc/passwd"),
    "a pipe": lambda tree: os.mkfifo(tree / "demo_rl" / "pipe.py"),
    "one file less": lambda tree: (tree / "demo_rl" / "rejection.py").unlink(),
    "a link for a file": lambda tree: _to(tree / "demo_rl" / "losses.py", "rejection.py"),
    "a link elsewhere": lambda tree: _to(tree / "demo_rl" / "link.py", "rejection.py"),
    "a folder for a file": lambda tree: _empty(tree / "demo_rl" / "rejection.py"),
    "a pipe for a file": lambda tree: (
        (tree / "demo_rl" / "losses.py").unlink(),
        os.mkfifo(tree / "demo_rl/losses.py"),
    ),
    "files exchanged": _exchange,
    "a list of other files": lambda tree: (tree.parent / "files.json").write_text('{"version": 1, "files": []}'),
    "a list that is none": lambda tree: (tree.parent / "files.json").write_text('{"files": [[1], null, "x"]}'),
    "no tree": remove_tree,
    "a link for the tree": lambda tree: (tree.rename(tree.with_name("real")), tree.symlink_to("real")),
}


@pytest.mark.parametrize("tamper", TAMPERINGS.values(), ids=TAMPERINGS.keys())
def test_a_checkout_is_verified_whenever_it_is_opened(upstream, store, tamper):
    store.add(TARGET, str(upstream.path))
    usual = open_checkout(TARGET, MAIN, store=store)
    whole = everything(usual.path)
    for place in (usual.path, *usual.path.rglob("*")):
        if place.is_dir():
            place.chmod(0o755)
    tamper(usual.path)
    again = open_checkout(TARGET, MAIN, store=store)
    assert everything(again.path) == whole
    assert {place.name for place in again.path.rglob("*") if place.is_dir()} == {"demo_rl"}
    assert again == usual


def test_a_copied_checkout_is_hashed_only_once(upstream, store):
    """Inodes and times differ, so its content is hashed. git is not needed."""
    store.add(TARGET, str(upstream.path))
    usual = open_checkout(TARGET, MAIN, store=store)
    copied = store.home.path.with_name("copied")
    shutil.copytree(store.home.path, copied, symlinks=True)
    shutil.rmtree(copied / "mirrors")
    ref = Ref("git", str(usual.commit))
    for _ in range(2):
        again = open_checkout(TARGET, ref, store=MirrorStore(Home(copied)))
        assert everything(again.path) == everything(usual.path)
    _swap(again.path / "demo_rl" / "losses.py")
    with pytest.raises(SentinelError, match="no mirror"):
        open_checkout(TARGET, ref, store=MirrorStore(Home(copied)))


@pytest.mark.parametrize("tree", ["../../../outside", "x" * 64, "/etc", "", None, 7, ["a"]], ids=repr)
def test_a_record_without_a_valid_tree_counts_as_missing(upstream, store, tree):
    store.add(TARGET, str(upstream.path))
    usual = open_checkout(TARGET, MAIN, store=store)
    (note,) = (store.home.checkouts / "demo" / "refs").iterdir()
    note.write_text(json.dumps({"tree": tree}))
    assert open_checkout(TARGET, MAIN, store=store) == usual


def test_a_damaged_checkout_is_replaced_under_a_lock(upstream, store, monkeypatch):
    """If two runs find the damage, the second must not remove the first one's new checkout."""
    store.add(TARGET, str(upstream.path))
    usual = open_checkout(TARGET, MAIN, store=store)
    (usual.path / "demo_rl").chmod(0o755)
    (usual.path / "demo_rl" / "planted.py").write_text("")
    removed: list[Path] = []

    def removing(path: Path) -> None:
        with pytest.raises(BlockingIOError):
            os.close(hold(store.home.checkouts / ".lock", shared=True, wait=False))
        removed.append(path)
        remove_tree(path)

    monkeypatch.setattr("sentinel.sources.checkouts.remove_tree", removing)
    assert open_checkout(TARGET, MAIN, store=store) == usual
    assert removed == [usual.path.parent]


def test_removing_a_link_in_the_cache_keeps_its_target(upstream, store, tmp_path):
    store.add(TARGET, str(upstream.path))
    made = open_checkout(TARGET, MAIN, store=store)
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub" / "file").write_text("kept")
    (mine / "sub").chmod(0o500)
    (made.path.parents[1] / ".new-planted").symlink_to(mine)
    (made.path.parents[1] / ("f" * 64)).symlink_to(mine)
    prune(store.home)
    assert ((mine / "sub" / "file").read_text(), (mine / "sub").stat().st_mode & 0o777) == ("kept", 0o500)
    remove_tree(made.path.parents[1] / "refs")
    (made.path.parents[1] / "refs").symlink_to(mine)
    remove_tree(made.path.parents[1] / "refs")
    assert (mine / "sub" / "file").read_text() == "kept"


@pytest.fixture
def decision(decide: Decide, broken_tree: Path) -> Decision:
    return decide(MASKED_TOKENS, broken_tree)


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user. Nothing in it may change."""
    folder = tmp_path / "mine"
    (folder / "DEMO-MASKED-TOKENS").mkdir(parents=True)
    (folder / "file").write_text("mine")
    before = everything(folder), sorted(folder.rglob("*"))
    yield folder
    assert (everything(folder), sorted(folder.rglob("*"))) == before


def link(place: Path, points: Path | str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(points)


@pytest.mark.parametrize("level", range(3), ids=["target", "bug", "file"])
def test_reports_are_not_written_through_links(decision, mine, tmp_path, level):
    """A run, an update or pruning of a baseline, and a sweep do not write through a link."""
    folder = tmp_path / "reports"
    place = reports.evidence_path(decision)
    link(folder.joinpath(*place.parts[: level + 1]), mine if level < 2 else mine / "file")
    with pytest.raises(SentinelError, match="is a symbolic link, which is not followed"):
        reports.write(folder, decision)
    fresh = tmp_path / "fresh"
    reports.write(fresh, decision)
    recipes = Recipes(bundled_catalog())
    if level == 2:
        with pytest.raises(SentinelError, match="not JSON"):
            update(fresh, folder, recipes, prune=True)
    else:  # the target of a link is not in the folder
        update(fresh, folder, recipes, prune=True)
        (folder / f"{place.parts[0]}.jsonl").unlink()
    link(folder / f"{place.parts[0]}.jsonl", mine / "lines")
    for write_lines in (
        lambda: update(fresh, folder, recipes),
        lambda: history.save(folder, [{"target": place.parts[0]}]),
    ):
        with pytest.raises(SentinelError, match="is a symbolic link" if level < 2 else "is a symbolic link|not JSON"):
            write_lines()


def test_sites_and_findings_are_not_written_through_links(decision, mine, tmp_path):
    site = tmp_path / "site"
    write(site, [("bugs/a.html", "a")])
    remove_tree(site / "bugs")
    link(site / "bugs", mine)
    link(tmp_path / "findings" / "demo", mine)
    link(tmp_path / "findings" / "tiny.jsonl", mine / "file")
    with pytest.raises(SentinelError, match="is a symbolic link"):
        write(site, [("bugs/a.html", "b")])
    with pytest.raises(SentinelError, match="is a symbolic link"):
        life.place(tmp_path / "findings", "tiny")
    with pytest.raises(SentinelError, match="is a symbolic link"):
        reports.write_below(tmp_path / "findings", "demo/status.json", "x", "")
    for name, points in (("X", mine / "file"), ("X-2", "nowhere")):  # a dangling link may also belong to someone
        link(tmp_path / "recipes" / f"{name}.yaml", points)
    assert save(tmp_path / "recipes", {"bug_id": "X"}).name == "X-3.yaml"


def test_a_report_folder_that_is_a_link_is_rejected(decision, mine, tmp_path):
    link(tmp_path / ".reports.new", mine)
    reports.write(tmp_path / "reports", decision)
    assert not (tmp_path / "reports").is_symlink()


@pytest.mark.parametrize("points", ["nowhere", "file", "DEMO-MASKED-TOKENS"])
def test_a_leftover_that_is_a_link_is_not_followed(decision, mine, tmp_path, points):
    file = reports.write(tmp_path / "reports", decision)
    link(file.with_name(".x-0123456789ab.tmp"), mine / points)
    file.unlink()
    reports.write(tmp_path / "reports", decision)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "socket"])
def test_pipes_and_devices_do_not_block_readers(decision, tmp_path, kind):
    """Pipes and devices replace evidence, baseline entries and ``run.json``; neither writers nor readers block."""
    folder = tmp_path / "reports"
    for place in (folder / reports.evidence_path(decision), folder / reports.RUN):
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        elif kind == "device":
            place.symlink_to("/dev/zero")
        else:
            os.mknod(place, 0o140644)
        with pytest.raises(SentinelError):
            reports.load(place)
    with pytest.raises(SentinelError):
        reports.write(folder, decision)
    with pytest.raises(SentinelError):
        reports.find(folder, decision)
    with pytest.raises(SentinelError):
        reports.decided(folder)


def test_readers_do_not_leave_the_folder(decision, tmp_path):
    """A link to the root folder is not followed."""
    folder = tmp_path / "reports"
    file = reports.write(folder, decision)
    for name in ("etc", "DEMO", "history"):
        link(folder / name, "/")
        link(folder / "demo" / name, "/")
    link(folder / "demo.jsonl", "/etc/passwd")
    assert list(reports.files(folder)) == [file]
    assert history.load_all(folder) == []
    assert [at for at, _ in _documents([folder], Recipes(bundled_catalog()))] == [file]  # of `verify`
    (tmp_path / "links").mkdir()
    link(tmp_path / "links" / "demo", file.parents[1])
    assert list(evidence_of(decision.recipe, tmp_path / "links")) == []
    assert len(list(evidence_of(decision.recipe, folder))) == 1


RUNS = [
    "", "null", "[]", "{}", '{"items": null}', '{"items": [null]}', '{"items": ["x"]}', '{"items": [{}]}',
    '{"items": [{"evidence": "../../x.json", "outcome": "passed"}]}',
    '{"items": [{"evidence": "/etc/passwd", "outcome": "passed"}]}',
    '{"items": [{"evidence": ["demo"], "outcome": "passed"}]}',
    '{"items": [], "items": []}', '{"items": ' + "[" * 100_000, '{"items": ' + "9" * 5_000 + "}", '"\\ud800"',
    '{"items": [{"evidence": "\\ud800\\u0000", "outcome": "passed"}]}', '{"items": 1e999}', "\ufeff{}",
]  # fmt: skip


def test_a_forged_run_json_is_rejected(decision, tmp_path, capsys):
    reports.write(tmp_path / "reports", decision)
    for text in RUNS:
        (tmp_path / "reports" / reports.RUN).write_text(text)
        with pytest.raises(SentinelError, match=r"run\.json"):
            update(tmp_path / "reports", tmp_path / "baseline", Recipes(bundled_catalog()))
        assert not (tmp_path / "baseline").exists()
        assert main(["report", "--from", str(tmp_path / "reports")]) == 2
        assert "run.json" in capsys.readouterr().err


NAMES = ["../../out", "/etc/out", "..", ".git", "-rf", "a\0b", "x" * 5000, "\ud800", "a/b", "a\nb", "", " ", "git~1"]


def test_evidence_names_cannot_leave_the_report_folder(decision, tmp_path):
    folder = tmp_path / "in" / "reports"
    text = dumps({**evidence(decision), "bug_id": "X"})
    places = set()
    for bug in NAMES:
        named = replace(decision, recipe=replace(decision.recipe, bug_id=bug, target=bug), law="law")
        file = reports.put(folder, reports.evidence_path(named), text)
        assert file.resolve().is_relative_to(folder)
        assert all(len(part) < 200 and part[0] not in ".-" for part in file.relative_to(folder).parts)
        places.add(file)
    assert len(places) == len(NAMES), "no two share a place"
    assert len(everything(tmp_path / "in")) == len(NAMES) + 1, "the evidence, and what keeps it out of git"
