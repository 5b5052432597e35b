"""Lists the packages. Their folders are in the root of the repository, which `pyproject.toml` cannot express."""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

PARTS = ("backend", "dialects", "extras", "frontend", "passes", "target", "tools")
FOUND = find_packages(include=[pattern for part in PARTS for pattern in (part, f"{part}.*")])


class BuildPackages(build_py):
    """Excludes this file, which is in the same folder as the modules of the package."""

    def find_package_modules(self, package, package_dir):
        return [m for m in super().find_package_modules(package, package_dir) if m[:2] != ("deplodock", "setup")]


setup(packages=["deplodock", *(f"deplodock.{name}" for name in FOUND)], cmdclass={"build_py": BuildPackages})
