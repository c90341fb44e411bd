"""Numbers: they are right, they never go back, they cost next to nothing, and the board of Grafana knows them."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from skep.server.http.app import App
from skep.server.http.metrics import SECONDS, Board, Meter
from tests.server.serving import Client, in_thread, serving, until

__all__ = ["in_thread"]
SKEP = Path(sys.executable).with_name("skep")
DEPLOY = Path(__file__).parents[2] / "deploy"
POOL = {"size": 1, "idle": 1, "active": 0, "waiting": 0}


@pytest.fixture
def server(database_url: str) -> Generator[Client]:
    with serving(database_url) as running:
        yield running


def samples(client: Client) -> dict[str, float]:
    """Return what Prometheus would read, as `name{label="value"}`."""
    answer = client.get("/metrics/prometheus")
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def sample_now(db_url: str) -> None:
    """Take a sample now; the last one may be younger than the server finds worth another."""
    with psycopg.connect(db_url, autocommit=True) as db:
        db.execute("SELECT skep.sample(interval '-1 day')")


def test_requests_are_counted_by_route_and_status(server: Client):
    server.push("q", 1)
    server.push("q", 2)
    server.post("/api/v1/push", b"nonsense")
    server.get("/api/v1/pop/queue/some-queue")
    server.get("/no/such/route")
    seen = samples(server)
    assert seen['skep_http_requests_total{method="POST",route="/api/v1/push",status="201"}'] == 2
    assert seen['skep_http_requests_total{method="POST",route="/api/v1/push",status="400"}'] == 1
    assert seen['skep_http_requests_total{method="GET",route="/api/v1/pop/queue/{queue}",status="200"}'] == 1
    assert seen['skep_http_requests_total{method="",route="",status="404"}'] == 1
    assert not any("some-queue" in name or "such" in name for name in seen), "whoever calls cannot fill the memory"
    assert seen['skep_http_request_seconds_count{method="POST",route="/api/v1/push"}'] == 3
    assert seen['skep_http_request_seconds_bucket{le="+Inf",method="POST",route="/api/v1/push"}'] == 3
    assert 0 < seen['skep_http_request_seconds_sum{method="POST",route="/api/v1/push"}'] < 30


def test_messages_are_counted(server: Client):
    server.push("q", 1, 2, 3)
    server.push("q", "once", transactionId="t")
    server.push("q", "once", transactionId="t")
    messages = server.pop("q", batch=3)
    acks = [{"transactionId": m["transactionId"], "partitionId": m["partitionId"]} for m in messages]
    server.post("/api/v1/ack/batch", {"acknowledgments": [*acks, {"transactionId": "x", "partitionId": "y"}]})
    seen = samples(server)
    assert [seen[f"skep_messages_{stage}_total"] for stage in ("pushed", "popped", "acked")] == [4, 3, 3]
    assert seen['skep_merged_requests_count{kind="push"}'] == 3
    assert seen['skep_merged_requests_sum{kind="ack"}'] == 1
    shown = server.get("/metrics").json
    assert shown["messages"] == {"pushed": 4, "popped": 3, "acked": 3}
    assert shown["requests"]["total"] >= 5
    assert set(shown) == {"uptime", "requests", "messages", "database", "memory", "cpu"}
    assert set(shown["database"]) == {"poolSize", "idleConnections", "waitingRequests"}


def test_a_transaction_and_a_stream_count_as_well(server: Client):
    server.push("q", 1, 2)
    first, second = server.pop("q", batch=2)
    ack = {"type": "ack", "transactionId": first["transactionId"], "partitionId": first["partitionId"]}
    server.post("/api/v1/transaction", {"operations": [ack, {"type": "push", "items": [{"queue": "r"}]}]})
    query = server.post("/streams/v1/queries", {"name": "n", "source_queue": "q", "config_hash": "h"}).json["query_id"]
    step = {"query_id": query, "partition_id": second["partitionId"], "push_items": [{"queue": "r"}]}
    done = server.post("/streams/v1/cycle", step | {"ack": {"transactionId": second["transactionId"]}}).json
    assert done["success"]
    seen = samples(server)
    assert [seen[f"skep_messages_{stage}_total"] for stage in ("pushed", "popped", "acked")] == [4, 2, 2]


def test_queues_and_groups(server: Client, database_url: str):
    server.push("q", *range(5))
    server.push("other", 1)
    (message, *_) = server.pop("q", consumerGroup="g", batch=2, autoAck="true")
    held = server.pop("q", consumerGroup="g", batch=1)
    dead = {"transactionId": held[0]["transactionId"], "partitionId": message["partitionId"], "status": "dlq"}
    server.post("/api/v1/ack", dead | {"consumerGroup": "g"})
    sample_now(database_url)
    seen = samples(server)
    assert seen['skep_queue_messages{queue="q"}'] == seen['skep_queue_pushed_total{queue="q"}'] == 5
    assert seen['skep_group_lag{group="g",queue="q"}'] == 2
    assert seen['skep_group_completed_total{group="g",queue="q"}'] == 3
    assert seen['skep_group_dead_letters{group="g",queue="q"}'] == 1
    assert 0 < seen['skep_group_oldest_seconds{group="g",queue="q"}'] < 60
    assert seen['queen_dlq_depth{scope="cluster"}'] == seen['queen_dlq_depth_by_queue{queue="q"}'] == 1
    assert seen['queen_cluster_push_messages_total{scope="cluster"}'] == 6
    assert seen['queen_queue_pop_lag_milliseconds{queue="q",stat="max"}'] > 0
    assert seen["skep_database_up"] == 1


def test_names_in_labels_are_escaped(server: Client, database_url: str):
    server.push('a "b" \\ c\nd', 1)
    sample_now(database_url)
    assert "skep_queue_messages" in server.get("/metrics/prometheus").body.decode()
    assert any("d" in name for name in samples(server) if name.startswith("skep_queue_messages"))


def test_parked_polls_and_the_pool(server: Client, in_thread: Callable[..., Any]):
    polls = [in_thread(server.pop, "q", wait="true", timeout=20_000) for _ in range(2)]
    seen = until(lambda: (now := samples(server)).get("skep_parked_polls") == 2 and now)
    assert seen['queen_queue_parked_consumers{queue="q"}'] == 2
    assert sum(value for name, value in seen.items() if name.startswith("queen_db_pool_size")) >= 1
    server.push("q", 1, partition="a")
    server.push("q", 2, partition="b")
    assert sorted(poll.result()[0]["data"] for poll in polls) == [1, 2]
    assert samples(server)["skep_parked_polls"] == 0


def test_maintenance_is_shown(server: Client):
    until(lambda: samples(server).get("queen_maintenance_mode_enabled") == 0)
    server.post("/api/v1/system/maintenance", {"enabled": True})
    server.push("q", 1)
    server.get("/api/v1/system/maintenance")
    seen = samples(server)
    assert (seen["queen_maintenance_mode_enabled"], seen["queen_file_buffer_pending"]) == (1, 1)


def test_without_the_database_the_process_still_tells(postgres_url: str):
    with serving("postgresql://nobody@127.0.0.1:1/nothing") as server:
        assert server.get("/metrics").status == 200
        seen = samples(server)
        assert seen["skep_database_up"] == 0
        assert any(name.startswith("queen_process_resident_memory_bytes") for name in seen)


def test_a_client_that_goes_away_is_counted(server: Client):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/api/v1/pop/queue/q?wait=true&timeout=20000")
    until(server.parked)
    connection.close()
    gone = 'skep_http_requests_total{method="GET",route="/api/v1/pop/queue/{queue}",status="499"}'
    until(lambda: samples(server).get(gone) == 1)


def test_counting_a_request_costs_less_than_3_microseconds():
    meter, rounds = Meter(), 20_000
    best = min(_time(meter, rounds) for _ in range(5))
    assert best / rounds < 3e-6
    assert meter.counts.requests == 5 * rounds


def _time(meter: Meter, rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        meter.request("GET", "/api/v1/pop/queue/{queue}", 200, 0.004)
    return time.perf_counter() - start


def test_bounds_belong_to_their_bucket():
    meter = Meter()
    for seconds in (0.0, 0.001, 0.0011, 60.0, 61.0):
        meter.request("GET", "/x", 200, seconds)
    buckets = meter.counts.routes["GET /x"].seconds.buckets
    assert (buckets[0], buckets[1], buckets[-2], buckets[-1]) == (2, 1, 1, 1)
    assert len(buckets) == len(SECONDS) + 1


def test_processes_add_up_and_the_dead_still_count(tmp_path: Path):
    board = Board(tmp_path)
    for pid, count in ((11, 3), (12, 4)):
        meter = Meter()
        for _ in range(count):
            meter.request("GET", "/x", 200, 0.01)
        meter.messages("pushed", count)
        meter.merged("push")(2)
        worker = meter.read(POOL, {"q": 1})
        worker.pid = pid
        board.write(worker)
    workers, counts = board.read()
    assert [worker.pid for worker in workers] == [11, 12]
    assert (counts.requests, counts.messages, counts.merged["push"].total) == (7, {"pushed": 7}, 4)
    board.bury(11)
    workers, counts = board.read()
    assert [worker.pid for worker in workers] == [12]
    assert (counts.requests, counts.messages) == (7, {"pushed": 7})
    board.bury(12)
    board.bury(12)
    assert board.read()[1].requests == 7


def test_a_process_buried_but_not_yet_removed_counts_once(tmp_path: Path):
    board, meter = Board(tmp_path), Meter()
    meter.request("GET", "/x", 200, 0.01)
    worker = meter.read(POOL, {})
    board.write(worker)
    board.bury(worker.pid)
    board.write(worker)
    assert board.read()[1].requests == 1


def test_the_board_of_grafana_knows_the_names(server: Client, database_url: str):
    server.push("q", 1)
    server.pop("q", consumerGroup="g")
    server.post("/api/v1/ack/batch", {"acknowledgments": []})
    sample_now(database_url)
    families = re.findall(r"^# TYPE (\S+)", server.get("/metrics/prometheus").body.decode(), re.MULTILINE)
    names = {name.partition("{")[0] for name in samples(server)} | set(families)
    board = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    used = {name for query in queries for name in re.findall(r"\b(?:queen|skep)_[a-z_]+", query)}
    assert len(used) > 10
    assert used <= names


@pytest.fixture
def workers(database_url: str) -> Generator[Client]:
    """A server of two processes, as `skep serve` runs them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [SKEP, "serve", "--database-url", database_url, "--port", str(port), "--workers", "2"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = Client(port, cast("App", None))
    try:
        until(lambda: is_up(client), 30)
        yield client
    finally:
        process.terminate()
        process.wait(30)


def is_up(client: Client) -> bool:
    try:
        return client.get("/health").status == 200
    except OSError:
        return False


def pids(seen: dict[str, float]) -> set[int]:
    return {int(found[1]) for name in seen if (found := re.match(r'queen_uptime_seconds{.*pid="(\d+)"', name))}


def test_whichever_process_is_asked_answers_for_all(workers: Client):
    """And when one of them is killed, no counter goes back."""
    pushes = 'skep_http_requests_total{method="POST",route="/api/v1/push",status="201"}'
    for number in range(40):
        workers.push("q", number)
    seen = until(lambda: (now := samples(workers)).get(pushes) == 40 and len(pids(now)) == 2 and now)
    assert seen["skep_messages_pushed_total"] == 40
    doomed, other = pids(seen)
    os.kill(doomed, signal.SIGKILL)
    counted: list[float] = []

    def replaced() -> bool:
        now = samples(workers)
        counted.append(now[pushes])
        return len(pids(now) - {doomed, other}) == 1 and doomed not in pids(now)

    until(replaced)
    assert set(counted) == {40}
