"""Results, and a job that goes on later: `pinlater run export:app` beside `python export.py`, which waits for both."""

from pinlater import Context, PinLater, Snooze

app = PinLater()


@app.task(result_ttl=600)
async def count_words(text: str) -> int:
    return len(text.split())


@app.task(result_ttl=600)
async def fetch_export(context: Context, name: str, *, every: float = 1.0) -> str:
    """Asks three times whether the export is there. Between two looks the job waits in its queue, and holds no slot."""
    looks = (context.state or 0) + 1
    await context.progress(looks, 3, f"asked for {name}")
    if looks < 3:
        raise Snooze(every, state=looks)
    return f"{name}.csv"


if __name__ == "__main__":
    with app:
        parts = count_words.enqueue_many([("to be or not",), ("to be",)])
        print(sum(part.result(timeout=30) for part in parts), "words")
        print(fetch_export.enqueue("orders").result(timeout=30))
