"""The pages run no scripts from evidence, and are linked, small, reproducible and consistent with the evidence."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from sentinel.errors import SentinelError
from sentinel.recipes.catalog import bundled_catalog
from sentinel.tools.site.building import BUG_LIMIT, START_LIMIT, build
from sentinel.tools.site.leaderboard import part
from sentinel.tools.site.material import read
from sentinel.tools.site.matrix import Row, ranked, tables

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "evil \u202egnp.exe\u202c \u200b\x1b[31m",
)


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def classes(self) -> list[str]:
        return [" ".join((attributes.get("class") or "").split()) for _, attributes in self.elements]


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def bug_page(site: Path, bug: str) -> Page:
    return Page(next(site.glob(f"bugs/*/{bug}.html")))


def _poisoned(document: dict[str, Any]) -> None:
    nasty = " ".join(HOSTILE)
    document["title"] = document["recipe"]["document"]["story"] = nasty
    document["upstream"] = {"pull": nasty, "url": "javascript:alert(1)", "status": nasty}
    document["recipe"]["document"].update(
        severity=nasty,
        signal=nasty,
        affects=[nasty, {"when": {"a": nasty}, "where": nasty}],
        until={"a": nasty},
        effect=f"`{nasty}`",
        fix=nasty,
    )
    document["boundary"].update(written=nasty, file=f"x{nasty}", signature=nasty)
    document["environment"]["stand_ins"] = [{"name": nasty, "reason": nasty}]
    document["reason"] = document["contract"] = nasty
    document["bug_id"] = f"X-{HOSTILE[0]}"
    document["checkout"]["version"] = nasty
    document["scenario"]["variants"] = {nasty: {nasty: nasty, "x": [[nasty]]}}
    document["comparison"][0].update(key=nasty, detail=nasty, observed=nasty)
    document["failure"] = {"kind": "raised", "reason": nasty, "traceback": nasty}


@pytest.mark.slow
def test_hostile_evidence_is_shown_as_text(changed, site):
    changed("verl/*/git-main.json", _poisoned)
    made = site()
    plain = {(tag, name) for page in pages(made) for tag, attributes in Page(page).elements for name in attributes}
    assert not [name for _, name in plain if name.startswith("on") or name == "style"]
    for file in pages(made):
        page = Page(file)
        scripts = page.all("script")
        assert [script.get("src", "").rpartition("/")[2] for script in scripts] == ["site.js"]  # type: ignore[union-attr]
        assert not page.all("style") + page.all("iframe") + page.all("object") + page.all("base")
        assert not page.all("img")
        assert "\u202e" not in page.text
        assert "\x1b" not in page.text
        for link in page.all("a"):
            assert urlsplit(link["href"] or "").scheme in ("", "https"), link
    (poisoned,) = [file for file in pages(made) if "alert(1)" in Page(file).text and "bugs" in file.parts]
    text = Page(poisoned).text
    assert HOSTILE[0] in text
    assert "{{ 7 * 7 }}" in text
    assert "\\u202e" in text


def test_each_page_has_the_policy_before_anything_that_loads(site):
    for file in pages(site()):
        elements = Page(file).elements
        policy = next(i for i, (_, a) in enumerate(elements) if a.get("http-equiv") == "Content-Security-Policy")
        content = elements[policy][1]["content"] or ""
        assert "default-src 'none'" in content
        assert "unsafe" not in content
        assert policy < next(i for i, (tag, _) in enumerate(elements) if tag in ("link", "script"))


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "http://x.y", "https://a@b", "https:///x", "//x", "https://x\ny", 7]
)
def test_only_https_links_are_kept(url):
    from sentinel.tools.site.rendering import https

    assert https("https://github.com/x/y#L1")
    assert not https(url)


@pytest.mark.slow
def test_every_link_of_the_site_resolves(site, history):
    made = site()
    parsed = {file: Page(file) for file in pages(made)}
    anchors = {file: {a["id"] for _, a in page.elements if "id" in a} for file, page in parsed.items()}
    count = 0
    for file, page in parsed.items():
        ids = [a["id"] for _, a in page.elements if "id" in a]
        assert len(ids) == len(set(ids)), file
        for name in ("href", "src"):
            for address in [a[name] or "" for _, a in page.elements if name in a]:
                parts = urlsplit(address)
                if parts.scheme:
                    continue
                goal = (file.parent / unquote(parts.path)).resolve() if parts.path else file
                assert goal.is_file(), (file, address)
                if parts.fragment:
                    assert parts.fragment in anchors[goal], (file, address)
                count += 1
    assert count > 100


@pytest.mark.slow
def test_each_verdict_links_to_its_evidence(site, reports):
    made = site()
    links = {a["href"] for a in Page(made / "index.html").all("a")}
    documents = list(reports.glob("*/*/*.json"))
    for file in documents:
        target, bug, _ = file.relative_to(reports).parts
        place = f"bugs/{target}/{bug}.html"
        assert f"#{file.stem}" in {a["href"] for a in Page(made / place).all("a")}
        assert f"{place}#{file.stem}" in links or not file.stem.endswith("main")
        assert (made / "evidence" / file.relative_to(reports)).read_bytes() == file.read_bytes()
    assert len(documents) > 8


@pytest.mark.slow
def test_the_committed_records_make_pages_of_a_size_that_loads_at_once():
    from sentinel.tools.site import building
    from sentinel.tools.site.bug_files import bug_page as page_of
    from sentinel.tools.site.rendering import Pages

    material = read(Path(__file__).resolve().parents[3] / "reports", bundled_catalog())
    pages = Pages()
    assert len(building._index(pages, material).encode()) < START_LIMIT
    largest = max(material.bugs, key=lambda bug: sum(len(seen.text) for seen in bug.evidence))
    assert len(page_of(pages, material, largest).encode()) < BUG_LIMIT


def test_a_masked_leak_is_shown_before_and_after(site):
    page = bug_page(site(), "ROLL-AGGLOSS-TOKENMEAN-MASK")
    assert page.classes().count("masked leak") == 2  # the losses 100 and -50
    assert page.classes().count("masked wrong") == 2  # their gradients
    assert page.classes().count("masked mended") == 2
    assert "◆must have no effect: 100 masked" in page.text


def chips(page: Page) -> set[str]:
    """Return the texts of verdict labels, each with a sign and a word."""
    return {" ".join(text.split()) for text in re.findall(r"(?:latest|buggy|fix) \S+ [\w, ]+? \w{7}\b", page.text)}


def test_the_latest_the_buggy_and_the_fixed_verdict_have_a_sign_and_a_word(site):
    made = site()
    page = Page(made / "index.html")
    wanted = {"latest ✗ reproduced 8eb27cc", "buggy ✗ reproduced c09bc8b", "fix ✓ fixed f67f5d3"}
    assert wanted <= chips(page)
    assert wanted <= chips(bug_page(made, "ROLL-AGGLOSS-TOKENMEAN-MASK"))
    assert "3 bugs (3 recipes) in 3 frameworks" in page.text
    assert any(select.get("name") == "realism" for select in page.all("select"))


def test_bugs_are_sorted_by_severity_realism_and_presence(catalog, reports):
    material = read(reports, catalog)
    (verl,) = (bug for bug in material.bugs if bug.target == "verl")

    def bug(name: str, severity: str, reach: dict[str, Any] | None = None) -> Any:
        document = {**verl.document, "severity": severity, **({"reach": reach} if reach else {})}
        return replace(verl, bug_id=name, recipe=replace(verl.recipe, bug_id=name, document=document))

    shipped = {"producer": "a:1@b", "how": "", "shipped": "a:1@b"}
    bugs = [bug("LOW", "low"), bug("SAID", "high", shipped), bug("HARD", "high", {"producer": "none", "how": ""})]
    gone = replace(bug("GONE", "high", shipped), evidence=tuple(e for e in verl.evidence if e.verdict == "fixed"))
    rows = ranked(tables(replace(material, bugs=(*bugs, gone))))
    assert [row.bug.bug_id for row in rows] == ["SAID", "GONE", "HARD", "LOW"]


@pytest.mark.slow
def test_versions_come_from_histories_and_evidence(site, history):
    page = Page(site() / "index.html")
    assert "main 0.3 0.2 0.1" in [option.get("data-versions") for option in page.all("option")]
    (at,) = (li["data-at"] for li in page.all("li") if li.get("data-target") == "roll")
    assert at == "x-x-"


def test_a_verdict_other_than_the_pinned_one_is_marked(changed, site):
    changed("roll/ROLL-AGGLOSS-TOKENMEAN-MASK/git-c*.json", lambda document: document.update(expect="fixed"))
    made = site()
    assert "buggy ✗! reproduced, expected fixed c09bc8b" in chips(Page(made / "index.html"))
    assert "(expected fixed)" in bug_page(made, "ROLL-AGGLOSS-TOKENMEAN-MASK").text


def test_lifetimes_are_shown_and_missing_ones_are_stated(site, history):
    made = site()
    told, silent = bug_page(made, "ROLL-AGGLOSS-TOKENMEAN-MASK"), bug_page(made, "VERL-REJECTED-ROW-GRPO")
    assert "present for 184 days" in told.text
    assert "in 1 tagged release: v0.2" in told.text
    assert "Aggregate <b>losses</b>" in told.text
    assert "No history of this bug is recorded." in silent.text
    page = Page(made / "lifetimes.html")
    assert "<title>v0.2</title>" in (made / "lifetimes.html").read_text()
    assert "#c9524a" in [bar.get("fill") for bar in page.all("rect")]


def test_each_open_bug_is_linked_once_from_the_row_of_its_framework(site, history):
    made = site()
    page = Page(made / "leaderboard.html")
    links = [a["href"] for a in page.all("a") if a["href"].startswith("bugs/")]
    assert links
    assert len(links) == len(set(links))
    assert all((made / link).is_file() for link in links)
    assert "high: 1" in page.text
    assert "184 days (1 fix)" in page.text


def test_a_part_of_the_signal_follows_from_signal_contract_and_law():
    def of(signal, contract="policy_loss", laws=()):
        document = {"signal": signal}
        bug = SimpleNamespace(document=document, contract=contract, laws=laws)
        return part(Row(bug, (), "", ""))

    assert of("gradient") == "loss"
    assert of("gradient", laws=("padding_is_invisible",)) == "masks"
    assert of("reward") == of("advantage") == "advantages"
    assert of("data", "rollout_episode") == of("log_prob") == "rollout"
    assert of("metric") == "metrics"


@pytest.mark.slow
def test_dialects_are_listed_with_reason_and_link(site, catalog):
    page = Page(site() / "dialects.html")
    declared = [d for name in ("roll", "slime", "verl") for b in catalog.targets[name].bindings for d in b.dialects]
    assert len(declared) > 20
    for dialect in declared:
        assert dialect.reason in page.text
        assert not dialect.link.startswith("https://") or dialect.link in [a["href"] for a in page.all("a")]


@pytest.mark.slow
def test_changes_of_revisions_and_pull_requests_have_a_page(site, reports):
    assert "No changes are recorded." in Page(site() / "changes.html").text
    rows = [{"boundary": "f (f.py:1)", "is": "worse", "changes": "<b>", "numbers": "loss: 1 before", "commit": ""}]
    pull = {"number": 7, "head": "abc", "subject": "<i>", "answer": "introduces", "findings": ["f: introduces X"]}
    changes = {
        "revisions": {"verl": {"v1..v2": {"headline": "verl from v1 to v2", "rows": rows}}},
        "pulls": {
            "verl": {"headline": "1 of 1 open pull request: 1 introduces", "branch": "0123456789", "rows": [pull]}
        },
    }
    (reports / "changes.json").write_text(json.dumps(changes))
    text = Page(site() / "changes.html").text
    for said in ("verl from v1 to v2", "loss: 1 before", "#7 <i>", "f: introduces X", "at commit 012345678."):
        assert said in text


@pytest.mark.slow
def test_coverage_is_shown_by_module_and_release(site, reports):
    assert "carry training signal</h3>" not in (site() / "coverage.html").read_text()
    totals = {"bound": 2, "not bound": 4, "no signal": 1}
    verl = {
        "modules": {"commit": "0123456789", "totals": totals, "modules": {"verl.<b>": totals}},
        "lines": {"modules": {"verl.<b>": {"lines": 10, "ran": 7, "branches": 4, "taken": 3}}},
        "releases": {"releases": [{"release": "v<i>", "date": "2026-08-01", "totals": totals}]},
    }
    (reports / "coverage.json").write_text(json.dumps({"coverage": {"verl": verl}}))
    text = Page(site() / "coverage.html").text
    for said in (
        "7 functions at commit 012345678: 2 checked, 4 not checked, 1 excluded",
        "verl.<b>",
        "7 of 10",
        "3 of 4",
        "v<i>",
    ):
        assert said in text


@pytest.mark.slow
def test_coverage_links_to_bugs_and_findings(site):
    made = site()
    page = Page(made / "coverage.html")
    links = [a["href"] or "" for a in page.all("a")]
    assert any(link.startswith(("bugs/roll/", "index.html?target=roll")) for link in links)
    (finding,) = made.glob("laws/roll/*/*.html")
    assert "violates a law:" in Page(finding).text
    assert f"pytest 'laws/roll/{finding.parent.name}::{finding.stem}[git:main]'" in Page(finding).text


def test_a_runner_that_was_exported_can_be_copied(reports, catalog, tmp_path):
    exports = tmp_path / "export"
    (exports / "ROLL-AGGLOSS-TOKENMEAN-MASK").mkdir(parents=True)
    (exports / "ROLL-AGGLOSS-TOKENMEAN-MASK" / "run_validation.py").write_text("print('<runner>')\n")
    (exports / "SLIME-OPSM-MIXED-ADVANTAGE-LEAK").mkdir()
    files = dict(build(read(reports, catalog, exports)))
    assert "There is no such script" in files["bugs/slime/SLIME-OPSM-MIXED-ADVANTAGE-LEAK.html"]
    assert "print(&#39;&lt;runner&gt;&#39;)" in files["bugs/roll/ROLL-AGGLOSS-TOKENMEAN-MASK.html"]
    assert "sentinel contribute VERL-REJECTED-ROW-GRPO" in files["bugs/verl/VERL-REJECTED-ROW-GRPO.html"]


def test_a_missing_package_names_its_extra(monkeypatch):
    from sentinel.tools.site import building

    real = building.importlib.util.find_spec
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: None if name == "jinja2" else real(name))
    with pytest.raises(SentinelError, match=re.escape("a site needs jinja2; pip install '.[site]' in a")):
        building.require()
