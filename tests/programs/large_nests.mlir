// product with a bias, bf16
func.func @main(%x: tensor<128x96xbf16>, %w: tensor<192x96xbf16>, %c: tensor<192xbf16>) -> tensor<128x192xbf16> {
  %0 = loop.nest (%i, %j) in [128, 192] -> tensor<128x192xbf16> {
    %1 = loop.reduce add (%k) in [96] -> f32 {
      %2 = loop.load %x[%i, %k] : tensor<128x96xbf16>
      %3 = payload.cast %2 : bf16 -> f32
      %4 = loop.load %w[%j, %k] : tensor<192x96xbf16>
      %5 = payload.cast %4 : bf16 -> f32
      %6 = arith.mulf %3, %5 : f32
      loop.yield %6 : f32
    }
    %7 = loop.load %c[%j] : tensor<192xbf16>
    %8 = payload.cast %7 : bf16 -> f32
    %9 = arith.addf %1, %8 : f32
    %10 = payload.cast %9 : f32 -> bf16
    %11 = payload.cast %10 : bf16 -> f32
    %12 = payload.constant 0.000000e+00 : f32
    %13 = arith.maximumf %11, %12 : f32
    %14 = payload.cast %13 : f32 -> bf16
    loop.yield %14 : bf16
  }
  func.return %0 : tensor<128x192xbf16>
}
// -----
// product of columns, f16
func.func @main(%x: tensor<128x128xf16>, %w: tensor<128x64xf16>) -> tensor<128x64xf16> {
  %0 = loop.nest (%i, %j) in [128, 64] -> tensor<128x64xf16> {
    %1 = loop.reduce add (%k) in [128] -> f32 {
      %2 = loop.load %x[%k, %i] : tensor<128x128xf16>
      %3 = payload.cast %2 : f16 -> f32
      %4 = loop.load %w[%k, %j] : tensor<128x64xf16>
      %5 = payload.cast %4 : f16 -> f32
      %6 = arith.mulf %3, %5 : f32
      loop.yield %6 : f32
    }
    %7 = payload.cast %1 : f32 -> f16
    loop.yield %7 : f16
  }
  func.return %0 : tensor<128x64xf16>
}
// -----
// products of a batch, bf16
func.func @main(%x: tensor<2x100x64xbf16>, %w: tensor<2x64x72xbf16>) -> tensor<2x100x72xbf16> {
  %0 = loop.nest (%i, %j, %m) in [2, 100, 72] -> tensor<2x100x72xbf16> {
    %1 = loop.reduce add (%k) in [64] -> f32 {
      %2 = loop.load %x[%i, %j, %k] : tensor<2x100x64xbf16>
      %3 = payload.cast %2 : bf16 -> f32
      %4 = loop.load %w[%i, %k, %m] : tensor<2x64x72xbf16>
      %5 = payload.cast %4 : bf16 -> f32
      %6 = arith.mulf %3, %5 : f32
      loop.yield %6 : f32
    }
    %7 = payload.cast %1 : f32 -> bf16
    loop.yield %7 : bf16
  }
  func.return %0 : tensor<2x100x72xbf16>
}
// -----
// gated product, bf16
func.func @main(%x: tensor<64x128xbf16>, %g: tensor<128x128xbf16>, %u: tensor<128x128xbf16>) -> tensor<64x128xbf16> {
  %0 = loop.nest (%i, %j) in [64, 128] -> tensor<64x128xbf16> {
    %1 = payload.constant 1.000000e+00 : f32
    %2, %3 = loop.staged_reduce -> f32, f32 stages {
      %4 = loop.reduce add (%k) in [128] -> f32 {
        %5 = loop.load %x[%i, %k] : tensor<64x128xbf16>
        %6 = payload.cast %5 : bf16 -> f32
        %7 = loop.load %g[%j, %k] : tensor<128x128xbf16>
        %8 = payload.cast %7 : bf16 -> f32
        %9 = arith.mulf %6, %8 : f32
        loop.yield %9 : f32
      }
      %10 = loop.reduce add (%k_1) in [128] -> f32 {
        %11 = loop.load %x[%i, %k_1] : tensor<64x128xbf16>
        %12 = payload.cast %11 : bf16 -> f32
        %13 = loop.load %u[%j, %k_1] : tensor<128x128xbf16>
        %14 = payload.cast %13 : bf16 -> f32
        %15 = arith.mulf %12, %14 : f32
        loop.yield %15 : f32
      }
      loop.yield %4, %10 : f32, f32
    } rescale (%16: f32, %17: f32, %18: f32, %19: f32) {
      loop.yield %16, %17 : f32, f32
    }
    %20 = payload.cast %2 : f32 -> bf16
    %21 = payload.cast %20 : bf16 -> f32
    %22 = arith.negf %21 : f32
    %23 = math.exp %22 : f32
    %24 = arith.addf %23, %1 : f32
    %25 = arith.divf %21, %24 : f32
    %26 = payload.cast %25 : f32 -> bf16
    %27 = payload.cast %26 : bf16 -> f32
    %28 = payload.cast %3 : f32 -> bf16
    %29 = payload.cast %28 : bf16 -> f32
    %30 = arith.mulf %27, %29 : f32
    %31 = payload.cast %30 : f32 -> bf16
    loop.yield %31 : bf16
  }
  func.return %0 : tensor<64x128xbf16>
}
// -----
// long causal attention, bf16
func.func @main(%q: tensor<1x2x128x32xbf16>, %k: tensor<1x2x128x32xbf16>, %v: tensor<1x2x128x32xbf16>) -> tensor<1x2x128x32xbf16> {
  %0 = loop.nest (%i, %j, %m, %n) in [1, 2, 128, 32] -> tensor<1x2x128x32xbf16> {
    %1 = payload.cast %m : index -> i64
    %2 = payload.constant 0.176776692 : f32
    %3 = payload.constant 0xff800000 : f32
    %4, %5, %6 = loop.staged_reduce -> f32, f32, f32 stages {
      %7 = loop.reduce max (%k_1) in [128] -> f32 {
        %8 = payload.cast %k_1 : index -> i64
        %9 = payload.cmp le %8, %1 : i64
        %10 = loop.reduce add (%k_2) in [32] -> f32 {
          %11 = loop.load %q[0, %j, %m, %k_2] : tensor<1x2x128x32xbf16>
          %12 = payload.cast %11 : bf16 -> f32
          %13 = loop.load %k[0, %j, %k_1, %k_2] : tensor<1x2x128x32xbf16>
          %14 = payload.cast %13 : bf16 -> f32
          %15 = arith.mulf %12, %14 : f32
          loop.yield %15 : f32
        }
        %16 = arith.mulf %10, %2 : f32
        %17 = payload.select %9, %16, %3 : f32
        loop.yield %17 : f32
      }
      %18 = payload.cmp eq %7, %3 : f32
      %19 = payload.constant 0.000000e+00 : f32
      %20 = payload.select %18, %19, %7 : f32
      %21 = loop.reduce add (%k_3) in [128] -> f32 {
        %22 = payload.cast %k_3 : index -> i64
        %23 = payload.cmp le %22, %1 : i64
        %24 = loop.reduce add (%k_4) in [32] -> f32 {
          %25 = loop.load %q[0, %j, %m, %k_4] : tensor<1x2x128x32xbf16>
          %26 = payload.cast %25 : bf16 -> f32
          %27 = loop.load %k[0, %j, %k_3, %k_4] : tensor<1x2x128x32xbf16>
          %28 = payload.cast %27 : bf16 -> f32
          %29 = arith.mulf %26, %28 : f32
          loop.yield %29 : f32
        }
        %30 = arith.mulf %24, %2 : f32
        %31 = payload.select %23, %30, %3 : f32
        %32 = arith.subf %31, %20 : f32
        %33 = math.exp %32 : f32
        %34 = payload.cast %33 reassoc : f32 -> bf16
        %35 = payload.cast %34 : bf16 -> f32
        %36 = loop.load %v[0, %j, %k_3, %n] : tensor<1x2x128x32xbf16>
        %37 = payload.cast %36 : bf16 -> f32
        %38 = arith.mulf %35, %37 : f32
        loop.yield %38 : f32
      }
      %39 = loop.reduce add (%k_5) in [128] -> f32 {
        %40 = payload.cast %k_5 : index -> i64
        %41 = payload.cmp le %40, %1 : i64
        %42 = loop.reduce add (%k_6) in [32] -> f32 {
          %43 = loop.load %q[0, %j, %m, %k_6] : tensor<1x2x128x32xbf16>
          %44 = payload.cast %43 : bf16 -> f32
          %45 = loop.load %k[0, %j, %k_5, %k_6] : tensor<1x2x128x32xbf16>
          %46 = payload.cast %45 : bf16 -> f32
          %47 = arith.mulf %44, %46 : f32
          loop.yield %47 : f32
        }
        %48 = arith.mulf %42, %2 : f32
        %49 = payload.select %41, %48, %3 : f32
        %50 = arith.subf %49, %20 : f32
        %51 = math.exp %50 : f32
        loop.yield %51 : f32
      }
      loop.yield %7, %21, %39 : f32, f32, f32
    } rescale (%52: f32, %53: f32, %54: f32, %55: f32, %56: f32, %57: f32) {
      %58 = payload.cmp eq %52, %3 : f32
      %59 = payload.constant 0.000000e+00 : f32
      %60 = arith.subf %52, %55 : f32
      %61 = math.exp %60 : f32
      %62 = payload.select %58, %59, %61 : f32
      %63 = arith.mulf %53, %62 : f32
      %64 = arith.mulf %54, %62 : f32
      loop.yield %52, %63, %64 : f32, f32, f32
    }
    %65 = arith.divf %5, %6 : f32
    %66 = payload.cast %65 : f32 -> bf16
    loop.yield %66 : bf16
  }
  func.return %0 : tensor<1x2x128x32xbf16>
}
// -----
// grouped attention, f16
func.func @main(%q: tensor<1x4x64x32xf16>, %k: tensor<1x2x128x32xf16>, %v: tensor<1x2x128x32xf16>) -> tensor<1x4x64x32xf16> {
  %0 = loop.nest (%i, %jo, %ji, %m, %n) in [1, 2, 2, 64, 32] to [%i, %jo * 2 + %ji, %m, %n] -> tensor<1x4x64x32xf16> {
    %1 = payload.constant 0.176776692 : f32
    %2, %3, %4 = loop.staged_reduce -> f32, f32, f32 stages {
      %5 = loop.reduce max (%k_1) in [128] -> f32 {
        %6 = loop.reduce add (%k_2) in [32] -> f32 {
          %7 = loop.load %q[0, %jo * 2 + %ji, %m, %k_2] : tensor<1x4x64x32xf16>
          %8 = payload.cast %7 : f16 -> f32
          %9 = loop.load %k[0, %jo, %k_1, %k_2] : tensor<1x2x128x32xf16>
          %10 = payload.cast %9 : f16 -> f32
          %11 = arith.mulf %8, %10 : f32
          loop.yield %11 : f32
        }
        %12 = arith.mulf %6, %1 : f32
        loop.yield %12 : f32
      }
      %13 = payload.constant 0xff800000 : f32
      %14 = payload.cmp eq %5, %13 : f32
      %15 = payload.constant 0.000000e+00 : f32
      %16 = payload.select %14, %15, %5 : f32
      %17 = loop.reduce add (%k_3) in [128] -> f32 {
        %18 = loop.reduce add (%k_4) in [32] -> f32 {
          %19 = loop.load %q[0, %jo * 2 + %ji, %m, %k_4] : tensor<1x4x64x32xf16>
          %20 = payload.cast %19 : f16 -> f32
          %21 = loop.load %k[0, %jo, %k_3, %k_4] : tensor<1x2x128x32xf16>
          %22 = payload.cast %21 : f16 -> f32
          %23 = arith.mulf %20, %22 : f32
          loop.yield %23 : f32
        }
        %24 = arith.mulf %18, %1 : f32
        %25 = arith.subf %24, %16 : f32
        %26 = math.exp %25 : f32
        %27 = payload.cast %26 reassoc : f32 -> f16
        %28 = payload.cast %27 : f16 -> f32
        %29 = loop.load %v[0, %jo, %k_3, %n] : tensor<1x2x128x32xf16>
        %30 = payload.cast %29 : f16 -> f32
        %31 = arith.mulf %28, %30 : f32
        loop.yield %31 : f32
      }
      %32 = loop.reduce add (%k_5) in [128] -> f32 {
        %33 = loop.reduce add (%k_6) in [32] -> f32 {
          %34 = loop.load %q[0, %jo * 2 + %ji, %m, %k_6] : tensor<1x4x64x32xf16>
          %35 = payload.cast %34 : f16 -> f32
          %36 = loop.load %k[0, %jo, %k_5, %k_6] : tensor<1x2x128x32xf16>
          %37 = payload.cast %36 : f16 -> f32
          %38 = arith.mulf %35, %37 : f32
          loop.yield %38 : f32
        }
        %39 = arith.mulf %33, %1 : f32
        %40 = arith.subf %39, %16 : f32
        %41 = math.exp %40 : f32
        loop.yield %41 : f32
      }
      loop.yield %5, %17, %32 : f32, f32, f32
    } rescale (%42: f32, %43: f32, %44: f32, %45: f32, %46: f32, %47: f32) {
      %48 = payload.constant 0xff800000 : f32
      %49 = payload.cmp eq %42, %48 : f32
      %50 = payload.constant 0.000000e+00 : f32
      %51 = arith.subf %42, %45 : f32
      %52 = math.exp %51 : f32
      %53 = payload.select %49, %50, %52 : f32
      %54 = arith.mulf %43, %53 : f32
      %55 = arith.mulf %44, %53 : f32
      loop.yield %42, %54, %55 : f32, f32, f32
    }
    %56 = arith.divf %3, %4 : f32
    %57 = payload.cast %56 : f32 -> f16
    loop.yield %57 : f16
  }
  func.return %0 : tensor<1x4x64x32xf16>
}
// -----
// large product of f32
func.func @main(%x: tensor<128x64xf32>, %w: tensor<64x64xf32>) -> tensor<128x64xf32> {
  %0 = loop.nest (%i, %j) in [128, 64] -> tensor<128x64xf32> {
    %1 = loop.reduce add (%k) in [64] -> f32 {
      %2 = loop.load %x[%i, %k] : tensor<128x64xf32>
      %3 = loop.load %w[%j, %k] : tensor<64x64xf32>
      %4 = arith.mulf %2, %3 : f32
      loop.yield %4 : f32
    }
    loop.yield %1 : f32
  }
  func.return %0 : tensor<128x64xf32>
}
// -----
// long softmax
func.func @main(%x: tensor<3x4096xf32>) -> tensor<3x4096xf32> {
  %0 = loop.nest (%i, %j) in [3, 4096] -> tensor<3x4096xf32> {
    %1 = loop.load %x[%i, %j] : tensor<3x4096xf32>
    %2, %3 = loop.staged_reduce -> f32, f32 stages {
      %4 = loop.reduce max (%k) in [4096] -> f32 {
        %5 = loop.load %x[%i, %k] : tensor<3x4096xf32>
        loop.yield %5 : f32
      }
      %6 = payload.constant 0xff800000 : f32
      %7 = payload.cmp eq %4, %6 : f32
      %8 = payload.constant 0.000000e+00 : f32
      %9 = payload.select %7, %8, %4 : f32
      %10 = loop.reduce add (%k_1) in [4096] -> f32 {
        %11 = loop.load %x[%i, %k_1] : tensor<3x4096xf32>
        %12 = arith.subf %11, %9 : f32
        %13 = math.exp %12 : f32
        loop.yield %13 : f32
      }
      loop.yield %4, %10 : f32, f32
    } rescale (%14: f32, %15: f32, %16: f32, %17: f32) {
      %18 = payload.constant 0xff800000 : f32
      %19 = payload.cmp eq %14, %18 : f32
      %20 = payload.constant 0.000000e+00 : f32
      %21 = arith.subf %14, %16 : f32
      %22 = math.exp %21 : f32
      %23 = payload.select %19, %20, %22 : f32
      %24 = arith.mulf %15, %23 : f32
      loop.yield %14, %24 : f32, f32
    }
    %25 = arith.subf %1, %2 : f32
    %26 = math.exp %25 : f32
    %27 = arith.divf %26, %3 : f32
    loop.yield %27 : f32
  }
  func.return %0 : tensor<3x4096xf32>
}
// -----
// long norm, bf16
func.func @main(%x: tensor<3x2048xbf16>, %w: tensor<2048xbf16>) -> tensor<3x2048xbf16> {
  %0 = loop.nest (%i, %j) in [3, 2048] -> tensor<3x2048xbf16> {
    %1 = loop.load %x[%i, %j] : tensor<3x2048xbf16>
    %2 = payload.cast %1 : bf16 -> f32
    %3 = loop.reduce add (%k) in [2048] -> f32 {
      %4 = loop.load %x[%i, %k] : tensor<3x2048xbf16>
      %5 = payload.cast %4 : bf16 -> f32
      %6 = arith.mulf %5, %5 : f32
      loop.yield %6 : f32
    }
    %7 = payload.constant 2.048000e+03 : f32
    %8 = arith.divf %3, %7 : f32
    %9 = payload.constant 1.1920929e-07 : f32
    %10 = arith.addf %8, %9 : f32
    %11 = math.rsqrt %10 : f32
    %12 = arith.mulf %2, %11 : f32
    %13 = loop.load %w[%j] : tensor<2048xbf16>
    %14 = payload.cast %13 : bf16 -> f32
    %15 = arith.mulf %12, %14 : f32
    %16 = payload.cast %15 : f32 -> bf16
    loop.yield %16 : bf16
  }
  func.return %0 : tensor<3x2048xbf16>
}
