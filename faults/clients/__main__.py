"""`python -m faults.clients KIND NAME LIFE DIRECTORY SETTINGS`: run one client until SIGTERM."""

import asyncio
import logging
import signal
import sys
from pathlib import Path

from faults.clients import consumers, producers
from faults.clients.context import Me, Settings

KINDS = {
    "push-http": producers.http,
    "push-client": producers.client,
    "push-outbox": producers.outbox,
    "pop-http": consumers.http,
    "pop-client": consumers.client,
    "pop-auto": consumers.auto,
    "pop-transform": consumers.transform,
    "pop-poison": consumers.poison,
    "pop-many": consumers.many,
}


async def main(kind: str, name: str, life: str, directory: str, settings: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    me = Me.create(name, int(life), Path(directory), Settings.load(settings))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.stopping.set)
    await KINDS[kind](me)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
