# ruff: noqa: E501 (an attack is easier to read on one line)
"""Attacks through a worker's answers: each ends with a verdict and readable evidence."""

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from demo_kit import MASKED_TOKENS, Decide, Lab, copy_demo, few, gone, returned

from sentinel.deciding.outcomes import Decision
from sentinel.deciding.pool import contained_places
from sentinel.recipes.catalog import bundled_catalog
from sentinel.reports import store
from sentinel.worker import client

#: ``judged(lines at the end of the boundary's module)`` returns the decision on a buggy head, and its evidence.
Judged = Callable[..., Decision]


@pytest.fixture
def judged(decide: Decide, tmp_path: Path, offered: Callable[[str], str]) -> Judged:
    level = offered("strict")

    def run(lines: str, files: Mapping[str, str] = MappingProxyType({}), **options: float) -> Decision:
        tree = copy_demo(tmp_path / "head")
        for name, text in files.items():
            (tree / "demo_rl" / name).write_text(text)
        with (tree / "demo_rl" / "losses.py").open("a") as file:
            file.write(f"\n{lines}\n")
        decision = decide(MASKED_TOKENS, tree, sandbox=level, **options)
        document = store.load(store.write(tmp_path / "reports", decision))
        assert (document["verdict"], document["kind"]) == (decision.verdict.name, decision.verdict.kind)
        return decision

    return run


def of(decision: Decision) -> tuple[str, str]:
    return decision.verdict.name, decision.verdict.kind


#: ``say(value)`` changes a probe's answer, or replaces the frame. The worker does not check it again.
SAYS = """
import json, os, struct, types
from sentinel.values.literals import Array, Attribute, Device, Namespace, New, Tensor, Tuple
from sentinel.worker import protocol, target_process
honest = protocol.encode

def encode(value):
    if not isinstance(value, dict) or not {"observation", "failure"} & value.keys():
        return honest(value)
    value = dict(value)
    said = say(value)
    return said if isinstance(said, bytes) else honest(value)

def frame(text, body=b""):
    return struct.pack(">QQ", len(text), len(body)) + text + body

def text(value):
    encoded = honest(value)
    size, _ = struct.unpack_from(">QQ", encoded)
    return encoded[16:16 + size], encoded[16 + size:]

def fail(value, kind):
    value.pop("observation", None)
    for name in ("ghosts", "stand_ins"):
        value.pop(name, None)
    value["failure"] = {"kind": kind, "reason": "so it says", "traceback": "", "provenance": value.pop("provenance")}

def claims(value, **changes):
    value["provenance"] = {**value["provenance"], **changes}

def sees(value, **changes):
    value["observation"] = {name: {**seen, **changes} for name, seen in value["observation"].items()}

def raw(value, old, new):
    said, body = text(value)
    assert old in said, said
    return frame(said.replace(old, new), body)

fake = {**vars(protocol), "encode": encode, "decode": lambda frame: None, "fits": lambda frame: True}
target_process.protocol = types.SimpleNamespace(**fake)
def say(value):
    return """

#: Invalid answers.
NO_ANSWERS = {
    # kinds
    "the kind ref": "fail(value, 'ref')",
    "the kind timeout, before the time is over": "fail(value, 'timeout')",
    "the kind unsteady": "fail(value, 'unsteady')",
    "a kind of its own": "fail(value, '\\x1b[31m\\n::error::forged')",
    "an empty kind": "fail(value, '')",
    "a kind that is none": "fail(value, None)",
    "several kinds": "fail(value, ['drift'])",
    "a kind in other letters": "fail(value, 'dri\\ufb05')",
    # where it was
    "a file with NUL": "claims(value, file='a\\0b.py')",
    "a file with a surrogate": "raw(value, b'losses.py', b'losses\\\\ud800.py')",
    "a path of many kilobytes": "claims(value, file='/' + 'a' * 9000)",
    "a line without an end": "raw(value, b'\"line\",', b'\"line\",1e999],[\"l\",')",
    "a line that is a float": "claims(value, line=9.0)",
    "a line that is true": "claims(value, line=True)",
    "a line before the first": "claims(value, line=-1)",
    "a line that no file has": "claims(value, line=1 << 40)",
    "no provenance": "value.pop('provenance') and None",
    "a provenance with something more": "claims(value, code='same')",
    # variants
    "a variant too few": "value.update(observation={})",
    "a variant too many": "value.update(observation={'': {'loss': 1.0}, 'other': {'loss': 1.0}})",
    "a variant of another name": "value.update(observation={' ': {'loss': 1.0}})",
    "an observation that is a list": "value.update(observation={'': [1.0]})",
    # values
    "an integer of 4,000 digits": "sees(value, loss=10 ** 4000)",
    "a tensor of many empty axes": "sees(value, loss=Tensor('float32', (1 << 9, 1 << 9, 1 << 9, 0), b''))",
    "a tensor of a dtype of objects": "sees(value, loss=Tensor('object', (1,), bytes(8)))",
    "a tensor of structures": "sees(value, loss=Tensor('<f4,<f4', (1,), bytes(8)))",
    "an object to make": "sees(value, loss=New('os.system', {'command': 'true'}))",
    "an attribute to look up": "sees(value, loss=Attribute('os.environ'))",
    "an array": "sees(value, loss=Array((1,), 'object'))",
    "a namespace": "sees(value, loss=Namespace({'a': 1}))",
    "a device": "sees(value, loss=Device('cuda'))",
    "bytes": "frame(raw(value, b'[\"loss\",', b'[\"loss\",{\"$\":\"bytes\",\"n\":1}],[\"l\",')[16:], b'1')",
    "many keys": "sees(value, **{f'k{number}': 1 for number in range(140_000)})",
    "many small things": "sees(value, loss=[None] * 270_000)",
    "containers in containers": "frame(b'[' * 40 + b']' * 40)",
    "a tag that stands twice": "raw(value, b'{\"$\":\"map\"', b'{\"$\":\"map\",\"$\":\"map\"')",
    "a stub module that is a number": "value.update(ghosts=[1])",
    "a stand-in of three words": "value.update(stand_ins=[['a', 'b', 'c']])",
    # frames
    "another's nonce": "value.update(nonce='0' * 32)",
    "no nonce": "value.pop('nonce') and None",
    "a nonce that is a list": "value.update(nonce=[value['nonce']])",
    "a list": "frame(b'[]')",
    "nothing": "frame(b'')",
    "the text of another encoding": "frame(text(value)[0].decode().encode('utf-16'))",
    "a mark of byte order": "frame(b'\\xef\\xbb\\xbf' + text(value)[0], text(value)[1])",
    "bytes of no tensor": "frame(text(value)[0], text(value)[1] + b'x')",
    "a length without end": "struct.pack('>QQ', 1 << 63, 1 << 63)",
    "a length that overflows": "struct.pack('>QQ', (1 << 64) - 1, 17)",
}  # fmt: skip


@pytest.mark.parametrize("said", few(NO_ANSWERS, 5))
def test_an_invalid_answer_is_rejected(said, judged):
    decision = judged(f"{SAYS}{said}")
    assert decision.verdict.name == "inconclusive"
    assert re.search("sent an invalid answer|before it answered", decision.verdict.reason)


#: Valid but strange answers: (answer, verdict and kind).
ANSWERS = {
    "absence of what is not asked for": ("fail(value, 'not-in-this-version') or value['failure'].update(provenance=None)", ("inconclusive", "drift")),
    "absence of code that is not the checkout's": ("claims(value, file='/etc/passwd') or fail(value, 'not-in-this-version')", ("inconclusive", "drift")),
    "another Python, and nothing shows it": ("fail(value, 'python')", ("inconclusive", "import")),
    "a package, and nothing imports it": (
        "fail(value, 'python') or value['failure'].update(provenance=None, place=__file__, lacks='absent_one.agg_loss')",
        ("inconclusive", "import")),
    "a file elsewhere": ("claims(value, file='/etc/passwd')", ("inconclusive", "drift")),
    "a file that leads out": ("claims(value, file=__file__ + '/../../../x.py')", ("inconclusive", "drift")),
    "a device for a file": ("claims(value, file='/dev/zero')", ("inconclusive", "drift")),
    "a long file name": ("claims(value, file=os.path.dirname(__file__) + '/' + 'a' * 3000)", ("inconclusive", "drift")),
    "a name in another normal form": ("claims(value, file=__file__.replace('losses', 'lo\u017f\u017fes'))",
                                      ("inconclusive", "drift")),
    "another key": ("sees(value, lo\u0455s=1.0)", ("reproduced", "")),
    "no key at all": ("value.update(observation=dict.fromkeys(value['observation'], {}))", ("inconclusive", "drift")),
    "a text for a number": ("sees(value, loss='26.0')", ("changed", "")),
    "a truth for a number": ("sees(value, loss=True)", ("changed", "")),
    "a NaN with a payload": ("sees(value, loss=Tensor('float32', (), bytes([1, 0, 160, 127])))", ("changed", "")),
    "a number with no end": ("raw(value, b'[\"loss\",', b'[\"loss\",1e999],[\"other\",')", ("changed", "")),
    "a tensor of eight axes": ("sees(value, loss=Tensor('bool', (1,) * 8, bytes([1])))", ("changed", "")),
    "nothing for a number": ("sees(value, loss=None)", ("changed", "")),
    "containers for a number": ("sees(value, loss=[[[[{'a': []}]]]])", ("changed", "")),
    "a large text": ("sees(value, other='\\1' * 600_000)", ("reproduced", "")),
    "a large tensor": ("sees(value, other=Tensor('float64', (1 << 16, 1), bytes(1 << 19)))", ("reproduced", "")),
}  # fmt: skip


@pytest.mark.parametrize(("said", "expected"), few(ANSWERS, 3))
def test_an_odd_answer_gets_the_expected_verdict(said, expected, judged):
    decision = judged(f"{SAYS}{said}")
    assert of(decision) in (expected, ("inconclusive", "unsteady")), decision.verdict.reason


#: Code that delays the answer.
WAITS = {
    "a byte now and then": """
def dripped(channel, work, timeout, nonce):
    channel.sendall(struct.pack(">QQ", 1 << 20, 0))
    while True:
        time.sleep(0.05)
        channel.send(b" ")
""",
    "half an answer": """
def dripped(channel, work, timeout, nonce):
    channel.sendall(struct.pack(">QQ", 1 << 20, 0) + b"{")
    time.sleep(600)
""",
    "nothing": """
def dripped(channel, work, timeout, nonce):
    time.sleep(600)
""",
    "nobody who reads": """
def dripped(channel, work, timeout, nonce):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
""",
}


@pytest.mark.parametrize("lines", WAITS.values(), ids=WAITS)
def test_an_answer_has_one_deadline(lines, judged, monkeypatch):
    monkeypatch.setattr(client, "_GRACE", 0.5)
    lines = f"import os, signal, struct, time\nfrom sentinel.worker import target_process\n{lines}"
    assert of(judged(f"{lines}\ntarget_process._fork = dripped", timeout=1.0)) == ("inconclusive", "timeout")


def test_parsing_source_has_a_time_limit(judged, monkeypatch):
    monkeypatch.setattr("sentinel.deciding.proof._PATIENCE", 0.05)
    decision = judged("filler = [1, 2, 3, 4, 5, 6, 7, 8]\n" * 50_000)
    assert of(decision) == ("inconclusive", "drift")
    assert "no answer within 0.05 s" in decision.verdict.reason


#: Attacks during import that no other test has.
AT_IMPORT = {
    "an exit handler that answers": "import atexit, os\natexit.register(os._exit, 0)",
    "no recursion": "import sys\nsys.setrecursionlimit(60)",
    "recursion without end": "import sys\nsys.setrecursionlimit(1 << 30)",
    "no descriptors": "import os\nwhile True:\n    try:\n        os.dup(0)\n    except OSError:\n        break",
    "no threads": "import threading, time\nfor _ in range(300):\n    threading.Thread(target=time.sleep, args=(600,)).start()",
    "many files": "for number in range(20_000):\n    open(f'file-{number}', 'w').close()",
    "deep folders": "import os\nfor _ in range(2000):\n    os.mkdir('a')\n    os.chdir('a')",
    "links that go round": "import os\nos.symlink('a', 'b')\nos.symlink('b', 'a')\nos.environ['TMPDIR'] = 'a'",
    "every descriptor closed": "import os\nos.closerange(3, 1024)",
    "another end of the pipe": "import os\nfor fd in range(3, 64):\n    os.dup2(0, fd)",
    "a mask over everything": "import os\nos.umask(0o777)",
    "an audit hook that raises": "import sys\nsys.addaudithook(lambda *_: 1 / 0)",
    "a tracer that raises": "import sys, threading\nsys.settrace(lambda *_: 1 / 0)\nthreading.settrace(lambda *_: 1 / 0)",
    "builtins that lie": "import builtins\nbuiltins.isinstance = lambda *_: True\nbuiltins.len = lambda _: 0",
    "pickle that runs": "import pickle\npickle.loads = pickle.load = eval",
    "an importer of its own": "import sys\nsys.meta_path.insert(0, None)",
    "an environment without end": "import os\nfor number in range(1000):\n    os.environ[f'A{number}'] = 'a' * 10_000",
    "a clock that stands": "import time\ntime.monotonic = time.time = lambda: 0.0",
    "a poller that never sees": "import select\nselect.poll = None",
    "tensors on no device": "torch.set_default_device('meta')",
    "another dtype": "torch.set_default_dtype(torch.float64)",
    "tensors that answer nothing": "torch.Tensor.detach = torch.Tensor.contiguous = lambda self: None",
    "a collector that ends it": "import gc, os\ngc.callbacks.append(lambda *_: os._exit(0))",
    "an end that is put off": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "limits lowered": "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))",
    "a group of another": "import os\nos.setpgid(0, 0) if os.getpgrp() != os.getpid() else os.nice(19)",
}  # fmt: skip

#: Attacks during the call, or by the return value.
AT_CALL = {
    "a list of itself": "a = []; a.append(a); return a",
    "a mapping without end": "import itertools\n"
    "    return type('M', (), {'keys': lambda self: itertools.count(), '__getitem__': lambda self, key: key})()",
    "an object that has everything": "return type('E', (), {'__getattr__': lambda self, name: self})()",
    "a word that equals everything": "return {type('W', (str,), {'__eq__': lambda *_: True, '__hash__': lambda _: 0})('a'): 1}",
    "a number that is none": "return type('N', (int,), {'__int__': lambda self: 'a', '__repr__': lambda self: 'b'})(1)",
    "a tensor of a class of its own": "return torch.ones(1).as_subclass(type('T', (torch.Tensor,), {'detach': lambda _: 1}))",
    "complex numbers": "return torch.ones(1, dtype=torch.complex64)",
    "a sparse tensor": "return torch.eye(3).to_sparse()",
    "a tensor larger than it is": "return torch.ones(1).expand(1 << 40)",
    "an integer of 4,000 digits": "return 10 ** 4000",
    "surrogates": "return {'\\ud800': '\\udfff'}",
    "an exception that cannot be told": "raise type('E', (Exception,), {'__str__': lambda _: 1 / 0})()",
    "an exception that is long": "raise ValueError('a' * 50_000_000)",
    "an exception of many causes": "e = None\n    for _ in range(5000):\n        n = ValueError(); n.__cause__ = e; e = n\n    raise e",
    "an exit with an object": "raise SystemExit(object())",
    "an interruption": "raise KeyboardInterrupt",
    "a stop of its group": "import os, signal; os.kill(0, signal.SIGSTOP)",
    "a signal to everybody": "import os; os.kill(-1, 9)",
    "a stack without end": "return agg_loss()",
}  # fmt: skip


@pytest.mark.parametrize(
    "lines", few({**AT_IMPORT, **{name: f"def agg_loss(*_, **__):\n    {body}" for name, body in AT_CALL.items()}})
)
def test_each_attack_of_a_head_ends_with_a_verdict(lines, judged):
    decision = judged(lines, timeout=2.0)
    assert decision.verdict.name in ("reproduced", "changed", "inconclusive"), decision.verdict.reason


def test_a_process_cannot_outlive_its_parent(offered, tmp_path):
    """Controller and preloader are killed at the same time, so only the kernel can end a daemon."""
    pytest.importorskip("pyseccomp")
    options = client.Options(timeout=30, sandbox=offered("strict"))
    preloader = client.Preloader(options, [], contained_places(bundled_catalog()))
    try:
        lines = "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
        lab = Lab(preloader, tmp_path / "lab", sandbox="strict")
        process = lab.open(lab.write({"mod.py": f"{lines}def f():\n    return os.getpid()\n"}))
        assert returned(lab.probe(process, "pkg.mod.f")) > 1
        os.kill(preloader.hello()["pid"], signal.SIGKILL)  # this process still has its end of the target's socket
        assert gone(process._leader.pid)
    finally:
        preloader.stop()


def test_imports_have_a_cpu_time_limit(lab):
    lines = "import resource\nLIMIT = resource.getrlimit(resource.RLIMIT_CPU)[1]\ndef f():\n    return LIMIT\n"
    process = lab.open(lab.write({"mod.py": lines}), sandbox="basic", timeout=10.0)
    assert 0 < returned(lab.probe(process, "pkg.mod.f")) <= 1000 * (os.cpu_count() or 1) + 5


@pytest.mark.parametrize(
    ("lines", "shown"),
    [("from typing import Never2 as x\nfrom warnings import deprecated", False), ("type A[B = int] = B", True)],
)
def test_a_required_python_version_is_read_from_the_source(lines, shown, judged):
    if sys.version_info >= (3, 13):
        pytest.skip("this one is new enough")
    assert of(judged(lines)) == (("unavailable", "python") if shown else ("inconclusive", "import"))
