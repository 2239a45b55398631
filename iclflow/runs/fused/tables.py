"""Products with a table in a CUDA kernel: all runs of a block together."""

import numpy as np

from iclflow.runs.fused.program import Program
from iclflow.runs.fused.writing import Multiplied

BLOCK = 128  # runs a block of threads
# As matrices are multiplied on a GPU: a thread has some rows and columns of the result, so what
# it reads serves several products. The result may lie where the numbers were if there is one pass.
PRODUCT = """
constexpr int V = 16 / sizeof(real), COLUMNS = 2 * V, GROUPS = BLOCK / COLUMNS;
struct alignas(16) Vector { real of[V]; };

template <int F, int K, int ROWS, int PASSES>
__device__ __forceinline__ void multiply(const real* table, const real* x, real* y) {
    const int column = threadIdx.x % GROUPS * V, group = threadIdx.x / GROUPS;
    for (int pass = 0; pass < PASSES; pass++) {
        const int first = (pass * COLUMNS + group) * ROWS;
        real sums[ROWS][COLUMNS] = {};
        #pragma unroll 4
        for (int k = 0; k < K; k++) {
            Vector left[ROWS / V], right[2];
            #pragma unroll
            for (int i = 0; i < ROWS / V; i++)
                left[i] = *(const Vector*)(table + k * ROWS * COLUMNS * PASSES + first + i * V);
            #pragma unroll
            for (int j = 0; j < 2; j++)
                right[j] = *(const Vector*)(x + k * BLOCK + j * BLOCK / 2 + column);
            #pragma unroll
            for (int i = 0; i < ROWS; i++)
                #pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    sums[i][j] += left[i / V].of[i % V] * right[j / V].of[j % V];
        }
        if (PASSES == 1) __syncthreads();
        #pragma unroll
        for (int i = 0; i < ROWS; i++)
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                Vector some;
                #pragma unroll
                for (int v = 0; v < V; v++) some.of[v] = sums[i][j * V + v];
                if (first + i < F)
                    *(Vector*)(y + (first + i) * BLOCK + j * BLOCK / 2 + column) = some;
            }
    }
    __syncthreads();
}
"""


class Room:
    """The memory that the threads of a block share: tables, and what is multiplied by them.

    Places are counted in numbers.
    """

    def __init__(self, program: Program) -> None:
        """For the tables of a program."""
        self.itemsize = np.dtype(program.dtype).itemsize
        self.columns = 2 * (16 // self.itemsize)
        self.shapes = {i: program.leaves[i].shape for i in program.tables}
        self.places, end = dict[int, int](), 0
        for i, (inner, outputs) in self.shapes.items():
            self.places[i] = end
            end += inner * self.wide(outputs)
        longest = max((max(shape) for shape in self.shapes.values()), default=0)
        once = all(self.passes(outputs) == 1 for _, outputs in self.shapes.values())
        self.x, self.y = end, end if once else end + longest * BLOCK
        self.size = self.y + longest * BLOCK

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.size * self.itemsize

    def passes(self, outputs: int) -> int:
        """In how many passes a product has so many numbers."""
        return -(-outputs // (8 * self.columns))

    def rows(self, outputs: int) -> int:
        """How many of them a thread has in a pass: whole vectors."""
        vector = self.columns // 2
        return -(-outputs // (self.columns * self.passes(outputs) * vector)) * vector

    def wide(self, outputs: int) -> int:
        """How many there are with those that fill up the last pass."""
        return self.rows(outputs) * self.columns * self.passes(outputs)

    def load(self, arrays: dict[int, str]) -> list[str]:
        """Lines that fill the tables from their arrays."""
        found = []
        for i, place in self.places.items():
            (inner, outputs), wide = self.shapes[i], self.wide(self.shapes[i][1])
            entry = f"{arrays[i]}[i / {wide} * {outputs} + i % {wide}]"
            found += [
                f"for (int i = threadIdx.x; i < {inner * wide}; i += BLOCK)",
                f"    room[{place} + i] = i % {wide} < {outputs} ? {entry} : real(0);",
            ]
        return found

    def multiply(self, line: Multiplied) -> list[str]:
        """Lines for a product."""
        outputs, inputs = len(line.outputs), len(line.inputs)
        sizes = f"{outputs}, {inputs}, {self.rows(outputs)}, {self.passes(outputs)}"
        places = ", ".join(f"room + {n}" for n in (self.places[line.table.leaf], self.x, self.y))
        column = "BLOCK + threadIdx.x]"
        return [
            *(f"room[{self.x} + {j} * {column} = {v};" for j, v in enumerate(line.inputs)),
            "__syncthreads();",
            f"multiply<{sizes}>({places});",
            *(
                f"const auto {name} = room[{self.y} + {j} * {column};"
                for j, name in enumerate(line.outputs)
            ),
        ]
