// RUN: dl-opt %s -p tile-pipeline-loads --split-input-file --remarks --verify-diagnostics | filecheck %s

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#row = #tile.layout<reg = [[0, 1], [0, 2], [8, 0]], lane = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// Three stages: two copies of each operand in front of the loop, the third one started in it. The left operand lies the
// other way round in shared memory: it is copied in pieces of 4 bytes, by threads that share sectors.
// CHECK-DAG:   #layout = #tile.layout<reg = {{.*}}, lane = {{\[\[}}0, 1], [0, 2], [0, 4], [1, 0], [2, 0]], warp = []>
// CHECK-LABEL: @three
// CHECK:         %a = tile.stage_async %x[d0, d1 + %0 * 16] by #layout
// CHECK-NEXT:    %b = tile.stage_async %w[d0 + %0 * 16, d1] by #layout1
// CHECK-NEXT:    tile.commit
// CHECK-NEXT:    %1 = arith.constant 1 : index
// CHECK-NEXT:    %a_1 = tile.stage_async
// CHECK-NEXT:    %b_1 = tile.stage_async
// CHECK-NEXT:    tile.commit
// CHECK-NEXT:    %r, %2, %3, %4, %5 = scf.for %k = %c0 to %c6 step %c1 iter_args(%c = %zero, %a_2 = %a, %a_3 = %a_1, %b_2 = %b, %b_3 = %b_1)
// CHECK-NEXT:      %as, %bs = tile.await %a_2, %b_2 pending 1
// CHECK-NEXT:      %6 = arith.constant 2 : index
// CHECK-NEXT:      %next = arith.addi %k, %6 : index
// CHECK-NEXT:      %more = payload.cmp lt %next, %c6 : index
// CHECK-NEXT:      %a_4 = tile.stage_async %x[d0, d1 + %next * 16] if %more by #layout
// CHECK-NEXT:      %b_4 = tile.stage_async %w[d0 + %next * 16, d1] if %more by #layout1
// CHECK-NEXT:      tile.commit
// CHECK-NEXT:      %n = tile.dot %as, %bs, %c
// CHECK-NEXT:      scf.yield %n, %a_3, %a_4, %b_3, %b_4
tile.kernel @three(%x: memref<16x96xf32>, %w: memref<96x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, stages = 3, copy = cp_async>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %r = scf.for %k = %c0 to %c6 step %c1 iter_args(%c = %zero) -> (tensor<16x16xf32, #acc>) {
    %a = tile.load %x[d0, d1 + %k * 16] : memref<16x96xf32> -> tensor<16x16xf32, #row>
    %as = tile.stage %a : tensor<16x16xf32, #row> -> tensor<16x16xf32, #up>
    %b = tile.load %w[d0 + %k * 16, d1] : memref<96x16xf32> -> tensor<16x16xf32, #row>
    %bs = tile.stage %b : tensor<16x16xf32, #row> -> tensor<16x16xf32, #side>
    %n = tile.dot %as, %bs, %c : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
    scf.yield %n : tensor<16x16xf32, #acc>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}

// -----

#row = #tile.layout<reg = [[0, 1], [0, 2], [8, 0]], lane = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], warp = []>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// One stage: the copy skips registers, but nothing runs ahead. Where it ends is known: what is outside becomes zero.
// CHECK-LABEL: @one
// CHECK:         scf.for %k = %c0 to %c3 step %c1 iter_args(%c = %zero)
// CHECK-NEXT:      %a = tile.stage_async %x[{{.*}}] where 0 <= {{.*}} < 40 by #layout
// CHECK-NEXT:      tile.commit
// CHECK-NEXT:      %as = tile.await %a pending 0
// CHECK-NEXT:      %v = tile.convert_layout %as
tile.kernel @one(%x: memref<16x40xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, copy = cp_async>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #row>
  %fill = payload.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %r = scf.for %k = %c0 to %c3 step %c1 iter_args(%c = %zero) -> (tensor<16x16xf32, #row>) {
    %a = tile.load %x[d0, d1 + %k * 16] where 0 <= d1 + %k * 16 < 40 else %fill : memref<16x40xf32> -> tensor<16x16xf32, #row>
    %as = tile.stage %a : tensor<16x16xf32, #row> -> tensor<16x16xf32, #side>
    %v = tile.convert_layout %as : tensor<16x16xf32, #side> -> tensor<16x16xf32, #row>
    %n = arith.addf %v, %c : tensor<16x16xf32, #row>
    scf.yield %n : tensor<16x16xf32, #row>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #row>, memref<16x16xf32>
}

// -----

#row = #tile.layout<reg = [[0, 1], [0, 2], [8, 0]], lane = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], warp = []>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// What stays a plain copy, and why.
// CHECK:       remark: [tile-pipeline-loads] tile.stage: the same tile is loaded in every iteration
// CHECK:       remark: [tile-pipeline-loads] tile.stage: its padding is not zero
// CHECK:       remark: [tile-pipeline-loads] tile.stage: the tile is computed from what was loaded, so it has to pass through registers
// CHECK:       remark: [tile-pipeline-loads] tile.stage: where it is loaded from is computed inside of the loop
// CHECK:       remark: [tile-pipeline-loads] tile.stage: its loop has no iterations ahead
// CHECK-LABEL: @kept
// CHECK-NOT:     tile.stage_async
tile.kernel @kept(%x: memref<16x96xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, stages = 2, copy = cp_async>} {
  %one = payload.constant 1.0 : f32
  %zero = payload.constant 0.0 : tensor<16x16xf32, #row>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %r = scf.for %k = %c0 to %c6 step %c1 iter_args(%t = %zero) -> (tensor<16x16xf32, #row>) {
    %a = tile.load %x[d0, d1] : memref<16x96xf32> -> tensor<16x16xf32, #row>
    %as = tile.stage %a : tensor<16x16xf32, #row> -> tensor<16x16xf32, #side>
    %b = tile.load %x[d0, d1 + %k * 16] where 0 <= d1 + %k * 16 < 90 else %one : memref<16x96xf32> -> tensor<16x16xf32, #row>
    %bs = tile.stage %b : tensor<16x16xf32, #row> -> tensor<16x16xf32, #side>
    %c = tile.load %x[d0, d1 + %k * 16] : memref<16x96xf32> -> tensor<16x16xf32, #row>
    %e = math.exp %c : tensor<16x16xf32, #row>
    %es = tile.stage %e : tensor<16x16xf32, #row> -> tensor<16x16xf32, #side>
    %j = arith.muli %k, %k : index
    %d = tile.load %x[d0, d1 + %k + %j] : memref<16x96xf32> -> tensor<16x16xf32, #row>
    %ds = tile.stage %d : tensor<16x16xf32, #row> -> tensor<16x16xf32, #side>
    %u0 = tile.convert_layout %as : tensor<16x16xf32, #side> -> tensor<16x16xf32, #row>
    %u1 = tile.convert_layout %bs : tensor<16x16xf32, #side> -> tensor<16x16xf32, #row>
    %u2 = tile.convert_layout %es : tensor<16x16xf32, #side> -> tensor<16x16xf32, #row>
    %u3 = tile.convert_layout %ds : tensor<16x16xf32, #side> -> tensor<16x16xf32, #row>
    %s0 = arith.addf %u0, %u1 : tensor<16x16xf32, #row>
    %s1 = arith.addf %u2, %u3 : tensor<16x16xf32, #row>
    %s2 = arith.addf %s0, %s1 : tensor<16x16xf32, #row>
    %n = arith.addf %s2, %t : tensor<16x16xf32, #row>
    scf.yield %n : tensor<16x16xf32, #row>
  }
  %q = scf.for %k = %c0 to %c1 step %c1 iter_args(%t = %r) -> (tensor<16x16xf32, #row>) {
    %c = tile.load %x[d0, d1 + %k * 16] : memref<16x96xf32> -> tensor<16x16xf32, #row>
    %cs = tile.stage %c : tensor<16x16xf32, #row> -> tensor<16x16xf32, #side>
    %v = tile.convert_layout %cs : tensor<16x16xf32, #side> -> tensor<16x16xf32, #row>
    %n = arith.addf %v, %t : tensor<16x16xf32, #row>
    scf.yield %n : tensor<16x16xf32, #row>
  }
  tile.store %q, %y[d0, d1] : tensor<16x16xf32, #row>, memref<16x16xf32>
}
