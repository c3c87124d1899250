#include "core/tile_store.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

namespace nexus::detail {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20U;

// Large matrices go on huge pages where the system offers them: a scan then misses the TLB 512 times less.
std::int8_t* allocate(std::size_t n_bytes) {
    const bool huge = n_bytes >= kHugePage;
    const std::size_t alignment = huge ? kHugePage : kChunkBytes;
    const std::size_t rounded = (n_bytes + alignment - 1) / alignment * alignment;
    void* region = std::aligned_alloc(alignment, rounded);
    if (region == nullptr) {
        throw std::bad_alloc();
    }
#if defined(MADV_HUGEPAGE)
    if (huge) {
        madvise(region, rounded, MADV_HUGEPAGE);  // advice: without it the scan is right, only slower
    }
#endif
    std::memset(region, 0, rounded);
    return static_cast<std::int8_t*>(region);
}

}  // namespace

void TileStore::Free::operator()(std::int8_t* data) const noexcept { std::free(data); }

TileStore::TileStore(std::size_t dim) : dim_(dim), n_chunks_((dim + kChunkBytes - 1) / kChunkBytes) {}

void TileStore::reserve(std::size_t n_tiles) {
    if (n_tiles <= capacity_tiles_) {
        return;
    }
    const std::size_t capacity = std::max(n_tiles, capacity_tiles_ + capacity_tiles_ / 2);
    std::unique_ptr<std::int8_t, Free> grown(allocate(capacity * tile_bytes()));
    sums_.resize(capacity * kTileRows);
    if (data_) {
        std::memcpy(grown.get(), data_.get(), bytes());
    }
    data_ = std::move(grown);
    capacity_tiles_ = capacity;
}

void TileStore::append(const std::int8_t* rows, std::size_t n) {
    reserve((n_rows_ + n + kTileRows - 1) / kTileRows);
    for (std::size_t i = 0; i < n; ++i) {
        set(n_rows_ + i, rows + i * dim_);
    }
    n_rows_ += n;
}

void TileStore::set(std::size_t index, const std::int8_t* row) noexcept {
    for (std::size_t chunk = 0; chunk < n_chunks_; ++chunk) {
        const std::size_t start = chunk * kChunkBytes;
        std::memcpy(data_.get() + chunk_offset(index, chunk), row + start,
                    std::min<std::size_t>(kChunkBytes, dim_ - start));
    }
    sums_[index] = std::accumulate(row, row + dim_, std::int32_t{0});
}

void TileStore::read(std::size_t index, std::int8_t* row) const noexcept {
    for (std::size_t chunk = 0; chunk < n_chunks_; ++chunk) {
        const std::size_t start = chunk * kChunkBytes;
        std::memcpy(row + start, data_.get() + chunk_offset(index, chunk),
                    std::min<std::size_t>(kChunkBytes, dim_ - start));
    }
}

void TileStore::remove(std::size_t index) {
    std::vector<std::int8_t> row(dim_);
    for (std::size_t i = index; i + 1 < n_rows_; ++i) {
        read(i + 1, row.data());
        set(i, row.data());
    }
    std::fill(row.begin(), row.end(), std::int8_t{0});
    set(n_rows_ - 1, row.data());  // rows past the end are zero
    --n_rows_;
}

}  // namespace nexus::detail
