from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from pinlater.testing import Harness
from shop import app, web
from shop.store import Order


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(web.web) as client:
        yield client


def body(order: Order) -> Any:
    return TypeAdapter(Order).dump_python(order, mode="json")


def test_an_order_is_placed(pinlater_app: Harness, client: TestClient, order: Order) -> None:
    assert client.post("/orders", json=body(order)).status_code == 202
    assert client.get(f"/orders/{order.id}").json() == {"state": "open"}
    pinlater_app.drain()
    assert client.get(f"/orders/{order.id}").json() == {"state": "paid"}


def test_a_report_is_polled(pinlater_app: Harness, client: TestClient) -> None:
    job = client.post("/reports/sales?since=2026-11-22&days=1").json()["job"]
    assert client.get(f"/jobs/{job}").json() == {"state": "pending", "progress": None}
    pinlater_app.drain()
    assert client.get(f"/jobs/{job}").json() == {"state": "succeeded", "result": {"2026-11-22": "0"}}
    assert client.get("/jobs/bogus").status_code == 404


def test_without_a_server_the_client_is_asked_to_come_again(
    pinlater_app: Harness, client: TestClient, order: Order
) -> None:
    pinlater_app.server.close()
    answer = client.post("/orders", json=body(order))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_immediate_mode_does_the_work_within_the_request(order: Order) -> None:
    with app.immediate(), TestClient(web.web) as client:
        client.post("/orders", json=body(order))
        assert client.get(f"/orders/{order.id}").json() == {"state": "paid"}
        assert client.get("/forecast?day=2026-11-22").json() == {"low": "13.50", "high": "13.50"}
