"""Work whose result the web app reads."""

import random
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

from pinlater import Context, Shared
from shop import app
from shop.store import Store


@dataclass(frozen=True)
class Forecast:
    low: Decimal
    high: Decimal


@app.task(queue="reports", result_ttl=3600)
async def sales(context: Context, since: date, days: int, *, store: Store = Shared(Store)) -> dict[date, Decimal]:
    """The sum of each day. After a crash it continues with the day that follows its checkpoint."""
    sums: dict[str, str] = context.state or {}
    for number in range(len(sums), days):
        day = since + timedelta(days=number)
        sums[day.isoformat()] = str(sum(store.sales(day), Decimal(0)))
        await context.checkpoint(sums)
        await context.progress(number + 1, days, f"{day} is done")
    return {date.fromisoformat(day): Decimal(total) for day, total in sums.items()}


@app.task(queue="reports", runs_in="process", timeout=60, result_ttl=60)
def forecast(orders: list[Decimal], rounds: int = 2000) -> Forecast:
    """Between what and what the next orders will add up to, nine times of ten. It computes, so it gets a process."""
    chance = random.Random(1)
    sums = sorted(sum(chance.choices(orders, k=len(orders)), Decimal(0)) for _ in range(rounds))
    return Forecast(sums[rounds // 20], sums[-rounds // 20])
