#!/usr/bin/env python3
"""Writes spec/golden/models: what PyTorch's models answer that dm.models has too.

Weights come from a formula that both sides know, so that the file holds little:
names and shapes, ids or the image's formula, the loss, the scores, the norm of each
gradient, and what dtype each module gives under autocast. GPT-2 and BERT are Hugging
Face's own (transformers), the vision transformer is torchvision's, written out.
Wants PyTorch and transformers; the suite does not.

    python3 scripts/golden/hugging_face.py
"""
import io

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import store


# ---- torchvision's vision transformer ----------------------------------------

class Block(nn.Module):
    def __init__(self, dim, heads, mlp):
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.ln_2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp), nn.GELU(), nn.Dropout(0.0),
                                 nn.Linear(mlp, dim), nn.Dropout(0.0))

    def forward(self, x):
        y = self.ln_1(x)
        x = self.dropout(self.self_attention(y, y, y, need_weights=False)[0]) + x
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    def __init__(self, length, layers, dim, heads, mlp):
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, length, dim))
        self.dropout = nn.Dropout(0.0)
        self.layers = nn.Sequential()
        for i in range(layers):
            self.layers.add_module(f"encoder_layer_{i}", Block(dim, heads, mlp))
        self.ln = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x):
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class Vit(nn.Module):
    def __init__(self, image, patch, classes, layers, dim, heads, mlp):
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.conv_proj = nn.Conv2d(3, dim, patch, patch)
        self.encoder = Encoder((image // patch) ** 2 + 1, layers, dim, heads, mlp)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(dim, classes))

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        return self.heads(self.encoder(x)[:, 0])


# ---- shared configurations -----------------------------------------------------

def formula(shape, size, k):
    """Numbers in [-1/2, 1/2) that look like chance, times size; another k, others."""
    i = torch.arange(torch.Size(shape).numel()) + 131 * k
    return (((i * i + 7919 * i) % 1021).float() / 1021 - 0.5).reshape(shape) * size


def fill(model):
    with torch.no_grad():
        for k, (name, p) in enumerate(sorted(model.named_parameters())):
            is_norm = any(word in name for word in ("ln_", "ln.", "LayerNorm"))
            p.copy_(formula(p.shape, 0.5, k + 1) + (is_norm and name.endswith("weight")))


# ---- Lua -------------------------------------------------------------------------

def lua(v):
    if isinstance(v, torch.Tensor):
        return lua(v.tolist())
    if isinstance(v, dict):
        return "{" + ",".join(f'["{k}"]={lua(x)}' for k, x in v.items()) + "}"
    if isinstance(v, (list, tuple)):
        return "{" + ",".join(lua(x) for x in v) + "}"
    if isinstance(v, str):
        return f'"{v}"'
    return f"{v:.7g}" if isinstance(v, float) else str(v)


def dtypes(model, call):
    """What each module gives under autocast, by name."""
    seen = {}

    def note(name):
        def hook(_, __, out):
            out = out[0] if isinstance(out, tuple) else out
            if isinstance(out, torch.Tensor):
                seen[name] = str(out.dtype).replace("torch.", "")
        return hook
    handles = [m.register_forward_hook(note(n)) for n, m in model.named_modules() if n]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call()
    for h in handles:
        h.remove()
    return seen


def write(file, model, name, opts, scores, labels, **inputs):
    model.eval()
    fill(model)
    loss = nn.functional.cross_entropy(scores().flatten(0, -2), labels.flatten())
    loss.backward()
    params = sorted(model.named_parameters())
    fields = {"model": name, "opts": opts, "labels": labels + 1, **inputs,
              "names": sorted(model.state_dict()),
              "shapes": {n: list(p.shape) for n, p in params},
              "loss": loss.item(), "scores": scores(),
              "norms": {n: p.grad.norm().item() for n, p in params},
              "dtypes": dtypes(model, scores)}
    file.write(",\n".join(["{" + ",\n".join(f"{k}={lua(v)}" for k, v in fields.items()) + "}"]))
    file.write(",\n")


def main():
    torch.set_num_threads(1)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
    labels = torch.tensor([[1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 0]])
    with io.StringIO() as file:
        file.write(f"-- What models of PyTorch {torch.__version__} answer; written by "
                   "scripts/golden/hugging_face.py.\n-- luacheck: ignore\nreturn {\n")
        vit = Vit(8, 4, 3, 2, 8, 2, 12)
        image = formula((2, 3, 8, 8), 4, 0)
        write(file, vit, "vit_b_16",
              dict(image_size=8, patch_size=4, num_classes=3, num_layers=2, num_heads=2,
                   hidden_dim=8, mlp_dim=12),
              lambda: vit(image), torch.tensor([2, 0]))
        gpt = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=10,
                                         n_positions=8, bos_token_id=None, eos_token_id=None))
        write(file, gpt, "gpt2", dict(n_layer=2, n_head=2, n_embd=8, vocab_size=10,
                                      block_size=8),
              lambda: gpt(ids).logits, labels, ids=ids + 1)
        bert = BertForMaskedLM(BertConfig(
            vocab_size=10, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=12, max_position_embeddings=8))
        mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
        types = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
        write(file, bert, "bert",
              dict(vocab_size=10, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=12, max_position_embeddings=8),
              lambda: bert(ids, attention_mask=mask, token_type_ids=types).logits, labels,
              ids=ids + 1, mask=mask, types=types + 1)
        file.write("}\n")
        store.save("models", file.getvalue(), torch.__version__)


if __name__ == "__main__":
    main()
