"""Type promotion and conversions."""
from cases import *  # noqa: F403


@family("exact")
def promote():
    """Result dtype of every pair; a number is a Lua integer or float."""
    ops = {"add": torch.add, "mul": torch.mul, "div": torch.div, "lt": torch.lt, "pow": torch.pow}
    kinds = {"nd": lambda d: torch.ones(2, dtype=d), "0d": lambda d: torch.ones((), dtype=d)}
    lefts = [(f"{name_of(d)}/{k}", mk(d)) for d in ALL for k, mk in kinds.items()]
    rights = lefts + [("integer", 2), ("float", 2.5)]
    for op, fn in ops.items():
        for ln, a in lefts:
            row = []
            for rn, b in rights:
                try:
                    row.append(f'["{rn}"]="{name_of(fn(a, b).dtype)}"')
                except (RuntimeError, NotImplementedError):
                    pass  # PyTorch has no kernel: nothing to hold us to
            emit([f'op="{op}"', f'left="{ln}"', "out={" + ",".join(row) + "}"], f"{op} {ln}")


@family("exact")
def cast():
    tricky = {
        f32: [
            0.0,
            -0.0,
            1.0,
            -1.0,
            INF,
            -INF,
            NAN,
            65504.0,
            65519.996,
            65520.0,
            65536.0,
            2049.0,
            2051.0,
            257.0,
            259.0,
            2**-24,
            2**-25,
            2**-25 * 1.0001,
            6.1e-5,
            1e-8,
            1.001,
            1.0039,
            1.00391,
            3.4e38,
            3.3895314e38,
            1e-45,
            4e-41,
            9.1835e-41,
            1.1754942e-38,
            0.1,
            1 / 3,
            -2.7182817,
            3e-8,
            8.9e-8,
            5.9604645e-8,
        ],
        f64: [
            0.0,
            -0.0,
            1.0,
            INF,
            -INF,
            NAN,
            0.1,
            1 / 3,
            1e308,
            1e39,
            3.4028235677973366e38,
            3.4028235677973362e38,
            1e-46,
            7.006492321624085e-46,
            7.006492321624086e-46,
            2.0**24 + 1,
            65519.999,
            1.00048828125000001,
            1.00048828125 + 2**-40,
            1.00390625 + 2**-40,
            5e-324,
            1e-310,
        ],
        f16: [
            0.0,
            -0.0,
            1.0,
            INF,
            -INF,
            NAN,
            65504.0,
            2**-24,
            2**-14,
            0.1,
            2049.0,
            259.0,
            1.00390625,
            1.01171875,
        ],
        bf16: [
            0.0,
            -0.0,
            1.0,
            INF,
            -INF,
            NAN,
            65536.0,
            3.3895313892515355e38,
            2**-133,
            2**-126,
            0.1,
            1e-8,
            65280.0,
        ],
        i64: [
            0,
            1,
            -1,
            127,
            128,
            255,
            256,
            257,
            259,
            2049,
            2051,
            65504,
            65520,
            2**24 + 1,
            2**31 - 1,
            2**31,
            2**53 + 1,
            2**63 - 1,
            -(2**63),
            -129,
        ],
        i32: [0, 1, -1, 2**31 - 1, -(2**31), 2**24 + 1, 259, 2051, 300],
        i16: [0, 1, -1, 32767, -32768, 257, 2049],
        i8: [0, 1, -1, 127, -128],
        u8: [0, 1, 127, 128, 255],
        torch.bool: [True, False],
    }
    small = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.75, -1.75, 2.5, 100.0, -100.0, 127.0]
    for src, items in tricky.items():
        for dst in ALL:
            x = torch.tensor(items, dtype=src)
            if src.is_floating_point and dst != torch.bool and not dst.is_floating_point:
                # outside the target's range C leaves the result open
                x = torch.tensor([v for v in small if dst != u8 or v > -1], dtype=src)
            emit([f"x={tensor(x, exact=True)}", f"out={tensor(x.to(dst), exact=True)}"],
                 f"{name_of(src)} to {name_of(dst)}")
