"""Inject bugs into real training runs of TRL; report which bugs `sentinel watch` finds, and at which step.

    pip install trl==1.16.0                       (or have it on PYTHONPATH)
    python benchmarks/injected.py                 every bug, and four runs without one: ten minutes of a core
    python benchmarks/injected.py --only 'dpo-*' --steps 20
    python benchmarks/injected.py --only grpo-rows-for-tokens --steps 40 --picture docs/watch.svg      with matplotlib

Each training run and its checker are separate processes, forked from one process that has imported TRL and bound its
functions. The model has a few thousand parameters and runs on the CPU. The bug is injected into TRL's code in memory;
the files on disk stay correct. Every step is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import importlib
import inspect
import io
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

#: Number of steps within which a bug must be found; of a run without a bug; and of the two runs, watched and unwatched,
#: whose final parameters must be identical.
_WITHIN, _CLEAN, _SAME = 20, 200, 4


def edited(owner: Any, name: str, *changes: str) -> None:
    """Replace a method with a copy whose source is edited.

    :param changes: alternates the text to find, which must occur exactly once, and its replacement.
    """
    function = inspect.unwrap(inspect.getattr_static(owner, name))
    source = inspect.getsource(function)  # indented like the body of a function
    for old, new in zip(changes[::2], changes[1::2]):
        if source.count(old) != 1:
            raise SystemExit(f"{owner.__name__}.{name} has {source.count(old)} times {old!r}; another release?")
        source = source.replace(old, new)
    scope: dict[str, Any] = {}
    code = compile(f"def outer(__class__):\n{source}\n    return {name}\n", inspect.getfile(function), "exec")
    exec(code, function.__globals__, scope)
    setattr(owner, name, scope["outer"](owner))


def _in(trainer: str, method: str, *changes: str) -> Callable[[], None]:
    def inject() -> None:
        import trl  # type: ignore[import-not-found, unused-ignore]

        edited(getattr(trl, trainer), method, *changes)

    return inject


def _collated(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    """Return an injection that passes each batch of the trainer's collator to ``change``, which modifies it."""

    def inject(trainer: Any) -> None:
        collator = trainer.data_collator

        def collated(rows: Any) -> Any:
            batch = collator(rows)
            change(batch)
            return batch

        trainer.data_collator = collated

    return inject


def _labels_late(batch: dict[str, Any]) -> None:
    batch["labels"] = batch["labels"].roll(1, 1)


def _padding_learned(batch: dict[str, Any]) -> None:
    batch["labels"] = batch["labels"].masked_fill(batch["attention_mask"] == 0, 0)


def _sampled_colder(trainer: Any) -> None:
    trainer.generation_config.temperature = 0.3


def _reference_is_policy(trainer: Any) -> None:
    trainer.ref_model = trainer.model


def _at_each_step(action: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an injection that runs ``action`` after each step.

    It patches transformers' own loop instead of adding a callback, because the checker does not report what the user's
    callbacks do.
    """

    def inject(_: Any) -> None:
        transformers = importlib.import_module("transformers")
        usual = transformers.Trainer._maybe_log_save_evaluate

        def after(self: Any, *args: Any, **kwargs: Any) -> Any:
            action(self)
            return usual(self, *args, **kwargs)

        transformers.Trainer._maybe_log_save_evaluate = after

    return inject


def _reference_follows(trainer: Any) -> None:
    trainer.ref_model.load_state_dict(trainer.model.state_dict())


def _scheduled_twice(trainer: Any) -> None:
    trainer.lr_scheduler.step()


def _layer_left_out(trainer: Any) -> None:
    trainer.create_optimizer()
    head = trainer.model.get_output_embeddings().weight
    for group in trainer.optimizer.param_groups:
        group["params"] = [one for one in group["params"] if one is not head]


def _stepped_early(_: Any) -> None:
    transformers = importlib.import_module("transformers")
    usual = transformers.Trainer.training_step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = usual(self, *args, **kwargs)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    transformers.Trainer.training_step = step


def _rate_constant(_: Any) -> None:
    import torch

    module: Any = importlib.import_module("transformers.trainer")
    module.get_scheduler = lambda *_, optimizer, **__: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


_LOSS = "_compute_loss"
_PREPARED = "generation_batch = shuffle_sequence_dict(generation_batch)"
_STALE = (
    f"{_PREPARED}; fresh = generation_batch['advantages']; "
    "generation_batch['advantages'], self._was = getattr(self, '_was', fresh), fresh"
)

#: Bug -> its injection. Injections in ``BEFORE`` run before the trainer is made; those in ``AFTER`` get the trainer.
BEFORE: Mapping[str, Callable[[], None]] = {
    "grpo-rows-for-tokens": _in(
        "GRPOTrainer", _LOSS, "            loss = (per_token_loss * mask).sum() / normalizer",
        "            loss = (per_token_loss * mask).sum() / mask.shape[0]"),
    "grpo-mask-one-late": _in(
        "GRPOTrainer", _LOSS, "        # Compute the per-token log probabilities for the model\n",
        "        inputs = {**inputs, 'completion_mask': inputs['completion_mask'].roll(1, 1)}\n"),
    "grpo-max-for-min": _in("GRPOTrainer", _LOSS, "-torch.min(per_token_loss1", "-torch.max(per_token_loss1"),
    "grpo-clipped-below-one": _in(
        "GRPOTrainer", _LOSS, "torch.clamp(coef_1, 1 - self.epsilon_low,", "torch.clamp(coef_1, 1,"),
    "grpo-divided-twice": _in(
        "GRPOTrainer", _LOSS, "self.current_gradient_accumulation_steps / self.args.steps_per_generation",
        "self.current_gradient_accumulation_steps"),
    "grpo-old-log-probs-dropped": _in(
        "GRPOTrainer", "_prepare_inputs", _PREPARED,
        f"{_PREPARED}; generation_batch.pop('old_per_token_logps')"),
    "grpo-old-log-probs-of-another-temperature": _in(
        "GRPOTrainer", "_generate_and_score_completions", 'output["old_per_token_logps"] = old_per_token_logps',
        'output["old_per_token_logps"] = 0.5 * old_per_token_logps'),
    "grpo-advantages-shuffled": _in(
        "GRPOTrainer", "_prepare_inputs", _PREPARED,
        f"{_PREPARED}; generation_batch['advantages'] = generation_batch['advantages'].flip(0)"),
    "grpo-advantages-of-the-batch-before": _in("GRPOTrainer", "_prepare_inputs", _PREPARED, _STALE),
    "grpo-groups-of-other-prompts": _in(
        "GRPOTrainer", "_generate_and_score_completions",
        "mean_grouped_rewards = torch.nanmean(rewards.view(-1, num_generations), dim=1)",
        "mean_grouped_rewards = torch.nanmean(rewards.view(num_generations, -1), dim=0)"),
    "grpo-first-micro-batch-always": _in(
        "GRPOTrainer", "_prepare_inputs", "self._buffered_inputs[self._step % self.args.steps_per_generation]",
        "self._buffered_inputs[0]"),
    "grpo-log-probs-one-early": _in(
        "GRPOTrainer", "_get_per_token_logps_and_entropies", "outputs.log_probs[:, -logits_to_keep:]",
        "outputs.log_probs.roll(1, 1)[:, -logits_to_keep:]"),
    "rloo-baseline-of-all": _in(
        "RLOOTrainer", "_generate_and_score_completions",
        "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)",
        "baselines = (grouped_sum / scorable_counts).expand_as(grouped_rewards).clone()"),
    "rloo-mask-dropped": _in(
        "RLOOTrainer", _LOSS, "logps = (per_token_logps * completion_mask).sum(1)", "logps = per_token_logps.sum(1)"),
    "rloo-sum-for-mean": _in("RLOOTrainer", _LOSS, "loss = per_sequence_loss.mean()", "loss = per_sequence_loss.sum()"),
    "rloo-advantages-shuffled": _in(
        "RLOOTrainer", "_prepare_inputs", _PREPARED,
        f"{_PREPARED}; generation_batch['advantages'] = generation_batch['advantages'].flip(0)"),
    "dpo-beta-dropped": _in(
        "DPOTrainer", _LOSS,
        '            if loss_type == "sigmoid":\n                per_sequence_loss = -F.logsigmoid(self.beta *',
        '            if loss_type == "sigmoid":\n                per_sequence_loss = -F.logsigmoid(1.0 *'),
    "dpo-sides-swapped": _in(
        "DPOTrainer", _LOSS,
        "chosen_logps, rejected_logps = logps.chunk", "rejected_logps, chosen_logps = logps.chunk"),
    "dpo-prompt-counted": _in(
        "DPOTrainer", _LOSS, 'labels = inputs["input_ids"].masked_fill(completion_mask == 0, -100)',
        'labels = inputs["input_ids"]'),
    "dpo-mask-one-late": _in(
        "DPOTrainer", _LOSS, 'labels = inputs["input_ids"].masked_fill(completion_mask == 0, -100)',
        'labels = inputs["input_ids"].masked_fill(completion_mask.roll(1, 1) == 0, -100)'),
    "sft-mean-of-means": _in(
        "SFTTrainer", "compute_loss",
        "num_tokens = outputs.label_mask.sum() if num_items_in_batch is None else num_items_in_batch",
        "num_tokens = outputs.label_mask.sum()"),
    "sft-rows-for-tokens": _in(
        "SFTTrainer", "compute_loss", "loss = per_token_loss.sum() / torch.as_tensor(num_tokens).clamp(min=1)",
        "loss = per_token_loss.sum() / len(per_token_loss)"),
    "sft-prompt-learned": _in(
        "SFTTrainer", "_prepare_dataset", "mask_columns.append(\"completion_mask\")", "pass"),
}  # fmt: skip
AFTER: Mapping[str, Callable[[Any], None]] = {
    "grpo-sampled-at-another-temperature": _sampled_colder,
    "grpo-reference-is-the-policy": _reference_is_policy,
    "grpo-reference-follows": _at_each_step(_reference_follows),
    "grpo-schedule-twice": _at_each_step(_scheduled_twice),
    "grpo-stepped-each-micro-batch": _stepped_early,
    "dpo-reference-follows": _at_each_step(_reference_follows),
    "sft-labels-one-late": _collated(_labels_late),
    "sft-padding-learned": _collated(_padding_learned),
    "sft-layer-left-out": _layer_left_out,
    "sft-rate-constant": _rate_constant,
}
CLEAN = ("grpo", "rloo", "dpo", "sft")


def _reward(completions: list[str], **_: Any) -> list[float]:
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def trainer_of(
    kind: str,
    steps: int,
    folder: str = "",
    referred: bool = False,
    hidden: int = 32,
    layers: int = 2,
    tokens: int = 8,
    words_more: int = 0,
    **more: Any,
) -> Any:
    """Make a trainer of TRL with a small model that learns to add numbers.

    :param referred: whether GRPO and RLOO use a reference model (``beta`` > 0).
    :param hidden: the model's width; ``layers`` is its number of layers.
    :param tokens: maximum number of tokens of a response.
    :param words_more: number of additional words in the vocabulary, which no prompt uses.
    :param more: settings of the GRPO or RLOO trainer.
    """
    import torch
    import trl
    from datasets import Dataset  # type: ignore[import-untyped, unused-ignore]
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    set_seed(0)
    torch.set_num_threads(1)
    words = ["<pad>", "<eos>", "<unk>", *map(str, range(20)), "plus", "is", "so", *(f"w{n}" for n in range(words_more))]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=2, max_position_embeddings=max(64, 2 * tokens), pad_token_id=0, eos_token_id=1,
        bos_token_id=None,
    )  # fmt: skip
    sums = [(one, other) for one in range(8) for other in range(8)]
    rows: list[dict[str, str]] = [{"prompt": f"{one} plus {other} is"} for one, other in sums]
    options: dict[str, Any] = {
        "output_dir": folder, "use_cpu": True, "bf16": False, "report_to": "none", "max_steps": steps,
        "per_device_train_batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no",
        "disable_tqdm": True, "gradient_accumulation_steps": 2, "lr_scheduler_type": "linear",
    }  # fmt: skip
    parts: dict[str, Any] = {}
    if kind in ("grpo", "rloo"):
        parts["reward_funcs"] = _reward
        options |= {"num_generations": 4, "max_completion_length": tokens, "num_iterations": 2, "temperature": 0.9}
        options |= {"beta": 0.04 if referred else 0.0, **more}
    elif kind == "dpo":
        rows = [
            {**row, "chosen": f" {one + other} so" * (1 + one % 3), "rejected": f" {abs(one - other)} so"}
            for row, (one, other) in zip(rows, sums)
        ]
        options |= {"beta": 0.3}
    else:
        rows = [{**row, "completion": f" {one + other}" + " so" * (one % 4)} for row, (one, other) in zip(rows, sums)]
    name, place = kind.upper(), f"{folder}/model"
    LlamaForCausalLM(config).save_pretrained(place)  # the trainer loads its reference model from this path
    return getattr(trl, f"{name}Trainer")(
        model=LlamaForCausalLM.from_pretrained(place), args=getattr(trl, f"{name}Config")(**options),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows), **parts,
    )  # fmt: skip


class Prepared:
    """A process in which a checker has prepared TRL's functions, so that each run can be forked from it."""

    def __init__(self) -> None:
        import warnings

        import torch

        torch.set_num_threads(1)  # threads do not survive a fork
        for name in ("grpo", "rloo", "dpo", "sft"):
            importlib.import_module(f"trl.trainer.{name}_trainer")

        from sentinel.recipes.catalog import bundled_catalog
        from sentinel.tools.watch.checker import Checker

        warnings.simplefilter("ignore")
        self._catalog = bundled_catalog()
        self.checker = Checker(self._catalog, "trl", Path("unused"))
        with contextlib.redirect_stdout(io.StringIO()):  # preparing calls functions of TRL, and some of them print
            self.checker.prepare([name for name in sys.modules if name.partition(".")[0] == "trl"])

    def trained(
        self,
        name: str,
        steps: int,
        attach: Callable[[Any, Any], None] = lambda trainer, watching: None,
        size: Mapping[str, Any] = {},
        made: tuple[Callable[[], None], Callable[[str], Any]] | None = None,
        ranks: int = 1,
        **budget: float,
    ) -> dict[str, Any]:
        """Train and return the findings and the logs.

        :param name: a bug to inject, or a kind of trainer, such as "grpo", to train without a bug.
        :param attach: called with the trainer and the watching session before training starts.
        :param size: keyword arguments for :func:`trainer_of`.
        :param made: two functions, which replace the injection and the trainer. The first is called before the trainer
            is made; the second makes the trainer, given its output folder.
        :param ranks: number of processes that train together.
        :param budget: fields of the watcher's budget; ``every=0`` trains without watching.
        """
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with open(write, "w", encoding="utf-8") as answer:
                    done = _trained(name, steps, self.checker, attach, size, made, {**_EACH, **budget}, ranks)
                    json.dump(done, answer)
                status = 0
            except BaseException as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(write)
        with open(read, encoding="utf-8") as answer:
            said = answer.read()
        os.waitpid(pid, 0)
        return dict(json.loads(said)) if said else {"name": name, "named": [], "logs": [], "parameters": ""}


#: The budget that checks every step and every call.
_EACH: Mapping[str, Any] = {"every": 1, "share": 1.0}


def forked(checker: Any, changes: Callable[[], None], events: str = "", ranks: int = 1) -> Any:
    """Return a subclass of ``Watching`` that forks its checker from this process instead of starting a new one.

    If there are several ranks, this function forks them, and returns in each of them.

    :param changes: injects the bug. It is called after the checker was forked, so the checker keeps the correct code.
    :param events: the events file, needed only for several ranks.
    """
    from sentinel.tools.watch.link import Watching

    def serving(events: str, count: int) -> list[Any]:
        """Fork a checker for ``count`` ranks, and return each rank's end of its connection to the checker."""
        pairs = [Pipe() for _ in range(count)]
        if os.fork() == 0:
            try:
                checker.events = Path(events)
                for ours, theirs in pairs:
                    ours.close()
                    checker.attach(theirs)
                checker.serve()
            finally:
                os._exit(0)  # in any case, the child must not continue the caller's code
        for _, theirs in pairs:
            theirs.close()
        return [ours for ours, _ in pairs]

    mine: list[Any] = []
    if ranks > 1:
        ends = serving(events, ranks)
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        rank = next((one for one in range(1, ranks) if os.fork() == 0), 0)
        os.environ |= {**place, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "RANK": str(rank)}
        os.environ["LOCAL_RANK"] = str(rank)
        mine = [ends.pop(rank)]
        for other in ends:
            other.close()

    class Forked(Watching):
        def _connect(self, words: Any) -> Any:
            ours = mine or serving(words[1], 1)
            changes()
            return ours[0]

    return Forked


def _trained(
    name: str,
    steps: int,
    checker: Any,
    attach: Callable[[Any, Any], None],
    size: Mapping[str, Any],
    made: tuple[Callable[[], None], Callable[[str], Any]] | None,
    budget: Mapping[str, Any],
    ranks: int,
) -> dict[str, Any]:
    from sentinel.tools.watch.wrapping import Budget

    usual: Any = partial(trainer_of, name.partition("-")[0], steps, referred="-reference-" in name, **size)
    before, make = made or (BEFORE.get(name, lambda: None), usual)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        events = Path(folder) / "events.jsonl"
        kind, first = forked(checker, before, str(events), ranks), os.environ.get("RANK", "0") == "0"
        watching = kind("trl", ("trl",), events, Budget(**budget)) if budget["every"] else None
        if watching:
            watching.ready(60.0)
            watching.watcher.budget.began = perf_counter()
        trainer = make(folder)
        if name in AFTER:
            AFTER[name](trainer)
        attach(trainer, watching)
        began = process_time()
        trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
        seconds = process_time() - began
        if watching:
            watching.stop()
        if not first:
            os._exit(0)
        if watching:
            until = perf_counter() + 120.0
            while not (events.exists() and '"event": "end"' in events.read_text()) and perf_counter() < until:
                sleep(0.1)  # the checker may need longer on a busy machine
        lines = events.read_text(encoding="utf-8").splitlines() if watching else []
        found = [json.loads(line) for line in lines]
        parameters = b"".join(one.detach().float().numpy().tobytes() for one in trainer.model.parameters())
        named = [{key: one[key] for key in ("law", "step", "detail")} for one in found if one["event"] == "violation"]
        return {
            "name": name, "named": named, "counts": watching.counts if watching else {}, "seconds": seconds,
            "parameters": hashlib.sha256(parameters).hexdigest()[:16],
            "logs": [{key: row.get(key) for key in ("loss", "reward")} for row in trainer.state.log_history],
        }  # fmt: skip


def _mean(logs: list[dict[str, Any]], key: str) -> float | None:
    values = [float(row[key]) for row in logs if row.get(key) is not None]
    return sum(values) / len(values) if values else None


def _shown(one: Mapping[str, Any], clean: Mapping[str, Any]) -> str:
    """Format the mean logged loss and reward without and with the bug."""
    pairs = [
        (key, _mean(clean["logs"][: len(one["logs"])], key), _mean(one["logs"], key)) for key in ("loss", "reward")
    ]
    return "; ".join(f"{key} {was:.3f} -> {now:.3f}" for key, was, now in pairs if was is not None and now is not None)


def picture(one: Mapping[str, Any], clean: Mapping[str, Any], file: str) -> None:
    """Plot the logged losses of a run with the bug and one without it, and mark the steps of the findings."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]

    figure, plot = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for training, label in ((clean, "without the bug"), (one, f"with {one['name']}")):
        plot.plot([row["loss"] for row in training["logs"] if row["loss"] is not None], label=label)
    first: dict[int, list[str]] = {}
    for item in one["named"]:
        first.setdefault(item["step"], []).append(item["law"])
    for step, laws in first.items():
        plot.axvline(step, color="crimson", label=f"step {step}: {', '.join(dict.fromkeys(laws))}")
    plot.set(xlabel="step", ylabel="loss in the trainer's log")
    plot.legend(fontsize=8)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", metavar="FILE", help="write a plot of the loss and the findings, for the last bug")
    parser.add_argument("--only", metavar="GLOB", default="*")
    parser.add_argument("--steps", type=int, default=_WITHIN)
    parser.add_argument("--clean-steps", type=int, default=_CLEAN)
    arguments = parser.parse_args()
    prepared = Prepared()
    names = [name for name in (*BEFORE, *AFTER) if fnmatch.fnmatch(name, arguments.only)]
    clean = {
        kind: prepared.trained(kind, arguments.clean_steps) for kind in CLEAN if any(n.startswith(kind) for n in names)
    }
    for kind, one in clean.items():
        alarms = "; ".join(f"{item['law']} at step {item['step']}: {item['detail']}" for item in one["named"])
        print(f"| {kind}, no bug, {arguments.clean_steps} steps | {alarms or 'nothing'} | | |", flush=True)
        bare, same = (prepared.trained(kind, _SAME, every=every)["parameters"] for every in (0, 1))
        print(
            f"| {kind}, parameters after {_SAME} steps | {'the same' if bare == same else 'DIFFER'} | | |", flush=True
        )
    right = 0
    for name in names:
        one, usual = prepared.trained(name, arguments.steps), clean[name.partition("-")[0]]
        known = {item["law"] for item in usual["named"]}
        first = min(
            (item for item in one["named"] if item["law"] not in known), key=lambda item: item["step"], default=None
        )
        right += first is not None and first["step"] < _WITHIN
        said = (
            f"{first['law']} | {first['step']}" if first else f"{'not named' if one['logs'] else 'it did not run'} | "
        )
        print(f"| {name} | {said} | {_shown(one, usual) if one['logs'] else ''} |", flush=True)
    if arguments.picture:
        picture(one, usual, arguments.picture)
    print(
        f"{right} of {len(names)} named within {_WITHIN} steps; "
        f"false alarms: {sum(len(one['named']) for one in clean.values())}"
    )


if __name__ == "__main__":
    main()
