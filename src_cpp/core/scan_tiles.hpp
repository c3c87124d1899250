#pragma once

#include "core/scan_job.hpp"

namespace nexus::detail {

// The loop that all kernels share. An instruction set gives: Acc, a vector of 32-bit sums; kPart, how many
// numbers it takes at a time, few enough that the sums of 8 rows and the query's part stay in registers;
// Query, that part of the query; zero(); load(job, start); add(acc, row, query); and store(acc[8], row_sums,
// dots), which writes the 8 rows' dot products.
//
// `Isa` must be a type of an unnamed namespace, so that its instantiation stays inside its own file.
template <typename Isa, bool kPrefetch>
void scan_each_tile(const ScanJob& job) {
    const int8_t* data = job.tiles;
    for (size_t tile = 0; tile < job.n_tiles; ++tile) {
        typename Isa::Acc acc[kTileRows];  // NOLINT(modernize-avoid-c-arrays): see scan_job.hpp
        for (typename Isa::Acc& sum : acc) {
            sum = Isa::zero();
        }
        for (size_t chunk = 0; chunk < job.n_chunks; ++chunk) {
            if constexpr (kPrefetch) {
                for (size_t line = 0; line < kTileChunkBytes; line += 64) {
                    __builtin_prefetch(data + kPrefetchBytes + line);
                }
            }
            for (size_t part = 0; part < kChunkBytes; part += Isa::kPart) {
                const typename Isa::Query query = Isa::load(job, chunk * kChunkBytes + part);
                for (size_t row = 0; row < kTileRows; ++row) {
                    acc[row] = Isa::add(acc[row], data + row * kChunkBytes + part, query);
                }
            }
            data += kTileChunkBytes;
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
