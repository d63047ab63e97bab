from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from shop.store import Line, Order, Store


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own database and invoices."""
    monkeypatch.setenv("SHOP_DB", str(tmp_path / "shop.db"))
    monkeypatch.setenv("SHOP_INVOICES", str(tmp_path))
    return tmp_path


@pytest.fixture
def store(files: Path) -> Iterator[Store]:
    store = Store()
    yield store
    store.close()


@pytest.fixture
def pinlater_shared(store: Store) -> dict[type, Any]:
    """What tasks get in place of what the app's lifespan yields."""
    return {Store: store}


@pytest.fixture
def order() -> Order:
    return Order(
        uuid4(), "ada@example.org", "1234", datetime(2026, 11, 22, tzinfo=UTC), [Line("tea", 3, Decimal("4.50"))]
    )
