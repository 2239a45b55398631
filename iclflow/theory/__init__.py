"""Formulas of the theory for any task: levels, fixed points, stability, algorithms."""

from iclflow.theory.algorithms import (
    AbstractPredictor,
    InWeight,
    LinearPredictor,
    gradient_step,
    least_squares,
    principal_component_regression,
    zero_predictor,
)
from iclflow.theory.bayes import (
    MixtureBayes,
    NormalBayes,
    PoolBayes,
    bayes_loss,
    bayes_predictor,
)
from iclflow.theory.conserved import conservation_drift, conserved_quantities
from iclflow.theory.fixed_points import (
    FixedPoint,
    all_fixed_points,
    merged_weights,
    saddle_path,
)
from iclflow.theory.hessian import hessian_matrix, hessian_product
from iclflow.theory.merged_stability import (
    MergedStability,
    merged_stability_at_minimum,
    merged_stability_at_zero,
)
from iclflow.theory.modes import Gains, Modes
from iclflow.theory.monte_carlo import Estimate, monte_carlo_loss
from iclflow.theory.plateaus import (
    conspicuous_plateaus,
    drop_sizes,
    final_loss,
    fixed_point_count,
    level_count,
    plateau_losses,
)
from iclflow.theory.regression import GradientDescent, OrdinaryLeastSquares, Ridge
from iclflow.theory.stability import Order, Stability, separate_stability, swap_index
from iclflow.theory.stationarity import (
    Conditions,
    Nearest,
    conditions,
    descent_direction,
    gradient_residual,
    nearest_fixed_point,
    residual_matrix,
)

__all__ = [
    "AbstractPredictor",
    "Conditions",
    "Estimate",
    "FixedPoint",
    "Gains",
    "GradientDescent",
    "InWeight",
    "LinearPredictor",
    "MergedStability",
    "MixtureBayes",
    "Modes",
    "Nearest",
    "NormalBayes",
    "Order",
    "OrdinaryLeastSquares",
    "PoolBayes",
    "Ridge",
    "Stability",
    "all_fixed_points",
    "bayes_loss",
    "bayes_predictor",
    "conditions",
    "conservation_drift",
    "conserved_quantities",
    "conspicuous_plateaus",
    "descent_direction",
    "drop_sizes",
    "final_loss",
    "fixed_point_count",
    "gradient_residual",
    "gradient_step",
    "hessian_matrix",
    "hessian_product",
    "least_squares",
    "level_count",
    "merged_stability_at_minimum",
    "merged_stability_at_zero",
    "merged_weights",
    "monte_carlo_loss",
    "nearest_fixed_point",
    "plateau_losses",
    "principal_component_regression",
    "residual_matrix",
    "saddle_path",
    "separate_stability",
    "swap_index",
    "zero_predictor",
]
