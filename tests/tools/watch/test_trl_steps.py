"""TRL's documented steps on small batches whose values are computed by hand, without TRL."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sentinel import DoesNotApply, Steps
from sentinel.recipes.catalog import bundled_catalog

_ROWS = [{"input_ids": [5, 6, 7, 8], "seq_lengths": [3, 1], "labels": [5, 6, 7, 8]}, {"input_ids": [9], "labels": [9]}]


def _steps(trainer: str) -> Steps:
    return next(one for one in bundled_catalog().targets["trl"].steps if one.trainer.endswith(f".{trainer}"))


def _passes(**log_probs: Any) -> list[dict[str, Any]]:
    return [
        {"model": name.rpartition("_")[0], "reported": {"log_probs": torch.tensor(one), "aux_loss": None}}
        for name, one in log_probs.items()
    ]


def _micro(forwards: list[dict[str, Any]], attributes: dict[str, Any], options: Any = None, **more: Any) -> Any:
    facts = {"given": {"columns": more.pop("columns", {})}, "adapters": False, "collator": ""}
    named = {"forwards": forwards, "attributes": attributes, "options": options or {}, "world": 1, "rewards": None}
    named["evaluating"] = False
    return SimpleNamespace(facts=facts, batch=more, **named)


def _kto(kind: str, **attributes: Any) -> Any:
    mask = torch.tensor([[0, 1, 1], [0, 1, 0]])
    had = {"loss_type": kind, "beta": 0.5, "desirable_weight": 2.0, "undesirable_weight": 1.0,
           "calculate_KL": kind == "kto", "precompute_ref_logps": False, **attributes}  # fmt: skip
    other = {"trained_kl": [[-1.0, -1.0], [-1.0, 0.0]], "trained": [[-1.0, -2.0], [-3.0, 0.0]],
             "reference_kl": [[-2.0, -1.0], [-2.0, 0.0]], "reference": [[-2.0, -2.0], [-2.0, 0.0]]}  # fmt: skip
    passes = _passes(**{f"{name}_": one for name, one in other.items() if had["calculate_KL"] or "_kl" not in name})
    for one in passes:
        one["model"] = one["model"].removesuffix("_kl")
    label = torch.tensor([True, False])
    return _micro(passes, had, label=label, completion_mask=mask, KL_completion_mask=mask)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


class _Words:
    """A tokenizer whose tokens are the letters of a text, and 0 for its end."""

    __module__ = "transformers.words"
    eos_token, eos_token_id = ".", 0

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [0 if one == "." else ord(one) for one in text]}

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = False, **more: Any) -> dict[str, Any]:
        texts = [(f"{one['role'][0]}{one['content']}.", one["role"] == "assistant") for one in messages]
        ids = [token for text, _ in texts for token in self(text)["input_ids"]]
        masks = [int(own and place > 0) for text, own in texts for place in range(len(text))]
        return {"input_ids": ids + [ord("a")] * add_generation_prompt, "assistant_masks": masks}


def _of_dataset(**options: Any) -> Any:
    named = {"max_length": None, "truncation_mode": "keep_start", "assistant_only_loss": False,
             "dataset_text_field": "text", "per_device_train_batch_size": 2, "dataset_num_proc": None,
             **options}  # fmt: skip
    more = {"chat_template": None, "completion_only_loss": True, "processing_class": _Words()}
    return SimpleNamespace(args=SimpleNamespace(**named), **more)


_A, _B, _C = map(ord, "abc")
_CHAT = {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "b"}]}
_SAID = [ord("u"), _C, 0, _A, _B, 0]


@pytest.mark.parametrize(
    ("kind", "row", "options", "how"),
    [
        ("SFT", {"prompt": "ab", "completion": "c", "input_ids": [_A, _B, _C, 0], "labels": [-100, -100, _C, 0]}, {},
         ""),
        ("SFT", {"prompt": "ab", "completion": "c", "input_ids": [_A, _B, _C, 0], "labels": [-100, _B, _C, 0]}, {},
         "row 0 trains on 3 of its 4 tokens and should train on 2; the first difference: token 1 is trained"),
        ("SFT", {"prompt": "ab", "completion": "c", "input_ids": [_A, _B, _C], "labels": [-100, -100, _C]}, {},
         "input_ids of row 0 has no end token"),
        ("SFT", {"text": "ab.", "input_ids": [_A, _B], "labels": [_A, _B]}, {"max_length": 2}, ""),
        ("SFT", {"text": "ab", "input_ids": [_B, 0], "labels": [_B, 0]},
         {"max_length": 2, "truncation_mode": "keep_end"}, ""),
        ("SFT", {**_CHAT, "input_ids": _SAID, "labels": [-100] * 4 + [_B, 0]}, {"assistant_only_loss": True}, ""),
        ("SFT", {**_CHAT, "input_ids": _SAID, "labels": _SAID}, {"assistant_only_loss": True},
         "row 0 trains on 6 of its 6 tokens and should train on 2; the first difference: token 0 is trained"),
        ("DPO", {"prompt": "a", "chosen": "b", "rejected": "c.", "prompt_ids": [_A], "chosen_ids": [_B, 0],
                 "rejected_ids": [_C, 0]}, {}, ""),
        ("DPO", {"prompt": "ab", "chosen": "b", "rejected": "c", "prompt_ids": [_B], "chosen_ids": [_B, 0],
                 "rejected_ids": [_C, 0]}, {}, "prompt_ids of row 0 has 1 tokens, and its text has 2: token 0 differs"),
        ("Reward", {"chosen": "ab", "rejected": "ac.", "chosen_ids": [_A, _B, 0], "rejected_ids": [_A, _C, 0]}, {}, ""),
        ("Reward", {"prompt": "a", "chosen": "ab", "rejected": "c", "chosen_ids": [_A, _B, 0],
                    "rejected_ids": [_A, _C]}, {}, "rejected_ids of row 0 has no end token"),
    ],
)  # fmt: skip
def test_prepared_rows_have_the_tokens_of_their_text(kind, row, options, how):
    tokens: Any = _steps(f"{kind}Trainer").tokens
    said = tokens(_of_dataset(**options), [row])
    assert said.startswith(how)
    assert bool(said) == bool(how)


@pytest.mark.parametrize(
    ("others", "how"),
    [
        ([[_C, 0], [_B, 0]], ""),
        ([[_B, 0], [_C, 0]], "KL_completion_ids of each of the first 2 rows are the row's own completion"),
        ([[_C, 0], [_C, 0]], "KL_completion_ids of the first 2 rows are not a permutation of these rows' completions"),
    ],
)
def test_kl_completions_are_those_of_other_rows(others, how):
    rows = [
        {
            "prompt": "a",
            "completion": text,
            "prompt_ids": [_A],
            "completion_ids": [ord(text), 0],
            "KL_completion_ids": one,
        }
        for text, one in zip("bc", others)
    ]
    tokens: Any = _steps("KTOTrainer").tokens
    said = tokens(_of_dataset(), rows)
    assert said.startswith(how)
    assert bool(said) == bool(how)


@pytest.mark.parametrize(
    ("changed", "how"),
    [
        ({}, ""),
        ({"label": [0, 1]}, "label of row 0 of a batch is 0, and 1 in the dataset"),
        ({"completion_mask": [[1, 1, 0], [0, 1, 0]]}, "completion_mask of token 0 in row 0 of a batch is 1, not 0"),
        ({"attention_mask": [[1, 1, 1], [1, 1, 0]]}, "attention_mask of token 2 in row 0 of a batch is 1, not 0"),
    ],
)
def test_a_kto_batch_has_the_labels_and_masks_of_its_rows(changed, how):
    (compare,) = _steps("KTOTrainer").collators.values()
    rows = [
        {"prompt_ids": [5], "completion_ids": [6], "label": True},
        {"prompt_ids": [7], "completion_ids": [8], "label": False},
    ]
    kept = {"input_ids": [[5, 6, 0], [7, 8, 0]], "attention_mask": [[1, 1, 0], [1, 1, 0]],
            "completion_mask": [[0, 1, 0], [0, 1, 0]], "label": [1, 0]}  # fmt: skip
    collator = type("DataCollatorForUnpairedPreference", (), {"max_length": 2})()
    assert compare(collator, rows, {name: torch.tensor(one) for name, one in {**kept, **changed}.items()}) == how


def test_kto_compares_each_row_with_the_kl_and_weights_it():
    loss, _ = _steps("KTOTrainer").loss(_kto("kto"))  # type: ignore[misc]
    # Log-ratios are 1 and -1, and the KL of the mismatched rows is (1 + 1) / 2.
    assert float(loss) == pytest.approx((2 * (1 - _sigmoid(0.5 * (1 - 1))) + 1 - _sigmoid(0.5 * (1 + 1))) / 2)
    loss, _ = _steps("KTOTrainer").loss(_kto("apo_zero_unpaired"))  # type: ignore[misc]
    assert float(loss) == pytest.approx((2 * (1 - _sigmoid(0.5)) + _sigmoid(-0.5)) / 2)
    with pytest.raises(DoesNotApply, match="loss_type 'new' is unknown"):
        _steps("KTOTrainer").loss(_kto("new"))  # type: ignore[misc]


def test_dpos_loss_type_sft_is_the_mean_of_chosen_tokens():
    """Unlike the other loss types, it does not depend on the sums of log-probs."""
    had = {"loss_types": ["sft"], "loss_weights": [0.5], "ld_alpha": None, "precompute_ref_logps": False, "beta": 0.1,
           "use_weighting": False, "label_smoothing": 0.0, "f_alpha_divergence_coef": 1.0,
           "f_divergence_type": "reverse_kl"}  # fmt: skip
    forwards = _passes(trained_=[[-1.0, -2.0], [-3.0, -4.0]], reference_=[[-1.0, -1.0], [-1.0, -1.0]])
    micro = _micro(forwards, had, completion_mask=torch.tensor([[0, 1, 1], [0, 1, 0]]))
    loss, _ = _steps("DPOTrainer").loss(micro)  # type: ignore[misc]
    assert float(loss) == pytest.approx(0.5 * 1.5)


def test_a_reward_model_is_trained_on_margins_and_centered():
    scores = torch.tensor([[1.0], [2.0], [0.5], [3.0]])
    forwards: Any = [{"model": "trained", "reported": {"log_probs": None, "aux_loss": None, "scores": scores}}]

    def loss(center: float | None, **more: Any) -> float:
        micro = _micro(forwards, {}, {"center_rewards_coefficient": center}, **more)
        return float(_steps("RewardTrainer").loss(micro)[0])  # type: ignore[misc]

    plain = -(math.log(_sigmoid(0.5)) + math.log(_sigmoid(-1.0))) / 2
    assert loss(None) == pytest.approx(plain)
    assert loss(0.1) == pytest.approx(plain + 0.1 * (1.5**2 + 5.0**2) / 2)
    margin = -(math.log(_sigmoid(0.25)) + math.log(_sigmoid(-1.5))) / 2
    assert loss(None, margin=torch.tensor([0.25, 0.5])) == pytest.approx(margin)
    lost = _micro(forwards, {}, columns={"margin": "float"})
    assert _steps("RewardTrainer").batch(lost) == "the margins of the dataset do not reach the batch"  # type: ignore[misc]


@pytest.mark.parametrize("own", [True, False])
def test_rloos_rewards_have_the_penalty_of_the_reference(own):
    """The reference is a separate model, or the trained model without its LoRA adapter, in the last forward passes."""
    had = {"beta": 0.5, "normalize_advantages": False, "num_generations": 2, "reward_weights": [1.0]}
    forwards = _passes(trained_=[[-1.0, -2.0], [-1.0, -5.0]], reference_=[[-2.0, -2.0], [-3.0, -9.0]])
    forwards[1]["model"] = "reference" if own else "trained"
    mask = torch.tensor([[1, 1], [1, 0]])
    micro = _micro(forwards, had, completion_mask=mask, advantages=torch.zeros(2))
    micro.rewards = [(0, [3.0, 1.0])]
    advantages, _ = _steps("RLOOTrainer").advantages(micro)  # type: ignore[misc]
    # The summed log-ratios are 1 and 2, so the rewards are 2.5 and 0.
    assert advantages.tolist() == pytest.approx([2.5, -2.5])


@pytest.mark.parametrize(
    ("changed", "how"),
    [
        ({}, ""),
        ({"position_ids": [[0, 1, 2, 3, 0]]}, "position_ids of token 3 in row 0 of a batch is 3, not 0"),
        ({"labels": [[-100, 6, 7, 8, -100]]}, "labels of token 3 in row 0 of a batch differs from the dataset row"),
        ({"input_ids": [[5, 6, 7, 8]]}, "input_ids of token 4 in row 0 of a batch differs from the dataset row"),
    ],
)
def test_positions_and_labels_restart_at_each_document(changed, how):
    (compare,) = _steps("SFTTrainer").collators.values()
    kept = {"input_ids": [[5, 6, 7, 8, 9]], "position_ids": [[0, 1, 2, 0, 0]], "labels": [[-100, 6, 7, -100, -100]]}
    batch = {name: torch.tensor(one) for name, one in {**kept, **changed}.items()}
    collator = type("DataCollatorForLanguageModeling", (), {"padding_free": True})()
    assert compare(collator, _ROWS, batch) == how
    with pytest.raises(DoesNotApply, match="the collator is your own"):
        compare(object(), _ROWS, batch)


@pytest.mark.parametrize(
    ("iterations", "accumulation", "evaluating", "has", "how"),
    [
        (2, 2, False, False, "old_per_token_logps is missing, although completions are used for 4 micro-batches, and"),
        (2, 2, False, True, ""),
        (1, 2, False, False, ""),  # no step between generation and the last use
        (1, 3, False, False, "old_per_token_logps is missing"),  # the second rollout is used in two steps
        (2, 2, True, False, ""),
    ],
)
def test_completions_that_are_used_after_a_step_need_old_log_probs(iterations, accumulation, evaluating, has, how):
    options = {"steps_per_generation": 2, "num_iterations": iterations, "gradient_accumulation_steps": accumulation}
    batch = {"completion_ids": torch.tensor([[5, 1], [5, 6]]), "completion_mask": torch.ones(2, 2, dtype=torch.long)}
    batch |= {"old_per_token_logps": torch.zeros(2, 2)} if has else {}
    micro = _micro([], {"eos_token_ids": [1]}, options, **batch)
    micro.evaluating, micro.facts["generation"] = evaluating, []
    said = _steps("GRPOTrainer").batch(micro)  # type: ignore[misc]
    assert said.startswith(how)
    assert bool(said) == bool(how)


def test_the_epoch_and_the_reference_follow_from_the_configuration():
    steps = _steps("GRPOTrainer")
    options = {"num_generations": 4, "num_iterations": 2, "steps_per_generation": 3, "generation_batch_size": 24}
    assert steps.epoch(options) == (5, 24)  # type: ignore[misc]
    args = SimpleNamespace(sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.6)
    assert [steps.synchronized(args, step) for step in (1, 2, 3)] == [0.0, 0.6, 0.0]  # type: ignore[misc]
    args.sync_ref_model = False
    assert steps.synchronized(args, 2) is None  # type: ignore[misc]


def test_what_no_invariant_checks_is_described():
    unwatched = _steps("SFTTrainer").unwatched
    assert unwatched is not None
    assert [one.partition(",")[0] for one in unwatched({"packing": True, "use_liger_kernel": True})] == [
        "the loss and its backward pass", "which tokens packing cuts off",
    ]  # fmt: skip
