// judged: 16 barriers where 8 are enough
kernel.func @k0(%x: memref<1024xf32>, %y: memref<128xf32>) grid [2] warps 2 shared 512 {
  %block = kernel.id block
  %thread = kernel.id thread
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %8 = payload.constant 8 : index
  %63 = payload.constant 63 : index
  %64 = payload.constant 64 : index
  %512 = payload.constant 512 : index
  %zero = payload.constant 0.0 : vector<1xf32>
  %start = arith.muli %block, %512 : index
  %first = arith.addi %start, %thread : index
  %other = arith.subi %63, %thread : index
  %s = kernel.shared at 0 : memref<128xf32, "shared">
  %sum = scf.for %chunk = %0 to %8 step %1 iter_args(%acc = %zero) -> (vector<1xf32>) {
    %offset = arith.muli %chunk, %64 : index
    %at = arith.addi %first, %offset : index
    %v = kernel.load %x[%at] : memref<1024xf32> -> vector<1xf32>
    %slot = arith.andi %chunk, %1 : index
    %half = arith.muli %slot, %64 : index
    %mine = arith.addi %half, %thread : index
    %theirs = arith.addi %half, %other : index
    kernel.store %v, %s[%mine] : memref<128xf32, "shared">, vector<1xf32>
    kernel.barrier
    %w = kernel.load %s[%theirs] : memref<128xf32, "shared"> -> vector<1xf32>
    kernel.barrier
    %new = arith.addf %acc, %w : vector<1xf32>
    scf.yield %new : vector<1xf32>
  }
  %begin = arith.muli %block, %64 : index
  %place = arith.addi %begin, %thread : index
  kernel.store %sum, %y[%place] : memref<128xf32>, vector<1xf32>
}
func.func @main(%x: memref<1024xf32>, %y: memref<128xf32>) {
  kernel.launch @k0(%x, %y) : memref<1024xf32>, memref<128xf32>
  func.return
}
