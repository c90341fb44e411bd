"""One frozen value holds every setting; environment variables and flags are derived from its fields."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from skep.errors import ConfigError

EXPECTED = (
    "expected postgresql://user:password@host:5432/dbname, special characters percent-encoded, or host=... dbname=..."
)
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one Skep process; `SKEP_DATABASE_URL` and `--database-url` set `database_url`, and so on."""

    database_url: str | None = field(
        default=None,
        metadata={"help": "PostgreSQL to use, as URL or conninfo string. Without it an embedded one is started."},
    )
    data_dir: Path | None = field(
        default=None,
        metadata={"help": "Where the embedded PostgreSQL keeps its data."},
    )

    def __post_init__(self) -> None:
        if self.database_url is not None:
            check_database_url(self.database_url)

    @classmethod
    def load(
        cls,
        *,
        database_url: str | None = None,
        data_dir: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Take each setting from its flag, else from the environment (empty means unset), else its default."""
        in_environ = environ.get(env_name("data_dir"))
        return cls(
            database_url=database_url if database_url is not None else environ.get(env_name("database_url")) or None,
            data_dir=data_dir or (Path(in_environ) if in_environ else None),
        )


def env_name(setting: str) -> str:
    return f"SKEP_{setting.upper()}"


def flag_name(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def help_text(setting: str) -> str:
    (found,) = (f for f in fields(Config) if f.name == setting)
    return f"{found.metadata['help']} Also set by {env_name(setting)}."


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
