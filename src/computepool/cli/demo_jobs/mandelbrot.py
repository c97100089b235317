"""Renders one tile of a Mandelbrot picture; the number of the slice says which.

The result is `tile.ppm`. The submitter puts the tiles together.
"""

from __future__ import annotations

import math
import os

WIDTH, HEIGHT = 768, 512
COLUMNS, ROWS = 4, 4
CENTRE_X, CENTRE_Y, SPAN = -0.7472, 0.1086, 0.0085
STEPS_MAX = 320

# Night sky, foam, sand, ember: the colours between which the escape time fades.
PALETTE = ((4, 8, 46), (32, 107, 203), (237, 255, 255), (255, 170, 0), (90, 10, 30))


def colour(x: float, y: float) -> bytes:
    point, z = complex(x, y), 0j
    for step in range(STEPS_MAX):
        z = z * z + point
        if z.real * z.real + z.imag * z.imag > 64.0:
            # The fraction makes the bands smooth.
            return fade(step + 1.0 - math.log2(math.log2(abs(z))))
    return b"\x00\x00\x00"


def fade(time: float) -> bytes:
    place = (math.log(max(time, 1.0)) * 1.6) % len(PALETTE)
    left, share = int(place), place % 1.0
    a, b = PALETTE[left], PALETTE[(left + 1) % len(PALETTE)]
    return bytes(round(a[i] + (b[i] - a[i]) * share) for i in range(3))


def main() -> None:
    index = int(os.environ["COMPUTEPOOL_SLICE_INDEX"])
    tile_width, tile_height = WIDTH // COLUMNS, HEIGHT // ROWS
    left, top = index % COLUMNS * tile_width, index // COLUMNS * tile_height
    step = SPAN / WIDTH
    pixels = bytearray()
    for row in range(top, top + tile_height):
        y = CENTRE_Y - (row - HEIGHT / 2) * step
        for column in range(left, left + tile_width):
            pixels += colour(CENTRE_X + (column - WIDTH / 2) * step, y)
    with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "tile.ppm"), "wb") as file:
        file.write(b"P6 %d %d 255\n" % (tile_width, tile_height) + pixels)
    print(f"tile {index}: {tile_width} x {tile_height} points from ({left}, {top})")


main()
