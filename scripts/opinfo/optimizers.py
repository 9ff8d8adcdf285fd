"""The suite of optimizers: optim_db's options, ten steps each."""
import re

import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

from suite import Suite
from worker import Code, Refused

STEPS = 10
SHAPES = {"Muon": ((4, 6), (5, 3))}  # matrices only


class Parameters(Code):
    """Code in which a tensor that is given twice is one tensor."""

    def __init__(self):
        super().__init__()
        self.expressions = {}

    def add(self, x):
        if id(x) not in self.expressions:
            self.expressions[id(x)] = (super().add(x), x)  # x lives, so that no other has its id
        return self.expressions[id(x)][0]


class Optimizers(Suite):
    def run(self, info, dtype):
        self.name = info.name
        if not self.worker.run(f"return callable [[dm.optim.{info.name}]]")[0]:
            self.report.absent(info.name)
            return
        for i, one in enumerate(info.optim_inputs_func("cpu")[:self.options.limit]):
            self.index, self.shown = i, ""
            self.guard("steps", self.steps, info, one, dtype)
        errors = info.optim_error_inputs_func
        for i, error in enumerate(errors("cpu", dtype) if errors else []):
            self.index, self.shown = i, ""
            self.guard("wrong input", self.wrong, info, error)

    def steps(self, info, one, dtype):
        """A quadratic function of two parameters, minimized; their values after each step."""
        torch.manual_seed(3)
        shapes = SHAPES.get(info.name, ((3, 4), (5,)))
        params = [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]
        goals = [torch.randn(s, dtype=dtype) for s in shapes]
        code = Code()
        names, ends = [code.add(p) for p in params], [code.add(g) for g in goals]
        kwargs = code.value(one.kwargs)
        self.shown = f"dm.optim.{info.name}({{{', '.join(names)}}}, {kwargs})"
        got = self.worker.run(
            f"t = {{{', '.join(code.tensors)}}}\nlocal o = {self.shown}\nlocal out = {{}}\n"
            f"local params, goals = {{{', '.join(names)}}}, {{{', '.join(ends)}}}\n"
            "local function closure()\n  o:zero_grad()\n  local loss = 0\n"
            "  for i, p in ipairs(params) do loss = loss + (p - goals[i]):square():sum() end\n"
            "  loss:backward()\n  return loss\nend\n"
            f"for _ = 1, {STEPS} do\n  o:step(closure)\n"
            "  for _, p in ipairs(params) do out[#out + 1] = p:detach():clone() end\nend\n"
            "return out", code.data)
        optimizer = info.optim_cls(params, **one.kwargs)

        def closure():
            optimizer.zero_grad()
            loss = sum((p - g).square().sum() for p, g in zip(params, goals))
            loss.backward()
            return loss
        want = []
        for _ in range(STEPS):
            optimizer.step(closure)
            want += [p.detach().clone() for p in params]
        return self.check_values(got, want, lambda k: None, 2, "value")

    def wrong(self, info, error):
        one = error.optimizer_error_input
        if error.error_on != OptimizerErrorEnum.CONSTRUCTION_ERROR \
                or issubclass(error.error_type, Warning):
            return "not asked"
        try:
            info.optim_cls(one.params, **one.kwargs)
            return "not asked"
        except Exception:
            pass
        code = Parameters()
        self.shown = f"dm.optim.{info.name}({code.value(one.params)}, {code.value(one.kwargs)})"
        try:
            self.worker.run(f"t = {{{', '.join(code.tensors)}}}\nreturn {{{self.shown}}}",
                            code.data)
        except Refused:
            return None
        return f"no error; PyTorch: {error.error_regex}"


def run(worker, report, options):
    dtype = getattr(torch, options.dtype)
    suite = Optimizers(worker, report, options)
    for info in optim_db:
        if re.search(options.ops, info.name):
            report.entry(info.name)
            suite.run(info, dtype)
