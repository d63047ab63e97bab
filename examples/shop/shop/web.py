"""The web app: `uvicorn shop.web:web`. It enqueues and reads results; workers do the work."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import date
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException, Response

from pinlater import Handle, InvalidArgument, OutcomeUnknown, QueueError, ResultGone, ResultTimeout, ServerError, State
from shop import app, payments, reports
from shop.store import Order, Store

charge = payments.charge.using(timeout=0.5)  # a customer does not wait longer for Redis
sales = reports.sales.using(timeout=0.5)
forecast = reports.forecast.using(timeout=0.5)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    web.state.store = Store()
    async with app:  # closes its connections at the end
        yield
    web.state.store.close()


web = FastAPI(lifespan=lifespan)


@web.exception_handler(OutcomeUnknown)
@web.exception_handler(ServerError)
async def unavailable(*_: object) -> Response:
    return Response("try again", 503, {"Retry-After": "1"})


async def sent(call: Coroutine[Any, Any, Handle[Any]]) -> Handle[Any]:
    """The handle of an enqueue. If no answer came, it asks once more whether the job is in."""
    try:
        return await call
    except OutcomeUnknown as unknown:
        return app.handle(await unknown.resolve())


@web.post("/orders", status_code=202)
async def place(order: Order) -> dict[str, str]:
    """The client makes the order's id. So it may send an order again after a 503; the bank charges it once."""
    return {"job": (await sent(charge.aenqueue(order))).descriptor}


@web.get("/orders/{order}")
def order_state(order: UUID) -> dict[str, str]:
    state = web.state.store.state(order)
    return {"state": state or "open"}


@web.post("/reports/sales", status_code=202)
async def start_sales(since: date, days: int) -> dict[str, str]:
    return {"job": (await sent(sales.aenqueue(since, days))).descriptor}


@web.get("/jobs/{job}")
async def job_state(job: str) -> dict[str, Any]:
    """For clients that poll: the state, how far it is, and the result when there is one."""
    try:
        handle = app.handle(job)
        state = await handle.astatus()
        if state is State.SUCCEEDED:
            return {"state": state, "result": await handle.aresult()}
        info = await handle.ainfo()
    except (InvalidArgument, QueueError, ResultGone):
        raise HTTPException(404) from None
    return {"state": state or "ended", "progress": info and info.progress}


@web.get("/forecast")
async def next_orders(day: date, response: Response) -> Any:
    """For clients that wait: the result, or after 5 s the job, to ask for later."""
    orders = web.state.store.sales(day)
    if not orders:
        raise HTTPException(404, "nothing was sold")
    handle = await sent(forecast.aenqueue(orders))
    try:
        return await handle.aresult(timeout=5)
    except ResultTimeout:
        response.status_code = 202
        return {"job": handle.descriptor}
