// RUN: %roundtrip

#a = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]>

// CHECK-LABEL: tile.kernel @partitions
// CHECK-NEXT:    %r = tile.ring : !tile.ring<2 of tensor<8x16xbf16, #shared>>
// CHECK-NEXT:    tile.warp_specialize {
// CHECK-NEXT:      %a = tile.consumer_wait %r : !tile.ring<2 of tensor<8x16xbf16, #shared>>
// CHECK-NEXT:      tile.consumer_release %r : !tile.ring<2 of tensor<8x16xbf16, #shared>>
// CHECK-NEXT:    } producer warps 4 registers [232, 40] {
// CHECK-NEXT:      %b = tile.tma_load %x[d0 + %i * 8, d1] : memref<16x16xbf16> -> tensor<8x16xbf16, #shared>
// CHECK-NEXT:      tile.producer_load %r, %b : !tile.ring<2 of tensor<8x16xbf16, #shared>>
// CHECK-NEXT:    }
tile.kernel @partitions(%x: memref<16x16xbf16>) blocks (%i) in [2] warps 8 {
  %r = tile.ring : !tile.ring<2 of tensor<8x16xbf16, #a>>
  tile.warp_specialize {
    %a = tile.consumer_wait %r : !tile.ring<2 of tensor<8x16xbf16, #a>>
    tile.consumer_release %r : !tile.ring<2 of tensor<8x16xbf16, #a>>
  } producer warps 4 registers [232, 40] {
    %b = tile.tma_load %x[d0 + %i * 8, d1]
      : memref<16x16xbf16> -> tensor<8x16xbf16, #a>
    tile.producer_load %r, %b : !tile.ring<2 of tensor<8x16xbf16, #a>>
  }
}

// A slot that is given back an iteration later.
// CHECK-LABEL: tile.kernel @late
// CHECK:         tile.consumer_release %r pending 1 if %more : !tile.ring<2 of tensor<8x16xbf16, #shared>>
// CHECK-NEXT:    tile.consumer_release %r if %more : !tile.ring<2 of tensor<8x16xbf16, #shared>>
tile.kernel @late(%x: memref<16x16xbf16>) blocks (%i) in [2] warps 4 {
  %r = tile.ring : !tile.ring<2 of tensor<8x16xbf16, #a>>
  %more = payload.cmp ne %i, %i : index
  tile.consumer_release %r pending 1 if %more : !tile.ring<2 of tensor<8x16xbf16, #a>>
  tile.consumer_release %r if %more : !tile.ring<2 of tensor<8x16xbf16, #a>>
}

// CHECK-LABEL: tile.kernel @plain
// CHECK:         tile.warp_specialize {
// CHECK-NEXT:    } producer warps 1 {
// CHECK-NEXT:    }
tile.kernel @plain(%x: memref<16x16xbf16>) blocks () in [] warps 4 {
  tile.warp_specialize {
  } producer warps 1 {
  }
}
