"""Bindings for the constructors of TRL's trainers. A call builds the real trainer, which trains a small random model.

The other bindings call one method of a trainer that was not constructed. The bindings of this module also run
everything else: the constructor, the preparation of the rows, collators, generation, and the logs.
"""

from __future__ import annotations

import base64
import importlib
import queue
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

_PROMPTS = ("one and two is", "so two and one is", "two and two is", "one is")
_GOOD = ("three", "three so", "four", "so one")
_BAD = ("four so", "two", "so so two", "two")
_CHAT = (
    "{% for m in messages %}{{ m['role'] + ' ' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<end>' }}{% endgeneration %}{% else %}{{ m['content'] + ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)
_LETTERS = ("<pad>", "<end>", "<unk>", *"abdefhinorstuvwx", "Ġ", "Ċ")
_MERGES = ("Ġ o", "n e", "i s", "s o", "Ġ so", "r e", "a n", "an d")


def _make_tokenizer(merges: int = len(_MERGES)) -> Any:
    """Make a byte-level tokenizer whose tokens are letters and a few joined letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")
    pairs = [tuple(pair.split()) for pair in _MERGES]
    words = {word: place for place, word in enumerate((*_LETTERS, *map("".join, pairs)))}
    made = Tokenizer(models.BPE(words, pairs[:merges], unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, name_or_path="small", **special)
    tokenizer.chat_template = _CHAT
    return tokenizer


def _make_model(seed: int, head: str = "CausalLM", labels: int = 1) -> Any:
    """Make a random model of one layer. Equal seeds give equal weights."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=len(_LETTERS) + len(_MERGES), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=96, pad_token_id=0, eos_token_id=1,
        bos_token_id=None, **({} if head == "CausalLM" else {"num_labels": labels}),
    )  # fmt: skip
    with kit.keep_random_state():
        torch.manual_seed(seed)
        model = getattr(transformers, f"LlamaFor{head}")(config)
    for weight in model.parameters():
        weight.data *= 20 if weight.ndim > 1 else 1  # large, so that outputs depend on the input
    model.config._name_or_path = model.name_or_path = "small"
    model.config.architectures = [type(model).__name__]
    return model


def _rows(kind: str, chat: bool) -> list[dict[str, Any]]:
    """Return four rows of a dataset, as text or as messages."""
    made: list[dict[str, Any]] = []
    for place, (prompt, good, bad) in enumerate([*zip(_PROMPTS, _GOOD, _BAD)] * (4 if kind == "ids" else 1)):
        texts = {"prompt": prompt, "chosen": f" {good}", "rejected": f" {bad}", "reference": f" so {good}"}
        texts |= {"completion": texts["chosen" if place % 2 else "rejected"]}
        said = {name: [{"role": "assistant", "content": text.strip()}] for name, text in texts.items()}
        said["prompt"] = [{"role": "user", "content": prompt}]
        row: dict[str, Any] = {name: (said if chat else texts).get(name) for name in _COLUMNS[kind]}
        if kind in ("messages", "chats"):
            row |= {"messages": said["prompt"] + said["chosen"]}  # until June 2026, distillation reads this column
        elif kind == "ids":
            row = {"input_ids": _make_tokenizer().encode(prompt)}
        elif kind == "steps":
            row = {"prompt": prompt, "completions": [good, bad], "labels": [True, bool(place % 2)]}
        elif kind == "labels":
            row["label"] = bool(place % 2)
        elif kind == "hints":
            row |= {"privileged_context": good, "solution": good}
        elif kind == "answers":
            row["completion"] = (said if chat else texts)["chosen"]
        made.append(row)
    return made


_PAIR = ("prompt", "chosen", "rejected")
#: Kind of rows -> its only form. The other kinds have the forms ``text`` and ``chat``.
_FORMS: Mapping[str, tuple[str, ...]] = {
    "messages": ("chat",), "chats": ("chat",), "ids": ("text",), "steps": ("text",),
}  # fmt: skip
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompts": _PAIR[:1], "chats": _PAIR[:1], "hints": _PAIR[:1], "pairs": _PAIR, "triples": (*_PAIR, "reference"),
    "answers": ("prompt", "completion"), "labels": ("prompt", "completion"), "messages": (), "ids": (), "steps": (),
}  # fmt: skip


def _text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else "".join(message["content"] or "" for message in completion)


def _count(completions: Any, **_: Any) -> list[float]:
    return [sum(map(ord, _text_of(each))) % 7 / 7 for each in completions]


def _of_one_prompt(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Return different rewards for the completions of the first prompt, and equal rewards for all other completions."""
    return [place / 4 if prompt == prompts[0] else 0.5 for place, prompt in enumerate(prompts)]


def _length(completions: Any, missing: int = 6, **_: Any) -> list[Any]:
    return [len(text) / 8 if len(text) != missing else None for text in map(_text_of, completions)]


def _make_worker() -> Any:
    """Make a rollout worker whose queue has finished rollouts."""
    done: Any = queue.Queue()
    tokenizer = _make_tokenizer()
    for place, (prompt, good) in enumerate([*zip(_PROMPTS, _GOOD)] * 8):
        asked, said = tokenizer.encode(prompt), [*tokenizer.encode(f" {good}"), 1]
        columns = {
            "input_ids": asked + said,
            "completion_mask": [0] * len(asked) + [1] * len(said),
            "old_log_probs": [0.0] * len(asked) + [-0.25 * (n % 5) - 1 for n in range(len(said))],
        }
        about = {"prompt": [], "completion": [], "model_version": 0, "group_id": place // 2, "enqueued_at": None}
        scored = {"advantage": (-1.0) ** place * (1 + place % 3), "metrics": {"reward": place % 4 / 4}}
        tensors = {name: torch.tensor(column) for name, column in columns.items()}
        done.put(kit.stand_in(**tensors, **about, **scored))
    return kit.stand_in(
        rollout_buffer=done, metrics_queue=queue.Queue(), **_idle("start stop update_model_version check_health")
    )


def _idle(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), lambda *_: None)


#: Parameter of a constructor -> the objects that may be passed, by name. The first one is passed unless the options
#: name another.
_OBJECTS: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    "ref_model": {"a model": lambda: _make_model(2), "none": lambda: None},
    "teacher_model": {"a model": lambda: _make_model(3)},
    "reward_model": {"a model": lambda: _make_model(4, "SequenceClassification")},
    "rollout_worker": {"a worker": _make_worker},
    "weight_transfer": {
        "nothing": lambda: kit.stand_in(**_idle("init_weight_transfer pause send_weights resume destroy"))
    },
    "value_model": {"a model": lambda: _make_model(5, "SequenceClassification")},
    "reward_funcs": {
        "a function": lambda: _count,
        "two functions": lambda: [_count, _length],
        "two numbers": lambda: [_count, partial(_length, missing=-1)],
        "a model": lambda: _make_model(4, "SequenceClassification"),
        "a function of one prompt": lambda: _of_one_prompt,
        "a function and models": lambda: [
            _count, *(_make_model(seed, "SequenceClassification") for seed in (4, 6)),
        ],
    },
}  # fmt: skip

#: Matches the names of logged values that are times.
_TIMES = re.compile(r"(time|_s|/s|_per_second|flos)$|^eps$")
_PLAIN = (bool, int, float, str)
_RATE = 0.125


def _of_trainer(
    kind: str, fixed: Mapping[str, Any], *objects: str, head: str = "CausalLM", labels: int = 1
) -> tuple[Any, tuple[str, ...]]:
    """Return the function that builds and trains a trainer, and the forms of its rows.

    :param kind: the kind of rows, a key of :data:`_COLUMNS`.
    :param fixed: the options that all scenarios have.
    :param objects: keys of :data:`_OBJECTS` that the constructor needs.
    :param head: the head of the trained model; ``labels`` is the number of its outputs.
    """

    def call(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        configuration, given = kit.config_class_of(boundary), {**fixed, **inputs["options"]}
        parts = {name: _OBJECTS[name][given.pop(name, next(iter(_OBJECTS[name])))]() for name in objects}
        parts["model"] = given.pop("model", None) or _make_model(1, head, labels)
        known = {**kit.one_step(len(_PROMPTS), inputs["micro_batch_size"]), "logging_steps": 1, "optim": "sgd"}
        known |= {"learning_rate": _RATE, **kit.keep_accepted(configuration, given)}
        rows = kit.make_dataset(_rows(kind, inputs["form"] == "chat"))
        if "eval_strategy" in given:
            parts["eval_dataset"] = rows
        served = given.get("use_vllm") or any(name.endswith("server_url") for name in given)
        with (
            _loaded(),
            _fused(boundary.module) if given.get("use_liger_kernel") else nullcontext(),
            _served() if served else nullcontext(),
            kit.swap(boundary.owner, "_send_telemetry", lambda *_: None),
            kit.swap(boundary.module, "get_peak_flops_per_device", lambda *_: None),  # it needs a GPU
            kit.keep_random_state(),
        ):
            args = configuration(**known)
            trainer = boundary.owner(args=args, train_dataset=rows, processing_class=_make_tokenizer(), **parts)
            # transformers calls these methods
            hooks = trainer.training_step, trainer.prediction_step, trainer.evaluate, trainer.evaluation_loop
            hooks += trainer.get_train_dataloader, trainer.get_eval_dataloader, trainer._get_train_sampler
            hooks += trainer._set_signature_columns_if_needed, trainer._get_eval_sampler, trainer._inner_training_loop
            hooks += trainer._prepare_inputs, trainer.log, getattr(trainer.data_collator, "torch_call", None)
            return _trained(trainer, trainer.compute_loss, hooks, known)

    return call, _FORMS.get(kind, ("text", "chat"))


class _Server:
    """A stand-in for TRL's vLLM server, and for its HTTP response. Completions depend on everything in a request, and
    log-probs depend on the request's tokens.
    """

    status_code, text, headers = 200, "", {}

    def __init__(self, *path: Any, json: Mapping[str, Any] | None = None, **_: Any) -> None:
        self.json = partial(self._answer, path[-1].rstrip("/").rpartition("/")[2], json or {})

    def _answer(self, kind: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if kind in ("models", "completions"):
            raise AbsentError("not in this version: TRL's own protocol of a vLLM server; this version uses OpenAI's")
        if kind == "get_sequence_logprobs":
            return self._score(**asked)
        given = asked.get("prompts") or asked.get("messages") or ()
        tokenizer = _make_tokenizer()
        prompts = [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in given]
        if kind == "chat":
            prompts = [
                tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"] for prompt in given
            ]
        wanted, count = {name: value for name, value in asked.items() if name != "prompts"}, asked.get("n", 1)
        texts = [f"{sorted(wanted.items())} {prompt} {n}" for prompt in prompts for n in range(count)]
        seeds = [zlib.crc32(text.encode()) for text in texts]
        most = asked.get("max_tokens", 1)
        answers = [[3 + (seed >> place) % 20 for place in range(1 + seed % most)] for seed in seeds]
        answers = [[*ids, 1] if len(ids) < most else ids for ids in answers]
        return {
            "prompt_ids": prompts, "completion_ids": answers,
            "logprobs": [[[-1.0 - token / 16] for token in ids] for ids in answers],
            "logprob_token_ids": [[[token] for token in ids] for ids in answers], "world_size": 1,
        }  # fmt: skip

    def _score(self, sequences: Any, prompt_lengths: Any, top_logprobs: int, temperature: float, **_: Any) -> Any:
        teacher, width = _make_model(3), max(map(len, sequences))
        counts = [len(ids) - start for ids, start in zip(sequences, prompt_lengths)]
        best = torch.full((len(sequences), width, top_logprobs), -torch.inf)
        places, own = best.int().clamp(min=0), best[..., :1].clone()
        ids_of = own.int().clamp(min=0)
        for row, (ids, start) in enumerate(zip(sequences, prompt_lengths)):
            with torch.no_grad():
                scores = (teacher(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)[start - 1 : -1]
            tokens = torch.tensor(ids[start:])[:, None]
            values, order = scores.topk(top_logprobs)
            best[row, : len(tokens)], places[row, : len(tokens)] = values, order.int()
            own[row, : len(tokens)], ids_of[row, : len(tokens)] = scores.gather(1, tokens), tokens.int()
        columns = {"logprobs": best, "token_ids": places, "actual_logprobs": own, "actual_token_ids": ids_of}
        coded = {f"{name}_b64": base64.b64encode(each.numpy().tobytes()).decode() for name, each in columns.items()}
        return {"shape": list(best.shape), "completion_lengths": counts, **coded}


class _Kernel:
    """A stand-in for a fused loss of another package. Its results depend on its options and on every tensor that it
    gets."""

    def __init__(self, metrics: int, **options: Any) -> None:
        self._metrics, self._factor = metrics, 1 + zlib.crc32(repr(sorted(options.items())).encode()) % 97 / 97

    def __call__(self, *given: Any, **named: Any) -> Any:
        tensors = [each for each in (*given, *named.values()) if isinstance(each, torch.Tensor)]
        parts = [(each.float() / (2 + place)).tanh().flatten() for place, each in enumerate(tensors)]
        places = [torch.linspace(0.5, 1.5, len(part)) for part in parts]
        loss = self._factor * sum((part * place).mean() for part, place in zip(parts, places))
        told = [loss.detach()[None] / (1 + place) for place in range(self._metrics)]
        return (loss, told) if told else loss


#: Fused loss of another package -> the number of metrics that it returns in addition to the loss.
_KERNELS = {"GRPO": 2, "DPO": 7, "KTO": 6, "JSD": 0}


@contextmanager
def _fused(module: Any) -> Iterator[None]:
    """Replace the fused losses that a module would import from another package."""
    trainers: Any = importlib.import_module("transformers.trainer")
    with ExitStack() as swaps:
        for name, metrics in _KERNELS.items():
            kernel = partial(_Kernel, metrics)
            swaps.enter_context(mock.patch.object(module, f"LigerFusedLinear{name}Loss", kernel, create=True))
        swaps.enter_context(kit.swap(module, "is_liger_kernel_available", partial(kit.return_first, True)))
        swaps.enter_context(kit.swap(trainers, "apply_liger_kernel", lambda *_: None))
        yield


@contextmanager
def _served() -> Iterator[None]:
    """Replace the HTTP requests of TRL's vLLM client by calls of :class:`_Server`."""
    import requests

    with ExitStack() as swaps:
        for owner in (requests, requests.Session):
            for name in ("get", "post"):
                swaps.enter_context(kit.swap(owner, name, _Server))
        for name, module in list(sys.modules.items()):
            if name.startswith("trl."):
                swaps.enter_context(kit.swap(module, "is_vllm_available", partial(kit.return_first, True)))
        client = importlib.import_module("trl.generation.vllm_client").VLLMClient
        for name in ("init_communicator", "update_named_param", "close_communicator"):
            swaps.enter_context(kit.swap(client, name, lambda *_, **__: None))
        yield


@contextmanager
def _loaded() -> Iterator[None]:
    """Replace transformers' ``from_pretrained`` methods by functions that return the small model and its tokenizer."""
    transformers: Any = importlib.import_module("transformers")
    made = {name: partial(_make_model, 1) for name in ("AutoModelForCausalLM", "LlamaForCausalLM")}
    for name in ("AutoModelForSequenceClassification", "LlamaForSequenceClassification"):
        made[name] = partial(_make_model, 1, "SequenceClassification")
    made |= dict.fromkeys(("AutoTokenizer", "AutoProcessor"), partial(_make_tokenizer, 3))
    made["AutoConfig"] = lambda: _make_model(1).config
    with ExitStack() as swaps:
        for name, make in made.items():
            swaps.enter_context(kit.swap(getattr(transformers, name), "from_pretrained", lambda *_, m=make, **__: m()))
        yield


def _trained(trainer: Any, computes: Any, hooks: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Train for a step, and return what :data:`CONSTRUCTED_TRAINER` observes."""
    model, losses, batches = trainer.model, list[float](), list[dict[str, Any]]()
    weights = dict(model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    has = {name: vars(trainer).get(name) for name in options}

    def step(*arguments: Any, **options: Any) -> Any:
        loss = hooks[0](*arguments, **options)
        losses.append(float(loss))
        return loss

    def loss_of(model: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
        batches.append({name: column for name, column in batch.items() if isinstance(column, torch.Tensor)})
        return computes(model, batch, *arguments, **options)

    trainer.training_step, trainer.compute_loss = step, loss_of
    kit.train_quickly(trainer)
    update = [(weight.detach() - before[name]).flatten() for name, weight in weights.items() if weight.requires_grad]
    logs = [
        {name: value for name, value in sorted(log.items()) if not _TIMES.search(name)}
        for log in trainer.state.log_history
    ]
    return {
        "attributes": {name: value for name, value in has.items() if isinstance(value, _PLAIN)},
        "losses": losses, "batches": batches, "steps": trainer.state.global_step, "logged": logs,
        "update": torch.cat(update) / _RATE,
    }  # fmt: skip


# -- the trainers ------------------------------------------------------------------------------------------------------

_OWN = "trl.experimental"
_Form = Mapping[str, Any]
_SAMPLES: _Form = {"num_generations": 2, "max_completion_length": 6}
_LIMIT: _Form = {"max_completion_length": 6}
_NEW: _Form = {"max_new_tokens": 6}
_EVALUATES: _Form = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
_CUT: _Form = {"max_length": 28, "model": "small"}
_CUT_BOTH: _Form = {**_CUT, "max_completion_length": 3}
_SYNC: _Form = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.75}
_PRINTS: _Form = {"log_completions": True, "num_completions_to_print": 1}
_PRINTS_EACH: _Form = {**_PRINTS, "log_completions_steps": 1, "num_generations": 2}
_DRAWS: _Form = {"temperature": 0.75, "top_k": 12, "top_p": 0.875, "min_p": 0.01, "repetition_penalty": 1.25}
_DRAWS_FEW: _Form = {"temperature": 0.75, "top_k": 12, "top_p": 0.875}
_AGAIN: _Form = {"num_iterations": 2, "steps_per_generation": 2}
_SERVER: _Form = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://127.0.0.1:1"}
_TEACHER: _Form = {"teacher_model_server_url": "http://127.0.0.1:1"}
_FUSED: _Form = {"use_liger_kernel": True}
_PAIRED: _Form = {"beta": 0.25, **_EVALUATES}
_MODELS: _Form = {"reward_funcs": "a function and models", "reward_weights": [1.0, 0.5, 0.25]}
_FUNCTIONS: _Form = {"reward_funcs": "two functions", "reward_weights": [1.0, 0.5]}
_SAMPLED = _SAMPLES, "reward_funcs"
_JUDGED = {**_NEW, "reward_funcs": "a model", "missing_eos_penalty": 1.0}, "ref_model", "reward_funcs"
_WITHOUT: _Form = {"ref_model": "none"}

#: For each trainer: its path, the result of :func:`_of_trainer`, and the options that scenarios add to the defaults.
_RUNS: tuple[tuple[str, Any, tuple[_Form, ...]], ...] = (
    (
        "trl.trainer.sft_trainer.SFTTrainer", _of_trainer("answers", {}),
        (
            _EVALUATES, {**_CUT, "completion_only_loss": False, "loss_type": "dft"},
            {"packing": True, "max_length": 40, "eval_packing": False, **_EVALUATES},
            {"assistant_only_loss": True, "padding_free": True, "max_length": None},
            {"loss_type": "chunked_nll", "pad_to_multiple_of": 8},
        ),
    ),
    (
        "trl.trainer.dpo_trainer.DPOTrainer", _of_trainer("pairs", {}, "ref_model"),
        (
            {"ref_model": "none", **_PAIRED}, {"ld_alpha": 0.5, "precompute_ref_log_probs": True, **_CUT},
            {
                "loss_type": ["sigmoid", "bco_pair", "sft", "robust", "exo_pair", "aot"],
                "loss_weights": [1.0, 0.5, 0.25, 0.75, 0.375, 0.625], "label_smoothing": 0.125,
            },
            {"loss_type": ["ipo", "hinge", "nca_pair", "sppo_hard", "apo_zero"], "f_divergence_type": "js_divergence"},
            {"loss_type": ["apo_down", "discopop", "aot_unpaired", "sigmoid_norm"], "f_divergence_type": "forward_kl"},
            {"f_divergence_type": "alpha_divergence", "use_weighting": True}, _SYNC, _FUSED,
        ),
    ),
    (
        "trl.trainer.kto_trainer.KTOTrainer", _of_trainer("labels", {}, "ref_model"),
        (
            {"ref_model": "none", **_PAIRED}, {"desirable_weight": 2.0, "precompute_ref_log_probs": True, **_CUT},
            {"loss_type": "apo_zero_unpaired", "undesirable_weight": 0.5}, _SYNC, _FUSED,
        ),
    ),
    (
        "trl.trainer.reward_trainer.RewardTrainer", _of_trainer("pairs", {}, head="SequenceClassification"),
        (_EVALUATES, {"center_rewards_coefficient": 0.125, "pad_to_multiple_of": 8, **_CUT}),
    ),
    (
        "trl.trainer.grpo_trainer.GRPOTrainer", _of_trainer("prompts", *_SAMPLED),
        (
            {"beta": 0.25, **_FUNCTIONS, **_AGAIN, **_EVALUATES}, {**_MODELS, **_DRAWS, "scale_rewards": "batch"},
            {
                "loss_type": "grpo", "importance_sampling_level": "sequence", "mask_truncated_completions": True,
                "cast_lm_head_to_fp32": True, "model": "small",
            },
            {
                "loss_type": "dr_grpo", "top_entropy_quantile": 0.5, "entropy_coef": 0.125, "scale_rewards": "none",
                "off_policy_mask_threshold": 0.5, **_AGAIN,
            },
            {"loss_type": "vespo", "multi_objective_aggregation": "normalize_then_sum", **_FUNCTIONS, **_PRINTS},
            {"loss_type": "cispo", "epsilon_high": 2.0, "beta": 0.25, "use_bias_correction_kl": True, **_SYNC},
            {"loss_type": "sapo", "use_adaptive_entropy": True, "entropy_coef": 0.125, "pad_to_multiple_of": 8},
            {**_SERVER, "beta": 0.25, **_DRAWS}, {"beta": 0.25, **_FUSED, **_AGAIN},
        ),
    ),
    (
        "trl.trainer.rloo_trainer.RLOOTrainer", _of_trainer("prompts", *_SAMPLED),
        (
            {**_FUNCTIONS, **_AGAIN, **_EVALUATES}, {**_MODELS, **_DRAWS, "normalize_advantages": True},
            {"mask_truncated_completions": True, "model": "small", **_PRINTS}, {**_SYNC, "pad_to_multiple_of": 8},
            {**_SERVER, **_DRAWS},
        ),
    ),
    (
        f"{_OWN}.async_grpo.async_grpo_trainer.AsyncGRPOTrainer",
        _of_trainer(
            "chats", {"model": "small", "token_budget": 0}, "reward_funcs", "rollout_worker", "weight_transfer"
        ),
        ({"token_budget": 48, "temperature": 0.75}, {"epsilon": 0.125, "epsilon_high": 0.25, "weight_sync_steps": 1}),
    ),
    (
        f"{_OWN}.a2po.a2po_trainer.A2POTrainer",
        _of_trainer("prompts", {**_LIMIT, "num_value_samples": 3, "filter_all_incorrect": False}, "reward_funcs"),
        (
            {"filter_all_incorrect": True, "reward_funcs": "two numbers", "max_prompt_length": 8},
            {"model": "small", **_DRAWS_FEW},
        ),
    ),
    (
        f"{_OWN}.bco.bco_trainer.BCOTrainer", _of_trainer("labels", {}, "ref_model"),
        (_EVALUATES, {"precompute_ref_log_probs": True, **_PAIRED}, {**_WITHOUT, **_CUT_BOTH}),
    ),
    (
        f"{_OWN}.cpo.cpo_trainer.CPOTrainer", _of_trainer("pairs", {}),
        (
            _EVALUATES, {"loss_type": "simpo", "cpo_alpha": 0.0, **_CUT_BOTH}, {"loss_type": "hinge", "beta": 0.25},
            {"loss_type": "ipo", "alpha": 0.5}, {"label_smoothing": 0.125, "max_length": 28},
        ),
    ),
    (f"{_OWN}.orpo.orpo_trainer.ORPOTrainer", _of_trainer("pairs", {}), (_PAIRED, _CUT_BOTH, {"max_length": 28})),
    (
        f"{_OWN}.tpo.tpo_trainer.TPOTrainer", _of_trainer("triples", {}),
        (
            _PAIRED, {"loss_type": "tpo-l", **_CUT}, {"loss_type": "ipo", "pad_to_multiple_of": 8},
            {"loss_type": "hinge", "max_length": 28, "truncation_mode": "keep_end"}, {"label_smoothing": 0.125},
        ),
    ),
    (
        f"{_OWN}.prm.prm_trainer.PRMTrainer", _of_trainer("steps", {}, head="TokenClassification", labels=2),
        (_EVALUATES, {"train_on_last_step_only": True, "step_separator": " so"}),
    ),
    (
        f"{_OWN}.gkd.gkd_trainer.GKDTrainer", _of_trainer("messages", {**_NEW, "lmbda": 1.0}, "teacher_model"),
        ({"lmbda": 0.0, "beta": 0.25, **_EVALUATES}, {"lmbda": 0.0, "seq_kd": True, "temperature": 0.75}, _FUSED),
    ),
    (
        f"{_OWN}.gold.gold_trainer.GOLDTrainer", _of_trainer("messages", {**_LIMIT, "lmbda": 1.0}, "teacher_model"),
        (
            {**_PRINTS_EACH, **_DRAWS_FEW}, {"lmbda": 0.0, "beta": 0.25, **_EVALUATES},
            {"use_uld_loss": True, "teacher_tokenizer_name_or_path": "small", "uld_crossentropy_weight": 0.5},
            {
                "use_uld_loss": True, "teacher_tokenizer_name_or_path": "small", "uld_use_hybrid_loss": True,
                "lmbda": 0.0, "uld_skip_student_eos": False, "uld_skip_teacher_eos": False, "model": "small",
            },
            {"lmbda": 0.0, "seq_kd": True, "uld_use_hybrid_loss": True}, {**_SERVER, "num_generations": 2}, _FUSED,
        ),
    ),
    (
        f"{_OWN}.iw_opd.iw_opd_trainer.IWOPDTrainer", _of_trainer("messages", _LIMIT, "teacher_model"),
        (
            {**_PRINTS_EACH, **_DRAWS_FEW}, {"lmbda": 0.0, "distillation_objective": "jsd", "beta": 0.5, **_EVALUATES},
            {"distillation_objective": "jsd", "loss_top_k": 0, "beta": 0.25, "max_prompt_length": 8, **_CUT},
            {**_SERVER, "num_generations": 2}, {**_TEACHER, "use_teacher_server": True},
            {"distillation_objective": "jsd", "loss_top_k": 0, **_FUSED},
        ),
    ),
    (
        f"{_OWN}.distillation.distillation_trainer.DistillationTrainer",
        _of_trainer("chats", _LIMIT, "teacher_model"),
        (
            {**_PRINTS_EACH, **_DRAWS_FEW}, {"beta": 0.25, "temperature": 0.75, **_EVALUATES}, {"model": "small"},
            {**_SERVER, "num_generations": 2}, _FUSED,
        ),
    ),
    (
        f"{_OWN}.server_distillation.server_distillation_trainer.ServerDistillationTrainer",
        _of_trainer("chats", {**_LIMIT, **_TEACHER}),
        (
            {"beta": 0.0, "loss_top_k": 4}, {"beta": 0.5},
            {"loss_add_tail": False, "beta": 0.0, "loss_top_k": 2, "temperature": 0.75},
        ),
    ),
    (
        f"{_OWN}.minillm.minillm_trainer.MiniLLMTrainer",
        _of_trainer("prompts", _SAMPLES, "teacher_model", "reward_funcs"),
        (
            {"gamma": 0.5, "length_normalization": False, "kd_temperature": 0.75},
            {"single_step_decomposition": False, "rkl_advantage": False, **_FUNCTIONS},
        ),
    ),
    (
        f"{_OWN}.online_dpo.online_dpo_trainer.OnlineDPOTrainer",
        _of_trainer("prompts", _NEW, "ref_model", "reward_funcs"),
        (
            {**_FUNCTIONS, "loss_type": "ipo", **_DRAWS}, {"reward_funcs": "a model", "missing_eos_penalty": 1.0},
            {**_WITHOUT, "model": "small", "torch_empty_cache_steps": 1, "beta": 0.5, **_MODELS},
        ),
    ),
    (f"{_OWN}.xpo.xpo_trainer.XPOTrainer", _of_trainer("prompts", *_JUDGED), ({"loss_type": "ipo", "alpha": 0.5},)),
    (f"{_OWN}.nash_md.nash_md_trainer.NashMDTrainer", _of_trainer("prompts", *_JUDGED), ({"mixture_coef": 0.25},)),
    (
        f"{_OWN}.ppo.ppo_trainer.PPOTrainer",
        _of_trainer(
            "ids", {"response_length": 6, "total_episodes": 4, "num_sample_generations": 0},
            "ref_model", "reward_model", "value_model",
        ),
        (
            {
                "per_device_train_batch_size": 8, "total_episodes": 8, "whiten_rewards": True, "kl_estimator": "k3",
                "stop_token": "eos", "missing_eos_penalty": 1.0,
            },
            {"num_mini_batches": 2, "gamma": 0.5, "local_rollout_forward_batch_size": 2, **_WITHOUT},
            {"num_sample_generations": 1, **_EVALUATES},
        ),
    ),
    (
        f"{_OWN}.sdft.sdft_trainer.SDFTTrainer", _of_trainer("hints", {**_SAMPLES, "distillation_topk": 4}),
        (
            {"generate_from_teacher": True, "teacher_model_kind": "ema", "distillation_add_tail": True},
            {"distillation_mode": "full_logits", "num_loss_tokens_to_skip": 1, "model": "small", **_AGAIN},
            {"distillation_mode": "sampled_token", "distillation_alpha": 1.0, **_EVALUATES},
            {**_SERVER, "use_teacher_server": True, "teacher_model_kind": "live"},
        ),
    ),
    (
        f"{_OWN}.sdpo.sdpo_trainer.SDPOTrainer",
        _of_trainer("hints", {**_SAMPLES, "success_reward_threshold": 0.25}, "reward_funcs"),
        (
            {"distillation_mode": "topk_logits", "distillation_topk": 4, "include_environment_feedback": True},
            {"distillation_mode": "full_logits", "teacher_model_kind": "base", **_AGAIN, **_FUNCTIONS},
            {"distillation_weight": 0.5, "beta": 0.25, "loss_type": "grpo", **_MODELS, **_EVALUATES},
            {"dont_reprompt_on_self_success": False, "scale_rewards": "batch", "loss_type": "dr_grpo", **_DRAWS},
            {
                **_SERVER, "use_teacher_server": True, "distillation_mode": "topk_logits", "distillation_topk": 4,
                "teacher_model_kind": "live",
            },
        ),
    ),
    (
        f"{_OWN}.ssd.ssd_trainer.SSDTrainer", _of_trainer("prompts", {**_LIMIT, "filter_empty": False}),
        ({**_DRAWS, "filter_empty": True, **_EVALUATES}, {"model": "small", "max_prompt_length": 8}, _SERVER),
    ),
    (f"{_OWN}.gmpo.gmpo_trainer.GMPOTrainer", _of_trainer("prompts", *_SAMPLED), ({"beta": 0.25, **_AGAIN},)),
    (
        f"{_OWN}.gspo_token.grpo_trainer.GRPOTrainer", _of_trainer("prompts", *_SAMPLED),
        ({"importance_sampling_level": "sequence_token", "beta": 0.25, "loss_type": "grpo", **_AGAIN},),
    ),
    (
        f"{_OWN}.grpo_with_replay_buffer.grpo_with_replay_buffer_trainer.GRPOWithReplayBufferTrainer",
        _of_trainer("prompts", *_SAMPLED),
        (
            {"replay_buffer_size": 4, "beta": 0.25, "reward_funcs": "a function of one prompt", **_AGAIN},
            {**_FUNCTIONS, **_DRAWS},
        ),
    ),
)  # fmt: skip

#: Trainer -> a name that it requires instead of the shared base class, because versions without this name fail with the
#: installed transformers.
_NEEDS = {
    "AsyncGRPOTrainer": f"{_OWN}.async_grpo.async_grpo_trainer.AsyncGRPOTrainer.__init__(weight_transfer)",
    "NashMDTrainer": f"{_OWN}.nash_md.nash_md_trainer.GeometricMixtureWrapper.get_experts_implementation",
}

_STAND_INS = (
    StandIn("rollout_worker", "provides finished rollouts, because generating them needs a vLLM server"),
    StandIn("liger_loss", "from another package: returns a number that depends on each argument"),
    StandIn("requests", "replies as a vLLM server: completions depend on the request, and log-probs on the tokens"),
    StandIn("model", "random weights and one layer; the trainers' code does not depend on a model's size"),
    StandIn("from_pretrained", "returns this model, or a small tokenizer, instead of a download"),
)

RUNS = tuple(
    Binding(
        f"{trainer}.__init__",
        "constructed_trainer",
        call=call,
        stand_ins=_STAND_INS,
        accepts={"options": ({}, *options), "form": forms},
        requires=(_NEEDS.get(trainer.rpartition(".")[2], "trl.trainer.base_trainer._BaseTrainer"),),
    )
    for trainer, (call, forms), options in _RUNS
)
