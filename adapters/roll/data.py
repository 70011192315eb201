"""Bindings for ROLL's functions that prepare, collate and read samples."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import ChatTokenizer, chat
from sentinel.binding.kit import torch

from .media import FEATURES, Features, Loader, as_ids, is_right, options_of, processor_of, prompt_of

MAIN = "https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/roll"

_TOKENIZER = StandIn("tokenizer", "a real tokenizer is a download; here each letter is a token")
_PROCESSOR = StandIn("processor", "like the tokenizer; for images it stores their number in pixel_values")
_TRANSFORMERS = StandIn(
    "pad_without_fast_tokenizer_warning, BatchFeature",
    "from transformers, which is not installed: it pads token ids and attention masks on the right, and "
    "processor features are a dictionary as in the original",
)


def _response_mask(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute response masks from prompts and responses with ROLL.

    ROLL moves each row to the left until its prompt begins in the first column. The adapter moves the result back.
    """
    mask = inputs["prompt_mask"]
    prompts = {
        "input_ids": inputs["prompts"],
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }
    output = torch.cat((inputs["prompts"], inputs["responses"]), dim=-1)
    batch = boundary.invoke(
        {},
        prompts=kit.stand_in(batch=prompts),
        output=output,
        num_return_sequences=1,
        sequence_length=output.shape[1],
        eos_token_id=inputs["eos_token_id"],
        pad_token_id=inputs["pad_token_id"],
    ).batch
    moved = (mask.shape[1] - mask.sum(-1)).tolist()
    return {"response_mask": torch.stack([row.roll(by) for row, by in zip(batch["response_mask"], moved)])}


#: The ids of padding and of the end token. No token of a scenario has them.
_PAD_ID, _END_ID = -1, -2


def _generated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make a batch of an engine's answers with ROLL, with their log-probs, experts, prompt ids and positions.

    The adapter adds the end token to each answer. Positions have one channel if the number of samples is odd, otherwise
    three, as for models with images.
    """
    samples, channels = inputs["samples"], 3 - 2 * (len(inputs["samples"]) % 2)
    prompts = [sample["prompt"] for sample in samples]
    answers = [torch.cat([sample["answer"], torch.tensor([_END_ID])]) for sample in samples]
    before, after = (max(map(len, rows)) for rows in (prompts, answers))
    mask = torch.tensor([[0] * (before - len(row)) + [1] * len(row) for row in prompts])
    left = torch.stack([_to(row.flip(0), before, _PAD_ID).flip(0) for row in prompts])
    right = torch.stack([_to(row, after + 1, _PAD_ID) for row in answers])
    counted = (mask.cumsum(-1) - 1).clamp(min=0)
    steps = torch.arange(1, channels + 1)
    positions = counted if channels == 1 else counted[:, None] * steps[None, :, None]
    experts = [_experts(torch.cat(pair)[:-1]) for pair in zip(prompts, answers)]
    batch = {"input_ids": left, "attention_mask": mask, "position_ids": positions}
    if len(samples) > 1:  # the function raises an exception for the prompt id of a single row
        batch["prompt_id"] = torch.arange(len(samples))[:, None] + 40
    made = boundary.invoke(
        {},
        prompts=kit.stand_in(batch=batch),
        output=torch.cat((left, right), dim=-1),
        num_return_sequences=1,
        sequence_length=before + after + 2,
        eos_token_id=_END_ID,
        pad_token_id=_PAD_ID,
        fill_eos_token=True,
        output_logprobs=[[*sample["log_probs"].tolist(), 0.5, 0.25] for sample in samples],
        routed_experts=experts,
    ).batch
    read = []
    for row, (prompt, answer) in enumerate(zip(prompts, answers)):
        start, end = len(prompt), len(prompt) + len(answer)
        places = torch.arange(end)
        of_prompt, own = places.clamp(max=start - 1), (places - start + 1).clamp(min=0)
        wanted = places if channels == 1 else of_prompt * steps[:, None] + own
        column = {name: value[row] for name, value in made.items()}
        right_row = (
            torch.equal(column["position_ids"][..., :end], wanted)
            and torch.equal(column["attention_mask"], (torch.arange(before + after + 2) < end).to(mask))
            and torch.equal(column["routed_experts"][: end - 1].long(), experts[row])
            and column.get("prompt_id", 40 + row) == 40 + row
            and column["infer_logprobs"][end - 2] == 0.5
            and bool((column["input_ids"][end:] == _PAD_ID).all())
            and column["input_ids"][end - 1] == _END_ID
        )
        log_probs = column["infer_logprobs"][start - 1 : end - 2]
        answered = column["input_ids"][column["response_mask"].bool()][:-1]
        asked = column["input_ids"][column["prompt_mask"].bool()]
        read.append({"prompt": asked, "answer": answered, "log_probs": log_probs} if right_row else {})
    return {"samples": read}


def _experts(ids: Any) -> Any:
    """Return the experts of each token, [tokens, 1 layer, 2 experts]."""
    return torch.stack([ids % 7, ids % 5], -1)[:, None].long()


def _process(text: str, images: Any = None, **_: Any) -> Features:
    made = Features(input_ids=[as_ids(text)], attention_mask=[[1] * len(text)])
    return made if images is None else Features(made, pixel_values=[[1.0] * len(images)])


def _pad(_: Any, features: Mapping[str, list[list[int]]], **__: Any) -> dict[str, Any]:
    width = max(map(len, features["input_ids"]))
    return {
        name: torch.tensor([row + [0] * (width - len(row)) for row in rows])
        for name, rows in features.items()
        if name != "labels"
    }


def _multimodal_collator(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate samples of text and images with ROLL's collator. Each letter is a token."""
    if inputs["form"] != "plain":
        return _collated_media(boundary, inputs)

    class Processor:
        image_processor = kit.stand_in(patch_size=1)

        def __call__(self, *args: Any, **options: Any) -> Features:
            return _process(*args, **options)

    tokenizer = kit.stand_in(encode=lambda text, **_: as_ids(text))
    # The answer key is passed, because its default was "extracted" until August 2025.
    collator = boundary.owner(tokenizer=tokenizer, processor=Processor(), answer_key="ground_truth")
    if hasattr(collator, "image_load_sample_fn"):
        # Newer collators load images with this function, which takes (images, processor options). The scenario's images
        # are already loaded, so the stand-in returns them unchanged.
        collator.image_load_sample_fn = lambda images, *_, **__: (images, {})
    with (
        kit.swap(boundary.module, "pad_without_fast_tokenizer_warning", _pad),
        kit.swap(boundary.module, "BatchFeature", Features),
    ):
        # The batch also has the model's inputs for images, which are not checked.
        batch = boundary.function(
            collator, [{**sample, "image": ["image"], "image_flag": True} for sample in inputs["samples"]]
        )
    return {"samples": [_read(batch, row) for row in range(len(batch["input_ids"]))]}


def _collated_media(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate samples with images, videos and sounds. A sample with another sample's media is returned as empty."""
    form, loader = inputs["form"], Loader(inputs["form"])
    tokenizer = kit.stand_in(encode=lambda text, **_: as_ids(text))
    options = options_of(form)
    missing = set(options) - set(inspect.signature(boundary.owner).parameters)
    if missing:
        raise AbsentError(f"this version's collator has no option {min(missing)!r}")
    collator = boundary.owner(tokenizer=tokenizer, processor=processor_of(form), answer_key="ground_truth", **options)
    for kind in FEATURES:
        # Not an option of the constructor, which then leaves out the default options for the processor.
        setattr(collator, f"{kind}_load_sample_fn", loader.load)
    rows = [{**sample, **loader.feature(sample["prompt"], row)} for row, sample in enumerate(inputs["samples"])]
    with (
        kit.swap(boundary.module, "pad_without_fast_tokenizer_warning", _pad),
        kit.swap(boundary.module, "BatchFeature", Features),
    ):
        batch = boundary.function(collator, rows)
    samples: list[dict[str, Any]] = []
    for row, sample in enumerate(inputs["samples"]):
        read, written = _read(batch, row), prompt_of(sample["prompt"], row, form)
        right = read["prompt"] == written and is_right(batch, row, len(rows), sample["prompt"], form)
        samples.append({**read, "prompt": sample["prompt"]} if right else {})
    return {"samples": samples}


def _read(batch: Mapping[str, Any], row: int) -> dict[str, Any]:
    letters = (int(n) for n, there in zip(batch["input_ids"][row], batch["attention_mask"][row]) if there)
    sample = {"prompt": "".join(map(chr, letters))}
    return {**sample, "ground_truth": batch["ground_truth"][row]} if "ground_truth" in batch else sample


_SAMPLE = {"prompt": {"kind": "text"}, "ground_truth": {"kind": "text"}}


def _trained_of_a_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask that ROLL's environment manager makes of a chat."""
    tokenizer, messages = chat(inputs)
    ids = tokenizer.encode(tokenizer.written(messages))
    parts = boundary.module.split_by_token(ids, ids[0], messages=messages, tokenizer=tokenizer)
    masks = boundary.module.token_ids_to_assistant_mask(messages, parts, tokenizer)
    return {"token_ids": [*itertools.chain(*parts)], "loss_mask": [*itertools.chain(*masks)]}


def _tokens_of_a_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask that ROLL makes of a chat whose messages it tokenizes one by one."""
    tokenizer, messages = chat(inputs)
    parts, masks = boundary.function(messages, tokenizer)
    return {"token_ids": [*itertools.chain(*parts)], "loss_mask": [*itertools.chain(*masks)]}


_TURNS = "roll.pipeline.agentic.env_manager.token_mask_utils"
_COLLATORS, _FUNCTIONALS = "roll.datasets.collator", "roll.utils.functionals"
_ENGINES = "roll.distributed.strategy"
_PIPELINES = "roll.pipeline.{0}.{0}_pipeline.get_encode_function"


class _Tokenizer(ChatTokenizer):
    """A stand-in tokenizer that ignores tools and documents, which ROLL passes as positional arguments."""

    def apply_chat_template(self, conversation: Any, *_: Any, **options: Any) -> Any:
        return super().apply_chat_template(conversation, **options)


def _encoded_answer(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask that ROLL's pipeline or collator makes of a question and its answer."""
    tokenizer, messages = _Tokenizer(), chat(inputs)[1]
    roles = [message["role"] for message in messages]
    if roles.count("assistant") > 1:
        raise AbsentError("the scenario has several answers; a row of ROLL's dataset has one question and one answer")
    row = {message["role"]: message["content"] for message in messages}
    keys = {"prompt_key": "user", "query_key": None, "question_key": None, "system_key": "system"}
    keys |= {"response_key": "assistant", "answer_key": "assistant", "sequence_length": 1000}
    encode = boundary.imported.get(_PIPELINES.format("sft").rpartition(".")[0], boundary.module).get_encode_function
    accepted = inspect.signature(encode).parameters
    keys["system_key"] = "system" if "system" in row else None
    encoded = encode("native", tokenizer, **{name: key for name, key in keys.items() if name in accepted})
    made = encoded({name: [text] for name, text in row.items()})
    ids, labels = made["input_ids"][0], made["labels"][0]
    if boundary.owner is not None:
        made = _collate_rows(boundary, [{name: column[0] for name, column in made.items()}], tokenizer)
        ids, labels = made["input_ids"][0], [-100, *made["labels"][0].tolist()[:-1]]
        ids, labels = ids[: int(made["attention_mask"][0].sum())], labels[: int(made["attention_mask"][0].sum())]
    learned = [token if label == -100 else label for token, label in zip(ids, labels)]
    return {"token_ids": learned, "loss_mask": [int(label != -100) for label in labels]}


def _pad_rows(_: Any, rows: list[Mapping[str, Any]], max_length: int | None = None, **__: Any) -> dict[str, Any]:
    names = [name for name in rows[0] if name != "labels"]
    padded = _pad(None, {name: [row[name] for row in rows] for name in names})
    wide = {
        name: torch.nn.functional.pad(x, (0, (max_length or x.shape[1]) - x.shape[1])) for name, x in padded.items()
    }
    return {**wide, "labels": [row["labels"] for row in rows]} if "labels" in rows[0] else wide


def _collate_rows(boundary: Any, rows: list[Any], tokenizer: Any) -> Any:
    """Collate rows with the boundary's collator class, and pad them to 40 tokens."""
    collator = boundary.owner(tokenizer=tokenizer, max_length=40)
    with kit.swap(boundary.module, "pad_without_fast_tokenizer_warning", _pad_rows):
        return boundary.function(collator, rows)


def _collated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate rows with ROLL. In pairs, the rejected answer is one additional token, followed by the chosen answer."""
    samples, pairs = inputs["samples"], "DPO" in boundary.path
    rows = []
    for sample in samples:
        ids = sample["input_ids"].tolist()
        row: dict[str, Any] = {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids, "tag": sample["tag"]}
        if pairs:
            row = {"chosen_ids": ids, "reject_ids": [9, *ids], "prompt_ids_lens": 1}
            row |= {"c_mask": [1] * len(ids), "r_mask": [1] * (1 + len(ids))}
        rows.append(row)
    made = _collate_rows(boundary, rows, kit.stand_in(pad_token_id=0))
    lengths = made["attention_mask"].sum(-1).tolist()
    ids = [row[:length] for row, length in zip(made["input_ids"], lengths)]
    if not pairs:
        return {"samples": [{"input_ids": own, "tag": tag} for own, tag in zip(ids, made["tag"])]}
    return {
        "samples": [
            {"input_ids": one, "tag": sample["tag"]} if torch.equal(other[1:], one) and other[0] == 9 else {}
            for one, other, sample in zip(ids[::2], ids[1::2], samples)
        ]
    }


def _joined_columns(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    samples = inputs["samples"]
    width = max(len(sample["input_ids"]) for sample in samples)
    rows = [{**sample, "input_ids": pad[None]} for sample in samples for pad in [_to(sample["input_ids"], width)]]
    made = boundary.function(rows)
    lengths = [len(sample["input_ids"]) for sample in samples]
    return {
        "samples": [
            {name: made[name][row] for name in made} | {"input_ids": made["input_ids"][row][:length]}
            for row, length in enumerate(lengths)
        ]
    }


def _to(row: Any, width: int, value: int = 0) -> Any:
    return torch.nn.functional.pad(row, (0, width - len(row)), value=value)


def _masked_responses(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response mask that ROLL computes from the end token of each response."""
    mask = boundary.function(inputs["responses"], inputs["eos_token_id"])
    return {"response_mask": torch.cat([torch.zeros_like(inputs["prompt_mask"]), mask], -1)}


def _gathered(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Gather an inference engine's token ids with ROLL. Padding is -1."""
    samples = inputs["samples"]
    rows = [sample["input_ids"].tolist() for sample in samples]
    outputs: list[Any] = [{"output_ids": row} for row in rows]
    if "vllm" in boundary.path:
        outputs = [kit.stand_in(outputs=[kit.stand_in(token_ids=row) for row in rows])]
    made = boundary.function(outputs, -1, device="cpu")
    return {"samples": [{"input_ids": row[row >= 0], "tag": sample["tag"]} for row, sample in zip(made, samples)]}


def _padded_responses(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response mask that ROLL computes from the padding of each response."""
    mask = boundary.function(inputs["responses"], inputs["pad_token_id"], inputs["eos_token_id"])
    return {"response_mask": torch.cat([torch.zeros_like(inputs["prompt_mask"]), mask], -1)}


def _repeated_prompts(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Join prompts, padded on the left, with two answers each, padded on the right. The second one is reversed."""
    samples = inputs["samples"]
    width, length = (max(len(sample[name]) for sample in samples) for name in ("prompt", "answer"))
    prompts = torch.stack([_to(sample["prompt"].flip(0), width).flip(0) for sample in samples])
    both = [(sample["answer"], sample["answer"].flip(0)) for sample in samples]
    made = boundary.function(prompts, torch.stack([_to(answer, length) for pair in both for answer in pair]), 2)
    read = []
    for row, sample in enumerate(samples):
        start, end = width - len(sample["prompt"]), width + len(sample["answer"])
        one, other = (each[start:end] for each in made[2 * row : 2 * row + 2])
        asked, answer = one[: width - start], one[width - start :]
        whole = torch.equal(other, torch.cat([asked, answer.flip(0)]))
        read.append({"prompt": asked, "answer": answer} if whole else {})
    return {"samples": read}


def _parted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Separate the prompt and the answer of padded rows with ROLL. The padding of the answers is marked as answer."""
    samples = inputs["samples"]
    rows = [torch.cat([sample["prompt"], sample["answer"]]) for sample in samples]
    width = max(map(len, rows))
    ids, mask = (
        torch.stack([_to(row, width) for row in each]) for each in (rows, [torch.ones_like(row) for row in rows])
    )
    answered = torch.stack([torch.arange(width) >= len(sample["prompt"]) for sample in samples])
    prompts, answers = boundary.function(ids, mask, answered, _PAD_ID)
    pairs = zip(prompts, answers)
    return {"samples": [{"prompt": one[one != _PAD_ID], "answer": two[two != _PAD_ID]} for one, two in pairs]}


def _unpadded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Gather the token ids of rows whose padding is on both sides with ROLL."""
    samples = inputs["samples"]
    width = 1 + max(len(sample["input_ids"]) for sample in samples)
    rows = [torch.nn.functional.pad(sample["input_ids"], (1, 0)) for sample in samples]
    mask = torch.stack([_to(torch.cat([row[:1] * 0, torch.ones_like(row[1:])]), width) for row in rows])
    made = boundary.function(torch.stack([_to(row, width) for row in rows]), mask)
    return {"samples": [{"input_ids": torch.tensor(ids), "tag": each["tag"]} for ids, each in zip(made, samples)]}


def _continued(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make training rows of requests and an engine's answers with ROLL, one request after the other.

    ROLL's rollout loop sends the requests and receives the answers; a stand-in for its context has an engine and a
    reward worker. Each prompt has two samples: the answer, and the reversed answer.
    """
    pads = {"eos_token_id": _END_ID, "pad_token_id": _PAD_ID}
    data, read = boundary.imported[_PROTOCOL].DataProto, []
    for number, sample in enumerate(inputs["samples"]):
        prompt = torch.nn.functional.pad(sample["prompt"], (2, 0), value=_PAD_ID)[None]
        mask = (prompt != _PAD_ID).long()
        columns = {"input_ids": prompt, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
        answers = [[*own.tolist(), _END_ID] for own in (sample["answer"], sample["answer"].flip(0))]
        log_probs = [[*own.tolist(), 0.5] for own in (sample["log_probs"], sample["log_probs"].flip(0))]
        width = prompt.shape[1] + len(answers[0]) + 2
        told = {**pads, "output_token_ids": answers, "output_logprobs": log_probs, "finish_reasons": ["stop", "stop"]}
        options = {"generation_config": {"num_return_sequences": 2}}
        request = data.from_dict(columns, {"tag": [f"prompt {number}"]}, options)
        if boundary.owner is None:
            made = boundary.function(request, data(meta_info=told), width)
        else:
            made = data.concat(_looped(boundary, request, told, width, expands=number % 2 == 1))
            made.pop(["scores"])
        rows = [{name: column[row] for name, column in made.batch.items()} for row in range(2)]
        found = [_answered(row) for row in rows]
        whole = len(made) == 2 and made.non_tensor_batch["tag"].tolist() == [f"prompt {number}"] * 2
        whole = whole and all(torch.equal(found[0][name].flip(0), found[1][name]) for name in ("answer", "log_probs"))
        read.append(found[0] if whole and torch.equal(found[0]["prompt"], found[1]["prompt"]) else {})
    return {"samples": read}


def _answered(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt, the answer and its log-probs in a row, without the end token and its log-prob."""
    answered = row["response_mask"].bool()
    log_probs = torch.nn.functional.pad(row["infer_logprobs"], (1, 0))[answered]
    asked = row["input_ids"][row["prompt_mask"].bool()]
    return {"prompt": asked, "answer": row["input_ids"][answered][:-1], "log_probs": log_probs[:-1]}


def _looped(boundary: Any, request: Any, told: Mapping[str, Any], width: int, expands: bool) -> Any:
    """Return the rows that ROLL's rollout loop makes of a request.

    :param expands: whether ROLL sends one request per sample, instead of one request for both.
    """
    data = boundary.imported[_PROTOCOL].DataProto
    sent = itertools.count()

    async def generate(req: Any, domain: str) -> Any:
        several = ("output_token_ids", "output_logprobs", "finish_reasons")
        place = next(sent)
        own = {name: told[name][place : place + 1] if expands else told[name] for name in several}
        return data(meta_info={**told, **own})

    async def compute_rewards(req: Any, domain: str) -> Any:
        return data.from_dict({"scores": torch.arange(len(req)).float()})

    context = kit.stand_in(
        meta_info=request.meta_info, is_num_return_sequences_expand=expands, is_val=True, prompt_id=0,
        get_request_data=lambda meta_info: (request, "domain"), generate=generate, compute_rewards=compute_rewards,
        do_generate_and_reward=lambda **_: contextlib.nullcontext(), sequence_length=width, pipeline_config=None,
    )  # fmt: skip
    tracer = kit.bookkeeping(start_as_current_span=lambda *_, **__: contextlib.nullcontext())
    with kit.swap(boundary.module, "get_tracer", lambda *_: tracer):
        return asyncio.run(boundary.owner.process_new_prompt(kit.make_unbuilt(boundary.owner), context))


def _adjusted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values = inputs["values"]
    return {"padded": boundary.function(values, inputs["length"], values.shape[-1], inputs["pad_value"])}


#: A module of recent versions. Older versions of some functions are elsewhere, or are called otherwise.
_RECENT = ("roll.distributed.scheduler.remote_protocol",)
_TAGGED = {"layouts": {"input_ids": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]}, "tag": {"kind": "text"}}}
_ANSWER = {
    "layouts": {
        **{name: {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]} for name in ("prompt", "answer")},
        "log_probs": {"kind": "tensor", "dtype": "float32", "shape": ["tokens"]},
    }
}
_PAIR = {"layouts": {name: _ANSWER["layouts"][name] for name in ("prompt", "answer")}}
_LOOP, _PROTOCOL = "roll.distributed.scheduler.user_defined_rollout_loop", "roll.distributed.scheduler.protocol"
_ONE_ANSWER = {"trains": "last", "max_tokens": None, "after_an_answer": (), "default_system": False}


BINDINGS = (
    *(
        Binding(
            path, "trained_tokens", call=_encoded_answer, stand_ins=(_TOKENIZER,), fixed=_ONE_ANSWER,
            imports=(_PIPELINES.format("sft").rpartition(".")[0],) if "Collator" in path else (),
        )
        for path in (
            _PIPELINES.format("sft"), _PIPELINES.format("distill"), f"{_COLLATORS}.DataCollatorForSFT.__call__",
        )
    ),
    *(
        Binding(path, "collation", call=call, stand_ins=(_TRANSFORMERS,) if "Padding" in path else (), fixed=_TAGGED)
        for path, call in (
            (f"{_COLLATORS}.DataCollatorWithPaddingForPaddedKeys.__call__", _collated),
            (f"{_COLLATORS}.DataCollatorWithPaddingForDPO.__call__", _collated),
            (f"{_COLLATORS}.collate_fn_to_dict_list", _joined_columns),
            (f"{_ENGINES}.vllm_strategy.gather_outputs_to_pad_tensor", _gathered),
        )
    ),
    Binding(
        f"{_ENGINES}.sglang_strategy.gather_outputs_to_pad_tensor", "collation", call=_gathered, fixed=_TAGGED,
        requires=_RECENT,  # older versions do not import without SGLang
    ),
    Binding(f"{_FUNCTIONALS}.get_eos_mask", "response_masks", call=_masked_responses),
    Binding(
        f"{_FUNCTIONALS}.get_pad_mask", "response_masks", call=_padded_responses,
        requires=(f"{_FUNCTIONALS}.get_pad_mask(eos_token)",),
    ),
    Binding(f"{_FUNCTIONALS}.concatenate_input_and_output", "collation", call=_repeated_prompts, fixed=_PAIR),
    Binding(f"{_FUNCTIONALS}.separate_prompt_response", "collation", call=_parted, fixed=_PAIR),
    Binding(f"{_FUNCTIONALS}.gather_unpadded_input_ids", "collation", call=_unpadded, fixed=_TAGGED, requires=_RECENT),
    *(
        Binding(
            f"{_LOOP}.{name}", "collation", call=_continued, fixed=_ANSWER, imports=(_PROTOCOL,),
            stand_ins=(
                StandIn("context", "the real one belongs to a scheduler; here it has an engine and a reward worker"),
            ),
        )
        for name in (
            "postprocess_output_data", "UserDefinedRolloutLoop.process_new_prompt",
            "UserDefinedRolloutLoop._generate_and_reward_impl",
        )
    ),
    *(
        Binding(
            f"{_TURNS}.{name}", "trained_tokens", call=call,
            requires=(f"{_TURNS}.split_by_token(messages)",), stand_ins=(_TOKENIZER,),
            # Fixed, because ROLL's environments have no tool messages and add the system message themselves.
            fixed={"trains": "all", "max_tokens": None, "after_an_answer": (), "default_system": False},
        )
        for name, call in (
            ("token_ids_to_assistant_mask", _trained_of_a_chat), ("split_by_token", _trained_of_a_chat),
            ("messages_to_tokens_and_masks", _tokens_of_a_chat),
        )
    ),
    Binding(
        "roll.utils.functionals.postprocess_generate", "response_masks", call=_response_mask,
        stand_ins=(
            StandIn(
                "prompts", "a batch with the given fields; the real container needs a backend that is not used here",
            ),
        ),
    ),
    Binding(
        f"{_FUNCTIONALS}.postprocess_generate", "collation", call=_generated, fixed=_ANSWER,
        stand_ins=(StandIn("prompts", "a batch with the given fields; no other field is read"),),
        requires=(f"{_FUNCTIONALS}.postprocess_generate(routed_experts)",),
    ),
    Binding(
        f"{_FUNCTIONALS}.adjust_sequence_length", "column_padding", call=_adjusted,
        fixed={"side": "right", "longer": "cut"},
    ),
    Binding(
        "roll.utils.functionals.pad_to_length", "column_padding", outputs=("padded",),
        call=partial(kit.call_with, leading=("values",), takes=("length", "pad_value")), fixed={"side": "right"},
        dialects=(
            Dialect(
                "longer", "cut", "the function makes rows of exactly that length", f"{MAIN}/utils/functionals.py#L457",
            ),
        ),
    ),
    Binding(
        "roll.datasets.collator.DataCollatorWithPaddingForMM.__call__", "collation", call=_multimodal_collator,
        stand_ins=(_TOKENIZER, _PROCESSOR, _TRANSFORMERS), fixed={"layouts": _SAMPLE},
        accepts={"form": ("plain", "media", "files", "sound")},
    ),
)  # fmt: skip
