"""The linear transformer with vector outputs: the paper's decoupled theory, and the exact one.

Equation numbers are those of Mainali & Teixeira (2025). Its conventions: the loss has a factor ½
here (twice this is the `Population` loss), and t/τ counts epochs times ηP, the rate times the
tasks of an epoch. Weights are diagonal in the eigenvectors U: p₂ = U diag(p) Uᵀ, q₁ = U diag(q) Uᵀ.
"""

from iclflow.theory.linear_transformer.coupled import CoupledFlow, Course
from iclflow.theory.linear_transformer.decoupled import DecoupledFlow
from iclflow.theory.linear_transformer.optimum import (
    Optimum,
    optimum,
    overshoot,
    plateau_losses,
)
from iclflow.theory.linear_transformer.spectrum import TransformerModes
from iclflow.theory.linear_transformer.summary import transformer_curves, transformer_summary

__all__ = [
    "CoupledFlow",
    "Course",
    "DecoupledFlow",
    "Optimum",
    "TransformerModes",
    "optimum",
    "overshoot",
    "plateau_losses",
    "transformer_curves",
    "transformer_summary",
]
