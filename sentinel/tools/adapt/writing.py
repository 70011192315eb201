"""Write proposals as the file of an adapter."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.reports.escaping import visible
from sentinel.targets import PackageRoot, Target
from sentinel.tools.adapt.proposals import Code, NearMiss, Proposal

_HEAD = '''\
"""A first adapter for {name}, written by `sentinel adapt`.

It proposes; a person decides. Answer each question in the comments, compare the binding with the code, then delete the
comment. `sentinel adapt SOURCE --check {file}` tries the laws again.
"""

from __future__ import annotations

{imports}
'''
_WIDTH = 110


def adapter_text(
    target: Target,
    proposals: Sequence[Proposal],
    missed: Sequence[NearMiss],
    contracts: Mapping[str, Contract],
    file: str,
) -> str:
    """Return the text of an adapter file. Its bindings are the proposals; near misses are comments."""
    bindings = "\n".join(_binding(each, contracts[each.contract]) for each in proposals)
    facts: dict[str, Any] = {
        "name": target.name,
        "repository": target.repository,
        "roots": tuple(map(_root, target.roots)),
        "pypi": target.pypi,
        "preload": target.preload,
        "stub_versions": dict(target.stub_versions),
    }
    lines = [f"{name}={_text(value)}," for name, value in facts.items() if value or name == "repository"]
    body = "".join(_skeleton(each) for each in proposals if _has_skeleton(each)) + "\n\nTARGET = Target(\n"
    body += (
        textwrap.indent("\n".join([*lines, "bindings=(", textwrap.indent(bindings, "    "), "),"]), "    ") + "\n)\n"
    )
    if missed:
        near = (f"# {each.signature.path} ({each.contract}): {each.reason}" for each in missed)
        body += "\n# These functions nearly fit a contract. To bind one, write a `call` function: docs/adapters.md.\n"
        body += "".join(f"{line}\n" for each in near for line in textwrap.wrap(each, 118, subsequent_indent="#     "))
    return _HEAD.format(name=target.name, file=file, imports=_imports(body)) + body.removeprefix("\n")


def _imports(body: str) -> str:
    def named(*names: str) -> str:
        return ", ".join(name for name in names if f" {name}(" in body or f"({name}(" in body)

    families = named("group_advantage", "masked_statistic", "policy_loss")
    lines = ["from collections.abc import Mapping"] if "Mapping[" in body else []
    lines += ["from functools import partial"] if "partial(" in body else []
    lines += ["from typing import Any"] if "Any" in body else []
    lines += ["", f"from sentinel import {named('Binding', 'PackageRoot')}, Target"]
    lines += ["from sentinel.binding import kit"] if "kit." in body else []
    lines += [f"from sentinel.binding.families import {families}"] if families else []
    return "\n".join(lines).lstrip()


def _root(root: PackageRoot) -> Code:
    return Code(f"PackageRoot({', '.join(map(_text, filter(None, (root.path, root.import_root))))})")


def _binding(proposal: Proposal, contract: Contract) -> str:
    fixed, accepts = dict(proposal.fixed), dict(proposal.accepts)
    knobs = [
        item.name
        for item in contract.inputs
        if item.knob and (item.name in {*proposal.takes, *accepts} or f'inputs["{item.name}"]' in str(proposal.objects))
    ]
    call = _call(proposal)
    name, words = _family(proposal, knobs, fixed, accepts, call)
    outputs = () if name == "masked_statistic" else _outputs(proposal)
    if proposal.layout.each and name == "group_advantage":
        outputs = tuple(proposal.reads)
    if name != "Binding":
        for input, value in contract.lacking(*knobs).items():  # the family's function fixes these values itself
            if fixed.get(input, value) == value:
                fixed.pop(input, None)
    fields: dict[str, Any] = {
        "formerly": proposal.formerly,
        "arguments": _arguments(proposal),
        "constants": dict(proposal.constants),
        "outputs": outputs,
        "fixed": fixed,
        "accepts": accepts,
        "dtypes": proposal.dtypes,
    }
    parts = [_text(proposal.path), *words, *(f"{key}={_text(value)}" for key, value in fields.items() if value)]
    line = f"{name}({', '.join(parts)}),"
    if len(line) > _WIDTH:
        line = f"{name}(\n{textwrap.indent(chr(10).join(f'{part},' for part in parts), '    ')}\n),"
    comments = (
        textwrap.wrap(visible(each), _WIDTH - 2, initial_indent="# - ", subsequent_indent="#   ")
        for each in proposal.questions
    )
    return "\n".join([*(line for lines in comments for line in lines), line])


def _family(
    proposal: Proposal, knobs: Sequence[str], fixed: dict[str, Any], accepts: dict[str, Any], call: str
) -> tuple[str, list[str]]:
    """Return the name of the function that creates a binding, and the arguments that follow the boundary's path.

    It is a function of ``binding.families`` if there is one for the contract, otherwise ``Binding``. Settings that the
    family's function fixes itself are removed from ``fixed`` and ``accepts``.
    """
    own = tuple(knobs)
    if proposal.contract == "policy_loss":
        counts = ("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")
        words = [call or "None", _text(fixed.pop("algorithm")), _text(own)]
        if "loss_agg_mode" in fixed and all(name in fixed and fixed[name] is None for name in counts):
            words.append(f"mode={_text(fixed.pop('loss_agg_mode'))}")
            for name in counts:
                del fixed[name]
        if accepts.get("importance_weights") == (None,):
            del accepts["importance_weights"]
        return "policy_loss", words
    if proposal.contract == "group_advantage":
        return "group_advantage", [call or "None", _text(fixed.pop("estimator")), _text(own)]
    if (
        proposal.contract == "masked_statistics"
        and set(proposal.options) <= {"values_of"}
        and not proposal.signature.owner
    ):
        return "masked_statistic", [_text(fixed.pop("statistic")), *map(_text, own)]
    return "Binding", [_text(proposal.contract), *([f"call={call}"] if call else [])]


def _arguments(proposal: Proposal) -> dict[str, tuple[str, ...]]:
    names = {name: (parameter, *proposal.earlier.get(name, ())) for name, parameter in proposal.arguments.items()}
    return names | {name: (name, *then) for name, then in proposal.earlier.items() if name not in names}


def _outputs(proposal: Proposal) -> tuple[str, ...]:
    """Return the names of a returned tuple's elements in order, or ``()`` if the function returns something else."""
    return tuple(sorted(proposal.reads, key=lambda name: proposal.reads[name] or 0)) if _in_order(proposal) else ()


def _in_order(proposal: Proposal) -> bool:
    places = list(proposal.reads.values())
    return places == [()] or sorted(map(str, places)) == list(map(str, range(len(places))))


def _options(proposal: Proposal, *without: str) -> dict[str, Any]:
    options: dict[str, Any] = dict(proposal.options)
    if proposal.layout.each not in ("", "steps"):
        form = {} if proposal.layout.form == "tensor" else {"form": proposal.layout.form}
        options = {"each": proposal.layout.each, **form, "reads": dict(proposal.reads), **options}
    elif not _in_order(proposal) and not proposal.layout.each:
        options["reads"] = dict(proposal.reads)
    return {name: value for name, value in options.items() if name not in without}


def _has_skeleton(proposal: Proposal) -> bool:
    return bool(proposal.signature.owner or proposal.objects)


def _function(proposal: Proposal) -> str:
    """Return the name of the function in the adapter that calls this boundary. No other function has this name."""
    return re.sub(r"\W+", "_", f"_{proposal.path.removeprefix(proposal.signature.module.partition('.')[0])}").lower()


def _caller(proposal: Proposal) -> str:
    return {"": "kit.call_with", "steps": "kit.call_rates"}.get(proposal.layout.each, "kit.call_each")


def _call(proposal: Proposal) -> str:
    if _has_skeleton(proposal):
        return _function(proposal)
    options = ", ".join(f"{name}={_text(value)}" for name, value in _options(proposal).items())
    return f"partial({_caller(proposal)}, {options})" if options else ""


def _text(value: Any) -> str:
    """Return a value as Python code with double-quoted strings."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value) if value.isascii() else repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' * (len(value) == 1)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(name)}: {_text(each)}' for name, each in value.items())}}}"
    return repr(value)


def _skeleton(proposal: Proposal) -> str:
    """Return the code of a function that calls a boundary. Stand-ins replace parameters that are objects.

    The stand-ins have the attributes and keys that the boundary reads.
    """
    signature, options = proposal.signature, {"takes": proposal.takes, **_options(proposal, "takes")}
    said = [f"{name}={_text(value)}" for name, value in options.items()]
    what = f"{signature.owner}.{signature.name}".lstrip(".")
    static, own = "staticmethod" in signature.decorators, "inputs"
    lines = ""
    first = "" if static or not signature.owner else signature.parameters[0].name
    for name, paths in proposal.objects.items():
        if name != first:
            said.append(f"{name}={_stand_in(paths.items())}")
    if first:
        groups: dict[str, list[tuple[str, str]]] = {}
        for path, value in proposal.objects.get(first, {}).items():
            head, _, rest = path.partition(".")
            groups.setdefault(head, []).append((rest, value))
        inner = "".join(f"        {head}={_stand_in(parts)},\n" for head, parts in groups.items())
        lines = f"    own = kit.make_unbuilt(\n        boundary.owner,\n{inner}    )\n"
        leading = _text((first, *options.get("leading", ())))
        said = [f"leading={leading}", *(each for each in said if not each.startswith("leading="))]
        own = f'{{**inputs, "{first}": own}}'
    text = f"Call {what} with the attributes that it reads." if proposal.objects else f"Call {what}."
    call = f"    return {_caller(proposal)}(\n        boundary,\n        {own},\n"
    call += "".join(f"        {each},\n" for each in said) + "    )\n"
    head = f"\n\ndef {_function(proposal)}(boundary: Any, inputs: Mapping[str, Any]) -> Any:\n"
    return f'{head}    """{text}"""\n{lines}{call}'


def _stand_in(parts: Iterable[tuple[str, str]]) -> str:
    """Return the code that creates a stand-in.

    :param parts: (path that is read from the object, code of its value) pairs. If there is only one path and it is
        empty, the value itself is the stand-in.
    """
    pairs = list(parts)
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][1]
    keys = [f"{path[1:-1]}: {value}" for path, value in pairs if path.startswith("[")]
    if len(keys) == len(pairs):
        return f"{{{', '.join(keys)}}}"
    inner: dict[str, list[tuple[str, str]]] = {}
    for path, value in pairs:
        first, _, rest = path.partition(".")
        if first and not first.startswith("["):
            inner.setdefault(first, []).append((rest, value))
    return f"kit.bookkeeping({', '.join(f'{name}={_stand_in(each)}' for name, each in inner.items())})"
