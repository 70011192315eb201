"""Malicious text in names, values, tracebacks and commits, in every output of Sentinel."""

import ast
import contextlib
import json
import re
import shutil
import unicodedata
import xml.etree.ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, Decide, Repository, copy_demo, write_recipe
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sentinel.cli import main
from sentinel.deciding.outcomes import Decision
from sentinel.errors import SentinelError
from sentinel.records import timelines
from sentinel.records.history import fold, load_all
from sentinel.reports.baseline import verify_report
from sentinel.reports.escaping import message, passage, visible
from sentinel.reports.evidence import dumps, evidence, validate
from sentinel.reports.explain import explain
from sentinel.reports.github import workflow_commands
from sentinel.reports.markdown import markdown
from sentinel.reports.sarif import sarif
from sentinel.reports.store import evidence_path, load
from sentinel.reports.summary import summary
from sentinel.values.literals import Tensor

#: One of each: terminal codes (colour, title, link, C1), text direction, line ends, Markdown, HTML, runner commands.
PAYLOAD = (
    "\x1b[31m\x1b]0;owned\x07\x1b]8;;http://evil.invalid\x1b\\\x9b2J\x85\u2028\u202egnp.\u2066\u200b\ufeff\r\b\x7f"
    "<script>alert(1)</script><img src=http://evil.invalid/i onerror=alert(1)></code></td></details>"
    "[link](http://evil.invalid) ![image](http://evil.invalid/i.png) <http://evil.invalid> http://evil.invalid "
    "www.evil.invalid @everyone #1 `tick` ``` ~~~ | cell |"
)
LINES = f"{PAYLOAD}\n::error title=forged::forged\n  ::stop-commands::forged\n##[error]forged\n```\n# forged\n</pre>\n"
#: Text that would close a string in Python source and continue as code.
CODE = '"""\nimport os; os.forged()\n"""\' \\" \\'

#: The name of an observed value, which no recipe can expect.
KEY = "$\\frac{$ \x1b[31m\u202e<script>alert(1)</script>$"

HEAD = f"""
TEXT = {LINES!r}

def agg_loss(loss_mat, loss_mask, loss_agg_mode=TEXT):
    '''{PAYLOAD.encode("unicode_escape").decode()}'''
    return inner()


def inner():
    raise type("Forged\\x1b[31m<script>" + TEXT, (Exception,), {{}})(TEXT)


def told(value):
    import torch
    return {{"text": TEXT, {KEY!r}: torch.tensor([[1.0, value]])}}
"""
#: A function with a false name and place. For the boundary itself, both are checked.
HEAD += """
import sys
qualified = {"co_qualname": TEXT} if sys.version_info >= (3, 11) else {}
inner.__code__ = inner.__code__.replace(co_filename="/x/" + TEXT, co_name=TEXT, **qualified)
"""


#: A head whose boundaries break laws, sometimes raise, and return text.
SEARCHED = {
    "losses.py": f"""
TEXT = {LINES!r}

def agg_loss(loss_mat, loss_mask, loss_agg_mode=TEXT):
    if bool((loss_mask == 0).any()):
        raise type("Forged\\x1b[31m<script>" + TEXT, (Exception,), {{}})(TEXT)
    return loss_mat.sum() * 3
""",
    "advantages.py": f"""
TEXT = {LINES!r}

def group_advantage(token_level_rewards, response_mask, index):
    index[0] = TEXT
    token_level_rewards += 1
    return token_level_rewards, {{TEXT: token_level_rewards, {KEY!r}: TEXT}}
""",
    "rejection.py": f"""
TEXT = {LINES!r}

def reject_sequences(*samples, **more):
    raise type(TEXT, (Exception,), {{}})(TEXT)

def policy_loss(*samples):
    return TEXT
""",
}

RAISES: dict[str, Any] = {
    "recipe_version": 1, "bug_id": "DEMO-RAISES", "title": f"it raises {LINES} {CODE}", "target": "demo",
    "contract": "loss_aggregation", "boundary": "demo_rl.losses.agg_loss",
    "story": f"{LINES} {CODE}", "effect": LINES, "root_cause": LINES, "fix": LINES,
    "affects": [LINES, {"when": {"a.b": "c"}, "where": LINES}],
    "until": {"a.b": LINES},
    "invariant": "masked_values_have_no_influence",
    "scenario": {"loss_mat": [[1.0, 100.0]], "response_mask": [[1, 0]], "loss_agg_mode": "token-mean"},
    "expected_unpatched": {"loss": 26.0}, "expected_fixed": {"loss": 1.0},
}  # fmt: skip
TELLS: dict[str, Any] = {
    **RAISES, "bug_id": "DEMO-TELLS", "contract": "call", "boundary": "demo_rl.losses.told",
    "scenario": {"arguments": {"value": 1.0}},
    "expected_unpatched": {"returned.text": LINES}, "expected_fixed": {"returned.text": f"{LINES}{CODE}"},
}  # fmt: skip
TELLS.pop("invariant")


#: The option for the recipes above.
OURS = ("--recipes", "recipes")


_ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
#: Some visible signs are in Unicode's category of formats.
_SEEN = "\n\t\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"


def hidden(text: str) -> list[str]:
    """Return invisible and active characters: Unicode controls, formats and line separators."""
    return sorted({repr(c) for c in text if unicodedata.category(c) in _ACTING and c not in _SEEN})


def commands(text: str) -> list[str]:
    """Return lines that a hosted runner executes, except Sentinel's own annotations."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]
    return [line for line in lines if not re.match(r"::error (file=[^:]*,)?title=DEMO-[A-Z]+%3A ", line)]


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def foreign_html(text: str) -> list[str]:
    """Return elements that no template has, and attributes that act or link elsewhere."""
    bad = []
    for tag, attributes in _Tags(text).found:
        values = " ".join(value or "" for value in attributes.values())
        acting = any(name.startswith("on") for name in attributes) or "evil" in values or "javascript:" in values
        elsewhere = any(re.match(r"(?i)[a-z]+:|//", attributes.get(name) or "") for name in ("src", "action"))
        ours = tag not in ("script", "iframe", "object", "base") or (attributes.get("src") or "").endswith(".js")
        if acting or elsewhere or not ours:
            bad.append(f"{tag} {attributes}")
    return bad


#: The inline HTML in Sentinel's own Markdown.
_OURS = re.compile(r"</?(details|summary|sub|code|br)>")


def foreign_markdown(text: str) -> list[str]:
    """Return links, images, headings and HTML that came from foreign text."""
    bad = []
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    for block in parser.parse(text):
        for token in (block, *(block.children or ())):
            if token.type in ("html_inline", "html_block"):
                bad += [tag for tag in re.findall(r"<[^>]*>?", token.content) if not _OURS.fullmatch(tag)]
            if token.type in ("image", "hr"):
                bad.append(token.type)
            ours = ("https://github.com/", "#", "../recipes/")  # links within the page are harmless
            if token.type == "link_open" and not str(token.attrs["href"]).startswith(ours):
                bad.append(f"link {token.attrs['href']}")
        if block.type == "inline" and block.content.strip() == "forged":
            bad.append("heading")
    quotes = [block for block in parser.parse(text) if block.type == "blockquote_open"]
    bad += ["quote"] * (len(quotes) - text.count("> **To be written by a person:**"))
    return bad + _LINKED.findall(_outside_fences(text, parser))


#: Text that GitHub turns into links and mentions; an entity in place of a sign prevents it.
_LINKED = re.compile(r"(?i)\bwww\.\w+|https?://(?!github\.com/)\S+|@everyone|(?<![&\w])#1\b")


def _outside_fences(text: str, parser: MarkdownIt) -> str:
    lines = text.split("\n")
    for block in parser.parse(text):
        if block.type == "fence" and block.map:
            lines[slice(*block.map)] = [""] * (block.map[1] - block.map[0])
    return "\n".join(lines)


def clean(text: str) -> None:
    assert hidden(text) == []
    assert commands(text) == []


def test_the_planted_markers_are_detected():
    assert len(hidden(PAYLOAD)) >= 10
    assert len(commands(LINES)) == 3
    assert len(foreign_html(LINES)) >= 2
    assert len(foreign_markdown(LINES)) >= 5


@given(st.text(), st.booleans())
def test_escaping_removes_every_marker(text, lines):
    clean(visible(text, lines=lines))
    clean(message(text))
    clean(passage(text))
    assert visible(visible(text, lines=lines), lines=lines) == visible(text, lines=lines)


@pytest.fixture
def head(tmp_path: Path) -> Repository:
    """A repository of the demo framework whose newest commit is an attacker's."""
    repository = Repository(tmp_path / "head")
    copy_demo(repository.path)
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit("one", {})
    (repository.path / "demo_rl" / "losses.py").write_text(HEAD, encoding="utf-8")
    name = re.sub(r"[/\\]", "", PAYLOAD)[:80]
    (repository.path / "demo_rl" / f"{name}.py").write_text("")
    repository.commit(LINES.replace("\n", " "), {})
    return repository


@pytest.fixture
def recipes(pytester: pytest.Pytester) -> Path:
    for document in (RAISES, TELLS):
        write_recipe(pytester.path / "recipes", document)
    return pytester.path / "recipes"


Said = Callable[..., str]


@pytest.fixture
def sentinel_says(recipes: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """Return the whole output of a command. The demo repository has a mirror."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with contextlib.suppress(SystemExit):  # argparse's own
            main([str(argument) for argument in arguments])
        return "".join(capsys.readouterr())

    return run


@pytest.fixture
def run(head: Repository, recipes: Path, pytester: pytest.Pytester, warm_runs: Any, monkeypatch) -> Iterator[str]:
    """The output of a run at the attacker's head on a hosted runner. The run's files are in the current folder."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(head.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    options = ["--sentinel-target=demo", f"--sentinel-recipes={recipes}", "--sentinel-laws=off", "-rA", "-v"]
    options += [f"--sentinel-repo={head.path}", "--junitxml=junit.xml", "--sentinel-sarif=run.sarif"]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
    result.assert_outcomes(failed=2)
    return result.stdout.str() + result.stderr.str()


def test_the_output_of_a_run_is_escaped(run, recipes, pytester):
    assert "upstream's traceback" in run
    assert "forged" in run, "it is shown"
    clean(run)
    for file in (pytester.path / "sentinel-reports").rglob("*"):
        if file.is_file():
            clean(file.read_text(encoding="utf-8"))
    junit = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    clean(junit)
    xml.etree.ElementTree.fromstring(junit)
    sarif = json.loads((pytester.path / "run.sarif").read_text(encoding="utf-8"))
    for text in _strings(sarif):
        clean(text)
    summary = (pytester.path / "summary.md").read_text(encoding="utf-8")
    clean(summary)
    assert foreign_markdown(summary) == []


@pytest.mark.slow
def test_the_pages_of_a_run_are_escaped(run, sentinel_says, pytester):
    pytest.importorskip("jinja2")
    clean(
        sentinel_says("report", "site", "--reports", "sentinel-reports", "--out", "site", "--exports", "nothing", *OURS)
    )
    pages = [file for file in (pytester.path / "site").rglob("*") if file.suffix in (".html", ".json")]
    assert any("DEMO-TELLS" in file.name for file in pages)
    for file in pages:
        text = file.read_text(encoding="utf-8")
        assert hidden(text) == [], file
        assert file.suffix == ".json" or foreign_html(text) == [], file


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_strings(key), *_strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


@pytest.mark.slow
def test_the_reports_of_a_run_are_escaped(run, head, sentinel_says, pytester):
    folder = pytester.path / "sentinel-reports"
    documents = [load(file) for file in folder.rglob("DEMO-*/*.json")]
    assert any("forged" in str(document["failure"]) for document in documents)
    for kind in ("text", "markdown"):
        said = sentinel_says("report", "--from", folder, "--format", kind)
        clean(said)
        assert foreign_markdown(said) == [] or kind != "markdown"
    for file in folder.rglob("DEMO-*/*.json"):
        clean(sentinel_says("verify", file, "--repo", head.path))
    clean(sentinel_says("report", "changes", "--from", folder, "--baseline", folder))
    part = pytester.path / "part"
    shutil.copytree(folder / "demo" / "DEMO-RAISES", part / "demo" / "DEMO-RAISES")
    changed = sentinel_says(
        "report", "changes", "--from", folder, "--baseline", part, "--format", "markdown", "--no-bisect"
    )
    clean(changed)
    assert "DEMO-TELLS" in changed
    assert foreign_markdown(changed) == []
    clean(sentinel_says("report", "findings", "--from", folder, "--to", "findings"))
    for file in (pytester.path / "findings").rglob("*.md"):
        clean(file.read_text(encoding="utf-8"))
        assert foreign_markdown(file.read_text(encoding="utf-8")) == []
    clean(sentinel_says("audit", "demo", "--repo", head.path))


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "DEMO-RAISES", *OURS), ("list", "recipes", *OURS), ("list", "recipes", "--markdown", *OURS),
        ("recipe", "check", "recipes/demo/DEMO-RAISES.yaml"), ("recipe", "check", "recipes/demo/DEMO-TELLS.yaml"),
        ("show", PAYLOAD), ("list", "recipes", "--law", PAYLOAD), ("list", PAYLOAD), ("recipe", "check", PAYLOAD),
        ("report", "--from", PAYLOAD), ("mirror", "update", PAYLOAD), ("verify", PAYLOAD), (PAYLOAD,),
        ("list", "boundaries", "demo", "--ref", f"git:{PAYLOAD}"),
        ("report", "history", "--from", PAYLOAD),
        ("contribute", PAYLOAD), ("mirror", "add", "demo", "--from", PAYLOAD),
        ("discover", PAYLOAD), ("discover", "demo", "--law", PAYLOAD), ("discover", "demo", "--boundary", PAYLOAD),
        ("discover", "demo", "--ref", f"git:{PAYLOAD}"), ("discover", "demo", "--examples", PAYLOAD),
        ("mirror", "add", "demo", "--repo-url", PAYLOAD),
    ],
    ids=lambda arguments: " ".join(arguments)[:25].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_the_output_of_commands_is_escaped(sentinel_says, recipes, arguments):
    clean(sentinel_says(*arguments))


@pytest.mark.slow
def test_the_text_of_a_hostile_mirror_is_escaped(head, sentinel_says, warm_runs):
    """Commit subjects, branch names, and names that cannot be resolved."""
    clean(sentinel_says("mirror", "add", "demo", "--from", head.path))
    clean(sentinel_says("mirror", "list"))
    clean(sentinel_says("report", "duplicates", "DEMO-RAISES", *OURS))
    clean(sentinel_says("sweep", "demo", "--bug", "DEMO-RAISES", *OURS))
    clean(sentinel_says("sweep", "demo", "--markdown", *OURS))
    clean(sentinel_says("report", "history"))
    clean(sentinel_says("report", "history", "DEMO-RAISES"))


@pytest.mark.slow
def test_exported_files_are_escaped(head, broken_tree, fixed_tree, sentinel_says, warm_runs, pytester):
    """The prose of a recipe never becomes code in Markdown or Python."""
    out = pytester.path / "export"
    for name, tree in (("DEMO-RAISES", fixed_tree), ("DEMO-TELLS", head.path)):
        clean(sentinel_says("contribute", name, "--base", f"path:{tree}", "--out", out, "--no-check", *OURS))
    made = [file for file in out.rglob("*") if file.is_file()]
    assert {file.suffix for file in made} >= {".md", ".json"}
    for file in made:
        text = file.read_text(encoding="utf-8")
        assert hidden(text) == [], file
        if file.suffix == ".md":
            assert foreign_markdown(text) == []
        if file.suffix == ".py":
            calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            assert not any("forged" in call for call in calls)


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    tree = copy_demo(tmp_path / "searched")
    for name, text in SEARCHED.items():
        (tree / "demo_rl" / name).write_text(text, encoding="utf-8")
    return tree


@pytest.mark.slow
def test_the_output_of_a_search_is_escaped(searched, sentinel_says, warm_runs, pytester):
    """This holds for output on a terminal, as JSON, and as recipes."""
    search = ("discover", "demo", "--ref", f"path:{searched}", "--examples", "60", "--seed", "1", *OURS)
    said = sentinel_says(*search, "--save", "found")
    assert "not searched: demo_rl.rejection.reject_sequences: every call raised: " in said
    assert "forged" in said, "it is shown"
    clean(said)
    told = sentinel_says(*search, "--json")
    clean(told)
    document = json.loads(told[told.index("{\n") : told.rindex("}") + 1])
    assert any("forged" in text for text in _strings(document))
    for text in _strings(document):
        clean(text)
    found = list((pytester.path / "found").rglob("*"))
    assert len(found) == len(document["findings"]) > 1
    for file in found:
        clean(file.read_text(encoding="utf-8"))
        clean(sentinel_says("recipe", "check", file))
        clean(sentinel_says("show", file.stem, "--recipes", "found"))


#: The malicious text, with characters that JSON and Python allow but file names do not.
MARK = f"{LINES}\0\ud800"


def planted(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield copies of data, each with a mark in one text or key."""
    if isinstance(value, str):
        yield place, f"{value}{MARK}"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from ((where, {**value, key: changed}) for where, changed in planted(item, f"{place}.{key}"))
        if value:
            key, item = next(iter(value.items()))
            yield f"{place}.*", {f"{key}{MARK}": item, **{k: v for k, v in value.items() if k != key}}
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value[:3]):
            for where, changed in planted(item, f"{place}[{index}]"):
                yield where, type(value)([*value[:index], changed, *value[index + 1 :]])
    elif is_dataclass(value) and not isinstance(value, (type, Tensor)):  # otherwise it is not a tensor
        for field in fields(value):
            for where, changed in planted(getattr(value, field.name), f"{place}.{field.name}"):
                yield where, replace(value, **{field.name: changed})


def readers(document: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return each reader's report of evidence, by sink."""
    results = [(document, "failed")]
    yield "terminal", summary(results, "reports")
    coloured = summary(results, "reports", terminal=True, width=2000, environ={})
    yield "coloured terminal", re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    yield "markdown", markdown(results)
    yield "sarif", "\n".join(_strings(json.loads(sarif(results, {"demo": "https://example.org/demo.git"}))))
    yield "evidence", dumps(document)
    yield "verify", str(verify_report(document, usual))
    yield "verify", str(verify_report(usual, document))
    hosted = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": "/work"}
    for command in workflow_commands(results, {"demo": Path("/work/tree")}, hosted):
        assert re.fullmatch(r"::error (?:(?:file|line|endLine|title)=[^,:\n]*,?)+::[^\n]*", command)
        yield "annotation", command.partition(" ")[2]


@pytest.fixture
def decisions(decide: Decide, head: Repository, broken_tree: Path) -> list[Decision]:
    """Return one decision of each kind: with numbers, with a traceback, by a law, and of an unavailable revision."""
    law = {key: value for key, value in MASKED_TOKENS.items() if not key.startswith("expected")}
    variants = {"baseline": {}, "outlier": {"loss_mat": [[1.0, 0.0], [1.0, 0.0]]}}
    return [
        decide(MASKED_TOKENS, broken_tree),
        decide({**law, "variants": variants}, broken_tree),
        decide(RAISES, head.path),
        decide(MASKED_TOKENS, "git:main"),
    ]


@pytest.mark.slow
def test_every_field_of_evidence_is_escaped_in_every_report(decisions):
    """Evidence that does not match the schema is not shown."""
    seen = set()
    for decision in decisions:
        usual = evidence(decision)
        for where, document in planted(usual):
            try:
                validate(document)
            except SentinelError as error:
                clean(str(error))
                continue
            seen.add(where)
            for sink, said in readers(document, usual):
                assert (hidden(said), commands(said)) == ([], []), (where, sink)
                assert sink != "markdown" or foreign_markdown(said) == [], where
    assert {
        ".failure.reason",
        ".failure.traceback",
        ".boundary.signature",
        ".ref",
        ".title",
        ".environment.torch",
    } <= seen
    assert not {".kind", ".failure.kind", ".verdict"} & seen, "these are enumerated"
    assert len(seen) > 60


@pytest.mark.slow
def test_every_field_of_a_decision_is_escaped(decisions):
    """Any field may come from a worker. JUnit and pytest show the text of :func:`explain`."""
    seen = set()
    for decision in decisions:
        for where, marked in planted(decision):
            if where == ".verdict.name":  # written by the controller
                continue
            seen.add(where)
            clean(explain(marked, MARK))
            place = evidence_path(marked)
            assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", part) for part in place.parts), (where, place)
            with contextlib.suppress(SentinelError):
                document = evidence(marked)
                validate(document)
                for sink, said in readers(document, document):
                    assert (hidden(said), commands(said)) == ([], []), (where, sink)
    assert {".failure.kind", ".failure.reason", ".measurement.provenance.file", ".verdict.kind"} <= seen


def test_every_field_of_a_history_is_escaped(sentinel_says, pytester):
    """A history that a stranger committed."""
    source = Path(__file__).resolve().parents[2] / "reports" / "history"
    of_git = (each for each in load_all(source) if each["source"]["kind"] == "git")
    whole = fold(min(of_git, key=lambda each: len(json.dumps(each))))
    shared = {name: whole.pop(name, []) for name in ("basis", "tags")}
    place = pytester.path / "history" / "demo.jsonl"
    place.parent.mkdir(parents=True)

    def write(line: dict[str, Any]) -> None:
        lines = [*({"shared": "0", name: value} for name, value in shared.items()), {**line, "basis": "0", "tags": "0"}]
        place.write_text("\n".join(map(json.dumps, lines)).replace("\\ud800", ""))  # not allowed in a file

    seen = set()
    for where, line in planted(whole):
        with contextlib.suppress(SentinelError, UnicodeEncodeError):
            write(line)
            (document,) = load_all(place.parent)
            seen.add(where)
            for lines in (timelines.story(document), [timelines.heading(document)]):
                clean(visible("\n".join(lines), lines=True))
            assert foreign_markdown(timelines.markdown(*timelines.overview([document]))) == [], where
    assert {".bug_id", ".runs[0].first.subject", ".source.ref"} <= seen
    write({**whole, "bug_id": MARK, "runs": [{**run, "kind": MARK} for run in whole["runs"]]})
    for command in ("history", "history --markdown", "history --json"):
        clean(sentinel_says("report", *command.split(), "--from", pytester.path / "history"))
    clean(sentinel_says("report", "history", MARK.replace("\ud800", ""), "--from", pytester.path / "history"))
