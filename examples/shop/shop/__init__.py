"""A shop: its web app enqueues tasks of three modules. `app` is what `pinlater run shop:app` runs."""

from collections.abc import AsyncIterator
from typing import Any

from pinlater import PinLater
from shop.store import Store

app = PinLater(include=["shop.payments", "shop.mails", "shop.reports"])


@app.lifespan
async def lifespan() -> AsyncIterator[dict[type, Any]]:
    store = Store()
    yield {Store: store}
    store.close()
