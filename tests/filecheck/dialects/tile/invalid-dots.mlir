// RUN: %diagnostics

// Sums in flight can't be computed on, stored or spread: only a tile.dot_wait makes a tile of them.
%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: error: Unexpected attribute !tile.async_accumulators<tensor<64x64xf32>>
%s = arith.addf %p, %p : !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p, %z = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>, memref<64x64xf32>)
// CHECK: tile.dot_async: tile.store uses accumulators in flight, before a tile.dot_wait
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
// CHECK: tile.accumulators: expected scale_d_zero on the first dot into undefined accumulators
%u = tile.accumulators -> !tile.async_accumulators<tensor<64x64xf32>>
%q = tile.dot_async %x, %x into %u : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %s = "test.op"() : () -> (tensor<64x64xbf16>, tensor<64x64xf32>)
// CHECK: tile.accumulators: expected one use of accumulators in flight
%p = tile.accumulators %s : tensor<64x64xf32> -> !tile.async_accumulators<tensor<64x64xf32>>
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>
%r = tile.dot_wait %p pending 0 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x64xf32>

// -----

%s = "test.op"() : () -> (tensor<64x32xf32>)
// CHECK: tile.accumulators: tensor<64x32xf32> does not start !tile.async_accumulators<tensor<64x64xf32>>
%p = tile.accumulators %s : tensor<64x32xf32> -> !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p, %more = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>, i1)
// CHECK: tile.dot_async: expected no `use_acc` together with `scale_d_zero`
%q = tile.dot_async %x, %x into %p scale_d_zero use_acc %more : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p = "test.op"() : () -> (tensor<64x32xbf16>, !tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_async: no contraction of tensor<64x32xbf16> and tensor<64x32xbf16> into tensor<64x64xf32>
%q = tile.dot_async %x, %x into %p : tensor<64x32xbf16>, tensor<64x32xbf16>, !tile.async_accumulators<tensor<64x64xf32>>

// -----

%x, %p = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xbf16>>)
// CHECK: tile.dot_async: atom wgmma multiplies bf16, f16 or f32 into f32
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xbf16>>

// -----

%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_wait: expected 0 to 7 pending groups, but got 8
%s = tile.dot_wait %p pending 8 : !tile.async_accumulators<tensor<64x64xf32>> -> !tile.async_accumulators<tensor<64x64xf32>>

// -----

%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_wait: accumulators become a tile of their type once they are not pending, and only then
%s = tile.dot_wait %p pending 1 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x64xf32>

// -----

%p = "test.op"() : () -> (!tile.async_accumulators<tensor<64x64xf32>>)
// CHECK: tile.dot_wait: accumulators become a tile of their type once they are not pending, and only then
%s = tile.dot_wait %p pending 0 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x32xf32>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>)
// CHECK: tile.consumer_release: expected pending 1, in a ring of two slots or more
tile.consumer_release %r pending 2 : !tile.ring<2 of tensor<2x4xbf16, #a>>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r = "test.op"() : () -> (!tile.ring<1 of tensor<2x4xbf16, #a>>)
// CHECK: tile.consumer_release: expected pending 1, in a ring of two slots or more
tile.consumer_release %r pending 1 : !tile.ring<1 of tensor<2x4xbf16, #a>>

// -----

// One group starts after that of %q; two are left pending.
%x, %p, %u = "test.op"() : () -> (tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>, !tile.async_accumulators<tensor<64x64xf32>>)
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>
%v = tile.dot_async %x, %x into %u : tensor<64x64xbf16>, tensor<64x64xbf16>, !tile.async_accumulators<tensor<64x64xf32>>
// CHECK: tile.dot_wait: accumulators become a tile of their type once they are not pending, and only then
%s = tile.dot_wait %q pending 2 : !tile.async_accumulators<tensor<64x64xf32>> -> tensor<64x64xf32>
