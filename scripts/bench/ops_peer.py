"""PyTorch's side of ops.lua, eager: the same requests as ops_ours.lua answers."""
import math
import sys
import time
import warnings

from answers import serve

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit()  # the driver's tables do without this side

warnings.simplefilter("ignore")  # about variances of one element

ENOUGH = 0.05  # seconds; a longer call is timed once a round


# ---- inputs -----------------------------------------------------------------

def uniform(low, high):
    def make(size, dtype, _):
        if dtype == torch.bool:
            return torch.rand(size) > 0.5
        if dtype == torch.int64:
            return torch.randint(max(1, math.floor(low)), 9, size)
        return (torch.rand(size) * (high - low) + low).to(dtype)
    return make


def normal(size, dtype, _):
    if dtype == torch.bool:
        return torch.rand(size) > 0.5
    if dtype == torch.int64:
        return torch.randint(-9, 10, size)
    return torch.randn(size).to(dtype)


def with_diagonal(x, dtype):
    """Of float32 matrices, with this much on the diagonal for each row."""
    return (x + torch.eye(x.shape[-1]) * x.shape[-1]).to(dtype)


def symmetric(size, dtype, _):
    x = torch.rand(size)
    return with_diagonal((x + x.mT) / 2, dtype)


MAKERS = {
    "n": normal, "p": uniform(0.1, 2), "u": uniform(0.05, 0.95), "s": uniform(-0.95, 0.95),
    "o": uniform(1.1, 3),
    "m": lambda size, dtype, _: torch.rand(size) > 0.5,
    "l": lambda size, dtype, below: torch.randint(0, below, size),
    "c": lambda size, dtype, _: torch.randint(1, 4, size),
    "w": lambda size, dtype, _: torch.rand(size),
    "r": lambda size, dtype, _: torch.randn(size).softmax(-1).to(dtype),
    "h": lambda size, dtype, _: torch.randn(size).log_softmax(-1).to(dtype),
    "t": lambda size, dtype, _: torch.randn(size).sort(-1)[0].to(dtype),
    "g": lambda size, dtype, _: ((torch.rand(size) > 0.5).float() * 2 - 1).to(dtype),
    "d": symmetric,
    "e": lambda size, dtype, _: with_diagonal(torch.rand(size).tril(), dtype),
    "z": lambda size, dtype, _: torch.complex(torch.randn(size), torch.randn(size)),
}


def make(word, dtype, layout, broadcast):
    head, shape = word.split(":")
    head = head.rstrip("!")
    size = [int(s) for s in shape.split("x") if s]

    def of(s):
        return MAKERS[head[0]](s, dtype, int(head[1:] or 0))
    if layout == "transposed" and len(size) == 2:
        return of(size[::-1]).T
    if not broadcast:
        return of(size)
    x = of([1] + size[1:])
    return x if broadcast == "row" else x.expand(size)


KEPT = {}


def make_input(*key):
    """The tensor of a word, kept from request to request while they are few."""
    if key not in KEPT:
        if sum(x.numel() for x in KEPT.values()) > 1 << 28:
            KEPT.clear()
        KEPT[key] = make(*key)
    return KEPT[key]


def inputs(text, dtype, layout):
    """A list of (name or None, tensor, whether it takes no gradient)."""
    words = [w for w in text.split(";") if w != "-"]
    found = []
    for i, word in enumerate(words):
        name, _, rest = word.rpartition("@")
        broadcast = layout == "broadcast" and (
            "expanded" if len(words) == 1 else i == 1 and "row")
        x = make_input(rest, dtype, layout, broadcast)
        floats = x.is_floating_point() or x.is_complex()
        found.append((name or None, x, "!" in word or not floats))
    return found


# ---- calls ------------------------------------------------------------------

def literal(text, dtype):
    if text == "T":
        return repr(dtype)
    if text in ("float32", "bfloat16", "int64"):
        return "torch." + text
    if "," in text:
        return f"[{text}]"
    if text in ("true", "false"):
        return text.capitalize()
    try:
        float(text)
        return text
    except ValueError:
        return repr(text)


def find(name):
    """By its full name ("F.relu"), or in torch, then F, then as a method."""
    if "." in name:
        found = {"torch": torch, "F": F}[name.split(".")[0]]
        for word in name.split(".")[1:]:
            found = getattr(found, word)
        return found
    for module in ("special", "linalg", "fft"):
        if name.startswith(module + "_"):
            found = getattr(getattr(torch, module), name[len(module) + 1:], None)
            if found:
                return found
    for module in (torch, F, torch.Tensor):
        if hasattr(module, name):
            return getattr(module, name)
    raise NameError(f"no {name}")


def call(name, form, items, options, dtype, tensors):
    """A function that calls the op as a program does, f(x0, x1, -1, dim=1)."""
    given, keys = [], []
    for i, (key, _, _) in enumerate(items):
        if key:
            keys.append(f"{key}=x{i}")
        else:
            given.append(f"x{i}")
    if form == "list":
        given = ["[" + ", ".join(given) + "]"]
    at = int(form[2:]) if form.startswith("at") else len(given)
    for option in filter(None, options.split("&")):
        key, _, text = option.partition(":")
        if key:
            keys.append(f"{key}={literal(text, dtype)}")
        else:
            given.insert(at, literal(text, dtype))
            at += 1
    names = ["f"] + [f"x{i}" for i in range(len(items))]
    outer = f"lambda {', '.join(names)}: lambda: f({', '.join(given + keys)})"
    return eval(outer, {"torch": torch, "inf": math.inf})(find(name), *tensors)


def first_float(y):
    if torch.is_tensor(y):
        return y
    for item in y:
        item = item if torch.is_tensor(item) else item[0]
        if item.requires_grad:
            return item
    raise ValueError("no gradient")


def with_gradients(name, form, items, options, dtype):
    """The call and the gradients of all inputs that take one."""
    tensors = [x if fixed else x.detach().requires_grad_() for _, x, fixed in items]
    leaves = [x for x in tensors if x.requires_grad]
    f = call(name, form, items, options, dtype, tensors)
    grad = torch.randn_like(first_float(f()))

    def step():
        first_float(f()).backward(grad)
        for leaf in leaves:
            leaf.grad = None
    return step


# ---- time -------------------------------------------------------------------

def seconds(f, n):
    begin = time.perf_counter()
    for _ in range(n):
        f()
    return time.perf_counter() - begin


def fastest(f, block):
    """Seconds of a call after a first one: the least over two blocks of so many seconds."""
    seconds(f, 1)
    n, t = 1, seconds(f, 1)
    while t < block / 4:
        n *= 4
        t = seconds(f, n)
    if t > ENOUGH:
        return t / n
    n = math.ceil(n * block / t)
    return min(seconds(f, n), seconds(f, n)) / n


def time_sizes(_, name, form, dtype, layout, backward, block, *sizes):
    dtype, answer = getattr(torch, dtype), {}

    def attempt(key, work):
        try:
            answer[key] = f"{work():.4g}"
        except Exception as e:  # whatever it is, the driver lists it
            text = "\1".join(f"{type(e).__name__}: {e}".replace("=", ":").split())
            answer.setdefault("why", text[:160])
    for size in sizes:
        n, words, options = size.split("~")
        items = inputs(words, dtype, layout)

        def forward():
            f = call(name, form, items, options, dtype, [x for _, x, _ in items])
            return fastest(f, float(block))
        attempt("f" + n, forward)
        if backward == "1":
            attempt("b" + n, lambda: fastest(
                with_gradients(name, form, items, options, dtype), float(block)))
    return answer


def about():
    return {"version": torch.__version__, "threads": torch.get_num_threads()}


def answer(line):
    name, *words = line.split()
    return {"about": about, "time": time_sizes}[name](*words)


if __name__ == "__main__":
    serve(torch, answer)
