"""The place of a boundary at each commit: at one of its known paths, probably renamed, or missing."""

from dataclasses import replace
from typing import Any

import pytest
from history_kit import History
from renamed import Seen, sightings

from sentinel.recipes.catalog import Catalog
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target

#: Lines that are distinctive enough to be searched for, like those of real functions.
AGGREGATE = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    weighted_sum_of_losses = (loss_mat * loss_mask).sum()
    number_of_tokens_that_count = loss_mask.sum()
    return weighted_sum_of_losses / number_of_tokens_that_count
"""
OTHER = """
def entropy_of(logits):
    probabilities_of_all_tokens = logits.softmax(dim=-1)
    logarithms_of_all_of_them = logits.log_softmax(dim=-1)
    return -(probabilities_of_all_tokens * logarithms_of_all_of_them).sum(dim=-1)
"""


def seen(history: History, catalog: Catalog, **changes: Any) -> list[Seen]:
    """Return the place of tiny's binding at each commit.

    :param changes: changed fields of the target; those of its binding under ``binding``.
    """
    tiny: Target = catalog.targets["tiny"]
    bound = [replace(binding, **changes.pop("binding", {})) for binding in tiny.bindings]
    trees = GitTrees(history.path / ".git")
    try:
        looked = [history.git("rev-parse", f"{sha}^{{tree}}") for sha in history.commits]
        [found] = sightings(replace(tiny, bindings=tuple(bound), **changes), trees, looked)
    finally:
        trees.close()
    return found


def paths(found: list[Seen]) -> list[str]:
    return [one.where.definition.path if one.where.definition else "" for one in found]


@pytest.mark.parametrize(
    ("before", "where"),
    [
        ({"tiny/core/algos.py": AGGREGATE}, "agg_loss (tiny/core/algos.py:2)"),
        ({"tiny/losses.py": AGGREGATE.replace("agg_loss", "aggregate")}, "aggregate (tiny/losses.py:2)"),
    ],
    ids=["moved", "renamed"],
)
def test_a_renamed_function_is_reported(history, tiny_catalog, before, where):
    history.commit({"tiny/__init__.py": "", **before})
    history.commit({**dict.fromkeys(before), "tiny/losses.py": AGGREGATE + OTHER})
    former, today = seen(history, tiny_catalog)
    assert (former.where.bound, former.missing, former.alike) == (False, True, (where,))
    assert (today.where.bound, today.missing) == (True, False)


def test_a_function_that_does_not_exist_yet_is_not_missing(history, tiny_catalog):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": OTHER})
    history.commit({"tiny/losses.py": OTHER + AGGREGATE})
    history.commit({"tiny/losses.py": "def agg_loss(loss_mat = nothing\n"})
    history.commit({"tiny/losses.py": AGGREGATE + "x = " + "-" * 100_000 + "1\n"})  # deeper than the parser's stack
    found = seen(history, tiny_catalog)
    assert [(one.where.bound, one.missing) for one in found] == [(False, False), (True, False), *[(False, False)] * 2]


def test_a_function_next_to_the_boundary_is_a_different_one(history, tiny_catalog):
    twin = AGGREGATE.replace("agg_loss", "agg_loss_of_critic")
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": twin})
    history.commit({"tiny/losses.py": twin + AGGREGATE})
    assert not any(one.missing for one in seen(history, tiny_catalog))


def test_former_names_and_moves_are_found(history, tiny_catalog):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": AGGREGATE.replace("agg_loss", "aggregate")})
    history.commit({"tiny/losses.py": None, "tiny/core/__init__.py": "", "tiny/core/losses.py": AGGREGATE})
    today = {"boundary": "tiny.core.losses.agg_loss", "formerly": ("tiny.core.losses.aggregate",)}
    found = seen(history, tiny_catalog, binding=today, moved={"tiny.core": ("tiny",)})
    assert paths(found) == ["tiny.losses.aggregate", "tiny.core.losses.agg_loss"]


def test_names_are_followed_through_imports_bases_and_assignments(history, tiny_catalog):
    history.commit(
        {"tiny/__init__.py": "", "tiny/core.py": AGGREGATE, "tiny/losses.py": "from .core import agg_loss\n"}
    )
    history.commit({"tiny/losses.py": "if True:\n    from tiny.core import *\n"})
    history.commit({"tiny/losses.py": "from tiny import core\nagg_loss = core.agg_loss\n"})
    history.commit({"tiny/losses.py": "from torch import agg_loss\n"})
    assert paths(seen(history, tiny_catalog)) == ["tiny.losses.agg_loss"] * 4
    method = {"boundary": "tiny.losses.Actor.agg_loss"}
    base = "class Base:" + AGGREGATE.replace("\n", "\n    ") + "\n\n"
    history.commit({"tiny/core.py": base, "tiny/losses.py": "from tiny import core\nclass Actor(core.Base): ...\n"})
    history.commit({"tiny/losses.py": "import torch\nclass Actor(torch.nn.Module): ...\n"})
    assert paths(seen(history, tiny_catalog, binding=method))[-2:] == ["tiny.losses.Actor.agg_loss", ""]


def test_missing_requirements_and_imports_are_distinguished(history, tiny_catalog):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": AGGREGATE})
    for required in ("tiny.losses.Options", "tiny.losses.agg_loss(weights)"):
        [lacking] = seen(history, tiny_catalog, binding={"requires": (required,)})
        assert (lacking.where.bound, lacking.missing, lacking.where.lacks) == (False, False, required)
    [needy] = seen(history, tiny_catalog, binding={"imports": ("tiny.options",)})
    assert (needy.where.bound, needy.missing, needy.where.needs) == (False, True, "tiny.options")
