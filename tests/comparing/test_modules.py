"""The cache of parsed files returns the results of parsing. Invalid cache files are parsed again."""

from pathlib import Path

import pytest

from sentinel.comparing import units
from sentinel.comparing.units import Module, Modules

#: Modules with every kind of unit.
SOURCES = [file.read_bytes() for file in sorted(Path(units.__file__).parent.parent.rglob("*.py"))[::9]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    return tmp_path


def kept(home: Path) -> Path:
    [file] = home.rglob("*.lines")
    return file


def test_cached_modules_equal_parsed_ones(home):
    modules = Modules("some")
    modules.update({f"{number}": units.parse(source) for number, source in enumerate(SOURCES)})
    modules.update(empty=Module(), broken=units.parse(b"def ("))
    modules.save()
    again = Modules("some")
    assert {blob: again[blob] for blob in modules if blob in again} == dict(modules)
    assert any(unit.kind == "class" for module in again.values() for unit in module.units.values())
    assert Modules("other") == {}
    stamp = kept(home).stat().st_mtime_ns
    again.save()
    assert kept(home).stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    "text", ["", "a", "a ", "a []", 'a [[], {"x": 1}, {}, []]', "a [[[1]], {}, {}, []]", "\x00 \n"]
)
def test_invalid_cache_files_are_parsed_again(home, text):
    modules = Modules("some")
    modules["a"] = Module()
    modules.save()
    kept(home).write_text(text)
    assert "a" not in Modules("some")


def test_the_cache_works_without_a_writable_home(home):
    (home / "history").write_text("no folder")
    modules = Modules("some")
    modules["a"] = Module()
    modules.save()
    assert "a" not in Modules("some")


@pytest.mark.parametrize(("decorator", "counts"), [("@scaled.register", True), ("@torch.no_grad()", False)])
def test_annotations_count_when_a_decorator_reads_them(decorator, counts):
    code = f"{decorator}\ndef _(x: KIND):\n    return x\n".encode()
    digests = {units.parse(code.replace(b"KIND", kind)).units["_"].digest for kind in (b"int", b"str")}
    assert (len(digests) == 2) == counts
