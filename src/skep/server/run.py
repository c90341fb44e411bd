"""Runs the application: in this process, or in several that share one socket and are replaced when they die."""

import gc
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

import uvicorn

from skep.config import Config
from skep.errors import ConfigError
from skep.server.http.app import App
from skep.server.http.log import write_log
from skep.server.http.metrics import Board
from skep.server.http.protocol import Protocol
from skep.server.routes import ENDPOINTS

log = logging.getLogger("skep.server")

GRACE = 15  # seconds for what is in flight when the server is asked to stop
BACKLOG = 4096
AGAIN = 1.0  # seconds before a worker that died is replaced


class Server(uvicorn.Server):
    """Ends waiting polls before it waits for connections to close."""

    def __init__(self, app: App, config: Config) -> None:
        self._app = app
        super().__init__(_settings(app, config))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.stop()
        await super().shutdown(sockets)


def _settings(app: App, config: Config) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=list(config.trusted_proxies),
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        backlog=BACKLOG,
    )


def listen(config: Config) -> socket.socket:
    """Open the port, before anything else is started: most often it is this that fails."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except OSError as error:
        hint = "Is another server running? --port chooses another port, --host another address."
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error.strerror}", hint=hint) from None


def run(config: Config, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    if config.workers == 1:
        work(config, listening)
    else:
        with tempfile.TemporaryDirectory(prefix="skep-") as shared:
            Workers(config, listening, Path(shared)).run()


def work(config: Config, listening: socket.socket, shared: Path | None = None) -> None:
    gc.freeze()  # what is loaded stays
    gc.set_threshold(20_000, 20, 50)  # looking for cycles, which requests do not make, took p99 from 13 to 40 ms
    Server(App(config, ENDPOINTS, shared), config).run([listening])


def work_for_parent(config: Config, listening: socket.socket, shared: Path) -> None:
    """Serve as one of several, as long as there is somebody who would replace and stop us."""
    write_log(config)
    threading.Thread(target=_follow_parent, name="skep-parent", daemon=True).start()
    work(config, listening, shared)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class Workers:
    """Processes that accept from one socket. One that dies is replaced; SIGTERM and SIGINT stop them all."""

    def __init__(self, config: Config, listening: socket.socket, shared: Path) -> None:
        self._config = config
        self._shared = shared
        self._listening = listening
        self._processes: list[SpawnProcess] = []
        self._stopping = False

    def run(self) -> None:
        for stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stop, self._stop)
        self._processes = [self._start() for _ in range(self._config.workers)]
        while not self._stopping:
            time.sleep(AGAIN)
            self._replace()
        self._end()  # also one that was started in the moment of the signal
        for process in self._processes:
            process.join()

    def _start(self) -> SpawnProcess:
        context = multiprocessing.get_context("spawn")
        arguments = (self._config, self._listening, self._shared)
        process = context.Process(target=work_for_parent, args=arguments, name="skep-worker")
        process.start()
        return process

    def _replace(self) -> None:
        for place, process in enumerate(self._processes):
            if not process.is_alive() and not self._stopping:
                log.error("worker %s ended with %s; starting another", process.pid, process.exitcode)
                Board(self._shared).bury(process.pid or 0)
                self._processes[place] = self._start()

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._end()

    def _end(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.terminate()
