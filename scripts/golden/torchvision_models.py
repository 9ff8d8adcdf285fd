#!/usr/bin/env python3
"""Prints what spec/models_spec.lua expects of dm.models: numbers of parameters,
checksums of names, shapes and order, and logits, loss and gradient under weights that both
sides make from a formula. Wants PyTorch and torchvision; the suite does not.

    python3 scripts/golden/torchvision_models.py
"""
import torch
import torchvision
from torch import nn


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


def show(values):
    return "{" + ", ".join(f"{v:.8g}" for v in values.tolist()) + "}"


torch.set_num_threads(1)
for name in ("resnet34", "resnet50", "resnet101", "resnet152", "efficientnet_b0",
             "efficientnet_b4", "mobilenet_v2", "vgg11", "vgg16", "vgg16_bn"):
    print(f"  {name} = {{{counts(torchvision.models.get_model(name))}}},")

print("in float64, small_head for vgg, without chance:")
for name, how in (("resnet50", {}), ("mobilenet_v2", {"dropout": 0.0}), ("vgg11_bn", {}),
                  ("efficientnet_b0", {"dropout": 0.0, "stochastic_depth_prob": 0.0})):
    model = torchvision.models.get_model(name, num_classes=10, **how)
    if name == "vgg11_bn":
        model.avgpool = nn.AdaptiveAvgPool2d(1)
        model.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(512, 10))
    model.double()
    fill(model)
    x = formula((4, 3, 32, 32), 4)
    loss = nn.functional.cross_entropy(model(x), torch.tensor([2, 7, 0, 9]))
    loss.backward()
    first = next(model.parameters())
    print(f"  {name} = {{loss = {loss.item():.9g}, gradient = {first.grad.norm().item():.9g},")
    model.eval()
    print(f"    eval = {show(model(x)[1][:4])}}},")
