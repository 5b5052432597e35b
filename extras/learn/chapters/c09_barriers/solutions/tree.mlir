kernel.func @k0(%x: memref<256xf32>, %y: memref<4xf32>) grid [4] warps 2 shared 256 {
  %block = kernel.id block
  %thread = kernel.id thread
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %6 = payload.constant 6 : index
  %32 = payload.constant 32 : index
  %64 = payload.constant 64 : index
  %start = arith.muli %block, %64 : index
  %at = arith.addi %start, %thread : index
  %s = kernel.shared at 0 : memref<64xf32, "shared">
  %v = kernel.load %x[%at] : memref<256xf32> -> vector<1xf32>
  kernel.store %v, %s[%thread] : memref<64xf32, "shared">, vector<1xf32>
  scf.for %step = %0 to %6 step %1 {
    kernel.barrier
    %stride = arith.shrui %32, %step : index
    %active = payload.cmp lt %thread, %stride : index
    %partner = arith.addi %thread, %stride : index
    scf.if %active {
      %a = kernel.load %s[%thread] : memref<64xf32, "shared"> -> vector<1xf32>
      %b = kernel.load %s[%partner] : memref<64xf32, "shared"> -> vector<1xf32>
      %c = arith.addf %a, %b : vector<1xf32>
      kernel.store %c, %s[%thread] : memref<64xf32, "shared">, vector<1xf32>
    }
  }
  kernel.barrier
  %sum = kernel.load %s[%0] : memref<64xf32, "shared"> -> vector<1xf32>
  %first = payload.cmp eq %thread, %0 : index
  kernel.store %sum, %y[%block] if %first : memref<4xf32>, vector<1xf32>
}
func.func @main(%x: memref<256xf32>, %y: memref<4xf32>) {
  kernel.launch @k0(%x, %y) : memref<256xf32>, memref<4xf32>
  func.return
}
