import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from sentinel.errors import Unavailable
from sentinel.sources import open_checkout, pypi
from sentinel.targets import PackageRoot, Target
from sentinel.targets.refs import Ref


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(pypi, "_answers", {})
    return folder


_METADATA = "Metadata-Version: 2.1\nName: fake-dist\nVersion: {}\nRequires-Python: {}\n"


def _wheel(index: Path, version: str, more: dict[str, bytes] | None = None, python: str = ">=3.8") -> Path:
    path = index / f"fake_dist-{version}-py3-none-any.whl"
    info = f"fake_dist-{version}.dist-info"
    files: dict[str, bytes] = {
        "fake/__init__.py": b"VALUE = 2\n",
        "fake/deep/loss.py": b"def loss(): return 1\n",
        "fake/deep/run.sh": b"echo\n",
        "fake_gym/__init__.py": b"GYM = True\n",
        "another/__init__.py": b"",
        f"{info}/METADATA": _METADATA.format(version, python).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
        **(more or {}),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.slow
def test_a_release_is_downloaded_and_unpacked(store, target, index, upstream):
    wheel = _wheel(index, "1.2.0")
    made = open_checkout(target, Ref.parse("pypi:1.2.0"), store=store)
    assert made.roots == ("fake", "gym/fake_gym")
    assert made.import_roots == (made.path, made.path / "gym")
    assert (made.path / "gym" / "fake_gym" / "__init__.py").read_text() == "GYM = True\n"
    assert not (made.path / "another").exists()
    assert made.version == "1.2.0"
    assert made.digest == f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    store.add(target, str(upstream))
    assert open_checkout(target, Ref.parse("git:main"), store=store).tree == made.tree, "the same files"


@pytest.mark.slow
def test_a_second_run_needs_no_index(store, target, index):
    wheel = _wheel(index, "1.2.0")
    made = open_checkout(target, Ref.parse("pypi:1.2.0"), store=store)
    wheel.unlink()
    assert open_checkout(target, Ref.parse("pypi:1.2.0"), store=store) == made
    shutil.rmtree(store.home.checkouts)
    assert open_checkout(target, Ref.parse("pypi:1.2.0"), store=store) == made, "from the wheel that was kept"


@pytest.mark.slow
def test_latest_does_not_depend_on_the_interpreter(store, target, index):
    _wheel(index, "1.2.0")
    _wheel(index, "1.10.0", python=">=3.99")
    _wheel(index, "2.0.0rc1")
    ref = Ref.parse("pypi:latest")
    made = open_checkout(target, ref, store=store)
    assert (made.ref, made.version) == (ref, "1.10.0")
    _wheel(index, "1.11.0")
    pypi._answers.clear()  # Another run.
    messages: list[str] = []
    assert open_checkout(target, ref, store=store, progress=messages.append).version == "1.11.0"
    assert messages == ["looking for a newer fake-dist"], "nothing says that it is downloaded a second time"


@pytest.mark.slow
def test_an_unavailable_release_is_reported(store, target, index, monkeypatch):
    _wheel(index, "1.2.0")
    with pytest.raises(
        Unavailable, match=r"^pypi:9.9 of fake-dist cannot be downloaded: No matching .*fake-dist==9.9"
    ) as error:
        open_checkout(target, Ref.parse("pypi:9.9"), store=store)
    assert "\n" not in error.value.reason
    monkeypatch.setattr(pypi, "_download", None)
    with pytest.raises(Unavailable, match=r"pypi:9.9 of fake-dist cannot be downloaded"):
        open_checkout(target, Ref.parse("pypi:9.9"), store=store)
    with pytest.raises(Unavailable, match="fake has no releases on PyPI"):
        open_checkout(Target("fake", "", target.roots), Ref.parse("pypi:1"), store=store)


@pytest.mark.slow
def test_a_release_without_a_network_is_an_error(store, target, index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(Unavailable, match=r"cannot be downloaded: .*the package index is unreachable"):
        open_checkout(target, Ref.parse("pypi:latest"), store=store)


def test_a_missing_pip_is_reported(store, target, index, tmp_path, monkeypatch):
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(pypi.sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(Unavailable, match="this environment has no pip; run `python -m ensurepip`"):
        open_checkout(target, Ref.parse("pypi:1.0"), store=store)


@pytest.mark.slow
def test_a_wheel_without_the_package_is_rejected(store, target, index):
    _wheel(index, "1.0")
    other = Target("fake", "", (PackageRoot("other"),), pypi="fake-dist")
    with pytest.raises(Unavailable, match=r"pypi:1.0 has none of its package roots; looked for other"):
        open_checkout(other, Ref.parse("pypi:1.0"), store=store)


@pytest.mark.slow
def test_a_damaged_cached_wheel_is_reported(store, target, index):
    _wheel(index, "1.0")
    kept = store.home.wheels / "fake-dist" / "fake_dist-1.0-py3-none-any.whl"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"cut off")
    with pytest.raises(Unavailable, match="is not a complete wheel"):
        open_checkout(target, Ref.parse("pypi:1.0"), store=store)
    assert open_checkout(target, Ref.parse("pypi:1.0"), store=store).version == "1.0"


@pytest.mark.slow
def test_a_large_asset_is_left_out(store, target, index):
    _wheel(index, "1.0", {"fake/asset.bin": bytes(2 << 20), "fake/table.json": b" " * (2 << 20)})
    made = open_checkout(target, Ref.parse("pypi:1.0"), store=store)
    assert [(gone.path, gone.size) for gone in made.left_out] == [("fake/asset.bin", 2 << 20)]
    assert (made.path / "fake" / "table.json").stat().st_size == 2 << 20
