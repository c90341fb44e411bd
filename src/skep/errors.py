"""Every error Skep raises, and the one table from SQLSTATE to class.

    SkepError
    ├── ConfigError               a setting cannot be used (malformed URL, …)
    ├── EmbeddedError             the embedded PostgreSQL cannot be started or stopped
    ├── UnsupportedDatabase       SK009  the server is too old or its encoding is not UTF8
    ├── SchemaMismatch            SK008  the schema in the database is not the one of this package
    ├── PermissionDenied          42501  the database user lacks a right
    ├── Unauthenticated           the server does not know who calls
    ├── Forbidden                 the caller of the server lacks a right
    ├── Undecipherable            an encrypted payload cannot be opened: unknown key, or damaged
    ├── InvalidArgument           SK001  an argument is wrong; the message names the item
    │   ├── PayloadTooLarge       SK004
    │   └── MessagesRefused       some messages of a buffer; `refused` has them
    ├── NotFound                  SK002  no such queue, partition, group, message or dead letter
    ├── StaleLease                SK003  the lease has expired or is another's
    ├── Conflict                  SK007  it exists already, and differently
    ├── DataLoss                  retention deleted what a stream had not read; the message names it
    ├── PushBlocked               SK006  the queue takes no messages now (retryable)
    └── TransientError            40001, 40P01, 55P03, 57014: deadlock, serialization, timeouts, upgrades (retryable)
        ├── KeysUnavailable       the keys of tokens cannot be fetched (retryable)
        └── DatabaseUnavailable   08xxx, 53xxx, 57P01 to 57P05, 25P03, or no answer at all (retryable)

Retryable means that the same call, unchanged, may succeed later.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

import psycopg


class SkepError(Exception):
    """Root of the tree; `message` says what happened, `detail` where, `hint` what to do. A traceback shows the hint."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class ConfigError(SkepError):
    """A setting cannot be used."""


class EmbeddedError(SkepError):
    """The embedded PostgreSQL cannot be started or stopped."""


class UnsupportedDatabase(SkepError):
    """The server is too old, or its encoding is not UTF8."""


class SchemaMismatch(SkepError):
    """The schema in the database is not the one this package works with; the hint is the command to run."""


class PermissionDenied(SkepError):
    """The database user lacks a right."""


class Unauthenticated(SkepError):
    """The server does not know who calls; the message is Queen's, and safe to show."""


class Forbidden(SkepError):
    """The server knows who calls, who may not do this."""


class Undecipherable(SkepError):
    """An encrypted payload cannot be opened; `key` is the id of the key it was sealed with."""

    def __init__(self, message: str, key: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class InvalidArgument(SkepError):
    """An argument is wrong; the message names the item."""


class PayloadTooLarge(InvalidArgument):
    """A payload is over the limit of its queue."""


class MessagesRefused(InvalidArgument):
    """Messages that a buffer had accepted and the database refused; `refused` has each as JSON, with its error."""

    def __init__(self, refused: list[tuple[str, SkepError]]) -> None:
        super().__init__(f"{len(refused)} buffered messages were refused: {refused[0][1]}", hint=refused[0][1].hint)
        self.refused = refused


class NotFound(SkepError):
    """No such queue, partition, group, message or dead letter."""


class StaleLease(SkepError):
    """The lease has expired, was released, or belongs to another consumer."""


class Conflict(SkepError):
    """It exists already, and differently."""


class DataLoss(SkepError):
    """Retention deleted messages that a stream had not read; the message names partitions and offsets."""


class PushBlocked(SkepError):
    """The queue takes no messages now: it is full, or nobody subscribes to it."""

    retryable = True


class TransientError(SkepError):
    """The database gave up on this transaction in favour of another one."""

    retryable = True


class KeysUnavailable(TransientError):
    """The issuer's keys cannot be fetched, so nobody knows yet whether a token is good."""


class DatabaseUnavailable(TransientError):
    """The database is down, starting, stopping, full, or cannot be reached."""


# A key of two characters is a whole SQLSTATE class.
SQLSTATES: dict[str, type[SkepError]] = {
    "SK001": InvalidArgument,
    "SK002": NotFound,
    "SK003": StaleLease,
    "SK004": PayloadTooLarge,
    "SK006": PushBlocked,
    "SK007": Conflict,
    "SK008": SchemaMismatch,
    "SK009": UnsupportedDatabase,
    "22P02": InvalidArgument,  # invalid JSON, uuid, timestamp, …
    "22P05": InvalidArgument,  # \u0000 inside JSON
    "22021": InvalidArgument,  # not UTF8
    "22003": InvalidArgument,  # a number out of range
    "22007": InvalidArgument,  # not a time
    "22008": InvalidArgument,  # a time out of range
    "22009": InvalidArgument,  # a time zone out of range
    "54001": InvalidArgument,  # JSON nested too deep
    "42501": PermissionDenied,
    "40001": TransientError,
    "40P01": TransientError,
    "55P03": TransientError,
    "08": DatabaseUnavailable,
    "53": DatabaseUnavailable,  # disk full, out of memory, too many connections
    "57P01": DatabaseUnavailable,
    "57P02": DatabaseUnavailable,
    "57P03": DatabaseUnavailable,
    "57P05": DatabaseUnavailable,  # idle_session_timeout
    "25P03": DatabaseUnavailable,  # idle_in_transaction_session_timeout
    "57014": TransientError,  # statement_timeout, or an administrator cancelled it
}


def from_sqlstate(error: psycopg.Error) -> SkepError | None:
    """Return Skep's error for one of the driver, or None if it is not Skep's to explain."""
    kind = _kind(error)
    if kind is None:
        return None
    diagnostics = error.diag
    message = diagnostics.message_primary or str(error)
    return kind(message, detail=diagnostics.message_detail or None, hint=diagnostics.message_hint or None)


@contextmanager
def explained() -> Generator[None]:
    """Turn the driver's errors into Skep's; what is not Skep's to explain stays as it is."""
    try:
        yield
    except psycopg.Error as error:
        known = from_sqlstate(error)
        if known is None:
            raise
        raise known from error


def _kind(error: psycopg.Error) -> type[SkepError] | None:
    if error.sqlstate == "XX000" and "cache lookup failed" in str(error):  # an upgrade replaced the function under way
        return TransientError
    if error.sqlstate is not None:
        return SQLSTATES.get(error.sqlstate) or SQLSTATES.get(error.sqlstate[:2])
    if isinstance(error, psycopg.OperationalError):  # the server never answered
        return DatabaseUnavailable
    if isinstance(error, psycopg.DataError):  # the driver could not write the value, such as NUL in a text
        return InvalidArgument
    return None
