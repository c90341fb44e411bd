"""An application: orders arrive by POST, a handler bills them, and a page gets them as events.

In this directory: uvicorn fastapi_events:app --timeout-graceful-shutdown 5
"""

from typing import Any

from fastapi import FastAPI, Request

from skep import AsyncSkep, Message
from skep.integrations.fastapi import EventStream, Mq, lifespan

client = AsyncSkep()
app = FastAPI(lifespan=lifespan(client, consumers=True))


@client.consumer("orders", group="billing")
async def bill(message: Message) -> None:
    print("billing", message.payload["id"])


@app.post("/orders")
async def order(body: dict[str, Any], mq: Mq) -> int:
    return (await mq.queue("orders").push(body)).offset


@app.get("/orders/events/{user}")
async def events(user: str, request: Request, mq: Mq) -> EventStream:
    return EventStream(request, mq, "orders", group=f"page-{user}")
