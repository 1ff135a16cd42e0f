"""The wheel: which folders of the checkout become which packages. Everything else is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

PACKAGES = [
    *find_namespace_packages("include", include=["sluice", "sluice.*"]),
    *find_namespace_packages("plugins", include=["sluice_*"]),
]

setup(
    packages=[*PACKAGES, "sluice_airflow.jobs"],
    package_dir={"": "plugins", "sluice": "include/sluice", "sluice_airflow.jobs": "jobs"},
    py_modules=["sluice_plugin"],
    package_data={"": ["*.css", "*.html", "*.js", "*.json", "*.lock", "*.properties", "*.svg"]},
    exclude_package_data={"": ["ruff.toml"]},
)
