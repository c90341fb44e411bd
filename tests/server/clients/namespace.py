"""Pop and consume by namespace and task, over queues nobody has to name."""

from queen import Queen
from talk import data, name, tell


async def conversation(queen: Queen) -> dict:
    space, mail, sms = name("space"), name("mail"), name("sms")
    for queue, task in ((mail, "mail"), (sms, "sms")):
        await queen.queue(queue).namespace(space).task(task).create()
        await queen.queue(queue).push({"data": task})
    by_task = await queen.queue().namespace(space).task("sms").batch(10).timeout_millis(5000).pop()
    await queen.ack(by_task)
    handled = []

    async def handle(message: dict) -> None:
        handled.append(message["data"])

    await queen.queue().namespace(space).batch(1).each().limit(1).consume(handle)
    nothing = await queen.queue().namespace(name("nowhere")).wait(enabled=False).pop()
    in_group = queen.queue().namespace(space).group("g").subscription_mode("all").batch(10).wait(enabled=False)
    grouped = await in_group.pop() + await in_group.pop()
    return {
        "task": data(by_task),
        "namespace": handled,
        "nowhere": nothing,
        "group": sorted(data(grouped)),
        "nothing left": await queen.queue().namespace(space).wait(enabled=False).pop(),
    }


tell(conversation)
