"""torch.func, of functions that the specs write out too."""
from cases import *  # noqa: F403
import torch.func as TF

# Of x (3) and y (3, 2); spec/func_spec.lua has the same ones by name.
FUNCTIONS = {
    "scalar": lambda x, y: (x.sin() @ y).pow(3).sum(),
    "vector": lambda x, y: (x.exp() @ y).tanh(),
    "matrix": lambda x, y: x.unsqueeze(1) * y * x.sum(),
}


@family("sum")
def functions():
    x, y = r(3, dtype=f64, lo=-1, hi=1), r(3, 2, dtype=f64, lo=-1, hi=1)
    vx, vy = r(3, dtype=f64, lo=-1, hi=1), r(3, 2, dtype=f64, lo=-1, hi=1)
    for name, f in FUNCTIONS.items():
        out = {}
        if name == "scalar":
            out["grad_x"], out["grad_y"] = TF.grad(f, argnums=(0, 1))(x, y)
        out["jac_x"], out["jac_y"] = TF.jacrev(f, argnums=(0, 1))(x, y)
        out["hessian_xx"] = TF.hessian(f)(x, y)
        out["hessian_xy"] = TF.hessian(f, argnums=(0, 1))(x, y)[0][1]
        out["third"] = TF.jacrev(TF.jacrev(TF.jacrev(f)))(x, y)
        value, pull = TF.vjp(f, x, y)
        cotangent = like(value)
        out["vjp_x"], out["vjp_y"] = pull(cotangent)
        out["value"], out["jvp"] = TF.jvp(f, (x, y), (vx, vy))
        xs, ys = torch.stack([x, vx], 1), torch.stack([y, vy])
        out["vmap"] = TF.vmap(f, in_dims=(1, 0), out_dims=-1)(xs, ys)
        out["vmap_shared"] = TF.vmap(f, in_dims=(1, None))(xs, y)
        out["vmap_grad"] = TF.vmap(TF.jacrev(f), in_dims=(1, 0))(xs, ys)
        emit([f'f="{name}"', f"x={lua(x)}", f"y={lua(y)}", f"vx={lua(vx)}", f"vy={lua(vy)}",
              f"cotangent={lua(cotangent)}",
              "out={" + ",".join(f"{k}={tensor(v)}" for k, v in out.items()) + "}"], name)
