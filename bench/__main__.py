"""`make bench`: everything on a fresh embedded PostgreSQL with durable commits, as one table."""

import argparse
import sys
import tempfile
from pathlib import Path

from bench import held, http, latency, overhead, peers, retention, throughput, wal
from bench.contestants import CONTESTANTS
from bench.report import show
from skep.embedded import start
from skep.engine.install import install

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min", "max_connections": "50"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument(
        "--only", choices=("throughput", "latency", "wal", "overhead", "retention", "peers", "http", "held")
    )
    parser.add_argument(
        "--seconds", type=float, default=2, help="length of one slice of a round of throughput, retention or peers"
    )
    parser.add_argument(
        "--messages", type=int, default=10_000_000, help="size of the large queue of the latency benchmark"
    )
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), help="whom peers compares"
    )
    parser.add_argument("--held", type=float, default=300, help="seconds that the transaction of held stays open")
    parser.add_argument(
        "--plot", type=Path, default=Path("bench-out/peers.svg"), help="where peers draws: .svg, .png or .pdf"
    )
    arguments = parser.parse_args()
    measures = {
        "throughput": lambda url: throughput.measure(url, arguments.seconds),
        "latency": lambda url: latency.measure(url, arguments.messages),
        "wal": wal.measure,
        "overhead": overhead.measure,
        "retention": lambda url: retention.measure(url, arguments.seconds),
        "held": lambda url: held.measure(url, arguments.held),
        "http": lambda url: http.measure(url, arguments.seconds),
        "peers": lambda url: peers.measure(url, arguments.seconds, arguments.contestants, arguments.plot),
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
    if "peers" in chosen:
        print(f"plot: {arguments.plot}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
