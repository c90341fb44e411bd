"""API keys: `skep_<id>_<secret>`, for programs without an issuer of tokens.

The database has the SHA-256 of the secret. A slow hash (bcrypt, scrypt) protects what people choose and others can
guess; a secret of 256 random bits is not guessed at any speed, and a slow hash would only make every request slow.
"""

import asyncio
import hashlib
import hmac
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from skep.errors import InvalidArgument, Unauthenticated
from skep.message import ApiKey
from skep.server.http.grants import Grants, Identity, Role

PREFIX = "skep_"
FORM = re.compile(r"skep_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
REMEMBERED_SECONDS = 5.0  # for which a revoked key still works
MOST_REMEMBERED = 10_000

Lookup = Callable[[str, bytes], Awaitable[ApiKey | None]]  # by id; the hash is for noting that the key was used

_Known = tuple[bytes, Identity] | None  # the hash of the secret, and whose it is


@dataclass(frozen=True, slots=True)
class _Known:
    """A lookup, done or under way: a thousand requests with one key ask the database once."""

    until: float
    answer: asyncio.Task[_Known]


class ApiKeys:
    """Checks API keys against the database, remembering them for a moment."""

    def __init__(self, lookup: Lookup, clock: Callable[[], float] = time.monotonic) -> None:
        self._lookup = lookup
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def identify(self, token: str) -> Identity:
        form = FORM.fullmatch(token)
        if form is None:
            raise Unauthenticated("Malformed API key")
        given = hashlib.sha256(form[2].encode()).digest()
        answer = await self._find(form[1], given)
        if answer is None or not hmac.compare_digest(given, answer[0]):
            raise Unauthenticated("Invalid API key")
        return answer[1]

    async def _find(self, id_: str, given: bytes) -> _Known:
        known = self._known.get(id_)
        if known is None or known.until <= self._clock() or _failed(known.answer):
            self._make_room(id_)
            asking = asyncio.create_task(self._ask(id_, given))
            known = self._known[id_] = _Known(self._clock() + REMEMBERED_SECONDS, asking)
        return await asyncio.shield(known.answer)  # other requests wait for it

    async def _ask(self, id_: str, given: bytes) -> _Known:
        key = await self._lookup(id_, given)
        return None if key is None else (key.hash, identity_of(key))

    def _make_room(self, id_: str) -> None:
        self._known.pop(id_, None)
        while len(self._known) >= MOST_REMEMBERED:
            del self._known[next(iter(self._known))]


def _failed(task: asyncio.Task[_Known]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def identity_of(key: ApiKey) -> Identity:
    try:
        roles = frozenset[Role]() if key.role is None else frozenset({Role(key.role)})
        grants = Grants() if key.grants is None else Grants.parse(key.grants)
    except (ValueError, InvalidArgument) as error:
        raise Unauthenticated("Malformed API key: its role or grants cannot be read") from error
    return Identity(key.name, roles, grants)
