#pragma once

// Included by files that are compiled for wider instruction sets than the rest: nothing here may pull in
// inline functions of the standard library, whose copies the linker could pick for every processor.
// The C names of these headers are macros and types only. NOLINTBEGIN(modernize-deprecated-headers)
#include <stddef.h>
#include <stdint.h>
// NOLINTEND(modernize-deprecated-headers)

namespace nexus::detail {

// A matrix is stored in tiles of 8 rows, and a tile in chunks of 64 columns: the 8 rows' parts of a chunk lie
// one after another. A scan thus reads memory strictly forward, which the prefetchers follow best, while each
// part of the query that it loads serves 8 rows. Missing rows and columns are zero.
enum : size_t { kTileRows = 8, kChunkBytes = 64, kTileChunkBytes = kTileRows * kChunkBytes };

// Far enough ahead to cover a memory access, and past the page that hardware prefetchers stop at.
enum : size_t { kPrefetchBytes = 4096 };

struct ScanJob {
    const int8_t* tiles;  // 64-byte aligned
    size_t n_tiles;
    size_t n_chunks;           // per row
    const int8_t* query;       // n_chunks * 64 numbers, 64-byte aligned
    const uint8_t* magnitude;  // |query|
    const uint8_t* biased;     // query + 128
    const int32_t* row_sums;   // sum of each row, for kernels that use `biased`
    int32_t* dots;             // n_tiles * 8
    bool prefetch;             // the matrix does not fit the caches
};

using ScanTiles = void (*)(const ScanJob& job);

void scan_tiles_scalar(const ScanJob& job);
void scan_tiles_avx2(const ScanJob& job);
void scan_tiles_avx512vnni(const ScanJob& job);
void scan_tiles_neon(const ScanJob& job);
void scan_tiles_neon_dotprod(const ScanJob& job);

}  // namespace nexus::detail
