import importlib
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.targets import Alias
from sentinel.worker.calling import answer_at_import

PACKAGE = "asks_for_its_address"
ANSWERS = {f"{PACKAGE}.network.address": "here", f"{PACKAGE}.nowhere.address": "", f"{PACKAGE}.network.port": 1}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    package = tmp_path / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "network.py").write_text("def address():\n    raise OSError('there is no network')\n")
    (package / "worker.py").write_text("from .network import address\n\nADDRESS = address()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield str(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_replacement_is_used_during_the_import(root):
    answer_at_import(ANSWERS, (root,))
    assert importlib.import_module(f"{PACKAGE}.worker").ADDRESS == "here"
    assert not hasattr(sys.modules[f"{PACKAGE}.network"], "port")  # missing names stay missing


def test_the_import_fails_without_a_replacement(root):
    answer_at_import({}, (root,))
    with pytest.raises(OSError, match="there is no network"):
        importlib.import_module(f"{PACKAGE}.worker")


def test_imported_modules_keep_their_values(root):
    network = importlib.import_module(f"{PACKAGE}.network")
    answer_at_import(ANSWERS, (root,))
    with pytest.raises(OSError, match="there is no network"):
        network.address()


def test_values_of_other_packages_and_aliases_are_replaced(root, monkeypatch):
    monkeypatch.setattr(string, "digits", string.digits)
    monkeypatch.setattr(string, "Template", string.Template)
    answer_at_import({"string.digits": "01", "string.Template": Alias("string.Formatter")}, (root,))
    assert (string.digits, string.Template) == ("01", string.Formatter)
