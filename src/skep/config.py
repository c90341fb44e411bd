"""All settings in one frozen dataclass. Environment variables and flags are named after its fields."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin

import psycopg
from psycopg.conninfo import conninfo_to_dict

from skep.errors import ConfigError

EXPECTED = (
    "expected postgresql://user:password@host:5432/dbname, special characters percent-encoded, or host=... dbname=..."
)
LAST_PORT = 65535
LEAST_SECRET_BYTES = 32  # required by HS256 (RFC 7518); a shorter secret can be brute-forced
MIB = 1024 * 1024
MOST = 2**53 - 1  # the largest exact integer in JSON and JavaScript
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
OF_CLIENT = ("database_url", "data_dir")
# The intervals of the upkeep jobs.
INTERVALS = (
    "lease_expiry_interval", "detection_interval", "retention_interval", "sampling_interval", "pruning_interval",
    "held_push_interval", "outbox_interval", "delayed_interval", "schedule_interval",
)  # fmt: skip
OF_UPKEEP = (*OF_CLIENT, *INTERVALS)
# Flags of `skep serve`.
FLAGS = (*OF_UPKEEP, "host", "port", "workers", "auth", "tls_cert", "tls_key", "log_format", "log_level")
LEAST_INTERVAL, LONGEST_INTERVAL = 0.1, 86_400.0  # seconds


def _setting(
    default: object,
    help: str,  # noqa: A002
    *,
    least: float | None = None,
    most: float = MOST,
    example: str = "",
    secret: bool = False,
) -> Any:  # noqa: ANN401
    """Declare a setting: its help, its limits, and an example if the default is not one. Secrets are never shown."""
    limits = {"least": least, "most": most, "example": example}
    return field(default=default, repr=not secret, metadata={"help": help, **limits})


def _interval(seconds: float, job: str) -> Any:  # noqa: ANN401
    return _setting(
        seconds, f"Seconds between two runs of the upkeep job that {job}.", least=LEAST_INTERVAL, most=LONGEST_INTERVAL
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one Skep process. `SKEP_DATABASE_URL` sets `database_url`, and so on."""

    database_url: str | None = _setting(
        None,
        "URL or conninfo string of the PostgreSQL database. Without it an embedded PostgreSQL is started.",
        example="postgresql://user:password@host:5432/dbname",
        secret=True,
    )
    data_dir: Path | None = _setting(None, "Data directory of the embedded PostgreSQL.", example="/var/lib/skep")

    lease_expiry_interval: float = _interval(5.0, "ends expired leases")
    detection_interval: float = _interval(15.0, "declares groups without a heartbeat dead")
    retention_interval: float = _interval(10.0, "deletes messages by the retention rules")
    sampling_interval: float = _interval(10.0, "records offsets and lags for the history")
    pruning_interval: float = _interval(60.0, "deletes old journal rows, samples, traces and finished leases")
    held_push_interval: float = _interval(5.0, "stores pushes that were held during maintenance mode")
    outbox_interval: float = _interval(1.0, "publishes outbox rows that were not published at COMMIT")
    delayed_interval: float = _interval(1.0, "appends due delayed messages to their partitions")
    schedule_interval: float = _interval(1.0, "pushes the due ticks of schedules")

    host: str = _setting("127.0.0.1", "Address the server listens on. 0.0.0.0 listens on all addresses.")
    port: int = _setting(6632, "Port the server listens on. 0 picks a free port.", least=0, most=LAST_PORT)
    workers: int = _setting(1, "Number of server processes.", least=1, most=1024)
    max_body_bytes: int = _setting(64 * MIB, "Maximum size of a request body, in bytes.", least=1024)
    max_batch: int = _setting(10_000, "Maximum number of items in one request.", least=1)
    max_pending: int = _setting(10_000, "Maximum number of waiting requests. Further requests get status 503.", least=1)
    cors_origins: tuple[str, ...] = _setting(
        ("*",), "Web origins that may call the server. * allows all origins.", example="https://shop.example"
    )
    tls_cert: Path | None = _setting(None, "PEM file with the TLS certificate chain.", example="/etc/skep/tls.crt")
    tls_key: Path | None = _setting(
        None, "PEM file with the private key of the certificate.", example="/etc/skep/tls.key"
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (),
        "Addresses or networks of proxies whose X-Forwarded-* headers are trusted.",
        example="10.0.0.0/8,192.168.1.7",
    )
    reports: Path | None = _setting(
        None,
        "Directory of the analytics reports, to which the dashboard links.",
        example="/var/lib/skep/reports",
    )
    log_format: Literal["text", "json"] = _setting("text", "Format of the log.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Lowest level of log entries that are written."
    )

    auth: bool = _setting(False, "Require a token or an API key for every request.")  # noqa: FBT003
    jwt_secret: str | None = _setting(
        None, "Secret for HS256 tokens, at least 32 bytes.", example="$(openssl rand -hex 32)", secret=True
    )
    jwt_public_key: str | None = _setting(
        None, "Public key for RS256 or EdDSA tokens, as PEM or as the path of a PEM file.", example="/etc/skep/jwt.pem"
    )
    jwt_jwks_url: str | None = _setting(
        None,
        "URL of the JWKS document with the public keys of the token issuer.",
        example="https://id.example/.well-known/jwks.json",
    )
    jwt_algorithm: Literal["HS256", "RS256", "EdDSA", "auto"] = _setting(
        "auto",
        "Accepted JWT algorithm. auto accepts every algorithm for which a key is configured.",
    )
    jwt_issuer: str | None = _setting(None, "Required `iss` claim of tokens.", example="https://id.example/")
    jwt_audience: str | None = _setting(None, "Required `aud` claim of tokens.", example="skep")
    jwt_clock_skew: float = _setting(
        30.0, "Tolerated difference between clocks when tokens are checked, in seconds.", least=0, most=3600
    )
    jwt_roles_claim: str = _setting("role", "Name of the claim that holds a role.")
    jwt_roles_array_claim: str = _setting("roles", "Name of the claim that holds a list of roles.")
    jwt_grants_claim: str = _setting("grants", "Name of the claim that holds grants by queue.")
    jwt_role_admin: str = _setting("admin", "Name of the role admin in tokens.")
    jwt_role_read_write: str = _setting("read-write", "Name of the role read-write in tokens.")
    jwt_role_read_only: str = _setting("read-only", "Name of the role read-only in tokens.")
    jwt_role_write_only: str = _setting("write-only", "Name of the role write-only in tokens.")
    encryption_keys: str | None = _setting(
        None,
        "Keys for encrypted queues. The first one encrypts, all of them decrypt.",
        example="k2:<64 hex>,k1:<64 hex>",
        secret=True,
    )

    def __post_init__(self) -> None:
        if self.database_url is not None:
            check_database_url(self.database_url)
        for setting in fields(self):
            _check_limits(setting, getattr(self, setting.name))
        _check_tls(self)
        _check_auth(self)

    @classmethod
    def load(cls, *, environ: Mapping[str, str] = os.environ, **flags: object) -> Self:
        """Read each setting from its flag, else from the environment (empty means unset), else use its default."""
        values: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
        for setting in fields(cls):
            given = values.get(setting.name, environ.get(env_name(setting.name)) or None)
            if given is not None:
                values[setting.name] = _convert(setting, given)
        return cls(**values)

    @classmethod
    def load_client(
        cls, database_url: str | None = None, data_dir: Path | None = None, *, environ: Mapping[str, str] = os.environ
    ) -> Self:
        """Load only the settings of a client: it must not fail because of a server setting, nor keep its secrets.

        In Kubernetes every pod next to a service named skep has SKEP_PORT=tcp://… in its environment.
        """
        own = {env_name(name): environ.get(env_name(name), "") for name in OF_CLIENT}
        return cls.load(environ=own, database_url=database_url, data_dir=data_dir)

    @classmethod
    def load_upkeep(cls, *, environ: Mapping[str, str] = os.environ, **flags: object) -> Self:
        """Load the settings of `skep upkeep`: those of a client, and the intervals of the jobs."""
        return cls.load(environ={env_name(name): environ.get(env_name(name), "") for name in OF_UPKEEP}, **flags)


def env_name(setting: str) -> str:
    return f"SKEP_{setting.upper()}"


def flag_name(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def help_text(setting: str) -> str:
    return f"{_field(setting).metadata['help']} Also set by {env_name(setting)}."


def _field(setting: str) -> Field[Any]:
    (found,) = (each for each in fields(Config) if each.name == setting)
    return found


def _convert(setting: Field[Any], value: object) -> object:
    """Convert a string to the type of the setting. Other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    kind = _kind(setting.type)
    if kind is tuple:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if kind is Literal:
        return next((choice for choice in get_args(setting.type) if choice.lower() == value.strip().lower()), value)
    if kind not in READERS:
        return Path(value) if kind is Path else value
    read, expected = READERS[kind]
    try:
        return read(value.strip().lower())
    except (ValueError, KeyError):
        raise _invalid(setting, value, expected) from None


READERS: dict[object, tuple[Callable[[str], object], str]] = {
    bool: (WORDS.__getitem__, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
}


def _kind(annotation: object) -> object:
    """Return the type without None and without type arguments."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    kind = kinds[0] if isinstance(annotation, UnionType) else annotation
    return get_origin(kind) or kind


def _check_limits(setting: Field[Any], value: object) -> None:
    least, most = setting.metadata["least"], setting.metadata["most"]
    choices = get_args(setting.type)
    if _kind(setting.type) is Literal and value not in choices:
        raise _invalid(setting, value, f"one of {', '.join(choices)}")
    if least is not None and not (isinstance(value, int | float) and least <= value <= most):
        raise _invalid(setting, value, f"between {least} and {most}")


def _invalid(setting: Field[Any], value: object, expected: str) -> ConfigError:
    shown = f'"{value}"' if setting.repr else "…"
    return ConfigError(f"{env_name(setting.name)} must be {expected}, got {shown}", hint=_example(setting.name))


def _example(name: str) -> str:
    setting = _field(name)
    example = setting.metadata["example"] or str(setting.default).lower()
    flag = f", or {flag_name(name)}" if name in FLAGS else ""
    return f"for example {env_name(name)}={example}{flag}"


def _check_tls(config: Config) -> None:
    if (config.tls_cert is None) != (config.tls_key is None):
        missing = "tls_key" if config.tls_key is None else "tls_cert"
        raise ConfigError(f"{env_name(missing)} is missing: TLS needs a certificate and a key", hint=_example(missing))


def _check_auth(config: Config) -> None:
    """Refuse settings that look secure but leave the server open."""
    keys = [name for name in ("jwt_secret", "jwt_public_key", "jwt_jwks_url") if getattr(config, name) is not None]
    if keys and not config.auth:
        message = f"{env_name(keys[0])} is set, but {env_name('auth')} is off: the server would accept every request"
        raise ConfigError(message, hint=f"set {env_name('auth')}=true, or unset {env_name(keys[0])}")
    if config.jwt_secret is not None and len(config.jwt_secret.encode()) < LEAST_SECRET_BYTES:
        message = f"{env_name('jwt_secret')} must have at least {LEAST_SECRET_BYTES} bytes"
        raise ConfigError(message, hint=_example("jwt_secret"))
    if config.jwt_public_key is not None and config.jwt_jwks_url is not None:
        both = f"{env_name('jwt_public_key')} and {env_name('jwt_jwks_url')}"
        raise ConfigError(f"{both} cannot both be set", hint="set one of them")
    if config.jwt_jwks_url is not None and not re.match(r"https?://[^/\s]+", config.jwt_jwks_url):
        raise ConfigError(
            f"{env_name('jwt_jwks_url')} must be an http:// or https:// URL", hint=_example("jwt_jwks_url")
        )
    _check_algorithm(config)


def _check_algorithm(config: Config) -> None:
    if not config.auth or config.jwt_algorithm == "auto":
        return  # without a key for tokens, callers use API keys
    needed = ("jwt_secret",) if config.jwt_algorithm == "HS256" else ("jwt_public_key", "jwt_jwks_url")
    if all(getattr(config, name) is None for name in needed):
        message = f"{env_name('jwt_algorithm')} is {config.jwt_algorithm}, but no key for it is configured"
        raise ConfigError(message, hint=_example(needed[0]))


def check_database_url(url: str) -> str:
    """Return the URL if it is valid, else raise ConfigError. The error contains no part that may be a password."""
    if not url.strip():
        raise ConfigError("the database URL is empty", hint=EXPECTED)
    scheme, separator, _ = url.partition("://")
    if separator and re.fullmatch(r"[\w+.-]+", scheme) and scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"the database URL must start with postgresql://, got {scheme}://", hint=EXPECTED)
    _check_ports(_parse(url).get("port"))
    return url


def display_database_url(url: str) -> str:
    """Return the URL without its password and its parameters."""
    parts = _parse(url)
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{parts.get('host') or ''}{port}/{parts.get('dbname') or ''}"


def _parse(url: str) -> dict[str, object]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        reason = re.sub(r'".*"', "…", str(error).strip(), flags=re.DOTALL)
        message = f"the database URL is invalid: {reason}"
    # Raised outside of the handler, so that it is not chained: the driver's error contains the URL.
    raise ConfigError(message, hint=EXPECTED)


def _check_ports(ports: object) -> None:
    for port in str(ports or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= LAST_PORT):
            raise ConfigError("the port in the database URL must be a number between 1 and 65535", hint=EXPECTED)
