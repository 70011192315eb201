"""A slice written for one scenario: shorter, and of the same answer."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest

from sentinel.export.specialising import specialised


def simpler(text: str, *wanted: str) -> str:
    """A module whose last definition is ``observe``."""
    tree = ast.parse(textwrap.dedent(text))
    names = [getattr(node, "name", None) or ast.unparse(node).partition(" =")[0] for node in tree.body]
    definitions = dict(zip(names, map(ast.unparse, tree.body)))
    observe = definitions.pop("observe").split("\n")
    found, lines, _ = specialised(definitions, observe, wanted or ("answer",))
    return "\n".join([*found.values(), *lines])


def answer(text: str, *given: Any) -> Any:
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(text), "slice", "exec"), names)
    return names["observe"](*given)


CASES = {
    "functions that are called once, and constants": (
        """
        def scaled(value, by=2):
            found = value * by
            return found

        def observe():
            inputs = {"value": 3, "kind": "plain", "reference": None}
            found = scaled(inputs["value"]) if inputs["kind"] == "plain" else 0
            if inputs["reference"] is not None:
                found = 0
            return {"answer": found}
        """,
        "scaled",
        9,
    ),
    "names that mean something else in the caller": (
        """
        def inner(rows):
            total = sum(rows)
            count = len(rows)
            return total / count

        def observe(rows=(1, 2, 3)):
            total = 10
            found = inner([row * total for row in rows])
            return {"answer": found + total + len(rows)}
        """,
        "def inner",
        9,
    ),
    "items of a mapping that is handed on with another": (
        """
        def step(inputs):
            scale = {"a": 1, "b": 5}[inputs["kind"]]
            return {"answer": inputs["rows"], "scale": scale, "other": inputs.get("none", 7)}

        def observe(rows=(1, 2)):
            inputs = {"rows": rows, "kind": "b"}
            outputs = step({**inputs, "rows": [row + 1 for row in inputs["rows"]]})
            return {"answer": [*outputs["answer"], outputs["scale"], outputs["other"]]}
        """,
        "inputs",
        6,
    ),
    "a context manager": (
        """
        import contextlib

        @contextlib.contextmanager
        def held(box, name="inner"):
            old = box[name]
            box[name] = 1
            try:
                yield box
            finally:
                box[name] = old

        def observe():
            box = dict(inner=0)
            with held(box) as there:
                inside = there["inner"]
            return {"answer": [inside, box["inner"]]}
        """,
        "held",
        13,
    ),
    "how many there are, and a word for something that is used once": (
        """
        import collections

        Made = collections.Counter

        def observe():
            generated = [6, 2]
            rows = len(generated)
            engine = Made(generated)
            return {"answer": [engine[6], *range(rows)]}
        """,
        "rows",
        4,
    ),
    "what a loop uses at once": (
        """
        def observe(options=(("a", 1), ("b", 2))):
            made = {}
            for name, value in options:
                doubled = 2 * value
                made[name] = doubled
            return {"answer": made}
        """,
        "doubled =",
        5,
    ),
    "a name that is bound twice": (
        """
        def observe(tokens=None, rows=2):
            tokens = rows if tokens is None else tokens
            tokens = tokens + 1
            return {"answer": tokens}
        """,
        "nothing of it goes",
        4,
    ),
    "a parameter that nothing reads, and one that is the same everywhere": (
        """
        def measured(value, mask, times):
            total = 0
            for _ in range(times):
                total += value
            return total

        def observe():
            mask = [1]
            return {"answer": [measured(1, mask, 2), measured(5, mask, 2)]}
        """,
        "mask",
        8,
    ),
    "an item of a mapping that two calls read": (
        """
        def lengths(inputs):
            rows, tokens = inputs["shape"]
            return {"lengths": [tokens] * rows}

        def observe(shape=(2, 3)):
            inputs = {"shape": shape, "unread": 4}
            return {"answer": [lengths(inputs)["lengths"], lengths(inputs)["lengths"]]}
        """,
        "inputs",
        8,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_shorter_and_answers_the_same(case: str) -> None:
    text, gone, longest = CASES[case]
    short = simpler(text)
    assert answer(short) == answer(text)
    assert gone not in short
    assert len(short.splitlines()) <= longest


def test_what_is_not_compared_is_not_computed() -> None:
    text = """
    def of(value):
        return None if value is None else float(value)

    def observe():
        outputs = {"loss": 1, "kl": None}
        return {"answer": of(outputs["loss"]), "kl": of(outputs.get("kl")), "none": of(outputs.get("other"))}
    """
    assert simpler(text, "answer").split("\n") == ["def observe():", '    return {"answer": 1.0}']
    assert '"kl": None' in simpler(text, "answer", "kl")


def test_it_does_not_change_the_order_of_what_does_something() -> None:
    text = """
    def noted(log, name):
        log.append(name)
        return name

    def other(log, name):
        log.append(name)
        return name

    def observe():
        log = []
        first = noted(log, "a")
        second = other(log, "b")
        log.append("c")
        return {"answer": [*log, second, first]}
    """
    assert answer(simpler(text)) == answer(text) == {"answer": ["a", "b", "c", "b", "a"]}


@pytest.mark.parametrize("last", ["log.pop() - first", "both(log.pop(), first)", "both(log.pop(), twice(log))"])
def test_what_is_evaluated_first_stays_first(last: str) -> None:
    text = f"""
    def both(one, other):
        return [one, other]

    def twice(log):
        found = log.pop()
        return 2 * found

    def observe():
        log = [1, 20, 300]
        first = log.pop()
        return {{"answer": {last}, "rest": log}}
    """
    assert answer(simpler(text, "answer", "rest")) == answer(text)


@pytest.mark.parametrize(
    "body",
    [
        "box = {'a': 1}\n    change(box)\n    return {'answer': box['a']}",  # change may change it
        "rows = [1]\n    say = lambda: rows\n    rows = [2]\n    return {'answer': say()}",
        "value = 1\n    for n in (1, 2):\n        value = value + n\n    return {'answer': value}",
        "box = {'a': 1}\n    box['a'] = box['a'] + 1\n    return {'answer': box['a']}",
        "count = [0]\n    a = change({'a': 1})\n    b = change({'a': 2})\n    return {'answer': (b, a)}",
    ],
)
def test_what_may_change_is_left_alone(body: str) -> None:
    text = f"def change(box):\n    box['a'] += 1\n    return box['a']\n\ndef observe():\n    {body}\n"
    assert answer(simpler(text)) == answer(text)


def test_a_copy_of_a_tensors_strides_is_a_clone() -> None:
    text = """
    def leaf(value):
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        copy.copy_(value.detach())
        return copy.requires_grad_(True)

    def observe(value):
        found = leaf(value)
        found.sum().backward()
        return {"answer": found.detach() if hasattr(found, "detach") else found}
    """
    assert simpler(text).split("\n") == [
        "def observe(value):",
        "    found = value.detach().clone().requires_grad_(True)",
        "    found.sum().backward()",
        '    return {"answer": found}',
    ]


def test_modules_are_known_by_their_last_names_where_nothing_else_is() -> None:
    observe = [
        "def observe(loss):",
        "    batches = c.d.batches",
        "    found = a.b.loss.of(batches.made, batches.other, f(x=c.d.x))",
        "    return {'answer': found + loss}",
    ]
    found, lines, short = specialised({}, observe, ["answer"], ["a.b.loss", "c.d.batches", "c.d.x", "e.f.gone"])
    assert not found
    assert short == {"c.d.batches": "batches", "e.f.gone": "gone"}
    assert "batches.made" in lines[-1]
    assert "c.d.batches" not in "".join(lines)
    assert "a.b.loss.of(" in "".join(lines)
