"""The catalog loads adapters and shipped recipes, and shipped recipes follow the rules of the catalog."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sentinel.cli import main
from sentinel.contracts import reports
from sentinel.errors import SentinelError
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import OnDemand, bundled, bundled_catalog, load_adapter
from sentinel.recipes.grades import SEVERITIES, realism, root
from sentinel.reports.store import recorded
from sentinel.targets import Binding, PackageRoot, Registry, Target

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = bundled_catalog().contracts

ADAPTER = """\
from sentinel.targets import Binding, PackageRoot, Target

from .workers import BINDINGS

TARGET = Target("mine", "https://example.invalid/mine", (PackageRoot("mine"),), bindings=BINDINGS)
"""
WORKERS = """\
from sentinel.targets import Binding

BINDINGS = (Binding("mine.workers.update", "loss_aggregation"),)
"""


def package(folder: Path, workers: str = WORKERS) -> Path:
    folder.mkdir()
    (folder / "__init__.py").write_text(ADAPTER)
    (folder / "workers.py").write_text(workers)
    return folder / "__init__.py"


def test_an_adapter_may_be_a_package(tmp_path):
    adapter = load_adapter(package(tmp_path / "mine"), CONTRACTS)
    assert adapter.target.bindings[0].boundary == "mine.workers.update"


def test_every_module_of_a_package_counts_for_its_digest(tmp_path):
    one = load_adapter(package(tmp_path / "one"), CONTRACTS)
    same = load_adapter(package(tmp_path / "same"), CONTRACTS)
    other = load_adapter(package(tmp_path / "other", WORKERS + "# said otherwise\n"), CONTRACTS)
    assert one.digest == same.digest != other.digest


def test_a_package_that_did_not_load_is_read_again(tmp_path):
    broken = package(tmp_path / "broken", "BINDINGS = (")
    with pytest.raises(SentinelError, match=r"the adapter cannot be imported: SyntaxError"):
        load_adapter(broken, CONTRACTS)
    (broken.parent / "workers.py").write_text(WORKERS)
    assert load_adapter(broken, CONTRACTS).target.name == "mine"


def test_a_broken_adapter_affects_only_its_target(tmp_path):
    broken = package(tmp_path / "roll", "BINDINGS = (")
    catalog = bundled_catalog()
    adapters = {name: partial(catalog.adapters.__getitem__, name) for name in catalog.adapters}
    catalog = replace(catalog, adapters=OnDemand({**adapters, "roll": partial(load_adapter, broken, CONTRACTS)}))
    assert len(find_recipes(catalog, targets=["skyrl"])) == len(find_recipes(bundled_catalog(), targets=["skyrl"])) > 0
    with pytest.raises(SentinelError, match=r"roll/__init__.py: the adapter cannot be imported: SyntaxError"):
        find_recipes(catalog, targets=["roll"])


def test_an_unused_target_is_not_imported():
    code = (
        "import sys; from sentinel.recipes import find_recipes; from sentinel.recipes.catalog import bundled_catalog\n"
        "from sentinel.deciding.pool import contained_places\n"
        "assert contained_places(bundled_catalog()).readable\n"
        "assert {'verl', 'roll'} < bundled_catalog().targets.keys() and find_recipes(bundled_catalog(), ['skyrl'])\n"
        "files = [name.split('_')[2].partition('.')[0] for name in sys.modules if name.startswith('sentinel_file_')]\n"
        "print(sorted(set(files)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['skyrl']"


def test_two_bundled_contracts_of_one_name_are_an_error(monkeypatch):
    monkeypatch.setattr(reports, "TWICE", replace(reports.PASS_AT_K), raising=False)
    with pytest.raises(SentinelError, match="duplicate contract 'pass_at_k'; rename one"):
        bundled_catalog.__wrapped__()


def test_a_bundled_adapter_has_the_name_of_its_file():
    catalog = bundled_catalog()
    assert {name: target.name for name, target in catalog.targets.items()} == {name: name for name in catalog.targets}


def test_the_committed_index_of_recipes_is_the_generated_one(capsys):
    assert main(["list", "recipes", "--markdown"]) == 0
    committed = bundled("recipes") / "README.md"
    assert committed.read_text() == capsys.readouterr().out, "sentinel list recipes --markdown > recipes/README.md"


def test_all_counts_of_bugs_agree(capsys, monkeypatch):
    """README, index and `list recipes` count root causes of each target, without hardening."""
    recipes = find_recipes(bundled_catalog())
    rows = [(recipe.target, root(recipe.document)) for recipe in recipes if realism(recipe.document) != "unreachable"]
    told = f"{len(set(rows))} bugs ({len(rows)} recipes)"
    readme = (ROOT / "README.md").read_text()
    assert f"ships {told} and " in readme
    assert f"\n{told} and " in (bundled("recipes") / "README.md").read_text()
    assert main(["list", "recipes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{told} and ")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    assert import_module("figures").rewritten(readme) == readme, "python benchmarks/figures.py"


def test_every_shipped_recipe_has_a_severity_and_a_signal():
    said = {recipe.bug_id: recipe.document for recipe in find_recipes(bundled_catalog())}
    assert [bug for bug, document in said.items() if not (document.get("severity") and document.get("signal"))] == []


def highest_severity(document: Mapping[str, Any]) -> str:
    """Return the highest severity that a recipe's kind of bug may have.

    ``low``: no run triggers the bug, something else must fail first, or only a metric is wrong. ``medium``: the bug
    raises an exception, so users notice it. Otherwise ``high``.
    """
    if realism(document) in ("unreachable", "fault") or document.get("signal") == "metric":
        return "low"
    expected = document.get("expected_unpatched") or {}
    raises = any(key.rpartition(".")[2] == "raised" and value for key, value in expected.items())
    return "medium" if raises else "high"


def test_severities_follow_the_rule():
    recipes = find_recipes(bundled_catalog())
    severity = {recipe.bug_id: str(recipe.document["severity"]) for recipe in recipes}
    limit = {recipe.bug_id: highest_severity(recipe.document) for recipe in recipes}
    assert [bug for bug in severity if SEVERITIES.index(severity[bug]) < SEVERITIES.index(limit[bug])] == []
    constant = {severity[bug] for bug in severity if "CONSTANT-GROUP" in bug}
    assert constant == {"low"}, "the same bug has the same severity in every framework"


def test_unreported_bugs_are_fixed_by_no_recorded_pull_request():
    """The recorded verdicts count, not those that a pin expects. A `.fix.yaml` may also name the head."""
    head = re.compile(r"\bhead of #\d+|#\d+ as merged")
    wrong, looked = [], 0
    for recipe in find_recipes(bundled_catalog()):
        evidence = recorded(ROOT / "reports", under=PurePosixPath(recipe.target, recipe.bug_id)).values()
        verdicts = {document["ref"]: document["verdict"] for document in evidence}
        mended = [pin.note for pin in recipe.pins if head.search(pin.note) and verdicts.get(str(pin.ref)) == "fixed"]
        looked += len(mended)
        if mended and recipe.upstream.get("status") == "unreported":
            wrong.append((recipe.bug_id, mended))
    assert wrong == []
    assert looked > 50


def test_every_unreported_bug_has_a_reach():
    unreported = [r for r in find_recipes(bundled_catalog()) if r.upstream.get("status") == "unreported"]
    assert unreported
    assert [recipe.bug_id for recipe in unreported if not realism(recipe.document)] == []


@pytest.mark.parametrize(
    ("written", "mistaken", "says"),
    [
        (
            '"loss_aggregation"',
            '"loss_agregation"',
            "agg_loss: unknown contract 'loss_agregation' — did you mean 'loss_agg",
        ),
        (
            '"norm_by_std": False',
            '"norm_by_sdt": False',
            "fixed: group_advantage has no input 'norm_by_sdt' — did you mean",
        ),
        ('arguments={"group"', 'arguments={"groop"', "arguments: no contract has an input 'groop' — did you mean"),
        (
            'arguments={"response_mask": ("loss_mask", ',
            'arguments={"response_mas": ("loss_mask", ',
            "arguments: loss_aggregation has no input 'response_mas' — did you mean",
        ),
        (
            '"weights": (None,)',
            '"weight": (None,)',
            "accepts: loss_aggregation has no input 'weight' — did you mean 'weights'",
        ),
        (
            'like="demo_rl.losses.agg_loss"',
            'like="demo_rl.losses.ag_loss"',
            "is not bound — did you mean 'demo_rl.losses.agg",
        ),
    ],
)
def test_an_error_in_an_adapter_names_its_file(tmp_path, written, mistaken, says):
    bundled = bundled_catalog()
    text = bundled.adapters["demo"].file.read_text()
    assert text.count(written) == 1
    file = tmp_path / "mine.py"
    file.write_text(text.replace(written, mistaken).replace('name="demo"', 'name="mine"'))
    with pytest.raises(SentinelError) as told:
        bundled.with_(adapters=[file])
    assert f"{file}: " in str(told.value)
    assert says in str(told.value)


def test_a_dialect_that_disables_a_law_names_a_line_of_upstream_and_covers_no_known_bug():
    """An upstream bug (NeMo-RL #4061) was once declared as an intended difference."""
    catalog = bundled_catalog()
    targets = [target for target in catalog.targets.values() if target.name != "demo"]
    recipes = [recipe for recipe in find_recipes(catalog) if recipe.invariant]
    disabling = [
        (target, binding, dialect)
        for target in targets
        for binding in target.bindings
        for dialect in binding.dialects
        if dialect.name in catalog.laws
    ]
    assert disabling
    for target, binding, dialect in disabling:
        line = re.escape(target.repository) + r"/blob/[0-9a-f]{40}/\S+#L\d+"
        assert dialect.reason, binding.boundary
        assert re.fullmatch(line, dialect.link), (binding.boundary, dialect.link)
        for recipe in recipes:
            own = recipe.boundary in binding.paths and recipe.contract == binding.contract
            if own and recipe.invariant == dialect.name and any(map(dialect.holds, recipe.variants.values())):
                another = dialect.symptom == "non-finite" and not re.search("nan|inf", str(recipe.expected_unpatched))
                assert another, (recipe.bug_id, dialect.reason)


def test_a_function_without_a_binding_is_reported_with_the_nearest_bound_one():
    bindings = tuple(Binding(f"pkg.{name}", "call") for name in ("losses.agg_loss", "kl.penalty"))
    registry = Registry("register", "pkg.losses.agg_loss", excludes={"pkg.losses.gift_loss": "it asks a server"})
    target = Target("t", "", (PackageRoot("pkg"),), bindings=bindings, registries=(registry,))
    near = "; the nearest bound function is"
    assert target.explain_unbound("pkg.core.agg_loss") == (
        f"the adapter of t does not bind 'pkg.core.agg_loss'{near} pkg.losses.agg_loss"
    )
    for name in ("pkg.losses.gift_loss", "gift_loss"):
        assert target.explain_unbound(name) == (
            f"the adapter of t does not bind '{name}', a registered function that must not be called (it asks a server)"
            f"{near} pkg.losses.agg_loss"
        )
    assert target.explain_unbound("penalt").endswith(f"{near} pkg.kl.penalty")


def test_an_adapter_with_too_many_globs_is_refused(tmp_path):
    """Globs are for kernels and servers. They must not exclude every function that nobody has bound."""
    catalog = bundled_catalog()
    text = catalog.adapters["demo"].file.read_text(encoding="utf-8").replace('name="demo"', 'name="mine"')
    globs = 'no_signal=tuple(f"demo_rl.{number}.*" for number in range({})),'
    for number in (12, 13):
        file = tmp_path / f"mine{number}.py"
        file.write_text(text.replace("    bindings=(", f"    {globs.replace('{}', str(number))}\n    bindings=(", 1))
        if number == 12:
            catalog.with_(adapters=[file])
    with pytest.raises(SentinelError, match="no_signal has 13 globs; write at most 12"):
        catalog.with_(adapters=[file])
