"""The default start position of new groups."""

from typing import Literal

import msgspec

from skep.message import Defaults
from skep.server.http.endpoint import Call, Endpoint, Reply, reply


class DefaultsChange(msgspec.Struct, forbid_unknown_fields=True):
    """The defaults to change. The others stay."""

    subscription_mode: Literal["all", "new"] | None = None
    max_poll_interval: float | None = None


async def show(call: Call) -> Reply:
    return reply(await call.state.mq.defaults())


async def change(call: Call) -> Reply:
    wish = await call.json(DefaultsChange)
    return reply(
        await call.state.mq.configure_defaults(
            subscription_mode=wish.subscription_mode, max_poll_interval=wish.max_poll_interval
        )
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/defaults",
        action="admin",
        run=show,
        summary="Show the default start position of new groups.",
        answers={200: Defaults},
    ),
    Endpoint(
        method="PATCH",
        path="/api/v1/defaults",
        action="admin",
        run=change,
        summary="Set the default start position of new groups. Existing groups keep theirs.",
        body=DefaultsChange,
        answers={200: Defaults},
    ),
)
