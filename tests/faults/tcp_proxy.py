"""A TCP proxy between client and database, which can lose the response to a call that was executed."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class TcpProxy:
    """Forwards data. After `lose_response(to)` the next call with these words is executed, and its response is lost."""

    def __init__(self, url: str) -> None:
        server = conninfo_to_dict(url)
        self._server = (str(server.get("host") or "127.0.0.1"), int(server.get("port") or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._words: bytes | None = None
        self.delay = 0.0  # seconds added to each request
        self.lost = threading.Event()
        self.url = make_conninfo(url, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable")
        self._run(self._accept)

    def lose_response(self, to: bytes) -> None:
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
                lose = threading.Event()
                self._run(self._forward_requests, client, server, lose)
                self._run(self._forward_responses, server, client, lose)

    def _forward_requests(self, client: socket.socket, server: socket.socket, lose: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._words and self._words in data:
                    self._words = None
                    lose.set()
                time.sleep(self.delay)
                server.sendall(data)
        _shut_down(server)

    def _forward_responses(self, server: socket.socket, client: socket.socket, lose: threading.Event) -> None:
        """Forward responses; the server sends them after a statement was executed and committed."""
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if lose.is_set():
                    self.lost.set()
                    break
                client.sendall(data)
        _shut_down(client)
        _shut_down(server)

    def close(self) -> None:
        _shut_down(self._listener)
        self._threads[0].join()
        for end in self._sockets:
            _shut_down(end)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._sockets):
            end.close()


def _shut_down(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_proxy(url: str) -> Generator[TcpProxy]:
    made = TcpProxy(url)
    try:
        yield made
    finally:
        made.close()
