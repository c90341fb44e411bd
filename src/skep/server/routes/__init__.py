"""All endpoints, by stage."""

from skep.server.routes import health, lease, metrics, pop, push, queue, streams, system

ENDPOINTS = (
    *push.ENDPOINTS,
    *pop.ENDPOINTS,
    *lease.ENDPOINTS,
    *queue.ENDPOINTS,
    *streams.ENDPOINTS,
    *system.ENDPOINTS,
    *metrics.ENDPOINTS,
    *health.ENDPOINTS,
)
