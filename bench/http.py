"""The server under load from wrk: throughput, latency and CPU. PostgreSQL, server and wrk share the machine."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import psycopg

from bench.fill import fill
from bench.report import Row, progress

PORT = 6699
HERE = Path(__file__).parent / "wrk"
PARTITIONS = 64
PRODUCERS = 32
PAYLOAD = {"id": 1, "customer": "c" * 150, "total": 99.5, "paid": False}
CLOCK_TICKS = 100


@dataclass(frozen=True, slots=True)
class Load:
    """The results of wrk, and the CPU of the processes during its run."""

    messages: float  # a second
    p50: float  # ms
    p99: float
    server_cpu: float  # cores
    database_cpu: float


def measure(url: str, seconds: float) -> list[Row]:
    if shutil.which("wrk") is None:
        progress("http: wrk is not installed (Debian package wrk); skipped")
        return []
    with psycopg.connect(url, autocommit=True) as connection, serving(url) as server:
        rows = [*_pushes(connection, server, seconds), *_pops(connection, server, seconds)]
        rows += [_latency(rate) for rate in (200, 2000)]
        memory = _memory(server.pid)
        return [*rows, Row("resident memory of the server", memory, "MB", "limit of 150", memory / 150, at_most=1)]


@contextmanager
def serving(url: str) -> Generator[subprocess.Popen[bytes]]:
    command = [str(Path(sys.executable).with_name("skep")), "serve", "--database-url", url, "--port", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_until_ready(process)
            yield process
        finally:
            process.terminate()


def _wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"http://localhost:{PORT}/ready"):
            return
        time.sleep(0.1)
    raise RuntimeError("the server ended")


def _pushes(connection: psycopg.Connection, server: subprocess.Popen[bytes], seconds: float) -> list[Row]:
    one = _by_sql(connection, 1, seconds)
    hundred = _by_sql(connection, 100, seconds)
    rows = [
        Row("push 1 by SQL, one connection", one, "msg/s"),
        Row("push 100 by SQL, one connection", hundred, "msg/s"),
    ]
    for batch, connections, reference, bar in ((1, 64, one, 4.0), (10, 64, hundred, None), (100, 16, hundred, 0.7)):
        for ids in (1, 0):
            progress(f"http: push {batch}, {connections} connections")
            load = wrk(server.pid, seconds, connections, "push.lua", batch, PARTITIONS, ids)
            name = f"HTTP push {batch} x {connections} connections{', with ids' if ids else ''}"
            rows += _rows(name, load, f"push {1 if batch == 1 else 100} by SQL", reference, None if ids else bar)
    return rows


def _by_sql(connection: psycopg.Connection, batch: int, seconds: float) -> float:
    """Push the same messages with the bare driver, one call after the other, each with its commit."""
    messages = json.dumps([{"queue": "http", "partition": "p0", "payload": PAYLOAD} for _ in range(batch)])
    pushed, end = 0, time.perf_counter() + seconds
    start = time.perf_counter()
    while time.perf_counter() < end:
        connection.execute("SELECT * FROM skep.push(%s::jsonb)", [messages]).fetchall()
        pushed += batch
    return pushed / (time.perf_counter() - start)


def _rows(name: str, load: Load, reference: str, other: float, at_least: float | None) -> list[Row]:
    return [
        Row(name, load.messages, "msg/s", reference, load.messages / other, at_least),
        Row(f"{name}: p50, p99", load.p50, f"ms, {load.p99:.1f} ms"),
        Row(f"{name}: CPU of server, PostgreSQL", load.server_cpu, f"cores, {load.database_cpu:.2f} cores"),
    ]


def _pops(connection: psycopg.Connection, server: subprocess.Popen[bytes], seconds: float) -> list[Row]:
    connection.execute("SELECT skep.delete_queue('http')")
    fill(connection, "http", int(400_000 * max(seconds, 1)), partitions=PARTITIONS, prefix="p")
    rows: list[Row] = []
    for batch, connections, ack in ((100, 16, 0), (1, 64, 1)):
        progress(f"http: pop {batch}, {connections} connections")
        load = wrk(server.pid, seconds, connections, "pop.lua", batch, f"g{batch}", ack)
        name = f"HTTP pop {batch}{' + ack' if ack else ', auto ack'} x {connections} connections"
        rows += _rows(name, load, "", load.messages, None)
    return rows


def wrk(server: int, seconds: float, connections: int, script: str, *arguments: object) -> Load:
    before = _cpu(server)
    start = time.perf_counter()
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(int(seconds), 1)}s", "--latency", "-s", str(HERE / script)]
    url = f"http://localhost:{PORT}"
    text = subprocess.run(
        [*command, url, "--", *map(str, arguments)], check=True, capture_output=True, text=True
    ).stdout
    elapsed = time.perf_counter() - start
    used = [after - earlier for after, earlier in zip(_cpu(server), before, strict=True)]
    delivered = re.search(r"delivered (\d+) acked (\d+) bad (\d+)", text)
    requests = int(_find(r"(\d+) requests in", text))
    per_second = requests / float(_find(r"requests in ([\d.]+)s", text))
    if delivered is None:
        messages = per_second * int(str(arguments[0]))
    else:
        if int(delivered[3]):
            progress(f"http: {delivered[3]} failed responses")
        messages = per_second * int(delivered[2 if arguments[2] == 1 else 1]) / requests
    return Load(messages, _milliseconds("50%", text), _milliseconds("99%", text), used[0] / elapsed, used[1] / elapsed)


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"unexpected output of wrk: {text}")
    return found[1]


def _milliseconds(percentile: str, text: str) -> float:
    value, unit = re.search(rf"{percentile}\s+([\d.]+)(us|ms|s)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return float(value) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def _cpu(server: int) -> tuple[float, float]:
    """Return the CPU seconds of the server, and of all PostgreSQL processes."""
    used = {"server": 0.0, "postgres": 0.0}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            ticks = sum(map(int, rest.split()[11:13])) / CLOCK_TICKS
            if int(entry.name) == server:
                used["server"] += ticks
            elif name.endswith("(postgres"):
                used["postgres"] += ticks
    return used["server"], used["postgres"]


def _memory(pid: int) -> float:
    return int(_find(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())) / 1024


def _latency(rate: int) -> Row:
    progress(f"http: latency at {rate} msg/s")
    waits = asyncio.run(_deliver(rate))
    p50, p99 = median(waits) * 1000, quantiles(waits, n=100)[98] * 1000
    return Row(f"push to long poll at {rate} msg/s: p50, p99", p50, f"ms, {p99:.1f} ms", "8 ms", p50 / 8, at_most=1)


async def _deliver(rate: int, seconds: float = 5, consumers: int = 16) -> list[float]:
    """Push at a constant rate, each message with its time, while consumers wait with long polls."""
    waits: list[float] = []
    produced = asyncio.Event()
    readers = [asyncio.create_task(_consume(waits, produced)) for _ in range(consumers)]
    await asyncio.sleep(0.5)
    stop = time.perf_counter() + seconds
    await asyncio.gather(*(_produce(rate / PRODUCERS, stop, number) for number in range(PRODUCERS)))
    produced.set()
    await asyncio.gather(*readers)
    return waits


async def _produce(rate: float, stop: float, number: int) -> None:
    reader, writer = await asyncio.open_connection("localhost", PORT)
    due = time.perf_counter() + number / rate / PRODUCERS
    sent = 0
    while due < stop:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        item = {"queue": "live", "partition": f"p{(number + sent) % PARTITIONS}", "payload": time.perf_counter()}
        await request(reader, writer, "POST", "/api/v1/push", json.dumps({"items": [item]}))
        due += 1 / rate
        sent += 1
    writer.close()


async def _consume(waits: list[float], produced: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("localhost", PORT)
    while not produced.is_set():
        path = "/api/v1/pop/queue/live?autoAck=true&batch=100&wait=true&timeout=500"
        response = json.loads(await request(reader, writer, "GET", path))
        now = time.perf_counter()
        waits += [now - message["data"] for message in response["messages"]]
    writer.close()


async def request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: str = ""
) -> bytes:
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(_find(r"content-length: (\d+)", head.decode())))
