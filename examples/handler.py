"""A handler: it is called with each message, and a message fails if it raises. Ctrl-C stops it."""

from skep import Message, Skep

mq = Skep()


@mq.consumer("orders", group="billing", batch=10, concurrency=4)
def bill(message: Message) -> None:
    print("billing", message.payload["id"], "attempt", message.attempt)


if __name__ == "__main__":
    mq.run()
