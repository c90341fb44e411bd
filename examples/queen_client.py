"""A published client of Queen, unchanged: pip install queen-mq."""

import asyncio

from queen import Queen


async def main() -> None:
    async with Queen("http://localhost:6632") as queen:
        await queen.queue("orders").push([{"data": {"id": 1}}])
        for message in await queen.queue("orders").pop():
            print("got", message["data"])
            await queen.ack(message, True)


asyncio.run(main())
