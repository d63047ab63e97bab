"""Fan out and collect: `python fan_out.py` counts the primes below 100,000 in twenty parts; the last one adds them up.

Each part notes its number in a database, under its own name: a part that runs twice changes nothing.
"""

import math
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from pinlater import PinLater

PARTS, PART = 20, 5_000

app = PinLater()


@app.task(queue="primes")
def count(notes: str, part: int) -> None:
    numbers = range(max(2, part * PART), (part + 1) * PART)
    found = sum(all(number % divisor for divisor in range(2, math.isqrt(number) + 1)) for number in numbers)
    with closing(sqlite3.connect(notes)) as database, database:
        database.execute("INSERT OR REPLACE INTO parts VALUES (?, ?)", (part, found))
        done = database.execute("SELECT count(*) FROM parts").fetchone()[0]
    if done == PARTS:
        collect.enqueue(notes)


@app.task(queue="primes")
def collect(notes: str) -> None:
    with closing(sqlite3.connect(notes)) as database:
        total = database.execute("SELECT sum(found) FROM parts").fetchone()[0]
    print(f"{total} primes below {PARTS * PART}", flush=True)


def main() -> None:
    notes = str(Path(tempfile.mkdtemp(), "notes.db"))
    with closing(sqlite3.connect(notes)) as database, database:
        database.execute("CREATE TABLE parts (part INTEGER PRIMARY KEY, found INTEGER)")
    with app:
        count.enqueue_many([count.args(notes, part) for part in range(PARTS)])
    command = [sys.executable, "-m", "pinlater", "run", "fan_out:app", "--burst"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
