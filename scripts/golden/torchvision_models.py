#!/usr/bin/env python3
"""Writes spec/golden/torchvision_models.lua, which spec/models_spec.lua compares dm.models with:
names and classes of all modules, numbers of parameters, checksums of names, shapes and order, and
scores, loss and gradient in float64 under weights that both sides make from a formula. Wants
PyTorch and torchvision; the suite does not.

    python3 scripts/golden/torchvision_models.py
"""
import os

import torch
import torchvision
from torch import nn

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "spec", "golden",
                    "torchvision_models.lua")


def checksum(lines):
    total = 0
    for line in lines:
        for byte in f"{line}\n".encode():
            total = (total * 33 + byte) % 2**32
    return total


def counts(model):
    """Parameters, and the checksums of the state's names and shapes, and of the order."""
    state = sorted(model.state_dict().items())
    shapes = checksum(f"{name} {'x'.join(map(str, t.shape))}" for name, t in state)
    order = checksum(name for name, _ in model.named_parameters())
    return f"{sum(p.numel() for p in model.parameters())}, {shapes}, {order}"


def formula(shape, size):
    """Numbers in [-1/2, 1/2) that look like chance, times size."""
    i = torch.arange(torch.Size(shape).numel())
    return (((i * i + 7919 * i) % 1021).double() / 1021 - 0.5).reshape(shape) * size


def fill(model):
    """Weights so large that values keep their size; 1 + a little where batch norms scale."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.copy_(formula(p.shape, 0.125) + (1 if name.endswith("weight") else 0))
            else:
                p.copy_(formula(p.shape, (24 / (p.numel() / p.shape[0])) ** 0.5))


def tree(model):
    """The classes of a module and of those below, with their names, in order. Children of one
    structure that stand together share one entry: "Sequential(0,1=Linear)"."""
    groups = []
    for name, child in model.named_children():
        below = tree(child)
        if groups and groups[-1][1] == below:
            groups[-1][0].append(name)
        else:
            groups.append(([name], below))
    # The linear layer of MultiheadAttention, which quantization leaves alone.
    name = type(model).__name__.replace("NonDynamicallyQuantizableLinear", "Linear")
    inner = " ".join(f"{','.join(names)}={below}" for names, below in groups)
    return f"{name}({inner})" if groups else name


def small(name, how):
    """A model of ten classes without chance, with a small head where torchvision's holds most
    parameters."""
    model = torchvision.models.get_model(name, num_classes=10, **how)
    if name == "vgg11_bn":
        model.avgpool = nn.AdaptiveAvgPool2d(1)
        model.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(512, 10))
    elif name == "alexnet":
        model.classifier = nn.Linear(256 * 6 * 6, 10)
    for module in model.modules():
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    return model.double()


def answers(name, side, with_gradient, how):
    """The loss and the first parameter's gradient in training; scores of row 2 in evaluation."""
    model = small(name, how)
    fill(model)
    x = formula((4, 3, side, side), 4)
    loss = nn.functional.cross_entropy(model(x), torch.tensor([2, 7, 0, 9]))
    text = f"side={side},loss={loss.item():.9g},"
    if with_gradient:
        loss.backward()
        text += f"gradient={next(model.parameters()).grad.norm().item():.9g},"
    scores = model.eval()(x)[1][:4].tolist()
    return text + "eval={" + ",".join(f"{v:.8g}" for v in scores) + "}"


NAMES = """resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d
    wide_resnet50_2 efficientnet_b0 efficientnet_b4 mobilenet_v2 vgg11 vgg16 vgg16_bn vit_b_16
    alexnet densenet121 densenet161 densenet169 densenet201 convnext_tiny convnext_small
    convnext_base swin_t swin_s swin_b""".split()
# name -> the side of its images, whether the gradient is asked for, options
RESULTS = {
    "resnet50": (32, False, {}), "resnext50_32x4d": (32, False, {}),
    "mobilenet_v2": (32, True, {}), "vgg11_bn": (32, False, {}),
    "efficientnet_b0": (32, True, {}),
    "alexnet": (63, True, {}), "densenet121": (32, True, {}),
    "convnext_tiny": (34, True, {"layer_scale": 0.5}),
    "swin_t": (44, True, {}),
}


def main():
    torch.set_num_threads(1)
    with open(PATH, "w", encoding="ascii") as f:
        f.write(f"-- What torchvision {torchvision.__version__.split('+')[0]} has and answers;\n"
                "-- written by scripts/golden/torchvision_models.py.\n-- luacheck: ignore\n"
                "return {models={\n")
        for name in NAMES:
            with torch.device("meta"):
                model = torchvision.models.get_model(name)
            f.write(f'{name}={{counts={{{counts(model)}}},\ntree="{tree(model)}"}},\n')
        f.write("},results={\n")
        for name, how in RESULTS.items():
            f.write(f"{name}={{{answers(name, *how)}}},\n")
        f.write("}}\n")


main()
