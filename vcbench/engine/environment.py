"""Process settings that must be in place before torch or numba is imported; imports neither."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs

KERNELS = Path(__file__).parent / "kernels"


def prepare() -> None:
    """Sets waiting policy and the kernel cache, unless the user did. Call it before torch or numba is imported.

    Active waiting makes two busy processes on few cores stall for whole scheduler slices, hence `passive`. But a
    decoding step is a hundred short parallel parts, and waking a thread takes as long as one of them: threads stay
    awake for some 30 microseconds. Compiled kernels are cached under a hash of their sources, so that an edited kernel
    never runs from an old cache.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("NUMBA_CACHE_DIR", str(kernel_cache_dir()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def kernel_cache_dir() -> Path:
    """Directory of compiled kernels for the sources as they are now."""
    digest = hashlib.sha256()
    for source in sorted(KERNELS.rglob("*.py")):
        digest.update(source.read_bytes())
    root = os.environ.get("VCBENCH_CACHE_DIR") or platformdirs.user_cache_dir("vcbench")
    return Path(root) / "kernels" / digest.hexdigest()[:16]


def physical_cores() -> int:
    """CPU cores that this process may use, hyper-threads not counted twice."""
    import psutil

    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:
        allowed = os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def set_threads(threads: int) -> int:
    """Gives torch and numba the same number of threads (0: the physical cores) and returns it."""
    import numba
    import torch

    count = threads or physical_cores()
    count = min(count, int(numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(count)
    numba.set_num_threads(count)
    return count
