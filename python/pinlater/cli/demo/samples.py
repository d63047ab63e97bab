"""Sample images for the demo: landscapes with random hills, and a few broken files. Every run makes the same ones."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

SIZE: Final = (1280, 960)
BROKEN: Final = 6


def make_samples(folder: Path, count: int) -> Iterator[Path]:
    """Writes `count` images into the folder, the last BROKEN of them unreadable; yields each path."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"landscape-{number:04}.jpg"
        data = _encode(_landscape(random.Random(number)))
        if number >= count - BROKEN:
            path = folder / f"broken-{number:04}.jpg"
            data = _break(data, number)
        path.write_bytes(data)
        yield path


def _landscape(dice: random.Random) -> Image.Image:
    width, height = SIZE
    sky = Image.linear_gradient("L").resize(SIZE)
    light, dark = _color(dice, 170, 250), _color(dice, 60, 160)
    image = Image.composite(Image.new("RGB", SIZE, light), Image.new("RGB", SIZE, dark), sky)
    draw = ImageDraw.Draw(image)
    sun = dice.randint(100, width - 100), dice.randint(80, height // 3)
    draw.ellipse((sun[0] - 60, sun[1] - 60, sun[0] + 60, sun[1] + 60), fill=_color(dice, 220, 255))
    for layer in range(5):
        base, swing = height * (0.4 + 0.12 * layer), height * 0.1
        phase, waves = dice.uniform(0, math.tau), dice.uniform(1, 4)
        ridge = [(x, base + swing * math.sin(phase + waves * math.tau * x / width)) for x in range(0, width + 1, 16)]
        draw.polygon([(0, height), *ridge, (width, height)], fill=_color(dice, 20, 160 - 25 * layer))
    return image


def _color(dice: random.Random, low: int, high: int) -> tuple[int, int, int]:
    return dice.randint(low, high), dice.randint(low, high), dice.randint(low, high)


def _encode(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _break(data: bytes, number: int) -> bytes:
    """Empty, cut off, not an image, or with a damaged head."""
    return [b"", data[: len(data) // 3], b"this is not an image\n" * 40, b"\0" * 64 + data[64:]][number % 4]
