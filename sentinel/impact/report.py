"""What was found as a document, for programs.

``impact.json``: ``impact_version`` 1; ``bug_id``, ``title``, ``target``, ``contract``, ``boundary``; ``base`` and
``head``: ``ref`` and ``revision``; ``training``: the toy (``parameters``, ``seeds``, ``steps`` done of ``asked``), the
``configuration`` and the ``variant`` of the scenario that it is from, the boundary's ``part`` of a step, ``premises``
(sentences: what is rare and planted, whether batches are cut, whether head is the reference); ``rule`` and ``words``;
``effect``: the numbers behind the words; ``curves``: ``base`` and ``head``: a list a seed with the reward after each
step (null: stopped); ``gradients``: ``angle`` (degrees) and ``ratio`` (of the norms, base by head): likewise (null: not
to be had).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from sentinel.impact import toy
from sentinel.impact.effects import RULE, Effect, effect, words
from sentinel.impact.places import REFERENCE, Place
from sentinel.impact.scenes import Scene
from sentinel.impact.training import EVERY, Moment
from sentinel.recipes import Recipe
from sentinel.values import plain

Moments = Sequence[Sequence[Moment]]


@dataclass(frozen=True)
class Report:
    """:ivar asked: how many steps were asked for; ``moments`` has those that were done."""

    recipe: Recipe
    scene: Scene
    base: Place
    head: Place
    asked: int
    moments: Moments

    @cached_property
    def effect(self) -> Effect:
        return effect(self.moments)

    @property
    def premises(self) -> list[str]:
        """What a reader has to know before the words."""
        rare = self.scene.rare
        found = [f"every {EVERY}th batch has, as the recipe's scenario has: {'; '.join(rare)}"] if rare else []
        if self.scene.in_parts:
            found.append("each batch is cut into two parts, whose gradients are added")
        if not self.scene.rejecting:
            refused, own = "refuses a batch with one that is", "decides itself what becomes of one that does not end"
            found.append(
                f"no response is rejected: the boundary {own if self.scene.entrance.every_response else refused}"
            )
        if self.scene.alike and self.scene.settings.get("group_layout") != "equal":
            found.append("prompts have as many responses each: the boundary refuses a batch in which they have not")
        if self.head.ref == REFERENCE:
            found.append(
                "head is no revision, but the contract's own reference in float64, written from the papers: it is no "
                "code of upstream's"
            )
        return found

    @property
    def words(self) -> list[str]:
        return words(self.effect)

    def document(self) -> dict[str, Any]:
        recipe, scene = self.recipe, self.scene
        found: dict[str, Any] = plain(
            {
                "impact_version": 1,
                "bug_id": recipe.bug_id,
                "title": recipe.title,
                "target": recipe.target,
                "contract": recipe.contract,
                "boundary": recipe.boundary,
                "base": _place(self.base),
                "head": _place(self.head),
                "training": {
                    "parameters": toy.PARAMETERS,
                    "seeds": len(self.moments[0]),
                    "steps": len(self.moments),
                    "asked": self.asked,
                    "variant": scene.variant,
                    "configuration": scene.configuration,
                    "part": scene.entrance.part,
                    "premises": self.premises,
                },
                "rule": RULE,
                "words": self.words,
                "effect": {**asdict(self.effect), "visible": self.effect.visible},
                "curves": {side: series(self.moments, f"{side}_reward") for side in ("base", "head")},
                "gradients": {name: series(self.moments, name) for name in ("angle", "ratio")},
            }
        )
        return found


def series(moments: Moments, name: str) -> list[list[float | None]]:
    """One number of the moments: a list a seed, of one a step."""
    return [[getattr(step[seed], name) for step in moments] for seed in range(len(moments[0]))]


def _place(place: Place) -> dict[str, str]:
    return {"ref": place.ref, "revision": place.revision}
