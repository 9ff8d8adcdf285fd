#!/usr/bin/env python3
"""Writes spec/golden/tensorboard: event files as torch.utils.tensorboard writes them.

spec/tensorboard_spec.lua makes the same calls. Every event has the wall time WALL, so that the
bytes are the same each time. Maps of several keys have no order, so that each session has one
hyperparameter. Wants PyTorch, tensorboard and Pillow; the suite does not.

    python3 scripts/golden/summaries.py
"""
import glob
import json
import os
import shutil
import tempfile
import time

import numpy as np
import PIL
import tensorboard
import torch
from torch.utils.tensorboard import SummaryWriter

import store

FOLDER = os.path.join(store.FOLDER, "tensorboard")
WALL = 1700000000.25


def ramp(*shape):
    n = int(np.prod(shape))
    return torch.arange(n, dtype=torch.float32).reshape(shape) / n


def scalars(w):
    for value, step in ((0.25, 1), (-1.5, 300), (1e20, 70000), (0.0, 0), (2.0, -1), (0.1, 2**40)):
        w.add_scalar("loss/train", value, step)
    w.add_scalar("häuser", 7, 127)
    w.add_scalar("x" * 150, 0.5, 128)
    w.add_scalar("new", 0.1, 3, new_style=True)
    w.add_scalar("double", 0.1, 3, new_style=True, double_precision=True)


def others(w):
    values = torch.tensor([1.0, 2, 2, 3, 7.5, 8, 8, 1.5])
    w.add_histogram("h/default", values, 4)
    w.add_histogram("h/negative", -values, 5)
    w.add_histogram("h/equal", values, 6, bins=5)
    w.add_histogram("h/limits", values, 7, bins=[0.0, 1.0, 2.0, 8.0, 9.0, 10.0])
    w.add_histogram("h/fewer", values, 8, max_bins=300)
    w.add_histogram("h/one", torch.tensor([2.0]), 9, bins=2)
    w.add_histogram_raw("h/raw", 0, 2, 3, 3.0, 5.0, [1.0, 2.0], [1, 2], 10)
    w.add_text("t", "# häuser\n\n**bold**", 11)
    labels = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0])
    predictions = torch.tensor([0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 1.0, 1.0])
    w.add_pr_curve("pr", labels, predictions, 12, num_thresholds=5)
    w.add_pr_curve("pr/weighted", labels, predictions, 13, num_thresholds=9, weights=0.5)
    w.add_custom_scalars({"a": {"b": ["Multiline", ["loss/train", "loss/valid"]],
                                "c": ["Margin", ["m", "low", "high"]]}})
    w.add_custom_scalars_multilinechart(["loss/train"])


def images(w):
    w.add_image("CHW", ramp(3, 4, 5), 1)
    w.add_image("HWC", (ramp(4, 5, 4) * 255).to(torch.uint8), 2, dataformats="HWC")
    w.add_image("HW", ramp(4, 5) * 1.5 - 0.25, 3, dataformats="HW")
    w.add_image("WH", ramp(4, 5), 3, dataformats="WH")
    w.add_image("gray", ramp(1, 4, 5), 4)
    w.add_images("NCHW", ramp(10, 1, 2, 3), 5)
    w.add_images("NHWC", (ramp(2, 2, 3, 3) * 255).to(torch.uint8), 6, dataformats="NHWC")


def hparams(w):
    w.add_hparams({"lr": 0.5}, {"hp/loss": 0.25}, run_name="number", global_step=2)
    w.add_hparams({"name": "häuser"}, {}, run_name="text", hparam_domain_discrete={
        "name": ["häuser", ""]})
    w.add_hparams({"zero": 0}, {"b": 1, "a": -0.0}, run_name="domain",
                  hparam_domain_discrete={"zero": [0, 1]})


def run(root, name, fill, **options):
    with SummaryWriter(os.path.join(root, name), **options) as w:
        fill(w)


def main():
    time.time = lambda: WALL
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tempfile.TemporaryDirectory() as root:
        run(root, "scalars", scalars)
        run(root, "others", others)
        run(root, "images", images)
        run(root, "hparams", hparams)
        run(root, "several", lambda w: w.add_scalars("a/b", {"c": 1.0, "d": 2.0}, 3))
        run(root, "purged", lambda w: w.add_scalar("x", 1.0, 5), purge_step=5)
        for path in glob.glob(os.path.join(root, "**", "events*"), recursive=True):
            name = os.path.relpath(os.path.dirname(path), root)
            if name in ("hparams", "several"):  # these hold folders alone
                continue
            os.makedirs(os.path.join(FOLDER, os.path.dirname(name)), exist_ok=True)
            shutil.copy(path, os.path.join(FOLDER, name + ".events"))
    with open(os.path.join(FOLDER, "versions.json"), "w", encoding="ascii") as f:
        json.dump({"torch": torch.__version__, "tensorboard": tensorboard.__version__,
                   "numpy": np.__version__, "pillow": PIL.__version__}, f)


if __name__ == "__main__":
    main()
