// judged: not all elements are exchanged through shared memory
kernel.func @k0(%x: memref<256xf32>, %y: memref<256xf32>) grid [4] warps 2 shared 128 {
  %block = kernel.id block
  %thread = kernel.id thread
  %31 = payload.constant 31 : index
  %32 = payload.constant 32 : index
  %64 = payload.constant 64 : index
  %start = arith.muli %block, %64 : index
  %at = arith.addi %start, %thread : index
  %s = kernel.shared at 0 : memref<32xf32, "shared">
  %v = kernel.load %x[%at] : memref<256xf32> -> vector<1xf32>
  %low = payload.cmp lt %thread, %32 : index
  scf.if %low {
    kernel.store %v, %s[%thread] : memref<32xf32, "shared">, vector<1xf32>
  }
  scf.if %low {
    %other = arith.subi %31, %thread : index
    %mirror = arith.addi %start, %other : index
    %w = kernel.load %x[%mirror] : memref<256xf32> -> vector<1xf32>
    kernel.store %w, %y[%at] : memref<256xf32>, vector<1xf32>
  }
  %high = payload.cmp ge %thread, %32 : index
  kernel.store %v, %y[%at] if %high : memref<256xf32>, vector<1xf32>
}
func.func @main(%x: memref<256xf32>, %y: memref<256xf32>) {
  kernel.launch @k0(%x, %y) : memref<256xf32>, memref<256xf32>
  func.return
}
