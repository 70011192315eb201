"""Measure how many mutants the laws kill: `python benchmarks/mutation.py`.

Each mutant changes one expression in the real code of a boundary, or of a function that the boundary calls, at a fixed
commit of each of five frameworks. The laws of the contract are checked as in a quick search: on the recipes' scenarios,
on the first :data:`QUICK` random scenarios, and on glimpses (one additional scenario for each choice of each input).
Violations that the unchanged code has too do not count. A mutant is

* `killed`: a law breaks in a scenario in which the unchanged code obeys it (`glimpsed`: only in a glimpse);
* `survived`: an output differs in one of :data:`WIDE` random scenarios, but no law breaks in the quick search (`late`:
  a law breaks in one of these :data:`WIDE` scenarios that the quick search does not run);
* `loud`: it raises where the original did not, and differs in nothing else, so users notice it;
* `quiet`: its outputs equal the original's in all scenarios, so it may be equivalent;
* `unreached`: no scenario evaluates the changed expression.

The code is changed in memory, in a process forked from the one that has imported the checkout, so the files stay
unchanged and a mutant costs only a fork. This needs the mirrors of the five frameworks (`sentinel mirror add TARGET`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mutants import HALVES, Mutant, Operator, mutants

from sentinel.contracts.contract import DoesNotApply
from sentinel.deciding.law_session import LawSession, Plan, Subject, Undecidable
from sentinel.deciding.runner import Runner
from sentinel.laws.agreement import disagreements
from sentinel.laws.law import Case
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.boundary_search import EXAMPLE_CHOICES, BoundarySearch, Drawn, drawn_scenarios, examples, glimpses
from sentinel.search.checks import subjects
from sentinel.search.guards import Constants
from sentinel.search.survey import constants_of, parser_process
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: The newest commits of August 2026.
MAIN = {
    "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
    "roll": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "areal": "cbff54d645d2cd8ee1f1c358a82f3f473588433d",
    "slime": "624b824a898ab0ec1fcb4d373004c7f3852bf515",
    "skyrl": "a9564572eb8e91076be43c1bd5e4615e3de17265",
}
#: Number of random scenarios in a quick search, and of random scenarios that show whether a mutant has any effect.
QUICK, WIDE = 6, 24
#: Maximum number of boundaries at which one mutant is tried.
JUDGES = 3

# -- judges ------------------------------------------------------------------------------------------------------------

#: An adapter that replaces one function's code object when it is loaded, even if decorators wrap the function.
_ADAPTER = """
import sys
from pathlib import Path
from sentinel.targets.loading import load_file
TARGET = load_file(Path({adapter!r})).TARGET
PATH = {function!r}.split(".")

def codes(code, path):
    inside = [item for item in code.co_consts if hasattr(item, "co_code") and item.co_name == path[0]]
    return [last for item in inside for last in codes(item, path[1:])] if path[1:] else inside

def functions(held, seen):
    if held is None or id(held) in seen or len(seen) > 200:
        return
    seen.add(id(held))
    if hasattr(held, "__code__"):
        yield held
    near = [getattr(held, name, None) for name in ("__wrapped__", "__func__", "fget", "func")]
    cells = [cell.cell_contents for cell in getattr(held, "__closure__", None) or () if cell != type(cell)()]
    for item in [*near, *cells]:
        yield from functions(item, seen)

changed = 0
for module in list(sys.modules.values()):
    if not str(getattr(module, "__file__", "")).endswith("/" + {file!r}):
        continue
    held = module
    for part in PATH:
        held = getattr(held, "__dict__", {{}}).get(part)
    for function in functions(held, set()):
        for code in codes(compile({source!r}, function.__code__.co_filename, "exec", dont_inherit=True), PATH):
            if (code.co_name, code.co_firstlineno) == (function.__code__.co_name, function.__code__.co_firstlineno):
                function.__code__ = code
                changed += 1
if not changed:
    raise RuntimeError("nothing of that name to change")
"""


#: The checks of one scenario: pairs of a law and the variants of the scenario that this law compares.
Scenario = list[Plan]


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant.

    :ivar fate: one of :data:`FATES`.
    :ivar boundary: the boundary that was called.
    :ivar detail: how an output differs, or the exception.
    """

    fate: str
    boundary: str = ""
    contract: str = ""
    laws: tuple[str, ...] = ()
    detail: str = ""


class Judge:
    """One boundary, with its scenarios, and the results and violations of its unchanged code."""

    def __init__(
        self, law_session: LawSession, subject: Subject, recipes: Sequence[Recipe], seed: int, constants: Constants
    ) -> None:
        self._constants = constants
        self.subject, self._law_session, self._search, self._seed = (
            subject,
            law_session,
            BoundarySearch(law_session, subject, seed),
            seed,
        )
        known = [inputs for example in examples(subject, recipes) for inputs in example.variants.values()]
        drawn = [
            *drawn_scenarios(subject, seed, 0, QUICK),
            *(Drawn(subject, inputs, EXAMPLE_CHOICES[0]) for inputs in known),
        ]
        self._quick = [self._plans(item) for item in drawn]
        self.ran: set[str] = set()
        for plans in self._quick:
            for trial in law_session.try_(subject, plans[:1], describe=True):
                self.ran.update(trial.answer.functions if trial.answer else ())
        law_session.close()

    @cached_property
    def _stages(self) -> Mapping[str, Sequence[Scenario]]:
        """Return the scenarios of each stage of a search.

        ``drawn``: the recipes' scenarios and the first random ones. ``glimpsed``: one for each choice of each input.
        ``late``: further random scenarios.
        """
        glimpsed: dict[int, Scenario] = {}
        for law, variants in glimpses(self.subject, self._seed, self.subject.laws, self._constants):
            glimpsed.setdefault(id(variants[""]), []).append((law, variants))
        later = drawn_scenarios(self.subject, self._seed, 0, WIDE)[QUICK:]
        stages = {
            "drawn": self._quick,
            "glimpsed": list(glimpsed.values()),
            "late": [self._plans(item) for item in later],
        }
        return {stage: [plans for plans in scenarios if plans] for stage, scenarios in stages.items()}

    @cached_property
    def _said(self) -> Mapping[str, Sequence[set[tuple[str, str]]]]:
        with closing(self._law_session.fresh()) as law_session:
            return {
                s: [self._broken(law_session, self.subject, item) for item in items]
                for s, items in self._stages.items()
            }

    @cached_property
    def _did(self) -> Mapping[str, Sequence[Mapping[str, Any] | str]]:
        with closing(self._law_session.fresh()) as law_session:
            return {
                s: [self._observed(law_session, self.subject, item) for item in items]
                for s, items in self._stages.items()
            }

    def outcome(self, mutant: Path, exploding: Callable[[], Path]) -> Outcome:
        """Return the outcome of a mutant at this boundary.

        :param mutant: the adapter file that makes the change.
        :param exploding: returns an adapter file that makes the changed expression raise. If the outputs do not change
            with this file either, the expression is never evaluated.
        """
        law_session, subject = self._law_session.fresh(), replace(self.subject, adapter=str(mutant))
        fate, detail = "quiet", ""
        try:
            for stage, scenarios in self._stages.items():
                if stage == "late":
                    fate, detail = self._differs(law_session, subject)
                    if fate != "survived":
                        break
                for plans, before in zip(scenarios, self._said[stage]):
                    laws = {law for law, _ in self._broken(law_session, subject, plans) - before}
                    if laws:
                        return self._is(stage, laws, detail)
            if fate == "quiet":
                law_session.close()
                law_session, subject = law_session.fresh(), replace(self.subject, adapter=str(exploding()))
                fate = "quiet" if self._differs(law_session, subject)[0] != "quiet" else "unreached"
            return self._is(fate, detail=detail)
        except Undecidable as error:
            return self._is("not applied", detail=str(error))
        finally:
            law_session.close()

    def _is(self, fate: str, laws: Collection[str] = (), detail: str = "") -> Outcome:
        return Outcome(fate, self.subject.name, self.subject.contract.name, tuple(sorted(laws)), detail)

    def _plans(self, item: Drawn) -> Scenario:
        plans = ((law, item.variants(law)) for law in self.subject.laws)
        return [(law, variants) for law, variants in plans if not isinstance(variants, str)]

    def _broken(self, law_session: LawSession, subject: Subject, plans: Scenario) -> set[tuple[str, str]]:
        """Return (law, symptom) of each violation that neither a dialect nor rounding explains."""
        self._search._law_session = law_session  # `genuine_violations` repeats calls in this session, in float64
        trials = zip(plans, law_session.try_(subject, plans))
        return {
            (law.name, found.symptom)
            for (law, _), trial in trials
            for found in self._search.genuine_violations(law, trial)
        }

    def _observed(self, law_session: LawSession, subject: Subject, plans: Scenario) -> Mapping[str, Any] | str:
        """Return the boundary's observation in a scenario, or why it raises."""
        try:
            return dict(
                law_session.observe(subject, {"": next(iter(plans[0][1].values()))}, subject.scenario_inputs)[""]
            )
        except Undecidable as error:
            if error.failure.kind == "import":
                raise
            return str(error)

    def _differs(self, law_session: LawSession, subject: Subject) -> tuple[str, str]:
        """Return (fate, detail): "survived" if an output differs, "loud" if it only raises, otherwise "quiet"."""
        loud = ""
        for stage, scenarios in self._stages.items():
            for plans, original in zip(scenarios, self._did[stage]):
                now = self._observed(law_session, subject, plans)
                if isinstance(now, str) or isinstance(original, str):
                    loud = loud or (now if isinstance(now, str) and not isinstance(original, str) else "")
                    continue
                inputs = next(iter(plans[0][1].values()))
                case = Case({"": inputs}, {"": now}, {"": original}, subject.contract)
                try:
                    found = disagreements(case, ("output", "gradient", "decision", "metric"))
                except (DoesNotApply, ValueError, TypeError, LookupError):
                    continue
                if found:
                    return "survived", f"{found[0].key}: {found[0].detail}"
        return ("loud", loud) if loud else ("quiet", "")


class Court:
    """Tries mutants of a target at a random sample of its boundaries. Mutants change functions that these boundaries
    run.
    """

    def __init__(self, target: str, boundaries: Sequence[str], most: int, seed: int, folder: Path) -> None:
        catalog = bundled_catalog()
        adapter = catalog.adapters[target]
        self._folder, self._real, self._seed = folder, adapter.file, seed
        (folder / "__init__.py").touch()
        folder.chmod(0o755)
        # The sandbox can read only the folders of adapters, so the folder of the mutants is listed as one of these.
        seen = replace(catalog, adapters={**catalog.adapters, "mutants": replace(adapter, file=folder / "__init__.py")})
        found = sorted(subjects(catalog, target, boundaries)[0], key=lambda item: self._lot(item.boundary))[:most]
        self.runner = Runner(seen, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options())
        open_target = self.runner.open_target(target, Ref("git", MAIN[target]), [item.binding for item in found])
        self._checkout, recipes = (
            open_target.checkout,
            [item for item in find_recipes(catalog) if item.target == target],
        )
        self._bound = {path for item in subjects(catalog, target)[0] for path in item.binding.paths}
        self.judges: list[Judge] = []
        parser = parser_process()
        for subject in found:
            try:
                session = open_target.law_session.fresh()
                constants = constants_of(parser, session, subject, open_target.checkout, open_target.sources)
                self.judges.append(Judge(session, subject, recipes, seed, constants))
            except Undecidable as error:
                print(f"{subject.name}: {error}", file=sys.stderr)
        parser.shutdown()

    def sample(self, most: int, operators: Mapping[str, Operator]) -> list[Mutant]:
        """Return a random sample of mutants. It takes from each function in turn, so that no function dominates."""
        ran = {path for judge in self.judges for path in judge.ran}
        own = {path for judge in self.judges for path in judge.subject.binding.paths}
        files = {place[1] for path in own if (place := self._place(path))}
        here = {place for path in ran & own | ran - self._bound if (place := self._place(path))}
        places = sorted(place for place in here if place[1] in files)
        several = [sorted(mutants(*place, operators), key=lambda item: self._lot(item.lot)) for place in places]
        several.sort(key=lambda group: self._lot(group[0].lot) if group else "")
        turns = (
            group[turn] for turn in range(max(map(len, several), default=0)) for group in several if turn < len(group)
        )
        return [mutant for _, mutant in zip(range(most), turns)]

    def try_mutant(self, mutant: Mutant) -> Outcome:
        """Try a mutant at the boundaries that run its function, until one kills it; return the strongest outcome.

        If the function is a boundary itself, that boundary is tried first.
        """
        path = f"{mutant.module}.{mutant.function}"
        judges = sorted((j for j in self.judges if path in j.ran), key=lambda j: path not in j.subject.binding.paths)
        outcomes = []
        for judge in judges[:JUDGES]:
            outcomes.append(judge.outcome(self._adapter(mutant), lambda: self._adapter(mutant.exploding)))
            if outcomes[-1].fate == FATES[0]:
                break
        return min(outcomes, key=lambda item: FATES.index(item.fate))

    def _lot(self, text: str) -> str:
        return hashlib.sha256(f"{self._seed} {text}".encode()).hexdigest()

    def _place(self, path: str) -> tuple[str, str, str] | None:
        """Return (source, file, qualified name) of the function with this dotted path; None if it is in no file."""
        parts = path.split(".")
        for root in self._checkout.import_roots:
            for end in range(len(parts) - 1, 0, -1):
                for name in (f"{'/'.join(parts[:end])}.py", f"{'/'.join(parts[:end])}/__init__.py"):
                    if (root / name).is_file() and "<" not in path:
                        return (root / name).read_text(encoding="utf-8"), name, ".".join(parts[end:])
        return None

    def _adapter(self, mutant: Mutant) -> Path:
        values = {"adapter": str(self._real), "file": mutant.file, "function": mutant.function, "source": mutant.source}
        text = _ADAPTER.format(**values)
        file = self._folder / f"m{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
        file.write_text(text, encoding="utf-8")
        return file


#: Outcomes, strongest first. If several boundaries run a mutant, the strongest counts.
FATES = ("drawn", "glimpsed", "late", "survived", "loud", "quiet", "unreached", "not applied")


def table(rows: Sequence[tuple[str, Outcome]]) -> str:
    """Format the outcomes as a Markdown table.

    The column *share* is the number of killed mutants divided by the number of mutants with a different output.
    """
    lines = ["| | killed | of these glimpsed | late | survived | share | loud | quiet | unreached |"]
    lines.append("| --- " + "| ---: " * 8 + "|")
    for name in [*sorted({name for name, _ in rows}), "all"]:
        fates = Counter(outcome.fate for item, outcome in rows if name in (item, "all"))
        drawn, glimpsed, late, survived, *others = (fates[fate] for fate in FATES[:-1])
        differ = drawn + glimpsed + late + survived
        share = f"{100 * (drawn + glimpsed) / differ:.0f}%" if differ else ""
        cells = [name, drawn + glimpsed, glimpsed, late, survived, share, *others]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=sorted(MAIN), action="append", help="only this target; may be repeated")
    parser.add_argument("--boundary", action="append", default=[], metavar="GLOB", help="only these boundaries")
    parser.add_argument("--most", type=int, default=40, metavar="N", help="mutants of one target (default: 40)")
    parser.add_argument("--half", choices=sorted(HALVES), default="first", help="the half of the operators to use")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample and of the scenarios")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result of every mutant to this file")
    arguments = parser.parse_args()
    done: list[tuple[str, Mutant, Outcome]] = []
    for target in arguments.target or MAIN:
        with tempfile.TemporaryDirectory() as folder:
            court = Court(target, arguments.boundary, max(10, arguments.most // 2), arguments.seed, Path(folder))
            try:
                for mutant in court.sample(arguments.most, HALVES[arguments.half]):
                    outcome = court.try_mutant(mutant)
                    done.append((target, mutant, outcome))
                    where = f"{mutant.file}:{mutant.line} {mutant.function}"
                    said = f"{outcome.fate} {', '.join(outcome.laws)} {outcome.detail[:150]}"
                    change = f"{mutant.operator}: `{mutant.before[:100]}` -> `{mutant.after[:100]}`"
                    print(f"[{len(done)}] {target} {where}: {change}: {said}", file=sys.stderr, flush=True)
            finally:
                court.runner.close()
    for name, rows in {
        "operator": [(mutant.operator, outcome) for _, mutant, outcome in done],
        "target": [(target, outcome) for target, _, outcome in done],
        "contract": [(outcome.contract, outcome) for _, _, outcome in done],
    }.items():
        print(f"\nby {name}\n\n{table(rows)}")
    laws = Counter(law for *_, outcome in done if outcome.fate in FATES[:2] for law in outcome.laws)
    print("\nkilled by", ", ".join(f"{law} {count}" for law, count in laws.most_common()))
    if arguments.json:
        rows_ = [{"target": t, **asdict(replace(m, source="", exploding_source="")), **asdict(o)} for t, m, o in done]
        arguments.json.write_text(json.dumps(rows_, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
