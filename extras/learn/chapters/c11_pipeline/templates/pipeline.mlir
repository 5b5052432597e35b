// TODO: a pipeline of two stages: while one chunk is computed, the copies of the next one are outstanding.
// So far each iteration starts its copies and waits for them at once. The result is right.
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

    %sum = scf.for %k = %c0 to %c8 step %c1 iter_args(%acc = %zero) -> (!C) {
      %x = tile.stage_async %a[d0, d1 + %k * 16] by #rows : !a -> !A
      %y = tile.stage_async %b[d0 + %k * 16, d1] by #columns : !b -> !B
      tile.commit
      %x_here, %y_here = tile.await %x, %y pending 0 : !A, !B
      %new = tile.dot %x_here, %y_here, %acc atom "mma" : !A, !B, !C -> !C
      scf.yield %new : !C
    }
    tile.store %sum, %out[d0, d1] : !C, memref<64x64xf32>
  }
  func.func @main(%a: tensor<64x128xf16>, %b: tensor<128x64xf16>) -> tensor<64x64xf32> {
    %0 = tile.launch @matmul(%a, %b) : (tensor<64x128xf16>, tensor<128x64xf16>) -> tensor<64x64xf32>
    func.return %0 : tensor<64x64xf32>
  }
}
