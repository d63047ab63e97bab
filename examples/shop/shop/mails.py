"""Mails to customers."""

import logging
import os
from pathlib import Path
from uuid import UUID

from pinlater import Shared
from shop import app
from shop.store import Order, Store

log = logging.getLogger("shop")


@app.task(queue="mails", timeout=30, expires=24 * 3600)
async def send(order: UUID, subject: str, *, store: Store = Shared(Store)) -> None:
    """Stands for an async mail client. A mail that is a day late is not sent."""
    log.info("mail", extra={"order": order, "subject": subject})
    store.mailed(order, subject)


@app.task(queue="mails")
def invoice(order: Order) -> None:
    """Writes the invoice, then has it sent. A second run writes the same file."""
    lines = [f"{line.count} x {line.article}: {line.count * line.price}" for line in order.lines]
    folder = Path(os.environ.get("SHOP_INVOICES", "invoices"))
    folder.mkdir(exist_ok=True)
    (folder / f"{order.id}.txt").write_text("\n".join([*lines, f"total: {order.total}\n"]))
    send.enqueue(order.id, "your invoice")
