"""An issuer of tokens for tests: its keys, what it signs, and what it publishes."""

import base64
import hashlib
import hmac
import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from skep.config import Config
from skep.errors import NotFound
from skep.message import ApiKey
from skep.server.http.auth import Authenticator

SECRET = "0123456789abcdef0123456789abcdef"


@cache
def rsa_key(name: str = "rsa", bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def ed_key(name: str = "ed") -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def pem(key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def token(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **claims: Any) -> str:
    """A token that is good for a minute, but for what is said otherwise; None leaves a claim out."""
    content = {"sub": "ann", "role": "read-write", "exp": time.time() + 3600} | claims
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm, headers={"kid": kid} if kid is not None else None)


def forged(header: object, claims: object, secret: bytes | None = None) -> str:
    """A token as no library would make it."""
    body = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
    return f"{body}.{encode(hmac.digest(secret, body.encode(), hashlib.sha256)) if secret else ''}"


async def nobody(key_id: str, digest: bytes) -> ApiKey | None:
    raise NotFound("no test should ask the database")


def authenticator(**settings: Any) -> Authenticator:
    return Authenticator(Config(auth=True, **settings), nobody)
