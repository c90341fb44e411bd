"""Callers with tokens: who may do what, whose message it is, and payloads nobody else can read."""

import json
import os

from queen import Queen
from talk import URLS, data, error_of, name, pop, tell

TOKENS = json.loads(os.environ["TOKENS"])


async def conversation(nobody: Queen) -> dict:
    queue, secret = name("queue"), name("secret")
    async with caller("writer") as writer, caller("reader") as reader, caller("admin") as admin:
        await writer.queue(queue).push({"data": "mine", "producerSub": "somebody else"})
        await writer.queue(secret).config({"encryption_enabled": True}).create()
        await writer.queue(secret).push({"data": {"card": "4111 1111"}})
        return {
            "nobody": await error_of(nobody.queue(queue).push({"data": 1})),
            "reader": await error_of(reader.queue(queue).push({"data": 1})),
            "reader pops": await pop(reader, queue),
            "reader consumes": await error_of(reader.queue(queue).consume(refuse)),
            "forged": await refusal("forged", queue),
            "expired": await refusal("expired", queue),
            "popped": await pop(writer, queue),
            "secret": data(await pop(writer, secret)),
            "writer deletes": await error_of(writer.queue(queue).delete()),
            "admin deletes": (await admin.queue(queue).delete())["existed"],
        }


def caller(who: str) -> Queen:
    return Queen(url=URLS[0], bearer_token=TOKENS[who])


async def refuse(_message: dict) -> None:
    raise AssertionError("a reader gets no message")


async def refusal(who: str, queue: str) -> str | None:
    async with caller(who) as queen:
        return await error_of(queen.queue(queue).push({"data": 1}))


tell(conversation)
