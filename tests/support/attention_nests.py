"""The loop IR of attention: one nest with a staged reduction, as text."""

from __future__ import annotations

ATTENTION = """
func.func @main(%q: tensor<{m}x{d}xf32>, %kk: tensor<{n}x{d}xf32>, %vv: tensor<{n}x{e}xf32>) -> tensor<{m}x{e}xf32> {{
  %y = loop.nest (%i, %j) in [{m}, {e}] -> tensor<{m}x{e}xf32> {{
    %m, %l, %o = loop.staged_reduce -> f32, f32, f32 stages {{
      %m0 = loop.reduce max (%k) in [{n}] -> f32 {{
        {score}
        loop.yield %s : f32
      }}
      %l0 = loop.reduce add (%k) in [{n}] -> f32 {{
        {score}
        %d = arith.subf %s, %m0 : f32
        %p = math.exp %d : f32
        loop.yield %p : f32
      }}
      %o0 = loop.reduce add (%k) in [{n}] -> f32 {{
        {score}
        %d = arith.subf %s, %m0 : f32
        %p = math.exp %d : f32
        %v = loop.load %vv[%k, %j] : tensor<{n}x{e}xf32>
        %pv = arith.mulf %p, %v : f32
        loop.yield %pv : f32
      }}
      loop.yield %m0, %l0, %o0 : f32, f32, f32
    }} rescale (%om: f32, %ol: f32, %oo: f32, %nm: f32, %nl: f32, %no: f32) {{
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      %u = arith.mulf %oo, %s : f32
      loop.yield %om, %t, %u : f32, f32, f32
    }}
    %r = arith.divf %o, %l : f32
    loop.yield %r : f32
  }}
  func.return %y : tensor<{m}x{e}xf32>
}}
"""


SCORE = """
        %s = loop.reduce add (%c) in [{d}] -> f32 {{
          %a = loop.load %q[%i, %c] : tensor<{m}x{d}xf32>
          %b = loop.load %kk[%k, %c] : tensor<{n}x{d}xf32>
          %ab = arith.mulf %a, %b : f32
          loop.yield %ab : f32
        }}
"""


def attention(m: int, n: int, d: int, e: int) -> str:
    """Returns the IR of attention.

    Args:
        m: number of queries.
        n: number of keys.
        d: length of queries and keys.
        e: length of values.
    """
    return ATTENTION.format(m=m, n=n, d=d, e=e, score=SCORE.format(m=m, n=n, d=d))
