"""The recipe of the built-in model. Before PyTorch is loaded: OpenBLAS 0.3.21, which is Debian's, does not know newer processors and takes
kernels for one of 2004, which are five times slower. One thread a product: parts of a batch run side by side instead (train.py)."""
import os

_KERNELS = {"avx512f": "SKYLAKEX", "avx2": "HASWELL"}  # what a processor can do, best first


def flags():
    """What the processor says it can do."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            return next((line.split() for line in f if line.startswith("flags")), [])
    except OSError:
        return []


def _choose():
    for flag, kernels in _KERNELS.items():
        if flag in flags():
            os.environ.setdefault("OPENBLAS_CORETYPE", kernels)
            return


_choose()
for _library in ("OMP", "OPENBLAS"):
    os.environ.setdefault(_library + "_NUM_THREADS", "1")
