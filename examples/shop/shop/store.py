"""What the shop sells, and where it keeps its orders."""

import os
import sqlite3
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID


@dataclass(frozen=True)
class Line:
    article: str
    count: int
    price: Decimal


@dataclass(frozen=True)
class Order:
    id: UUID
    email: str
    card: str
    placed: datetime
    lines: list[Line]

    @property
    def total(self) -> Decimal:
        return sum((line.count * line.price for line in self.lines), Decimal(0))


class Store:
    """An SQLite file. Each method can be repeated: tasks run at least once, not exactly once."""

    def __init__(self, path: str | None = None) -> None:
        self.db = sqlite3.connect(path or os.environ.get("SHOP_DB", "shop.db"), check_same_thread=False)
        self.db.isolation_level = None  # each statement commits by itself
        self.db.execute("CREATE TABLE IF NOT EXISTS orders (id PRIMARY KEY, day, total, state)")
        self.db.execute("CREATE TABLE IF NOT EXISTS mails (id, subject, PRIMARY KEY (id, subject))")

    def settle(self, order: Order, state: str) -> bool:
        """False if the order had its state before."""
        row = (str(order.id), order.placed.date().isoformat(), str(order.total), state)
        return self.db.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?)", row).rowcount > 0

    def state(self, order: UUID) -> str | None:
        row = self.db.execute("SELECT state FROM orders WHERE id = ?", [str(order)]).fetchone()
        return str(row[0]) if row else None

    def sales(self, day: date) -> list[Decimal]:
        rows = self.db.execute("SELECT total FROM orders WHERE day = ? AND state = 'paid'", [day.isoformat()])
        return [Decimal(total) for (total,) in rows]

    def mailed(self, order: UUID, subject: str) -> None:
        self.db.execute("INSERT OR IGNORE INTO mails VALUES (?, ?)", [str(order), subject])

    def close(self) -> None:
        self.db.close()
