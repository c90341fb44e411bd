"""Move a queue to another PostgreSQL. Run it again for new messages, the last time after all producers have stopped."""

import os

from skep.spark import session

old, new = os.environ["SKEP_DATABASE_URL"], os.environ["NEW_DATABASE_URL"]
messages = session().readStream.format("skep").options(url=old, subscribe="orders", startingOffsets="earliest").load()
query = (
    messages.writeStream.format("skep")
    .option("url", new)
    .option("checkpointLocation", "checkpoints/move-orders")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
