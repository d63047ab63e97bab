"""Mails in the background: `python mail.py` puts them in line, `pinlater run mail:app` sends them."""

import time

from pinlater import Context, PinLater, Retry

app = PinLater()


@app.task
async def send(to: str, *, subject: str) -> None:
    print(f"to {to}: {subject}", flush=True)


@app.task(attempts=3, backoff=0.5, timeout=10)
def report(day: str) -> None:  # a plain function: it runs in a thread
    if not day:
        raise Retry("the day is not over yet", delay=60)
    time.sleep(0.1)
    send.enqueue("boss@example.org", subject=f"report of {day}")


@app.task
async def newsletter(context: Context, readers: list[str]) -> None:
    """Goes on behind the last reader it is sure of, whatever stopped it."""
    for position in range(context.state or 0, len(readers)):
        await send.aenqueue(readers[position], subject="news")
        await context.checkpoint(position + 1)


if __name__ == "__main__":
    with app:
        send.enqueue("ada@example.org", subject="welcome")
        report.enqueue("monday")
        send.using(delay=60).enqueue("ada@example.org", subject="still there?")
        handle = newsletter.enqueue(["bob@example.org", "eve@example.org"])
        print(handle.descriptor, handle.status())
