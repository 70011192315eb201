"""Numbers that know where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.export.tracer import Node, Tracer


def number_type(base: type, tracer: Tracer) -> Any:
    """``float`` or ``int`` as adapters and contracts see them while they are watched."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, base)

    def new(cls: Any, value: Any = 0, *rest: Any) -> Any:
        return base(value, *rest) if rest else tracer.number(cls, base, value)

    def operator(symbol: str, name: str, flipped: bool = False) -> Any:
        def method(self: Any, other: Any) -> Any:
            plain = getattr(base, name)(base(self), other)
            mine, theirs = (
                self.node,
                getattr(other, "node", None) or ({"value": other} if isinstance(other, (int, float)) else None),
            )
            if plain is NotImplemented or theirs is None:
                return plain
            pair = [theirs, mine] if flipped else [mine, theirs]
            kind = tracer.float_type if type(plain) is float else tracer.int_type
            return tagged(kind, type(plain), plain, {"binary": [symbol, *pair]})

        return method

    body: dict[str, Any] = {"__new__": new}
    for symbol, name in (("+", "add"), ("-", "sub"), ("*", "mul"), ("/", "truediv")):
        body[f"__{name}__"] = operator(symbol, f"__{name}__")
        body[f"__r{name}__"] = operator(symbol, f"__r{name}__", flipped=True)

    def negative(self: Any) -> Any:
        return tagged(type(self), base, -base(self), {"unary": ["-", self.node]})

    def absolute(self: Any) -> Any:
        return tagged(type(self), base, abs(base(self)), {"unary": ["abs", self.node]})

    body.update({"__neg__": negative, "__abs__": absolute, "__hash__": base.__hash__})
    return Meta(base.__name__, (base,), body)


def tagged(kind: Any, base: type, value: Any, node: Node) -> Any:
    """A number of a kind of :func:`number_type`, and where it comes from."""
    number: Any = base.__new__(kind, value)
    number.node = node
    return number
