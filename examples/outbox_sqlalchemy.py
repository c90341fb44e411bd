"""Store an order and push a message about it, in one transaction of SQLAlchemy's ORM."""

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from skep import Skep

url = os.environ["SKEP_DATABASE_URL"]
engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))


class Base(DeclarativeBase):
    """The tables of this application."""


class Order(Base):
    """An order of a customer."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


Base.metadata.create_all(engine)

with Skep(url) as mq:
    orders = mq.queue("orders")

    with Session(engine) as session, session.begin():  # commits at the end of the block
        order = Order(customer="ann")
        session.add(order)
        session.flush()  # gives the order its id
        orders.push({"id": order.id}, partition=order.customer, connection=session)

    for message in orders.pop(batch=10):
        print("got", message.payload)

engine.dispose()
