#include "core/transpose.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace nexus {
namespace {

using Element = std::uint16_t;
// A tile's rows and columns each span one cache line, so that every line is fetched once.
constexpr std::size_t kTile = 32;

void move_one(const std::byte* from, std::byte* to) noexcept { std::memcpy(to, from, sizeof(Element)); }

}  // namespace

void transpose(const void* source, std::size_t n_rows, std::size_t n_columns, void* target) {
    const auto* from = static_cast<const std::byte*>(source);
    auto* to = static_cast<std::byte*>(target);
    for (std::size_t row0 = 0; row0 < n_rows; row0 += kTile) {
        const std::size_t row1 = std::min(n_rows, row0 + kTile);
        for (std::size_t column0 = 0; column0 < n_columns; column0 += kTile) {
            const std::size_t column1 = std::min(n_columns, column0 + kTile);
            for (std::size_t column = column0; column < column1; ++column) {
                for (std::size_t row = row0; row < row1; ++row) {
                    move_one(from + (row * n_columns + column) * sizeof(Element),
                             to + (column * n_rows + row) * sizeof(Element));
                }
            }
        }
    }
}

}  // namespace nexus
