"""A handler, called once for each message. An exception fails the message. Ctrl-C stops it."""

from skep import Message, Skep

mq = Skep()


@mq.consumer("orders", group="billing", batch=10, concurrency=4)
def bill(message: Message) -> None:
    print("billing", message.payload["id"], "attempt", message.attempt)


if __name__ == "__main__":
    mq.run()
