"""All endpoints: Skep's own and Queen's. No other module names the folder of Queen's protocol."""

from skep.server.api import (
    dashboard,
    dead_letters,
    defaults,
    description,
    fan_out,
    health,
    metrics,
    outbox,
    page,
    queues,
    reports,
    retention,
    subscriptions,
)
from skep.server.queen import routes as queen

API = (
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
