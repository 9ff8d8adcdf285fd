#!/usr/bin/env python3
"""Writes spec/golden/signatures.lua: the names of the parameters of PyTorch's classes and
functions, in their order, for spec/signatures_spec.lua.

A program of its own: python3 scripts/golden/signatures.py. An entry is a list of texts, one
for each form of a call; behind * parameters go by name only, and *name takes any number.
"""
import inspect
import pathlib
import re
import typing

import torch
import torch.distributions
import torch.func
import torch.nn.functional as F
import torch.nn.utils.parametrizations
import torch.nn.utils.parametrize
import torch.nn.utils.prune
import torch.optim.swa_utils
import torch.overrides
import torch.utils.checkpoint
import torch.utils.data
import torchvision
import torchvision.transforms.v2

OUT = pathlib.Path(__file__).parents[2] / "spec/golden/signatures.lua"
KIND = inspect.Parameter
lines = {}


def words(signature):
    """The names of a Python signature, without self."""
    out, by_name = [], False
    for p in signature.parameters.values():
        if p.name in ("self", "_stacklevel") or p.kind == KIND.VAR_KEYWORD:
            continue
        if p.kind == KIND.KEYWORD_ONLY and not by_name and not any(w[0] == "*" for w in out):
            out.append("*")
            by_name = True
        out.append("*" + p.name if p.kind == KIND.VAR_POSITIONAL else p.name)
    return " ".join(out)


def schemas(*names):
    """The forms that the dispatcher knows under one of these names."""
    out = []
    for name in names:
        for s in torch._C._jit_get_schemas_for_operator("aten::" + name):
            if s.overload_name.startswith("names") or "name" in s.overload_name.lower():
                continue
            text, by_name = [], False
            for a in s.arguments:
                if a.is_out:
                    continue
                if a.kwarg_only and not by_name:
                    text.append("*")
                    by_name = True
                text.append("input" if a.name == "self" else a.name)
            text = " ".join(text)
            if text not in out:
                out.append(text)
    return out


def note(name, *forms):
    forms = [f for f in forms if f is not None]
    if forms:
        lines[name] = forms


def of_python(thing):
    try:
        return words(inspect.signature(thing))
    except (TypeError, ValueError):
        return None


def classes(prefix, module, base=object):
    for name in sorted(dir(module)):
        thing = getattr(module, name)
        if not name.startswith("_") and inspect.isclass(thing) and issubclass(thing, base):
            fn = thing.__init__
            forms = typing.get_overloads(fn) if inspect.isfunction(fn) else []
            note(f"{prefix}.{name}", of_python(forms[0] if forms else fn))


def functions(prefix, module):
    for name in sorted(dir(module)):
        thing = getattr(module, name)
        if name.startswith("_") or inspect.isclass(thing) or not callable(thing):
            continue
        form = of_python(thing)
        if form and not re.search(r"\*args", form):
            note(f"{prefix}.{name}", form)


classes("nn", torch.nn, torch.nn.Module)
classes("optim", torch.optim, torch.optim.Optimizer)
classes("optim.lr_scheduler", torch.optim.lr_scheduler)
classes("data", torch.utils.data)
note("data.DistributedSampler", of_python(torch.utils.data.distributed.DistributedSampler.__init__))
functions("data", torch.utils.data)
functions("nn.init", torch.nn.init)
functions("nn.utils", torch.nn.utils)
functions("nn.utils.rnn", torch.nn.utils.rnn)
functions("nn.utils.parametrize", torch.nn.utils.parametrize)
functions("nn.utils.parametrizations", torch.nn.utils.parametrizations)
functions("nn.utils.prune", torch.nn.utils.prune)
for name in ("checkpoint_sequential",):
    note(f"nn.utils.{name}", of_python(getattr(torch.utils.checkpoint, name)))
for name in ("AveragedModel", "SWALR"):
    note(f"optim.swa_utils.{name}", of_python(getattr(torch.optim.swa_utils, name).__init__))
note("optim.swa_utils.update_bn", of_python(torch.optim.swa_utils.update_bn))
note("amp.autocast", of_python(torch.amp.autocast.__init__))
note("amp.GradScaler", of_python(torch.amp.GradScaler.__init__))
note("amp.custom_fwd", of_python(torch.amp.custom_fwd))
note("amp.custom_bwd", of_python(torch.amp.custom_bwd))
for name in ("grad", "gradcheck", "gradgradcheck", "detect_anomaly", "set_detect_anomaly"):
    thing = getattr(torch.autograd, name)
    note(f"autograd.{name}", of_python(thing.__init__ if inspect.isclass(thing) else thing))
classes("distributions", torch.distributions, torch.distributions.Distribution)
functions("distributions", torch.distributions)
functions("func", torch.func)
classes("transforms", torchvision.transforms)
for name in ("MixUp", "CutMix"):
    note(f"transforms.{name}", "* alpha num_classes labels_getter")
functions("transforms.functional", torchvision.transforms.functional)
for name in ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100", "ImageFolder"):
    note(f"datasets.{name}", of_python(getattr(torchvision.datasets, name).__init__))
note("make_grid", of_python(torchvision.utils.make_grid))
note("save_image", "tensor path format * nrow padding normalize value_range scale_each pad_value")
note("read_image", of_python(torchvision.io.read_image))
note("decode_image", of_python(torchvision.io.decode_image))

# Functions of torch: the Python ones by their signatures, the others by the forms that
# torch.overrides and the dispatcher know.
overrides = {}
for fn, stub in torch.overrides.get_testing_overrides().items():
    overrides[fn] = words(inspect.signature(stub))
for prefix, module, dispatched in (
    ("", torch, "{}"), ("F.", F, "{}"), ("linalg.", torch.linalg, "linalg_{}"),
    ("fft.", torch.fft, "fft_{}"), ("special.", torch.special, "special_{}"),
):
    for name in sorted(dir(module)):
        thing = getattr(module, name)
        if name.startswith("_") or inspect.isclass(thing) or not callable(thing):
            continue
        thing = getattr(module, name + "_with_indices", thing)  # one of two by an argument
        forms = [of_python(thing)] if inspect.isfunction(thing) else []
        if not forms or forms[0] is None or "*" in forms[0].split()[:1]:
            forms = schemas(dispatched.format(name), name)
            if not forms and thing in overrides:
                forms = [overrides[thing]]
        if forms:
            note(prefix + name, *forms)
for name in sorted(dir(torch.Tensor)):
    forms = schemas(name)
    if not name.startswith("_") and name not in lines and forms:
        note(name, *forms)

head = (f"-- The parameters of PyTorch {torch.__version__} and torchvision "
        f"{torchvision.__version__};\n-- written by scripts/golden/signatures.py.\n"
        "-- luacheck: ignore\nreturn {\n")
rows = [f'["{name}"]={{' + ",".join(f'"{f}"' for f in forms) + "},\n"
        for name, forms in sorted(lines.items())]
OUT.write_text(head + "".join(rows) + "}\n")
print(f"{len(rows)} entries, {OUT.stat().st_size} bytes")
