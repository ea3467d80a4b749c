"""Reads the PNGs that browsers write, and counts colours in them."""

import struct
import zlib


class PngError(Exception):
    """Not a PNG of the kind that is expected."""


class Image:
    """Rows of pixels, three or four bytes each."""

    def __init__(self, width, height, depth, rows):
        self.width, self.height, self.depth, self.rows = width, height, depth, rows


def read_png(data):
    """An image of eight bits a channel, without interlacing."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise PngError("the screenshot is no PNG")
    place, header, packed = 8, None, []
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed.append(body)
        place += length + 12
    if header is None or header[2] != 8 or header[3] not in (2, 6) or header[6]:
        raise PngError(f"the screenshot is a PNG of another kind: {header}")
    width, height, depth = header[0], header[1], {2: 3, 6: 4}[header[3]]
    return Image(width, height, depth, unfiltered(zlib.decompress(b"".join(packed)), width * depth, height, depth))


def unfiltered(raw, stride, height, depth):
    """Rows as they were before the PNG's filters."""
    rows, before = [], bytearray(stride)
    for number in range(height):
        start = number * (stride + 1)
        kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        if kind == 1:
            for i in range(depth, stride):
                row[i] = (row[i] + row[i - depth]) & 255
        elif kind == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, before))
        elif kind == 3:
            for i in range(stride):
                left = row[i - depth] if i >= depth else 0
                row[i] = (row[i] + (left + before[i]) // 2) & 255
        elif kind == 4:
            for i in range(stride):
                left, corner = (row[i - depth], before[i - depth]) if i >= depth else (0, 0)
                row[i] = (row[i] + paeth(left, before[i], corner)) & 255
        elif kind:
            raise PngError(f"the screenshot has a filter {kind}")
        rows.append(row)
        before = row
    return rows


def paeth(left, above, corner):
    """Of three neighbours the one next to what they promise."""
    promised = left + above - corner
    return min((left, above, corner), key=lambda near: abs(promised - near))


def coloured_share(image, box):
    """The share of a box whose pixels have a colour: not white, grey or black, as text and axes are."""
    left, top = max(int(box["left"]), 0), max(int(box["top"]), 0)
    right = min(int(box["left"] + box["width"]), image.width)
    bottom = min(int(box["top"] + box["height"]), image.height)
    coloured = 0
    for row in image.rows[top:bottom]:
        for x in range(left * image.depth, right * image.depth, image.depth):
            pixel = row[x : x + 3]
            coloured += max(pixel) - min(pixel) > 40
    return coloured / max((right - left) * (bottom - top), 1)
