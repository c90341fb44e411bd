"""All errors of Skep, and the table that maps SQLSTATE to class.

    SkepError
    ├── ConfigError               a setting is invalid (malformed URL, …)
    ├── EmbeddedError             the embedded PostgreSQL cannot be started or stopped
    ├── UnsupportedDatabase       SK009  the server is too old or its encoding is not UTF8
    ├── SchemaMismatch            SK008  the database has another version of the schema
    ├── PermissionDenied          42501  the database user lacks a privilege
    ├── Unauthenticated           the request has no valid token or API key
    ├── Forbidden                 the token or API key does not allow the request
    ├── Undecipherable            an encrypted payload cannot be decrypted: unknown key, or damaged
    ├── InvalidArgument           SK001  an argument is invalid; the message names the item
    │   ├── PayloadTooLarge       SK004  the payload exceeds the limit of its queue
    │   └── MessagesRefused       the database refused messages of a buffer; `refused` has them
    ├── NotFound                  SK002  no such queue, partition, group, message or dead letter
    ├── StaleLease                SK003  the lease has expired or belongs to another consumer
    ├── Conflict                  SK007  an object with this name already exists with different settings
    ├── DataLoss                  retention deleted messages that a stream had not read
    ├── PushBlocked               SK006  the queue accepts no messages now (retryable)
    ├── Overloaded                more requests wait in the server than it holds (retryable)
    └── TransientError            40001, 40P01, 55P03, 57014: deadlock, serialization, timeouts, upgrades (retryable)
        ├── KeysUnavailable       the keys that verify tokens cannot be fetched (retryable)
        └── DatabaseUnavailable   08xxx, 53xxx, 57P01 to 57P05, 25P03, or no response (retryable)

Retryable means that the same call, unchanged, may succeed later.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

import psycopg


class SkepError(Exception):
    """Base class. `message` says what happened, `detail` where, `hint` what to do. A traceback shows the hint."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class ConfigError(SkepError):
    """A setting is invalid."""


class EmbeddedError(SkepError):
    """The embedded PostgreSQL cannot be started or stopped."""


class UnsupportedDatabase(SkepError):
    """The server is too old, or its encoding is not UTF8."""


class SchemaMismatch(SkepError):
    """The database has another version of the schema than this package needs. The hint is the command to run."""


class PermissionDenied(SkepError):
    """The database user lacks a privilege."""


class Unauthenticated(SkepError):
    """The request has no valid token or API key. The message is Queen's and safe to show."""


class Forbidden(SkepError):
    """The token or API key of the caller does not allow this request."""


class Undecipherable(SkepError):
    """An encrypted payload cannot be decrypted. `key` is the id of the key that encrypted it."""

    def __init__(self, message: str, key: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class InvalidArgument(SkepError):
    """An argument is invalid. The message names the item."""


class PayloadTooLarge(InvalidArgument):
    """A payload exceeds the limit of its queue."""


class MessagesRefused(InvalidArgument):
    """The database refused messages that a buffer had accepted. `refused` has each as JSON, with its error."""

    def __init__(self, refused: list[tuple[str, SkepError]]) -> None:
        super().__init__(
            f"the database refused {len(refused)} buffered messages: {refused[0][1]}", hint=refused[0][1].hint
        )
        self.refused = refused


class NotFound(SkepError):
    """No such queue, partition, group, message or dead letter."""


class StaleLease(SkepError):
    """The lease has expired, was released, or belongs to another consumer."""


class Conflict(SkepError):
    """An object with this name already exists with different settings."""


class DataLoss(SkepError):
    """Retention deleted messages that a stream had not read. The message names partitions and offsets."""


class PushBlocked(SkepError):
    """The queue accepts no messages now: it is full, or no group subscribes to it."""

    retryable = True


class Overloaded(SkepError):
    """More requests wait in the server than it holds."""

    retryable = True

    def __init__(self) -> None:
        super().__init__("the server has more connections and messages in hand than it can serve; try again")


class TransientError(SkepError):
    """The database cancelled the transaction: a deadlock, a serialization failure, a timeout or an upgrade."""

    retryable = True


class KeysUnavailable(TransientError):
    """The keys of the token issuer cannot be fetched, so tokens cannot be verified now."""


class DatabaseUnavailable(TransientError):
    """The database is down, starting, stopping, full, or cannot be reached."""


# A key of two characters matches a whole SQLSTATE class.
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
    "22007": InvalidArgument,  # an invalid time
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
    "57014": TransientError,  # statement_timeout, or cancelled by an administrator
}


def from_sqlstate(error: psycopg.Error) -> SkepError | None:
    """Return the error of Skep for an error of the driver, or None if there is none for it."""
    kind = _kind(error)
    if kind is None:
        return None
    diagnostics = error.diag
    message = diagnostics.message_primary or str(error)
    return kind(message, detail=diagnostics.message_detail or None, hint=diagnostics.message_hint or None)


@contextmanager
def explained() -> Generator[None]:
    """Raise errors of the driver as errors of Skep. An error without an entry in the table is raised unchanged."""
    try:
        yield
    except psycopg.Error as error:
        known = from_sqlstate(error)
        if known is None:
            raise
        raise known from error


def _kind(error: psycopg.Error) -> type[SkepError] | None:
    if error.sqlstate == "XX000" and "cache lookup failed" in str(
        error
    ):  # an upgrade replaced the function during the call
        return TransientError
    if error.sqlstate is not None:
        return SQLSTATES.get(error.sqlstate) or SQLSTATES.get(error.sqlstate[:2])
    if isinstance(error, psycopg.OperationalError):  # no response from the server
        return DatabaseUnavailable
    if isinstance(error, psycopg.DataError):  # the driver could not encode the value, for example NUL in a string
        return InvalidArgument
    return None
