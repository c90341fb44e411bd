"""The report of an analysis: its sentences and charts, and that names in it are only text."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from skep.pipelines.report.axis import Scale, around, moments, nice, nice_lengths
from skep.pipelines.report.markup import el, short
from skep.pipelines.report.page import render
from skep.pipelines.report.result import Result
from skep.pipelines.report.story import findings, sentences
from skep.pipelines.report.words import mark, rate, seconds, share
from skep.pipelines.report.words import short as number

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
HOSTILE = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned=2'>\"'\u202e\x00&amp;"
TABLES = (
    "throughput", "consumption", "lag", "time_in_queue", "time_in_queue_over_time", "deliveries", "fanout",
    "fanout_groups", "fanout_time", "errors", "skew", "hot_partitions",
)  # fmt: skip


def result(*, groups: list[dict[str, Any]] | None = None, unlogged: tuple[str, ...] = (), **tables: Any) -> Result:
    """Return an analysis with these tables; the others are empty."""
    rows = {name: tables.get(name, []) for name in TABLES}
    queues = sorted({row["queue"] for table in rows.values() for row in table})
    steps = {"messages": 60, "samples": 60, "leases": 60}
    return Result(NOW, None, None, queues, steps, rows, groups or [], list(unlogged))


def group(name: str = "billing", queue: str = "orders", **other: Any) -> dict[str, Any]:
    healthy = {"status": "ACTIVE", "lag": 0, "dead_letters": 0, "missed": 0, "oldest_pending_at": None}
    return {"group_name": name, "queue": queue, **healthy, "last_consumed_at": NOW, **other}


def pushed(queue: str = "orders", *counts: int) -> list[dict[str, Any]]:
    begin = NOW - timedelta(minutes=len(counts))
    return [
        {
            "queue": queue, "bucket": begin + timedelta(minutes=n), "messages": count, "per_second": count / 60,
            "partitions": 1,
        }
        for n, count in enumerate(counts)
    ]  # fmt: skip


def full(name: str = "orders") -> Result:
    """Return an analysis with rows in every table, which uses this name for everything."""
    bucket, times = NOW - timedelta(minutes=2), {"p50": 0.01, "p95": 1.0, "p99": 70.0}
    names = {"queue": name, "group_name": name}
    return result(
        groups=[group(name, name, lag=5, oldest_pending_at=NOW - timedelta(hours=1)), group(name, name, status="DEAD")],
        unlogged=(name,),
        throughput=pushed(name, 100, 0, 300),
        consumption=[{**names, "bucket": bucket, "messages": 3, "per_second": 0.05}],
        lag=[{**names, "bucket": bucket, "messages": 3, "most": 9, "oldest_seconds": 60.0}],
        time_in_queue=[{**names, "messages": 9, **times, "most": 80.0, "waited_p50": 0.0, "waited_p95": 0.9,
                        "held_p50": 0.0, "held_p95": 0.1}],
        time_in_queue_over_time=[{**names, "bucket": bucket, "messages": 9, **times}],
        deliveries=[{**names, "leases": 10, "messages": 9, "repeated": 1, "expired": 2, "released": 0, "failed": 0}],
        fanout=[{"queue": name, "bucket": bucket, "messages": 400, "done_by_all": 390, "owed": 10, "for_nobody": 0,
                 "gone": 0}],
        fanout_groups=[{**names, "completed": 390, "owed": 10, "behind": 10, "share": 0.975}],
        fanout_time=[{"queue": name, "messages": 390, **times}],
        errors=[{**names, "id": "abc", "fingerprint": name, "letters": 4, "partitions": 1, "attempts": 3,
                 "first_at": NOW, "last_at": NOW, "example": name}],
        skew=[{"queue": name, "partitions": 5, "messages": 400, "average": 80.0, "largest": 300,
               "largest_partition": name, "skew": 3.75, "largest_share": 0.75, "gini": 0.6}],
        hot_partitions=[{"queue": name, "rank": 1, "partition": name, "messages": 300, "share": 0.75,
                         "busiest_per_second": 2.0, "busiest_at": NOW}],
    )  # fmt: skip


class Page(HTMLParser):
    """Parses a page strictly; `wrong` has tags that are not well-formed and attributes that load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)) or any(value is None for _, value in attrs):
            self.wrong.append(f"<{tag} {names}>")
        self.wrong += [name for name in names if name in ("src", "href", "style", "srcset") or name.startswith("on")]
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.words += data


def check(text: str) -> Page:
    page = Page(text)
    assert (page.wrong, page.open) == ([], [])
    assert page.tags <= {
        "html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "h1", "h2", "h3", "p",
        "ul", "li", "figure", "figcaption", "div", "span", "bdi", "code", "pre", "details", "summary", "svg", "line",
        "path", "rect", "circle", "text", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert re.findall(r"(?:https?:|url\(|@import|//)", text) == []
    return page


def test_a_page_with_everything_is_whole_and_small():
    text = render(full())
    page = check(text)
    assert "4 things need attention" not in page.words
    assert all(title in page.words for title in ("Throughput", "Time in queue", "Lag", "Fan-out completion"))
    assert text.count("<svg") == 8
    assert len(text) < 100_000


def test_names_and_errors_are_only_text():
    page = check(render(full(HOSTILE)))
    assert "\u202e" not in page.words
    assert "\x00" not in page.words
    assert "<script>" in page.words


def test_long_names_do_not_break_the_page():
    assert len(render(full("x" * 5000))) < 120_000


def test_an_empty_page():
    page = check(render(result()))
    assert "There are no messages" in page.words
    assert "No messages." in page.words
    assert "No queues" in page.words


def test_missing_data_is_explained():
    page = check(render(result(throughput=pushed("orders", 5), unlogged=("orders",))))
    assert "skep queue configure orders lease_log_seconds=86400" in page.words
    assert "No group reads these queues" in page.words
    assert "No samples were taken in this time" in page.words


VOLUME = (
    "1,800 messages were pushed to one queue within 2 min, starting at 2026-01-31 11:58:00: 15 per second on average. "
    "The peak was 20 per second to orders, in the 1 min from 2026-01-31 11:59:00."
)


def test_a_healthy_queue():
    healthy = result(groups=[group()], throughput=pushed("orders", 600, 1200))
    assert findings(healthy) == []
    assert "Healthy: nothing needs attention" in check(render(healthy)).words
    assert sentences(healthy) == [
        VOLUME,
        "The time in queue is unknown: no lease of these queues was logged in this time.",
        "No group has a lag.",
        "No message became a dead letter.",
    ]


LATE = NOW - timedelta(minutes=10)


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([group(lag=3, oldest_pending_at=NOW)], []),
        ([group(lag=1, oldest_pending_at=LATE)], ["has a lag of 1 message; the oldest has waited for 10 min."]),
        ([group(status="DEAD", lag=2)], ["is dead: it sent no heartbeat for too long. Its lag is 2 messages."]),
        ([group(status="PAUSED", lag=2)], ["is paused. Its lag is 2 messages."]),
        ([group(status="PAUSED")], []),
        ([group(missed=7)], ["missed 7 messages: retention deleted them before the group completed them."]),
        (
            [group(lag=9, oldest_pending_at=LATE), group("audit", status="DEAD")],
            ["is dead: it sent no", "has a lag of 9 messages"],
        ),
    ],
)
def test_findings_about_groups(groups: list[dict[str, Any]], found: list[str]):
    texts = [finding.text for finding in findings(result(groups=groups, throughput=pushed("orders", 1)))]
    assert len(texts) == len(found)
    assert all(part in text for part, text in zip(found, texts, strict=True)), texts


@pytest.mark.parametrize(("lags", "grows"), [([1, 2, 3, 4, 5], True), ([5, 5, 5, 5], False), ([9, 8, 7, 6], False)])
def test_a_growing_lag(lags: list[int], *, grows: bool):
    rows = [
        {"queue": "orders", "group_name": "billing", "bucket": NOW, "messages": lag, "most": lag, "oldest_seconds": 0.0}
        for lag in lags
    ]
    (found,) = findings(result(groups=[group(lag=5, oldest_pending_at=LATE)], lag=rows))
    assert ("growing" in found.text) == grows


def test_other_findings():
    texts = [finding.text for finding in findings(full())]
    assert texts == [
        "Group orders on orders is dead: it sent no heartbeat for too long. Its lag is 0 messages.",
        "Group orders on orders has a lag of 5 messages; the oldest has waited for 60 min.",
        "4 messages became dead letters. All for group orders on orders: orders",
        "2 of 10 leases of group orders on orders expired: consumers crashed or were too slow.",
        "75 % of the messages of orders are in partition orders, of 5.",
    ]


@pytest.mark.parametrize(
    ("most", "marks"),
    [(0, [0, 1]), (1, [0, 0.5, 1]), (7, [0, 2, 4, 6, 8]), (100, [0, 50, 100]), (101, [0, 50, 100, 150])],
)
def test_marks_are_round_and_cover(most: float, marks: list[float]):
    assert nice(most) == pytest.approx(marks)


def test_marks_of_time_are_those_of_a_clock():
    assert nice_lengths(100) == [0, 30, 60, 90, 120]
    assert [mark(value) for value in nice_lengths(9000)] == ["0 s", "30 min", "1 h", "90 min", "2 h", "150 min"]
    assert around(0.02, 70) == [0.01, 0.1, 1, 10, 60, 600]
    assert around(5, 5) == [1, 10]
    assert around(1e-9, 1e12)[-1] == 86_400_000


def test_a_logarithmic_scale():
    scale = Scale(0.1, 10, 100, 200, logarithmic=True)
    assert [scale.at(value) for value in (0, 0.1, 1, 10)] == pytest.approx([100, 100, 150, 200])


@pytest.mark.parametrize(
    ("length", "labels"),
    [
        (5, ["01-31 12:00:00", "12:00:01", "12:00:02", "12:00:03", "12:00:04", "12:00:05"]),
        (3600, ["01-31 12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (86_400, ["01-31 12:00", "18:00", "02-01 00:00", "06:00", "12:00"]),
        (4 * 86_400, ["2026-02-01", "02-02", "02-03", "02-04"]),
    ],
)
def test_labels_of_time(length: int, labels: list[str]):
    assert [label for _, label in moments(NOW, NOW + timedelta(seconds=length))] == labels


def test_words():
    assert [seconds(x) for x in (None, 0, 0.0004, 0.25, 1.234, 119, 130, 7300, 300_000)] == [
        "-", "0 s", "under 1 ms", "250 ms", "1.23 s", "119 s", "2.17 min", "2.03 h", "3.47 d",
    ]  # fmt: skip
    assert [share(x) for x in (None, 0, 0.00001, 0.5, 0.9999, 1)] == [
        "-",
        "0 %",
        "under 0.1 %",
        "50 %",
        "over 99.9 %",
        "100 %",
    ]
    assert [rate(x) for x in (0, 0.123, 3, 12345.6)] == ["0", "0.12", "3", "12,346"]
    assert [number(x) for x in (0, 999, 1500, 2e6, 3e9)] == ["0", "999", "1.5k", "2M", "3G"]
    assert short("a\nb") == "a\\nb"
    assert el("p", "<", el("b", ">"), title='"') == '<p title="&quot;">&lt;<b>&gt;</b></p>'
