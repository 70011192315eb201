"""Functions that a revision registers are bound like a member of their family."""

from dataclasses import replace
from pathlib import Path

import pytest
from demo_kit import copy_demo

from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import registered, subjects
from sentinel.sources import open_checkout
from sentinel.targets import Dialect
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

#: A pull request adds a mean that divides by the number of all tokens, including masked ones.
ADDED = """
def register_aggregation(name):
    return lambda function: function


@register_aggregation("all-tokens")
def mean_over_all_tokens(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return loss_mat.mean()
"""


def opened(tree: Path) -> Checkout:
    return Checkout("demo", Ref("path", str(tree)), tree, ("demo_rl",), (tree,), "0" * 64)


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("new.py", "@register_aggregation('a')\ndef one(x):\n    pass\n", ["demo_rl.new.one"]),
        ("new.py", "@losses.register_aggregation(\n    'a',\n)\ndef one(x): ...\n", ["demo_rl.new.one"]),
        ("new.py", "@register_aggregation('a')\n@torch.compile\ndef one(x): ...\n", ["demo_rl.new.one"]),
        (
            "new.py",
            "@torch.compile\n@register_aggregation('a')  # type: ignore\ndef one(x): ...\n",
            ["demo_rl.new.one"],
        ),
        ("new/__init__.py", "@register_aggregation('a')\ndef one(x): ...\n", ["demo_rl.new.one"]),
        ("new.py", "@register_aggregation('a')\nclass One: ...\n\n\ndef one(x): ...\n", []),
        ("new.py", "def one(x): ...\n\nAGGREGATIONS.register('a', one)\n", ["demo_rl.new.one"]),
        ("new.py", "def one(x): ...\n\nlosses.AGGREGATIONS['a'] = one  # ours\n", ["demo_rl.new.one"]),
        ("new.py", "def put(name, one):\n    AGGREGATIONS[name] = one\n", []),  # a decorator may do that
        ("new.py", "from x import one\nAGGREGATIONS['a'] = one\n", []),
        ("new.py", "@register_estimator('a')\ndef one(x): ...\n", []),
        ("new.py", "# @register_aggregation('a')\ndef one(x): ...\n", []),
        ("new.py", "    @register_aggregation('a')\n    def one(self): ...\n", []),
        ("new.py", "@register_aggregation('a')\ndef one(x): ...\n" + "#" * (1 << 20), []),
        ("new.py", "@register_aggregation('a')\ndef one(x): ...\n\n\n" * 3, ["demo_rl.new.one"]),
        ("new\x1b[31m.py", "@register_aggregation('a')\ndef one(x): ...\n", []),
        ("new.er.py", "@register_aggregation('a')\ndef one(x): ...\n", []),
        ("losses.py", "@register_aggregation('a')\ndef agg_loss(x): ...\n", []),  # an adapter's own binding comes first
    ],
)
def test_registered_functions_are_found(tmp_path, file, text, found):
    place = tmp_path / "demo_rl" / file
    place.parent.mkdir(parents=True)
    place.write_text(text)
    members = registered(bundled_catalog().targets["demo"], opened(tmp_path))
    assert [member.boundary for member in members] == found
    assert {member.like for member in members} <= {"demo_rl.losses.agg_loss"}


def test_an_excluded_member_is_not_searched(tmp_path):
    tree = copy_demo(tmp_path / "tree")
    (tree / "demo_rl" / "more.py").write_text(ADDED)
    demo = bundled_catalog().targets["demo"]
    path = "demo_rl.more.mean_over_all_tokens"
    assert path in [member.boundary for member in registered(demo, opened(tree))]
    excluding = replace(demo.registries[0], excludes={path: "it asks a server"})
    target = replace(demo, registries=(excluding,))
    assert path not in [member.boundary for member in registered(target, opened(tree))]


def test_a_member_must_satisfy_laws_about_no_single_algorithm(tmp_path):
    tree = copy_demo(tmp_path / "tree")
    (tree / "demo_rl" / "more.py").write_text(ADDED)
    catalog = bundled_catalog()
    found = {subject.name: subject for subject in subjects(catalog, "demo", checkout=opened(tree))[0]}
    laws = {law.name for law in found["demo_rl.more.mean_over_all_tokens"].laws}
    assert "masked_values_have_no_influence" in laws
    assert not laws & {"the_oracle_agrees", "parts_add_up", "twins_agree"}
    assert "the_oracle_agrees" in {law.name for law in found["demo_rl.losses.agg_loss"].laws}
    assert "demo_rl.more.mean_over_all_tokens" not in {subject.name for subject in subjects(catalog, "demo")[0]}


def test_a_law_that_no_bound_member_satisfies_is_not_required():
    demo = bundled_catalog().targets["demo"]
    like = demo.binding("demo_rl.losses.agg_loss")
    assert like is not None
    declared = Dialect("masked_values_have_no_influence", reason="values outside the mask are 0 wherever it is called")
    first, second = replace(like, dialects=(declared,)), replace(like, boundary="demo_rl.losses.other")
    for members, kept in ((first, replace(second, dialects=(declared,))), True), ((first, second), False):
        member = replace(demo, bindings=members).binding("demo_rl.more.mean", like.contract)
        assert member is not None
        assert (declared in member.dialects) is kept


def test_a_member_gets_only_inputs_of_its_contract(tmp_path):
    tree = copy_demo(tmp_path / "tree")
    more = "loss_mat,  # of tokens\n    loss_mask, entropies: Tensor[int, int], loss_agg_mode: str = 'token-mean', *, "
    more += "unheard_of, accuracies: Tensor | None = None, config=None"
    (tree / "demo_rl" / "more.py").write_text(ADDED.replace('loss_mat, loss_mask, loss_agg_mode="token-mean"', more))
    (member,) = [one for one in registered(bundled_catalog().targets["demo"], opened(tree)) if one.like]
    assert member.takes == ("loss_mat", "loss_mask", "entropies", "unheard_of", "accuracies?", "config?")
    found = {subject.name: subject for subject in subjects(bundled_catalog(), "demo", checkout=opened(tree))[0]}
    contract = found["demo_rl.more.mean_over_all_tokens"].contract
    assert contract.input("entropies") is contract.input("unheard_of") is None  # the contract lacks these names
    assert contract.input("loss_mask") is None  # the family has it under the common name


#: A member that forwards its arguments, and one with another name for an argument.
FORWARDING = """
from demo_rl.losses import agg_loss

def register_aggregation(name):
    return lambda function: function

@register_aggregation("forwarded")
def forwarded(**kwargs):
    return agg_loss(**kwargs)

@register_aggregation("partly")
def partly(loss_mat, **kwargs):
    return agg_loss(loss_mat, **kwargs)
"""


@pytest.mark.slow
def test_a_member_with_kwargs_gets_the_arguments_of_the_bound_one(pytester, warm_runs, tmp_path):
    tree = copy_demo(tmp_path / "tree", "fixed")
    (tree / "demo_rl" / "more.py").write_text(FORWARDING)
    options = ["--sentinel-target=demo", f"--sentinel-repo={tree}", "--sentinel-laws=quick", "-p", "no:cacheprovider"]
    result = pytester.runpytest_inprocess(*options, "-k", "forwarded or partly")
    outcomes = result.parseoutcomes()
    assert "failed" not in outcomes, result.stdout.str()
    assert outcomes["passed"] >= 8  # a law may not apply to any scenario


#: A dialect for revisions that have ``agg_losses``, and one for revisions that lack it.
REVISIONS = (
    Dialect("empty_rows", "counted", since="demo_rl.losses.agg_loss(loss_mask)"),
    Dialect("sequence_norm", "mean", until="demo_rl.losses.agg_loss"),
)


def test_a_dialect_applies_to_some_revisions(tmp_path):
    catalog = bundled_catalog()
    adapter = catalog.adapters["demo"]
    first, *others = adapter.target.bindings
    target = replace(adapter.target, bindings=(replace(first, dialects=REVISIONS), *others), registries=())
    assert target.depends_on_code
    changed = replace(catalog, adapters={**catalog.adapters, "demo": replace(adapter, target=target)})
    kept = {}
    for name, function in (("has", "agg_loss"), ("lacks", "agg_losses")):
        tree = copy_demo(tmp_path / name)
        file = tree / "demo_rl" / "losses.py"
        file.write_text(file.read_text().replace("def agg_loss(", f"def {function}("))
        checkout = open_checkout(target, Ref("path", str(tree)))
        subject = subjects(changed, "demo", ["agg_loss"], checkout)[0][0]
        kept[name] = [dialect.name for dialect in subject.binding.dialects]
    assert kept == {"has": ["empty_rows"], "lacks": ["sequence_norm"]}
    everywhere = subjects(changed, "demo", ["agg_loss"])[0][0].binding.dialects
    assert everywhere == REVISIONS  # without a revision, all are listed


@pytest.mark.slow
def test_a_function_registered_by_a_head_is_searched(pytester, warm_runs, tmp_path):
    tree = copy_demo(tmp_path / "tree", "fixed")
    (tree / "demo_rl" / "more.py").write_text(ADDED)
    options = ["--sentinel-target=demo", f"--sentinel-repo={tree}", "--sentinel-laws=quick", "-p", "no:cacheprovider"]
    result = pytester.runpytest_inprocess(*options, "-k", "mean_over_all_tokens")
    failed = [report.nodeid for report in result.reprec.getreports("pytest_runtest_logreport") if report.failed]  # type: ignore[attr-defined]
    assert any("more.mean_over_all_tokens::masked_values_have_no_influence" in name for name in failed)
