"""Write proposals as an adapter file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.targets import Target
from sentinel.tools.adapt.proposals import NearMiss, Proposal

_HEAD = '''\
"""A first adapter for {name}, written by `sentinel adapt`.

It proposes; you decide. Answer each question in the comments, compare the binding with the code, then delete the
comment. `sentinel adapt SOURCE --check {file}` runs the laws again.
"""

from __future__ import annotations

{imports}
'''


def adapter_text(
    target: Target,
    proposals: Sequence[Proposal],
    missed: Sequence[NearMiss],
    contracts: Mapping[str, Contract],
    file: str,
) -> str:
    """Return the text of an adapter with these proposals."""
    methods = [each for each in proposals if each.signature.owner]
    bindings = "\n".join(_binding(each, contracts[each.contract]) for each in proposals)
    near = [f"# {each.signature.path} ({each.contract}): {each.reason}" for each in missed]
    facts = [f"name={target.name!r},", f"repository={target.repository!r},", f"roots={_roots(target)},"]
    facts += [f"pypi={target.pypi!r},"] if target.pypi else []
    facts += [f"preload={target.preload!r},"] if target.preload else []
    facts += [f"stub_versions={dict(target.stub_versions)!r},"] if target.stub_versions else []
    body = "\n".join(map(_skeleton, methods))
    body += "\nTARGET = Target(\n" + textwrap.indent("\n".join(facts), "    ")
    body += "\n    bindings=(\n" + textwrap.indent(bindings, "        ") + "\n    ),\n)\n"
    if near:
        comments = "\n".join(line for each in near for line in textwrap.wrap(each, 118, subsequent_indent="#     "))
        body += f"\n# Functions that nearly fit a contract. Bind them with a function that translates (docs/adapters.md).\n{comments}\n"
    return _HEAD.format(name=target.name, file=file, imports=_imports(body)) + body.replace("'", '"').replace(
        '\\"', "'"
    )


def _imports(body: str) -> str:
    names = [name for name in ("Binding", "Dialect", "PackageRoot", "Target") if f"{name}(" in body]
    families = [
        name
        for name in ("group_advantage", "masked_statistic", "normalised_rewards", "policy_loss")
        if f" {name}(" in body
    ]
    lines = ["from collections.abc import Mapping"] if "Mapping[" in body else []
    lines += ["from functools import partial"] if "partial(" in body else []
    lines += ["from typing import Any"] if "Any" in body else []
    lines += [""] if lines else []
    lines += [f"from sentinel import {', '.join(names)}"]
    lines += ["from sentinel.binding import kit"] if "kit." in body else []
    lines += [f"from sentinel.binding.families import {', '.join(families)}"] if families else []
    return "\n".join(lines)


def _roots(target: Target) -> str:
    roots = (
        f"PackageRoot({root.path!r}{f', {root.import_root!r}' if root.import_root else ''})" for root in target.roots
    )
    return f"({', '.join(roots)},)"


def _binding(proposal: Proposal, contract: Contract) -> str:
    lines = _comments(proposal)
    fields: list[tuple[str, Any]] = []
    fixed, accepts = dict(proposal.fixed), dict(proposal.accepts)
    knobs = [
        item.name for item in contract.inputs if item.knob and (item.name in proposal.takes or item.name in accepts)
    ]
    lacking = contract.lacking(*knobs)
    call = _call(proposal)
    head = _family(proposal, knobs, fixed, accepts, call)
    if head:
        for name, value in lacking.items():  # the family fixes it
            if fixed.get(name, value) == value:
                fixed.pop(name, None)
    else:
        head = [f"Binding({proposal.path!r}", repr(proposal.contract), *([f"call={call}"] if call else [])]
    fields += [
        ("formerly", proposal.formerly),
        ("arguments", _arguments(proposal)),
        ("constants", dict(proposal.constants)),
    ]
    fields += [("outputs", _outputs(proposal)), ("fixed", fixed), ("accepts", accepts), ("dtypes", proposal.dtypes)]
    parts = [*head, *(f"{name}={value!r}" for name, value in fields if value)]
    return "\n".join([*lines, f"{', '.join(parts)}),"])


def _comments(proposal: Proposal) -> list[str]:
    return [
        line
        for each in proposal.questions
        for line in textwrap.wrap(each[0].upper() + each[1:], 108, initial_indent="# ", subsequent_indent="# ")
    ]


def _family(
    proposal: Proposal, knobs: Sequence[str], fixed: dict[str, Any], accepts: dict[str, Any], call: str
) -> list[str]:
    """Return the first arguments of a family's function, and remove what it fixes; empty if there is no family."""
    if proposal.contract == "policy_loss":
        counts = ("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")
        parts = [f"policy_loss({proposal.path!r}", call or "None", repr(fixed.pop("algorithm")), repr(tuple(knobs))]
        if "loss_agg_mode" in fixed and all(name in fixed and fixed[name] is None for name in counts):
            parts.append(f"mode={fixed.pop('loss_agg_mode')!r}")
            for name in counts:
                del fixed[name]
        if accepts.get("importance_weights") == (None,):
            del accepts["importance_weights"]
        return parts
    if proposal.contract == "group_advantage":
        return [f"group_advantage({proposal.path!r}", call or "None", repr(fixed.pop("estimator")), repr(tuple(knobs))]
    if proposal.contract == "masked_statistics" and set(proposal.options) <= {"says"} and not proposal.signature.owner:
        return [f"masked_statistic({proposal.path!r}", repr(fixed.pop("statistic")), *map(repr, knobs)]
    return []


def _arguments(proposal: Proposal) -> dict[str, tuple[str, ...]]:
    names = {name: (parameter, *proposal.earlier.get(name, ())) for name, parameter in proposal.arguments.items()}
    return names | {name: (name, *then) for name, then in proposal.earlier.items() if name not in names}


def _outputs(proposal: Proposal) -> tuple[str, ...]:
    """Return the outputs in the order of the result; empty if the call reads them or a family declares them."""
    if "reads=" in _call(proposal) or proposal.contract == "masked_statistics" and not proposal.signature.owner:
        return ()
    places = sorted(proposal.reads, key=lambda name: proposal.reads[name] or 0)
    return () if proposal.contract == "group_advantage" and len(places) > 1 else tuple(places)


def _in_order(reads: Mapping[str, Any]) -> bool:
    return list(reads.values()) == [()] or sorted(map(str, reads.values())) == list(map(str, range(len(reads))))


def _call(proposal: Proposal) -> str:
    if proposal.signature.owner:
        return f"_{proposal.signature.name.strip('_')}"
    options = [f"{name}={_text(value)}" for name, value in proposal.options.items() if name != "one_clip"]
    if not _in_order(proposal.reads):
        options.append(f"reads={dict(proposal.reads)!r}")
    return f"partial(kit.call_with, {', '.join(options)})" if options else ""


def _text(value: Any) -> str:
    return repr(value).replace("'AXIS'", "kit.AXIS")


def _skeleton(proposal: Proposal) -> str:
    """Return a function that calls a method on an object with the attributes that the method reads."""
    name = proposal.signature.name.strip("_")
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, value in proposal.attributes.items():
        first, _, rest = path.partition(".")
        groups.setdefault(first, []).append((rest, value))
    lines = [f"{first}={_stand_in(parts)}," for first, parts in groups.items()]
    takes = ", ".join(map(repr, proposal.takes))
    reads = "" if _in_order(proposal.reads) else f", reads={dict(proposal.reads)!r}"
    options = "".join(f", {key}={_text(value)}" for key, value in proposal.options.items() if key != "one_clip")
    static = "staticmethod" in proposal.signature.decorators
    if static:
        return f'''
def _{name}(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call {proposal.signature.owner}.{proposal.signature.name}, a static method."""
    return kit.call_with(boundary, inputs, takes=({takes},){reads}{options})
'''
    return f'''
def _{name}(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call {proposal.signature.owner}.{proposal.signature.name} on an object that has the attributes which it reads."""
    own = kit.make_unbuilt(
        boundary.owner,
{textwrap.indent(chr(10).join(lines), " " * 8)}
    )
    return kit.call_with(boundary, {{**inputs, "self": own}}, leading=("self",), takes=({takes},){reads}{options})
'''


def _stand_in(parts: Iterable[tuple[str, str]]) -> str:
    pairs = list(parts)
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][1]
    inner: dict[str, list[tuple[str, str]]] = {}
    for path, value in pairs:
        first, _, rest = path.partition(".")
        if first:
            inner.setdefault(first, []).append((rest, value))
    return f"kit.bookkeeping({', '.join(f'{name}={_stand_in(each)}' for name, each in inner.items())})"
