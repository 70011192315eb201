"""Compare functions of several frameworks that are bound to the same contract.

This is ``diff`` for two functions instead of two revisions: both are called with the same scenarios, and their numbers
must agree. If a function does not support a setting of a scenario, it is called with a setting that it supports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.comparing.observations import AFTER, BEFORE, SIDES
from sentinel.comparing.sessions import Log, Pair
from sentinel.contracts.aggregation import replaced
from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import REQUIRED, Contract, DoesNotApply, Input, Inputs
from sentinel.contracts.group_advantage import GROUP_ADVANTAGE
from sentinel.deciding.law_session import Description, LawSession, Subject, Trial, Undecidable, widen
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.proof import NotProvenError, prove
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import NothingExamined, SentinelError, Unavailable, nearest
from sentinel.laws.agreement import same
from sentinel.laws.law import Case, Law, Violation
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.boundary_search import BoundarySearch
from sentinel.search.scenarios import NotSearchable, accepts, narrow, with_dialects
from sentinel.targets import Binding
from sentinel.targets.refs import Ref
from sentinel.values.literals import tensor
from sentinel.worker.answers import Failed, Replies, Reply

#: The maximum number of calls to shrink one difference.
_SHRINKING = 150

_RELATIVE = {"mean_level": "group", "clip": None}

#: Common name -> a contract and the settings that the name implies.
NAMES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("reward_normalisation", {**_RELATIVE, "std_level": "group", "leave_one_out": False}),
    "dr-grpo": ("reward_normalisation", {**_RELATIVE, "std_level": None, "leave_one_out": False}),
    "rloo": ("reward_normalisation", {**_RELATIVE, "std_level": None, "leave_one_out": True}),
    "reinforce++": ("discounted_return", {}),
    "gae": ("generalised_advantage", {}),
    "ppo": ("policy_loss", {"algorithm": "ppo"}),
    "dapo": ("policy_loss", {"algorithm": "ppo", "loss_agg_mode": "token-mean", "eps_clip_high": 0.28}),
    "gspo": ("policy_loss", {"algorithm": "gspo"}),
    "cispo": ("policy_loss", {"algorithm": "cispo"}),
    "sft": ("policy_loss", {"algorithm": "cross_entropy"}),
    "dpo": ("preference_loss", {}),
    "kl": ("kl_estimate", {}),
}


def find_meaning(name: str, contracts: Collection[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the contract and the settings that a name such as ``grpo`` stands for.

    :raises SentinelError: if the name is neither a contract nor in :data:`NAMES`.
    """
    if name in contracts:
        return name, {}
    spelt = re.sub(r"[^a-z0-9+]+", "-", name.lower()).strip("-")
    if spelt not in NAMES:
        near = nearest(name, [*contracts, *NAMES])
        raise SentinelError(
            f"{name!r} is not a contract{near}; known names: {', '.join(NAMES)}; see `sentinel list contracts`"
        )
    return NAMES[spelt]


def _read_as_group(where: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``group_advantage`` that mean the same as settings of ``reward_normalisation``."""
    if where.get("leave_one_out"):
        return {"estimator": "rloo"}
    return {"estimator": "grpo", "norm_by_std": where.get("std_level") == "group"}


def _write_as_group(inputs: Inputs) -> dict[str, Any]:
    """Convert a scenario of ``reward_normalisation`` to ``group_advantage``, whose responses then have one token."""
    rewards = inputs["rewards"]
    one = {
        "token_level_rewards": replaced(rewards, rewards.array()[:, None]),
        "response_mask": tensor([[1]] * rewards.shape[0], "int64"),
        "estimator": "rloo" if inputs["leave_one_out"] else "grpo",
        "norm_by_std": inputs["std_level"] == "group",
    }
    shared = {name: inputs[name] for name in ("group", "epsilon", "std", "epsilon_placement", "group_of_one")}
    return {**{item.name: item.default for item in GROUP_ADVANTAGE.inputs}, **shared, **one}


def _read_as_rewards(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an observation of ``group_advantage`` to ``reward_normalisation``."""
    advantages = observation["advantages"]
    return {"normalised": tensor(advantages.array()[:, 0].tolist(), advantages.dtype)}


#: Contract -> an equivalent contract, whose functions compute the same values with certain settings, and functions that
#: convert settings and scenarios to the equivalent contract, and observations back.
_READ_AS = {"reward_normalisation": ("group_advantage", _read_as_group, _write_as_group, _read_as_rewards)}


class Function(LawSession):
    """A bound function of one framework, with substitutes for settings that it does not support.

    :ivar convert: None if the function is bound to the compared contract. If it is bound to an equivalent contract: the
        subject for that contract, and functions that convert scenarios to that contract and observations back.
    """

    def __init__(
        self,
        name: str,
        subject: Subject,
        opened: OpenTarget,
        session: LawSession,
        convert: tuple[Subject, Callable[[Inputs], Inputs], Callable[[Mapping[str, Any]], Mapping[str, Any]]] | None,
    ) -> None:
        self.name, self.subject, self.opened, self.session, self.convert = name, subject, opened, session, convert

    def close(self) -> None:
        self.session.close()

    def fresh(self) -> Function:
        return Function(self.name, self.subject, self.opened, self.session.fresh(), self.convert)

    def answers(
        self,
        subject: Subject,
        calls: Mapping[str, Inputs],
        describe: Description = False,
        scenario_inputs: Sequence[str] | None = None,
    ) -> Replies:
        """Call the function on the scenarios of ``subject``, with settings that the function supports."""
        scenarios, own = {name: in_own_settings(self.subject, inputs) for name, inputs in calls.items()}, self.subject
        if self.convert is None:
            taken = [name for name in own.scenario_inputs if name in subject.scenario_inputs]
            return self.session.answers(own, scenarios, describe, taken)
        own, write, read = self.convert
        scenarios = {name: in_own_settings(own, write(each)) for name, each in scenarios.items()}
        replies = self.session.answers(own, scenarios, describe)
        answers = {
            name: each if each.observation is None else replace(each, observation=read(each.observation))
            for name, each in replies.answers.items()
        }
        return replace(replies, answers=answers)


def in_own_settings(subject: Subject, inputs: Inputs) -> dict[str, Any]:
    """Replace the settings of a scenario that a function does not support.

    Fixed inputs and dialects get the binding's values. An input whose value the function does not accept gets the first
    value that the function accepts.
    """
    contract, binding = subject.contract, subject.binding
    own = dict(inputs)
    for item in contract.inputs:
        if item.name in binding.fixed or binding.accepts.get(item.name) == (None,):
            own[item.name] = item.default(own) if callable(item.default) else item.default
        elif item.choices and not item.domain and not accepts(contract, binding, item, own):
            chosen = {**own, item.name: item.choices[0]}
            own[item.name] = (contract.arrange(chosen, Choices(b"")) if contract.arrange else chosen)[item.name]
    return with_dialects(contract, binding, own)


class TwoFunctions(Pair):
    """Calls two functions with the same scenarios. A scenario in which one of them raises is not compared."""

    def __init__(self, one: Function, other: Function, logs: dict[str, Log] | None = None) -> None:
        super().__init__(one, other, logs)
        self._functions = one, other

    def fresh(self) -> TwoFunctions:
        one, other = self._functions
        return TwoFunctions(one.fresh(), other.fresh(), self.logs)

    def _look(
        self,
        subject: Subject,
        law: Law,
        variants: Mapping[str, Inputs],
        called: Mapping[str, Reply],
        answer: Replies,
        coarsest: str,
    ) -> Trial:
        failed = next((each for each in called.values() if each.observation is None), None)
        if failed is not None:
            why = failed.refused or Failed("crash", failed.silent or "a call without an observation")
            return Trial(variants, refused=why.reason, refusal=why.kind, unknown_input=why.unknown_input)
        try:
            return super()._look(subject, law, variants, called, answer, coarsest)
        except DoesNotApply as error:
            return Trial(variants, inapplicable=str(error))

    def _closer(self, subject: Subject, law: Law, trial: Trial) -> Trial:
        """Repeat a trial with violations in float64. If it then has none, remove them as rounding errors."""
        trial = super()._closer(subject, law, trial)
        wide = widen(subject.contract, trial.variants) if trial.violations else None
        if wide is not None:
            [again] = self.try_(subject, [(law, wide[0])], coarsest=wide[1])
            if again.case is not None and not again.violations:
                return replace(trial, violations=())
        return trial


def functions_agree(case: Case) -> list[Violation]:
    """Check that two functions return the same values within the rounding bound.

    Only elements that are finite and valid in both results are compared.
    """
    violations = same(case, BEFORE, AFTER, roles=("output", "gradient", "decision"))
    return [item for item in violations if item.symptom != "non-finite"]


FUNCTIONS_AGREE = Law("functions_agree", "two functions of one contract return the same numbers", functions_agree)


def share_subject(one: Function, other: Function) -> Subject | str:
    """Return a subject whose scenarios both functions accept, or why there is none."""
    contract = one.subject.contract
    inputs = []
    for item in contract.inputs:
        beside = other.subject.contract.input(item.name)
        assert beside is not None
        mine, theirs = (bool(each.domain or each.choices or each.kind == "labels") for each in (item, beside))
        if _selects(item) or (item.domain == "mask" and mine and theirs):
            values = _values(other, beside)
            common = tuple(value for value in _values(one, item) if value in values)
            if not common:
                return f"no value of {item.name} is accepted by both functions"
            item = replace(item, choices=common)
        elif not mine and not theirs and isinstance(item.default, str):
            item = max(item, beside, key=lambda each: str(each.default))  # the stricter of two group layouts sorts last
        elif not (mine and theirs):
            item = beside if mine else item
        elif item.choices:
            common = tuple(choice for choice in item.choices if choice in beside.choices)
            item = replace(item, choices=common or item.choices[:1])
        inputs.append(item)
    dtypes = set(one.subject.binding.dtypes or ("float32",)) & set(other.subject.binding.dtypes or ("float32",))
    name = f"{one.name} | {other.name}"
    binding = Binding(name, contract.name, dtypes=tuple(sorted(dtypes)) or ("float32",))
    return Subject(binding, replace(contract, inputs=tuple(inputs)), (FUNCTIONS_AGREE,), "", name)


def _selects(item: Input) -> bool:
    """Return True if an input selects what a function computes, such as the name of an estimator."""
    return item.kind == "string" and not item.dialect and item.default in (REQUIRED, None)


def _values(function: Function, item: Input) -> tuple[Any, ...]:
    fixed = function.subject.binding.fixed
    return (fixed[item.name],) if item.name in fixed else item.choices or (item.default,)


def settle(contract: Contract, binding: Binding, where: Mapping[str, Any]) -> Contract | None:
    """Return the contract with these settings fixed, or None if the binding does not support them."""
    for name, value in where.items():
        item = contract.input(name)
        free = item is not None and item.kind == "number" and name not in {*binding.fixed, *binding.accepts}
        there = binding.accepts.get(name, item.choices if item is not None else ())
        if not free and value not in ((binding.fixed[name],) if name in binding.fixed else there):
            return None
    with suppress(NotSearchable):
        return narrow(contract, replace(binding, fixed={**binding.fixed, **where}))
    return None


@dataclass(frozen=True)
class Difference:
    """The smallest scenario on which two functions differ, measured again in fresh processes.

    In each pair, the value of the reference function comes first.

    :ivar inputs: the scenario.
    :ivar key: the observation key that differs.
    :ivar settings: name -> pair of values, for settings that differ between the two calls.
    :ivar answers: the two values of ``key``.
    :ivar defined: the oracle's values of ``key`` for the settings of each function; None if the oracle has no value.
    """

    inputs: Inputs
    key: str
    detail: str
    settings: Mapping[str, tuple[Any, Any]]
    answers: tuple[Any, Any]
    defined: tuple[Any, Any]


@dataclass(frozen=True)
class Compared:
    """The result of comparing one function with the reference function.

    :ivar place: the file and line of the function's definition; empty if unknown.
    :ivar scenarios: the number of scenarios on which the two functions were compared.
    :ivar bugs: the known bugs that the function has at its revision. Their recipes are run only if the function differs
        from the reference.
    :ivar reason: why the function was not compared; empty if it was.
    """

    name: str
    place: str = ""
    scenarios: int = 0
    differences: tuple[Difference, ...] = ()
    bugs: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class Frameworks:
    """Compares the functions of several targets, each at one revision.

    :ivar targets: the names of the targets. The reference is a function of the first target that has one for the
        contract.
    :ivar refs: target -> ref. The key None has the ref of all targets without an entry. Without both entries, a target
        is compared at its branch.
    :ivar examples: the number of scenarios for each pair of functions.
    :ivar reference: the name of the function with which all others are compared.
    :ivar opened: the opened targets.
    """

    catalog: Catalog
    runner: Runner
    targets: Sequence[str]
    refs: Mapping[str | None, Ref]
    recipes: Sequence[Recipe] = ()
    examples: int = 60
    seed: int = 0
    notify: Callable[[str], None] = lambda line: None
    reference: str = ""
    opened: dict[str, OpenTarget] = field(default_factory=dict)

    def compare(self, name: str) -> Iterator[Compared]:
        """Compare the reference function with every other function that is bound to a contract.

        :param name: a contract, or one of :data:`NAMES`.
        :raises SentinelError: if nothing can be compared.
        """
        contract_name, where = find_meaning(name, self.catalog.contracts)
        contract = self.catalog.contracts[contract_name]
        if contract.oracle is None:
            raise SentinelError(
                f"the functions of contract {contract_name} cannot be compared, because the contract has no oracle"
            )
        members: list[Function] = []
        unavailable: list[Compared] = []
        for target in self.targets:
            try:
                members += self._functions(target, contract, where)
            except Unavailable as error:
                unavailable.append(Compared(target, reason=error.reason))
        if not members and not unavailable:
            raise NothingExamined(
                f"no function of {', '.join(self.targets)} is bound to the contract {contract_name}: name other "
                "--targets, or another contract (`sentinel list boundaries TARGET` lists them)"
            )
        members.sort(key=lambda each: (self.targets.index(each.opened.target), -_count_choices(each)))
        if not members:
            reasons = "; ".join(each.reason for each in unavailable)
            raise NothingExamined(f"{reasons}; name other --targets, or another --ref")
        self.reference = members[0].name
        yield from unavailable
        for member in members[1:]:
            self.notify(f"{member.name} and {self.reference}")
            yield self._compare(members[0], member)

    def _compare(self, one: Function, other: Function) -> Compared:
        subject = share_subject(one, other)
        if isinstance(subject, str):
            return Compared(other.name, reason=subject)
        pair = TwoFunctions(one.fresh(), other.fresh())
        try:
            search = BoundarySearch(pair, subject, self.seed, [FUNCTIONS_AGREE], _SHRINKING, glimpse=True)
            search.run(self.examples)
        except Undecidable as error:
            return Compared(other.name, reason=str(error))
        finally:
            pair.close()
        outcome = search.outcomes[FUNCTIONS_AGREE]
        if not outcome.judged:
            return Compared(other.name, reason=search.undecided or "no scenario was accepted by both functions")
        claim, place = pair.logs.get(subject.name, Log()).claims.get(AFTER), ""
        if claim is not None:
            with suppress(NotProvenError, SentinelError):
                proven = prove(claim, other.opened.checkout, other.opened.sources)
                place = f"{proven.file}:{proven.line}"
        differences = tuple(
            _describe(finding.trial.case, finding.violations[0], subject, one, other)
            for finding in outcome.findings
            if finding.trial.case is not None
        )
        bugs = tuple(self._known_bugs(other)) if differences else ()
        return Compared(other.name, place, outcome.judged, differences, bugs)

    def _known_bugs(self, function: Function) -> Iterator[str]:
        binding = function.subject.binding
        for recipe in (each for each in self.recipes if each.target == function.opened.target):
            if recipe.boundary in binding.paths:
                verdict = self.runner.decide(Job(recipe, function.opened.ref)).verdict
                if verdict.name == "reproduced":
                    yield recipe.bug_id

    def _functions(self, target: str, contract: Contract, where: Mapping[str, Any]) -> Iterator[Function]:
        """Yield a target's functions that support the given settings.

        :raises Unavailable: if the target's revision is not available.
        """
        other, settings_as, write, read = _READ_AS.get(contract.name, ("", dict, None, None)) if where else _ALONE
        bindings = [each for each in self.catalog.targets[target].bindings if each.contract in (contract.name, other)]
        if not bindings:
            return
        if target not in self.opened:
            ref = self.refs.get(target) or self.refs.get(None) or Ref("git", self.catalog.targets[target].branch)
            self.opened[target] = self.runner.open_target(target, ref, bindings)
        opened, adapter = self.opened[target], str(self.catalog.adapters[target].file)
        short = shorten_paths([each.boundary for each in bindings])
        for binding in bindings:
            own = self.catalog.contracts[binding.contract]
            own_contract = settle(own, binding, settings_as(where) if binding.contract == other else where)
            if own_contract is None:
                continue
            subject, convert = Subject(binding, own_contract, (), adapter, binding.boundary), None
            if write is not None and read is not None and binding.contract == other:
                convert, read_binding = (subject, write, read), _bind_to(contract, binding, where)
                own_contract = settle(contract, read_binding, where) or contract
                subject = replace(subject, binding=read_binding, contract=own_contract)
            yield Function(f"{target} {short[binding.boundary]}", subject, opened, opened.law_session, convert)


_ALONE: tuple[str, Any, None, None] = "", dict, None, None


def _count_choices(function: Function) -> int:
    return sum(max(len(each.choices), 1) for each in function.subject.contract.inputs if each.domain or each.choices)


def _describe(case: Case, violation: Violation, subject: Subject, one: Function, other: Function) -> Difference:
    inputs = case.inputs[BEFORE]
    own = [in_own_settings(function.subject, inputs) for function in (one, other)]
    settings = {name: (own[0][name], own[1].get(name)) for name in own[0] if own[0][name] != own[1].get(name)}
    key = violation.key.rpartition(".")[2]
    answers = [case.observation[side].get(key) for side in SIDES]
    replies = one.opened.law_session.references(subject, dict(zip(SIDES, own))).answers
    defined = [(replies[side].observation or {}).get(key) for side in SIDES]
    detail = violation.detail
    return Difference(inputs, key, detail, settings, (answers[0], answers[1]), (defined[0], defined[1]))


def _bind_to(contract: Contract, binding: Binding, where: Mapping[str, Any]) -> Binding:
    """Bind a function to another contract. Settings of inputs that only one contract has are removed."""
    names = {item.name: item.default for item in contract.inputs}
    fixed = {name: names.get(name) if value is None else value for name, value in binding.fixed.items()}
    return replace(
        binding,
        contract=contract.name,
        fixed={name: value for name, value in {**fixed, **where}.items() if name in names},
        accepts={name: value for name, value in binding.accepts.items() if name in names},
        dialects=tuple(item for item in binding.dialects if item.name in names),
    )


def shorten_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return dotted path -> the shortest end of it that no other path has.

    At least two parts of a method's path are kept, the class and the method.
    """
    short = {}
    for path in paths:
        parts = path.split(".")
        size = 2 if len(parts) > 1 and parts[-2][:1].isupper() else 1
        tails = [other.split(".") for other in paths if other != path]
        while any(tail[-size:] == parts[-size:] for tail in tails) and size < len(parts):
            size += 1
        short[path] = ".".join(parts[-size:])
    return short
