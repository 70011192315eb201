"""The adapters' kit restores what it replaces, and reads containers completely."""

import sys
import threading
import weakref
from dataclasses import dataclass
from functools import wraps
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sentinel.binding import families, kit
from sentinel.binding.drift import AbsentError, DriftError, RanksDisagreeError, StandInMissingError
from sentinel.targets import Binding, Target
from sentinel.worker.calling import Boundary


def test_a_swap_ends_with_its_block_even_after_an_error():
    owner = SimpleNamespace(name="own")
    with pytest.raises(KeyError), kit.swap(owner, "name", "other"):  # noqa: PT012
        assert owner.name == "other"
        raise KeyError
    assert owner.name == "own"


def test_a_missing_attribute_is_not_swapped():
    owner = SimpleNamespace()
    with kit.swap(owner, "name", "other"):
        assert not hasattr(owner, "name")


def test_several_swaps_end_together():
    owner = SimpleNamespace(name="own", size=1)
    with pytest.raises(KeyError), kit.swap_all(owner, name="other", size=2, lacking=3):  # noqa: PT012
        assert vars(owner) == {"name": "other", "size": 2}
        raise KeyError
    assert vars(owner) == {"name": "own", "size": 1}


def test_code_for_cuda_runs_on_the_cpu():
    owner = SimpleNamespace(torch=torch)
    with kit.on_cpu(owner):
        assert owner.torch.tensor(1.0, device="cuda").cuda().to("cuda", non_blocking=True).device.type == "cpu"
        assert torch.ones(1).to(torch.float64).dtype is torch.float64
        with owner.torch.autocast(device_type="cuda"):
            owner.torch.cuda.empty_cache()
    assert owner.torch is torch


def test_single_rank_mpu_is_first_and_last_rank_by_default():
    mpu = kit.make_single_rank_mpu(get_context_parallel_world_size=2)
    assert (mpu.get_data_parallel_world_size(), mpu.get_context_parallel_world_size(check=True)) == (1, 2)
    assert (mpu.is_pipeline_last_stage(), mpu.get_data_parallel_group()) == (True, None)


def test_a_stand_in_names_its_missing_attribute():
    with pytest.raises(StandInMissingError, match="size"):
        kit.stand_in(rank=0).size  # noqa: B018


def test_a_dotted_option_name_is_nested():
    options = kit.nest_options({"plain": 1, "actor.clip.low": 0.2, "actor.lr": 0.1})
    assert (options.plain, options.actor.clip.low, options.actor.lr) == (1, 0.2, 0.1)
    with pytest.raises(StandInMissingError, match="high"):
        options.actor.clip.high  # noqa: B018


def test_an_unbuilt_instance_has_only_the_given_attributes():
    class Trainer:
        def __init__(self) -> None:
            raise AssertionError("it starts a cluster")

        def rate(self) -> float:
            return self.given  # type: ignore[attr-defined,no-any-return]

    assert kit.make_unbuilt(Trainer, given=0.5).rate() == 0.5


def test_an_option_of_a_later_version_is_accepted_only_at_its_usual_value():
    class Loss:
        def __init__(self, clip: float) -> None: ...

    assert kit.keep_accepted(Loss, {"clip": 0.2, "dual": None}, {"dual": None}) == {"clip": 0.2}
    with pytest.raises(AbsentError, match="no option 'dual'"):
        kit.keep_accepted(Loss, {"clip": 0.2, "dual": 3.0}, {"dual": None})
    with pytest.raises(AbsentError, match="no option 'dual'"):
        kit.keep_accepted(Loss, {"dual": None})


def test_rows_have_the_interface_of_a_dataset():
    rows = kit.Rows([{"text": "a b", "kept": 1}, {"text": "c", "kept": 0}])
    made = rows.map(lambda row, by: {"words": row["text"].split(by)}, fn_kwargs={"by": " "}, remove_columns="text")
    assert made.column_names == ["kept", "words"]
    assert made["words"] == [["a", "b"], ["c"]]
    assert made.filter(lambda row: row["kept"] == 1) == [{"kept": 1, "words": ["a", "b"]}]
    assert rows.column_names == ["text", "kept"]
    assert rows.map(lambda row, place: {"place": place}, with_indices=True)["place"] == [0, 1]
    halved = rows.map(lambda columns: {"words": columns["text"][:1]}, batched=True)
    assert halved == [{"words": "a b"}], "as many rows as it gives"


def test_both_sides_are_padded_to_the_longer_one():
    torch = pytest.importorskip("torch")
    inputs = {"chosen_mask": torch.ones(1, 1), "rejected_mask": torch.ones(1, 3)}
    assert kit.join_both_sides(inputs, "mask", -1.0).tolist() == [[1, -1, -1], [1, 1, 1]]


@pytest.mark.parametrize(("found", "score"), [(1.0, 1.0), ({"score": 0.5, "acc": True}, 0.5), ((0.0, "said"), 0.0)])
def test_the_score_is_read_from_a_number_a_record_or_a_tuple(found, score):
    assert kit.score_of(found) == score


def test_a_row_with_a_wrong_label_is_left_out():
    import torch

    rows = kit.numbered_rows([2, 1, 3, 1])
    assert rows["attention_mask"].sum(-1).tolist() == [2, 1, 3, 1]
    held = {name: rows[name] for name in ("attention_mask", "row")}
    order = torch.tensor([2, 0, 3, 1])
    moved = {name: column[order] for name, column in held.items()}
    batch = SimpleNamespace(batch=moved, non_tensor_batch={"label": [2, 0, 3, 0]})
    assert kit.read_dealt_rows(batch, 2) == {"parts": [[2, 0], [3]]}


@pytest.fixture
def transformers() -> None:
    pytest.importorskip("transformers")  # not installed on Python 3.10


@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
def test_a_token_table_gives_each_token_its_own_log_prob():
    import torch

    table = torch.tensor([[-0.5, -2.0], [-1.0, -0.25]])
    model = kit.token_table(table, after=torch.tensor([-3.0, -4.0]))
    (first, second), size = kit.token_ids(torch.ones(2, 2)), model.config.vocab_size
    packed = torch.tensor([[0, *second, *first]])
    said = torch.log_softmax(model(packed).logits, -1)[0, :-1].gather(-1, packed[0, 1:, None])[:, 0]
    assert said.tolist() == pytest.approx([0.0, -1.0, -0.25, 0.0, -0.5, -2.0], abs=1e-6)
    assert model(torch.tensor([first])).logits.shape == (1, 3, size)
    assert torch.log_softmax(model(torch.tensor([first])).logits, -1)[0, -1, 0].item() == pytest.approx(-3.0)


@pytest.mark.usefixtures("transformers")
def test_an_end_token_stands_for_the_last_valid_token():
    import torch

    model = kit.token_table(torch.tensor([[-0.5, -2.0]]))
    mask = torch.tensor([[1, 0]])
    (ids,) = kit.token_ids(mask, ended=True)
    said = torch.log_softmax(model(torch.tensor([ids])).logits, -1)[0, 0, ids[1]]
    assert said.item() == pytest.approx(-0.5)
    assert kit.table_tokenizer(model)(kit.token_words(ids[:1]))["input_ids"] == ids[:1]


@pytest.mark.usefixtures("transformers")
def test_a_reward_table_ignores_padding():
    import torch

    model = kit.token_table(torch.tensor([[-0.5, -2.0], [-1.0, -0.25]]), scores=True)
    (long, short), mask = (
        kit.token_ids(torch.tensor([[1, 1], [1, 0]]), ended=True),
        torch.tensor([[1, 1, 1], [1, 1, 0]]),
    )
    scores = model(torch.tensor([long, [*short, 0]]), attention_mask=mask).logits
    assert scores.flatten().tolist() == pytest.approx([-2.5, -1.0])
    assert model.config.num_labels == 1


@pytest.mark.usefixtures("transformers")
def test_a_token_table_gets_the_gradient_of_each_token():
    import torch

    table = torch.tensor([[-0.5, -2.0], [-1.0, -0.25]], requires_grad=True)
    model = kit.token_table(table)
    ids = torch.tensor(kit.token_ids(table > -9))

    class Trainer:
        def train(self) -> SimpleNamespace:
            labels = ids.masked_fill(ids == ids[:, :1], -100)
            for _ in range(2):
                loss = model(ids, labels=labels).loss
                (loss / 2).backward()
            return SimpleNamespace(training_loss=loss.item())

    loss, arrived = kit.train(Trainer(), model)
    assert arrived[:, 1:-1].flatten().tolist() == pytest.approx([-0.25] * 4, rel=1e-5)
    (gradient,) = torch.autograd.grad(kit.attach_gradient(loss, table, arrived[:, 1:-1]), table)
    assert torch.equal(gradient, arrived[:, 1:-1])


@pytest.mark.usefixtures("transformers")
def test_random_generators_continue_after_a_seeded_block():
    import torch

    before = torch.get_rng_state()
    with kit.keep_random_state():
        torch.manual_seed(5)
    kit.token_table(torch.zeros(1, 1))
    assert torch.equal(before, torch.get_rng_state())


def test_simulated_ranks_exchange_values_and_restore_torch():
    import torch

    dist = torch.distributed
    before = dist.all_reduce

    def work(rank: int) -> Any:
        found = {"place": (dist.get_rank(), dist.get_world_size())}
        for name in ("SUM", "MAX", "AVG"):
            value = torch.tensor([rank + 1.0])
            dist.all_reduce(value, op=getattr(dist.ReduceOp, name))
            found[name] = value.item()
        gathered: list[Any] = [None] * 2
        dist.all_gather_object(gathered, {"rank": rank})
        return {**found, "gathered": gathered}

    first, second = kit.on_ranks(2, work)
    assert (first.pop("place"), second.pop("place")) == ((0, 2), (1, 2))
    assert first == second == {"SUM": 3.0, "MAX": 2.0, "AVG": 1.5, "gathered": [{"rank": 0}, {"rank": 1}]}
    assert dist.all_reduce is before


def test_ranks_keep_the_tracer_of_their_own_thread():
    """coverage.py makes one tracer per thread. With a shared tracer, it loses lines."""

    def shared(*_: Any) -> None:
        """Trace nothing."""

    def own(*_: Any) -> None:
        """Trace nothing."""

    before = sys.gettrace(), threading.gettrace()
    sys.settrace(shared)
    threading.settrace(own)
    try:
        tracers = kit.on_ranks(2, lambda _: sys.gettrace())
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
    assert tracers == [own, own]


def test_collectives_involve_only_the_ranks_of_a_group():
    """A rank that is alone in its group does not wait for other ranks."""
    import torch

    dist = torch.distributed

    def work(rank: int) -> Any:
        group = ((0, 1), (0, 1), (2,))[rank]
        value, gathered = torch.tensor([rank + 1.0]), [None] * len(group)
        dist.all_reduce(value, dist.ReduceOp.AVG, group)
        dist.all_gather_object(gathered, rank, group=group)
        dist.barrier(group=None)
        return value.item(), gathered, dist.get_world_size(group), dist.get_rank(group=group)

    assert kit.on_ranks(3, work) == [(1.5, [0, 1], 2, 0), (1.5, [0, 1], 2, 1), (3.0, [2], 1, 0)]


def test_simulated_ranks_run_one_at_a_time():
    """Otherwise stand-ins that collect results, and replaced functions, would depend on the scheduler."""
    import torch

    events: list[int] = []

    def work(rank: int) -> None:
        for _ in range(2):
            torch.distributed.barrier()
            events.extend(rank for _ in range(20_000))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        kit.on_ranks(3, work)
    finally:
        sys.setswitchinterval(interval)
    # The last rank to arrive at a barrier continues.
    assert [rank for rank, _ in groupby(events)] == [2, 0, 1, 0, 2]


def test_an_exception_of_one_rank_ends_all_ranks():
    import torch

    def work(rank: int) -> Any:
        if rank:
            raise ValueError("of rank 1")
        torch.distributed.barrier()

    with pytest.raises(ValueError, match="of rank 1"):
        kit.on_ranks(2, work)


def _whitens_where_it_has_tokens(rank: int) -> None:
    import torch

    if rank == 0:
        torch.distributed.all_reduce(torch.ones(1))


def _gathers_in_another_order(rank: int) -> None:
    import torch

    if rank == 0:
        torch.distributed.barrier()
    torch.distributed.all_gather([None, None], rank)


def _has_a_group_of_its_own(rank: int) -> None:
    import torch

    torch.distributed.all_reduce(torch.ones(1), group=None if rank else (0,))


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (_whitens_where_it_has_tokens, r"rank 0 called all_reduce \(.*test_kit.py:\d+\), rank 1 returned"),
        (_has_a_group_of_its_own, r"rank 0 returned, rank 1 called all_reduce \(.*:\d+\)"),
        (_gathers_in_another_order, r"rank 0 called barrier \(.*:\d+\), rank 1 called all_gather \(.*:\d+\)"),
    ],
)
def test_ranks_that_do_not_call_the_same_collectives_are_named(work, told):
    """A training run would hang there. Here, only the timeout would end the waiting ranks."""
    with pytest.raises(RanksDisagreeError, match=told):
        kit.on_ranks(2, work)


def _cut(values: object, bounds: object, left_pad: bool = False, scale: int = 1) -> object:
    return (values, bounds), {"left_pad": left_pad, "scale": scale}


def _boundary() -> Boundary:
    arguments = {"side": ("left_pad",)}
    binding = Binding("pkg.cut", "column_padding", arguments=arguments)
    return Boundary("pkg.cut", sys.modules[__name__], _cut, None, binding, frozenset({"values", "side", "other"}))


def test_a_call_is_declared_by_positions_names_and_values():
    inputs = {"values": [1], "bounds": 2, "side": "left", "other": 3}
    found = kit.call_with(
        _boundary(),
        inputs,
        leading=("values", "bounds"),
        takes=("side",),
        values_of={"side": {"left": True, "right": False}},
        reads={"padded": (0, 1), "told": 1},
        scale=4,
    )
    assert found == {"padded": 2, "told": {"left_pad": True, "scale": 4}}


def _group_mean(rewards: torch.Tensor, mask: torch.Tensor, group_size: int) -> tuple[torch.Tensor, None]:
    return (rewards.view(-1, group_size).mean(-1).repeat_interleave(group_size)[None] * mask), None


def test_a_call_is_declared_by_its_layout():
    binding = Binding("pkg.mean", "group_advantage", arguments={"values": ("rewards",)}, outputs=("advantages",))
    boundary = Boundary("pkg.mean", sys.modules[__name__], _group_mean, None, binding, frozenset({"values", "mask"}))
    values = torch.tensor([[1.0, 9.0], [2.0, 3.0]])
    inputs = {"values": values, "mask": torch.tensor([[1, 0], [1, 1]]), "group": ["p", "p"]}
    options = {"tokens_first": True, "sums": {"values": "mask"}, "bools": ("mask",), "group": "group_size"}
    found, nothing = kit.call_with(boundary, inputs, takes=("values", "mask"), **options)
    assert found.tolist() == [[3.0, 0.0], [3.0, 3.0]]  # the mean of 1 and 2 + 3, at the valid tokens
    assert nothing is None


def test_an_unsupported_value_belongs_to_another_version():
    with pytest.raises(AbsentError, match="does not support side=middle"):
        kit.call_with(_boundary(), {"values": [1], "bounds": 2, "side": "middle"}, values_of={"side": {"left": True}})


def test_an_input_that_a_function_lacks_is_drift():
    with pytest.raises(DriftError, match="no parameter for 'other'"):
        kit.call_with(_boundary(), {"values": [1], "bounds": 2, "other": 3})


def test_a_family_fixes_the_options_that_a_member_lacks():
    made = families.policy_loss("pkg.loss", _cut, "ppo", ("eps_clip_low",), mode="token-sum", accepts={"dp_size": (1,)})
    assert made.fixed["algorithm"] == "ppo"
    assert made.fixed["dual_clip"] is None
    assert made.fixed["loss_agg_mode"] == "token-sum"
    assert made.fixed["importance_weights"] is None
    assert "eps_clip_low" not in made.fixed
    several = families.policy_loss("pkg.loss", _cut, ("ppo", "gspo"), (), weights=True)
    assert several.accepts == {"algorithm": ("ppo", "gspo")}
    assert not several.fixed.keys() & {"algorithm", "importance_weights", "loss_agg_mode"}


def test_common_parameter_names_are_declared_once():
    own = Binding("pkg.a", "kl_estimate", arguments={"log_probs": ("logp",)})
    target = Target(
        "pkg", "", (), bindings=(own, Binding("pkg.b", "kl_estimate")), arguments={"log_probs": ("logprobs",)}
    )
    assert [binding.arguments["log_probs"] for binding in target.bindings] == [("logp",), ("logprobs",)]


@dataclass
class Options:
    """A framework's own configuration."""

    top_p: float = 0.7
    do_sample: bool = True


def test_a_configuration_has_the_given_options_and_reports_the_defaults():
    fields = {"top_p": "top_p", "greedy": ("do_sample", {True: False, False: True}), "seed": "seed"}
    given = {"top_p": None, "greedy": True, "seed": None}
    made, said = kit.with_options(Options, fields, given, max_length=3)
    assert (made, said) == (Options(0.7, False), {"top_p": 0.7, "greedy": True})
    with pytest.raises(AbsentError, match="seed"):
        kit.with_options(Options, fields, {**given, "seed": 1})


def test_a_command_line_is_a_configuration_too():
    def adds(parser: Any) -> None:
        parser.add_argument("--top-p", type=float, default=0.7)
        parser.add_argument("--seed", type=int, required=True)
        raise ImportError("an engine, which adds more")

    make = kit.parser_options(adds, port=1)
    made, said = kit.with_options(make, {"top_p": "top_p", "seed": "seed"}, {"top_p": None, "seed": 5})
    assert (made.top_p, made.seed, made.port) == (0.7, 5, 1)
    assert said == {"top_p": 0.7, "seed": 5}


def test_the_source_of_a_bound_method_is_read_once_for_all_objects():
    class Trainer:
        def step(self):
            return "two words"

    first, second = (kit.source_of(Trainer().step) for _ in range(2))
    assert first is second
    assert "two words" in first


def test_reading_a_source_keeps_no_wrapper_alive():
    def step():
        return "two words"

    wrapped = wraps(step)(lambda: step())
    gone = weakref.ref(wrapped)
    assert "two words" in kit.source_of(wrapped)
    del wrapped
    assert gone() is None
