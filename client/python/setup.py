"""Packs the shared libraries of a build into the wheel: no compiler runs here.

$ATTND_BUILD, or `build` of the checkout, is where they are looked for, libprotobuf-c where the
loader finds it. Without a build the wheel carries none, and the package loads the machine's own.
"""

import ctypes.util
import os
import pathlib
import platform
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("ATTND_BUILD", ROOT / "build"))


def version():
    """The project's; beside this file in a copy of the package."""
    found = [folder / "VERSION" for folder in (HERE, ROOT) if (folder / "VERSION").exists()]
    return found[0].read_text().strip() if found else "0"


def carried():
    """The libraries that there are."""
    if not (BUILD / "libattnd.so.0").exists():
        return []
    found = [BUILD / "libattnd.so.0", BUILD / "libattnd-cuda.so.0"]
    with open("/proc/self/maps") as maps:
        ctypes.CDLL("libprotobuf-c.so.1")
        found += {pathlib.Path(line.split()[-1]) for line in maps if "libprotobuf-c.so" in line}
    return [path for path in found if path.exists()]


class BuildPy(build_py):
    def run(self):
        super().run()
        folder = pathlib.Path(self.build_lib, "attnd", "lib")
        shutil.rmtree(folder, ignore_errors=True)
        for path in carried():
            folder.mkdir(parents=True, exist_ok=True)
            name = "libprotobuf-c.so.1" if "protobuf" in path.name else path.name
            shutil.copyfile(path, folder / name)


class Wheel(bdist_wheel):
    """Of one machine's libraries, of any Python 3."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not carried()

    def get_tag(self):
        if not carried():
            return super().get_tag()
        glibc = platform.libc_ver()[1].replace(".", "_")
        return "py3", "none", f"manylinux_{glibc}_{platform.machine()}"


setup(
    version=version(),
    packages=["attnd"],
    package_data={"attnd": ["py.typed"]},
    cmdclass={"build_py": BuildPy, "bdist_wheel": Wheel},
)
