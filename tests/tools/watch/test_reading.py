"""A call of a run is converted to the one scenario from which the adapter would make the same call."""

import importlib
import inspect
import sys
from types import ModuleType

import pytest
import torch

from sentinel.binding import kit
from sentinel.binding.families import policy_loss
from sentinel.contracts.loss_aggregation import LOSS_AGGREGATION
from sentinel.contracts.policy_loss import POLICY_LOSS
from sentinel.contracts.responses import RESPONSE_MASKS
from sentinel.contracts.updates import POLICY_UPDATE
from sentinel.deciding.law_session import Subject
from sentinel.search.scenarios import narrow
from sentinel.targets import Binding
from sentinel.tools.watch.reading import Unreadable, reading_of, written
from sentinel.tools.watch.values import at
from sentinel.worker import stubs
from sentinel.worker.calling import Boundary


def agg_loss(values, mask, total, ids=None, power=1):
    return ((values * mask).sum() / total) ** power


def _call(boundary, inputs):
    """Pass a count of tokens as a trainer does: the global batch's, or else this batch's. ``ids`` have no effect."""
    mask, total = inputs["response_mask"], inputs["batch_num_tokens"]
    total = torch.as_tensor(mask.sum() if total is None else total)
    return {"loss": boundary.function(inputs["loss_mat"], mask, total, ids=torch.ones_like(mask, dtype=torch.long))}


def _reading(function=agg_loss, call=_call):
    left_out = ("global_batch_size", "dp_size", "loss_scale_factor", "weights")
    accepts = {"loss_agg_mode": ("token-mean",), **dict.fromkeys(left_out, (None,))}
    binding = Binding("run.agg_loss", "loss_aggregation", call=call, outputs=("loss",), accepts=accepts)
    subject = Subject(binding, narrow(LOSS_AGGREGATION, binding), (), "", "run.agg_loss")
    return reading_of(0, subject, Boundary("run.agg_loss", ModuleType("run"), function, None, binding))


def _parts(reading, **changed):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    call = {"values": torch.rand(2, 3), "mask": mask, "total": torch.tensor(7), "ids": torch.zeros(2, 9), "power": 1}
    return {path: at({**call, **changed}, path, {}) for path in reading.plan.paths}


@pytest.fixture(scope="module")
def reading():
    return _reading()


def test_a_count_is_read_from_its_argument(reading):
    """The default count, the mask's sum, may be read as None."""
    assert reading.read(_parts(reading))["batch_num_tokens"] == 7
    assert reading.read(_parts(reading, total=torch.tensor(3)))["batch_num_tokens"] in (3, None)


def test_parts_without_effect_are_not_copied(reading):
    assert [written(path) for path in reading.plan.paths] == ["mask", "power", "total", "values"]


def test_an_argument_unknown_to_the_adapter_is_named(reading):
    with pytest.raises(Unreadable, match="power is 2, but 1 in the adapter's call"):
        reading.read(_parts(reading, power=2))


@pytest.mark.parametrize("instead", ["values", "ones"])
def test_a_missing_input_has_the_functions_substitute(instead):
    """For example, a loss uses the current log-probs if it is called without those of the rollout."""

    def loss(values, mask, total, ids=None, power=1):
        if mask is None:
            mask = values.detach() if instead == "values" else torch.ones(values.shape)
        return ((values * mask).sum() / total) ** power

    reading, values = _reading(function=loss), torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    if instead == "ones":
        with pytest.raises(Unreadable, match="mask is missing"):
            reading.read(_parts(reading, values=values, mask=None))
    else:
        assert reading.read(_parts(reading, values=values, mask=None))["response_mask"].nested() == values.tolist()


def test_observed_keys_reproduce_the_functions_result(reading):
    inputs = reading.read(_parts(reading))
    seen = torch.tensor([[0.5, 0.25, 9.0], [1.0, 9.0, 9.0]])
    observed = reading.observe(inputs, torch.tensor(0.25), {("values",): seen})
    assert observed["loss"].array() == 0.25
    assert observed["per_token_gradient"].nested() == seen.tolist()
    assert "per_token_gradient" not in reading.observe(inputs, torch.tensor(0.25), {})
    assert reading.keys == {"loss", "per_token_gradient"}


def test_an_adapter_may_look_at_the_function_itself():
    """TRL's adapter reads the source of a loss to find out which losses this version has."""

    def call(boundary, inputs):
        assert "def agg_loss(" in inspect.getsource(boundary.function)
        assert inspect.unwrap(boundary.function) is agg_loss
        return _call(boundary, inputs)

    assert _reading(call=call).reads(_parts(_reading()))


def test_an_exception_of_the_adapter_is_the_cause():
    def call(boundary, inputs):
        raise TypeError("an adapter's own mistake")

    with pytest.raises(TypeError, match="an adapter's own mistake"):
        _reading(call=call)


def test_an_input_that_the_contract_computes_gives_no_reading():
    def call(boundary, inputs):
        return {"response_mask": boundary.function(inputs["responses"], inputs["eos_token_id"])}

    binding = Binding("run.mask", "response_masks", call=call, outputs=("response_mask",))
    subject = Subject(binding, narrow(RESPONSE_MASKS, binding), (), "", "run.mask")
    boundary = Boundary("run.mask", ModuleType("run"), lambda ids, stop: (ids != stop).long(), None, binding)
    with pytest.raises(Unreadable, match="because the contract response_masks computes responses from them"):
        reading_of(0, subject, boundary)


def test_an_adapter_that_calls_another_function_gives_no_reading():
    with pytest.raises(Unreadable, match="does not call the function directly"):
        _reading(call=lambda boundary, inputs: {"loss": inputs["loss_mat"].sum()})


def test_a_function_that_needs_a_stubbed_package_is_not_read(monkeypatch):
    """A value that depends on a stub module is not a value of the run."""
    monkeypatch.setattr(stubs.state(), "probing", True)
    monkeypatch.setattr(sys, "meta_path", [stubs.InertModules(["much_memory"]), *sys.meta_path])
    module = importlib.import_module("much_memory.inside")
    for name in ("much_memory", "much_memory.inside"):
        monkeypatch.delitem(sys.modules, name)

    def call(boundary, inputs):
        return _call(boundary, inputs) if module.frames(inputs) else {}

    with pytest.raises(Unreadable, match=r"calls much_memory\.inside\.frames, which the checker leaves out"):
        _reading(call=call)
    stubs.state().used.clear()


def shifted_loss(data):
    mask = data["mask"][:, 1:]
    return (data["values"][:, 1:] * mask * data["rows"][:, None]).sum() / mask.sum()


def _call_shifted(boundary, inputs):
    """Call a function of tensors with an additional first column, which does not affect the result."""
    mask = inputs["response_mask"]
    data = {"values": inputs["loss_mat"], "mask": mask}
    data = {name: torch.nn.functional.pad(value.float(), (1, 0)) for name, value in data.items()}
    return {"loss": boundary.function({**data, "rows": (mask != 0).any(-1).float()})}


def test_a_column_before_the_first_token_is_ignored():
    """The adapter's column is 0, but the run's may have any value. Calls of the function show that it has no effect."""
    reading = _reading(shifted_loss, _call_shifted)
    data = {"values": torch.tensor([[9.0, 0.5, 2.0]]), "mask": torch.tensor([[0, 1, 1]]), "rows": torch.ones(1)}
    inputs = reading.read({path: at({"data": data}, path, {}) for path in reading.plan.paths})
    assert inputs["loss_mat"].array().tolist() == [[0.5, 2.0]]
    assert inputs["response_mask"].array().tolist() == [[1, 1]]


def test_an_effective_argument_is_not_attributed_to_the_adapter():
    """Small numbers still show the effect of ``rows``: factors 1 and 2 change 1e-9, although they do not change 0."""
    reading = _reading(shifted_loss, _call_shifted)
    data = {"values": torch.tensor([[0.0, 1e-9]]), "mask": torch.tensor([[0, 1]]), "rows": torch.full((1,), 2.0)}
    with pytest.raises(Unreadable, match="rows"):
        reading.read({path: at({"data": data}, path, {}) for path in reading.plan.paths})


def test_packed_tokens_are_read_as_one_response():
    """A one-dimensional tensor with the tokens of all responses is one row, unless the function separates responses."""
    reading = _reading()
    call = {"values": torch.tensor([0.5, 1.0, 8.0]), "mask": torch.tensor([1, 1, 0]), "total": torch.tensor(2)}
    inputs = reading.read({path: at({**call, "power": 1}, path, {}) for path in reading.plan.paths})
    assert inputs["loss_mat"].array().tolist() == [[0.5, 1.0, 8.0]]
    observed = reading.observe(inputs, torch.tensor(0.75), {("values",): torch.tensor([0.5, 0.5, 0.0])})
    assert observed["per_token_gradient"].nested() == [[0.5, 0.5, 0.0]]

    def by_row(values, mask, total, ids=None, power=1):
        return ((values * mask).sum(0) ** 2 / total).sum() ** power

    reading = _reading(function=by_row)
    with pytest.raises(Unreadable, match="mask is a tensor"):
        reading.read({path: at({**call, "power": 1}, path, {}) for path in reading.plan.paths})


def test_a_difference_of_log_probs_is_read_as_two_inputs():
    """The call has no mask, so keys that depend on the mask are not compared."""

    def loss(ppo_kl, advantages, low, high):
        ratio = (-ppo_kl).exp()
        return torch.maximum(-ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages)

    def call(boundary, inputs):
        bounds = inputs["eps_clip_low"], inputs["eps_clip_high"]
        between = inputs["old_log_probs"] - inputs["log_probs"]
        return {"per_token_loss": boundary.function(between, inputs["advantages"], *bounds)}

    binding = policy_loss("run.loss", call, "ppo", ("eps_clip_low", "eps_clip_high"), mode="token-sum")
    subject = Subject(binding, narrow(POLICY_LOSS, binding), (), "", "run.loss")
    reading = reading_of(0, subject, Boundary("run.loss", ModuleType("run"), loss, None, binding))
    assert "per_token_loss" in reading.keys
    assert not {"loss", "approx_kl", "per_token_gradient"} & reading.keys
    parts = {"ppo_kl": torch.tensor([-0.5, 0.25]), "advantages": torch.tensor([1.0, -1.0]), "low": 0.2, "high": 0.3}
    inputs = reading.read({path: at(parts, path, {}) for path in reading.plan.paths})
    assert (inputs["old_log_probs"].array() - inputs["log_probs"].array()).tolist() == [[-0.5, 0.25]]
    assert reading.observe(inputs, torch.tensor([-1.3, 0.8]), {})["per_token_loss"].array().shape == (1, 2)


def test_an_option_that_the_adapter_leaves_off_is_not_read_as_off():
    """The adapter passes the values as their own reference, so only a run's call shows the coefficient's effect."""

    def loss(values, mask, total, ids=None, power=1, coefficient=0.0, reference=None):
        away = 0.0 if reference is None else (coefficient * (values - reference).abs() * mask).sum()
        return (((values * mask).sum() + away) / total) ** power

    def call(boundary, inputs):
        mask, total = inputs["response_mask"], inputs["batch_num_tokens"]
        total, values = torch.as_tensor(mask.sum() if total is None else total), inputs["loss_mat"]
        return {"loss": boundary.function(values, mask, total, reference=values.detach())}

    reading, values = _reading(loss, call), torch.rand(2, 3)
    read = {"values": values, "coefficient": 0.0, "reference": values.detach()}
    assert reading.read(_parts(reading, **read))["loss_mat"].nested() == values.tolist()
    with pytest.raises(Unreadable):
        reading.read(_parts(reading, **{**read, "coefficient": 0.1, "reference": torch.rand(2, 3)}))


def test_the_adapter_may_run_the_backward_pass():
    """The gradients of the run's loss are copied, so a second backward pass of the example calls must not be needed."""

    def loss(log_probs, old, advantages, mask, reference, beta):
        ratio = (log_probs - old).exp()
        losses = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        if reference is not None:
            behind = reference - log_probs
            losses = losses + beta * (behind.exp() - behind - 1)
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    def call(boundary, inputs):
        names = "log_probs", "old_log_probs", "advantages", "response_mask", "ref_log_probs", "kl_coef"
        boundary.function(*(inputs[name] for name in names)).backward()
        return kit.gradients_of(inputs)

    fixed = {"kl_estimator": "k3", "loss_agg_mode": "token-mean", "dp_size": 1, "eps_clip_low": 0.2}
    left_out = ("entropies", "dual_clip", "mini_batch_size", "micro_batch_size", "max_tokens_per_microbatch")
    fixed |= {**dict.fromkeys(left_out), "eps_clip_high": 0.2, "entropy_coef": 0.0}
    binding = Binding("run.loss", "policy_update", call=call, fixed=fixed)
    subject = Subject(binding, narrow(POLICY_UPDATE, binding), (), "", "run.loss")
    reading = reading_of(0, subject, Boundary("run.loss", ModuleType("run"), loss, None, binding))
    row, mask = torch.tensor([[-1.0, -0.5]]), torch.tensor([[1, 1]])
    parts = {"log_probs": row, "old": row, "advantages": row, "mask": mask, "reference": row * 2, "beta": 0.3}
    inputs = reading.read({path: at(parts, path, {}) for path in reading.plan.paths})
    assert inputs["kl_coef"] == 0.3
    gradient = torch.tensor([[0.25, -0.5]])
    assert reading.observe(inputs, torch.tensor(1.0), {("log_probs",): gradient})["gradient"].nested() == [[0.25, -0.5]]
