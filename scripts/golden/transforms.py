#!/usr/bin/env python3
"""Writes spec/golden/transforms.lua: what torchvision and Pillow make of two images.

Run by hand when a transform is added: scripts/golden/transforms.py. The specs read only
the file. Pillow 13 or newer: older ones make columns narrower first, whatever the sizes.

A case: a function of transforms.functional, the image's number, the arguments as Lua
passes them, and the result: its shape {C, H, W} and its bytes in hexadecimal digits.
"""

import os

import numpy as np
import PIL
import torch
import torchvision
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import (AutoAugment, AutoAugmentPolicy, RandAugment,
                                                TrivialAugmentWide, _apply_op)

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "spec", "golden",
                    "transforms.lua")
MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR,
         "bicubic": InterpolationMode.BICUBIC}


def waves(height, width):
    """An image with shades, edges and every colour."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 127 * np.sin(x / (2.1 + c) + c) * np.cos(y / (1.3 + c) - c)
              for c in range(3)]
    return np.stack(planes, -1).round().astype(np.uint8)


def noise(height, width):
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)


IMAGES = [waves(13, 17), noise(14, 8)]
lines = []


class Named(dict):
    """A table of options."""


def lua(v):
    if isinstance(v, Named):
        return "{" + ",".join(f"{k}={lua(x)}" for k, x in v.items()) + "}"
    if isinstance(v, (list, tuple)):
        return "{" + ",".join(map(lua, v)) + "}"
    return f'"{v}"' if isinstance(v, str) else repr(v)


def result(image):
    a = np.asarray(image)
    a = a[None] if a.ndim == 2 else a.transpose(2, 0, 1)
    return f"shape={lua(a.shape)},bytes=\"{a.tobytes().hex()}\""


def case(name, number, args, image):
    lines.append(f"{{name=\"{name}\",image={number},args={lua(args)},{result(image)}}},")


def cases(number):
    p = Image.fromarray(IMAGES[number - 1])
    for size in ([6, 5], [20, 24], [5, 21], [21, 5], [13, 9], [9, 17], [1, 1]):
        for mode in MODES:
            case("resize", number, [size, Named(interpolation=mode)],
                 F.resize(p, size, MODES[mode]))
    for size, most in ((7, None), (7, 8), (20, 30)):
        opts = Named(max_size=most) if most else Named()
        case("resize", number, [size, opts], F.resize(p, size, max_size=most))
    for size in ([5, 4], [6, 7], [19, 11], [20, 20], [4, 25]):
        case("center_crop", number, [size], F.center_crop(p, size))
    for mode in ("constant", "edge", "reflect", "symmetric"):
        for padding in (2, [1, 3], [4, 0, 1, 20]):
            case("pad", number, [padding, Named(padding_mode=mode)],
                 F.pad(p, padding, padding_mode=mode))
    case("pad", number, [1, Named(fill=[1, 20, 255])], F.pad(p, 1, fill=(1, 20, 255)))
    case("hflip", number, [], F.hflip(p))
    case("vflip", number, [], F.vflip(p))
    for n in (1, 3):
        case("rgb_to_grayscale", number, [n], F.to_grayscale(p, n))
    for kind in ("brightness", "contrast", "saturation", "sharpness"):
        for factor in (0, 0.3, 1, 1.7):
            case("adjust_" + kind, number, [factor],
                 getattr(F, "adjust_" + kind)(p, factor))
    for part in (-0.5, -0.13, 0, 0.25):
        case("adjust_hue", number, [part], F.adjust_hue(p, part))
    for bits in (1, 3, 8):
        case("posterize", number, [bits], F.posterize(p, bits))
    for threshold in (0, 100.5, 256):
        case("solarize", number, [threshold], F.solarize(p, threshold))
    for name in ("invert", "equalize", "autocontrast"):
        case(name, number, [], getattr(F, name)(p))
    for mode in ("nearest", "bilinear"):
        for degrees in (0, 17.3, 90, 180, -33):
            case("rotate", number, [degrees, Named(interpolation=mode, fill=9)],
                 F.rotate(p, degrees, MODES[mode], fill=9))


def outcomes(number, magnitude, mode):
    """Every image that one op of RandAugment may make, and what made it."""
    p = Image.fromarray(IMAGES[number - 1])
    space = RandAugment()._augmentation_space(31, p.size[::-1])
    for name, (magnitudes, signed) in space.items():
        much = float(magnitudes[magnitude]) if magnitudes.ndim else 0.0
        for sign in (1, -1) if signed else (1,):
            out = _apply_op(p, name, sign * much, MODES[mode], None)
            lines.append(f"{{rand=\"{name} {sign * much:.3g}\",image={number},"
                         f"magnitude={magnitude},interpolation=\"{mode}\",{result(out)}}},")


def tensors(number):
    """What torchvision computes of tensors: Pillow blurs otherwise, or not at all."""
    x = torch.from_numpy(IMAGES[number - 1].transpose(2, 0, 1).copy())

    def put(name, args, y):
        case(name, number, args, y.numpy().transpose(1, 2, 0))

    for size, sigma in ((3, 0.7), ([5, 3], [2.0, 0.5]), (5, 1.3)):
        put("gaussian_blur", [size, sigma], F.gaussian_blur(x, size, sigma))
    put("gaussian_blur", [3], F.gaussian_blur(x, 3))
    height, width = IMAGES[number - 1].shape[:2]
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    end = [[1.3, 2.1], [width - 2.9, 1.2], [width - 1.15, height - 3.4], [2.2, height - 2.35]]
    for mode in ("nearest", "bilinear"):
        put("perspective", [start, end, Named(interpolation=mode)],
            F.perspective(x, start, end, MODES[mode]))
        put("perspective", [start, end, Named(interpolation=mode, fill=[9, 0, 200])],
            F.perspective(x, start, end, MODES[mode], [9.0, 0.0, 200.0]))


def policies(number, magnitude):
    """What each change of AutoAugment makes of this magnitude, with either sign; likewise all that
    TrivialAugmentWide may make with two magnitudes; and the policies."""
    p = Image.fromarray(IMAGES[number - 1])

    def change(of, name, much):
        out = _apply_op(p, name, much, MODES["nearest"], None)
        lines.append(f'{{{of}="{name}",image={number},{result(out)}}},')

    for name, (m, signed) in AutoAugment()._augmentation_space(10, p.size[::-1]).items():
        much = float(m[magnitude]) if m.ndim else 0.0
        for sign in (1, -1) if signed else (1,):
            change(f"magnitude={magnitude},auto", name, sign * much)
    for name, (m, signed) in TrivialAugmentWide()._augmentation_space(2).items():
        for much in m.tolist() if m.ndim else [0.0]:
            for sign in (1, -1) if signed and much else (1,) if much or not signed else ():
                change("trivial", name, sign * much)
    for policy in AutoAugmentPolicy:
        text = "\\n".join(", ".join(f"{name} {p} {'-' if m is None else m}" for name, p, m in pair)
                         for pair in AutoAugment(policy).policies)
        lines.append(f'{{policy="{policy.value}",text="{text}"}},')


def main():
    for number in (1, 2):
        cases(number)
    outcomes(1, 9, "nearest")
    outcomes(2, 25, "bilinear")
    for number in (1, 2):
        tensors(number)
    policies(2, 7)
    with open(PATH, "w", encoding="ascii") as f:
        f.write(f"-- What torchvision {torchvision.__version__.split('+')[0]} with Pillow "
                f"{PIL.__version__} and PyTorch {torch.__version__.split('+')[0]} answers;\n"
                "-- written by scripts/golden/transforms.py.\n-- luacheck: ignore\n"
                "return {images={\n")
        for a in IMAGES:
            f.write(f"{{{result(a)}}},\n")
        f.write("},cases={\n" + "\n".join(lines) + "\n}}\n")


main()
