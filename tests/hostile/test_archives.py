"""Malicious releases and tars: paths that lead outside, endless data, ambiguous names."""

import io
import stat
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_kit import Repository

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import MirrorStore, open_checkout, pypi
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

TARGET = Target("demo", "https://example.invalid/demo.git", (PackageRoot("demo_rl"),), pypi="demo-dist")

#: A member of a wheel: its name or its header, and its content.
Member = tuple[str | zipfile.ZipInfo, bytes]
#: ``release(members...)`` returns the checkout of a release with these members.
Release = Callable[..., Checkout]

NEVER_ENDING = 64 << 20


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(pypi, "_answers", {})
    return folder


def _write_wheel(folder: Path, *members: Member, change: Callable[[bytes], bytes] = bytes) -> Path:
    info = "demo_dist-1.0.dist-info"
    path = folder / "demo_dist-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo_rl/__init__.py", "VALUE = 1\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-dist\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for header, content in members:
            archive.writestr(header, content)
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.fixture
def release(store: MirrorStore) -> Release:
    """Make a release as if pip had downloaded it. pip rejects some of them, but Sentinel must not rely on that."""

    def make(*members: Member, change: Callable[[bytes], bytes] = bytes) -> Checkout:
        folder = store.home.wheels / "demo-dist"
        folder.mkdir(parents=True, exist_ok=True)
        _write_wheel(folder, *members, change=change)
        return open_checkout(TARGET, Ref.parse("pypi:1.0"), store=store)

    return make


def _header(name: str, mode: int = stat.S_IFREG | 0o644, way: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    header = zipfile.ZipInfo("x")
    header.filename = name  # the constructor would cut the name at a NUL
    header.external_attr = mode << 16
    header.compress_type = way
    return header


def _files(made: Checkout) -> list[str]:
    return sorted(path.relative_to(made.path).as_posix() for path in made.path.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../out.py", "leads out"),
        ("demo_rl/../../out.py", "leads out"),
        ("/out.py", "leads out"),
        ("demo_rl//out.py", "leads out"),
        ("demo_rl/./out.py", "leads out"),
        ("demo_rl\\..\\..\\out.py", "leads out"),
        ("C:/out.py", "leads out"),
        ("demo_rl/out.py\0.txt", "leads out"),
        ("demo_rl/" + "x" * 300 + ".py", "too long"),
        ("demo_rl/" + "x/" * 600 + "out.py", "too long"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_wheel_with_a_name_outside_its_folder_is_rejected(release, tmp_path, name, says):
    with pytest.raises(Unavailable, match=says):
        release((_header(name), b"harm = True\n"))
    assert list(tmp_path.rglob("out.py")) == []


@pytest.mark.parametrize("names", [("demo_rl/a.py", "demo_rl/a.py"), ("demo_rl/a", "demo_rl/a/b.py")])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_wheel_with_two_files_of_one_name_is_rejected(release, names, order):
    with pytest.raises(Unavailable, match=r"twice|conflicts with another file"):
        release(*((_header(name), b"1") for name in names[::order]))


def test_names_that_differ_in_case_or_composition_are_two_files(release, tmp_path):
    """If the file system cannot distinguish them, the release is not used."""
    (tmp_path / "a").touch()
    names = ["demo_rl/A.py", "demo_rl/a.py", "demo_rl/e\u0301.py", "demo_rl/\u00e9.py", "demo_rl/\u202egnp.py"]
    if (tmp_path / "A").exists():
        with pytest.raises(Unavailable, match="conflicts with another file"):
            release(*((name, b"") for name in names))
    else:
        assert _files(release(*((name, b"") for name in names))) == sorted(["demo_rl/__init__.py", *names])


def test_files_next_to_the_package_are_not_unpacked(release):
    beside = ["torch.py", "numpy.py", "json.py", "sitecustomize.py", "evil.pth", "conftest.py", "pytest.ini"]
    scripts = ["demo_dist-1.0.data/scripts/git", "demo_dist-1.0.data/purelib/torch.py"]
    late = "demo_dist-1.0.data/purelib/demo_rl/late.py"  # an installer puts it into the package
    made = _files(release(*((name, b"raise SystemExit") for name in [*beside, *scripts, late])))
    assert made == ["demo_rl/__init__.py", "demo_rl/late.py"]


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK], ids=oct)
def test_a_device_in_a_wheel_is_unpacked_as_a_file(release, kind):
    made = release((_header("demo_rl/device.py", kind | 0o6777), b"1"))
    status = (made.path / "demo_rl" / "device.py").lstat()
    assert stat.S_ISREG(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o444


@pytest.mark.parametrize("points", ["/etc/passwd", "../../../../etc/passwd", "__init__.py"])
def test_a_link_in_a_wheel_is_skipped(release, points):
    made = release((_header("demo_rl/link.py", stat.S_IFLNK | 0o777), points.encode()))
    assert _files(made) == ["demo_rl/__init__.py"]
    assert [gone.path for gone in made.left_out] == ["demo_rl/link.py"]


def test_a_source_distribution_is_not_built(store, index, tmp_path):
    """Building it would run its ``setup.py``."""
    ran = tmp_path / "ran"
    with tarfile.open(index / "demo-dist-1.0.tar.gz", "w:gz") as tar:
        for name, text in {"setup.py": f"open({str(ran)!r}, 'w')\n", "demo_rl/__init__.py": ""}.items():
            member = tarfile.TarInfo(f"demo-dist-1.0/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    with pytest.raises(Unavailable, match="cannot be downloaded"):
        open_checkout(TARGET, Ref.parse("pypi:1.0"), store=store)
    assert not ran.exists()


def test_an_archive_in_a_wheel_is_not_unpacked(release):
    inner = b""
    for _ in range(10):
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr("demo_rl/inner.zip", inner)
        inner = whole.getvalue()
    made = release(("demo_rl/inner.zip", inner))
    assert (made.path / "demo_rl" / "inner.zip").read_bytes() == inner


def _resize(size: int, name: bytes) -> Callable[[bytes], bytes]:
    """Return a function that changes the declared size of a member in a wheel's directory and header."""

    def change(wheel: bytes) -> bytes:
        changed = bytearray(wheel)
        local, central = wheel.index(b"PK\3\4" + wheel[4:6], wheel.index(name) - 30), wheel.rindex(name) - 46
        struct.pack_into("<I", changed, local + 22, size)
        struct.pack_into("<I", changed, central + 24, size)
        return bytes(changed)

    return change


@pytest.mark.parametrize("name", ["demo_rl/bomb.py", "demo_rl/bomb.bin"])
def test_a_zip_bomb_with_a_small_declared_size_is_rejected(release, name):
    content = bytes(NEVER_ENDING)
    tracemalloc.start()
    try:
        with pytest.raises(Unavailable, match="is not a complete wheel"):
            release((name, content), change=_resize(10, name.encode()))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < NEVER_ENDING // 4


def test_a_file_shorter_than_declared_is_rejected(release):
    with pytest.raises(Unavailable, match="has 3 bytes instead of 10"):
        release((_header("demo_rl/short.py", way=zipfile.ZIP_STORED), b"abc"), change=_resize(10, b"demo_rl/short.py"))


@pytest.mark.parametrize("name", ["demo_rl/bomb.py", "elsewhere/bomb.py"])
def test_a_zip_bomb_with_its_real_size_is_rejected(release, name):
    with pytest.raises(Unavailable, match="unpacks to more than"):
        release((name, b"1"), change=_resize(0xFFFF_FFF0, name.encode()))


def test_an_oversized_source_file_in_a_wheel_is_left_out(release, monkeypatch):
    monkeypatch.setattr("sentinel.sources.trees.SOURCE_LIMIT", 2 << 20)
    made = release(("demo_rl/large.py", bytes(3 << 20)), ("demo_rl/tables.py", bytes(1 << 20) + b"1"))
    assert _files(made) == ["demo_rl/__init__.py", "demo_rl/tables.py"]
    assert [(gone.path, gone.size) for gone in made.left_out] == [("demo_rl/large.py", 3 << 20)]


@pytest.mark.parametrize("way", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unbounded_compression_methods_are_rejected(release, way):
    with pytest.raises(Unavailable, match="uses an unknown compression"):
        release((_header("demo_rl/bomb.py", way=way), bytes(1 << 20)))


def test_a_wheel_with_too_many_files_is_rejected(release, monkeypatch):
    monkeypatch.setattr(pypi, "MOST_FILES", 10)
    with pytest.raises(Unavailable, match="contains more than 10 files"):
        release(*((f"demo_rl/{number}.py", b"") for number in range(20)))


def _encrypted(wheel: bytes) -> bytes:
    changed = bytearray(wheel)
    changed[wheel.rindex(b"PK\1\2") + 8] |= 1
    return bytes(changed)


def _deflated_nonsense(wheel: bytes) -> bytes:
    start = wheel.index(b"demo_rl/last.py") + len("demo_rl/last.py")
    return wheel[:start] + b"\xff" * 20 + wheel[start + 20 :]


def _wrongly_encoded(wheel: bytes) -> bytes:
    at = wheel.rindex(b"PK\1\2")
    changed = bytearray(wheel.replace(b"demo_rl/last.py", b"demo_rl/\xff\xfe\xff\xfe.py"))
    struct.pack_into("<H", changed, at + 8, 0x800)
    return bytes(changed)


@pytest.mark.parametrize(
    "change",
    [_encrypted, _deflated_nonsense, _wrongly_encoded, lambda wheel: wheel[:-30], lambda wheel: wheel[200:]],
    ids=["encrypted", "nonsense", "not utf-8", "cut at its end", "cut at its beginning"],
)
def test_a_file_that_is_not_a_wheel_is_rejected(release, store, change):
    with pytest.raises(Unavailable, match="is not a complete wheel"):
        release(("demo_rl/last.py", b"VALUE = 1\n" * 20), change=change)
    assert list(store.home.wheels.rglob("*.whl")) == [], "it is not met again"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "upstream")
    (repository.path / "demo_rl").mkdir(parents=True)
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit("one", {"demo_rl/__init__.py": "VALUE = 1\n"})
    return repository


def _tar(git_dir: Path, path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        tar.add(git_dir, "demo.git")
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **pax: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.pax_headers = kind, link, pax
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("demo.git/" + "x" * 300),
        _member("demo.git/" + "x/" * 3000),
        _member(".", tarfile.REGTYPE),
        _member("x", path="demo.git/x\0y"),
        _member("demo.git/HEAD/x"),
        _member("demo.git/objects"),
        _member("demo.git/link", tarfile.LNKTYPE, "../../outside"),
        _member("demo.git/link", tarfile.SYMTYPE, "HEAD"),
        _member("demo.git/pipe", tarfile.FIFOTYPE),
        _member("demo.git/device", tarfile.BLKTYPE),
    ],
    ids=lambda member: f"{member.name[:20]}-{member.type.decode()}",
)
def test_a_tar_with_unsafe_members_is_rejected(store, repository, tmp_path, member):
    tar = _tar(repository.path / ".git", tmp_path / "bad.tar", (member, b""))
    with pytest.raises(SentinelError, match=r"is not a complete tar|leads out of the folder|is a link or a device"):
        store.add(TARGET, str(tar))
    assert store.list() == []


@pytest.mark.parametrize("kind", ["tree", "commit", "blob"])
def test_a_loose_object_with_a_wrong_hash_is_rejected(store, repository, tmp_path, kind):
    """git does not check the hash of a loose object, so a tar could give other code the hash of an honest commit."""
    honest = {name: repository.git("rev-parse", f"main{name}") for name in ("", "^{tree}", ":demo_rl/__init__.py")}
    (repository.path / "demo_rl" / "__init__.py").write_text("VALUE = 666\n")
    repository.commit("forged", {})
    name = {"commit": "", "tree": "^{tree}", "blob": ":demo_rl/__init__.py"}[kind]
    forged, objects = repository.git("rev-parse", f"main{name}"), repository.path / ".git" / "objects"
    place = objects / honest[name][:2] / honest[name][2:]
    place.chmod(0o644)
    place.write_bytes((objects / forged[:2] / forged[2:]).read_bytes())
    (repository.path / ".git" / "refs" / "heads" / "main").write_text(honest[""])
    with pytest.raises(SentinelError, match=f"object {honest[name]} is damaged: its hash is wrong"):
        store.add(TARGET, str(_tar(repository.path / ".git", tmp_path / "forged.tar")))
    assert store.list() == []


def test_a_malformed_object_is_rejected(store, repository, tmp_path):
    loose = next((repository.path / ".git" / "objects").glob("??/*"))
    for content in (b"", b"nonsense", zlib.compress(b"blob 99999999999\0")):
        loose.chmod(0o644)
        loose.write_bytes(content)
        with pytest.raises(SentinelError, match="is damaged"):
            store.add(TARGET, str(_tar(repository.path / ".git", tmp_path / "bad.tar")))


def test_a_valid_tar_is_accepted(store, repository, tmp_path):
    store.add(TARGET, str(_tar(repository.path / ".git", tmp_path / "good.tar")))
    made = open_checkout(TARGET, Ref.parse("git:main"), store=store)
    assert subprocess.run([sys.executable, made.path / "demo_rl" / "__init__.py"], check=False).returncode == 0
    assert _files(made) == ["demo_rl/__init__.py"]
