"""Expressions whose value is known, as what they are; the others as they were."""

from __future__ import annotations

import ast

import pytest

from sentinel.export.expressions import entries, is_pure
from sentinel.export.folding import Folded
from sentinel.export.knowing import Known
from sentinel.export.layout import expression


def folded(text: str, *some: str) -> str:
    known = Known(some=frozenset(some))
    return ast.unparse(ast.fix_missing_locations(Folded(known).visit(ast.parse(text))))


def as_here(text: str) -> str:
    """As this Python writes it: 3.10 puts tuples into brackets where later ones do not."""
    return ast.unparse(ast.parse(text))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("None is not None", "False"),
        ("0.2 == 0.2 == 0.5", "False"),
        ("1 < 'a'", "1 < 'a'"),  # it raises
        ("x is None", "x is None"),
        ("{} is None", "False"),
        ("'a' in {'a': x}", "True"),
        ("'b' not in ('a', 'c')", "True"),
        ("None or rows", "rows"),
        ("x and True", "x and True"),  # not x where x is true
        ("True and x", "x"),
        ("x or 1 or y", "x or 1"),
        ("not None", "True"),
        ("(1.5 - 1) / 2", "0.25"),
        ("1 / 0", "1 / 0"),
        ("1 - 2", "1 - 2"),
        ("a if 'k1' == 'k3' else b", "b"),
        ("{'a': b, 'c': d}['a']", "b"),
        ("{'a': f(), 'c': d}['c']", "{'a': f(), 'c': d}['c']"),  # f may do something
        ("(a, b)[1]", "b"),
        ("{'a': b}.get('c', d)", "d"),
        ("{}.get(axis, 1)", "1"),
        ("f(**{'a': b}, **c)", "f(a=b, **c)"),
        ("[*(a, b), c]", "[a, b, c]"),
        ("{**{'a': 1, 'b': 2}, 'a': x}", "{'a': x, 'b': 2}"),
        ("{**a, 'b': 1}", "{**a, 'b': 1}"),
        ("f'{1}_{n}'", "f'1_{n}'"),
        ("f'{1}a'", "'1a'"),
        ("{n: f(n) for n in ('a', 'b')}", "{'a': f('a'), 'b': f('b')}"),
        ("{n: v for n, v in {'a': x}.items() if n != 'a'}", "{}"),
        ("{n: v for n, v in many.items()}", "{n: v for n, v in many.items()}"),
        ("float(None or 2)", "2.0"),
        ("float('inf')", "float('inf')"),
        ("len([a, b])", "2"),
        ("getattr(a, 'b')", "a.b"),
        ("getattr(a, 'b', None)", "getattr(a, 'b', None)"),
        ("torch.tensor([1]).detach().clone()", "torch.tensor([1])"),
        ("x.detach().clone()", "x.detach().clone()"),
        ("torch.zeros(2).requires_grad_(True)", "torch.zeros(2, requires_grad=True)"),
        ("torch.zeros(2).requires_grad_(True).detach().clone()", "torch.zeros(2)"),
        ("min(2, 3)", "2"),
        ("min(x, 3)", "min(x, 3)"),
        ("'.' in 'a.b'", "True"),
        ("'a.b'.split('.')", "['a', 'b']"),
        ("functools.reduce(getattr, ['a', 'b'], x)", "x.a.b"),
        ("functools.reduce(getattr, names, x)", "functools.reduce(getattr, names, x)"),
        ("b if [x] and y else c", "b if y else c"),
        ("b if [] and f() else c", "c"),
        ("[n for n in ('a',) if n in ('a', 'b')]", "['a']"),
        ("float(float(x))", "float(x)"),
        ("x[slice(0, 2)]", "x[0:2]"),
        ("torch.zeros(2, 3)[slice(0, 2)]", "torch.zeros(2, 3)"),
        ("torch.zeros(2, 3)[slice(1, 2)]", "torch.zeros(2, 3)[1:2]"),
        ("len(torch.tensor([[1, 2]] * 3))", "3"),
        ("torch.arange(4)[:, None].repeat(1, 3).shape[1]", "3"),
        ("torch.zeros(2, 3).shape[5]", "torch.zeros(2, 3).shape[5]"),
        ("torch.zeros(n, 3).shape[1]", "torch.zeros(n, 3).shape[1]"),
        ("torch.zeros(2).clone().cpu()", "torch.zeros(2).clone()"),
        ("torch.zeros(2, device='meta').cpu()", "torch.zeros(2, device='meta').cpu()"),
        ("torch.zeros(2).to(x).cpu()", "torch.zeros(2).to(x).cpu()"),
    ],
)
def test_expressions(before: str, after: str) -> None:
    assert folded(f"a = {before}") == as_here(f"a = {after}")


def test_what_is_made_is_not_none() -> None:
    assert folded("a = x is not None", "x") == "a = True"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if None is None:\n    a()\nelse:\n    b()", "a()"),
        ("if x:\n    if False:\n        a()", ""),
        ("for n in {}.items():\n    a(n)", ""),
        ("setattr(a, 'b', 1)", "a.b = 1"),
        ("a.update({})", ""),
        ("a, b = torch.zeros(2, 3).shape", "a, b = (2, 3)"),
        ("*a, b = [1, 2, 3]", "a, b = ([1, 2], 3)"),
        ("*a, b = [f(), 2, 3]", "*a, b = [f(), 2, 3]"),
    ],
)
def test_statements(before: str, after: str) -> None:
    assert folded(before) == as_here(after)


def test_what_all_revisions_have_is_known() -> None:
    known = Known(held={"signature(f).parameters": [{"a", "b"}, {"a", "c"}]})
    tree = ast.parse("['a' in signature(f).parameters, 'b' in signature(f).parameters, 'd' in signature(f).parameters]")
    assert ast.unparse(Folded(known).visit(tree)) == "[True, 'b' in signature(f).parameters, False]"


def test_what_may_do_something_is_not_pure() -> None:
    assert is_pure(expression("torch.zeros_like(a)[0] + len(b.items())"))
    for text in ("f()", "torch.manual_seed(1)", "torch.add_(a)", "a.pop()", "(await a)", "(b := 1)"):
        assert not is_pure(expression(text)), text
    assert is_pure(expression("f(a)"), {"f"})
    assert is_pure(expression("lambda a: f(a)"))
    assert not is_pure(expression("lambda a=f(): a"))


def test_entries_need_constant_keys() -> None:
    assert list(entries(expression("{'a': b, 'c': d}")) or ()) == ["a", "c"]
    assert entries(expression("{'a': b, **c}")) is None
