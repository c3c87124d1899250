#pragma once

#include "core/scan_job.hpp"

namespace nexus::detail {

// The loop that all kernels share. An instruction set gives: Acc, a vector of 32-bit sums; Query, the part of
// the query that one chunk needs; zero(); load(job, chunk); add(acc, row, query), which adds the products of
// 64 numbers; and store(acc[8], row_sums, dots), which writes the 8 rows' dot products.
//
// `Isa` must be a type of an unnamed namespace, so that its instantiation stays inside its own file.
template <typename Isa, bool kPrefetch>
void scan_each_tile(const ScanJob& job) {
    const int8_t* data = job.tiles;
    for (size_t tile = 0; tile < job.n_tiles; ++tile) {
        typename Isa::Acc acc[kTileRows];
        for (size_t row = 0; row < kTileRows; ++row) {
            acc[row] = Isa::zero();
        }
        for (size_t chunk = 0; chunk < job.n_chunks; ++chunk) {
            const typename Isa::Query query = Isa::load(job, chunk);
            for (size_t row = 0; row < kTileRows; ++row) {
                if constexpr (kPrefetch) {
                    __builtin_prefetch(data + kPrefetchBytes);
                }
                acc[row] = Isa::add(acc[row], data, query);
                data += kChunkBytes;
            }
        }
        Isa::store(acc, job.row_sums + tile * kTileRows, job.dots + tile * kTileRows);
    }
}

template <typename Isa>
void scan_tiles(const ScanJob& job) {
    if (job.prefetch) {
        scan_each_tile<Isa, true>(job);
    } else {
        scan_each_tile<Isa, false>(job);
    }
}

}  // namespace nexus::detail
