import os
from pathlib import Path

import pytest

from sentinel.errors import SentinelError
from sentinel.values.documents import read_data
from sentinel.values.files import MIB, WRITTEN, read_bytes, read_text


def test_a_link_to_a_file_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfwords\n")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link") == "words\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folder", "folder: cannot be read: a directory, not a file"),
        ("pipe", "pipe: cannot be read: not a regular file"),
        ("/dev/zero", "/dev/zero: cannot be read: not a regular file"),
        ("absent", "absent: cannot be read: No such file or directory"),
        ("a\0b", "not a valid path"),
        ("large", f"large: cannot be read: the file has {WRITTEN + 1:,} bytes; at most 1 MiB are read"),
        ("/proc/self/environ/x", "Not a directory"),
    ],
)
def test_special_and_oversized_files_are_rejected(tmp_path, name, says):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(WRITTEN + 1)
    with pytest.raises(SentinelError) as caught:
        read_bytes(tmp_path / name)
    assert says in str(caught.value)


def test_a_file_with_a_false_size_is_not_read_beyond_the_limit():
    with pytest.raises(SentinelError, match="at most 0 MiB are read"):
        read_bytes(Path("/proc/self/status"), 10)


def test_bytes_that_are_not_utf8_are_reported_with_their_place(tmp_path):
    (tmp_path / "file").write_bytes(b"a\nb\xff")
    with pytest.raises(SentinelError, match=r"file:2:2: not UTF-8: byte 0xff; save the file as UTF-8"):
        read_text(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 200_000 + b"]" * 200_000, "1:1: nested deeper than 64 levels"),
        (b"[" * 66 + b"]" * 66, "1:1: nested deeper than 64 levels"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "1:1: nested deeper than 64 levels"),
        (b'{"schema_version":' + b"9" * 5_000_000 + b"}", "1:1: the number has 5000000 digits"),
        (b'{"a":1,"a":2}', "1:1: an object has the key 'a' twice"),
        (b'{"a": NaN}', '1:7: not JSON: JSON has no NaN or infinity; write "NaN"'),
        (b'{"a": ["NaN", -Infinity]}', "1:15: not JSON: JSON has no NaN or infinity"),
        (b'{"a": 1e999}', "1:1: 1e999 is too large for a float"),
        (b'["\\ud800"]', "1:2: not JSON: a \\u escape is half of a surrogate pair"),
        (b"\xff\xfe{\0}\0", "1:1: not UTF-8: byte 0xff"),
        (b'"' + b"A" * 40 * MIB + b'"', "the file has 41,943,042 bytes; at most 32 MiB are read"),
        (b'[NaN, "' + b'\\"' * 2_000_000, "1:2: not JSON: JSON has no NaN"),
        (b"{", "1:2: not JSON: "),
    ],
)
def test_untrusted_json_is_rejected_in_one_sentence(tmp_path, content, says):
    file = tmp_path / "evidence.json"
    file.write_bytes(content)
    with pytest.raises(SentinelError) as caught:
        read_data(file)
    assert str(caught.value).startswith(f"{file}:")
    assert says in str(caught.value)
    assert len(str(caught.value)) < len(str(file)) + 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a=" + "[" * 5000 + "]" * 5000, "1:1: nested deeper than 64 levels"),
        ("b = 1\na" + ".a" * 20_000 + "=1", "2:1: a key has more than 64 parts"),
        ("[a" + ' . "a b"' * 20_000 + "]", "1:2: a key has more than 64 parts"),
        ("a = 1\na = 2\n", ":2:"),
        ("a = " + "9" * 5000, "digits"),
        ("a: [", "1:2: not TOML: "),
    ],
)
def test_invalid_toml_is_reported_with_its_place(tmp_path, content, says):
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(SentinelError) as caught:
        read_data(tmp_path / "a.toml")
    assert says in str(caught.value)


def test_toml_is_read_as_data(tmp_path):
    (tmp_path / "a.toml").write_text('[a.b]\nc = "' + "One sentence. " * 100 + '"\n')
    assert list(read_data(tmp_path / "a.toml")["a"]["b"]) == ["c"]
