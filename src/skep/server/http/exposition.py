"""Metrics in the format of Prometheus: Queen's names where Queen has them, `skep_` for the others.

Of messages nothing is counted when somebody asks: totals, lags and ages come from the last sample of heads and cursors.
"""

import platform
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from skep.message import MaintenanceStatus
from skep.server.http.metrics import Counts, Histogram, Worker

CONTENT_TYPE = CONTENT_TYPE_LATEST
CLUSTER = {"scope": "cluster"}


class Place(NamedTuple):
    """A queue (group '') or a group on it, as of the last sample."""

    queue: str
    group: str
    total: int
    lag: int
    leased: int
    dead: int
    oldest_seconds: float


class Numbers(NamedTuple):
    """All metrics. `places` is None if the database could not be reached."""

    workers: list[Worker]
    counts: Counts
    places: list[Place] | None
    maintenance: MaintenanceStatus | None


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def expose(numbers: Numbers) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    families = [*_of_processes(numbers), *_of_requests(numbers.counts)]
    if numbers.places is not None:
        families += [*_of_queues(numbers.places), *_of_groups(numbers.places)]
    registry.register(_Collected(families))
    return generate_latest(registry)


def gauge(name: str, text: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text)
    for labels, value in values:
        family.add_sample(name, dict(labels), value)
    return family


def counter(name: str, text: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
    family = CounterMetricFamily(name.removesuffix("_total"), text)
    for labels, value in values:
        family.add_sample(name, dict(labels), value)
    return family


def histograms(name: str, text: str, values: Iterable[tuple[Mapping[str, str], Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, text)
    for labels, value in values:
        bounds = [f"{bound:g}" for bound in value.bounds] + ["+Inf"]
        counts = list(accumulate(value.buckets))
        for bound, count in zip(bounds, counts, strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", dict(labels), counts[-1])
        family.add_sample(f"{name}_sum", dict(labels), value.total)
    return family


def _of_processes(numbers: Numbers) -> Iterable[Metric]:
    each = [
        ({"hostname": platform.node(), "worker_id": str(w.pid), "pid": str(w.pid)}, w.gauges) for w in numbers.workers
    ]
    up = numbers.places is not None
    status = numbers.maintenance
    parked: dict[str, int] = {}
    for _, gauges in each:
        for queue, count in gauges.parked.items():
            parked[queue] = parked.get(queue, 0) + count
    yield gauge("queen_uptime_seconds", "How long each process runs.", [(own, g.uptime) for own, g in each])
    yield counter("queen_cpu_user_seconds_total", "CPU, user.", [(own, g.user_seconds) for own, g in each])
    yield counter("queen_cpu_system_seconds_total", "CPU, system.", [(own, g.system_seconds) for own, g in each])
    yield gauge("queen_process_resident_memory_bytes", "Memory.", [(own, g.resident_bytes) for own, g in each])
    yield gauge("queen_process_virtual_memory_bytes", "Addresses.", [(own, g.virtual_bytes) for own, g in each])
    for what, text in (("size", "open"), ("idle", "idle"), ("active", "in use"), ("waiting", "waited for")):
        yield gauge(
            f"queen_db_pool_{what}", f"Database connections that are {text}.", [(o, g.pool[what]) for o, g in each]
        )
    yield gauge("queen_queue_parked_consumers", "Long polls that wait.", [({"queue": q}, n) for q, n in parked.items()])
    yield gauge("skep_parked_polls", "Long polls that wait, of all queues.", [({}, sum(parked.values()))])
    yield gauge("skep_database_up", "Whether the database answered.", [({}, int(up))])
    if status is not None:
        yield gauge("queen_maintenance_mode_enabled", "Whether pushes are held.", [({}, int(status.push))])
        yield gauge("skep_pop_maintenance_enabled", "Whether pops pause.", [({}, int(status.pop))])
        yield gauge("queen_file_buffer_pending", "Messages held in maintenance.", [({}, status.held)])
        yield gauge("queen_file_buffer_failed", "Held requests that were refused.", [({}, status.refused)])


def _of_requests(counts: Counts) -> Iterable[Metric]:
    routes = [({"method": route.method, "route": route.path}, route) for route in counts.routes.values()]
    statuses = [
        ({**labels, "status": str(status)}, count)
        for labels, route in routes
        for status, count in sorted(route.statuses.items())
    ]
    yield counter("skep_http_requests_total", "Requests by route and status; 499: the client went away.", statuses)
    yield histograms(
        "skep_http_request_seconds",
        "Time to answer; long polls wait in it.",
        [(labels, route.seconds) for labels, route in routes],
    )
    yield histograms(
        "skep_merged_requests",
        "Requests that one database call served.",
        [({"kind": kind}, sizes) for kind, sizes in counts.merged.items()],
    )
    for stage in ("pushed", "popped", "acked"):
        text = f"Messages {stage} by this server."
        yield counter(f"skep_messages_{stage}_total", text, [({}, counts.messages.get(stage, 0))])


def _of_queues(places: list[Place]) -> Iterable[Metric]:
    queues = [place for place in places if not place.group]
    groups = [place for place in places if place.group]
    oldest = {queue.queue: 0.0 for queue in queues}
    for group in groups:
        oldest[group.queue] = max(oldest.get(group.queue, 0.0), group.oldest_seconds)
    yield counter(
        "queen_cluster_push_messages_total", "Messages ever stored.", [(CLUSTER, sum(q.total for q in queues))]
    )
    yield counter("queen_cluster_ack_messages_total", "Messages ever done.", [(CLUSTER, sum(g.total for g in groups))])
    yield gauge("queen_dlq_depth", "Dead letters.", [(CLUSTER, sum(q.dead for q in queues))])
    yield gauge("queen_dlq_depth_by_queue", "Dead letters.", [({"queue": q.queue}, q.dead) for q in queues])
    yield gauge(
        "queen_queue_pop_lag_milliseconds",
        "Age of the oldest message that some group has not done.",
        [({"queue": queue, "stat": "max"}, age * 1000) for queue, age in oldest.items()],
    )
    yield counter("skep_queue_pushed_total", "Messages ever stored.", [({"queue": q.queue}, q.total) for q in queues])
    yield gauge("skep_queue_messages", "Messages that are kept.", [({"queue": q.queue}, q.lag) for q in queues])


def _of_groups(places: list[Place]) -> Iterable[Metric]:
    groups = [({"queue": place.queue, "group": place.group}, place) for place in places if place.group]
    yield counter("skep_group_completed_total", "Messages ever done.", [(of, g.total) for of, g in groups])
    yield gauge("skep_group_lag", "Messages that are not done.", [(of, g.lag) for of, g in groups])
    yield gauge("skep_group_leases", "Leases that are out.", [(of, g.leased) for of, g in groups])
    yield gauge("skep_group_dead_letters", "Dead letters.", [(of, g.dead) for of, g in groups])
    yield gauge(
        "skep_group_oldest_seconds", "Age of the oldest not done.", [(of, g.oldest_seconds) for of, g in groups]
    )
