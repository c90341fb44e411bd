"""`skep serve`: run the server and upkeep on a database until Ctrl-C or SIGTERM."""

import shlex
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skep.cli.options import (
    Auth,
    DatabaseUrl,
    DataDir,
    DelayedInterval,
    DetectionInterval,
    HeldPushInterval,
    Host,
    LeaseExpiryInterval,
    LogFormat,
    LogLevel,
    OutboxInterval,
    Port,
    PruningInterval,
    RetentionInterval,
    SamplingInterval,
    ScheduleInterval,
    TlsCert,
    TlsKey,
    Workers,
)
from skep.config import Config, display_database_url
from skep.errors import EmbeddedError

if TYPE_CHECKING:
    from rich.console import Console

FIRST_MESSAGE = """\
curl {url}/api/v1/push -d '{{"items": [{{"queue": "orders", "payload": {{"id": 1}}}}]}}'
curl '{url}/api/v1/pop/queue/orders?autoAck=true'"""


def serve(
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    auth: Auth = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    lease_expiry_interval: LeaseExpiryInterval = None,
    detection_interval: DetectionInterval = None,
    retention_interval: RetentionInterval = None,
    sampling_interval: SamplingInterval = None,
    pruning_interval: PruningInterval = None,
    held_push_interval: HeldPushInterval = None,
    outbox_interval: OutboxInterval = None,
    delayed_interval: DelayedInterval = None,
    schedule_interval: ScheduleInterval = None,
) -> None:
    """Run the server on an embedded PostgreSQL or on yours. Other settings are SKEP_… environment variables."""
    _serve(
        Config.load(
            database_url=database_url,
            data_dir=data_dir,
            host=host,
            port=port,
            workers=workers,
            auth=auth,
            tls_cert=tls_cert,
            tls_key=tls_key,
            log_format=log_format,
            log_level=log_level,
            lease_expiry_interval=lease_expiry_interval,
            detection_interval=detection_interval,
            retention_interval=retention_interval,
            sampling_interval=sampling_interval,
            pruning_interval=pruning_interval,
            held_push_interval=held_push_interval,
            outbox_interval=outbox_interval,
            delayed_interval=delayed_interval,
            schedule_interval=schedule_interval,
        )
    )


def _serve(config: Config) -> None:
    from rich.console import Console

    from skep.cli.report import describe
    from skep.cli.upkeep import in_background
    from skep.engine.install import install
    from skep.server.http.log import write_log
    from skep.server.run import listen, run

    console = Console(highlight=False, soft_wrap=True)
    for stop in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: shells start background jobs with it ignored
        signal.signal(stop, signal.default_int_handler)
    write_log(config)
    try:
        with listen(config) as listening, _database(config) as (url, data_dir):
            done = describe(install(url, data_dir=data_dir))
            port = listening.getsockname()[1]
            _welcome(console, config, port, display_database_url(url) if config.database_url else url, done)
            with in_background(config, url):
                run(replace(config, database_url=url), listening)
    except KeyboardInterrupt:
        pass
    console.print("Skep has stopped.")


@contextmanager
def _database(config: Config) -> Generator[tuple[str, Path | None]]:
    """Yield the URL of the database, and the data folder if it is the embedded one."""
    from skep import embedded

    if config.database_url is not None:
        yield config.database_url, None
        return
    with embedded.start(config.data_dir) as server:
        yield server.url, server.data_dir


def _welcome(console: "Console", config: Config, port: int, url: str, done: str) -> None:
    """Print how to use the server. Commands are outside of the frame, so that they can be copied as they are."""
    from rich.panel import Panel

    scheme = "https" if config.tls_cert else "http"
    here = "localhost" if config.host in ("127.0.0.1", "0.0.0.0", "::", "::1") else config.host  # noqa: S104
    address = f"{scheme}://{here}:{port}"
    console.print(Panel(f"{address}    {done}", title="Skep is ready", expand=False, padding=(1, 2)))
    console.print("A first message over HTTP:", style="bold")
    for line in FIRST_MESSAGE.format(url=address).splitlines():
        console.print(f"  {line}", markup=False)
    console.print("In psql:", style="bold")
    console.print(f"  {_psql(url)}", markup=False)
    console.print("From Python and other PostgreSQL clients:", style="bold")
    console.print(f"  {url}", markup=False)
    console.print("Ctrl-C stops the server.", style="dim")


def _psql(url: str) -> str:
    """Return a command that opens the database: psql from PATH, the embedded psql, or a line of Python."""
    from skep.embedded import binaries

    if shutil.which("psql"):
        return shlex.join(["psql", url])
    with suppress(EmbeddedError):
        bundled = binaries.find(None, None).bin_dir / "psql"
        if bundled.exists():
            return shlex.join([str(bundled), url])
    code = f"import psycopg; print(*psycopg.connect({url!r}, autocommit=True).execute(input('SQL: ')), sep='\\n')"
    return shlex.join([sys.executable, "-c", code])
