// softmax
func.func @main(%x: tensor<6x50xf32>) -> tensor<6x50xf32> {
  %y = loop.nest (%i, %j) in [6, 50] -> tensor<6x50xf32> {
    %m = loop.reduce max (%k) in [50] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<6x50xf32>
      loop.yield %a : f32
    }
    %s = loop.reduce add (%k) in [50] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<6x50xf32>
      %d = arith.subf %a, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    }
    %b = loop.load %x[%i, %j] : tensor<6x50xf32>
    %d = arith.subf %b, %m : f32
    %e = math.exp %d : f32
    %o = arith.divf %e, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<6x50xf32>
}
// -----
// relu_matmul
func.func @main(%x: tensor<37x45xf32>, %bias: tensor<45xf32>, %w: tensor<45x53xf32>) -> tensor<37x53xf32> {
  %y = loop.nest (%i, %j) in [37, 53] -> tensor<37x53xf32> {
    %acc = loop.reduce add (%k) in [45] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<37x45xf32>
      %b = loop.load %bias[%k] : tensor<45xf32>
      %c = arith.addf %a, %b : f32
      %d = loop.load %w[%k, %j] : tensor<45x53xf32>
      %p = arith.mulf %c, %d : f32
      loop.yield %p : f32
    }
    %z = payload.constant 0.0 : f32
    %r = arith.maximumf %acc, %z : f32
    loop.yield %r : f32
  }
  func.return %y : tensor<37x53xf32>
}
// -----
// attention
func.func @main(%q: tensor<2x10x12xf32>, %kk: tensor<2x13x12xf32>, %v: tensor<2x13x12xf32>) -> tensor<2x10x12xf32> {
  %y = loop.nest (%h, %i, %j) in [2, 10, 12] -> tensor<2x10x12xf32> {
    %m, %l, %o = loop.staged_reduce -> f32, f32, f32 stages {
      %m0 = loop.reduce max (%k) in [13] -> f32 {
        %s = loop.reduce add (%r) in [12] -> f32 {
          %a = loop.load %q[%h, %i, %r] : tensor<2x10x12xf32>
          %b = loop.load %kk[%h, %k, %r] : tensor<2x13x12xf32>
          %p = arith.mulf %a, %b : f32
          loop.yield %p : f32
        }
        loop.yield %s : f32
      }
      %l0 = loop.reduce add (%k) in [13] -> f32 {
        %s = loop.reduce add (%r) in [12] -> f32 {
          %a = loop.load %q[%h, %i, %r] : tensor<2x10x12xf32>
          %b = loop.load %kk[%h, %k, %r] : tensor<2x13x12xf32>
          %p = arith.mulf %a, %b : f32
          loop.yield %p : f32
        }
        %ninf = payload.constant 0xff800000 : f32
        %z = payload.constant 0.0 : f32
        %dead = payload.cmp eq %m0, %ninf : f32
        %g = payload.select %dead, %z, %m0 : f32
        %d = arith.subf %s, %g : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      %o0 = loop.reduce add (%k) in [13] -> f32 {
        %s = loop.reduce add (%r) in [12] -> f32 {
          %a = loop.load %q[%h, %i, %r] : tensor<2x10x12xf32>
          %b = loop.load %kk[%h, %k, %r] : tensor<2x13x12xf32>
          %p = arith.mulf %a, %b : f32
          loop.yield %p : f32
        }
        %ninf = payload.constant 0xff800000 : f32
        %z = payload.constant 0.0 : f32
        %dead = payload.cmp eq %m0, %ninf : f32
        %g = payload.select %dead, %z, %m0 : f32
        %d = arith.subf %s, %g : f32
        %e = math.exp %d : f32
        %vv = loop.load %v[%h, %k, %j] : tensor<2x13x12xf32>
        %p = arith.mulf %e, %vv : f32
        loop.yield %p : f32
      }
      loop.yield %m0, %l0, %o0 : f32, f32, f32
    } rescale (%om: f32, %ol: f32, %oo: f32, %nm: f32, %nl: f32, %no: f32) {
      %ninf = payload.constant 0xff800000 : f32
      %z = payload.constant 0.0 : f32
      %dead = payload.cmp eq %om, %ninf : f32
      %d = arith.subf %om, %nm : f32
      %s1 = math.exp %d : f32
      %s = payload.select %dead, %z, %s1 : f32
      %tl = arith.mulf %ol, %s : f32
      %to = arith.mulf %oo, %s : f32
      loop.yield %om, %tl, %to : f32, f32, f32
    }
    %f = arith.divf %o, %l : f32
    loop.yield %f : f32
  }
  func.return %y : tensor<2x10x12xf32>
}
// -----
// causal_attention
func.func @main(%q: tensor<2x10x12xf32>, %kk: tensor<2x13x12xf32>, %v: tensor<2x13x12xf32>) -> tensor<2x10x12xf32> {
  %y = loop.nest (%h, %i, %j) in [2, 10, 12] -> tensor<2x10x12xf32> {
    %m, %l, %o = loop.staged_reduce -> f32, f32, f32 stages {
      %m0 = loop.reduce max (%k) in [13] -> f32 {
        %s = loop.reduce add (%r) in [12] -> f32 {
          %a = loop.load %q[%h, %i, %r] : tensor<2x10x12xf32>
          %b = loop.load %kk[%h, %k, %r] : tensor<2x13x12xf32>
          %p = arith.mulf %a, %b : f32
          loop.yield %p : f32
        }
        %ii = payload.cast %i : index -> i64
        %ki = payload.cast %k : index -> i64
        %see = payload.cmp le %ki, %ii : i64
        %low = payload.constant 0xff800000 : f32
        %sm = payload.select %see, %s, %low : f32
        loop.yield %sm : f32
      }
      %l0 = loop.reduce add (%k) in [13] -> f32 {
        %s = loop.reduce add (%r) in [12] -> f32 {
          %a = loop.load %q[%h, %i, %r] : tensor<2x10x12xf32>
          %b = loop.load %kk[%h, %k, %r] : tensor<2x13x12xf32>
          %p = arith.mulf %a, %b : f32
          loop.yield %p : f32
        }
        %ninf = payload.constant 0xff800000 : f32
        %z = payload.constant 0.0 : f32
        %dead = payload.cmp eq %m0, %ninf : f32
        %g = payload.select %dead, %z, %m0 : f32
        %ii = payload.cast %i : index -> i64
        %ki = payload.cast %k : index -> i64
        %see = payload.cmp le %ki, %ii : i64
        %low = payload.constant 0xff800000 : f32
        %sm = payload.select %see, %s, %low : f32
        %d = arith.subf %sm, %g : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      %o0 = loop.reduce add (%k) in [13] -> f32 {
        %s = loop.reduce add (%r) in [12] -> f32 {
          %a = loop.load %q[%h, %i, %r] : tensor<2x10x12xf32>
          %b = loop.load %kk[%h, %k, %r] : tensor<2x13x12xf32>
          %p = arith.mulf %a, %b : f32
          loop.yield %p : f32
        }
        %ninf = payload.constant 0xff800000 : f32
        %z = payload.constant 0.0 : f32
        %dead = payload.cmp eq %m0, %ninf : f32
        %g = payload.select %dead, %z, %m0 : f32
        %ii = payload.cast %i : index -> i64
        %ki = payload.cast %k : index -> i64
        %see = payload.cmp le %ki, %ii : i64
        %low = payload.constant 0xff800000 : f32
        %sm = payload.select %see, %s, %low : f32
        %d = arith.subf %sm, %g : f32
        %e = math.exp %d : f32
        %vv = loop.load %v[%h, %k, %j] : tensor<2x13x12xf32>
        %p = arith.mulf %e, %vv : f32
        loop.yield %p : f32
      }
      loop.yield %m0, %l0, %o0 : f32, f32, f32
    } rescale (%om: f32, %ol: f32, %oo: f32, %nm: f32, %nl: f32, %no: f32) {
      %ninf = payload.constant 0xff800000 : f32
      %z = payload.constant 0.0 : f32
      %dead = payload.cmp eq %om, %ninf : f32
      %d = arith.subf %om, %nm : f32
      %s1 = math.exp %d : f32
      %s = payload.select %dead, %z, %s1 : f32
      %tl = arith.mulf %ol, %s : f32
      %to = arith.mulf %oo, %s : f32
      loop.yield %om, %tl, %to : f32, f32, f32
    }
    %f = arith.divf %o, %l : f32
    loop.yield %f : f32
  }
  func.return %y : tensor<2x10x12xf32>
}
// -----
// rms_norm
func.func @main(%x: tensor<5x70xf32>, %w: tensor<70xf32>) -> tensor<5x70xf32> {
  %y = loop.nest (%i, %j) in [5, 70] -> tensor<5x70xf32> {
    %s = loop.reduce add (%k) in [70] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<5x70xf32>
      %q = arith.mulf %a, %a : f32
      loop.yield %q : f32
    }
    %n = payload.constant 70.0 : f32
    %eps = payload.constant 1.0e-6 : f32
    %m = arith.divf %s, %n : f32
    %e = arith.addf %m, %eps : f32
    %r = math.rsqrt %e : f32
    %b = loop.load %x[%i, %j] : tensor<5x70xf32>
    %g = loop.load %w[%j] : tensor<70xf32>
    %c = arith.mulf %b, %r : f32
    %o = arith.mulf %c, %g : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<5x70xf32>
}
// -----
// rms_norm_matmul
func.func @main(%x: tensor<17x24xf32>, %w: tensor<9x24xf32>) -> tensor<17x9xf32> {
  %y = loop.nest (%i, %j) in [17, 9] -> tensor<17x9xf32> {
    %acc = loop.reduce add (%k) in [24] -> f32 {
      %s = loop.reduce add (%r) in [24] -> f32 {
        %a = loop.load %x[%i, %r] : tensor<17x24xf32>
        %q = arith.mulf %a, %a : f32
        loop.yield %q : f32
      }
      %t = math.rsqrt %s : f32
      %b = loop.load %x[%i, %k] : tensor<17x24xf32>
      %c = arith.mulf %b, %t : f32
      %v = loop.load %w[%j, %k] : tensor<9x24xf32>
      %p = arith.mulf %c, %v : f32
      loop.yield %p : f32
    }
    loop.yield %acc : f32
  }
  func.return %y : tensor<17x9xf32>
}
// -----
// layer_norm
func.func @main(%x: tensor<3x33xf32>) -> tensor<3x33xf32> {
  %y = loop.nest (%i, %j) in [3, 33] -> tensor<3x33xf32> {
    %n = payload.constant 33.0 : f32
    %s = loop.reduce add (%k) in [33] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<3x33xf32>
      loop.yield %a : f32
    }
    %m = arith.divf %s, %n : f32
    %v = loop.reduce add (%k) in [33] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<3x33xf32>
      %d = arith.subf %a, %m : f32
      %q = arith.mulf %d, %d : f32
      loop.yield %q : f32
    }
    %eps = payload.constant 1.0e-5 : f32
    %v1 = arith.addf %v, %eps : f32
    %b = loop.load %x[%i, %j] : tensor<3x33xf32>
    %d = arith.subf %b, %m : f32
    %r = math.rsqrt %v1 : f32
    %o = arith.mulf %d, %r : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<3x33xf32>
}
// -----
// gather
func.func @main(%t: tensor<7x11xf32>, %at: tensor<5xi64>, %x: tensor<5x11xf32>) -> (tensor<5x11xf32>, tensor<5x11xi1>) {
  %y, %b = loop.nest (%i, %j) in [5, 11] -> tensor<5x11xf32>, tensor<5x11xi1> {
    %n = loop.load %at[%i] : tensor<5xi64>
    %s = payload.cast %n : i64 -> index
    %z = payload.constant -1.0 : f32
    %a = loop.load %t[symbol(%s), 10 - %j] where 0 <= symbol(%s) < 7 else %z : tensor<7x11xf32>
    %c = loop.load %x[%i, %j] : tensor<5x11xf32>
    %d = arith.addf %a, %c : f32
    %less = payload.cmp lt %a, %c : f32
    loop.yield %d, %less : f32, i1
  }
  func.return %y, %b : tensor<5x11xf32>, tensor<5x11xi1>
}
// -----
// gather_inside_a_sum
func.func @main(%t: tensor<7x6xf32>, %at: tensor<4x9xi64>) -> tensor<4x6xf32> {
  %y = loop.nest (%i, %j) in [4, 6] -> tensor<4x6xf32> {
    %z = payload.constant 0.0 : f32
    %s = loop.reduce add (%k) in [9] -> f32 {
      %n = loop.load %at[%i, %k] : tensor<4x9xi64>
      %p = payload.cast %n : i64 -> index
      %a = loop.load %t[symbol(%p), %j] where 0 <= symbol(%p) < 7 else %z : tensor<7x6xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4x6xf32>
}
// -----
// pad_and_transpose
func.func @main(%x: tensor<9x5xf32>) -> tensor<8x11xf32> {
  %y = loop.nest (%i, %j) in [8, 11] -> tensor<8x11xf32> {
    %f = payload.constant 2.5 : f32
    %a = loop.load %x[%j - 1, %i - 2] where 0 <= %j - 1 < 9 and 0 <= %i - 2 < 5 else %f : tensor<9x5xf32>
    %b = math.exp %a : f32
    loop.yield %b : f32
  }
  func.return %y : tensor<8x11xf32>
}
// -----
// convolution
func.func @main(%x: tensor<3x9x10xf32>, %w: tensor<6x3x3x3xf32>) -> tensor<6x9x10xf32> {
  %y = loop.nest (%o, %i, %j) in [6, 9, 10] -> tensor<6x9x10xf32> {
    %f = payload.constant 0.0 : f32
    %s = loop.reduce add (%c, %p, %q) in [3, 3, 3] -> f32 {
      %a = loop.load %x[%c, %i + %p - 1, %j + %q - 1] where 0 <= %i + %p - 1 < 9 and 0 <= %j + %q - 1 < 10 else %f : tensor<3x9x10xf32>
      %b = loop.load %w[%o, %c, %p, %q] : tensor<6x3x3x3xf32>
      %m = arith.mulf %a, %b : f32
      loop.yield %m : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<6x9x10xf32>
}
// -----
// integers
func.func @main(%x: tensor<4x19xi64>) -> (tensor<4xi64>, tensor<4xi1>, tensor<4xi64>) {
  %y, %b, %m = loop.nest (%i) in [4] -> tensor<4xi64>, tensor<4xi1>, tensor<4xi64> {
    %s = loop.reduce add (%k) in [19] -> i64 {
      %a = loop.load %x[%i, %k] : tensor<4x19xi64>
      %j = payload.cast %k : index -> i64
      %p = arith.muli %a, %j : i64
      loop.yield %p : i64
    }
    %any = loop.reduce or (%k) in [19] -> i1 {
      %a = loop.load %x[%i, %k] : tensor<4x19xi64>
      %two = payload.constant 2 : i64
      %t = payload.cmp eq %a, %two : i64
      loop.yield %t : i1
    }
    %max = loop.reduce max (%k) in [19] -> i64 {
      %a = loop.load %x[%i, %k] : tensor<4x19xi64>
      loop.yield %a : i64
    }
    loop.yield %s, %any, %max : i64, i1, i64
  }
  func.return %y, %b, %m : tensor<4xi64>, tensor<4xi1>, tensor<4xi64>
}
// -----
// column_sums
func.func @main(%x: tensor<29x40xbf16>) -> tensor<40xbf16> {
  %y = loop.nest (%j) in [40] -> tensor<40xbf16> {
    %s = loop.reduce add (%k) in [29] -> f32 {
      %a = loop.load %x[%k, %j] : tensor<29x40xbf16>
      %b = payload.cast %a : bf16 -> f32
      loop.yield %b : f32
    }
    %c = payload.cast %s : f32 -> bf16
    loop.yield %c : bf16
  }
  func.return %y : tensor<40xbf16>
}
// -----
// sum_of_everything
func.func @main(%x: tensor<5x6xf32>) -> tensor<f32> {
  %y = loop.nest () in [] -> tensor<f32> {
    %s = loop.reduce add (%k, %l) in [5, 6] -> f32 {
      %a = loop.load %x[%k, %l] : tensor<5x6xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<f32>
}
// -----
// product_of_maxima
func.func @main(%x: tensor<6x7x5xf32>) -> tensor<6xf32> {
  %y = loop.nest (%i) in [6] -> tensor<6xf32> {
    %s = loop.reduce mul (%k) in [7] -> f32 {
      %m = loop.reduce max (%l) in [5] -> f32 {
        %a = loop.load %x[%i, %k, %l] : tensor<6x7x5xf32>
        loop.yield %a : f32
      }
      loop.yield %m : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<6xf32>
}
// -----
// empty
func.func @main(%x: tensor<3x0xf32>) -> (tensor<3xf32>, tensor<0xf32>) {
  %y = loop.nest (%i) in [3] -> tensor<3xf32> {
    %s = loop.reduce max (%k) in [0] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<3x0xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  %z = loop.nest (%i) in [0] -> tensor<0xf32> {
    %c = payload.constant 0 : index
    %a = loop.load %x[0, %i] : tensor<3x0xf32>
    loop.yield %a : f32
  }
  func.return %y, %z : tensor<3xf32>, tensor<0xf32>
}
// -----
// reshape
func.func @main(%x: tensor<4x6xf32>) -> tensor<3x8xf32> {
  %y = loop.nest (%i, %j) in [3, 8] -> tensor<3x8xf32> {
    %a = loop.load %x[(%i * 8 + %j) floordiv 6, (%i * 8 + %j) mod 6] : tensor<4x6xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<3x8xf32>
}
// -----
// logsumexp
func.func @main(%x: tensor<3x41xf32>) -> tensor<3xf32> {
  %y = loop.nest (%i) in [3] -> tensor<3xf32> {
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      %m0 = loop.reduce max (%k) in [41] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<3x41xf32>
        loop.yield %a : f32
      }
      %l0 = loop.reduce add (%k) in [41] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<3x41xf32>
        %d = arith.subf %a, %m0 : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      loop.yield %m0, %l0 : f32, f32
    } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      loop.yield %om, %t : f32, f32
    }
    %q = math.log %l : f32
    %o = arith.addf %q, %m : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<3xf32>
}
// -----
// swiglu
func.func @main(%x: tensor<18x20xf32>, %g: tensor<12x20xf32>, %u: tensor<12x20xf32>) -> tensor<18x12xf32> {
  %y = loop.nest (%i, %j) in [18, 12] -> tensor<18x12xf32> {
    %a = loop.reduce add (%k) in [20] -> f32 {
      %p = loop.load %x[%i, %k] : tensor<18x20xf32>
      %q = loop.load %g[%j, %k] : tensor<12x20xf32>
      %r = arith.mulf %p, %q : f32
      loop.yield %r : f32
    }
    %b = loop.reduce add (%k) in [20] -> f32 {
      %p = loop.load %x[%i, %k] : tensor<18x20xf32>
      %q = loop.load %u[%j, %k] : tensor<12x20xf32>
      %r = arith.mulf %p, %q : f32
      loop.yield %r : f32
    }
    %c = arith.mulf %a, %b : f32
    loop.yield %c : f32
  }
  func.return %y : tensor<18x12xf32>
}
// -----
// heads_merged
func.func @main(%x: tensor<3x5x7xf32>, %w: tensor<5x21xf32>) -> tensor<5x21xf32> {
  %y = loop.nest (%i, %h, %e) in [5, 3, 7] to [%i, %h * 7 + %e] -> tensor<5x21xf32> {
    %a = loop.load %x[%h, %i, %e] : tensor<3x5x7xf32>
    %b = loop.load %w[%i, %h * 7 + %e] : tensor<5x21xf32>
    %c = arith.subf %a, %b : f32
    loop.yield %c : f32
  }
  func.return %y : tensor<5x21xf32>
}
