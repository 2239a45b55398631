"""The linear transformer with vector outputs: the paper's decoupled theory, and the exact one.

Equation numbers are those of Mainali & Teixeira (2025). Its conventions: the loss has a factor ½
here (twice this is the `Population` loss), and t/τ counts epochs times ηP, the rate times the
tasks of an epoch. Weights are diagonal in the eigenvectors U: p₂ = U diag(p) Uᵀ, q₁ = U diag(q) Uᵀ.

The paper's theory (11)-(14), `DecoupledFlow`, has every mode by itself, in closed form. It takes Σ̂
for diagonal in the eigenvectors and so leaves out couplings of order 1/N between modes: it is
exact as N → ∞.

The exact mean flow at any N is `CoupledFlow`. E[Σ̂_αβ²] = δ s_α² + (s_α s_β + δ s_α²)/N: entries of
Σ̂ off the diagonal have mean zero but not square zero. With T_p = Σ v s p² and T_q = Σ s² q²,
L = ½ Σ [s² q² ((N+1)/N v s p² + T_p/N) - 2 v s² p q + v s].

The least loss, `optimum`, is not the paper's fixed point at finite N. With P = v s p² and Q = s² q²
the loss is ½ [(N+1)/N Σ PQ + (ΣP)(ΣQ)/N - 2 Σ √(vs PQ) + Σ vs]. For given z = √(PQ) the second term
is least, (Σz)²/N, when P ∝ Q; what is left is a convex quadratic in z ≥ 0.
"""

import dataclasses
from typing import Any, Self

import numpy as np
import scipy
from jaxtyping import Bool, Float

from iclflow.tasks.base import Normaliser
from iclflow.tasks.laws import Commuting, Gaussian, Pool, bound
from iclflow.tasks.task import ContextLabels, Task


@dataclasses.dataclass(frozen=True)
class TransformerModes:
    """Eigenvalues s of the input covariance, N pairs, and v = E[λ²] of the tasks W = U diag(λ) Uᵀ.

    Only the variances of λ matter while p₂ and q₁ are diagonal in U, so a fixed (quenched) set of
    tasks enters by its mean squares.

    - `spectrum`, `context`, `variances`: s, N and v.

    >>> import iclflow as icl
    >>> modes = icl.theory.TransformerModes.given([1.0, 0.5], 200)
    >>> modes.size, modes.context
    (2, 200)
    """

    spectrum: Float[np.ndarray, " D"]
    context: int
    variances: Float[np.ndarray, " D"]

    @classmethod
    def given(cls, spectrum: object, context: int, variances: object = None) -> Self:
        """From plain numbers, checked; variances 1 if omitted, as in the paper."""
        s = np.asarray(spectrum, dtype=float)
        if s.ndim != 1 or s.size == 0 or not np.all(np.isfinite(s) & (s > 0)):
            raise ValueError(
                f"the linear transformer needs a list of eigenvalues above 0, got "
                f"{np.asarray(spectrum).tolist()}; leave out directions without inputs"
            )
        v = np.ones_like(s) if variances is None else np.asarray(variances, dtype=float)
        if v.shape != s.shape or not np.all(np.isfinite(v) & (v > 0)):
            raise ValueError(
                f"the linear transformer needs {s.size} task variances above 0, got {v.tolist()}"
            )
        if context < 1:
            raise ValueError(f"the context needs at least one labelled pair, got {context}")
        return cls(s, int(context), v)

    @classmethod
    def of(cls, task: Task) -> Self:
        """Those of a task; raises `ValueError` where the theory does not cover it."""
        reason = _uncovered(task)
        if reason is not None:
            raise ValueError(f"the theory of the linear transformer does not cover {reason}")
        basis = np.asarray(task.basis)
        match task.tasks.in_context():
            case Commuting(variances=spread) as law if np.array_equal(bound(law.basis), basis):
                return cls.given(np.asarray(task.spectrum), task.context, np.asarray(spread))
            case Commuting(variances=spread) as law:
                other = np.asarray(bound(law.basis))
                members = np.einsum("oa,ca->aoc", other, other)
                members = members * np.sqrt(np.asarray(spread))[:, None, None]
                count = 1
            case Pool(members=pool):
                members, count = np.asarray(pool), len(pool)
            case _:
                members, count = np.ones((1, task.size, task.size)), 1  # not diagonal: refused
        inside = np.einsum("oa,moc,cb->mab", basis, members, basis)
        squares = np.sum(inside**2, axis=0) / count  # E[(UᵀWU)²], entry by entry
        variances = np.diagonal(squares)
        if np.abs(squares - np.diag(variances)).max() > 1e-20 + 1e-12 * variances.max():
            raise ValueError(
                "the theory of the linear transformer needs tasks W = U diag Uᵀ in the "
                "eigenvectors of the inputs; give tasks=Commuting()"
            )
        return cls.given(np.asarray(task.spectrum), task.context, variances)

    @property
    def size(self) -> int:
        """The number of modes d."""
        return self.spectrum.size


def _uncovered(task: Task) -> str | None:
    if task.outputs != task.size:
        return f"{task.outputs} outputs of {task.size} inputs; W must be square"
    if not isinstance(task.inputs, Gaussian):
        return f"{type(task.inputs).__name__} inputs; they must be Gaussian"
    if task.lengths != (task.context,) or task.normaliser is not Normaliser.PAIRS:
        return "varying context lengths or another normaliser than 1/N"
    if task.tasks.mixed() or task.context_labels is not ContextLabels.TASK:
        return "a fixed task"
    if float(task.label_noise) > 0 or float(task.target_noise) > 0:
        return "noise on the labels"
    return None


Weights = Float[np.ndarray, "*T D"]


@dataclasses.dataclass(frozen=True)
class DecoupledFlow:
    """τ_α ṗ = q (1 - p q s∞), τ_α q̇ = p (1 - p q s∞) (12).

    - `modes`: those of the task.

    >>> import iclflow as icl
    >>> modes = icl.theory.TransformerModes.given([1.0, 0.5], 200)
    >>> icl.theory.DecoupledFlow(modes).fixed_point.round(4).tolist()
    [0.9877, 1.9608]
    """

    modes: TransformerModes

    @property
    def effective(self) -> Float[np.ndarray, " D"]:
        """s∞ = ((N+1) s + tr S)/N."""
        s, n = self.modes.spectrum, self.modes.context
        return ((n + 1) * s + s.sum()) / n

    @property
    def timescales(self) -> Float[np.ndarray, " D"]:
        """τ_α/τ = 1/(v s²): epochs, times ηP."""
        return 1 / (self.modes.variances * self.modes.spectrum**2)

    @property
    def fixed_point(self) -> Float[np.ndarray, " D"]:
        """a∞ = 1/s∞ (11)."""
        return 1 / self.effective

    def balanced(
        self, time: Float[np.ndarray, " T"], start: Float[np.ndarray, " D"]
    ) -> Float[np.ndarray, "T D"]:
        """a(t) = a∞ a₀/(a₀ + (a∞ - a₀) e^(-2t/τ)) from p = q = √a₀ (13)."""
        decay = np.exp(-2 * time[:, None] / self.timescales)
        end = self.fixed_point
        return end * start / (start + (end - start) * decay)

    def weights(
        self,
        time: Float[np.ndarray, " T"],
        p: Float[np.ndarray, " D"],
        q: Float[np.ndarray, " D"],
    ) -> tuple[Float[np.ndarray, "T D"], Float[np.ndarray, "T D"]]:
        """p(t) and q(t) from any start; (12) is a Riccati equation for u = q/p.

        u' = 1 - u² - 2κu, κ = s∞ c/2, c = p² - q² conserved. Written in 1 - u and 1 + u, relative
        to their first values, nothing cancels: the balanced start needs no case of its own.
        """
        swap = np.abs(q) > np.abs(p)
        large, small = np.where(swap, q, p), np.where(swap, p, q)
        ratio = small / np.where(large == 0, 1.0, large)
        below, above = 1 - ratio, 1 + ratio  # 1 - u(0), 1 + u(0)
        half = self.effective * large**2 / 2
        kappa = half * below * above
        rho = np.sqrt(1 + kappa**2)
        begin = ratio + kappa
        late = np.exp(-2 * rho * time[:, None] / self.timescales)
        rest, tanh = 2 * late / (1 + late), (1 - late) / (1 + late)  # 1 - T and T
        scale = (rho + begin) - begin * rest
        first = (1 + kappa) * rest + 2 * half * above * (tanh - below / (rho + 1 + kappa))
        second = rho + tanh * (1 - kappa + 2 * half * below)
        grown = large * scale / np.sqrt(first * second)
        other = grown * (1 - below * first / scale)
        return np.where(swap, other, grown), np.where(swap, grown, other)

    def products(
        self,
        time: Float[np.ndarray, " T"],
        p: Float[np.ndarray, " D"],
        q: Float[np.ndarray, " D"],
    ) -> Float[np.ndarray, "T D"]:
        """a(t) = p(t) q(t)."""
        first, second = self.weights(time, p, q)
        return first * second

    def loss(self, products: Weights) -> Float[np.ndarray, "*T"]:
        """L = ½ Σ v s (s a²/a∞ - 2 s a + 1) (14)."""
        s, v = self.modes.spectrum, self.modes.variances
        terms = s * (s * products**2 * self.effective - 2 * s * products + 1)
        return np.asarray(np.sum(v * terms, axis=-1) / 2)

    @property
    def final_loss(self) -> float:
        """L(∞) = ½ Σ v s (s + tr S)/((N+1) s + tr S)."""
        s, n = self.modes.spectrum, self.modes.context
        return float(np.sum(self.modes.variances * s * (s + s.sum()) / (n * self.effective)) / 2)

    def escape_times(self, start: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
        """t* = (τ_α/2) ln(1/(s∞ a₀)), for small a₀ = p q of a balanced start."""
        return self.timescales / 2 * np.log(1 / (self.effective * start))

    def half_times(self, start: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
        """When (13) reaches a∞/2: (τ_α/2) ln((a∞ - a₀)/a₀)."""
        return self.timescales / 2 * np.log((self.fixed_point - start) / start)

    def drop_times(self, start: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
        """When the loss of a mode is halfway down, a = (1 - 2^(-1/2)) a∞ by (13)(14).

        By (14) a mode's loss is a square in a∞ - a: where a is a∞/2 it is three quarters down.
        """
        return self.half_times(start) + self.timescales / 2 * np.log(2**0.5 - 1)


@dataclasses.dataclass(frozen=True)
class DiagonalCourse:
    """Diagonal weights over time t/τ.

    - `time`, `p`, `q`: t/τ, and the two weights of every mode.
    """

    time: Float[np.ndarray, " T"]
    p: Float[np.ndarray, "T D"]
    q: Float[np.ndarray, "T D"]

    @property
    def products(self) -> Float[np.ndarray, "T D"]:
        """a = p q."""
        return self.p * self.q

    @property
    def conserved(self) -> Float[np.ndarray, "T D"]:
        """p² - q² by mode; only the sum over modes is conserved at finite N."""
        return self.p**2 - self.q**2


@dataclasses.dataclass(frozen=True)
class CoupledFlow:
    """τ ṗ = -∂L/∂p, τ q̇ = -∂L/∂q of the exact mean loss with its factor ½.

    - `modes`: those of the task.

    >>> import numpy as np, iclflow as icl
    >>> modes = icl.theory.TransformerModes.given([1.0, 0.5], 200)
    >>> start = np.full(2, 0.1)
    >>> icl.theory.CoupledFlow(modes).solve(np.asarray([0.0, 5.0]), start, start).products.shape
    (2, 2)
    """

    modes: TransformerModes

    def _parts(self, p: Weights, q: Weights) -> tuple[np.ndarray, np.ndarray]:
        """T_p/N and T_q/N."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        keep = {"axis": -1, "keepdims": True}
        return np.sum(v * s * p**2, **keep) / n, np.sum(s**2 * q**2, **keep) / n

    def loss(self, p: Weights, q: Weights) -> Float[np.ndarray, "*T"]:
        """L, the mean of ½ |ŷ - W x_q|² as in the second paper (5)."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        p_part, _ = self._parts(p, q)
        terms = s**2 * q**2 * ((n + 1) / n * v * s * p**2 + p_part) - 2 * v * s**2 * p * q + v * s
        return np.asarray(np.sum(terms, axis=-1) / 2)

    def slope(self, p: Weights, q: Weights) -> tuple[Weights, Weights]:
        """τ ṗ = v s² q - (N+1)/N v s³ q² p - v s p T_q/N, and τ q̇ likewise with s² q T_p/N."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        p_part, q_part = self._parts(p, q)
        drive = v * s**2 * (1 - (n + 1) / n * s * p * q)
        return drive * q - v * s * p * q_part, drive * p - s**2 * q * p_part

    def solve(
        self,
        time: Float[np.ndarray, " T"],
        p: Float[np.ndarray, " D"],
        q: Float[np.ndarray, " D"],
        *,
        tolerance: float = 1e-10,
    ) -> DiagonalCourse:
        """The course from given weights at increasing times, the first at least 0."""
        size = self.modes.size

        def right(_: float, state: np.ndarray) -> np.ndarray:
            return np.concatenate(self.slope(state[:size], state[size:]))

        start = np.concatenate([p, q])
        scale = max(float(np.abs(start).max()), np.finfo(float).tiny)
        span = (0.0, max(float(time[-1]), np.finfo(float).tiny))
        found = scipy.integrate.solve_ivp(
            right, span, start, method="LSODA", t_eval=time, rtol=tolerance,
            atol=tolerance * scale,
        )  # fmt: skip
        if not found.success:
            raise ValueError(f"the exact flow could not be integrated: {found.message}")
        return DiagonalCourse(time, found.y[:size].T, found.y[size:].T)

    def hessian(
        self, p: Float[np.ndarray, " D"], q: Float[np.ndarray, " D"]
    ) -> Float[np.ndarray, "W W"]:
        """∂²L over (p, q): its eigenvalues are rates of relaxation in 1/τ."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        p_part, q_part = self._parts(p, q)
        curve = (n + 1) / n * v * s**3
        mixed = np.diag(2 * curve * p * q - v * s**2)
        mixed = mixed + 2 / n * np.outer(v * s * p, s**2 * q)
        first, second = (
            np.diag(curve * q**2 + v * s * q_part),
            np.diag(curve * p**2 + s**2 * p_part),
        )
        return np.block([[first, mixed], [mixed.T, second]])


@dataclasses.dataclass(frozen=True)
class Optimum:
    """a = p q at the least loss, which modes are active, and that loss (with ½).

    - `modes`: those of the task.
    - `products`, `active`: a of every mode, and whether it is active.
    - `loss`: the least loss.
    """

    modes: TransformerModes
    products: Float[np.ndarray, " D"]
    active: Bool[np.ndarray, " D"]
    threshold: float  # μ: a mode is active iff v s > μ
    loss: float

    def weights(
        self, conserved: float = 0.0
    ) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
        """p and q of the optimum with Σ(p² - q²) = C: p/q = κ √(s/v) in every active mode."""
        ratio = np.sqrt(self.modes.spectrum / self.modes.variances)
        a = self.products
        up, down = np.sum(a * ratio), np.sum(a / ratio)
        kappa = (conserved + np.sqrt(conserved**2 + 4 * up * down)) / (2 * up)
        return np.sqrt(a * kappa * ratio), np.sqrt(a / (kappa * ratio))


def optimum(modes: TransformerModes, learned: int | None = None) -> Optimum:
    """a = N/((N+1) s) (1 - √(μ/(vs))), √μ = Σ_A √(vs)/(N+1+k) over the k active modes A.

    With all active, L = [Σ vs + N (Σ√(vs))²/(N+1+d)]/(2 (N+1)). With `learned`, the best that the
    so many fastest modes can do alone, largest v s² first: the plateau on which they wait for the
    next, if the eigenvalues are well separated.

    - `modes`: those of the task.

    >>> import iclflow as icl
    >>> modes = icl.theory.TransformerModes.given([1.0, 0.5], 200)
    >>> icl.theory.optimum(modes).products.round(4).tolist()
    [0.9867, 1.9664]
    """
    s, v, n = modes.spectrum, modes.variances, modes.context
    learned = s.size if learned is None else learned
    if not 0 <= learned <= s.size:
        raise ValueError(f"the modes learned must be 0 to {s.size}, got {learned}")
    allowed = np.zeros(s.size, bool)
    allowed[np.argsort(-v * s**2, kind="stable")[:learned]] = True
    root = np.sqrt(v * s)
    order = np.sort(np.where(allowed, root, 0.0))[::-1]
    means = np.cumsum(order) / (n + 1 + np.arange(1, s.size + 1))
    # Strongest first, a mode joins while it lies above the √μ that it would itself make.
    joined = np.flatnonzero(order > means)
    level = float(means[joined[-1]]) if joined.size else 0.0
    active = allowed & (root > level)
    gain = np.where(active, root - level, 0.0)  # (N+1)/N z
    products = n / (n + 1) * gain / (root * s)
    loss = (np.sum(v * s) - n / (n + 1) * np.sum(root * gain)) / 2
    return Optimum(modes, products, active, level**2, float(loss))


def overshoot(modes: TransformerModes) -> Float[np.ndarray, " D"]:
    """a of each mode on the plateau that its own learning leads to: its largest value.

    N/((N+2) s) for the fastest. Slower modes then take their share of Σz, and it drifts down to
    the optimum. N/((N+1+d) s) if all d eigenvalues are equal.
    """
    order = np.argsort(-modes.variances * modes.spectrum**2, kind="stable")
    levels = np.empty(modes.size)
    for count, mode in enumerate(order, start=1):
        levels[mode] = optimum(modes, count).products[mode]
    return levels


def plateau_losses(modes: TransformerModes) -> Float[np.ndarray, " levels"]:
    """The loss (with ½) with the 0, 1, …, d fastest modes learned, each at its best."""
    return np.asarray([optimum(modes, count).loss for count in range(modes.size + 1)])


POINTS, FINE = 600, 20_001  # of a curve that is drawn, and of one that is measured


def transformer_summary(
    modes: TransformerModes,
    start: tuple[float, float] | None = None,
    *,
    epoch_rate: float = 1.0,
) -> dict[str, Any]:
    """The paper's theory beside the exact one; with `start` (p, q) also escape and half times.

    Losses have the paper's ½; times are epochs at `epoch_rate` ηP (1: times t/τ).

    - `modes`: those of the task.

    >>> import iclflow as icl
    >>> modes = icl.theory.TransformerModes.given([1.0, 0.5], 200)
    >>> icl.theory.transformer_summary(modes)["active"]
    [True, True]
    """
    paper, exact, best = DecoupledFlow(modes), CoupledFlow(modes), optimum(modes)
    rates = np.sort(np.linalg.eigvalsh(exact.hessian(*best.weights())))
    slow = rates[rates > 1e-9 * rates[-1]][0]  # one is zero: along the conserved C
    zero = np.zeros(modes.size)
    found: dict[str, Any] = {
        "model": "linear-transformer",
        "convention": "loss with 1/2; times in epochs = (t/tau)/(eta P)",
        "eigenvalues": modes.spectrum.tolist(),
        "context": modes.context,
        "task_variances": modes.variances.tolist(),
        "epoch_rate": epoch_rate,
        "timescales": (paper.timescales / epoch_rate).tolist(),
        "effective_eigenvalues": paper.effective.tolist(),
        "initial_loss": float(exact.loss(zero, zero)),
        "a_infinity": paper.fixed_point.tolist(),
        "paper_final_loss": paper.final_loss,
        "a_optimum": best.products.tolist(),
        "optimum_loss": best.loss,
        "active": best.active.tolist(),
        "overshoot": overshoot(modes).tolist(),
        "plateau_losses": plateau_losses(modes).tolist(),
        "drift_time": float(1 / slow / epoch_rate),
        "fixed_point_error": float(np.abs(best.products / paper.fixed_point - 1).max()),
    }
    if start is not None:
        found |= _from_start(modes, start, epoch_rate)
    return found


def _from_start(
    modes: TransformerModes, start: tuple[float, float], epoch_rate: float
) -> dict[str, Any]:
    paper = DecoupledFlow(modes)
    p, q = _diagonal(modes, start)
    a = p * q
    if not np.all((a > 0) & (a < paper.fixed_point / 2)):
        raise ValueError(
            f"times need a start p q between 0 and a∞/2 = {paper.fixed_point.min() / 2:.3g}, "
            f"got {a[0]:.3g}; p = q = 0.01 is usual"
        )
    time = np.linspace(0, 3 * float(paper.escape_times(a).max()), FINE)
    curves = {"paper": paper.products(time, p, q)}
    curves["exact"] = CoupledFlow(modes).solve(time, p, q).products
    half = paper.fixed_point / 2
    times = {
        f"{name}_half_times": [
            _crossing(time, row, level) / epoch_rate
            for row, level in zip(curve.T, half, strict=True)
        ]
        for name, curve in curves.items()
    }
    gap = np.abs(curves["paper"] - curves["exact"]) / paper.fixed_point
    return {
        "start": list(start),
        "conserved": float(np.sum(p**2 - q**2)),
        "escape_times": (paper.escape_times(a) / epoch_rate).tolist(),
        **times,
        "paper_error": float(gap.max()),
    }


def _diagonal(
    modes: TransformerModes, start: tuple[float, float]
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """p and q of the start p₂ = p I, q₁ = q I."""
    return np.full(modes.size, start[0], float), np.full(modes.size, start[1], float)


def _crossing(time: np.ndarray, values: np.ndarray, level: float) -> float:
    """When a curve first passes a level, by linear interpolation; NaN if never."""
    above = np.flatnonzero(values >= level)
    if above.size == 0 or above[0] == 0:
        return float("nan")
    i = int(above[0])
    share = (level - values[i - 1]) / (values[i] - values[i - 1])
    return float(time[i - 1] + share * (time[i] - time[i - 1]))


def transformer_curves(
    modes: TransformerModes, start: tuple[float, float], end: float | None = None
) -> dict[str, np.ndarray]:
    """a_α(t) and loss (with ½) of both theories over t/τ, from p₂ = p I and q₁ = q I.

    Until `end`; if omitted, three times the slowest mode's escape time. `time` [T]; `paper` and
    `exact`, the products a, and `balance`, p² - q² of the exact flow, [T, D].

    - `modes`: those of the task.
    - `start`: the numbers p and q.

    >>> import iclflow as icl
    >>> modes = icl.theory.TransformerModes.given([1.0, 0.5], 200)
    >>> sorted(icl.theory.transformer_curves(modes, (0.1, 0.1)))
    ['balance', 'exact', 'exact_loss', 'paper', 'paper_loss', 'time']
    """
    paper, exact = DecoupledFlow(modes), CoupledFlow(modes)
    p, q = _diagonal(modes, start)
    escapes = paper.escape_times(p * q)
    end = 3 * float(escapes.max()) if end is None else end
    begin = min(float(escapes.min()), end) / 10
    time = np.concatenate([[0.0], np.geomspace(begin, end, POINTS - 1)])
    course = exact.solve(time, p, q)
    products = paper.products(time, p, q)
    return {
        "time": time,
        "paper": products,
        "exact": course.products,
        "balance": course.conserved,
        "paper_loss": paper.loss(products),
        "exact_loss": exact.loss(course.p, course.q),
    }
