// How the blocks of attend_pages share the pages that all rows of a call look at, worked out by each
// block from the rows' places alone.
//
// Rows that lie side by side and are of one sequence make tiles of up to 64 (token, head) rows; a tile
// and a key head are an entry, which costs as many units as it has pages. The units of all entries lie
// in a row, and every block takes an equal stretch of them: the end of one entry, some whole ones, the
// beginning of another. What it has of an entry is a segment.
#ifndef KM_CUDA_ATTEND_SHARE_CUH
#define KM_CUDA_ATTEND_SHARE_CUH
#include "backend/cuda/kernels/attend/attend.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

constexpr int TILE = KM_ATTEND_TILE, WORKERS = 128; // threads that work; a warp beside them fetches
constexpr int MOST_ROWS = KM_ATTEND_SHARED_ROWS;
// Putting parts together takes longer than a few pages: what a block has at least, entries that are not
// shared, and parts that are not made.
constexpr int LEAST_UNITS = 4, WHOLE_PAGES = 12, LEAST_PART = 3;

// In shared memory.
struct Tiles {
    int row[MOST_ROWS];        // the first, and how many << 16
    int page[MOST_ROWS];       // the first that some row of it sees
    int before[MOST_ROWS + 1]; // pages of all tiles before it
    int total[4];              // a warp's, of a scan
    int n;
};

// The sum, or the largest, of what threads before this one have; all workers call it. *all: of all.
template <bool LARGEST> __device__ __forceinline__ int scan(int v, int none, int *room, int *all) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = v;
    auto join = [](int x, int y) { return LARGEST ? max(x, y) : x + y; };
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
        int other = __shfl_up_sync(ALL_LANES, sum, s);
        if (lane >= s) sum = join(sum, other);
    }
    named_sync(1, WORKERS);
    if (lane == 31) room[warp] = sum;
    named_sync(1, WORKERS);
    int before = none;
    *all = none;
#pragma unroll
    for (int w = 0; w < WORKERS / 32; w++) {
        if (w < warp) before = join(before, room[w]);
        *all = join(*all, room[w]);
    }
    int left = __shfl_up_sync(ALL_LANES, sum, 1);
    return lane ? join(before, left) : before;
}

// place (2, MOST_ROWS) is for sequences and positions on the way. All workers; a barrier must follow.
// Rows that do not count are in no tile; whether a row's pages exist is not looked at here.
__device__ __forceinline__ void find_tiles(const km_attend_args &a, int tokens, Tiles *t,
                                           int *place) {
    int *sequence = place, *position = place + MOST_ROWS, most = a.max_pages * PAGE;
    for (int i = threadIdx.x; i < a.rows; i += WORKERS) {
        int2 r = reinterpret_cast<const int2 *>(a.row)[i];
        bool counts = r.x >= 0 && r.x < a.sequences && r.y >= 0 && r.y < most;
        sequence[i] = counts ? r.x : -1, position[i] = r.y;
    }
    named_sync(1, WORKERS);
    int each = (a.rows + WORKERS - 1) / WORKERS, from = threadIdx.x * each;
    int to = min(from + each, a.rows), all;
    auto begins = [&](int r) { return r == 0 || sequence[r] != sequence[r - 1]; };
    int begin = -1, tiles = 0;
    for (int r = from; r < to; r++)
        if (begins(r)) begin = r;
    int run = scan<true>(begin, -1, t->total, &all); // where the run of the row before mine began
    for (int pass = 0; pass < 2; pass++) {
        int at = pass ? scan<false>(tiles, 0, t->total, &all) : 0, start = run;
        for (int r = from; r < to; r++) {
            if (begins(r)) start = r;
            if (sequence[r] < 0 || (r - start) % tokens) continue;
            if (pass)
                t->row[at++] = r;
            else
                tiles++;
        }
    }
    int n = all;
    named_sync(1, WORKERS);
    each = (n + WORKERS - 1) / WORKERS, from = threadIdx.x * each, to = min(from + each, n);
    int pages = 0;
    for (int i = from; i < to; i++) {
        int r0 = t->row[i], count = 0, low = INT32_MAX, high = 0;
        for (; count < tokens && r0 + count < a.rows && sequence[r0 + count] == sequence[r0];
             count++) {
            int p = position[r0 + count];
            high = max(high, p);
            low = min(low, a.window > 0 && p >= a.window ? p - a.window + 1 : 0);
        }
        t->row[i] = r0 | count << 16;
        t->page[i] = low / PAGE;
        t->before[i] = high / PAGE - low / PAGE + 1;
        pages += t->before[i];
    }
    int at = scan<false>(pages, 0, t->total, &all);
    for (int i = from; i < to; i++) {
        int mine = t->before[i];
        t->before[i] = at, at += mine;
    }
    if (threadIdx.x == 0) t->before[n] = all, t->n = n;
}

// A block's segments, one after the other. Where a block's stretch would end within an entry of few
// pages, or near the end of a longer one, it ends where that entry does.
struct Walk {
    const Tiles *t;
    int heads, each, unit, end; // key heads with their parts; units of a block; mine
    // Of the segment:
    int tile, head, row, tokens; // its rows
    int page, pages;             // its pages
    int index, parts,
        first; // which of the entry's segments, of how many, and the first one's block
    bool last; // it has the entry's last page

    __device__ __forceinline__ Walk(const Tiles *t, int heads) : t(t), heads(heads) {
        int units = t->before[t->n] * heads;
        each = max((units + (int)gridDim.x - 1) / (int)gridDim.x, LEAST_UNITS);
        // Where there is less than a short entry for each block, the first have one: two of them
        // would else stand on one multiprocessor and none on another.
        int mean = t->before[t->n] / max(t->n, 1);
        if (mean <= WHOLE_PAGES) each = max(each, mean);
        end = boundary((blockIdx.x + 1) * each), unit = boundary(blockIdx.x * each);
    }
    // The tile that has unit u.
    __device__ __forceinline__ int tile_of(int u) const {
        int low = 0, high = t->n;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (t->before[middle] * heads <= u)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
    // Where a stretch ends that would end in front of unit u; `tile` is then the tile there.
    __device__ __forceinline__ int boundary(int u) {
        int units = t->before[t->n] * heads;
        if (u >= units) return units;
        tile = tile_of(u);
        int all = t->before[tile + 1] - t->before[tile];
        int from = (u - t->before[tile] * heads) % all, start = u - from;
        if (all <= WHOLE_PAGES) return 2 * from < all ? start : start + all;
        return from < LEAST_PART ? start : all - from < LEAST_PART ? start + all : u;
    }
    __device__ __forceinline__ bool next() {
        if (unit >= end) return false;
        while (t->before[tile + 1] * heads <= unit) tile++;
        int all = t->before[tile + 1] - t->before[tile], from = unit - t->before[tile] * heads;
        head = from / all, from -= head * all;
        int start = unit - from; // the entry's first unit
        pages = min(end - unit, all - from), page = t->page[tile] + from;
        last = from + pages == all;
        first = blockIdx.x, index = 0, parts = 1;
        if (all > WHOLE_PAGES) { // blocks whose stretch begins within the entry
            int low = (start + LEAST_PART + each - 1) / each,
                high = (start + all - LEAST_PART) / each;
            first = low - 1, parts = max(high - low + 1, 0) + 1;
            index = from ? blockIdx.x - first : 0;
        }
        row = t->row[tile] & 0xffff, tokens = t->row[tile] >> 16;
        unit += pages;
        return true;
    }
    // Which of all blocks' 2 is that of the entry's part i: a block begins with one and ends with one.
    __device__ __forceinline__ int slot(int i) const { return 2 * (first + i) + (i == 0); }
};

#endif
