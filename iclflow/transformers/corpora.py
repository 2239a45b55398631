"""Synthetic text in which only the context helps: every sequence has statistics of its own."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from iclflow.tasks.checks import require_size


class AbstractCorpus(eqx.Module):
    """Sequences of `context` + 1 tokens: all but the last are read, all but the first predicted."""

    vocabulary: eqx.AbstractVar[int]
    context: eqx.AbstractVar[int]

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Int[Array, " n"]:
        """One sequence."""

    def batch(self, key: PRNGKeyArray, count: int) -> Int[Array, "P n"]:
        """Independent sequences."""
        return jax.vmap(self.sample)(jax.random.split(key, count))


class Repeated(AbstractCorpus):
    """Uniform random tokens repeated with a period drawn for each sequence from `periods`.

    By default the period is uniform on T/8 … T/2. It must vary: with one fixed period a single
    layer looks back by that many positions, and nothing has to be found in the context.

    - `vocabulary`: the number of tokens V.
    - `context`: the length T.
    - `periods`: the shortest and the longest period, both included.
    - `shuffled`: whether every repeat has the tokens of the segment in an order of its own. Which
      tokens occur can then still be read off the context, but not which one follows: there is
      nothing to copy. It is the control of the plain corpus, with the same tokens equally often.
      As an array instead of True or False it leaves both one compiled program.

    >>> import jax
    >>> from iclflow.transformers import Repeated
    >>> plain, mixed = (Repeated(50, 8, periods=(4, 4), shuffled=s) for s in (False, True))
    >>> sequence = plain.sample(jax.random.key(0))
    >>> bool((sequence[:4] == sequence[4:8]).all())
    True
    >>> other = mixed.sample(jax.random.key(0))
    >>> bool((other[:4].sort() == other[4:8].sort()).all())
    True
    """

    vocabulary: int = eqx.field(static=True)
    context: int = eqx.field(static=True)
    periods: tuple[int, int] = eqx.field(static=True)
    shuffled: bool | Bool[Array, ""]

    def __init__(
        self,
        vocabulary: int,
        context: int,
        periods: tuple[int, int] | None = None,
        shuffled: bool | Bool[Array, ""] = False,
    ) -> None:
        """Sizes; without `periods` they are T/8 … T/2."""
        self.vocabulary, self.context = vocabulary, context
        self.periods = (max(1, context // 8), context // 2) if periods is None else periods
        self.shuffled = shuffled

    def __check_init__(self) -> None:
        require_size("vocabulary", self.vocabulary)
        require_size("context", self.context)
        low, high = self.periods
        if not 1 <= low <= high <= self.context:
            raise ValueError(
                f"periods must be two steps between 1 and {self.context}, got {self.periods}"
            )

    def sample(self, key: PRNGKeyArray) -> Int[Array, " n"]:
        low, high = self.periods
        # One draw of bits for all (a remainder is uneven by V/2³² at most): it compiles faster.
        bits = jax.random.bits(key, (high + 1,), jnp.uint32)
        period = low + (bits[0] % (high - low + 1)).astype(jnp.int32)
        segment = (bits[1:] % self.vocabulary).astype(jnp.int32)
        place = jnp.arange(self.context + 1, dtype=jnp.int32)
        if self.shuffled is False:
            return segment[place % period]
        # Each repeat reads the segment in the order of random numbers; places past the period
        # come last.
        most = self.context // low + 1
        ranks = jax.random.uniform(jax.random.fold_in(key, 1), (most, high), jnp.float32)
        order = jnp.argsort(jnp.where(jnp.arange(high) < period, ranks, 2.0), axis=1)
        mixed = order[place // period, place % period]
        return segment[jnp.where(self.shuffled, mixed, place % period)]


class Markov(AbstractCorpus):
    """Markov chains, each with transition probabilities of its own: rows ~ Dirichlet(α, …, α).

    The first token is uniform. What follows a token has to be read off the context.

    - `vocabulary`, `context`: the number of tokens V and the length T.
    - `concentration`: α, the smaller, the more certain the transitions are. It is a multiple of ½,
      for which sums of 2α squared Gaussians give the Dirichlet distribution.
    """

    vocabulary: int = eqx.field(static=True)
    context: int = eqx.field(static=True)
    concentration: float = eqx.field(static=True, default=0.5)  # α; the smaller, the more certain

    def __check_init__(self) -> None:
        require_size("vocabulary", self.vocabulary)
        require_size("context", self.context)
        if not self.concentration > 0 or (2 * self.concentration) % 1:
            raise ValueError(
                f"the concentration must be a positive multiple of 0.5, got {self.concentration}"
            )

    def sample(self, key: PRNGKeyArray) -> Int[Array, " n"]:
        rows, rest = jax.random.split(key)
        size = self.vocabulary
        normal = jax.random.normal(rows, (size, size, round(2 * self.concentration)), jnp.float32)
        weights = jnp.cumsum(jnp.sum(normal**2, axis=2), axis=1)
        ladder = weights / weights[:, -1:]
        uniform = jax.random.uniform(rest, (self.context + 1,), jnp.float32)

        def follow(token: Array, share: Array) -> tuple[Array, Array]:
            after = jnp.sum(ladder[token, :-1] <= share).astype(jnp.int32)
            return after, after

        start = (uniform[0] * size).astype(jnp.int32)
        return jnp.concatenate([start[None], jax.lax.scan(follow, start, uniform[1:])[1]])

    def optimal_losses(self, tokens: Int[np.ndarray, "P n"]) -> Float[np.ndarray, " T"]:
        """The mean loss at every position of the best predictor, which knows only the prior.

        Its probabilities are the posterior mean (n_ij + α)/(n_i + αV), with n_ij the transitions
        i -> j seen so far: no predictor has a lower expected loss.
        """
        return self._losses(tokens, pairs=True)

    def unigram_losses(self, tokens: Int[np.ndarray, "P n"]) -> Float[np.ndarray, " T"]:
        """The same from the frequencies of single tokens, (n_j + α)/(t + αV): no transitions.

        What attention without composition of heads can do at best in about this way; a reference,
        not a bound.
        """
        return self._losses(tokens, pairs=False)

    def _losses(self, tokens: np.ndarray, pairs: bool) -> np.ndarray:
        count, length = tokens.shape
        rows, alpha, size = np.arange(count), self.concentration, self.vocabulary
        seen = np.zeros((count, size, size))
        losses = np.zeros((count, length - 1))
        for t in range(length - 1):
            now, after = tokens[:, t], tokens[:, t + 1]
            if not pairs:
                now = np.zeros_like(now)  # one row of counts, whatever the token
                if t == 0:
                    seen[rows, 0, tokens[:, 0]] += 1
            counts = seen[rows, now]
            chance = (counts[rows, after] + alpha) / (counts.sum(axis=1) + alpha * size)
            losses[:, t] = -np.log(chance)
            seen[rows, now, after] += 1
        return losses.mean(axis=0)
