#!/usr/bin/env python3
"""Writes spec/golden/files/pretrained: small models in folders as Hugging Face's library saves them.

gpt2/, bert/ and vit/ hold config.json and model.safetensors; of the ResNet, whose widths are fixed,
only the configuration and the names of its tensors are kept. answers.json has the scores of each,
and the versions. Wants PyTorch and transformers; the suite does not.

    python3 scripts/golden/pretrained.py
    python3 scripts/golden/pretrained.py resnet FOLDER    the ResNet whole, and its scores, there
"""
import json
import os
import sys

import torch
import transformers
from transformers import (BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, ResNetConfig,
                          ResNetForImageClassification, ViTConfig, ViTForImageClassification)

import store
from hugging_face import fill

FOLDER = os.path.join(store.FOLDER, "files", "pretrained")
IDS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 0]])


def image(size):
    i = torch.arange(2 * 3 * size * size)
    return ((((i * i + i * 7919) % 1021).float() / 1021 - 0.5) * 4).reshape(2, 3, size, size)


def resnet():
    model = ResNetForImageClassification(ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        layer_type="basic", num_labels=3))
    with torch.no_grad():
        for name, b in model.named_buffers():
            if name.endswith("running_var"):
                b.add_(0.5)
    return model.eval()


def small():
    yield "gpt2", GPT2LMHeadModel(GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=10, n_positions=6, bos_token_id=None,
        eos_token_id=None)), IDS
    yield "bert", BertForMaskedLM(BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=12)), IDS
    yield "vit", ViTForImageClassification(ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        image_size=8, patch_size=4, num_labels=3)), image(8)


def main():
    torch.manual_seed(1)
    if sys.argv[1:2] == ["resnet"]:
        model = resnet()
        model.save_pretrained(sys.argv[2])
        with torch.no_grad():
            scores = model(image(32)).logits
        with open(os.path.join(sys.argv[2], "answers.json"), "w", encoding="ascii") as f:
            json.dump(scores.flatten().tolist(), f)
        return
    answers = {"torch": torch.__version__, "transformers": transformers.__version__}
    for name, model, inputs in small():
        fill(model)
        folder = os.path.join(FOLDER, name)
        model.eval().save_pretrained(folder)
        for file in os.listdir(folder):
            if file not in ("config.json", "model.safetensors"):
                os.remove(os.path.join(folder, file))
        with torch.no_grad():
            answers[name] = model(inputs).logits.flatten().tolist()
    model = resnet()
    folder = os.path.join(FOLDER, "resnet")
    os.makedirs(folder, exist_ok=True)
    model.config.save_pretrained(folder)
    with open(os.path.join(folder, "names.txt"), "w", encoding="ascii") as f:
        f.writelines(name + "\n" for name in model.state_dict())
    with open(os.path.join(FOLDER, "answers.json"), "w", encoding="ascii") as f:
        json.dump(answers, f)


if __name__ == "__main__":
    main()
