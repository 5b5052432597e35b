// Model of AMX in plain C++, for tests on machines without AMX. It has the interface of the section vector.tiles in
// functions.hpp: tile registers of up to 16 rows of 64 bytes. It traps where the instructions fault (Intel's manual:
// LDTILECFG, TILELOADD, TILESTORED, TDPBF16PS).
static const bool has_tiles = true;
struct Tiles { unsigned char palette = 1, start = 0, none[14] = {}; unsigned short bytes[16] = {}; unsigned char rows[16] = {}; };
static thread_local Tiles tiles = {0};
static thread_local unsigned tile_words[8][16][16];
static void tile_needs(bool holds) { if (!holds) __builtin_trap(); }
INLINE void tile_config(const Tiles& t) {
  tile_needs(sizeof t == 64 && t.palette == 1 && !t.start);
  for (int i = 0; i < 16; ++i) tile_needs(t.rows[i] <= (i < 8 ? 16 : 0) && t.bytes[i] <= (i < 8 ? 64 : 0) && !t.rows[i] == !t.bytes[i]);
  tiles = t;
  __builtin_memset(tile_words, 0, sizeof tile_words);
}
INLINE void tile_release() { tiles = {0}; }
template <int t> INLINE void tile_zero() {
  tile_needs(tiles.palette && tiles.rows[t]);
  __builtin_memset(tile_words[t], 0, sizeof tile_words[t]);
}
template <int t> INLINE void tile_load(const void* p, long row) {
  tile_needs(tiles.palette && tiles.rows[t]);
  __builtin_memset(tile_words[t], 0, sizeof tile_words[t]);
  for (int i = 0; i < tiles.rows[t]; ++i) __builtin_memcpy(tile_words[t][i], (const char*)p + i * row, tiles.bytes[t]);
}
template <int t> INLINE void tile_store(void* p, long row) {
  tile_needs(tiles.palette && tiles.rows[t]);
  for (int i = 0; i < tiles.rows[t]; ++i) __builtin_memcpy((char*)p + i * row, tile_words[t][i], tiles.bytes[t]);
}
static float tile_half(unsigned word, int half) {
  const unsigned bits = half ? word & 0xffff0000u : word << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
template <int c, int a, int b> INLINE void tile_dot(int*) {
  tile_needs(tiles.rows[c] && tiles.rows[c] == tiles.rows[a] && tiles.bytes[c] == tiles.bytes[b] && tiles.bytes[a] == 4 * tiles.rows[b]);
  for (int i = 0; i < tiles.rows[c]; ++i)
    for (int k = 0; k < tiles.rows[b]; ++k)
      for (int j = 0; j < tiles.bytes[c] / 4; ++j)
        for (int bits = 24; bits >= 0; bits -= 8) {
          int sum = (int)tile_words[c][i][j];
          sum += ((int)(tile_words[a][i][k] << bits) >> 24) * ((int)(tile_words[b][k][j] << bits) >> 24);
          tile_words[c][i][j] = (unsigned)sum;
        }
}
template <int c, int a, int b> INLINE void tile_dot(float*) {
  tile_needs(tiles.rows[c] && tiles.rows[c] == tiles.rows[a] && tiles.bytes[c] == tiles.bytes[b] && tiles.bytes[a] == 4 * tiles.rows[b]);
  for (int i = 0; i < tiles.rows[c]; ++i)
    for (int k = 0; k < tiles.rows[b]; ++k)
      for (int j = 0; j < tiles.bytes[c] / 4; ++j) {
        float sum;
        __builtin_memcpy(&sum, &tile_words[c][i][j], 4);
        for (int half = 0; half < 2; ++half) sum += tile_half(tile_words[a][i][k], half) * tile_half(tile_words[b][k][j], half);
        __builtin_memcpy(&tile_words[c][i][j], &sum, 4);
      }
}
