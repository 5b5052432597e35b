// RUN: dl-opt %s | dl-opt | filecheck %s

// CHECK-LABEL: @mbarriers
// CHECK:         %full = kernel.shared : memref<3x!kernel.mbarrier, "shared">
// CHECK:         kernel.mbar_init %full[%i] arrivals 1 : memref<3x!kernel.mbarrier, "shared">
// CHECK-NEXT:    kernel.fence_mbar_init
// CHECK-NEXT:    kernel.mbar_expect %full[%i] bytes 8192 : memref<3x!kernel.mbarrier, "shared">
// CHECK-NEXT:    kernel.mbar_arrive %full[%i] : memref<3x!kernel.mbarrier, "shared">
// CHECK-NEXT:    kernel.mbar_wait %full[%i] parity %i : memref<3x!kernel.mbarrier, "shared">
// CHECK-NEXT:    %s, %p = kernel.advance %i, %i of 3
// CHECK-NEXT:    kernel.group_barrier 1 warps 4
kernel.func @mbarriers() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %full = kernel.shared : memref<3x!kernel.mbarrier, "shared">
  kernel.mbar_init %full[%i] arrivals 1 : memref<3x!kernel.mbarrier, "shared">
  kernel.fence_mbar_init
  kernel.mbar_expect %full[%i] bytes 8192 : memref<3x!kernel.mbarrier, "shared">
  kernel.mbar_arrive %full[%i] : memref<3x!kernel.mbarrier, "shared">
  kernel.mbar_wait %full[%i] parity %i : memref<3x!kernel.mbarrier, "shared">
  %s, %p = kernel.advance %i, %i of 3
  kernel.group_barrier 1 warps 4
}

// CHECK-LABEL: @boxes
// CHECK:         %a = kernel.tensor_map %x : memref<512x320xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
// CHECK-NEXT:    %b = kernel.tensor_map %y : memref<8x64x64xf32> -> !kernel.tensor_map<1x8x16xf32>
// CHECK:         kernel.tma_load %a[%i, %i] to %s[%i] signal %full[%i] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<1x!kernel.mbarrier, "shared">
// CHECK-NEXT:    kernel.fence_async
// CHECK-NEXT:    kernel.tma_store %t[%i] to %b[%i, %i, %i] : memref<128xf32, "shared">, !kernel.tensor_map<1x8x16xf32>
// CHECK-NEXT:    kernel.bulk_commit
// CHECK-NEXT:    kernel.bulk_wait 0 read
// CHECK-NEXT:    kernel.bulk_wait 0
kernel.func @boxes(%x: memref<512x320xbf16>, %y: memref<8x64x64xf32>) grid [1] warps 1 {
  %i = arith.constant 0 : index
  %a = kernel.tensor_map %x : memref<512x320xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %b = kernel.tensor_map %y : memref<8x64x64xf32> -> !kernel.tensor_map<1x8x16xf32>
  %full = kernel.shared : memref<1x!kernel.mbarrier, "shared">
  %s = kernel.shared : memref<4096xbf16, "shared">
  %t = kernel.shared : memref<128xf32, "shared">
  kernel.tma_load %a[%i, %i] to %s[%i] signal %full[%i] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<1x!kernel.mbarrier, "shared">
  kernel.fence_async
  kernel.tma_store %t[%i] to %b[%i, %i, %i] : memref<128xf32, "shared">, !kernel.tensor_map<1x8x16xf32>
  kernel.bulk_commit
  kernel.bulk_wait 0 read
  kernel.bulk_wait 0
}

// CHECK-LABEL: @products
// CHECK:         %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    kernel.wgmma_fence
// CHECK-NEXT:    %q = kernel.wgmma %a[%i], %b[%i] into %p k_steps 4 swizzle 128 scale_d_zero : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    %r = kernel.wgmma %a[%i] transposed, %b[%i] transposed into %q k_steps 2 swizzle 128 use_acc %c : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    kernel.wgmma_commit
// CHECK-NEXT:    %s = kernel.wgmma_wait 1, %r : !kernel.async_accumulators<vector<32xf32>> -> !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    %z = kernel.wgmma_wait 0, %s : !kernel.async_accumulators<vector<32xf32>> -> !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    %acc = kernel.wgmma_wait 0, %z : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
// CHECK-NEXT:    %t = kernel.accumulators from %acc : !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    %n = payload.cast %acc
// CHECK-NEXT:    %u = kernel.wgmma %n, %b[%i] transposed leading_offset 2048 into %t k_steps 4 swizzle 64 : vector<32xbf16>, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
kernel.func @products() grid [1] warps 4 {
  %i = arith.constant 0 : index
  %c = arith.constant true
  %a = kernel.shared : memref<4096xbf16, "shared">
  %b = kernel.shared : memref<4096xbf16, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_fence
  %q = kernel.wgmma %a[%i], %b[%i] into %p k_steps 4 swizzle 128 scale_d_zero : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  %r = kernel.wgmma %a[%i] transposed, %b[%i] transposed into %q k_steps 2 swizzle 128 use_acc %c : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %s = kernel.wgmma_wait 1, %r : !kernel.async_accumulators<vector<32xf32>> -> !kernel.async_accumulators<vector<32xf32>>
  %z = kernel.wgmma_wait 0, %s : !kernel.async_accumulators<vector<32xf32>> -> !kernel.async_accumulators<vector<32xf32>>
  %acc = kernel.wgmma_wait 0, %z : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  %t = kernel.accumulators from %acc : !kernel.async_accumulators<vector<32xf32>>
  %n = payload.cast %acc : vector<32xf32> -> vector<32xbf16>
  %u = kernel.wgmma %n, %b[%i] transposed leading_offset 2048 into %t k_steps 4 swizzle 64 : vector<32xbf16>, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
}

// CHECK-LABEL: @partitions
// CHECK-SAME:    grid [2] warps 12 blocks_per_sm 1 {
// CHECK:         kernel.warp_specialize {
// CHECK-NEXT:      partition "producer"(%w) warps 4 registers 40 {
// CHECK-NEXT:        kernel.bulk_commit
// CHECK-NEXT:      }
// CHECK-NEXT:      partition "consumer"(%v) warps 8 registers 232 {
// CHECK-NEXT:        kernel.group_barrier 1 warps 4
// CHECK-NEXT:      }
// CHECK-NEXT:    }
kernel.func @partitions() grid [2] warps 12 blocks_per_sm 1 {
  kernel.warp_specialize {
    partition "producer"(%w) warps 4 registers 40 {
      kernel.bulk_commit
    }
    partition "consumer"(%v) warps 8 registers 232 {
      kernel.group_barrier 1 warps 4
    }
  }
}

// CHECK-LABEL: @two
// CHECK:           partition "one"(%w) warps 1 {
// CHECK:           partition "other"(%v) warps 3 {
kernel.func @two() grid [2] warps 4 {
  kernel.warp_specialize {
    partition "one"(%w) warps 1 {
    }
    partition "other"(%v) warps 3 {
    }
  }
}
