"""The site's folder: what may be overwritten, and what an interruption leaves."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.errors import SentinelError
from sentinel.tools.site.building import MARKER, check, write


def there(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} - {MARKER}


def test_a_later_build_removes_only_its_own_old_files(tmp_path):
    write(tmp_path, [("index.html", "1"), ("bugs/a/one.html", "1"), ("bugs/b/two.html", "2")])
    (tmp_path / "CNAME").write_text("example.org")
    write(tmp_path, [("index.html", "2"), ("bugs/b/two.html", "2")])
    assert there(tmp_path) == {"index.html", "bugs/b/two.html", "CNAME"}
    assert not (tmp_path / "bugs" / "a").exists()
    assert (tmp_path / "index.html").read_text() == "2"


def test_unchanged_files_are_not_written_again(tmp_path):
    write(tmp_path, [("index.html", "1")])
    before = (tmp_path / "index.html").stat().st_ino
    write(tmp_path, [("index.html", "1")])
    assert (tmp_path / "index.html").stat().st_ino == before


def test_an_interruption_leaves_the_old_site_complete(tmp_path):
    def half() -> Iterator[tuple[str, str]]:
        yield "index.html", "new"
        raise KeyboardInterrupt

    write(tmp_path, [("index.html", "old"), ("site.css", "")])
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, half())
    assert there(tmp_path) == {"index.html", "site.css"}
    assert (tmp_path / "index.html").read_text() == "old"


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", ""])
def test_a_marker_that_was_tampered_with_removes_nothing_outside(tmp_path, name):
    site, outside = tmp_path / "site", tmp_path / "outside"
    write(site, [("index.html", "1")])
    outside.write_text("mine")
    (site / MARKER).write_text(json.dumps({"files": [name, "index.html"]}))
    write(site, [("other.html", "1")])
    assert outside.read_text() == "mine"
    assert there(site) == {"other.html"}


def test_a_link_out_of_the_site_is_not_followed_when_cleaning_up(tmp_path):
    site, outside = tmp_path / "site", tmp_path / "outside"
    write(site, [("index.html", "1"), ("bugs/a.html", "1")])
    outside.mkdir()
    (outside / "a.html").write_text("mine")
    (site / "bugs" / "a.html").unlink()
    (site / "bugs").rmdir()
    (site / "bugs").symlink_to(outside)
    write(site, [("index.html", "1")])
    assert (outside / "a.html").read_text() == "mine"


@pytest.mark.parametrize("name", ["../x.html", "/tmp/x.html", "a/../../x.html"])
def test_a_file_outside_the_site_is_never_written(tmp_path, name):
    with pytest.raises(SentinelError, match="outside the site"):
        write(tmp_path / "site", [("index.html", "1"), (name, "1")])
    assert not (tmp_path / "site").exists()


def test_a_folder_that_is_not_a_site_is_rejected(tmp_path):
    check(tmp_path / "new")
    check(tmp_path)  # empty
    (tmp_path / "file").write_text("")
    with pytest.raises(SentinelError, match="is not empty and was not made by sentinel report site"):
        check(tmp_path)
    with pytest.raises(SentinelError, match="is not a folder"):
        check(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SentinelError, match="is not a folder"):
        check(tmp_path / "link")
