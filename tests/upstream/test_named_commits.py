"""Every boundary at older commits is bound and returns values, or the adapter says why not."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from binding_kit import Bound
from commits import COMMITS, EVERY
from renamed import revisions, sightings
from shipped import MIRRORS, runner

from sentinel.deciding.law_session import Undecidable
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.bindings import CheckoutTrees, Definitions, Sighting, sighting
from sentinel.search.checks import subjects
from sentinel.sources import open_checkout
from sentinel.sources.commits import commit
from sentinel.sources.gitbinary import GitError
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

#: Reading upstream's source causes these warnings.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

#: Contracts whose scenarios are not made by hand here, but by the recipes that pin their boundaries.
BY_RECIPES = ("advantage_step",)

#: Boundaries that raise for every scenario, or that do not import -> the reason; everywhere, or at one commit.
RAISES = {
    ("openrlhf.models.utils.masked_normalize", ""): "OPENRLHF-MASKED-NORMALIZE-WRONG-AXIS, but where shapes agree",
    ("verl.workers.actor.dp_actor.DataParallelPPOActor.update_policy", "1965ef5"): "#4933: its loss takes no index",
    ("verl.workers.utils.losses.sft_loss", "dbf4bba"): "#7212: log-probs are a rectangle, and their mask is jagged",
    ("verl.utils.dataset.multiturn_sft_dataset.MultiTurnSFTDataset.__getitem__", "dbf4bba"): "asks that loss",
    ("verl.protocol.fold_batch_dim", ""): "np.reshape of NumPy 2.4 has no newshape; today's main does not pass it",
    ("verl.protocol.unfold_batch_dim", ""): "np.reshape of NumPy 2.4 has no newshape; today's main does not pass it",
    ("verl.models.mcore.util.preprocess_packed_seqs", ""): "FP8 padding of the last row on two ranks, until #6001",
    ("verl.models.mcore.util.postprocess_packed_seqs", ""): "FP8 padding of the last row on two ranks, until #6001",
    ("verl.utils.model.extract_multi_modal_inputs", ""): "until #4492, a row without images",
    ("verl.trainer.ppo.metric_utils.process_validation_metrics", "4d722b1"): "it needs a column pred",
    ("verl.trainer.ppo.metric_utils.process_validation_metrics", "7fc8330"): "it needs a column pred",
    (
        "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithValueHead.prepare_model_outputs",
        "",
    ): "until #4211, batches with padding",
    ("trl.trainer.grpo_trainer.GRPOTrainer._compute_loss", "ecb2811"): "TRL-GRPO-ADVANTAGES-ACROSS-TOKENS",
    ("trl.trainer.grpo_trainer.GRPOTrainer.compute_liger_loss", "ecb2811"): "TRL-GRPO-ADVANTAGES-ACROSS-TOKENS",
    **{
        ("areal.trainer.rw.rw_engine.compute_rw_loss", sha): "its module uses a decorator that stats_tracker lacks"
        for sha in ("abc85ab", "c8ebd19", "d78f628", "e5ae305")
    },
    **{
        ("roll.distributed.scheduler.generate_scheduler.expand_responses", sha): "its rows are items, not DataProtos"
        for sha in ("4bb7d74", "c09bc8b", "df4b69b", "e98e9f8", "f67f5d3")
    },
}

#: Allowed failures: the version lacks it according to the adapter, or needs another Python.
SAID = ("not-in-this-version", "python")


@dataclass(frozen=True)
class Place:
    """One target at one commit.

    :ivar there: the place of each binding in the checkout's source.
    """

    target: Target
    checkout: Checkout
    sha: str
    text: Definitions
    code: Bound
    there: dict[tuple[str, str], Sighting]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "roll" else pytest.mark.nightly)
     for name in bundled_catalog().targets if name != "demo"],
)  # fmt: skip
def test_every_boundary_is_bound_at_every_commit_that_has_it(name):
    """This is tested at releases, every 25th commit of main, and commits that recipes name, if the mirror has them."""
    target = bundled_catalog().targets[name]
    try:
        mirror = MIRRORS.path(name)
        looked = revisions(mirror, MIRRORS.resolve(target, target.branch))
    except Unavailable as error:
        pytest.skip(error.reason)
    for sha in (sha for other, sha in EVERY if other == name):
        with contextlib.suppress(GitError):  # of a pull request that nobody fetched
            looked[sha] = commit(mirror, sha)
    looked = dict(sorted(looked.items(), key=lambda item: item[1].date))
    trees = GitTrees(mirror)
    try:
        seen = sightings(target, trees, [item.tree for item in looked.values()])
    finally:
        trees.close()
    missing = {
        (binding.boundary, binding.contract, revision): one.alike or one.where.needs
        for binding, ones in zip(target.bindings, seen)
        for revision, one in zip(looked, ones)
        if one.missing
    }
    assert missing == {}
    assert all(any(one.where.bound for one in ones) for ones in seen)


@pytest.fixture(scope="module", params=COMMITS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    name, sha = request.param
    catalog, ref, warm = bundled_catalog(), Ref("git", sha), runner()
    target = catalog.targets[name]
    try:
        checkout = open_checkout(target, ref, store=MIRRORS)
        text = Definitions(CheckoutTrees(checkout), target.roots)
        told = {(item.boundary, item.contract): sighting(text, "", item) for item in target.bindings}
        yield Place(target, checkout, sha[:7], text, Bound(warm, name, ref), told)
    except Unavailable as error:
        pytest.skip(error.reason)
    finally:
        warm.close()


def test_every_boundary_returns_or_has_a_reason(place):
    catalog, wrong = bundled_catalog(), {}
    searched = {(s.boundary, s.contract.name): s for s in subjects(catalog, place.target.name)[0]}
    for binding in place.target.bindings:
        key = (binding.boundary, binding.contract)
        if key not in searched or binding.contract in BY_RECIPES:
            continue  # other tests run recipes at all their pins, and contracts without laws have only recipes
        try:
            kind, reason = place.code.refusal(searched[key])
        except Undecidable as error:
            if error.failure.kind == "drift" and (binding.requires or not place.there[key].definition):
                continue
            kind, reason = error.failure.kind, str(error)
        if (
            kind
            and kind not in SAID
            and place.there[key].definition
            and not (kind in ("raised", "import") and any((binding.boundary, at) in RAISES for at in ("", place.sha)))
            and not (kind == "import" and place.there[key].lacks)  # the adapter does not support this version either
        ):
            wrong[key] = f"{kind}: {reason}; in the text {place.there[key]}"
    assert not wrong, "\n".join(f"{boundary} ({contract}): {why}" for (boundary, contract), why in wrong.items())
