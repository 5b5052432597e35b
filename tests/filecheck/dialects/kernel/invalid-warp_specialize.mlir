// RUN: %diagnostics

// CHECK: error: kernel.mbar_arrive: expected a shared buffer of mbarriers, but got
kernel.func @k() grid [1] warps 1 {
  %i = arith.constant 0 : index
  %f = kernel.shared : memref<1xi64, "shared">
  kernel.mbar_arrive %f[%i] : memref<1xi64, "shared">
}

// -----

// CHECK: error: kernel.mbar_init: expected 1 to 1048575 arrivals, but got 0
kernel.func @k() grid [1] warps 1 {
  %i = arith.constant 0 : index
  %f = kernel.shared : memref<1x!kernel.mbarrier, "shared">
  kernel.mbar_init %f[%i] arrivals 0 : memref<1x!kernel.mbarrier, "shared">
}

// -----

// CHECK: error: kernel.mbar_expect: expected 1 to 1048575 bytes, but got 0
kernel.func @k() grid [1] warps 1 {
  %i = arith.constant 0 : index
  %f = kernel.shared : memref<1x!kernel.mbarrier, "shared">
  kernel.mbar_expect %f[%i] bytes 0 : memref<1x!kernel.mbarrier, "shared">
}

// -----

// CHECK: error: kernel.advance: expected at least one slot, but got 0
kernel.func @k() grid [1] warps 1 {
  %i = arith.constant 0 : index
  %s, %p = kernel.advance %i, %i of 0
}

// -----

// CHECK: error: kernel.group_barrier: expected a hardware barrier from 1 to 15, but got 0
kernel.func @k() grid [1] warps 1 {
  kernel.group_barrier 0 warps 1
}

// -----

// CHECK: error: kernel.group_barrier: expected groups of 1 to 32 warps, but got 64
kernel.func @k() grid [1] warps 1 {
  kernel.group_barrier 1 warps 64
}

// -----

// CHECK: error: kernel.group_barrier: expected groups that divide 4 warps, with hardware barriers up to 15, but got groups of 3 warps from barrier 1 on
kernel.func @k() grid [1] warps 4 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
      kernel.group_barrier 1 warps 3
    }
  }
}

// -----

// CHECK: error: kernel.group_barrier: expected groups that divide 4 warps, with hardware barriers up to 15, but got groups of 1 warps from barrier 13 on
kernel.func @k() grid [1] warps 4 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
      kernel.group_barrier 13 warps 1
    }
  }
}

// -----

// CHECK: error: {{.*}}expected a box of 1 to 5 extents of 1 to 256, but got [512, 64]
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<512x64xbf16>
}

// -----

// CHECK: error: {{.*}}expected a swizzle of 0, 32, 64 or 128 bytes, but got 96
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 96>
}

// -----

// CHECK: error: {{.*}}expected box rows of a multiple of 16 bytes, but got 8
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x4xbf16>
}

// -----

// CHECK: error: {{.*}}expected rows of 128 bytes, like the swizzle, but got 64
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x32xbf16, swizzle 128>
}

// -----

// CHECK: error: kernel.tensor_map: expected a tensor map of an argument of the kernel, but got a value of type memref<64xbf16, "shared">
kernel.func @k() grid [1] warps 1 {
  %x = kernel.shared : memref<64xbf16, "shared">
  %m = kernel.tensor_map %x : memref<64xbf16, "shared"> -> !kernel.tensor_map<64xbf16>
}

// -----

// CHECK: error: kernel.tensor_map: expected boxes with the rank and element type of memref<64x64xbf16>, but got [64] of bf16
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64xbf16>
}

// -----

// CHECK: error: kernel.tensor_map: expected boxes with the rank and element type of memref<64x64xbf16>, but got [64, 32] of f32
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x32xf32>
}

// -----

// CHECK: error: kernel.tensor_map: expected rows at multiples of 16 bytes, but got memref<64x63xbf16>
kernel.func @k(%x: memref<64x63xbf16>) grid [1] warps 1 {
  %m = kernel.tensor_map %x : memref<64x63xbf16> -> !kernel.tensor_map<64x32xbf16>
}

// -----

// CHECK: error: kernel.tma_store: expected a box in a one-dimensional shared buffer, but got memref<64x64xbf16>
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %i = arith.constant 0 : index
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  kernel.tma_store %x[%i] to %m[%i, %i] : memref<64x64xbf16>, !kernel.tensor_map<64x64xbf16, swizzle 128>
}

// -----

// CHECK: error: kernel.tma_store: expected one element type of buffer and tensor map, but got f16 and bf16
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %i = arith.constant 0 : index
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %s = kernel.shared : memref<4096xf16, "shared">
  kernel.tma_store %s[%i] to %m[%i, %i] : memref<4096xf16, "shared">, !kernel.tensor_map<64x64xbf16, swizzle 128>
}

// -----

// CHECK: error: kernel.tma_store: expected a buffer of at least 8192 bytes for the box, but got memref<64xbf16
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %i = arith.constant 0 : index
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %s = kernel.shared : memref<64xbf16, "shared">
  kernel.tma_store %s[%i] to %m[%i, %i] : memref<64xbf16, "shared">, !kernel.tensor_map<64x64xbf16, swizzle 128>
}

// -----

// CHECK: error: kernel.tma_store: expected 2 coordinates, one for each dimension, but got 1
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  kernel.tma_store %s[%i] to %m[%i] : memref<4096xbf16, "shared">, !kernel.tensor_map<64x64xbf16, swizzle 128>
}

// -----

// CHECK: error: kernel.tma_load: expected an mbarrier in shared memory, but got
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 1 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  kernel.tma_load %m[%i, %i] to %s[%i] signal %s[%i] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<4096xbf16, "shared">
}

// -----

// CHECK: error: kernel.bulk_wait: expected 0 to 7 pending groups, but got 8
kernel.func @k() grid [1] warps 1 {
  kernel.bulk_wait 8
}

// -----

// CHECK: error: {{.*}}expected accumulators of f32, but got vector<32xbf16>
kernel.func @k() grid [1] warps 4 {
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xbf16>>
}

// -----

// CHECK: error: {{.*}}expected 4 to 128 accumulators, a multiple of 4, but got 256
kernel.func @k() grid [1] warps 4 {
  %p = kernel.accumulators : !kernel.async_accumulators<vector<256xf32>>
}

// -----

// CHECK: error: kernel.accumulators: result 'result' at position 0 does not verify: attribute vector<32xf32> expected from variable 'T', but got vector<64xf32>
kernel.func @k() grid [1] warps 4 {
  %r = payload.constant 0.0 : vector<32xf32>
  %p = "kernel.accumulators"(%r) : (vector<32xf32>) -> !kernel.async_accumulators<vector<64xf32>>
}

// -----

// CHECK: error: kernel.wgmma: result 'result' at position 0 does not verify: attribute !kernel.async_accumulators<vector<32xf32>> expected from variable 'T', but got !kernel.async_accumulators<vector<64xf32>>
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = "kernel.wgmma"(%s, %i, %s, %i, %p) <{slices = #builtin.int<4>, swizzle = #builtin.int<128>, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>}> : (memref<4096xbf16, "shared">, index, memref<4096xbf16, "shared">, index, !kernel.async_accumulators<vector<32xf32>>) -> !kernel.async_accumulators<vector<64xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected k_steps of at least 1 and a swizzle of 32, 64 or 128 bytes, but got 0 and 128
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] into %p k_steps 0 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected `use_acc` or `scale_d_zero`, but got both
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %c = arith.constant true
  %q = kernel.wgmma %s[%i], %s[%i] into %p k_steps 4 swizzle 128 scale_d_zero use_acc %c : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected operands of bf16, f16 or f32, but got i32
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xi32, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] into %p k_steps 4 swizzle 128 : memref<4096xi32, "shared">, memref<4096xi32, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected f32 operands that are contiguous along k, but got a transposed one
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xf32, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] transposed into %p k_steps 4 swizzle 128 : memref<4096xf32, "shared">, memref<4096xf32, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected at most 32 elements of k, one row, but got 40
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xf32, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] into %p k_steps 5 swizzle 128 : memref<4096xf32, "shared">, memref<4096xf32, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected at most 64 elements of k, one row, but got 80
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] into %p k_steps 5 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected whole panels of 32 elements, with a leading_offset if there are several, but got 64 elements of the right operand
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] transposed into %p k_steps 4 swizzle 64 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected one panel of the transposed left operand, at least 64 wide, but got 2 of 32
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<16xf32>>
  %q = kernel.wgmma %s[%i] transposed, %s[%i] leading_offset 1024 into %p k_steps 2 swizzle 64 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<16xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected a leading_offset of a multiple of 256 elements, at least 2048, but got 1024
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] transposed leading_offset 1024 into %p k_steps 4 swizzle 64 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected at least 8192 elements of the right operand, but got memref<4096xbf16, "shared">
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<64xf32>>
  %q = kernel.wgmma %s[%i], %s[%i] into %p k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<64xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected 32 registers of bf16 as the left operand, without offset or `transposed`, but got vector<16xbf16>
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %r = payload.constant 0.0 : vector<16xbf16>
  %q = kernel.wgmma %r, %s[%i] into %p k_steps 4 swizzle 128 : vector<16xbf16>, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected the left operand at an offset in a shared buffer of bf16, but got memref<4096xf16, "shared">
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %t = kernel.shared : memref<4096xf16, "shared">
  %q = kernel.wgmma %t[%i], %s[%i] into %p k_steps 4 swizzle 128 : memref<4096xf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma: expected the left operand in a one-dimensional shared buffer, but got memref<64x64xbf16>
kernel.func @k(%x: memref<64x64xbf16>) grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %x[%i], %s[%i] into %p k_steps 4 swizzle 128 : memref<64x64xbf16>, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: Expected '['
kernel.func @k() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %s = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %s[%i], %s into %p k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma_wait: expected 0 to 7 pending groups, but got 8
kernel.func @k() grid [1] warps 4 {
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma_wait 8, %p : !kernel.async_accumulators<vector<32xf32>> -> !kernel.async_accumulators<vector<32xf32>>
}

// -----

// CHECK: error: kernel.wgmma_wait: expected !kernel.async_accumulators<vector<32xf32>>, because the group may be pending, but got vector<32xf32>
kernel.func @k() grid [1] warps 4 {
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma_wait 1, %p : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
}

// -----

// CHECK: error: kernel.warp_specialize: expected a name, a number of warps and perhaps a number of registers for each of 2 partitions, but got 2, 2 and 1
kernel.func @k() grid [1] warps 8 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 registers 40 {
    }
    partition "b"(%v) warps 4 {
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected distinct names of partitions, but got ['a', 'a']
kernel.func @k() grid [1] warps 8 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
    }
    partition "a"(%v) warps 4 {
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected at least one warp in a partition, but got 0
kernel.func @k() grid [1] warps 4 {
  kernel.warp_specialize {
    partition "a"(%w) warps 0 {
    }
    partition "b"(%v) warps 4 {
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected one argument of type index, the number of the warp in the partition, but got (i32)
kernel.func @k() grid [1] warps 4 {
  "kernel.warp_specialize"() <{names = ["a"], warps = array<i64: 4>, registers = array<i64>}> ({
  ^bb0(%w: i32):
  }) : () -> ()
}

// -----

// CHECK: error: kernel.warp_specialize: expected partitions of whole warpgroups to change registers, but got [1, 3] warps
kernel.func @k() grid [1] warps 4 {
  kernel.warp_specialize {
    partition "a"(%w) warps 1 registers 40 {
    }
    partition "b"(%v) warps 3 registers 40 {
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected 24 to 240 registers of a thread, a multiple of 8, but got [44]
kernel.func @k() grid [1] warps 4 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 registers 44 {
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected at most 64512 registers in all partitions, 384 threads with 168 each at the launch, but got 66560
kernel.func @k() grid [1] warps 12 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 registers 40 {
    }
    partition "b"(%v) warps 8 registers 240 {
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected at most 30720 registers in all partitions, 384 threads with 80 each at the launch, but got 41984
kernel.func @k() grid [1] warps 12 blocks_per_sm 2 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 registers 24 {
    }
    partition "b"(%v) warps 8 registers 152 {
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected partitions at the top of a kernel, but got them in scf.if
kernel.func @k() grid [1] warps 4 {
  %c = arith.constant true
  scf.if %c {
    kernel.warp_specialize {
      partition "a"(%w) warps 4 {
      }
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected kernel.group_barrier in a partition, but got kernel.barrier, which waits for the other partitions too
kernel.func @k() grid [1] warps 4 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
      kernel.barrier
    }
  }
}

// -----

// CHECK: error: kernel.func: expected partitions of 8 warps together, but got [4]
kernel.func @k() grid [1] warps 8 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
    }
  }
}

// -----

// CHECK: error: kernel.func: expected at most one kernel.warp_specialize in a kernel, but got 2
kernel.func @k() grid [1] warps 4 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
    }
  }
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
    }
  }
}

// -----

// CHECK: error: kernel.func: expected 1 to 32 warps, but got 40
kernel.func @k() grid [1] warps 40 {
  kernel.warp_specialize {
    partition "a"(%w) warps 40 {
    }
  }
}

// -----

// CHECK: error: kernel.group_barrier: expected disjoint hardware barriers of partitions, but got 2 in ['a', 'b']
kernel.func @k() grid [1] warps 12 {
  kernel.warp_specialize {
    partition "a"(%w) warps 4 {
      kernel.group_barrier 2 warps 4
    }
    partition "b"(%v) warps 8 {
      kernel.group_barrier 1 warps 4
    }
  }
}
