"""The interface file, and values of it as bytes: calls and their results. The library thriftpy2 does that.

Promises that arguments and results which lack a required field, or name an unknown value of an enum, raise InvalidCall.
Risks: the library reads what it gets. `_core.check_message` must have seen the bytes before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.thrift import TApplicationException, TType
from thriftpy2.transport import TCyMemoryBuffer

from pinlater.server.frames import framed
from pinlater.server.messages import Head, MessageType, write_head

#: The interface of the service, for clients in any language.
PATH: Final = Path(__file__).with_name("pinlater.thrift")
#: The structs of the interface, as classes.
structs: Final = thriftpy2.load(str(PATH), module_name="pinlater_thrift")
#: The names of the methods.
METHODS: Final[tuple[str, ...]] = tuple(structs.PinLater.thrift_services)
#: A call may leave these arguments out. The password that is missing is a wrong password.
_OPTIONAL: Final = frozenset({"password"})
#: Fields of the type string that have any bytes.
_ANY_BYTES: Final = frozenset({"newBody"})
#: Reads or writes values on a buffer. The library's own check of lengths is not needed: the bytes were checked.
_protocol: Final[Callable[[Any], Any]] = TCyBinaryProtocolFactory().get_protocol


def arguments_type(method: str) -> Any:
    """The class of a method's arguments."""
    return vars(structs.PinLater)[f"{method}_args"]


def result_type(method: str) -> Any:
    """The class of a method's result."""
    return vars(structs.PinLater)[f"{method}_result"]


class InvalidCall(Exception):
    """A required field is missing, or an enum has no such value. The message names the field."""


def read_arguments(head: Head, frame: bytes) -> Any:
    """The arguments of a call. Raises InvalidCall."""
    arguments = _read(arguments_type(head.method)(), frame[head.end :])
    for _, name, *_ in arguments.thrift_spec.values():
        if getattr(arguments, name) is None and name not in _OPTIONAL:
            raise InvalidCall(f"{head.method}: expected {name}, which is required")
    _check_struct(arguments, head.method)
    return arguments


def write_result(head: Head, value: Any) -> bytes:
    """The frame of the answer to a call. value: what its method returns."""
    return _write(head, {} if value is None else {"success": value})


def write_exception(head: Head, code: int, message: str) -> bytes:
    """The frame of an answer that raises a PinLaterException."""
    return _write(head, {"e": structs.PinLaterException(errorCode=code, message=message)})


def _write(head: Head, fields: dict[str, Any]) -> bytes:
    result = result_type(head.method)(**fields)
    return framed(write_head(head.method, MessageType.REPLY, head.sequence) + _bytes_of(result))


def write_call(method: str, sequence: int, arguments: dict[str, Any]) -> bytes:
    """The frame of a call."""
    fields = arguments_type(method)(**arguments)
    return framed(write_head(method, MessageType.CALL, sequence) + _bytes_of(fields))


def read_result(head: Head, frame: bytes) -> Any:
    """What a method returned, None for nothing. Raises InvalidCall, or the PinLaterException of the answer."""
    result = _read(result_type(head.method)(), frame[head.end :])
    _check_struct(result, head.method)
    if result.e is not None:
        raise result.e
    names = [name for _, name, *_ in result.thrift_spec.values() if name != "e"]
    if names and result.success is None:
        raise InvalidCall(f"{head.method}: expected a result, got none")
    return result.success if names else None


def read_failure(head: Head, frame: bytes) -> TApplicationException:
    """The error in an answer to a call that no method carried out."""
    failure: TApplicationException = _read(TApplicationException(), frame[head.end :])
    failure.message = _text(failure.message or "", None, "")
    return failure


def _read(value: Any, data: bytes) -> Any:
    value.read(_protocol(TCyMemoryBuffer(data)))
    return value


def _bytes_of(value: Any) -> bytes:
    buffer = TCyMemoryBuffer()
    value.write(_protocol(buffer))
    return bytes(buffer.getvalue())


def _check_struct(value: Any, path: str) -> None:
    """Raises InvalidCall for what is missing in a struct and the structs in it. Makes text of every string."""
    for kind, name, *more, required in value.thrift_spec.values():
        field = getattr(value, name)
        if field is None:
            if required:
                raise InvalidCall(f"{path}.{name}: expected a value, as the field is required")
        elif name not in _ANY_BYTES and (check := _CHECKS.get(kind)):
            setattr(value, name, check(field, more[0] if more else None, f"{path}.{name}"))


def _checked_struct(field: Any, _: Any, path: str) -> Any:
    _check_struct(field, path)
    return field


def _checked_enum(field: int, enum: Any, path: str) -> int:
    if enum is not None and field not in enum._VALUES_TO_NAMES:
        known = ", ".join(f"{number} ({name})" for number, name in enum._VALUES_TO_NAMES.items())
        raise InvalidCall(f"{path}: expected one of {known}, got {field}")
    return field


def _checked_list(field: list[Any], inner: Any, path: str) -> list[Any]:
    kind, more = inner if isinstance(inner, tuple) else (inner, None)
    check = _CHECKS.get(kind)
    return field if check is None else [check(each, more, f"{path}[{at}]") for at, each in enumerate(field)]


def _checked_map(field: dict[Any, Any], inner: Any, path: str) -> dict[Any, Any]:
    keys, values = inner
    named = _checked_list([*field], keys, path)
    return dict(zip(named, _checked_list([*field.values()], values, path), strict=True))


def _text(field: str | bytes, _: Any, __: str) -> str:
    """The library leaves bytes that are no UTF-8 as they are."""
    return field.decode("utf-8", "replace") if isinstance(field, bytes) else field


_CHECKS: Final[dict[int, Callable[[Any, Any, str], Any]]] = {
    TType.STRUCT: _checked_struct,
    TType.I32: _checked_enum,
    TType.LIST: _checked_list,
    TType.MAP: _checked_map,
    TType.SET: lambda field, inner, path: set(_checked_list([*field], inner, path)),
    TType.STRING: _text,
}
