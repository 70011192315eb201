"""Watch a training run: copy some calls of a framework's functions, and check the copies in a separate process.

    import sentinel.tools.watch

    with sentinel.tools.watch.start("trl") as watching:
        trainer.train()
    print(watching.counts)

or ``SENTINEL_WATCH=trl:events.jsonl`` in the environment, or ``sentinel watch --target trl -- python train.py``.
"""

from __future__ import annotations

from sentinel.tools.watch.link import Watching, start

__all__ = ["Watching", "start"]
