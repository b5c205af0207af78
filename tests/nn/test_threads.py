"""A fixed number of threads inside, the old one afterwards."""

import pytest
import scipy.linalg.cython_blas  # noqa: F401  # loaded, so that it can be asked
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from coterie.nn import kernels, launch
from coterie.nn.threads import fixed_threads


def blas():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture
def two_threads():
    """A machine whose libraries use two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_threads_are_limited_inside_and_restored_after():
    assert set(blas()) == {2}
    with fixed_threads(1):
        assert torch.get_num_threads() == 1
        assert set(blas()) == {1}
        assert launch.use_threads(1) == 1
        with fixed_threads(2):
            assert set(blas()) == {torch.get_num_threads()} == {2}
            assert launch.use_threads(2) == 2
        assert launch.use_threads(1) == 1
        assert set(blas()) == {torch.get_num_threads()} == {1}
    assert set(blas()) == {torch.get_num_threads()} == {2}


@pytest.mark.usefixtures("two_threads")
def test_threads_are_restored_after_a_failure():
    with pytest.raises(KeyError), fixed_threads(1):
        raise KeyError
    assert set(blas()) == {torch.get_num_threads()} == {2}


@pytest.mark.usefixtures("two_threads")
def test_without_compiled_products_only_pytorch_is_limited(monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: False)
    with fixed_threads(1):
        assert torch.get_num_threads() == 1
        assert set(blas()) == {2}
    assert torch.get_num_threads() == 2
