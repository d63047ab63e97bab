"""A Thrift server for tests of clients: a function decides what bytes each call is answered with.

Promises real sockets, and a record of every call. Risks: it trusts its callers, and reads a whole frame before it asks.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self

from pinlater.server.frames import FrameReader
from pinlater.server.interface import read_arguments, structs, write_exception, write_result
from pinlater.server.messages import Failure, Head, application_exception, read_head

LIMIT = 512 * 1024 * 1024


class Asked(NamedTuple):
    """A call."""

    head: Head
    arguments: Any

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def request(self) -> Any:
        return self.arguments.request

    def gives(self, value: Any = None) -> bytes:
        """The answer with a result."""
        return write_result(self.head, value)

    def refuses(self, code: int, message: str = "no") -> bytes:
        """The answer with a PinLaterException."""
        return write_exception(self.head, code, message)

    def fails(self, failure: Failure, message: str = "no") -> bytes:
        """The answer with a TApplicationException."""
        return application_exception(self.head, failure, message)


#: The bytes of the answer. None: the server closes the connection; b"": it says nothing.
Answer = Callable[[Asked], bytes | None]


def ordinary(asked: Asked) -> bytes:
    """What a server answers that has queue `mail` and nothing in it."""
    match asked.method:
        case "enqueueJobs":
            jobs = range(len(asked.request.jobs))
            return asked.gives(structs.PinLaterEnqueueResponse([f"mail:s1:p1:{number + 1}" for number in jobs]))
        case "dequeueJobs":
            return asked.gives(structs.PinLaterDequeueResponse())
        case "lookupJobs":
            return asked.gives({})
        case "getJobCount" | "retryFailedJobs" | "deleteJobs":
            return asked.gives(0)
        case "getQueueNames":
            return asked.gives({"mail"})
        case "scanJobs":
            return asked.gives(structs.PinLaterScanJobsResponse([], "-1"))
    return asked.gives()


class FakeServer:
    """Listens until it is stopped. `answer` may be set while it runs.

    reads: False: it accepts connections and closes each as soon as something comes.
    """

    def __init__(
        self, answer: Answer = ordinary, *, port: int = 0, tls: ssl.SSLContext | None = None, reads: bool = True
    ) -> None:
        self.answer, self._tls, self._reads = answer, tls, reads
        #: Every call that was read, and the number of connections.
        self.asked: list[Asked] = []
        self.accepted = 0
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def methods(self) -> list[str]:
        """The names of the methods that were called."""
        return [asked.method for asked in self.asked]

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="thrift-fake")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.accepted += 1
                self._connections.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if not self._reads:
                connection.recv(1)
                connection.close()
                return
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._connections.append(connection)
            reader = FrameReader(LIMIT)
            while data := connection.recv(65_536):
                reader.add(data)
                while (frame := reader.next()) is not None:
                    head = read_head(frame)
                    asked = Asked(head, read_arguments(head, frame))
                    self.asked.append(asked)
                    answer = self.answer(asked)
                    if answer is None:
                        connection.close()
                        return
                    connection.sendall(answer)

    def send(self, data: bytes) -> None:
        """Sends bytes on the newest connection."""
        self._connections[-1].sendall(data)

    def drop(self) -> None:
        """Closes every connection, and accepts new ones."""
        connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def stop(self) -> None:
        """Ends the server. A second call does nothing."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        self.drop()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
