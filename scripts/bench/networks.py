"""The networks of train_peer.py and scale_peer.py for PyTorch, with optimizers and losses.

Each matches the one of the same name in cases.lua or models.lua. Optimizers are fused.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from models import MODELS


def sine(_, hidden):
    layers = []
    for inputs in (2, hidden, hidden):
        layers += [nn.Conv2d(inputs, hidden, 1), nn.BatchNorm2d(hidden), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(hidden, 1, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), nn.MSELoss()


def conv(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, 1), nn.BatchNorm2d(width)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, small):
        super().__init__()
        self.conv1 = conv(3, 64, 3, 1) if small else conv(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = self.layer(64, 64, 1), self.layer(64, 128, 2)
        self.layer3, self.layer4 = self.layer(128, 256, 2), self.layer(256, 512, 2)
        self.fc = nn.Linear(512, 10)

    @staticmethod
    def layer(inputs, width, stride):
        return nn.Sequential(Block(inputs, width, stride), Block(width, width, 1))

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet18(_, stem, *__):
    model = ResNet(stem == "cifar")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4,
                                fused=True)
    return model, optimizer, nn.CrossEntropyLoss()


def cnn(_):
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    return model, optimizer, nn.CrossEntropyLoss()


class Conv1D(nn.Module):
    """A linear layer with its weight as (inputs, outputs), as GPT-2 has it."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Layer(nn.Module):
    """Attention and a network of two layers, each after a norm and added."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Conv1D(3 * width, width),
                                   "c_proj": Conv1D(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(4 * width, width),
                                  "c_proj": Conv1D(width, 4 * width)})

    def forward(self, x):
        b, t, width = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(b, t, 3, self.heads, -1)
        y = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(b, t, width))
        y = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](y)


class GPT(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary=65):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(context, width),
            "h": nn.Sequential(*(Layer(width, heads) for _ in range(layers))),
            "ln_f": nn.LayerNorm(width)})

    def forward(self, ids):
        net = self.transformer
        x = net["wte"](ids) + net["wpe"](torch.arange(ids.shape[1], device=ids.device))
        return F.linear(net["ln_f"](net["h"](x)), net["wte"].weight)


def flat_cross_entropy(scores, y):
    return F.cross_entropy(scores.flatten(0, 1), y.flatten())


def gpt(layers, width, heads, context, _, vocabulary=65):
    model = GPT(layers, width, heads, context, vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    return model, optimizer, flat_cross_entropy


class Recurrent(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.rnn = nn.LSTM(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, 65)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def lstm(layers, width, *_):
    model = Recurrent(layers, width)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), flat_cross_entropy


def mlp(inputs, hidden, outputs, _):
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    return model, optimizer, nn.CrossEntropyLoss()


NETWORKS = {"sine": sine, "resnet18": resnet18, "cnn": cnn, "gpt": gpt, "lstm": lstm, "mlp": mlp,
            **MODELS}
