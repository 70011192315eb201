"""prime-rl's training loops: a fault behind an option is detected by scenarios with the option, and not without."""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from binding_kit import NUMBERS, Bound, opened_twin

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import DoesNotApply
from sentinel.search.scenarios import draw
from sentinel.values.literals import tensor

#: "main in August 2026"
MAIN = "559b44772e471d1538537b8805cc77f3824a5e64"
RL, SFT = "src/prime_rl/trainer/rl/train.py", "src/prime_rl/trainer/sft/train.py"
BATCH, HEAD = "src/prime_rl/trainer/batch.py", "src/prime_rl/trainer/models/layers/lm_head.py"

#: The loop, the inputs that reach a fault, its file, the text to replace, and its replacement.
FAULTS: tuple[tuple[str, Mapping[str, Any], str, str, str], ...] = (
    (
        "rl", {"several_terms": True}, RL, 'local_ce_scale += int((micro_batch["ce_weights"] != 0).sum())',
        "local_ce_scale += int(mask.sum()) + 1",
    ),
    ("rl", {"dp_size": 2}, RL, "scale_gradients_(None, model, parallel_dims.fsdp_gradient_divide_factor)", "pass"),
    (
        "rl", {"max_norm": 0.25}, RL, "model, config.optim.max_norm, parallel_dims",
        "model, 2 * config.optim.max_norm, parallel_dims",
    ),
    (
        "rl", {"warmup_steps": 2}, RL, "        optimizer.step()\n        optimizer.zero_grad()",
        "        scheduler.step()\n        optimizer.step()\n        optimizer.zero_grad()",
    ),
    (
        "rl", {"entropies": tensor(NUMBERS["entropies"], "float32")}, RL,
        'tensors[f"entropy/{env_name}"].append(entropy[indices])',
        'tensors[f"entropy/{env_name}"].append(entropy[: len(indices)])',
    ),
    ("rl", {"fused_head": True}, HEAD, "inv_t = 1.0 / temperature", "inv_t = 1.0 * temperature"),
    (
        "rl", {"with_images": True}, BATCH, "mm_kwargs[key].data += sample.mm_kwargs[key].data",
        "mm_kwargs[key].data = sample.mm_kwargs[key].data + mm_kwargs[key].data",
    ),
    (
        "rl", {"with_routes": True}, BATCH, "routed_experts.data += sample.routed_experts.data",
        "routed_experts.data = sample.routed_experts.data + routed_experts.data",
    ),
    (
        "rl", {"context_parallel_size": 2}, RL,
        "labels = shard_for_cp(labels, cp_rank=cp_rank,", "labels = shard_for_cp(labels, cp_rank=0,",
    ),
    ("rl", {"resumes_after": 2, "steps": 4}, RL, "progress.step += 1\n        logger.info(", "logger.info("),
    (
        "rl", {"decay_steps": 2}, "src/prime_rl/trainer/scheduler.py", "total_iters=decay_steps - 1",
        "total_iters=decay_steps",
    ),
    (
        "sft", {"resumes_after": 2, "steps": 4}, SFT, "            progress.step += 1\n        # This",
        "            pass\n        # This",
    ),
    (
        "sft", {"validation_period": 2, "max_steps": 3, "epochs": 3}, SFT, "progress.step % config.val.interval == 0",
        "progress.step % config.val.interval == 1",
    ),
    (
        "rl", {"equivalent_options": 1}, RL, 'loss=tensor_stats["loss/mean"],\n                throughput',
        'loss=2 * tensor_stats["loss/mean"],\n                throughput',
    ),
    (
        "sft", {"offloads": True, "context_parallel_size": 2}, SFT,
        "global_step_token_count.item() // cp_size", "global_step_token_count.item()",
    ),
    ("sft", {"validates": True}, SFT, "total_token_count += token_count", "total_token_count += token_count + 1"),
    (
        "sft", {"fused_head": True}, SFT, 'loss_sum = -out["logprobs"][loss_mask].sum()',
        'loss_sum = -out["logprobs"].sum()',
    ),
)  # fmt: skip
#: The boundary below prime_rl, its contract, and a fault that the loops do not reach.
FUNCTIONS = (
    ("trainer.batch.prepare_sample", "truncation", BATCH, "ce_weights[:cut]", "ce_weights[-cut:]"),
    (
        "trainer.sft.data.cat_collate", "collation", "src/prime_rl/trainer/sft/data.py",
        'packed_samples["mm_token_type_ids"] = [0] * existing_len', 'packed_samples["mm_token_type_ids"] = []',
    ),
    (
        "trainer.sft.data.SFTDataset.__iter__", "epoch_order", "src/prime_rl/trainer/sft/data.py",
        "self.data_rank:\n                continue\n\n            # Get example",
        "1 - self.data_rank:\n                continue\n\n            # Get example",
    ),
    (
        "orchestrator.trajectories.trace_to_samples", "collation", "src/prime_rl/orchestrator/trajectories.py",
        "weights.extend(node_weights)", "weights.extend(node_weights[::-1])",
    ),
    (
        "orchestrator.train_sink.TrainSink.process_batch", "rollout_collection",
        "src/prime_rl/orchestrator/train_sink.py", "running >= self.token_batch_size",
        "running > self.token_batch_size",
    ),
    (
        "utils.cp.shard_position_ids_for_cp", "row_surgery", "src/prime_rl/utils/cp.py",
        "cp_rank=cp_rank, cp_world_size=cp_world_size, seq_dim=2", "cp_rank=0, cp_world_size=cp_world_size, seq_dim=2",
    ),
)  # fmt: skip
PARAMS = [pytest.param(*fault[:2], id=f"{fault[0]}-{next(iter(fault[1]))}") for fault in FAULTS]
#: Inputs with which no fault runs.
PLAIN = {
    **dict.fromkeys(("warmup_steps", "decay_steps"), 0),
    **dict.fromkeys(("steps", "dp_size"), 1),
    **dict.fromkeys(("max_norm", "micro_batch_size", "entropies")),
}
MASK = ((1, 1, 1), (1, 0, 0), (1, 1, 0), (0, 1, 1))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bound]:
    edits = [fault[2:] for fault in (*FAULTS, *FUNCTIONS)]
    yield from opened_twin("primerl", MAIN, edits, tmp_path_factory.mktemp("primerl"))


def _violations(code: Bound, loop: str, inputs: Mapping[str, Any], contract: str) -> list[str]:
    subject = code.subject(f"prime_rl.trainer.{loop}.train.train", contract)
    inputs = {name: value for name, value in {**PLAIN, **inputs}.items() if subject.contract.input(name)}
    found = []
    for seed in range(4):
        choose = Choices(random.Random(seed).randbytes(4096))
        scenario = code.scenarios(subject, MASK, choose, inputs)["plain"]
        for law in ("the_oracle_agrees", "metrics_tell_the_truth"):
            with contextlib.suppress(DoesNotApply):  # some loops log nothing that the contract defines
                trial = code.ask(subject, law, {"": scenario})
                assert not trial.refused
                found += [item.detail for item in trial.violations]
    return found


@pytest.mark.parametrize(("loop", "inputs"), PARAMS)
def test_a_fault_behind_an_option_is_detected(faulty, loop, inputs):
    contract = "training_loop" if inputs.keys() & {"epochs", "equivalent_options"} else "loop_update"
    assert _violations(faulty, loop, inputs, contract) != []


@pytest.mark.parametrize("contract", ["loop_update", "training_loop"])
@pytest.mark.parametrize("loop", ["rl", "sft"])
def test_plain_scenarios_do_not_reach_the_faults(faulty, loop, contract):
    assert _violations(faulty, loop, {}, contract) == []


@pytest.mark.parametrize(("boundary", "contract"), [function[:2] for function in FUNCTIONS])
def test_a_fault_of_a_function_is_detected(faulty, boundary, contract):
    subject = faulty.subject(f"prime_rl.{boundary}", contract)
    laws = {law.name for law in subject.laws} & {"the_oracle_agrees", "fields_survive_surgery"}
    trials = []
    for seed in range(8):
        scenario = draw(subject.contract, subject.binding, Choices(random.Random(seed).randbytes(4096)))
        trials += [faulty.ask(subject, law, {"": scenario}) for law in sorted(laws)]
    assert not all(trial.refused for trial in trials)
    assert any(trial.violations for trial in trials)
