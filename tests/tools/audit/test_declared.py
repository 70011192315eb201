"""The options of an installed copy, from the declarations next to the recipes and the copy's files."""

from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.errors import SentinelError
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.declared import options_of, options_of_tree
from sentinel.tools.audit.options import Option, Options

TARGET = Target("tiny", "https://example.org/tiny", (PackageRoot("sub/tiny", "sub"),))
ENTRY = '[[options]]\nname = "{name}"\nkind = "{kind}"\nfile = "{file}"\n'


@pytest.fixture
def copy(tmp_path: Path) -> Checkout:
    """An installed copy: the package without the folder that contains it in the repository."""
    package = tmp_path / "copy" / "tiny"
    package.mkdir(parents=True)
    (package / "old.yaml").write_text("n: 1\n")
    (package / "new.yaml").write_text("n: 2\n")
    (package / "broken.yaml").write_text("n: [\n")
    (package / "options.py").write_text("parser.add_argument('--rate', default=0.5)\n")
    (package / "parts.py").write_text("class Part:\n    size: int = 4\n")
    (package / "config.py").write_text("from tiny.parts import Part\nclass Train:\n    part: Part = Part()\n")
    return Checkout("tiny", Ref("installed"), package.parent, ("tiny",), (package.parent,), "0" * 64)


def declared(tmp_path: Path, text: str) -> Catalog:
    (tmp_path / "recipes" / "tiny").mkdir(parents=True, exist_ok=True)
    (tmp_path / "recipes" / "tiny" / "options.toml").write_text(text)
    return replace(bundled_catalog(), recipe_folders=(tmp_path / "nothing", tmp_path / "recipes"))


def test_the_first_existing_entry_of_a_name_is_used(copy, tmp_path):
    files = [
        ("PPO", "gone.yaml"),
        ("PPO", "new.yaml"),
        ("PPO", "old.yaml"),
        ("SFT", "old.yaml"),
        ("DPO", "broken.yaml"),
    ]
    text = "".join(ENTRY.format(name=name, kind="tree", file=f"sub/tiny/{file}") for name, file in files)
    assert options_of(declared(tmp_path, text), TARGET, copy) == (
        Options("PPO", "sub/tiny/new.yaml", {"n": Option("2")}),
        Options("SFT", "sub/tiny/old.yaml", {"n": Option("1")}),
    )


def test_options_of_another_package_are_added(copy, tmp_path):
    text = ENTRY.format(name="a", kind="parser", file="tiny/options.py")
    text += "[options.elsewhere]\nranks = 1\nrate = 7\n"
    text += ENTRY.format(name="b", kind="classes", file="tiny/config.py") + 'class = "Gone"\n'
    text += ENTRY.format(name="b", kind="classes", file="tiny/config.py") + 'class = "Train"\n'
    first, second = options_of(declared(tmp_path, text), TARGET, copy)
    assert first.options == {"ranks": Option("1"), "rate": Option("0.5")}
    assert second.options == {"part.size": Option("4")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY.format(name="a", kind="xml", file="x"), "kind must be classes, parser or tree"),
        (ENTRY.format(name="a", kind="classes", file="tiny/config.py"), "missing key 'class'"),
        ("[[options]]\nkind = 'tree'\n", "missing file, name"),
        ("[[options", "options.toml:1:1: not TOML: "),
    ],
)
def test_an_invalid_declaration_is_reported(copy, tmp_path, text, said):
    with pytest.raises(SentinelError, match=said):
        options_of(declared(tmp_path, text), TARGET, copy)


def test_an_earlier_version_has_an_option_under_its_former_name(copy, tmp_path):
    text = ENTRY.format(name="a", kind="parser", file="tiny/options.py") + (
        '[options.formerly]\n"optim.rate" = "rate"\n"optim.size" = "size"\n'
    )
    (options,) = options_of(declared(tmp_path, text), TARGET, copy)
    assert options.options == {"rate": Option("0.5"), "optim.rate": Option("0.5")}
    assert options.meaning({"rate": "0.1"}, ()) == {"optim.rate": "0.1"}
    assert (options.spelling("optim.rate"), options.spelling("other")) == ("rate", "other")


def test_options_are_unknown_without_a_declaration(copy):
    assert options_of(replace(bundled_catalog(), recipe_folders=()), TARGET, copy) == ()


def test_a_tree_has_the_options_of_the_files_in_its_defaults_list(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "hf.yaml").write_text("path: ???\nlora: {rank: 8}\n")
    (tmp_path / "sft.yaml").write_text("defaults:\n  - model@model: hf\n  - _self_\ndata: {size: 4}\n")
    options, unread = options_of_tree(tmp_path / "sft.yaml")
    assert options == {"model.path": Option(None), "model.lora.rank": Option("8"), "data.size": Option("4")}
    assert unread == {}
    (tmp_path / "sft.yaml").write_text("defaults:\n  - optim@optim: gone\ndata: {size: 4}\n")
    assert options_of_tree(tmp_path / "sft.yaml")[1] == {"": "optim@optim: gone"}
