"""The packages, which lie in the root of the repository: what `pyproject.toml` cannot say."""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

PARTS = ("backend", "dialects", "extras", "frontend", "passes", "target", "tools")
FOUND = find_packages(include=[pattern for part in PARTS for pattern in (part, f"{part}.*")])


class BuildPackages(build_py):
    """Leaves this file out, which lies beside the modules of the package."""

    def find_package_modules(self, package, package_dir):
        return [m for m in super().find_package_modules(package, package_dir) if m[:2] != ("deplodock", "setup")]


setup(packages=["deplodock", *(f"deplodock.{name}" for name in FOUND)], cmdclass={"build_py": BuildPackages})
