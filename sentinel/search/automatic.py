"""Bind a function that no adapter names: where the lexicon knows all that it takes, it is called with that.

Evidence about a parameter comes in this order: what the body reads of it, its annotation, its name. What is not known
is not guessed; it is the lexicon's backlog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.contracts.contract import REQUIRED, TOKENS, Input, Observed
from sentinel.contracts.unbound import AUTOMATIC
from sentinel.deciding.law_session import Subject
from sentinel.laws.law import Law
from sentinel.search.lexicon import BESIDE, OBJECTS, PLAIN, TENSOR, USUAL, Term, meaning
from sentinel.search.scenarios import MASK_STYLES
from sentinel.search.signatures import Parameter, Signature
from sentinel.targets import Binding, Target
from sentinel.values.literals import Tensor

#: The laws that ask nothing of what a function computes. None of them is absolute here: what a function kept is what
#: it is held to.
LAWS = (
    "masked_values_have_no_influence",
    "a_rejected_row_is_an_absent_row",
    "groups_are_isolated",
    "order_does_not_matter",
    "padding_is_invisible",
    "nothing_else_is_touched",
    "representation_is_invisible",
    "finite_in_finite_out",
)

#: What an annotation says of the form of a value that stands on rows or tokens.
_FORMS = (
    (
        r"(Optional\[)?((Float|Int|Integer|Bool)\[)?(torch\.)?(Long|Float|Bool|Int)?Tensor(, .*)?\]*( \| None)?",
        "tensor",
    ),
    (r"(Optional\[)?([Ll]ist|Sequence|Iterable|tuple|Tuple)\[(Optional\[)?(torch\.)?(Long|Float)?Tensor.*", "tensors"),
    (r"(Optional\[)?([Ll]ist|Sequence|Iterable)(\[.*(int|float|bool|str|Any|Hashable).*)?(\])?( \| None)?", "list"),
    (r"(Optional\[)?(np|numpy)\.(nd)?array.*", "array"),
)
_SCALAR = re.compile(
    r"(Optional\[)?(int|float|bool|str|Any|None|dict|Dict|[Ll]ist\[(dict|Dict|Message|str|int|float)).*|.*Literal\[.*|"
)
_CONFIGURATION = re.compile(r"(\w+_)?(config|cfg|args|conf|hps|arguments|options|gconfig|params)")

_WHOLE_CONFIGURATION = re.compile(r"(full_|trainer_)?(config|cfg|args)")
_ROWS = re.compile(r"(\w+_)?samples|group")
_ITEMS = re.compile(r"(\w+_)?(items|examples|features|records|rows|(item|data|example)_list)")
_BATCH = re.compile(r"(\w+_)?batch|(rollout_)?data|micro_?batch|mini_?batch|data_proto")

#: Names that speak of the response alone, in a batch whose other columns have the prompt, too.
_OF_RESPONSES = re.compile(r"response(s|_mask|_ids|_lengths?|_len)?|prompts?|prompt_length")


@dataclass
class _Reading:
    """What is known of a function so far."""

    target: Target
    package: str
    inputs: dict[str, Input] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    # -- one value -----------------------------------------------------------------------------------------------------

    def value(
        self, name: str, annotation: str = "", choices: Sequence[str] = (), optional: bool = False
    ) -> dict[str, Any] | None:
        """Say how a parameter, key or attribute of a name is made; None where that is not known, or not well enough
        for what may be left out."""
        self.names.add(name)
        annotation = "" if annotation in ("Any", "object") else annotation
        literal = re.search(r"Literal\[(.*?)\]", annotation)
        if literal is not None and not choices:
            choices = [part.strip().strip("'\"") for part in literal[1].split(",")]
        if choices:
            return self._scalar(name, tuple(choices))
        term = meaning(name, self.target.spellings, whole=True)
        if re.fullmatch(r"bool|Optional\[bool\]|bool \| None", annotation):
            of_name = term.input.choices if term is not None else ()
            return self._scalar(name, of_name if {*map(type, of_name)} == {bool} else (False, True))
        plain = next((small for pattern, small in PLAIN.items() if re.fullmatch(pattern, annotation)), None)
        if not optional and plain is None:
            term = meaning(name, self.target.spellings)
        form = next((form for pattern, form in _FORMS if re.fullmatch(pattern, annotation)), "")
        if (term is None or not term.form) and "ensor" in annotation and form and not optional:
            term = TENSOR  # whatever it is called
        if term is None or (plain and term.derived in OBJECTS):
            return self._scalar(name, plain) if plain else None
        if not term.form:
            fits = term.derived in OBJECTS or _SCALAR.fullmatch(annotation)
            return self._of_scalar(name, term, annotation) if fits else None
        if annotation and not form:
            return None
        return self._of_many(name, term, form or term.form)

    def _scalar(self, name: str, choices: tuple[Any, ...]) -> dict[str, Any]:
        name = f"{name}_" if name in ("how", "group") else name
        self.inputs.setdefault(name, Input(name, "any", "", default=choices[0], choices=choices))
        return {"input": name}

    def _of_scalar(self, name: str, term: Term, annotation: str) -> dict[str, Any] | None:
        several = re.match(r"(Optional\[)?[Ll]ist\[(str|int|float)", annotation)
        if term.derived and several:
            return None
        if term.derived:
            if term.derived in ("rows", "tokens", "valid", "answered"):
                self._need_mask()
            return {"derived": term.derived}
        choices = term.input.choices
        if several:
            choices = tuple(choice if isinstance(choice, list) else [choice, choices[0]] for choice in choices)
        return self._scalar(name, choices)

    def _of_many(self, name: str, term: Term, form: str) -> dict[str, Any] | None:
        item = term.input
        if term.derived == "group":
            self.inputs.setdefault("group", Input("group", "labels", ""))
            return {"derived": "group", "form": form}
        if term.derived:
            self._need_mask()
            return {"derived": term.derived, "form": form}
        if item.domain == "mask":
            if item.name == "attention_mask" and form != "tensors":
                return {"derived": "attention", "form": form}
            self.inputs.setdefault("response_mask", replace(item, name="response_mask", choices=MASK_STYLES))
            return {"input": "response_mask", "form": form}
        name = f"{name}_" if name in ("how", "group") else name
        self.inputs.setdefault(name, replace(item, name=name))
        if item.differentiable and form in ("tensor", "tensors"):
            self.gradients.append(name)
        ids = {"ids": True, "whole": name.startswith("input")} if item.domain == "token_id" else {}
        return {"input": name, "form": form, **ids, **({"inside": True} if term.inside else {})}

    def _need_mask(self) -> None:
        if "response_mask" not in self.inputs:
            self.inputs["response_mask"] = Input(
                "response_mask", "tensor", "", "int64", TOKENS, REQUIRED, False, "mask", ("full", "right")
            )

    # -- one parameter -------------------------------------------------------------------------------------------------

    def parameter(self, parameter: Parameter, own: bool) -> dict[str, Any] | None:
        """Say how an argument is made; None where it is left out, or not known."""
        choices = dict(parameter.choices)
        items = [path for path in parameter.reads if path.startswith("[]")]
        parameter = replace(parameter, reads=tuple(path for path in parameter.reads if path not in items))
        keys = [path for path in parameter.reads if "[" in path]
        annotated = next((name for name in self.target.batches if _names(parameter.annotation, name)), "")
        if own:
            return self._object(parameter, "self", choices)
        if parameter.name == "self":  # a function that is put into a model's class
            return {"derived": "model"}
        if (rows := self._rows(parameter)) is not None:
            return rows
        if (keys and not _CONFIGURATION.fullmatch(parameter.name)) or annotated:
            return self._container(parameter, annotated, choices)
        settings = [path for path in parameter.reads if path.startswith(".")]
        unnamed = not parameter.annotation and not self._is_object(parameter.name)
        if (settings and (unnamed or self._is_setting(parameter.name))) or _CONFIGURATION.fullmatch(parameter.name):
            return self._object(parameter, self._class(parameter.annotation), choices)
        spec = self.value(parameter.name, parameter.annotation, choices.get("", ()), not parameter.required)
        if spec is None and settings:
            spec = self._object(parameter, self._class(parameter.annotation), choices)
        if spec is None and len(items) > items.count("[]"):
            return self._items(parameter.name, items)
        plain = re.fullmatch(r"([Ll]ist(\[.*([Dd]ict|Any).*\])?)?", parameter.annotation)
        if spec is None and plain and _ITEMS.fullmatch(parameter.name):
            self._need_mask()
            return {"rows": "", "fields": self._usual(), "nested": False, "one": False}
        if spec is None and _BATCH.fullmatch(parameter.name):
            return self._batch(parameter.annotation)
        if spec is None and parameter.required:
            return self._unknown(parameter.name)
        return spec

    def filling(self, parameters: Sequence[Parameter]) -> dict[str, Any]:
        """Say how the arguments of a method that fills an object are made; empty where one of them is not known."""
        lacked = len(self.missing)
        specs = {each.name: spec for each in parameters if (spec := self.parameter(each, own=False)) is not None}
        complete = len(self.missing) == lacked
        del self.missing[lacked:]
        return specs if complete else {}

    def _batch(self, annotation: str) -> dict[str, Any] | None:
        """Make a batch that is handed on, with what every batch has; None where its annotation says that it is
        another."""
        plain = re.match(r"[dD]ict(\[str, (Any|torch.Tensor|Tensor)\])?$", annotation)
        if not plain and annotation not in ("", "Any"):
            return self._unknown(annotation)
        of = "" if plain else next(iter(self.target.batches.values()), "")
        return {"of": of, "fields": self._usual(), "meta": {}}

    def _usual(self) -> dict[str, Any]:
        """Make what every batch has, under the framework's own names too."""
        names = dict.fromkeys([*USUAL, *self.target.spellings])
        return {name: spec for name in names if (spec := self.value(name)) is not None}

    def _rows(self, parameter: Parameter) -> dict[str, Any] | None:
        """Make the rows of a batch as objects, or one, where an annotation or a name says that they are."""
        annotation = parameter.annotation
        classes = [name for name in self.target.rows if re.search(rf"\b{name}\b", annotation)]
        if not annotation and _ROWS.fullmatch(parameter.name):
            annotation, classes = "list", [*self.target.rows]
        if not classes:
            return None
        path, fields = self.target.rows[classes[0]]
        specs = {field: spec for field, term_name in fields.items() if (spec := self.value(term_name)) is not None}
        self._need_mask()
        form = "".join(re.findall(r"[Ll]ist|[Ss]equence|[Ii]terable", annotation)[:2]).lower()
        return {"rows": path, "fields": specs, "nested": len(form) > len("sequence"), "one": not form}

    def _items(self, name: str, reads: Sequence[str]) -> dict[str, Any]:
        """Give rows of which the body reads parts, one row after the other."""
        self._need_mask()
        parts = {match[1]: path for path in reads if (match := re.match(r"\[\][.\[]([\w/-]+)", path))}
        specs = {part: self.value(part) or self._unknown(f"{name}{path}") for part, path in parts.items()}
        return {"rows": "", "fields": specs, "nested": False, "one": False}

    def _unknown(self, name: str) -> dict[str, Any]:
        self.missing.append(name)
        return {"unknown": name}

    def _class(self, annotation: str) -> str:
        """Give the dotted path of a class that an annotation names, where it is one of the module's own names."""
        name = re.fullmatch(r"(?:Optional\[)?'?(\w+)'?\]?(?: \| None)?", annotation)
        plain = name is None or name[1] in ("Any", "dict", "Dict", "DictConfig", "Namespace", "object", "")
        return "" if plain or name is None else f"{self.package}.{name[1]}"

    def _object(self, parameter: Parameter, of: str, choices: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
        """Make a configuration or an instance, with what is read of it."""
        tree: dict[str, Any] = {}
        for path in parameter.reads:
            steps = re.findall(r"[.\[]([^.\[\]?]+)\]?(\??)", path)
            names = [step for step, _ in steps]
            last = next((place for place, name in enumerate(names) if self._is_object(name)), len(names) - 1)
            if (
                last == len(names) - 1
                and any(other != path and other.startswith(path.rstrip("?")) for other in parameter.reads)
                and not self._is_object(names[-1])
            ):
                continue  # a part of it is read
            steps = steps[: last + 1]
            spec = self.value(steps[-1][0], "bool" if path in parameter.flags else "", choices.get(path, ()))
            if spec is None:
                if any(default for _, default in steps):
                    continue
                spec = self._unknown(f"{parameter.name}{path}")
            _put(tree, [step for step, _ in steps], spec)
        if parameter.required or tree:
            whole = bool(_WHOLE_CONFIGURATION.fullmatch(parameter.name))
            return {"of": of, "attributes": _objects(tree), "whole": whole}
        return None

    def _is_setting(self, name: str) -> bool:
        """Say whether a name means a number or a text, of which nothing can be read."""
        term = meaning(name, self.target.spellings)
        return term is not None and not term.form and not term.derived

    def _is_object(self, name: str) -> bool:
        term = meaning(name, self.target.spellings)
        return term is not None and term.derived in OBJECTS

    def _container(
        self, parameter: Parameter, annotated: str, choices: Mapping[str, Sequence[str]]
    ) -> dict[str, Any] | None:
        """Make a batch, with the columns that are read."""
        if not parameter.required and not annotated and not parameter.reads:
            return None
        wrapped = any(path.startswith((".batch[", ".non_tensor_batch[")) for path in parameter.reads)
        of = annotated or (next(iter(self.target.batches), "") if wrapped else "")
        fields: dict[str, Any] = {}
        meta: dict[str, Any] = {}
        for path in parameter.reads:
            match = re.fullmatch(r"(\.\w+)?\[([\w/.-]+)\](\??)(.*)", path)
            if match is None:
                continue
            spec = self.value(match[2])
            if spec is None and match[4].startswith("["):
                below = tuple(other.partition(f"[{match[2]}]")[2].lstrip("?") for other in parameter.reads)
                inner = replace(parameter, name=match[2], required=True, reads=tuple(filter(None, below)))
                spec = self._object(inner, "", choices)
            if spec is None and not match[3]:
                spec = self._unknown(f"{parameter.name}{path}")
            if spec is not None:
                (meta if match[1] in (".meta_info", ".metadata") else fields)[match[2]] = spec
        if annotated:  # what it hands the batch on to may read what every batch has
            fields = self._usual() | fields
            meta = {name: spec for name in BESIDE if (spec := self.value(name)) is not None} | meta
        elif not fields and not meta:
            return self._unknown(parameter.name)
        return {"of": self.target.batches.get(of, ""), "fields": fields, "meta": meta}


def _names(annotation: str, name: str) -> bool:
    return re.fullmatch(rf"(Optional\[)?'?(\w+\.)*{re.escape(name)}'?\]?( \| None)?", annotation) is not None


def _put(tree: dict[str, Any], steps: Sequence[str], spec: dict[str, Any]) -> None:
    for step in steps[:-1]:
        tree = tree.setdefault(step, {})
    tree[steps[-1]] = spec


def _objects(tree: Mapping[str, Any]) -> dict[str, Any]:
    leaf = ("input", "derived", "fields", "attributes", "unknown")
    return {
        name: part
        if any(key in part for key in leaf)
        else {"of": "", "attributes": _objects(part), "whole": bool(_WHOLE_CONFIGURATION.fullmatch(name))}
        for name, part in tree.items()
    }


@dataclass(frozen=True)
class Interface:
    """A function, read with the lexicon.

    :ivar missing: what it takes and the lexicon does not know, each once. A framework's own constructor or defaults may
        know it; where they do not, a call that asks it anything is refused.
    :ivar odd: why it is not called.
    :ivar how: how its arguments are made of the inputs.
    """

    inputs: tuple[Input, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    odd: str = ""


def understood(target: Target, path: str, signature: Signature, is_method: bool) -> Interface:
    """Read a function with the lexicon."""
    if signature.odd:
        return Interface(odd=signature.odd)
    parameters, odd = signature.parameters, ("cls",) if is_method else ()
    if parameters and parameters[0].name in odd:  # it comes with its class
        parameters = parameters[1:]
    own = parameters[0].name if is_method and parameters and parameters[0].name == "self" else ""
    reading = _Reading(target, path.rpartition(".")[0].rpartition(".")[0] if is_method else path.rpartition(".")[0])
    specs: dict[str, Any] = {}
    for parameter in parameters:
        if is_method and parameter.name == "ctx" and path.endswith((".forward", ".backward")):
            specs["ctx"] = {"of": "context", "attributes": {}}
        elif (spec := reading.parameter(parameter, parameter.name == own)) is not None:
            specs[parameter.name] = spec
    row = path.rpartition(".")[0].rpartition(".")[2]
    if own and row in target.rows:  # a row is whole, and not what its constructor makes of nothing
        specs[own] = reading._rows(Parameter(own, row, True)) or specs[own]
    if own:
        built = ((each.name, reading.parameter(each, own=False)) for each in signature.built)
        specs[own]["built"] = {name: spec for name, spec in built if spec is not None}
        specs[own]["fills"] = {
            name: arguments for name, filling in signature.fills if (arguments := reading.filling(filling))
        }
    needs = [spec for spec in _leaves(specs) if spec.get("derived") not in (None, "group", "vocabulary", *OBJECTS)]
    if needs and "response_mask" not in reading.inputs:
        reading._need_mask()
    whole = any(map(_OF_RESPONSES.fullmatch, reading.names)) and reading.names & {"attention_mask", "input_ids"}
    how = {"own": own, "prompt": 2 if whole else 0, "parameters": specs, "gradients": reading.gradients}
    how |= {"defaults": list(target.defaults), "layout": "", "filled": False}
    return Interface(tuple(reading.inputs.values()), how, tuple(dict.fromkeys(reading.missing)))


def _leaves(parameters: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for spec in parameters.values():
        yield spec
        yield from (leaf for filling in spec.get("fills", {}).values() for leaf in _leaves(filling))
        for part in ("fields", "meta", "attributes", "built"):
            yield from _leaves(spec.get(part, {}))


def subject_of(path: str, function: Interface, adapter: str, laws: Mapping[str, Law]) -> Subject:
    """Give the boundary of a search, before it is known what it answers."""
    names = {item.name for item in function.inputs}
    inputs = (*function.inputs, replace(AUTOMATIC.inputs[0], default=dict(function.how)))
    contract = replace(
        AUTOMATIC,
        inputs=inputs,
        mask="response_mask" if "response_mask" in names else "",
        group="group" if "group" in names else "",
    )
    return Subject(Binding(path, AUTOMATIC.name), contract, tuple(laws[name] for name in LAWS), adapter, path)


def merged(one: Subject, other: Subject) -> Subject | None:
    """Merge a function as two revisions read it, in one world: what either reads is there. No law is asked of it,
    since it does not take the same at both. None where it takes other parameters, or means other things by them.
    """
    hows = [dict(subject.contract.inputs[-1].default) for subject in (one, other)]
    parameters = _joined(hows[0]["parameters"], hows[1]["parameters"])
    if parameters is None or hows[0]["parameters"].keys() != hows[1]["parameters"].keys():
        return None
    inputs = {item.name: item for item in (*other.contract.inputs[:-1], *one.contract.inputs[:-1])}
    if any(
        (item.kind, item.domain) != (inputs[item.name].kind, inputs[item.name].domain)
        for item in other.contract.inputs[:-1]
    ):
        return None
    gradients = list(dict.fromkeys([*hows[0]["gradients"], *hows[1]["gradients"]]))
    how = {**hows[0], "parameters": parameters, "gradients": gradients, "prompt": max(each["prompt"] for each in hows)}
    both = (*inputs.values(), replace(one.contract.inputs[-1], default=how))
    mask, group = one.contract.mask or other.contract.mask, one.contract.group or other.contract.group
    return replace(one, contract=replace(one.contract, inputs=both, mask=mask, group=group), laws=())


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """Give what two readings of a part say together; None where they say different things."""
    joint = {**other, **one}
    for name in one.keys() & other.keys():
        mine, theirs = one[name], other[name]
        if mine == theirs:
            continue
        if not (isinstance(mine, Mapping) and isinstance(theirs, Mapping)):
            return None
        if "unknown" in mine or "unknown" in theirs:
            joint[name] = theirs if "unknown" in mine else mine
        elif (both := _joined(mine, theirs)) is None:
            return None
        else:
            joint[name] = both
    return joint


def laid_out(subject: Subject, *layouts: str) -> Iterator[Subject]:
    """Give the subject with other layouts of its tensors of rows and tokens, where it takes such."""
    several = any(item.shape[:2] == TOKENS for item in subject.contract.inputs)
    return (_called_so(subject, layout=layout) for layout in layouts if several)


def filled(subject: Subject) -> Subject | None:
    """Give the subject, called on an object that others of its methods have filled, and that has what its
    constructor says that it will have; None where it is no method."""
    return _called_so(subject, filled=True) if subject.contract.inputs[-1].default["own"] else None


def _called_so(subject: Subject, **how: Any) -> Subject:
    *inputs, last = subject.contract.inputs
    last = replace(last, default={**last.default, **how})
    return replace(subject, contract=replace(subject.contract, inputs=(*inputs, last)))


def with_keys(subject: Subject, answers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Subject:
    """Give the subject, whose contract says what of an answer stands on rows and on tokens: what had their number each
    time.

    :param answers: scenarios, with what was observed of them.
    """
    dimensions_of: dict[str, tuple[str, ...]] = {}
    for inputs, observation in answers:
        _sizes(subject, inputs)
        for key, value in observation.items():
            shape = value.shape if isinstance(value, Tensor) else ()
            if len(dimensions_of.setdefault(key, ("",) * len(shape))) != len(shape):
                dimensions_of[key] = ()
    for key, dimensions in dimensions_of.items():
        names = list(dimensions)
        for place in range(len(dimensions)):
            for name in ("batch", "tokens"):
                fits = [
                    _sizes(subject, inputs).get(name) == observation[key].shape[place]
                    for inputs, observation in answers
                    if isinstance(observation.get(key), Tensor) and len(observation[key].shape) == len(dimensions)
                ]
                if fits and all(fits) and name not in names:
                    names[place] = name
                    break
        dimensions_of[key] = tuple(name or f"other{place}" for place, name in enumerate(names))
    observes = tuple(
        Observed(key, "", shape, "gradient" if key.startswith("gradient.") else "output")
        for key, shape in dimensions_of.items()
    )
    return replace(subject, contract=replace(subject.contract, observes=observes))


def _sizes(subject: Subject, inputs: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for item in subject.contract.inputs:
        value = inputs.get(item.name)
        if isinstance(value, Tensor) and len(value.shape) == len(item.shape):
            sizes.update(zip(item.shape, value.shape))
        elif item.kind == "labels" and isinstance(value, list):
            sizes["batch"] = len(value)
    return sizes
