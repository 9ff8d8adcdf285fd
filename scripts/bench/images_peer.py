"""torchvision's side of images.lua; the other side is images_ours.lua. Workers stay from
round to round, which is the faster way.
"""
import sys
import time

from answers import number, serve

try:
    import torch
    from torch.utils.data import DataLoader, SubsetRandomSampler
    from torchvision import __version__ as version
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder
except ImportError:
    sys.exit()  # the driver's table does without this side

STEPS = {"small": [T.RandomCrop(32, padding=4)], "photos": [T.Resize(72), T.RandomCrop(64)]}
CURRENT = {}


def begin(kind, workers, images, folder):
    torch.set_num_threads(1)
    data = ImageFolder(folder, T.Compose(STEPS[kind] + [
        T.RandomHorizontalFlip(), T.ToTensor(),
        T.Normalize([0.49, 0.48, 0.45], [0.25, 0.24, 0.26])]))
    n = min(len(data), images)
    indices = [i * len(data) // n for i in range(n)]
    loader = DataLoader(data, batch_size=128, num_workers=workers,
                        sampler=SubsetRandomSampler(indices), persistent_workers=workers > 0)
    CURRENT.update(loader=loader, n=n)
    return {"n": n, "version": f"{torch.__version__},torchvision-{version}"}


def one_round():
    start, seen = time.perf_counter(), 0
    for x, _ in CURRENT["loader"]:
        seen += len(x)
    assert seen == CURRENT["n"]
    return {"rate": seen / (time.perf_counter() - start)}


def answer(line):
    name, *words = line.split()
    return {"begin": begin, "round": one_round}[name](*map(number, words))


serve(torch, answer)
