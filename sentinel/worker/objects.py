"""The kit of objects that functions of the training signal take: small, whole, and made of nothing that is downloaded.

A framework's own classes are built by their own constructors, as far as these go. What is not known stands there as
:class:`Unknown`: it may be handed on and put away, and handed something, and whoever asks it anything is refused.
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import importlib
import inspect
import os
import re
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import product
from typing import Any

from sentinel.worker import ghosts
from sentinel.worker.drift import DriftError, StandInMissingError
from sentinel.worker.kit import Rows

#: What was asked of unknown values since the last call began: the code may have caught the refusal.
ASKED: list[str] = []


#: What unknown values were called with since the last call began: by the name of what was called.
HANDED: list[tuple[str, dict[str, Any]]] = []

#: What is told of a call, and is no part of what it does.
_ASIDE = re.compile(r"log(ger|ging)?\.|trac|progress|pbar|timer|profil", re.I)


class Unknown:
    """A value that nobody knows. It is not None, and nothing else can be said of it but what its methods are handed."""

    is_unknown = True

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return _refuse(self)
        return Unknown(f"{object.__getattribute__(self, '_name')}.{name}")

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        name = object.__getattribute__(self, "_name")
        if not _ASIDE.search(name):
            HANDED.append((name, {**{f"{place}": value for place, value in enumerate(positional)}, **keywords}))
        return Unknown(f"{name}()")


@contextmanager
def off_the_record() -> Iterator[Callable[[], bool]]:
    """Forget at the end of a block what ghosts and unknown values were asked in it; gives whether they were."""
    records = (ghosts.state().used, ASKED)
    lengths = [len(record) for record in records]
    try:
        yield lambda: lengths != [len(record) for record in records]
    finally:
        for record, length in zip(records, lengths):
            del record[length:]


def _refuse(self: Any, *_: Any, **__: Any) -> Any:
    name = object.__getattribute__(self, "_name")
    ASKED.append(name)
    raise DriftError(f"the code uses {name}, which the lexicon does not know")


_ASKED = """
    setattr delattr bool len iter next contains hash eq ne lt le gt ge getitem setitem
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul and or xor
    neg pos abs invert int float index str repr format enter exit aenter aexit await aiter reduce_ex
"""
for _name in _ASKED.split():
    setattr(Unknown, f"__{_name}__", _refuse)


class Settings(dict[str, Any]):
    """A configuration in the place of one that cannot be built; it refuses what was not put in."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise StandInMissingError(f"the code reads a setting {name!r} that the lexicon does not know")

    def __missing__(self, name: str) -> Any:
        raise StandInMissingError(f"the code reads a setting {name!r} that the lexicon does not know")


class WordTokenizer:
    """A tokenizer of words, in the place of one that would be downloaded: the same words are the same ids."""

    vocab_size = 1000
    pad_token, eos_token, bos_token, unk_token = "<pad>", "<eos>", "<bos>", "<unk>"
    pad_token_id, eos_token_id, bos_token_id, unk_token_id = 0, 1, 2, 3
    padding_side, chat_template, name_or_path, model_max_length = "right", None, "words", 512
    additional_special_tokens, all_special_ids = (), (0, 1, 2, 3)

    def __init__(self) -> None:
        self._words: dict[int, str] = dict(enumerate((self.pad_token, self.eos_token, self.bos_token, self.unk_token)))

    def __len__(self) -> int:
        return self.vocab_size

    def _id(self, word: str) -> int:
        numbers = {other: number for number, other in self._words.items()}
        number = numbers.get(word, 4 + zlib.crc32(word.encode()) % (self.vocab_size - 4))
        self._words.setdefault(number, word)
        return number

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"<\|?\w+\|?>|\s*[^\s<]+|\s+|<", text)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._id(word) for word in self.tokenize(text)]

    def decode(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        numbers = [int(number) for number in (ids if hasattr(ids, "__iter__") else [ids])]
        plain = [number for number in numbers if not (skip_special_tokens and number in self.all_special_ids)]
        return "".join(self._words.get(number, f" w{number}") for number in plain)

    def batch_decode(self, rows: Any, **more: Any) -> list[str]:
        return [self.decode(row, **more) for row in rows]

    def convert_tokens_to_ids(self, words: Any) -> Any:
        return self._id(words) if isinstance(words, str) else [self._id(word) for word in words]

    def __call__(self, text: Any, return_tensors: str = "", **_: Any) -> Any:
        import torch

        rows = [self.encode(one) for one in ([text] if isinstance(text, str) else text)]
        width = max(map(len, rows), default=0)
        columns = {
            "input_ids": [row + [0] * (width - len(row)) for row in rows] if return_tensors else rows,
            "attention_mask": [[1] * len(row) + [0] * (width - len(row)) * bool(return_tensors) for row in rows],
        }
        if return_tensors:
            return Settings({name: torch.tensor(value) for name, value in columns.items()})
        return Settings({name: value[0] for name, value in columns.items()} if isinstance(text, str) else columns)

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        documents: Any = None,
        chat_template: Any = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **more: Any,
    ) -> Any:
        if conversation and isinstance(conversation[0], (list, tuple)):
            options = {"add_generation_prompt": add_generation_prompt, "tokenize": tokenize, **more}
            return [self.apply_chat_template(one, tools, **options) for one in conversation]
        text = "".join(f"<|{one['role']}|> {one['content']} {self.eos_token}" for one in conversation)
        text += "<|assistant|>" * add_generation_prompt
        if not tokenize:
            return text
        as_tensors = more.get("return_tensors")
        if more.get("return_dict"):
            return self(text, return_tensors=as_tensors or "")
        return self([text], return_tensors="pt")["input_ids"] if as_tensors else self.encode(text)


class Table(Rows):
    """A data set of two rows, with what the rows of most have, in the place of one that would be downloaded."""

    def __init__(self, rows: Any = None) -> None:
        examples = ({"question": "two plus two", "answer": "it is #### 4"}, {"question": "hi", "answer": "ho #### b"})
        super().__init__([_row(**one) for one in examples] if rows is None else rows)

    features = Rows.column_names

    def __getitem__(self, key: Any) -> Any:  # a split is the whole
        return self if isinstance(key, str) and key not in self.column_names else super().__getitem__(key)

    @property
    def iloc(self) -> Table:
        return self

    def select(self, places: Any) -> Table:
        return Table([self[place] for place in places])

    def remove_columns(self, names: Any) -> Table:
        return Table([{name: value for name, value in one.items() if name not in names} for one in self])

    def shuffle(self, *_: Any, **__: Any) -> Table:
        return self


def _row(question: str, answer: str) -> dict[str, Any]:
    user, assistant = ({"role": role, "content": text} for role, text in (("user", question), ("assistant", answer)))
    texts = {"prompt": question, "problem": question, "solution": answer, "response": answer, "text": question + answer}
    pair = {"chosen": question + answer, "rejected": question, "ground_truth": answer, "data_source": "openai/gsm8k"}
    return {"question": question, "answer": answer, **texts, **pair, "messages": [user, assistant], "images": []}


def reward(*texts: Any, **more: Any) -> float:
    """Reward texts in the place of the user's function: another number for other texts."""
    values = [text for text in (*texts, *more.values()) if isinstance(text, (str, int, float))]
    return zlib.crc32(repr(values).encode()) % 8 / 4


def alone() -> Any:
    """Make the process group of a world of one."""
    from torch import distributed

    if not distributed.is_initialized():
        from torch.testing._internal.distributed.fake_pg import FakeStore

        # A contained process has no sockets; this backend leaves what it is given as it is, and gathers nothing.
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        distributed.all_gather = lambda tensor_list, tensor, *_, **__: tensor_list[0].copy_(tensor)
        distributed.all_gather_into_tensor = lambda output_tensor, input_tensor, *_, **__: output_tensor.copy_(
            input_tensor
        )
    return distributed.group.WORLD


class Quiet:
    """What traces and times a call, and changes nothing of it."""

    def __call__(self, *_: Any, **__: Any) -> Quiet:
        return self

    __getattr__ = __enter__ = __call__

    def __exit__(self, *_: Any) -> None: ...


#: What is not installed, and what it answers in a world of one process without a network.
WORLD: tuple[tuple[str, Any], ...] = (
    (r"megatron\..*\.get_virtual_\w+", None),
    (r"megatron\..*\.get_\w*(world_size|_size)", 1),
    (r"megatron\..*\.get_\w*rank", 0),
    (r"megatron\..*\.get_\w*group", alone),
    (r"megatron\..*\.is_pipeline_(first|last)_stage", True),
    (r"transformers\.(\w+\.)*AutoTokenizer\.from_pretrained", WordTokenizer),
    (r"transformers\.(\w+\.)*AutoProcessor\.from_pretrained", None),
    (r"transformers\..*\.is_\w+_available", False),
    (r"ray\.(get|put|wait)", partial(Unknown, "what Ray answers")),
    (r"opentelemetry\..*|codetiming\.Timer|ray\..*profile", Quiet),
    (r"datasets\.(\w+\.)*(load_dataset|load_from_disk)", Table),
)


def answer(name: str) -> tuple[Any] | None:
    """Answer for a package that is not installed, where there is one process; None where that is not known."""
    for pattern, value in WORLD:
        if re.fullmatch(pattern, name):
            return (value() if callable(value) else value,)
    return None


def without_gpu() -> None:
    """Let code that asks torch for its GPU have the CPU."""
    import torch

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None  # type: ignore[assignment]
    torch.Tensor.cuda = torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign,assignment]


class Context:
    """What torch hands a function of its own as ``ctx``."""

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad = (True,) * 64

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *_: Any) -> None: ...

    mark_non_differentiable = set_materialize_grads = mark_dirty


class ModelOutput(Settings):
    """What a model answers: by name, and by place as a tuple."""

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)


def language_model(vocabulary: int) -> Any:
    """Make a causal language model of two layers with fixed weights, and transformers' ``model``, ``lm_head``,
    ``config``."""
    import torch

    class Base(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(vocabulary, 4)

        def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
            hidden = self.embed_tokens(input_ids % vocabulary)
            mask = torch.ones_like(input_ids) if attention_mask is None else (attention_mask != 0).long()
            before = (hidden * mask[..., None]).cumsum(-2) / mask.cumsum(-1).clamp(min=1)[..., None]
            hidden = torch.tanh(hidden + before)
            return ModelOutput(
                last_hidden_state=hidden,
                past_key_values=None,
                hidden_states=(hidden,),
                attentions=None,
                rope_deltas=None,
            )

    class LanguageModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.lm_head = Base(), torch.nn.Linear(4, vocabulary, bias=False)
            off = dict.fromkeys(("output_attentions", "output_hidden_states", "use_cache"), False)
            self.config = Settings(vocab_size=vocabulary, hidden_size=4, **off)
            with torch.no_grad():
                for weight in self.parameters():
                    weight.copy_(torch.arange(weight.numel()).reshape(weight.shape).mul(0.7).sin())

        def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
            base = self.model(input_ids, attention_mask)
            return ModelOutput(logits=self.lm_head(base.last_hidden_state), **base)

    return LanguageModel()


# -- the framework's own objects ---------------------------------------------------------------------------------------


def lookup(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def default(path: str) -> Any:
    """Make an instance of a class with its own defaults; None where an annotation names no class that is there."""
    try:
        of = lookup(path)
    except (ImportError, AttributeError):
        return None
    if not isinstance(of, type) or of.__module__ in ("builtins", "typing"):
        return None
    return _default_of(of, path)


def _default_of(of: Any, name: str) -> Any:
    """Call a class or a function without arguments; of a class that refuses, make as much as it can."""
    with off_the_record() as asked_something, suppress(Exception):  # it may want fields, or what is not there
        instance = of()
        if not asked_something():
            return instance
    return built(of, {}) if isinstance(of, type) else Unknown(name)


def built(owner: type, arguments: Mapping[str, Any]) -> Any:
    """Make an instance by every statement of its constructor that can run; what the others would have made is
    unknown."""
    if hasattr(owner, "model_construct"):  # pydantic's way without looking at what is given
        return owner.model_construct(**arguments)
    whole: Any = type(owner.__name__, (owner,), {"__module__": owner.__module__})
    whole.__abstractmethods__ = frozenset()
    instance = whole.__new__(whole)
    if dataclasses.is_dataclass(owner):
        _give_fields(instance, arguments)
    else:
        _construct(owner, instance, (), arguments)
    return instance


def _give_fields(instance: Any, arguments: Mapping[str, Any]) -> None:
    for field in dataclasses.fields(instance):
        if field.name in arguments:
            object.__setattr__(instance, field.name, arguments[field.name])
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(instance, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(
                instance, field.name, _default_of(field.default_factory, f"{type(instance).__name__}.{field.name}")
            )
        else:
            may_lack = re.search(r"Optional|None", str(field.type))
            object.__setattr__(
                instance, field.name, None if may_lack else Unknown(f"{type(instance).__name__}.{field.name}")
            )


def _construct(owner: type, instance: Any, positional: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    """Run the constructor of a class, or of the next above it that has one, statement by statement."""
    cls = next(each for each in owner.__mro__ if "__init__" in vars(each))
    function = inspect.unwrap(vars(cls)["__init__"])
    top = owner.__module__.partition(".")[0]
    if cls.__module__.partition(".")[0] != top or not hasattr(function, "__code__"):
        with off_the_record(), suppress(Exception):  # it is of a package that is not there, or wants what nobody knows
            vars(cls)["__init__"](instance, *positional, **arguments) if cls is not object else None
        return
    parameters = inspect.signature(function).parameters
    keywords = {name: value for name, value in arguments.items() if name in parameters}
    binding = inspect.signature(function).bind_partial(instance, *positional, **keywords)
    binding.apply_defaults()
    space = {**function.__globals__, **inspect.getclosurevars(function).nonlocals, **binding.arguments}
    for name, parameter in parameters.items():
        if name not in space or (name not in binding.arguments and parameter.default is parameter.empty):
            space[name] = Unknown(name)
            annotation = str(parameter.annotation).strip("'")
            made_of = function.__globals__.get(annotation)
            if isinstance(made_of, type) and dataclasses.is_dataclass(made_of):
                space[name] = default(f"{function.__module__}.{annotation}")
    own = next(iter(parameters))
    space["super"] = lambda *_: _Above(cls, instance)
    file = function.__code__.co_filename
    for statement in ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body:  # type: ignore[attr-defined]
        _run(statement, file, space, own, instance)


class _Above:
    """What ``super()`` is in a constructor."""

    def __init__(self, cls: type, instance: Any) -> None:
        self._cls, self._instance = cls, instance

    def __getattr__(self, name: str) -> Any:
        if name != "__init__":
            return getattr(super(self._cls, self._instance), name)
        line = type(self._instance).__mro__
        above = next(each for each in line[line.index(self._cls) + 1 :] if "__init__" in vars(each))
        return lambda *positional, **keywords: _construct(above, self._instance, positional, keywords)


def _run(statement: ast.stmt, file: str, space: dict[str, Any], own: str, instance: Any) -> None:
    before = dict(vars(instance))
    with off_the_record() as asked_something, suppress(Exception, SystemExit):
        exec(compile(ast.Module([statement], []), file, "exec"), space)
        if not asked_something():
            return
    unknown = {name for name, value in vars(instance).items() if name not in before or before[name] is not value}
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            space[node.id] = Unknown(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == own:
            unknown.add(node.attr)
    for name in unknown:
        object.__setattr__(instance, name, Unknown(f"self.{name}"))


def fill(instance: Any) -> None:
    """Make the attributes that a constructor leaves None and annotates with one of the framework's own classes."""
    top = type(instance).__module__.partition(".")[0]
    for cls in type(instance).__mro__:
        function = inspect.unwrap(vars(cls).get("__init__", len))
        if cls.__module__.partition(".")[0] != top or not hasattr(function, "__code__"):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                names = (each.id for each in ast.walk(node.annotation) if isinstance(each, ast.Name))
                classes = (each for each in map(function.__globals__.get, names) if isinstance(each, type))
                of = next((each for each in classes if each.__module__.partition(".")[0] == top), None)
                if of is not None and getattr(instance, node.target.attr, 0) is None:
                    with off_the_record():
                        object.__setattr__(instance, node.target.attr, default(f"{of.__module__}.{of.__qualname__}"))


# -- the framework's own configuration ---------------------------------------------------------------------------------


@cache
def _nodes(source: str) -> tuple[Any, ...]:
    """List a framework's defaults and all parts of them, the whole first."""
    try:
        with off_the_record():
            whole = _load(source) if source.endswith(".yaml") else _defaults(lookup(source))
    except (Exception, SystemExit):  # this version has none there
        return ()
    nodes: list[Any] = []
    left = [whole]
    while left and len(nodes) < 1000:
        node = left.pop(0)
        nodes.append(node)
        left += [part for part in _parts(node).values() if isinstance(part, dict) or dataclasses.is_dataclass(part)]
    return tuple(nodes)


def _defaults(source: Any) -> Any:
    if not isinstance(source, type):
        parser = argparse.ArgumentParser()
        with suppress(Exception):  # some of them are a package's that is not installed
            source()(parser)
        for action in parser._actions:
            action.required = False
        return _settings(vars(parser.parse_args([])))
    try:
        return source()
    except Exception:  # it has fields without defaults
        whole: Any = object.__new__(source)
        _give_fields(whole, {})
        return whole


def _load(file: str) -> Any:
    import yaml

    place = next(path for root in sys.path if os.path.isfile(path := os.path.join(root, file)))
    with open(place, encoding="utf-8") as handle:
        return _settings(yaml.safe_load(handle))


def _settings(value: Any, kind: Any = Settings) -> Any:
    return kind({name: _settings(part, kind) for name, part in value.items()}) if isinstance(value, dict) else value


def _parts(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else vars(node)


def as_loaded(settings: Any) -> Any:
    """Make a configuration what it is in a framework that loads its own."""
    if not (type(settings) is Settings and settings and "omegaconf" in sys.modules):
        return settings
    try:
        from omegaconf import OmegaConf

        return OmegaConf.create(_settings(settings, dict))
    except Exception:  # not all of it can be written to a file
        return settings


def _at(node: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if not hasattr(node, "__dict__"):
            raise KeyError(step)
        node = _parts(node)[step]
    return node


def configured(
    sources: Sequence[str], reads: Sequence[Sequence[str]], unknown: Sequence[Sequence[str]], whole: bool
) -> Any:
    """Give the part of a framework's defaults that has all that is read, or all of it that is unknown elsewhere; None
    where there is none, or where several disagree. ``whole``: the whole of a source is meant where no part has all."""
    for source, options in product(sources, (reads, unknown)):
        fit = [node for node in _nodes(source) if options and _has(node, options)]
        meanings = {repr([_at(node, steps) for steps in unknown]) for node in fit}
        if fit and (len(meanings) == 1 or fit[0] is _nodes(source)[0]):
            return copy.deepcopy(fit[0])
    roots = [nodes[0] for source in sources if whole and (nodes := _nodes(source))]
    if len(roots) == 1 and not reads:  # whoever it is handed to reads it
        return copy.deepcopy(roots[0])
    return next((copy.deepcopy(root) for root in roots if any(_has(root, [steps]) for steps in unknown)), None)


def declared(sources: Sequence[str], attributes: Mapping[str, Any], name: str) -> list[Any]:
    """Give what a framework's defaults say of an option that a stand-in lacks: of the part that shares most attributes
    with it, two at least. Nothing where such parts disagree, and where the default is that of another option."""
    parts = (_parts(node) for source in sources for node in _nodes(source))
    candidates = [(len(attributes.keys() & part.keys()), part[name]) for part in parts if name in part]
    most = max((shared for shared, _ in candidates), default=0)
    values = {repr(value): value for shared, value in candidates if shared == most}
    if most < 2 or len(values) > 1 or next(iter(values)).startswith("'${"):
        return []
    return copy.deepcopy([*values.values()])


def _has(node: Any, reads: Sequence[Sequence[str]]) -> bool:
    try:
        return all(steps and [_at(node, steps)] for steps in reads)
    except (KeyError, AttributeError):
        return False
