"""Configurations that Hydra composes: where it looks, what it is kept from, and what is said where it refuses."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit import composing, hydra_process
from sentinel.tools.audit.composing import HydraMissingError, NotComposedError, composed, search_path
from sentinel.values import documents

TARGET = Target("tiny", "https://example.org/tiny", (PackageRoot("sub/tiny", "sub"),))
OPTIONS = '[[options]]\nname = "PPO"\nkind = "tree"\nfile = "sub/tiny/config/ppo.yaml"\n'


@pytest.fixture
def hydra() -> None:
    pytest.importorskip("hydra", reason="the extra `hydra` is not installed; CI has a job for it")


@pytest.fixture
def copy(tmp_path: Path) -> Checkout:
    """An installed copy, with a configuration of its own."""
    folder = tmp_path / "copy" / "tiny" / "config"
    folder.mkdir(parents=True)
    (folder / "ppo.yaml").write_text("defaults: [actor: dp, _self_]\nlr: 1\n")
    (folder / "actor").mkdir()
    (folder / "actor" / "dp.yaml").write_text("clip: 0.2\nmode: ${lr}\n")
    (tmp_path / "copy" / "tiny" / "__init__.py").write_text("raise SystemExit('the copy was imported')\n")
    root = tmp_path / "copy"
    return Checkout("tiny", Ref("installed"), root, ("tiny",), (root,), "0" * 64)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "recipes" / "tiny").mkdir(parents=True)
    (tmp_path / "recipes" / "tiny" / "options.toml").write_text(OPTIONS)
    return replace(bundled_catalog(), recipe_folders=(tmp_path / "recipes",))


def written(folder: Path, **files: str) -> Path:
    """The first of some files, each with its text; ``a__b`` lies in a folder ``a``."""
    for name, text in files.items():
        place = folder / f"{name.replace('__', '/')}.yaml"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder / f"{next(iter(files))}.yaml"


# -- where it looks ----------------------------------------------------------------------------------------------------


def paths(catalog: Catalog, copy: Checkout, *entries: object) -> tuple[list[Path], list[str]]:
    return search_path({"hydra": {"searchpath": list(entries)}}, catalog, TARGET, copy)


def test_the_copys_own_folder_is_always_looked_in(catalog, copy):
    own = copy.path / "tiny" / "config"
    for data in ({}, {"hydra": None}, {"hydra": {"searchpath": "file://x"}}, {"hydra": {"searchpath": []}}):
        assert search_path(data, catalog, TARGET, copy) == ([own], [])


@pytest.mark.parametrize("entry", ["pkg://tiny.config", "file://sub/tiny/config", "file://tiny/config", "tiny/config"])
def test_a_package_or_a_folder_of_the_repository_is_the_copys(catalog, copy, entry):
    assert paths(catalog, copy, entry) == ([copy.path / "tiny" / "config"], [])


def test_a_folder_here_goes_before_the_copys(catalog, copy, tmp_path, monkeypatch):
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
def test_what_names_nothing_of_the_copy_is_left_out_and_told(catalog, copy, entry):
    folders, (told,) = paths(catalog, copy, entry)
    assert folders == [copy.path / "tiny" / "config"]
    assert told.startswith(f"hydra.searchpath: {entry} is left out: ")
    assert told.endswith("name the folder, as file:///…")


# -- what it makes -----------------------------------------------------------------------------------------------------


def test_it_is_the_files_with_its_own_settings_over_them(hydra, catalog, copy, tmp_path):
    text = "defaults: [ppo, _self_]\nhydra: {searchpath: ['pkg://tiny'], run: {dir: .}}\nactor: {clip: 0.3, lr: 1e-6}\n"
    file = written(tmp_path / "mine", run=text)
    data = {"hydra": {"searchpath": ["pkg://tiny.config"]}}
    folders, _ = search_path(data, catalog, TARGET, copy)
    assert composed(file, folders) == {"lr": 1, "actor": {"clip": 0.3, "mode": "${lr}", "lr": 1e-6}}


def test_a_file_beside_its_folder_is_merged_where_the_list_says(hydra, tmp_path):
    text = "hydra: {run: {dir: .}, output_subdir: null}\nstage: 3\ndefaults: ['../config/zero@_here_']\n"
    file = written(tmp_path / "mine", run=text, **{"../config__zero": "stage: 0\nzero: {stage: 2}\n"})
    assert composed(file, []) == {"stage": 3, "zero": {"stage": 2}}


# -- what it is kept from ----------------------------------------------------------------------------------------------


def test_a_package_is_never_imported(hydra, copy, tmp_path):
    """Not even where the file says so itself, and stands beside the package."""
    file = written(copy.path, run="hydra: {searchpath: ['pkg://tiny.config']}\ndefaults: [ppo, _self_]\n")
    with pytest.raises(NotComposedError, match="Could not load 'ppo'"):
        composed(file, [])
    written(copy.path, run="defaults: ['pkg://tiny.config/ppo', _self_]\n")
    with pytest.raises(NotComposedError, match=r"Could not load 'pkg://tiny\.config/ppo'"):
        composed(file, [])


@pytest.mark.parametrize("entry", ["${oc.env:SECRET}", "${oc.env:SECRET,base}", "${now:%Y}", "${python_version:}"])
def test_nothing_is_taken_from_the_environment(hydra, tmp_path, monkeypatch, entry):
    monkeypatch.setenv("SECRET", "base")
    file = written(tmp_path, run=f"defaults: ['{entry}', _self_]\n", base="a: 1\n")
    with pytest.raises(NotComposedError) as caught:
        composed(file, [])
    assert str(caught.value) == f"Hydra says: Error resolving interpolation '{entry}'"
    file = written(tmp_path, run=f"defaults: [base, _self_]\nb: '{entry}'\n")
    assert composed(file, []) == {"a": 1, "b": entry}


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{other}'] * 9)}]\n" for other, name in zip("abcdefgh", "bcdefghi")
)


def test_a_bomb_among_the_files_goes_off_elsewhere(hydra, tmp_path, monkeypatch):
    monkeypatch.setattr(composing, "_PATIENCE", 3)
    with pytest.raises(NotComposedError, match="takes longer than 3 seconds"):
        composed(written(tmp_path, run="defaults: [bomb]\n", bomb=BOMB), [])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [(f"a: [{'x,' * 300}]\n", r"run\.yaml \(composed\):\d+:\d+: more than \d+ values"),
     (f"a: {'[' * 70}{']' * 70}\n", r"run\.yaml \(composed\):\d+:\d+: nested deeper than \d+ levels")],
)  # fmt: skip
def test_what_is_composed_has_the_bounds_of_a_file(hydra, tmp_path, monkeypatch, text, wrong):
    monkeypatch.setattr(documents, "MAX_NODES", 300)
    with pytest.raises(SentinelError, match=wrong) as caught:
        composed(written(tmp_path, run="defaults: [base, _self_]\n", base=text), [])
    assert not isinstance(caught.value, NotComposedError)


# -- where it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [({"run": "defaults: [actor: dq]\n", "actor__dp": "a: 1\n"},
      "In 'run': Could not find 'actor/dq' Available options in 'actor': dp"),
     ({"run": "defaults: [actor: dp, actor: fs]\n", "actor__dp": "a: 1\n", "actor__fs": "a: 2\n"},
      "Multiple values for actor. To override a value use 'override actor: fs'"),
     ({"run": "defaults: [other]\n", "other": "defaults: [run]\n"},
      "the files name each other without end, or are nested too deep"),
     ({"run": "defaults: [3]\n"}, "Unsupported type in defaults : int"),
     ({"run": "defaults: [base]\n", "base": "- x\n"},
      "In 'base': ConfigTypeError raised while composing config: Cannot merge DictConfig with ListConfig")],
)  # fmt: skip
def test_what_hydra_says_is_one_sentence(hydra, tmp_path, given, said):
    with pytest.raises(NotComposedError) as caught:
        composed(written(tmp_path, **given), [])
    assert str(caught.value).startswith(f"Hydra says: {said}")
    assert "\n" not in str(caught.value)


def test_without_hydra_it_is_told(tmp_path, monkeypatch):
    def without(command: Any, **options: Any) -> Any:
        code = "import runpy, sys; sys.modules['hydra'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
        return run([sys.executable, "-c", code, *command[command.index(hydra_process.__file__) :]], **options)

    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", without)
    with pytest.raises(HydraMissingError, match="hydra-core is not installed"):
        composed(written(tmp_path, run="defaults: [base]\n"), [])
