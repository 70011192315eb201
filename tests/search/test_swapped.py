import ast
from textwrap import dedent

from sentinel.search.swapped import SwappedCall, swapped_calls


def _found(text: str, *others: str) -> list[SwappedCall]:
    return swapped_calls([(f"{place}.py", ast.parse(dedent(each))) for place, each in enumerate((text, *others))])


def test_arguments_named_like_each_others_parameters_are_reported():
    found = _found(
        """
        def kl_penalty(logprob, ref_logprob, kind): ...
        def step(batch): return kl_penalty(batch["ref_logprobs"], batch["logprobs"], "k1")
        def right(batch): return kl_penalty(batch["logprobs"], batch["ref_logprobs"], "k1")
        """
    )
    assert found == [SwappedCall("kl_penalty", "0.py:3", ("ref_logprobs", "logprobs"), "0.py:2")]


def test_two_calls_with_swapped_arguments_are_reported():
    found = _found(
        "def estimate(x, y): ...", "estimate(old, new)\nestimate(self.old, self.new)", "estimate(a.new, a.old)"
    )
    assert found == [SwappedCall("estimate", "2.py:1", ("new", "old"), "1.py:1")]


def test_keywords_and_ambiguous_names_are_ignored():
    assert _found("def f(a, b): ...\nf(b=a, a=b)\nf(c, d)\nf(d, e)\nf(*b, a)") == []
    assert _found("def f(b, a): ...", "def f(a, b): ...\nf(b, a)") == []
    assert _found("class C:\n def f(self, a, b): ...\nC().f(a, b)") == []
