// RUN: dl-opt %s --split-input-file -p tile-delay-dots | filecheck %s
// RUN: dl-opt %s --split-input-file -p tile-delay-dots --remarks | filecheck %s --check-prefix REMARK
// RUN: dl-opt %s --split-input-file -p tile-delay-dots,tile-pipeline-dots | filecheck %s --check-prefix ASYNC

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// The first iteration comes before the loop without its late dot; the last late dot comes after the loop. The product of
// the scores starts before the late one, and is waited for while the late one runs.
// CHECK-LABEL: tile.kernel @scores
// CHECK:         [[X0:%.*]] = tile.consumer_wait %keys
// CHECK-NEXT:    [[S0:%.*]] = tile.dot %q, [[X0]], %zero
// CHECK-NEXT:    tile.consumer_release %keys
// CHECK-NEXT:    [[P0:%.*]] = payload.cast [[S0]]
// CHECK-NEXT:    [[A0:%.*]] = arith.mulf %zero, %two
// CHECK-NEXT:    [[SECOND:%.*]] = arith.constant 1 : index
// CHECK-NEXT:    [[O:%.*]], [[P:%.*]] = scf.for %k = [[SECOND]] to %end step %c1 iter_args(%a = [[A0]], [[LATE:%.*]] = [[P0]])
// CHECK-NEXT:      [[X:%.*]] = tile.consumer_wait %keys
// CHECK-NEXT:      [[S:%.*]] = tile.dot %q, [[X]], %zero
// CHECK-NEXT:      tile.consumer_release %keys
// CHECK-NEXT:      [[Y:%.*]] = tile.consumer_wait %values
// CHECK-NEXT:      [[D:%.*]] = tile.dot [[LATE]], [[Y]], %a
// CHECK-NEXT:      tile.consumer_release %values
// CHECK-NEXT:      [[P2:%.*]] = payload.cast [[S]]
// CHECK-NEXT:      [[A2:%.*]] = arith.mulf [[D]], %two
// CHECK-NEXT:      scf.yield [[A2]], [[P2]]
// CHECK:         [[Y1:%.*]] = tile.consumer_wait %values
// CHECK-NEXT:    [[R:%.*]] = tile.dot [[P]], [[Y1]], [[O]]
// CHECK-NEXT:    tile.consumer_release %values
// CHECK-NEXT:    tile.store [[R]]

// ASYNC-LABEL: tile.kernel @scores
// ASYNC:         scf.for
// ASYNC:           [[S:%.*]] = tile.dot_async %q, {{%.*}} into {{%.*}} scale_d_zero
// ASYNC-NEXT:      [[Y:%.*]] = tile.consumer_wait %values
// ASYNC-NEXT:      [[I:%.*]] = tile.accumulators %a
// ASYNC-NEXT:      [[D:%.*]] = tile.dot_async {{%.*}}, [[Y]] into [[I]]
// ASYNC-NEXT:      [[SUMS:%.*]] = tile.dot_wait [[S]] pending 1 : {{.*}} -> tensor
// ASYNC-NEXT:      tile.consumer_release %keys
// ASYNC-NEXT:      {{%.*}} = payload.cast [[SUMS]]
// ASYNC-NEXT:      [[O:%.*]] = tile.dot_wait [[D]] pending 0
// ASYNC-NEXT:      tile.consumer_release %values
// ASYNC-NEXT:      {{%.*}} = arith.mulf [[O]], %two
// ASYNC-NEXT:      scf.yield
tile.kernel @scores(%z: memref<64x64xf32>) blocks (%n) in [4] warps 4 {
  %keys = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %values = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %queries = tile.ring : !tile.ring<1 of tensor<64x64xbf16, #b>>
  tile.warp_specialize {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %end = tile.affine %n + 1 : index
    %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
    %two = payload.constant 2.0 : tensor<64x64xf32, #acc>
    %q = tile.consumer_wait %queries : !tile.ring<1 of tensor<64x64xbf16, #b>>
    %o = scf.for %k = %c0 to %end step %c1 iter_args(%a = %zero) -> (tensor<64x64xf32, #acc>) {
      %x = tile.consumer_wait %keys : !tile.ring<2 of tensor<64x64xbf16, #b>>
      %s = tile.dot %q, %x, %zero atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
      tile.consumer_release %keys : !tile.ring<2 of tensor<64x64xbf16, #b>>
      %p = payload.cast %s : tensor<64x64xf32, #acc> -> tensor<64x64xbf16, #acc>
      %scaled = arith.mulf %a, %two : tensor<64x64xf32, #acc>
      %y = tile.consumer_wait %values : !tile.ring<2 of tensor<64x64xbf16, #b>>
      %d = tile.dot %p, %y, %scaled atom "wgmma" : tensor<64x64xbf16, #acc>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
      tile.consumer_release %values : !tile.ring<2 of tensor<64x64xbf16, #b>>
      scf.yield %d : tensor<64x64xf32, #acc>
    }
    tile.store %o, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
  } producer warps 4 {
  }
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// The first block has no iteration.
// CHECK-LABEL: tile.kernel @may_be_empty
// CHECK:         scf.for %k = %c0 to %n step %c1 iter_args(%a = %zero)
// REMARK: remark: [tile-delay-dots] scf.for: it may have no iteration
tile.kernel @may_be_empty(%z: memref<64x64xf32>) blocks (%n) in [4] warps 4 {
  %keys = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %values = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  tile.warp_specialize {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
    %o = scf.for %k = %c0 to %n step %c1 iter_args(%a = %zero) -> (tensor<64x64xf32, #acc>) {
      %x = tile.consumer_wait %keys : !tile.ring<2 of tensor<64x64xbf16, #b>>
      %s = tile.dot %x, %x, %zero atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
      tile.consumer_release %keys : !tile.ring<2 of tensor<64x64xbf16, #b>>
      %p = payload.cast %s : tensor<64x64xf32, #acc> -> tensor<64x64xbf16, #acc>
      %y = tile.consumer_wait %values : !tile.ring<2 of tensor<64x64xbf16, #b>>
      %d = tile.dot %p, %y, %a atom "wgmma" : tensor<64x64xbf16, #acc>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
      tile.consumer_release %values : !tile.ring<2 of tensor<64x64xbf16, #b>>
      scf.yield %d : tensor<64x64xf32, #acc>
    }
    tile.store %o, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
  } producer warps 4 {
  }
}
