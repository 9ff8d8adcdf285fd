"""nn.utils.parametrizations and nn.utils.prune, of layers whose tensors are written out."""
from cases import *  # noqa: F403
import torch.nn as nn
import torch.nn.utils.parametrizations as PZ
import torch.nn.utils.prune as prune


def table(tensors, write):
    return "{" + ",".join(f'["{k}"]={write(v)}' for k, v in tensors.items()) + "}"


def parametrized(name, layer, x, options, **given):
    """The layer's answer and gradients, from a state that is not the first one."""
    module = getattr(PZ, name)(layer, **given).double()
    for key, t in module.named_parameters():
        t.data += 0.1 * r(*t.shape, dtype=f64, lo=-1, hi=1)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    y = module(x)
    weights = like(y)
    (y * weights).sum().backward()
    out = {"y": y, **{"grad " + k: p.grad for k, p in module.named_parameters()}}
    out.update({"after " + k: v for k, v in module.state_dict().items()})
    torch.nn.utils.parametrize.remove_parametrizations(module.eval(), "weight")
    out["removed"] = module.weight
    emit([f'f="{name}"', f'layer="{type(layer).__name__.replace("Parametrized", "")}"',
          f"given={{{options}}}", f"x={lua(x)}", f"cotangent={lua(weights)}",
          "state=" + table(state, lua), "out=" + table(out, tensor)], f"{name} {options}")


@family("sum")
def parametrizations():
    def linear(n, m):
        return nn.Linear(n, m).double()

    def row(n):
        return r(2, n, dtype=f64, lo=-1, hi=1)

    images = r(1, 2, 4, dtype=f64, lo=-1, hi=1)
    parametrized("weight_norm", linear(3, 4), row(3), "")
    parametrized("weight_norm", linear(3, 4), row(3), "dim=2", dim=1)
    parametrized("weight_norm", linear(3, 4), row(3), 'dim="all"', dim=None)
    parametrized("weight_norm", nn.ConvTranspose1d(2, 3, 2).double(), images, "dim=2", dim=1)
    parametrized("spectral_norm", linear(3, 4), row(3), "")
    parametrized("spectral_norm", linear(3, 4), row(3), "n_power_iterations=3,eps=1e-6",
                 n_power_iterations=3, eps=1e-6)
    parametrized("spectral_norm", nn.ConvTranspose1d(2, 3, 2).double(), images, "")
    for n, m in ((3, 3), (2, 4), (4, 2)):
        for how in ("matrix_exp", "cayley", "householder"):
            parametrized("orthogonal", linear(n, m), row(n), f'orthogonal_map="{how}"',
                         orthogonal_map=how)
    parametrized("orthogonal", linear(3, 3), row(3), "use_trivialization=false",
                 use_trivialization=False)
    parametrized("orthogonal", linear(4, 3), row(4), "use_trivialization=false",
                 use_trivialization=False)


def pruned(steps, layer=None):
    """Masks after each step: (function, Lua options, options)."""
    layer = layer or nn.Linear(5, 4)
    layer.weight.data.copy_(torch.randn(layer.weight.shape))
    first = lua(layer.weight.detach())
    masks, written = [], []
    for name, text, given in steps:
        getattr(prune, name)(layer, "weight", **given)
        masks.append(tensor(layer.weight_mask))
        written.append(f'{{"{name}",{{{text}}}}}')
    names = ",".join(f'"{k}"' for k in layer.state_dict())
    emit([f"weight={first}", f"steps={{{','.join(written)}}}", f"masks={{{','.join(masks)}}}",
          f"names={{{names}}}", f"pruned={tensor(layer.weight)}"],
         "+".join(s[0] for s in steps))


@family("exact")
def pruning():
    scores = distinct(4, 5)
    mask = (scores > scores.median()).float()
    own = f"mask={lua(mask)}"
    l1 = ("l1_unstructured", "amount=0.3", {"amount": 0.3})
    pruned([l1])
    pruned([l1, l1])
    pruned([("l1_unstructured", "amount=3", {"amount": 3})])
    pruned([("l1_unstructured", "amount=0.125", {"amount": 0.125}),
            ("l1_unstructured", "amount=0.0", {"amount": 0.0})])
    pruned([("l1_unstructured", f"amount=4,importance_scores={lua(scores)}",
             {"amount": 4, "importance_scores": scores})])
    pruned([("identity", "", {}), l1])
    pruned([("custom_from_mask", own, {"mask": mask}), l1])
    pruned([l1, ("custom_from_mask", own, {"mask": mask})])
    for n, text in ((1, "1"), (2, "2"), (INF, "1/0"), (-INF, "-1/0")):
        for dim in (0, 1):
            pruned([("ln_structured", f"amount=2,n={text},dim={dim + 1}",
                     {"amount": 2, "n": n, "dim": dim})])
    by_row = ("ln_structured", "amount=0.5,n=2,dim=1", {"amount": 0.5, "n": 2, "dim": 0})
    by_column = ("ln_structured", "amount=1,n=1,dim=-1", {"amount": 1, "n": 1, "dim": -1})
    pruned([by_row, by_column])
    pruned([by_row, by_row])
    pruned([by_row, l1, by_column])
    for n in ("fro", "nuc"):
        pruned([("ln_structured", f'amount=1,n="{n}",dim=1', {"amount": 1, "n": n, "dim": 0})],
               nn.Conv1d(2, 3, 2))
