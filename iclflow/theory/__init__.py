"""Formulas of the theory for any task: levels, stability, time courses, algorithms."""

from iclflow.theory.algorithms.bayes import (
    MixtureBayes,
    NormalBayes,
    PoolBayes,
    bayes_loss,
    bayes_predictor,
)
from iclflow.theory.algorithms.linear import (
    AbstractPredictor,
    InWeight,
    LinearPredictor,
    gradient_step,
    least_squares,
    principal_component_regression,
    zero_predictor,
)
from iclflow.theory.algorithms.monte_carlo import Estimate, monte_carlo_loss
from iclflow.theory.algorithms.regression import GradientSteps, OrdinaryLeastSquares, Ridge
from iclflow.theory.drops.alignment import aligned_weights, plateau_weights
from iclflow.theory.drops.base import Curve
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.limit import VanishingLimit, in_head_gaps, vanishing_limit
from iclflow.theory.drops.one_drop import (
    WhiteCourse,
    growing_strength,
    merged_course,
    merged_half_time,
    paper_merged_duration,
)
from iclflow.theory.drops.scalar_ode import (
    blow_up_course,
    mid_drop_time,
    paper_duration,
    value_course,
    value_time,
)
from iclflow.theory.drops.staircase import DropsBy, Staircase, staircase
from iclflow.theory.fixed_points.conserved import conservation_drift, conserved_quantities
from iclflow.theory.fixed_points.hessian import hessian_matrix, hessian_product
from iclflow.theory.fixed_points.levels import (
    conspicuous_plateaus,
    drop_sizes,
    final_loss,
    fixed_point_count,
    level_count,
    plateau_losses,
)
from iclflow.theory.fixed_points.merged_stability import (
    MergedStability,
    merged_stability_at_minimum,
    merged_stability_at_zero,
)
from iclflow.theory.fixed_points.modes import Gains, Modes
from iclflow.theory.fixed_points.points import (
    FixedPoint,
    all_fixed_points,
    merged_weights,
    saddle_path,
)
from iclflow.theory.fixed_points.stability import Order, Stability, separate_stability, swap_index
from iclflow.theory.fixed_points.stationarity import (
    Conditions,
    Nearest,
    conditions,
    descent_direction,
    gradient_residual,
    nearest_fixed_point,
    residual_matrix,
)
from iclflow.theory.linear_transformer import (
    CoupledFlow,
    Course,
    DecoupledFlow,
    Optimum,
    TransformerModes,
    optimum,
    transformer_curves,
    transformer_summary,
)
from iclflow.theory.predict import (
    ENGINES,
    AbstractEngine,
    Jumps,
    Logistic,
    OneDrop,
    Prediction,
    Stairs,
    predict,
    visited_levels,
)

__all__ = [
    "ENGINES",
    "AbstractEngine",
    "AbstractPredictor",
    "Conditions",
    "CoupledFlow",
    "Course",
    "Curve",
    "DecoupledFlow",
    "DormantHeads",
    "DropsBy",
    "Estimate",
    "FixedPoint",
    "Gains",
    "GradientSteps",
    "InWeight",
    "Jumps",
    "LinearPredictor",
    "Logistic",
    "MergedStability",
    "MixtureBayes",
    "Modes",
    "Nearest",
    "NormalBayes",
    "OneDrop",
    "Optimum",
    "Order",
    "OrdinaryLeastSquares",
    "PoolBayes",
    "Prediction",
    "Ridge",
    "Stability",
    "Staircase",
    "Stairs",
    "TransformerModes",
    "VanishingLimit",
    "WhiteCourse",
    "aligned_weights",
    "all_fixed_points",
    "bayes_loss",
    "bayes_predictor",
    "blow_up_course",
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
    "growing_strength",
    "hessian_matrix",
    "hessian_product",
    "in_head_gaps",
    "least_squares",
    "level_count",
    "merged_course",
    "merged_half_time",
    "merged_stability_at_minimum",
    "merged_stability_at_zero",
    "merged_weights",
    "mid_drop_time",
    "monte_carlo_loss",
    "nearest_fixed_point",
    "optimum",
    "paper_duration",
    "paper_merged_duration",
    "plateau_losses",
    "plateau_weights",
    "predict",
    "principal_component_regression",
    "residual_matrix",
    "saddle_path",
    "separate_stability",
    "staircase",
    "swap_index",
    "transformer_curves",
    "transformer_summary",
    "value_course",
    "value_time",
    "vanishing_limit",
    "visited_levels",
    "zero_predictor",
]
