"""Formulas of the theory for any task: levels, stability, time courses, algorithms."""

from iclflow.theory.algorithms.bayes import MixtureBayes as MixtureBayes
from iclflow.theory.algorithms.bayes import NormalBayes as NormalBayes
from iclflow.theory.algorithms.bayes import PoolBayes as PoolBayes
from iclflow.theory.algorithms.bayes import bayes_loss as bayes_loss
from iclflow.theory.algorithms.bayes import bayes_predictor as bayes_predictor
from iclflow.theory.algorithms.linear import AbstractPredictor as AbstractPredictor
from iclflow.theory.algorithms.linear import InWeight as InWeight
from iclflow.theory.algorithms.linear import LinearPredictor as LinearPredictor
from iclflow.theory.algorithms.linear import gradient_step as gradient_step
from iclflow.theory.algorithms.linear import least_squares as least_squares
from iclflow.theory.algorithms.linear import (
    principal_component_regression as principal_component_regression,
)
from iclflow.theory.algorithms.linear import zero_predictor as zero_predictor
from iclflow.theory.algorithms.monte_carlo import Estimate as Estimate
from iclflow.theory.algorithms.monte_carlo import monte_carlo_loss as monte_carlo_loss
from iclflow.theory.algorithms.regression import GradientSteps as GradientSteps
from iclflow.theory.algorithms.regression import OrdinaryLeastSquares as OrdinaryLeastSquares
from iclflow.theory.algorithms.regression import Ridge as Ridge
from iclflow.theory.drops.alignment import aligned_weights as aligned_weights
from iclflow.theory.drops.alignment import plateau_weights as plateau_weights
from iclflow.theory.drops.base import Curve as Curve
from iclflow.theory.drops.dormant import DormantHeads as DormantHeads
from iclflow.theory.drops.first_drop import FirstDrop as FirstDrop
from iclflow.theory.drops.first_drop import first_drop as first_drop
from iclflow.theory.drops.first_drop import least_loss as least_loss
from iclflow.theory.drops.limit import VanishingLimit as VanishingLimit
from iclflow.theory.drops.limit import in_head_gaps as in_head_gaps
from iclflow.theory.drops.limit import vanishing_limit as vanishing_limit
from iclflow.theory.drops.one_drop import WhiteCourse as WhiteCourse
from iclflow.theory.drops.one_drop import growing_strength as growing_strength
from iclflow.theory.drops.one_drop import merged_course as merged_course
from iclflow.theory.drops.one_drop import merged_half_time as merged_half_time
from iclflow.theory.drops.one_drop import paper_merged_duration as paper_merged_duration
from iclflow.theory.drops.quadratic import Quadratic as Quadratic
from iclflow.theory.drops.scalar_ode import blow_up_course as blow_up_course
from iclflow.theory.drops.scalar_ode import mid_drop_time as mid_drop_time
from iclflow.theory.drops.scalar_ode import paper_duration as paper_duration
from iclflow.theory.drops.scalar_ode import value_course as value_course
from iclflow.theory.drops.scalar_ode import value_time as value_time
from iclflow.theory.drops.staircase import Staircase as Staircase
from iclflow.theory.drops.staircase import staircase as staircase
from iclflow.theory.fixed_points.conserved import conservation_drift as conservation_drift
from iclflow.theory.fixed_points.conserved import conserved_quantities as conserved_quantities
from iclflow.theory.fixed_points.hessian import hessian_matrix as hessian_matrix
from iclflow.theory.fixed_points.hessian import hessian_product as hessian_product
from iclflow.theory.fixed_points.levels import conspicuous_plateaus as conspicuous_plateaus
from iclflow.theory.fixed_points.levels import drop_sizes as drop_sizes
from iclflow.theory.fixed_points.levels import final_loss as final_loss
from iclflow.theory.fixed_points.levels import fixed_point_count as fixed_point_count
from iclflow.theory.fixed_points.levels import level_count as level_count
from iclflow.theory.fixed_points.levels import plateau_losses as plateau_losses
from iclflow.theory.fixed_points.merged_stability import MergedStability as MergedStability
from iclflow.theory.fixed_points.merged_stability import (
    merged_stability_at_minimum as merged_stability_at_minimum,
)
from iclflow.theory.fixed_points.merged_stability import (
    merged_stability_at_zero as merged_stability_at_zero,
)
from iclflow.theory.fixed_points.modes import Gains as Gains
from iclflow.theory.fixed_points.modes import Modes as Modes
from iclflow.theory.fixed_points.points import FixedPoint as FixedPoint
from iclflow.theory.fixed_points.points import all_fixed_points as all_fixed_points
from iclflow.theory.fixed_points.points import merged_weights as merged_weights
from iclflow.theory.fixed_points.points import saddle_path as saddle_path
from iclflow.theory.fixed_points.stability import Order as Order
from iclflow.theory.fixed_points.stability import Stability as Stability
from iclflow.theory.fixed_points.stability import separate_stability as separate_stability
from iclflow.theory.fixed_points.stability import swap_index as swap_index
from iclflow.theory.fixed_points.stationarity import Conditions as Conditions
from iclflow.theory.fixed_points.stationarity import Nearest as Nearest
from iclflow.theory.fixed_points.stationarity import conditions as conditions
from iclflow.theory.fixed_points.stationarity import descent_direction as descent_direction
from iclflow.theory.fixed_points.stationarity import gradient_residual as gradient_residual
from iclflow.theory.fixed_points.stationarity import nearest_fixed_point as nearest_fixed_point
from iclflow.theory.fixed_points.stationarity import residual_matrix as residual_matrix
from iclflow.theory.linear_transformer import CoupledFlow as CoupledFlow
from iclflow.theory.linear_transformer import Course as Course
from iclflow.theory.linear_transformer import DecoupledFlow as DecoupledFlow
from iclflow.theory.linear_transformer import Optimum as Optimum
from iclflow.theory.linear_transformer import TransformerModes as TransformerModes
from iclflow.theory.linear_transformer import optimum as optimum
from iclflow.theory.linear_transformer import transformer_curves as transformer_curves
from iclflow.theory.linear_transformer import transformer_summary as transformer_summary
from iclflow.theory.predict import ENGINES as ENGINES
from iclflow.theory.predict import AbstractEngine as AbstractEngine
from iclflow.theory.predict import Jumps as Jumps
from iclflow.theory.predict import Logistic as Logistic
from iclflow.theory.predict import OneDrop as OneDrop
from iclflow.theory.predict import Prediction as Prediction
from iclflow.theory.predict import Stairs as Stairs
from iclflow.theory.predict import drop_times as drop_times
from iclflow.theory.predict import predict as predict
from iclflow.theory.predict import select as select
from iclflow.theory.predict import visited_levels as visited_levels
