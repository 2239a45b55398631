"""What a model is doing at a moment of its training, read from arrays alone."""

from iclflow.diagnostics.alignment import (
    active_head_count,
    active_heads,
    assign_heads,
    head_alignment,
    head_contributions,
    head_parallelism,
    pairwise_cosines,
)
from iclflow.diagnostics.changes import change_time
from iclflow.diagnostics.curvature import (
    Ritz,
    hessian_vector_product,
    lanczos,
    top_eigenvalues,
)
from iclflow.diagnostics.detectors import (
    Curvature,
    autocorrelation,
    autocorrelation_curvature,
    time_curvature,
)
from iclflow.diagnostics.fourier import fourier_concentration, frequency_shares
from iclflow.diagnostics.spectrum import (
    convergence_order,
    effective_rank,
    marginalised_effective_rank,
    mode_strengths,
    relative_to_start,
    remove_modes,
    singular_values,
    stable_rank,
    tracked_effective_rank,
)
from iclflow.diagnostics.stages import (
    Clock,
    Drop,
    Plateau,
    Stages,
    find_stages,
    find_stages_of_runs,
    stages_dataset,
)
from iclflow.diagnostics.subspace import (
    consecutive_distances,
    principal_angles,
    projector_distance,
    right_basis,
    subspace_distance,
    unexplained,
)

__all__ = [
    "Clock",
    "Curvature",
    "Drop",
    "Plateau",
    "Ritz",
    "Stages",
    "active_head_count",
    "active_heads",
    "assign_heads",
    "autocorrelation",
    "autocorrelation_curvature",
    "change_time",
    "consecutive_distances",
    "convergence_order",
    "effective_rank",
    "find_stages",
    "find_stages_of_runs",
    "fourier_concentration",
    "frequency_shares",
    "head_alignment",
    "head_contributions",
    "head_parallelism",
    "hessian_vector_product",
    "lanczos",
    "marginalised_effective_rank",
    "mode_strengths",
    "pairwise_cosines",
    "principal_angles",
    "projector_distance",
    "relative_to_start",
    "remove_modes",
    "right_basis",
    "singular_values",
    "stable_rank",
    "stages_dataset",
    "subspace_distance",
    "time_curvature",
    "top_eigenvalues",
    "tracked_effective_rank",
    "unexplained",
]
