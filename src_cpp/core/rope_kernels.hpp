#pragma once

#include <cstddef>
#include <vector>

#include "core/rope.hpp"

namespace nexus::detail {

struct RotationTable {
    explicit RotationTable(std::size_t n_pairs) : cosine(n_pairs), sine(n_pairs) {}
    std::vector<float> cosine;  // one per pair
    std::vector<float> sine;
};

// Rotates the first 2 * table size numbers of one head.
using RotateHead = void (*)(Half* head, const RotationTable& table);

RotateHead select_rotation(RopeKernel kernel, RopePairing pairing);

}  // namespace nexus::detail
