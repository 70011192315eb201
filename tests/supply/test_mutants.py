from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sentinel.targets.loading import load_file

MUTANTS: Any = load_file(Path(__file__).resolve().parents[2] / "benchmarks" / "mutants.py")
HALVES: Mapping[str, Mapping[str, Any]] = MUTANTS.HALVES
OPERATORS: Mapping[str, Any] = MUTANTS.EVERY

#: operator -> an expression and its mutants.
MADE = {
    "drop a mask": ("f(x * mask, mask)", {"f(x, mask)", "f(x * mask, mask * 0 + 1)"}),
    "invert a mask": ("f(mask)", {"f(mask == 0)"}),
    "sum for mean": ("x.sum(-1)", {"x.mean(-1)"}),
    "max for min": ("torch.max(x, y)", {"torch.min(x, y)"}),
    "another axis": ("x.sum(dim=-1)", {"x.sum(dim=0)"}),
    "off by one": ("x[:, 1:] + (n - 1)", {"x[:, :] + (n - 1)", "x[:, 1:] + n"}),
    "another sign": ("-x", {"x"}),
    "no denominator": ("x / n", {"x"}),
    "no detach": ("x.detach()", {"x"}),
    "another ddof": ("x.std()", {"x.std(correction=0)"}),
    "> for >=": ("x > n", {"x >= n"}),
    "no clip": ("x.clamp(min=0, max=1)", {"x", "x.clamp(min=0)", "x.clamp(max=1)"}),
    "an ignored argument": ("f(x, eps, dim=dim)", {"f(x, 1e-06, dim=dim)", "f(x, eps)"}),
    "a stale value": ("x * n", {"x"}),
    "no cast": ("x.float()", {"x"}),
    "another broadcast": ("x.sum(-1, keepdim=True)", {"x.sum(-1)"}),
    "the other branch": ("x if n else y", {"x", "y"}),
    "another condition": ("x == n", {"x != n"}),
    "swapped operands": ("x - y", {"y - x"}),
    "another precedence": ("(x - y) / n", {"x - y / n"}),
    "no transform": ("torch.exp(x)", {"x"}),
    "shared for copied": ("x.clone()", {"x"}),
    "another count": ("mask.sum()", {"mask.numel()"}),
    "a factor twice": ("x * n", {"x * n * n"}),
    "another constant": ("x + 1e-8", {"x + 0.0"}),
    "the first for each": ("x[n]", {"x[0]"}),
    "order of rows": ("zip(x, y)", {"zip(x, list(y)[::-1])"}),
    "swapped bounds": ("torch.clamp(x, 1 - n, 1 + y)", {"torch.clamp(x, 1 - y, 1 + n)"}),
    "shifted by one more": ("x[:, 1:]", {"x[:, 2:]"}),
}


def made(expression: str, operators: Mapping[str, Any], file: str = "") -> list[Any]:
    source = file or f"class Trainer:\n    def step(self, x, y, n, mask, eps=1e-6):\n        x = {expression}\n"
    return list(MUTANTS.mutants(source, "trainer.py", "Trainer.step", operators))


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_makes_the_expected_mutant(name):
    expression, wanted = MADE[name]
    lines = [mutant.source.splitlines()[2] for mutant in made(expression, {name: OPERATORS[name]})]
    plain = {MUTANTS.ast.unparse(MUTANTS.ast.parse(line.strip())).removeprefix("x = ") for line in lines}
    assert plain == wanted


@pytest.mark.parametrize("half", HALVES)
def test_a_mutant_changes_nothing_else_in_the_file(half):
    lines = [
        "# é",
        "class Trainer:",
        "    def step(self, x, mask):",
        "        a = 'ü'; x = (x",
        "            * mask - 1) / 2",
    ]
    source = "\n".join([*lines, "        return x", "", "def other(x):", "    return x.sum()", ""])
    every = made("", HALVES[half], source)
    assert every
    for mutant in every:
        head, tail = source[: source.index("x = (x")], source[source.index("        return x\n") :]
        assert mutant.source.startswith(head)
        assert mutant.source.endswith(tail)
        assert "(1 / 0)" in mutant.exploding.source
        compile(mutant.source, "trainer.py", "exec")


def test_messages_are_not_mutated():
    said = (
        "class Trainer:\n    def step(self, x, mask):\n        assert x > 0, f'{x - 1}'\n        logger.info(x - 1)\n"
    )
    assert made("", OPERATORS, said) == []
    assert made("", OPERATORS, "def step(x):\n    return x - 1\n") == []
