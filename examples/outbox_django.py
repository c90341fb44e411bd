"""Store an order and push a message about it, in one transaction of Django."""

import os
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings

url = os.environ["SKEP_DATABASE_URL"]
parts = urlsplit(url)
database = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": parts.path[1:],
    "USER": parts.username,
    "PASSWORD": unquote(parts.password or ""),
    "HOST": parts.hostname,
    "PORT": parts.port,
}
settings.configure(DATABASES={"default": database})  # in a project this is settings.py
django.setup()

from django.db import connection, models, transaction  # noqa: E402

from skep import Skep  # noqa: E402


class Order(models.Model):
    """An order of a customer."""

    customer = models.TextField()

    class Meta:
        """This example is a whole project in one file."""

        app_label = "shop"


with connection.schema_editor() as editor:
    editor.create_model(Order)  # in a project this is a migration

with Skep(url) as mq:
    orders = mq.queue("orders")

    with transaction.atomic():
        order = Order.objects.create(customer="ann")
        orders.push({"id": order.pk}, partition=order.customer, connection=connection)

    for message in orders.pop(batch=10):
        print("got", message.payload)
