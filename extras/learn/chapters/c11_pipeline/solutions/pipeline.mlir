// A pipeline of two stages: while one chunk is computed, the copies of the next one are outstanding.
// Layouts: who copies and who holds which element (chapter 8). Leave them as they are.
#sums = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [16, 0]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
                     warp = [[0, 32], [32, 0]]>
#rows = #tile.layout<reg = [[0, 1], [0, 2], [0, 4]], lane = [[0, 8], [1, 0], [2, 0], [4, 0], [8, 0]],
                     warp = [[16, 0], [32, 0]]>
#columns = #tile.layout<reg = [[0, 1], [0, 2], [0, 4]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]],
                        warp = [[4, 0], [8, 0]]>
#shared_a = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 8], [8, 0], [16, 0], [32, 0]]>
#shared_b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 32], [2, 16], [4, 8], [8, 0]]>

// Types: the arguments, a chunk of each in shared memory, and the sums in registers.
!a = memref<64x128xf16>
!b = memref<128x64xf16>
!A = tensor<64x16xf16, #shared_a>
!B = tensor<16x64xf16, #shared_b>
!C = tensor<64x64xf32, #sums>

builtin.module attributes {deplodock.target = #deplodock.target<sm_80>} {
  tile.kernel @matmul(%a: !a, %b: !b, %out: memref<64x64xf32>) blocks () in [] warps 4
      attributes {schedule = #tile.schedule<block = [64, 64], chunk = [16], warps = 4, stages = 2, atom = mma,
                                            copy = cp_async>} {
    %zero = payload.constant 0.000000e+00 : !C
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c8 = arith.constant 8 : index

    // The copies of chunk 0.
    %x0 = tile.stage_async %a[d0, d1 + %c0 * 16] by #rows : !a -> !A
    %y0 = tile.stage_async %b[d0 + %c0 * 16, d1] by #columns : !b -> !B
    tile.commit

    %sum, %x_last, %y_last = scf.for %k = %c0 to %c8 step %c1
        iter_args(%acc = %zero, %x = %x0, %y = %y0) -> (!C, !A, !B) {
      %x_here, %y_here = tile.await %x, %y pending 0 : !A, !B
      %next = arith.addi %k, %c1 : index
      %more = payload.cmp lt %next, %c8 : index
      %x_next = tile.stage_async %a[d0, d1 + %next * 16] if %more by #rows : !a -> !A
      %y_next = tile.stage_async %b[d0 + %next * 16, d1] if %more by #columns : !b -> !B
      tile.commit
      %new = tile.dot %x_here, %y_here, %acc atom "mma" : !A, !B, !C -> !C
      scf.yield %new, %x_next, %y_next : !C, !A, !B
    }
    tile.store %sum, %out[d0, d1] : !C, memref<64x64xf32>
  }
  func.func @main(%a: tensor<64x128xf16>, %b: tensor<128x64xf16>) -> tensor<64x64xf32> {
    %0 = tile.launch @matmul(%a, %b) : (tensor<64x128xf16>, tensor<128x64xf16>) -> tensor<64x64xf32>
    func.return %0 : tensor<64x64xf32>
  }
}
