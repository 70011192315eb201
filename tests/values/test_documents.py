import json
import math
import os
import sys
import time
import tracemalloc
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sentinel.values.documents import DocumentError, parse_json, parse_yaml, read, read_text
from sentinel.values.files import WRITTEN

LOADERS = [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)]

loaders = pytest.mark.parametrize("loader", LOADERS, ids=["python", "c"])


def refused(words: str, place: tuple[int, int], read: Callable[..., object], *arguments: object) -> None:
    """Check that reading fails with these words in the message, at this line and column."""
    with pytest.raises(DocumentError) as caught:
        read(*arguments)
    assert words in caught.value.message
    assert (caught.value.line, caught.value.column) == place


@loaders
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("-2.5E+3", -2500.0),
        ("no", "no"),
        ("Yes", "Yes"),
        ("True", True),
        ("~", None),
        ("", None),
        ("0o17", 15),
        ("017", 17),
        ("0x1F", 31),
        ("12:30:45", "12:30:45"),
        ("2026-08-21", "2026-08-21"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ('"1"', "1"),
        ("!!str 1", "1"),
        ("! 1", "1"),
        ("!!float 1", 1.0),
        ("!!int 0o17", 15),
        ("=", "="),
        ("nan", "nan"),
    ],
)
def test_scalars_resolve_by_the_core_schema_of_yaml_1_2(loader, text, value):
    found = parse_yaml(f"key: {text}", loader).data["key"]
    assert found == value
    assert type(found) is type(value)


@loaders
def test_nan_is_a_float(loader):
    assert math.isnan(parse_yaml("[.nan]", loader).data[0])


@loaders
def test_every_key_and_value_has_a_line_and_a_column(loader):
    document = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n", loader)
    assert document.at(("a",)) == (1, 4)
    assert document.at(("b", 1, "c")) == (4, 9)
    assert document.at(("b", 1, "c"), key=True) == (4, 6)
    assert document.at(("b", 1, "absent")) == (4, 5)
    assert document.at(("nowhere",)) == (1, 1)


@loaders
@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        ("a: 1\nb: [1, 2\n", "not YAML", (3, 1)),
        ("a: 1\na: 2\n", "duplicate key 'a'; it is already on line 1", (2, 1)),
        ("a: &x 1\n", "anchor 'x'", (1, 4)),
        ("a: {<<: {b: 1}}\n", "merge keys", (1, 5)),
        ("a: !!python/name:os.system\n", "core tags", (1, 4)),
        ("a: !include x.yaml\n", "core tags", (1, 4)),
        ("a: !!int x\n", "'x' is not a valid int", (1, 4)),
        ("a: 1\n---\nb: 2\n", "second document", (2, 1)),
        ("1: x\n", "a key must be a string; quote it: '1'", (1, 1)),
        ("? [a]\n: x\n", "a key must be a string", (1, 3)),
        ("a: 1e999\n", "is too large for a float", (1, 4)),
        ("a: " + "9" * 500 + "\n", "500 digits", (1, 4)),
        ("a: b\x01c\n", "not YAML", (1, 5)),
        ("a:\n\t- b\n", "not YAML", (2, 1)),
    ],
)
def test_anything_beyond_plain_data_is_rejected_with_its_place(loader, text, words, place):
    refused(words, place, parse_yaml, text, loader)


@loaders
@pytest.mark.parametrize("text", ["[" * 200_000, "{a: " * 100_000, "- " * 200_000, "? " * 200_000, "[[1]," * 100_000])
def test_deep_documents_are_rejected_without_a_crash(loader, text):
    start = time.process_time()
    with pytest.raises(DocumentError, match=r"deeper|must be a string"):
        parse_yaml(text, loader)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        ('{"a": 1, "a": 2}', "duplicate key 'a'", (1, 10)),
        ('{"a": [1, 2,]}', "not JSON", (1, 12 if sys.version_info >= (3, 13) else 13)),
        ("{'a': 1}", "double quotes", (1, 2)),
        ('{"a": NaN}', 'write "NaN"', (1, 7)),
        ('{"a": 01}', "Expecting ',' delimiter", (1, 8)),
        ('{"a": 1}\n{"b": 2}', "Extra data", (2, 1)),
        ('{"a": 1', "Expecting ',' delimiter", (1, 8)),
        ('{"a"\n: "x', "Unterminated", (2, 3)),
        ('{"a": "\\ud800"}', "surrogate", (1, 7)),
        ('{"a": 1e999}', "is too large for a float", (1, 7)),
        ("// x\n{}", "Expecting value", (1, 1)),
        ("[" * 100_000, "deeper", (1, 65)),
    ],
)
def test_json_is_strict(text, words, place):
    refused(words, place, parse_json, text)


@pytest.mark.parametrize(
    ("raw", "words", "place"),
    [
        (b"", "empty", (1, 1)),
        (b"a: 1\nb: \xff\n", "not UTF-8: byte 0xff", (2, 4)),
        (b"a: 1\n" + b"#" * WRITTEN, "larger than 1 MiB", (1, 1)),
        (b"# nothing\n", "no document", (1, 1)),
    ],
)
def test_bytes_that_are_not_a_document_are_rejected(raw, words, place):
    refused(words, place, read_text, raw)


def test_a_100_mb_file_is_rejected_without_being_read(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as handle:
        handle.truncate(100_000_000)
    tracemalloc.start()
    with pytest.raises(DocumentError, match="100,000,000 bytes"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("name", ["folder", "absent.yaml", "pipe.yaml", "nul\0.yaml"])
def test_a_file_that_is_not_regular_is_rejected(tmp_path, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(DocumentError, match=r"directory|cannot be read|not a regular file"):
        read(tmp_path / name)


# No control characters: JSON escapes them, and plain YAML scalars cannot contain them.
_text = st.text(
    st.characters(blacklist_categories=("Cs", "Cc", "Cn", "Co"), blacklist_characters="\u2028\u2029\ufeff"), max_size=8
)
_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(_text, _data, max_size=4))
def test_json_and_yaml_of_one_document_read_the_same(data):
    text = json.dumps(data, indent=1, ensure_ascii=False)
    as_json, as_yaml = parse_json(text), parse_yaml(text)
    assert as_json.data == as_yaml.data
    assert (as_json.values, as_json.keys) == (as_yaml.values, as_yaml.keys)


@pytest.mark.slow
@given(st.text(max_size=60))
def test_any_text_is_read_or_rejected_with_a_place(text):
    for parse in (parse_yaml, parse_json):
        error = None
        try:
            parse(text)
        except DocumentError as caught:
            error = caught
        assert error is None or (error.line >= 1 and error.column >= 1)


@loaders
@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: yes\nb: Off\nc: 'no'\nd: 1e-6\n", {"a": True, "b": False, "c": "no", "d": 1e-6}),
        ("1: x\ntrue: y\n", {"1": "x", "true": "y"}),
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, c: 2}\nd: {b: 3, <<: *x}\n", {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}}),
        (
            "a: &x {b: 1}\nc: &y {b: 2, d: 3}\ne: {<<: [*x, *y]}\n",
            {"a": {"b": 1}, "c": {"b": 2, "d": 3}, "e": {"b": 1, "d": 3}},
        ),
        (
            "a: &x {b: &z {c: 1}}\nd:\n  <<: *x\n  b: {<<: *z, e: 2}\n",
            {"a": {"b": {"c": 1}}, "d": {"b": {"c": 1, "e": 2}}},
        ),
        ("a: &x 1\nb: &x 2\nc: *x\n", {"a": 1, "b": 2, "c": 2}),
    ],
)
def test_a_configuration_is_read_like_frameworks_read_it(loader, text, data):
    assert parse_yaml(text, loader, configuration=True).data == data


MERGES = "m0: &m0 {a: 1}\n" + "".join(
    f"m{number}: &m{number} {{<<: [{','.join([f'*m{number - 1}'] * 9)}]}}\n" for number in range(1, 10)
)
ALIASES = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{number}: &a{number} [{','.join([f'*a{number - 1}'] * 9)}]\n" for number in range(1, 12)
)
DEEP = "a0: &a0 [x]\n" + "".join(f"a{number}: &a{number} [*a{number - 1}]\n" for number in range(1, 70))


@loaders
@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        (MERGES, "more than 200,000 values", 6),
        (ALIASES, "more than 200,000 values", 6),
        (DEEP, "nested deeper than 64 levels", 64),
        ("a: &a [*a]\n", "alias 'a': its anchor is not defined above", 1),
        ("a: &a 1\nb: &a [*a]\n", "alias 'a': its anchor is not defined above", 2),
        ("a: &a {<<: *a}\n", "alias 'a': its anchor is not defined above", 1),
        ("a: *b\n", "undefined alias|its anchor is not defined above", 1),
        ("a: {<<: 1}\n", "a merge key (<<) must be a mapping", 1),
        ("a: &b [1]\nc:\n  <<: *b\n", "a merge key (<<) must be a mapping", 3),
        ("a: 1\na: 2\n", "duplicate key 'a'; it is already on line 1", 2),
        ("a: !!python/object/apply:os.system [x]\n", "only YAML's core tags", 1),
        ("? [a]\n: b\n", "a key must be a string", 1),
    ],
)
def test_an_endlessly_expanding_configuration_is_rejected(loader, text, says, line):
    start = time.process_time()
    with pytest.raises(DocumentError) as caught:
        parse_yaml(text, loader, configuration=True)
    assert any(words in caught.value.message for words in says.split("|"))
    assert caught.value.line == line
    assert time.process_time() - start < 2
