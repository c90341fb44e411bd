"""All endpoints: Skep's own and Queen's. No other module names the folder of Queen's protocol."""

from skep.server.api import (
    dashboard,
    dead_letters,
    defaults,
    description,
    fan_out,
    health,
    leases,
    metrics,
    outbox,
    page,
    pop,
    push,
    queues,
    reports,
    retention,
    subscriptions,
    transactions,
)
from skep.server.queen import routes as queen

API = (
    *push.ENDPOINTS,
    *pop.ENDPOINTS,
    *leases.ENDPOINTS,
    *transactions.ENDPOINTS,
    *queues.ENDPOINTS,
    *dead_letters.ENDPOINTS,
    *subscriptions.ENDPOINTS,
    *defaults.ENDPOINTS,
    *outbox.ENDPOINTS,
    *fan_out.ENDPOINTS,
    *retention.ENDPOINTS,
    *metrics.ENDPOINTS,
    *health.ENDPOINTS,
    *dashboard.ENDPOINTS,
    *page.ENDPOINTS,
    *reports.ENDPOINTS,
)
ENDPOINTS = description.described((*queen.ENDPOINTS, *API))
