"""Parse addresses such as ``baseline.loss``, each of which names one observed value.

Without variants, an address is a key: ``loss``. With variants it is ``baseline.advantages``, or ``difference(outlier,
baseline).advantages`` for the first variant's value minus the second's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sentinel.errors import nearest

_DIFFERENCE = re.compile(r"difference\s*\(\s*([^\s,()]*)\s*,\s*([^\s,()]*)\s*\)\s*\.\s*(.*)", re.DOTALL)
#: A pattern for an observation key, followed by keys inside the observed value, such as the metrics ``pass@2`` or
#: ``kl/mean``.
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[^\s.,()]+)*")


class AddressError(ValueError):
    """Raised if a text is not the address of an observed value."""


@dataclass(frozen=True)
class Address:
    """A parsed address.

    :ivar variants: the name of one variant; two names for their difference; ``("",)`` if the scenario has no variants.
    """

    variants: tuple[str, ...]
    key: str

    def __str__(self) -> str:
        if len(self.variants) == 2:
            return f"difference({', '.join(self.variants)}).{self.key}"
        return f"{self.variants[0]}.{self.key}" if self.variants[0] else self.key


def parse_address(
    text: str,
    variants: Collection[str] = ("",),
    keys: Collection[str] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Address:
    """Parse an address.

    :param variants: the names of the scenario's variants; ``("",)`` if it has none.
    :param keys: the keys that the contract observes; None if any key is accepted.
    :raises AddressError: for an unknown variant or key, with the most similar names.
    """
    names = [name for name in variants if name]
    match = _DIFFERENCE.fullmatch(text.strip())
    if match:
        left, right, key = match.groups()
        if not names:
            raise AddressError(f"{text!r} is a difference, but the scenario has no variants")
        for name in (left, right):
            if name not in names:
                raise AddressError(f"unknown variant {name!r} in {text!r}{nearest(name, names, 'the variants are')}")
        if left == right:
            raise AddressError(f"{text!r} is the difference of a variant and itself, which is always zero")
        return Address((left, right), _key(key, keys, aliases or {}, text))
    if not names:
        return Address(("",), _key(text, keys, aliases or {}, text))
    variant, dot, key = (part.strip() for part in text.partition("."))
    if variant not in names:
        some = f"{names[0]}.{text.strip()}"
        hint = nearest(variant, names) if dot else ""
        raise AddressError(f"{text!r} does not name a variant ({', '.join(names)}); write {some}{hint}")
    return Address((variant,), _key(key, keys, aliases or {}, text))


def _key(written: str, keys: Collection[str] | None, aliases: Mapping[str, str], text: str) -> str:
    key = written.strip()
    if not _KEY.fullmatch(key):
        raise AddressError(f"{text!r} is not an address; write key, variant.key or difference(variant, variant).key")
    if keys is not None and key in keys:
        return key
    key = aliases.get(key, key)
    if keys is not None and key not in keys:
        raise AddressError(f"unknown observation {key!r}{nearest(key, {*keys, *aliases}, 'the observations are')}")
    return key
