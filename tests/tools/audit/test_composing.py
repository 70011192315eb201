"""Hydra configurations: the files of a ``defaults`` list, their search path, and what is not read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.composing import composed
from sentinel.tools.audit.declared import search_path
from sentinel.tools.audit.files import read_mapping

TARGET = Target("tiny", "https://example.org/tiny", (PackageRoot("sub/tiny", "sub"),))
OPTIONS = '[[options]]\nname = "PPO"\nkind = "tree"\nfile = "sub/tiny/config/ppo.yaml"\n'


@pytest.fixture
def copy(tmp_path: Path) -> Checkout:
    """An installed copy, with its own folder for a configuration."""
    root = tmp_path / "copy"
    (root / "tiny" / "config").mkdir(parents=True)
    (root / "tiny" / "config" / "ppo.yaml").write_text("lr: 1\n")
    return Checkout("tiny", Ref("installed"), root, ("tiny",), (root,), "0" * 64)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "recipes" / "tiny").mkdir(parents=True)
    (tmp_path / "recipes" / "tiny" / "options.toml").write_text(OPTIONS)
    return replace(bundled_catalog(), recipe_folders=(tmp_path / "recipes",))


def paths(catalog: Catalog, copy: Checkout, *entries: object) -> tuple[list[Path], list[str]]:
    return search_path({"hydra": {"searchpath": list(entries)}}, catalog, TARGET, copy)


def test_the_copys_own_folder_is_always_searched(catalog, copy):
    own = copy.path / "tiny" / "config"
    for data in ({}, {"hydra": None}, {"hydra": {"searchpath": "file://x"}}, {"hydra": {"searchpath": []}}):
        assert search_path(data, catalog, TARGET, copy) == ([own], [])


@pytest.mark.parametrize("entry", ["pkg://tiny.config", "file://sub/tiny/config", "file://tiny/config", "tiny/config"])
def test_packages_and_folders_refer_to_the_copy(catalog, copy, entry):
    assert paths(catalog, copy, entry) == ([copy.path / "tiny" / "config"], [])


def test_a_local_folder_takes_precedence_over_the_copy(catalog, copy, tmp_path, monkeypatch):
    here = tmp_path / "here" / "tiny" / "config"
    here.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    own = copy.path / "tiny" / "config"
    assert paths(catalog, copy, "file://tiny/config", f"file://{tmp_path}") == ([here, tmp_path, own], [])


@pytest.mark.parametrize(
    "entry",
    ["pkg://json", "pkg://", "pkg://tiny/config", "pkg://tiny.config.ppo", "pkg://..tiny", "structured://", "s3://x/y",
     "file://${oc.env:HOME}", "file://nowhere", "file://", "file://a\0b", f"file://{'x' * 5000}", 3, None, ["tiny"]],
)  # fmt: skip
def test_entries_outside_the_copy_are_skipped_and_reported(catalog, copy, entry):
    folders, (told,) = paths(catalog, copy, entry)
    assert folders == [copy.path / "tiny" / "config"]
    assert told.startswith(f"hydra.searchpath: {entry} is left out: ")
    assert told.endswith("give the folder as file:///…")


#: The result of hydra-core 1.3.2 for each.
FILES = {
    "base": "lr: 1\nactor: {clip: 0.1}\n",
    "actor/dp": "clip: 0.2\nmode: ${lr}\n",
    "actor/fs": "defaults: [dp, ../optim@optim: adam, _self_]\nclip: 0.3\n",
    "actor/wide": "\n# @package _global_\nlr: 3\n",
    "optim/adam": "name: adam\n",
    "engine/dp": "engine: dp\n",
    "engine/fs": "engine: fs\n",
    "pair": "defaults: [engine: dp, actor: '${engine}', _self_]\n",
    "again": "defaults: [again]\n",
    "broken": "defaults: [base, gone, _self_]\n",
}


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("defaults: [base, _self_]\nlr: 2\n", {"lr": 2, "actor": {"clip": 0.1}}),
        ("defaults: [_self_, base]\nlr: 2\n", {"lr": 1, "actor": {"clip": 0.1}}),
        ("defaults: [base]\nlr: 2\nhydra: {run: {dir: .}}\n", {"lr": 2, "actor": {"clip": 0.1}}),
        ("defaults: [base, actor: dp]\n", {"lr": 1, "actor": {"clip": 0.2, "mode": "${lr}"}}),
        ("defaults: [actor@x.y: dp]\n", {"x": {"y": {"clip": 0.2, "mode": "${lr}"}}}),
        ("defaults: [actor@_global_: dp]\n", {"clip": 0.2, "mode": "${lr}"}),
        ("defaults: [actor/dp]\n", {"actor": {"clip": 0.2, "mode": "${lr}"}}),
        ("defaults: [actor: fs]\n", {"actor": {"clip": 0.3, "mode": "${lr}", "optim": {"name": "adam"}}}),
        ("defaults: [actor: wide]\n", {"lr": 3}),
        ("defaults: [optim: [adam], actor: null, optional x: y]\n", {"optim": {"name": "adam"}}),
        ("defaults: [pair, override engine: fs]\n",
         {"engine": {"engine": "fs"}, "actor": {"clip": 0.3, "mode": "${lr}", "optim": {"name": "adam"}}}),
    ],
)  # fmt: skip
def test_own_settings_override_those_of_the_files(tmp_path, text, data):
    assert _composed(tmp_path, text) == (data, [])


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("defaults: [base, actor: dq]\n", ["actor: dq"]),
        ("defaults: ['${oc.env:HOME}', actor: '${nothing}']\n", ["${oc.env:HOME}", "actor: ${nothing}"]),
        ("defaults: ['pkg://tiny.config/ppo', 3, [x]]\n", ["pkg://tiny.config/ppo", "3", "['x']"]),
        ("defaults: [again]\n", ["again"]),
        ("defaults: [base, broken]\n", ["gone"]),
    ],
)
def test_unread_files_are_named_and_their_settings_unknown(tmp_path, text, unread):
    assert _composed(tmp_path, text) == ({}, unread)


def test_circular_defaults_end(tmp_path):
    files = {f"f{number}": f"defaults: [{', '.join([f'f{number + 1}'] * 9)}]\n" for number in range(9)} | {"f9": "a: 1"}
    assert len(_composed(tmp_path, "defaults: [f0]\n", files)[1]) > 0


def _composed(folder: Path, text: str, files: dict[str, str] = FILES) -> tuple[Any, list[str]]:
    for name, content in {**files, "run": text}.items():
        place = folder / f"{name}.yaml"
        place.parent.mkdir(exist_ok=True)
        place.write_text(content)
    return composed(folder / "run.yaml", read_mapping(folder / "run.yaml"), [])


@pytest.mark.parametrize("written", ["../base.yaml", ["../base.yaml"]])
def test_a_file_that_inherits_from_another_is_merged_over_it(tmp_path, written):
    """NeMo-RL writes ``defaults: ../base.yaml``, relative to the file; ``_override_`` replaces a section."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "base.yaml").write_text("defaults: root.yaml\npolicy: {lr: 1, optim: {name: adam}}\n")
    (tmp_path / "root.yaml").write_text("seed: 7\npolicy: {lr: 2, size: 3}\n")
    data = {"defaults": written, "policy": {"size": 4, "optim": {"_override_": True, "kind": "sgd"}}}
    merged, unread = composed(tmp_path / "recipes" / "run.yaml", data, ())
    assert merged == {"seed": 7, "policy": {"lr": 1, "size": 4, "optim": {"kind": "sgd"}}}
    assert unread == []
    assert composed(tmp_path / "recipes" / "run.yaml", {"defaults": "gone.yaml"}, ())[1] == ["gone.yaml"]


def test_choices_of_the_command_line_override_the_list(tmp_path):
    for engine in ("dp", "mine"):
        (tmp_path / "engine").mkdir(exist_ok=True)
        (tmp_path / "engine" / f"{engine}.yaml").write_text(f"name: {engine}\n")
        (tmp_path / f"{engine}_actor.yaml").write_text(f"lr: {len(engine)}\n")
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "dp_actor.yaml").write_text("lr: 2\n")
    (tmp_path / "actor" / "mine_actor.yaml").write_text("lr: 4\n")
    data = {"defaults": [{"engine": "dp"}, {"actor@a.b": "${engine}_actor"}, "_self_"]}
    for chosen, lr in ({}, 2), ({"engine": "mine"}, 4), ({"actor@a.b": "mine_actor"}, 4):
        merged, unread = composed(tmp_path / "run.yaml", data, (), chosen)
        assert (merged["a"]["b"], unread) == ({"lr": lr}, [])
    assert composed(tmp_path / "run.yaml", data, (), {"engine": "gone"})[1] == [
        "engine: dp",
        "actor@a.b: ${engine}_actor",
    ]
