"""Bindings for the constructors of TRL's trainers. A call builds the real trainer, which trains a small random model.

Most other bindings call one method of a trainer that was not constructed. The bindings of this module also run the
rest of the trainer: the constructor, the preparation of rows, collators, generation and logging.
"""

from __future__ import annotations

import base64
import importlib
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.kit import torch

from .parts import DATA, FORMS, OBJECTS, PROMPTS, make_answers, make_model, make_rows, make_tokenizer, parse_answer

#: Matches the names of logged values that are times.
_TIMES = re.compile(r"(time|_s|/s|_per_second|flos)$|^eps$")
_PLAIN = (bool, int, float, str)
_RATE = 0.125
#: With this seed, GRPO and RLOO sample completions of different lengths in nearly all scenarios, so that batches have
#: padding. In the scenarios with environments, the first batch has tool calls.
_SEED = 24


def _of_trainer(
    kind: str, fixed: Mapping[str, Any], *objects: str, head: str = "CausalLM", labels: int = 1
) -> tuple[Any, tuple[str, ...]]:
    """Return a function that constructs and runs a trainer, and the forms of the rows that the trainer accepts.

    :param kind: the kind of rows, a key of :data:`COLUMNS`.
    :param fixed: the options that all scenarios have.
    :param objects: keys of :data:`OBJECTS` that the constructor needs.
    :param head: the head of the trained model; ``labels`` is the number of its outputs.
    """

    def call(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        configuration, given = kit.config_class_of(boundary), {**fixed, **inputs["options"]}
        kind_of_model, data, evaluated = (given.pop(name, None) for name in ("model", "data", "eval_data"))
        kind_of_rows = given.pop("rows", kind)
        model = "small" if kind_of_model == "small" else make_model(1, head, labels, kind_of_model or "Llama")
        needed = {*objects, *given}.intersection(OBJECTS)
        parts = {name: OBJECTS[name][given.pop(name, next(iter(OBJECTS[name])))]() for name in sorted(needed)}
        parts = {"processing_class": make_tokenizer(), "model": model, **parts}
        if all(each.kind is not each.VAR_KEYWORD for each in boundary.parameters.values()):
            kit.keep_accepted(boundary.owner, parts)
        plays = "environment_factory" in parts
        if plays:
            vars(parts["processing_class"]).update(response_template={}, parse_response=parse_answer)
        known = {**kit.one_step(len(PROMPTS), inputs["micro_batch_size"]), "logging_steps": 1, "optim": "sgd"}
        known |= {"seed": _SEED, "learning_rate": _RATE, **kit.keep_accepted(configuration, given)}
        rows = kit.make_dataset(make_rows(kind_of_rows, plays or inputs["form"] == "chat"))
        if "eval_strategy" in given:
            parts["eval_dataset"] = {"first": rows, "last": rows.select(range(2))} if evaluated == "by name" else rows
        served = given.get("use_vllm") or any(name.endswith("server_url") for name in given)
        with (
            _replace_from_pretrained(),
            _replace_fused_losses(boundary.module) if given.get("use_liger_kernel") else nullcontext(),
            _replace_server() if served else nullcontext(),
            kit.swap(boundary.owner, "_send_telemetry", lambda *_: None),
            kit.swap(torch.Tensor, "share_memory_", kit.return_first),  # needed only for other processes
            kit.swap(boundary.module, "get_peak_flops_per_device", lambda *_: None),  # it needs a GPU
            _skip_jmespath_check() if plays else nullcontext(),
            kit.keep_random_state(),
        ):
            args = configuration(**known)
            trainer = boundary.owner(args=args, train_dataset=DATA[data](rows) if data else rows, **parts)
            # transformers calls these methods
            hooks = trainer.training_step, trainer.prediction_step, trainer.evaluate, trainer.evaluation_loop
            hooks += trainer.get_train_dataloader, trainer.get_eval_dataloader, trainer._get_train_sampler
            hooks += trainer._set_signature_columns_if_needed, trainer._get_eval_sampler, trainer._inner_training_loop
            hooks += trainer._prepare_inputs, trainer.log, getattr(trainer.data_collator, "torch_call", None)
            return _train_once(trainer, trainer.compute_loss, hooks, known)

    return call, FORMS.get(kind, ("text", "chat"))


class _Server:
    """A stand-in for a response of TRL's vLLM server. The response depends on all fields of the request."""

    status_code, text, headers = 200, "", {}

    def __init__(self, *path: Any, json: Mapping[str, Any] | None = None, **_: Any) -> None:
        self.json = partial(self._answer, path[-1].rstrip("/").rpartition("/")[2], json or {})

    def _answer(self, kind: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if kind in ("models", "completions"):
            raise AbsentError(
                "this version uses OpenAI's protocol for vLLM servers; the adapter only supports TRL's own"
            )
        if kind == "get_sequence_logprobs":
            return self._score(**asked)
        given = asked.get("prompts") or asked.get("messages") or ()
        tokenizer = make_tokenizer()
        prompts = [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in given]
        if kind == "chat":
            prompts = [
                tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"] for prompt in given
            ]
        wanted, count = {name: value for name, value in asked.items() if name != "prompts"}, asked.get("n", 1)
        texts = [f"{sorted(wanted.items())} {prompt} {n}" for prompt in prompts for n in range(count)]
        answers = make_answers(texts, asked.get("max_tokens", 1))
        return {
            "prompt_ids": prompts, "completion_ids": answers,
            "logprobs": [[[-1.0 - token / 16] for token in ids] for ids in answers],
            "logprob_token_ids": [[[token] for token in ids] for ids in answers], "world_size": 1,
        }  # fmt: skip

    def _score(self, sequences: Any, prompt_lengths: Any, top_logprobs: int, temperature: float, **_: Any) -> Any:
        teacher, width = make_model(3), max(map(len, sequences))
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
    """A stand-in for a fused loss of Liger. Its results depend on all options and tensors that it receives."""

    def __init__(self, metrics: int, **options: Any) -> None:
        self._metrics, self._factor = metrics, 1 + zlib.crc32(repr(sorted(options.items())).encode()) % 97 / 97

    def __call__(self, *given: Any, **named: Any) -> Any:
        tensors = [each for each in (*given, *named.values()) if isinstance(each, torch.Tensor)]
        parts = [(each.float() / (2 + place)).tanh().flatten() for place, each in enumerate(tensors)]
        places = [torch.linspace(0.5, 1.5, len(part)) for part in parts]
        loss = self._factor * sum((part * place).mean() for part, place in zip(parts, places))
        told = [loss.detach()[None] / (1 + place) for place in range(self._metrics)]
        return (loss, told) if told else loss


#: Fused loss of Liger -> the number of metrics that it returns in addition to the loss.
_KERNELS = {"GRPO": 2, "DPO": 7, "KTO": 6, "JSD": 0}


@contextmanager
def _replace_fused_losses(module: Any) -> Iterator[None]:
    """Replace the fused losses that a module imports from Liger by :class:`_Kernel`."""
    trainers: Any = importlib.import_module("transformers.trainer")
    with ExitStack() as swaps:
        for name, metrics in _KERNELS.items():
            kernel = partial(_Kernel, metrics)
            swaps.enter_context(mock.patch.object(module, f"LigerFusedLinear{name}Loss", kernel, create=True))
        swaps.enter_context(kit.swap(module, "is_liger_kernel_available", partial(kit.return_first, True)))
        swaps.enter_context(kit.swap(trainers, "apply_liger_kernel", lambda *_: None))
        yield


def _skip_jmespath_check() -> Any:
    # GRPO itself only calls the tokenizer's method, which the adapter replaces.
    module = importlib.import_module("trl.trainer.grpo_trainer")
    return kit.swap(module, "is_jmespath_available", partial(kit.return_first, True))


@contextmanager
def _replace_server() -> Iterator[None]:
    """Replace the HTTP requests of TRL's vLLM client by :class:`_Server`."""
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
def _replace_from_pretrained() -> Iterator[None]:
    transformers: Any = importlib.import_module("transformers")
    made = {name: partial(make_model, 1) for name in ("AutoModelForCausalLM", "LlamaForCausalLM")}
    for name in ("AutoModelForSequenceClassification", "LlamaForSequenceClassification"):
        made[name] = partial(make_model, 1, "SequenceClassification")
    made |= dict.fromkeys(("AutoTokenizer", "AutoProcessor"), partial(make_tokenizer, 3))
    made["AutoConfig"] = lambda: make_model(1).config
    with ExitStack() as swaps:
        for name, make in made.items():
            swaps.enter_context(kit.swap(getattr(transformers, name), "from_pretrained", lambda *_, m=make, **__: m()))
        yield


def _train_once(trainer: Any, computes: Any, hooks: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Train for one step, and return the values that the contract ``constructed_trainer`` observes."""
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
_MEASURES: _Form = {**_EVALUATES, "eval_data": "by name", "compute_metrics": "a number"}
_MIXTURE: _Form = {"model": "Mixtral"}
_ENCODER: _Form = {"model": "T5", "max_length": 28, "max_completion_length": 6}
_CUT: _Form = {"max_length": 28, "model": "small"}
_CUT_BOTH: _Form = {
    **_CUT, "max_completion_length": 3, "model_init_kwargs": {"dtype": "float32"}, "gradient_checkpointing": True,
}  # fmt: skip
_SYNC: _Form = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.75}
_PRINTS: _Form = {"log_completions": True, "num_completions_to_print": 1}
_PRINTS_EACH: _Form = {**_PRINTS, "log_completions_steps": 1, "num_generations": 2}
_DRAWS: _Form = {"temperature": 0.75, "top_k": 12, "top_p": 0.875, "min_p": 0.01, "repetition_penalty": 1.25}
_DRAWS_FEW: _Form = {"temperature": 0.75, "top_k": 12, "top_p": 0.875}
_AGAIN: _Form = {"num_iterations": 2, "steps_per_generation": 2}
_SERVER: _Form = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": "http://127.0.0.1:1"}
_GAMES: _Form = {
    **_SERVER, "environment_factory": "two", "data": "of two environments", "max_completion_length": 40,
    "max_tool_calling_iterations": 2, "vllm_importance_sampling_mode": "token_mask",
}  # fmt: skip
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
            {**_MEASURES, "data": "a stream", **_MIXTURE},
            {**_CUT, "completion_only_loss": False, "loss_type": "dft", "processing_class": "none"},
            {"packing": True, "max_length": 40, "eval_packing": False, **_EVALUATES},
            {"assistant_only_loss": True, "padding_free": True, "max_length": None},
            {
                "rows": "texts", "formatting_func": "a function", "packing": True, "packing_strategy": "bfd_split",
                "max_length": 12, "shuffle_dataset": True,
            },
            {"rows": "talks", "truncation_mode": "keep_end", "max_length": 12},
            {"loss_type": "chunked_nll", "pad_to_multiple_of": 8, **_MIXTURE},
        ),
    ),
    (
        "trl.trainer.dpo_trainer.DPOTrainer", _of_trainer("pairs", {}, "ref_model"),
        (
            {"ref_model": "none", **_PAIRED, **_MEASURES}, {"ld_alpha": 0.5, "precompute_ref_log_probs": True, **_CUT},
            {
                "loss_type": ["sigmoid", "bco_pair", "sft", "robust", "exo_pair", "aot"],
                "loss_weights": [1.0, 0.5, 0.25, 0.75, 0.375, 0.625], "label_smoothing": 0.125,
            },
            {
                "loss_type": ["ipo", "hinge", "nca_pair", "sppo_hard", "apo_zero"],
                "f_divergence_type": "js_divergence", **_MIXTURE,
            },
            {"loss_type": ["apo_down", "discopop", "aot_unpaired", "sigmoid_norm"], "f_divergence_type": "forward_kl"},
            {"f_divergence_type": "alpha_divergence", "use_weighting": True}, _SYNC, _FUSED,
        ),
    ),
    (
        "trl.trainer.kto_trainer.KTOTrainer", _of_trainer("labels", {}, "ref_model"),
        (
            {"ref_model": "none", **_PAIRED, **_MEASURES},
            {"desirable_weight": 2.0, "precompute_ref_log_probs": True, **_CUT},
            {"loss_type": "apo_zero_unpaired", "undesirable_weight": 0.5, **_MIXTURE}, _SYNC, _FUSED,
        ),
    ),
    (
        "trl.trainer.reward_trainer.RewardTrainer", _of_trainer("pairs", {}, head="SequenceClassification"),
        (
            {**_MEASURES, "data": "with margins"},
            {
                "data": "a stream", "center_rewards_coefficient": 0.125, "pad_to_multiple_of": 8,
                "processing_class": "none", **_CUT,
            },
        ),
    ),
    (
        "trl.trainer.grpo_trainer.GRPOTrainer", _of_trainer("prompts", *_SAMPLED),
        (
            {"beta": 0.25, **_FUNCTIONS, **_AGAIN, **_EVALUATES}, {**_MODELS, **_DRAWS, "scale_rewards": "batch"},
            {
                "loss_type": "grpo", "importance_sampling_level": "sequence", "mask_truncated_completions": True,
                "max_completion_length": 24,
                "cast_lm_head_to_fp32": True, "model": "small",
            },
            {
                "loss_type": "dr_grpo", "top_entropy_quantile": 0.5, "entropy_coef": 0.125, "scale_rewards": "none",
                "off_policy_mask_threshold": 0.5, **_AGAIN,
            },
            {"loss_type": "vespo", "multi_objective_aggregation": "normalize_then_sum", **_FUNCTIONS, **_PRINTS},
            {"loss_type": "cispo", "epsilon_high": 2.0, "beta": 0.25, "use_bias_correction_kl": True, **_SYNC},
            {
                "loss_type": "sapo", "use_adaptive_entropy": True, "entropy_coef": 0.125, "pad_to_multiple_of": 8,
                "generation_kwargs": {"temperature": 4.0},
            },
            {**_SERVER, "beta": 0.25, **_DRAWS}, {"beta": 0.25, **_FUSED, **_AGAIN},
            {**_GAMES, "beta": 0.25},
            {"rollout_func": "a function", "reward_funcs": "two async functions", **_MIXTURE},
        ),
    ),
    (
        "trl.trainer.rloo_trainer.RLOOTrainer", _of_trainer("prompts", *_SAMPLED),
        (
            {**_FUNCTIONS, **_AGAIN, **_EVALUATES}, {**_MODELS, **_DRAWS, "normalize_advantages": True},
            {
                "mask_truncated_completions": True, "max_completion_length": 24, "model": "small",
                "model_init_kwargs": {"dtype": "float32"},
                **_PRINTS,
            }, {**_SYNC, "pad_to_multiple_of": 8, "generation_kwargs": {"temperature": 4.0}},
            {**_SERVER, **_DRAWS, "reward_funcs": "two async functions", **_MIXTURE},
        ),
    ),
    (
        f"{_OWN}.async_grpo.async_grpo_trainer.AsyncGRPOTrainer",
        _of_trainer(
            "chats", {"model": "small", "token_budget": 0}, "reward_funcs", "rollout_worker", "weight_transfer"
        ),
        (
            {"token_budget": 48, "temperature": 0.75, **_MIXTURE},
            {"epsilon": 0.125, "epsilon_high": 0.25, "weight_sync_steps": 1},
        ),
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
        (
            {**_EVALUATES, "compute_metrics": "a number"}, {"precompute_ref_log_probs": True, **_PAIRED},
            {**_WITHOUT, **_CUT_BOTH}, {**_WITHOUT, **_MIXTURE},
        ),
    ),
    (
        f"{_OWN}.cpo.cpo_trainer.CPOTrainer", _of_trainer("pairs", {}),
        (
            {**_EVALUATES, "compute_metrics": "a number"}, {"loss_type": "simpo", "cpo_alpha": 0.0, **_CUT_BOTH},
            {"loss_type": "hinge", "beta": 0.25, **_MIXTURE}, {"loss_type": "ipo", "alpha": 0.5}, _ENCODER,
            {"label_smoothing": 0.125, "max_length": 28},
        ),
    ),
    (
        f"{_OWN}.orpo.orpo_trainer.ORPOTrainer", _of_trainer("pairs", {}), (
            {**_PAIRED, "compute_metrics": "a number"}, _CUT_BOTH, {"max_length": 28, **_MIXTURE}, _ENCODER,
        ),
    ),
    (
        f"{_OWN}.tpo.tpo_trainer.TPOTrainer", _of_trainer("triples", {}),
        (
            {**_PAIRED, "eval_data": "by name"}, {"loss_type": "tpo-l", **_CUT, "processing_class": "none"},
            {"loss_type": "ipo", "pad_to_multiple_of": 8},
            {"loss_type": "hinge", "max_length": 28, "truncation_mode": "keep_end"}, {"label_smoothing": 0.125},
        ),
    ),
    (
        f"{_OWN}.prm.prm_trainer.PRMTrainer", _of_trainer("steps", {}, head="TokenClassification", labels=2),
        (_EVALUATES, {"train_on_last_step_only": True, "step_separator": " so"}),
    ),
    (
        f"{_OWN}.gkd.gkd_trainer.GKDTrainer", _of_trainer("messages", {**_NEW, "lmbda": 1.0}, "teacher_model"),
        ({"lmbda": 0.0, "beta": 0.25, **_EVALUATES},
            {"lmbda": 0.0, "seq_kd": True, "temperature": 0.75, "teacher_model": "a name"}, _FUSED),
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
            {
                "use_uld_loss": True, "teacher_tokenizer_name_or_path": "small", "lmbda": 0.0, "rows": "answers",
                "max_length": 12, "uld_token_merge_strategy": "bayesian",
            },
            {"lmbda": 0.0, "seq_kd": True, "uld_use_hybrid_loss": True, "teacher_model": "a name"},
            {**_SERVER, "num_generations": 2}, _FUSED,
        ),
    ),
    (
        f"{_OWN}.iw_opd.iw_opd_trainer.IWOPDTrainer", _of_trainer("messages", _LIMIT, "teacher_model"),
        (
            {**_PRINTS_EACH, **_DRAWS_FEW}, {"lmbda": 0.0, "distillation_objective": "jsd", "beta": 0.5, **_EVALUATES},
            {
                "distillation_objective": "jsd", "loss_top_k": 0, "beta": 0.25, "max_prompt_length": 8,
                "teacher_model": "a name", **_CUT,
            },
            {**_SERVER, "num_generations": 2}, {**_TEACHER, "use_teacher_server": True},
            {"distillation_objective": "jsd", "loss_top_k": 0, **_FUSED},
        ),
    ),
    (
        f"{_OWN}.distillation.distillation_trainer.DistillationTrainer",
        _of_trainer("chats", _LIMIT, "teacher_model"),
        (
            {**_PRINTS_EACH, **_DRAWS_FEW}, {"beta": 0.25, "temperature": 0.75, **_EVALUATES},
            {"model": "small", "teacher_model": "a name", "processing_class": "none"},
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
            {"gamma": 0.5, "length_normalization": False, "kd_temperature": 0.75, "teacher_model": "a name"},
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
            {
                "distillation_mode": "full_logits", "num_loss_tokens_to_skip": 1, "model": "small",
                "distillation_is_clip": None, "generation_kwargs": {"temperature": 4.0}, **_AGAIN,
            },
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
            {
                "dont_reprompt_on_self_success": False, "scale_rewards": "none", "loss_type": "dr_grpo",
                "model": "small", "distillation_is_clip": None, **_DRAWS,
            },
            {
                **_SERVER, "use_teacher_server": True, "distillation_mode": "topk_logits", "distillation_topk": 4,
                "teacher_model_kind": "live", "scale_rewards": "batch", "distillation_add_tail": True,
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
            {
                **_SERVER, "replay_buffer_size": 4, "reward_funcs": "a function of some prompts", "beta": 0.25,
                "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 1,
                "vllm_importance_sampling_mode": "token_truncate",
            },
            {**_GAMES, "scale_rewards": "batch", "mask_truncated_completions": True, "pad_to_multiple_of": 8},
        ),
    ),
)  # fmt: skip

#: Trainer -> a name that a version must have (for other trainers, the shared base class). Versions without this name
#: fail with the installed transformers.
_NEEDS = {
    "AsyncGRPOTrainer": f"{_OWN}.async_grpo.async_grpo_trainer.AsyncGRPOTrainer.__init__(weight_transfer)",
    "NashMDTrainer": f"{_OWN}.nash_md.nash_md_trainer.GeometricMixtureWrapper.get_experts_implementation",
}

_STAND_INS = (
    StandIn("rollout_worker", "provides finished rollouts, because generating them needs a vLLM server"),
    StandIn("liger_loss", "from another package: returns a number that depends on each argument"),
    StandIn("requests", "replies as a vLLM server: completions depend on the request, and log-probs on the tokens"),
    StandIn("model", "random weights and one layer; the trainers' code does not depend on a model's size"),
    StandIn("parse_response", "replaces the tokenizer's method, and makes tool calls from the completion's tokens"),
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
