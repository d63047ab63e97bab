from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from pinlater.testing import Harness
from shop import payments, reports
from shop.store import Order, Store


def test_an_order_is_paid_and_its_customer_hears_of_it(
    pinlater_app: Harness, order: Order, store: Store, files: Path
) -> None:
    payments.charge.enqueue(order)
    assert [ran.task for ran in pinlater_app.drain()] == [
        "shop.payments.charge",
        "shop.mails.invoice",
        "shop.mails.send",
    ]
    assert store.state(order.id) == "paid"
    assert "total: 13.50" in (files / f"{order.id}.txt").read_text()
    pinlater_app.clock.advance(timedelta(days=7).total_seconds())
    [asked] = pinlater_app.drain()
    assert asked.args == (order.id, "how was it?")


def test_a_busy_bank_is_asked_again(
    pinlater_app: Harness, order: Order, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([ConnectionError("busy"), ConnectionError("busy"), None])

    def bank(_: Order) -> None:
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr(payments, "take_money", bank)
    payments.charge.enqueue(order)
    for outcome in ("retried", "retried", "succeeded"):
        ran = pinlater_app.drain(raising=False)
        assert ran[0].outcome == outcome
        pinlater_app.clock.advance(1)
    assert store.state(order.id) == "paid"


def test_a_card_is_refused_once(pinlater_app: Harness, order: Order, store: Store) -> None:
    payments.charge.enqueue(replace(order, card="0000"))
    charged, rejected, sent = pinlater_app.drain()
    assert (charged.outcome, charged.attempt) == ("failed", 1)
    assert rejected.outcome == sent.outcome == "succeeded"
    assert store.state(order.id) == "refused"


def test_an_order_that_comes_twice_counts_once(pinlater_app: Harness, order: Order, store: Store) -> None:
    payments.charge.enqueue_many([payments.charge.args(order)] * 2)
    pinlater_app.drain()
    assert store.sales(date(2026, 11, 22)) == [Decimal("13.50")]


def test_sales_are_reported_by_day(pinlater_app: Harness, order: Order, store: Store) -> None:
    store.settle(order, "paid")
    handle = reports.sales.enqueue(date(2026, 11, 22), 2)
    pinlater_app.drain()
    assert handle.result() == {date(2026, 11, 22): Decimal("13.50"), date(2026, 11, 23): Decimal(0)}


def test_a_forecast_is_made_in_a_process(pinlater_app: Harness) -> None:
    handle = reports.forecast.enqueue([Decimal(10)] * 3)
    pinlater_app.drain()
    assert handle.result() == reports.Forecast(Decimal(30), Decimal(30))
