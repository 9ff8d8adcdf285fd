"""The suite of modules: module_db's inputs, with PyTorch's parameters loaded here."""
import copy
import inspect
import re
import zlib

import torch
import torch.nn.functional as F
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

from compare import flat
from names import up
from ops import AUTOCAST_SAMPLES, detached, flat_arguments, names_of, rounded, zeros_for_none
from suite import Suite
from worker import Code, Lua, Refused, Untold

POSITIONS = {"dim", "padding_idx", "ignore_index", "blank"}  # of constructors
# Inputs of forward that hold positions.
INPUTS = {"NLLLoss": {1}, "CrossEntropyLoss": {1}, "MultiMarginLoss": {1},
          "MultiLabelMarginLoss": {1}, "CTCLoss": {1}, "Embedding": {0}, "EmbeddingBag": {0, 1},
          "LinearCrossEntropyLoss": {1}}
RANDOM = {"FractionalMaxPool2d", "FractionalMaxPool3d"}
# Modules whose other results hold positions.
RESULTS = re.compile("(Adaptive)?MaxPool|FractionalMaxPool")


def function(v):
    """An activation given as a function, by its name here."""
    name = getattr(v, "__name__", None)
    if callable(v) and not isinstance(v, torch.nn.Module) and hasattr(F, name or "?"):
        return Lua(f"dm.nn.functional.{name}")
    return v


class Modules(Suite):
    def run(self, info, dtype):
        self.short = info.name.split(".")[-1]
        self.name, self.random = info.name, self.short in RANDOM
        if not self.worker.run(f"return callable [[dm.nn.{self.short}]]")[0]:
            self.report.absent(self.name)
            return
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            inputs = info.module_inputs_func(info, device="cpu", dtype=dtype,
                                             requires_grad=True, training=training)
            for i, one in enumerate(inputs[:self.options.limit]):
                self.index, self.shown = i, ""
                self.module(info, one, dtype, training, i < AUTOCAST_SAMPLES)
        if info.module_error_inputs_func and dtype == torch.float32:
            errors = info.module_error_inputs_func(info, device="cpu", dtype=dtype,
                                                   requires_grad=False, training=True)
            for i, error in enumerate(errors):
                self.index = i
                self.guard("wrong input", self.wrong, info, error, dtype)

    def shifted(self, k):
        return k > 0 and RESULTS.match(self.short) is not None

    # ---- Lua text ----

    def constructor(self, code, info, given):
        args = [function(v) for v in given.args]
        names = list(inspect.signature(info.module_cls.__init__).parameters)[1:]
        names += [None] * len(args)  # those of recurrent layers are *args
        args = [up(v) if n in POSITIONS else v for n, v in zip(names, args)]
        kwargs = {n: up(v) if n in POSITIONS else function(v) for n, v in given.kwargs.items()
                  if v is not None and n not in ("device", "dtype")}
        parts = [code.value(v) for v in args] + ([code.value(kwargs)] if kwargs else [])
        return f"dm.nn.{self.short}({', '.join(parts)})"

    def forward_call(self, code, given):
        counted = INPUTS.get(self.short, ())
        args = [up(v) if i in counted else v for i, v in enumerate(given.args)]
        kwargs = {n: v for n, v in given.kwargs.items() if v is not None}
        parts = [code.value(v) for v in args]
        while parts and parts[-1] == "nil":
            parts.pop()
        return f"m({', '.join(parts + ([code.value(kwargs)] if kwargs else []))})"

    def prologue(self, info, one, module, dtype, training):
        """Lua text that makes the module with the same parameters, and its constructor."""
        made = Code()
        text = self.constructor(made, info, one.constructor_input)
        state = ", ".join(f'["{n}"] = {made.tensor(v, grad=False)}'
                          for n, v in module.state_dict().items() if n != "_random_samples")
        lines = [f"t = {{{', '.join(made.tensors)}}}", f"m = {text}"]
        if dtype != torch.float32:
            lines.append(f'm:to "{names_of(dtype)}"')
        if state:
            lines.append(f"m:load_state_dict {{{state}}}")
        lines.append(f"m:train({str(training).lower()})")
        return "\n".join(lines), made, text

    # ---- phases ----

    def module(self, info, one, dtype, training, low):
        try:
            torch.manual_seed(0)
            m = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
            m = m.to(dtype).train(training)
            if info.is_lazy:
                m(*one.forward_input.args, **one.forward_input.kwargs)
        except Exception as e:
            self.report.skip(self.name, "forward", f"PyTorch raises: {type(e).__name__}")
            return
        for p in m.parameters():
            p.grad = None
        start = copy.deepcopy(m)
        whole = self.guard("forward", self.forward, info, one, m, dtype, training)
        if whole and not self.random:
            self.guard("gradient", self.gradient, m)
        if low and dtype == torch.float32:
            for half in (torch.bfloat16, torch.float16):
                self.guard(f"autocast {names_of(half)}", self.autocast, info, one,
                           copy.deepcopy(start), training, half)

    def send_call(self, info, one, m, dtype, training, half=None):
        prologue, made, text = self.prologue(info, one, m, dtype, training)
        code = Code()
        call = self.forward_call(code, one.forward_input)
        self.shown = f"{text}{call[1:]}"
        params = "".join(f', of["{n}"]' for n, _ in m.named_parameters())
        if half:
            call = (f'dm.amp.autocast({{device_type = "cpu", dtype = "{names_of(half)}"}}, '
                    f"function() return {call} end)")
        self.worker.run(prologue, made.data)
        return flat(self.worker.run(
            "local of = {}\nfor n, p in m:named_parameters() do of[n] = p end\n"
            f"t = {{{', '.join(code.tensors)}{params if code.tensors else params[2:]}}}\n"
            f"return call(function() return {call} end)", code.data))

    def forward(self, info, one, m, dtype, training):
        # before PyTorch's forward, which changes running statistics
        ours = self.send_call(info, one, m, dtype, training)
        self.given = detached([list(one.forward_input.args), one.forward_input.kwargs], True)
        self.out = flat(m(*self.given[0], **self.given[1]))
        return self.check_values(ours, self.out, lambda k: None, 4)

    def gradient(self, m):
        torch.manual_seed(1)
        leaves = [x for x in flat_arguments(self.given) if x.requires_grad] \
            + [p for p in m.parameters() if p.requires_grad]
        live = [i for i, y in enumerate(self.out)
                if isinstance(y, torch.Tensor) and y.requires_grad]
        if not leaves or not live:
            return "not asked"
        start = {i: rounded(self.out[i]) for i in live}
        want = torch.autograd.grad([self.out[i] for i in live], leaves,
                                   [start[i] for i in live], allow_unused=True)
        code = Code()
        parts = [code.tensor(start[i]) if i in start else "false"
                 for i, y in enumerate(self.out) if isinstance(y, torch.Tensor)]
        got = self.worker.run(f"return grad({{n = {len(parts)}, {', '.join(parts)}}}, false)",
                              code.data)
        got = [zeros_for_none(x, y) for x, y in zip(got, leaves)]
        want = [zeros_for_none(x, y) for x, y in zip(want, leaves)]
        return self.check_values(got, want, lambda k: None, 16, "gradient")

    def autocast(self, info, one, m, training, half):
        # before PyTorch's, as in forward
        got = self.send_call(info, one, m, torch.float32, training, half)
        given = detached([list(one.forward_input.args), one.forward_input.kwargs], True)
        try:
            with torch.autocast("cpu", dtype=half):
                want = flat(m(*given[0], **given[1]))
        except Exception:
            return "not asked"
        for x, y in zip(got, want):
            if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype != y.dtype:
                return f"dtype {names_of(x.dtype)}, wanted {names_of(y.dtype)}"
        return None

    def wrong(self, info, error, dtype):
        one = error.module_error_input
        code = Code()
        self.shown = self.constructor(code, info, one.constructor_input)
        try:
            if error.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
                self.worker.run(f"t = {{{', '.join(code.tensors)}}}\nreturn {{{self.shown}}}",
                                code.data)
            else:
                m = info.module_cls(*one.constructor_input.args,
                                    **one.constructor_input.kwargs).to(dtype)
                self.send_call(info, one, m, dtype, True)
        except Refused:
            return None
        except Untold:
            raise
        return f"no error; PyTorch: {error.error_regex}"


def run(worker, report, options):
    dtype = getattr(torch, options.dtype)
    suite = Modules(worker, report, options)
    for info in module_db:
        if re.search(options.ops, info.name) and dtype in info.dtypes:
            report.entry(info.name)
            suite.run(info, dtype)
