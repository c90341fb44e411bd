"""What the README and `skep serve` show is what works."""

import re
import shutil
import subprocess
from pathlib import Path

import psycopg

from skep.cli.serve import FIRST_MESSAGE
from skep.embedded import binaries

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "first_message.sql"


def test_first_message(database_url: str) -> None:
    psql = shutil.which("psql") or str(binaries.find(None, None).bin_dir / "psql")
    command = [psql, "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--dbname", database_url, "--file", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'got {"id": 1}' in done.stdout
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT lag FROM skep.lag('__QUEUE_MODE__')").fetchall() == [(0,)]


def test_the_readme_shows_the_example() -> None:
    assert EXAMPLE.read_text().strip() in (ROOT / "README.md").read_text()
    assert EXAMPLE.read_text().strip() == FIRST_MESSAGE.strip()


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
        AND has_function_privilege('skep_admin', p.oid, 'EXECUTE') AND p.proname <> 'refuse'
    """
    with psycopg.connect(database_url) as connection:
        functions = [name for (name,) in connection.execute(public).fetchall()]
        ((options,),) = connection.execute("SELECT skep.queue_options()").fetchall()
    assert [name for name in functions if f"{name}(" not in reference] == []
    assert [name for name in options if f"`{name}`" not in reference] == []
