#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/scan_kernel.hpp"
#include "core/tile_store.hpp"

namespace nexus {

// Where a search writes its best rows (or groups), best first.
struct TopKResult {
    std::span<std::int64_t> ids;
    std::span<std::int32_t> dots;
    std::size_t size = 0;     // filled; at most ids.size() and what there is
    std::int32_t margin = 0;  // best dot less second best; 0 with fewer than two candidates
};

// Rows of int8 numbers that a query is compared with by exact dot products. Searching is const and may run in
// several threads; who changes rows must keep searches out meanwhile.
class Int8Matrix {
  public:
    static constexpr std::size_t kMaxDim = 32768;  // no 32-bit sum can overflow

    explicit Int8Matrix(std::size_t dim, ScanKernel kernel);

    [[nodiscard]] std::size_t size() const noexcept { return store_.n_rows(); }
    [[nodiscard]] std::size_t dim() const noexcept { return store_.dim(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return store_.bytes(); }
    [[nodiscard]] ScanKernel kernel() const noexcept { return kernel_; }

    // Rows hold numbers in [-127, 127]; -128 throws std::invalid_argument. `rows` is [n, dim].
    void append(std::span<const std::int8_t> rows);
    void set_row(std::size_t index, std::span<const std::int8_t> row);
    void remove_row(std::size_t index);
    void read_rows(std::span<std::int8_t> rows) const;

    // One dot product per row.
    void dots(std::span<const std::int8_t> query, std::span<std::int32_t> out) const;
    // The best rows; ties go to the lower row.
    void top_k(std::span<const std::int8_t> query, TopKResult& result) const;
    // The best groups, each scored by its best row; groups[i] is row i's group in [0, n_groups). Groups
    // without rows are no candidates.
    void top_k_pooled(std::span<const std::int8_t> query, std::span<const std::int32_t> groups,
                      std::size_t n_groups, TopKResult& result) const;

  private:
    template <typename Visit>
    void scan(std::span<const std::int8_t> query, Visit visit) const;
    [[nodiscard]] std::size_t checked(std::size_t index) const;

    detail::TileStore store_;
    ScanKernel kernel_;
};

// Symmetric quantization of one row: the largest magnitude becomes 127. Returns the scale that undoes it, 0
// for a row of zeros. Throws std::invalid_argument for numbers that are not finite.
float quantize_row(std::span<const float> row, std::span<std::int8_t> out);

}  // namespace nexus
