"""Recipes are read and completed, and errors in them are reported with their place."""

# ruff: noqa: E501 (a sentence of an error is easier to compare on one line)
import copy
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sentinel.errors import RecipeError, SentinelError
from sentinel.recipes import Expected, Recipe, adopt_pins, find_recipes, load_recipe, recipe_files
from sentinel.recipes.affects import Affected
from sentinel.recipes.catalog import bundled, bundled_catalog
from sentinel.recipes.check import check_files
from sentinel.recipes.digests import document_digest
from sentinel.recipes.found import found_id
from sentinel.recipes.grades import count_bugs, realism
from sentinel.recipes.rules import examine_document
from sentinel.recipes.structure import schema
from sentinel.recipes.template import template
from sentinel.targets.refs import Ref
from sentinel.values.documents import read_text
from sentinel.values.literals import New, tensor
from sentinel.values.tolerance import Tolerance

_spec = importlib.util.spec_from_file_location("recipe_catalog", Path(__file__).with_name("recipe_catalog.py"))
toys: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toys)

CATALOG = toys.catalog()
PUBLISHED = Path(__file__).parent / "data" / "published"
SHA = "0123456789abcdef0123456789abcdef01234567"

GOOD = f"""\
recipe_version: 1
bug_id: TOY-1
title: masked losses are summed
target: toy
contract: aggregation
boundary: toy.losses.agg_loss
scenario:
  loss_mat: [[1.0, 100.0]]
  loss_mask: [[1, 0]]
expected_unpatched: {{token_mean_loss: 101.0}}
expected_fixed: {{loss: 1.0}}
pins:
  - {{ref: 'git:{SHA}', expect: reproduced}}
"""


def load(text: str, catalog: Any = CATALOG, name: str = "TOY-1.yaml", json: bool = False) -> Recipe:
    recipe, problems = examine_document(read_text(text.encode(), "json" if json else "yaml"), Path(name), catalog)
    if recipe is None:
        raise RecipeError("\n".join(str(problem) for problem in problems))
    return recipe


def refusal(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(text)
    return str(caught.value).splitlines()


def dump(document: Any) -> str:
    """Write YAML without the aliases that PyYAML uses for repeated objects."""
    return yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False)


def changed(**keys: Any) -> str:
    """Return the good recipe with other keys, as YAML; None removes a key."""
    document = yaml.safe_load(GOOD) | keys
    return dump({key: value for key, value in document.items() if value is not None})


def variants(**keys: Any) -> str:
    return changed(
        scenario={"response_mask": [[1, 0]]},
        variants={"baseline": {"loss_mat": [[1.0, 0.0]]}, "outlier": {"loss_mat": [[1.0, 9.0]]}},
        **({"expected_unpatched": {"outlier.loss": 10.0}, "expected_fixed": {"outlier.loss": 1.0}} | keys),
    )


# -- a recipe after reading


def test_a_recipe_has_canonical_names_and_defaults_filled_in():
    recipe = load(GOOD)
    assert recipe.variants == {
        "": {
            "loss_mat": tensor([[1.0, 100.0]], "float32"),
            "response_mask": tensor([[1, 0]], "int64"),
            "mode": "token-mean",
            "old_log_probs": tensor([[0.0, 0.0]], "float32"),
            "scale": None,
            "theta": 1.0,
        }
    }
    assert list(recipe.variants[""]) == [item.name for item in toys.AGGREGATION.inputs]
    assert recipe.defaulted == ("mode", "old_log_probs", "scale", "theta")
    assert recipe.expected_unpatched == {"loss": Expected(101.0)}
    assert recipe.expected_fixed == {"loss": Expected(1.0)}
    assert recipe.digest == document_digest(recipe.document)
    assert [(pin.ref, pin.expect) for pin in recipe.pins] == [(Ref("git", SHA), "reproduced")]
    assert recipe.invariant is None
    assert recipe.notes == ()
    assert recipe.document == yaml.safe_load(GOOD)


def test_variants_are_the_scenario_with_overrides():
    recipe = load(
        variants(
            expected_unpatched={"difference( outlier,baseline ).token_mean_loss": 9.0},
            expected_fixed={"difference(outlier, baseline).loss": 0.0},
        )
    )
    assert {name: inputs["loss_mat"].nested() for name, inputs in recipe.variants.items()} == {
        "baseline": [[1.0, 0.0]],
        "outlier": [[1.0, 9.0]],
    }
    assert list(recipe.expected_unpatched) == ["difference(outlier, baseline).loss"]


def test_without_expected_values_a_law_decides():
    bare = {"expected_unpatched": None, "expected_fixed": None}
    assert load(changed(**bare)).invariant == "masked_values_have_no_influence"
    assert load(changed(**bare, invariant="order_does_not_matter")).invariant == "order_does_not_matter"


def test_expected_values_carry_dtype_and_tolerance():
    recipe = load(
        changed(
            expected_unpatched={
                "loss": {"value": 1, "tolerance": {"relative": 1e-3}},
                "gradient": {"tensor": [[1, 2]]},
            },
            expected_fixed={"loss": {"tensor": 2.0, "dtype": "float64", "exact": True}, "gradient": [["NaN", 2]]},
            tolerance={"absolute": 0.01},
        )
    )
    assert recipe.tolerance == Tolerance(absolute=0.01)
    assert recipe.expected_unpatched["loss"] == Expected(1, Tolerance(relative=1e-3))
    assert recipe.expected_unpatched["gradient"].value == [[1, 2]]
    assert recipe.expected_fixed["loss"] == Expected(tensor(2.0, "float64"), Tolerance(exact=True))
    assert str(recipe.expected_fixed["gradient"].value) == "[[nan, 2]]"


def test_the_contract_may_be_omitted_for_a_bound_function():
    assert load(changed(contract=None)).contract == "aggregation"
    assert load(changed(contract=None, boundary="toy.old.agg_loss")).contract == "aggregation"


def test_the_contract_call_pins_any_function():
    recipe = load(
        changed(
            contract="call",
            boundary="toy_plugins.deep.function",
            scenario={"arguments": {"batch": {"new": "toy.Batch", "arguments": {"x": {"tensor": [1]}}}}},
            expected_unpatched={"returned.advantages": [1.0]},
            expected_fixed={"raised": "ValueError"},
            requires="toy.config.Config.field",
        )
    )
    assert recipe.variants[""] == {"arguments": {"batch": New("toy.Batch", {"x": tensor([1], "int64")})}}
    assert recipe.requires == ("toy.config.Config.field",)


def test_other_keys_of_a_recipe_are_kept():
    recipe = load(
        changed(
            upstream={"pull": 7, "status": "open", "url": "https://example.org/7"},
            watch=["git:main", "pypi:latest"],
            affects=["GRPO", {"when": {"n": "> 1"}}],
            until={"n": 1, "clip": None},
            story="Once.\n",
            requires=["toy.f(kl_coef)", "toy_plugins.x"],
            severity="high",
        )
    )
    assert recipe.upstream == {"pull": 7, "status": "open", "url": "https://example.org/7"}
    assert recipe.watch == (Ref("git", "main"), Ref("pypi", "latest"))
    assert recipe.affects == (Affected(where="GRPO"), Affected({"n": "> 1"}))
    assert recipe.until == {"n": "1", "clip": "null"}
    assert recipe.story == "Once."
    assert recipe.requires == ("toy.f(kl_coef)", "toy_plugins.x")


# -- errors


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD.replace("toy.losses.agg_loss", "toy.losses.agg_los"), "TOY-1.yaml:6:11: unknown boundary 'toy.losses.agg_los' — did you mean 'agg_loss'?"),
        (GOOD.replace("toy.losses.agg_loss", "os.system"), "6:11: boundary: 'os.system' is outside the target's packages toy, toy_plugins"),
        (GOOD.replace("toy.losses.agg_loss", "../toy/x.py"), "6:11: boundary: the string '../toy/x.py' is not a dotted path"),
        (GOOD.replace("toy.losses.agg_loss", "toy"), "'toy' is a package, not a function"),
        (GOOD.replace("toy.losses.agg_loss", "toy.actor.Actor._advantages"), "5:11: adapter toy binds toy.actor.Actor._advantages to step, not to aggregation"),
        (GOOD.replace("contract: aggregation", "contract: agregation"), "5:11: unknown contract 'agregation' — did you mean 'aggregation'?"),
        (GOOD.replace("target: toy", "target: toi"), "4:9: unknown target 'toi' — did you mean 'toy'?"),
        (GOOD.replace("loss_mat:", "loss_matt:"), "8:3: unknown input 'loss_matt' of contract aggregation — did you mean 'loss_mat'?"),
        (GOOD.replace("loss_mat:", "# loss_mat:"), "the scenario lacks 'loss_mat', which contract aggregation requires: per-token losses"),
        (GOOD.replace("[[1, 0]]", "[[1, 0], [1]]"), "9:23: loss_mask: ragged: [1] has length 1, but [0] has length 2"),
        (GOOD.replace("[[1, 0]]", "[[1, 0.5]]"), "9:19: loss_mask: the number 0.5 does not fit dtype int64"),
        (GOOD.replace("[[1, 0]]", "null"), "9:14: loss_mask: expected a tensor"),
        (GOOD.replace("  loss_mask: [[1, 0]]", "  loss_mask: [[1, 0]]\n  response_mask: [[1, 0]]"), "10:3: 'response_mask' means 'response_mask', which is already set as 'loss_mask'"),
        (GOOD.replace("title:", "titel:"), "3:1: unknown key 'titel' — did you mean 'title'?"),
        (GOOD.replace("title: masked losses are summed", "title: 3"), "3:8: title must be a string, found the number 3"),
        (GOOD.replace("recipe_version: 1", "recipe_version: 2"), "1:17: recipe_version must be 1, found the number 2"),
        (GOOD.replace("bug_id: TOY-1\n", ""), "1:1: missing key 'bug_id'"),
        (GOOD.replace("TOY-1", "../TOY"), "2:9: bug_id: the string '../TOY' is not valid; Letters, digits"),
        (GOOD.replace("bug_id: TOY-1", 'bug_id: "TOY\\n"'), "2:9: bug_id: the string 'TOY"),
        (GOOD + "reach: {producer: a/b.py, how: x}\n", "14:19: reach.producer: the string 'a/b.py' is not valid; Where the value"),
        (GOOD + "reach: {producer: none}\n", "missing key 'how'"),
        (GOOD + "affects: [{wehn: {a.b: 1}}]\n", "14:12: unknown key 'wehn' — did you mean 'when'?"),
        (GOOD + "affects: [{when: {a.b: '>1'}}]\n", "14:24: affects[0].when.a.b: the string '>1' is not valid; a value, a list of values"),
        (GOOD + "affects: [{when: {a b: 1}}]\n", "14:19: 'a b' is not the dotted name of a setting"),
        (GOOD + "reach: {producer: a.py:1@0.1, how: x, when: {a.b: c}}\naffects: [{when: {a.d: 1}}]\n", "15:12: reach needs a.b=c, but affects[0] does not set a.b; add it there"),
        (GOOD + "reach: {producer: a.py:1@0.1, how: x, when: {a.b: false}}\naffects: [{when: {a.b: true}}]\n", "15:19: reach needs a.b=false, but affects[0] has a.b=true; no value meets both conditions"),
        (GOOD + "reach: {producer: a.py:1@0.1, how: x, when: {a.b: '> 1'}}\naffects: [{when: {a.b: [0, 1]}}]\n", "15:19: reach needs a.b > 1, but affects[0] has a.b=0 or 1; no value meets both conditions"),
        (GOOD.replace("loss: 1.0", "los: 1.0"), "11:18: unknown observation 'los' — did you mean 'loss'?"),
        (GOOD.replace("loss: 1.0", "loss: {valu: 1.0}"), "11:25: unknown key 'valu' — did you mean 'value'?"),
        (GOOD.replace("loss: 1.0", "loss: {value: [1, a], dtype: int64}"), "11:36: loss: expected a number, found the string 'a'"),
        (GOOD.replace("loss: 1.0", "loss: 1.0, token_mean_loss: 1.0"), "'token_mean_loss' means 'loss', which already has an expected value above"),
        (GOOD.replace("loss: 1.0", "loss: {}"), "write an expected value directly, or as {value: ...}"),
        (GOOD.replace("expect: reproduced", "expect: broken"), "must be one of reproduced, fixed, changed, unavailable, inconclusive; found the string 'broken'"),
        (GOOD.replace("expect: reproduced", "expect: fixd"), "did you mean 'fixed'?"),
        (GOOD.replace(f"git:{SHA}", "git:main"), "13:11: git:main is not immutable; write a moving ref in watch:"),
        (GOOD.replace(f"git:{SHA}", "path:../x"), "is not immutable; a pin must not refer to this machine"),
        (GOOD.replace(f"git:{SHA}", "git:--upload-pack=x"), "13:11: not a ref"),
        (changed(pins=2 * [{"ref": f"git:{SHA}", "expect": "fixed"}]), "is pinned twice"),
        (changed(watch=["path:/tmp"]), "path: refs differ between machines"),
        (changed(watch=["main"]), "not a ref: 'main'"),
        (changed(requires=["toy.x", "os.path"]), "requires: 'os.path' is outside the target's packages"),
        (changed(also_breaks=["order_does_not_mater"]), "22:3: unknown invariant 'order_does_not_mater' — did you mean 'order_does_not_matter'?"),
        (changed(also_breaks=[{"law": "order_does_not_matter"}]), "missing key 'when'"),
        (GOOD + "when: often\n", "14:7: when: the string 'often' is not valid; The scenarios that trigger the bug"),
        (GOOD + "when: {}\n", "when is empty"),
        (GOOD + "when: {response_mas: a gap}\n", "14:8: no contract has an input 'response_mas' — did you mean 'response_mask'?"),
        (GOOD + "when: {response_mask: a hole}\n", "14:23: a condition on a tensor is one of: non-zero where masked"),
        (GOOD + "when: [{mode: a gap}]\n", "14:15: mode is an option, not a tensor"),
        (GOOD + "when: {only: [los]}\n", "14:15: no contract observes 'los' — did you mean 'loss'?"),
        (changed(expected_unpatched=None), "expected_fixed needs expected_unpatched"),
        (changed(expected_fixed=None, invariant="order_does_not_matter"), "expected_unpatched needs expected_fixed"),
        (changed(expected_fixed={}), "expected_fixed is empty"),
        (changed(tolerance={"exact": True, "relative": 0.1}), "exact: true excludes a tolerance"),
        (changed(tolerance={"relative": -1}), "tolerance.relative: the number -1 is not valid"),
        (changed(tolerance={"relative": float("inf")}), "relative must be a finite number"),
        (changed(upstream={"url": "javascript:alert(1)"}), "upstream.url"),
        (changed(variants={}), "variants is empty"),
        (changed(variants={"a b": {}}), "'a b' is not a name of letters, digits and _"),
        (changed(variants={"difference": {}}), "'difference' is not a name"),
        (changed(variants={"a": [1]}), "variants.a must be a mapping or null, found a list"),
        (variants(expected_fixed={"loss": 1.0}), "does not name a variant (baseline, outlier); write baseline.loss"),
        (variants(expected_fixed={"basline.loss": 1.0}), "did you mean 'baseline'?"),
        (variants(expected_fixed={"difference(outlier, basline).loss": 1.0}), "unknown variant 'basline'"),
        (changed(contract=None, boundary="toy.both.function"), "is bound to several contracts (aggregation, step): add contract:"),
        (changed(contract="step", boundary="toy.actor.Actor._advantages", scenario={"rewards": [1]}, expected_unpatched=None, expected_fixed=None), "the recipe cannot decide"),
        (changed(contract="call", scenario={"arguments": {"f": {"attribute": "os.system"}}}, expected_unpatched={"returned": 1}, expected_fixed={"returned": 2}), "arguments: 'os.system' is outside the target's packages"),
        (changed(target="other", contract="step", boundary="other.f", scenario={"rewards": [1]}, expected_unpatched={"advantages": 1}, expected_fixed={"advantages": 2}, pins=[{"ref": "pypi:1.0", "expect": "fixed"}]), "target other has no releases on PyPI"),
        ("- a\n", "1:1: a recipe is a mapping that begins with recipe_version: 1; found a list"),
    ],
)  # fmt: skip
def test_errors_name_the_place_and_the_nearest_name(text, sentence):
    assert any(sentence in line for line in refusal(text)), refusal(text)


@pytest.mark.parametrize(
    ("unpatched", "fixed", "keys", "told_apart"),
    [
        ({"loss": 1.0}, {"loss": 1.0}, {}, False),
        ({"loss": 1.0}, {"loss": 1.0 + 1e-13}, {}, False),
        ({"loss": 1.0}, {"loss": 1.0001}, {}, True),
        ({"loss": 1.0}, {"loss": 1.0000001}, {}, False),
        ({"loss": {"value": 1.0, "dtype": "float64"}}, {"loss": {"value": 1.0000001, "dtype": "float64"}}, {}, True),
        ({"loss": 1.0}, {"loss": 3.0}, {"tolerance": {"absolute": 5.0}}, False),
        ({"loss": {"value": 1.0, "tolerance": {"absolute": 5.0}}}, {"loss": 3.0}, {}, False),
        ({"loss": 1.0}, {"loss": 1.0 + 1e-13}, {"tolerance": {"exact": True}}, True),
        ({"loss": float("nan")}, {"loss": float("nan")}, {}, False),
        ({"loss": float("nan")}, {"loss": 1.0}, {}, True),
        ({"loss": 1.0, "gradient": [[0.0]]}, {"loss": 1.0, "gradient": [[0.5]]}, {}, True),
        ({"loss": 1.0, "gradient": [[0.0]]}, {"loss": 1.0}, {}, False),
        ({"loss": 1.0}, {"gradient": [[0.5]]}, {}, True),
        ({"gradient": [[0.0, 1.0]]}, {"gradient": [[0.0]]}, {}, True),
        ({"loss": {"value": 1, "dtype": "float32"}}, {"loss": {"value": 1, "dtype": "float64"}}, {}, True),
        ({"loss": {"value": 1, "dtype": "float32"}}, {"loss": 1.0}, {}, False),
        ({"loss": None}, {"loss": 0.0}, {}, True),
    ],
)
def test_indistinguishable_expectations_are_rejected(unpatched, fixed, keys, told_apart):
    text = changed(expected_unpatched=unpatched, expected_fixed=fixed, **keys)
    if told_apart:
        assert load(text).expected_fixed
    else:
        assert "cannot be distinguished" in refusal(text)[0]


def test_all_problems_are_reported_at_once():
    text = GOOD.replace("title:", "titel:").replace("loss: 1.0", "los: 1.0").replace("[[1, 0]]", "[[x]]")
    lines = refusal(text.replace(f"git:{SHA}", "git:main"))
    assert [line.split(":")[1] for line in lines] == ["3", "13", "9", "11"]


def test_a_default_that_cannot_be_computed_asks_for_the_input():
    text = GOOD.replace("[[1, 0]]", "1")
    assert "the default of 'old_log_probs' failed for this scenario" in refusal(text)[0]


# -- files and folders


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe", b"a: [", b"a: 1\na: 2", b"[" * 100_000, b"a: &a [*a]", b"recipe_version: 1"]
)
def test_a_file_that_is_not_a_recipe_is_reported_with_line_and_column(tmp_path, monkeypatch, raw):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_bytes(raw)
    with pytest.raises(RecipeError, match=r"^x\.yaml:[12]:\d+: "):
        load_recipe(tmp_path / "x.yaml", CATALOG)


def write(folder: Path, name: str, text: str = GOOD) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_two_files_of_one_bug_id_are_an_error_that_names_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "toy/TOY-1.yaml")
    write(tmp_path, "toy/again.yml", GOOD.replace("TOY-1", "toy-1"))
    with pytest.raises(
        RecipeError, match=r"^toy/again\.yml:2:9: duplicate bug id 'toy-1'; it is also in toy/TOY-1\.yaml$"
    ):
        find_recipes(replace(CATALOG, recipe_folders=(tmp_path,)))
    assert any("duplicate bug id" in str(item) for item in check_files(recipe_files(tmp_path), CATALOG))


def test_a_folder_reports_the_errors_of_all_its_files(tmp_path):
    write(tmp_path, "a.yaml", GOOD.replace("target: toy", "target: toi"))
    write(tmp_path, "b.yaml", "x: [")
    write(tmp_path, "c.yaml")
    with pytest.raises(RecipeError) as caught:
        find_recipes(replace(CATALOG, recipe_folders=(tmp_path,)))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.slow
def test_recipes_are_found_by_target_and_bug(tmp_path):
    write(tmp_path, "toy/TOY-1.yaml")
    write(tmp_path, "toy/TOY-2.yaml", GOOD.replace("TOY-1", "TOY-2"))
    write(tmp_path, "other/broken.yaml", "x: [")
    found = toys.catalog(tmp_path, tmp_path / "toy")
    assert [item.bug_id for item in find_recipes(found, ["toy"])] == ["TOY-1", "TOY-2"]
    assert [item.bug_id for item in find_recipes(found, ["toy"], ["*-2"])] == ["TOY-2"]
    with pytest.raises(SentinelError, match="unknown target 'toi' — did you mean 'toy'"):
        find_recipes(found, ["toi"])
    with pytest.raises(SentinelError, match="no recipe matches 'TOI-1' — did you mean 'TOY-1'"):
        find_recipes(found, ["toy"], ["TOI-1"])
    with pytest.raises(SentinelError, match=r"no recipe matches 'X\*'; `sentinel list recipes` lists all"):
        find_recipes(found, ["toy"], ["X*"])
    with pytest.raises(RecipeError, match="broken"):
        find_recipes(found)
    with pytest.raises(SentinelError, match="no recipe of verl matches 'ROLL-GAE-\\*'; roll has it"):
        find_recipes(bundled_catalog(), ["verl"], ["ROLL-GAE-*"])
    with pytest.raises(SentinelError, match="no such folder"):
        find_recipes(toys.catalog(tmp_path / "absent"))


# -- published blobs


def blob(**keys: Any) -> str:
    document = {
        "bug_id": "TOY-1",
        "validation_mode": "real_boundary",
        "hooked_boundary": "toy.losses.agg_loss",
        "constructed_scenario": {"loss_mask": [[1, 0]], "baseline_loss_mat": [[1, 0]], "outlier_loss_mat": [[1, 9]]},
        "expected_invariant": "Masked losses do not count.",
    }
    return json.dumps({key: value for key, value in (document | keys).items() if value is not None})


def test_a_published_blob_has_its_target_variants_and_law_inferred():
    recipe = load(blob(kind="x", requirements={"target_repo": "${TARGET_REPO}"}), json=True)
    assert (recipe.target, recipe.contract, recipe.published) == ("toy", "aggregation", True)
    assert {name: inputs["loss_mat"].nested() for name, inputs in recipe.variants.items()} == {
        "baseline": [[1.0, 0.0]],
        "outlier": [[1.0, 9.0]],
    }
    assert recipe.invariant == "masked_values_have_no_influence"
    assert recipe.story == "Masked losses do not count."
    assert recipe.document["requirements"] == {"target_repo": "${TARGET_REPO}"}
    assert recipe.notes == ()


def test_unknown_keys_of_a_published_blob_are_notes():
    scenario = {"loss_mat": [[1.0]], "response_mask": [[1]], "row_1_is_bad": True}
    recipe = load(blob(constructed_scenario=scenario, severty="x", pins=["git:main"]), json=True)
    assert list(recipe.variants) == [""]
    assert [note.partition("warning: ")[2] for note in recipe.notes] == [
        "unknown key 'severty' is ignored",
        "unknown key 'pins' is ignored",
        "'row_1_is_bad' is not an input of contract aggregation; it has no effect",
    ]
    assert recipe.pins == ()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hooked_boundary": "tooy.losses.agg_loss"}, "is not in a package of a known target — did you mean 'toy'?"),
        ({"hooked_boundary": "toy.losses.agg_los"}, "did you mean 'agg_loss'?"),
        ({"hooked_boundary": None}, "missing key 'hooked_boundary'"),
        ({"target": "other"}, "outside the target's package other"),
        ({"expected_fixed": {"outlier.loss": 1.0}}, "expected_fixed needs expected_unpatched"),
        ({"expected_fixed": {"outlier.x": 1.0}, "expected_unpatched": {"outlier.x": 2.0}}, "unknown observation 'x'"),
        (
            {"hooked_boundary": "toy.actor.Actor._advantages", "constructed_scenario": {"rewards": [1]}},
            "the recipe cannot decide",
        ),
        ({"constructed_scenario": {"loss_mat": [[1]]}}, "lacks 'response_mask'"),
        ({"bug_id": "a/../b"}, "bug_id"),
        ({"recipe_version": 1}, "unknown key 'validation_mode'"),
    ],
)
def test_a_missing_key_of_a_published_blob_is_an_error(keys, words):
    assert any(words in line for line in refusal(blob(**keys)))


@pytest.mark.parametrize(
    ("name", "target", "contract", "names"),
    [
        ("ROLL-AGGLOSS-TOKENMEAN-MASK", "roll", "loss_aggregation", [""]),
        ("AREAL-REWARD-NORM-NO-EOS-LEAK", "areal", "advantage_step", ["baseline", "outlier"]),
    ],
)
def test_the_two_published_blobs_load_verbatim(name, target, contract, names):
    recipe = load_recipe(PUBLISHED / f"{name}.json", bundled_catalog())
    assert (recipe.bug_id, recipe.target, recipe.contract, list(recipe.variants)) == (name, target, contract, names)
    assert recipe.published
    assert jsonschema_rs.is_valid(schema(), recipe.document)


def test_a_published_blob_takes_the_place_of_the_bundled_recipe_and_its_pins(tmp_path):
    write(tmp_path / "bundled", "toy/TOY-1.yaml", GOOD + "watch: ['git:main']\nupstream: {pull: 3}\n")
    write(tmp_path / "mine", "blob.json", blob())
    [recipe] = find_recipes(toys.catalog(tmp_path / "bundled", tmp_path / "mine"))
    assert recipe.published
    assert [str(pin.ref) for pin in recipe.pins] == [f"git:{SHA}"]
    assert recipe.watch == (Ref("git", "main"),)
    assert recipe.upstream == {"pull": 3}
    assert adopt_pins(load(GOOD), {"TOY-1": recipe}) == load(GOOD)


# -- schema, lint, template, laws


_scalars = st.sampled_from(
    [None, True, 0, 1, 1.0, -2, 0.5, "x", "TOY-1", "reproduced", "float32", "https://a", [], {}, [1], {"x": 1}, ["x"]]
)


@st.composite
def _documents(draw):
    """Draw a good document with a few places replaced, removed or added."""
    document = copy.deepcopy(
        draw(st.sampled_from([yaml.safe_load(GOOD), yaml.safe_load(variants()), json.loads(blob())]))
    )
    document |= copy.deepcopy(
        draw(st.sampled_from([{}, {"upstream": {"pull": 1}}, {"tolerance": {"relative": 1}}, {"requires": ["toy.x"]}]))
    )
    for _ in range(draw(st.integers(0, 3))):
        place = document
        key = draw(st.sampled_from(sorted(place)))
        while isinstance(place[key], dict) and place[key] and draw(st.booleans()):
            place = place[key]
            key = draw(st.sampled_from(sorted(place)))
        action = draw(st.sampled_from(["put", "remove", "add"]))
        if action == "put":
            place[key] = copy.deepcopy(draw(_scalars))
        elif action == "remove" and len(document) > 1:
            del place[key]
        else:
            names = ["x", "validation_mode", "recipe_version", "tolerance", "value", "exact"]
            place[draw(st.sampled_from(names))] = copy.deepcopy(draw(_scalars))
    return document


@pytest.mark.slow
@given(_documents())
def test_every_error_of_a_document_has_a_place(document):
    text = dump(document)
    recipe, problems = examine_document(read_text(text.encode()), Path("x.yaml"), CATALOG)
    assert (recipe is None) == any(problem.severity == "error" for problem in problems)
    assert all(1 <= problem.line <= text.count("\n") + 1 for problem in problems)


def test_check_reports_possible_improvements(tmp_path):
    path = write(tmp_path, "elsewhere.yaml", changed(pins=None, title=None))
    messages = [problem.message for problem in check_files([path], CATALOG)]
    assert [message.split(":")[0] for message in messages] == [
        "name the file TOY-1.yaml, like its bug id",
        "no pins",
        "no title",
    ]
    assert all(problem.severity == "warning" for problem in check_files([path], CATALOG))
    assert check_files([write(tmp_path, "TOY-1.yaml")], CATALOG) == []


def test_an_unknown_mode_is_a_warning(tmp_path):
    """An error would reject a mode that only upstream knows."""
    recipe = bundled("recipes") / "verl" / "VERL-ACTOR-TOKEN-MEAN-OF-MICROBATCH.yaml"
    path = tmp_path / recipe.name
    path.write_text(re.sub("loss_agg_mode: .*", "loss_agg_mode: tokn-mean", recipe.read_text(), count=1))
    assert check_files([recipe], bundled_catalog()) == []
    (problem,) = check_files([path], bundled_catalog())
    assert (problem.severity, problem.message) == (
        "warning",
        "policy_update has no loss_agg_mode 'tokn-mean' — did you mean 'token-mean'?",
    )


def test_a_template_checks_once_it_is_filled_in_and_not_before(tmp_path):
    text = template("TOY-9", "toy", "toy.losses.agg_loss", toys.AGGREGATION)
    path = write(tmp_path, "TOY-9.yaml", text)
    assert {problem.message for problem in check_files([path], CATALOG)} == {
        "still contains the placeholder TODO"
    }  # all errors at once
    filled = (
        text.replace("loss_mat: TODO", "loss_mat: [[1.0, 5.0]]")
        .replace("response_mask: TODO", "response_mask: [[1, 0]]")
        .replace("  loss: TODO", "  loss: 6.0", 1)
        .replace("  loss: TODO", "  loss: 1.0", 1)
        .replace("git:TODO", f"git:{SHA}", 1)
        .replace("git:TODO", f"git:{SHA[::-1]}", 1)
        .replace("title: TODO", "title: masked losses count")
    )
    problems = check_files([write(tmp_path, "TOY-9.yaml", filled)], CATALOG)
    assert [problem.message for problem in problems] == ["still contains the placeholder TODO"]
    assert check_files([write(tmp_path, "TOY-9.yaml", filled.replace("TODO: what", "What"))], CATALOG) == []


def test_there_is_a_template_for_each_contract():
    for name, contract in bundled_catalog().contracts.items():
        document = read_text(template("1E5", "toy", contract=contract).encode()).data
        assert (document["bug_id"], document["contract"]) == ("1E5", name)


@pytest.mark.slow
def test_every_shipped_recipe_loads_and_lints():
    catalog = bundled_catalog()
    files = [path for folder in catalog.recipe_folders if folder.is_dir() for path in recipe_files(folder)]
    assert [str(problem) for problem in check_files(files, catalog)] == []


@pytest.mark.parametrize(
    ("reach", "real"),
    [
        ({"producer": "a/b.py:3@8eb27cc2dc34", "how": "x", "shipped": "a.yaml:1@8eb27cc2dc34"}, "default"),
        ({"producer": "a/b.py:3@8eb27cc2dc34", "how": "x"}, "configuration"),
        ({"producer": "a/b.py:3@8eb27cc2dc34", "how": "x", "shipped": "a:1@8eb27cc2dc34", "fault": True}, "fault"),
        ({"producer": "none", "how": "nothing calls it"}, "unreachable"),
        (None, ""),
    ],
)
def test_realism_follows_from_reach(reach, real):
    assert realism({} if reach is None else {"reach": reach}) == real


def test_counts_are_of_root_causes_with_hardening_separate():
    rows = [
        {"target": "t", "root": name, "realism": real}
        for name, real in zip("aabc", ["", "", "fault", "unreachable"], strict=True)
    ]
    assert count_bugs(rows) == "2 bugs (3 recipes) and 1 of hardening (1)"
    assert count_bugs(rows[:1]) == "1 bug (1 recipe)"


RULE = """\
recipe_version: 1
bug_id: RULE
title: a wording
target: verl
contract: rule_reward
boundary: verl.utils.reward_score.gsm8k.compute_score
scenario:
  ground_truth: "42"
  wording: {wording}
expected_unpatched: {{right_above_wrong: 0}}
expected_fixed: {{right_above_wrong: 1}}
"""


@pytest.mark.parametrize(
    ("wording", "good"),
    [
        ("boxed", True),
        ('"#### {answer}"', True),
        (r'"so \\fbox{{{answer}}}"', True),
        (r'"so \\fbox{{answer}}"', False),
        ("no answer", False),
        ('"{other}"', False),
        ('"{answer"', False),
        ('"{answer[x]}"', False),
        ('"{0}"', False),
        ('"{answer} {answer:>1000000000}"', False),
        ('"{answer.__class__}"', False),
    ],
)
def test_a_wording_must_contain_the_answer(wording, good):
    """Without the answer, the contract's oracle divided by zero, which looked like an exception of upstream."""
    text = RULE.format(wording=wording)
    if good:
        assert load(text, bundled_catalog()).bug_id == "RULE"
        return
    with pytest.raises(RecipeError, match=r"RULE.yaml:9:12: wording: .* has no \{answer\}"):
        load(text, bundled_catalog(), "RULE.yaml")


def test_a_law_that_compares_needs_variants():
    alone = changed(expected_unpatched=None, expected_fixed=None)
    with pytest.raises(
        RecipeError, match="the law masked_values_have_no_influence compares variants, but the recipe has none"
    ):
        load(alone, bundled_like())
    one = {"variants": {"only": {"loss_mat": [[1.0, 2.0]]}}}
    two = {"variants": {"one": {"loss_mat": [[1.0, 2.0]]}, "other": {"loss_mat": [[1.0, 3.0]]}}}
    with pytest.raises(RecipeError, match="compares variants"):
        load(changed(expected_unpatched=None, expected_fixed=None, **one), bundled_like())
    assert load(changed(expected_unpatched=None, expected_fixed=None, **two), bundled_like()).invariant
    assert load(changed(expected_unpatched=None, expected_fixed=None, invariant="finite_in_finite_out"), bundled_like())


def bundled_like() -> Any:
    """The catalog of toys with the bundled laws, which declare whether they compare variants."""
    return replace(CATALOG, laws=bundled_catalog().laws)


def test_a_setting_that_the_boundary_needs_must_be_given(tmp_path):
    recipe = bundled("recipes") / "verl" / "VERL-PPO-MASKED-NAN-GRADIENT.yaml"
    path = tmp_path / recipe.name
    path.write_text(re.sub(r"\n  dual_clip: .*|dual_clip: [^,}]*,? ?", "", recipe.read_text()))
    (problem,) = check_files([path], bundled_catalog())
    assert (problem.severity, problem.message) == (
        "error",
        "verl.trainer.ppo.core_algos.compute_policy_loss_vanilla needs dual_clip, which is null by default: add it to the scenario, such as dual_clip: 3.0",
    )
    path.write_text(path.read_text().replace("\nscenario:\n", "\nscenario:\n  dual_clip: null\n"))
    assert check_files([path], bundled_catalog()) == [], "written, it is meant"


def test_the_id_of_a_finding_is_valid_although_its_symptom_has_spaces():
    name = found_id("toy", "toy.core._reject_mask", "every_knob_counts", "no effect of threshold_high")
    assert name == "TOY-REJECT-MASK-EVERY-KNOB-COUNTS-NO-EFFECT-OF-THRESHOLD-HIGH"
    assert jsonschema_rs.is_valid(schema(), {**load(GOOD).document, "bug_id": name})
