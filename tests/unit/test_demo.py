"""The demo's input: real records of a package, which must stay readable beside all other packages."""

from __future__ import annotations

import pytest

from sluice.demo import source

pytestmark = [
    pytest.mark.unit,
    # The package of the input says so itself; hence the pin of setuptools.
    pytest.mark.filterwarnings("ignore:pkg_resources is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Deprecated call to `pkg_resources:DeprecationWarning"),
]


@pytest.mark.parametrize(("name", "count"), [("planes", 3322), ("airports", 1458)])
def test_the_input_can_be_read(name, count):
    assert sum(1 for _ in source._rows(name)) == count
