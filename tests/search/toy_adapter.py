"""The adapter of the toy functions."""

from typing import Any

from sentinel.targets import Binding, Dialect, PackageRoot, Target


def _binding(name: str, **more: object) -> Binding:
    return Binding(f"pkg.toys.{name}", "toy_sum", outputs=("sums",), **more)  # type: ignore[arg-type]


def _lacking(boundary: object, inputs: object) -> None:
    from sentinel.binding.drift import AbsentError

    raise AbsentError("this version adds nothing up")


def _on_two_ranks(boundary: Any, inputs: Any) -> Any:
    from sentinel.binding.kit import on_ranks

    values, mask, scale = (inputs[name] for name in ("values", "response_mask", "scale"))
    return on_ranks(2, lambda rank: boundary.function(rank, values, mask, scale))[0]


TARGET = Target(
    name="toys",
    repository="https://example.invalid/toys.git",
    roots=(PackageRoot("pkg"),),
    bindings=(
        _binding("right"),
        _binding("unmasked"),
        _binding("rough"),
        _binding("refuses"),
        _binding("lacks", call=_lacking),
        _binding("calls_unmasked"),
        _binding("remembers"),
        _binding("fragile"),
        _binding("torn"),
        _binding("hangs"),
        _binding("whitens", call=_on_two_ranks),
        _binding("shifted", dialects=(Dialect("shifted", True, "it counts from 1", "https://example.invalid"),)),
        _binding(
            "meant", dialects=(Dialect("the_oracle_agrees", reason="it means it", link="https://example.invalid"),)
        ),
        _binding(
            "stale", dialects=(Dialect("the_oracle_agrees", reason="it meant it", link="https://example.invalid"),)
        ),
        _binding("elsewhere"),
        Binding("pkg.toys.leaking", "toy_sum_alone", outputs=("sums",)),
        *(
            Binding(f"pkg.toys.{name}", "toy_sum_with_offset", outputs=("sums",))
            for name in ("plain", "adding", "plain_wrong")
        ),
        Binding("pkg.toys.unheard", "toy_sum_with_many_offsets", outputs=("sums",)),
    ),
)
