"""Create the commented template of a recipe, for ``sentinel recipe new``."""

from __future__ import annotations

import json
from typing import Any

from sentinel.contracts.contract import REQUIRED, Contract, Input
from sentinel.errors import SentinelError
from sentinel.recipes.rules import BUG_ID

#: The placeholder that the user must replace; `recipe check` rejects a recipe that still contains it.
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
    """Return a template of a recipe: a comment for every key, and ``TODO`` where the user must fill in a value."""
    if not BUG_ID.fullmatch(bug_id):
        raise SentinelError(
            f"{bug_id!r} is not a valid bug id: use letters, digits and . _ -, beginning with a letter or digit"
        )
    name = contract.name if contract else TODO
    return f"""\
# A recipe of Sentinel: one known bug, pinned. It is data only; 'sentinel recipe check FILE' lists the errors.
# 'sentinel recipe schema' prints a JSON Schema for editors.
recipe_version: 1
bug_id: {_quote_for_yaml(bug_id)}  # the file is called {bug_id}.yaml
title: {TODO}  # the bug in one line
target: {_quote_for_yaml(target)}
contract: {_quote_for_yaml(name)}  # the definition; contract: call accepts any function or method
boundary: {_quote_for_yaml(boundary)}  # dotted path of the real function or method

story: |
  {TODO}: what goes wrong, for a reader who has not seen the code.
# root_cause, fix, severity, effect, introduced_by, fixed_by: one string each, if you know
# reach: {{producer: file:line@commit, how: text, shipped: file:line@commit}}  # how a real run triggers it
# root: a name for the cause, if other recipes share it
# signal: the part of the training signal that is wrong: gradient, log_prob, advantage, reward, data, metric or setup
# affects:  # the affected runs; an entry is a sentence, or settings with their full names; one that applies is enough
#   - {{when: {{algorithm.adv_estimator: [grpo, rloo], algorithm.rollout_rs: set}}, where: a masked token has a reward}}
# until: {{algorithm.rollout_rs: null}}  # settings that avoid it until it is fixed
# upstream: {{pull: 123, status: open, url: https://github.com/...}}

# The smallest inputs that show the bug. A plain list gets the contract's dtype. To choose another, write
# {{tensor: [[1.0, .nan]], dtype: float64}}. {{full: 0.0, shape: [2, 3]}} repeats one value.
scenario:
{_inputs(contract)}
# If the bug is a difference between calls: each variant replaces these inputs of the scenario. The addresses below are
# then baseline.loss or difference(outlier, baseline).loss.
# variants:
#   baseline: {{rewards: [1.0, 1.0]}}
#   outlier: {{rewards: [1.0, 100.0]}}

# The result of the boundary with and without the bug, in full precision. Without both, a law decides.
{_keys(contract)}\
expected_unpatched:
  {_first_key(contract)}: {TODO}
expected_fixed:
  {_first_key(contract)}: {TODO}  # or {{value: 1.0, tolerance: {{relative: 1e-3}}}}, or {{value: 1.0, exact: true}}
# invariant: masked_values_have_no_influence  # instead of the two above; by default the contract's own law
# also_breaks: [padding_is_invisible]  # other laws that the same bug breaks
# requires: package.module.Config.field  # versions without this are unavailable

pins:  # immutable refs only
  - ref: git:{TODO}  # all 40 hex digits of a commit with the bug
    expect: reproduced
  - ref: git:{TODO}  # all 40 hex digits of a commit with the fix
    expect: fixed
# - {{ref: pypi:1.2.3, expect: reproduced}}
watch: [git:main]  # decided only on request
"""


def _quote_for_yaml(text: str) -> str:
    plain = text.replace("_", "a").replace(".", "a").replace("-", "a").isalnum() and text[0].isalpha()
    return text if plain and text.lower() not in ("null", "true", "false") else json.dumps(text)


def _inputs(contract: Contract | None) -> str:
    if contract is None:
        return f"  {TODO}: {TODO}  # 'sentinel list contracts NAME' lists the inputs\n"
    lines = []
    for item in contract.inputs:
        note = f"{item.meaning} ({describe_input(item)})"
        if item.default is REQUIRED:
            lines.append(f"  {item.name}: {TODO}  # {note}, such as {_example_value(item)}")
        else:
            lines.append(f"  # {item.name}: {shown_default(item)}  # {note}")
    return "\n".join(" ".join(line.splitlines()) for line in lines).replace("\r", " ") + "\n"


def _example_value(item: Input) -> str:
    if item.choices and item.choices[0] is not None:
        return json.dumps(item.choices[0], default=str)
    if item.kind != "tensor":
        return _EXAMPLES[item.kind]
    values: list[Any] = [1.0, 0.0] if item.domain == "mask" else [1.0, -50.0]
    if item.domain.startswith("log_"):  # a log-probability, or a value close to one
        values = [-1.0, -0.5]
    if item.dtype == "bool" or item.dtype.startswith("int"):
        values = [True, False] if item.dtype == "bool" else [1, 0]
    for _ in item.shape[1:]:
        values = [values, values]
    return json.dumps(values if item.shape else values[0])


def describe_input(item: Input) -> str:
    """Return kind, dtype and shape of an input as text, such as ``tensor of float32 [batch, tokens]``."""
    dtype = f" of {item.dtype}" if item.kind == "tensor" else ""
    return f"{item.kind}{dtype}{' [' + ', '.join(item.shape) + ']' if item.shape else ''}"


def shown_default(item: Input) -> str:
    """Format the default of an input as JSON. Return a phrase if the default is computed."""
    value: Any = item.default
    return "derived from the others" if callable(value) else json.dumps(value, default=str)


def _keys(contract: Contract | None) -> str:
    if contract is None:
        return ""
    return "".join(f"#   {item.key}: {' '.join(item.meaning.split())}\n" for item in contract.observes)


def _first_key(contract: Contract | None) -> str:
    return contract.keys[0] if contract and contract.keys else TODO
