import math
from typing import Any

import pytest

from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes.triggers import ALWAYS, WORDS, Trigger, also_broken_laws, alternatives
from sentinel.values.literals import tensor

CATALOG = bundled_catalog()
CONTRACTS = CATALOG.contracts
GROUPS, LOSS = CONTRACTS["group_advantage"], CONTRACTS["policy_loss"]

#: A scenario that shows none of the words.
PLAIN = {
    "token_level_rewards": [[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [1.0, 0.0]],
    "response_mask": [[1, 1], [1, 1], [1, 1], [1, 1]],
    "group": ["p", "p", "q", "q"],
    "epsilon": None,
    "estimator": "grpo",
}


def scenario(dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    inputs = {**PLAIN, **changes}
    rewards, mask = tensor(inputs["token_level_rewards"], dtype), tensor(inputs["response_mask"], "int64")
    return {**inputs, "token_level_rewards": rewards, "response_mask": mask}


def met(when: Any, *variants: dict[str, Any], contract: Any = GROUPS) -> bool:
    return Trigger(alternatives(when), GROUPS.mask, GROUPS.group).explain(contract, variants).whole


MASK = [[1, 1], [1, 0], [1, 1], [1, 1]]
SHOWN = {
    "non-zero where masked": ("token_level_rewards", {"response_mask": MASK}),
    "non-finite where masked": (
        "token_level_rewards",
        {"response_mask": MASK, "token_level_rewards": [[0.0, 1.0], [0.0, math.nan], [3.0, 0.0], [1.0, 0.0]]},
    ),
    "exp overflows": (
        "token_level_rewards",
        {"token_level_rewards": [[0.0, 1.0], [0.0, 89.0], [3.0, 0.0], [1.0, 0.0]]},
    ),
    "exp overflows where masked": (
        "token_level_rewards",
        {"response_mask": MASK, "token_level_rewards": [[0.0, 1.0], [0.0, 89.0], [3.0, 0.0], [1.0, 0.0]]},
    ),
    "non-finite": (
        "token_level_rewards",
        {"token_level_rewards": [[0.0, math.inf], [0.0, 2.0], [3.0, 0.0], [1.0, 0.0]]},
    ),
    "equal in a group": (
        "token_level_rewards",
        {"token_level_rewards": [[0.0, 2.0], [2.0, 0.0], [3.0, 0.0], [1.0, 0.0]]},
    ),
    "a masked token": ("response_mask", {"response_mask": MASK}),
    "a rejected row": ("response_mask", {"response_mask": [[1, 1], [0, 0], [1, 1], [1, 1]]}),
    "a rejected row in an accepted group": ("response_mask", {"response_mask": [[1, 1], [0, 0], [1, 1], [1, 1]]}),
    "a lone token": ("response_mask", {"response_mask": [[0, 0], [0, 1], [0, 0], [0, 0]]}),
    "no token": ("response_mask", {"response_mask": [[0, 0]] * 4}),
    "a gap": (
        "response_mask",
        {"response_mask": [[1, 0, 1]] * 4, "token_level_rewards": [[0.0, 1.0, 2.0]] * 4},
    ),
    "a group of one": ("group", {"group": ["p", "q", "q", "q"]}),
    "one group": ("group", {"group": ["p"] * 4}),
    "unequal groups": ("group", {"group": ["p", "q", "q", "q"]}),
    "groups apart": ("group", {"group": ["p", "q", "p", "q"]}),
}  # fmt: skip


def test_rows_of_one_token_do_not_match_several_tokens():
    assert met({"response_mask": "several tokens"}, scenario())
    assert not met({"response_mask": "several tokens"}, scenario(response_mask=[[1, 0], [0, 1], [0, 0], [1, 0]]))


def test_a_fully_rejected_group_has_no_accepted_row():
    rejected = scenario(response_mask=[[0, 0], [0, 0], [1, 1], [1, 1]])
    assert met({"response_mask": "a rejected row"}, rejected)
    assert not met({"response_mask": "a rejected row in an accepted group"}, rejected)


@pytest.mark.parametrize("word", sorted(WORDS.keys() - {"several tokens"}))
def test_each_condition_word_matches_only_its_own_scenarios(word):
    name, changes = SHOWN[word]
    assert met({name: word}, scenario(**changes))
    assert not met({name: word}, scenario())


def test_conditions_can_be_values_bounds_dtypes_and_differences():
    assert met({"estimator": "grpo"}, scenario())
    assert not met({"estimator": ["rloo", "opo"]}, scenario())
    assert met({"epsilon": "unset"}, scenario())
    assert not met({"epsilon": "set"}, scenario())
    assert met({"token_level_rewards": "> 2"}, scenario())
    assert not met({"token_level_rewards": "> 3"}, scenario())
    assert not met({"importance_weights": "!= 1"}, {"importance_weights": None}, contract=LOSS)
    assert met({"importance_weights": "unset"}, {"importance_weights": None}, contract=LOSS)
    assert met({"token_level_rewards": "float16"}, scenario("float16"))
    loss = {"log_probs": tensor([[-1.0]], "float32"), "old_log_probs": tensor([[-91.0]], "float32")}
    assert met({"log_probs - old_log_probs": "> 80"}, loss, contract=LOSS)
    assert not met({"old_log_probs - log_probs": "> 80"}, loss, contract=LOSS)
    assert not met({"log_probs - ref_log_probs": "> 80"}, loss, contract=LOSS)


def test_the_overflow_of_exp_depends_on_the_dtype():
    def loss(one: str, other: str, apart: float) -> dict[str, Any]:
        return {"log_probs": tensor([[-1.0]], one), "old_log_probs": tensor([[-1.0 - apart]], other)}

    when = {"log_probs - old_log_probs": "exp overflows"}
    for one, other, limit in [("float32", "float32", 88.7), ("float16", "float16", 11.0), ("float16", "float32", 88.7)]:
        assert not met(when, loss(one, other, limit - 1), contract=LOSS)
        assert met(when, loss(one, other, limit + 1), contract=LOSS)


def test_one_alternative_whose_conditions_all_hold_is_enough():
    both = {"estimator": "grpo", "group": "one group"}
    assert not met(both, scenario())
    assert met([both, {"epsilon": "unset"}], scenario())
    assert met({"estimator": "rloo"}, scenario(), scenario(estimator="rloo")), "of any variant"
    assert met(ALWAYS, scenario())
    assert not met(None, scenario())


def test_any_matches_every_numeric_tensor():
    """A helper's bug is also visible at a loss that calls the helper, but the loss has other names of inputs."""
    loss = {"advantages": tensor([[1.0, math.nan]], "float32"), "response_mask": tensor([[1, 0]], "int64")}
    assert met({"any": "non-finite where masked"}, loss, contract=LOSS)
    assert not met({"token_level_rewards": "non-finite where masked"}, loss, contract=LOSS)
    preference = CONTRACTS["preference_loss"]
    assert met({"response_mask": "no token"}, {preference.mask: tensor([[0]], "int64")}, contract=preference)


def test_only_limits_the_wrong_keys():
    trigger = Trigger(alternatives([{"only": ["returns"]}, {"group": "one group", "only": ["advantages"]}]))
    assert trigger.explain(GROUPS, [scenario()]).keys == {"returns"}
    assert trigger.explain(GROUPS, [scenario(group=["p"] * 4)]).keys == {"returns", "advantages"}
    assert not trigger.explain(GROUPS, [scenario()]).whole


def test_an_entry_of_also_breaks_is_a_name_or_has_a_condition():
    assert also_broken_laws({"also_breaks": ["one", {"law": "other", "when": ALWAYS}]}) == ("one", "other")


@pytest.mark.parametrize(
    ("condition", "shown", "plain"),
    [
        ("unequal lengths", {"parts": [[1.0], [0.0, 1.0]]}, {"parts": [[1.0], [0.0]]}),
        ("a missing value", {"parts": [[1.0], [None]]}, {"parts": [[1.0], [0.0]]}),
        ("a missing value", {"parts": [1.0, None]}, {"parts": []}),
        ("longer than k", {"parts": [1, 2], "k": 1}, {"parts": [1, 2], "k": 2}),
        ("longer than k", {"parts": [1], "k": 0}, {"parts": [1]}),
    ],
)
def test_lists_have_their_own_conditions(condition, shown, plain):
    when = {"parts": condition}
    assert met(when, shown)
    assert not met(when, plain)


@pytest.mark.slow
def test_the_scenario_of_each_shipped_recipe_triggers_its_own_bug():
    strays = []
    for recipe in find_recipes(CATALOG):
        contract = CATALOG.contracts[recipe.contract]
        explained = recipe.trigger(recipe.invariant or contract.law).explain(contract, [*recipe.variants.values()])
        if "when" in recipe.document and not explained.whole and not explained.keys:
            strays.append(recipe.bug_id)
    assert strays == []
