/* Attention, y = softmax(scale q k^T + mask) v, computed tile by tile: the (L, S) matrix of
   weights is never stored in global memory.

   The forward pass goes along the keys. For each row of scores it keeps the largest score so
   far and the sum of exp(score - largest), and rescales what it has summed whenever a larger
   score appears (the online softmax, M. Milakov & N. Gimelshein 2018). It stores lse, the
   logarithm of that sum plus the largest score, in (batch, L). From lse the backward pass
   recomputes the weights of a tile with one exp each, w = exp(s - lse), instead of reading
   them (FlashAttention, T. Dao et al. 2022).

   A block computes one tile of one result: of y or gq, whose rows are queries, or of gk or gv,
   whose rows are keys. It loops over the other side. In each step it computes a tile of
   scores, turns them into factors (weights or their gradients), and adds the product of the
   factors and a tile of an operand. So each element of a result is summed by one thread in one
   order, and every run gives the same bits. FlashAttention-2 adds to gq with atomics (T. Dao
   2023); this kernel does not, and recomputes the scores for each of gq, gk and gv instead.

   Shapes: q (..., L, E), k (..., S, E), v (..., S, D) and a mask (..., L, S) share their batch
   dims; a broadcast dim has step 0. A row whose keys are all masked gives 0.

   In 16 bits cuDNN is asked first (dnn_attention.c). */
#include "kernels/attention.h"
#include "kernels/own.cuh"
#include "kernels/plans.h"
#include "kernels/reduce.cuh"
#include "kernels/vector.cuh"

extern "C" {
#include "op/random/random.h"
}

/* ---- operands ---- */

/* Four elements in one word: 16 bytes of float32, 32 of float64. */
template <class C> struct alignas(16) Quad { C v[4]; };

/* An operand is a batch of matrices. `runs` says that four neighbours of a row are contiguous
   and aligned, so that one load reads them. */
struct Operand {
  const void *data;
  int64_t row, column, step[DM_MAX_DIM]; /* elements */
  int dtype;
  bool runs;
};

template <class C> struct Attention {
  Operand q, k, v, gy, mask; /* mask.data may be NULL */
  Operand out;               /* y, gq, gk or gv; its columns are neighbours */
  C *lse, *dot; /* (batch, L): log of the sum of exp(scores), and the sum of gy y of the row */
  int L, S, E, D;
  int ndim; /* batch dims */
  int64_t n_batch, size[DM_MAX_DIM];
  bool causal;
  C scale, keep; /* the weights that dropout keeps are multiplied by keep */
  float p;
  const dm_Generator *draw; /* the generator before the call's draw; NULL: no dropout */
};

/* The offset in elements of matrix number `batch` of an operand. */
template <class C>
static __device__ inline int64_t offset_of(const Attention<C> &p, const Operand &o,
                                           int64_t batch) {
  int64_t at = 0;
  DM_ROLLED
  for (int d = p.ndim - 1; d >= 0; d--) {
    at += batch % p.size[d] * o.step[d];
    batch /= p.size[d];
  }
  return at;
}

/* One matrix (n_row, n_column) of an operand as a tile loader sees it: reads outside give 0,
   so that tiles at the edges need no code of their own. The operands of float64 are all of it;
   others are float32 or of 16 bits, which the kernel learns at run time. */
template <class C> struct Panel {
  const void *data;
  int64_t first, row, column;
  int n_row, n_column, dtype;
  bool runs;

  __device__ Panel(const Attention<C> &p, const Operand &o, int64_t batch, int n, int m)
      : data(o.data), first(offset_of(p, o, batch)), row(o.row), column(o.column), n_row(n),
        n_column(m), dtype(o.dtype), runs(o.runs) {}
  __device__ bool is_low() const { return sizeof(C) == 4 && dtype != DM_F32; }
  template <class T> __device__ dm_Run<T, 4> read_as(int i, int j) const {
    const T *at = (const T *)data + first + i * row + j * column;
    if (runs && i < n_row && j + 4 <= n_column) return *(const dm_Run<T, 4> *)at;
    dm_Run<T, 4> run;
    for (int n = 0; n < 4; n++) run.v[n] = i < n_row && j + n < n_column ? at[n * column] : T{};
    return run;
  }
  /* Reads element (i, j) and its three neighbours to the right as they are. */
  __device__ Quad<C> read(int i, int j) const {
    Quad<C> raw = {};
    if (is_low()) {
      const dm_Run<dm_Low, 4> run = read_as<dm_Low>(i, j);
      memcpy(&raw, &run, sizeof run);
    } else {
      const dm_Run<C, 4> run = read_as<C>(i, j);
      memcpy(&raw, &run, sizeof run);
    }
    return raw;
  }
  /* Converts elements that read() gave to the compute type. */
  __device__ Quad<C> widen(const Quad<C> &raw) const {
    Quad<C> quad = raw;
    if constexpr (sizeof(C) == 4)
      if (is_low()) {
        dm_Run<dm_Low, 4> run;
        memcpy(&run, &raw, sizeof run);
        dm_widen_all(dtype, run, quad.v);
      }
    return quad;
  }
};

/* ---- tiles ---- */

/* A block has SIDE x SIDE threads, and each holds four rows and four columns of a TILE x TILE
   tile in registers. In shared memory a tile is stored as TILE lines of SIDE quads; a product
   sums along the lines, so that a thread reads one quad of each operand for 16 multiply-adds.
   The three tiles of a block fill 48 KB in float32 (TILE 64) and half of that in float64 (TILE
   32). */
template <class C> struct Square {
  static const int SIDE = sizeof(C) == 8 ? 8 : 16, TILE = 4 * SIDE, THREADS = SIDE * SIDE;
};

/* The index of a quad in a tile. The quads of a line are permuted by an exclusive or with the
   line's number divided by 4: threads that write every fourth line then meet different
   banks. */
template <class C> static __device__ inline int slot(int line, int quad) {
  const int side = Square<C>::SIDE;
  return line * side + (quad ^ (line / 4 & (side - 1)));
}

/* Loads the TILE x TILE part of a matrix from (i, j) on, each row of it as a line. */
template <class C, class M>
static __device__ inline void load_rows(DM_SHARED_PTR(Quad<C>) tile, const M &m, int i, int j) {
  const int side = Square<C>::SIDE;
  for (int n = threadIdx.x; n < Square<C>::TILE * side; n += Square<C>::THREADS)
    tile[slot<C>(n / side, n % side)] = m.widen(m.read(i + n / side, j + n % side * 4));
}

/* Loads the same part with each column as a line, which transposes it: a thread reads four
   rows of one quad and writes four columns. */
template <class C, class M>
static __device__ inline void load_columns(DM_SHARED_PTR(Quad<C>) tile, const M &m, int i,
                                           int j) {
  const int y = threadIdx.x / Square<C>::SIDE, x = threadIdx.x % Square<C>::SIDE;
  Quad<C> run[4];
  Quad<C> row[4];
  for (int n = 0; n < 4; n++) run[n] = m.read(i + y * 4 + n, j + x * 4);
  for (int n = 0; n < 4; n++) row[n] = m.widen(run[n]);
  for (int n = 0; n < 4; n++) {
    const Quad<C> column = {{row[0].v[n], row[1].v[n], row[2].v[n], row[3].v[n]}};
    tile[slot<C>(x * 4 + n, y)] = column;
  }
}

/* Adds to `sum`, a thread's 4 x 4 elements, the product of two tiles along their first n
   lines. The loop takes four lines at a time; lines from n up to the next multiple of 4 hold
   0. */
template <class C>
static __device__ inline void multiply(C (&sum)[4][4], DM_SHARED_PTR(Quad<C>) a,
                                       DM_SHARED_PTR(Quad<C>) b, int n) {
  const int y = threadIdx.x / Square<C>::SIDE, x = threadIdx.x % Square<C>::SIDE;
  const int n_line = n < Square<C>::TILE ? n : Square<C>::TILE;
  DM_ROLLED
  for (int line = 0; line < n_line; line += 4) {
    for (int l = 0; l < 4; l++) {
      const Quad<C> u = a[slot<C>(line + l, y)], v = b[slot<C>(line + l, x)];
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) sum[r][c] += u.v[r] * v.v[c];
    }
  }
}

/* Computes s = a b^T for TILE rows of a from i on and TILE rows of b from j on, over all
   a.n_column columns, TILE columns at a time. has_a: tile_a holds a's part already (q of a
   head with E <= TILE is loaded once). */
template <class C, class M>
static __device__ inline void products(C (&s)[4][4], DM_SHARED_PTR(Quad<C>) tile_a,
                                       DM_SHARED_PTR(Quad<C>) tile_b, const M &a, int i,
                                       const M &b, int j, bool has_a) {
  const int depth = a.n_column;
  for (int r = 0; r < 4; r++)
    for (int c = 0; c < 4; c++) s[r][c] = 0;
  for (int e = 0; e < depth; e += Square<C>::TILE) {
    if (!has_a) load_columns<C>(tile_a, a, i, e);
    load_columns<C>(tile_b, b, j, e);
    __syncthreads();
    multiply<C>(s, tile_a, tile_b, depth - e);
    __syncthreads();
  }
}

/* ---- from products to factors ---- */

/* A thread owns four queries from i on and four keys from j on. They are the rows and columns
   of s, or, where the rows of the block are keys, its columns and rows. */
template <bool keys, class C>
static __device__ inline C &pick(C (&s)[4][4], int query, int key) {
  return s[keys ? key : query][keys ? query : key];
}

/* A thread passes the masks or dropout factors of its 16 elements through four quads of
   `shared` that only it uses. The code that computes them then exists once, in a loop that is
   not unrolled, while s stays in registers. All callers end with a barrier, after which all
   threads may use `shared` again. */
template <class C> static __device__ inline int own_slot(int n) {
  return n * Square<C>::THREADS + (int)threadIdx.x;
}

/* Stores s in shared memory while the registers are needed for a second product. */
template <class C>
static __device__ inline void put_aside(const C (&s)[4][4], DM_SHARED_PTR(Quad<C>) shared) {
  for (int r = 0; r < 4; r++) {
    const Quad<C> row = {{s[r][0], s[r][1], s[r][2], s[r][3]}};
    shared[own_slot<C>(r)] = row;
  }
}
/* Loads s again; the barrier frees the shared memory for all threads. */
template <class C>
static __device__ inline void take_back(C (&s)[4][4], DM_SHARED_PTR(Quad<C>) shared) {
  for (int r = 0; r < 4; r++) {
    const Quad<C> row = shared[own_slot<C>(r)];
    for (int c = 0; c < 4; c++) s[r][c] = row.v[c];
  }
  __syncthreads();
}

/* Adds the mask (batch, L, S) to a thread's scores; where a bool mask is false the score
   becomes -inf. */
template <bool keys, class C>
static __device__ inline void add_mask(const Attention<C> &p, C (&s)[4][4],
                                       DM_SHARED_PTR(Quad<C>) shared, int64_t batch, int i,
                                       int j) {
  const int64_t base = offset_of(p, p.mask, batch) + j * p.mask.column;
  const bool is_bool = p.mask.dtype == DM_BOOL;
  DM_ROLLED
  for (int r = 0; r < 4; r++) {
    Quad<C> m;
    for (int c = 0; c < 4; c++)
      m.v[c] = i + r < p.L && j + c < p.S
                   ? dm_load<C>(p.mask.dtype, p.mask.data,
                                base + (i + r) * p.mask.row + c * p.mask.column)
                   : C(0);
    shared[own_slot<C>(r)] = m;
  }
  for (int r = 0; r < 4; r++) {
    const Quad<C> m = shared[own_slot<C>(r)];
    for (int c = 0; c < 4; c++) {
      C &x = pick<keys>(s, r, c);
      x = !is_bool ? x + m.v[c] : m.v[c] != 0 ? x : -(C)INFINITY;
    }
  }
  __syncthreads();
}

/* Turns products into scores: multiplies by scale, adds the mask, and sets the elements
   outside the matrix and, if causal, those with key > query to -inf. */
template <bool keys, class C>
static __device__ inline void score(const Attention<C> &p, C (&s)[4][4],
                                    DM_SHARED_PTR(Quad<C>) shared, int64_t batch, int i,
                                    int j) {
  for (int r = 0; r < 4; r++)
    for (int c = 0; c < 4; c++) s[r][c] *= p.scale;
  if (p.mask.data) add_mask<keys, C>(p, s, shared, batch, i, j);
  for (int r = 0; r < 4; r++)
    for (int c = 0; c < 4; c++)
      if (i + r >= p.L || j + c >= p.S || (p.causal && j + c > i + r))
        pick<keys>(s, r, c) = -(C)INFINITY;
}

/* Draws words first .. first + 3 of the call's random numbers as uniforms in [0, 1). Philox
   gives four words per counter, so an unaligned start needs two counters. */
static __device__ inline void draw(dm_Generator g, uint64_t first, float u[4]) {
  const dm_Philox now = dm_philox(g.seed, g.offset + first / 4);
  const dm_Philox next = first % 4 == 0 ? now : dm_philox(g.seed, g.offset + first / 4 + 1);
  uint32_t word[8];
  for (int n = 0; n < 4; n++) {
    word[n] = now.v[n];
    word[4 + n] = next.v[n];
  }
  for (unsigned by = 0; by < 3; by++)
    for (int n = 0; n < 7; n++) word[n] = by < first % 4 ? word[n + 1] : word[n];
  for (int n = 0; n < 4; n++) u[n] = dm_uniform_f32(word[n]);
}

/* Dropout of the weights: element (batch, i, j) takes word (batch L + i) S + j of the draw, as
   on the CPU, whatever the tile that computes it. An element is dropped where its uniform is
   below p. */
template <bool keys, class C>
static __device__ inline void drop(const Attention<C> &p, C (&s)[4][4],
                                   DM_SHARED_PTR(Quad<C>) shared, int64_t batch, int i, int j) {
  const dm_Generator g = *p.draw;
  DM_ROLLED
  for (int r = 0; r < 4; r++) {
    float u[4];
    Quad<C> scale;
    draw(g, (uint64_t)((batch * p.L + i + r) * p.S + j), u);
    for (int c = 0; c < 4; c++) scale.v[c] = u[c] < p.p ? C(0) : p.keep;
    shared[own_slot<C>(r)] = scale;
  }
  for (int r = 0; r < 4; r++) {
    const Quad<C> scale = shared[own_slot<C>(r)];
    for (int c = 0; c < 4; c++) {
      C &x = pick<keys>(s, r, c);
      x = scale.v[c] == 0 ? C(0) : x * scale.v[c];
    }
  }
  __syncthreads();
}

/* Turns scores into weights, exp(s - lse), with the lse of the forward pass. */
template <bool keys, class C>
static __device__ inline void weigh(const Attention<C> &p, C (&s)[4][4], int64_t batch, int i) {
  for (int r = 0; r < 4; r++) {
    const C lse = i + r < p.L ? p.lse[batch * p.L + i + r] : C(0);
    for (int c = 0; c < 4; c++) {
      C &x = pick<keys>(s, r, c);
      x = x == -(C)INFINITY ? C(0) : dm_exp(x - lse);
    }
  }
}

/* The gradient of softmax: from the weights w and their gradients g it computes w (g - dot)
   scale, the gradient of the products, where dot is the row's sum of w g. An element of weight
   0 gets 0 even if the row holds infinities or NaN. */
template <bool keys, class C>
static __device__ inline void differentiate(const Attention<C> &p, C (&w)[4][4], C (&g)[4][4],
                                            int64_t batch, int i) {
  for (int r = 0; r < 4; r++) {
    const C dot = i + r < p.L ? p.dot[batch * p.L + i + r] : C(0);
    for (int c = 0; c < 4; c++) {
      C &x = pick<keys>(w, r, c);
      x = x == 0 ? C(0) : x * (pick<keys>(g, r, c) - dot) * p.scale;
    }
  }
}

/* The state of the online softmax for a thread's four rows: the largest score so far, which
   the SIDE threads of a row share, and this thread's part of the sum of exp(score - top). */
template <class C> struct Softmax {
  C top[4], sum[4];

  __device__ Softmax() {
    for (int r = 0; r < 4; r++) {
      top[r] = -(C)INFINITY;
      sum[r] = 0;
    }
  }
  /* Adds a tile of scores: s becomes exp(s - top), and `factor` what earlier sums of the row
     have to be multiplied by, exp(old top - new top). A NaN is not chosen as the top, but its
     exp makes the sum NaN. */
  __device__ void add(C (&s)[4][4], C factor[4]) {
    for (int r = 0; r < 4; r++) {
      C now = top[r];
      for (int c = 0; c < 4; c++) now = s[r][c] > now ? s[r][c] : now;
      for (int lane = Square<C>::SIDE / 2; lane > 0; lane /= 2) {
        const C other = __shfl_xor_sync(0xffffffffu, now, lane);
        now = other > now ? other : now;
      }
      const C base = now == -(C)INFINITY ? C(0) : now;
      factor[r] = dm_exp(top[r] - base);
      sum[r] *= factor[r];
      for (int c = 0; c < 4; c++) {
        s[r][c] = dm_exp(s[r][c] - base);
        sum[r] += s[r][c];
      }
      top[r] = now;
    }
  }
  /* Adds the parts of the SIDE threads of each row; every thread gets the whole sum. */
  __device__ void finish() {
    for (int r = 0; r < 4; r++)
      for (int lane = Square<C>::SIDE / 2; lane > 0; lane /= 2)
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], lane);
  }
};

/* ---- the kernel ---- */

enum Result { Y, GQ, GK, GV };

/* Writes v as element i of dtype: float64 if C is, else float32 or 16 bits. */
template <class C> static __device__ inline void put(void *to, int dtype, int64_t i, C v) {
  if constexpr (sizeof(C) == 4)
    if (dtype != DM_F32) {
      dm_Run<dm_Low, 1> run;
      dm_narrow_all(dtype, &v, &run);
      ((dm_Low *)to)[i] = run.v[0];
      return;
    }
  ((C *)to)[i] = v;
}

/* The kernel of all four results. blockIdx.x is a tile of rows and of columns, blockIdx.y a
   batch. A block computes TILE rows and WIDE * TILE columns of the result; the forward pass
   and the gradients have their own instance each. The launch bounds allow two blocks per
   multiprocessor for WIDE 1; two column tiles take too many registers for that.

   Each step of the loop over line0: (1) s = q k^T of a tile; (2) scale, mask, causal mask; (3)
   s becomes weights, by the online softmax in the forward pass or by lse in the backward; (4)
   for gq and gk a second product gy v^T gives the weights' gradients, and softmax's derivative
   turns them into those of the scores; (5) the factors go to shared memory and are multiplied
   by a tile of v, k, q or gy. */
template <class C, Result result, int WIDE>
static __global__ void __launch_bounds__(Square<C>::THREADS, WIDE == 1 ? 2 : 1)
    attention_kernel(Attention<C> p) {
  const int TILE = Square<C>::TILE, SIDE = Square<C>::SIDE;
  const bool keys = result == GK || result == GV; /* whether the rows are keys */
  DM_SHARED(Quad<C>, tile_a, TILE * SIDE);
  DM_SHARED(Quad<C>, tile_b, TILE * SIDE);
  DM_SHARED(Quad<C>, factors, TILE * SIDE);
  const int y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4;
  const int n_row = keys ? p.S : p.L, n_column = result == Y || result == GV ? p.D : p.E;
  /* The tiles of rows are counted fastest, then those of columns. */
  const int n_tile = (n_row + TILE - 1) / TILE, tile = (int)blockIdx.x % n_tile;
  const int column0 = (int)blockIdx.x / n_tile * (WIDE * TILE);
  /* With a causal mask later queries see more keys: those tiles get the lowest block numbers,
     which usually start first. */
  const int row0 = (p.causal && !keys ? n_tile - 1 - tile : tile) * TILE;
  /* The keys that a tile of queries may see end with its last row if the mask is causal. */
  const int n_line = keys ? p.L : p.causal && row0 + TILE < p.S ? row0 + TILE : p.S;
  for (int64_t batch = blockIdx.y; batch < p.n_batch; batch += gridDim.y) {
    const Panel<C> q(p, p.q, batch, p.L, p.E), k(p, p.k, batch, p.S, p.E);
    const Panel<C> v(p, p.v, batch, p.S, p.D), gy(p, p.gy, batch, p.L, p.D);
    Softmax<C> softmax;
    C sum[WIDE][4][4] = {};
    /* With rows that are keys and a causal mask, earlier queries see none of the tile's
       keys. */
    for (int line0 = keys && p.causal ? row0 : 0; line0 < n_line; line0 += TILE) {
      const int i = keys ? line0 + x : row0 + y, j = keys ? row0 + y : line0 + x;
      C s[4][4];
      products<C>(s, tile_a, tile_b, keys ? k : q, row0, keys ? q : k, line0,
                  result == Y && p.E <= TILE && line0 > 0);
      score<keys, C>(p, s, tile_b, batch, i, j);
      if (result == Y) {
        C factor[4];
        softmax.add(s, factor);
        /* The sums so far refer to the old maximum. */
        for (int w = 0; w < WIDE; w++)
          for (int r = 0; r < 4; r++)
            for (int c = 0; c < 4; c++) sum[w][r][c] *= factor[r];
      } else {
        weigh<keys>(p, s, batch, i);
      }
      if (result == GQ || result == GK) {
        C g[4][4];
        put_aside<C>(s, factors);
        products<C>(g, tile_a, tile_b, keys ? v : gy, row0, keys ? gy : v, line0, false);
        if (p.draw) drop<keys, C>(p, g, tile_b, batch, i, j);
        take_back<C>(s, factors);
        differentiate<keys>(p, s, g, batch, i);
      } else if (p.draw) {
        drop<keys, C>(p, s, tile_b, batch, i, j);
      }
      /* The factors are stored transposed, in lines along the dim that is summed next. */
      for (int c = 0; c < 4; c++) {
        const Quad<C> column = {{s[0][c], s[1][c], s[2][c], s[3][c]}};
        factors[slot<C>(x + c, y / 4)] = column;
      }
      DM_UNROLLED
      for (int w = 0; w < WIDE; w++) {
        const int at = column0 + w * TILE;
        if (at >= n_column) break;
        load_rows<C>(tile_b,
                     result == Y    ? v
                     : result == GQ ? k
                     : result == GK ? q
                                    : gy,
                     line0, at);
        __syncthreads();
        multiply<C>(sum[w], factors, tile_b, n_line - line0);
        __syncthreads();
      }
    }
    if (result == Y) softmax.finish();
    const int64_t first = offset_of(p, p.out, batch);
    DM_UNROLLED
    for (int r = 0; r < 4; r++) {
      const int64_t row = batch * n_row + row0 + y + r;
      if (row0 + y + r >= n_row) break;
      /* A row that saw no key has total 0: it gives 0, and lse = inf makes the backward's
         weights 0. */
      const C total = softmax.sum[r], scale = result == Y ? 1 / total : C(1);
      for (int w = 0; w < WIDE; w++)
        for (int c = 0; c < 4; c++) {
          const int column = column0 + w * TILE + x + c;
          const C sum_here = result == Y && total == 0 ? C(0) : sum[w][r][c] * scale;
          if (column < n_column)
            put((void *)p.out.data, p.out.dtype, first + (row0 + y + r) * p.out.row + column,
                sum_here);
        }
      if (result == Y && column0 == 0 && x == 0)
        p.lse[row] = total == 0 ? (C)INFINITY : softmax.top[r] + dm_log(total);
    }
  }
}

/* dot (batch, L): the sum of gy y along each row, which equals the sum of the weights times
   their gradients (Dao et al. 2022). One warp per row; y is p.out, whose columns are
   neighbours. */
template <class C>
static __global__ void __launch_bounds__(DM_THREADS) dot_kernel(Attention<C> p) {
  const int64_t row = dm_thread() / 32;
  const int64_t n = row < p.n_batch * p.L ? p.D : 0;
  C sum = 0;
  if (n > 0) {
    const Panel<C> gy(p, p.gy, row / p.L, p.L, p.D);
    const int64_t at = gy.first + row % p.L * gy.row;
    const int64_t y_at = offset_of(p, p.out, row / p.L) + row % p.L * p.out.row;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
      sum += dm_load_float<C>(gy.dtype, gy.data, at + i * gy.column) *
             dm_load_float<C>(p.out.dtype, p.out.data, y_at + i);
  }
  sum = dm_warp_sum(sum);
  if (row < p.n_batch * p.L && threadIdx.x % 32 == 0) p.dot[row] = sum;
}

/* ---- launches ---- */

/* Describes a tensor's last two dims as a matrix and the others as batch steps; NULL gives
   data NULL. */
static Operand operand_of(const dm_Tensor *t) {
  Operand o;
  memset(&o, 0, sizeof o);
  if (!t) return o;
  const int nd = t->ndim;
  const int64_t run = 4 * dm_dtype_size((dm_DType)t->dtype);
  o.data = dm_tensor_data(t);
  o.dtype = t->dtype;
  o.row = t->stride[nd - 2];
  o.column = t->stride[nd - 1];
  o.runs = o.column == 1 && o.row % 4 == 0 && (uintptr_t)o.data % (uintptr_t)run == 0;
  for (int d = 0; d < nd - 2; d++) {
    o.step[d] = t->stride[d];
    o.runs = o.runs && o.step[d] % 4 == 0;
  }
  return o;
}

/* Fills the parameters that forward and backward share. Sizes must fit 31 bits, as the kernel
   counts rows and columns in int. */
template <class C>
static dm_status attention_of(dm_Call *c, dm_Tensor *const *qkv, const dm_Tensor *mask,
                              const dm_Tensor *counters, Attention<C> *p) {
  const dm_AttentionAttr *a = DM_ATTR(dm_AttentionAttr, c);
  const dm_Tensor *q = qkv[0], *k = qkv[1], *v = qkv[2];
  const int nd = q->ndim;
  const int64_t size[4] = {q->shape[nd - 2], k->shape[nd - 2], q->shape[nd - 1],
                           v->shape[nd - 1]};
  for (int i = 0; i < 4; i++)
    if (size[i] > INT32_MAX / 2)
      return dm_fail(DM_EARG, "%s: a dim of %lld elements is too large for cuda", c->op->name,
                     (long long)size[i]);
  memset(p, 0, sizeof *p);
  p->q = operand_of(q);
  p->k = operand_of(k);
  p->v = operand_of(v);
  p->mask = operand_of(mask);
  p->L = (int)size[0];
  p->S = (int)size[1];
  p->E = (int)size[2];
  p->D = (int)size[3];
  p->ndim = nd - 2;
  p->n_batch = dm_numel(nd - 2, q->shape);
  memcpy(p->size, q->shape, (size_t)p->ndim * sizeof *p->size);
  p->causal = a->is_causal != 0;
  p->scale = (C)a->scale;
  p->keep = (C)dm_drop_scale(a->drop.p);
  p->p = (float)a->drop.p;
  p->draw = counters ? (const dm_Generator *)dm_tensor_data(counters) : NULL;
  return DM_OK;
}

/* Launches the kernel of one result: with WIDE 1 where one tile of columns is enough in
   float32, else with WIDE 2, so that two column tiles share one computation of the scores. */
template <Result result, class C> static dm_status launch(Attention<C> p, dm_Tensor *out) {
  const int TILE = Square<C>::TILE;
  const int64_t n_column = out->shape[out->ndim - 1];
  const int64_t n_tile = dm_ceil_div(out->shape[out->ndim - 2], TILE);
  const unsigned n_batch = (unsigned)(p.n_batch < 65535 ? p.n_batch : 65535);
  if (n_batch == 0) return DM_OK;
  p.out = operand_of(out);
  if constexpr (sizeof(C) == 4)
    if (n_column <= TILE)
      return dm_launch((attention_kernel<C, result, 1>), dim3((unsigned)n_tile, n_batch),
                       Square<C>::THREADS, 0, p);
  const dim3 grid((unsigned)(n_tile * dm_ceil_div(n_column, 2 * TILE)), n_batch);
  return dm_launch((attention_kernel<C, result, 2>), grid, Square<C>::THREADS, 0, p);
}

/* in: gy, q, k, v, y, lse, and maybe a mask and the generator. Each gradient has a launch of
   its own. */
template <class C> static dm_status backward(dm_Call *c) {
  Attention<C> p;
  DM_TRY(attention_of(c, c->in + 1, c->n_in > 6 ? c->in[6] : NULL,
                      c->n_in > 7 ? c->in[7] : NULL, &p));
  const int64_t n_row = p.n_batch * p.L;
  dm_Scratch<C> dot;
  DM_TRY(dot.get(n_row));
  p.gy = operand_of(c->in[0]);
  p.lse = (C *)dm_tensor_data(c->in[5]);
  p.dot = dot.p;
  p.out = operand_of(c->in[4]);
  DM_TRY(dm_launch((dot_kernel<C>), dm_blocks(n_row * 32), DM_THREADS, 0, p));
  DM_TRY((launch<GQ>(p, c->out[0])));
  DM_TRY((launch<GK>(p, c->out[1])));
  return launch<GV>(p, c->out[2]);
}

/* ---- for cuDNN's graphs; see attention.h ---- */

/* One element of the bias a thread, with those between its rows. */
struct Bias {
  Attention<float> p; /* the mask and its batch dims */
  int64_t heads, size[4], step[4];
  float *out;
};
static __global__ void __launch_bounds__(DM_THREADS) bias_kernel(Bias b) {
  const int64_t n = b.size[0] * b.step[0];
  for (int64_t at = dm_thread(); at < n; at += dm_threads()) {
    const int64_t i = at / b.step[2] % b.size[2], j = at % b.step[2];
    const int64_t batch = at / b.step[0] * b.heads + at / b.step[1] % b.size[1];
    float x = 0;
    if (j < b.size[3]) {
      const Operand &m = b.p.mask;
      x = dm_load<float>(m.dtype, m.data, offset_of(b.p, m, batch) + i * m.row + j * m.column);
      if (m.dtype == DM_BOOL) x = x != 0 ? 0 : DM_ATTENTION_HIDDEN;
      else if (x == -INFINITY) x = DM_ATTENTION_HIDDEN;
      else if (x < DM_ATTENTION_HIDDEN / 2) x = DM_ATTENTION_HIDDEN / 2;
    }
    b.out[at] = x;
  }
}
extern "C" dm_status dm_attention_bias(const dm_Tensor *mask, int64_t heads,
                                       const int64_t size[4], const int64_t step[4],
                                       float *out) {
  Bias b;
  memset(&b, 0, sizeof b);
  b.p.mask = operand_of(mask);
  b.p.ndim = mask->ndim - 2;
  memcpy(b.p.size, mask->shape, (size_t)b.p.ndim * sizeof *b.p.size);
  b.heads = heads;
  memcpy(b.size, size, sizeof b.size);
  memcpy(b.step, step, sizeof b.step);
  b.out = out;
  return dm_launch(bias_kernel, dm_blocks(size[0] * step[0]), DM_THREADS, 0, b);
}

/* One warp a row of y, whose batch dims and rows p.out describes. */
static __global__ void __launch_bounds__(DM_THREADS)
    unseen_kernel(Attention<float> p, int64_t n_row) {
  const int64_t row = dm_thread() / 32;
  float *lse = p.lse;
  const bool unseen = row < n_row && lse[row] < DM_ATTENTION_HIDDEN * 0.75f;
  __syncwarp();
  if (!unseen) return;
  uint16_t *y = (uint16_t *)p.out.data + offset_of(p, p.out, row / p.L) + row % p.L * p.out.row;
  for (int64_t i = threadIdx.x % 32; i < p.D; i += 32) y[i] = 0;
  if (threadIdx.x % 32 == 0) lse[row] = INFINITY;
}
extern "C" dm_status dm_attention_unseen(dm_Tensor *y, dm_Tensor *lse) {
  Attention<float> p;
  memset(&p, 0, sizeof p);
  p.out = operand_of(y);
  p.lse = (float *)dm_tensor_data(lse);
  p.L = (int)y->shape[y->ndim - 2];
  p.D = (int)y->shape[y->ndim - 1];
  p.ndim = y->ndim - 2;
  memcpy(p.size, y->shape, (size_t)p.ndim * sizeof *p.size);
  return dm_launch(unseen_kernel, dm_blocks(lse->numel * 32), DM_THREADS, 0, p, lse->numel);
}

template <class C> static dm_status forward(dm_Call *c) {
  Attention<C> p;
  DM_TRY(
      attention_of(c, c->in, c->n_in > 3 ? c->in[3] : NULL, c->n_in > 4 ? c->in[4] : NULL, &p));
  p.lse = (C *)dm_tensor_data(c->out[1]);
  return launch<Y>(p, c->out[0]);
}

/* in: q, k, v, maybe a mask and the generator; out: y (..., L, D) and lse (..., L). */
DM_CUDA_KERNEL(attention_cuda) {
  bool done;
  DM_TRY(dm_dnn_attention(c, &done));
  if (done) return DM_OK;
  DM_TRY(dm_plan_fallback(c->op->name));
  return c->out[0]->dtype == DM_F64 ? forward<double>(c) : forward<float>(c);
}

/* in: gy, q, k, v, y, lse, and maybe a mask and the generator; out: gq, gk, gv, of the shapes
   of q, k and v. */
DM_CUDA_KERNEL(attention_backward_cuda) {
  bool done;
  DM_TRY(dm_dnn_attention_backward(c, &done));
  if (done) return DM_OK;
  DM_TRY(dm_plan_fallback(c->op->name));
  return c->out[0]->dtype == DM_F64 ? backward<double>(c) : backward<float>(c);
}
