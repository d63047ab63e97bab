"""Fan out and collect: `python fan_out.py` counts the primes below 100,000 in twenty parts, on all cores, and adds up.

Each part is a job whose result is kept for an hour; whoever has its handle can wait for it.
"""

import math
import subprocess
import sys
from pathlib import Path

from pinlater import PinLater

PARTS, PART = 20, 5_000

app = PinLater()


@app.task(queue="primes", runs_in="process", result_ttl=3600)
def count(first: int, last: int) -> int:
    numbers = range(max(2, first), last)
    return sum(all(number % divisor for divisor in range(2, math.isqrt(number) + 1)) for number in numbers)


def main() -> None:
    with app:
        parts = count.enqueue_many([count.args(part * PART, (part + 1) * PART) for part in range(PARTS)])
        command = [sys.executable, "-m", "pinlater", "run", "fan_out:app", "--burst"]
        with subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL):
            total = sum(part.result(timeout=60) for part in parts)
        print(f"{total} primes below {PARTS * PART}")


if __name__ == "__main__":
    main()
