"""What comes over a connection: HTTP in all its forms, what only looks like it, and clients that stall."""

import contextlib
import os
import socket
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from uuid import uuid4

import pytest

from skep.server.http import protocol
from tests.server.serving import Client, client, serving, until

__all__ = ["client"]

HOST = b"Host: skep\r\n"
ITEMS = b'{"items":[{"queue":"%s","payload":1}]}'
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def hasty(module_database_url: str) -> Generator[Client]:
    """A server with little patience."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "PATIENCE", 0.25)
        with serving(module_database_url, max_body_bytes=8 * MIB) as running:
            yield running


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:8]}"


@contextlib.contextmanager
def connected(client: Client) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Read until the server hangs up."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(MIB):
            got += chunk
    return got


def talk(client: Client, *parts: bytes) -> bytes:
    """Say this, and return everything that is answered until the server hangs up."""
    with connected(client) as connection:
        for part in parts:
            connection.sendall(part)
        return read_all(connection)


def statuses(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


def post(queue: str, *, head: bytes = b"") -> bytes:
    body = ITEMS % queue.encode()
    return b"POST /api/v1/push HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s" % (HOST, head, len(body), body)


def get(path: bytes, *, head: bytes = b"Connection: close\r\n", version: bytes = b"1.1") -> bytes:
    return b"GET %s HTTP/%s\r\n%s%s\r\n" % (path, version, HOST, head)


@pytest.mark.parametrize(
    "request_",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", get(b"/a\0b"), get(b"/\xff"),
     get(b"/health", version=b"3.7"), get(b"/health", head=b"X: a\0b\r\n"), get(b"/health", head=b"X: a\r\n b\r\n"),
     get(b"/health", head=b": x\r\n"), get(b"http://evil"), get(b"http:///health"), b"BREW /health HTTP/1.1\r\n\r\n",
     b"CONNECT evil:443 HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\nHost: skep\n\n", get(b"/" + b"x" * 70_000)],
    ids=lambda request_: repr(request_[:40]),
)  # fmt: skip
def test_what_is_no_request(client: Client, request_: bytes):
    answer = talk(client, request_)
    assert statuses(answer) == [400]
    assert answer.endswith(b'"code":"bad_request"}')


SMUGGLING = [
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    b"Content-Length: 4\r\nContent-Length: 5\r\n", b"Content-Length: 4\r\nContent-Length: 4\r\n",
    b"Content-Length: -1\r\n", b"Content-Length: +4\r\n", b"Content-Length: 4, 4\r\n", b"Content-Length: 0x4\r\n",
    b"Content-Length: 99999999999999999999999\r\n", b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: chunked, identity\r\n", b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b"Transfer-Encoding:\x0bchunked\r\n",
]  # fmt: skip


@pytest.mark.parametrize("head", SMUGGLING, ids=repr)
def test_smuggling(client: Client, queue: str, head: bytes):
    """A request whose end is not clear is refused, and nothing behind it is a request."""
    answer = talk(client, b"POST /api/v1/push HTTP/1.1\r\n" + HOST + head + b"\r\n0\r\n\r\n" + post(queue))
    assert statuses(answer) == [400]
    assert client.pop(queue) == []


def test_chunks_that_are_none(client: Client):
    for size in (b"ZZ", b"-1", b"fffffffffffffffff", b"5 5", b"0x5"):
        head = b"POST /api/v1/push HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
        assert statuses(talk(client, head + size + b"\r\nhello\r\n0\r\n\r\n")) == [400]


def test_targets(client: Client):
    assert statuses(talk(client, get(b"http://evil.example/health"))) == [200]
    assert statuses(talk(client, get(b"*"))) == [404]
    assert statuses(talk(client, b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")) == [204]
    assert statuses(talk(client, get(b"/ready?" + b"x" * 64_000))) == [200]


def test_old_http(client: Client):
    assert statuses(talk(client, get(b"/ready", head=b"", version=b"1.0"))) == [200]
    assert statuses(talk(client, get(b"/ready", head=b"Connection: keep-alive\r\n", version=b"1.0"))) == [200]
    assert statuses(talk(client, b"GET /ready\r\n\r\n")) == [200]


def test_pipelined_requests_are_answered_in_order(client: Client, queue: str):
    """Also behind one that waits, and behind a body that nobody reads."""
    refused = b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello"
    poll = get(b"/api/v1/pop/queue/%s-none?wait=true&timeout=100" % queue.encode(), head=b"")
    answers = talk(client, post(queue) * 20 + poll + refused + post(queue) + get(b"/ready"))
    assert statuses(answers) == [201] * 20 + [200, 404, 201, 200]
    assert len(client.pop(queue)) == 21


def test_a_body_in_chunks(client: Client, queue: str):
    body = ITEMS % queue.encode()
    chunks = b"".join(b"1;ext=x\r\n%c\r\n" % byte for byte in body)
    head = b"POST /api/v1/push HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert statuses(talk(client, head, chunks, b"0\r\n\r\n")) == [201]
    assert [message["data"] for message in client.pop(queue)] == [1]


def test_what_follows_the_last_chunk_is_no_header(module_database_url: str, queue: str):
    body = ITEMS % queue.encode()
    head = b"POST /api/v1/push HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    with serving(module_database_url, cors_origins=("https://shop.example",)) as client:
        answer = talk(client, head + chunks + b"Origin: https://shop.example\r\n\r\n")
        assert statuses(answer) == [201]
        assert b"allow-origin" not in answer
        assert statuses(talk(client, head + chunks, b"X: ", b"x" * 300_000)) in ([], [431], [201, 431])


def test_a_body_that_is_announced(client: Client, queue: str):
    with connected(client) as connection:
        head, _, body = post(queue, head=b"Expect: 100-continue\r\nConnection: close\r\n").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert statuses(read_all(connection)) == [201]


def test_a_body_that_is_announced_and_refused(client: Client, queue: str):
    """The connection ends: the client may or may not send the body, so what comes next has no meaning."""
    head = b"POST /api/v1/push HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 100000000\r\n\r\n"
    assert statuses(talk(client, head)) == [413]
    head = b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"
    assert statuses(talk(client, head)) == [404]


@pytest.mark.parametrize("protocols", [b"websocket", b"h2c"])
def test_other_protocols_are_not_spoken(client: Client, queue: str, protocols: bytes):
    """The request is answered as if nobody had asked."""
    wishes = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABk\r\n" % protocols
    with connected(client) as connection:
        connection.sendall(post(queue, head=wishes)[:-1])
        connection.sendall(post(queue, head=wishes)[-1:] + post(queue, head=wishes) + get(b"/ready"))
        assert statuses(read_all(connection)) == [201, 201, 200]
    assert len(client.pop(queue)) == 2


@pytest.mark.parametrize(
    "endless", [b"X: " + b"x" * 1000, b"X: x\r\n" * 200, b"\r\n" * 500, b"x" * 1000], ids=lambda it: repr(it[:8])
)
def test_heads_without_end(client: Client, endless: bytes):
    begin = b"" if endless.startswith(b"\r\n") else b"GET /" if endless.startswith(b"x") else b"GET / HTTP/1.1\r\n"
    before = memory()
    with connected(client) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(begin)
            for _ in range(20_000):
                connection.sendall(endless)
            pytest.fail("20 MB of a head were taken")
        assert statuses(read_all(connection)) in ([], [431])
    assert memory() - before < 8 * MIB


def test_a_head_of_64_kilobytes(client: Client):
    assert statuses(talk(client, get(b"/ready", head=b"X: " + b"x" * 65_536 + b"\r\nConnection: close\r\n"))) == [200]


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def send_slowly_measured(connection: socket.socket, parts: Iterable[bytes]) -> int:
    """Send this and return by how much the memory of the server, which is ours, grew at most."""
    before = memory()
    most = 0
    for part in parts:
        connection.sendall(part)
        most = max(most, memory() - before)
    return most


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_bodies_that_are_too_large(hasty: Client, chunked: bool):  # noqa: FBT001
    """100 MB to a server that takes 8: it says so, and has never more than that in memory."""
    chunk = b" " * MIB
    size = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: %d\r\n" % (100 * MIB)
    framed = b"%x\r\n%s\r\n" % (MIB, chunk) if chunked else chunk
    with connected(hasty) as connection:
        connection.sendall(b"POST /api/v1/push HTTP/1.1\r\n" + HOST + size + b"\r\n" + framed)
        if not chunked:
            assert statuses(connection.recv(1000)) == [413], "before the body has come"
        grown = send_slowly_measured(connection, (framed for _ in range(99)))
        if chunked:
            assert statuses(connection.recv(1000)) == [413]
    assert grown < 24 * MIB


SILENT = {
    "nothing": b"", "half a line": b"GET /hea", "half a head": b"GET /health HTTP/1.1\r\nHost: sk",
    "line ends": b"\r\n\r\n",
    "no body": b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 10\r\n\r\n",
    "half a body": b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345",
    "half a chunk": b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "half a trailer": b"POST /api/v1/push HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: y",
    "a body nobody wants": b"POST /nowhere HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345",
    "half a second request": b"GET /ready HTTP/1.1\r\n\r\nGET /re",
}  # fmt: skip


@pytest.mark.parametrize("said", SILENT.values(), ids=SILENT)
def test_who_says_half_a_request_is_let_go(hasty: Client, said: bytes):
    begun = time.monotonic()
    assert statuses(talk(hasty, said)) in ([], [200], [404])
    assert 0.2 < time.monotonic() - begun < 3


@pytest.mark.parametrize("begin", [b"GET /", b"POST /api/v1/push HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"])
def test_who_says_a_letter_now_and_then_is_let_go(hasty: Client, begin: bytes):
    with connected(hasty) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(begin)
        for _ in range(200):
            time.sleep(0.02)
            connection.sendall(b"x")
        pytest.fail("it could go on for ever")


def test_a_slow_body_that_moves_on(hasty: Client, queue: str):
    head, _, body = post(queue, head=b"Connection: close\r\n").partition(b"\r\n\r\n")
    head = head.replace(b"Content-Length: ", b"Content-Length: 60000")  # as many spaces, and the body
    filling = int(head.rpartition(b" ")[2]) - len(body)
    with connected(hasty) as connection:
        connection.sendall(head + b"\r\n\r\n")
        for start in range(0, filling, filling // 20):
            connection.sendall(b" " * min(filling // 20, filling - start))
            time.sleep(0.06)
        connection.sendall(body)
        assert statuses(read_all(connection)) == [201]


def test_a_request_in_two_parts(hasty: Client):
    """However soon after its beginning the server looks."""
    with connected(hasty) as connection:
        for _ in range(10):
            request_ = get(b"/ready", head=b"")
            connection.sendall(request_[:20])
            time.sleep(0.1)
            connection.sendall(request_[20:])
            assert statuses(connection.recv(1000)) == [200]


def test_who_waits_for_an_answer_is_not_let_go(hasty: Client, queue: str):
    with connected(hasty) as connection:
        connection.sendall(get(b"/api/v1/pop/queue/%s?wait=true&timeout=1200" % queue.encode(), head=b""))
        assert statuses(connection.recv(1000)) == [200]
        time.sleep(0.8)  # idle between requests is not silence in one
        connection.sendall(get(b"/ready"))
        assert statuses(read_all(connection)) == [200]


def test_who_takes_no_answer_is_let_go(hasty: Client, queue: str):
    hasty.push(queue, "x" * 7 * MIB)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", hasty.port))
        connection.sendall(get(b"/api/v1/pop/queue/" + queue.encode()))
        time.sleep(1)
        assert len(read_all(connection)) < 7 * MIB


def test_a_client_that_closes_its_half(client: Client, queue: str):
    """It counts as gone: what was said whole is done, what was not is nothing."""
    for said in (post(queue), post(queue)[:-1], b"GET /hea"):
        with connected(client) as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            read_all(connection)
    assert len(until(lambda: client.pop(queue))) == 1


def test_long_queries_are_not_remembered(client: Client):
    before = memory()
    for number in range(500):
        assert client.get(f"/api/v1/pop/queue/q?x={number}{'x' * 60_000}").status == 200
    assert memory() - before < 8 * MIB
