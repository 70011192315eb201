"""Bind a user's function to a contract: match its parameters to inputs, and its return value to outputs."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

from sentinel.binding import kit
from sentinel.contracts.contract import REQUIRED, Contract, Input, Observed
from sentinel.contracts.names import fits, match_names, suggest_names
from sentinel.errors import nearest
from sentinel.targets import Binding
from sentinel.testing.forms import OPTIONS, at_tokens, concerns, definitions, matchable, of_responses
from sentinel.testing.ways import Mismatch, without_mask

#: Contract -> argument that its ``measure`` passes in addition to the inputs -> other names for it in users' functions.
_PASSED: Mapping[str, Mapping[str, str]] = {
    "rule_reward": {"response": "completion text output prediction solution answer solution_str"}
}

#: Inputs that are never passed to a function, because they only describe the scenario.
_OF_SCENARIOS = ("wrong_answer",)

#: Names of parameters that receive the number of rows per group, in functions that need consecutive, equal groups.
_GROUP_SIZES = "group_size num_generations n_samples num_samples n_rollouts rollout_n n_samples_per_prompt n k"

#: Contract with one number per token -> the contract for the same function with one number per response and no mask.
_WITHOUT_TOKENS = {"group_advantage": "reward_normalisation"}

#: Names of parameters for the number of valid tokens in each row.
_LENGTHS = "lengths response_lengths seq_lengths sequence_lengths seq_lens response_lens completion_lengths lens"

#: Output -> other names for it, as a key or attribute of a function's return value.
_OUTPUTS = {
    "loss": "pg_loss policy_loss vf_loss value_loss total_loss actor_loss critic_loss",
    "clip_fraction": "clipfrac pg_clipfrac vf_clipfrac clip_frac clip_ratio",
    "dual_clip_fraction": "pg_clipfrac_lower dual_clipfrac",
    "approx_kl": "ppo_kl approxkl",
    "advantages": "advantage adv",
    "returns": "return",
    "kl": "kl_penalty",
    "weights": "importance_weights is_weights",
    "log_probs": "logprobs logps",
    "parts": "partitions microbatches",
    "kept": "mask keep",
}


class Inputs(dict[str, Any]):
    """The inputs of one call: a mapping whose keys are also attributes. Records which inputs are read."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def __getattribute__(self, name: str) -> Any:  # an input may be called `values`, which is a method of dict
        return self[name] if dict.__contains__(self, name) else super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"unknown input {name!r}{nearest(name, self, 'the inputs are')}") from None

    def keys(self) -> Any:  # used by **x
        self._read.update(self)
        return super().keys()


class Outputs(dict[str, Any]):
    """The outputs of a function: name -> value. A missing output is None, and no law checks it."""

    def __missing__(self, name: str) -> None:
        return None


#: Maximum number of recorded exceptions of a function.
_ERRORS = 50


@dataclass
class Function:
    """Wraps the user's function, and records its exceptions and the values of its arguments.

    :ivar errors: text of an exception that the function raised -> the first exception with this text.
    :ivar record: called with the positional and the named arguments before each call, unless it is None.
    :ivar inputs: the inputs of the current call; set only if the user passed ``call``.
    :ivar interrupted: whether the last exception was a KeyboardInterrupt.
    :ivar used: whether the function was called, or one of its attributes was read.
    :ivar received: parameter -> the value that every call passed, or ``...`` for different values. A tensor of equal
        numbers counts as this number; other tensors are ``...``.
    """

    f: Callable[..., Any]
    name: str
    __signature__: inspect.Signature
    errors: dict[str, BaseException] = field(default_factory=dict)
    record: Callable[[tuple[Any, ...], Mapping[str, Any]], None] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    used: bool = False
    received: dict[str, Any] = field(default_factory=dict)

    def __call__(self, /, *positional: Any, **named: Any) -> Any:
        self.used = True
        parameters = self.__signature__.parameters.values()
        first = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY and each.name in named]
        positional = (*positional, *(named.pop(name) for name in first))
        if self.record is not None:
            self.record(positional, named)
        with contextlib.suppress(TypeError):  # if the arguments do not fit, the call below raises
            for name, value in self.__signature__.bind_partial(*positional, **named).arguments.items():
                if self.received.get(name) is ...:
                    continue  # it had different values already; comparing a tensor's numbers would cost time
                if hasattr(value, "detach") and value.numel():
                    numbers = value.detach().flatten()
                    value = float(numbers[0]) if (numbers == numbers[0]).all() else value
                plain = value is None or isinstance(value, (bool, int, float, str))
                self.received[name] = value if plain and self.received.get(name, value) == value else ...
        try:
            return self.f(*positional, **named)
        except BaseException as error:
            self.note(error)
            raise

    def note(self, error: BaseException) -> None:
        if len(self.errors) < _ERRORS:
            self.errors.setdefault(f"{type(error).__name__}: {error}", error)
        self.interrupted = isinstance(error, KeyboardInterrupt)

    def __getattr__(self, name: str) -> Any:  # a `call` may use a method of an object
        self.__dict__["used"] |= not name.startswith("__")
        return getattr(self.__dict__["f"], name)


def name_of(f: Any) -> str:
    """Return a readable name for a callable: the name of its function or class."""
    inner = f
    while not hasattr(inner, "__qualname__") and hasattr(inner, "func"):
        inner = inner.func  # functools.partial
    inner = getattr(inner, "_orig_mod", inner)  # torch.compile of a module
    name = getattr(inner, "__qualname__", None) or getattr(inner, "name", None) or type(inner).__qualname__
    return str(name).rpartition("<locals>.")[2]


def signature_of(f: Any, names: Sequence[str]) -> inspect.Signature:
    """Return the signature of a callable; for a torch module, the signature of ``forward``.

    :param names: keyword arguments to list as parameters if the callable has ``**kwargs``.
    """
    forward = getattr(f, "forward", None)
    try:
        signature = inspect.signature(forward if callable(forward) else f)
    except (TypeError, ValueError):
        signature = inspect.Signature([inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])
    schema = getattr(f, "schema", None)  # torch.jit.script
    known = [each.name for each in schema.arguments] if schema is not None else list(names)
    parameters = list(signature.parameters.values())
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        own = [name for name in known if name not in signature.parameters]
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in own]
        parameters = [*parameters[:-1], *more, parameters[-1]]
    return inspect.Signature([each for each in parameters if each.kind is not each.VAR_POSITIONAL])


@dataclass
class Bound:
    """A user's function with the contract to which it is bound.

    :ivar binding: which values a search draws, and how the function is called.
    :ivar names: input -> parameter. If the user passed ``call``, the keys are the inputs that ``call`` reads.
    :ivar needed: the inputs that must have a value in every call.
    :ivar read: the inputs that ``call`` has read so far.
    :ivar call: the file and line of the user's ``call``; empty if there is none.
    :ivar of_call: text of an exception that ``call`` itself raised -> the exception.
    :ivar derived: parameter whose value is computed -> the input from which it is computed.
    :ivar given: parameter to which every call passes a value -> its default, which is never used.
    :ivar sizes: dimension of the input tensors -> its largest size in a call so far.
    :ivar unread: the entries that the function has returned by name, but that are not outputs of the contract.
    """

    function: Function
    contract: Contract
    binding: Binding
    names: Mapping[str, str]
    module: ModuleType
    needed: frozenset[str] = frozenset()
    read: set[str] = field(default_factory=set)
    call: str = ""
    of_call: dict[str, BaseException] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults of the function's parameters."""
        parameters = self.function.__signature__.parameters.items()
        return {name: each.default for name, each in parameters if each.default is not each.empty}

    @property
    def left(self) -> dict[str, Any]:
        """Return the parameters to which no call passed a value so far, with their defaults."""
        passed = {*self.function.received, *(() if self.call else {*self.names.values(), *self.derived})}
        return {name: default for name, default in self.defaults.items() if name not in passed}

    @property
    def off(self) -> dict[str, Any]:
        """Return the parameters that were None, False or 0 in every call so far, each with its value."""
        values = {**self.left, **self.function.received}
        numbers = (bool, int, float)
        return {name: each for name, each in values.items() if each is None or (isinstance(each, numbers) and not each)}

    @property
    def same(self) -> dict[str, Any]:
        """Return the computed parameters that had the same value in every call so far, such as ``next_done``."""
        values = {name: self.function.received.get(name, ...) for name in self.derived}
        return {name: each for name, each in values.items() if each is not ... and name not in self.off}

    def note_sizes(self, inputs: Mapping[str, Any]) -> None:
        """Record the largest size of each dimension in the tensors of a call."""
        for item in self.contract.inputs:
            for name, size in zip(item.shape, getattr(inputs.get(item.name), "shape", ())):
                self.sizes[name] = max(size, self.sizes.get(name, 0))


def bind(
    f: Any,
    contract: Contract,
    choices: Mapping[str, Any],
    names: Mapping[str, str | None] | None = None,
    call: Callable[[Any, Any], Any] | None = None,
    outputs: Sequence[str] | Mapping[str, Any] = (),
    accessed: frozenset[str] | None = None,
    dtypes: Sequence[str] = (),
    responses: Sequence[str] = (),
    stream: bool = False,
) -> Bound:
    """Match a function's parameters to the inputs of a contract, and return the bound function.

    The parameters are those of :class:`sentinel.testing.checking.Check`, and:

    :param choices: input -> value, or a tuple of values to draw from.
    :param responses: the inputs that the function takes as one number per response.
    :param stream: whether the function takes the tokens of all rows one after another, [tokens], with booleans that
        mark the ends of episodes.
    :param dtypes: the dtypes of float tensors; empty for all.
    :param accessed: the inputs that ``call`` reads; None if they are not known yet.
    :raises TypeError: if parameters and inputs do not match. The message lists both.
    """
    if not callable(f):
        raise TypeError(f"{f!r} is not callable")
    names = {input_named(contract, name).name: parameter for name, parameter in (names or {}).items()}
    function = Function(f, name_of(f), signature_of(f, [name for name in names.values() if name]))
    derived: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    if call is None:
        matched = _match(function, contract, choices, names, derived)
    else:
        matched = {item.name: item.name for item in contract.inputs if accessed is None or item.name in accessed}
        required = [item.name for item in matchable(contract, choices).inputs if item.default is REQUIRED]
        undecided = [name for name in required if name not in {*matched, *choices} and not is_data(contract, name)]
        undecided += [name for name in required if contract.input(name) in _without_values(contract, choices)]
        if undecided:
            raise TypeError("\n".join(_advice(contract, name) for name in dict.fromkeys(undecided)))
    fixed, accepts = _drawn(function, contract, choices, matched, call is not None)
    if "group_size" in derived:
        fixed["group_layout"] = "equal"
    has_dones = any(name in kit.ENDS for name in derived)
    if stream and not has_dones:
        raise TypeError(f"shapes: {function.name} needs a parameter for the ends of episodes: {' or '.join(kit.ENDS)}")
    has_lengths = any(name in _LENGTHS.split() for name in derived)
    if (has_dones or has_lengths) and not stream and contract.mask not in matched:
        accepts.setdefault(contract.mask, ("full", "right"))  # lengths and ends cannot express other padding or gaps
    needed = {one for one, name in matched.items() if call is None and not _accepts_none(function, name)}
    for item in contract.inputs:
        if item.name in needed and None in item.choices and item.name not in {**fixed, **accepts}:
            accepts[item.name] = tuple(value for value in item.choices if value is not None)
    for one, other in shared(matched):
        fixed.setdefault(other, lambda inputs, one=one: inputs[one])
    module = sys.modules.get(getattr(f, "__module__", None) or "", sys)
    bound = Bound(function, contract, Binding(function.name, contract.name), matched, module, frozenset(needed))
    bound.call = _file_and_line(call)
    own_names = [name for name in derived if name in function.__signature__.parameters]
    sizes = _GROUP_SIZES.split()
    bound.derived = {name: contract.group if name in sizes else contract.mask for name in own_names}
    passed = {**{item.name: () for item in contract.inputs}, **{one: (name,) for one, name in matched.items()}}
    known: list[str] = []  # the names of outputs
    forms = _label_forms(function, matched.get(contract.group, ""), call is not None)
    forms = ["numbers", "bools"] if has_dones else forms

    def call_with(boundary: Any, inputs: Mapping[str, Any], form: str) -> Any:
        if call is not None:
            function.inputs = inputs
            try:
                return call(function, Inputs(inputs, bound.read))
            except Exception as error:
                if all(error is not one for one in function.errors.values()):
                    bound.of_call.setdefault(f"{type(error).__name__}: {error}", error)
                raise
        if has_dones:
            inputs = kit.with_ends(inputs, inputs[contract.mask], form == "bools", stream)
        return boundary.invoke(inputs, **{name: derive(inputs) for name, derive in derived.items()})

    def ask(boundary: Any, inputs: Mapping[str, Any]) -> Outputs:
        original, first = inputs, None
        bound.note_sizes(inputs)
        for form in tuple(forms):
            if contract.group in original:
                inputs = {**original, contract.group: _labels(original[contract.group], form, boundary.device)}
            try:
                told = of_responses(contract, inputs, responses) if responses else inputs
                returned = call_with(boundary, told, form)
            except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
                first = first or error
                continue
            forms[:] = [form]
            known[:] = known or output_names(contract, original)
            try:
                read = read_outputs(returned, contract, known or contract.keys, outputs, function.name)
            except TypeError as error:
                function.note(error)
                raise
            bound.unread |= dict.fromkeys(_unread(returned, read))
            if stream:
                mask = original[contract.mask]
                read = Outputs({name: kit.split_rows(value, mask) for name, value in read.items()})
            return at_tokens(contract, original, read) if responses else read
        assert first is not None
        raise first

    given = () if call is not None else {*matched.values(), *derived}
    # Tensor parameters are left out: their default, None or 0, only means that no tensor was passed.
    given = {name for name in given if not any(is_data(contract, one) for one in matched if matched[one] == name)}
    bound.given = {name: each for name, each in bound.defaults.items() if name in given and each is not None}
    bound.binding = replace(
        bound.binding, arguments=passed, call=ask, fixed=fixed, accepts=accepts, dtypes=tuple(dtypes)
    )
    return bound


def _file_and_line(call: Any) -> str:
    code = getattr(call, "__code__", None)
    if code is None:
        return "" if call is None else name_of(call)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def input_named(contract: Contract, name: str) -> Input:
    """Return the contract's input with this name, or the input for which the name is the best synonym.

    :raises TypeError: if the name fits no input, or fits several equally well.
    """
    exact = contract.input(name) or contract.input(contract.aliases.get(name, ""))
    if exact is not None:
        return exact
    ranks = {item.name: fits(contract, item.name, name) for item in contract.inputs if not item.dialect}
    fitting = sorted((rank, one) for one, rank in ranks.items() if rank is not None)
    if fitting and (len(fitting) == 1 or fitting[0][0] < fitting[1][0]):
        return next(item for item in contract.inputs if item.name == fitting[0][1])
    inputs = [item.name for item in contract.inputs]
    raise TypeError(f"the contract {contract.name} has no input {name!r}{nearest(name, inputs, 'its inputs are')}")


def _match(
    function: Function,
    contract: Contract,
    choices: Mapping[str, Any],
    names: Mapping[str, str | None],
    derived: dict[str, Callable[[Mapping[str, Any]], Any]],
) -> dict[str, str]:
    """Match the function's parameters to inputs, and return input -> parameter. Add to ``derived`` each parameter whose
    value is computed from an input."""
    every = {
        name: each for name, each in function.__signature__.parameters.items() if each.kind is not each.VAR_KEYWORD
    }
    for name, parameter in names.items():
        if parameter is not None and parameter not in every:
            raise TypeError(
                f"{function.name} has no parameter {parameter!r} (names={{{name!r}: {parameter!r}}})"
                f"{nearest(parameter, every, 'its parameters are')}"
            )
    required = [name for name, each in every.items() if each.default is each.empty]
    besides = {
        name: tuple(word for word in every if word == name or word in words.split())
        for name, words in _PASSED.get(contract.name, {}).items()
    }
    own = {name: parameters[0] for name, parameters in besides.items() if parameters}
    free = [name for name in every if name not in own.values()]
    data = [one for one in OPTIONS if one in names or any(fits(contract, one, name) is not None for name in free)]
    contract = matchable(contract, choices, data)
    # A chosen option needs no parameter. A mask does, because only its padding is chosen.
    found = match_names(contract, free, required, names, [name for name in choices if not is_data(contract, name)])
    unknown = list(found.unknown)
    for name in found.unknown:
        if (
            name in _GROUP_SIZES.split()
            and contract.input("group_layout") is not None
            and contract.group not in found.names
        ):
            derived["group_size"] = derived[name] = _group_size
            unknown.remove(name)
        elif name in _LENGTHS.split() and contract.mask and contract.input(contract.mask) is not None:
            derived[name] = lambda inputs: (inputs[contract.mask] != 0).sum(-1)
            unknown.remove(name)
    if contract.input("gamma") is not None and (dones := [name for name in unknown if name in kit.ENDS]):
        dones += [name for name in every if name in kit.AFTER_ENDS]
        derived |= {name: partial(_of_ends, name, dones) for name in dones}
        unknown = [name for name in unknown if name not in derived]
    gone = {contract.group} if "group_size" in derived else set()
    gone |= {contract.mask} if any(name in (*_LENGTHS.split(), *kit.ENDS) for name in derived) else set()
    missing = [name for name in found.missing if name not in gone]
    undecided = [name for name in missing if not is_data(contract, name)]
    missing = [name for name in missing if name not in undecided]
    if missing or unknown or found.ambiguous or undecided:
        raise _mismatch(function, contract, found.names, missing, unknown, found.ambiguous, undecided)
    return {**found.names, **own}


def _of_ends(name: str, names: Sequence[str], inputs: Mapping[str, Any]) -> Any:
    return kit.arguments_of_ends(names, inputs["ends"], inputs["token_level_rewards"])[name]


def _accepts_none(function: Function, parameter: str) -> bool:
    each = function.__signature__.parameters.get(parameter)
    return each is None or each.default is None or bool(re.search(r"\bNone\b|Optional", str(each.annotation)))


def is_data(contract: Contract, name: str) -> bool:
    """Return True if the input is data, which needs a parameter, and False if it is an option."""
    item = contract.input(name)
    return item is not None and bool(item.domain or item.kind in ("labels", "any", "tensor"))


def is_mask(contract: Contract, name: str) -> bool:
    item = contract.input(name)
    return item is not None and item.domain == "mask"


def passed_names(contract: Contract) -> tuple[str, ...]:
    """Return the names of the arguments that a contract passes to a function in addition to its inputs."""
    return tuple(_PASSED.get(contract.name, ()))


def _group_size(inputs: Mapping[str, Any]) -> int:
    labels = list(inputs["group"])
    return len(labels) // max(len(set(map(str, labels))), 1)


def _mismatch(
    function: Function,
    contract: Contract,
    names: Mapping[str, str],
    missing: Sequence[str],
    unknown: Sequence[str],
    ambiguous: Mapping[str, Sequence[str]],
    undecided: Sequence[str],
) -> Mismatch:
    lines = [f"the parameters of {function.name} do not match the inputs of {contract.name}:", ""]
    of = {parameter: [one for one, name in names.items() if name == parameter] for parameter in names.values()}
    for name in function.__signature__.parameters:
        served = " and ".join(of.get(name, ())) or ("?" if name in unknown else "-")
        lines.append(f"    {name:<24} {served}")
    for name in missing:
        item = contract.input(name)
        lines.append(f"    {'?':<24} {name}: {' '.join(item.meaning.split()) if item is not None else ''}")
    table, lines = [*lines, ""], []
    free = [name for name in function.__signature__.parameters if name not in of]
    wanted = {name: several[0] for name, several in ambiguous.items()}
    wanted |= suggest_names(contract, free, missing)
    wanted |= {name: "…" for name in missing if name not in wanted}
    table += [f"{' and '.join(several)} both fit {name}." for name, several in ambiguous.items()]
    if wanted:
        written = ", ".join(f"{name!r}: {parameter!r}" for name, parameter in wanted.items())
        lines.append(
            f"Pass names={{{written}}}. "
            f"If the function does not take an input: names={{{next(iter(wanted))!r}: None}}. "
            "If it takes other arguments, such as an object: call=lambda f, x: f(…)."
        )
    other = _WITHOUT_TOKENS.get(contract.name, "")
    if other and contract.mask in missing:
        lines.append(f"If it takes and returns one number per response and no mask, use the contract {other}.")
    masks = {name: None for name in missing if is_mask(contract, name)}
    # If no option is undecided, Check._try_ways calls the function without a mask, so no advice is needed here.
    if masks and undecided and (responses := without_mask(contract, {**names, **masks})):
        lines.append(
            "If it takes one number per response, such as log-probs that are already summed, it needs no mask: "
            f"names={masks!r}, shapes={dict.fromkeys(responses, 'batch')!r}."
        )
    left = [name for name in unknown if name not in wanted.values()]
    if left:
        others = [item.name for item in contract.inputs if not item.dialect and item.name not in {*names, *wanted}]
        written = " (inputs without a parameter: " + ", ".join(others) + ")" if others else ""
        need = f"{' and '.join(left)} {'needs a value' if len(left) == 1 else 'need values'}"
        lines.append(
            f"{need}. Either name its input: names={{input: {left[0]!r}}}{written}. Or fix its value: "
            f"functools.partial({function.name}, {left[0]}=…), or call=lambda f, x: f(…)."
        )
    lines += [_advice(contract, name, names) for name in undecided]
    return Mismatch(table, lines, names, missing, unknown, ambiguous, free, undecided)


def _without_values(contract: Contract, choices: Mapping[str, Any]) -> list[Input]:
    drawn = [item for item in contract.inputs if item.domain or item.choices or item.kind == "labels"]
    return [
        item for item in contract.inputs if item.default is REQUIRED and item not in drawn and item.name not in choices
    ]


def _advice(contract: Contract, name: str, names: Collection[str] = ()) -> str:
    """Return a sentence that suggests values for an option that the contract's definition needs.

    :param names: the inputs that the function takes. Only values that need all of them are suggested.
    """
    item = contract.input(name)
    assert item is not None
    taken = [each for each in contract.inputs if each.name in names]
    values = [*item.choices] or definitions(item)
    if values := [value for value in values if all(concerns(contract, each, {name: value}) for each in taken)]:
        if len(values) == 1:
            return f"Pass {name}={values[0]!r}, the only value that fits these parameters."
        return f"Pass {name}=…; choose one of {', '.join(map(repr, values))}."
    return f"Pass {name}=…: {' '.join(item.meaning.split())}."


def shared(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the pairs of inputs that are passed to the same parameter."""
    first: dict[str, str] = {}
    pairs = []
    for name, parameter in names.items():
        if parameter in first:
            pairs.append((first[parameter], name))
        first.setdefault(parameter, name)
    return pairs


def _drawn(
    function: Function, contract: Contract, choices: Mapping[str, Any], names: Mapping[str, str], has_call: bool
) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Return two mappings: input -> its fixed value, and input -> the values to draw from. Other inputs are drawn
    freely."""
    fixed: dict[str, Any] = {}
    accepts: dict[str, tuple[Any, ...]] = {}
    for item in contract.inputs:
        if item.name in choices:
            value = choices[item.name]
            (accepts if isinstance(value, tuple) else fixed)[item.name] = value
        elif item.name in names or item.dialect or item.name in _OF_SCENARIOS:
            continue
        elif item.default is REQUIRED:
            if not has_call and item.choices and not is_data(contract, item.name):
                fixed[item.name] = item.choices[0]
        elif item.choices or item.knob:
            fixed[item.name] = item.default
        elif item.domain and item.default is None:
            accepts[item.name] = (None,)
        elif item.domain and item.domain != "mask":
            fixed[item.name] = item.default
    return fixed, accepts


def _label_forms(function: Function, parameter: str, has_call: bool) -> list[str]:
    """Return the types of group labels to try, in order. If the parameter has an annotation, return only that type.

    A list comes last, because a function that needs an array may not raise for a list: ``labels == 0`` is then False
    instead of an array.
    """
    note = function.__signature__.parameters.get(parameter)
    text = "" if note is None or note.annotation is note.empty else str(note.annotation)
    for word, form in (("str", "strings"), ("Tensor", "tensor"), ("rray", "array"), ("ist", "list")):
        if word in text:
            return [form]
    return ["list"] if has_call or not parameter else ["array", "tensor", "list"]


def _labels(labels: Any, form: str, device: str) -> Any:
    import numpy as np
    import torch

    if not isinstance(labels, (list, tuple)):
        return labels
    if form == "strings":
        return [str(label) for label in labels]
    numbers = [list(dict.fromkeys(labels)).index(label) for label in labels]
    return (
        torch.tensor(numbers, device=device) if form == "tensor" else np.array(numbers) if form == "array" else numbers
    )


def output_names(contract: Contract, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the outputs that a contract's oracle returns for these inputs, with the main output first."""
    from sentinel.contracts.contract import DoesNotApply

    if contract.oracle is None:
        return contract.keys
    double = {name: _double(value) for name, value in inputs.items()}
    defaults = {item.name: item.default for item in contract.inputs if item.default is not REQUIRED}
    try:
        return tuple(contract.oracle({**defaults, **double}))
    except DoesNotApply:
        return ()


def _double(value: Any) -> Any:
    floating = hasattr(value, "is_floating_point") and value.is_floating_point()
    return value.detach().double().requires_grad_(value.requires_grad) if floating else value


def read_outputs(
    returned: Any,
    contract: Contract,
    names: Sequence[str],
    outputs: Sequence[str] | Mapping[str, Any],
    function: str,
) -> Outputs:
    """Convert the return value of a function to outputs with the contract's names.

    :param names: the contract's names, with the main output first.
    :param outputs: the user's names for the outputs; see :class:`sentinel.testing.checking.Check`.
    :raises TypeError: if the function returned None, or an object without any of the outputs.
    """
    import torch

    if isinstance(outputs, Mapping):
        return Outputs({name: _member(returned, key) for name, key in outputs.items()})
    if returned is None:
        raise TypeError(f"{function} returned None; add a return statement")
    if isinstance(returned, (torch.Tensor, bool, int, float)):
        return Outputs({(tuple(outputs) or tuple(names))[0]: returned})
    if isinstance(returned, tuple) and not hasattr(returned, "_fields"):
        if outputs:
            return Outputs({name: value for name, value in zip(outputs, returned) if name})
        observed = {item.key: item for item in contract.observes}
        main = [name for name in names if name not in observed or observed[name].role != "metric"]
        found = {
            name: value for name, value in zip(main, returned) if name == main[0] or _fits(value, observed.get(name))
        }
        for part in returned[1:]:
            if isinstance(part, Mapping):
                found |= _named(part, names)
        return Outputs(found)
    if isinstance(returned, list) and (contract.mask == "" or names[0] in ("parts", "result")):
        return Outputs({names[0]: returned})
    found = _named(returned, names)
    if names[0] not in found and not any(name in found for name in names):
        there = list(returned) if isinstance(returned, Mapping) else sorted(getattr(returned, "__dict__", ()))
        raise TypeError(
            f"{function} returned {type(returned).__name__} with {', '.join(map(str, there)) or 'no entries'}, but the "
            f"contract's outputs are {', '.join(names)}; pass outputs={{{names[0]!r}: …}}"
        )
    return Outputs(found)


def _unread(returned: Any, read: Outputs) -> Iterator[str]:
    """Yield the entries of returned mappings that no output was read from."""
    known = {*map(id, read.values())}
    for part in returned if isinstance(returned, tuple) else [returned]:
        if isinstance(part, Mapping):
            yield from (str(key) for key, value in part.items() if id(value) not in known)


def _fits(value: Any, observed: Observed | None) -> bool:
    """Return True if a value has as many dimensions as the output, or if the contract does not observe the output."""
    return observed is None or (hasattr(value, "dim") and value.dim() == len(observed.shape))


def _member(returned: Any, key: Any) -> Any:
    if isinstance(key, int) or isinstance(returned, Mapping):
        return returned[key]
    return getattr(returned, key)


def _named(returned: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return output -> value for each key or attribute of a returned object that is named like an output or its
    synonym."""
    keys = list(returned) if isinstance(returned, Mapping) else [name for name in dir(returned) if name[:1] != "_"]
    found = {}
    for name in names:
        words = [name, *_OUTPUTS.get(name, "").split()]
        match = next((key for word in words for key in keys if str(key).rpartition("/")[2] == word), None)
        if match is not None:
            found[name] = _member(returned, match)
    return found
