// Each block of 64 threads reverses 64 elements. Thread 0 writes place 0 of %s, and reads place 63, which thread 63 writes.
// ... Insert the barrier.
kernel.func @k0(%x: memref<256xf32>, %y: memref<256xf32>) grid [4] warps 2 shared 256 {
  %block = kernel.id block
  %thread = kernel.id thread
  %64 = payload.constant 64 : index
  %63 = payload.constant 63 : index
  %start = arith.muli %block, %64 : index
  %at = arith.addi %start, %thread : index
  %other = arith.subi %63, %thread : index
  %s = kernel.shared at 0 : memref<64xf32, "shared">
  %v = kernel.load %x[%at] : memref<256xf32> -> vector<1xf32>
  kernel.store %v, %s[%thread] : memref<64xf32, "shared">, vector<1xf32>
  %w = kernel.load %s[%other] : memref<64xf32, "shared"> -> vector<1xf32>
  kernel.store %w, %y[%at] : memref<256xf32>, vector<1xf32>
}
func.func @main(%x: memref<256xf32>, %y: memref<256xf32>) {
  kernel.launch @k0(%x, %y) : memref<256xf32>, memref<256xf32>
  func.return
}
