"""Encrypted payloads: AES-256-GCM with keys that have names, so that they can be replaced.

A payload is stored as Queen does, `{"encrypted": …, "iv": …, "authTag": …}`, each base64, and its message carries the
header

    "skep-sealed": {"key": "k2", "queue": "orders"}

which travels with it into the dead letters and out of them again. Key id and queue of origin are part of what is
authenticated: a payload with the header of a message of another queue or key does not open. The header
is reserved for the server: it must be refused in requests, or a caller could make the server open a sealed payload.

Rotation: put a new key in front (`SKEP_ENCRYPTION_KEYS=k2:…,k1:…`) and restart all servers. A server
that has not been restarted cannot open payloads sealed with k2, so with several servers add it at the end first, and
move it to the front in a second round. Remove k1 when no message with it is left: after the retention of its queues,
and of the dead letters.

The IV has 16 random bytes, as Queen's. With 12, one key is good for 2^32 messages (NIST SP 800-38D), which is five
days at 10,000 a second.
"""

import base64
import binascii
import json
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeGuard, cast

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from skep.config import env_name
from skep.errors import ConfigError, Undecipherable

log = logging.getLogger("skep.server")

HEADER = "skep-sealed"
IV_BYTES = 16
TAG_BYTES = 16
ENTRY = re.compile(r"([A-Za-z0-9._-]{1,64}):([0-9A-Fa-f]{64})", re.ASCII)
NAME = env_name("encryption_keys")
EXPECTED = f"for example {NAME}=k1:$(openssl rand -hex 32); the first of several encrypts"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys by their ids; the first one seals, all of them open. Without any, `bool(keyring)` is false."""

    _keys: Mapping[str, AESGCM] = field(default_factory=dict[str, AESGCM], repr=False)

    @classmethod
    def load(cls, text: str | None) -> Self:
        """Read `id:64 hex,…`; errors name a key by its place, for what is malformed may be the key itself."""
        keys: dict[str, AESGCM] = {}
        for place, entry in enumerate((text or "").split(",") if text else (), 1):
            parts = ENTRY.fullmatch(entry.strip())
            if parts is None:
                raise ConfigError(f"key {place} of {NAME} is not an id, a colon and 64 hex digits", hint=EXPECTED)
            if parts[1] in keys:
                raise ConfigError(f"{NAME} has two keys with the id {parts[1]}", hint=EXPECTED)
            keys[parts[1]] = AESGCM(bytes.fromhex(parts[2]))
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def seal(self, payload: bytes, queue: str) -> tuple[bytes, dict[str, Any]]:
        """Return what to store instead of a payload, and the header to add to those of its message."""
        if not self._keys:
            raise ConfigError(f'queue "{queue}" is encrypted, but {NAME} is not set', hint=EXPECTED)
        key = next(iter(self._keys))
        iv = secrets.token_bytes(IV_BYTES)
        sealed = self._keys[key].encrypt(iv, payload, _authenticated(key, queue))
        parts = {"encrypted": sealed[:-TAG_BYTES], "iv": iv, "authTag": sealed[-TAG_BYTES:]}
        stored = {name: base64.b64encode(part).decode() for name, part in parts.items()}
        return json.dumps(stored, separators=(",", ":")).encode(), {HEADER: {"key": key, "queue": queue}}

    def open(self, stored: bytes | Mapping[str, Any], seal: object) -> bytes:
        """Return the payload that was sealed; `seal` is the value of the header."""
        key, queue = _read_seal(seal)
        if key not in self._keys:
            raise Undecipherable(f'there is no key "{key}"', key, hint=f"add it to {NAME}, behind the first")
        try:
            iv, sealed = _read_stored(stored)
            return self._keys[key].decrypt(iv, sealed, _authenticated(key, queue))
        except (InvalidTag, ValueError, KeyError, TypeError, RecursionError):
            pass
        raise Undecipherable(f'what was sealed with key "{key}" is damaged, or not of queue "{queue}"', key)

    def open_all(self, messages: bytes, field: str = "data") -> bytes:
        """Open the data of messages as they are delivered: JSON objects, comma-separated; `field` has the payload.

        One that cannot be opened is delivered as it is stored and says why: its consumer refuses it, it is not lost.
        """
        opened = [self._opened(message, field) for message in _messages.decode(b"[%s]" % messages)]
        return msgspec.json.encode(opened)[1:-1]

    def _opened(self, message: dict[str, msgspec.Raw], field: str) -> dict[str, Any]:
        headers = _headers.decode(message["headers"])
        if not is_sealed(headers):
            return message
        try:
            return message | {field: msgspec.Raw(self.open(bytes(message[field]), headers[HEADER]))}
        except Undecipherable as error:
            log.warning("%s message %s: %s", error, bytes(message.get("id", b"")).decode(), error.hint or "")
            return message | {"undecipherable": str(error)}


_messages = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_headers = msgspec.json.Decoder(dict[str, Any] | None)


def is_sealed(headers: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether a message must be opened before it is delivered."""
    return bool(headers) and HEADER in headers


def _authenticated(key: str, queue: str) -> bytes:
    """Return what the tag covers besides the payload. Ids of keys have no NUL, so no two pairs are the same."""
    return b"\0".join((b"skep-sealed", key.encode(), queue.encode("utf-8", "surrogatepass")))


def _read_seal(seal: object) -> tuple[str, str]:
    parts = cast("dict[str, object]", seal) if isinstance(seal, dict) else {}
    key, queue = parts.get("key"), parts.get("queue")
    if not isinstance(key, str) or not isinstance(queue, str):
        raise Undecipherable(f"the header {HEADER} names no key and queue", "")
    return key, queue


def _read_stored(stored: bytes | Mapping[str, Any]) -> tuple[bytes, bytes]:
    parts: Mapping[str, Any] = json.loads(stored) if isinstance(stored, bytes) else stored
    iv, encrypted, tag = (_decode(parts[name]) for name in ("iv", "encrypted", "authTag"))
    if len(iv) != IV_BYTES or len(tag) != TAG_BYTES:
        raise ValueError("another IV or tag than ours")
    return iv, encrypted + tag


def _decode(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)
