from typing import Any

import pytest
from demo_kit import Lab


@pytest.fixture
def asked(lab: Lab) -> Any:
    def run(files: dict[str, str], boundary: str = "pkg.mod.function") -> set[str]:
        answer = lab.probe(lab.open(lab.write(files), trace=True), boundary)
        return {question for question in answer.questions if question[2:].startswith("pkg") or question == "t:"}

    return run


FUNCTION = "def function():\n    return 1.0\n"


def test_only_imported_modules_are_recorded(asked):
    found = asked({"mod.py": f"from pkg import other\n{FUNCTION}", "other.py": "", "unused.py": ""})
    assert {"m:pkg", "m:pkg/mod", "m:pkg/other"} <= found
    assert not any("unused" in question for question in found)


def test_lookups_of_missing_modules_are_recorded(asked):
    guarded = f"try:\n    import pkg.extra.fast\nexcept ImportError:\n    pass\n{FUNCTION}"
    assert "m:pkg/extra" in asked({"mod.py": guarded})


def test_a_package_turned_into_a_module_is_noticed(asked):
    found = asked({"mod.py": f"from pkg.sub import thing\n{FUNCTION}", "sub/__init__.py": "", "sub/thing.py": ""})
    assert {"m:pkg/sub", "m:pkg/sub/thing"} <= found


def test_imports_during_a_probe_are_recorded(asked):
    found = asked({"mod.py": "def function():\n    import pkg.late\n    return 1.0\n", "late.py": ""})
    assert "m:pkg/late" in found


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("open(HERE + '/version').read()", "f:pkg/version"),
        ("os.path.exists(HERE + '/settings.json')", "f:pkg/settings.json"),
        ("pathlib.Path(HERE, 'settings.json').is_file()", "f:pkg/settings.json"),
        ("os.listdir(HERE + '/plugins')", "d:pkg/plugins"),
        ("[i.name for i in pkgutil.iter_modules([HERE + '/plugins'])]", "d:pkg/plugins"),
        ("list(glob.glob(HERE + '/plugins/*.py'))", "d:pkg/plugins"),
    ],
)
def test_lookups_of_files_and_folders_are_recorded(asked, line, question):
    head = "import glob, os, pathlib, pkgutil\nHERE = os.path.dirname(__file__)\n"
    files = {"mod.py": f"{head}{line}\n{FUNCTION}", "version": "1", "plugins/one.py": ""}
    assert question in asked(files)


def test_starting_a_process_with_the_checkout_covers_the_whole_tree(asked):
    text = f"import os, subprocess\nsubprocess.run(['true', os.path.dirname(__file__)])\n{FUNCTION}"
    assert asked({"mod.py": text}) == {"t:"}


def test_a_search_for_a_hint_is_not_recorded(asked):
    found = asked({"mod.py": "", "elsewhere.py": FUNCTION})
    assert "m:pkg/mod" in found
    assert not any("elsewhere" in question for question in found)


def test_a_process_without_a_trace_records_nothing(lab):
    assert lab.call({"mod.py": FUNCTION}, "pkg.mod.function").questions is None
