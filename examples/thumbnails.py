"""Thumbnails of a folder of images: `python thumbnails.py [folder]` (needs pillow; without a folder it paints some).

One of the painted images is cut off: it is tried three times, and stays failed with what was wrong.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from pinlater import PinLater

app = PinLater()


@app.task(queue="thumbnails", attempts=3, backoff=0)
def thumbnail(source: str, target: str) -> None:  # a plain function: it runs in a thread
    with Image.open(source) as image:
        image.thumbnail((128, 128))
        image.save(target)


def paint(folder: Path) -> None:
    for number in range(8):
        Image.linear_gradient("L").rotate(45 * number).resize((1200, 900)).save(folder / f"picture{number}.png")
    broken = folder / "picture7.png"
    broken.write_bytes(broken.read_bytes()[:2000])


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    if len(sys.argv) == 1:
        paint(folder)
    small = folder / "small"
    small.mkdir(exist_ok=True)
    with app:
        images = sorted(path for path in folder.iterdir() if path.suffix in (".jpg", ".png"))
        handles = thumbnail.enqueue_many([thumbnail.args(str(path), str(small / path.name)) for path in images])
        command = [sys.executable, "-m", "pinlater", "run", "thumbnails:app", "--burst"]
        subprocess.run(command, cwd=Path(__file__).parent, check=True, stderr=subprocess.DEVNULL)
        for path, handle in zip(images, handles, strict=True):
            failed = handle.info()  # succeeded jobs are gone: their queue keeps none
            why = failed.status.splitlines()[0] if failed else ""
            print(f"{path.name}: {why or 'done'}")


if __name__ == "__main__":
    main()
