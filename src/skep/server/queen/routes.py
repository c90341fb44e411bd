"""The endpoints of Queen's protocol."""

from skep.server.queen import (
    ack,
    analytics,
    dead_letters,
    groups,
    messages,
    pop,
    push,
    queue,
    resources,
    status,
    streams,
    system,
    traces,
    transaction,
)

ENDPOINTS = (
    *push.ENDPOINTS,
    *transaction.ENDPOINTS,
    *pop.ENDPOINTS,
    *ack.ENDPOINTS,
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
