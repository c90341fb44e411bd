"""Store an order and push a message about it, in one transaction of psycopg."""

import os

import psycopg

from skep import Skep

url = os.environ["SKEP_DATABASE_URL"]

with Skep(url) as mq, psycopg.connect(url) as connection:
    orders = mq.queue("orders")
    connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total numeric)")

    connection.execute("INSERT INTO orders VALUES (7, 99.50)")
    orders.push({"id": 7}, partition="customer-1", connection=connection)
    connection.commit()  # published now, with the row

    connection.execute("INSERT INTO orders VALUES (8, 12.00)")
    orders.push({"id": 8}, partition="customer-2", connection=connection)
    connection.rollback()  # neither

    for message in orders.pop(batch=10):
        print("got", message.payload)
