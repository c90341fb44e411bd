"""A wire between a client and the server that can be cut at the worst moment: all is done, and nobody hears of it."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Wire:
    """Passes on what is said. `lose_answer(to)`: the next call with these words is made, and then the wire is cut."""

    def __init__(self, url: str) -> None:
        server = conninfo_to_dict(url)
        self._server = (str(server.get("host") or "127.0.0.1"), int(server.get("port") or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._words: bytes | None = None
        self.delay = 0.0  # seconds on the way there
        self.lost = threading.Event()
        self.url = make_conninfo(url, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable")
        self._run(self._accept)

    def lose_answer(self, to: bytes) -> None:
        self.lost.clear()
        self._words = to

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                doomed = threading.Event()
                self._run(self._ask, client, server, doomed)
                self._run(self._answer, server, client, doomed)

    def _ask(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while said := client.recv(65536):
                if self._words and self._words in said:
                    self._words = None
                    doomed.set()
                time.sleep(self.delay)
                server.sendall(said)
        _hang_up(server)

    def _answer(self, server: socket.socket, client: socket.socket, doomed: threading.Event) -> None:
        """The server speaks when a statement is done and committed, and not before."""
        with contextlib.suppress(OSError):
            while said := server.recv(65536):
                if doomed.is_set():
                    self.lost.set()
                    break
                client.sendall(said)
        _hang_up(client)
        _hang_up(server)

    def close(self) -> None:
        _hang_up(self._listener)
        self._threads[0].join()
        for end in self._sockets:
            _hang_up(end)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._sockets):
            end.close()


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wire(url: str) -> Generator[Wire]:
    made = Wire(url)
    try:
        yield made
    finally:
        made.close()
