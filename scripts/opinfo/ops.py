"""The suite of ops: op_db's samples, a check for each phase of each sample."""
import itertools
import re
import zlib

import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput

import names
from compare import flat
from suite import Suite
from worker import Code, Refused, Untold, strided

AUTOCAST_SAMPLES = 4  # of each op


def leaves(sample):
    """The tensors of a sample in the order in which Code meets them."""
    return [x for x in flat_arguments([sample.input, *sample.args, *sample.kwargs.values()])]


def flat_arguments(v):
    if isinstance(v, torch.Tensor):
        return [v]
    if isinstance(v, (list, tuple)):
        return [x for part in v for x in flat_arguments(part)]
    return flat_arguments(list(v.values())) if isinstance(v, dict) else []


def rounded(x):
    """A gradient to start with: random, and exact in every float dtype."""
    return (torch.randn(x.shape, dtype=torch.float64) * 8).round().div(8).to(x.dtype)


def detached(v, grad=False, dtype=None):
    """Own leaves in place of the tensors; `dtype` for those of floats."""
    if isinstance(v, torch.Tensor):
        wide = {torch.float64: torch.complex128}.get(dtype) if v.is_complex() else dtype
        x = v.detach().to(wide) if dtype and (v.is_floating_point() or v.is_complex()) \
            else v.detach().clone()
        return x.requires_grad_(v.requires_grad and grad)
    if isinstance(v, tuple) and hasattr(v, "_fields"):
        return type(v)(*(detached(x, grad, dtype) for x in v))
    if isinstance(v, (list, tuple)):
        return type(v)(detached(x, grad, dtype) for x in v) if type(v) in (list, tuple) else v
    if isinstance(v, dict):
        return {k: detached(x, grad, dtype) for k, x in v.items()}
    if isinstance(v, torch.dtype) and dtype and v.is_floating_point:
        return dtype
    return v


def viewed(v):
    """The arguments with strided tensors, as Code builds them."""
    if isinstance(v, torch.Tensor):
        if v.numel() == 0 or v.is_complex():
            return v
        base, stride, offset = strided(v)
        return base.as_strided(v.shape, stride, offset)
    if isinstance(v, (list, tuple)):
        return type(v)(viewed(x) for x in v) if type(v) in (list, tuple) else v
    return {k: viewed(x) for k, x in v.items()} if isinstance(v, dict) else v


def copy_of(sample, grad=False, dtype=None):
    return SampleInput(detached(sample.input, grad, dtype),
                       args=tuple(detached(list(sample.args), grad, dtype)),
                       kwargs=detached(sample.kwargs, grad, dtype),
                       output_process_fn_grad=sample.output_process_fn_grad,
                       broadcasts_input=sample.broadcasts_input)


class Reference:
    """What PyTorch makes of a sample: results, gradients, gradients of gradients."""

    def __init__(self, fn, sample, grad, dtype=None):
        self.sample = copy_of(sample, grad, dtype)
        s = self.sample
        self.raw = fn(s.input, *s.args, **s.kwargs)
        self.out = flat(self.raw)

    def leaves(self):
        return [x for x in leaves(self.sample) if x.requires_grad]

    def live(self, outs):
        return [i for i, y in enumerate(outs) if isinstance(y, torch.Tensor) and y.requires_grad]

    def gradients(self, g, create_graph):
        live = self.live(self.out)
        self.g = [g[i].detach().to(self.out[i].dtype).requires_grad_(create_graph) for i in live]
        self.grads = torch.autograd.grad([self.out[i] for i in live], self.leaves(), self.g,
                                         create_graph=create_graph, allow_unused=True)
        return [pair(x) for x in self.grads]

    def second(self, v):
        first = [(x, d) for x, d in zip(self.grads, v)
                 if x is not None and x.requires_grad]
        if not first:
            return None
        out = torch.autograd.grad([x for x, _ in first], self.leaves() + self.g,
                                  [d.to(x.dtype) for x, d in first], allow_unused=True)
        return [pair(x) for x in out]


def pair(x):
    return torch.view_as_real(x.resolve_conj()) if x is not None and x.is_complex() else x


def zeros_for_none(x, like):
    return torch.zeros_like(pair(like)) if x is None else x


class Ops(Suite):
    """Runs one OpInfo at a time."""

    def entries(self, dtype):
        for op in op_db:
            if dtype in op.dtypes:
                yield op

    def full_name(self, op):
        return op.name + (" " + op.variant_test_name if op.variant_test_name else "")

    def path(self, op):
        if op.name in names.ATTRIBUTES:
            return op.name
        for path in names.paths(op):
            if self.worker.run(f"return callable [[{path}]]")[0]:
                return path
        return None

    def run(self, op, dtype):
        self.op, self.dtype, self.name = op, dtype, self.full_name(op)
        self.random = names.RANDOM.fullmatch(op.name) is not None
        self.overloads, self.where = names.schemas(op), self.path(op)
        short = op.name.split(".")[-1]
        self.in_place_form = op.inplace_variant and (
            hasattr(F, short + "_") or not op.name.startswith("nn.functional.")) \
            and self.where is not None and not self.where.endswith("_")
        if self.where is None:
            self.report.absent(self.name)
            return
        torch.manual_seed(zlib.crc32(self.name.encode()))
        grad = op.supports_autograd and dtype.is_floating_point and not self.random
        samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
        for i, sample in enumerate(itertools.islice(samples, self.options.limit)):
            self.index, self.shown = i, ""
            self.sample(sample, grad)
            if i < AUTOCAST_SAMPLES and dtype == torch.float32:
                for low in (torch.bfloat16, torch.float16):
                    self.guard(f"autocast {names_of(low)}", self.autocast, sample, low)
        if dtype == torch.float32 and op.error_inputs_func:
            for i, error in enumerate(op.error_inputs("cpu")):
                self.index = i
                self.guard("wrong input", self.wrong, error)

    # ---- one sample ----

    def call_text(self, sample, views=False, first=None, inplace=False):
        code = Code(views)
        call = names.Call(self.op, self.overloads, self.where,
                          [sample.input, *sample.args], sample.kwargs)
        self.shown = call.text(code, first, inplace)
        return code

    def shifted(self, k):
        whole = names.RESULTS.get(self.op.name, ())
        if self.op.name in ("unique", "unique_consecutive"):
            return self.inverse_at == k
        return k in whole

    def exact_results(self, sample):
        """The results in float64, computed when first asked for."""
        found = []

        def exact(k):
            if not found:
                try:
                    found.append(Reference(self.op.op, sample, False, torch.float64).out)
                except Exception:  # the op has no float64 form for it
                    found.append([])
            out = found[0]
            return out[k] if k < len(out) and isinstance(out[k], torch.Tensor) else None
        return exact

    # ---- the phases of a sample ----

    def sample(self, sample, grad):
        if "hermitian" in self.op.gradcheck_wrapper.__name__:
            x = sample.input.detach()
            sample.input = (x + x.mT).requires_grad_(sample.input.requires_grad)
        try:
            ref = Reference(self.op.op, sample, grad)
        except Exception as e:
            self.report.skip(self.name, "forward", f"PyTorch raises: {type(e).__name__}")
            return
        kw = sample.kwargs
        self.inverse_at = 1 if kw.get("return_inverse") else -1
        self.exact = self.exact_results(sample)
        whole = self.guard("forward", self.forward, sample, ref)
        if whole and grad and ref.live(ref.out) and ref.leaves():
            if self.guard("gradient", self.gradient, sample, ref) and self.op.supports_gradgrad \
                    and self.same_gauge:
                self.guard("second gradient", self.second, sample, ref)
        if whole:
            self.guard("view", self.view, sample, ref)
            if self.in_place_form and not sample.broadcasts_input:
                self.guard("in place", self.in_place, sample)

    def rebuilt(self, raw, values):
        """`values` in the shape of the raw result."""
        it = iter(values)

        def build(v):
            if isinstance(v, tuple) and hasattr(v, "_fields"):
                return type(v)(*(build(x) for x in v))
            if isinstance(v, (list, tuple)):  # those of torch.return_types want a list
                return type(v)([build(x) for x in v])
            y = next(it)
            if isinstance(v, torch.Tensor) and v.is_complex():
                return torch.view_as_complex(y.contiguous())
            return y
        return build(raw)

    def forward(self, sample, ref):
        code = self.call_text(ref.sample)
        self.ours = flat(self.send(code.call(self.shown), code))
        self.same_gauge = not self.processes(ref)
        if self.same_gauge:
            return self.check_values(self.among_equals(sample, ref.out), ref.out, self.exact)
        # the freedom that a decomposition has: signs of vectors, say
        ours = flat(sample.output_process_fn_grad(self.rebuilt(ref.raw, self.ours)))
        want = flat(sample.output_process_fn_grad(detached(ref.raw)))
        return self.check_values(ours, want, lambda k: None, 10)

    def among_equals(self, sample, want):
        """Our results; of positions PyTorch's where ours name elements that are equal to its."""
        at, x, ours = names.TIES.get(self.op.name), sample.input, list(self.ours)
        if at is None or sample.kwargs.get("stable") or x.dim() == 0:
            return ours
        x = x.detach()
        args = sample.args[at:]
        dim = sample.kwargs.get("dim", args[0] if args else -1)
        for k, (mine, theirs) in enumerate(zip(ours, want)):
            if self.shifted(k) and mine.shape == theirs.shape and mine.numel():
                a, b = mine - 1, theirs
                if a.dim() < x.dim():
                    a, b = a.unsqueeze(dim), b.unsqueeze(dim)
                if a.min() >= 0 and a.max() < x.shape[dim] and torch.equal(
                        x.take_along_dim(a, dim), x.take_along_dim(b, dim)):
                    ours[k] = theirs + 1
        return ours

    def processes(self, ref):
        """Whether the sample has a function of the results that is to be compared instead."""
        out = flat(ref.sample.output_process_fn_grad(ref.raw))
        return len(out) != len(ref.out) or any(
            a is not b and not (isinstance(a, torch.Tensor) and a.shape == b.shape
                                and torch.equal(a, b))
            for a, b in zip(out, ref.out))

    def gradient(self, sample, ref):
        torch.manual_seed(1)
        if self.same_gauge:
            start = {i: rounded(ref.out[i]) for i in ref.live(ref.out)}
            ours_start = start
        else:
            start, ours_start = self.cotangents(ref)
        try:
            want = ref.gradients(start, create_graph=self.op.supports_gradgrad)
        except Exception as e:
            raise Untold(f"PyTorch's gradient raises: {type(e).__name__}") from e
        code = Code()
        parts = []
        for i, y in enumerate(ref.out):
            if i in ours_start:
                grad = self.op.supports_gradgrad
                parts.append(code.tensor(ours_start[i], grad=grad))
            elif isinstance(y, torch.Tensor):
                parts.append("false")
        got = self.send(f"return grad({{n = {len(parts)}, {', '.join(parts)}}}, "
                        f"{str(self.op.supports_gradgrad).lower()})", code)
        likes = ref.leaves()
        want = [zeros_for_none(x, y) for x, y in zip(want, likes)]
        got = [zeros_for_none(x, y) for x, y in zip(got, likes)]
        self.start = start
        got, want = self.read_part(sample, got), self.read_part(sample, want)

        def exact(k):
            try:
                wide = Reference(self.op.op, sample, True, torch.float64)
                return wide.gradients(start, False)[k]
            except Exception:
                return None
        return self.check_values(got, want, exact, 4 if self.same_gauge else 100, "gradient")

    def read_part(self, sample, grads):
        """Of the gradient in a factor the triangle that the op reads: PyTorch fills the other
        one too, and its suite compares what the factor was made from."""
        at = names.FACTORS.get(self.op.name)
        part = torch.triu if sample.kwargs.get("upper") else torch.tril
        return [part(x) if i == at and x is not None else x for i, x in enumerate(grads)]

    def cotangents(self, ref):
        """Gradients of the same function of the results, for PyTorch's and for ours."""
        both = []
        for values in (ref.out, self.ours):
            torch.manual_seed(1)
            live = {i: values[i].detach().clone().requires_grad_() for i in ref.live(ref.out)}
            raw = self.rebuilt(ref.raw, [live.get(i, v) for i, v in enumerate(values)])
            out = [y for y in flat(ref.sample.output_process_fn_grad(raw))
                   if isinstance(y, torch.Tensor) and y.requires_grad]
            loss = sum((y * rounded(y)).sum() for y in out)
            grads = torch.autograd.grad(loss, list(live.values()), allow_unused=True)
            both.append({i: torch.zeros_like(values[i]) if g is None else g
                         for i, g in zip(live, grads)})
        return both

    def second(self, sample, ref):
        torch.manual_seed(2)
        v = [None if x is None else rounded(pair(x)) for x in ref.grads]
        v = self.read_part(sample, v)
        try:
            back = [torch.view_as_complex(d) if x is not None and x.is_complex() else d
                    for x, d in zip(ref.grads, v)]
            want = ref.second(back)
        except Exception as e:
            raise Untold(f"PyTorch's second gradient raises: {type(e).__name__}") from e
        if want is None:
            return "not asked"
        code = Code()
        parts = ["false" if d is None or not x.requires_grad else code.tensor(d, grad=False)
                 for x, d in zip(ref.grads, v)]
        got = self.send(f"return grad2{{n = {len(parts)}, {', '.join(parts)}}}", code)
        likes = ref.leaves() + ref.g
        got = [zeros_for_none(x, y) for x, y in zip(got, likes)]
        want = [zeros_for_none(x, y) for x, y in zip(want, likes)]
        got, want = self.read_part(sample, got), self.read_part(sample, want)

        def exact(k):
            try:
                wide = Reference(self.op.op, sample, True, torch.float64)
                wide.gradients(self.start, True)
                return wide.second(back)[k]
            except Exception:
                return None
        return self.check_values(got, want, exact, 16, "second gradient")

    def view(self, sample, ref):
        if not any(x.numel() > 1 for x in leaves(ref.sample)):
            return "not asked"
        own = copy_of(sample)
        try:
            want = flat(self.op.op(*viewed([own.input, *own.args]), **viewed(own.kwargs)))
        except Exception:  # strides that the op refuses
            return "not asked"
        code = self.call_text(own, views=True)
        got = flat(self.send(code.call(self.shown), code))
        if self.same_gauge:
            return self.check_values(got, want, self.exact, 4)
        return self.check_values(got, self.ours, lambda k: None, 10)

    def in_place(self, sample):
        own = copy_of(sample)
        try:
            want = self.op.inplace_variant(own.input, *own.args, **own.kwargs)
        except Exception:
            return "not asked"
        code = self.call_text(copy_of(sample), first="x", inplace=True)
        got = self.send(f"t = {{{', '.join(code.tensors)}}}\nlocal x = t[1]:clone()\n"
                        f"return call(function() return {self.shown}, x end)", code)
        reason = self.check_values(got, [want, want], lambda k: self.exact(0))
        return reason

    def autocast(self, sample, low):
        own = copy_of(sample)
        try:
            with torch.autocast("cpu", dtype=low):
                want = flat(self.op.op(own.input, *own.args, **own.kwargs))
        except Exception:
            return "not asked"
        code = self.call_text(copy_of(sample))
        got = self.send(f"t = {{{', '.join(code.tensors)}}}\nreturn call(function() "
                        f'return dm.amp.autocast({{device_type = "cpu", dtype = '
                        f'"{names_of(low)}"}}, function() return {self.shown} end) end)', code)
        got = flat(got)
        if len(got) < len(want):
            return f"results: {len(got)}, wanted {len(want)}"
        for x, y in zip(got, want):
            if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype != y.dtype:
                return f"dtype {names_of(x.dtype)}, wanted {names_of(y.dtype)}"
        return None

    def wrong(self, error):
        own = error.sample_input
        try:
            self.op.op(own.input, *own.args, **own.kwargs)
            return "not asked"
        except Exception:
            pass
        code = self.call_text(own)
        try:
            self.send(code.call(self.shown), code)
        except Refused:
            return None
        return f"no error; PyTorch: {error.error_regex}"


def names_of(dtype):
    return str(dtype).replace("torch.", "")


def run(worker, report, options):
    dtype = getattr(torch, options.dtype)
    suite = Ops(worker, report, options)
    for op in suite.entries(dtype):
        name = suite.full_name(op)
        if not re.search(options.ops, name):
            continue
        reason = next((r for r, pattern in names.OTHERS.items() if re.match(pattern, name)), None)
        if reason:
            report.other(reason)
            continue
        report.entry(name)
        suite.run(op, dtype)
