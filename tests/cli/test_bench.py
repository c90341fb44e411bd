"""`skep bench`: its numbers, and the deletion of its queue."""

import signal

from skep import AsyncSkep, Skep
from skep.cli.bench import Bench, BenchOptions, measurement
from tests.cli.conftest import Cli
from tests.cli.process import Terminal

OPTIONS = BenchOptions(seconds=1, workers=4, batch=5, size=50, partitions=3)


def test_numbers(cli: Cli, mq: Skep):
    arguments = ("--seconds", "1", "--workers", "3", "--batch", "10", "--size", "50", "--partitions", "4")
    results = {result["what"]: result for result in cli("bench", *arguments, "--json").json}
    assert list(results) == ["push 1", "push 10", "pop and ack up to 10", "push to a waiting consumer"]
    assert all(result["messages"] > 0 and 0 < result["p50_ms"] <= result["p99_ms"] for result in results.values())
    assert results["push 10"]["messages"] % 10 == 0
    assert (mq.queues(), mq.groups(), mq.subscriptions()) == ([], [], [])


async def test_counts_match_the_stored_messages(database_url: str):
    async with AsyncSkep(database_url) as mq:
        bench = Bench(mq, OPTIONS)
        pushed = await bench._measure_calls("push 5", lambda: bench._push(5))
        (queue,) = await mq.queues()
        assert (pushed.messages, queue.partitions) == (queue.messages, 3)
        popped = await bench._measure_calls("pop", bench._pop)
        (group,) = await mq.groups()
        assert 0 < popped.messages == group.processed


def test_rates_and_times():
    result = measurement("x", 1000, 2, [0.001 * number for number in range(1, 102)])
    assert (result.messages_per_second, round(result.p50_ms), round(result.p99_ms)) == (500, 51, 100)
    assert measurement("x", 1, 1, [0.5]).p99_ms == 500
    assert measurement("x", 0, 1, [0.5, 0.5]).messages_per_second == 0


def test_table(cli: Cli):
    done = cli("bench", "--seconds", "0.2")
    assert [line.split()[0] for line in done.lines] == ["measured", "push", "push", "pop", "push"]


def test_a_stopped_bench_deletes_its_queue(database_url: str, mq: Skep):
    with Terminal("bench", "--seconds", "60", "--database-url", database_url) as terminal:
        terminal.wait_for("push 1")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(60) == 0
    assert mq.queues() == []
