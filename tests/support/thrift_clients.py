"""Clients of the Thrift service, each with another library, behind one way of calling.

Promises: `call(method, **arguments)` takes and returns plain values: structs are dicts of the fields that are set. It
raises Refused for a PinLaterException, and Failed for a TApplicationException.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import thriftpy2.rpc
import thriftpy2.thrift
import thriftpy2.transport
from thrift.protocol.TBase import TBase
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport
from thriftpy2.protocol import TBinaryProtocolFactory, TCyBinaryProtocolFactory
from thriftpy2.transport import TCyFramedTransportFactory, TFramedTransportFactory

from pinlater.server.interface import arguments_type, result_type, structs

TIMEOUT_MS = 60_000
PYTHON_BINARY = 18  # thriftpy2's type of bytes, which the wire has as a string


class Refused(Exception):
    """A PinLaterException."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Failed(Exception):
    """A TApplicationException."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(f"type {kind}: {message}")
        self.kind, self.message = kind, message


class Peer:
    """A client."""

    def __init__(self, port: int) -> None:
        self.port = port

    def call(self, method: str, **arguments: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _given(spec: dict[int, Any], values: dict[str, Any], make: Callable[[Any, dict[str, Any]], Any]) -> dict[str, Any]:
    """The fields of a struct, with nested structs made by `make`."""
    by_name = {entry[1]: entry for entry in spec.values()}
    assert values.keys() <= by_name.keys(), f"{values.keys() - by_name.keys()} are no fields"
    return {name: _value(by_name[name], value, make) for name, value in values.items()}


def _value(entry: Any, value: Any, make: Callable[[Any, dict[str, Any]], Any]) -> Any:
    kind, inner = entry[0], entry[2] if len(entry) > 3 else None
    if kind == TType.STRUCT and isinstance(value, dict):
        return make(inner, value)
    if kind == TType.LIST and isinstance(inner, tuple) and inner[0] == TType.STRUCT:
        return [make(inner[1], each) if isinstance(each, dict) else each for each in value]
    return value


def _plain(value: Any) -> Any:
    """A value without classes of a library."""
    if isinstance(value, dict):
        return {_text(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | set):
        return type(value)(_plain(each) for each in value)
    spec = getattr(value, "thrift_spec", None)
    if spec is None:
        return value
    fields = [entry[1] for entry in spec.values()] if isinstance(spec, dict) else [entry[2] for entry in spec if entry]
    return {name: _plain(each) for name in fields if (each := getattr(value, name)) is not None}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


class ThriftpyPeer(Peer):
    """thriftpy2: with its compiled protocol, or with the one in Python."""

    factories: ClassVar[tuple[Any, Any]] = (TCyBinaryProtocolFactory, TCyFramedTransportFactory)

    def __init__(self, port: int) -> None:
        super().__init__(port)
        protocol, transport = self.factories
        self._client: Any = thriftpy2.rpc.make_client(
            structs.PinLater,
            "127.0.0.1",
            port,
            proto_factory=protocol(),
            trans_factory=transport(),
            timeout=TIMEOUT_MS,
        )

    def call(self, method: str, **arguments: Any) -> Any:
        self.send(method, **arguments)
        return self.receive(method)

    def send(self, method: str, **arguments: Any) -> None:
        """The first half of a call."""
        spec = arguments_type(method).thrift_spec
        self._client._send(method, **_given(spec, arguments, self._struct))

    def receive(self, method: str) -> Any:
        """The second half of a call."""
        try:
            return _plain(self._client._recv(method))
        except structs.PinLaterException as error:
            raise Refused(error.errorCode, error.message) from None
        except thriftpy2.thrift.TApplicationException as error:
            raise Failed(error.type, error.message or "") from None

    def _struct(self, kind: Any, values: dict[str, Any]) -> Any:
        return kind(**_given(kind.thrift_spec, values, self._struct))

    def close(self) -> None:
        self._client.close()


class PurePeer(ThriftpyPeer):
    """thriftpy2 without compiled code."""

    factories = (TBinaryProtocolFactory, TFramedTransportFactory)


class ApachePeer(Peer):
    """Apache's library. Its compiler would write classes like these, with `--gen py:dynamic`."""

    classes: ClassVar[dict[Any, type[TBase]]] = {}

    def __init__(self, port: int) -> None:
        super().__init__(port)
        connection = TSocket("127.0.0.1", port)
        connection.setTimeout(TIMEOUT_MS)
        self._transport = TFramedTransport(connection)
        self._protocol = TBinaryProtocol(self._transport, strictRead=True, strictWrite=True)
        self._transport.open()
        self._sequence = 0

    def call(self, method: str, **arguments: Any) -> Any:
        self._sequence += 1
        self._protocol.writeMessageBegin(method, TMessageType.CALL, self._sequence)
        self._struct(arguments_type(method), arguments).write(self._protocol)
        self._protocol.writeMessageEnd()
        self._transport.flush()
        name, kind, sequence = self._protocol.readMessageBegin()
        assert (name, sequence) == (method, self._sequence)
        if kind == TMessageType.EXCEPTION:
            failure = TApplicationException()
            failure.read(self._protocol)
            raise Failed(failure.type, failure.message)
        result: Any = self._class(result_type(method))()
        result.read(self._protocol)
        self._protocol.readMessageEnd()
        if result.e is not None:
            raise Refused(result.e.errorCode, result.e.message)
        return _plain(getattr(result, "success", None))

    def _struct(self, kind: Any, values: dict[str, Any]) -> Any:
        made = self._class(kind)()
        for name, value in _given(kind.thrift_spec, values, self._struct).items():
            setattr(made, name, value)
        return made

    def _class(self, kind: Any) -> type[TBase]:
        """The class of a struct of the interface."""
        if kind not in self.classes:
            spec: list[Any] = [None] * (max(kind.thrift_spec) + 1 if kind.thrift_spec else 0)
            for number, entry in kind.thrift_spec.items():
                wire, arguments = self._type(entry[0], entry[2] if len(entry) > 3 else None)
                default = dict(kind.default_spec).get(entry[1])
                spec[number] = (number, wire, entry[1], arguments, default)
            names = [entry[2] for entry in spec if entry]
            defaults = {entry[2]: entry[4] for entry in spec if entry}
            body = {"thrift_spec": tuple(spec), "__slots__": tuple(names), "__init__": _setter(defaults)}
            self.classes[kind] = type(kind.__name__, (TBase,), body)
        return self.classes[kind]

    def _type(self, kind: int, inner: Any) -> tuple[int, Any]:
        """A type of thriftpy2's specification as Apache's has it: the type, and what is in it."""
        if kind == PYTHON_BINARY:
            return TType.STRING, "BINARY"
        if kind == TType.STRING:
            return TType.STRING, "UTF8"
        if kind == TType.STRUCT:
            return kind, (self._class(inner), self._class(inner).thrift_spec)
        if kind in (TType.LIST, TType.SET):
            of = inner if isinstance(inner, tuple) else (inner, None)
            return kind, (*self._type(*of), False)
        if kind == TType.MAP:
            key, value = (each if isinstance(each, tuple) else (each, None) for each in inner)
            return kind, (*self._type(*key), *self._type(*value), False)
        return kind, None

    def close(self) -> None:
        self._transport.close()


def _setter(defaults: dict[str, Any]) -> Callable[..., None]:
    def set_fields(self: Any, **values: Any) -> None:
        for name, default in defaults.items():
            setattr(self, name, values.get(name, default))

    return set_fields


PeerKind = Literal["thriftpy2", "thriftpy2 in Python", "Apache"]
PEERS: dict[PeerKind, type[Peer]] = {
    "thriftpy2": ThriftpyPeer,
    "thriftpy2 in Python": PurePeer,
    "Apache": ApachePeer,
}


class RawPeer:
    """A connection on which a test writes bytes of its own."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_MS / 1000)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> bytes:
        """The next frame, without its length; b"" if the server closed the connection."""
        length = self._read(4)
        return self._read(int.from_bytes(length, "big")) if length else b""

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionError:
                more = b""
            if not more:
                return b""
            data += more
        return data

    def is_closed(self) -> bool:
        """Waits until the server closes the connection, or sends something."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()
