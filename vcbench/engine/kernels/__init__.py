"""CPU kernels, compiled by numba. Their results are fixed by IEEE 754 alone: no reassociation, no contraction.

Every sum runs in one written order, and vector lanes hold different outputs, never parts of one sum. So a row's bits
do not depend on how many rows share the call, on tiles, threads or the instruction set.
"""

from vcbench.engine.environment import prepare

prepare()
