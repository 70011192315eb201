import pytest
from history_kit import History

from sentinel.records.imports import Imports
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import PackageRoot

ROOTS = (PackageRoot("pkg"), PackageRoot("lib/other", "lib"))
FILES = {
    "pkg/__init__.py": "",
    "pkg/mod.py": "",
    "pkg/sub/__init__.py": "",
    "pkg/sub/far.py": "",
    "lib/other/__init__.py": "",
}


@pytest.fixture
def asked(history: History):
    def run(text: str, **more: str) -> set[str]:
        history.commit({**FILES, **more, "pkg/start.py": text})
        tree = history.git("rev-parse", "HEAD^{tree}")
        trees = GitTrees(history.path / ".git")
        try:
            return Imports(trees, ROOTS).questions(tree, ["pkg.start"])
        finally:
            trees.close()

    return run


@pytest.mark.parametrize(
    "text",
    [
        "import pkg.sub.far",
        "import os, pkg.sub.far as far",
        "from pkg.sub import far",
        "from .sub import (\n    near,  # which is not there, (really)\n    far as f,\n)",
        "from . import sub; from .sub import far",
        "def f():\n    if True: from pkg.sub import far\n",
        "from pkg.sub \\\n    import far",
        "import importlib\nfar = importlib.import_module('pkg.sub.far')",
    ],
)
def test_imports_include_the_packages_on_the_path(asked, text):
    assert {"m:pkg", "m:pkg/start", "m:pkg/sub", "m:pkg/sub/far"} <= asked(text)


def test_only_imported_modules_are_looked_up(asked):
    assert "m:lib/other" not in asked("from pkg.sub import far")
    found = asked("import pkg.mod", **{"pkg/mod.py": "import other.absent"})
    assert {"m:pkg/mod", "m:lib/other", "m:lib/other/absent"} <= found
    assert "m:pkg/sub" not in found


@pytest.mark.parametrize(
    "text",
    ["import importlib\nx = importlib.import_module(NAME)", "exec(open('x').read())", "x = __import__('pkg.' + name)"],
)
def test_a_dynamic_import_at_module_level_covers_the_whole_tree(asked, text):
    assert asked(text) == {"t:"}
    assert asked("import pkg.mod", **{"pkg/mod.py": text}) == {"t:"}


@pytest.mark.parametrize(
    "text",
    [
        "from x import (" * 200_000 + "\nimport " + "pkg." * 100_000,
        ("from x import (" + "a," * 30 + "\n") * 50_000,
        ";" * 1_000_000 + " " * 1_000_000 + "from " + "." * 1_000_000,
        "x" * 5_000_000,
    ],
    ids=["unclosed", "many names", "long", "too long"],
)
def test_hostile_source_is_read_in_limited_time(asked, text):
    assert asked(text) <= {"t:", "m:pkg", "m:pkg/start", "m:pkg/pkg"}
