"""Every cited pull request and hash is looked up in a mirror; what a mirror cannot show is reported."""

from pathlib import Path

import pytest
from demo_kit import Repository

from sentinel.recipes.catalog import bundled_catalog
from sentinel.tools.upstream.citations import Citation, Numbers, citations

TARGETS = {"demo": bundled_catalog().targets["demo"], "verl": bundled_catalog().targets["verl"]}


@pytest.fixture
def cited(tmp_path: Path):
    """Return a function that resolves a text of the demo target; HASH stands for the commit of #3, which #4 lacks."""
    upstream = Repository(tmp_path / "upstream")
    upstream.path.mkdir()
    upstream.git("init", "--quiet", "--initial-branch=main")
    upstream.commit("begin", {"a.py": "a = 1\n"})
    upstream.git("update-ref", "refs/pull/4/head", "HEAD")
    commit = upstream.commit("divide by the tokens (#3)", {"a.py": "a = 2\n"})
    upstream.git("update-ref", "refs/pull/9/head", "HEAD")
    numbers = {name: Numbers(upstream.path / ".git", "main") for name in ("demo", "verl")}

    def resolve(text: str) -> list[Citation]:
        return list(citations("f", text.replace("HASH", commit[:9]), "demo", TARGETS, numbers))

    return resolve


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("since #3", "divide by the tokens (#3)"),
        ("fixed_by: HASH (#3, 2026-08-21)", "divide by the tokens (#3)"),
        ("see verl#3 (HASH)", "divide by the tokens (#3)"),
        ("[#4](https://github.com/verl-project/verl/pull/4)", "begin"),
        ("a.py:1@HASH", "divide by the tokens (#3)"),
    ],
)
def test_a_resolved_citation_has_its_title(cited, text, subject):
    found = cited(text)
    assert found
    assert {(each.problem, each.unknown) for each in found} == {("", "")}
    assert subject in {each.subject for each in found}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("the fix is #5", "#5 is not a pull request of demo; if it is an issue, write `issue #5`"),
        ("https://github.com/verl-project/verl/pull/5", "#5 is not a pull request of verl"),
        ("issue #3", "#3 is a pull request, not an issue: divide by the tokens (#3)"),
        ("0123456789abcdef", "the mirror of demo has no 0123456789abcdef"),
        ("HASH (#4, 2026-08-21)", "does not belong to #4: divide by the tokens (#3)"),
        ("HASH (#3, 2026-01-10)", "is from 2026-08-21, not from 2026-01-10"),
    ],
)
def test_an_unresolved_citation_is_a_problem(cited, text, problem):
    assert [each for each in cited(text) if problem in each.problem]


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("issue #5", "demo", "an issue"),
        ("#10", "demo", "newer than the mirror"),
        ("pytorch/pytorch#5", "pytorch/pytorch", "of another repository"),
    ],
)
def test_a_citation_unknown_to_mirrors_is_left_to_a_person(cited, text, where, why):
    assert [(each.where, each.unknown, each.problem) for each in cited(text)] == [(where, why, "")]


@pytest.mark.parametrize(
    "text", ["file.py#L45", "sha256:0123456789abcdef0", "&#35; and &#42;", "1234567", "feedface", "2026-01-01"]
)
def test_other_numbers_are_not_citations(cited, text):
    assert cited(text) == []
