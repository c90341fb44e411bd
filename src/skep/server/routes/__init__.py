"""All endpoints, by stage."""

from skep.server.routes import health, lease, pop, push, queue, streams, system

ENDPOINTS = (
    *push.ENDPOINTS,
    *pop.ENDPOINTS,
    *lease.ENDPOINTS,
    *queue.ENDPOINTS,
    *streams.ENDPOINTS,
    *system.ENDPOINTS,
    *health.ENDPOINTS,
)
