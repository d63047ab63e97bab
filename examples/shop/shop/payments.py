"""Money. The bank may be busy, then a later attempt helps; or it refuses, then none does."""

from datetime import timedelta

from pinlater import Cancel, Exponential, Failure, Shared
from shop import app, mails
from shop.store import Order, Store


class CardRefused(Exception):
    pass


def take_money(order: Order) -> None:
    """Stands for a bank's API, which takes the money once for each order's id, however often it is asked."""
    if order.card.endswith("0000"):
        raise CardRefused(f"card {order.card} is not covered")


async def on_failure(failure: Failure) -> None:
    await reject.aenqueue(failure.args[0])


@app.task(
    queue="payments",
    attempts=8,
    backoff=Exponential(first=0.2, cap=60),
    timeout=10,
    on_failure=on_failure,
)
def charge(order: Order, *, store: Store = Shared(Store)) -> None:
    """A plain function: it runs in a thread. If its worker dies before the end, all of this happens again."""
    try:
        take_money(order)
    except CardRefused as refused:
        raise Cancel(str(refused)) from refused  # fails at once, and on_failure is called
    store.settle(order, "paid")
    mails.invoice.enqueue(order)
    mails.send.using(delay=timedelta(days=7)).enqueue(order.id, "how was it?")


@app.task(queue="payments")
async def reject(order: Order, *, store: Store = Shared(Store)) -> None:
    store.settle(order, "refused")
    await mails.send.aenqueue(order.id, "your order was not paid")
