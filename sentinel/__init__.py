"""Sentinel: the conformance suite for LLM reinforcement-learning frameworks.

Adapters, contracts and laws of other packages import these names. No other name is stable.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Module -> its public names. Modules are imported lazily, when one of their names is used, because every pytest run of
#: the environment imports this package, and a worker has no packages except torch and numpy.
PUBLIC = {
    "sentinel.contracts.aggregation": "detached gradient leaf replaced spread",
    "sentinel.contracts.contract": "BASELINE REQUIRED Choose Contract DoesNotApply Input Inputs Observed",
    "sentinel.deciding.outcomes": "Decision",
    "sentinel.errors": "SentinelError",
    "sentinel.laws.agreement": "Match same",
    "sentinel.laws.law": "Case Law Violation",
    "sentinel.laws.layout": "first_two like pick_rows row_count valid_tokens",
    "sentinel.targets": "Alias Binding Dialect PackageRoot Registry StandIn Steps Target",
    "sentinel.values.literals": "Tensor from_array tensor",
    "sentinel.binding.drift": "AbsentError DriftError StandInNamespace UnknownInputError",
}

if TYPE_CHECKING:  # type checkers need the same names as imports
    # isort: off
    # fmt: off
    from sentinel.contracts.aggregation import detached as detached, gradient as gradient, leaf as leaf
    from sentinel.contracts.aggregation import replaced as replaced, spread as spread
    from sentinel.contracts.contract import BASELINE as BASELINE, REQUIRED as REQUIRED, Choose as Choose
    from sentinel.contracts.contract import Contract as Contract, DoesNotApply as DoesNotApply, Input as Input
    from sentinel.contracts.contract import Inputs as Inputs, Observed as Observed
    from sentinel.deciding.outcomes import Decision as Decision
    from sentinel.errors import SentinelError as SentinelError
    from sentinel.laws.agreement import Match as Match, same as same
    from sentinel.laws.law import Case as Case, Law as Law, Violation as Violation
    from sentinel.laws.layout import first_two as first_two, like as like, pick_rows as pick_rows
    from sentinel.laws.layout import row_count as row_count, valid_tokens as valid_tokens
    from sentinel.targets import Alias as Alias, Binding as Binding, Dialect as Dialect, PackageRoot as PackageRoot
    from sentinel.targets import Registry as Registry, StandIn as StandIn, Steps as Steps, Target as Target
    from sentinel.values.literals import Tensor as Tensor, from_array as from_array, tensor as tensor
    from sentinel.binding.drift import AbsentError as AbsentError, DriftError as DriftError
    from sentinel.binding.drift import StandInNamespace as StandInNamespace, UnknownInputError as UnknownInputError
    # fmt: on
    # isort: on


def __getattr__(name: str) -> Any:
    return getattr(import_module(home_of(name)), name)


def home_of(name: str) -> str:
    """Return the name of the module that defines a public name of Sentinel.

    :raises AttributeError: if the name is not public.
    """
    for module, names in PUBLIC.items():
        if name in names.split():
            return module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
