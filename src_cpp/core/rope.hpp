#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/half.hpp"

namespace nexus {

// Which two numbers of a head form a rotating pair.
enum class RopePairing : std::uint8_t {
    kNorm = 0,  // (2i, 2i + 1)
    kNeox = 1,  // (i, i + n_rot / 2)
};

enum class RopeKernel : std::uint8_t { kScalar, kF16c };

std::optional<RopePairing> parse_rope_pairing(std::string_view name) noexcept;
std::string_view name_of(RopePairing pairing) noexcept;
std::optional<RopeKernel> parse_rope_kernel(std::string_view name) noexcept;
std::string_view name_of(RopeKernel kernel) noexcept;
// The kernels this processor runs, best first. All give the same bits.
std::vector<RopeKernel> rope_kernels();

struct RopeShape {
    std::size_t n_head = 0;
    std::size_t head_dim = 0;
    std::size_t n_rot = 0;  // the first n_rot numbers of each head rotate; even, at most head_dim
    RopePairing pairing = RopePairing::kNorm;
};

struct YarnScaling {
    double ext_factor = 0.0;  // 0 turns the interpolation by frequency off
    double n_ctx_orig = 0.0;
    double beta_fast = 32.0;
    double beta_slow = 1.0;
};

// Radians per position of each pair: scale * base^(-2i / n_rot) / factor[i], mixed as YaRN prescribes when
// ext_factor is set. The attention magnitude that YaRN also defines is no part of a rotation.
std::vector<double> rope_frequencies(std::size_t n_rot, double base, double scale,
                                     std::span<const float> factors, const YarnScaling& yarn = {});

// Rotates row r of `rows` [n_rows, n_head * head_dim] in place by deltas[r] positions. Norms are kept, and a
// delta of 0 leaves the row's bits alone. Angles are computed in double, products in float.
void rotate_keys(Half* rows, const RopeShape& shape, std::span<const std::int32_t> deltas,
                 std::span<const double> inv_freq, RopeKernel kernel);

}  // namespace nexus
