"""Define the law ``metrics_tell_the_truth``: reported metrics equal the oracle's."""

from __future__ import annotations

from sentinel.laws.agreement import disagreements
from sentinel.laws.law import Case, Violation, law


@law("a reported metric equals the oracle's", needs_oracle=True)
def metrics_tell_the_truth(case: Case) -> list[Violation]:
    """Check that each reported metric is within the rounding bound of the oracle's metric.

    Catches a clip fraction that is counted after clamping (verl #6806), a mean over rejected tokens (AReaL's
    importance weight), and a minimum that includes masked zeros (SkyRL #1859).
    """
    return disagreements(case, ("metric",))
