"""Make models, tokenizers, trainers and batches for frameworks that build on transformers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from sentinel.binding.kit.calls import prepend_prompt
from sentinel.binding.kit.configurations import keep_accepted
from sentinel.binding.kit.objects import bookkeeping, return_first, stand_in, swap
from sentinel.values.lazy import torch


def tables_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flattened tables of log-probs and entropies that a stand-in model looks up.

    A table is [rows, 1 + response tokens]; its first column, 0, is for a one-token prompt.
    """
    there = [name for name in ("log_probs", "entropies") if inputs[name] is not None]
    return {name: prepend_prompt(inputs[name]).flatten() for name in there}


def gradients_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients of the scenario's log-probs and entropies after an update."""
    log_probs, entropies = inputs["log_probs"], inputs["entropies"]
    arrived = torch.zeros_like(log_probs) if log_probs.grad is None else log_probs.grad
    return {"gradient": arrived, "entropy_gradient": None if entropies is None else entropies.grad}


#: The ids of padding, end of text and any other token. The ids of a table's tokens start at ``_FIRST``.
_PADDING, _END, _ELSE, _FIRST = range(4)


def token_table(table: Any, after: Any = None, trains: bool = True, scores: bool = False) -> Any:
    """Make a causal language model whose outputs are the entries of ``table``, its only trained parameter.

    The model adds a first token before each row of ``table``, and one position after the row. Each token of each row
    has its own id (:func:`token_ids`). The id of the next token selects the table's entry for a position, so a trainer
    may cut, pad, pack and reorder sequences. The end token selects the entry of the token that would follow in the row.

    :param table: log-probs [rows, tokens], or logits [rows, tokens, choices].
    :param after: log-probs [rows] of the position after the last token; by default 0.
    :param trains: whether the table is copied into a parameter. Otherwise gradients reach the given tensor.
    :param scores: whether to make a reward model, which returns the sum of the table over a row's tokens.
    """
    import torch

    transformers: Any = importlib.import_module("transformers")
    outputs: Any = importlib.import_module("transformers.modeling_outputs")

    certain = torch.zeros_like(table[:, :1])
    whole = torch.cat([certain, table, certain if after is None else after[:, None]], dim=1)
    rows, width = table.shape[0], table.shape[1] + 2
    size = _FIRST + rows * width

    class Body(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(whole.detach()) if trains else whole

        def forward(self, input_ids: Any, *_: Any, **__: Any) -> Any:
            following = torch.nn.functional.pad(input_ids[:, 1:], (0, 1), value=_PADDING)
            own = (input_ids - _FIRST + 1).clamp(min=0)
            entries = self.table.flatten(0, 1)[torch.where(following < _FIRST, own, following - _FIRST)]
            if scores:
                return entries
            if self.table.ndim == 3:
                logits = torch.nn.functional.pad(entries, (0, size - entries.shape[-1]), value=-1000.0)
            else:
                other = torch.where(
                    entries < 0, torch.log(-torch.expm1(torch.where(entries < 0, entries, -1.0))), -1000.0
                )
                logits = entries.new_full((*entries.shape, size), -1000.0)
                logits = logits.scatter(-1, torch.full_like(following, _ELSE)[..., None], other[..., None])
                logits = logits.scatter(-1, following[..., None], entries[..., None])
            return outputs.BaseModelOutputWithPast(last_hidden_state=logits)

    class TokenTable(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
        config_class = transformers.PretrainedConfig
        base_model_prefix = "model"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = Body()
            # An identity matrix, because fused losses multiply the hidden states by the weights of the head.
            self.lm_head = torch.nn.Linear(size, size, bias=False, dtype=table.dtype)
            self.lm_head.weight = torch.nn.Parameter(torch.eye(size, dtype=table.dtype), requires_grad=False)

        def get_output_embeddings(self) -> Any:
            return self.lm_head

        def resize_token_embeddings(self, *_: Any, **__: Any) -> None:
            """Do nothing, because the vocabulary already has the tokenizer's size."""

        def forward(
            self,
            input_ids: Any,
            attention_mask: Any = None,
            labels: Any = None,
            logits_to_keep: int = 0,
            **options: Any,
        ) -> Any:
            if scores:
                counted = self.model(input_ids)[:, :-1] * attention_mask[:, 1:]
                return outputs.SequenceClassifierOutput(logits=counted.sum(-1, keepdim=True))
            hidden = self.model(input_ids).last_hidden_state
            logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
            loss = None
            if labels is not None:
                count = {name: options[name] for name in ("num_items_in_batch",) if name in options}
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **count)
            return outputs.CausalLMOutputWithPast(loss=loss, logits=logits)

    sizes = {
        "vocab_size": size,
        "hidden_size": size,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_labels": 2 - scores,
    }
    with keep_random_state():  # creating the layers draws random weights, which are not used
        model = TokenTable(transformers.PretrainedConfig(pad_token_id=_PADDING, eos_token_id=_END, **sizes))
    model.loss_type, model.warnings_issued = "ForCausalLM", {}  # transformers before 5 reads warnings_issued
    return model


def token_ids(mask: Any, ended: bool = False) -> list[list[int]]:
    """Return the token ids of each row of a :func:`token_table`: the id of the added first token, then those of the
    valid tokens.

    :param ended: whether the end token replaces the last valid token of each row.
    """
    width = mask.shape[1] + 2
    numbers = []
    for row, counts in enumerate(mask.tolist()):
        places = [0, *(place + 1 for place, is_token in enumerate(counts) if is_token)]
        ids = [_FIRST + row * width + place for place in places]
        numbers.append([*ids[:-1], _END] if ended and len(ids) > 1 else ids)
    return numbers


def token_words(ids: Sequence[int]) -> str:
    """Return the text that :func:`table_tokenizer` converts to these token ids."""
    return " ".join(f"w{token}" for token in ids)


def table_tokenizer(model: Any) -> Any:
    """Make a tokenizer for a :func:`token_table`: each word is one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")

    words = {"<pad>": _PADDING, "<end>": _END, "<else>": _ELSE}
    words.update({f"w{token}": token for token in range(_FIRST, model.config.vocab_size)})
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<else>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<else>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def one_step(rows: int, micro_batch_size: int | None) -> dict[str, Any]:
    """Return training arguments for one optimiser step on this number of rows, with learning rate 0."""
    size = micro_batch_size or rows
    return {
        "output_dir": "unused",
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,
        "gradient_checkpointing": False,
        "max_steps": 1,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": rows // size,
    }


def train(trainer: Any, model: Any) -> tuple[float, Any]:
    """Train a :func:`token_table` with a Hugging Face trainer. Return the reported loss and the table's gradient."""
    table = model.model.table
    total = torch.zeros_like(table)

    def add(gradient: Any) -> None:
        total.add_(gradient)

    table.register_hook(add)
    with keep_random_state():
        return train_quickly(trainer).training_loss, total


def train_quickly(trainer: Any) -> Any:
    """Train without accelerate's garbage collections, which take ten times as long as a training step of a small
    model."""
    with mock.patch("gc.collect", partial(return_first, 0)):
        return trainer.train()


def config_class_of(boundary: Any) -> Any:
    """Return the configuration class of a Hugging Face trainer, such as ``DPOConfig`` for ``DPOTrainer``.

    A trainer without its own configuration class uses that of its base class.
    """
    name = boundary.owner.__name__.replace("Trainer", "Config")
    modules = [boundary.module, *(sys.modules[base.__module__] for base in boundary.owner.__mro__)]
    return getattr(next((module for module in modules if hasattr(module, name)), boundary.module), name)


def build_trainer(
    boundary: Any,
    table: Any,
    micro: int | None,
    rows: list[dict[str, Any]],
    options: Mapping[str, Any],
    after: Any = None,
    scores: bool = False,
    **parts: Any,
) -> tuple[Any, Any]:
    """Build a :func:`token_table`, and a Hugging Face trainer that trains it on these rows."""
    configuration = config_class_of(boundary)
    args = configuration(**{**one_step(len(rows), micro), **keep_accepted(configuration, options)})
    model = token_table(table, after, scores=scores)
    tokenizer = table_tokenizer(model)
    by_name = stand_in(from_pretrained=partial(return_first, tokenizer))
    silent = swap(boundary.owner, "_send_telemetry", lambda *_: None)
    with silent, swap(boundary.module, "AutoTokenizer", by_name), keep_random_state():
        trainer = boundary.owner(
            model=model, args=args, train_dataset=make_dataset(rows), processing_class=tokenizer, **parts
        )
    return trainer, model


def make_dataset(rows: list[dict[str, Any]]) -> Any:
    """Make a Hugging Face dataset of these rows."""
    datasets: Any = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    # The fingerprint is part of a cache's file names. Computing it takes longer than making the dataset.
    with swap(datasets.arrow_dataset, "generate_fingerprint", lambda dataset: "0"):
        return datasets.Dataset.from_list(rows)


class TypedProcessor:
    """A stand-in for a vision model's processor. Each word of its input, ``id:type``, is a token's id and type."""

    tokenizer = stand_in(pad_token_id=0, eos_token_id=0)

    def __call__(self, text: Any, images: Any = None, padding_side: str = "right", **_: Any) -> Any:
        rows = [torch.tensor([[*map(int, token.split(":")), 1] for token in one.split()]) for one in text]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=padding_side)
        return dict(zip(("input_ids", "mm_token_type_ids", "attention_mask"), padded.unbind(-1)))


def make_one_process(device: str) -> Any:
    """Make a stand-in for accelerate's ``Accelerator`` with one process: gathering and reducing return their input."""
    whole = dict.fromkeys(("gather", "gather_for_metrics", "reduce", "unwrap_model"), return_first)
    ranks = {"num_processes": 1, "process_index": 0, "is_main_process": True}
    state = bookkeeping(deepspeed_plugin=None)
    return bookkeeping(sync_gradients=True, device=torch.device(device), state=state, **ranks, **whole)


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore the global random generators after a ``with`` block, because trainers seed them."""
    import random

    import numpy

    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])


def attach_gradient(loss: float, table: Any, gradient: Any) -> Any:
    """Return the loss as a tensor whose gradient with respect to the table is ``gradient``, which may be on another
    device."""
    return loss + (gradient.to(table.device) * (table - table.detach())).sum()


#: The number of prompt tokens before each response of :func:`make_sequences`.
PROMPT = 2


def make_sequences(mask: Any) -> dict[str, Any]:
    """Make a batch as a data collator returns it, with :data:`PROMPT` prompt tokens before each response."""
    mask = mask.long()
    prompt = torch.ones(len(mask), PROMPT, dtype=torch.long, device=mask.device)
    ids = torch.tensor(token_ids(mask * 0 + 1), device=mask.device)
    ids = torch.cat([2 * prompt[:, 1:], ids], dim=1)
    whole, attention = torch.cat([prompt * 0, mask], dim=1), torch.cat([prompt, mask], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "labels": ids.masked_fill(whole == 0, -100),
        "completion_mask": whole,
        "prompts": ids[:, :PROMPT],
        "prompt_attention_mask": prompt,
    }


def generate_answers(by_prompt: Mapping[int, Any], input_ids: Any, *_: Any, **options: Any) -> Any:
    """Replace a model's ``generate`` method: append an answer to each prompt. Equal prompts get their answers in order.

    :param by_prompt: last token id of a prompt -> its answers, as lists of token ids.
    """
    left = {prompt: list(answers) for prompt, answers in by_prompt.items()}
    answers = [left[prompt].pop(0) for prompt in input_ids[:, -1].tolist()]
    width = max(map(len, answers))
    padded = torch.tensor([answer + [0] * (width - len(answer)) for answer in answers])
    whole = torch.cat([input_ids, padded.to(input_ids)], dim=1)
    return stand_in(sequences=whole) if options.get("return_dict_in_generate") else whole


def make_prompted_batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of one-token prompts, each followed by a completion."""
    prompts = torch.tensor([[row["first"]] for row in rows])
    completions = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["rest"]) for row in rows], batch_first=True)
    counts, ones = (completions != 0).long(), torch.ones_like(prompts)
    labels = torch.cat([ones * -100, completions.masked_fill(counts == 0, -100)], dim=1)
    return {
        "input_ids": torch.cat([prompts, completions], dim=1),
        "attention_mask": torch.cat([ones, counts], dim=1),
        "labels": labels,
        "prompts": prompts,
        "prompt_attention_mask": ones,
    }
