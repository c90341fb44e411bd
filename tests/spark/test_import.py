"""Import: the rows of files are pushed, in order, and not again by a second import."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from skep.errors import InvalidArgument
from skep.pipelines import ImportSource, import_files, importing
from skep.spark.database import SparkDatabase
from tests.spark.work import Work, is_in_order

pytestmark = pytest.mark.timeout(300)


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def payloads(work: Work, partition: str) -> list[Any]:
    return [json.loads(value) for name, _, value in work.log("q") if name == partition]


def test_json_lines(work: Work):
    """Unchanged, by partition, in order; equal lines are all pushed; a second import pushes only new lines."""
    lines = [json.dumps({"n": n, "to": f"p{n % 3}", "x": "ü\n"}) for n in range(300)] + ['{"to": null, "n": 1.50}'] * 2
    path = write(work.home / "in.jsonl", lines)
    source = ImportSource((path,), "json", partition="to", name="first")
    done = import_files(work.spark, work.url, "q", source)
    assert (done.messages, done.duplicates) == (302, 0)
    assert [payload["n"] for payload in payloads(work, "p1")] == list(range(1, 300, 3))
    assert [value for name, _, value in work.log("q") if name == "Default"] == ['{"n": 1.50, "to": null}'] * 2
    write(work.home / "in.jsonl", [*lines, '{"n": 300, "to": "p0"}'])
    done = import_files(work.spark, work.url, "q", source)
    assert (done.messages, done.duplicates) == (1, 302)
    assert payloads(work, "p0")[-1]["n"] == 300
    other = ImportSource((path,), "json", partition="to", name="second")
    assert import_files(work.spark, work.url, "q", other).messages == 303


def test_csv_and_parquet(work: Work):
    """With nulls, inferred types, an order, and transaction ids from a column."""
    path = write(work.home / "in.csv", ["id,zip,to", "3,0123,a", "1,,a", "2,5,b"])
    import_files(work.spark, work.url, "q", ImportSource((path,), "csv", partition="to", order="id"))
    assert payloads(work, "a") == [{"id": "1", "zip": None, "to": "a"}, {"id": "3", "zip": "0123", "to": "a"}]
    table = str(work.home / "in.parquet")
    work.spark.read.csv(path, header=True, inferSchema=True).write.parquet(table)
    source = ImportSource((table,), "parquet", partition="id", transaction_id="id")
    assert import_files(work.spark, work.url, "q", source).messages == 3
    assert import_files(work.spark, work.url, "q", source).duplicates == 3
    assert payloads(work, "3") == [{"id": 3, "zip": 123, "to": "a"}]
    own = "SELECT transaction_id FROM skep.messages WHERE transaction_id NOT LIKE 'import-%%' ORDER BY 1"
    assert work.sql(own) == [("1",), ("2",), ("3",)]


def test_many_files_in_order(work: Work):
    for number in range(3):
        write(work.home / f"part-{number}.jsonl", [str(number * 2000 + n) for n in range(2000)])
    seen: list[tuple[int, int]] = []
    source = ImportSource((str(work.home / "part-*.jsonl"),), "json")
    import_files(work.spark, work.url, "q", source, on_progress=lambda done, total: seen.append((done, total)))
    assert payloads(work, "Default") == list(range(6000))
    assert is_in_order(work.log("q"))
    assert {total for _, total in seen} == {6000}


def test_killed_in_the_middle(work: Work, monkeypatch: pytest.MonkeyPatch):
    """The next run pushes the rest, each row once, in order."""
    path = write(work.home / "in.jsonl", [str(n) for n in range(5000)])
    rows = importing._ordered(work.spark, importing._rows(work.spark, source := ImportSource((path,), "json")), source)
    every = rows.collect()
    real, calls = SparkDatabase.rows, [0]

    def dying(db: SparkDatabase, statement: Any, /, **arguments: Any) -> Any:
        calls[0] += 1
        found = real(db, statement, **arguments)
        if calls[0] == 3:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(SparkDatabase, "rows", dying)
        with pytest.raises(KeyboardInterrupt):
            list(importing._push(work.url, "q", iter(every)))
    assert len(work.log("q")) == 3000
    done = import_files(work.spark, work.url, "q", source)
    assert (done.messages, done.duplicates) == (2000, 3000)
    assert payloads(work, "Default") == list(range(5000))


def test_wrong_sources(work: Work):
    path = write(work.home / "bad.jsonl", ['{"a": 1}', '{"a": 1}, {"queue": "other"'])
    with pytest.raises(PySparkException, match="a row is not JSON"):
        import_files(work.spark, work.url, "q", ImportSource((path,), "json"))
    assert work.log("other") == []
    csv = write(work.home / "in.csv", ["a,b", "1,2"])
    with pytest.raises(InvalidArgument, match='column "c" does not exist'):
        import_files(work.spark, work.url, "q", ImportSource((csv,), "csv", partition="c"))
    with pytest.raises(InvalidArgument, match="format must be one of"):
        import_files(work.spark, work.url, "q", ImportSource((csv,), "xml"))  # type: ignore[arg-type]
