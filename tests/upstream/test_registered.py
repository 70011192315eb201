"""Registered functions of verl and SkyRL without a binding are bound like their family, as future ones will be."""

from contextlib import closing
from dataclasses import replace

import pytest
from binding_kit import MAIN, skip_without_python
from shipped import MIRRORS

from sentinel.deciding.law_session import Undecidable
from sentinel.deciding.runner import Runner
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog, load_adapter
from sentinel.search.boundary_search import BoundarySearch
from sentinel.search.checks import registered, subjects
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: An adapter that binds one member of each family, and nothing else.
ALONE = """
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from sentinel.targets.loading import load_file
WHOLE = load_file(Path({adapter!r})).TARGET
LIKE = {{registry.like for registry in WHOLE.registries}}
TARGET = replace(WHOLE, bindings=tuple(b for b in WHOLE.bindings if b.boundary in LIKE))
"""


@pytest.mark.parametrize(
    ("target", "members", "answering"), [pytest.param("verl", 24, 16, marks=pytest.mark.nightly), ("skyrl", 13, 10)]
)
def test_unbound_registered_functions_return_values(target, members, answering, tmp_path):
    """A few functions need inputs that the bound member of their family lacks: values, baselines, an option."""
    skip_without_python(target)
    bundled = bundled_catalog()
    file = tmp_path / f"{target}.py"
    file.write_text(ALONE.format(adapter=str(bundled.adapters[target].file)))
    catalog = replace(bundled, adapters={**bundled.adapters, target: load_adapter(file, bundled.contracts)})
    runner = Runner(catalog, lambda t, r, p: open_checkout(t, r, store=MIRRORS), Options(sandbox="basic"))
    ref = Ref("git", MAIN[target])
    try:
        checkout = runner.checkout(target, ref)
        assert registered(bundled.targets[target], checkout) == [], "the adapter binds each of them"
        names = {member.boundary for member in registered(catalog.targets[target], checkout)}
        found = [item for item in subjects(catalog, target, checkout=checkout)[0] if item.boundary in names]
        law_session = runner.open_target(target, ref, [item.binding for item in found]).law_session
        answered = []
        for subject in found:
            with closing(law_session.fresh()) as fresh:
                search = BoundarySearch(fresh, subject, 0, shrinking=1)
                try:
                    search.run(6)
                except Undecidable:
                    continue
            answered += [subject.boundary] if any(outcome.judged for outcome in search.outcomes.values()) else []
    except Unavailable as error:
        pytest.skip(error.reason)
    finally:
        runner.close()
    assert len(names) >= members
    assert len(answered) >= answering, sorted(names - set(answered))
