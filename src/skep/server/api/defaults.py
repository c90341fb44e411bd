"""What groups get that do not say where they start."""

from typing import Literal

import msgspec

from skep.message import Defaults
from skep.server.http.endpoint import Call, Endpoint, Reply, reply


class DefaultsChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be changed; what is not given stays."""

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
        summary="Show what groups get that do not say where they start.",
        answers={200: Defaults},
    ),
    Endpoint(
        method="PATCH",
        path="/api/v1/defaults",
        action="admin",
        run=change,
        summary="Change the defaults that are given; groups that are there keep what they began with.",
        body=DefaultsChange,
        answers={200: Defaults},
    ),
)
