"""Calls a function that nobody has bound: makes its arguments of the drawn inputs, as the lexicon says."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from sentinel.contracts.unbound import parts_of
from sentinel.worker import ghosts, objects
from sentinel.worker.drift import DriftError

#: What a generator gives that is looked at, at most.
_MOST = 60


def assembled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make the arguments and call: the answer, or what the call has changed in what it was given where there is none;
    and what it handed to values that nobody knows, up to where it asked one of them anything.

    :raises DriftError: where it asked that, whatever it made of the refusal, and had handed on nothing.
    """
    how = inputs["how"]
    objects.ASKED.clear()
    objects.without_gpu()
    state = ghosts.state()
    state.answer, answer = objects.answer, state.answer
    try:
        return _call(boundary, inputs, how)
    finally:
        state.answer = answer


def _call(boundary: Any, inputs: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    maker = _Maker(boundary, inputs, how)
    objects_by_name = {name: maker.make(spec) for name, spec in how["parameters"].items()}
    for name, specs in how["parameters"][how["own"]]["fills"].items() if how["filled"] else ():
        with suppress(Exception):  # one that refuses puts nothing in
            _complete(
                getattr(objects_by_name[how["own"]], name)(**{each: maker.make(spec) for each, spec in specs.items()})
            )
    objects.ASKED.clear()
    before = {name: dict(_state(value)) for name, value in objects_by_name.items()}
    arguments = {**objects_by_name}
    leading = [arguments.pop(how["own"])] if how["own"] else []
    function = boundary.function
    if isinstance(objects_by_name.get("ctx"), objects.Context) and boundary.path.endswith(".forward"):
        function = _with_backward(boundary)
    objects.HANDED.clear()
    answer: Any = None
    try:
        answer = _complete(function(*leading, **arguments))
    except Exception:
        if not objects.ASKED:
            raise
    handed = {f"{place}.{name}": dict(_plain(values)) for place, (name, values) in enumerate(objects.HANDED)}
    if objects.ASKED and not any(handed.values()):
        raise DriftError(f"the code uses {objects.ASKED[0]}, which the lexicon does not know")
    if answer is not None and type(answer) is not objects.Unknown and not objects.ASKED:
        return {"returned": answer, **({"handed": handed} if handed else {})}
    after = {name: dict(_state(value)) for name, value in objects_by_name.items()}
    return {"left": {name: _changes(before[name], after[name]) for name in objects_by_name}, "handed": handed}


def _with_backward(boundary: Any) -> Callable[..., Any]:
    """Call a function of torch's own as torch does, so that its gradient is its own; by itself where that fails."""

    def called(ctx: Any, **arguments: Any) -> Any:
        parameters = list(boundary.parameters.items())[1:]
        try:
            return boundary.owner.apply(*(arguments.get(name, parameter.default) for name, parameter in parameters))
        except RuntimeError:
            return boundary.function(ctx, **arguments)

    return called


def _complete(answer: Any) -> Any:
    """Wait for a coroutine, and go through a generator."""
    if inspect.iscoroutine(answer):
        return asyncio.run(answer)
    if inspect.isasyncgen(answer):
        return asyncio.run(_gather(answer))
    return list(islice(answer, _MOST)) if inspect.isgenerator(answer) else answer


async def _gather(answer: AsyncIterator[Any]) -> list[Any]:
    items = []
    async for each in answer:
        items.append(each)
        if len(items) == _MOST:
            break
    return items


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """List the numbers, texts and tensors of an object, each with its place."""
    import torch

    own = {} if type(value) is objects.Unknown else getattr(value, "__dict__", {})
    inside = own and not isinstance(value, (Mapping, torch.Tensor)) and "batch" not in own
    yield from _plain(own if inside else {"": value})


def _plain(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    import torch

    for name, part in list(own.items()):
        with objects.off_the_record(), suppress(Exception):  # something in it is unknown
            for path, leaf in islice(parts_of(part, name), _MOST):
                if type(leaf) in (int, float, bool, str):
                    yield path.lstrip("."), leaf
                elif isinstance(leaf, torch.Tensor):
                    yield path.lstrip("."), leaf.detach().clone()


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
        return type(one) is type(other) and one == other

    return {name: value for name, value in after.items() if name not in before or not same(before[name], value)}


class _Maker:
    def __init__(self, boundary: Any, inputs: Mapping[str, Any], how: Mapping[str, Any]) -> None:
        self._boundary, self._inputs, self._prompt, self._how = boundary, inputs, how["prompt"], how
        self._training: dict[str, Any] = {}
        self._offsets: dict[tuple[int, ...], Any] = {}

    def make(self, spec: Mapping[str, Any]) -> Any:
        if "input" in spec:
            return self._form(self._lay(self._draw(spec), spec), spec.get("form", ""))
        if "derived" in spec:
            return self._form(self._lay(self._derive(spec["derived"]), spec), spec.get("form", ""))
        if "rows" in spec:
            return self._rows(spec)
        if "fields" in spec:
            return self._container(spec)
        if "unknown" in spec:
            return objects.Unknown(spec["unknown"])
        return self._object(spec)

    def _lay(self, value: Any, spec: Mapping[str, Any]) -> Any:
        """Lay a tensor of rows and tokens out as the function takes it: all rows, the first, in one row, or jagged."""
        import torch

        if not isinstance(value, torch.Tensor) or not spec.get("form") or value.dim() < 2 or not self._how["layout"]:
            return value
        if self._how["layout"] == "nested":
            return self._nest(value) if spec["form"] == "tensor" else value
        return value[0] if self._how["layout"] == "row" else value.flatten(0, 1)

    def _nest(self, value: Any) -> Any:
        """Make it a jagged tensor; those with rows of the same lengths fit each other, as their offsets are one
        tensor."""
        import torch

        lengths = self._hull()[:, -value.shape[1] :].sum(-1) if self._mask() is not None else None
        if lengths is None or len(lengths) != len(value):
            return value
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        offsets = self._offsets.setdefault(tuple(offsets.tolist()), offsets)
        tokens = torch.cat([row[: int(length)] for row, length in zip(value, lengths)])
        return torch.nested.nested_tensor_from_jagged(tokens, offsets)

    def _form(self, value: Any, form: str) -> Any:
        import numpy
        import torch

        if form == "array":
            if isinstance(value, torch.Tensor):
                return value.detach().numpy()
            array = numpy.empty(len(value), dtype=object)
            array[:] = value
            return array
        if form == "tensors":
            return list(value.unbind(0))
        if form == "list" and isinstance(value, torch.Tensor):
            return value.tolist()
        if form == "tensor" and isinstance(value, list):
            numbers = {label: number for number, label in enumerate(dict.fromkeys(value))}
            return torch.tensor([numbers[label] for label in value])
        return value

    def _draw(self, spec: Mapping[str, Any]) -> Any:
        """Give the drawn value, within its precondition."""
        import torch

        value = self._inputs[spec["input"]]
        if spec.get("inside"):
            mask = self._mask()
            value = value if mask is None else torch.where(mask != 0, value, 0.0)
        logits = next((item for name, item in self._inputs.items() if name.endswith("logits")), None)
        if spec.get("ids") and logits is not None:
            value = value % logits.shape[-1]
        if spec.get("ids") and spec.get("whole") and self._prompt:
            value = torch.cat([torch.full_like(value[:, :1], 3).expand(-1, self._prompt), value], dim=1)
        return value

    def _mask(self) -> Any:
        return self._inputs.get("response_mask", self._inputs.get("attention_mask"))

    def _hull(self) -> Any:
        """Mark where something stands: the prompt, and the tokens up to the last that counts."""
        import torch

        mask = self._mask() != 0
        there = mask.flip(-1).long().cumsum(-1).flip(-1) > 0
        return torch.cat([torch.ones(len(mask), self._prompt, dtype=torch.bool), there], dim=1).long()

    def _derive(self, what: str) -> Any:
        import torch

        mask = self._mask()
        logits = (value for name, value in self._inputs.items() if name.endswith("logits"))
        makers: dict[str, Callable[[], Any]] = {
            "group": lambda: list(self._inputs["group"]),
            "tokenizer": objects.WordTokenizer,
            "process_group": objects.alone,
            "dataset": objects.Table,
            "reward_function": lambda: objects.reward,
            "device": lambda: torch.device("cpu"),
            "dtype": lambda: torch.float32,
            **{name: partial(self._train, name) for name in ("model", "optimizer", "scheduler")},
            "vocabulary": lambda: next((each.shape[-1] for each in logits), objects.WordTokenizer.vocab_size),
            "attention": self._hull,
            "positions": lambda: (self._hull().cumsum(-1) - 1).clamp(min=0),
            "turns": lambda: self._derive("positions") // 2,  # a turn has two tokens
            "lengths": lambda: self._hull()[:, self._prompt :].sum(-1),
            "edges": lambda: torch.arange(len(mask) + 1, dtype=torch.int32) * self._derive("width"),
            "places": lambda: torch.arange(len(mask)).flip(0),
            "rows": lambda: len(mask),
            "answered": lambda: mask.shape[1],
            "valid": lambda: int((mask != 0).sum()),
        }
        return makers[what]() if what in makers else mask.shape[1] + self._prompt

    def _train(self, what: str) -> Any:
        """Give the model of this call, or what steps it: there is one of each."""
        import torch

        if not self._training:
            model = objects.language_model(self._derive("vocabulary"))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            steps = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
            self._training = {"model": model, "optimizer": optimizer, "scheduler": steps}
        return self._training[what]

    def _rows(self, spec: Mapping[str, Any]) -> Any:
        """Make an object of each row, as long as it is."""
        import torch

        columns = {name: self.make(part) for name, part in spec["fields"].items()}
        width, rows, groups = self._mask().shape[1], [], list(self._inputs.get("group", ()))
        for place, length in enumerate(self._derive("lengths").tolist()):
            one = objects.default(spec["rows"]) if spec["rows"] else objects.Settings()
            for name, column in columns.items():
                if isinstance(column, torch.Tensor) and column.dim():
                    value = column[place].tolist()
                else:
                    several = hasattr(column, "__len__") and not isinstance(column, (str, dict)) and place < len(column)
                    value = column[place] if several else column
                if isinstance(value, list):
                    value = value[: length + len(value) - width]
                entry = groups.index(value) if value in groups else value
                one.update({name: entry}) if isinstance(one, dict) else object.__setattr__(one, name, entry)
            rows.append(one)
        if spec["nested"]:
            labels = dict.fromkeys(groups or range(len(rows)))
            return [[one for one, label in zip(rows, groups or labels) if label == each] for each in labels]
        return rows[0] if spec["one"] else rows

    def _container(self, spec: Mapping[str, Any]) -> Any:
        import torch

        fields = {name: self.make(part) for name, part in spec["fields"].items()}
        if not spec["of"]:
            return fields
        tensors = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
        others = {name: value for name, value in fields.items() if name not in tensors}
        meta = {name: self.make(part) for name, part in spec.get("meta", {}).items()}
        kind = objects.lookup(spec["of"])
        if hasattr(kind, "from_dict") and "non_tensors" in inspect.signature(kind.from_dict).parameters:
            arrays = {name: self._form(value, "array") for name, value in others.items() if isinstance(value, list)}
            others = {name: value for name, value in others.items() if name not in arrays}
            return kind.from_dict(tensors=tensors, non_tensors={**others, **arrays}, meta_info=meta)
        if "batch_size" in inspect.signature(kind.__init__).parameters:
            rows = [len(next(iter(tensors.values())))] if tensors else []
            batch = kind({**tensors}, batch_size=rows)
            for name, value in others.items():
                batch.set_non_tensor(name, value)
            return batch
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return objects.built(kind, fields)
        batch = kind(tensors)
        if meta and getattr(batch, "metadata", 0) is None:
            batch.metadata = meta
        return batch

    def _object(self, spec: Mapping[str, Any]) -> Any:
        """Make the framework's own object with its own defaults, where that can be done; else one of what is read."""
        instance: Any = None
        attributes: Mapping[str, Any] = spec["attributes"]
        if spec["of"] == "context":
            return objects.Context()
        if spec["of"] == "self":
            instance = objects.built(
                self._boundary.owner, {name: self.make(part) for name, part in spec["built"].items()}
            )
            if self._how["filled"]:
                objects.fill(instance)
        elif spec["of"]:
            instance = objects.default(spec["of"])
        if instance is None:
            reads = list(_reads(attributes))
            unknown = [steps for steps, part in reads if "unknown" in part]
            if reads or spec.get("whole"):
                whole = spec.get("whole", False)
                instance = objects.configured(self._how["defaults"], [steps for steps, _ in reads], unknown, whole)
        instance = objects.Settings() if instance is None else instance
        self._give(instance, attributes, spec["of"])
        return objects.as_loaded(instance)

    def _give(self, instance: Any, attributes: Mapping[str, Any], of: str) -> None:
        """Put in what is known, where the object's own does not say that it is something else."""
        for name, part in attributes.items():
            there = instance.get(name) if isinstance(instance, dict) else getattr(instance, name, None)
            if "attributes" in part and not part["of"] and _takes(there):
                self._give(there, part["attributes"], "")
                continue
            late = there is None and of == "self" and self._how["filled"]  # something that others put in is asked
            if (
                "unknown" in part
                and not late
                and (name in instance if isinstance(instance, dict) else hasattr(instance, name))
            ):
                continue
            value = self.make(part)
            if there is not None and type(there) is not objects.Unknown and not _alike(there, value):
                continue
            if isinstance(instance, dict):
                instance[name] = value
            elif (
                of in ("", "self")
                or hasattr(instance, name)
                or any(name in _annotations(each) for each in type(instance).__mro__)
            ):
                object.__setattr__(instance, name, value)


def _reads(attributes: Mapping[str, Any]) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """List where the parts of a configuration stand, each with how it is made."""
    for name, part in attributes.items():
        if "attributes" in part and not part["of"]:
            yield from (([name, *steps], leaf) for steps, leaf in _reads(part["attributes"]))
        else:
            yield [name], part


def _annotations(cls: type) -> Mapping[str, Any]:
    annotations: Mapping[str, Any] = vars(cls).get("__annotations__", {})
    return annotations


def _takes(there: Any) -> bool:
    plain = there is None or isinstance(there, (int, float, str, bool, list, tuple))
    return type(there) is not objects.Unknown and not plain and (isinstance(there, dict) or hasattr(there, "__dict__"))


def _alike(there: Any, value: Any) -> bool:
    numbers = type(there) in (int, float) and type(value) in (int, float)
    return numbers or isinstance(value, type(there)) or isinstance(there, type(value))
