"""All endpoints, by stage."""

from skep.server.routes import health, lease, pop, push, queue

ENDPOINTS = (*push.ENDPOINTS, *pop.ENDPOINTS, *lease.ENDPOINTS, *queue.ENDPOINTS, *health.ENDPOINTS)
