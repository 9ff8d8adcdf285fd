"""The networks of models.lua for PyTorch, whose parameters have the same names."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def training(model, criterion):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    return model, optimizer, criterion


def to_classes(model):
    return training(model, nn.CrossEntropyLoss())


class Inverted(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        wide = 4 * inputs
        self.residual = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.body(x)
        return x + y if self.residual else y


def mobilenet(_):
    return to_classes(nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        Inverted(32, 32, 1), Inverted(32, 64, 2), Inverted(64, 64, 1), Inverted(64, 96, 2),
        Inverted(96, 96, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)))


class Next(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.down(F.gelu(self.up(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


def convnext(_):
    return to_classes(nn.Sequential(
        nn.Conv2d(3, 96, 4, 4), Next(96), Next(96), nn.Conv2d(96, 192, 2, 2), Next(192), Next(192),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10)))


def twice(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = twice(3, 32), twice(32, 64), twice(64, 128)
        self.rise2, self.up2 = nn.ConvTranspose2d(128, 64, 2, 2), twice(128, 64)
        self.rise1, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), twice(64, 32)
        self.head = nn.Conv2d(32, 4, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([b, self.rise2(c)], 1))
        return self.head(self.up1(torch.cat([a, self.rise1(b)], 1)))


def unet(_):
    return to_classes(UNet())


class ViT(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(torch.empty(1, 64, width))
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0,
                                           activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(x).mean(1))


def vit(_):
    return to_classes(ViT(192, 4))


class Mix(nn.Module):
    def __init__(self, width, positions):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up1 = nn.Linear(positions, 2 * positions)
        self.down1 = nn.Linear(2 * positions, positions)
        self.up2, self.down2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.down1(F.gelu(self.up1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        return x + self.down2(F.gelu(self.up2(self.norm2(x))))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 8, 8)
        self.layers = nn.Sequential(*(Mix(128, 64) for _ in range(4)))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def mixer(_):
    return to_classes(Mixer())


class Grouped(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x):
        return x + self.body(x)


def groupnorm(_):
    return to_classes(nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), Grouped(64), Grouped(64), Grouped(64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)))


def autoencoder(_):
    return training(nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, 2, 1), nn.InstanceNorm2d(64), nn.LeakyReLU(0.2),
        nn.Conv2d(64, 128, 4, 2, 1), nn.InstanceNorm2d(128), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.InstanceNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()), nn.MSELoss())


class Larger(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, 2, 1)
        self.second, self.last = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 12, 3, padding=1)

    def forward(self, x):
        y = F.interpolate(F.relu(self.first(x)), scale_factor=2, mode="bilinear",
                          align_corners=False)
        return F.pixel_shuffle(self.last(F.relu(self.second(y))), 2)


def superresolution(_):
    return training(Larger(), nn.L1Loss())


def volumes(_):
    return to_classes(nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 10)))


class Gate(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.gates = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        a, b = self.gates(x).chunk(2, 1)
        return x + self.mix(a.tanh() * b.sigmoid())


def wavenet(_):
    return to_classes(nn.Sequential(
        nn.Conv1d(1, 64, 1), *(Gate(64, 2 ** i) for i in range(6)), nn.Conv1d(64, 16, 1)))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.rnn = nn.GRU(128, 256, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(512, 10)

    def forward(self, ids):
        return self.head(self.rnn(self.embedding(ids))[0].mean(1))


def gru(_):
    return to_classes(Reader())


class Translator(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.transformer = nn.Transformer(width, 4, 2, 2, 4 * width, dropout=0, batch_first=True)
        self.head = nn.Linear(width, 1000)

    def forward(self, ids):
        x, mask = self.embedding(ids), nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.transformer(x, x, tgt_mask=mask))


def transformer(_):
    return training(Translator(256), lambda scores, y: F.cross_entropy(scores.flatten(0, 1),
                                                                       y.flatten()))


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(50000, 64), nn.Embedding(50000, 64)
        self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(),
                                  nn.Linear(64, 1))

    def forward(self, pairs):
        users, items = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.body(torch.cat([users, items], 1)).squeeze(1)


def recommender(_):
    return training(Recommender(), nn.BCEWithLogitsLoss())


MODELS = {f.__name__: f for f in (
    mobilenet, convnext, unet, vit, mixer, groupnorm, autoencoder, superresolution, volumes,
    wavenet, gru, transformer, recommender)}
