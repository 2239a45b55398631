"""The linear transformer with vector outputs: the paper's decoupled theory, and the exact one.

Equation numbers are those of Mainali & Teixeira (2025). Its conventions: the loss has a factor ½
here (twice this is the `Population` loss), and t/τ counts epochs times ηP, the rate times the
tasks of an epoch. Weights are diagonal in the eigenvectors U: p₂ = U diag(p) Uᵀ, q₁ = U diag(q) Uᵀ.
"""

from iclflow.theory.linear_transformer.coupled import CoupledFlow as CoupledFlow
from iclflow.theory.linear_transformer.coupled import Course as Course
from iclflow.theory.linear_transformer.decoupled import DecoupledFlow as DecoupledFlow
from iclflow.theory.linear_transformer.optimum import Optimum as Optimum
from iclflow.theory.linear_transformer.optimum import optimum as optimum
from iclflow.theory.linear_transformer.optimum import overshoot as overshoot
from iclflow.theory.linear_transformer.optimum import plateau_losses as plateau_losses
from iclflow.theory.linear_transformer.spectrum import TransformerModes as TransformerModes
from iclflow.theory.linear_transformer.summary import transformer_curves as transformer_curves
from iclflow.theory.linear_transformer.summary import transformer_summary as transformer_summary
