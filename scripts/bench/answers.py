"""How PyTorch's workers talk: one request a line, one answer a line."""
import os
import sys


def number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def serve(library, answer):
    """Prints what answer(line) gives, a dict, as `a=1 b=2` for each line until `quit`.
    What libraries and compilers print goes to the standard error instead."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in iter(sys.stdin.readline, ""):
        if line == "quit\n":
            return
        try:
            if not library:
                raise RuntimeError("the library is not installed")
            reply = " ".join(f"{k}={v}" for k, v in answer(line).items())
        except Exception as e:  # whatever it is, the driver prints it in its table
            reply = "error " + " ".join(f"{type(e).__name__}: {e}".split())
        print(reply, file=out, flush=True)
