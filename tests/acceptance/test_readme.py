"""Run the examples of the README, and compare the SQL reference with the functions."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from skep import Skep
from skep.embedded import binaries
from tests.server.environments import missing, queen_python
from tests.server.process import Server, serving

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
EXAMPLE = EXAMPLES / "first_message.sql"


def test_first_message(database_url: str) -> None:
    psql = shutil.which("psql") or str(binaries.find(None, None).bin_dir / "psql")
    command = [psql, "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--dbname", database_url, "--file", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'got {"id": 1}' in done.stdout
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT lag FROM skep.lag('__QUEUE_MODE__')").fetchall() == [(0,)]


def test_first_message_over_http(database_url: str, tmp_path: Path) -> None:
    if not shutil.which("curl"):
        missing("curl is not installed")
    with serving(database_url, tmp_path) as server:
        text = _at(server, "first_message.http.sh").replace("curl ", "curl -sSf ")
        done = subprocess.run(["sh", "-e", "-c", text], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"data":{"id": 1}' in done.stdout


def test_the_http_api(database_url: str, tmp_path: Path) -> None:
    if not shutil.which("curl"):
        missing("curl is not installed")
    with serving(database_url, tmp_path) as server:
        text = _at(server, "http_api.sh").replace("curl ", "curl -sSf ")
        done = subprocess.run(["sh", "-e", "-c", text], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"payload":{"id": 1}' in done.stdout
    assert done.stdout.endswith('{"applied":[true]}')


def test_a_client_of_queen(database_url: str, tmp_path: Path) -> None:
    python = queen_python("2.6.0")
    with serving(database_url, tmp_path) as server:
        command = [python, "-c", _at(server, "queen_client.py")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "got {'id': 1}" in done.stdout


def _at(server: Server, example: str) -> str:
    """Return an example with the address of a test server."""
    return (EXAMPLES / example).read_text().replace("localhost:6632", server.url.removeprefix("http://"))


def test_first_message_in_python(database_url: str) -> None:
    command = [sys.executable, "-W", "error", EXAMPLES / "first_message.py"]
    done = subprocess.run(command, check=False, **_captured(database_url))
    assert (done.returncode, done.stdout) == (0, "got {'id': 1, 'total': 99.5}\n"), done.stderr


def test_first_message_in_a_shell(database_url: str) -> None:
    done = subprocess.run(["sh", "-e", EXAMPLES / "first_message.sh"], check=False, **_captured(database_url))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["payload"] == {"id": 1, "total": 99.5}


def test_handler(database_url: str) -> None:
    """The handler runs until Ctrl-C, and its acks are stored by then."""
    with Skep(database_url) as mq:
        mq.queue("orders").push({"id": 1})
        with subprocess.Popen(
            [sys.executable, "-u", EXAMPLES / "handler.py"], stdout=subprocess.PIPE, **_environment(database_url)
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"billing 1 attempt 1\n"
            process.send_signal(signal.SIGINT)
        assert [lag.lag for lag in mq.lag("billing")] == [0]


def _environment(database_url: str) -> dict[str, Any]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"env": os.environ | {"SKEP_DATABASE_URL": database_url, "PATH": path}}


def _captured(database_url: str) -> dict[str, Any]:
    return {"capture_output": True, "text": True} | _environment(database_url)


def test_the_readme_publishes_with_your_rows(database_url: str) -> None:
    (example,) = re.findall(r"```sql\n(BEGIN;.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (id int, total numeric)")
        connection.execute(example.encode())
        assert connection.execute("SELECT payload FROM skep.pop('invoices')").fetchall() == [({"id": 7},)]


def test_the_reference_names_every_function_and_option(database_url: str) -> None:
    reference = (ROOT / "docs" / "sql.md").read_text()
    public = """
        SELECT DISTINCT p.proname FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace
        AND has_function_privilege('skep_admin', p.oid, 'EXECUTE')
        AND p.proname <> 'refuse' AND p.proname !~ '^(wire_|dash_|_)'
    """
    with psycopg.connect(database_url) as connection:
        functions = [name for (name,) in connection.execute(public).fetchall()]
        ((options,),) = connection.execute("SELECT skep._queue_options()").fetchall()
    assert [name for name in functions if f"{name}(" not in reference] == []
    assert [name for name in options if f"`{name}`" not in reference] == []
