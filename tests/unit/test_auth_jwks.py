"""Published keys: which are taken, when they are fetched, and what happens while they cannot be."""

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from skep.config import Config
from skep.errors import KeysUnavailable, Unauthenticated
from skep.server.http import jwks
from skep.server.http.auth import Authenticator
from skep.server.http.jwks import Jwks, fetch_document
from tests.unit.tokens import SECRET, ed_key, encode, forged, nobody, pem, rsa_key, token

URL = "https://id.example/jwks"


def published(key: Any, kid: str | None, **changes: Any) -> dict[str, Any]:
    algorithm = OKPAlgorithm if hasattr(key, "private_bytes_raw") else RSAAlgorithm
    entry = json.loads(algorithm.to_jwk(key.public_key())) | ({} if kid is None else {"kid": kid}) | changes
    return {name: value for name, value in entry.items() if name != "key_ops"}


class Issuer:
    """An endpoint that counts, fails and waits as told, and a clock."""

    def __init__(self, *entries: Any) -> None:
        self.document: Any = {"keys": list(entries)}
        self.fetched = 0
        self.now = 1000.0
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.keys = Jwks(URL, self.fetch, lambda: self.now)

    def fetch(self, url: str) -> bytes:
        assert url == URL
        self.fetched += 1
        self.asked.set()
        self.may_answer.wait(10)
        if isinstance(self.document, Exception):
            raise self.document
        return self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()

    def authenticator(self, **settings: Any) -> Authenticator:
        return Authenticator(Config(auth=True, jwt_jwks_url=URL, **settings), nobody, jwks=self.keys)

    async def fetches(self, number: int) -> None:
        """Wait for a fetch in the background to be done."""
        if self.keys._fetching is not None:
            await self.keys._fetching
        assert self.fetched == number


async def test_keys_are_found_by_kid_and_fetched_once():
    issuer = Issuer(published(rsa_key(), "a"), published(rsa_key("b"), "b"), published(ed_key(), "c"))
    checks = issuer.authenticator()
    for key, algorithm, kid in ((rsa_key(), "RS256", "a"), (rsa_key("b"), "RS256", "b"), (ed_key(), "EdDSA", "c")):
        assert (await checks.identify(token(key, algorithm, kid))).subject == "ann"
    assert issuer.fetched == 1


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (rsa_key("b"), "RS256", "a"),  # signed by another of the keys
        (rsa_key("nobody"), "RS256", "a"),
        (rsa_key(), "RS256", "nobody"),
        (rsa_key(), "RS256", ""),
        (rsa_key(), "RS256", None),  # there are two it could be
        (ed_key(), "EdDSA", "a"),  # a key of another kind
    ],
)
async def test_a_kid_is_good_for_its_own_key_only(key: Any, algorithm: str, kid: str | None):
    issuer = Issuer(published(rsa_key(), "a"), published(rsa_key("b"), "b"), published(ed_key(), "c"))
    with pytest.raises(Unauthenticated, match="^Invalid token signature$"):
        await issuer.authenticator().identify(token(key, algorithm, kid))


async def test_without_a_kid_the_only_key_of_the_algorithm_is_meant():
    issuer = Issuer(published(rsa_key(), None), published(ed_key(), "c"))
    assert (await issuer.authenticator().identify(token(rsa_key(), "RS256"))).subject == "ann"
    assert (await issuer.authenticator().identify(token(ed_key(), "EdDSA"))).subject == "ann"


async def test_a_published_secret_is_no_key():
    """Everybody can read it."""
    secret = {"kty": "oct", "kid": "s", "k": encode(SECRET.encode()), "alg": "HS256"}
    bad = token(SECRET, "HS256", "s", role="admin")
    with pytest.raises(Unauthenticated, match="its algorithm is not accepted"):
        await Issuer(secret).authenticator().identify(bad)
    with pytest.raises(Unauthenticated, match="^Invalid token signature$"):
        await Issuer(secret).authenticator(jwt_secret=SECRET[::-1]).identify(bad)


async def test_a_public_key_is_never_a_secret():
    bad = forged({"alg": "HS256", "kid": "a"}, {"sub": "eve", "role": "admin"}, pem(rsa_key()).encode())
    issuer = Issuer(published(rsa_key(), "a"))
    with pytest.raises(Unauthenticated, match="its algorithm is not accepted"):
        await issuer.authenticator().identify(bad)
    assert issuer.fetched == 0


async def test_a_pinned_algorithm_holds_for_published_keys_too():
    issuer = Issuer(published(rsa_key(), "a"), published(ed_key(), "c"))
    checks = issuer.authenticator(jwt_algorithm="EdDSA")
    assert (await checks.identify(token(ed_key(), "EdDSA", "c"))).subject == "ann"
    with pytest.raises(Unauthenticated, match="its algorithm is not accepted"):
        await checks.identify(token(rsa_key(), "RS256", "a"))


@pytest.mark.parametrize(
    "entry",
    [
        7,
        None,
        {},
        {"kty": "RSA", "kid": "a"},
        {"kty": "RSA", "kid": "a", "n": 7, "e": "AQAB"},
        {"kty": "RSA", "kid": "a", "n": "é", "e": "AQAB"},
        {"kty": "OKP", "kid": "a", "crv": "Ed448", "x": "AAAA"},
        {"kty": ["RSA"], "kid": "a"},
        published(rsa_key("short", 1024), "a"),
        published(rsa_key(), "a", use="enc"),
        published(rsa_key(), "a", alg="RS512"),
        published(rsa_key(), 7),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_keys_of_no_use_are_passed_over(entry: Any):
    issuer = Issuer(entry, published(ed_key(), "c"))
    assert (await issuer.authenticator().identify(token(ed_key(), "EdDSA", "c"))).subject == "ann"
    with pytest.raises(Unauthenticated, match="^Invalid token signature$"):
        await issuer.authenticator().identify(token(rsa_key(), "RS256", "a"))


async def test_private_parts_of_a_published_key_are_not_read():
    private = json.loads(OKPAlgorithm.to_jwk(ed_key())) | {"kid": "c"}
    assert "d" in private
    found = await Issuer(private).keys.find("EdDSA", "c")
    assert found == ed_key().public_key()


async def test_an_unknown_kid_fetches_but_not_for_everyone():
    issuer = Issuer(published(rsa_key(), "a"))
    await issuer.keys.find("RS256", "a")
    issuer.document = {"keys": [published(rsa_key("b"), "b")]}
    assert await issuer.keys.find("RS256", "b") is None  # the last fetch was just now
    issuer.now += 30
    assert await issuer.keys.find("RS256", "b") is not None
    for number in range(100):
        assert await issuer.keys.find("RS256", f"invented {number}") is None
    assert issuer.fetched == 2
    assert await issuer.keys.find("RS256", "a") is None  # taken back


async def test_many_at_once_fetch_once():
    issuer = Issuer(published(rsa_key(), "a"))
    issuer.may_answer.clear()
    asking = [asyncio.create_task(issuer.keys.find("RS256", "a")) for _ in range(50)]
    await asyncio.to_thread(issuer.asked.wait, 10)
    issuer.now += 31  # a slow fetch is still the only one
    asking.append(asyncio.create_task(issuer.keys.find("RS256", "a")))
    asking[0].cancel()  # who goes away takes nothing from the others
    await asyncio.sleep(0)
    issuer.may_answer.set()
    assert None not in await asyncio.gather(*asking[1:])
    assert issuer.fetched == 1


async def test_old_keys_are_used_while_new_ones_are_fetched():
    issuer = Issuer(published(rsa_key(), "a"))
    await issuer.keys.find("RS256", "a")
    issuer.now += 3600
    issuer.may_answer.clear()
    assert await asyncio.wait_for(issuer.keys.find("RS256", "a"), 1) is not None
    issuer.document = {"keys": []}
    issuer.may_answer.set()
    await issuer.fetches(2)
    assert await issuer.keys.find("RS256", "a") is None


@pytest.mark.parametrize(
    "document",
    [
        TimeoutError("no answer"),
        BadStatusLine("HTTP/9"),
        b"",
        b"<html>",
        b"\xff",
        b"[" * 100_000,
        b"7",
        b"[]",
        b"{}",
        b'{"keys": null}',
        b'{"keys": {"a": 1}}',
    ],
)
async def test_old_keys_are_kept_while_the_issuer_is_down(document: Exception | bytes):
    issuer = Issuer(published(rsa_key(), "a"))
    checks = issuer.authenticator()
    await checks.identify(token(rsa_key(), "RS256", "a", sub="before"))
    issuer.document = document
    for fetches in (2, 3):
        issuer.now += 3600
        assert (await checks.identify(token(rsa_key(), "RS256", "a", sub=str(fetches)))).subject == str(fetches)
        await issuer.fetches(fetches)


async def test_without_any_keys_nobody_can_tell():
    """The token may be good: the answer is 503, not 401, and the issuer is not asked for every caller."""
    issuer = Issuer(published(rsa_key(), "a"))
    document, issuer.document = issuer.document, TimeoutError("no answer")
    checks = issuer.authenticator(jwt_secret=SECRET)
    for _ in range(10):
        with pytest.raises(KeysUnavailable) as caught:
            await checks.identify(token(rsa_key(), "RS256", "a"))
    assert (issuer.fetched, caught.value.retryable) == (1, True)
    assert (await checks.identify(token())).subject == "ann"  # the secret is here
    issuer.document = document
    issuer.now += 30
    assert (await checks.identify(token(rsa_key(), "RS256", "a"))).subject == "ann"


@contextmanager
def serving(status: int, body: bytes, **headers: str) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/jwks"
        finally:
            server.shutdown()
            thread.join()


async def test_keys_come_over_http():
    with serving(200, json.dumps({"keys": [published(ed_key(), "c")]}).encode()) as url:
        checks = Authenticator(Config(auth=True, jwt_jwks_url=url), nobody)
        assert (await checks.identify(token(ed_key(), "EdDSA", "c"))).subject == "ann"


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (500, b"", {}),
        (302, b"", {"Location": "http://127.0.0.1:1/evil"}),
        (200, b"x" * (jwks.MOST_BYTES + 1), {}),
        (200, b"short", {"Content-Length": "100"}),
    ],
)
async def test_answers_that_are_no_keys(status: int, body: bytes, headers: dict[str, str]):
    with serving(status, body, **headers) as url, pytest.raises(KeysUnavailable):
        await Jwks(url).find("RS256", "a")


def test_an_answer_that_is_too_large_is_not_read_to_its_end():
    with serving(200, b"x" * jwks.MOST_BYTES) as url:
        assert len(fetch_document(url)) == jwks.MOST_BYTES
    with serving(200, b"x" * (jwks.MOST_BYTES + 1)) as url, pytest.raises(OSError, match="too large"):
        fetch_document(url)


def test_a_redirect_is_not_followed():
    with serving(200, b"{}") as elsewhere, serving(302, b"", Location=elsewhere) as url:
        assert fetch_document(elsewhere) == b"{}"
        with pytest.raises(OSError, match="302"):
            fetch_document(url)


def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jwks, "FETCH_SECONDS", 1e-6)
    with serving(200, b"x" * 500_000) as url, pytest.raises(OSError, match="slow|timed out"):
        fetch_document(url)
