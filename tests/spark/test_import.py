"""Import: files become messages, in order, and a second time nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from skep.errors import InvalidArgument
from skep.pipelines import Source, import_files, importing
from skep.spark.database import Database
from tests.spark.work import Work, is_in_order

pytestmark = pytest.mark.timeout(300)


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def payloads(work: Work, partition: str) -> list[Any]:
    return [json.loads(value) for lane, _, value in work.log("q") if lane == partition]


def test_json_lines(work: Work):
    """As they are written, by partition, in order; equal lines are all there; a repetition brings what is new."""
    lines = [json.dumps({"n": n, "to": f"p{n % 3}", "x": "ü\n"}) for n in range(300)] + ['{"to": null, "n": 1.50}'] * 2
    path = write(work.home / "in.jsonl", lines)
    source = Source((path,), "json", partition="to", name="first")
    done = import_files(work.spark, work.url, "q", source)
    assert (done.messages, done.duplicates) == (302, 0)
    assert [payload["n"] for payload in payloads(work, "p1")] == list(range(1, 300, 3))
    assert [value for lane, _, value in work.log("q") if lane == "Default"] == ['{"n": 1.50, "to": null}'] * 2
    write(work.home / "in.jsonl", [*lines, '{"n": 300, "to": "p0"}'])
    done = import_files(work.spark, work.url, "q", source)
    assert (done.messages, done.duplicates) == (1, 302)
    assert payloads(work, "p0")[-1]["n"] == 300
    other = Source((path,), "json", partition="to", name="second")
    assert import_files(work.spark, work.url, "q", other).messages == 303


def test_csv_and_parquet(work: Work):
    """With nulls, types if asked for, an order and transaction ids of one's own."""
    path = write(work.home / "in.csv", ["id,zip,to", "3,0123,a", "1,,a", "2,5,b"])
    import_files(work.spark, work.url, "q", Source((path,), "csv", partition="to", order="id"))
    assert payloads(work, "a") == [{"id": "1", "zip": None, "to": "a"}, {"id": "3", "zip": "0123", "to": "a"}]
    table = str(work.home / "in.parquet")
    work.spark.read.csv(path, header=True, inferSchema=True).write.parquet(table)
    source = Source((table,), "parquet", partition="id", transaction_id="id")
    assert import_files(work.spark, work.url, "q", source).messages == 3
    assert import_files(work.spark, work.url, "q", source).duplicates == 3
    assert payloads(work, "3") == [{"id": 3, "zip": 123, "to": "a"}]
    own = "SELECT transaction_id FROM skep.messages WHERE transaction_id NOT LIKE 'import-%%' ORDER BY 1"
    assert work.sql(own) == [("1",), ("2",), ("3",)]


def test_many_files_in_order(work: Work):
    for number in range(3):
        write(work.home / f"part-{number}.jsonl", [str(number * 2000 + n) for n in range(2000)])
    seen: list[tuple[int, int]] = []
    source = Source((str(work.home / "part-*.jsonl"),), "json")
    import_files(work.spark, work.url, "q", source, watch=lambda done, total: seen.append((done, total)))
    assert payloads(work, "Default") == list(range(6000))
    assert is_in_order(work.log("q"))
    assert {total for _, total in seen} == {6000}


def test_killed_in_the_middle(work: Work, monkeypatch: pytest.MonkeyPatch):
    """What was pushed stays, the next run pushes the rest; nothing comes twice, and the order holds."""
    path = write(work.home / "in.jsonl", [str(n) for n in range(5000)])
    rows = importing._ordered(work.spark, importing._rows(work.spark, source := Source((path,), "json")), source)
    every = rows.collect()
    real, calls = Database.rows, [0]

    def dying(db: Database, statement: Any, /, **arguments: Any) -> Any:
        calls[0] += 1
        found = real(db, statement, **arguments)
        if calls[0] == 3:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Database, "rows", dying)
        with pytest.raises(KeyboardInterrupt):
            list(importing._push(work.url, "q", iter(every)))
    assert len(work.log("q")) == 3000
    done = import_files(work.spark, work.url, "q", source)
    assert (done.messages, done.duplicates) == (2000, 3000)
    assert payloads(work, "Default") == list(range(5000))


def test_what_cannot_be_imported(work: Work):
    path = write(work.home / "bad.jsonl", ['{"a": 1}', '{"a": 1}, {"queue": "other"'])
    with pytest.raises(PySparkException, match="a row is not JSON"):
        import_files(work.spark, work.url, "q", Source((path,), "json"))
    assert work.log("other") == []
    csv = write(work.home / "in.csv", ["a,b", "1,2"])
    with pytest.raises(InvalidArgument, match='no column "c"'):
        import_files(work.spark, work.url, "q", Source((csv,), "csv", partition="c"))
    with pytest.raises(InvalidArgument, match="format is"):
        import_files(work.spark, work.url, "q", Source((csv,), "xml"))  # type: ignore[arg-type]
