#!/usr/bin/env python3
"""Writes spec/golden/files: files as PyTorch, NumPy and Hugging Face's library write them.

tree.pt and old.pt hold the same object, in the format of PyTorch 1.6 and the one before;
spec/torch_file_spec.lua writes it out. The models are those of hugging_face.py, which says what
they answer: vit.pth is a state_dict of torchvision's own class, gpt2/ a model that was saved in
parts with an index, bert.pth has the names of Hugging Face's first files.
Wants PyTorch, torchvision and transformers; the suite does not.

    python3 scripts/golden/files.py
"""
import collections
import json
import os

import numpy as np
import torch
import torchvision
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, GPT2Config, GPT2LMHeadModel

from hugging_face import fill
import store

FOLDER = os.path.join(store.FOLDER, "files")


def tree():
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    numbers = {str(d).replace("torch.", ""): torch.tensor([[1, 0, 3], [0, 5, 6]]).to(d)
               for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
                         torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}
    return {
        "numbers": numbers, "x": x, "turned": x.t(), "row": x[1], "steps": x[:, ::2],
        "wide": torch.tensor([7.0]).expand(3, 2), "scalar": torch.tensor(2.5),
        "empty": torch.zeros(2, 0, 3), "parameter": torch.nn.Parameter(x[0]),
        "ordered": collections.OrderedDict(b=1, a=2), "whole": [0, -1, 300, 70000, -2**63, 2**63 - 1],
        "floats": [0.5, float("inf"), -0.0], "text": "häuser €", "bytes": b"\x00\xff",
        "yes": True, "none": None, "holes": [1, None], "pair": ("a", [2, {}]), 5: "five",
        "size": x.shape, "dtype": torch.float16, "device": torch.device("cuda", 1),
    }


def main():
    os.makedirs(FOLDER, exist_ok=True)
    os.chdir(FOLDER)
    torch.save(tree(), "tree.pt")
    torch.save(tree(), "old.pt", _use_new_zipfile_serialization=False)

    vit = torchvision.models.VisionTransformer(8, 4, 2, 2, 8, 12, num_classes=3)
    fill(vit)
    torch.save(vit.state_dict(), "vit.pth")

    gpt = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=10, n_positions=8))
    fill(gpt)
    gpt.save_pretrained("gpt2", max_shard_size="5KB")
    for name in ("config.json", "generation_config.json"):
        os.remove(os.path.join("gpt2", name))

    config = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=12, max_position_embeddings=8)
    masked, bert = BertForMaskedLM(config), BertForPreTraining(config)
    fill(masked)
    bert.load_state_dict(masked.state_dict(), strict=False)
    torch.save({name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"): t for name, t in bert.state_dict().items()}, "bert.pth",
        _use_new_zipfile_serialization=False)

    np.savez("arrays.npz", x=np.arange(6, dtype="f4").reshape(2, 3), flag=np.array(True))
    np.savez_compressed("packed.npz", x=np.arange(6, dtype="f4").reshape(2, 3), flag=np.array(True))
    with open("versions.json", "w", encoding="ascii") as f:
        json.dump({"torch": torch.__version__, "torchvision": torchvision.__version__,
                   "numpy": np.__version__}, f)


if __name__ == "__main__":
    main()
