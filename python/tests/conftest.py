"""Shared by all tests: the source tree's package, and data beside the project where it is."""
import os
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


@pytest.fixture(scope="session")
def clusters():
    """2000 vectors of 32 dimensions around 40 centres: what an index is made for."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(40, 32)) * 4
    return (centres[rng.integers(0, 40, 2000)] + rng.normal(size=(2000, 32))).astype(np.float32)


@pytest.fixture
def child():
    """Runs Python code in a process of its own; returns what it printed."""
    import subprocess

    def run(code, timeout=60):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, "PYTHONPATH": os.pathsep.join(
                                  p for p in sys.path if p)})
        assert done.returncode == 0, done.stderr
        return done.stdout
    return run
