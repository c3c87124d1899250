#pragma once

#include <cstddef>

namespace nexus {

// Turns `source` [n_rows, n_columns] of 16-bit numbers into `target` [n_columns, n_rows]. Neither needs
// alignment, and they must not overlap.
void transpose(const void* source, std::size_t n_rows, std::size_t n_columns, void* target);

}  // namespace nexus
