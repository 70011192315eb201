"""A web server on the loopback that gives files out, and misbehaves about some of them as it is told."""

from __future__ import annotations

import gzip
import http.server
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

#: Answers a request in its own way: what it would have sent, and the handler to send it with.
Way = Callable[["Handler", bytes], None]


@dataclass
class Site:
    """What is served, and how.

    :ivar files: path -> content; a path that is not there is a 404.
    :ivar ways: path -> how it is answered. A path with a way that is not in ``files`` has no content.
    :ivar asked: every path that was asked for.
    :ivar repositories: a folder of git repositories that are served in git's own protocol.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    ways: dict[str, Way] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    repositories: Path | None = None
    url: str = ""
    #: Set when the server is to stop: whoever hangs waits for that.
    over: threading.Event = field(default_factory=threading.Event)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site
    kind = "text/html"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.site.asked.append(path)
        content = self.site.files.get(path) if self.site.repositories is None else self._of_git(path)
        self.kind = (
            self.kind if self.site.repositories else "text/html" if path.endswith("/") else "application/octet-stream"
        )
        way = self.site.ways.get(path)
        if way is not None:
            self.close_connection = True
            way(self, content or b"")
        elif content is None:
            self.begin(404, 0)
        else:
            self.begin(200, len(content))
            self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 - the library's name

    def _of_git(self, path: str) -> bytes:
        """What git's own CGI program answers."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.site.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": self.path.partition("?")[2],
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], env=environment, input=body, capture_output=True, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        self.kind = next(line[14:] for line in head.decode().splitlines() if line.startswith("Content-Type: "))
        return content

    def begin(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", self.kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """A client that has gone away is no news here."""


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    server = _Server(("127.0.0.1", 0), type("Own", (Handler,), {"site": site}))
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        site.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


# -- ways -------------------------------------------------------------------------------------------------------------


def closes_early(handler: Handler, content: bytes) -> None:
    handler.begin(200, len(content))
    handler.wfile.write(content[: len(content) // 2])


def says_too_little(handler: Handler, content: bytes) -> None:
    handler.begin(200, len(content) // 2)
    handler.wfile.write(content[: len(content) // 2])


def redirects_for_ever(handler: Handler, content: bytes) -> None:
    handler.begin(302, 0, Location=handler.path.partition("?")[0] + f"?{len(handler.site.asked)}")


def fails_once(handler: Handler, content: bytes) -> None:
    if handler.site.asked.count(handler.path) == 1:
        handler.begin(500, 0)
    else:
        handler.begin(200, len(content))
        handler.wfile.write(content)


def fails(handler: Handler, content: bytes) -> None:
    handler.begin(500, 0)


def hangs(handler: Handler, content: bytes) -> None:
    """After the headers."""
    handler.begin(200, len(content) or 100)
    handler.site.over.wait(60)


def is_garbage(handler: Handler, content: bytes) -> None:
    if handler.kind == "text/html":
        handler.kind = "application/vnd.pypi.simple.v1+json"
    handler.begin(200, 1000)
    handler.wfile.write(b'{"files": [{"url": \xff\x00' * 40 + b"[" * 160)


def is_huge(handler: Handler, content: bytes) -> None:
    """Thirty megabytes of JSON that say nothing."""
    handler.kind = "application/vnd.pypi.simple.v1+json"
    part = b'"files": [' + b'{"url": "nothing", "filename": "nothing"},' * 24_000
    handler.begin(200, 1 + 30 * len(part))
    handler.wfile.write(b"{")
    for _ in range(30):
        handler.wfile.write(part)


def drips(handler: Handler, content: bytes) -> None:
    """A byte now and then: no read of it ever takes long."""
    handler.begin(200, 100_000)
    for _ in range(100_000):
        if handler.site.over.wait(0.05):
            break
        handler.wfile.write(b" ")
        handler.wfile.flush()


def resets(handler: Handler, content: bytes) -> None:
    """Half of it, and then no goodbye: the other end sees ECONNRESET."""
    handler.begin(200, len(content) or 100)
    handler.wfile.write(content[: len(content) // 2])
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def is_damaged(handler: Handler, content: bytes) -> None:
    """Right in its length, and wrong in the middle."""
    middle = len(content) // 2
    handler.begin(200, len(content))
    handler.wfile.write(
        content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 8]) + content[middle + 8 :]
    )
