"""Authentication: a JWT or an API key in the header Authorization. The error texts are Queen's.

Each algorithm has its own key, set by the configuration and never by the token: a token that says HS256 is checked
with the secret or not at all, so that a public key cannot sign one. `none` and everything that is not configured is
refused.

    no header                                       Authentication required
    not a token, an algorithm or claim of no use    Malformed token: …
    wrong key, unknown kid, changed content         Invalid token signature
    exp is over, nbf or iat is to come              Token has expired, Token is not valid yet
    another iss or aud                              Invalid token issuer, Invalid token audience

Tokens that were good are remembered by their digest, until they expire and for five minutes at most.
"""

import hashlib
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from skep.config import Config, env_name
from skep.errors import ConfigError, InvalidArgument, Unauthenticated
from skep.server.http.api_keys import PREFIX, ApiKeys, Lookup
from skep.server.http.grants import ANYONE, Grants, Identity, Role
from skep.server.http.jwks import Jwks, PublicKey, algorithm_of

LONGEST_TOKEN = 8192
LONGEST_SUBJECT = 255
REMEMBERED_SECONDS = 300.0  # a key that is taken back is used no longer than this
MOST_REMEMBERED = 10_000

Claims = dict[str, Any]
Key = str | PublicKey

# The first that fits; jwt.InvalidTokenError, the last, is the root of the others.
ANSWERS: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.InvalidSignatureError, "Invalid token signature"),
    (jwt.ExpiredSignatureError, "Token has expired"),
    (jwt.ImmatureSignatureError, "Token is not valid yet"),
    (jwt.InvalidIssuerError, "Invalid token issuer"),
    (jwt.InvalidAudienceError, "Invalid token audience"),
)


class Authenticator:
    """Identifies callers. Without `config.auth` every caller may do everything."""

    def __init__(
        self,
        config: Config,
        find_key: Lookup,
        *,
        jwks: Jwks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._clock = clock
        self._api_keys = ApiKeys(find_key)
        self._keys = _static_keys(config)
        self._jwks = jwks or (Jwks(config.jwt_jwks_url) if config.jwt_jwks_url else None)
        self._algorithms = _algorithms(config, self._keys, published=self._jwks is not None)
        self._roles = _role_names(config)
        self._known: dict[bytes, tuple[float, Identity]] = {}

    async def identify(self, authorization: str | None) -> Identity:
        """Return the identity of this header, or raise Unauthenticated or KeysUnavailable."""
        if not self._config.auth:
            return ANYONE
        token = _token(authorization)
        if token.startswith(PREFIX):
            return await self._api_keys.identify(token)
        digest = hashlib.sha256(token.encode()).digest()
        until, known = self._known.get(digest, (0.0, None))
        if known is not None and self._clock() < until:
            return known
        return self._remember(digest, await self._check(token))

    async def _check(self, token: str) -> Claims:
        algorithm, kid = _header(token)
        if algorithm not in self._algorithms:
            raise malformed("its algorithm is not accepted")
        key = self._keys.get(algorithm)
        if key is None and self._jwks is not None:
            key = await self._jwks.find(algorithm, kid)
        if key is None:
            raise Unauthenticated("Invalid token signature")
        return self._decode(token, key, algorithm)

    def _decode(self, token: str, key: Key, algorithm: str) -> Claims:
        wanted = {"iss": self._config.jwt_issuer, "aud": self._config.jwt_audience}
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=wanted["iss"],
                audience=wanted["aud"],
                leeway=self._config.jwt_clock_skew,
                options={"verify_aud": wanted["aud"] is not None},
            )
        except jwt.MissingRequiredClaimError as error:
            raise Unauthenticated(MISSING.get(error.claim, f"Malformed token: no {error.claim}")) from None
        except jwt.PyJWTError as error:
            raise _answer(error) from None
        except (ValueError, TypeError, OverflowError, RecursionError):  # older versions of the library
            raise malformed("its claims cannot be read") from None

    def _remember(self, digest: bytes, claims: Claims) -> Identity:
        identity = self._identity(claims)
        now = self._clock()
        until = now + REMEMBERED_SECONDS
        if "exp" in claims:  # the library takes a number in quotes, and one that no float can hold
            until = min(until, int(claims["exp"]) + int(self._config.jwt_clock_skew))
        self._known.pop(digest, None)
        while len(self._known) >= MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[digest] = until, identity
        return identity

    def _identity(self, claims: Claims) -> Identity:
        name = self._config.jwt_grants_claim
        try:
            grants = Grants.parse(claims[name]) if name in claims else Grants()
        except InvalidArgument as error:
            raise malformed(error.message) from None
        return Identity(_subject(claims.get("sub")), self._roles_of(claims), grants)

    def _roles_of(self, claims: Claims) -> frozenset[Role]:
        """Read both claims. Unknown roles are ignored; malformed ones are refused."""
        one = claims.get(self._config.jwt_roles_claim)
        many = claims.get(self._config.jwt_roles_array_claim)
        if not isinstance(one, str | None) or not isinstance(many, list | None):
            raise malformed("its role is not a text, or its roles are not a list")
        named = [one, *cast("list[object]", many or ())]
        return frozenset(self._roles[name] for name in named if isinstance(name, str) and name in self._roles)


MISSING = {"iss": "Invalid token issuer", "aud": "Invalid token audience"}


def malformed(reason: str) -> Unauthenticated:
    return Unauthenticated(f"Malformed token: {reason}")


def _answer(error: jwt.PyJWTError) -> Unauthenticated:
    """Return Queen's text for an error. The text of the library may contain the token."""
    known = (text for kind, text in ANSWERS if isinstance(error, kind))
    return Unauthenticated(next(known, "Malformed token: it cannot be read"))


def _token(authorization: str | None) -> str:
    """Return the token of the header: `Bearer <token>` in any case, or the token alone, as Queen does."""
    given = (authorization or "").strip()
    if not given:
        raise Unauthenticated("Authentication required")
    if len(given) > LONGEST_TOKEN + len("Bearer "):
        raise malformed(f"it has more than {LONGEST_TOKEN} characters")
    scheme, _, rest = given.partition(" ")
    token = rest.strip() if scheme.lower() == "bearer" else given
    if not token:
        raise Unauthenticated("Authentication required")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise malformed("it is not one word of ASCII characters")
    return token


def _header(token: str) -> tuple[str, str | None]:
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise malformed("it cannot be read") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(kid, str | None):
        raise malformed("its header has no algorithm, or a kid that is no text")
    return algorithm, kid


def _subject(value: object) -> str | None:
    """Return the subject in a form that can be stored and logged. An empty subject counts as none, as in Queen."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > LONGEST_SUBJECT:
        raise malformed(f"its sub is not a text of at most {LONGEST_SUBJECT} characters")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise malformed("its sub has control characters")
    return value


def _static_keys(config: Config) -> dict[str, Key]:
    """Return the key of each algorithm that has one of its own."""
    keys: dict[str, Key] = {}
    if config.jwt_secret is not None:
        keys["HS256"] = config.jwt_secret
    if config.jwt_public_key is not None:
        key = _read_public_key(config.jwt_public_key)
        keys[algorithm_of(key)] = key
    return keys


def _read_public_key(text: str) -> PublicKey:
    name = env_name("jwt_public_key")
    hint = "it is PEM that begins with -----BEGIN PUBLIC KEY-----, or the path of a file with that"
    try:
        pem = text.replace("\\n", "\n") if text.lstrip().startswith("-----BEGIN") else Path(text).read_text("utf-8")
        key = load_pem_public_key(pem.strip().encode())
        algorithm_of(key)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}", hint=hint) from None
    except (ValueError, UnsupportedAlgorithm):
        message = f"{name} is no public key for RS256 (2048 bits or more) or EdDSA (Ed25519)"
        raise ConfigError(message, hint=hint) from None
    return cast("PublicKey", key)


def _algorithms(config: Config, keys: dict[str, Key], *, published: bool) -> frozenset[str]:
    possible = {*keys, *(("RS256", "EdDSA") if published else ())}
    if config.jwt_algorithm == "auto":
        return frozenset(possible)
    if config.auth and config.jwt_algorithm not in possible:
        message = f"{env_name('jwt_algorithm')} is {config.jwt_algorithm}, but the key is for another algorithm"
        raise ConfigError(message, hint=f"set {env_name('jwt_algorithm')}=auto")
    return frozenset({config.jwt_algorithm})


def _role_names(config: Config) -> dict[str, Role]:
    names = {
        config.jwt_role_write_only: Role.WRITE_ONLY,
        config.jwt_role_read_only: Role.READ_ONLY,
        config.jwt_role_read_write: Role.READ_WRITE,
        config.jwt_role_admin: Role.ADMIN,
    }
    if len(names) < len(Role):
        hint = "SKEP_JWT_ROLE_ADMIN, _READ_WRITE, _READ_ONLY and _WRITE_ONLY are four different names"
        raise ConfigError("two roles of tokens have the same name", hint=hint)
    return names
