"""A flag that is true inside a handler. `stop()` must not wait there: the handler would wait for itself to end."""

from contextvars import ContextVar

inside_handler: ContextVar[bool] = ContextVar("skep_inside_handler", default=False)
