"""Watched functions keep their identity, results, exceptions and signature, for every existing reference."""

import asyncio
import functools
import inspect
import os
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
import torch

from sentinel.tools.watch.wrapping import Budget, Plan, Watcher

_SOURCE = """
import functools

def add(a, b=2, *, c=3):
    if a is None:
        raise ValueError("a")
    return a + b + c

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@decorated
def double(a):
    return a * 2

REGISTRY = {"add": add}

class Base:
    scale = 1
    def loss(self, x):
        return x + self.scale

class Trainer(Base):
    def log_probs(self, x):
        return x * 2, None
    def loss(self, x):
        return super().loss(self.log_probs(x)[0]) * 10
    @staticmethod
    def negative(x):
        return -x

def numbers():
    yield 1

async def later():
    return 1

async def numbers_later():
    yield 1
"""


@pytest.fixture
def module() -> Iterator[Any]:
    made = ModuleType("watched_module")
    sys.modules["watched_module"] = made
    exec(compile(_SOURCE, "watched_module.py", "exec"), made.__dict__)
    yield made
    del sys.modules["watched_module"]


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    made = Watcher(Budget(share=1.0, every=1))
    yield made
    made.restore()


def _plan(name: str, *paths: tuple[Any, ...], **more: Any) -> Plan:
    return Plan(7, f"watched_module.{name}", ("watched_module", name), paths, **more)


def test_existing_references_call_the_watched_function(module, watcher):
    held, registered, signature = module.add, module.REGISTRY["add"], inspect.signature(module.add)
    assert watcher.watch(_plan("add", ("a",), ("c",))) == ""
    assert module.add is held
    assert (held(1), registered(1, 5, c=1)) == (6, 7)
    copies = [watcher.copies.get_nowait() for _ in range(2)]
    assert [copy[:4] for copy in copies] == [(7, 1, {("a",): 1, ("c",): 3}, 6), (7, 2, {("a",): 1, ("c",): 1}, 7)]
    assert inspect.signature(held) == signature


def test_an_exception_reaches_the_caller_and_nothing_is_copied(module, watcher):
    watcher.watch(_plan("add", ("a",)))
    with pytest.raises(ValueError, match=r"^a$"):
        module.add(None)
    with pytest.raises(TypeError):
        module.add()
    assert watcher.copies.empty()


def test_wrappers_methods_and_static_methods_are_watched(module, watcher):
    bound = module.Trainer().loss
    for name, path in (("double", ("args",)), ("Trainer.loss", ("self", (".", "scale"))), ("Trainer.negative", ("x",))):
        assert watcher.watch(_plan(name, path)) == ""
    assert (module.double(4), bound(3), module.Trainer.negative(4)) == (8, 70, -4)
    assert watcher.copies.qsize() == 3


def test_results_of_methods_are_copied_with_the_call(module, watcher):
    methods = {"log_probs": ("watched_module", "Trainer.log_probs")}
    watcher.watch(_plan("Trainer.loss", ("self", ("()", "log_probs"), ("[]", 0)), methods=methods))
    assert module.Trainer().loss(3) == 70
    assert module.Trainer().log_probs(1) == (2, None)  # outside a watched call, the result is not copied
    assert watcher.copies.get_nowait()[2] == {("self", ("()", "log_probs"), ("[]", 0)): 6}
    assert watcher.copies.empty()


def test_restored_functions_have_their_own_code(module, watcher):
    code = module.add.__code__
    watcher.watch(_plan("add", ("a",)))
    assert module.add.__code__ is not code
    watcher.restore()
    assert module.add.__code__ is code
    assert module.add(1) == 6
    assert watcher.copies.empty()


@pytest.mark.parametrize("name", ["numbers", "later", "numbers_later", "Trainer", "nothing", "Trainer.nothing"])
def test_functions_that_cannot_be_watched_are_reported(module, watcher, name):
    assert "is missing, or is not a plain function, in this process" in watcher.watch(_plan(name))


def test_tensors_are_copied_before_the_call(module, watcher):
    exec("def fill(x):\n    return x.mul_(0)\n", module.__dict__)
    watcher.watch(_plan("fill", ("x",)))
    values = torch.ones(2)
    assert module.fill(values) is values
    _, _, parts, result, *_ = watcher.copies.get_nowait()
    assert parts["x",].tolist() == [1.0, 1.0]
    assert result.tolist() == [0.0, 0.0]
    assert result is not values


def test_gradients_are_unchanged(module, watcher):
    watcher.watch(_plan("double", ("args",)))
    weight = torch.ones(3, requires_grad=True)
    module.double(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]


def test_gradients_of_a_loss_are_copied_without_changing_the_runs(module, watcher):
    exec("def loss(x, y):\n    return (x * y).sum(), 3\n", module.__dict__)
    watcher.watch(_plan("loss", ("x",), differentiable=(("x",),)))
    weight, other = torch.ones(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    value, _ = module.loss(weight * 2, other)
    copied = watcher.copies.get_nowait()
    assert copied.gradients["x",].tolist() == [1.0, 2.0, 3.0]
    assert "test_wrapping.py:" in copied.place
    assert weight.grad is None
    value.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 4.0, 6.0]
    with torch.no_grad():
        module.loss(weight, other)
    assert watcher.copies.get_nowait().gradients == {}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients_are_copied(module, watcher, mode):
    watcher.watch(_plan("double", ("args",)))
    with mode():
        assert module.double(torch.ones(2, dtype=torch.bfloat16)).tolist() == [2.0, 2.0]
    assert watcher.copies.qsize() == 1


@pytest.mark.slow
def test_a_failed_copy_does_not_affect_the_call(module, watcher):
    watcher.watch(_plan("double", ("args",)))
    nested = torch.nested.nested_tensor([torch.ones(2)])
    assert module.double(nested).is_nested
    big = torch.empty(1 << 30, dtype=torch.int8, device="meta")
    assert module.double(big).shape == big.shape
    assert watcher.copies.empty()
    assert len(watcher.failed) >= 1


def test_a_tensor_whose_values_are_elsewhere_is_not_copied(module, watcher):
    from torch import distributed
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    watcher.watch(_plan("double", ("args",)))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        sharded = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (1,)), [Replicate()])
        assert module.double(sharded).to_local().tolist() == [2.0, 2.0]
    finally:
        distributed.destroy_process_group()
    assert list(watcher.failed) == ["the call has a tensor whose values cannot be read (DTensor, cpu)"]


def test_nothing_is_copied_into_a_graph_that_is_recorded(module, watcher, monkeypatch):
    """A recorded CUDA graph is replayed at every step, so a copy inside the graph would be repeated at every step."""
    watcher.watch(_plan("double", ("args",)))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert module.double(torch.ones(2)).tolist() == [2.0, 2.0]
    assert watcher.copies.empty()


def test_concurrent_threads_are_watched(module, watcher):
    methods = {"log_probs": ("watched_module", "Trainer.log_probs")}
    watcher.watch(_plan("Trainer.loss", ("self", ("()", "log_probs"), ("[]", 0)), methods=methods))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(module.Trainer().loss, range(8))) == [20 * n + 10 for n in range(8)]
    copies = [watcher.copies.get_nowait() for _ in range(watcher.copies.qsize())]
    assert sorted((copy.parts.popitem()[1], copy.result) for copy in copies) == [(2 * n, 20 * n + 10) for n in range(8)]


@pytest.mark.parametrize("first", [0, 1])
def test_two_watchers_see_one_function_and_end_in_any_order(module, first):
    watchers = [Watcher(Budget(share=1.0, every=1)) for _ in range(2)]
    for one in watchers:
        assert one.watch(_plan("double", ("args",))) == ""
    assert module.double(3) == 6
    assert [one.copies.qsize() for one in watchers] == [1, 1]
    for one in (watchers[first], watchers[1 - first]):
        one.restore()
        assert module.double(3) == 6


def test_a_full_queue_drops_copies_but_no_calls(module, watcher):
    watcher.watch(_plan("double", ("args",)))
    assert [module.double(n) for n in range(20)] == [2 * n for n in range(20)]
    assert watcher.copies.full()
    assert watcher.lost == 12


def test_one_call_in_n_is_copied_within_the_budget(module):
    watcher = Watcher(Budget(share=1.0, every=10))
    watcher.watch(_plan("double", ("args",)))
    for number in range(31):
        module.double(number)
    watcher.restore()
    assert [watcher.copies.get_nowait()[1] for _ in range(watcher.copies.qsize())] == [1, 11, 21, 31]
    none = Watcher(Budget(share=0.0, every=1))
    none.watch(_plan("double", ("args",)))
    for number in range(5):
        module.double(number)
    none.restore()
    assert none.copies.qsize() == 1  # the first call is always copied
    assert none.budget.held_back == 4


def test_a_call_that_is_not_copied_is_cheap(module):
    """Measured as this process's CPU time, best of several tries, so that other work on the machine does not matter."""

    def seconds() -> float:
        began = time.process_time()
        for _ in range(5000):
            module.double(1)
        return (time.process_time() - began) / 5000

    bare = min(seconds() for _ in range(9))
    watcher = Watcher(Budget(every=1 << 60))
    watcher.watch(_plan("double", ("args",)))
    module.double(1)
    watched = min(seconds() for _ in range(9))
    watcher.restore()
    assert watcher.copies.qsize() == 1
    assert watched - bare <= 2e-6


@pytest.mark.parametrize(
    ("cost", "step", "spent", "allowed"),
    [(0.04, 1.0, 0.0, True), (0.06, 1.0, 0.0, False), (0.015, 0.02, 0.0, True), (0.0, 1.0, 11.0, False)],
)
def test_a_step_has_its_own_time_limit(cost, step, spent, allowed):
    """Copies may take a twentieth of a step, or an unnoticeably short time. The time to send them counts too."""
    budget = Budget(share=0.01, began=time.perf_counter() - 1000.0, spent=1.0, sending=spent)
    assert budget.allows(cost, step) is allowed
    assert budget.held_back == (not allowed)
    assert Budget(share=0.01, spent=0.5).allows(cost=1.0), "the first second is not limited"


def test_a_forked_process_is_not_watched(module, watcher):
    watcher.watch(_plan("double", ("args",)))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, f"{module.double(2)} {watcher.copies.qsize()}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 99) == b"4 0"


def test_functions_are_pickled_by_their_name(module, watcher):
    watcher.watch(_plan("add", ("a",)))
    module.add.__module__ = "watched_module"
    assert pickle.loads(pickle.dumps(module.add)) is module.add
    assert functools.partial(module.add, 1)() == 6


@pytest.mark.parametrize(("name", "path"), [("add", ("a",)), ("Trainer.loss", ("x",))])
def test_functions_pickled_by_value_are_not_watched(module, watcher, name, path):
    """Ray pickles the functions of a script by value. The pickle must not contain the watcher's queue and lock."""
    cloudpickle = pytest.importorskip("cloudpickle")
    watcher.watch(_plan(name, path))
    cloudpickle.register_pickle_by_value(module)
    try:
        function = module.Trainer.loss if name == "Trainer.loss" else module.add
        again = cloudpickle.loads(cloudpickle.dumps(function))
        assert again is not function
        assert (again(1) if name == "add" else again(module.Trainer(), 3)) == (6 if name == "add" else 70)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert watcher.copies.empty()


def test_a_plain_function_is_watched_in_tasks_of_a_loop(module, watcher):
    """Calls in concurrent tasks are copied separately. (Coroutines themselves are reported as not watched.)"""
    methods = {"log_probs": ("watched_module", "Trainer.log_probs")}
    watcher.watch(_plan("Trainer.loss", ("self", ("()", "log_probs"), ("[]", 0)), methods=methods))

    async def one(number: int) -> int:
        await asyncio.sleep(0.01 * (3 - number))
        return int(module.Trainer().loss(number))

    async def every() -> list[int]:
        return await asyncio.gather(*map(one, range(3)))

    assert asyncio.run(every()) == [10, 30, 50]
    copies = [watcher.copies.get_nowait() for _ in range(3)]
    assert [(copy.parts.popitem()[1], copy.result) for copy in copies] == [(4, 50), (2, 30), (0, 10)]


@pytest.mark.slow
def test_torch_compile_sees_a_plain_call(module, watcher):
    watcher.watch(_plan("double", ("args",)))
    compiled = torch.compile(module.double, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert watcher.copies.empty()
