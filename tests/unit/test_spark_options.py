"""The options of source and sink, and the errors for wrong ones; positions and their JSON."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skep.errors import ConfigError, Conflict
from skep.spark.options import SINK, SOURCE, QueueScope, include_headers, sink_options, source_options
from skep.spark.position import Cut, Position

URL = "postgresql://somewhere/db"
PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKEP_DATABASE_URL", raising=False)


def source(*, streaming: bool = True, **given: str):
    return source_options({"url": URL, "subscribe": "orders", **given}, streaming=streaming)


def test_defaults():
    assert source().start == "latest"
    assert source(streaming=False).start == "earliest"
    assert source().scope == QueueScope(("orders",))
    assert source().fail_on_data_loss


def test_everything_at_once():
    options = source(
        SUBSCRIBE="a, b ,", startingTimestamp="2026-01-31T12:00:00Z", maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="5", maxTriggerDelay="90s", minPartitions="3", maxRecordsPerPartition="7",
        failOnDataLoss="false",
        includeHeaders="no", groupId="g", checkpointLocation="/tmp",
    )  # fmt: skip
    assert options.scope.queues == ("a", "b")
    assert options.start == {"timestamp": "2026-01-31T12:00:00+00:00"}
    assert (options.max_rows, options.min_rows, options.max_delay) == (10, 5, timedelta(seconds=90))
    assert (options.min_tasks, options.max_rows_per_task, options.group) == (3, 7, "g")
    assert not options.fail_on_data_loss
    assert not options.headers


def test_earliest_is_the_beginning_of_the_archive():
    options = source(archive="/archive", startingOffsets="earliest")
    assert (options.archive, options.start) == ("/archive", {"archive": True})
    with pytest.raises(ConfigError, match="startingTimestamp cannot be combined with archive"):
        source(archive="/archive", startingTimestamp="2026-01-31T12:00:00Z")


def test_the_environment_has_the_url(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKEP_DATABASE_URL", URL)
    assert source_options({"subscribe": "q"}, streaming=True).url == URL
    assert sink_options({"queue": "q"}).url == URL


def test_start_and_stop():
    assert source(startingOffsets="group:billing").start == {"group": "billing"}
    assert source(startingOffsets="archived").start == {"archived": True}
    assert source(startingOffsets="archived", startingTimestamp="0").start == {
        "archived": True, "timestamp": "1970-01-01T00:00:00+00:00",
    }  # fmt: skip
    assert source(startingOffsets='{"q": {"p": 7, "r": -1}}').start == {
        "offsets": {"q": {"p": 7, "r": -1}},
        "other": -2,
    }
    assert source(streaming=False, endingOffsets='{"q": {"p": 7}}').stop == {"offsets": {"q": {"p": 7}}, "other": -1}
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for text in ("2026-01-01T12:00", "2026-01-01T13:00+01:00", str(int(noon.timestamp() * 1000))):
        stop = source(streaming=False, endingTimestamp=text).stop
        assert isinstance(stop, dict)
        assert datetime.fromisoformat(stop["timestamp"]) == noon


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "q", "startingOffset": "earliest"}, '"startingOffset": did you mean startingOffsets?'),
        ({"subscribe": "q", "maxOffsetPerTriger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"subscribe": "q", "startingOffsets": "begining"}, "startingOffsets must be earliest, latest"),
        ({"subscribe": "q", "startingOffsets": '{"q": 5}'}, 'must be JSON {"queue": {"partition": offset}}'),
        ({"subscribe": "q", "startingOffsets": '{"q": {"p": -3}}'}, "offsets of at least -2"),
        ({"subscribe": "q", "startingTimestamp": "yesterday"}, "must be a time such as"),
        ({"subscribe": "q", "startingTimestamp": "0", "startingOffsets": "latest"}, "cannot be combined"),
        ({"subscribe": "q", "maxOffsetsPerTrigger": "0"}, 'must be a whole number of at least 1, got "0"'),
        ({"subscribe": "q", "maxTriggerDelay": "soon"}, "must be a duration such as 500ms"),
        ({"subscribe": "q", "failOnDataLoss": "perhaps"}, "must be true or false"),
        ({"subscribe": "q", "archive": " "}, "must not be empty"),
        ({"subscribe": " , "}, "must name at least one queue"),
        ({"subscribe": "q", "subscribePattern": "q.*"}, "subscribe and subscribePattern cannot be combined"),
        ({}, "no queues to read are given"),
        ({"subscribe": "q", "endingOffsets": "latest"}, "option endingOffsets is only for batches"),
    ],
)  # fmt: skip
def test_wrong_options(given: dict[str, str], message: str):
    with pytest.raises(ConfigError) as error:
        source_options({"url": URL, **given}, streaming=True)
    assert message in str(error.value)


def test_wrong_options_of_batches_and_sinks():
    with pytest.raises(ConfigError, match="groupId is only for streams"):
        source(streaming=False, groupId="g")
    with pytest.raises(ConfigError, match="must be latest or JSON"):
        source(streaming=False, endingOffsets="earliest")
    with pytest.raises(ConfigError, match='unknown option "sink": did you mean sinkId'):
        sink_options({"url": URL, "sink": "s"})
    with pytest.raises(ConfigError, match="no database is given"):
        sink_options({})
    assert not include_headers({"INCLUDEHEADERS": "false"})


def test_the_documentation_has_every_option():
    page = PAGE.read_text()
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
    for name, option in {**SOURCE, **SINK}.items():
        cells = [cell.strip() for cell in rows[f"`{name}`"].replace("\\|", "/").split("|")]
        assert cells[2:4] == [option.default, option.help], name


def test_positions_survive_json():
    start = Position("1/2", "q", start={"offsets": {"q": {"p": 1}}, "other": -2, "view": "1:1:"})
    cut = start.with_cut(Cut("5:9:6,7", "2026-01-01T00:00:00+00:00", None, 3, 4))
    for position in (start, cut, start.at("7:7:")):
        assert Position.from_json(position.to_json()) == position
    assert list(cut.to_json()) == sorted(cut.to_json())


def test_the_format_of_the_checkpoint():
    """Spark compares the text, and checkpoints of earlier releases have to stay valid."""
    cut = Position("1/2", "q", "4:4:").with_cut(Cut("5:9:6,7", "2026-01-01T00:00:00+00:00", None, 3, 4))
    assert json.dumps(cut.to_json()) == (
        '{"cut": {"view": "5:9:6,7", "since": "2026-01-01T00:00:00+00:00", "until": null, "lane": 3, "offset": 4}, '
        '"database": "1/2", "queues": "q", "snapshot": "4:4:"}'
    )
    assert json.dumps(Position("1/2", "q", start={"group": "g"}).to_json()) == (
        '{"database": "1/2", "queues": "q", "start": {"group": "g"}}'
    )


def test_a_checkpoint_of_something_else_is_refused():
    here = Position("1/2", "q").at("7:9:8")
    here.check("1/2", "q", "9:9:")
    with pytest.raises(Conflict, match="belongs to database 1/2, this is 1/3"):
        here.check("1/3", "q", "9:9:")
    with pytest.raises(Conflict, match="other queues"):
        here.check("1/2", "r", "9:9:")
    with pytest.raises(Conflict, match="restored from a backup"):
        here.check("1/2", "q", "8:8:")
