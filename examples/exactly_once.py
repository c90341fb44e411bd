"""Count orders by customer exactly once: the count and the ack of the messages are one transaction."""

import os

import psycopg

from skep import NewMessage, Skep

url = os.environ["SKEP_DATABASE_URL"]
COUNT = """
    INSERT INTO counts VALUES (%s, 1) ON CONFLICT (customer) DO UPDATE SET orders = counts.orders + 1
    RETURNING orders
"""

with Skep(url) as mq, psycopg.connect(url, autocommit=True) as connection:
    orders = mq.queue("orders")
    orders.push_many([NewMessage({"id": n}, partition="ann") for n in range(3)])

    connection.execute("CREATE TABLE counts (customer text PRIMARY KEY, orders bigint)")
    for batch in orders.consume(group="counting", idle_timeout=0.1):
        with connection.transaction():
            for message in batch:
                row = connection.execute(COUNT, [message.partition]).fetchone()
                print("counted", message.payload, row)
            batch.ack(connection=connection)
