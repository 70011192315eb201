"""Watch random correct training runs of TRL, or training runs with invented bugs, and report the alarms.

    python benchmarks/drawn.py --seeds 0-59               sixty correct runs: each alarm is false
    python benchmarks/drawn.py --correct                  the nine that raised a false alarm in November 2026
    python benchmarks/drawn.py --bugs                     invented bugs; a run without its bug must raise no alarm
    python benchmarks/drawn.py --compared 30              bugs and correct runs of benchmarks/peers.py, thirty of each

The seed of a correct run chooses among documented options: trainer, loss type, schedule, optimizer, precision, model,
LoRA, packing, accumulation, data loading, evaluation, two ranks, a checkpoint to resume from, and a user's own code (a
subclass, a loss, a scheduler, a callback, a reward). Every step is checked. Each run is a separate process, with a
model of a few thousand parameters; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from injected import Prepared, edited

#: Number of steps in a run.
_STEPS = 4
_Options = dict[str, Any]


def _module(name: str) -> Any:
    return importlib.import_module(name)


# -- a training run from its description -------------------------------------------------------------------------------


def _tokenizer(eos_is_pad: bool = False) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<eos>", "<unk>", *map(str, range(20)), "plus", "is", "so", "user", "assistant", "\n"]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = _module("transformers").PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=made, pad_token="<eos>" if eos_is_pad else "<pad>", eos_token="<eos>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ' ' }}{% if m['role'] == 'assistant' %}{% generation %}"
        "{{ m['content'] + ' <eos>' }}{% endgeneration %}{% else %}{{ m['content'] + ' ' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
    )
    return tokenizer


_MODELS = ("llama", "qwen2", "gpt2", "mixtral", "gemma2")


def _model(kind: str, folder: str, dtype: str, dropout: float, scores: bool = False) -> Any:
    import torch

    transformers = _module("transformers")
    auto = getattr(transformers, f"AutoModelFor{'SequenceClassification' if scores else 'CausalLM'}")
    outputs = {"num_labels": 1} if scores else {}
    small = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 96}
    ends: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    config: Any
    if kind == "gpt2":
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        config = transformers.GPT2Config(
            vocab_size=32, n_embd=32, n_layer=2, n_head=2, n_positions=96, **drops, **ends, **outputs
        )  # fmt: skip
    else:
        more: dict[str, Any] = {"num_local_experts": 4, "sliding_window": None} if kind == "mixtral" else {}
        more |= {"head_dim": 16, "final_logit_softcapping": 5.0} if kind == "gemma2" else {}
        more |= {"attention_dropout": dropout}
        name = {"llama": "Llama", "qwen2": "Qwen2", "mixtral": "Mixtral", "gemma2": "Gemma2"}[kind]
        config = getattr(transformers, f"{name}Config")(**{**small, **ends, **more, **outputs})
    place = f"{folder}/model{os.environ.get('RANK', '')}"
    auto.from_config(config).to(getattr(torch, dtype)).save_pretrained(place)
    _tokenizer().save_pretrained(place)
    return auto.from_pretrained(place, dtype=getattr(torch, dtype))


def _count(completions: Any, **_: Any) -> list[float]:
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [sum(map(ord, text)) % 7 / 7 for text in texts]


def _length(completion_ids: Any, **_: Any) -> list[Any]:
    return [len(ids) if len(ids) != 3 else None for ids in completion_ids]


def _even(completions: Any, **_: Any) -> list[bool]:
    return [value > 0.5 for value in _count(completions)]


async def _awaited(completions: Any, **_: Any) -> list[float]:
    return _count(completions)


class _Judge:
    __name__ = "judge"

    def __call__(self, completions: Any, **_: Any) -> list[float]:
        return [0.5 * value for value in _count(completions)]


_REWARDS: Mapping[str, Callable[..., Any]] = {
    "count": _count, "length": _length, "even": _even, "awaited": _awaited, "judge": _Judge()
}  # fmt: skip


def _rows(kind: str, form: str, margins: bool = False) -> list[dict[str, Any]]:
    sums = [(one, other) for one in range(6) for other in range(6)]
    rows: list[dict[str, Any]] = []
    for one, other in sums:
        prompt, answer = "so " * (other % 3) + f"{one} plus {other} is", f"{one + other}" + " so" * (one % 4)
        wrong = f"{abs(one - other)} so"
        row: dict[str, Any] = {"prompt": prompt}
        if kind in ("grpo", "rloo"):
            row["answer"] = answer
        if kind in ("dpo", "reward"):
            row |= {"chosen": f" {answer}", "rejected": f" {wrong}", **({"margin": one / 5} if margins else {})}
        elif kind == "kto":
            row |= {"completion": f" {answer if one % 2 else wrong}", "label": bool(one % 2)}
        elif kind == "sft":
            row |= {"completion": f" {answer}"}
        if form == "text":
            row = {"text": f"{prompt} {answer}"}
        elif form == "chat":
            row = {
                name: [{"role": "user" if name == "prompt" else "assistant", "content": text.strip()}]
                for name, text in row.items()
                if name not in ("label", "margin")
            }
        elif form == "turns":
            before = [{"role": "user", "content": "so"}, {"role": "assistant", "content": answer}]
            row = {
                "prompt": [*before, {"role": "user", "content": prompt}],
                "completion": [{"role": "assistant", "content": answer}],
            }
        elif form == "messages":
            row = {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]}
        elif form == "ids":
            row = {"input_ids": [3 + one, 23, 3 + other, 24, 3 + one + other, 1]}
        rows.append(row)
    return rows


def build(setup: Mapping[str, Any], steps: int, folder: str) -> Any:
    """Make the trainer that a setup describes.

    :param setup: ``kind`` is the kind of trainer, and ``options`` are the options of its configuration. Optional keys:
        ``seed``, ``model``, ``dtype``, ``dropout``, ``eos_is_pad``, ``lora`` (options of ``LoraConfig``), ``rewards``
        (keys of ``_REWARDS``), ``form`` (of the dataset's rows), ``margins`` (whether preference rows have a margin),
        ``own`` (the user's own code: keys of ``_OWN``), ``after`` (a function that changes the trainer), ``parts``
        (further arguments of the trainer), ``evaluates`` (whether there is an evaluation dataset), ``streams`` (whether
        the dataset is iterable), and ``resumes``: whether a first training writes a checkpoint from which this one
        resumes. The first training runs in a separate process (``alone``) or in this one (``here``).
    """
    import torch

    if setup.get("resumes"):
        first = {**setup, "resumes": "", "options": {**setup["options"], "save_strategy": "steps", "save_steps": 2}}
        child = os.fork() if setup["resumes"] == "alone" else None
        try:
            if not child:
                build(first, steps, folder).train()
        finally:
            if child == 0:
                os._exit(0)
        if child:
            os.waitpid(child, 0)
        options = {**setup["options"], "resume_from_checkpoint": f"{folder}/checkpoint-2"}
        setup = {**setup, "resumes": "", "options": options}
    trl = _module("trl")
    _module("transformers").set_seed(int(setup.get("seed", 0)))
    torch.set_num_threads(1)
    kind = setup["kind"]
    options = {
        "output_dir": folder, "use_cpu": True, "bf16": False, "report_to": "none", "max_steps": steps,
        "per_device_train_batch_size": 4, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no",
        "disable_tqdm": True, "gradient_accumulation_steps": 2, "gradient_checkpointing": False,
    }  # fmt: skip
    parts: _Options = {}
    if kind in ("grpo", "rloo"):
        options |= {"num_generations": 4, "max_completion_length": 8}
        parts["reward_funcs"] = [_REWARDS[name] for name in setup.get("rewards", ("count",))]
    options |= setup.get("options", {})
    if "lora" in setup:
        parts["peft_config"] = _module("peft").LoraConfig(**{"r": 4, "task_type": "CAUSAL_LM", **setup["lora"]})
    shape = setup.get("model", "llama"), folder, setup.get("dtype", "float32"), setup.get("dropout", 0.0)
    model = _model(*shape, scores=kind == "reward")
    name = "Reward" if kind == "reward" else kind.upper()
    args = getattr(trl, f"{name}Config")(**options)
    owner: Any = getattr(trl, f"{name}Trainer")
    for name in setup.get("own", ()):
        owner, more = _OWN[name](owner, model, args, steps)
        parts |= more
    rows = _module("datasets").Dataset.from_list(_rows(kind, setup.get("form", "plain"), setup.get("margins", False)))
    if setup.get("evaluates"):
        parts["eval_dataset"] = rows.select(range(8))
    trainer = owner(
        model=model, args=args, processing_class=_tokenizer(setup.get("eos_is_pad", False)),
        train_dataset=rows.to_iterable_dataset() if setup.get("streams") else rows, **parts, **setup.get("parts", {}),
    )  # fmt: skip
    setup.get("after", lambda trainer: None)(trainer)
    return trainer


# -- the user's own code -----------------------------------------------------------------------------------------------


def _scheduler_of_user(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    return owner, {"optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step))}


def _one_cycle(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.learning_rate, total_steps=steps + 2)
    return owner, {"optimizers": (optimizer, cycle)}


def _groups(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Groups(owner):  # type: ignore[misc]
        def create_optimizer(self, *_: Any) -> Any:
            import torch

            if getattr(self, "optimizer", None) is None:
                own = [one for one in self.model.parameters() if one.requires_grad]
                first, rest = own[:3], own[3:]
                groups = [{"params": first, "lr": 0.1 * self.args.learning_rate, "weight_decay": 0.3}, {"params": rest}]
                self.optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate, betas=(0.8, 0.95))
            return self.optimizer

    return Groups, {}


def _frozen(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    model.get_input_embeddings().weight.requires_grad_(False)
    return owner, {}


def _loss_scaled(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Scaled(owner):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            return 0.5 * loss if not isinstance(loss, tuple) else (0.5 * loss[0], *loss[1:])

    return Scaled, {}


def _loss_with_norm(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Normed(owner):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            (1e-3 * next(self.model.parameters()).pow(2).sum()).backward()
            return loss

    return Normed, {}


def _advantages_clamped(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Clamps(owner):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            made["advantages"] = made["advantages"].clamp(-0.5, 1.0)
            return made

    return Clamps, {}


def _advantages_of_tokens(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Tokens(owner):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            width = made["completion_ids"].shape[1]
            made["advantages"] = made["advantages"][:, None] * 0.9 ** (
                made["completion_mask"].flip(1).cumsum(1).flip(1) + 0.0 * width
            )
            return made

    return Tokens, {}


def _rewards_shaped(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Shapes(owner):  # type: ignore[misc]
        def _calculate_rewards(self, *args: Any) -> Any:
            return super()._calculate_rewards(*args).clamp(max=0.8)

    return Shapes, {}


def _anneals(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Anneals(owner):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            self.beta = self.args.beta * (1 + self.state.global_step)
            return super().training_step(*args, **kwargs)

    return Anneals, {}


def _loss_func(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        import torch

        logits, wanted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, wanted, label_smoothing=0.2)

    return owner, {"compute_loss_func": loss}


def _callback(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Decays(_module("transformers").TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.1 / (1 + state.global_step)

    return owner, {"callbacks": [Decays()]}


def _logs(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Logs(owner):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            self.noted = super().compute_loss(*args, **kwargs)
            return self.noted

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log({**logs, "mine": 1.0}, *args, **kwargs)

    return Logs, {}


def _sampler(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Sorted(owner):  # type: ignore[misc]
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            import torch

            return torch.utils.data.SequentialSampler(self.train_dataset if dataset is None else dataset)

    return Sorted, {}


def _of_callback(**methods: Callable[..., None]) -> Callable[[Any, Any, Any, int], tuple[Any, _Options]]:
    def made(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
        kind = type("Own", (_module("transformers").TrainerCallback,), methods)
        return owner, {"callbacks": [kind()]}

    return made


def _freezes(self: Any, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
    if state.global_step == 2:
        next(one for one in model.parameters() if one.requires_grad).requires_grad_(False)


def _halves_rate(self: Any, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def _adds_noise(self: Any, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
    for one in model.parameters():
        if one.grad is not None:
            one.grad.add_(0.01 * one.grad.std() if one.numel() > 1 else 0.0)


def _averages(self: Any, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
    import torch

    self.mean = getattr(self, "mean", {})
    with torch.no_grad():
        for name, one in model.named_parameters():
            self.mean[name] = 0.5 * self.mean.get(name, one) + 0.5 * one.detach()
            one.copy_(self.mean[name])


def _stops(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
    control.should_training_stop = state.global_step == 3


def _optimizer_of_user(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    import torch

    class Signs(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        one.data.add_(one.grad.sign(), alpha=-group["lr"])

    return owner, {"optimizer_cls_and_kwargs": (Signs, {"defaults": {"lr": args.learning_rate}})}


def _collator_of_user(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        width = max(len(row["input_ids"]) for row in rows)
        made = {
            name: torch.tensor([[*row.get(name, [1] * len(row["input_ids"]))] + [fill] * (width - len(row["input_ids"]))
                                for row in rows])
            for name, fill in (("input_ids", 0), ("attention_mask", 0))
        }  # fmt: skip
        return {**made, "labels": made["input_ids"].masked_fill(made["attention_mask"] == 0, -100)}

    return owner, {"data_collator": collate}


def _trains_twice(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    class Twice(owner):  # type: ignore[misc]
        def train(self, *args: Any, **kwargs: Any) -> Any:
            super().train(*args, **kwargs)
            return super().train()

    return Twice, {}


def _reference_given(owner: Any, model: Any, args: Any, steps: int) -> tuple[Any, _Options]:
    import copy

    other = copy.deepcopy(model)
    with __import__("torch").no_grad():
        for one in other.parameters():
            one.mul_(0.9)
    return owner, {"ref_model": other}


_OWN: Mapping[str, Callable[[Any, Any, Any, int], tuple[Any, _Options]]] = {
    "scheduler": _scheduler_of_user, "one cycle": _one_cycle, "groups": _groups, "frozen": _frozen,
    "loss scaled": _loss_scaled, "loss with norm": _loss_with_norm, "advantages clamped": _advantages_clamped,
    "advantages of tokens": _advantages_of_tokens, "rewards shaped": _rewards_shaped, "anneals": _anneals,
    "loss func": _loss_func, "callback": _callback, "reference given": _reference_given,
    "logs": _logs, "sampler": _sampler, "freezes": _of_callback(on_step_end=_freezes),
    "halves rate": _of_callback(on_step_end=_halves_rate),
    "adds noise": _of_callback(on_pre_optimizer_step=_adds_noise),
    "averages": _of_callback(on_step_end=_averages), "stops": _of_callback(on_step_end=_stops),
    "optimizer": _optimizer_of_user, "collator": _collator_of_user, "trains twice": _trains_twice,
}  # fmt: skip

#: The correct runs that raised a false alarm in November 2026.
CORRECT: Mapping[str, _Options] = {
    "label smoothing": {"kind": "sft", "options": {"label_smoothing_factor": 0.1}},
    "router loss": {"kind": "sft", "model": "mixtral", "options": {"router_aux_loss_coef": 0.02}},
    "loss function": {"kind": "sft", "own": ["loss func"]},
    "weighted pairs": {"kind": "dpo", "options": {"use_weighting": True}},
    "scheduler": {"kind": "sft", "own": ["scheduler"]},
    "one cycle": {"kind": "sft", "own": ["one cycle"]},
    "small rate": {"kind": "sft", "model": "gpt2", "options": {"learning_rate": 1e-9, "lr_scheduler_type": "linear"}},
    "advantages clamped": {"kind": "grpo", "own": ["advantages clamped"]},
    "advantages of tokens": {"kind": "grpo", "own": ["advantages of tokens"]},
}


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(seed: int) -> _Options:
    """Return the setup of a random correct run."""
    rng = random.Random(seed)

    def some(chance: float) -> bool:
        return rng.random() < chance

    kind = rng.choice(("grpo", "grpo", "grpo", "rloo", "dpo", "dpo", "sft", "sft", "sft", "reward", "kto"))
    setup: _Options = {"kind": kind, "seed": seed, "model": rng.choice(_MODELS)}
    if setup["model"] == "gemma2" and kind in ("dpo", "kto"):
        setup["model"] = "llama"
    size = rng.choice((2, 4, 8))
    options: _Options = {
        "per_device_train_batch_size": max(size, 4) if kind in ("grpo", "rloo", "kto") else size,
        "gradient_accumulation_steps": rng.choice((1, 2, 3)), "learning_rate": rng.choice((1e-2, 1e-3, 1e-5, 1e-6)),
        "max_grad_norm": rng.choice((1.0, 1.0, 0.05, 0.0)), "weight_decay": rng.choice((0.0, 0.1)),
        "lr_scheduler_type": rng.choice(
            ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt",
             "cosine_with_restarts", "cosine_with_min_lr", "warmup_stable_decay")
        ),
        "warmup_steps": rng.choice((0, 0, 1, 0.5)), "seed": seed,
        "optim": rng.choice(("adamw_torch", "adamw_torch", "adamw_torch_fused", "sgd", "adafactor", "rmsprop")),
    }  # fmt: skip
    kwargs = {"cosine_with_min_lr": {"min_lr": 1e-7}, "warmup_stable_decay": {"num_decay_steps": 2}}
    if options["lr_scheduler_type"] in kwargs:
        options["lr_scheduler_kwargs"] = kwargs[options["lr_scheduler_type"]]
    if some(0.2):
        options["bf16"] = True
    elif some(0.2):
        setup["dtype"] = "bfloat16"
    if some(0.3):
        setup["dropout"], options["disable_dropout"] = 0.1, some(0.5)
        if kind == "sft":
            del options["disable_dropout"]
    if some(0.25):
        setup["lora"] = {"target_modules": rng.choice(("all-linear", ["c_attn"] if setup["model"] == "gpt2" else
                                                       ["q_proj", "v_proj"])),
                         "lora_dropout": rng.choice((0.0, 0.1))}  # fmt: skip
        if setup["model"] == "mixtral":
            setup["lora"]["target_modules"] = ["q_proj", "v_proj"]
    options["gradient_checkpointing"] = some(0.2) and "lora" not in setup
    if some(0.1):
        options["neftune_noise_alpha"] = 5.0
    if some(0.15):
        setup["eos_is_pad"] = True
    if setup["model"] == "mixtral":
        options["router_aux_loss_coef"] = rng.choice((0.0, 0.02))
    own: list[str] = []
    if some(0.4):
        usual = ["scheduler", "one cycle", "groups", "frozen", "loss scaled", "loss with norm", "callback"]
        theirs = {
            "grpo": ["advantages clamped", "advantages of tokens", "rewards shaped", "anneals"],
            "rloo": ["advantages clamped", "rewards shaped"], "dpo": ["reference given"],
            "sft": ["loss func", "collator"], "reward": ["logs"], "kto": ["reference given"],
        }  # fmt: skip
        usual += ["logs", "sampler", "freezes", "halves rate", "adds noise", "averages", "stops", "optimizer"]
        usual += ["trains twice"]
        usual = [one for one in usual if one != "optimizer" or kind not in ("kto", "dpo")]
        own.append(rng.choice([*usual, *theirs[kind] * 2]))
        if "lora" in setup and own[0] in ("scheduler", "one cycle", "frozen", "reference given", "loss with norm"):
            own = []
    setup["own"] = own
    draws = {"grpo": _draw_grpo, "rloo": _draw_rloo, "dpo": _draw_dpo, "sft": _draw_sft}
    draws.get(kind, _draw_pairs)(rng, setup, options)
    _draw_run(rng, setup, options)
    if own == ["anneals"]:
        options["beta"] = 0.05
    setup["options"] = options
    return setup


def _draw_run(rng: random.Random, setup: _Options, options: _Options) -> None:
    """Draw variants of LoRA, data loading, evaluation, ranks, and whether the run resumes from a checkpoint."""
    kind, own = setup["kind"], setup["own"]
    if "lora" in setup and rng.random() < 0.5:
        setup["lora"] |= rng.choice(({"use_dora": True}, {"use_rslora": True}, {"init_lora_weights": "pissa"},
                                     {"bias": "lora_only"}, {"modules_to_save": ["lm_head"]}))  # fmt: skip
    if rng.random() < 0.2:
        setup["evaluates"] = True
        options |= {"eval_strategy": "steps", "eval_steps": 2}
    if rng.random() < 0.15:
        options |= rng.choice(({"dataloader_num_workers": 1}, {"num_train_epochs": 1, "max_steps": -1},
                               {"max_steps": 12}, {"logging_steps": 3}, {"adam_beta1": 0.8},
                               {"include_num_input_tokens_seen": "all"}))  # fmt: skip
    if kind == "sft" and rng.random() < 0.1:
        options["train_sampling_strategy"] = "group_by_length"
    if kind == "sft" and rng.random() < 0.1 and not options.get("packing"):
        setup["streams"] = True
    if kind in ("grpo", "rloo") and rng.random() < 0.2:
        setup["rewards"] = rng.choice((("awaited",), ("judge",), ("judge", "count")))
        options.pop("reward_weights", None)
    how = rng.choice(("", "", "", "", "alone", "here", "ranks", "ranks"))
    if how == "ranks":
        setup["ranks"] = 2
        if "frozen" in own or "freezes" in own:
            options["ddp_find_unused_parameters"] = True
    elif how and not {"scheduler", "one cycle", "trains twice", "optimizer"} & {*own}:
        setup["resumes"] = how


def _draw_pairs(rng: random.Random, setup: _Options, options: _Options) -> None:
    # A separate generator for options that were added later, so that the old options of a seed stay the same.
    later = random.Random(f"pairs {setup['seed']}")
    if setup["kind"] == "reward":
        options["center_rewards_coefficient"] = rng.choice((None, None, 0.01))
        if isinstance(setup.get("lora"), dict):
            setup["lora"]["task_type"] = "SEQ_CLS"
        setup["model"] = rng.choice(("llama", "qwen2"))
        if setup.get("lora", {}).get("target_modules") == ["c_attn"]:
            setup["lora"]["target_modules"] = ["q_proj"]
        options.pop("router_aux_loss_coef", None)
        setup["margins"] = later.random() < 0.5
    else:
        options |= {"loss_type": rng.choice(("kto", "apo_zero_unpaired")), "beta": rng.choice((0.1, 0.3))}
        options |= {"desirable_weight": later.choice((1.0, 1.5)), "undesirable_weight": later.choice((1.0, 0.7))}
        options["precompute_ref_log_probs"] = later.random() < 0.3


def _draw_online(rng: random.Random, setup: _Options, options: _Options) -> None:
    accumulation = options["gradient_accumulation_steps"]
    options |= {
        "temperature": rng.choice((1.0, 0.7, 1.3)), "beta": rng.choice((0.0, 0.0, 0.1)),
        "num_iterations": rng.choice((1, 1, 2)), "num_generations": rng.choice((2, 4)),
        "steps_per_generation": rng.choice((accumulation, 2 * accumulation)),
        "mask_truncated_completions": rng.random() < 0.2, "epsilon": rng.choice((0.2, 0.05)),
    }  # fmt: skip
    if rng.random() < 0.3:
        options |= rng.choice(({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.05}, {"repetition_penalty": 1.1},
                               {"generation_kwargs": {"min_new_tokens": 3}}))  # fmt: skip
    if rng.random() < 0.3:
        setup["rewards"] = rng.choice((("count", "length"), ("count", "even"), ("even",)))
        if len(setup["rewards"]) == 2:
            options["reward_weights"] = [1.0, rng.choice((0.5, -0.1))]
    if options["beta"] and rng.random() < 0.3 and "lora" not in setup:
        options |= {"sync_ref_model": True, "ref_model_sync_steps": 2}
    if rng.random() < 0.2:
        setup["form"] = "chat"


def _draw_grpo(rng: random.Random, setup: _Options, options: _Options) -> None:
    _draw_online(rng, setup, options)
    options |= {
        "loss_type": rng.choice(("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")),
        "scale_rewards": rng.choice(("group", "batch", "none")),
        "importance_sampling_level": rng.choice(("token", "token", "sequence")),
    }
    if options["loss_type"] == "cispo":
        options["epsilon_high"] = 5.0
    elif rng.random() < 0.3:
        options["epsilon_high"] = 0.3
    more = ({"delta": 4.0}, {"top_entropy_quantile": 0.5}, {"entropy_coef": 0.01}, {"off_policy_mask_threshold": 0.1},
            {"use_bias_correction_kl": True}, {"multi_objective_aggregation": "normalize_then_sum"},
            {"cast_lm_head_to_fp32": True})  # fmt: skip
    if rng.random() < 0.5:
        options |= rng.choice(more)
    if options.get("cast_lm_head_to_fp32") and (setup["model"] != "llama" or "lora" in setup):
        options.pop("cast_lm_head_to_fp32")


def _draw_rloo(rng: random.Random, setup: _Options, options: _Options) -> None:
    _draw_online(rng, setup, options)
    options["normalize_advantages"] = rng.random() < 0.4
    if rng.random() < 0.3:
        options["reward_clip_range"] = (0.1, 0.7)


_DIVERGING = ("discopop", "exo_pair", "hinge", "ipo", "robust", "sft", "sigmoid", "sigmoid_norm")


def _draw_dpo(rng: random.Random, setup: _Options, options: _Options) -> None:
    types = ("sigmoid", "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
             "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm")  # fmt: skip
    options |= {"loss_type": [rng.choice(types)], "beta": rng.choice((0.1, 0.5))}
    if rng.random() < 0.25:
        options |= {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.2]}
    if "exo_pair" in options["loss_type"] or "robust" in options["loss_type"]:
        options["label_smoothing"] = 0.1
    more = ({"f_divergence_type": "forward_kl"}, {"f_divergence_type": "js_divergence"}, {"ld_alpha": 0.5},
            {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.5}, {"use_weighting": True},
            {"precompute_ref_log_probs": True}, {"max_length": 5}, {"pad_to_multiple_of": 8})  # fmt: skip
    if rng.random() < 0.6:
        options |= rng.choice(more)
    if "f_divergence_type" in options and options["loss_type"][0] not in _DIVERGING:
        options["loss_type"] = ["sigmoid"]
    if rng.random() < 0.2 and "lora" not in setup and not options.get("precompute_ref_log_probs"):
        options |= {"sync_ref_model": True, "ref_model_sync_steps": 2}
    if rng.random() < 0.2:
        setup["form"] = "chat"


def _draw_sft(rng: random.Random, setup: _Options, options: _Options) -> None:
    setup["form"] = rng.choice(("plain", "text", "chat", "messages", "ids"))
    if setup["form"] == "chat" and setup["seed"] % 3 == 0:
        setup["form"] = "turns"
    if setup["form"] in ("chat", "messages", "ids") and rng.random() < 0.5:
        setup["form"] = "plain"
    if rng.random() < 0.2:
        options["loss_type"] = "dft"
    elif rng.random() < 0.2:
        options["label_smoothing_factor"] = 0.1
    if rng.random() < 0.3:
        options |= rng.choice(({"max_length": 7}, {"pad_to_multiple_of": 8}, {"average_tokens_across_devices": False},
                               {"weight_decay": 0.2}, {"dataloader_drop_last": True}))  # fmt: skip
    if setup["form"] == "messages" and rng.random() < 0.5:
        options["assistant_only_loss"] = True
    if setup["form"] in ("plain", "chat") and rng.random() < 0.3:
        options["completion_only_loss"] = False
    packs = setup["form"] in ("text", "ids") and setup["model"] in ("llama", "qwen2")
    if packs and rng.random() < 0.4:
        options |= {"packing": True, "packing_strategy": rng.choice(("wrapped", "bfd", "bfd_split")), "max_length": 16}
    elif setup["model"] in ("llama", "qwen2") and rng.random() < 0.15:
        options |= {"padding_free": True, "max_length": None}


# -- bugs --------------------------------------------------------------------------------------------------------------

_LOSS, _MAKE = "_compute_loss", "_generate_and_score_completions"


def _in(trainer: str, method: str, *changes: str) -> Callable[[], None]:
    """Return an injection that edits a method of a trainer. ``changes`` alternates old text and its replacement."""

    def inject() -> None:
        trl = _module("trl")

        edited(getattr(trl, trainer), method, *changes)

    return inject


def _collated(change: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Return an injection that changes the batches of the trainers' own collators."""

    def inject() -> None:
        dpo_trainer = _module("trl.trainer.dpo_trainer")
        sft_trainer = _module("trl.trainer.sft_trainer")

        for module, name in (
            (sft_trainer, "DataCollatorForLanguageModeling"),
            (dpo_trainer, "DataCollatorForPreference"),
        ):
            usual = getattr(module, name).torch_call

            def call(self: Any, examples: Any, usual: Any = usual) -> Any:
                batch = usual(self, examples)
                change(batch)
                return batch

            getattr(module, name).torch_call = call

    return inject


def _attend_all(batch: dict[str, Any]) -> None:
    batch["attention_mask"] = batch["attention_mask"] * 0 + 1


def _end_unlearned(batch: dict[str, Any]) -> None:
    batch["labels"] = batch["labels"].masked_fill(batch["input_ids"] == 1, -100)


def _last_unmasked(batch: dict[str, Any]) -> None:
    mask = batch["completion_mask"]
    batch["completion_mask"] = mask * mask.roll(-1, 1)


def _reference_untrained() -> None:
    grpo_trainer = _module("trl.trainer.grpo_trainer")

    usual = grpo_trainer.create_model_from_path

    def make(*args: Any, **kwargs: Any) -> Any:
        import torch

        model = usual(*args, **kwargs)
        with torch.no_grad():
            for one in model.parameters():
                one.add_(0.05 * torch.randn_like(one))
        return model

    grpo_trainer.create_model_from_path = make


def _adapters_stay() -> None:
    import contextlib

    dpo_trainer = _module("trl.trainer.dpo_trainer")
    grpo_trainer = _module("trl.trainer.grpo_trainer")

    for module in (dpo_trainer, grpo_trainer):
        module.use_adapter = lambda *_, **__: contextlib.nullcontext()


def _generates(**options: Any) -> Callable[[], None]:
    def inject() -> None:
        grpo_trainer = _module("trl.trainer.grpo_trainer")

        usual = grpo_trainer.GenerationConfig
        grpo_trainer.GenerationConfig = lambda **given: usual(**{**given, **options})

    return inject


def _scored_at_one() -> None:
    grpo_trainer = _module("trl.trainer.grpo_trainer")

    usual = grpo_trainer.add_fused_lm_head
    grpo_trainer.add_fused_lm_head = lambda *args, **given: usual(*args, **{**given, "temperature": 1.0})


def _no_decay() -> None:
    transformers = _module("transformers")

    transformers.Trainer.get_decay_parameter_names = lambda self, model: []


def _no_clipping() -> None:
    transformers = _module("transformers")

    transformers.Trainer._clip_grad_norm = lambda self, model: self._get_grad_norm(model)


def _betas_swapped() -> None:
    transformers = _module("transformers")

    usual = transformers.Trainer.get_optimizer_cls_and_kwargs

    def made(args: Any, model: Any = None) -> Any:
        kind, options = usual(args, model)
        return kind, {**options, "betas": (0.999, 0.9)}

    transformers.Trainer.get_optimizer_cls_and_kwargs = staticmethod(made)


def _gradients_dropped() -> None:
    transformers = _module("transformers")

    usual = transformers.Trainer.training_step

    def step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        model.zero_grad()
        return usual(self, model, *args, **kwargs)

    transformers.Trainer.training_step = step


def _optimizer_not_loaded() -> None:
    transformers, torch = _module("transformers"), _module("torch")

    def loaded(self: Any, checkpoint: Any) -> None:
        if checkpoint is not None:
            self.lr_scheduler.load_state_dict(torch.load(f"{checkpoint}/scheduler.pt"))

    transformers.Trainer._load_optimizer_and_scheduler = loaded


def _of_transformers(kind: str, name: str, *changes: str) -> Callable[[], None]:
    return lambda: edited(getattr(_module("transformers"), kind), name, *changes)


def _of_sampler(*changes: str) -> Callable[[], None]:
    return lambda: edited(_module("trl.trainer.utils").RepeatSampler, "__iter__", *changes)


def _mixes(*changes: str) -> Callable[[], None]:
    return lambda: edited(_module("trl.trainer.callbacks").SyncRefModelCallback, "_sync_target_model", *changes)


def _synchronizes_each_step() -> None:
    edited(
        _module("trl.trainer.callbacks").SyncRefModelCallback, "on_step_end",
        "state.global_step % args.ref_model_sync_steps == 0", "True",
    )  # fmt: skip


def _random_not_loaded() -> None:
    _module("transformers").Trainer._load_rng_state = lambda self, checkpoint: None


def _batches_not_skipped() -> None:
    _module("transformers.trainer").skip_first_batches = lambda loader, count: loader


def _positions_of_rows() -> None:
    edited(
        _module("trl.trainer.sft_trainer").DataCollatorForLanguageModeling, "torch_call",
        "self.get_position_ids_from_packed_seq_lengths(batch_seq_lengths)", "[torch.arange(len(i)) for i in input_ids]",
    )  # fmt: skip


def _same_rows() -> None:
    transformers = _module("transformers")

    usual = transformers.Trainer._get_train_sampler

    def sampler(self: Any, *args: Any, **kwargs: Any) -> Any:
        return [index % 8 for index in usual(self, *args, **kwargs)]

    transformers.Trainer._get_train_sampler = sampler


def _in_collator(kind: str, name: str, *changes: str) -> Callable[[], None]:
    return lambda: edited(getattr(_module(f"trl.trainer.{kind}_trainer"), name), "torch_call", *changes)


def _rows_not_shared() -> None:
    edited(
        _module("transformers").Trainer, "_get_dataloader",
        "self.accelerator.prepare(DataLoader(dataset, **dataloader_params))",
        "DataLoader(dataset, **dataloader_params)",
    )  # fmt: skip


def _tokens_of_one_rank() -> None:
    edited(
        _module("transformers").Trainer, "_get_num_items_in_batch",
        "self.accelerator.gather(num_items_in_batch.to(device)).sum()", "num_items_in_batch.to(device)",
    )  # fmt: skip


def _evaluates(change: Callable[[Any, Any], Any]) -> Callable[[], None]:
    """Return an injection that changes the loss of each batch of an evaluation."""

    def inject() -> None:
        trainer = _module("trl").SFTTrainer
        usual = trainer.prediction_step

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            loss, *others = usual(self, *args, **kwargs)
            return (change(self, loss), *others)

        trainer.prediction_step = step

    return inject


def _moved(trainer: Any, loss: Any) -> Any:
    with _module("torch").no_grad():
        next(trainer.model.parameters()).mul_(0.99)
    return loss


def _evaluates_in_training_mode() -> None:
    edited(
        _module("transformers").Trainer, "evaluation_loop", "            model.eval()\n", "            model.train()\n"
    )


_PREPARE = "_prepare_dataset"
_EVALUATING: _Options = {
    "kind": "sft", "evaluates": True,
    "options": {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4},
}  # fmt: skip
_AFTER_REWARDS = "rewards_per_func = self._calculate_rewards(inputs, prompts, completions, completion_ids_list)"
_END = "completion_mask = [torch.ones_like(ids, dtype=torch.long) for ids in completion_ids]"
_GRPO: _Options = {"kind": "grpo", "options": {"steps_per_generation": 2}}


def _grpo(**options: Any) -> _Options:
    return {"kind": "grpo", "options": options}


#: Bug -> (setup of a run, injection). The bugs before the first ``missed-…`` are older than the invariants that they
#: test.
BUGS: Mapping[str, tuple[_Options, Callable[[], None]]] = {
    "grpo-kl-of-the-other-direction": (_grpo(beta=0.2, num_iterations=2), _in(
        "GRPOTrainer", _LOSS,
        "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1",
        "torch.exp(per_token_logps - ref_per_token_logps) - (per_token_logps - ref_per_token_logps) - 1")),
    "grpo-beta-squared": (_grpo(beta=0.2, num_iterations=2), _in(
        "GRPOTrainer", _LOSS, "per_token_loss + self.beta * per_token_kl",
        "per_token_loss + self.beta**2 * per_token_kl")),
    "grpo-width-for-maximum": (_grpo(loss_type="dr_grpo", max_completion_length=24), _in(
        "GRPOTrainer", _LOSS, "(per_token_loss.size(0) * self.max_completion_length)", "per_token_loss.numel()")),
    "grpo-sapo-temperatures-swapped": (_grpo(loss_type="sapo", sapo_temperature_neg=2.0, num_iterations=2), _in(
        "GRPOTrainer", _LOSS, "torch.where(advantages > 0,", "torch.where(advantages < 0,")),
    "grpo-entropy-bonus-negative": (_grpo(entropy_coef=0.05), _in(
        "GRPOTrainer", _LOSS, "loss = loss - apply_coef * entropy_loss", "loss = loss + apply_coef * entropy_loss")),
    "grpo-sequence-ratio-of-sums": (
        _grpo(importance_sampling_level="sequence", num_iterations=2, learning_rate=1e-2, loss_type="grpo"), _in(
            "GRPOTrainer", _LOSS, "(log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)",
            "(log_ratio * mask).sum(-1)")),
    "grpo-upper-bound-ignored": (_grpo(epsilon_high=0.5), _in(
        "GRPOTrainer", "__init__", "= args.epsilon_high if args.epsilon_high is not None else args.epsilon",
        "= args.epsilon")),
    "rloo-mean-for-sum": ({"kind": "rloo", "options": {"num_iterations": 2, "learning_rate": 1e-2}}, _in(
        "RLOOTrainer", _LOSS, "(per_token_logps * completion_mask).sum(1)",
        "(per_token_logps * completion_mask).mean(1)")),
    "grpo-reference-of-other-weights": (_grpo(beta=0.2), _reference_untrained),
    "grpo-adapter-in-the-reference": ({**_grpo(beta=0.2, learning_rate=1e-2), "lora": {}}, _adapters_stay),
    "dpo-adapter-in-the-reference": (
        {"kind": "dpo", "lora": {}, "options": {"learning_rate": 1e-2}}, _adapters_stay),
    "dpo-precomputed-sides-swapped": ({"kind": "dpo", "options": {"precompute_ref_log_probs": True}}, _in(
        "DPOTrainer", "_precompute_ref_logps", '"ref_chosen_logps": ref_chosen_logps[indices]',
        '"ref_chosen_logps": ref_rejected_logps[indices]')),
    "dpo-hinge-without-margin": ({"kind": "dpo", "options": {"loss_type": ["hinge"]}}, _in(
        "DPOTrainer", _LOSS, "torch.relu(1 - self.beta * delta_score)", "torch.relu(-self.beta * delta_score)")),
    "grpo-greedy": (_GRPO, _generates(do_sample=False)),
    "grpo-top-three": (_GRPO, _generates(top_k=3)),
    "grpo-scored-at-temperature-one": (_grpo(temperature=0.5), _scored_at_one),
    "grpo-weights-of-rewards-ignored": (
        {**_grpo(reward_weights=[1.0, 0.1]), "rewards": ("count", "even")}, _in(
            "GRPOTrainer", _MAKE,
            "            rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)\n"
            "            rewards[unscorable_mask] = torch.nan\n            mean_grouped",
            "            rewards = rewards_per_func.nansum(dim=1)\n            mean_grouped")),
    "grpo-rewards-of-the-next-row": (_GRPO, _in(
        "GRPOTrainer", _MAKE, _AFTER_REWARDS, f"{_AFTER_REWARDS}.roll(1, 0)")),
    "mixed-completions-of-the-next-row": (_GRPO, _in(
        "GRPOTrainer", "_calculate_rewards",
        "output_reward_func = reward_func(\n                        prompts=prompts, completions=completions,",
        "output_reward_func = reward_func(\n"
        "                        prompts=prompts, completions=completions[1:] + completions[:1],")),
    "mixed-prompts-cut": (_GRPO, _in(
        "GRPOTrainer", "_tokenize_prompts", 'prompt_ids = self.processing_class(text=prompts)["input_ids"]',
        'prompt_ids = [ids[:-2] for ids in self.processing_class(text=prompts)["input_ids"]]')),
    "mixed-generated-from-other-prompts": (_GRPO, _in(
        "GRPOTrainer", "_generate_single_turn",
        "generate_inputs = super()._prepare_inputs(generate_inputs)",
        "generate_inputs = {name: one.roll(4, 0) for name, one in super()._prepare_inputs(generate_inputs).items()}")),
    "mixed-columns-reversed": (_GRPO, _in(
        "GRPOTrainer", "_calculate_rewards", "[example[key] for example in inputs] for key in keys",
        "[example[key] for example in inputs[::-1]] for key in keys")),
    "grpo-divided-by-variance": (_GRPO, _in(
        "GRPOTrainer", _MAKE, '            if self.scale_rewards != "none":\n'
        "                advantages = advantages / (std_rewards + 1e-4)",
        '            if self.scale_rewards != "none":\n'
        "                advantages = advantages / (std_rewards**2 + 1e-4)")),
    "grpo-rewards-are-infinite": (_GRPO, _in(
        "GRPOTrainer", "_calculate_rewards", "rewards_per_func = gather(rewards_per_func)",
        "rewards_per_func = gather(rewards_per_func).masked_fill(rewards_per_func > 0.5, torch.inf)")),
    "sft-decay-dropped": ({"kind": "sft", "options": {"weight_decay": 0.1}}, _no_decay),
    "sft-clipping-dropped": ({"kind": "sft", "options": {"max_grad_norm": 0.05}}, _no_clipping),
    "sft-first-micro-batch-dropped": ({"kind": "sft"}, _gradients_dropped),
    "sft-betas-swapped": ({"kind": "sft"}, _betas_swapped),
    "sft-padding-attended": ({"kind": "sft"}, _collated(_attend_all)),
    "sft-end-never-learned": ({"kind": "sft"}, _collated(_end_unlearned)),
    "grpo-end-masked": (_GRPO, _in(
        "GRPOTrainer", _MAKE, _END,
        f"{_END}\n        completion_mask = [m * (i != 1) for m, i in zip(completion_mask, completion_ids)]")),
    "dpo-last-token-masked": ({"kind": "dpo"}, _collated(_last_unmasked)),
    "sft-eight-rows-only": ({"kind": "sft"}, _same_rows),
    "sft-dft-without-weights": ({"kind": "sft", "options": {"loss_type": "dft"}}, _in(
        "SFTTrainer", "compute_loss", "per_token_loss * outputs.log_probs.exp().detach()", "per_token_loss * 1.0")),
    "class-dft-weights-with-gradient": ({"kind": "sft", "options": {"loss_type": "dft"}}, _in(
        "SFTTrainer", "compute_loss", "outputs.log_probs.exp().detach()", "outputs.log_probs.exp()")),
    "class-cispo-ratio-with-gradient": (_grpo(loss_type="cispo", epsilon_high=5.0), _in(
        "GRPOTrainer", _LOSS, "torch.clamp(coef_1, max=self.epsilon_high).detach()",
        "torch.clamp(coef_1, max=self.epsilon_high)")),
    "class-rloo-penalty-of-the-wrong-sign": (
        {"kind": "rloo", "options": {"beta": 0.3, "steps_per_generation": 2, "learning_rate": 1e-2}}, _in(
            "RLOOTrainer", _MAKE, "rewards = rewards - self.beta * kl", "rewards = rewards + self.beta * kl")),
    "class-reward-not-centered": ({"kind": "reward", "options": {"center_rewards_coefficient": 0.1}}, _in(
        "RewardTrainer", "compute_loss", "torch.mean((rewards_chosen + rewards_rejected) ** 2)",
        "torch.mean(rewards_chosen + rewards_rejected) ** 2")),
    "class-kto-weights-swapped": ({"kind": "kto", "options": {"desirable_weight": 1.5}}, _in(
        "KTOTrainer", _LOSS, "(self.desirable_weight * chosen_losses, self.undesirable_weight * rejected_losses)",
        "(self.undesirable_weight * chosen_losses, self.desirable_weight * rejected_losses)")),
    "class-packed-positions-of-rows": (
        {"kind": "sft", "form": "text", "options": {"packing": True, "max_length": 16}}, _positions_of_rows),
    "class-padding-attended": (_GRPO, _in(
        "GRPOTrainer", _LOSS, "attention_mask = torch.cat([prompt_mask, completion_mask], dim=1)",
        "attention_mask = torch.cat([torch.ones_like(prompt_mask), completion_mask], dim=1)")),
    "class-resumed-without-moments": ({"kind": "sft", "resumes": "alone", "options": {}}, _optimizer_not_loaded),
    # Bugs that watching missed in November 2026, and further bugs of the same kinds.
    "missed-grpo-tokens-of-one-rank": ({**_grpo(), "ranks": 2}, _in(
        "GRPOTrainer", _MAKE, "self.accelerator.gather(loss_mask.sum()).sum()", "loss_mask.sum()")),
    "missed-grpo-tokens-with-padding": (_grpo(), _in(
        "GRPOTrainer", _MAKE, "self.accelerator.gather(loss_mask.sum()).sum()", "torch.tensor(loss_mask.numel())")),
    "missed-sft-tokens-of-one-rank": ({"kind": "sft", "ranks": 2}, _tokens_of_one_rank),
    "missed-sft-completion-one-early": ({"kind": "sft"}, _in(
        "SFTTrainer", _PREPARE, "[0] * prompt_len + [1] * (len(prompt_completion_ids) - prompt_len)",
        "[0] * (prompt_len - 1) + [1] * (len(prompt_completion_ids) - prompt_len + 1)")),
    "missed-sft-any-mask": (
        {"kind": "sft", "form": "turns", "options": {"assistant_only_loss": True}}, _in(
            "SFTTrainer", _PREPARE, "token_id if all(bits) else -100", "token_id if any(bits) else -100")),
    "missed-sft-turns-dropped": ({"kind": "sft", "form": "turns"}, _in(
        "SFTTrainer", _PREPARE,
        '                        if is_conversational(example):\n                            prompt_ids',
        '                        if is_conversational(example):\n                            example = {**example, '
        '"prompt": example["prompt"][-1:]}\n                            prompt_ids')),
    "missed-reward-end-of-one-side": ({"kind": "reward"}, _in(
        "RewardTrainer", _PREPARE, 'not example["rejected"].endswith(eos_token)',
        'not example["chosen"].endswith(eos_token)')),
    "missed-dpo-prompt-cut": ({"kind": "dpo"}, _in(
        "DPOTrainer", _PREPARE, 'output["prompt_ids"] = prompt_ids[:prompt_len]',
        'output["prompt_ids"] = prompt_ids[1:prompt_len]')),
    "missed-kto-own-completions": ({"kind": "kto"}, _in(
        "KTOTrainer", _PREPARE, '[examples["completion_ids"][-1]] + examples["completion_ids"][:-1]',
        'list(examples["completion_ids"])')),
    "missed-kto-labels-inverted": ({"kind": "kto"}, _in_collator(
        "kto", "DataCollatorForUnpairedPreference", '[example["label"] for', '[not example["label"] for')),
    "missed-kto-completion-one-early": ({"kind": "kto"}, _in_collator(
        "kto", "DataCollatorForUnpairedPreference", "[0] * len(prompt_ids) + [1] * len(answer_ids)",
        "[0] * (len(prompt_ids) - 1) + [1] * (len(answer_ids) + 1)")),
    "missed-dpo-sides-interleaved": ({"kind": "dpo"}, _in_collator(
        "dpo", "DataCollatorForPreference", "completion_mask = chosen_mask + rejected_mask",
        "completion_mask = rejected_mask + chosen_mask")),
    "missed-reward-sides-swapped": ({"kind": "reward"}, _in_collator(
        "reward", "DataCollatorForPreference", "input_ids = chosen_ids + rejected_ids",
        "input_ids = rejected_ids + chosen_ids")),
    "missed-dpo-rows-of-all-ranks": ({"kind": "dpo", "ranks": 2}, _rows_not_shared),
    "missed-evaluation-of-other-groups": ({**_EVALUATING, "kind": "grpo", "options": {
        **_EVALUATING["options"], "num_generations_eval": 2, "per_device_eval_batch_size": 8}}, _in(
            "GRPOTrainer", _MAKE,
            'self.num_generations if mode == "train" else self.num_generations_eval\n\n        # A completion',
            "self.num_generations\n\n        # A completion")),
    "missed-evaluation-learns-prompts": (_EVALUATING, _in(
        "SFTTrainer", _PREPARE, 'if self.completion_only_loss and "completion_mask" in column_names:',
        'if self.completion_only_loss and "completion_mask" in column_names and dataset_name == "train":')),
    "missed-evaluation-doubles-the-loss": (_EVALUATING, _evaluates(lambda self, loss: 2 * loss)),
    "missed-evaluation-moves-the-model": (_EVALUATING, _evaluates(_moved)),
    "missed-evaluation-with-dropout": ({**_EVALUATING, "model": "gpt2", "dropout": 0.1}, _evaluates_in_training_mode),
    # Bugs that watching missed in a third trial, and further bugs of the same kinds.
    "trial-sft-first-labels-counted": ({"kind": "sft", "form": "text"}, _of_transformers(
        "Trainer", "_get_num_items_in_batch", 'batch["labels"][..., 1:]', 'batch["labels"]')),
    "trial-sft-warm-up-rounded-down": ({"kind": "sft", "options": {"warmup_steps": 0.3}}, _of_transformers(
        "TrainingArguments", "get_warmup_steps", "math.ceil(", "math.floor(")),
    "trial-grpo-chunks-left-out": (_GRPO, _of_sampler("for chunk in indexes:", "for chunk in indexes[::2]:")),
    "trial-grpo-prompts-not-repeated": (_GRPO, _of_sampler(
        "for _ in range(self.repeat_count):", "for _ in range(self.repeat_count // 2):")),
    "trial-grpo-one-order": (  # an epoch has two steps
        {"kind": "grpo", "options": {"steps_per_generation": 2, "per_device_train_batch_size": 36}},
        _of_sampler("generator=self.generator)", "generator=self.generator.manual_seed(7))")),
    "trial-grpo-mixture-swapped": (
        _grpo(beta=0.1, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.9, learning_rate=1e-2),
        _mixes("mul_(1.0 - alpha).add_(copy_param.data, alpha=alpha)",
               "mul_(alpha).add_(copy_param.data, alpha=1.0 - alpha)")),
    "trial-dpo-synchronized-too-often": (
        {"kind": "dpo", "options": {"sync_ref_model": True, "ref_model_sync_steps": 3, "learning_rate": 1e-2}},
        _synchronizes_each_step),
    "trial-grpo-old-log-probs-left-out": (_grpo(num_iterations=2), _in(
        "GRPOTrainer", _MAKE, "if old_per_token_logps is not None:\n            output",
        "if False:\n            output")),
    "trial-resumed-with-new-random-numbers": (
        {"kind": "sft", "model": "gpt2", "dropout": 0.1, "resumes": "alone", "options": {}}, _random_not_loaded),
    "trial-resumed-with-the-same-batches": ({"kind": "sft", "resumes": "alone", "options": {}}, _batches_not_skipped),
    "trial-awaited-rewards-of-the-next-row": ({**_GRPO, "rewards": ("awaited",)}, _in(
        "GRPOTrainer", _MAKE, _AFTER_REWARDS, f"{_AFTER_REWARDS}.roll(1, 0)")),
}  # fmt: skip


def compared(count: int) -> tuple[list[str], list[int]]:
    """Return the bugs and the seeds of correct runs that two tools are compared on.

    The rule was written before either tool ran: every second bug that needs one process, and the first seeds from 20000
    whose runs have one process.
    """
    bugs = [name for name, (setup, _) in BUGS.items() if setup.get("ranks", 1) == 1]
    seeds = [seed for seed in range(20000, 20100) if draw(seed).get("ranks", 1) == 1]
    return bugs[::2][:count], seeds[:count]


def _show(name: str, done: Mapping[str, Any]) -> None:
    state = "did not run" if not done["logs"] else "" if done["named"] else "nothing"
    print(f"{name}: {state}" + "; ".join(f"{one['law']}, step {one['step']}: {one['detail']}" for one in done["named"]))
    for what in ("not_checked", "not_copied"):
        for why, count in done.get("counts", {}).get(what, {}).items():
            print(f"  {what}: {why} ({count} times)")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", metavar="FIRST-LAST")
    parser.add_argument("--correct", action="store_true")
    parser.add_argument("--bugs", action="store_true")
    parser.add_argument("--compared", type=int, metavar="COUNT", default=0)
    parser.add_argument("--skipped", action="store_true", help="print the skipped checks with their reasons")
    parser.add_argument("--only", metavar="TEXT", default="", help="only runs whose names contain this text")
    arguments = parser.parse_args()
    chosen: dict[str, tuple[_Options, Callable[[], None]]] = {}
    bugs = [*BUGS] if arguments.bugs else []
    slower: list[float] = []
    if arguments.compared:
        bugs, seeds = compared(arguments.compared)
        chosen |= {f"{seed} {draw(seed)}": (draw(seed), lambda: None) for seed in seeds}
    if arguments.seeds:
        first, last = map(int, arguments.seeds.split("-"))
        chosen |= {f"{seed} {draw(seed)}": (draw(seed), lambda: None) for seed in range(first, last + 1)}
    if arguments.correct:
        chosen |= {name: (setup, lambda: None) for name, setup in CORRECT.items()}
    named: dict[str, tuple[bool, bool]] = {}
    prepared = Prepared()

    def trained(name: str, before: Callable[[], None], setup: Mapping[str, Any]) -> dict[str, Any]:
        made = before, partial(build, setup, _STEPS)
        done = prepared.trained(name, _STEPS, made=made, ranks=setup.get("ranks", 1))
        if arguments.compared and done["logs"]:
            slower.append(done["seconds"] / prepared.trained(name, _STEPS, made=made, every=0)["seconds"])
        return done

    for name, (setup, before) in chosen.items():
        if arguments.only in name:
            done = trained(name, before, setup)
            if arguments.skipped:
                counts = done.get("counts", {})
                print("\n".join(f"  {law}: {why}" for law, why in counts.get("skipped", {}).items()))
                print(f"  {counts.get('invariants')}")
            _show(name, done)
            named[name] = bool(done["named"]), bool(done["logs"])
    if named:
        alarms, ran = (sum(column) for column in zip(*named.values()))
        print(f"{alarms} of {ran} correct trainings raised an alarm; {len(named) - ran} did not run")
    if bugs:
        results = []
        for name in bugs:
            setup, before = BUGS[name]
            if arguments.only in name:
                done = trained(name, before, setup)
                _show(name, done)
                alarm = done["named"] and trained(name, lambda: None, setup)
                if alarm and alarm["named"]:
                    _show("  without the bug too", alarm)
                results.append(bool(done["named"]) and not alarm["named"])
        print(f"{sum(results)} of {len(results)} bugs raised an alarm in a training that raised none without the bug")
    if slower:
        print(f"a training with every step checked takes {statistics.median(slower):.2f} times as long (median)")


if __name__ == "__main__":
    main()
