"""Reading the SQL files of the engine."""

from pathlib import Path

import pytest

from skep.engine.sources import Sources, SqlFile, packaged


def write(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(f"SELECT '{name}';")
    return directory


def write_code(directory: Path, *names: str) -> Path:
    return write(directory, "rights.sql", "grants.sql", *names)


def test_the_package_ships_its_sql():
    assert "CREATE SCHEMA skep" in packaged().bootstrap.sql
    assert [migration.number for migration in packaged().migrations] == list(range(1, packaged().version + 1))


def test_files_are_read_in_order(tmp_path: Path):
    migrations = write(tmp_path / "migrations", "0002_add_colour.sql", "0001_create_thing.sql")
    functions = write_code(tmp_path / "sql", "queen/pop.sql", "log/push.sql", "log/ack.sql", "log/notes.md")
    sources = Sources.read(migrations, functions)
    assert [file.name for file in sources.migrations] == ["0001_create_thing", "0002_add_colour"]
    assert [file.name for file in sources.functions] == ["rights", "log/ack", "log/push", "queen/pop", "grants"]
    assert sources.version == 2


@pytest.mark.parametrize(
    ("migrations", "functions", "says"),
    [
        (["0001_one.sql", "0003_three.sql"], [], "without a gap"),
        (["0001_one.sql", "0001_two.sql"], [], "without a gap"),
        (["1_one.sql"], [], "1_one.sql"),
        ([], ["log/10-push.sql"], "10-push.sql"),
    ],
)
def test_misnamed_files_are_refused(tmp_path: Path, migrations: list[str], functions: list[str], says: str):
    with pytest.raises(ValueError, match=says):
        Sources.read(write(tmp_path / "migrations", *migrations), write_code(tmp_path / "sql", *functions))


def test_a_position_is_converted_to_a_line():
    file = SqlFile("log/push", "SELECT 1;\nSELECT 2;\n")
    assert file.locate("1") == "in log/push.sql, line 1"
    assert file.locate("11") == "in log/push.sql, line 2"
    assert file.locate(None) == "in log/push.sql, line ?"


def test_renaming_or_editing_functions_changes_their_checksum(tmp_path: Path):
    none = tmp_path / "none"
    checksums = {
        Sources.read(none, write_code(tmp_path / "a", "log/push.sql")).functions_checksum,
        Sources.read(none, write_code(tmp_path / "b", "log/pull.sql")).functions_checksum,
        Sources.read(none, write_code(tmp_path / "c")).functions_checksum,
    }
    assert len(checksums) == 3
