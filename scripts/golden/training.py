"""Optimizers, schedules, clipping and the GradScaler, step by step."""
from cases import *  # noqa: F403


STEPS = 8


class Lion(torch.optim.Optimizer):
    """X. Chen et al. 2023, algorithm 2, in plain words; PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, foreach=None):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p.sub_(lr * (torch.sign(c) + group["weight_decay"] * p))
                m.copy_(b2 * m + (1 - b2) * p.grad)


class LAMB(torch.optim.Optimizer):
    """Y. You et al. 2019, algorithm 2, with phi(z) = z, in plain words; PyTorch has none."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01,
                 foreach=None):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                s["t"] = s.get("t", 0) + 1
                s["m"] = b1 * s.get("m", torch.zeros_like(p)) + (1 - b1) * p.grad
                s["v"] = b2 * s.get("v", torch.zeros_like(p)) + (1 - b2) * p.grad ** 2
                m, v = s["m"] / (1 - b1 ** s["t"]), s["v"] / (1 - b2 ** s["t"])
                r = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                a, b = p.norm(), r.norm()
                trust = a / b if a > 0 and b > 0 else 1.0
                p.sub_(group["lr"] * trust * r)


OWN = {"Lion": Lion, "LAMB": LAMB}


def trajectory(cls, groups_opts, shapes=((2, 3), (3,)), **opts):
    """Two parameters; gradients given per step, values noted after each."""
    params = [r(*shape) for shape in shapes]
    start = [p.clone() for p in params]
    leaf = [p.clone().requires_grad_() for p in params]
    groups = [dict(params=[p], **o) for p, o in zip(leaf, groups_opts)] if groups_opts else leaf
    if cls != "Muon":
        opts["foreach"] = False
    optimizer = (OWN.get(cls) or getattr(torch.optim, cls))(groups, **opts)
    opts.pop("foreach", None)
    grads, seen = [], []
    for step in range(STEPS):
        g = [like(p) for p in params]
        if step == 4:
            g[0] = torch.zeros_like(g[0])
        for p, x in zip(leaf, g):
            p.grad = x.clone()
        optimizer.step()
        grads.append("{" + ",".join(values(x) for x in g) + "}")
        seen.append("{" + ",".join(values(p) for p in leaf) + "}")
    fields = [f'class="{cls}"', f"opts={lua(opts)}",
              "params={" + ",".join(tensor(p) for p in start) + "}"]
    if groups_opts:
        fields.append(f"groups={lua(groups_opts)}")
    words = " ".join(f"{k}={v}" for k, v in opts.items()) + (" two groups" if groups_opts else "")
    emit(fields + ["grads={" + ",".join(grads) + "}", "out={" + ",".join(seen) + "}"],
         f"{cls} {words}")


@family("train")
def optim():
    for wd in (0.0, 0.1):
        for momentum in (0.0, 0.9):
            for dampening in (0.0, 0.1) if momentum else (0.0,):
                for nesterov in (False, True) if momentum and not dampening else (False,):
                    trajectory("SGD", None, lr=0.1, momentum=momentum, dampening=dampening,
                               weight_decay=wd, nesterov=nesterov)
    trajectory("SGD", [{"lr": 0.2}, {"weight_decay": 0.05}], lr=0.1, momentum=0.5)
    for cls in ("Adam", "AdamW"):
        for wd in (0.0, 0.1):
            for amsgrad in (False, True):
                for betas in ((0.9, 0.999), (0.5, 0.9)):
                    trajectory(cls, None, lr=0.01, betas=betas, eps=1e-8 if wd else 1e-3,
                               weight_decay=wd, amsgrad=amsgrad)
        trajectory(cls, [{"lr": 0.02}, {"betas": (0.8, 0.99)}], lr=0.01)
        trajectory(cls, None)
    trajectory("SGD", None)
    more = {
        "RMSprop": [{}, {"momentum": 0.9}, {"centered": True}, {"alpha": 0.5, "eps": 1e-3}],
        "Adagrad": [{}, {"lr_decay": 0.1}, {"initial_accumulator_value": 0.5, "eps": 1e-3}],
        "Adadelta": [{}, {"rho": 0.5, "eps": 1e-3}],
        "Adamax": [{}, {"betas": (0.5, 0.9), "eps": 1e-3}],
        "NAdam": [{}, {"momentum_decay": 0.1}, {"decoupled_weight_decay": True}],
        "RAdam": [{}, {"betas": (0.5, 0.6)}, {"decoupled_weight_decay": True}],
        "Lion": [{}, {"betas": (0.5, 0.75)}],
        "LAMB": [{}, {"betas": (0.5, 0.9), "eps": 1e-3}],
    }
    for cls, settings in more.items():
        for opts in settings:
            trajectory(cls, None, lr=0.05, **opts)
            trajectory(cls, None, lr=0.05, weight_decay=0.125, **opts)
        if cls not in OWN:
            trajectory(cls, None, lr=0.05, maximize=True)
            trajectory(cls, None)
    for opts in ({}, {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw"}):
        trajectory("Muon", None, ((2, 3), (3, 2)), lr=0.05, **opts)
    for opts in ({}, {"etas": (0.25, 1.5), "step_sizes": (0.02, 0.1)}, {"maximize": True}):
        trajectory("Rprop", None, lr=0.05, **opts)
    for opts in ({}, {"lambd": 0.1, "alpha": 0.5, "t0": 2.0}, {"weight_decay": 0.125}):
        trajectory("ASGD", None, lr=0.05, **opts)
    for opts in ({}, {"beta2_decay": -0.5, "d": 1.5}, {"weight_decay": 0.125}):
        trajectory("Adafactor", None, lr=0.05, **opts)
        trajectory("Adafactor", None, ((2, 3), (2, 2, 2)), lr=0.05, **opts)


@family("exact")
def sched():
    def rates(cls, args, opts, steps=30, cfg=None, lr=0.5, extra=None, lam=None):
        p = torch.zeros(1, requires_grad=True)
        cfg = cfg or ("SGD", {"momentum": 0.9})
        optimizer = getattr(torch.optim, cfg[0])([p], lr=lr, **cfg[1])
        real = [eval("lambda n: " + lam)] if lam else args
        s = getattr(torch.optim.lr_scheduler, cls)(optimizer, *real, **opts)
        out, second = [], []
        for _ in range(steps):
            g = optimizer.param_groups[0]
            out.append(g["lr"])
            if extra:
                second.append(g["betas"][0] if extra == "betas" else g[extra])
            optimizer.step()
            s.step()
        fields = [
            f'class="{cls}"',
            f"args={lua(args)}",
            f"opts={lua(opts)}",
            f'optimizer="{cfg[0]}"',
            f"config={lua(dict(cfg[1], lr=lr))}",
        ]
        if lam:
            fields.append(f'lambda="{lam.replace("**", "^")}"')
        fields.append("rates={" + ",".join(number(v) for v in out) + "}")
        if extra:
            fields.append(f"{extra}={{" + ",".join(number(v) for v in second) + "}")
        emit(
            fields,
            " ".join(
                [cls, lam or ""] + [str(a) for a in args] + [f"{k}={v}" for k, v in opts.items()]
            ),
        )
    def begun(*groups):
        return torch.optim.SGD([dict(params=[torch.zeros(1)], lr=lr) for lr in groups], lr=0.5)

    def noted(optimizer, step, steps):
        """The first group's rates before each step."""
        out = []
        for i in range(steps):
            out.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            step(i)
        return "rates={" + ",".join(number(v) for v in out) + "}"

    def plateau(metrics, **opts):
        optimizer = begun(0.5)
        s = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **opts)
        out = noted(optimizer, lambda i: s.step(metrics[i]), len(metrics))
        emit(['class="ReduceLROnPlateau"', f"opts={lua(opts)}", f"metrics={lua(metrics)}", out],
             f"ReduceLROnPlateau {opts}")

    def several(cls, parts, milestones=None, steps=16):
        optimizer = begun(0.5)
        made = [getattr(torch.optim.lr_scheduler, c)(optimizer, *args, **opts)
                for c, args, opts in parts]
        rest = [milestones] if milestones else []
        make = getattr(torch.optim.lr_scheduler, cls)
        s = make(optimizer, made, *rest) if milestones else make(made)
        names = ",".join(f'{{"{c}",{lua(args)},{lua(opts)}}}' for c, args, opts in parts)
        emit([f'class="{cls}"', "parts={" + names + "}", f"milestones={lua(milestones or [])}",
              noted(optimizer, lambda _: s.step(), steps)],
             f"{cls} {' '.join(c for c, _, _ in parts)} {milestones or ''}")

    def annealed(**opts):
        optimizer = begun(0.5)
        other = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        s = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, **opts)
        out = noted(optimizer, lambda i: (other if i < 3 else s).step(), 16)
        emit(['class="SWALR"', f"opts={lua(opts)}", out], f"SWALR {opts}")

    falling = [5.0, 4.0, 4.0, 3.99, 3.5, 3.6, 3.7, 3.4, 3.4, 3.4, 3.39, 3.4, 3.4, 3.4, 3.4, 3.4]
    plateau(falling, patience=1)
    plateau(falling, patience=0, cooldown=2, factor=0.5)
    plateau(falling, patience=1, threshold=0.2, threshold_mode="abs", min_lr=0.01)
    plateau([-v for v in falling], patience=2, mode="max", threshold=0.01)
    warm = ("LinearLR", [], {"start_factor": 0.25, "total_iters": 4})
    several("SequentialLR", [warm, ("CosineAnnealingLR", [10], {})], [4])
    several("SequentialLR", [warm, ("StepLR", [2], {"gamma": 0.5}),
                             ("ExponentialLR", [0.9], {})], [4, 9])
    several("ChainedScheduler", [("StepLR", [3], {"gamma": 0.5}), ("ExponentialLR", [0.9], {})])
    fall = ("ExponentialLR", [0.9], {})
    short = {"total_iters": 4}
    for part in (("ConstantLR", [], dict(short, factor=0.1)), warm, ("PolynomialLR", [], short),
                 ("MultiStepLR", [[2, 5]], {}), ("CosineAnnealingLR", [5], {"eta_min": 0.05})):
        several("ChainedScheduler", [part, fall])
        several("SequentialLR", [warm, part], [5])
        several("SequentialLR", [part, fall, warm], [3, 8])
    several("ChainedScheduler", [warm, ("ConstantLR", [], short), fall])
    several("SequentialLR", [warm, ("StepLR", [2], {})], [0])
    annealed(anneal_epochs=5)
    annealed(anneal_epochs=4, anneal_strategy="linear")
    annealed(anneal_epochs=0)
    for step_size in (1, 3, 7):
        rates("StepLR", [step_size], {})
        rates("StepLR", [step_size], {"gamma": 0.5})
    for t in (1, 10, 7):
        rates("CosineAnnealingLR", [t], {})
        rates("CosineAnnealingLR", [t], {"eta_min": 0.05})
    for opts in ({}, {"factor": 0.5, "total_iters": 9}):
        rates("ConstantLR", [], opts)
    for opts in ({}, {"start_factor": 0.5, "end_factor": 0.25, "total_iters": 9}):
        rates("LinearLR", [], opts)
    for opts in ({}, {"total_iters": 20, "power": 2.0}):
        rates("PolynomialLR", [], opts)
    for gamma in (0.9, 0.5):
        rates("ExponentialLR", [gamma], {})
    for opts in ({}, {"T_mult": 2}, {"T_mult": 3, "eta_min": 0.05}):
        rates("CosineAnnealingWarmRestarts", [4], opts)
    rates("MultiplicativeLR", [], {}, lam="1 - 1 / (n + 3)")
    for lam in ("0.95 ** n", "1 / (1 + n)", "min(1, (n + 1) / 10)"):
        rates("LambdaLR", [], {}, lam=lam.replace("min", "min"))
    for opts in (
        {"total_steps": 30},
        {"total_steps": 31, "pct_start": 0.2},
        {"epochs": 3, "steps_per_epoch": 10},
        {"total_steps": 30, "anneal_strategy": "linear"},
        {"total_steps": 30, "three_phase": True},
        {"total_steps": 30, "div_factor": 10.0, "final_div_factor": 100.0},
        {"total_steps": 30, "base_momentum": 0.8, "max_momentum": 0.99},
    ):
        rates("OneCycleLR", [0.8], opts, steps=30, extra="momentum")
    rates("OneCycleLR", [0.8], {"total_steps": 30, "cycle_momentum": False}, extra="momentum")
    for opts in ({"step_size_up": 4}, {"step_size_up": 4, "step_size_down": 7},
                 {"step_size_up": 5, "mode": "triangular2"},
                 {"step_size_up": 5, "mode": "exp_range", "gamma": 0.9, "max_momentum": 0.95}):
        rates("CyclicLR", [0.1, 0.5], opts, extra="momentum")
    rates("CyclicLR", [0.1, 0.5], {"step_size_up": 4}, cfg=("Adam", {}), extra="betas")
    rates(
        "OneCycleLR",
        [0.8],
        {"total_steps": 20},
        steps=20,
        cfg=("Adam", {"betas": (0.9, 0.99)}),
        extra="betas",
    )


@family("train")
def clip():
    def clipped(grads, max_norm, **opts):
        ps = [torch.zeros(len(g), requires_grad=True) for g in grads]
        for p, g in zip(ps, grads):
            p.grad = torch.tensor(g)
        norm = torch.nn.utils.clip_grad_norm_(ps, max_norm, **opts)
        before = "{" + ",".join(lua([float(v) for v in g]) for g in grads) + "}"
        after = "{" + ",".join(values(p.grad) for p in ps) + "}"
        emit(
            [
                'op="clip_grad_norm_"',
                f"grads={before}",
                f"args={{{lua(max_norm)}" + (f",{lua(opts)}" if opts else "") + "}",
                f"norm={number(norm.item(), f32)}",
                f"out={after}",
            ],
            f"clip_grad_norm_ {grads} {max_norm} {opts or ''}",
        )
    clipped([[3.0, 4.0]], 1.0)
    clipped([[3.0], [4.0]], 1.0)
    clipped([[0.6, 0.8]], 1.0)
    clipped([[0.3, 0.4]], 1.0)
    clipped([[3.0, -4.0], [1.0]], 2.0, norm_type=INF)
    clipped([[3.0, -4.0]], 1.0, norm_type=1.0)
    clipped([[1.0, 4.0]], 1.0, norm_type=0.5)
    clipped([[3.0, 4.0]], 0.0)
    clipped([[INF, 1.0]], 1.0)
    clipped([[NAN, 1.0]], 1.0)
    clipped([[1e20, 1e20]], 1.0)
    clipped([[0.0, 0.0]], 1.0)
    g = [-3.0, -2.0, 0.0, 2.6, INF, -INF, NAN]
    p = torch.zeros(len(g), requires_grad=True)
    p.grad = torch.tensor(g)
    torch.nn.utils.clip_grad_value_([p], 2.5)
    emit(
         ['op="clip_grad_value_"', f"grads={{{lua(g)}}}", "args={2.5}", f"out={{{values(p.grad)}}}"],
         "clip_grad_value_ 2.5")


@family("exact")
def amp_scaler():
    """Scale and growth counter after runs of clean and overflowing updates."""
    def history(events, **opts):
        scaler = torch.amp.GradScaler("cpu", **opts)
        p = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=0.0)
        out = []
        for inf, n in events:
            for _ in range(n):
                scaler.scale(torch.zeros(()))
                p.grad = torch.tensor([INF if inf else 1.0])
                scaler.step(optimizer)
                scaler.update()
            state = scaler.state_dict()
            out.append(
                f"{{inf={lua(inf)},n={n},scale={number(state['scale'])},tracker={state['_growth_tracker']}}}"
            )
        emit([f"opts={lua(opts)}", "runs={" + ",".join(out) + "}"], f"GradScaler {opts}")
    bad, good = True, False
    history([(bad, 1), (bad, 1), (good, 1999), (good, 1), (good, 1)])
    history(
        [(good, 1), (good, 1), (bad, 1)],
        init_scale=4.0,
        growth_factor=2.0,
        backoff_factor=0.25,
        growth_interval=2,
    )
    history([(good, 1), (good, 1), (good, 2)], init_scale=3.0, growth_factor=4.0, growth_interval=2)
    history([(good, 1), (good, 3)], growth_factor=1.5, growth_interval=1)
    history([(bad, 1), (bad, 1), (bad, 3)], backoff_factor=0.1)
    history([(good, 1), (good, 1)], init_scale=2.0**127, growth_interval=1)
    history([(good, 1)], init_scale=1.7e38, growth_interval=1)
    history([(bad, 8), (bad, 8)])
    history(
        [(good, 1), (bad, 1), (good, 2), (bad, 2), (good, 5)], init_scale=128.0, growth_interval=1
    )

    def unscaled(scale, grads, dtype):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        p = torch.zeros(len(grads), dtype=dtype, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=0.0)
        scaler.scale(torch.zeros(()))
        p.grad = torch.tensor(grads, dtype=dtype)
        before = tensor(p.grad, exact=True)
        scaler.unscale_(optimizer)
        emit(
            [
                f"opts={lua({'init_scale': scale})}",
                f"grad={before}",
                f"unscaled={tensor(p.grad, exact=True)}",
            ],
            f"unscale_ {name_of(dtype)} by {scale}",
        )
    for d in (f32, bf16, f64):
        for scale in (65536.0, 3.0, 98304.0, 1.0, 6553.60009765625):
            unscaled(scale, [1.0, -2.5, 0.1, 1e-8, 3e30, 0.0, -0.0, 65536.0, 1e-38], d)
