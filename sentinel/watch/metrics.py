"""Tells a run's own logger what watching has found, as its user has configured it; it imports no logger."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def tell(trainer: Any, counts: Mapping[str, float], step: int) -> None:
    """Hand numbers to the reporters of a trainer; where there is none, to the run that a tracker has open."""
    handler = getattr(trainer, "callback_handler", None)
    reported = False
    for one in getattr(handler, "callbacks", ()):
        if type(one).__module__.startswith("transformers.integrations"):
            one.on_log(trainer.args, trainer.state, trainer.control, logs=dict(counts), model=trainer.model)
            reported = True
    if reported:
        return
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    if getattr(wandb, "run", None) is not None:
        wandb.log(dict(counts), commit=False)  # type: ignore[union-attr]
    elif mlflow is not None and mlflow.active_run() is not None:
        mlflow.log_metrics(dict(counts), step=step)
