"""What of a value does not come back: the first difference between a value and what its written form restores.

Promises to look into dataclasses, attrs classes, Structs, pydantic models, maps and lists, and that a class is part of
a value: a subclass is not its base. Risk: what an annotation converts (text to a UUID, a tuple to a list) is no loss,
unless the annotation does not say the type.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_BYTES: Final = (bytes, bytearray, memoryview)
_SCALARS: Final = (type(None), bool, int, float, str, *_BYTES)
#: Most values are one of these: a look at the class and "==" suffice.
_LEAVES: Final = frozenset([type(None), bool, int, float, str, bytes, uuid.UUID, decimal.Decimal, datetime.datetime])
_COLLECTIONS: Final = (list, tuple, set, frozenset)


class Loss(NamedTuple):
    """A part of a value that comes back as another.

    where: the way to it from the value, as Python writes it: `.pets[0]`; "": the value itself.
    """

    where: str
    value: Any
    restored: Any

    @property
    def of_class(self) -> bool:
        """Whether an object comes back as one of another class."""
        return _fields(self.value) is not None and _class(self.value) is not _class(self.restored)


def first_loss(value: Any, restored: Any, vague: bool) -> Loss | None:
    """What does not come back, or None. vague: the annotation does not say all types, so it converts nothing."""
    return next(_losses(value, restored, "", vague), None)


def _losses(value: Any, restored: Any, where: str, vague: bool) -> Iterator[Loss]:
    if type(value) is type(restored) and type(value) in _LEAVES and value == restored:
        return
    fields = _fields(value)
    if fields is not None:
        yield from _of_object(value, restored, where, vague, fields)
    elif isinstance(value, collections.abc.Mapping):
        yield from _of_map(value, restored, where, vague)
    elif isinstance(value, list | tuple) and isinstance(restored, list | tuple):
        yield from _of_list(value, restored, where, vague)
    elif not _comes_back(value, restored, vague):
        yield Loss(where, value, restored)


def _of_object(value: Any, restored: Any, where: str, vague: bool, fields: dict[str, Any]) -> Iterator[Loss]:
    found = _fields(restored)
    if found is None or _class(value) is not _class(restored) or fields.keys() != found.keys():
        yield Loss(where, value, restored)
        return
    for name, each in fields.items():
        unsaid = not _is_its_default(value, name, each) if _is_model(value) else vague
        yield from _losses(each, found[name], f"{where}.{name}", unsaid)


def _is_its_default(model: Any, name: str, value: Any) -> bool:
    """Whether a field has its default, which pydantic does not convert: text where a URL is meant."""
    default = name in type(model).model_fields and name not in model.model_fields_set
    return default and (_is_scalar(value) or isinstance(value, list))


def _of_map(value: Any, restored: Any, where: str, vague: bool) -> Iterator[Loss]:
    if not isinstance(restored, collections.abc.Mapping):  # the document of an object
        found = _fields(restored) or {}
        pairs = [(key, each, found[key]) for key, each in value.items() if key in found and not _is_scalar(each)]
    elif value.keys() == restored.keys():
        pairs = [(key, each, restored[key]) for key, each in value.items()]
    elif len(value) == len(restored) and all(map(_comes_back, value, restored, [vague] * len(value))):
        pairs = list(zip(value.keys(), value.values(), restored.values(), strict=True))
    else:
        yield Loss(where, value, restored)
        return
    for key, each, other in pairs:
        yield from _losses(each, other, f"{where}[{key!r}]", vague)


def _of_list(value: Any, restored: Any, where: str, vague: bool) -> Iterator[Loss]:
    if len(value) != len(restored) or (vague and isinstance(value, tuple) is not isinstance(restored, tuple)):
        yield Loss(where, value, restored)
        return
    for index, (each, other) in enumerate(zip(value, restored, strict=True)):
        yield from _losses(each, other, f"{where}[{index}]", vague)


def _comes_back(value: Any, restored: Any, vague: bool) -> bool:
    """Whether a value without parts does, or a set."""
    if isinstance(value, _BYTES) and isinstance(restored, _BYTES):
        return bytes(value) == bytes(restored)
    if _equal(value, restored):
        return not vague or _is_scalar(value) or (isinstance(value, type(restored)) and not _is_cut(value, restored))
    if vague:
        return False
    if _is_scalar(value):
        return not _is_scalar(restored)
    return isinstance(value, _COLLECTIONS) and isinstance(restored, _COLLECTIONS) and _equal({*value}, {*restored})


def _is_cut(value: Any, restored: Any) -> bool:
    """Whether an Enum comes back as its value."""
    return isinstance(value, enum.Enum) and type(value) is not type(restored)


def _equal(value: Any, restored: Any) -> bool:
    """Whether two values are equal, or no number both. False if they cannot be compared."""
    try:
        return bool(value == restored) or bool(value != value and restored != restored)
    except Exception:  # a type of the user may raise anything
        return False


def _is_scalar(value: Any) -> bool:
    return isinstance(value, _SCALARS) and not isinstance(value, enum.Enum)


def _is_model(value: Any) -> bool:
    return hasattr(type(value), "model_fields") and hasattr(value, "model_dump")


def _class(value: Any) -> Any:
    """The class of an object; of a pydantic generic model without its parameters."""
    kind = type(value)
    return (getattr(kind, "__pydantic_generic_metadata__", None) or {}).get("origin") or kind


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an object, by name; None for another value."""
    kind = type(value)
    if _is_model(value):
        extra, private = value.__pydantic_extra__ or {}, value.__pydantic_private__ or {}
        return {**{name: getattr(value, name, None) for name in kind.model_fields}, **extra, **private}
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [each.name for each in kind.__attrs_attrs__]
    elif hasattr(kind, "__struct_fields__"):
        names = list(kind.__struct_fields__)
    else:
        return None
    return {name: getattr(value, name, None) for name in names}
