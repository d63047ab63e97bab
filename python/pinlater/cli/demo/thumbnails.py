"""The demo's app: one task, which makes a thumbnail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from PIL import Image

from pinlater.tasks import PinLater, SyncContext

app: Final = PinLater()

THUMBNAIL_PIXELS: Final = 256
#: Suffixes of files that the demo takes for images.
IMAGE_SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


@app.task(name="make_thumbnail", queue="thumbnails", attempts=3, backoff=0.3)
def make_thumbnail(context: SyncContext, image_file: str, thumbnail: str) -> None:
    """Reads one image file and writes another.

    Safe to run twice, as every task must be: the file appears whole, under its final name, or not at all.
    """
    target = Path(thumbnail)
    draft = target.with_name(f".{target.stem}.{os.getpid()}.{context.attempt}.jpg")
    with Image.open(image_file) as image:
        image.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS), Image.Resampling.LANCZOS)
        image.convert("RGB").save(draft, quality=85)
    draft.replace(target)


def is_readable(path: Path) -> bool:
    """Whether an image can be decoded to its last pixel."""
    try:
        with Image.open(path) as image:
            image.load()
    except Exception:
        return False
    return True
