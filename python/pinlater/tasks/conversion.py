"""Values that a codec does not carry by itself, such as a UUID or a dataclass: how they are written and come back.

Promises that a value comes back as its annotation says, or raises NotConvertible before anything is sent. msgspec does
the work; docs/tasks.md has what it writes. Risks: a pydantic model is written as its JSON form, and has to read that.
So a value is written, restored and compared; a plain one is not, because the annotation says what becomes of it.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import math
import pathlib
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from pinlater._core import is_plain_value
from pinlater.tasks.losses import Loss, first_loss

#: Annotations that say nothing about how a value comes back.
SAYS_NOTHING: Final = (Any, object, inspect.Parameter.empty)
_PLAIN_TYPES: Final = frozenset([*SAYS_NOTHING, None, type(None), bool, int, float, str, list, dict])
_PLAIN_ORIGINS: Final = frozenset(
    [
        *(list, dict, typing.Union, types.UnionType, collections.abc.Mapping, collections.abc.MutableMapping),
        *(collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection),
        collections.abc.Iterable,
    ]
)
_BASE64: Final = (
    "for bytes that are no text, set ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"
)
#: What would work, by a part of what msgspec says of a type.
_WORKS: Final = {
    "Type unions": "annotate it as one of them, or as a dataclass that has a field for each",
    "Enums must": "give the Enum values that are all text or all int, or pass its name",
    "InitVar": "make them fields, or pass what the dataclass is made of",
}


class NotConvertible(Exception):
    """A value cannot be written, or does not fit its annotation. The text says why."""


def is_plain(annotation: Any, binary: bool) -> bool:
    """Whether a codec restores by itself what the annotation says, or the annotation says nothing.

    binary: the codec carries bytes.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return is_plain(args[0], binary)
    if origin is Literal:
        return not any(isinstance(each, enum.Enum) for each in args)
    if origin is not None:
        return origin in _PLAIN_ORIGINS and all(is_plain(each, binary) for each in args)
    if isinstance(annotation, TypeVar) or (annotation is bytes and binary):
        return True
    return isinstance(annotation, collections.abc.Hashable) and annotation in _PLAIN_TYPES | _PLAIN_ORIGINS


@dataclass(frozen=True, slots=True)
class Conversion:
    """How the values of one annotation are written and come back.

    annotation: the type.
    binary: the codec carries bytes, and maps with keys that are not text.
    converts: whether what the codec restores is not yet what the annotation says.
    refusal: why only plain values can come back; "" if all of the type can.
    vague: a part of the type says nothing (Any).
    """

    annotation: Any
    binary: bool
    converts: bool
    refusal: str = ""
    vague: bool = False

    def write(self, value: Any) -> Any:
        """The value as the codec carries it. Raises NotConvertible."""
        if self.refusal:
            raise NotConvertible(f"a {type(value).__qualname__} cannot come back: {self.refusal}")
        try:
            return self._checked(value)
        except RecursionError:
            raise NotConvertible(f"a {type(value).__qualname__} is nested too deeply, or contains itself") from None

    def _checked(self, value: Any) -> Any:
        """The value as the codec carries it, once it is known to come back. Raises NotConvertible, RecursionError."""
        written = self._written(value)
        restored = self.restore(written if self.binary and not self.vague else _as_codecs_do(written, self.binary))
        if self.vague or not is_plain_value(value, self.binary):
            self._check_nothing_is_lost(value, restored)
        return written

    def _check_nothing_is_lost(self, value: Any, restored: Any) -> None:
        if loss := first_loss(value, restored, self.vague):
            raise NotConvertible(f"{_changed(loss)}{self._remedy(loss)}")

    def _remedy(self, loss: Loss) -> str:
        """What would work, as the end of an error."""
        if loss.of_class:
            return f"; annotate {loss.where or 'it'} as {type(loss.value).__qualname__}"
        if self.vague:
            return f": {shown(self.annotation)} does not say the type"
        return "; give it a type or a serializer that keeps it, or pass an id"

    def restore(self, value: Any) -> Any:
        """What the annotation says, of a value that the codec restored. Raises NotConvertible."""
        import msgspec  # most apps convert nothing

        try:
            return msgspec.convert(value, self.annotation, str_keys=not self.binary, dec_hook=_read_other)
        except msgspec.ValidationError as error:
            raise NotConvertible(f"expected {shown(self.annotation)}, got {value!r:.60} ({_line(error)})") from None

    def _written(self, value: Any) -> Any:
        import msgspec

        builtin = (bytes,) if self.binary else ()
        try:
            return msgspec.to_builtins(value, builtin_types=builtin, str_keys=not self.binary, enc_hook=_write_other)
        except (TypeError, ValueError) as error:
            raise NotConvertible(f"{value!r:.60} cannot be written ({_line(error)})") from None


def conversion_of(annotation: Any, binary: bool) -> Conversion:
    """How the values of an annotation are written and come back. binary: see Conversion."""
    converts = not is_plain(annotation, binary)
    if not converts and annotation in SAYS_NOTHING:
        reason = "its parameter has no annotation that says the type; add one, or pass text or a number"
        return Conversion(annotation, binary, converts, reason)
    try:
        refusal, vague = _looked_through(annotation)
    except (TypeError, ValueError, NameError) as error:  # a type that msgspec does not know
        refusal, vague = f"{_line(error)}{_what_works(str(error))}", True
    return Conversion(annotation, binary, converts and not refusal, refusal, vague)


def no_function(binary: bool) -> Conversion:
    """The conversion of any argument of a task whose function is in another program."""
    return Conversion(Any, binary, False, "the task's function is not known here; pass text, numbers, lists and dicts")


def unknown_annotation(text: Any, binary: bool) -> Conversion:
    """The conversion of an annotation that cannot be evaluated in its module."""
    reason = f"its annotation {text!r:.60} is not defined in its module (imported under TYPE_CHECKING?)"
    return Conversion(text, binary, False, reason)


def shown(annotation: Any) -> str:
    """An annotation as errors show it."""
    return inspect.formatannotation(annotation)


def _looked_through(annotation: Any) -> tuple[str, bool]:
    """Why values of a type cannot come back, or "", and whether a part of it says nothing. Raises what msgspec does."""
    import msgspec.inspect

    found: dict[int, Any] = {}
    waiting: list[Any] = [msgspec.inspect.type_info(annotation)]
    while waiting:
        each = waiting.pop()
        if id(each) not in found:  # a type may contain itself
            found[id(each)] = each
            waiting += _parts(each)
    for each in found.values():
        if isinstance(each, msgspec.inspect.CustomType) and not hasattr(each.cls, "model_validate"):
            return f"{each.cls.__qualname__} is no type that can be written; {_instead_of(each.cls)}", True
    return "", any(isinstance(each, msgspec.inspect.AnyType) for each in found.values())


def _instead_of(kind: Any) -> str:
    """What to pass in place of a value of a type that cannot be written."""
    if issubclass(kind, pathlib.PurePath):
        return "pass str(path)"
    return "a list is" if issubclass(kind, collections.abc.Iterable) else "a dataclass is, or an id"


def _what_works(refusal: str) -> str:
    """What would work, by what msgspec says of a type that it refuses."""
    return next((f"; {works}" for part, works in _WORKS.items() if part in refusal), "")


def _parts(info: Any) -> list[Any]:
    """What a description of a type, or of a field, is made of."""
    import msgspec.inspect

    fields = [getattr(info, name) for name in info.__struct_fields__]
    flat = [part for field in fields for part in (field if isinstance(field, tuple) else (field,))]
    return [part for part in flat if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field)]


def _as_codecs_do(value: Any, binary: bool) -> Any:
    """What comes back of a value that a codec packs: lists for tuples, and of JSON None for NaN and infinity."""
    if isinstance(value, dict):
        return {key: _as_codecs_do(each, binary) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_codecs_do(each, binary) for each in value]
    return None if isinstance(value, float) and not binary and not math.isfinite(value) else value


def _write_other(value: Any) -> Any:
    """What msgspec does not write itself: pydantic models, and subclasses of basic types. Raises TypeError."""
    if hasattr(value, "model_dump"):
        return _form_of(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"a {type(value).__qualname__} is no type that can be written")


def _read_other(kind: Any, value: Any) -> Any:
    """Makes a pydantic model; raises ValueError, or TypeError for another type."""
    if isinstance(value, kind):
        return value
    if hasattr(kind, "model_validate"):
        return _model_of(kind, value)
    raise TypeError(f"a {kind.__qualname__} is no type that can be read")


def _form_of(model: Any) -> Any:
    """The JSON form that a pydantic model reads again. What it changes is seen later. Raises ValueError."""
    try:
        return model.model_dump(mode="json", round_trip=True, warnings=False)
    except ValueError as error:
        raise ValueError(f"{error}; {_BASE64}" if "utf-8" in str(error) else str(error)) from None


def _model_of(kind: Any, value: Any) -> Any:
    """Makes a pydantic model of its JSON form, so by the rules for JSON; by names or aliases. Raises ValueError."""
    import pydantic_core

    try:
        text = pydantic_core.to_json(value, inf_nan_mode="constants")
    except ValueError:  # bytes that are no text, so not what model_dump wrote
        return kind.model_validate(value, by_alias=True, by_name=True)
    return kind.model_validate_json(text, by_alias=True, by_name=True)


def _changed(loss: Loss) -> str:
    """What comes back in place of what."""
    value, restored = (f"a {type(each).__qualname__}" for each in (loss.value, loss.restored))
    if not loss.of_class:
        value, restored = f"{loss.value!r:.60}", f"{loss.restored!r:.60}"
    where = f"{loss.where}: " if loss.where else ""
    return f"{where}{value} would come back as {'another value' if value == restored else restored}"


def _line(error: BaseException) -> str:
    """The text of an error in one line."""
    return "; ".join(line.strip() for line in str(error).splitlines()[:3])
