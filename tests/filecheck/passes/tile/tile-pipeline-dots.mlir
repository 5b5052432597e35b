// RUN: dl-opt %s --split-input-file -p tile-pipeline-dots | filecheck %s
// RUN: dl-opt %s --split-input-file -p tile-pipeline-dots --remarks | filecheck %s --check-prefix REMARK

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// The wait for a dot moves to the next iteration, and the slot that it has read is given back there; from zero, the
// first dot does not add.
// CHECK-LABEL: tile.kernel @product
// CHECK-NOT:     payload.constant 0.0
// CHECK:         [[START:%.*]] = tile.accumulators -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
// CHECK-NEXT:    %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = [[START]]) -> (!tile.async_accumulators<tensor<64x64xf32, #acc>>) {
// CHECK-NEXT:      %more = payload.cmp ne %k, %c0 : index
// CHECK-NEXT:      %x, %y = tile.consumer_wait %r
// CHECK-NEXT:      %n = tile.dot_async %x, %y into %a use_acc %more
// CHECK-NEXT:      [[W:%.*]] = tile.dot_wait %n pending 1 : {{.*}} -> !tile.async_accumulators
// CHECK-NEXT:      tile.consumer_release %r pending 1 if %more
// CHECK-NEXT:      scf.yield [[W]]
// CHECK-NEXT:    }
// CHECK-NEXT:    [[SUMS:%.*]] = tile.dot_wait %s pending 0 : {{.*}} -> tensor<64x64xf32, #acc>
// CHECK-NEXT:    tile.consumer_release %r :
// CHECK-NEXT:    tile.store [[SUMS]]
tile.kernel @product(%z: memref<64x64xf32>) blocks () in [] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %zero) -> (tensor<64x64xf32, #acc>) {
    %x, %y = tile.consumer_wait %r : !tile.ring<2 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
    %n = tile.dot %x, %y, %a atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    tile.consumer_release %r : !tile.ring<2 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
    scf.yield %n : tensor<64x64xf32, #acc>
  }
  tile.store %s, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// How often the loop runs is known at run time only: it starts with what there is, and gives the last slot back if
// there was one. Two sums are two groups in flight.
// CHECK-LABEL: tile.kernel @perhaps_never
// CHECK:         tile.accumulators %start : tensor<64x64xf32, #acc> -> !tile.async_accumulators
// CHECK-NEXT:    tile.accumulators %start : tensor<64x64xf32, #acc> -> !tile.async_accumulators
// CHECK-NEXT:    scf.for
// CHECK:           tile.dot_async %x, %y into %a :
// CHECK:           tile.dot_async %y, %x into %b :
// CHECK-NEXT:      tile.dot_wait %{{.*}} pending 2
// CHECK-NEXT:      tile.dot_wait %{{.*}} pending 2
// CHECK-NEXT:      tile.consumer_release %r pending 1 if %more
// CHECK:         [[RAN:%.*]] = payload.cmp lt %c0, %n : index
// CHECK-NEXT:    tile.dot_wait %{{.*}} pending 0
// CHECK-NEXT:    tile.dot_wait %{{.*}} pending 0
// CHECK-NEXT:    tile.consumer_release %r if [[RAN]]
tile.kernel @perhaps_never(%z: memref<64x64xf32>) blocks (%n) in [8] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
  %start = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %s, %t = scf.for %k = %c0 to %n step %c1 iter_args(%a = %start, %b = %start) -> (tensor<64x64xf32, #acc>, tensor<64x64xf32, #acc>) {
    %x, %y = tile.consumer_wait %r : !tile.ring<2 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
    %d = tile.dot %x, %y, %a atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    %e = tile.dot %y, %x, %b atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    tile.consumer_release %r : !tile.ring<2 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
    scf.yield %d, %e : tensor<64x64xf32, #acc>, tensor<64x64xf32, #acc>
  }
  %sum = arith.addf %s, %t : tensor<64x64xf32, #acc>
  tile.store %sum, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// The sums are scaled in the loop: there they have to be complete. Zeros are overwritten in each iteration. The second dot
// needs nothing of the first, and starts before the wait for it.
// CHECK-LABEL: tile.kernel @scaled
// CHECK:         scf.for {{.*}} iter_args(%a = %two) -> (tensor<64x64xf32, #acc>) {
// CHECK:           [[P:%.*]] = tile.accumulators -> !tile.async_accumulators
// CHECK-NEXT:      %w = tile.dot_async %x, %x into [[P]] scale_d_zero
// CHECK-NEXT:      %b = arith.mulf %a, %two
// CHECK-NEXT:      [[Q:%.*]] = tile.accumulators %b
// CHECK-NEXT:      [[D:%.*]] = tile.dot_async %x, %x into [[Q]] :
// CHECK-NEXT:      {{%.*}} = tile.dot_wait %w pending 1 : {{.*}} -> tensor
// CHECK-NEXT:      {{%.*}} = tile.dot_wait [[D]] pending 0
// CHECK-NEXT:      tile.consumer_release %r :
// REMARK: remark: [tile-pipeline-dots] scf.for: its sums are used in the same iteration
tile.kernel @scaled(%z: memref<64x64xf32>) blocks () in [] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %two = payload.constant 2.0 : tensor<64x64xf32, #acc>
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %two) -> (tensor<64x64xf32, #acc>) {
    %x = tile.consumer_wait %r : !tile.ring<2 of tensor<64x64xbf16, #b>>
    %w = tile.dot %x, %x, %zero atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    %b = arith.mulf %a, %two : tensor<64x64xf32, #acc>
    %n = tile.dot %x, %x, %b atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    tile.consumer_release %r : !tile.ring<2 of tensor<64x64xbf16, #b>>
    %c = arith.addf %n, %w : tensor<64x64xf32, #acc>
    scf.yield %c : tensor<64x64xf32, #acc>
  }
  tile.store %s, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#load = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// Threads store the operands: the next iteration may not overwrite what a dot still reads.
// CHECK-LABEL: tile.kernel @staged
// CHECK:         tile.dot_async %t, %t into
// CHECK-NEXT:    tile.dot_wait {{.*}} pending 0
// REMARK: remark: [tile-pipeline-dots] scf.for: it does something else as well: tile.load
tile.kernel @staged(%x: memref<64x64xbf16>, %z: memref<64x64xf32>) blocks () in [] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %zero) -> (tensor<64x64xf32, #acc>) {
    %l = tile.load %x[d0, d1] : memref<64x64xbf16> -> tensor<64x64xbf16, #load>
    %t = tile.stage %l : tensor<64x64xbf16, #load> -> tensor<64x64xbf16, #b>
    %n = tile.dot %t, %t, %a atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    scf.yield %n : tensor<64x64xf32, #acc>
  }
  tile.store %s, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#load = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// An operand that was staged in front of the loop is not in a ring; nor is there a second slot in the other kernel.
// CHECK-LABEL: tile.kernel @outside
// CHECK:         tile.dot_wait {{.*}} pending 0
// REMARK: remark: [tile-pipeline-dots] scf.for: a product reads what threads compute
// CHECK-LABEL: tile.kernel @one_slot
// CHECK:         tile.dot_wait {{.*}} pending 0
// CHECK-NEXT:    tile.consumer_release %r :
// REMARK: remark: [tile-pipeline-dots] scf.for: a ring has no slot left for the next chunk
tile.kernel @outside(%x: memref<64x64xbf16>, %z: memref<64x64xf32>) blocks () in [] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %l = tile.load %x[d0, d1] : memref<64x64xbf16> -> tensor<64x64xbf16, #load>
  %t = tile.stage %l : tensor<64x64xbf16, #load> -> tensor<64x64xbf16, #b>
  %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %zero) -> (tensor<64x64xf32, #acc>) {
    %n = tile.dot %t, %t, %a atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    scf.yield %n : tensor<64x64xf32, #acc>
  }
  tile.store %s, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}
tile.kernel @one_slot(%z: memref<64x64xf32>) blocks () in [] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = tile.ring : !tile.ring<1 of tensor<64x64xbf16, #b>>
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %zero) -> (tensor<64x64xf32, #acc>) {
    %x = tile.consumer_wait %r : !tile.ring<1 of tensor<64x64xbf16, #b>>
    %n = tile.dot %x, %x, %a atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    tile.consumer_release %r : !tile.ring<1 of tensor<64x64xbf16, #b>>
    scf.yield %n : tensor<64x64xf32, #acc>
  }
  tile.store %s, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// One group of two dots; the slot that the first has read is given back behind the wait for both.
// CHECK-LABEL: tile.kernel @chain
// CHECK:         [[P:%.*]] = tile.accumulators ->
// CHECK-NEXT:    %m = tile.dot_async %x, %x into [[P]] scale_d_zero
// CHECK-NEXT:    %y = tile.consumer_wait %q
// CHECK-NEXT:    %n = tile.dot_async %y, %y into %m :
// CHECK-NEXT:    %{{.*}} = tile.dot_wait %n pending 0
// CHECK-NEXT:    tile.consumer_release %r :
// CHECK-NEXT:    tile.consumer_release %q :
tile.kernel @chain(%z: memref<64x64xf32>) blocks () in [] warps 4 {
  %r = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %q = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %x = tile.consumer_wait %r : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %m = tile.dot %x, %x, %zero atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  tile.consumer_release %r : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %y = tile.consumer_wait %q : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %n = tile.dot %y, %y, %m atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  tile.consumer_release %q : !tile.ring<2 of tensor<64x64xbf16, #b>>
  tile.store %n, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#load = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// What threads store between two dots may overwrite what the first has read: they stay apart.
// CHECK-LABEL: tile.kernel @apart
// CHECK:         tile.dot_async %t, %t into
// CHECK-NEXT:    [[M:%.*]] = tile.dot_wait
// CHECK-NEXT:    %u = tile.stage
// CHECK-NEXT:    [[P:%.*]] = tile.accumulators [[M]]
// CHECK-NEXT:    tile.dot_async %u, %u into [[P]] :
tile.kernel @apart(%x: memref<64x64xbf16>, %z: memref<64x64xf32>) blocks () in [] warps 4 {
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %l = tile.load %x[d0, d1] : memref<64x64xbf16> -> tensor<64x64xbf16, #load>
  %t = tile.stage %l : tensor<64x64xbf16, #load> -> tensor<64x64xbf16, #b>
  %m = tile.dot %t, %t, %zero atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  %u = tile.stage %l : tensor<64x64xbf16, #load> -> tensor<64x64xbf16, #b>
  %n = tile.dot %u, %u, %m atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  tile.store %n, %z[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#rows = #tile.layout<reg = [[8]], lane = [[0], [0], [1], [2], [4]], warp = [[16], [32]]>
#columns = #tile.layout<reg = [[1], [8], [16], [32]], lane = [[2], [4], [0], [0], [0]], warp = [[0], [0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// What needs neither the sums nor what stays behind the wait moves in front of it: a reduction within warps, a
// conversion in registers, and a load up to the first store. A reduction across warps goes through shared memory and
// stays.
// CHECK-LABEL: tile.kernel @fill
// CHECK:         tile.dot_async
// CHECK-NEXT:    %t = tile.reduce add %e over [1]
// CHECK-NEXT:    %u = tile.broadcast %t along [1]
// CHECK-NEXT:    %g = tile.load %z
// CHECK-NEXT:    tile.dot_wait
// CHECK-NEXT:    tile.consumer_release
// CHECK-NEXT:    %v = tile.reduce add %e over [0]
// CHECK-NEXT:    %w = tile.broadcast %v along [0]
// CHECK-NEXT:    arith.addf
// CHECK-NEXT:    arith.addf
// CHECK-NEXT:    arith.addf
// CHECK-NEXT:    arith.addf
// CHECK-NEXT:    tile.store
// CHECK-NEXT:    tile.load %z
tile.kernel @fill(%z: memref<64x64xf32>, %y: memref<64x64xf32>, %o: memref<64x64xf32>) blocks () in [] warps 4 {
  %r = tile.ring : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %e = tile.load %z[d0, d1] : memref<64x64xf32> -> tensor<64x64xf32, #acc>
  %x = tile.consumer_wait %r : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %n = tile.dot %x, %x, %zero atom "wgmma" : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  tile.consumer_release %r : !tile.ring<2 of tensor<64x64xbf16, #b>>
  %t = tile.reduce add %e over [1] : tensor<64x64xf32, #acc> -> tensor<64xf32, #rows>
  %u = tile.broadcast %t along [1] : tensor<64xf32, #rows> -> tensor<64x64xf32, #acc>
  %g = tile.load %z[d1, d0] : memref<64x64xf32> -> tensor<64x64xf32, #acc>
  %v = tile.reduce add %e over [0] : tensor<64x64xf32, #acc> -> tensor<64xf32, #columns>
  %w = tile.broadcast %v along [0] : tensor<64xf32, #columns> -> tensor<64x64xf32, #acc>
  %1 = arith.addf %n, %u : tensor<64x64xf32, #acc>
  %2 = arith.addf %1, %w : tensor<64x64xf32, #acc>
  %3 = arith.addf %2, %g : tensor<64x64xf32, #acc>
  %4 = arith.addf %3, %w : tensor<64x64xf32, #acc>
  tile.store %4, %y[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
  %h = tile.load %z[d0, d1] : memref<64x64xf32> -> tensor<64x64xf32, #acc>
  tile.store %h, %o[d0, d1] : tensor<64x64xf32, #acc>, memref<64x64xf32>
}
