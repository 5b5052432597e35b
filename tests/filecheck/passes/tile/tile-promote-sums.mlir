// RUN: dl-opt %s -p tile-promote-sums --split-input-file --remarks | filecheck %s

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// A loop over six chunks becomes three times a loop over two. The tile in flight goes through both.
// CHECK-LABEL: @six
// CHECK:         %r, %last = scf.for %first = %c0 to %c6 step %0 iter_args(%c = %zero, %b = %b0)
// CHECK-NEXT:      %end = arith.addi %first, %0 : index
// CHECK-NEXT:      %r_1, %last_1 = scf.for %k = %first to %end step %c1 iter_args(%c_1 = %zero, %b_1 = %b)
// CHECK:             %more = payload.cmp lt %next, %c6 : index
// CHECK:             %n = tile.dot %as, %bs, %c_1
// CHECK-NEXT:        scf.yield %n, %b1
// CHECK:           %r_2 = arith.addf %c, %r_1
// CHECK-NEXT:      scf.yield %r_2, %last_1
tile.kernel @six(%x: memref<16x96xf32>, %w: memref<96x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, stages = 2, copy = cp_async, promotion_interval = 2>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %b0 = tile.stage_async %w[d0 + %c0 * 16, d1] by #acc : memref<96x16xf32> -> tensor<16x16xf32, #side>
  tile.commit
  %r, %last = scf.for %k = %c0 to %c6 step %c1 iter_args(%c = %zero, %b = %b0) -> (tensor<16x16xf32, #acc>, tensor<16x16xf32, #side>) {
    %bs = tile.await %b pending 0 : tensor<16x16xf32, #side>
    %next = arith.addi %k, %c1 : index
    %more = payload.cmp lt %next, %c6 : index
    %b1 = tile.stage_async %w[d0 + %next * 16, d1] if %more by #acc : memref<96x16xf32> -> tensor<16x16xf32, #side>
    tile.commit
    %a = tile.load %x[d0, d1 + %k * 16] : memref<16x96xf32> -> tensor<16x16xf32, #acc>
    %as = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #up>
    %n = tile.dot %as, %bs, %c : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
    scf.yield %n, %b1 : tensor<16x16xf32, #acc>, tensor<16x16xf32, #side>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// Seven chunks are three times two and one. The accumulators wait in shared memory; what they start as is put there.
// CHECK-LABEL: @shared
// CHECK:         %sums = tile.row_buffer : !tile.row_buffer<1 of tensor<16x16xf32>>
// CHECK:         tile.row_buffer_store %a, %sums[%{{.*}}]
// CHECK-NEXT:    scf.for %first = %c0 to %c7 step %{{.*}} {
// CHECK:           [[NEXT:%.*]] = arith.addi %first
// CHECK-NEXT:      %end = arith.minsi [[NEXT]], %c7 : index
// CHECK-NEXT:      [[PART:%.*]] = scf.for %k = %first to %end step %c1 iter_args(%c = %{{.*}})
// CHECK:           [[OLD:%.*]] = tile.row_buffer_load %sums
// CHECK-NEXT:      [[SUM:%.*]] = arith.addf [[OLD]], [[PART]]
// CHECK:           tile.row_buffer_store [[SUM]], %sums
// CHECK:         [[ALL:%.*]] = tile.row_buffer_load %sums
// CHECK-NEXT:    tile.store [[ALL]], %y
tile.kernel @shared(%x: memref<16x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, promotion_interval = 2, promotion_memory = shared>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %a = tile.load %x[d0, d1] : memref<16x16xf32> -> tensor<16x16xf32, #acc>
  %as = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #up>
  %bs = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #side>
  %r = scf.for %k = %c0 to %c7 step %c1 iter_args(%c = %a) -> (tensor<16x16xf32, #acc>) {
    %n = tile.dot %as, %bs, %c : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
    scf.yield %n : tensor<16x16xf32, #acc>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// Dots that follow each other are one partial sum, and start at zero. Nothing is added to what starts at zero anyway.
// CHECK-LABEL: @chain
// CHECK:         %first = tile.dot %as, %bs, %zero
// CHECK:         [[NONE:%.*]] = payload.constant 0.000000e+00
// CHECK-NEXT:    %n = tile.dot %as, %bs, [[NONE]]
// CHECK-NEXT:    %m = tile.dot %as, %bs, %n
// CHECK-NEXT:    %m_1 = arith.addf %scaled, %m
// CHECK-NEXT:    scf.yield %m_1
tile.kernel @chain(%x: memref<16x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, promotion_interval = 1>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %a = tile.load %x[d0, d1] : memref<16x16xf32> -> tensor<16x16xf32, #acc>
  %as = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #up>
  %bs = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #side>
  %first = tile.dot %as, %bs, %zero : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
  %r = scf.for %k = %c0 to %c7 step %c1 iter_args(%c = %first) -> (tensor<16x16xf32, #acc>) {
    %scaled = arith.mulf %c, %a : tensor<16x16xf32, #acc>
    %n = tile.dot %as, %bs, %scaled : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
    %m = tile.dot %as, %bs, %n : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
    scf.yield %m : tensor<16x16xf32, #acc>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// Two iterations of the outer loop, of three chunks each, are a partial sum of six.
// CHECK-LABEL: @window
// CHECK:         scf.for %first = %c0 to %c7 step %{{.*}} iter_args(%c = %zero)
// CHECK:           scf.for %i = %first to %end step %c1 iter_args(%c_1 = %zero)
// CHECK-NEXT:        %s = scf.for %j = %c0 to %c3 step %c1 iter_args(%d = %c_1)
// CHECK:           arith.addf %c, %r
tile.kernel @window(%x: memref<16x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, promotion_interval = 6>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %a = tile.load %x[d0, d1] : memref<16x16xf32> -> tensor<16x16xf32, #acc>
  %as = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #up>
  %bs = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #side>
  %r = scf.for %i = %c0 to %c7 step %c1 iter_args(%c = %zero) -> (tensor<16x16xf32, #acc>) {
    %s = scf.for %j = %c0 to %c3 step %c1 iter_args(%d = %c) -> (tensor<16x16xf32, #acc>) {
      %n = tile.dot %as, %bs, %d : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
      scf.yield %n : tensor<16x16xf32, #acc>
    }
    scf.yield %s : tensor<16x16xf32, #acc>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// Where the inner loop alone is longer, it is divided.
// CHECK-LABEL: @rows
// CHECK:         scf.for %i = %c0 to %c3 step %c1 iter_args(%c = %zero)
// CHECK:           scf.for %first = %c0 to %c7 step %{{.*}} iter_args(%d = %c)
// CHECK:             scf.for %j = %first to %end step %c1 iter_args(%d_1 = %{{.*}})
// CHECK:             arith.addf %d, %s
tile.kernel @rows(%x: memref<16x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, promotion_interval = 4>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %a = tile.load %x[d0, d1] : memref<16x16xf32> -> tensor<16x16xf32, #acc>
  %as = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #up>
  %bs = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #side>
  %r = scf.for %i = %c0 to %c3 step %c1 iter_args(%c = %zero) -> (tensor<16x16xf32, #acc>) {
    %s = scf.for %j = %c0 to %c7 step %c1 iter_args(%d = %c) -> (tensor<16x16xf32, #acc>) {
      %n = tile.dot %as, %bs, %d : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
      scf.yield %n : tensor<16x16xf32, #acc>
    }
    scf.yield %s : tensor<16x16xf32, #acc>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// A sum of seven chunks is one partial sum, and nothing is done.
// CHECK-LABEL: @short
// CHECK-COUNT-1: scf.for
// CHECK-NOT:     arith.addf
tile.kernel @short(%x: memref<16x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, promotion_interval = 7>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %a = tile.load %x[d0, d1] : memref<16x16xf32> -> tensor<16x16xf32, #acc>
  %as = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #up>
  %bs = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #side>
  %r = scf.for %k = %c0 to %c7 step %c1 iter_args(%c = %zero) -> (tensor<16x16xf32, #acc>) {
    %n = tile.dot %as, %bs, %c : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
    scf.yield %n : tensor<16x16xf32, #acc>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [0, 2], [1, 0]], lane = [[0, 4], [0, 8], [2, 0], [4, 0], [8, 0]], warp = []>
#up = #tile.shared<offset = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2], [0, 4], [0, 8]]>
#side = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>

// CHECK: remark: [tile-promote-sums] scf.for: its loop has a step that is computed
// CHECK-LABEL: @computed
// CHECK-NOT:     arith.addf
tile.kernel @computed(%x: memref<16x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [16], warps = 1, promotion_interval = 2>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32, #acc>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %a = tile.load %x[d0, d1] : memref<16x16xf32> -> tensor<16x16xf32, #acc>
  %as = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #up>
  %bs = tile.stage %a : tensor<16x16xf32, #acc> -> tensor<16x16xf32, #side>
  %step = arith.muli %c1, %c1 : index
  %r = scf.for %k = %c0 to %c7 step %step iter_args(%c = %zero) -> (tensor<16x16xf32, #acc>) {
    %n = tile.dot %as, %bs, %c : tensor<16x16xf32, #up>, tensor<16x16xf32, #side>, tensor<16x16xf32, #acc> -> tensor<16x16xf32, #acc>
    scf.yield %n : tensor<16x16xf32, #acc>
  }
  tile.store %r, %y[d0, d1] : tensor<16x16xf32, #acc>, memref<16x16xf32>
}
