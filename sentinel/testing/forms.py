"""Adapt contracts to users' functions, which may take one number per response instead of one per token, and whose loss
may have additional terms, such as an entropy bonus.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import aggregate, replaced
from sentinel.contracts.contract import REQUIRED, TOKENS, Choose, Contract, DoesNotApply, Input, drawn, knob, per_token
from sentinel.contracts.kl_estimate import KL_ESTIMATE
from sentinel.laws.law import Case, Law, Violation
from sentinel.testing.ways import mask_of


@dataclass(frozen=True)
class Term:
    """An additional term of a policy loss: a coefficient times a number per token, added before aggregation.

    :ivar data: the input from which the term is computed. A function that does not take it has no such term.
    :ivar coefficient: the input with the coefficient.
    :ivar of: a function that maps the inputs to the term's numbers, [batch, tokens].
    :ivar options: other inputs that only this term uses.
    """

    data: Input
    coefficient: Input
    of: Callable[[Mapping[str, Any]], Any]
    options: tuple[Input, ...] = ()


def _penalty(inputs: Mapping[str, Any]) -> Any:
    if inputs["ref_log_probs"].shape != inputs["response_mask"].shape:
        raise DoesNotApply("a KL penalty is not defined for several actions per step")
    of_kl = {item.name: inputs[item.name] for item in KL_ESTIMATE.inputs if item.name in inputs}
    return KL_ESTIMATE.reference(of_kl)["kl"]


_KL_ESTIMATOR = KL_ESTIMATE.input("kl_estimator")
assert _KL_ESTIMATOR is not None
_KL_COEF = knob("kl_coef", "coefficient of the KL penalty in the loss", (0.0, 0.5, 0.04))

#: The additional terms that a policy loss may have: a KL penalty (GRPO, arXiv:2402.03300, equation 3) computed by the
#: loss, a KL penalty computed by its caller, and an entropy bonus (PPO, arXiv:1707.06347, equation 9).
TERMS = (
    Term(
        per_token("ref_log_probs", "log-probs of the reference policy, for the KL penalty", "log_ratio", default=None),
        _KL_COEF,
        _penalty,
        (drawn("kl_estimator", f"of the KL penalty: {_KL_ESTIMATOR.meaning}", ("k3", "k1", "k2", "abs", "k3+")),),
    ),
    Term(
        per_token("kl", "KL estimate of each token, for the KL penalty", "log_ratio", default=None),
        _KL_COEF,
        lambda inputs: inputs["kl"],
    ),
    Term(
        per_token("entropy", "entropy of the policy at each token, in nats", "entropy", default=None),
        knob("entropy_coef", "coefficient of the entropy, which is subtracted from the loss", (0.0, 0.5, 0.01)),
        lambda inputs: -inputs["entropy"],
    ),
)


#: Data input of a policy loss -> the options that have no effect without this input.
OPTIONS: Mapping[str, Sequence[str]] = {
    **{term.data.name: [item.name for item in (term.coefficient, *term.options)] for term in TERMS},
    "rollout_log_probs": ["importance_weight_cap"],
}

#: Input of policy losses -> how it is drawn for users' functions. For frameworks, only some bindings draw it.
_DRAWN: Mapping[str, Mapping[str, Any]] = {
    "rollout_log_probs": {"domain": "log_ratio"},
    "importance_weight_cap": {"choices": (None, 2.0, 1.5), "knob": True},
    "scores": {"domain": "reward"},
}


def with_terms(contract: Contract) -> Contract:
    """Return the contract of policy losses with the optional :data:`TERMS` added. Return other contracts unchanged."""
    if contract.name != "policy_loss":
        return contract

    def oracle(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        assert contract.oracle is not None
        outputs = contract.oracle(inputs)
        active = [term for term in TERMS if inputs[term.data.name] is not None and inputs[term.coefficient.name]]
        if not active:
            return outputs
        losses = outputs["per_token_loss"] + sum(inputs[term.coefficient.name] * term.of(inputs) for term in active)
        return {**outputs, "loss": aggregate(losses, inputs), "per_token_loss": losses}

    def arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
        assert contract.arrange is not None
        ratios = {name: inputs[name] for name in ("ref_log_probs", "rollout_log_probs")}
        inputs = contract.arrange(inputs, choose)
        for (name, drawn_ratios), other in zip(ratios.items(), ("log_probs", "old_log_probs")):
            if drawn_ratios is not None and drawn_ratios.shape == inputs[other].shape:
                values = inputs[other].array() - drawn_ratios.array().astype(np.float64)
                inputs[name] = replaced(drawn_ratios, np.minimum(values, 0))
        return inputs

    own = tuple(replace(item, **_DRAWN.get(item.name, {})) for item in contract.inputs)
    more = {item.name: item for term in TERMS for item in (term.data, term.coefficient, *term.options)}
    return replace(contract, inputs=(*own, *more.values()), oracle=oracle, arrange=arrange)


#: Optional inputs that an oracle needs. Adapters may omit them, but users' functions must set them.
_NEEDED = ("estimator", "cov_share")


def with_needed(contract: Contract, choices: Mapping[str, Any]) -> Contract:
    """Return a copy of the contract that requires every input that the chosen algorithm's oracle uses."""
    inputs = tuple(
        replace(item, default=REQUIRED)
        if item.name in _NEEDED and item.default is None and concerns(contract, item, {"algorithm": "", **choices})
        else item
        for item in contract.inputs
    )
    return replace(contract, inputs=inputs)


def definitions(item: Input) -> list[str]:
    """Return the values that an option's meaning lists, as in ``estimator: grpo, rloo``; empty if it lists none."""
    listed = re.match(rf"{item.name}: ([\w, ]+)", item.meaning)
    known = listed[1].split(", ") if listed else []
    return known if all(name.isidentifier() for name in known) else []


#: Laws about NaN and infinity. sentinel.testing checks them on every loss over tokens.
_EDGE_LAWS = ("masked_values_have_no_influence", "finite_in_finite_out")


def with_edge_laws(contract: Contract) -> Contract:
    """Return the contract of a loss over tokens with the laws about NaN and infinity added. Return other contracts
    unchanged."""
    observed = {item.key for item in contract.observes}
    masked = any(item.domain == "mask" for item in contract.inputs)
    more = [law for law in _EDGE_LAWS if law not in contract.laws]
    return replace(contract, laws=(*contract.laws, *more)) if more and masked and "loss" in observed else contract


def with_own_masks(law: Law, contract: Contract) -> Law:
    """Return a version of the law about masked tokens for a contract with several masks, such as ``chosen_mask`` and
    ``rejected_mask``. Return other laws, and laws of other contracts, unchanged.

    The law is checked for one mask after another, each time with only the inputs that the mask covers.
    """
    masks = {mask_of(contract, item.name) for item in contract.inputs if item.shape == TOKENS}
    if law.name != _EDGE_LAWS[0] or len(masks) < 2:
        return law
    parts = {
        mask: replace(contract, mask=mask, inputs=tuple(i for i in contract.inputs if _belongs(contract, i, mask)))
        for mask in sorted(masks)
    }

    def vary(contract: Contract, inputs: Mapping[str, Any], choose: Choose) -> dict[str, Any]:
        assert law.vary is not None
        masked = [mask for mask in parts if not inputs[mask].array().all()]
        if not masked:
            raise DoesNotApply("the scenario has no masked token")
        part = parts[choose.one_of(masked)]
        variants = law.vary(part, {name: inputs[name] for name in inputs if part.input(name) is not None}, choose)
        first = next(iter(variants))
        return {name: inputs if name == first else {**inputs, **each} for name, each in variants.items()}

    def check(case: Case) -> list[Violation]:
        found, applies = list[Violation](), False
        for part in parts.values():
            inputs = {name: {k: v for k, v in each.items() if part.input(k)} for name, each in case.inputs.items()}
            others = [{k: v for k, v in each.items() if not part.input(k)} for each in case.inputs.values()]
            if all(each == others[0] for each in others):
                with suppress(DoesNotApply):
                    found += law.check(replace(case, inputs=inputs, contract=part))
                    applies = True
        if not applies:
            raise DoesNotApply("the scenario has no masked token")
        return found

    return replace(law, vary=vary, check=check)


def _belongs(contract: Contract, item: Input, mask: str) -> bool:
    return item.name == mask or (
        item.shape == TOKENS and item.domain != "mask" and mask_of(contract, item.name) == mask
    )


def concerns(contract: Contract, item: Input, choices: Mapping[str, Any]) -> bool:
    """Return False if an input is only for algorithms that were not chosen; True otherwise.

    The meaning of such an input begins with the names of its algorithms, as in ``sapo: temperature``.
    """
    prefix = re.match(r"((?:\w+(?:, | and )?)+): ", item.meaning)
    if prefix is None:
        return True
    words = re.split(", | and ", prefix[1])
    for name, chosen in choices.items():
        key = contract.input(name)
        values = [value for value in (chosen if isinstance(chosen, tuple) else (chosen,)) if isinstance(value, str)]
        if key is None or key is item or not values:
            continue
        if all(re.search(rf"\b{re.escape(word)}", key.meaning) for word in words):
            return any(value.startswith(word) for value in values for word in words)
    return True


def matchable(contract: Contract, choices: Mapping[str, Any], data: Collection[str] | None = None) -> Contract:
    """Return the contract without the inputs that a function with these choices cannot take.

    :param data: the keys of :data:`OPTIONS` for which the function has a parameter; None for all. The options of other
        keys are removed.
    """
    options = OPTIONS if contract.name == "policy_loss" else {}
    without = {name for several in options.values() for name in several}
    without -= {name for one, several in options.items() if data is None or one in data for name in several}
    inputs = (item for item in contract.inputs if item.name not in without and concerns(contract, item, choices))
    return replace(contract, inputs=tuple(inputs))


# -- one number per response -------------------------------------------------------------------------------------------

#: Domains in which a response's number is the sum over its tokens.
_ADDED = ("log_prob", "log_ratio", "reward")


def per_response(contract: Contract, names: Collection[str]) -> Contract:
    """Adapt a contract's scenarios to a function that takes the inputs ``names`` as one number per response.

    In these inputs, all tokens of a response get the same value. Only log-probs and rewards may differ between tokens,
    because the response's number is their sum.

    :raises TypeError: for an input without one number per token.
    """
    for name in names:
        item = contract.input(name)
        if item is None or item.shape != TOKENS or item.domain == "mask":
            raise TypeError(f"shapes: the input {name} of {contract.name} does not have one number per token")
    equal = [name for name in names if contract.input(name).domain not in _ADDED]  # type: ignore[union-attr]

    def arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
        inputs = inputs if contract.arrange is None else contract.arrange(inputs, choose)
        for name in equal:
            if inputs[name] is not None:
                values = inputs[name].array()
                inputs[name] = replaced(inputs[name], np.broadcast_to(values[:, :1], values.shape))
        return inputs

    return replace(contract, arrange=arrange) if equal else contract


def of_responses(contract: Contract, inputs: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the inputs of a call, with the inputs in ``names`` converted from [batch, tokens] to [batch].

    A response's number is the sum over its valid tokens for log-probs and rewards, otherwise the value of its first
    valid token."""
    import torch

    changed = dict(inputs)
    for name in names:
        item, values = contract.input(name), inputs[name]
        if values is None or item is None:
            continue
        mask = inputs.get(mask_of(contract, name))
        valid = torch.ones_like(values, dtype=torch.bool) if mask is None else mask != 0
        kept = torch.where(valid, values, torch.zeros_like(values))
        if item.domain in _ADDED:
            changed[name] = kept.sum(-1)
        else:
            changed[name] = kept.gather(-1, valid.int().argmax(-1, keepdim=True)).squeeze(-1)
    return changed


def at_tokens(contract: Contract, inputs: Mapping[str, Any], outputs: Any) -> Any:
    """Convert outputs in place from [batch] to [batch, tokens] if the contract has one number per token. Each valid
    token gets the number of its response."""
    import torch

    mask = inputs.get(contract.mask)
    for item in contract.observes:
        value = outputs.get(item.key)
        if mask is not None and item.shape == TOKENS and isinstance(value, torch.Tensor) and value.dim() == 1:
            outputs[item.key] = torch.where(mask != 0, value[:, None], torch.zeros_like(value[:, None]))
    return outputs
