"""Every example in the README and docs/ is a file, shown in full, that a test runs."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.test_outbox_page import run
from tests.cli.process import SKEP, environment
from tests.server.environments import queen_python
from tests.server.process import serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"examples/([\w.]+)\]\([\w./]+\)[^`]*?\n\n```(?:python|sql|sh)\n(.*?)\n```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_shows_the_example_file(page: Path):
    for name, shown in NAMED.findall(page.read_text()):
        assert shown == (EXAMPLES / name).read_text().strip(), name


def test_every_example_is_shown_and_run():
    pages = "\n".join(page.read_text() for page in PAGES)
    tests = "\n".join(test.read_text() for test in (ROOT / "tests").rglob("test_*.py"))
    names = sorted(path.name for path in EXAMPLES.iterdir() if path.is_file())  # not __pycache__
    assert [name for name in names if f"examples/{name}" not in pages] == []
    assert [name for name in names if name not in tests and f'"{Path(name).stem}' not in tests] == []


def test_the_files_of_the_architecture_page_exist():
    table = (ROOT / "docs/architecture.md").read_text().partition("| stage |")[2].partition("\n\n")[0]
    folders = ("src/skep/engine/sql", "src/skep/client/aio", "src/skep/server", ".")
    named = re.findall(r"`([\w/]+\.(?:sql|py))`", table)
    assert len(named) > 30
    assert [name for name in named if not any((ROOT / folder / name).is_file() for folder in folders)] == []


def test_the_architecture_page_lists_every_table():
    schema = (ROOT / "src/skep/engine/schema.sql").read_text()
    tables = set(re.findall(r"^CREATE (?:UNLOGGED )?TABLE skep\.(\w+)", schema, re.MULTILINE))
    listed = (ROOT / "docs/architecture.md").read_text().partition("## Tables")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", listed, re.MULTILINE)))) == sorted(tables)


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        ("fan_out.py", ["done: 1 of 2", "pending: mail", "every group is done: deleted up to 1"]),
        (
            "schedule.py",
            ["report to reports at 00 past the hour", "paused: True", "schedules: ['report']"],
        ),
        ("replay.py", ["again: [3, 4]", "audit: [0, 1, 2, 3, 4]"]),
        (
            "dead_letters.py",
            ["{'id': 2, 'total': 'a lot'} failed: total is not a number", "to redrive: 1", "redriven: [2]"],
        ),
    ],
)
def test_the_output_of_an_example(database_url: str, example: str, printed: list[str]):
    assert run(example, database_url).splitlines() == printed


def test_delayed(database_url: str):
    until, *lines = run("delayed.py", database_url).splitlines()
    assert until.startswith("delayed until 2")
    assert lines == ["waiting: [{'order': 7}]", "paid, cancelled: True", "remind: {'order': 8}"]
    output = run("delayed.sql", database_url)
    assert (output.count("delayed"), output.count('{"order": 8}'), output.split()[-2:]) == (2, 1, ["t", "t"])


def test_jobs_move_from_a_table(database_url: str):
    """Waiting jobs are moved in order, locked jobs stay in the table, and new jobs become messages."""
    with psycopg.connect(database_url, autocommit=True) as setup, psycopg.connect(database_url) as worker:
        setup.execute("CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY, customer text, payload jsonb)")
        insert = "INSERT INTO jobs (customer, payload) SELECT 'ann', to_jsonb(n) FROM generate_series(%s::int, %s) n"
        setup.execute(insert, (1, 5))
        worker.execute("SELECT FROM jobs ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED")
        assert run("from_skip_locked.sql", database_url).split()[-1] == "1"
        setup.execute(insert, (6, 7))
        popped = setup.execute("SELECT payload FROM skep.pop('jobs', batch => 10, partition => 'ann')").fetchall()
        assert [number for (number,) in popped] == [2, 3, 4, 5, 6, 7]
        assert setup.execute("SELECT payload FROM jobs").fetchall() == [(1,)]


def test_messages_move_from_one_server_to_another(
    database_url: str, new_database: Callable[[str], str], template: str, tmp_path: Path
):
    """The script of docs/from-queen.md, between two Skep servers. A second run stores nothing again."""
    python, new_url = queen_python("2.6.0"), new_database(template)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with (
        serving(database_url, tmp_path / "old") as old,
        serving(new_url, tmp_path / "new") as new,
        psycopg.connect(database_url, autocommit=True) as log,
    ):
        log.execute("SELECT skep.push('orders', to_jsonb(n), partition => 'p' || n % 2) FROM generate_series(1, 50) n")
        for moved in ("50", "50"):
            command = [python, EXAMPLES / "drain_queen.py", old.url, new.url, "orders"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout.split()[-1]) == (0, moved), done.stderr
            log.execute("SELECT skep.seek('__QUEUE_MODE__', 'orders', 'beginning')")
        with psycopg.connect(new_url) as arrived:
            rows = arrived.execute('SELECT payload FROM skep.messages ORDER BY partition_id, "offset"').fetchall()
    assert sorted(number for (number,) in rows) == list(range(1, 51))
    assert [number for (number,) in rows] == [*range(rows[0][0], 51, 2), *range(3 - rows[0][0], 51, 2)]


def test_the_tutorial(database_url: str, tmp_path: Path):
    commands = re.findall(r"^\$ (.*)$", (ROOT / "docs/tutorial.md").read_text(), re.MULTILINE)
    env = environment(SKEP_DATABASE_URL=database_url, PATH=f"{SKEP.parent}:{environment()['PATH']}")
    command = [shutil.which("bash") or "sh", "-euo", "pipefail", "-c", "\n".join(commands)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('{"id": 1, "total": 99.5}') == 3
