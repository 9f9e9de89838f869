"""What can be seen of the GPU's part where there is none."""

from types import SimpleNamespace

import torch
from torch.distributed import distributed_c10d

from elastic.distributed import cuda
from elastic.distributed.links import Links


def test_an_error_of_nccl_does_not_end_the_process():
    environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # torchelastic's
    cuda.outlive_errors(environ)
    assert environ == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}


def test_a_cut_aborts_the_communicator_too(monkeypatch):
    asked = []

    def backend(device):
        asked.append(device)
        return SimpleNamespace(abort=lambda: asked.append("abort"))

    monkeypatch.setattr(distributed_c10d, "_get_default_group", lambda: SimpleNamespace(_get_backend=backend))
    links = Links()
    links.settle()
    links.also = cuda.abort
    links.cut()
    assert asked == [torch.device("cuda"), "abort"]


def test_where_there_is_nothing_to_abort_nothing_is_said():
    cuda.abort()
