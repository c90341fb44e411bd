"""A server for the module, and conversations that real Queen clients have with it."""

import functools
import json
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.server.environments import PYTHON_VERSIONS, queen_python
from tests.server.process import Server, serving
from tests.server.serving import client, in_thread  # noqa: F401

PROGRAMS = Path(__file__).parent / "clients"
SECONDS_TO_TALK = 60

Seen = dict[str, Any]
Conversation = Callable[..., Seen]


@pytest.fixture(scope="module")
def server(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with serving(module_database_url, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module", params=PYTHON_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each published client in turn."""
    return request.param


@pytest.fixture(scope="module")
def queen(version: str, server: Server) -> Conversation:
    """Have the conversation of this name once, in a process of the client's own; return what it saw."""
    python = queen_python(version)

    def converse(topic: str, *servers: Server) -> Seen:
        ours = f"{topic}-{version.replace('.', '-')}"  # queues of its own: both versions talk to one server
        return talk((str(python), str(PROGRAMS / f"{topic}.py"), ours), servers or (server,))

    return converse


def talk(command: tuple[str, ...], servers: tuple[Server, ...]) -> Seen:
    """Return the last line of what a program prints, read as JSON; the clients print as well."""
    done = _run_once((*command, *(server.url for server in servers)))
    logs = "\n".join(server.last_words() for server in servers)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nThe server wrote:\n{logs}"
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def _run_once(command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_TO_TALK)
