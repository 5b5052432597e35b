// `--wrap` prints IR for a reader: long types have names, and no line is wider than 120 columns. Without it, and where
// the output is no terminal, types are inline and lines as long as they are.

// RUN: dl-opt %s --wrap | filecheck %s
// RUN: dl-opt %s | filecheck %s --check-prefix PLAIN
// RUN: dl-opt %s --wrap | dl-opt | filecheck %s --check-prefix PLAIN

// CHECK:      !t0 = tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32>
// CHECK:        func.func @main(%x: !t0, %a_value_with_a_name_that_fills_a_good_part_of_the_line: !t0,
// CHECK-NEXT: {{^ +}}%another_value_whose_name_is_long_as_well: !t0) -> !t0 {
// PLAIN:      func.func @main(%x: tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32>, %a_value_with_a_name_that_fills_a_good_part_of_the_line
// PLAIN-SAME: -> tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32> {
func.func @main(%x: tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32>,
    %a_value_with_a_name_that_fills_a_good_part_of_the_line: tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32>,
    %another_value_whose_name_is_long_as_well: tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32>)
    -> tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32> {
  func.return %x : tensor<1x2x3x4x5x6x7x8x9x10x11x12x13x14xf32>
}
