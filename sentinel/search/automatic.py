"""Bind a function that no adapter names: where the lexicon knows all that it takes, it is called with that.

Evidence about a parameter comes in this order: what the body reads of it, its annotation, its name. What is not known
is not guessed; it is the lexicon's backlog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.contracts.automatic import AUTOMATIC
from sentinel.contracts.contract import REQUIRED, TOKENS, Input, Observed
from sentinel.deciding.law_session import Subject
from sentinel.laws.law import Law
from sentinel.search.lexicon import OBJECTS, USUAL, Term, meaning
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
    (r"(Optional\[)?(torch\.)?(Long|Float|Bool|Int)?Tensor\]?( \| None)?", "tensor"),
    (r"(Optional\[)?([Ll]ist|Sequence|Iterable|tuple|Tuple)\[(Optional\[)?(torch\.)?(Long|Float)?Tensor.*", "tensors"),
    (r"(Optional\[)?([Ll]ist|Sequence|Iterable)(\[.*(int|float|bool|str|Any|Hashable).*)?(\])?( \| None)?", "list"),
    (r"(Optional\[)?(np|numpy)\.(nd)?array.*", "array"),
)
_SCALAR = re.compile(
    r"(Optional\[)?(int|float|bool|str|Any|None|dict|Dict|[Ll]ist\[(dict|Dict|Message)).*|.*Literal\[.*|"
)
_CONFIGURATION = re.compile(r"(\w+_)?(config|cfg|args|conf|hps|arguments|options|gconfig|params)")

#: Names that speak of the response alone, in a batch whose other columns have the prompt, too.
_OF_RESPONSES = re.compile(r"response(s|_mask|_ids|_length|_len)?|prompts?|prompt_length")


@dataclass
class _Reading:
    """What is known of a function so far.

    :ivar missing: what the lexicon does not know, as the code names it.
    """

    target: Target
    package: str
    inputs: dict[str, Input] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    # -- one value -----------------------------------------------------------------------------------------------------

    def value(self, name: str, annotation: str = "", choices: Sequence[str] = ()) -> dict[str, Any] | None:
        """How a parameter, key or attribute of a name is made; None where that is not known."""
        self.names.add(name)
        annotation = "" if annotation in ("Any", "object") else annotation
        literal = re.search(r"Literal\[(.*?)\]", annotation)
        if literal is not None and not choices:
            choices = [part.strip().strip("'\"") for part in literal[1].split(",")]
        if choices:
            return self._scalar(name, tuple(choices))
        if re.fullmatch(r"bool|Optional\[bool\]|bool \| None", annotation):
            return self._scalar(name, (False, True))
        term = meaning(name, self.target.spellings)
        if term is None:
            return None
        if not term.form:
            fits = term.derived in OBJECTS or _SCALAR.fullmatch(annotation)
            return self._of_scalar(name, term, annotation) if fits else None
        form = next((form for pattern, form in _FORMS if re.fullmatch(pattern, annotation)), "")
        if annotation and not form:
            return None
        return self._of_many(name, term, form or term.form)

    def _scalar(self, name: str, choices: tuple[Any, ...]) -> dict[str, Any]:
        name = f"{name}_" if name in ("how", "group") else name
        self.inputs.setdefault(name, Input(name, "any", "", default=choices[0], choices=choices))
        return {"input": name}

    def _of_scalar(self, name: str, term: Term, annotation: str) -> dict[str, Any]:
        if term.derived:
            if term.derived in ("rows", "tokens", "valid"):
                self._need_mask()
            return {"derived": term.derived}
        choices = term.input.choices
        if re.match(r"(Optional\[)?[Ll]ist\[str", annotation):
            choices = tuple([choice, choices[0]] for choice in choices)
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
        """How an argument is made; None where it is left out, or not known."""
        known = dict(parameter.choices)
        keys = [path for path in parameter.reads if "[" in path]
        annotated = next((name for name in self.target.batches if _names(parameter.annotation, name)), "")
        if own:
            return self._object(parameter, "self", known)
        if (keys and not _CONFIGURATION.fullmatch(parameter.name)) or annotated:
            return self._container(parameter, annotated)
        settings = [path for path in parameter.reads if path.startswith(".")]
        if (settings and not parameter.annotation) or _CONFIGURATION.fullmatch(parameter.name):
            return self._object(parameter, self._class(parameter.annotation), known)
        found = self.value(parameter.name, parameter.annotation, known.get("", ()))
        if found is None and settings and not parameter.whole:
            found = self._object(parameter, self._class(parameter.annotation), known)
        if found is None and parameter.required:
            self.missing.append(parameter.name)
        return found

    def _class(self, annotation: str) -> str:
        """The dotted path of a class that an annotation names, where it is one of the module's own names."""
        name = re.fullmatch(r"(?:Optional\[)?'?(\w+)'?\]?(?: \| None)?", annotation)
        plain = name is None or name[1] in ("Any", "dict", "Dict", "DictConfig", "Namespace", "object", "")
        return "" if plain or name is None else f"{self.package}.{name[1]}"

    def _object(self, parameter: Parameter, of: str, known: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
        """A configuration or an instance, with what is read of it."""
        tree: dict[str, Any] = {}
        for path in parameter.reads:
            steps = re.findall(r"[.\[]([^.\[\]?]+)\]?(\??)", path)
            names = [step for step, _ in steps]
            made = next((place for place, name in enumerate(names) if self._is_object(name)), len(names) - 1)
            if (
                made == len(names) - 1
                and any(_is_below(other, path) for other in parameter.reads)
                and not self._is_object(names[-1])
            ):
                continue  # a part of it is read
            steps = steps[: made + 1]
            found = self.value(steps[-1][0], "bool" if path in parameter.flags else "", known.get(path, ()))
            if found is None:
                if not any(default for _, default in steps) and of in ("", "self"):
                    self.missing.append(f"{parameter.name}{path}")
                continue
            _put(tree, [step for step, _ in steps], found)
        if parameter.required or tree:
            return {"of": of, "attributes": _objects(tree)}
        return None

    def _is_object(self, name: str) -> bool:
        term = meaning(name, self.target.spellings)
        return term is not None and term.derived in OBJECTS

    def _container(self, parameter: Parameter, annotated: str) -> dict[str, Any] | None:
        """A batch, with the columns that are read."""
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
            found = self.value(match[2])
            if found is None and not match[3]:
                self.missing.append(f"{parameter.name}{path}")
            elif found is not None:
                (meta if match[1] == ".meta_info" else fields)[match[2]] = found
        if annotated:  # what it hands the batch on to may read what every batch has
            fields = {name: made for name in USUAL if (made := self.value(name)) is not None} | fields
        elif not fields and not meta:
            self.missing.append(parameter.name)
        return {"of": self.target.batches.get(of, ""), "fields": fields, "meta": meta}


def _names(annotation: str, name: str) -> bool:
    return re.fullmatch(rf"(Optional\[)?'?(\w+\.)*{re.escape(name)}'?\]?( \| None)?", annotation) is not None


def _is_below(other: str, path: str) -> bool:
    return other != path and other.startswith(path.rstrip("?"))


def _put(tree: dict[str, Any], steps: Sequence[str], found: dict[str, Any]) -> None:
    for step in steps[:-1]:
        tree = tree.setdefault(step, {})
    tree[steps[-1]] = found


def _objects(tree: Mapping[str, Any]) -> dict[str, Any]:
    leaf = ("input", "derived", "fields", "attributes")
    return {
        name: part if any(key in part for key in leaf) else {"of": "", "attributes": _objects(part)}
        for name, part in tree.items()
    }


@dataclass(frozen=True)
class Understood:
    """A function, read with the lexicon.

    :ivar missing: what it takes and nobody knows, each once; where there is any the function is not called.
    :ivar how: how its arguments are made of the inputs.
    """

    inputs: tuple[Input, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def understood(target: Target, path: str, signature: Signature, is_method: bool) -> Understood:
    """Read a function with the lexicon."""
    if signature.odd:
        return Understood(missing=(signature.odd,))
    first = signature.parameters[0].name if signature.parameters else ""
    own = first if is_method and first == "self" else ""
    if is_method and first in ("cls", "ctx"):
        return Understood(missing=(first,))
    reading = _Reading(target, path.rpartition(".")[0].rpartition(".")[0] if is_method else path.rpartition(".")[0])
    parameters = {}
    for parameter in signature.parameters:
        spec = reading.parameter(parameter, bool(own) and parameter.name == own)
        if spec is not None:
            parameters[parameter.name] = spec
    needs = [spec for spec in _leaves(parameters) if spec.get("derived") not in (None, "group", "vocabulary", *OBJECTS)]
    if needs and "response_mask" not in reading.inputs:
        reading._need_mask()
    if not reading.inputs and not reading.missing:
        reading.missing.append("anything to draw")
    whole = any(map(_OF_RESPONSES.fullmatch, reading.names)) and reading.names & {"attention_mask", "input_ids"}
    how = {"own": own, "prompt": 2 if whole else 0, "parameters": parameters, "gradients": reading.gradients}
    return Understood(tuple(reading.inputs.values()), how, tuple(dict.fromkeys(reading.missing)))


def _leaves(parameters: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for spec in parameters.values():
        yield spec
        for part in ("fields", "meta", "attributes"):
            yield from _leaves(spec.get(part, {}))


def subject_of(path: str, function: Understood, adapter: str, laws: Mapping[str, Law]) -> Subject:
    """The boundary of a search, before it is known what it answers."""
    named = {item.name for item in function.inputs}
    inputs = (*function.inputs, replace(AUTOMATIC.inputs[0], default=dict(function.how)))
    contract = replace(
        AUTOMATIC,
        inputs=inputs,
        mask="response_mask" if "response_mask" in named else "",
        group="group" if "group" in named else "",
    )
    return Subject(Binding(path, AUTOMATIC.name), contract, tuple(laws[name] for name in LAWS), adapter, path)


def with_keys(subject: Subject, answers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Subject:
    """The subject, whose contract says what of an answer stands on rows and on tokens: what had their number each time.

    :param answers: scenarios, with what was observed of them.
    """
    said: dict[str, tuple[str, ...]] = {}
    for inputs, observation in answers:
        _sizes(subject, inputs)
        for key, value in observation.items():
            shape = value.shape if isinstance(value, Tensor) else ()
            if len(said.setdefault(key, ("",) * len(shape))) != len(shape):
                said[key] = ()
    for key, dimensions in said.items():
        named = list(dimensions)
        for place in range(len(dimensions)):
            for name in ("batch", "tokens"):
                fits = [
                    _sizes(subject, inputs).get(name) == observation[key].shape[place]
                    for inputs, observation in answers
                    if isinstance(observation.get(key), Tensor) and len(observation[key].shape) == len(dimensions)
                ]
                if fits and all(fits) and name not in named:
                    named[place] = name
                    break
        said[key] = tuple(name or f"other{place}" for place, name in enumerate(named))
    observes = tuple(
        Observed(key, "", shape, "gradient" if key.startswith("gradient.") else "output") for key, shape in said.items()
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
