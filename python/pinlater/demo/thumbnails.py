"""The demo's handler: makes one thumbnail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import orjson
from PIL import Image

from pinlater.jobs import Job

THUMBNAIL_PIXELS: Final = 256
#: What the demo takes for an image in a folder.
IMAGE_SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def make_thumbnail(job: Job) -> None:
    """Reads the image that the job's body (JSON: image, thumbnail) names and writes its thumbnail.

    Safe to run twice, as every handler must be: the file appears whole, under its final name, or not at all.
    """
    paths = orjson.loads(job.body)
    target = Path(paths["thumbnail"])
    draft = target.with_name(f".{target.stem}.{os.getpid()}.{job.attempt}.jpg")
    with Image.open(paths["image"]) as image:
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
