"""Which in-context algorithm a model runs: its distance to each candidate, over training.

The distance of two predictors is (E(ŷ - ŷ')²/E[y²])^(1/2) on prompts of a task. Between a linear
model and a candidate that is linear in the features S ⊗ x_q or in x_q alone it is exact, from
population moments; everything else is compared on one set of sampled prompts.
"""

from iclflow.diagnosis.identify.candidates import LEAST_SQUARES as LEAST_SQUARES
from iclflow.diagnosis.identify.candidates import candidates as candidates
from iclflow.diagnosis.identify.matching import best_match as best_match
from iclflow.diagnosis.identify.matching import identify as identify
from iclflow.diagnosis.identify.prompts import shifted as shifted
