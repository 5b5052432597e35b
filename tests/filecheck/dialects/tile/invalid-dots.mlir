// RUN: %diagnostics

// Sums in flight can't be computed on, stored or spread: only a tile.dot_wait makes a tile of them.
%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: error: Unexpected attribute !tile.async_accumulators<tensor<64x64xf32>>
%s = arith.addf %p, %p : !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p, %z = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>, memref<64x64xf32>)
// CHECK: tile.dot_async: expected a tile.dot_wait before other uses of accumulators in flight, but got tile.store
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>
tile.store %q, %z[d0, d1] : !tile.async_accumulators<tensor<64x64xf32>>, memref<64x64xf32>

// -----

%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: error: !tile.async_accumulators<tensor<64x64xf32>> should be of base attribute tensor
%s = tile.reduce add %p over [1] : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64xf32>

// -----

%x, %p = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: error: !tile.async_accumulators<tensor<64x64xf32>> should be of base attribute tensor
%s = tile.dot %x, %x, %p atom "wgmma" : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x64xf32>

// -----

%x = "test.op"() : () -> (tensor<64x64xbf16>)
// CHECK: tile.accumulators: expected scale_d_zero on the first dot into undefined accumulators, but got a dot without it
%u = tile.accumulators -> !tile.async_accumulators<tensor<64x64xf32>>
%q = tile.dot_async %x, %x into %u : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %s = "test.op"() : () -> (tensor<64x64xbf16>, tensor<64x64xf32>)
// CHECK: tile.accumulators: expected one use of accumulators in flight, which the hardware cannot copy, but got 2
%p = tile.accumulators %s : tensor<64x64xf32> -> !tile.async_accumulators<tensor<64x64xf32>>
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>
%r = tile.dot_wait %p pending 0 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x64xf32>

// -----

%s = "test.op"() : () -> (tensor<64x32xf32>)
// CHECK: tile.accumulators: expected a tile of the type tensor<64x64xf32>, but got tensor<64x32xf32>
%p = tile.accumulators %s : tensor<64x32xf32> -> !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p, %more = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>, i1)
// CHECK: tile.dot_async: expected `use_acc` or `scale_d_zero`, but got both
%q = tile.dot_async %x, %x into %p scale_d_zero use_acc %more : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p = "test.op"() : () -> (tensor<64x32xbf16>, !tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_async: expected operands [m, k] and [k, n] and an accumulator [m, n], but got tensor<64x32xbf16>, tensor<64x32xbf16> and tensor<64x64xf32>
%q = tile.dot_async %x, %x into %p : tensor<64x32xbf16>, tensor<64x32xbf16>, !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xbf16>>)
// CHECK: tile.dot_async: expected bf16, f16 or f32 operands with an f32 accumulator, for atom wgmma, but got bf16, bf16, bf16
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xbf16>>

// -----

%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_wait: expected 0 to 7 pending groups, but got 8
%s = tile.dot_wait %p pending 8 : !tile.async_accumulators<tensor<64x64xf32>> -> !tile.async_accumulators<tensor<64x64xf32>>

// -----

%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_wait: expected a tile if the group of the accumulators is complete, otherwise accumulators in flight, but got tensor<64x64xf32> with pending 1
%s = tile.dot_wait %p pending 1 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x64xf32>

// -----

%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_wait: expected a tile if the group of the accumulators is complete, otherwise accumulators in flight, but got tensor<64x32xf32> with pending 0
%s = tile.dot_wait %p pending 0 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x32xf32>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>)
// CHECK: tile.consumer_release: expected pending 1, in a ring of at least two slots, but got pending 2 and 2 slots
tile.consumer_release %r pending 2 : !tile.ring<2 of tensor<2x4xbf16, #a>>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r = "test.op"() : () -> (!tile.ring<1 of tensor<2x4xbf16, #a>>)
// CHECK: tile.consumer_release: expected pending 1, in a ring of at least two slots, but got pending 1 and 1 slots
tile.consumer_release %r pending 1 : !tile.ring<1 of tensor<2x4xbf16, #a>>

// -----

// One group starts after that of %q; two are left pending.
%x, %p, %u = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>, !tile.async_accumulators<tensor<64x64xf32>>)
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>
%v = tile.dot_async %x, %x into %u : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>
// CHECK: tile.dot_wait: expected a tile if the group of the accumulators is complete, otherwise accumulators in flight, but got tensor<64x64xf32> with pending 2
%s = tile.dot_wait %q pending 2 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x64xf32>
