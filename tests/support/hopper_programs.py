"""A hand-written matmul kernel for sm_90a as kernel IR: TMA tiles in a circular buffer, a producer, warpgroup matmuls.

The IR is text, so that a mutation test can plant a fault by replacing one line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gemm:
    """A kernel that computes C = A * B^T in bf16, in chunks of 64 along k.

    Attributes:
        m, n, k: sizes of the matmul.
        stages: number of stages of the circular buffer.
        groups: number of warpgroups. A block computes 64 * `groups` rows.
        columns: columns that a block computes.
        lag: whether a warpgroup starts a matmul before it waits for the previous one.
        staged: whether C is stored through shared memory by TMA.
        matrices: whether C is written to shared memory by `kernel.stmatrix`.
        persistent: whether a block computes all tiles of its column of tiles.
    """

    m: int = 128
    n: int = 128
    k: int = 192
    stages: int = 2
    groups: int = 1
    columns: int = 64
    lag: bool = False
    staged: bool = False
    matrices: bool = False
    persistent: bool = False

    @property
    def rows(self) -> int:
        """Number of rows that a block computes."""
        return 64 * self.groups

    @property
    def bars(self) -> str:
        """Type of the mbarriers of the circular buffer."""
        return f'memref<{self.stages}x!kernel.mbarrier, "shared">'

    @property
    def rings(self) -> tuple[str, str]:
        """Types of the circular buffers of A and B in shared memory."""
        a, b = (f'memref<{self.stages * x * 64}xbf16, "shared">' for x in (self.rows, self.columns))
        return a, b

    @property
    def maps(self) -> tuple[str, str]:
        """Types of the tensor maps of A and B."""
        a, b = (f"!kernel.tensor_map<{x}x64xbf16, swizzle 128>" for x in (self.rows, self.columns))
        return a, b

    @property
    def bounds(self) -> str:
        """Bounds and step of the loop over the tiles of a block, as IR text."""
        return "%block to %tiles step %across" if self.persistent else "%block to %end step %c1"

    def text(self) -> str:
        """Returns the IR of the module."""
        a, b, c = (f"memref<{x}x{y}xbf16>" for x, y in ((self.m, self.k), (self.n, self.k), (self.m, self.n)))
        across = self.n // self.columns
        grid = across if self.persistent else self.m // self.rows * across
        return f"""
func.func @main(%a: {a}, %b: {b}, %c: {c}) {{
  kernel.launch @gemm(%a, %b, %c) : {a}, {b}, {c}
  func.return
}}
kernel.func @gemm(%a: {a}, %b: {b}, %c: {c}) grid [{grid}] warps {4 + 4 * self.groups} {{
{self._setup(a, b, c)}
  kernel.warp_specialize {{
    partition "producer"(%warp) warps 4 registers 40 {{
{self._producer()}
    }}
    partition "consumer"(%warp) warps {4 * self.groups} registers {232 if self.groups == 2 else 240} {{
{self._consumer(c)}
    }}
  }}
}}
"""

    def _setup(self, a: str, b: str, c: str) -> str:
        bars, across = self.bars, self.n // self.columns
        tiles = self.m // self.rows * across
        numbers = {0, 1, 2, 4, 8, 16, 64, 128, self.k, self.stages, self.rows, self.columns}
        numbers |= {self.rows * 64, self.columns * 64, 4096}
        constants = "\n".join(f"  %c{x} = arith.constant {x} : index" for x in sorted(numbers))
        out = ""
        if self.staged:
            out = f"""
  %boxes_c = kernel.tensor_map %c : {c} -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %cs = kernel.shared : memref<{self.rows * self.columns}xbf16, "shared">"""
        return f"""{constants}
  %boxes_a = kernel.tensor_map %a : {a} -> {self.maps[0]}
  %boxes_b = kernel.tensor_map %b : {b} -> {self.maps[1]}
  %full = kernel.shared : {bars}
  %empty = kernel.shared : {bars}
  %as = kernel.shared : {self.rings[0]}
  %bs = kernel.shared : {self.rings[1]}{out}
  %thread = kernel.id thread
  %lane = kernel.id lane
  %block = kernel.id block
  %end = arith.addi %block, %c1 : index
  %tiles = arith.constant {tiles} : index
  %across = arith.constant {across} : index
  %first = payload.cmp eq %thread, %c0 : index
  scf.if %first {{
    scf.for %i = %c0 to %c{self.stages} step %c1 {{
      kernel.mbar_init %full[%i] arrivals 1 : {bars}
      kernel.mbar_init %empty[%i] arrivals {self.groups} : {bars}
    }}
    kernel.fence_mbar_init
  }}
  kernel.barrier"""

    def _producer(self) -> str:
        bars = self.bars
        return f"""
      scf.if %first {{
        %done:2 = scf.for %tile = {self.bounds} iter_args(%s0 = %c0, %p0 = %c0) -> (index, index) {{
          %i = arith.divui %tile, %across : index
          %j = arith.remui %tile, %across : index
          %i0 = arith.muli %i, %c{self.rows} : index
          %j0 = arith.muli %j, %c{self.columns} : index
          %left:2 = scf.for %k = %c0 to %c{self.k} step %c64 iter_args(%slot = %s0, %phase = %p0) -> (index, index) {{
            %free = arith.xori %phase, %c1 : index
            kernel.mbar_wait %empty[%slot] parity %free : {bars}
            kernel.mbar_expect %full[%slot] bytes {(self.rows + self.columns) * 128} : {bars}
            %oa = arith.muli %slot, %c{self.rows * 64} : index
            %ob = arith.muli %slot, %c{self.columns * 64} : index
            kernel.tma_load %boxes_a[%i0, %k] to %as[%oa] signal %full[%slot]
                : {self.maps[0]}, {self.rings[0]}, {bars}
            kernel.tma_load %boxes_b[%j0, %k] to %bs[%ob] signal %full[%slot]
                : {self.maps[1]}, {self.rings[1]}, {bars}
            %next, %flipped = kernel.advance %slot, %phase of {self.stages}
            scf.yield %next, %flipped : index, index
          }}
          scf.yield %left#0, %left#1 : index, index
        }}
      }}"""

    def _consumer(self, c: str) -> str:
        last = ""
        if self.staged:
            last = """
      scf.if %elected {
        kernel.bulk_wait 0
      }"""
        return f"""
      %group = arith.divui %warp, %c4 : index
      %member = arith.remui %warp, %c4 : index
      %in_group = arith.remui %thread, %c128 : index
      %elected = payload.cmp eq %in_group, %c0 : index
      %down = arith.muli %group, %c64 : index
      %part = arith.muli %group, %c4096 : index
      %w16 = arith.muli %member, %c16 : index
      %quad = arith.divui %lane, %c4 : index
      %row = arith.addi %w16, %quad : index
      %four = arith.remui %lane, %c4 : index
      %column = arith.muli %four, %c2 : index
      %done:2 = scf.for %tile = {self.bounds} iter_args(%s0 = %c0, %p0 = %c0) -> (index, index) {{
        %i = arith.divui %tile, %across : index
        %j = arith.remui %tile, %across : index
        %i0 = arith.muli %i, %c{self.rows} : index
        %j0 = arith.muli %j, %c{self.columns} : index
{self._loop(self.bars, *self.rings)}
        %narrow = payload.cast %acc : {self._vector("f32")} -> {self._vector("bf16")}
{self._staged_store() if self.staged else self._plain_store(c)}
        scf.yield %left#0, %left#1 : index, index
      }}{last}"""

    def _vector(self, element: str) -> str:
        return f"vector<{self.columns // 2}x{element}>"

    def _loop(self, bars: str, a_ring: str, b_ring: str) -> str:
        pending = f"!kernel.async_accumulators<{self._vector('f32')}>"
        head = f"""
        %start = kernel.accumulators : {pending}
        %left:{4 if self.lag else 3} = scf.for %k = %c0 to %c{self.k} step %c64
            iter_args(%slot = %s0, %phase = %p0, %into = %start{", %before = %s0" if self.lag else ""})
            -> (index, index, {pending}{", index" if self.lag else ""}) {{
          kernel.mbar_wait %full[%slot] parity %phase : {bars}
          %oa0 = arith.muli %slot, %c{self.rows * 64} : index
          %oa = arith.addi %oa0, %part : index
          %ob = arith.muli %slot, %c{self.columns * 64} : index
          %more = payload.cmp ne %k, %c0 : index
          kernel.wgmma_fence
          %product = kernel.wgmma %as[%oa], %bs[%ob] into %into k_steps 4 swizzle 128 use_acc %more
              : {a_ring}, {b_ring}, {pending}
          kernel.wgmma_commit
          %next, %flipped = kernel.advance %slot, %phase of {self.stages}"""
        if self.lag:
            return (
                head
                + f"""
          %waited = kernel.wgmma_wait 1, %product : {pending} -> {pending}
          %release = arith.andi %elected, %more : i1
          scf.if %release {{
            kernel.mbar_arrive %empty[%before] : {bars}
          }}
          scf.yield %next, %flipped, %waited, %slot : index, index, {pending}, index
        }}
        %acc = kernel.wgmma_wait 0, %left#2 : {pending} -> {self._vector("f32")}
        scf.if %elected {{
          kernel.mbar_arrive %empty[%left#3] : {bars}
        }}"""
            )
        return (
            head
            + f"""
          %waited = kernel.wgmma_wait 0, %product : {pending} -> {pending}
          scf.if %elected {{
            kernel.mbar_arrive %empty[%slot] : {bars}
          }}
          scf.yield %next, %flipped, %waited : index, index, {pending}
        }}
        %acc = kernel.wgmma_wait 0, %left#2 : {pending} -> {self._vector("f32")}"""
        )

    def _registers(self) -> list[list[int]]:
        columns = [8 << b for b in range((self.columns // 8).bit_length() - 1)]
        return [[0, 1], [8, 0], *([0, n] for n in columns)]

    def _plain_store(self, c: str) -> str:
        return f"""        %r0 = arith.addi %i0, %down : index
        %r1 = arith.addi %r0, %row : index
        %c0_ = arith.addi %j0, %column : index
        kernel.store %narrow, %c[%r1, %c0_] regs {self._registers()} vec 2
            : {c}, {self._vector("bf16")}"""

    def _to_shared(self, shared: str, steps: list[list[int]]) -> str:
        vector = self._vector("bf16")
        if not self.matrices:
            return f"        kernel.store %narrow, %cs[%l4] xor regs {steps} vec 2 : {shared}, {vector}"
        return f"""        %r = arith.remui %lane, %c8 : index
        %m = arith.divui %lane, %c8 : index
        %m0 = arith.remui %m, %c2 : index
        %m1 = arith.divui %m, %c2 : index
        %d8 = arith.muli %m0, %c8 : index
        %line0 = arith.addi %w16, %r : index
        %line = arith.addi %line0, %d8 : index
        %begin0 = arith.muli %line, %c64 : index
        %begin = arith.addi %begin0, %mine : index
        %piece = arith.xori %m1, %r : index
        %across0 = arith.muli %piece, %c8 : index
        %place = arith.addi %begin, %across0 : index
        kernel.stmatrix count 4 %narrow, %cs[%place] xor steps {[n for (n,) in steps[3:]]} : {vector}, {shared}"""

    def _staged_store(self) -> str:
        shared = f'memref<{self.rows * self.columns}xbf16, "shared">'
        panels, size = self.columns // 64, 4096
        steps = [[1], [512], [8], [16], [32], *([size << p] for p in range(panels.bit_length() - 1))]
        stores: list[str] = []
        for panel in range(panels):
            stores.append(f"""          %d{panel} = arith.constant {panel * size} : index
          %q{panel} = arith.constant {panel * 64} : index
          %o{panel} = arith.addi %mine, %d{panel} : index
          %n{panel} = arith.addi %j0, %q{panel} : index
          kernel.tma_store %cs[%o{panel}] to %boxes_c[%r0, %n{panel}]
              : {shared}, !kernel.tensor_map<64x64xbf16, swizzle 128>""")
        return f"""        scf.if %elected {{
          kernel.bulk_wait 0 read
        }}
        kernel.group_barrier 1 warps 4
        %bank = arith.constant {panels * size} : index
        %mine = arith.muli %group, %bank : index
        %l0 = arith.muli %row, %c64 : index
        %l1 = arith.muli %quad, %c8 : index
        %l2 = arith.xori %column, %l1 : index
        %l3 = arith.addi %l0, %l2 : index
        %l4 = arith.addi %l3, %mine : index
{self._to_shared(shared, steps)}
        kernel.fence_async
        kernel.group_barrier 1 warps 4
        %r0 = arith.addi %i0, %down : index
        scf.if %elected {{
{chr(10).join(stores)}
          kernel.bulk_commit
        }}"""
