"""The endpoints of Queen's protocol."""

from skep.server.queen import (
    analytics,
    dead_letters,
    groups,
    lease,
    messages,
    pop,
    push,
    queue,
    resources,
    status,
    streams,
    system,
    traces,
)

ENDPOINTS = (
    *push.ENDPOINTS,
    *pop.ENDPOINTS,
    *lease.ENDPOINTS,
    *queue.ENDPOINTS,
    *messages.ENDPOINTS,
    *dead_letters.ENDPOINTS,
    *traces.ENDPOINTS,
    *groups.ENDPOINTS,
    *streams.ENDPOINTS,
    *resources.ENDPOINTS,
    *status.ENDPOINTS,
    *analytics.ENDPOINTS,
    *system.ENDPOINTS,
)
