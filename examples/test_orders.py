"""A test of a producer and a consumer: every test gets a new database with Skep."""

from skep import AsyncSkep, Skep


def bill(mq: Skep) -> list[str]:
    """The code under test: one invoice for each order."""
    with mq.queue("orders").pop(group="billing", batch=100) as orders:
        return [f"invoice {order.payload['id']}" for order in orders]


def test_every_order_is_billed_once(skep: Skep) -> None:
    skep.queue("orders").push_many([{"id": 1}, {"id": 2}])
    assert bill(skep) == ["invoice 1", "invoice 2"]
    assert bill(skep) == []


def test_nothing_is_left_of_the_other_test(skep: Skep) -> None:
    assert skep.queues() == []


async def test_asynchronously(skep_url: str) -> None:
    async with AsyncSkep(skep_url) as mq:
        receipt = await mq.queue("orders").push({"id": 1})
        assert receipt.offset == 0
