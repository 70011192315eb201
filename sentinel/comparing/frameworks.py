"""What frameworks mean by a name: the rows of a comparison, and the targets that are opened for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from sentinel.comparing.across import (
    DEFINITION,
    Agreement,
    Member,
    Number,
    Row,
    Translation,
    everyday,
    identities,
    meanings,
    settled,
)
from sentinel.contracts.contract import Contract, Inputs
from sentinel.contracts.group_advantage import as_rewards, of_rewards
from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import NothingExamined, SentinelError, Unavailable, nearest
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.targets import Binding
from sentinel.targets.refs import Ref
from sentinel.values.literals import Tensor, from_array


@dataclass(frozen=True)
class Meaning:
    """A row of the table.

    :ivar where: settings that make it this meaning; of a setting that is not named and says what is computed, every
        value has a row.
    """

    title: str
    contract: str
    where: Mapping[str, Any] = field(default_factory=dict)


_RELATIVE = {"mean_level": "group", "clip": None}

#: What people compare frameworks by.
TABLE = (
    Meaning("Loss aggregation", "loss_aggregation"),
    Meaning("GRPO", "reward_normalisation", {**_RELATIVE, "std_level": "group", "leave_one_out": False}),
    Meaning("GRPO under a mask", "group_advantage", {"estimator": "grpo", "norm_by_std": True}),
    Meaning("Dr. GRPO", "reward_normalisation", {**_RELATIVE, "std_level": None, "leave_one_out": False}),
    Meaning("RLOO", "reward_normalisation", {**_RELATIVE, "std_level": None, "leave_one_out": True}),
    Meaning("REINFORCE++", "discounted_return"),
    Meaning("REINFORCE++, normalised", "advantage_normalisation", {"mean_level": "batch", "std_level": "batch"}),
    Meaning("GAE", "generalised_advantage"),
    Meaning("PPO loss", "policy_loss", {"algorithm": "ppo"}),
    Meaning("DAPO loss", "policy_loss", {"algorithm": "ppo", "loss_agg_mode": "token-mean", "eps_clip_high": 0.28}),
    Meaning("GSPO loss", "policy_loss", {"algorithm": "gspo"}),
    Meaning("CISPO loss", "policy_loss", {"algorithm": "cispo"}),
    Meaning("KL estimators", "kl_estimate"),
    Meaning("Importance correction", "importance_weight"),
    Meaning("SFT loss", "policy_loss", {"algorithm": "cross_entropy"}),
    Meaning("DPO loss", "preference_loss"),
)


def rows_named(name: str, contracts: Sequence[str]) -> tuple[Meaning, ...]:
    """Give a contract, with all that it may mean; or the rows of the table of a name.

    :raises SentinelError: for any other name, with the nearest.
    """
    if name in contracts:
        return (Meaning(name, name),)
    rows = {_spelt(item.title): item for item in TABLE}
    if _spelt(name) not in rows:
        near = nearest(name, [*contracts, *rows])
        raise SentinelError(f"{name!r} is no contract and no row of the table{near}; `sentinel list contracts` has all")
    return (rows[_spelt(name)],)


def _spelt(title: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", title.lower()).strip("-")


def _relative(where: Mapping[str, Any]) -> dict[str, Any]:
    """Say which group advantage is the normalisation of rewards of these settings."""
    if where.get("mean_level", "group") != "group" or where.get("std_level") == "batch":
        return {"estimator": "none"}
    if where.get("leave_one_out"):
        return {"estimator": "rloo"}
    return {"estimator": "grpo", "norm_by_std": where.get("std_level") == "group"}


#: contract -> another whose boundaries can be asked the same: with which settings, and how.
_READ_AS = {"reward_normalisation": {"group_advantage": (_relative, of_rewards, as_rewards)}}


class Frameworks:
    """Targets, each at one ref, opened when a row first asks for them.

    :param targets: no other one's adapter is looked at.
    :param refs: target, or None for all others -> ref; what is not there is at its branch.
    """

    def __init__(
        self,
        catalog: Catalog,
        runner: Runner,
        targets: Sequence[str],
        refs: Mapping[str | None, Ref],
        recipes: Sequence[Recipe] = (),
        count: int = 60,
        seed: int = 0,
        tell: Callable[[str], None] = lambda line: None,
        brief: bool = False,
    ) -> None:
        self._catalog, self._runner, self._recipes = catalog, runner, recipes
        self._targets, self._refs = targets, refs
        self._count, self._seed, self._tell, self._brief = count, seed, tell, brief
        self.opened: dict[str, OpenTarget] = {}
        self.unavailable: dict[str, str] = {}

    def contract(self, name: str) -> Contract:
        """Give a contract by name.

        :raises SentinelError: where nothing of the targets is bound to it, or it has no definition."""
        contract = self._catalog.contracts[name]
        if contract.oracle is None:
            raise SentinelError(f"the contract {name} has no definition, so nothing is the same for all that bind it")
        if not self.bound(name):
            raise NothingExamined(
                f"nothing of {', '.join(self._targets)} is bound to the contract {name}: name other --targets, or "
                "another contract (`sentinel list boundaries TARGET` shows them)"
            )
        return contract

    def bound(self, contract: str) -> bool:
        """Say whether anything of the targets is bound to it."""
        return any(self._bindings(contract, target) for target in self._targets)

    def ref(self, target: str) -> Ref:
        ref = self._refs.get(target) or self._refs.get(None)
        return ref or Ref("git", self._catalog.targets[target].branch)

    def _bindings(self, contract: str, target: str) -> list[Binding]:
        return [item for item in self._catalog.targets[target].bindings if item.contract == contract]

    def rows(self, meaning: Meaning) -> Iterator[Row]:
        """Give each meaning of the contract that some binding has, compared."""
        contract = self.contract(meaning.contract)
        names = (contract.name, *(_READ_AS.get(contract.name, {}) if meaning.where else ()))
        bound = {target: [item for name in names for item in self._bindings(name, target)] for target in self._targets}
        there = [target for target, bindings in bound.items() if bindings and self._open(target, bindings)]
        missing = {
            target: self.unavailable[target] for target, bindings in bound.items() if bindings and target not in there
        }
        if not there:
            raise NothingExamined(f"{'; '.join(missing.values())}; name other --targets, or another --ref")
        reference = self.opened[there[0]].law_session
        everything = [item for bindings in bound.values() for item in bindings if item.contract == contract.name]
        for where in meanings(contract, everything):
            if any(where.get(name, value) != value for name, value in meaning.where.items()):
                continue
            row = Row(contract.name, {**where, **meaning.where}, not_compared=dict(missing))
            members = [member for target in there for member in self._members(target, row.where, contract)]
            if not members:
                continue
            self._tell(f"{meaning.title}: {', '.join(f'{k} = {v}' for k, v in row.where.items()) or contract.name}")
            subject = Subject(Binding(DEFINITION, contract.name), contract, (), "", DEFINITION)
            definition = Member(DEFINITION, subject, reference)
            Agreement(reference, self._bugs_of, self._count, self._seed, self._brief).of(row, [definition, *members])
            self._in_numbers(row, contract, definition, members)
            yield row

    def _in_numbers(self, row: Row, contract: Contract, definition: Member, members: Sequence[Member]) -> None:
        """Compute what everybody makes of one batch: with the same settings, and with what is a framework's default."""
        there = [member for member in members if member.name in row.scenarios]
        batch = row.batch = everyday(contract, row.where, there) if there else None
        if batch is None:
            return
        for member in (definition, *there):
            row.alike.update(_number(member, contract, batch, batch))
        halved = {name: _halved(value) for name, value in batch.items()}
        for member in there:
            if "bfloat16" in (member.subject.binding.dtypes or ("bfloat16",)):
                row.coarse.update(_number(member, contract, halved, halved))
        for target in dict.fromkeys(member.target for member in there):
            opened = self.opened[target]
            defaults = _declared().defaults_of(
                self._catalog, self._catalog.targets[target], opened.checkout, contract.name
            )
            usual = {name: value for name, (value, _) in defaults.items()}
            where = {**{name: row.where[name] for name in row.where if name in identities(contract)}, **usual}
            for member in self._members(target, where, contract) if usual else ():
                if member.name in row.scenarios:
                    for name, number in _number(member, contract, batch, {**batch, **usual}).items():
                        row.usual[name] = Number(defaults, number.value)

    def _bugs_of(self, member: Member, called: Collection[str]) -> list[Recipe]:
        """Give the recipes of the known bugs that a member, or one of the functions that it called, has at its ref."""
        binding = member.subject.binding
        of_target = [item for item in self._recipes if item.target == member.target]
        own = [item for item in of_target if item.contract == binding.contract and item.boundary in binding.paths]
        beside = [item for item in of_target if item.boundary not in binding.paths and item.boundary in called]
        ref = self.ref(member.target)
        return [item for item in own + beside if self._runner.decide(Job(item, ref)).verdict.name == "reproduced"]

    def _open(self, target: str, bindings: Sequence[Binding]) -> bool:
        if target in self.unavailable:
            return False
        try:
            self.opened[target] = self._runner.open_target(target, self.ref(target), bindings)
        except Unavailable as error:
            self.unavailable[target] = error.reason
            return False
        return True

    def _members(self, target: str, where: Mapping[str, Any], contract: Contract) -> Iterator[Member]:
        """Give the boundaries of a target that can be set so; those of another contract that can be asked the same,
        too."""
        opened, adapter = self.opened[target], str(self._catalog.adapters[target].file)
        translations = _READ_AS.get(contract.name, {}) if where else {}
        for name in (contract.name, *translations):
            other, bindings = self._catalog.contracts[name], self._bindings(name, target)
            short = shortened([item.boundary for item in bindings])
            for binding in bindings:
                which, of, back = translations.get(name, (dict, None, None))
                narrow = settled(other, binding, which(where))
                if narrow is None:
                    continue
                subject, translation = Subject(binding, narrow, (), adapter, binding.boundary), None
                if of is not None and back is not None:
                    translation, read = Translation(subject, of, back), _as_bound_to(contract, binding, where)
                    narrow = settled(contract, read, where) or contract
                    subject = replace(subject, binding=read, contract=narrow)
                yield Member(f"{target} {short[binding.boundary]}", subject, opened.law_session, opened, translation)


def _as_bound_to(contract: Contract, binding: Binding, where: Mapping[str, Any]) -> Binding:
    """Give what a binding says of the inputs that another contract has too."""
    names = {item.name: item.default for item in contract.inputs}  # what it leaves out is the usual value here
    fixed = {name: names.get(name) if value is None else value for name, value in binding.fixed.items()}
    return replace(
        binding,
        contract=contract.name,
        fixed={name: value for name, value in {**fixed, **where}.items() if name in names},
        accepts={name: value for name, value in binding.accepts.items() if name in names},
        dialects=tuple(item for item in binding.dialects if item.name in names),
    )


def shortened(paths: Sequence[str]) -> dict[str, str]:
    """Give dotted paths by as many of their last parts as tell them apart; two at least of a method."""
    short = {}
    for path in paths:
        parts = path.split(".")
        size = 2 if len(parts) > 1 and parts[-2][:1].isupper() else 1
        tails = [other.split(".") for other in paths if other != path]
        while any(tail[-size:] == parts[-size:] for tail in tails) and size < len(parts):
            size += 1
        short[path] = ".".join(parts[-size:])
    return short


def _number(member: Member, contract: Contract, batch: Inputs, scenario: Inputs) -> dict[str, Number]:
    """Give its first output; nothing where it does not answer."""
    subject = replace(member.subject, contract=contract)
    terms = member.terms(scenario)
    with suppress(Undecidable):
        answer = member.answers(subject, {"": terms}).answers[""].observation or {}
        keys = [item.key for item in contract.observes if item.role in ("output", "decision") and item.key in answer]
        if keys:
            other = {name: value for name, value in terms.items() if name in batch and batch[name] != value}
            swapped = {name: {**batch, name: value} for name, value in other.items()}
            defined = member.session.references(subject, {**swapped, "": batch}).answers
            moving = {name: other[name] for name in other if defined[name].observation != defined[""].observation}
            return {member.name: Number(moving, answer[keys[0]])}
    return {}


def _halved(value: Any) -> Any:
    """Give a value in bfloat16, where it is a tensor of floats."""
    floats = isinstance(value, Tensor) and value.dtype == "float32"
    return from_array(value.array(), "bfloat16", value.requires_grad) if floats else value


def _declared() -> Any:
    """Import the tool that reads a framework's options."""
    return import_module("sentinel.tools.audit.declared")
