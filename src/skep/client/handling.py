"""Whether this code runs inside a handler, which must not wait for itself to end."""

from contextvars import ContextVar

inside_handler: ContextVar[bool] = ContextVar("skep_inside_handler", default=False)
