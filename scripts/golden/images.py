#!/usr/bin/env python3
"""Small images of every kind and what Pillow decodes them to, for spec/images_spec.lua:
files in spec/golden/images, values in spec/golden/images.lua.

Needs Pillow and numpy: python3 scripts/golden/images.py. Files and values belong
together, so all are made anew.
"""
import io
import os
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "spec", "golden")
FOLDER = os.path.join(HERE, "images")
HEIGHT, WIDTH = 11, 19  # odd: blocks and colour samples that are not whole

y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
RGB = np.stack([x * 13 % 256, y * 23 % 256, (x * 7 + y * 11 + 40) % 256], -1).astype(np.uint8)
GRAY = ((x * 9 + y * 5) % 256).astype(np.uint8)
COLOUR, PLAIN = Image.fromarray(RGB), Image.fromarray(GRAY)

# name -> {mode: the image}, what must come out
wanted = {}


def put(name, data):
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(data)


def expect(name, **modes):
    wanted[name] = {mode: np.asarray(image) for mode, image in modes.items()}


def jpeg(name, image, exif=None, **options):
    out = io.BytesIO()
    if exif:
        options["exif"] = exif
    image.save(out, "JPEG", **options)
    put(name, out.getvalue())
    read = Image.open(io.BytesIO(out.getvalue()))
    expect(name, rgb=read.convert("RGB"))
    return out.getvalue()


# ---- JPEG ----

jpeg("baseline.jpg", COLOUR, quality=80)
jpeg("full_colour.jpg", COLOUR, quality=95, subsampling=0)
jpeg("half_colour.jpg", COLOUR, quality=70, subsampling=1)
jpeg("progressive.jpg", COLOUR, quality=80, progressive=True)
jpeg("restarts.jpg", COLOUR, quality=60, restart_marker_blocks=1)
jpeg("gray.jpg", PLAIN, quality=85)
wanted["gray.jpg"]["unchanged"] = np.asarray(Image.open(os.path.join(FOLDER, "gray.jpg")))
inks = jpeg("cmyk.jpg", COLOUR.convert("CMYK"), quality=90)
# The same samples, said to be YCCK: the last byte of Adobe's marker.
at = inks.index(b"Adobe") + 11
assert inks[at] == 0
put("ycck.jpg", inks[:at] + b"\2" + inks[at + 1:])
expect("ycck.jpg", rgb=Image.open(os.path.join(FOLDER, "ycck.jpg")).convert("RGB"))
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    jpeg(f"orientation{orientation}.jpg", COLOUR, exif=exif, quality=80)
base = wanted["orientation1.jpg"]["rgb"]
for orientation in range(1, 9):
    name = f"orientation{orientation}.jpg"
    assert (wanted[name].pop("rgb") == base).all()
    stored = Image.open(os.path.join(FOLDER, name))
    wanted[name]["rgb"] = np.asarray(ImageOps.exif_transpose(stored))


# ---- PNG: written here, as Pillow does not write all kinds ----

def chunk(kind, body):
    return (struct.pack(">I", len(body)) + kind + body
            + struct.pack(">I", zlib.crc32(kind + body)))


def png(name, bits, color, rows, before=b"", after=b""):
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    put(name, b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, color, 0, 0, 0))
        + before + chunk(b"IDAT", zlib.compress(raw)) + after + chunk(b"IEND", b""))


def luma(image):
    return Image.fromarray(image).convert("L")


def three_channels(gray):
    return np.repeat(gray[:, :, None], 3, 2)


png("rgb.png", 8, 2, RGB)
expect("rgb.png", rgb=RGB, unchanged=RGB, gray=luma(RGB))
png("gray.png", 8, 0, GRAY)
expect("gray.png", rgb=three_channels(GRAY), unchanged=GRAY, gray=GRAY)
alpha = (255 - GRAY)[:, :, None]
png("rgba.png", 8, 6, np.concatenate([RGB, alpha], 2))
expect("rgba.png", rgb=RGB, unchanged=np.concatenate([RGB, alpha], 2), gray=luma(RGB))
png("gray_alpha.png", 8, 4, np.concatenate([GRAY[:, :, None], alpha], 2))
expect("gray_alpha.png", rgb=three_channels(GRAY), gray=GRAY)
deep = (RGB.astype(np.uint16) << 8) + 37 * y[:, :, None].astype(np.uint16) % 256
png("rgb16.png", 16, 2, deep.astype(">u2"))
nearest = np.round(deep / 257).astype(np.uint8)  # where Pillow drops the lower byte
expect("rgb16.png", rgb=nearest)
palette = bytes(range(0, 48, 1))
indexed = (GRAY % 16).astype(np.uint8)
png("palette.png", 8, 3, indexed, before=chunk(b"PLTE", palette))
expect("palette.png", rgb=np.frombuffer(palette, np.uint8).reshape(-1, 3)[indexed])
png("transparent.png", 8, 3, indexed,
    before=chunk(b"PLTE", palette) + chunk(b"tRNS", b"\0\x80"))
expect("transparent.png", rgb=np.frombuffer(palette, np.uint8).reshape(-1, 3)[indexed])
tag = struct.pack(">2sHIHHHIHH", b"MM", 42, 8, 1, 0x0112, 3, 1, 6, 0)
png("orientation6.png", 8, 2, RGB, before=chunk(b"eXIf", tag))
expect("orientation6.png", rgb=np.rot90(RGB, -1))
png("orientation6_after.png", 8, 2, RGB, after=chunk(b"eXIf", tag))
expect("orientation6_after.png", rgb=np.rot90(RGB, -1))

for name in ("rgb.png", "gray.png", "rgba.png", "palette.png", "gray_alpha.png"):
    ours = wanted[name]["rgb"]
    assert (np.asarray(Image.open(os.path.join(FOLDER, name)).convert("RGB")) == ours).all(), name

# ---- results ----

lines = ["-- Made by scripts/golden/images.py: files of spec/golden/images as Pillow decodes",
         "-- them. mode = {height, width, channels, the pixels in hexadecimal digits}",
         "return {"]
for name, modes in wanted.items():
    for mode, image in sorted(modes.items()):
        if image.ndim == 2:
            image = image[:, :, None]
        h, w, c = image.shape
        digits = np.ascontiguousarray(image).tobytes().hex()
        lines.append(f'  {{"{name}", "{mode}", {h}, {w}, {c},')
        pieces = [digits[i:i + 88] for i in range(0, len(digits), 88)]
        lines += [f'    {"" if i == 0 else ".. "}"{piece}"' for i, piece in enumerate(pieces)]
        lines.append("  },")
lines.append("}")
with open(os.path.join(HERE, "images.lua"), "w", encoding="utf-8") as f:
    f.write("\n".join(lines) + "\n")
print(len(wanted), "files")
