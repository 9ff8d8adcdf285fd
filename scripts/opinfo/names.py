"""How PyTorch's calls are written for demilune: names, and what counts from 1.

A position (a dim, an index) counts from 0 there and from 1 here. PyTorch's schemas name
each argument; DIMS and POSITIONS tell by that name what holds positions.
"""
import inspect
import re

import torch
import torch.nn.functional as F

from worker import Lua, Untold

# OpInfos that are not counted, and why.
OTHERS = {
    "torch.masked, a prototype of masked tensors": r"masked\.",
    "compiles CUDA text": r"jiterator_",
    "private in PyTorch": r"_(?!_r|_get)|torch\.",
    "the inner form of another op":
        r"native_|max_pool2d_with_indices_backward|grid_sampler_\dd|slice$",
    "a copy in place of a view, for compilers":
        r"(expand|diagonal|alias|as_strided|view|permute|narrow|split_with_sizes|unbind|unfold|"
        r"squeeze|unsqueeze|transpose|t)_copy$|unsafe_",
    "sparse tensors": r"sparse\.|to_sparse",
    "a complex dtype; complex numbers are pairs in a last dim here":
        r"(cdouble|cfloat|chalf|view_as_real|view_as_complex|conj|conj_physical|resolve_conj|"
        r"resolve_neg|real|imag|H|mH|isreal|angle|polar)$|nn.functional.silu complex",
    "strides of one's own for memory that nobody wrote":
        r"(empty_strided|new_empty_strided|empty_permuted)$",
}

# Arguments that hold dims wherever they are numbers, and the ops where they are none.
DIMS = {"dim", "dims", "dim0", "dim1", "dim2", "dimension", "start_dim", "end_dim", "axis",
        "axis0", "axis1", "source", "destination", "dims_self", "dims_other"}
NO_DIMS = {("tile", "dims")}
# Other arguments that hold positions: numbers, lists and integer tensors.
POSITIONS = {
    "select": {"index"}, "narrow": {"start"}, "select_scatter": {"index"},
    "gather": {"index"}, "scatter": {"index"}, "scatter_add": {"index"},
    "scatter_reduce": {"index"}, "index_select": {"index"}, "index_add": {"index"},
    "index_copy": {"index"}, "index_fill": {"index"}, "index_reduce": {"index"},
    "take": {"index"}, "put": {"index"}, "take_along_dim": {"indices"},
    "tensor_split": {"indices", "tensor_indices_or_sections"}, "hsplit": {"indices"},
    "vsplit": {"indices"}, "dsplit": {"indices"}, "index_put": {"indices"}, "unravel_index": {"indices"},
    "searchsorted": {"sorter"},
    "bincount": {"self", "input"}, "nn.functional.one_hot": {"self", "input", "tensor"},
    "nn.functional.embedding": {"input", "padding_idx"},
    "nn.functional.embedding_bag": {"input", "offsets", "padding_idx"},
    "nn.functional.nll_loss": {"target", "ignore_index"},
    "nn.functional.cross_entropy": {"target", "ignore_index"},
    "nn.functional.linear_cross_entropy": {"target", "ignore_index"},
    "nn.functional.multi_margin_loss": {"target"},
    "nn.functional.multilabel_margin_loss": {"target"},
    "nn.functional.ctc_loss": {"targets", "blank"},
    "nn.functional.max_unpool1d": {"indices"}, "nn.functional.max_unpool2d": {"indices"},
    "nn.functional.max_unpool3d": {"indices"},
}
# Results that hold positions, by their number, from 0.
RESULTS = {
    "argmax": {0}, "argmin": {0}, "argsort": {0}, "argwhere": {0},
    "nonzero_static": {0}, "max": {1}, "min": {1}, "median": {1}, "nanmedian": {1}, "mode": {1},
    "kthvalue": {1}, "cummax": {1}, "cummin": {1}, "sort": {1}, "topk": {1}, "bucketize": {0},
    "searchsorted": {0}, "tril_indices": {0}, "triu_indices": {0}, "multinomial": {0},
    "nn.functional.max_pool1d": {1}, "nn.functional.max_pool2d": {1},
    "nn.functional.max_pool3d": {1}, "nn.functional.adaptive_max_pool1d": {1},
    "nn.functional.adaptive_max_pool2d": {1}, "nn.functional.adaptive_max_pool3d": {1},
    "nn.functional.fractional_max_pool2d": {1}, "nn.functional.fractional_max_pool3d": {1},
    "unravel_index": set(range(16)), "nonzero": set(range(16)),
}
# Ops whose positions may be those of any equal elements, and at which argument after the input
# their dim stands.
TIES = {"sort": 0, "argsort": 0, "mode": 0, "topk": 1, "kthvalue": 1}
# Which leaf is a triangular factor.
FACTORS = {"cholesky_solve": 1, "cholesky_inverse": 0}
# Ops that draw, or leave memory as it is: shapes and dtypes are compared.
RANDOM = re.compile(
    r"(cauchy|exponential|geometric|log_normal|normal|uniform|bernoulli|multinomial|rand|randn|"
    r"randint|rand_like|randn_like|randint_like|empty|empty_like|new_empty|resize_|resize_as_|"
    r"nn\.functional\.(dropout|dropout2d|dropout3d|alpha_dropout|feature_alpha_dropout|rrelu|"
    r"fractional_max_pool2d|fractional_max_pool3d)|svd_lowrank|pca_lowrank|"
    r"nn\.functional\.(scaled_dot_product_attention|multi_head_attention_forward))$")


# Arguments by position of functions that no schema describes.
SIGNATURES = {"norm": ("input", "p", "dim", "keepdim"), "unravel_index": ("indices", "shape")}


# ---- names of arguments ----

def kind_fits(kind, v):
    """Whether a value can be an argument of a type that a schema names."""
    kind = kind.replace("Optional[", "").rstrip("]") if kind.startswith("Optional[") else kind
    if v is None:
        return True
    if isinstance(v, torch.Tensor):
        return kind in ("Tensor", "number", "Scalar")
    if isinstance(v, (list, tuple)):
        if v and isinstance(v[0], torch.Tensor):
            return kind.startswith("List[") and "Tensor" in kind
        return kind.startswith("List[") and "Tensor" not in kind
    if isinstance(v, bool):
        return kind in ("bool", "number")
    if isinstance(v, int):
        return kind in ("int", "float", "number") or kind.startswith("List[int")
    if isinstance(v, float):
        return kind in ("float", "number")
    if isinstance(v, str):
        return kind == "str"
    return True


def schemas(op):
    """Lists of (name, type) of the arguments by position, an overload each."""
    short = op.name.split(".")[-1]
    if op.name in SIGNATURES:
        return [[(n, "any") for n in SIGNATURES[op.name]]]
    found, seen = [], set()
    for name in (op.aten_name, op.name.replace(".", "_"), short):
        if name and name not in seen:
            seen.add(name)
            for s in torch._C._jit_get_schemas_for_operator("aten::" + name):
                found.append([(a.name, str(a.type)) for a in s.arguments if not a.kwarg_only])
    if op.name.startswith("nn.functional."):
        try:
            names = inspect.signature(getattr(F, short)).parameters
            found.insert(0, [(n, "any") for n in names if n not in ("args", "kwargs")])
        except (ValueError, AttributeError):
            pass
    return found


def argument_names(overloads, args):
    for names in overloads:
        if len(names) >= len(args) and all(t == "any" or kind_fits(t, v)
                                           for (_, t), v in zip(names, args)):
            return [n for n, _ in names[:len(args)]]
    return ["?"] * len(args)


# ---- positions ----

def up(v):
    """A position, or all in a list or an integer tensor, counted from 1."""
    if isinstance(v, bool) or v is None:
        return v
    if isinstance(v, int):
        return v + 1 if v >= 0 else v
    if isinstance(v, (list, tuple)):
        return type(v)(up(x) for x in v) if type(v) in (list, tuple) else [up(x) for x in v]
    if isinstance(v, torch.Tensor) and not v.is_floating_point() and v.dtype != torch.bool:
        return torch.where(v >= 0, v + 1, v)
    return v


def counted(op, name, v):
    """The argument as demilune counts."""
    if op == "tensor_split" and isinstance(v, torch.Tensor) and v.dim() == 0:
        return v  # a number of chunks
    if name in POSITIONS.get(op, ()):
        return up(v)
    if name not in DIMS or (op, name) in NO_DIMS or isinstance(v, torch.Tensor):
        return v
    if op == "tensordot" and isinstance(v, int):  # how many dims, not which
        return v
    return up(v)


# ---- forms of their own ----

def pairs(args, kwargs):
    """A transform of complex numbers of real ones: pairs with 0. Those of integers are floats,
    as in PyTorch's transforms."""
    x = args[0]
    if not x.is_complex():
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        x = Lua("dm.complex({0}, dm.zeros_like({0}))", x)
    return None, [x, *args[1:]], kwargs


def key_of(k):
    """An index as PyTorch writes it, as a key in Lua."""
    if isinstance(k, tuple):
        return Lua("{{" + ", ".join("{%d}" % i for i in range(len(k))) + "}}",
                   *(key_of(x) for x in k))
    if k is None:
        return Lua("dm.newaxis")
    if k is Ellipsis:
        return "..."
    if isinstance(k, slice):
        if k == slice(None):
            return Lua("{{}}")
        start = 1 if k.start is None else up(k.start)
        stop = -1 if k.stop is None else k.stop if k.stop > 0 else k.stop - 1
        return [start, stop] if k.step is None else [start, stop, k.step]
    if isinstance(k, list):
        return up(torch.tensor(k))
    return up(k)


def plain_key(k):
    """A slice alone stands in a table, since x[{1, 3}] means two indices."""
    return Lua("{{{0}}}", key_of(k)) if isinstance(k, slice) else key_of(k)


def operator(sign):
    return lambda a, k: (Lua("{1} " + sign + " {0}", *a), [], {})


def arange(args, kwargs):
    """The same numbers, by the last of them."""
    kwargs = dict(kwargs)
    n = torch.arange(*args, **kwargs).numel()
    end, start, step = kwargs.pop("end", None), kwargs.pop("start", None), kwargs.pop("step", 1)
    if end is None or len(args) > 1:
        args, end = args[:-1] if end is None and len(args) == 1 else args, None
    if args:
        start = args[0] if len(args) > 0 else start
        step = args[2] if len(args) > 2 else step
    start = 0 if start is None else start
    if n == 0:
        raise Untold("an empty range, which has no last number")
    return None, [start, start + step * (n - 1), step], kwargs


def sizes_of_input(args, kwargs):
    """None among the sizes: the input's own size, which a list in Lua cannot leave out."""
    x, size = args[0], args[1]
    if isinstance(size, (list, tuple)):
        own = x.shape[-len(size):]
        size = [n if m is None else m for m, n in zip(size, own)]
    return None, [x, size, *args[2:]], kwargs


def slice_scatter(args, kwargs):
    """start and end as positions of which both are included."""
    args = list(args) + [0, None, None, 1][len(args) - 2:]
    x, src, dim, start, end, step = args
    n = x.shape[dim - 1 if dim > 0 else dim] if x.dim() else 1
    start, end, step = slice(start, end, step).indices(n)
    return None, [x, src, dim, start + 1, end, step], kwargs


def histogramdd(args, kwargs):
    """PyTorch gives edges a meaning only where they are in order."""
    bins = args[1]
    if isinstance(bins, (list, tuple)) and any(
            isinstance(b, torch.Tensor) and bool((b.diff() < 0).any()) for b in bins):
        raise Untold("edges out of order, which mean nothing")
    return None, args, kwargs


def product(args, kwargs):
    """The samples of these ops are factors of their matrix."""
    return None, [Lua("dm.matmul({0}, {1}.mT)", *args)], kwargs


def without(*names):
    return lambda a, k: (None, a, {n: v for n, v in k.items() if n not in names})


FORMS = {
    "zero_": lambda a, k: (None, [Lua("{0}:clone()", a[0])], k),
    **{f"nn.functional.adaptive_{kind}_pool{n}d": sizes_of_input
       for kind in ("avg", "max") for n in (1, 2, 3)},
    "item": lambda a, k: (Lua("{0}:item()", *a), [], {}),
    "T": lambda a, k: (Lua("{0}.T", *a), [], {}),
    "mT": lambda a, k: (Lua("{0}.mT", *a), [], {}),
    "__radd__": operator("+"), "__rsub__": operator("-"), "__rmul__": operator("*"),
    "__rdiv__": operator("/"), "__rmod__": operator("%"), "__rpow__": operator("^"),
    "__rand__": operator("&"), "__ror__": operator("|"), "__rxor__": operator("~"),
    "__rmatmul__": lambda a, k: (Lua("dm.matmul({1}, {0})", *a), [], {}),
    "__getitem__": lambda a, k: (Lua("{0}[{1}]", a[0], plain_key(a[1])), [], {}),
    "arange": arange,
    "linalg.pinv singular": product, "svd_lowrank": product, "pca_lowrank": product,
    "normal in_place": lambda a, k: (Lua("{0}:normal_({1}, {2})", *a), [], {}),
    "slice_scatter": slice_scatter, "histogramdd": histogramdd,
    # how the product is cut into chunks
    "nn.functional.linear_cross_entropy": without("options"),
    "stft": without("return_complex"), "istft": without("return_complex"),
    **{f"fft.{name}": pairs for name in (
        "fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "irfft", "irfft2", "irfftn", "hfft",
        "hfft2", "hfftn")},
}
# OpInfos whose arguments are in another order than those of the op.
ORDERS = {"where": (1, 0, 2), "einsum": (1, 0), "nn.functional.embedding": (1, 0),
          "nn.functional.embedding_bag": (1, 0)}
# Names of an attribute and not of a function.
ATTRIBUTES = {"T", "mT", "item", "__getitem__", "__radd__", "__rsub__", "__rmul__", "__rdiv__",
              "__rmod__", "__rpow__", "__rand__", "__ror__", "__rxor__", "__rmatmul__"}
SYNONYMS = {"repeat": "tile"}  # a keyword of Lua's
METHODS = {"unfold", "view", "expand", "contiguous"}


def paths(op):
    """Where the op may be in demilune, the first one that can be called counts."""
    name = SYNONYMS.get(op.name, op.name)
    method = [f"dm.zeros(1, 1).{name}"]
    if "." in name:
        return [f"dm.{name}"]
    written = [f"dm.zeros(1, 1).{name}_"]
    return method + [f"dm.{name}"] if name in METHODS else [f"dm.{name}"] + method + written


class Call:
    """One sample's call, as demilune takes it."""

    def __init__(self, op, overloads, path, args, kwargs):
        order = ORDERS.get(op.name, ())
        args = [args[i] for i in order] + list(args[len(order):])
        names = argument_names(overloads, args)
        args = [counted(op.name, n, v) for n, v in zip(names, args)]
        kwargs = {n: counted(op.name, n, v) for n, v in kwargs.items()}
        for n, v in kwargs.items():
            if n in ("memory_format", "layout", "generator", "pin_memory", "out"):
                raise Untold(f"{n}")
        self.whole = None
        form = FORMS.get(f"{op.name} {op.variant_test_name}") or FORMS.get(op.name)
        if form:
            try:
                self.whole, args, kwargs = form(args, kwargs)
            except (RuntimeError, TypeError, IndexError) as e:
                raise Untold("arguments that have no form here") from e
        self.path, self.args = path, args
        self.kwargs = {n: v for n, v in kwargs.items() if v is not None}

    def text(self, code, first=None, inplace=False):
        """The call's expression; `first` stands for its first argument."""
        if self.whole:
            return code.value(self.whole)
        args = [code.value(v) for v in self.args]
        if first:
            args[0] = first
        while args and args[-1] == "nil":
            args.pop()
        if self.kwargs:
            args.append(code.value(self.kwargs))
        short = self.path.split(".")[-1]
        if inplace:
            return f"{args[0]}:{short}_({', '.join(args[1:])})"
        if "(1, 1)." in self.path:
            return f"{args[0]}:{short}({', '.join(args[1:])})"
        return f"{self.path}({', '.join(args)})"
