"""`make bench`: run all benchmarks on a new embedded PostgreSQL with durable commits, and print one table."""

import argparse
import sys
import tempfile
from pathlib import Path

from bench import dashboards, growth, held, http, latency, libraries, overhead, peers, retention, throughput, wal
from bench.contestants import CONTESTANTS
from bench.report import Row, show
from skep.embedded import start
from skep.engine.install import install

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min", "max_connections": "50"}
MEASURES = (
    "throughput",
    "latency",
    "wal",
    "overhead",
    "retention",
    "held",
    "http",
    "dashboards",
    "spark",
    "libraries",
    "peers",
    "growth",
)


def _spark(url: str, seconds: float, messages: int) -> list[Row]:
    from bench import spark  # noqa: PLC0415  # every worker process imports this module, and pyspark is slow to import

    return spark.measure(url, seconds, messages)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--only", choices=MEASURES)
    parser.add_argument(
        "--seconds",
        type=float,
        default=2,
        help="seconds of one measurement of throughput, retention or libraries",
    )
    parser.add_argument("--messages", type=int, default=10_000_000, help="messages in the large queue of latency")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), help="libraries to compare"
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds of peers; it shows their medians")
    parser.add_argument("--held", type=float, default=300, help="seconds for which the transaction of held stays open")
    parser.add_argument("--plots", type=Path, default=Path("bench-out"), help="directory of the plots")
    arguments = parser.parse_args()
    measures = {
        "throughput": lambda url: throughput.measure(url, arguments.seconds),
        "latency": lambda url: latency.measure(url, arguments.messages),
        "wal": wal.measure,
        "overhead": overhead.measure,
        "retention": lambda url: retention.measure(url, arguments.seconds),
        "held": lambda url: held.measure(url, arguments.held),
        "http": lambda url: http.measure(url, arguments.seconds),
        "spark": lambda url: _spark(url, arguments.seconds, min(arguments.messages, 1_000_000)),
        "dashboards": lambda url: dashboards.measure(url, arguments.seconds),
        "libraries": lambda url: libraries.measure(
            url, arguments.seconds, arguments.contestants, arguments.plots / "libraries.svg"
        ),
        "peers": lambda _url: peers.measure(arguments.plots / "peers.svg", arguments.rounds),  # starts its own servers
        "growth": lambda _url: growth.measure(),
    }
    chosen = [arguments.only] if arguments.only else list(measures)
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as directory:
        Path(directory).chmod(0o755)
        server = start(Path(directory) / "data", settings=SETTINGS)
        try:
            install(server.url)
            rows = [row for name in chosen for row in measures[name](server.url)]
        finally:
            server.stop()
    met = show(rows)
    for name in chosen:
        if name in ("libraries", "peers"):
            print(f"plot: {arguments.plots / name}.svg")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
