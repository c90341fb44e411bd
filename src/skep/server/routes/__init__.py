"""All endpoints, by stage."""

from skep.server.routes import (
    analytics,
    dead_letters,
    groups,
    health,
    lease,
    messages,
    pop,
    push,
    queue,
    resources,
    status,
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
    *resources.ENDPOINTS,
    *status.ENDPOINTS,
    *analytics.ENDPOINTS,
    *health.ENDPOINTS,
)
