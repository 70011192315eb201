"""Networks that are slow, truncate or send wrong data: a clear message, no partial result, and success afterwards."""

import hashlib
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from wheels import wheel

from sentinel.cli import main
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import Home, MirrorStore, gitbinary, open_checkout, pypi
from sentinel.targets import Target
from sentinel.targets.refs import Ref

PAGE, FILE = "/simple/demo-dist/", "/files/demo_dist-1.0-py3-none-any.whl"

#: A function that answers a request, given the handler and the content that a correct answer would have.
Way = Callable[["Handler", bytes], None]


@dataclass
class Site:
    """The content of a web server on the loopback interface.

    :ivar files: path -> content; other paths are 404.
    :ivar ways: path -> how it is answered.
    :ivar requested: all requested paths.
    :ivar over: set to stop the server.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    ways: dict[str, Way] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.site.requested.append(path)
        content = self.site.files.get(path)
        if path in self.site.ways:
            self.site.ways[path](self, content or b"")
        else:
            self.begin(404 if content is None else 200, content or b"")
            self.wfile.write(content or b"")

    def begin(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Write no log."""


def closes_early(handler: Handler, content: bytes) -> None:
    handler.begin(200, content)
    handler.wfile.write(content[: len(content) // 2])


def is_damaged(handler: Handler, content: bytes) -> None:
    """Send content of the right length with wrong bytes in the middle."""
    handler.begin(200, content)
    handler.wfile.write(content[:-300] + bytes(byte ^ 0xFF for byte in content[-300:-290]) + content[-290:])


def drips(handler: Handler, content: bytes) -> None:
    """Send one byte at a time, so that no single read takes long."""
    handler.begin(200, bytes(100_000))
    while not handler.site.over.wait(0.05):
        handler.wfile.write(b" ")


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"site": served}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign] - a client that has gone away is no news
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield served
    served.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def target() -> Target:
    return replace(bundled_catalog().targets["demo"], pypi="demo-dist")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorStore:
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    return MirrorStore(Home(tmp_path / "home"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "way", "says"),
    [
        (FILE, closes_early, "DO NOT MATCH THE HASHES|IncompleteRead|bytes missing"),
        (FILE, is_damaged, "DO NOT MATCH THE HASHES"),
        (PAGE, drips, "pip did not finish within 4 s"),
    ],
)
def test_a_faulty_package_index_is_reported(path, way, says, site, store, target, fixed_tree, tmp_path, monkeypatch):
    content = wheel(tmp_path, fixed_tree).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    site.files = {FILE: content, PAGE: f'<a href="{FILE}#sha256={digest}">demo_dist-1.0-py3-none-any.whl</a>'.encode()}
    for name, value in {"INDEX_URL": f"{site.url}/simple", "CONFIG_FILE": os.devnull, "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(pypi, "_answers", {})
    if way is drips:
        monkeypatch.setattr(pypi, "_PATIENCE", 4.0)
    site.ways[path] = way
    with pytest.raises(Unavailable, match=f"pypi:1.0 of demo-dist cannot be downloaded: .*({says})") as refusal:
        open_checkout(target, Ref.parse("pypi:1.0"), store=store)
    assert "\n" not in refusal.value.reason
    left = [place for place in store.home.path.rglob("*") if place.is_file() or place.name.startswith(".")]
    assert left == []


def test_a_slow_git_server_is_reported(site, store, capsys, monkeypatch):
    monkeypatch.setitem(gitbinary._ENVIRONMENT, "GIT_HTTP_LOW_SPEED_TIME", "1")
    site.ways["/demo.git/info/refs"] = drips
    assert main(["mirror", "add", "demo", "--from", f"{site.url}/demo.git"]) == 2
    assert f"sentinel: cannot mirror {site.url}/demo.git: " in capsys.readouterr().err
    assert [place.name for place in store.home.mirrors.iterdir()] == [".demo.lock"]


def test_a_server_of_plain_files_is_rejected(site, store, target, capsys, demo_repository, tmp_path):
    """Otherwise git would start further git processes for missing objects, without end."""
    bare = tmp_path / "demo.git"
    demo_repository.git("clone", "-q", "--bare", "--no-local", str(demo_repository.path), str(bare))
    demo_repository.git("--git-dir", str(bare), "update-server-info")
    site.files = {f"/demo.git/{f.relative_to(bare)}": f.read_bytes() for f in bare.rglob("*") if f.is_file()}
    assert main(["mirror", "add", "demo", "--from", f"{site.url}/demo.git"]) == 2
    (last,) = capsys.readouterr().err.splitlines()[-1:]
    assert last.startswith(f"sentinel: cannot mirror {site.url}/demo.git: ")
    assert "does not support git's protocol" in last
    assert not [path for path in site.requested if "/objects/" in path]
    assert [place.name for place in store.home.mirrors.iterdir()] == [".demo.lock"]
    with pytest.raises(Unavailable, match="no mirror of demo; run"):
        open_checkout(target, Ref.parse("git:main"), store=store)
