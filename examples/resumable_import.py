"""An import that goes on where it was stopped: `python resumable_import.py` kills its worker half-way.

The task keeps how far it came in its job; another worker gets the job when the dead one's lease is over.
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pinlater import PinLater, SyncContext

ROWS, BATCH = 1_000, 50

app = PinLater()


@app.task(queue="imports", lease=2)
def load(context: SyncContext, source: str, target: str) -> None:
    with Path(source).open() as file:
        rows = list(csv.reader(file))
    for first in range(context.state or 0, len(rows), BATCH):
        with Path(target).open("a") as file:
            file.write(f"worker {os.getpid()}: rows {first} to {first + BATCH - 1}\n")
        time.sleep(0.05)  # the work
        context.checkpoint(first + BATCH)


def start_worker() -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pinlater", "run", "resumable_import:app"]
    return subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    source, target = folder / "people.csv", folder / "imported"
    source.write_text("".join(f"person{row},{row}\n" for row in range(ROWS)))
    target.touch()
    with app:
        handle = load.enqueue(str(source), str(target))
        worker = start_worker()
        while "rows 450" not in target.read_text():
            time.sleep(0.01)
        worker.kill()
        worker.wait()
        print("the worker was killed; another one starts", flush=True)
        worker = start_worker()
        while handle.status() is not None:  # a job that succeeded is gone
            time.sleep(0.05)
        worker.terminate()
        worker.wait()
    print(target.read_text(), end="")


if __name__ == "__main__":
    main()
