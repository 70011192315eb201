"""The commented template that ``sentinel recipe new`` writes."""

from __future__ import annotations

import json
from typing import Any

from sentinel.contracts.contract import REQUIRED, Contract, Input
from sentinel.errors import SentinelError
from sentinel.recipes.rules import BUG_ID

#: What a template leaves to its user; a recipe that still has it does not check.
TODO = "TODO"

_EXAMPLES: dict[str, str] = {
    "number": "0.5",
    "integer": "2",
    "boolean": "true",
    "string": "some-name",
    "labels": "[p, p, q]",
    "mapping": "{name: value}",
    "any": "{tensor: [1.0, 2.0], dtype: float32}",
}


def template(bug_id: str, target: str, boundary: str = TODO, contract: Contract | None = None) -> str:
    """Give a recipe with every key explained, and ``TODO`` where something must be said."""
    if not BUG_ID.fullmatch(bug_id):
        raise SentinelError(f"{bug_id!r} is no bug id: letters, digits and . _ -, beginning with a letter or digit")
    name = contract.name if contract else TODO
    return f"""\
# A recipe of Sentinel: one known bug, pinned. Data only; 'sentinel recipe check FILE' says what is not right yet.
# Editors that read JSON Schema: 'sentinel recipe schema' prints it.
recipe_version: 1
bug_id: {_word(bug_id)}  # the file is called {bug_id}.yaml
title: {TODO}  # the bug in one line
target: {_word(target)}
contract: {_word(name)}  # what the boundary means; contract: call takes any function or method
boundary: {_word(boundary)}  # dotted path of the real function or method

story: |
  {TODO}: what goes wrong, told to someone who has not seen the code.
# root_cause, fix, severity, effect, introduced_by, fixed_by: one string each, if you know
# reach: {{producer: file:line@commit, how: what it makes, shipped: file:line@commit}}  # how a real run gets there
# root: the root cause, where other recipes show the same one
# signal: what of the training signal is wrong: gradient, log_prob, advantage, reward, data, metric or setup
# affects:  # what trains wrongly because of it; each entry alone is enough, a sentence or settings by their full names
#   - {{when: {{algorithm.adv_estimator: [grpo, rloo], algorithm.rollout_rs: set}}, where: a masked token has a reward}}
# until: {{algorithm.rollout_rs: null}}  # settings that avoid it until it is fixed
# upstream: {{pull: 123, status: open, url: https://github.com/...}}

# The smallest inputs that show the bug. A bare list takes the contract's dtype,
# {{tensor: [[1.0, .nan]], dtype: float64}} another; {{full: 0.0, shape: [2, 3]}} repeats one value.
scenario:
{_inputs(contract)}
# Where the bug shows as a difference: each variant is the scenario with these inputs instead. Addresses below then read
# baseline.loss or difference(outlier, baseline).loss.
# variants:
#   baseline: {{rewards: [1.0, 1.0]}}
#   outlier: {{rewards: [1.0, 100.0]}}

# What the boundary gives with the bug and without, in full precision. Leave out both and a law decides.
{_keys(contract)}\
expected_unpatched:
  {_first_key(contract)}: {TODO}
expected_fixed:
  {_first_key(contract)}: {TODO}  # or {{value: 1.0, tolerance: {{relative: 1e-3}}}}, or {{value: 1.0, exact: true}}
# invariant: masked_values_have_no_influence  # instead of the two above; by default the contract's own law
# also_breaks: [padding_is_invisible]  # other laws that a search finds broken for the same reason
# requires: package.module.Config.field  # where this is absent, the version is not about this bug

pins:  # immutable refs only
  - ref: git:{TODO}  # all 40 hex digits of a commit with the bug
    expect: reproduced
  - ref: git:{TODO}  # all 40 hex digits of a commit with the fix
    expect: fixed
# - {{ref: pypi:1.2.3, expect: reproduced}}
watch: [git:main]  # decided only when asked for
"""


def _word(text: str) -> str:
    """Write a string as a YAML scalar: quoted where it would read as something else, or could end the line."""
    plain = text.replace("_", "a").replace(".", "a").replace("-", "a").isalnum() and text[0].isalpha()
    return text if plain and text.lower() not in ("null", "true", "false") else json.dumps(text)


def _inputs(contract: Contract | None) -> str:
    if contract is None:
        return f"  {TODO}: {TODO}  # 'sentinel list contracts' shows them, with a name its inputs\n"
    lines = []
    for item in contract.inputs:
        note = f"{item.meaning} ({described(item)})"
        if item.default is REQUIRED:
            lines.append(f"  {item.name}: {TODO}  # {note}, such as {_example(item)}")
        else:
            lines.append(f"  # {item.name}: {shown_default(item)}  # {note}")
    return "\n".join(" ".join(line.splitlines()) for line in lines).replace("\r", " ") + "\n"


def _example(item: Input) -> str:
    """Return a value that the input can take: its simplest choice, or a tensor of its shape and dtype."""
    if item.choices and item.choices[0] is not None:
        return json.dumps(item.choices[0], default=str)
    if item.kind != "tensor":
        return _EXAMPLES[item.kind]
    values: list[Any] = [1.0, 0.0] if item.domain == "mask" else [1.0, -50.0]
    if item.domain.startswith("log_"):  # a log-probability, or what is drawn close to one
        values = [-1.0, -0.5]
    if item.dtype == "bool" or item.dtype.startswith("int"):
        values = [True, False] if item.dtype == "bool" else [1, 0]
    for _ in item.shape[1:]:
        values = [values, values]
    return json.dumps(values if item.shape else values[0])


def described(item: Input) -> str:
    """Name an input's kind, dtype and shape: ``tensor of float32 [batch, tokens]``."""
    dtype = f" of {item.dtype}" if item.kind == "tensor" else ""
    return f"{item.kind}{dtype}{' [' + ', '.join(item.shape) + ']' if item.shape else ''}"


def shown_default(item: Input) -> str:
    """Show what an input is where a scenario leaves it out."""
    value: Any = item.default
    return "filled in from the others" if callable(value) else json.dumps(value, default=str)


def _keys(contract: Contract | None) -> str:
    if contract is None:
        return ""
    return "".join(f"#   {item.key}: {' '.join(item.meaning.split())}\n" for item in contract.observes)


def _first_key(contract: Contract | None) -> str:
    return contract.keys[0] if contract and contract.keys else TODO
