"""The public keys that an issuer publishes (JWKS), kept while it cannot be reached.

    no keys yet                 a caller waits for the fetch; if that fails, tokens cannot be checked (503)
    keys younger than an hour   they are used
    older                       they are used, and fetched again in the background
    a kid that is not there     a caller waits for a fetch, unless the last one began less than 30 s ago

There is one fetch at a time, whoever asks, and none within 30 s of the last: neither an issuer that is down nor a
caller who invents kids makes the server send a request for each of theirs. Only RSA and Ed25519 keys for signatures
are taken, of their public parts: a symmetric key that is published is no secret.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Generator, Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from skep.errors import KeysUnavailable

PublicKey = RSAPublicKey | Ed25519PublicKey
Keys = Mapping[tuple[str, str | None], PublicKey]  # by algorithm and kid
Fetch = Callable[[str], bytes]

REFRESH_SECONDS = 3600.0
BETWEEN_SECONDS = 30.0
FETCH_SECONDS = 5.0
MOST_BYTES = 1024 * 1024
LEAST_RSA_BITS = 2048
PUBLIC_PARTS = {"RSA": ("kty", "n", "e"), "OKP": ("kty", "crv", "x")}

log = logging.getLogger(__name__)


class Jwks:
    """The keys at one URL."""

    def __init__(self, url: str, fetch: Fetch | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._fetch = fetch or fetch_document
        self._clock = clock
        self._keys: Keys | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, algorithm: str, kid: str | None) -> PublicKey | None:
        """Return the key of this algorithm and kid; without a kid, the only key there is for the algorithm."""
        if self._keys is None:
            await self._refresh()
        elif self._clock() - self._fetched_at >= REFRESH_SECONDS:
            self._begin()
        found = self._look(algorithm, kid)
        if found is None:
            await self._refresh()
            found = self._look(algorithm, kid)
        return found

    def _look(self, algorithm: str, kid: str | None) -> PublicKey | None:
        if self._keys is None:
            message = "the keys that tokens are checked with cannot be fetched"
            raise KeysUnavailable(message, hint="the log of the server says why")
        if kid is not None:
            return self._keys.get((algorithm, kid))
        of_algorithm = [key for (its_algorithm, _), key in self._keys.items() if its_algorithm == algorithm]
        return of_algorithm[0] if len(of_algorithm) == 1 else None

    async def _refresh(self) -> None:
        fetching = self._begin()
        if fetching is not None:
            await asyncio.shield(fetching)  # others wait for it too

    def _begin(self) -> asyncio.Task[None] | None:
        """Start a fetch, or join the one under way; None: it is too early for another."""
        if self._fetching is None and self._clock() - self._tried_at >= BETWEEN_SECONDS:
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch_once())
        return self._fetching

    async def _fetch_once(self) -> None:
        try:
            document = await asyncio.to_thread(self._fetch, self._url)
            self._keys = dict(_read(document))
            self._fetched_at = self._clock()
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            log.warning("cannot fetch the keys of tokens: %s: %s", type(error).__name__, error)
        finally:
            self._fetching = None


def _read(document: bytes) -> Generator[tuple[tuple[str, str | None], PublicKey]]:
    content: object = json.loads(document)
    entries = cast("dict[str, object]", content).get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError("this is no JWKS: it has no list of keys")  # noqa: TRY004
    for entry in cast("list[object]", entries):
        found = _key(cast("dict[str, Any]", entry)) if isinstance(entry, dict) else None
        if found is None:
            log.info("a published key is not used: it is not RSA (2048 bits) or Ed25519 for signatures")
        else:
            yield found


def _key(entry: Mapping[str, Any]) -> tuple[tuple[str, str | None], PublicKey] | None:
    parts, kid = PUBLIC_PARTS.get(str(entry.get("kty")), ()), entry.get("kid")
    if not parts or entry.get("use", "sig") != "sig" or not isinstance(kid, str | None):
        return None
    try:
        key = jwt.PyJWK({part: entry[part] for part in parts}).key
        algorithm = algorithm_of(key)
    except (KeyError, ValueError, TypeError, jwt.PyJWTError):
        return None
    return ((algorithm, kid), key) if entry.get("alg", algorithm) == algorithm else None


def algorithm_of(key: object) -> str:
    """Return the one algorithm that a key is for, or raise ValueError."""
    if isinstance(key, RSAPublicKey) and key.key_size >= LEAST_RSA_BITS:
        return "RS256"
    if isinstance(key, Ed25519PublicKey):
        return "EdDSA"
    raise ValueError(f"neither an RSA key of at least {LEAST_RSA_BITS} bits nor an Ed25519 key")


class _NoRedirect(HTTPRedirectHandler):
    """Refuse redirects: a key is trusted only if it comes from the configured URL."""

    def redirect_request(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def fetch_document(url: str) -> bytes:
    """Fetch a document within five seconds in all."""
    deadline = time.monotonic() + FETCH_SECONDS
    request = Request(url, headers={"Accept": "application/json"})  # noqa: S310  (http and https only: Config has checked it)
    parts: list[bytes] = []
    with build_opener(_NoRedirect).open(request, timeout=FETCH_SECONDS) as response:
        while part := cast("HTTPResponse", response).read1(65536):
            parts.append(part)
            if time.monotonic() > deadline or sum(map(len, parts)) > MOST_BYTES:
                raise TimeoutError("the answer is too slow or too large")
    return b"".join(parts)
