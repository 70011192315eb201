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
    "a class that adds nothing to a mapping": (
        """
        class Answer(dict):
            pass

        def observe(key="a"):
            found = Answer(a=3)
            return {"answer": found[key] + found[key]}
        """,
        "Answer",
        6,
    ),
    "a comprehension that asks a mapping of nothing": (
        """
        def asked(sizes):
            names = "the first of the long names", "the second of the long names", "the third of the long names"
            found = {f"a prefix to {name} and what follows": sizes.get(name, 1) for name in names}
            found |= {f"another prefix to {name} and what follows": 2 for name in names}
            return found

        def observe(key="a prefix to the first of the long names and what follows"):
            found = asked({})
            return {"answer": found[key] + len(found)}
        """,
        ".get(",
        7,
    ),
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
    "loops of known turns, and what they fill": (
        """
        def observe(rows=(1, 2)):
            told = {"a": [], "b": []}
            for start in range(0, 2, 2):
                reported = []
                for rank in range(1):
                    reported.append(rows[start + rank])
                for name in told:
                    told[name] += [f"{name}{value}" for value in reported]
            return {"answer": told["a"]}
        """,
        "for name in",
        3,
    ),
    "options that are set one by one": (
        """
        import functools, types

        def observe():
            made = types.SimpleNamespace(trainer=types.SimpleNamespace())
            options = {"trainer.kind": "k1", "size": 2}
            for path, value in options.items():
                *heads, last = path.split(".")
                setattr(functools.reduce(getattr, heads, made), last, value)
            return {"answer": [made.trainer.kind, made.size]}
        """,
        "for ",
        6,
    ),
    "arguments by the names that there are": (
        """
        def called(**given):
            return sorted(given.items())

        def invoke(inputs, parameters=("alpha", "gamma")):
            given = {}
            for name, value in inputs.items():
                there = [other for other in {"a": ("alpha", "beta")}.get(name, [name]) if other in parameters]
                if there and value is not None:
                    given[there[0]] = value
            return called(**given)

        def observe(one=(1,)):
            return {"answer": invoke({"a": [*one], "b": 2, "gamma": None})}
        """,
        "for name",
        4,
    ),
    "an object that a function has to itself": (
        """
        class Recorder:
            def __init__(self, start):
                self._start = start
                self.total = [0]

            def step(self, by=2):
                self.total += [self._start * by]

        def observe(start=3):
            recorder = Recorder(start)
            recorder.step(5)
            return {"answer": recorder.total}
        """,
        "Recorder",
        3,
    ),
    "an object whose records nothing reads": (
        """
        class Recorder:
            def __init__(self, start):
                self._start = start
                self.total = [0]

            def again(self):
                self._start = None

            def step(self, by=2):
                if self._start is not None:
                    self.total += [self._start * by]

        def observe(start=3):
            recorder = Recorder(start)
            recorder.again()
            recorder.step()
            return {"answer": start}
        """,
        "total",
        4,
    ),
    "a function in a function that another one calls": (
        """
        def observe(size=2):
            def step(batch):
                doubled = [2 * item for item in batch]
                return sum(doubled), size
            def forward(batch):
                loss, told = step(batch)
                return {"loss": loss, "told": told}
            return {"answer": [forward([1]), forward([2, 3])]}
        """,
        "def step",
        6,
    ),
    "nothing of nothing": (
        """
        def observe(rows=()):
            mean = None if not rows else float(sum(rows))
            return {"answer": None if mean is None else float(mean)}
        """,
        "mean",
        2,
    ),
    "the lengths of mappings' tensors, and options that are not there": (
        """
        def made(inputs, options):
            names = "a", "b"
            given = {name: inputs[name] for name in names if inputs[name] is not None}
            inner = {name.partition(".")[2]: value for name, value in options.items() if "." in name}
            return {**given, **({"inner": inner} if inner else {}), "size": options["size"]}

        def observe(a=1):
            inputs = {"a": [a], "b": None, "size": 3}
            return {"answer": made(inputs, {"size": inputs["size"]})}
        """,
        "inner",
        2,
    ),
    "a base that says nothing": (
        """
        class One:
            pass

        class Stop(One):
            def go(self):
                return 2

        def observe():
            stop = Stop()
            return {"answer": [stop.go(), stop.go()]}
        """,
        "One",
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
        "fs = []\n    for n in (1, 2):\n        fs.append(lambda: n)\n    return {'answer': [f() for f in fs]}",
        "for n in (1, 2):\n        if n:\n            break\n    return {'answer': n}",
        "told = {'a': 1}\n    change(told)\n    for n in told:\n        told[n] += 1\n    return {'answer': told}",
        "rows = [[1]]\n    total = rows[0]\n    total += [2]\n    return {'answer': rows}",
        "rows = [1]\n    rows[0] = 2\n    return {'answer': rows[0]}",
        "rows = [1]\n    made = {'a': rows[0]}\n    rows.append(3)\n    for n in made.items():\n        rows += n\n"
        "    return {'answer': rows}",
        "n = 5\n    found = [n for n in (1, 2)]\n    return {'answer': [n, found]}",
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


@pytest.mark.parametrize(
    "last",
    [
        "hold(recorder), recorder.total",
        "recorder.step(), recorder.step(), recorder.total",
        "(lambda: recorder)().total",
    ],
)
def test_an_object_that_others_reach_stays_one(last: str) -> None:
    text = f"""
    def hold(box):
        box.total += 1

    class Recorder:
        def __init__(self):
            self.total = 0

        def step(self):
            self.total += 1

    def observe():
        recorder = Recorder()
        recorder.step()
        return {{"answer": [{last}]}}
    """
    short = simpler(text)
    assert "class Recorder" in short
    assert answer(short) == answer(text)


def test_what_the_scenarios_give_is_something() -> None:
    observe = ["def observe(rows):", "    return {'answer': rows if rows is not None else 0}"]
    assert specialised({}, observe, ["answer"])[1] != specialised({}, observe, ["answer"], some=["rows"])[1]


def test_names_that_were_kept_apart_are_plain_where_one_is_left() -> None:
    text = """
    def observe(rows=((1, 2), (3, 4))):
        names = "a", "b"
        first = dict(zip(names, rows))
        return {"answer": [first, [sum(names) for names in rows]]}
    """
    assert "names_2" not in simpler(text)
    assert answer(simpler(text)) == answer(text)
