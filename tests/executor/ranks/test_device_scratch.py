"""Check the scratch memory of exchanges that have no room in the step graph."""

import torch

from indb_tensile.executor.ranks.device_scratch import DeviceScratch

META = torch.device("meta")  # stands for a GPU


def test_memory_of_a_device_is_kept_and_grows() -> None:
    scratch, halves = DeviceScratch(), torch.empty(1, dtype=torch.bfloat16, device=META)
    first, again = (scratch.take(torch.empty(1, device=META), elements) for elements in (8, 5))
    other = scratch.take(halves, 16)
    more = scratch.take(halves, 17)
    assert [(value.dtype, value.numel(), value.device) for value in (first, again, other, more)] == [
        (torch.float32, 8, META),
        (torch.float32, 5, META),
        (torch.bfloat16, 16, META),
        (torch.bfloat16, 17, META),
    ]
    bases = [value.untyped_storage()._cdata for value in (first, again, other, more)]
    assert bases[0] == bases[1] == bases[2] != bases[3]


def test_host_memory_is_new_each_time() -> None:
    scratch, like = DeviceScratch(), torch.empty(1)
    first, second = scratch.take(like, 4), scratch.take(like, 4)
    assert first.tolist() == second.tolist() == [0.0] * 4
    assert first.data_ptr() != second.data_ptr()
