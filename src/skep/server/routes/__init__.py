"""All endpoints, by stage."""

from skep.server.routes import health, lease, pop, push, queue, streams

ENDPOINTS = (
    *push.ENDPOINTS,
    *pop.ENDPOINTS,
    *lease.ENDPOINTS,
    *queue.ENDPOINTS,
    *streams.ENDPOINTS,
    *health.ENDPOINTS,
)
