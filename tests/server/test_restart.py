"""A published Queen client that waits for messages while the server is restarted."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

from tests.server.conftest import PROGRAMS, SECONDS_TO_TALK
from tests.server.environments import queen_python
from tests.server.process import free_port, serving


def test_a_consumer_lives_through_a_restart(version: str, database_url: str, tmp_path: Path):
    port, errors = free_port(), tmp_path / "client.log"
    with consumer(version, f"http://127.0.0.1:{port}", errors) as client:
        with serving(database_url, tmp_path, port=port):
            say(client, "it is there")
            assert client.stdout is not None
            assert "handled one\n" in iter(client.stdout.readline, ""), errors.read_text()
        with serving(database_url, tmp_path, port=port):
            said, _ = client.communicate("it is there again\n", timeout=SECONDS_TO_TALK)
    assert client.returncode == 0, errors.read_text()
    assert json.loads(said.splitlines()[-1]) == {"handled": ["before", "after"]}


@contextmanager
def consumer(version: str, url: str, errors: Path) -> Generator[Popen[str]]:
    command = [str(queen_python(version)), str(PROGRAMS / "steady.py"), "steady", url]
    with errors.open("w") as log, Popen(command, stdin=PIPE, stdout=PIPE, stderr=log, text=True) as client:
        try:
            yield client
        finally:
            client.kill()  # it has ended by itself, or something went wrong


def say(client: Popen[str], line: str) -> None:
    assert client.stdin is not None
    client.stdin.write(f"{line}\n")
    client.stdin.flush()
