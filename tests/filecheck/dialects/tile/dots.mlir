// RUN: %roundtrip

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

%x, %start, %more, %c0, %c1 = "test.op"() : () -> (tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc>, i1, index, index)

// CHECK: %p = tile.accumulators %start : tensor<64x64xf32, #acc> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
%p = tile.accumulators %start : tensor<64x64xf32, #acc> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT: %u = tile.accumulators -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
%u = tile.accumulators -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT: %q = tile.dot_async %x, %x into %p : tensor<64x64xbf16, #swz>, tensor<64x64xbf16, #swz>, !tile.async_accumulators<tensor<64x64xf32, #acc>>
%q = tile.dot_async %x, %x into %p : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT: %r = tile.dot_async %x, %x into %u scale_d_zero : tensor<64x64xbf16, #swz>
%r = tile.dot_async %x, %x into %u scale_d_zero : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT: %w = tile.dot_wait %r pending 1 : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
%w = tile.dot_wait %r pending 1 : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT: scf.for %k = %c0 to %c1 step %c1 iter_args(%a = %w) -> (!tile.async_accumulators<tensor<64x64xf32, #acc>>) {
%s = scf.for %k = %c0 to %c1 step %c1 iter_args(%a = %w) -> (!tile.async_accumulators<tensor<64x64xf32, #acc>>) {
  // CHECK-NEXT: %n = tile.dot_async %x, %x into %a use_acc %more : tensor<64x64xbf16, #swz>
  %n = tile.dot_async %x, %x into %a use_acc %more : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, !tile.async_accumulators<tensor<64x64xf32, #acc>>
  scf.yield %n : !tile.async_accumulators<tensor<64x64xf32, #acc>>
}
// CHECK: tile.dot_wait %s pending 0 : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> tensor<64x64xf32, #acc>
%t = tile.dot_wait %s pending 0 : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> tensor<64x64xf32, #acc>
// CHECK-NEXT: [[NEW:%.*]] = tile.accumulators
%i = tile.accumulators -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT: [[OLDER:%.*]] = tile.dot_async %x, %x into [[NEW]]
%j = tile.dot_async %x, %x into %i scale_d_zero : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, !tile.async_accumulators<tensor<64x64xf32, #acc>>
%l = tile.accumulators %t : tensor<64x64xf32, #acc> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK: tile.dot_async
%m = tile.dot_async %x, %x into %l : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT: tile.dot_wait [[OLDER]] pending 1 : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> tensor<64x64xf32, #acc>
%o = tile.dot_wait %j pending 1 : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> tensor<64x64xf32, #acc>
