#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/scan_job.hpp"

namespace nexus::detail {

// Rows of int8 numbers in the tiled order of scan_job.hpp, with the sum of each row beside them.
class TileStore {
  public:
    explicit TileStore(std::size_t dim);

    [[nodiscard]] std::size_t dim() const noexcept { return dim_; }
    [[nodiscard]] std::size_t n_rows() const noexcept { return n_rows_; }
    [[nodiscard]] std::size_t n_tiles() const noexcept { return (n_rows_ + kTileRows - 1) / kTileRows; }
    [[nodiscard]] std::size_t n_chunks() const noexcept { return n_chunks_; }
    [[nodiscard]] std::size_t tile_bytes() const noexcept { return n_chunks_ * kTileChunkBytes; }
    [[nodiscard]] std::size_t bytes() const noexcept { return n_tiles() * tile_bytes(); }
    [[nodiscard]] const std::int8_t* tiles() const noexcept { return data_.get(); }
    [[nodiscard]] const std::int32_t* row_sums() const noexcept { return sums_.data(); }

    // `rows` is [n, dim], row-major.
    void append(const std::int8_t* rows, std::size_t n);
    void set(std::size_t index, const std::int8_t* row) noexcept;
    void read(std::size_t index, std::int8_t* row) const noexcept;
    // Later rows move up by one.
    void remove(std::size_t index);

  private:
    struct Free {
        void operator()(std::int8_t* data) const noexcept;
    };

    void reserve(std::size_t n_tiles);
    [[nodiscard]] std::size_t chunk_offset(std::size_t row, std::size_t chunk) const noexcept {
        return (row / kTileRows * n_chunks_ + chunk) * kTileChunkBytes + row % kTileRows * kChunkBytes;
    }

    std::size_t dim_;
    std::size_t n_chunks_;
    std::size_t n_rows_ = 0;
    std::size_t capacity_tiles_ = 0;
    std::unique_ptr<std::int8_t, Free> data_;
    std::vector<std::int32_t> sums_;  // one per row of the capacity
};

}  // namespace nexus::detail
