"""Heads that forge their results: which forgeries are detected, and which cannot be detected."""

from collections.abc import Callable
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, Decide, copy_demo

from sentinel.deciding import repetition
from sentinel.deciding.outcomes import Decision
from sentinel.worker import probe

LOSSES = "demo_rl/losses.py"

#: ``judged(lines at the end of the boundary's module)`` returns the decision on a buggy head.
Judged = Callable[[str], Decision]

#: A function that returns the recipe's fixed values for the recipe's scenario.
LIE = """
def lie(loss_mat, loss_mask, loss_agg_mode="token-mean", **others):
    return (loss_mat * loss_mask).sum() / loss_mask.sum()
"""


@pytest.fixture(params=["basic", "strict"])
def judged(request: pytest.FixtureRequest, decide: Decide, tmp_path: Path, offered: Callable[[str], str]) -> Judged:
    level = offered(request.param)

    def run(lines: str) -> Decision:
        tree = copy_demo(tmp_path / "head")
        (tree / LOSSES).write_text(f"{(tree / LOSSES).read_text()}\n{lines}\n")
        return decide(MASKED_TOKENS, tree, sandbox=level)

    return run


def of(decision: Decision) -> tuple[str, str, str]:
    return decision.verdict.name, decision.verdict.kind, decision.verdict.reason


def test_a_truthful_head_is_reproduced(judged):
    decision = judged("")
    assert of(decision)[0] == "reproduced"
    assert decision.measurement.repeated == "same values"


DECORATED = """
import functools
def kept(function):
    @functools.wraps(function)
    def inner(*positional, **named):
        return function(*positional, **named)
    return inner
agg_loss = kept(agg_loss)
"""


def test_a_decorator_of_the_checkout_is_accepted(judged):
    assert of(judged(DECORATED))[0] == "reproduced"


def test_code_from_outside_the_checkout_is_rejected(judged):
    """The claimed file of a function that was compiled from a string is not in the checkout."""
    name, kind, reason = of(judged(f"exec({LIE!r})\nagg_loss = lie"))
    assert (name, kind) == ("inconclusive", "drift")
    assert "was not loaded from the checkout" in reason


@pytest.mark.parametrize(
    "lines",
    [
        f"real = agg_loss\nexec(compile({LIE!r}, __file__, 'exec'))\nagg_loss = lie",
        f"real = agg_loss\nexec({LIE!r})\nlie.__wrapped__ = real\nagg_loss = lie",
    ],
    ids=["a function that claims the file", "a wrapper that claims to wrap the real function"],
)
def test_lies_that_the_evidence_cannot_disprove_are_known(lines, judged):
    """The evidence names file, blob and path. It does not prove that the file's instructions ran, because a head can
    always lie about itself; SECURITY.md says so.
    """
    decision = judged(lines)
    assert of(decision)[0] == "fixed"
    assert decision.measurement.provenance.file == LOSSES


SEEDED = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    kept = loss_mask if torch.initial_seed() == {seed} else torch.ones_like(loss_mask)
    return (loss_mat * kept).sum() / loss_mask.sum()
"""


@pytest.mark.parametrize("seed", [probe.SEED, repetition.SEED])
def test_an_answer_that_depends_on_the_question_is_unsteady(seed, judged):
    """This function depends on the seed, which an honest function ignores."""
    name, kind, reason = of(judged(SEEDED.format(seed=seed)))
    assert (name, kind) == ("inconclusive", "unsteady")
    assert (
        "in a second process, with another seed and the variants in another order, the values were different" in reason
    )


BY_HEART = """
honest = agg_loss
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    if loss_mat.tolist() == [[1.0, 100.0], [1.0, -50.0]]:
        return (loss_mat * loss_mask).sum() / loss_mask.sum()
    return {otherwise}
"""


def test_a_memorised_answer_fails(judged):
    """The function knows the recipe's public numbers, but not the random order of the rows."""
    decision = judged(BY_HEART.format(otherwise="honest(loss_mat, loss_mask, loss_agg_mode) + loss_mat[0, 0]"))
    assert decision.verdict.name == "fixed"
    assert not decision.measurement.reordered
    honest = judged("")
    assert honest.measurement.reordered


#: Code that runs after the import and writes answers.
HOOKS = {
    "atexit": "import atexit\natexit.register(everywhere)",
    "garbage collection": "import gc\ngc.callbacks.append(lambda *_: everywhere())",
    "a finaliser": "class Last:\n    def __del__(self):\n        everywhere()\nkept = Last()",
    "signals": "import signal\nsignal.signal(14, lambda *_: everywhere())\nsignal.setitimer(0, 0.001, 0.001)",
    "a thread": "import threading\nthreading.Thread(target=everywhere, daemon=True).start()",
    "a profiler": "import sys\nsys.setprofile(lambda *_: everywhere())",
}

EVERYWHERE = """
import os
def everywhere():
    for fd in range(3, 64):
        try:
            os.set_blocking(fd, False)
            os.write(fd, b'{"observation": {"": {"loss": 1.0, "masked_token_gradient_abs_sum": 0.0}}}')
        except OSError:
            pass
"""


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
def test_writing_to_every_descriptor_forges_no_answer(hook, judged):
    """A process that writes to every descriptor only makes its own answer invalid."""
    assert of(judged(f"{EVERYWHERE}{hook}"))[0] in ("reproduced", "inconclusive")


#: Replacements for parts of the worker.
REPLACED = {
    "the worker's modules": "import sys\nfor name in list(sys.modules):\n    if name.startswith('sentinel'):\n"
    "        sys.modules[name] = None",
    "the standard library's": "import json, struct\njson.dumps = lambda *_, **__: '{}'\nstruct.pack = lambda *_: b''",
    "torch's": "torch.Tensor.tolist = lambda self: [1.0]\ntorch.Tensor.item = lambda self: 1.0",
    "the end": "import os\nos._exit = lambda status: None",
}


@pytest.mark.parametrize("lines", REPLACED.values(), ids=REPLACED.keys())
def test_replacing_parts_of_the_worker_never_gives_fixed(lines, judged):
    assert of(judged(lines))[0] in ("reproduced", "inconclusive", "changed")


@pytest.mark.parametrize("times", [1, 200])
def test_answers_written_before_the_question_are_rejected(times, judged):
    """The imported code and a child process write valid frames to every descriptor."""
    lines = f"""
import os
from sentinel.worker import protocol
claim = {{"boundary": "demo_rl.losses.agg_loss", "module": __name__, "module_file": __file__, "file": __file__,
         "line": 9, "signature": "()"}}
values = {{"": {{"loss": 1.0, "masked_token_gradient_abs_sum": 0.0}}}}
frame = protocol.encode({{"observation": values, "provenance": claim, "ghosts": [], "stand_ins": [], "nonce": ""}})
def everywhere():
    for fd in range(3, 64):
        try:
            os.set_blocking(fd, False)
            os.write(fd, frame)
        except OSError:
            pass
for _ in range({times}):
    everywhere()
if os.fork() == 0:
    everywhere()
    os._exit(0)
"""
    name, _, _ = of(judged(lines))
    assert name in ("inconclusive", "reproduced")


def test_a_head_can_forge_its_own_verdict(judged):
    """The code runs in the interpreter that measures it. It can replace the function that converts tensors to numbers,
    and then every process returns the same wrong result. SECURITY.md says so.
    """
    lines = """
from sentinel.worker import tensors
honest = tensors.observe
def dishonest(value):
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = torch.tensor({26.0: 1.0, 1.0: 0.0}.get(value.item(), value.item()))
    return honest(value)
tensors.observe = dishonest
"""
    assert of(judged(lines))[0] == "fixed"
