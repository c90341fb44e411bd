"""Move the messages of a Queen server to Skep: pop there, push here with the same transaction id, ack there."""

import asyncio
import sys

from queen import Queen

OLD, NEW, QUEUE = sys.argv[1:4]


async def main() -> None:
    moved = 0
    async with Queen(OLD) as old, Queen(NEW) as new:
        while messages := await old.queue(QUEUE).batch(100).pop():
            for message in messages:
                item = {"data": message["data"], "transactionId": message["transactionId"]}
                await new.queue(QUEUE).partition(message["partition"]).push([item])
            await old.ack(messages, True)
            moved += len(messages)
    print("moved", moved)


asyncio.run(main())
