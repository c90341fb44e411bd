"""All endpoints, by stage."""

from skep.server.routes import (
    dead_letters,
    description,
    fan_out,
    health,
    lease,
    metrics,
    options,
    pop,
    push,
    queue,
    retention,
    streams,
    subscriptions,
    system,
)

ENDPOINTS = description.described(
    (
        *push.ENDPOINTS,
        *pop.ENDPOINTS,
        *lease.ENDPOINTS,
        *queue.ENDPOINTS,
        *options.ENDPOINTS,
        *subscriptions.ENDPOINTS,
        *fan_out.ENDPOINTS,
        *dead_letters.ENDPOINTS,
        *retention.ENDPOINTS,
        *streams.ENDPOINTS,
        *system.ENDPOINTS,
        *metrics.ENDPOINTS,
        *health.ENDPOINTS,
    )
)
