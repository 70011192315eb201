import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, Repository, write_recipe

import sentinel
from sentinel.deciding.asking import Question
from sentinel.deciding.judging import Judgement, confirm

pytestmark = pytest.mark.usefixtures("warm_runs")

PUBLISHED = Path(__file__).parent / "recipes" / "data" / "published" / "ROLL-AGGLOSS-TOKENMEAN-MASK.json"


@pytest.fixture
def pins(demo_repository: Repository) -> list[dict[str, str]]:
    commits = demo_repository.commits
    return [
        {"ref": f"git:{commits['broken']}", "expect": "reproduced"},
        {"ref": f"git:{commits['fixed']}", "expect": "fixed"},
    ]


@pytest.fixture
def recipes(pytester: pytest.Pytester, pins: list[dict[str, str]], demo_home: Path) -> Path:
    """A folder with both demo recipes, pinned to the commits of the demo repository."""
    folder = pytester.path / "mine"
    write_recipe(folder, MASKED_TOKENS, pins=pins)
    write_recipe(folder, REJECTED_ROW, pins=pins)
    return folder


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def evidence(pytester: pytest.Pytester, pattern: str = "*/*/*.json") -> dict[str, Any]:
    (file,) = sorted((pytester.path / "sentinel-reports").glob(pattern))
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def short(pins: list[dict[str, str]], index: int) -> str:
    return pins[index]["ref"][: len("git:") + 7]


def test_a_folder_of_recipes_is_collected_once_with_its_conftest(pytester, recipes):
    (recipes / "conftest.py").write_text("def pytest_itemcollected(item):\n    item.add_marker('of_this_folder')\n")
    pytester.makeini("[pytest]\nmarkers = of_this_folder")
    gone_through: list[str] = []

    class Watch:
        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            gone_through.append(report.nodeid)

    options = ["--sentinel-target=demo", "--sentinel-recipes=mine", "--collect-only", "-m", "of_this_folder"]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options, plugins=[Watch()])
    result.stdout.fnmatch_lines(["collected 4 items", "*<RecipeFolder mine/demo>"])
    assert gone_through.count("mine/demo") == 1
    assert "mine" not in gone_through


@pytest.mark.slow
def test_a_weaker_sandbox_causes_a_warning(pytester, recipes, warm_runs, monkeypatch):
    words = (
        "sandbox: basic, which does not contain malicious code; `sentinel doctor` explains why strict is not available"
    )
    monkeypatch.setitem(warm_runs.hello(), "uncontained", "namespaces are not available")
    options = ["--sentinel-target=demo", "--sentinel-recipes=mine"]
    assert words in run(pytester, *options).stdout.str()
    assert words not in run(pytester, *options, "--sentinel-sandbox=basic").stdout.str()
    monkeypatch.setitem(warm_runs.hello(), "uncontained", None)
    assert words not in run(pytester, *options).stdout.str()


def test_recipes_are_decided_at_their_pins(pytester, recipes, pins):
    result = run(pytester, "--sentinel-target=demo", "--sentinel-recipes=mine", "-v", "--junitxml=out.xml")
    result.assert_outcomes(passed=2, xfailed=2)
    assert result.ret == 0
    text = result.stdout.str()
    for index, verdict, outcome in ((0, "reproduced", "xfailed"), (1, "fixed", "passed")):
        assert f"mine/demo/DEMO-MASKED-TOKENS.yaml::{short(pins, index)} {outcome[:5].upper()}" in text
        result.stdout.re_match_lines([rf"demo +DEMO-MASKED-TOKENS +{short(pins, index)} +{verdict} +{outcome}"])
    found = evidence(pytester, "demo/DEMO-MASKED-TOKENS/git-*.json".replace("*", pins[0]["ref"][4:16]))
    assert (found["verdict"], found["bug_id"]) == ("reproduced", "DEMO-MASKED-TOKENS")
    assert json.loads((pytester.path / "sentinel-reports" / "run.json").read_text())["totals"]["items"] == 4
    junit = (pytester.path / "out.xml").read_text()
    assert 'tests="4"' in junit
    assert f'name="{short(pins, 0)}"' in junit


@pytest.mark.slow
def test_without_a_path_only_sentinels_items_run(pytester, recipes):
    pytester.makepyfile("def test_own(): pass")
    run(pytester, "--sentinel-recipes=mine").assert_outcomes(passed=2, xfailed=2)
    run(pytester, "--sentinel-recipes=mine", ".").assert_outcomes(passed=3, xfailed=2)
    run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml", ".").assert_outcomes(passed=2, xfailed=1)
    run(pytester).assert_outcomes(passed=1)


def test_a_node_id_next_to_a_target_is_all_that_runs(pytester, recipes, pins):
    item = f"mine/demo/DEMO-MASKED-TOKENS.yaml::{short(pins, 1)}"
    run(pytester, item, "--sentinel-recipes=mine", "--sentinel-bug=DEMO-*").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--sentinel-bug=DEMO-MASKED*"], 2),
        (["--sentinel-bug=DEMO-MASKED*,DEMO-REJ*"], 4),
        (["--sentinel-bug=DEMO-MASKED*", "--sentinel-bug=DEMO-REJ*"], 4),
        (["-k", "MASKED"], 2),
        (["-m", "demo"], 4),
        (["-m", "demo and a_rejected_row_is_an_absent_row"], 2),
        (["-m", "masked_values_have_no_influence"], 2),
        (["-m", "sentinel and not roll"], 4),
        (["--strict-markers"], 4),
    ],
    ids=str,
)
def test_options_select_recipes(arguments, count, pytester, recipes):
    result = run(pytester, "--sentinel-recipes=mine", "--collect-only", "-q", *arguments)
    assert sum("DEMO-" in line and "::git:" in line for line in result.outlines) == count
    assert result.ret == (pytest.ExitCode.OK if count else pytest.ExitCode.NO_TESTS_COLLECTED)


def test_collecting_starts_no_worker(pytester, recipes, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("sentinel.deciding.pool.Preloader", fail)
    monkeypatch.setattr("sentinel.deciding.setup.open_checkout", fail)
    result = run(pytester, "--sentinel-target=demo", "--sentinel-recipes=mine", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*<RecipeItem git:*>"])
    assert not (pytester.path / "sentinel-reports").exists()


def test_a_path_needs_no_target(pytester, recipes, pins):
    file = "mine/demo/DEMO-MASKED-TOKENS.yaml"
    run(pytester, file).assert_outcomes(passed=1, xfailed=1)
    run(pytester, f"{file}::{short(pins, 1)}").assert_outcomes(passed=1)
    unknown = run(pytester, f"{file}::git:0000000")
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR


def test_yaml_files_are_collected_only_on_request(pytester, recipes):
    pytester.makepyfile("def test_own(): pass")
    run(pytester, ".").assert_outcomes(passed=1)
    result = run(pytester, "mine")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_bundled_recipe_ids_work_from_any_folder(pytester):
    item = "recipes/roll/ROLL-AGGLOSS-TOKENMEAN-MASK.yaml::git:c09bc8b"
    result = run(pytester, item, "--collect-only", "-q")
    assert item in result.outlines
    outside = run(pytester, "recipes/../adapters/demo.py", "--collect-only")
    assert outside.ret == pytest.ExitCode.USAGE_ERROR


def test_junit_has_the_time_of_each_item(pytester, recipes, fixed_tree, monkeypatch):
    """Items are decided in advance. A reporter that measures the wait would assign all of it to the first item."""
    now = [0.0]

    def slow(question: Question, *given: Any) -> Judgement:
        now[0] += {"DEMO-MASKED-TOKENS": 1.0, "DEMO-REJECTED-ROW": 7.0}[question.recipe.bug_id]
        return confirm(question, *given)

    for module in ("asking", "runner"):
        monkeypatch.setattr(f"sentinel.deciding.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("sentinel.deciding.runner.confirm", slow)
    run(pytester, "--sentinel-recipes=mine", f"--sentinel-repo={fixed_tree}", "--junitxml=out.xml")
    cases = ElementTree.parse(pytester.path / "out.xml").iter("testcase")
    assert [round(float(case.get("time", "0"))) for case in cases] == [1, 7]


def test_a_question_visits_the_functions_of_the_architecture_page(pytester, recipes, pins):
    """Each step names a function. Steps of one file are adjacent. Steps in this process run in the listed order."""
    page = Path(__file__).parents[1] / "docs" / "architecture.md"
    stops = re.findall(r"^\d+\. `([\w.]+)`", page.read_text(encoding="utf-8"), re.MULTILINE)
    functions = [pkgutil.resolve_name(f"sentinel.{stop}") for stop in stops]
    codes = {inspect.unwrap(function).__code__: stop for stop, function in zip(stops, functions)}
    files = [inspect.getsourcefile(inspect.unwrap(function)) for function in functions]
    assert len(stops) <= 20
    assert [stop for stop, file in zip(stops, files) if files.count(file) > 1] == [
        "deciding.judging.judge",
        "deciding.judging.confirm",
    ]
    reached: dict[str, None] = {}

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes:
            reached.setdefault(codes[frame.f_code])

    file = write_recipe(recipes, MASKED_TOKENS, pins=pins[:1])
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run(pytester, str(file)).assert_outcomes(xfailed=1)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    measuring = ("worker.target_process", "worker.probe", "worker.calling")  # another process
    assert list(reached) == [stop for stop in stops if not stop.startswith(measuring)]


def test_a_failure_shows_values_place_and_command(pytester, recipes, pins):
    file = write_recipe(recipes, MASKED_TOKENS, pins=[{**pins[0], "expect": "fixed"}])
    result = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"DEMO-MASKED-TOKENS at {short(pins, 0)}: expected fixed, got reproduced",
            f"boundary: demo_rl.losses.agg_loss (demo_rl/losses.py:* at commit {pins[0]['ref'][4:16]})",
            "key*observed*unpatched*fixed*matches",
            "loss*26.0*26.0*1.0*unpatched",
            "loss: *expected 1.0, observed 26.0*",
            f"repeat: pytest mine/demo/DEMO-MASKED-TOKENS.yaml::{short(pins, 0)}",
        ]
    )
    assert file.is_file()


@pytest.mark.parametrize(("revision", "outcome"), [("broken", "failed"), ("fixed", "passed"), ("syntax", "failed")])
def test_a_ref_has_no_expectation(revision, outcome, pytester, recipes, demo_repository):
    """``test_demo.py`` checks the verdicts."""
    ref = f"git:{demo_repository.commits[revision][:9]}"
    recipes_alone = ("--sentinel-target=demo", "--sentinel-recipes=mine", "--sentinel-laws=off", "-k", "MASKED")
    result = run(pytester, *recipes_alone, f"--sentinel-ref={ref}")
    result.assert_outcomes(**{outcome: 1})


def test_a_branch_and_a_working_tree_are_decided(pytester, recipes, broken_tree):
    run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml", "--sentinel-ref=demo=git:main").assert_outcomes(passed=1)
    result = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml", f"--sentinel-repo={broken_tree}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"repeat: pytest *::path:{broken_tree}* --sentinel-ref=path:{broken_tree}"])
    assert str(broken_tree) not in json.dumps(evidence(pytester, "demo/*/path-*.json"))


def test_unavailable_pins_are_skipped_and_deciding_nothing_fails(pytester, recipes, pins):
    absent = {"ref": "git:" + "0" * 40, "expect": "fixed"}
    write_recipe(recipes, MASKED_TOKENS, pins=[absent])
    result = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml", "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*nothing was decided*"])
    write_recipe(recipes, MASKED_TOKENS, pins=[absent, pins[1]])
    result = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml", "-rs")
    result.assert_outcomes(skipped=1, passed=1)
    assert result.ret == 0


def test_a_run_without_a_mirror_names_the_command(pytester, recipes, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "empty"))
    result = run(pytester, "--sentinel-recipes=mine", "-rs")
    result.assert_outcomes(deselected=4)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    line = "nothing was decided: demo: 2 more revisions can be decided after `sentinel mirror add demo`"
    result.stdout.fnmatch_lines([line])
    named = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml")
    named.assert_outcomes(skipped=2)
    named.stdout.fnmatch_lines(["*no mirror of demo; run `sentinel mirror add demo`"])


def test_known_bugs_are_counted_and_the_worst_listed(pytester, recipes, pins):
    lines = run(pytester, "--sentinel-recipes=mine").stdout.str()
    present = next(pin["ref"] for pin in pins if pin["expect"] == "reproduced")
    gone = next(pin["ref"] for pin in pins if pin["expect"] == "fixed")
    assert (
        f"demo {present[:11]}: present: 2 bugs (2 recipes)\n  present (`sentinel show BUG` explains one):\n    DEMO-"
        in lines
    )
    assert f"demo {gone[:11]}: fixed: 2 bugs (2 recipes)\n" in lines


def test_of_many_revisions_one_is_described(pytester, recipes, monkeypatch):
    monkeypatch.setattr("sentinel.reports.summary._FEW", 1)
    lines = run(pytester, "--sentinel-recipes=mine").stdout.lines
    assert len([line for line in lines if re.match(r"demo git:\w{7}: (present|fixed): 2 bugs", line)]) == 1


def test_an_unwritable_home_is_reported_at_the_start(pytester, recipes, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", "/proc/nothing/here")
    result = run(pytester, "--sentinel-recipes=mine")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*cannot write mirrors and checkouts to /proc/nothing/here: /proc: *set SENTINEL_HOME*"]
    )


def test_a_version_without_the_option_is_unavailable(pytester, recipes, pins):
    pin = {**pins[0], "expect": "unavailable"}
    write_recipe(recipes, MASKED_TOKENS, pins=[pin], requires=["demo_rl.losses.kl_loss"])
    run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml").assert_outcomes(passed=1)
    write_recipe(recipes, MASKED_TOKENS, pins=pins[:1], requires=["demo_rl.losses.kl_loss"])
    result = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml")
    result.assert_outcomes(failed=1)


@pytest.mark.slow
def test_a_baseline_shows_the_direction_of_changes(pytester, recipes, demo_repository, broken_tree, fixed_tree):
    write_recipe(recipes, MASKED_TOKENS, pins=None, watch=["git:main"])
    base = ("mine/demo/DEMO-MASKED-TOKENS.yaml",)
    kept = ("--sentinel-baseline=kept",)
    absent = run(pytester, *base, *kept)
    assert absent.ret == pytest.ExitCode.USAGE_ERROR
    absent.stderr.fnmatch_lines(
        ["*--sentinel-baseline=kept: no such folder; `sentinel report accept --to kept` records the last run*"]
    )
    (pytester.path / "kept").mkdir()
    nothing = run(pytester, *base, *kept)
    assert nothing.ret == pytest.ExitCode.USAGE_ERROR
    nothing.stderr.fnmatch_lines(["*--sentinel-baseline=kept: the folder contains no evidence*sentinel report accept*"])
    run(pytester, "mine/demo/DEMO-REJECTED-ROW.yaml", "--sentinel-ref=git:main", "--sentinel-report-dir=other")
    nothing = run(pytester, *base, "--sentinel-baseline=other")
    nothing.stdout.fnmatch_lines(["*other has no verdict for this item*sentinel report accept*"])
    nothing.assert_outcomes(failed=1)

    run(pytester, *base, "--sentinel-ref=git:main", "--sentinel-report-dir=kept").assert_outcomes(passed=1)
    run(pytester, *base, *kept).assert_outcomes(passed=1)

    (file,) = (pytester.path / "kept" / "demo").rglob("*.json")
    good = file.read_text()
    run(pytester, *base, f"--sentinel-repo={broken_tree}", "--sentinel-report-dir=broken")
    (other,) = (pytester.path / "broken" / "demo").rglob("*.json")
    # The baseline has the bug; now it is fixed.
    file.write_text(other.read_text())
    newly_fixed = run(pytester, *base, *kept)
    newly_fixed.assert_outcomes(failed=1)
    newly_fixed.stdout.fnmatch_lines(["*newly fixed: reproduced -> fixed*"])

    # The other way round: the baseline is fixed, and main has the bug again.
    file.write_text(good)
    with _main_at(demo_repository, "broken"):
        newly_broken = run(pytester, *base, *kept)
    newly_broken.assert_outcomes(failed=1)
    newly_broken.stdout.fnmatch_lines(["*newly broken: fixed -> reproduced*"])


def test_damaged_evidence_is_named_and_written_again(pytester, recipes):
    """A killed run may leave an incomplete file. The next run needs no help from the user."""
    base = ("mine/demo/DEMO-MASKED-TOKENS.yaml", "--sentinel-ref=git:main")
    run(pytester, *base).assert_outcomes(passed=1)
    (file,) = (pytester.path / "sentinel-reports" / "demo").rglob("*.json")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    again = run(pytester, *base)
    again.assert_outcomes(passed=1, warnings=1)
    again.stdout.fnmatch_lines([f"*DamagedEvidence: *{file.name} was damaged and has been overwritten*"])
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "told"), [("cut off", "*git-main.json:*:*: not JSON*"), ("[]", "*: not Sentinel*")]
)
def test_a_damaged_baseline_is_a_usage_error(pytester, recipes, content, told):
    """The message names file, line and what to do, before anything is decided."""
    base = ("mine/demo/DEMO-MASKED-TOKENS.yaml", "--sentinel-ref=git:main")
    run(pytester, *base, "--sentinel-report-dir=kept").assert_outcomes(passed=1)
    (file,) = (pytester.path / "kept" / "demo").rglob("*.json")
    file.write_text(file.read_text()[:300] if content == "cut off" else content)
    result = run(pytester, *base, "--sentinel-baseline=kept")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])
    result.stderr.fnmatch_lines(["*restore it from git, or remove it and record it with `sentinel report accept`"])
    assert "collected" not in result.stdout.str()


class _main_at:  # noqa: N801 - reads as a statement
    """Move the mirror's main to another revision for a while, as a fetch does."""

    def __init__(self, repository: Repository, revision: str) -> None:
        self._mirror = Repository(Path(os.environ["SENTINEL_HOME"]) / "mirrors" / "demo.git")
        self._commits = repository.commits
        self._revision = revision

    def __enter__(self) -> None:
        self._refs = [line.split()[1] for line in self._mirror.git("show-ref").splitlines() if line.endswith("/main")]
        self._set(self._revision)

    def __exit__(self, *_: object) -> None:
        self._set("fixed")

    def _set(self, revision: str) -> None:
        for ref in self._refs:
            self._mirror.git("update-ref", ref, self._commits[revision])


@pytest.fixture
def roll_tree(tmp_path: Path) -> Path:
    """A working tree with the boundary of the published file, and its bug."""
    file = tmp_path / "roll_repo" / "roll" / "utils" / "functionals.py"
    file.parent.mkdir(parents=True)
    for package in (file.parent, file.parent.parent):
        (package / "__init__.py").write_text("")
    file.write_text(
        "import ray\n\ndef agg_loss(loss_mat, loss_mask, loss_agg_mode, batch_num_tokens=None):\n"
        "    return loss_mat.sum() / batch_num_tokens\n"
    )
    return tmp_path / "roll_repo"


@pytest.mark.slow
def test_a_published_blob_runs_in_an_empty_folder(pytester, roll_tree, monkeypatch):
    name = PUBLISHED.name
    (pytester.path / name).write_bytes(PUBLISHED.read_bytes())
    result = run(pytester, name, f"--sentinel-repo={roll_tree}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ROLL-AGGLOSS-TOKENMEAN-MASK at path:*: reproduced"])

    monkeypatch.setenv("TARGET_REPO", str(roll_tree))
    monkeypatch.setenv("OUTPUT_DIR", str(pytester.path / "out"))
    run(pytester, name).assert_outcomes(failed=1)
    (file,) = (pytester.path / "out" / "roll").rglob("*.json")
    assert json.loads(file.read_text())["verdict"] == "reproduced"


def test_a_published_blob_takes_the_pins_of_the_bundled_recipe(pytester):
    (pytester.path / PUBLISHED.name).write_bytes(PUBLISHED.read_bytes())
    result = run(pytester, PUBLISHED.name, "--collect-only", "-q")
    assert "ROLL-AGGLOSS-TOKENMEAN-MASK.json::git:c09bc8b" in result.outlines
    (pytester.path / PUBLISHED.name).rename(
        pytester.path / "blob.json"
    )  # -k matches the bug id, whatever the file's name
    assert "blob.json::git:c09bc8b" in run(pytester, "blob.json", "--collect-only", "-qkTOKENMEAN").outlines


def test_a_recipe_without_a_ref_names_the_options(pytester, recipes):
    write_recipe(recipes, MASKED_TOKENS)
    result = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*DEMO-MASKED-TOKENS has no pins; name a ref (--sentinel-ref=git:main*"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sentinel-recipes=mine", "--sentinel-bug=DEMO-MASKD-TOKENS"], "*DEMO-MASKD-TOKENS*'DEMO-MASKED-TOKENS'*"),
        (["--sentinel-target=roll", "--sentinel-bug=ROLL-AGGLOSS"], "*ROLL-AGGLOSS*did you mean 'ROLL-AGGLOSS-*"),
        (["--sentinel-bug=ROLL-AGGLOS"], "*ROLL-AGGLOS*did you mean 'ROLL-AGGLOSS-*"),
        (["--sentinel-ref=git:main"], "*--sentinel-ref needs a target: add --sentinel-target*"),
        (["--sentinel-repo=mine", "."], "*--sentinel-repo needs a target*"),
        (
            ["--sentinel-target=demo"],
            "*there is no recipe of demo; name a folder of recipes with --sentinel-recipes=DIR*",
        ),
        (["--sentinel-target=demo", "--sentinel-bug=ROLL-GAE-*"], "*no recipe *matches 'ROLL-GAE-[*]'; roll has it*"),
        (["--sentinel-bug=QQQQ"], "*no recipe matches 'QQQQ'; `sentinel list recipes` lists all"),
        (["--sentinel-recipes=mine", "--sentinel-device=cuda:99"], "*cannot probe on cuda:99: *"),
        (
            ["mine/demo/DEMO-MASKED-TOKENS.yaml::git:nosuch"],
            "*not found: mine/*::git:nosuch; the refs of this recipe are git:*, git:*; name other refs with*",
        ),
    ],
    ids=str,
)
def test_invalid_usage_is_reported(arguments, said, pytester, recipes):
    """``tests/bad_input`` has more."""
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [("sentinel.toml", 'recipes = "mine"\n'), ("pyproject.toml", '[tool.sentinel]\nrecipes = ["mine"]\n')],
)
def test_a_settings_file_keeps_the_projects_own_tests(name, text, pytester, recipes):
    pytester.makepyfile("def test_own(): pass")
    (pytester.path / name).write_text(text)
    run(pytester).assert_outcomes(passed=3, xfailed=2)
    run(pytester, "--sentinel-bug=DEMO-MASKED*").assert_outcomes(passed=1, xfailed=1)


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_the_settings_that_a_file_changes_are_shown(quiet, pytester, recipes):
    text = '[tool.sentinel]\nrecipes = "mine"\nbug = "DEMO-MASKED*"\ntimeout = 9\nsandbox = "basic"\n'
    (pytester.path / "pyproject.toml").write_text(text)
    result = run(pytester, *quiet, "--sentinel-timeout=60")
    result.assert_outcomes(passed=1, xfailed=1)
    line = "sentinel: pyproject.toml sets recipes = mine; bug = DEMO-MASKED*; sandbox = basic"
    assert result.outlines.count(line) == 1


def test_another_plugin_adds_targets_and_gets_notifications(pytester, recipes):
    pytester.makeconftest(
        """
        from pathlib import Path
        from sentinel import Law

        def pytest_sentinel_laws():
            return [Law("nothing_is_wrong", "whatever", lambda case: [])]

        def pytest_sentinel_recipe_folders():
            return [Path("mine")]

        def pytest_sentinel_decided(decision):
            with open("decided.txt", "a") as file:
                file.write(f"{decision.recipe.bug_id} {decision.verdict.name}\\n")
        """
    )
    write_recipe(
        recipes, MASKED_TOKENS, invariant="nothing_is_wrong", expected_unpatched=None, expected_fixed=None, watch=None
    )
    result = run(pytester, "--sentinel-target=demo", "--sentinel-ref=git:main", "--sentinel-laws=off")
    result.assert_outcomes(passed=2)
    assert (pytester.path / "decided.txt").read_text().splitlines() == [
        "DEMO-MASKED-TOKENS fixed",
        "DEMO-REJECTED-ROW fixed",
    ]


OUTSIDE = {
    "mine/outside_rl/__init__.py": """
        def doubled(values, mask):
            return (values * mask).sum() * 2
    """,
    "outside_contract.py": """
        from sentinel import Contract, Input, Observed, gradient, leaf

        def measure(call, inputs):
            values = leaf(inputs["values"])
            total = call(**{**inputs, "values": values})["total"]
            return {"total": total.detach(), "slope": gradient(total, values)}

        TOKENS = {"shape": ("batch", "tokens")}
        CONTRACT = Contract(
            "outside_sum", "a sum", "arithmetic",
            inputs=(
                Input("values", "tensor", "numbers", differentiable=True, domain="reward", **TOKENS),
                Input("response_mask", "tensor", "1 where one counts", domain="mask", **TOKENS),
            ),
            observes=(Observed("total", "their sum"), Observed("slope", "d total", ("batch", "tokens"), "gradient")),
            measure=measure,
            oracle=lambda inputs: {"total": (inputs["values"] * inputs["response_mask"]).sum()},
            laws=("outside_zero_is_nothing", "the_oracle_agrees", "masked_values_have_no_influence"),
        )
    """,
    "outside_adapter.py": """
        from sentinel import Binding, DriftError, PackageRoot, Target

        def call(boundary, inputs):
            from sentinel import AbsentError

            if boundary is None:
                raise DriftError("no boundary") from AbsentError()
            return {"total": boundary.invoke(inputs)}

        TARGET = Target(
            name="outside", repository="https://example.invalid/outside.git", roots=(PackageRoot("outside_rl"),),
            bindings=(Binding("outside_rl.doubled", "outside_sum", arguments={"response_mask": ("mask",)}, call=call),),
        )
    """,
    "conftest.py": """
        from pathlib import Path
        from outside_contract import CONTRACT
        from sentinel import BASELINE, Case, DoesNotApply, Law, Violation, first_two, like, same, valid_tokens

        def zeroed(contract, inputs, choose):
            if not valid_tokens(contract, inputs).any():
                raise DoesNotApply("nothing counts")
            values = inputs["values"]
            return {BASELINE: inputs, "zero": {**inputs, "values": like(values, values.array() * 0)}}

        def check(case: Case):
            first, others = first_two(case)
            total = case.observation[others[0]]["total"]
            return [] if float(total.array()) == 0 else [Violation("zero.total", total, 0.0, "of zeros")]

        def pytest_sentinel_adapters():
            return [Path("outside_adapter.py")]

        def pytest_sentinel_contracts():
            return [CONTRACT]

        def pytest_sentinel_laws():
            return [Law("outside_zero_is_nothing", "the sum of zeros is zero", check, vary=zeroed)]
    """,
}


@pytest.mark.slow
def test_foreign_targets_contracts_and_laws_need_only_public_names(pytester):
    for name, text in OUTSIDE.items():
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text(textwrap.dedent(text))
        assert not re.search(r"(from|import) sentinel\.", text)
    pytester.syspathinsert()
    result = run(pytester, "--sentinel-target=outside", "--sentinel-repo=mine", "--sentinel-against=none", "-rA")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*PASSED laws/outside/outside_rl.doubled::outside_zero_is_nothing*"])
    result.stdout.fnmatch_lines(["*FAILED laws/outside/outside_rl.doubled::the_oracle_agrees*"])


def test_public_names_exist_and_are_imported_on_first_use():
    code = (
        "import sentinel, sys; loaded = [name for name in sys.modules if name.startswith('sentinel.')]\n"
        "names = [name for names in sentinel.PUBLIC.values() for name in names.split()]\n"
        "print(loaded, len(names) == len(set(names)), all(hasattr(sentinel, name) for name in names))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[] True True\n"
    source = (Path(sentinel.__file__)).read_text(encoding="utf-8")
    for module, names in sentinel.PUBLIC.items():
        typed = re.findall(rf"^    from {re.escape(module)} import (.*)$", source, re.MULTILINE)
        assert [part.split(" as ")[0] for line in typed for part in line.split(", ")] == names.split()


@pytest.mark.slow
def test_last_failed_works_for_bundled_recipes(pytester, roll_tree):
    """Their ids are not paths in this folder. pytest skips files without failures by their paths."""
    pytester.makepyfile("def test_own(): assert False")
    arguments = ("--sentinel-bug=ROLL-AGGLOSS-TOKENMEAN*", f"--sentinel-repo={roll_tree}", ".", "-p", "cacheprovider")
    pytester.runpytest_inprocess(*arguments).assert_outcomes(failed=2)
    pytester.runpytest_inprocess(*arguments, "--lf").assert_outcomes(failed=2)
    (roll_tree / "roll" / "utils" / "functionals.py").write_text(
        "def agg_loss(loss_mat, loss_mask, loss_agg_mode, batch_num_tokens=None):\n"
        "    return (loss_mat * loss_mask).sum() / batch_num_tokens\n"
    )
    pytester.runpytest_inprocess(*arguments, "--lf").assert_outcomes(failed=1, passed=1)


@pytest.mark.parametrize("options", [(), ("--sentinel-target=demo",), ("--sentinel-recipes=mine",)], ids=" ".join)
@pytest.mark.parametrize(
    ("argument", "item"),
    [
        ("mine/demo/DEMO-MASKED-TOKENS.yaml", "mine/demo/DEMO-MASKED-TOKENS.yaml::git:main"),
        ("laws/demo/demo_rl.losses.agg_loss::the_oracle_agrees", None),
    ],
)
def test_a_named_file_or_law_is_all_that_runs(pytester, recipes, argument, item, options):
    listed = run(pytester, argument, "--collect-only", "-q", "--sentinel-ref=git:main", *options)
    assert [line for line in listed.outlines if "::" in line] == [item or f"{argument}[git:main]"]


def test_a_progress_message_does_not_repeat_the_file_name(pytester, recipes):
    pytester.makeconftest("def pytest_runtest_teardown(item):\n    item.run.progress('in between')")
    lines = run(pytester, "mine/demo/DEMO-MASKED-TOKENS.yaml").outlines
    assert lines.count("sentinel: in between") == 2, lines
    assert sum("DEMO-MASKED-TOKENS.yaml" in line for line in lines) == 1, lines
