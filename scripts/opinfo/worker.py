"""The Lua process that runs demilune, and what goes to it and comes back.

worker.lua tells the protocol. A crash or a hang ends the process; the next request starts
another.
"""
import math
import os
import selectors
import signal
import subprocess

import torch

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SECONDS = 60  # that a request may take
DTYPES = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16",
          torch.bfloat16: "bfloat16", torch.int64: "int64", torch.int32: "int32",
          torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8", torch.bool: "bool"}
KEYWORDS = {"end", "repeat", "in", "not", "and", "or"}
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


class Untold(Exception):
    """An argument that demilune has no counterpart of: complex, sparse, another device."""


class Lua:
    """An argument written as Lua text, with {0}, {1} ... for the values that it uses."""

    def __init__(self, text, *args):
        self.text, self.args = text, args


class Refused(Exception):
    """demilune raised an error."""


class Died(Exception):
    """The process crashed or hung."""


def bytes_of(x):
    """The bytes of a tensor in row-major order."""
    flat = x.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def strided(x):
    """A copy of x with its dims in reverse order in memory, every second element, from 1 on."""
    back = tuple(reversed(range(x.dim())))
    wide = x.detach().permute(back).contiguous()
    base = torch.zeros(2 * wide.numel() + 1, dtype=x.dtype)
    base[1::2] = wide.reshape(-1)
    stride = [2 * s for s in wide.stride()]
    return base, [stride[i] for i in back], 1


class Code:
    """Lua text under construction, with the tensors it uses."""

    def __init__(self, views=False):
        self.tensors, self.data, self.size, self.views = [], [], 0, views

    def tensor(self, x, grad=None):
        """The expression that builds x; of complex numbers as pairs in a last dim."""
        pairs = x.is_complex()
        if pairs:
            grad = x.requires_grad if grad is None else grad
            x = torch.view_as_real(x.detach().resolve_conj())
        if x.dtype not in DTYPES:
            raise Untold(f"a tensor of {x.dtype}")
        if x.layout != torch.strided or x.device.type != "cpu":
            raise Untold(f"a tensor on {x.device}, {x.layout}")
        base, window = x, ""
        if self.views and x.numel() > 0 and not pairs:
            base, stride, offset = strided(x)
            window = f',{{{",".join(map(str, stride))}}},{offset}'
        raw = bytes_of(base)
        at, self.size = self.size, self.size + len(raw)
        self.data.append(raw)
        grad = x.requires_grad if grad is None else grad
        return (f'T("{DTYPES[x.dtype]}",{at},{len(raw)},{{{",".join(map(str, x.shape))}}},'
                f'{"true" if grad else "false"}{window})')

    def add(self, x):
        """Puts x among the call's tensors; the expression that names it there."""
        self.tensors.append(self.tensor(x))
        return f"t[{len(self.tensors)}]"

    def value(self, v):
        """Any argument as a Lua expression."""
        if isinstance(v, torch.Tensor):
            return self.add(v)
        if v is None:
            return "nil"
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, int):
            return str(v) if v > -2**63 else "math.mininteger"
        if isinstance(v, float):
            if math.isnan(v):
                return "0/0"
            return repr(v) if math.isfinite(v) else ("math.huge" if v > 0 else "-math.huge")
        if isinstance(v, str):
            return '"' + v + '"'
        if isinstance(v, torch.dtype):
            if v not in DTYPES:
                raise Untold(f"dtype {v}")
            return f'"{DTYPES[v]}"'
        if isinstance(v, torch.device):
            if v.type != "cpu":
                raise Untold(f"device {v}")
            return '"cpu"'
        if isinstance(v, dict):
            return "{" + ", ".join(f'["{k}"] = {self.value(x)}' if k in KEYWORDS else
                                   f"{k} = {self.value(x)}" for k, x in v.items()) + "}"
        if isinstance(v, Lua):
            return v.text.format(*(self.value(x) for x in v.args))
        if isinstance(v, (list, tuple)):
            return "{" + ", ".join(self.value(x) for x in v) + "}"
        raise Untold(f"an argument of type {type(v).__name__}")

    def call(self, expression):
        return (f"t = {{{', '.join(self.tensors)}}}\n"
                f"return call(function() return {expression} end)")


class Worker:
    def __init__(self, build):
        self.build, self.process, self.restarts = build, None, -1

    def start(self):
        self.restarts += 1
        path = f"{ROOT}/lua/?.lua;{ROOT}/lua/?/init.lua;;"
        lua = os.environ.get("LUA", "lua5.4")
        self.process = subprocess.Popen(
            [lua, os.path.join(ROOT, "scripts", "opinfo", "worker.lua")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "LUA_PATH": path,
                 "LUA_CPATH": os.path.join(ROOT, self.build, "lua", "?.so")})
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.unread = b""

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def died(self, how):
        self.process.kill()
        code = self.process.wait()
        self.process = None
        name = signal.Signals(-code).name if code < 0 and how == "crash" else ""
        raise Died(f"{how} {name}".strip())

    def read(self, enough):
        """Reads until enough(bytes so far) says where to cut."""
        while (cut := enough(self.unread)) is None:
            if not self.selector.select(SECONDS):
                self.died("hang")
            some = os.read(self.process.stdout.fileno(), 1 << 20)
            if not some:
                self.died("crash")
            self.unread += some
        out, self.unread = self.unread[:cut], self.unread[cut:]
        return out

    def run(self, text, data=()):
        """Runs Lua text; returns its values. Raises Refused or Died."""
        if self.process is None:
            self.start()
        code, raw = text.encode(), b"".join(data)
        try:
            self.process.stdin.write(f"{len(code)} {len(raw)}\n".encode() + code + raw)
            self.process.stdin.flush()
        except BrokenPipeError:
            self.died("crash")
        line = self.read(lambda b: b.find(b"\n") + 1 or None)
        how, n_text, n_data = line.split()
        n_text, n_data = int(n_text), int(n_data)
        whole = self.read(lambda b: n_text + n_data if len(b) >= n_text + n_data else None)
        if how == b"error":
            raise Refused(whole[:n_text].decode(errors="replace"))
        return values(whole[:n_text].decode().split("\n") if n_text else [],
                      memoryview(whole)[n_text:])


def values(lines, data):
    """The values of an answer; tensors that require gradients have requires_grad set."""
    stack = [[]]
    for line in lines:
        kind, rest = line[0], line[2:]
        if kind == "{":
            stack.append([])
        elif kind == "}":
            stack[-2].append(stack.pop())
        elif kind == "t":
            name, sizes, grad = rest.split(" ")
            shape = [int(n) for n in sizes.split(",")] if sizes else []
            dtype = BY_NAME[name]
            n = math.prod(shape) * dtype.itemsize
            x = torch.frombuffer(bytearray(data[:n]), dtype=dtype).reshape(shape) if n \
                else torch.empty(shape, dtype=dtype)
            data = data[n:]
            stack[-1].append(x.requires_grad_() if grad == "1" else x)
        elif kind == "n":
            stack[-1].append(float.fromhex(rest) if set(rest) & set("xna") else int(rest))
        else:
            stack[-1].append({"b": rest == "true", "s": rest, "z": None}[kind])
    return stack[0]
