"""PyTorch's side of cuda_steps.lua: the same training steps, as PyTorch's users tune them.

    python3 steps_peer.py MODE NAME...

MODE is eager or a mode of torch.compile ("reduce-overhead" is the one with CUDA graphs). One line of JSON per model, as it comes: milliseconds of
a step, the peak of memory in bytes, seconds until the first step was done. Optimizers are fused,
images are channels last, cudnn.benchmark is on. ViT and BERT are torchvision's and transformers',
where they are installed.
"""
import contextlib
import json
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from networks import GPT, NETWORKS, ResNet, flat_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FULL = DEVICE == "cuda"
torch.backends.cudnn.benchmark = True


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def ids(classes, *shape):
    return torch.randint(classes, shape, device=DEVICE)


def images(*shape):
    x = torch.randn(*shape, device=DEVICE)
    return x.contiguous(memory_format=torch.channels_last)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)


def of_networks(kind, *args):
    """A network of networks.py: model, optimizer and loss."""
    return NETWORKS[kind](*args)


# ---- the models: (model, optimizer, loss), x and y ------------------------------

def resnet18():
    model = ResNet(True).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    n, side = (128, 32) if FULL else (2, 8)
    return model, optimizer, nn.CrossEntropyLoss(), images(n, 3, side, side), ids(10, n)


def gpt2():
    width, heads, context, vocabulary, rows = ((768, 12, 1024, 50304, 16) if FULL
                                               else (16, 2, 8, 64, 2))
    model = GPT(12, width, heads, context, vocabulary)
    return (model, adamw(model), flat_cross_entropy, ids(vocabulary, rows, context),
            ids(vocabulary, rows, context))


def sine():
    size, hidden = (512, 256) if FULL else (4, 16)
    model, optimizer, loss = of_networks("sine", size, hidden)
    model.to(memory_format=torch.channels_last)
    x = images(1, 2, size, size)
    return model, optimizer, loss, x, images(1, 1, size, size)


def mlp():
    sizes = (784, 128, 10, 32) if FULL else (16, 16, 8, 8)
    model, optimizer, loss = of_networks("mlp", *sizes)
    return (model, optimizer, loss, torch.randn(sizes[3], sizes[0], device=DEVICE),
            ids(sizes[2], sizes[3]))


def lstm():
    width, rows, steps = (512, 64, 64) if FULL else (16, 2, 8)
    model, optimizer, loss = of_networks("lstm", 2, width)
    return (model, optimizer, loss, torch.randn(rows, steps, width, device=DEVICE),
            ids(65, rows, steps))


def vit():
    from torchvision.models import VisionTransformer
    side, patch, heads, width, classes, n = ((224, 16, 6, 384, 1000, 128) if FULL
                                             else (16, 8, 2, 16, 8, 2))
    model = VisionTransformer(image_size=side, patch_size=patch, num_layers=12, num_heads=heads,
                              hidden_dim=width, mlp_dim=4 * width, num_classes=classes)
    return model, adamw(model), nn.CrossEntropyLoss(), images(n, 3, side, side), ids(classes, n)


def bert():
    from transformers import BertConfig, BertForMaskedLM
    vocabulary, width, heads, context, rows = ((30522, 768, 12, 128, 32) if FULL
                                               else (64, 16, 2, 8, 2))
    config = BertConfig(vocab_size=vocabulary, hidden_size=width, num_attention_heads=heads,
                        intermediate_size=4 * width, max_position_embeddings=context,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForMaskedLM(config)

    def loss(scores, y):
        return F.cross_entropy(scores.logits.flatten(0, 1), y.flatten())
    return model, adamw(model), loss, ids(vocabulary, rows, context), ids(vocabulary, rows, context)


MODELS = {  # the first word of a name in steps.lua: the model, autocast's dtype, largest norm
    "resnet18": (resnet18, torch.float16, None), "gpt2": (gpt2, torch.bfloat16, 1.0),
    "quantised": (sine, torch.float16, None), "mlp": (mlp, torch.float16, None),
    "vit_s_16": (vit, torch.float16, None), "bert": (bert, torch.bfloat16, None),
    "lstm": (lstm, torch.float16, None),
}


# ---- a step, and its time -----------------------------------------------------------

def step_of(name, mode):
    make, dtype, most = MODELS[name]
    torch.manual_seed(1)
    model, optimizer, loss, x, y = make()
    model.to(DEVICE)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == torch.float16, init_scale=2.0**10)
    region = torch.autocast(DEVICE, dtype=dtype) if FULL else contextlib.nullcontext()

    def forward(x, y):
        with region:
            return loss(model(x), y)
    if mode != "eager":
        torch.compiler.reset()
        forward = torch.compile(forward, mode=None if mode == "default" else mode, dynamic=False)

    def step():
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(forward(x, y)).backward()
        if most:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), most)
        scaler.step(optimizer)
        scaler.update()
    return step


def seconds(step, n):
    synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        step()
    synchronize()
    return (time.perf_counter() - begin) / n


def measure(name, mode):
    step = step_of(name, mode)
    first = seconds(step, 1)
    seconds(step, 3)
    pace = seconds(step, 3)
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        seconds(step, 1)
    n = max(1, min(200, int(0.1 / pace)))
    ms = 1e3 * statistics.median(seconds(step, n) for _ in range(5))
    peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
    print(json.dumps({"name": name, "mode": mode, "ms": ms, "peak": peak, "first": first}),
          flush=True)


def main():
    mode, *names = sys.argv[1:]
    for name in names or MODELS:
        try:
            measure(name, mode)
        except Exception as e:  # what one model cannot do says nothing of the others
            print(json.dumps({"name": name, "mode": mode, "why": f"{type(e).__name__}: {e}"[:200]}),
                  flush=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


main()
