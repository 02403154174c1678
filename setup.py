"""Builds the kernels in C (``src/dubio/_engine/kernels.c``); all else about the package stands in ``pyproject.toml``.

The kernels are optional. Where there is no compiler, or it fails, the installation is complete without them: all
functions fall back to operations of torch, and ``dubio._engine.kernels.kernels_unavailable_reason()`` says so.

The library is loaded by ctypes and knows nothing of Python: one file serves all versions, so that wheels are tagged
``py3-none-<platform>``, and ``py3-none-any`` where nothing was compiled.
"""

import os
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# What a compiler may assume: no errno of libm, no traps of floating-point operations; products and sums may be fused.
# Nothing else: a NaN is a NaN. -fno-fast-math is for those who have -ffast-math in CFLAGS.
COMPILE = ("-O3", "-std=gnu99", "-fno-fast-math", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
COMPILE += ("-fopenmp-simd", "-fvisibility=hidden", "-g0")

KERNELS = Extension(
    "dubio._engine.libkernels",
    sources=["src/dubio/_engine/kernels.c"],
    libraries=["m"],
    extra_compile_args=list(COMPILE),
    extra_link_args=["-fno-fast-math"],
    optional=True,
)


class BuildKernels(build_ext):
    """Builds a plain shared library."""

    def get_ext_filename(self, fullname: str) -> str:
        """The path of the library, without a mark of the version of Python."""
        return os.path.join(*fullname.split(".")) + ".so"

    def get_export_symbols(self, ext: Any) -> list[str]:
        """Those that the source exports: there is no function that Python calls on import."""
        return []

    def run(self) -> None:
        """Build it, and drop the extension from the distribution where that failed."""
        super().run()
        if not all(Path(self.get_ext_fullpath(extension.name)).is_file() for extension in self.extensions):
            self.distribution.ext_modules = []


class Wheel(bdist_wheel):
    """Tags a wheel by what it holds."""

    def run(self) -> None:
        """Build the kernels first: whether they are there decides where the package is installed."""
        self.run_command("build_ext")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Any version of Python 3, and the platform if there are kernels."""
        platform = super().get_tag()[2]
        return "py3", "none", platform


if __name__ == "__main__":
    setup(
        ext_modules=[] if sys.platform == "win32" else [KERNELS],
        cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
    )
