"""One frozen value holds every setting; the names of environment variables and flags are derived from its fields."""

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
LEAST_SECRET_BYTES = 32  # what HS256 asks for (RFC 7518): a shorter one is found by trying
MIB = 1024 * 1024
MOST = 2**53 - 1  # what JSON and JavaScript can count to
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
OF_CLIENT = ("database_url", "data_dir")
# How often each job of upkeep runs.
INTERVALS = (
    "lease_expiry_interval", "detection_interval", "retention_interval", "sampling_interval", "pruning_interval",
    "held_push_interval", "outbox_interval", "delayed_interval", "schedule_interval",
)  # fmt: skip
OF_UPKEEP = (*OF_CLIENT, *INTERVALS)
# Those of `skep serve`.
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
    """Declare a setting: its help, what it may be, and an example if the default is none. Secrets are never shown."""
    limits = {"least": least, "most": most, "example": example}
    return field(default=default, repr=not secret, metadata={"help": help, **limits})


def _interval(seconds: float, job: str) -> Any:  # noqa: ANN401
    return _setting(seconds, f"Seconds between two runs of upkeep {job}.", least=LEAST_INTERVAL, most=LONGEST_INTERVAL)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one Skep process; `SKEP_DATABASE_URL` sets `database_url`, and so on."""

    database_url: str | None = _setting(
        None,
        "PostgreSQL to use, as URL or conninfo string. Without it an embedded one is started.",
        example="postgresql://user:password@host:5432/dbname",
        secret=True,
    )
    data_dir: Path | None = _setting(None, "Where the embedded PostgreSQL keeps its data.", example="/var/lib/skep")

    lease_expiry_interval: float = _interval(5.0, "that end leases of dead consumers")
    detection_interval: float = _interval(15.0, "that declare silent groups dead")
    retention_interval: float = _interval(10.0, "that delete messages by the retention rules")
    sampling_interval: float = _interval(10.0, "that record offsets and lags for history")
    pruning_interval: float = _interval(60.0, "that delete old journal rows, samples, traces and leases")
    held_push_interval: float = _interval(5.0, "that store pushes held during maintenance")
    outbox_interval: float = _interval(1.0, "that publish rows of the outbox left behind by their COMMIT")
    delayed_interval: float = _interval(1.0, "that append delayed messages that are due")
    schedule_interval: float = _interval(1.0, "that push the ticks of schedules that are due")

    host: str = _setting("127.0.0.1", "The address the server listens on; 0.0.0.0 is all of them.")
    port: int = _setting(6632, "The port the server listens on; 0 is any that is free.", least=0, most=LAST_PORT)
    workers: int = _setting(1, "How many processes serve.", least=1, most=1024)
    max_body_bytes: int = _setting(64 * MIB, "The largest body of a request.", least=1024)
    max_batch: int = _setting(10_000, "The most items of one request.", least=1)
    max_pending: int = _setting(10_000, "How many merged requests may wait before others get 503.", least=1)
    cors_origins: tuple[str, ...] = _setting(
        ("*",), "Origins whose pages may call the server; * is all of them.", example="https://shop.example"
    )
    tls_cert: Path | None = _setting(None, "The certificate chain for TLS, PEM.", example="/etc/skep/tls.crt")
    tls_key: Path | None = _setting(None, "The private key of the certificate, PEM.", example="/etc/skep/tls.key")
    trusted_proxies: tuple[str, ...] = _setting(
        (), "Addresses or networks whose X-Forwarded-* headers are believed.", example="10.0.0.0/8,192.168.1.7"
    )
    reports: Path | None = _setting(
        None,
        "The folder in which analytics writes its reports; the dashboard links to them.",
        example="/var/lib/skep/reports",
    )
    log_format: Literal["text", "json"] = _setting("text", "How the log is written.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "The least serious entries of the log.")

    auth: bool = _setting(False, "Ask every caller for a token or an API key.")  # noqa: FBT003
    jwt_secret: str | None = _setting(
        None, "The secret of HS256 tokens, 32 bytes or more.", example="$(openssl rand -hex 32)", secret=True
    )
    jwt_public_key: str | None = _setting(
        None, "The public key of RS256 or EdDSA tokens: PEM, or the path of a file.", example="/etc/skep/jwt.pem"
    )
    jwt_jwks_url: str | None = _setting(
        None, "Where the issuer publishes its public keys.", example="https://id.example/.well-known/jwks.json"
    )
    jwt_algorithm: Literal["HS256", "RS256", "EdDSA", "auto"] = _setting(
        "auto",
        "The one algorithm of tokens; auto: those there is a key for.",
    )
    jwt_issuer: str | None = _setting(None, "The `iss` a token must have.", example="https://id.example/")
    jwt_audience: str | None = _setting(None, "The `aud` a token must have.", example="skep")
    jwt_clock_skew: float = _setting(30.0, "Seconds by which clocks may differ.", least=0, most=3600)
    jwt_roles_claim: str = _setting("role", "The claim with a role.")
    jwt_roles_array_claim: str = _setting("roles", "The claim with a list of roles.")
    jwt_grants_claim: str = _setting("grants", "The claim with grants by queue.")
    jwt_role_admin: str = _setting("admin", "What tokens call the role admin.")
    jwt_role_read_write: str = _setting("read-write", "What tokens call the role read-write.")
    jwt_role_read_only: str = _setting("read-only", "What tokens call the role read-only.")
    jwt_role_write_only: str = _setting("write-only", "What tokens call the role write-only.")
    encryption_keys: str | None = _setting(
        None,
        "Keys of encrypted queues; the first encrypts, all decrypt.",
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
        """Take each setting from its flag, else from the environment (empty means unset), else its default."""
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
        """Load what a client needs. It must not fail, nor keep secrets, for settings that are a server's.

        In Kubernetes every pod beside a service named skep finds SKEP_PORT=tcp://… in its environment.
        """
        own = {env_name(name): environ.get(env_name(name), "") for name in OF_CLIENT}
        return cls.load(environ=own, database_url=database_url, data_dir=data_dir)

    @classmethod
    def load_upkeep(cls, *, environ: Mapping[str, str] = os.environ, **flags: object) -> Self:
        """Load what `skep upkeep` needs: the settings of a client, and the intervals of the jobs."""
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
    """Make of a text what the annotation of the setting says; anything else is that already."""
    if not isinstance(value, str):
        return value
    kind = _kind(setting.type)
    if kind is tuple:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if kind is Literal:
        return next((choice for choice in get_args(setting.type) if choice.lower() == value.strip().lower()), value)
    if kind not in READERS:
        return Path(value) if kind is Path else value
    read, wrong = READERS[kind]
    try:
        return read(value.strip().lower())
    except (ValueError, KeyError):
        raise _refused(setting, value, wrong) from None


READERS: dict[object, tuple[Callable[[str], object], str]] = {
    bool: (WORDS.__getitem__, "neither true nor false"),
    int: (int, "not a whole number"),
    float: (float, "not a number"),
}


def _kind(annotation: object) -> object:
    """Return the type itself, without None and without what is inside."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    kind = kinds[0] if isinstance(annotation, UnionType) else annotation
    return get_origin(kind) or kind


def _check_limits(setting: Field[Any], value: object) -> None:
    least, most = setting.metadata["least"], setting.metadata["most"]
    choices = get_args(setting.type)
    if _kind(setting.type) is Literal and value not in choices:
        raise _refused(setting, value, f"none of {', '.join(choices)}")
    if least is not None and not (isinstance(value, int | float) and least <= value <= most):
        raise _refused(setting, value, f"not from {least} to {most}")


def _refused(setting: Field[Any], value: object, wrong: str) -> ConfigError:
    shown = f'"{value}"' if setting.repr else "…"
    return ConfigError(f"{env_name(setting.name)} is {shown}, {wrong}", hint=_example(setting.name))


def _example(name: str) -> str:
    setting = _field(name)
    example = setting.metadata["example"] or str(setting.default).lower()
    flag = f", or {flag_name(name)}" if name in FLAGS else ""
    return f"for example {env_name(name)}={example}{flag}"


def _check_tls(config: Config) -> None:
    if (config.tls_cert is None) != (config.tls_key is None):
        missing = "tls_key" if config.tls_key is None else "tls_cert"
        raise ConfigError(f"{env_name(missing)} is missing: TLS needs certificate and key", hint=_example(missing))


def _check_auth(config: Config) -> None:
    """Refuse what would leave the server more open than its settings look."""
    keys = [name for name in ("jwt_secret", "jwt_public_key", "jwt_jwks_url") if getattr(config, name) is not None]
    if keys and not config.auth:
        message = f"{env_name(keys[0])} is set, but {env_name('auth')} is off: the server would be open"
        raise ConfigError(message, hint=f"set {env_name('auth')}=true, or unset {env_name(keys[0])}")
    if config.jwt_secret is not None and len(config.jwt_secret.encode()) < LEAST_SECRET_BYTES:
        message = f"{env_name('jwt_secret')} has fewer than {LEAST_SECRET_BYTES} bytes: it could be found by trying"
        raise ConfigError(message, hint=_example("jwt_secret"))
    if config.jwt_public_key is not None and config.jwt_jwks_url is not None:
        both = f"{env_name('jwt_public_key')} and {env_name('jwt_jwks_url')}"
        raise ConfigError(f"{both} are both set", hint="set one of them")
    if config.jwt_jwks_url is not None and not re.match(r"https?://[^/\s]+", config.jwt_jwks_url):
        raise ConfigError(f"{env_name('jwt_jwks_url')} is no http:// or https:// URL", hint=_example("jwt_jwks_url"))
    _check_algorithm(config)


def _check_algorithm(config: Config) -> None:
    if not config.auth or config.jwt_algorithm == "auto":
        return  # without any key of tokens, API keys are what callers have
    needed = ("jwt_secret",) if config.jwt_algorithm == "HS256" else ("jwt_public_key", "jwt_jwks_url")
    if all(getattr(config, name) is None for name in needed):
        message = f"{env_name('jwt_algorithm')} is {config.jwt_algorithm}, but there is no key for it"
        raise ConfigError(message, hint=_example(needed[0]))


def check_database_url(url: str) -> str:
    """Return the URL if it can be read, else raise ConfigError, which repeats no part of it that may be a password."""
    if not url.strip():
        raise ConfigError("the database URL is empty", hint=EXPECTED)
    scheme, separator, _ = url.partition("://")
    if separator and re.fullmatch(r"[\w+.-]+", scheme) and scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"the database URL starts with {scheme}://, not postgresql://", hint=EXPECTED)
    _check_ports(_parse(url).get("port"))
    return url


def display_database_url(url: str) -> str:
    """Say which database a URL means, without its password."""
    parts = _parse(url)
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{parts.get('host') or ''}{port}/{parts.get('dbname') or ''}"


def _parse(url: str) -> dict[str, object]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        reason = re.sub(r'".*"', "…", str(error).strip(), flags=re.DOTALL)
        message = f"the database URL cannot be read: {reason}"
    # Outside of the handler: the driver's error repeats the URL, so it must not be chained.
    raise ConfigError(message, hint=EXPECTED)


def _check_ports(ports: object) -> None:
    for port in str(ports or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= LAST_PORT):
            raise ConfigError("the port in the database URL is not a number from 1 to 65535", hint=EXPECTED)
