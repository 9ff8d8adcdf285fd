#!/usr/bin/env python3
"""Prints what spec/cifar_spec.lua expects of resnet18: numbers of parameters,
and the logits and a gradient under weights that both sides make from a formula.
The network is torchvision's, written out. Wants PyTorch; the suite does not.

    python3 scripts/golden/resnet.py
"""
import torch
from torch import nn


def conv(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (self.downsample(x) if self.downsample else x)).relu()


class ResNet18(nn.Module):
    def __init__(self, classes, small_stem):
        super().__init__()
        self.conv1 = conv(3, 64, 3, 1) if small_stem else conv(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        widths = [64, 64, 128, 256, 512]
        for i in range(1, 5):
            stride = 1 if i == 1 else 2
            setattr(self, f"layer{i}", nn.Sequential(Block(widths[i - 1], widths[i], stride),
                                                     Block(widths[i], widths[i], 1)))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def formula(shape, size):
    """Numbers in [-1/2, 1/2) that look like chance, times size."""
    i = torch.arange(torch.Size(shape).numel())
    return (((i * i + 7919 * i) % 1021).float() / 1021 - 0.5).reshape(shape) * size


def fill(model):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(formula(p.shape, 0.125) + (1 if p.dim() == 1 else 0))


def show(name, values):
    print(f"{name} = {{" + ", ".join(f"{v:.6g}" for v in values.tolist()) + "},")


torch.set_num_threads(1)
print("parameters:", [sum(p.numel() for p in ResNet18(*how).parameters())
                      for how in ((1000, False), (10, False), (10, True))])
for small in (False, True):
    print(f"small_stem = {small}")
    model = ResNet18(10, small)
    fill(model)
    x = formula((4, 3, 32, 32), 4)
    loss = nn.functional.cross_entropy(model(x), torch.tensor([2, 7, 0, 9]))
    loss.backward()
    print(f"loss = {loss.item():.7g}, gradient = {model.conv1.weight.grad.norm().item():.7g},")
    model.eval()
    show("eval", model(x)[1])
