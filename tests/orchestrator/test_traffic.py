"""Counting what compiled kernels read and write, in code as Inductor writes it."""

from __future__ import annotations

from experiments.benchmarks.kernel_times import kind_of
from experiments.benchmarks.traffic import kernels_in, least_milliseconds

SCALE = """
triton_poi_scale_0 = async_compile.triton('triton_poi_scale_0', '''
    triton_meta={'signature': {'in_out_ptr0': '*bf16', 'in_ptr0': '*fp32', 'xnumel': 'i32'}, 'd': 0},
@triton.jit
def triton_poi_scale_0(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 64000
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    x2 = xindex
    x0 = (xindex % 64)
    x1 = xindex // 6400
    tmp0 = tl.load(in_out_ptr0 + (x2), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0 + 64*(x1 // 5)), None, eviction_policy='evict_last')
    tmp2 = tmp0 * tmp1
    tl.store(in_out_ptr0 + (x2), tmp2, None)
''', device_str='cuda')
"""
SUM = """
triton_unk_sum_1 = async_compile.triton('triton_unk_sum_1', '''
    triton_meta={'signature': {'in_ptr0': '*bf16', 'in_ptr1': '*i1', 'out_ptr0': '*fp32', 'xnumel': 'i32'}, 'd': 0},
@triton.jit
def triton_unk_sum_1(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 640
    r0_numel = 100
    x0 = (xindex % 64)
    x1 = xindex // 64
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_2 = r0_index
        tmp0 = tl.load(in_ptr0 + (x0 + 64*r0_2 + 6400*x1), r0_mask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.load(in_ptr1 + (tl.broadcast_to(x1, [XBLOCK, R0_BLOCK])), xmask, other=0.0)
    tl.store(out_ptr0 + (x0 + 64*x1), tmp2, xmask)
''', device_str='cuda')

def call(args):
            triton_poi_scale_0.run(buf0, buf1, 64000, stream=stream0)
            triton_unk_sum_1.run(buf0, buf2, buf3, 640, 100, stream=stream0)
            triton_poi_scale_0.run(buf4, buf1, 64000, stream=stream0)
"""


def test_each_access_counts_its_distinct_values() -> None:
    scale, total = kernels_in(SCALE + SUM)
    assert (scale.name, scale.calls) == ("triton_poi_scale_0", 2)
    assert scale.bytes == 2 * 64000 * 2 + 2 * 64 * 4  # in place; coefficients of two runs
    assert (total.name, total.calls) == ("triton_unk_sum_1", 1)
    assert total.bytes == 64000 * 2 + 10 + 640 * 4


def test_time_at_the_speed_of_a_copy() -> None:
    found = least_milliseconds([SCALE, SCALE + SUM], bytes_per_second=1e9)
    assert found["triton_poi_scale_0"] == 1000 * 256512 / 1e9
    assert set(found) == {"triton_poi_scale_0", "triton_unk_sum_1"}


def test_kinds_of_kernels() -> None:
    names = [
        "triton_unk_sum_1",
        "triton_poi_scale_0",
        "sm90_xmma_fprop",
        "direct_copy_kernel_cuda",
        "void at::native::elementwise",
    ]
    assert [kind_of(name) for name in names] == [
        "compiled reductions",
        "compiled elementwise",
        "convolutions and products",
        "copies",
        "others",
    ]
