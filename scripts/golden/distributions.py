"""torch.distributions, in float64 at parameters that float32 holds."""
from cases import *  # noqa: F403
import torch.distributions as D

LATTICE = torch.tensor([0.125, 0.5, 0.75], dtype=f64)  # probabilities for icdf
CHOICES = (D.Categorical,)  # whose values are positions


def made(cls, args):
    if cls is D.Independent:
        base, opts, n = args["base"]
        return D.Independent(base(**opts), n)
    return cls(**args)


def arguments(args):
    """The arguments of Independent tell of its base, by name."""
    if "base" in args:
        base, opts, n = args["base"]
        return f'{{base="{base.__name__}",opts={lua(opts)},n={n}}}'
    return lua(args)


def field(name, value, shift=0):
    return f"{name}={tensor(value.detach(), shift=shift)}"


def distribution(cls, args, value=None, other=None, q=None):
    """What a distribution answers. value: where log_prob and cdf are asked; other: arguments of
    the distribution, of class q where that is another one, from which kl_divergence is taken."""
    d, shift = made(cls, args), 1 if cls in CHOICES else 0
    out = []
    for name in ("mean", "variance", "stddev", "mode", "probs", "logits", "covariance_matrix",
                 "precision_matrix", "scale_tril"):
        try:
            y = getattr(d, name)
        except (NotImplementedError, AttributeError):
            continue
        out.append(field(name, y, shift if name == "mode" else 0))
    try:
        out.append(field("entropy", d.entropy()))
    except NotImplementedError:
        pass
    fields = [f'class="{cls.__name__}"', f"args={arguments(args)}",
              f"batch_shape={lua(list(d.batch_shape))}", f"event_shape={lua(list(d.event_shape))}"]
    if value is not None:
        fields.append(field("value", value, shift))
        out.append(field("log_prob", d.log_prob(value)))
        try:
            out.append(field("cdf", d.cdf(value)))
        except NotImplementedError:
            pass
    try:
        p = LATTICE.reshape(3, *[1] * len(d.batch_shape))
        y = d.icdf(p)
        fields.append(field("probabilities", p))
        out.append(field("icdf", y))
    except NotImplementedError:
        pass
    if other is not None:
        other_class = q or cls
        fields.append(f'q="{other_class.__name__}"')
        fields.append(f"other={arguments(other)}")
        out.append(field("kl", D.kl_divergence(d, made(other_class, other))))
    emit(fields + ["out={" + ",".join(out) + "}"], f"{cls.__name__} {list(args)} {list(d.batch_shape)}"
         + (f" from {q.__name__}" if q else ""))


def up(*shape, lo=0.25, hi=4.0):
    return r(*shape, dtype=f64, lo=lo, hi=hi)


def real(*shape):
    return r(*shape, dtype=f64, lo=-2, hi=2)


def spd(n, *batch):
    a = r(*batch, n, n, dtype=f64, lo=-1, hi=1)
    return a @ a.mT + torch.eye(n, dtype=f64)


@family("sum")
def distributions():
    for cls in (D.Normal, D.Laplace, D.Cauchy, D.LogNormal):
        value = up(2, 3) if cls is D.LogNormal else real(2, 3)
        distribution(cls, dict(loc=real(3), scale=up(2, 1)), value,
                     dict(loc=real(3), scale=up(3)))
        distribution(cls, dict(loc=real(), scale=up()), value)
    distribution(D.HalfNormal, dict(scale=up(3)), up(2, 3), dict(scale=up(3)))
    distribution(D.Uniform, dict(low=-up(3), high=up(3)), r(2, 3, dtype=f64, lo=-0.2, hi=0.2),
                 dict(low=torch.tensor([-4.0, -5.0, 0.0], dtype=f64), high=up(3) + 4))
    distribution(D.Exponential, dict(rate=up(3)), up(2, 3), dict(rate=up(3)))
    gamma = dict(concentration=torch.tensor([0.25, 1, 5.5], dtype=f64), rate=up(2, 1))
    distribution(D.Gamma, gamma, up(2, 3), dict(concentration=up(3), rate=up(3)))
    distribution(D.Gamma, gamma, None, dict(rate=up(3)), D.Exponential)
    distribution(D.Exponential, dict(rate=up(3)), None, gamma, D.Gamma)
    distribution(D.Chi2, dict(df=up(3)), up(2, 3), dict(df=up(3)))
    distribution(D.StudentT, dict(df=torch.tensor([0.5, 1.5, 7], dtype=f64), loc=real(3),
                                  scale=up(3)), real(2, 3))
    beta = lambda: dict(concentration1=up(3), concentration0=up(2, 1))
    distribution(D.Beta, beta(), r(2, 3, dtype=f64, lo=0.1, hi=0.9), beta())
    for concentration in (up(2, 3), r(3, dtype=f64, lo=0.1, hi=0.9)):
        distribution(D.Dirichlet, dict(concentration=concentration),
                     torch.tensor([0.25, 0.25, 0.5], dtype=f64), dict(concentration=up(2, 3)))
    share = lambda *s: r(*s, dtype=f64, lo=0.1, hi=0.9)
    bits = torch.tensor([[0.0, 1, 1], [1, 0, 1]], dtype=f64)
    for cls, value in ((D.Bernoulli, bits), (D.Geometric, bits * 3)):
        distribution(cls, dict(probs=share(3)), value, dict(probs=share(3)))
        distribution(cls, dict(logits=real(3)), value, dict(logits=real(3)))
    n = torch.tensor(4.0, dtype=f64)
    distribution(D.Binomial, dict(total_count=n, probs=share(3)), bits * 4,
                 dict(total_count=n, probs=share(3)))
    distribution(D.Binomial, dict(total_count=n, logits=real(3)), bits * 2)
    distribution(D.Poisson, dict(rate=up(3)), bits * 5, dict(rate=up(3)))
    for cls, value in ((D.Categorical, torch.tensor([[0, 2], [1, 1]])),
                       (D.OneHotCategorical, torch.eye(3, dtype=f64)[:2])):
        distribution(cls, dict(probs=up(2, 3)), value, dict(probs=up(2, 3)))
        distribution(cls, dict(logits=real(2, 3)), value, dict(logits=real(3)))
        distribution(cls, dict(logits=real(3)), value)
    counts = torch.tensor([[1.0, 2, 0], [0, 3, 0]], dtype=f64)
    distribution(D.Multinomial, dict(total_count=3, probs=up(2, 3)), counts)
    distribution(D.Multinomial, dict(total_count=3, logits=real(3)), counts)
    normal = D.MultivariateNormal
    distribution(normal, dict(loc=real(3), covariance_matrix=spd(3)), real(4, 3),
                 dict(loc=real(3), covariance_matrix=spd(3, 2)))
    distribution(normal, dict(loc=real(2, 3), precision_matrix=spd(3)), real(4, 2, 3),
                 dict(loc=real(3), covariance_matrix=spd(3)))
    distribution(normal, dict(loc=real(3), scale_tril=torch.linalg.cholesky(spd(3, 2))), real(3))
    distribution(D.Independent, dict(base=(D.Normal, dict(loc=real(2, 3), scale=up(3)), 1)),
                 real(4, 2, 3), dict(base=(D.Normal, dict(loc=real(3), scale=up(2, 1)), 1)))
    distribution(D.Independent, dict(base=(D.Bernoulli, dict(logits=real(2, 3)), 2)), bits)
    q = lambda: dict(loc=real(3), scale=up(3))
    for cls, args in ((D.Uniform, dict(low=-up(3), high=up(3))), (D.Laplace, q()),
                      (D.Exponential, dict(rate=up(3))), (D.Gamma, gamma), (D.Beta, beta())):
        distribution(cls, args, None, q(), D.Normal)
    distribution(D.HalfCauchy, dict(scale=up(3)), up(2, 3))
    distribution(D.Gumbel, dict(loc=real(3), scale=up(2, 1)), real(2, 3))
    distribution(D.Weibull, dict(scale=up(2, 1), concentration=up(3, lo=1)), up(2, 3))
    alpha = torch.tensor([0.5, 1.5, 3], dtype=f64)
    distribution(D.Pareto, dict(scale=up(2, 1, hi=1), alpha=alpha), up(2, 3, lo=1))
    distribution(D.InverseGamma, dict(concentration=alpha, rate=up(2, 1)), up(2, 3))
    distribution(D.NegativeBinomial, dict(total_count=up(2, 1), probs=share(3)), bits * 3)
    distribution(D.NegativeBinomial, dict(total_count=up(2, 1), logits=real(3)), bits * 2)
    distribution(D.Kumaraswamy, dict(concentration1=up(3), concentration0=up(2, 1, hi=0.9)),
                 share(2, 3))
    distribution(D.FisherSnedecor, dict(df1=up(2, 1, hi=6), df2=up(3, lo=4.5, hi=9)), up(2, 3))
    cut = torch.tensor([0.125, 0.5, 0.75], dtype=f64)
    distribution(D.ContinuousBernoulli, dict(probs=cut), share(2, 3))
    logits = torch.tensor([-2.0, 1, 3], dtype=f64)
    distribution(D.ContinuousBernoulli, dict(logits=logits), share(2, 3))
    temperature = torch.tensor(0.625, dtype=f64)
    relaxed = lambda: dict(temperature=temperature, logits=real(3))
    distribution(D.RelaxedBernoulli, relaxed(), share(2, 3))
    thirds = torch.tensor([[0.25, 0.25, 0.5], [0.125, 0.75, 0.125]], dtype=f64)
    distribution(D.RelaxedOneHotCategorical, relaxed(), thirds)
    distribution(D.OneHotCategoricalStraightThrough, dict(probs=up(2, 3)),
                 torch.eye(3, dtype=f64)[:2], dict(probs=up(2, 3)))
    distribution(D.LogisticNormal, dict(loc=real(2, 2), scale=up(2)), thirds)
    low_rank = lambda *b: dict(loc=real(*b, 3), cov_factor=real(3, 2), cov_diag=up(3))
    distribution(D.LowRankMultivariateNormal, low_rank(2), real(2, 3), low_rank())
    distribution(D.LowRankMultivariateNormal, low_rank(), real(3),
                 dict(loc=real(3), covariance_matrix=spd(3)), normal)
    distribution(normal, dict(loc=real(3), covariance_matrix=spd(3)), None, low_rank(),
                 D.LowRankMultivariateNormal)
